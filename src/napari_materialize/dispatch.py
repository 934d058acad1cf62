"""Where a view, the queue and the cache meet: what a claim, a start and an end mean for each.

A `Dispatch` is plain, synchronous and unlocked, like the two it drives. It returns what should be
run, and who should be told what; the engine, which has the lock and the threads, does so. So every
interleaving of claims, releases, starts and ends can be tried as plain calls.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.blocks import BlockLimits
from napari_materialize.cache import ChunkCache, ChunkState, Pool
from napari_materialize.demand import Queue
from napari_materialize.geometry import box_around
from napari_materialize.needs import Need, Needs, request
from napari_materialize.pace import Pace
from napari_materialize.stages import ChunkKey
from napari_materialize.uses import Regions
from napari_materialize.written import Places

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.demand import Claim
    from napari_materialize.geometry import Index
    from napari_materialize.stages import Stage

__all__ = ["COMPUTE", "READ", "Along", "Dispatch", "Outcome", "Start"]

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

    along: tuple[ChunkKey, ...] = ()
    """Source chunks that it is to read by itself before it computes; see `needs`."""


class Along(NamedTuple):
    """What a start read by itself."""

    blocks: Mapping[Index, np.ndarray | BaseException]
    """The voxels, or why there are none; nothing of what it did not come to."""

    seconds: float = 0.0
    """How long that took."""


NOTHING = Along({})


class Outcome(NamedTuple):
    """What to tell the holder of a claim."""

    claim: ChunkClaim
    value: np.ndarray | None
    error: BaseException | None
    background: bool = False
    """Whether it is background work's, which is told last: what it does then may take a while."""


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
        self._claims: dict[Claim[ChunkKey], ChunkClaim] = {}
        self._tickets: dict[ChunkClaim, Claim[ChunkKey] | None] = {}
        self._cancels: dict[threading.Event, set[ChunkClaim]] = {}
        self.regions = Regions()
        """What jobs will ask for."""
        self.written = Places()
        """Where chunks are that were computed before."""
        self.given_up: deque[ChunkClaim] = deque()
        """Claims whose cancel event was found set, and whose holders are not told yet."""
        self.needs = Needs(self.queue, self.cache, self.pace, self.written)
        """The inputs of what is asked for."""

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
        if state in (ChunkState.NEW, ChunkState.EVICTED) and not self.needs.share(stage, key):
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
        self.needs.drop(self.queue.release(ticket))
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
        begins = self.needs.enter(claim.key, stage, background=background)
        ticket = self.queue.claim(
            request(stage, claim.key), background=background, priority=priority, begins=begins
        )
        self._claims[ticket] = claim
        self._tickets[claim] = ticket

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
        self.needs.trim_dissolved()
        again = True
        while again:
            again = False
            while (key := self.queue.admit(COMPUTE)) is not None:
                self.needs.expand(key)
            while (key := self.queue.next(READ)) is not None:
                start = self._begin(key)
                if start is not None:
                    starts.append(start)
                again = again or start is None
            while (key := self.queue.next(COMPUTE)) is not None:
                start = self._begin(key)
                assert start is not None
                starts.append(start)
                again = True  # who waits behind it may be let in now
        return starts

    def wanted(self, members: Sequence[ChunkKey]) -> bool:
        """Whether anybody still waits for one of them."""
        self._give_up_cancelled()
        return any(map(self.queue.wanted, members))

    def _begin(self, key: ChunkKey) -> Start | None:
        """Take a started job, and what is computed along with it, to LOADING.

        None if it was to read by itself what somebody else reads by now: it is in line again.
        """
        job = self.needs.jobs[key]
        stage = job.stage
        if job.along:
            return self._begin_along(key, job)
        background = self.queue.background(key)
        members = [key, *self.queue.start_bound(key), *self.needs.read_in_a_row(key)]
        for member in members:
            self.cache.start(member)
        asked = box_around([member.chunk for member in members])
        known = set(asked)
        for index in self._made(stage, key.level, asked):
            if index not in known:
                other = ChunkKey(key.stage, key.level, index)
                if self._join(stage, other):
                    members.append(other)
        return Start(stage, tuple(members), tuple(asked), background)

    def _begin_along(self, key: ChunkKey, job: Need) -> Start | None:
        """Take a job that reads by itself what it needs to LOADING, and its small neighbours."""
        members = self.needs.read_along(key)
        if not members:
            self.queue.restart(request(job.stage, key))
            return None
        for member in members:
            self.cache.start(member)
        asked = tuple(sorted(member.chunk for member in members))
        return Start(job.stage, tuple(members), asked, self.queue.background(key), job.along)

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
        self.queue.join(request(stage, key))
        self.needs.drop(self.queue.drop_inputs(key))
        job = self.needs.jobs.setdefault(key, Need(stage))
        self.needs.unpin(job)
        self.cache.start(key, reason)
        return True

    # ------------------------------------------------------------------ ending

    def go_on(self, start: Start, along: Along, *, brief: bool) -> list[Outcome] | None:
        """Let what read its inputs by itself compute, in a slot for that.

        Parameters
        ----------
        start : Start
            What has read.
        along : Along
            What it read.
        brief : bool
            Whether it will have computed in a moment, and nobody is to begin meanwhile.

        Returns
        -------
        list of Outcome, or None
            None if it goes on. Else it is in line again, and what it read is there for it.
        """
        if self.queue.go_on(start.members[0], holding=brief):
            return None
        outcomes = self._end_along(start, along, keep=True)
        for key in start.members:
            self._abandon(key, "every slot is taken")
        return outcomes

    def _end_along(self, start: Start, along: Along, *, keep: bool = False) -> list[Outcome]:
        """End what a start read by itself, for whoever asked for it too or will do so."""
        key = start.members[0]
        feeding, level = start.stage.feeds(key.level)
        failed = {i for i, block in along.blocks.items() if isinstance(block, BaseException)}
        if along.blocks and not failed:
            self.pace.measure(feeding, level, list(along.blocks), along.seconds)
        outcomes: list[Outcome] = []
        for part in self.needs.end_along(key, along.blocks if keep else failed):
            found = along.blocks.get(part.chunk)
            if found is None:
                self._abandon(part, "nobody waits any more")
            elif isinstance(found, BaseException):
                outcomes += self._end(part, None, found)
            else:
                outcomes += self._end(part, found, None)
        return outcomes

    def finish(
        self,
        start: Start,
        results: Mapping[Index, np.ndarray] | None,
        error: BaseException | None,
        seconds: float = 0.0,
        along: Along = NOTHING,
    ) -> list[Outcome]:
        """End a computation with results, with an error, or with neither if it was abandoned."""
        outcomes = self._end_along(start, along) if start.along else []
        reason = "nobody waits any more"
        if results is not None:
            self.pace.measure(start.stage, start.members[0].level, start.asked, seconds)
        if error is not None and len(start.asked) > 1:
            # one bad voxel must not fail its whole block: each on its own says which it is
            self.needs.alone.update(filter(self.queue.wanted, start.members))
            error, reason = None, "its block failed; to be computed alone"
        for key in start.members:
            self.needs.unpin(self.needs.jobs[key])
            if results is None and error is None:
                self._abandon(key, reason)
            else:
                outcomes += self._end(key, None if results is None else results[key.chunk], error)
        if results is not None and not start.along:
            self._settle(start)
        return outcomes

    def _settle(self, start: Start) -> None:
        """Let go what no job needs any more of the inputs of what was computed."""
        stage, level = start.stage, start.members[0].level
        made = [*start.asked, *(member.chunk for member in start.members)]
        cheap = stage.previous is not None and self.pace.reads_cheaply(stage, level)
        block = self.pace.block(stage, level) if cheap else None
        self.regions.settle(self.cache, stage, level, made, block)

    def _abandon(self, key: ChunkKey, reason: str) -> None:
        pool = self.cache.pool(key)
        self.cache.abandon(key, reason)
        if self.queue.wanted(key):  # somebody asked between the op's look and now
            self.cache.request(key, pool, "asked for again")
            job = self.needs.jobs[key]
            job.stage = self.written.otherwise(job.stage)
            self.queue.restart(request(job.stage, key))
        else:
            self.queue.finish(key)
            self.needs.alone.discard(key)
            del self.needs.jobs[key]

    def _end(
        self, key: ChunkKey, value: np.ndarray | None, error: BaseException | None
    ) -> list[Outcome]:
        over = self.queue.finish(key)
        del self.needs.jobs[key]
        self.needs.alone.discard(key)
        if error is not None:
            self.cache.fail(key, error)
        else:
            self.cache.fulfil(key, value, pins=len(over.claims) + len(over.parents))
        for parent in over.parents:
            job = self.needs.jobs[parent]
            (job.pinned if error is None else job.failed).append(key)
        outcomes: list[Outcome] = []
        for ticket in over.claims:
            claim = self._claims.pop(ticket)
            if error is None:
                self._tickets[claim] = None
            else:
                del self._tickets[claim]
            outcomes.append(Outcome(claim, value, error, ticket.background))
        return outcomes
