"""What a chunk that is asked for and not there yet still needs: its inputs, held or asked for.

Owns the blocks that background work is bound into, the inputs that are held for a chunk, and those
that it reads by itself. Like the `Dispatch` that it belongs to it is plain, synchronous and
unlocked, and drives the same queue and cache.

A chunk that is computed from nothing but the source's chunk at the same place *reads along*: it
begins as a reading, in the slot of one, and takes a slot of computing when that is done. What it
reads has no state of its own, unless somebody else asks for it meanwhile: then it is being loaded
from that moment on, and both get it. Of small chunks several in a row begin together, in one slot.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from napari_materialize.cache import ChunkCache, ChunkState, Pool
from napari_materialize.demand import Phase, Queue, Request
from napari_materialize.errors import ChunkError
from napari_materialize.geometry import Box, box_around
from napari_materialize.ops import Abandoned
from napari_materialize.stages import ChunkKey
from napari_materialize.uses import found_rest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    import numpy as np

    from napari_materialize.blocks import Rest
    from napari_materialize.geometry import Index
    from napari_materialize.pace import Pace
    from napari_materialize.stages import Stage
    from napari_materialize.written import Places

__all__ = ["Need", "Needs", "request"]


@dataclass(slots=True)
class Need:
    """What has to be known of a chunk that is asked for and not there yet."""

    stage: Stage
    """Who makes it."""
    pinned: list[ChunkKey] = field(default_factory=list)
    """Inputs that are READY and held for it."""
    failed: list[ChunkKey] = field(default_factory=list)
    """Inputs that failed."""
    along: tuple[ChunkKey, ...] = ()
    """Inputs that it reads by itself."""
    error: Exception | None = None
    """What an op raised when it was asked which inputs it needs."""


class Needs:
    """Asks for the inputs of chunks, and holds them.

    Parameters
    ----------
    queue, cache : Queue, ChunkCache
        The dispatch's.
    pace : Pace
        How many chunks background work computes in one call.
    written : Places
        Where chunks are that were computed before.
    """

    def __init__(
        self, queue: Queue[ChunkKey], cache: ChunkCache[ChunkKey], pace: Pace, written: Places
    ) -> None:
        self.jobs: dict[ChunkKey, Need] = {}
        """What is known of each chunk that is in the queue."""
        self.alone: set[ChunkKey] = set()
        """Chunks whose block failed, and which are computed alone for it."""
        self.reads_along = False
        """Whether chunks may read what they are computed from by themselves."""
        self._queue = queue
        self._cache = cache
        self._pace = pace
        self._written = written
        self._under_way: set[ChunkKey] = set()
        """What is read along now, and asked for by nobody else."""

    # ------------------------------------------------------------------ letting go

    def drop(self, keys: Iterable[ChunkKey]) -> None:
        """Forget chunks whose last claim was released before they ran."""
        for key in keys:
            self._cache.abandon(key, "the last claim was released before it ran")
            self.alone.discard(key)
            for part in self.jobs.pop(key).pinned:
                self._cache.unpin(part)

    def unpin(self, job: Need) -> None:
        """Let the inputs go that are held for a chunk."""
        for part in job.pinned:
            self._cache.unpin(part)
        job.pinned.clear()
        job.failed.clear()
        job.along = ()
        job.error = None

    def trim_dissolved(self) -> None:
        """Take from whoever led a block that dissolved the inputs it needs no more."""
        while (key := self._queue.take_trimmed()) is not None:
            job = self.jobs[key]
            if job.stage.previous is None or job.error is not None:
                continue
            feeding, level = job.stage.feeds(key.level)
            keep = set(job.stage.inputs(key.level, [key.chunk]))
            for part in job.pinned:
                if part.chunk not in keep:
                    self._cache.unpin(part)
            job.pinned = [part for part in job.pinned if part.chunk in keep]
            job.failed = [part for part in job.failed if part.chunk in keep]
            asked = {ChunkKey(feeding.identity, level, index) for index in keep}
            self.drop(self._queue.trim(key, asked))

    # ------------------------------------------------------------------ asking

    def inputs(self, key: ChunkKey) -> dict[Index, np.ndarray | Rest]:
        """Return the voxels of a started chunk's inputs, but for those that it reads by itself.

        Raises
        ------
        ChunkError
            If one of them failed.
        Abandoned
            If one that failed was retried meanwhile.
        """
        job = self.jobs[key]
        if job.error is not None:
            raise job.error
        for part in job.failed:
            error = self._cache.error(part)
            if error is None:
                raise Abandoned  # it was retried meanwhile: start over, and ask for it again
            failure = ChunkError(*error.args)
            failure.__cause__ = error.__cause__
            raise failure
        return {part.chunk: self._cache.get(part) for part in job.pinned}

    def expand(self, key: ChunkKey) -> None:
        """Ask for a chunk's inputs, and for theirs."""
        pending = [key]
        while pending:
            key = pending.pop()
            if self._queue.phase(key) is not Phase.WAITING:
                continue  # bound to another of them meanwhile
            job = self.jobs[key]
            assert job.stage.previous is not None
            feeding, level = job.stage.feeds(key.level)
            try:
                bound = self._bind(job.stage, key)
                needed = job.stage.inputs(key.level, bound)
                reach = job.stage.reach(key.level, bound)
            except Exception as error:  # noqa: BLE001 - an op's, and its chunk's failure
                job.error, needed, reach = error, (), Box((), ())
            missing, lasting = [], not self._queue.background(key)
            for index in needed:
                part = ChunkKey(feeding.identity, level, index)
                ask = self._need(job, feeding, part, None if lasting else reach)
                if ask is not None:
                    missing.append(ask)
            pending.extend(self._queue.expand(key, missing))

    def _bind(self, stage: Stage, key: ChunkKey) -> list[Index]:
        """Let waiting neighbours be computed along with a chunk; return the box of all of them.

        Only background work is bound: a client's chunk is computed alone. Some of the box may be
        there already, or be on its way; if that is most of it, each of the others is cheaper alone.
        """
        if not self._queue.background(key) or key in self.alone:
            return [key.chunk]
        counts = self._pace.block(stage, key.level)
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
        self._queue.bind(key, (other for other in others if other != key))
        return cover

    def _can_bind(self, key: ChunkKey) -> bool:
        waits = self._queue.phase(key) is Phase.WAITING and key not in self.alone
        return waits and self._queue.background(key)

    def _need(
        self, job: Need, stage: Stage, part: ChunkKey, reach: Box | None
    ) -> Request[ChunkKey] | None:
        """Hold an input for a job, or return what to ask for; of a job's, ``reach`` is enough."""
        pool = Pool.INPUTS if stage.previous is None else Pool.STAGES
        state, lasting = self._cache.state(part), reach is None
        if reach is not None and state in (ChunkState.NEW, ChunkState.EVICTED):
            rest = found_rest(self._cache, part, reach)
            if rest is not None:
                part, state = rest, ChunkState.READY
        if state is ChunkState.READY:
            self._cache.pin(part)
            self._cache.keep(part, pool, lasting=lasting)
            job.pinned.append(part)
            return None
        if state is ChunkState.FAILED:
            job.failed.append(part)
            return None
        if state in (ChunkState.NEW, ChunkState.EVICTED) and not self.share(stage, part):
            self._cache.request(part, pool, "an input", lasting=lasting)
            stage = self._written.stage(stage, part) if lasting else stage
        self._cache.keep(part, pool, lasting=lasting)
        self.jobs.setdefault(part, Need(stage))
        return request(stage, part)

    # ------------------------------------------------------------------ reading along

    def enter(self, key: ChunkKey, stage: Stage, *, background: bool) -> str | None:
        """Take note of a chunk that is asked for; return the lane it begins in, if it reads along.

        Parameters
        ----------
        key : ChunkKey
            Which.
        stage : Stage
            Who makes it.
        background : bool
            Whether background work asks; a client's inputs are kept for its next question.
        """
        if key in self.jobs:
            return None
        job = self.jobs[key] = Need(stage)
        if not (self.reads_along and background) or stage.previous is None:
            return None
        feeding, level = stage.feeds(key.level)
        if not self._reads_alone(stage, key.level):
            return None
        part = ChunkKey(feeding.identity, level, key.chunk)
        if not self._is_free(part):
            return None
        job.along = (part,)
        return feeding.lane

    def _is_free(self, part: ChunkKey) -> bool:
        """Whether nobody has an input, nor reads it."""
        state = self._cache.state(part)
        return state in (ChunkState.NEW, ChunkState.EVICTED) and part not in self._under_way

    def read_along(self, key: ChunkKey) -> list[ChunkKey]:
        """Begin to read what a chunk reads by itself, and small neighbours with it.

        Returns
        -------
        list of ChunkKey
            The chunk, and those that begin inside its slot. Empty if somebody else has what it
            reads by now: it is not to begin then, but to ask for what it needs.
        """
        job = self.jobs[key]
        if not all(map(self._is_free, job.along)):
            job.along = ()
            return []
        others = self._neighbours(key)
        for other in others:
            self._queue.join(request(job.stage, other))
            job.along += self.jobs[other].along
            self.jobs[other].along = ()
        self._under_way.update(job.along)
        return [key, *others]

    def read_in_a_row(self, key: ChunkKey) -> list[ChunkKey]:
        """Begin to read, in the slot of a chunk that begins to be read, its neighbours in a row."""
        stage = self.jobs[key].stage
        if not self.reads_along or stage.previous is not None or not self._is_jobs(key):
            return []
        others = self._neighbours(key)
        for other in others:
            self._queue.join(request(stage, other))
        return others

    def block(self, stage: Stage, level: int) -> Index:
        """Return how many chunks along each axis background work computes in one call."""
        if self.reads_along and self._reads_alone(stage, level):
            return (*(1,) * (stage.levels[level].ndim - 1), self._pace.run(stage, level))
        return self._pace.block(stage, level)

    def _reads_alone(self, stage: Stage, level: int) -> bool:
        """Whether a chunk is the source's, or is computed from nothing but that at its place."""
        return stage.feeds(level)[0].previous is None and stage.alike(level)

    def _is_jobs(self, key: ChunkKey) -> bool:
        """Whether background work alone wants a chunk, and not as an input."""
        return self._queue.background(key) and self._cache.pool(key) is Pool.NONE

    def _neighbours(self, key: ChunkKey) -> list[ChunkKey]:
        """Return the chunks in a row with one that may be read and computed in the same go."""
        run = 1 if key in self.alone else self._pace.run(self.jobs[key].stage, key.level)
        *lead, at = key.chunk
        first, found = at // run * run, []
        for side in (range(at + 1, first + run), range(at - 1, first - 1, -1)):
            for place in side:
                other = ChunkKey(key.stage, key.level, (*lead, place))
                if not self._may_join(other):
                    break
                found.append(other)
        return found

    def _may_join(self, key: ChunkKey) -> bool:
        """Whether a chunk waits to be read, or to read what it needs and nobody else has."""
        job = self.jobs.get(key)
        if job is None or key in self.alone or self._queue.phase(key) is not Phase.RUNNABLE:
            return False
        if job.stage.previous is None:
            return self._is_jobs(key)
        free = bool(job.along) and all(map(self._is_free, job.along))
        return free and self._queue.background(key)

    def share(self, stage: Stage, part: ChunkKey) -> bool:
        """Let somebody else have a chunk that is read along now; False if it is not.

        It is LOADING from now on.
        """
        if part not in self._under_way:
            return False
        self._under_way.discard(part)
        self._load(stage, part)
        return True

    def _load(self, stage: Stage, part: ChunkKey) -> None:
        """Take a chunk that a job reads by itself for one that is being loaded."""
        reason = "read along with a computation"
        self._cache.request(part, Pool.INPUTS, reason, lasting=False)
        self._cache.start(part, reason)
        self._queue.join(request(stage, part))
        self.jobs[part] = Need(stage)

    def end_along(self, key: ChunkKey, known: Container[Index]) -> list[ChunkKey]:
        """End what a chunk reads by itself; return what of it is LOADING, and to be ended.

        Parameters
        ----------
        key : ChunkKey
            The chunk that reads.
        known : container of tuple of int
            What of it whoever asks next has to know of: it failed, or was read for later.
        """
        job = self.jobs[key]
        loading = []
        for part in job.along:
            if part in self._under_way:
                self._under_way.discard(part)
                if part.chunk not in known:
                    continue
                stage, _ = job.stage.feeds(key.level)
                self._load(stage, part)
            loading.append(part)
        job.along = ()
        return loading


def request(stage: Stage, key: ChunkKey) -> Request[ChunkKey]:
    """Return what the queue has to know of a chunk."""
    return Request(key, stage.lane, key.level, has_inputs=stage.previous is not None)
