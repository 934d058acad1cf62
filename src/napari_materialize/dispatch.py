"""Where a view, the queue and the cache meet: what a claim, a start and an end mean for each.

A `Dispatch` is plain, synchronous and unlocked, like the two it drives. It returns what should be
run, and who should be told what; the engine, which has the lock and the threads, does so. So every
interleaving of claims, releases, starts and ends can be tried as plain calls.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.blocks import BlockLimits
from napari_materialize.cache import ChunkCache, ChunkState, Pool
from napari_materialize.demand import Phase, Queue, Request
from napari_materialize.errors import ChunkError
from napari_materialize.geometry import Box, box_around
from napari_materialize.ops import Abandoned
from napari_materialize.pace import Pace
from napari_materialize.stages import ChunkKey
from napari_materialize.uses import Regions, found_rest
from napari_materialize.written import Places

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy as np

    from napari_materialize.blocks import Rest
    from napari_materialize.claims import ChunkClaim
    from napari_materialize.demand import Claim
    from napari_materialize.geometry import Index
    from napari_materialize.stages import Stage

__all__ = ["COMPUTE", "READ", "Dispatch", "Outcome", "Start"]

READ, COMPUTE = "read", "compute"
"""The lanes: reading a source never holds a slot of the other."""


class Start(NamedTuple):
    """One computation that begins now."""

    stage: Stage
    """Who computes."""

    members: tuple[ChunkKey, ...]
    """The chunks it was started for, then those it yields besides."""

    asked: tuple[Index, ...]
    """The box of the chunks it was started for, in order; some of it may not be needed."""

    background: bool
    """Whether only background work waits for it, as of now."""


class Outcome(NamedTuple):
    """What to tell the holder of a claim."""

    claim: ChunkClaim
    value: np.ndarray | None
    error: BaseException | None


@dataclass(slots=True)
class _Job:
    """What has to be known of a chunk that is asked for and not there yet."""

    stage: Stage
    pinned: list[ChunkKey] = field(default_factory=list)
    """Inputs that are READY and held for it."""
    failed: list[ChunkKey] = field(default_factory=list)
    """Inputs that failed."""
    error: Exception | None = None
    """What an op raised when it was asked which inputs it needs."""


class Dispatch:
    """Drives one queue and one cache.

    Parameters
    ----------
    lanes : mapping of str to int
        Slots of the lanes ``read`` and ``compute``.
    budgets : mapping of Pool to int
        Bytes per pool.
    limits : BlockLimits, optional
        How large a computation of several chunks may be.
    """

    def __init__(
        self,
        lanes: Mapping[str, int],
        budgets: Mapping[Pool, int],
        limits: BlockLimits | None = None,
    ) -> None:
        self.pace = Pace(limits or BlockLimits(lanes=max(1, lanes[COMPUTE] - 1)))
        """How many chunks background work computes in one call."""
        self.queue: Queue[ChunkKey] = Queue(lanes)
        self.cache: ChunkCache[ChunkKey] = ChunkCache(budgets)
        self.hits = 0
        """Claims on chunks that were there."""
        self.misses = 0
        """Claims on chunks that were not."""
        self._jobs: dict[ChunkKey, _Job] = {}
        self._claims: dict[Claim[ChunkKey], ChunkClaim] = {}
        self._tickets: dict[ChunkClaim, Claim[ChunkKey] | None] = {}
        self._cancels: dict[threading.Event, set[ChunkClaim]] = {}
        self._alone: set[ChunkKey] = set()
        """Chunks whose block failed, and which are computed alone for it."""
        self.regions = Regions()
        """What jobs will ask for."""
        self.written = Places()
        """Where chunks are that were computed before."""
        self.given_up: deque[ChunkClaim] = deque()
        """Claims whose cancel event was found set, and whose holders are not told yet."""

    # ------------------------------------------------------------------ claims

    def claim(
        self,
        claim: ChunkClaim,
        stage: Stage,
        *,
        background: bool,
        priority: int = 0,
        cancel: threading.Event | None = None,
    ) -> Outcome | None:
        """Take a claim; return its outcome if there is one already."""
        key, pool = claim.key, Pool.CHUNKS
        if background:
            pool = Pool.STAGES if stage.kept else Pool.NONE
        if cancel is not None:
            self._cancels.setdefault(cancel, set()).add(claim)
        state = self.cache.state(key)
        if state is ChunkState.FAILED:
            return Outcome(claim, None, self.cache.error(key))
        if state is ChunkState.READY:
            self.hits += 1
            self.cache.pin(key)
            self.cache.keep(key, pool)
            self._tickets[claim] = None
            return Outcome(claim, self.cache.get(key), None)
        self.misses += 1
        if state in (ChunkState.NEW, ChunkState.EVICTED):
            self.cache.request(key, pool)
            stage = stage if background else self.written.stage(stage, key)
        self._ask(claim, stage, background, priority, pool)
        return None

    def release(self, claim: ChunkClaim) -> bool:
        """Take a claim back: unpin what was held for it, drop what nobody waits for any more.

        Returns
        -------
        bool
            Whether something may start for it that could not before.
        """
        for claims in self._cancels.values():
            claims.discard(claim)
        if claim not in self._tickets:
            return False
        ticket = self._tickets.pop(claim)
        if ticket is None:
            self.cache.unpin(claim.key)
            return False
        self._claims.pop(ticket, None)
        self._drop(self.queue.release(ticket))
        # with every slot taken nothing can begin, and the next end looks anyway
        return not self.queue.full(COMPUTE)

    def retry(self, claim: ChunkClaim, stage: Stage) -> None:
        """Put a failed chunk, for a client's claim, back in line, and its failed inputs.

        Raises
        ------
        TransitionError
            If the chunk did not fail.
        """
        key = claim.key
        self.cache.retry(key)
        for index in stage.makes(key.level, [key.chunk]):  # what is made along with it, too
            self._forgive(ChunkKey(key.stage, key.level, index))
        self._forgive_inputs(stage, key)
        self._ask(claim, stage, False, 0, Pool.CHUNKS)

    def forgive(self, stages: Collection[str]) -> None:
        """Let all chunks of some stages that failed be asked for again."""
        for key in self.cache.failed():
            if key.stage in stages:
                self._forgive(key)

    def take_all(self) -> list[ChunkClaim]:
        """Forget every claim; return those that still waited."""
        waiting = [claim for claim, ticket in self._tickets.items() if ticket is not None]
        self._tickets.clear()
        self._claims.clear()
        self._cancels.clear()
        return waiting

    def _ask(
        self, claim: ChunkClaim, stage: Stage, background: bool, priority: int, pool: Pool
    ) -> None:
        self.cache.keep(claim.key, pool)
        self._jobs.setdefault(claim.key, _Job(stage))
        request = _request(stage, claim.key)
        ticket = self.queue.claim(request, background=background, priority=priority)
        self._claims[ticket] = claim
        self._tickets[claim] = ticket

    def _drop(self, keys: Iterable[ChunkKey]) -> None:
        for key in keys:
            self.cache.abandon(key, "the last claim was released before it ran")
            self._alone.discard(key)
            for part in self._jobs.pop(key).pinned:
                self.cache.unpin(part)

    def _forgive(self, key: ChunkKey) -> bool:
        """Let a failed chunk be asked for again; False if it did not fail."""
        if self.cache.state(key) is not ChunkState.FAILED:
            return False
        self.cache.retry(key)
        self.cache.abandon(key, "to be asked for again by whoever needs it")
        return True

    def _forgive_inputs(self, stage: Stage, key: ChunkKey) -> None:
        """Let failed inputs be asked for again, by the chunk that needs them."""
        if stage.previous is None:
            return
        feeding, level = stage.feeds(key.level)
        for index in stage.inputs(key.level, [key.chunk]):
            part = ChunkKey(feeding.identity, level, index)
            if self._forgive(part):
                self._forgive_inputs(feeding, part)

    def _give_up_cancelled(self) -> None:
        for event, claims in list(self._cancels.items()):
            if event.is_set():
                for claim in list(claims):
                    self.release(claim)
                    if claim.mark_released():
                        self.given_up.append(claim)
            if not claims:
                del self._cancels[event]

    # ------------------------------------------------------------------ starting

    def start(self) -> list[Start]:
        """Start whatever may start now."""
        starts: list[Start] = []
        self._give_up_cancelled()
        self._trim_dissolved()
        again = True
        while again:
            again = False
            while (key := self.queue.admit(COMPUTE)) is not None:
                self._expand(key)
            while (key := self.queue.next(READ)) is not None:
                starts.append(self._begin(key))
            while (key := self.queue.next(COMPUTE)) is not None:
                starts.append(self._begin(key))
                again = True  # who waits behind it may be let in now
        return starts

    def _trim_dissolved(self) -> None:
        """Take from whoever led a block that dissolved the inputs it needs no more."""
        while (key := self.queue.take_trimmed()) is not None:
            job = self._jobs[key]
            if job.stage.previous is None or job.error is not None:
                continue
            feeding, level = job.stage.feeds(key.level)
            keep = set(job.stage.inputs(key.level, [key.chunk]))
            for part in job.pinned:
                if part.chunk not in keep:
                    self.cache.unpin(part)
            job.pinned = [part for part in job.pinned if part.chunk in keep]
            job.failed = [part for part in job.failed if part.chunk in keep]
            asked = {ChunkKey(feeding.identity, level, index) for index in keep}
            self._drop(self.queue.trim(key, asked))

    def wanted(self, members: Sequence[ChunkKey]) -> bool:
        """Whether anybody still waits for one of them."""
        self._give_up_cancelled()
        return any(map(self.queue.wanted, members))

    def inputs(self, key: ChunkKey) -> dict[Index, np.ndarray | Rest]:
        """Return the voxels of a started chunk's inputs.

        Raises
        ------
        ChunkError
            If one of them failed.
        Abandoned
            If one that failed was retried meanwhile.
        """
        job = self._jobs[key]
        if job.error is not None:
            raise job.error
        for part in job.failed:
            error = self.cache.error(part)
            if error is None:
                raise Abandoned  # it was retried meanwhile: start over, and ask for it again
            failure = ChunkError(*error.args)
            failure.__cause__ = error.__cause__
            raise failure
        return {part.chunk: self.cache.get(part) for part in job.pinned}

    def _expand(self, key: ChunkKey) -> None:
        """Ask for a chunk's inputs, and for theirs."""
        pending = [key]
        while pending:
            key = pending.pop()
            if self.queue.phase(key) is not Phase.WAITING:
                continue  # bound to another of them meanwhile
            job = self._jobs[key]
            assert job.stage.previous is not None
            feeding, level = job.stage.feeds(key.level)
            try:
                bound = self._bind(job.stage, key)
                needed = job.stage.inputs(key.level, bound)
                reach = job.stage.reach(key.level, bound)
            except Exception as error:  # noqa: BLE001 - an op's, and its chunk's failure
                job.error, needed, reach = error, (), Box((), ())
            missing, lasting = [], not self.queue.background(key)
            for index in needed:
                part = ChunkKey(feeding.identity, level, index)
                request = self._need(job, feeding, part, None if lasting else reach)
                if request is not None:
                    missing.append(request)
            pending.extend(self.queue.expand(key, missing))

    def _bind(self, stage: Stage, key: ChunkKey) -> list[Index]:
        """Let waiting neighbours be computed along with a chunk; return the box of all of them.

        Only background work is bound: a client's chunk is computed alone. Some of the box may be
        there already, or be on its way; if that is most of it, each of the others is cheaper alone.
        """
        if not self.queue.background(key) or key in self._alone:
            return [key.chunk]
        counts = self.pace.block(stage, key.level)
        if max(counts) == 1:
            return [key.chunk]
        start = tuple(i // n * n for i, n in zip(key.chunk, counts, strict=True))
        block = Box(start, tuple(map(operator.add, start, counts)))
        found = [
            index
            for index in itertools.product(*map(range, block.start, block.stop))
            if self._can_bind(ChunkKey(key.stage, key.level, index))
        ]
        cover = box_around(found)
        if 2 * len(found) < len(cover):
            return [key.chunk]
        others = (ChunkKey(key.stage, key.level, index) for index in found)
        self.queue.bind(key, (other for other in others if other != key))
        return cover

    def _can_bind(self, key: ChunkKey) -> bool:
        waits = self.queue.phase(key) is Phase.WAITING and key not in self._alone
        return waits and self.queue.background(key)

    def _need(
        self, job: _Job, stage: Stage, part: ChunkKey, reach: Box | None
    ) -> Request[ChunkKey] | None:
        """Hold an input for a job, or return what to ask for; of a job's, ``reach`` is enough."""
        pool = Pool.INPUTS if stage.previous is None else Pool.STAGES
        state, lasting = self.cache.state(part), reach is None
        if reach is not None and state in (ChunkState.NEW, ChunkState.EVICTED):
            rest = found_rest(self.cache, part, reach)
            if rest is not None:
                part, state = rest, ChunkState.READY
        if state is ChunkState.READY:
            self.cache.pin(part)
            self.cache.keep(part, pool, lasting=lasting)
            job.pinned.append(part)
            return None
        if state is ChunkState.FAILED:
            job.failed.append(part)
            return None
        if state in (ChunkState.NEW, ChunkState.EVICTED):
            self.cache.request(part, pool, "an input", lasting=lasting)
            stage = self.written.stage(stage, part) if lasting else stage
        self.cache.keep(part, pool, lasting=lasting)
        self._jobs.setdefault(part, _Job(stage))
        return _request(stage, part)

    def _begin(self, key: ChunkKey) -> Start:
        """Take a started job, and what is computed along with it, to LOADING."""
        stage = self._jobs[key].stage
        background = self.queue.background(key)
        members = [key, *self.queue.start_bound(key)]
        for member in members:
            self.cache.start(member)
        asked = box_around([member.chunk for member in members])
        known = set(asked)
        for index in self._made(stage, key.level, asked):
            other = ChunkKey(key.stage, key.level, index)
            if index not in known and self._join(stage, other):
                members.append(other)
        return Start(stage, tuple(members), tuple(asked), background)

    def _made(self, stage: Stage, level: int, asked: list[Index]) -> Sequence[Index]:
        try:
            return stage.makes(level, asked)
        except Exception:  # noqa: BLE001 - computing will raise it too, and be told then
            return asked

    def _join(self, stage: Stage, key: ChunkKey) -> bool:
        """Let a chunk be made by another's computation, unless it is there or being made."""
        state, reason = self.cache.state(key), "computed along with another"
        if state in (ChunkState.NEW, ChunkState.EVICTED):
            self.cache.request(key, Pool.STAGES, reason)
        elif state is not ChunkState.QUEUED:
            return False
        self.queue.join(_request(stage, key))
        self._drop(self.queue.drop_inputs(key))
        job = self._jobs.setdefault(key, _Job(stage))
        self._unpin_inputs(job)
        self.cache.start(key, reason)
        return True

    # ------------------------------------------------------------------ ending

    def finish(
        self,
        start: Start,
        results: Mapping[Index, np.ndarray] | None,
        error: BaseException | None,
        seconds: float = 0.0,
    ) -> list[Outcome]:
        """End a computation with results, with an error, or with neither if it was abandoned."""
        outcomes: list[Outcome] = []
        reason = "nobody waits any more"
        if results is not None:
            self.pace.measure(start.stage, start.members[0].level, start.asked, seconds)
        if error is not None and len(start.asked) > 1:
            # one bad voxel must not fail its whole block: each on its own says which it is
            self._alone.update(filter(self.queue.wanted, start.members))
            error, reason = None, "its block failed; to be computed alone"
        for key in start.members:
            self._unpin_inputs(self._jobs[key])
            if results is None and error is None:
                self._abandon(key, reason)
            else:
                outcomes += self._end(key, None if results is None else results[key.chunk], error)
        if results is not None:
            made = [*start.asked, *(member.chunk for member in start.members)]
            self.regions.settle(self.cache, start.stage, start.members[0].level, made)
        return outcomes

    def _unpin_inputs(self, job: _Job) -> None:
        for part in job.pinned:
            self.cache.unpin(part)
        job.pinned.clear()
        job.failed.clear()
        job.error = None

    def _abandon(self, key: ChunkKey, reason: str) -> None:
        pool = self.cache.pool(key)
        self.cache.abandon(key, reason)
        if self.queue.wanted(key):  # somebody asked between the op's look and now
            self.cache.request(key, pool, "asked for again")
            job = self._jobs[key]
            job.stage = self.written.otherwise(job.stage)
            self.queue.restart(_request(job.stage, key))
        else:
            self.queue.finish(key)
            self._alone.discard(key)
            del self._jobs[key]

    def _end(
        self, key: ChunkKey, value: np.ndarray | None, error: BaseException | None
    ) -> list[Outcome]:
        over = self.queue.finish(key)
        del self._jobs[key]
        self._alone.discard(key)
        if error is not None:
            self.cache.fail(key, error)
        else:
            self.cache.fulfil(key, value, pins=len(over.claims) + len(over.parents))
        for parent in over.parents:
            job = self._jobs[parent]
            (job.pinned if error is None else job.failed).append(key)
        outcomes: list[Outcome] = []
        for ticket in over.claims:
            claim = self._claims.pop(ticket)
            if error is None:
                self._tickets[claim] = None
            else:
                del self._tickets[claim]
            outcomes.append(Outcome(claim, value, error))
        return outcomes


def _request(stage: Stage, key: ChunkKey) -> Request[ChunkKey]:
    return Request(key, stage.lane, key.level, has_inputs=stage.previous is not None)
