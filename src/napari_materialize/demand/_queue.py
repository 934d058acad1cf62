"""The queue: which job is next, and what each claim, release, start and end changes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from napari_materialize.demand._expected import Expected
from napari_materialize.demand._jobs import (
    BACKGROUND,
    CLIENT,
    Claim,
    Finished,
    Job,
    Line,
    Phase,
    Rank,
    Request,
)

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Mapping

__all__ = ["Queue"]

PATIENCE = 32
"""Client jobs that may start ahead of a background job that could run before it gets a turn."""


class Queue[K: Hashable]:
    """Jobs, the claims on them, and their order.

    Parameters
    ----------
    lanes : mapping of str to int
        The slots of each lane: how many jobs may run at a time.
    patience : int
        Client jobs that may start ahead of a runnable background job.

    Notes
    -----
    `claim`, `release`, `next`, `admit` and `finish` cost O(log n) in the number of waiting jobs,
    amortised.

    Examples
    --------
    >>> queue = Queue({"compute": 1})
    >>> first = queue.claim(Request("job", "compute"), background=True)
    >>> second = queue.claim(Request("viewer", "compute"))
    >>> queue.next("compute")
    'viewer'
    >>> queue.next("compute") is None  # one slot
    True
    >>> queue.finish("viewer").claims == (second,)
    True
    >>> queue.release(first)  # nobody waits for it any more: dropped, never run
    ['job']
    """

    def __init__(self, lanes: Mapping[str, int], patience: int = PATIENCE) -> None:
        if any(slots < 1 for slots in lanes.values()):
            raise ValueError(f"queue: every lane needs at least one slot, got {dict(lanes)}")
        self.lanes = dict(lanes)
        self._patience = patience
        self._jobs: dict[K, Job[K]] = {}
        self._lines: dict[tuple[Phase, str, int], Line[K]] = {
            (phase, lane, which): Line(phase)
            for phase in (Phase.WAITING, Phase.RUNNABLE)
            for lane in lanes
            for which in (CLIENT, BACKGROUND)
        }
        self._waiting, self._runnable = (
            {
                lane: [self._lines[phase, lane, which] for which in (CLIENT, BACKGROUND)]
                for lane in lanes
            }
            for phase in (Phase.WAITING, Phase.RUNNABLE)
        )
        self._needed: dict[str, Line[K]] = {lane: Line(Phase.WAITING) for lane in lanes}
        """Waiting jobs that others wait for: they are let in whatever else waits."""
        self._trimmed: list[K] = []
        self._numbers = itertools.count()
        self._running: dict[tuple[str, int], int] = dict.fromkeys(
            ((lane, which) for lane in lanes for which in (CLIENT, BACKGROUND)), 0
        )
        self._passed: dict[str, int] = dict.fromkeys(lanes, 0)
        self.expected = Expected(patience)
        """Who is about to claim something."""
        self._admitted: dict[tuple[str, tuple[int, int, int]], int] = {}
        self.dropped: dict[tuple[int, int], int] = {}
        """Jobs dropped unrun, by (class, level)."""

    # ------------------------------------------------------------------ claims

    def claim(
        self,
        request: Request[K],
        *,
        background: bool = False,
        priority: int = 0,
        begins: str | None = None,
    ) -> Claim[K]:
        """Claim a key; make its job if there is none.

        A job that ``begins`` in another lane than its own is RUNNABLE, takes a slot of that, and
        asks to `go_on` in its own.
        """
        which = BACKGROUND if background else CLIENT
        rank = (which, priority, request.level, next(self._numbers))
        return self._claim(request, rank, None, begins)

    def release(self, claim: Claim[K]) -> list[K]:
        """Give a claim up; return the keys of the jobs that are dropped for it, never to run.

        A running job is not dropped: it finishes, or notices through `wanted`. Releasing twice,
        or after the job is over, does nothing.
        """
        dropped: list[K] = []
        pending = [claim]
        while pending:
            released = pending.pop()
            job, released.job = released.job, None
            if job is None:
                continue
            del job.claims[released.number]
            if job.claims:
                self._rerank(job)
            elif job.phase is not Phase.RUNNING:
                self._dissolve(job)
                self._forget(job)
                key = (job.rank[0], job.request.level)
                self.dropped[key] = self.dropped.get(key, 0) + 1
                dropped.append(job.request.key)
                pending.extend(job.inputs)
                job.inputs = []
        return dropped

    def _claim(
        self,
        request: Request[K],
        rank: Rank | None,
        parent: Job[K] | None,
        begins: str | None = None,
    ) -> Claim[K]:
        job = self._jobs.get(request.key)
        if job is None:
            waits = request.has_inputs and begins is None
            phase = Phase.WAITING if waits else Phase.RUNNABLE
            own = parent.rank if parent is not None else rank
            assert own is not None
            needed = parent is not None
            job = Job(request, next(self._numbers), own, phase, needed=needed, begins=begins)
            self._jobs[request.key] = job
            self._enter(job)
        claim = Claim(job, next(self._numbers), rank, parent)
        job.claims[claim.number] = claim
        if len(job.claims) > 1:  # the first has the job's rank
            self._rerank(job)
        return claim

    def _rerank(self, changed: Job[K]) -> None:
        """Give a job, and through its claims the jobs it feeds on, the rank its claims have now."""
        pending = [changed]
        while pending:
            job = pending.pop()
            if not job.claims:
                continue
            rank = min(claim.rank for claim in job.claims.values())
            needed = any(claim.parent is not None for claim in job.claims.values())
            if rank == job.rank and needed == job.needed:
                continue
            self._leave(job)
            job.rank, job.needed = rank, needed
            self._enter(job)
            if job.block and (rank[0] == CLIENT or rank < job.block[0].rank):
                self._dissolve(job)
            pending.extend(claim.job for claim in job.inputs if claim.job is not None)

    # ------------------------------------------------------------------ lines

    def _line(self, job: Job[K]) -> Line[K] | None:
        if job.phase is Phase.WAITING and job.needed:
            return self._needed[job.lane]
        return self._lines.get((job.phase, job.lane, job.rank[0]))

    def _enter(self, job: Job[K]) -> None:
        if job.bucket is not None:
            self._admit_count(job, +1)
        line = self._line(job)
        if line is not None:
            line.live += 1
            line.push(job)

    def _leave(self, job: Job[K]) -> None:
        if job.bucket is not None:
            self._admit_count(job, -1)
        line = self._line(job)
        if line is not None:
            line.leave()

    def _admit_count(self, job: Job[K], change: int) -> None:
        if change > 0:
            job.bucket = job.rank[:3]
        assert job.bucket is not None
        place = (job.request.lane, job.bucket)
        count = self._admitted.get(place, 0) + change
        if count:
            self._admitted[place] = count
        else:
            self._admitted.pop(place, None)

    def _move(self, job: Job[K], phase: Phase) -> None:
        self._leave(job)
        job.phase = phase
        self._enter(job)

    def _forget(self, job: Job[K]) -> None:
        self._leave(job)
        job.bucket = None
        job.phase = Phase.RUNNING  # no line takes it, and outdated entries are skipped
        del self._jobs[job.request.key]

    # ------------------------------------------------------------------ inputs

    def admit(self, lane: str) -> K | None:
        """Return the next waiting key whose inputs should be asked for, or None for now.

        For each class, priority and level at most twice as many jobs as there are slots are
        let in ahead of their start, so that inputs are read while others compute and never
        for all that wait. What a job that was let in waits for is let in besides. Answer with
        `expand`.
        """
        needed = self._needed[lane].first()
        if needed is not None:
            return needed.request.key
        for line in self._waiting[lane]:
            if not line.live or (job := line.first()) is None:
                continue
            if self._admitted.get((lane, job.rank[:3]), 0) < 2 * self.lanes[lane]:
                job.bucket = job.rank[:3]
                self._admit_count(job, +1)
                return job.request.key
        return None

    def expand(self, key: K, missing: Iterable[Request[K]]) -> list[K]:
        """Claim a waiting job's missing inputs; return those whose own inputs are wanted now.

        The job is BLOCKED until they are over, RUNNABLE at once if none is missing.
        """
        job = self._jobs[key]
        if job.phase is not Phase.WAITING:
            raise ValueError(f"queue: only a waiting job is expanded, {key!r} is {job.phase.value}")
        further = []
        for request in missing:
            claim = self._claim(request, None, job)
            job.inputs.append(claim)
            assert claim.job is not None
            if claim.job.phase is Phase.WAITING:
                further.append(request.key)
        job.missing = len(job.inputs)
        self._move(job, Phase.BLOCKED if job.missing else Phase.RUNNABLE)
        return further

    # ------------------------------------------------------------------ blocks

    def bind(self, key: K, others: Iterable[K]) -> None:
        """Let waiting background jobs be computed along with a waiting one, in its place.

        They stand in no line of their own. A client's claim on any of them, or the end of the
        last claim on any of them, dissolves the block: each is on its own again, in its place.
        """
        block = [self._jobs[key], *(self._jobs[other] for other in others)]
        for job in block:
            if job.phase is not Phase.WAITING or job.rank[0] != BACKGROUND or job.block:
                raise ValueError(
                    f"queue: only waiting background jobs are bound, {job.request.key!r} is "
                    f"{job.phase.value}"
                )
        for job in block:
            job.block = block
        for job in block[1:]:
            self._move(job, Phase.BOUND)

    def start_bound(self, key: K) -> list[K]:
        """Start the jobs that are bound to one that just started, in its slot; return them."""
        block, started = self._jobs[key].block or [], []
        for job in block:
            job.block = None
            if job.phase is Phase.BOUND:
                self._start(job)
                started.append(job.request.key)
        return started

    def _dissolve(self, job: Job[K]) -> None:
        block, job.block = job.block, None
        for one in block or ():
            one.block = None
            if one.phase is Phase.BOUND:
                self._move(one, Phase.WAITING)
        if block and block[0].phase is not Phase.RUNNING:
            self._trimmed.append(block[0].request.key)

    def take_trimmed(self) -> K | None:
        """Return a key that led a block which dissolved since: its inputs may be too many."""
        while self._trimmed:
            key = self._trimmed.pop()
            if self.phase(key) in (Phase.BLOCKED, Phase.RUNNABLE):
                return key
        return None

    def trim(self, key: K, keep: Container[K]) -> list[K]:
        """Give up a job's claims on inputs other than ``keep``; return the dropped keys."""
        job = self._jobs[key]
        extra = [c for c in job.inputs if c.job is not None and c.job.request.key not in keep]
        job.inputs = [claim for claim in job.inputs if claim not in extra]
        dropped = [one for claim in extra for one in self.release(claim)]
        job.missing = len(job.inputs)
        if job.missing == 0 and job.phase is Phase.BLOCKED:
            self._move(job, Phase.RUNNABLE)
        return dropped

    # ------------------------------------------------------------------ running

    def next(self, lane: str) -> K | None:
        """Start the next job of a lane and return its key; None if none may start now."""
        clients, others = self._runnable[lane]
        if not clients.live and not others.live:
            return None
        client, background = clients.first(), others.first()
        if (client is None and background is None) or self.full(lane):
            return None
        if self._running[lane, BACKGROUND] >= self._most(lane):
            background = None
        if client is not None and (background is None or self._passed[lane] < self._patience):
            job = client
            if background is not None:
                self._passed[lane] += 1
        elif background is not None:
            job = background
            self._passed[lane] = 0
        else:
            return None
        self._take_slot(job, lane)
        self._start(job)
        return job.request.key

    def _most(self, lane: str) -> int:
        """Return how many background jobs of a lane may run at a time."""
        return self.expected.most(max(1, self.lanes[lane] - 1))

    def _take_slot(self, job: Job[K], lane: str) -> None:
        slot = (lane, job.rank[0])
        self._running[slot] += 1
        job.slots += (slot,)

    def go_on(self, key: K, *, holding: bool) -> bool:
        """Let a running job that began in another lane's slot go on in one of its own.

        Parameters
        ----------
        key : hashable
            Whose.
        holding : bool
            Whether it holds the slot it began in as well, until it ends: for a moment's work, so
            that nobody takes up what would have to wait for this one.

        Returns
        -------
        bool
            False if there is no slot for it now. It is running still, and is to be put back.
        """
        job = self._jobs[key]
        lane, background = job.request.lane, job.rank[0] == BACKGROUND
        most = max(1, self.lanes[lane] - 1)
        if self.full(lane) or (background and self._running[lane, BACKGROUND] >= most):
            return False
        if not holding:
            self._free_slots(job)
        self._take_slot(job, lane)
        return True

    def _free_slots(self, job: Job[K]) -> None:
        for slot in job.slots:
            self._running[slot] -= 1
        job.slots = ()

    def expect(self, client: object, *, soon: bool) -> None:
        """Take note that a client is about to claim something, or not any more.

        As long as one is, no background job starts, so that slots are free when it does. Saying so
        counts: from `patience` times in a row on background jobs start again, one at a time. A
        client that is garbage is forgotten.
        """
        self.expected.note(client, soon=soon)

    def join(self, request: Request[K]) -> bool:
        """Let a key run inside the slot of a job that computes it as well.

        Returns
        -------
        bool
            False if it runs already, and is not to be computed by the caller.
        """
        job = self._jobs.get(request.key)
        if job is None:
            number = next(self._numbers)
            rank = (BACKGROUND, 0, request.level, number)
            self._jobs[request.key] = Job(request, number, rank, Phase.RUNNING)
            return True
        if job.phase is Phase.RUNNING:
            return False
        self._dissolve(job)
        self._start(job)
        return True

    def _start(self, job: Job[K]) -> None:
        self._leave(job)
        job.bucket = None
        job.phase = Phase.RUNNING

    def drop_inputs(self, key: K) -> list[K]:
        """Give up the claims a running job still has on its inputs; return the dropped keys."""
        job = self._jobs[key]
        inputs, job.inputs = job.inputs, []
        return [dropped for claim in inputs for dropped in self.release(claim)]

    def finish(self, key: K) -> Finished[K]:
        """Take a running job out, done or failed; return who had waited for it.

        Jobs that had it as an input are one input closer, and RUNNABLE after the last.
        """
        job = self._end(key)
        del self._jobs[key]
        direct: list[Claim[K]] = []
        parents: list[K] = []
        for claim in job.claims.values():
            claim.job = None
            parent = claim.parent
            if parent is None:
                direct.append(claim)
                continue
            parents.append(parent.request.key)
            parent.missing -= 1
            parent.inputs.remove(claim)
            if parent.missing == 0 and parent.phase is Phase.BLOCKED:
                self._move(parent, Phase.RUNNABLE)
        return Finished(tuple(direct), tuple(parents))

    def restart(self, request: Request[K]) -> None:
        """Put a running job back in line: it was abandoned, and somebody wants it after all."""
        job = self._end(request.key)
        job.request = request
        job.phase = Phase.WAITING if job.request.has_inputs else Phase.RUNNABLE
        job.rank = min(claim.rank for claim in job.claims.values())
        job.needed = any(claim.parent is not None for claim in job.claims.values())
        self._enter(job)

    def _end(self, key: K) -> Job[K]:
        job = self._jobs[key]
        if job.phase is not Phase.RUNNING:
            raise ValueError(f"queue: only a running job ends, {key!r} is {job.phase.value}")
        self._free_slots(job)
        job.begins = None
        return job

    # ------------------------------------------------------------------ looking

    def __contains__(self, key: K) -> bool:
        return key in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def full(self, lane: str) -> bool:
        """Whether all slots of a lane are taken."""
        used = self._running[lane, CLIENT] + self._running[lane, BACKGROUND]
        return used >= self.lanes[lane]

    def wanted(self, key: K) -> bool:
        """Whether anybody holds a claim on a key."""
        job = self._jobs.get(key)
        return job is not None and bool(job.claims)

    def phase(self, key: K) -> Phase | None:
        """Return where the key's job stands; None if it has none."""
        job = self._jobs.get(key)
        return None if job is None else job.phase

    def background(self, key: K) -> bool:
        """Whether only background work waits for a key's job."""
        return self._jobs[key].rank[0] == BACKGROUND

    def counts(self) -> dict[tuple[Phase, int, int], int]:
        """Count the jobs by (phase, class, level)."""
        counts: dict[tuple[Phase, int, int], int] = {}
        for job in self._jobs.values():
            place = (job.phase, job.rank[0], job.request.level)
            counts[place] = counts.get(place, 0) + 1
        return counts
