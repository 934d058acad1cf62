"""The arrays of a result while they are written: computed voxels in, files out.

Every unit that is stored or derived is put together from parts of others, is dealt with when its
last part has come, and is then forgotten: a chunk from voxels, a shard from encoded chunks, a chunk
of a coarser level from halved ones. Only what is begun is in memory, and the order in which a job
asks for chunks (`_walk`) keeps that little.
"""

from __future__ import annotations

import operator
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from napari_materialize.assembly import Assembly
from napari_materialize.codecs import encode_chunk, is_fill, join_shard, split_shard
from napari_materialize.downsample import shrink
from napari_materialize.errors import ChunkError, StoreError, reason_of
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index
    from napari_materialize.job._extremes import Extremes
    from napari_materialize.job._keeper import Keeper
    from napari_materialize.job._receipt import Tally
    from napari_materialize.job._todo import Todo
    from napari_materialize.plan import CoarserPlan, LevelPlan, Plan

__all__ = ["Written", "written_levels"]

type Aside = Callable[[Callable[[], None]], None]
"""Runs something, here and now or soon."""


@dataclass(slots=True)
class _Shard:
    missing: int
    """Chunks that have not come."""

    chunks: dict[Index, bytes] = field(default_factory=dict)
    """Those that have and are not empty, encoded, by their place in the shard."""

    failed: bool = False
    """Whether one of them will never come."""


class Written:
    """One array that is written. May be told from any thread.

    Parameters
    ----------
    plan : Plan
        Of the job.
    level : LevelPlan or CoarserPlan
        Which array.
    assembly : Assembly
        What puts its chunks together from what comes.
    tally : Tally
        Is told what became of each chunk.
    keeper : Keeper
        Puts the files, and is told what became of each.
    coarser : Halver, optional
        What makes the next level of this one.
    aside : callable, optional
        Runs what there is to do about a chunk, here and now or soon; here if left out.
    """

    def __init__(
        self,
        plan: Plan,
        level: LevelPlan | CoarserPlan,
        assembly: Assembly,
        tally: Tally,
        *,
        keeper: Keeper,
        coarser: Halver | None = None,
        seen: Extremes | None = None,
        aside: Aside | None = None,
    ) -> None:
        self._plan = plan
        self._level = level
        self._aside = aside
        self._array = level.array
        self._assembly = assembly
        self._tally = tally
        self._keeper = keeper
        self._coarser = coarser
        self._seen = seen
        self._lock = threading.Lock()
        self._shards: dict[Index, _Shard] = {}
        self._chunks = self._array.grid.indices(level.region)
        """The chunks that are dealt with."""
        derived = plan.levels[-1].level
        self._viewed: int = getattr(level, "level", derived)
        self._title = (
            f"level {self._viewed}"
            if hasattr(level, "level")
            else f"the level {level.position} derived from level {derived}"
        )

    @property
    def begun(self) -> tuple[int, int]:
        """How many chunks and how many shards are begun and not written."""
        return self._assembly.waiting, len(self._shards)

    def take(self, index: Index, block: np.ndarray, within: Box | None = None) -> None:
        """Take a part of the array; write what it completes."""
        for chunk, voxels in self._assembly.add(index, block, within):
            if self._aside is None:
                self._deal(chunk, voxels)
            else:
                self._aside(partial(self._deal, chunk, voxels))

    def _deal(self, chunk: Index, voxels: np.ndarray) -> None:
        """Halve a chunk, look at it, store it."""
        if self._coarser is not None:
            self._coarser.take(chunk, voxels)
        if self._seen is not None and self._seen.add(chunk, voxels):
            try:
                self._keeper.seen(self._seen.seen)
            except StoreError as error:  # made anew with the chunk
                self.fail(chunk, self._not_stored(chunk, chunk, error))
                return
        self.store(chunk, voxels)

    def lose(self, index: Index, error: ChunkError, within: Box | None = None) -> None:
        """Take note that a part will not come, and of all that fails for it."""
        for chunk in self._assembly.lose(index, within):
            if self._coarser is not None:
                self._coarser.lose(chunk, error)
            self.fail(chunk, error)

    # ------------------------------------------------------------------ one chunk

    def store(self, chunk: Index, voxels: np.ndarray) -> None:
        """Encode and store a chunk, or leave it out."""
        plan, array = self._plan, self._array
        try:
            data = None
            if not (plan.options.skip_empty and is_fill(voxels, array.fill)):
                data = encode_chunk(
                    voxels, array.chunks, array.fill, plan.compression, plan.layout.frame
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is its chunk's failure
            self.fail(chunk, self._not_stored(chunk, chunk, error))
            return
        self._put(chunk, data)

    def _put(self, chunk: Index, data: bytes | None, *, failed: bool = False) -> None:
        """Store an encoded chunk, or keep it until its shard is whole; None where it is missing."""
        counts = self._plan.shards
        if counts is None:
            if not failed:
                self._put_file(chunk, [chunk], data)
            return
        file = tuple(map(operator.floordiv, chunk, counts))
        with self._lock:
            shard = self._shards.get(file)
            if shard is None:
                shard = self._shards[file] = _Shard(self._expected(file, counts))
            shard.missing -= 1
            shard.failed = shard.failed or failed
            if data is not None:
                shard.chunks[tuple(map(operator.mod, chunk, counts))] = data
            last = shard.missing == 0
            if last:
                del self._shards[file]
        # what becomes of a shard of which nothing is stored is counted of its last chunk
        counted = [chunk] if data is None and not failed else []
        if counted and not (last and not shard.chunks):
            self._tally.skipped()
        if last:
            self._put_shard(file, counts, shard, counted)

    def _put_shard(
        self, file: Index, counts: Index, shard: _Shard, counted: Sequence[Index]
    ) -> None:
        corner = tuple(map(operator.mul, file, counts))
        members = [tuple(map(operator.add, corner, place)) for place in shard.chunks] or counted
        try:
            chunks = {**self._others(file, counts, corner), **shard.chunks}
            joined = join_shard(chunks, counts) if chunks else None
        except Exception as error:  # noqa: BLE001 - what is there is damaged, say
            self._keeper.fail(self._level.position, file)
            for each in members:
                self._note(each, self._not_stored(each, file, error))
        else:
            self._put_file(file, members, joined, whole=not shard.failed)

    def _others(self, file: Index, counts: Index, corner: Index) -> dict[Index, bytes]:
        """Return a shard's chunks, encoded, that another job wrote, for another box."""
        data = self._keeper.before(self._level.position, file)
        if data is None:
            return {}
        cover = self._chunks.relative_to(corner)
        return {
            place: chunk
            for place, chunk in split_shard(data, counts).items()
            if not cover.contains(Box(place, tuple(at + 1 for at in place)))
        }

    def _expected(self, file: Index, counts: Index) -> int:
        """Return how many chunks of a shard will come."""
        corner = tuple(map(operator.mul, file, counts))
        stop = tuple(map(operator.add, corner, counts))
        return Box(corner, stop).intersect(self._chunks).size

    def _put_file(
        self, file: Index, chunks: Sequence[Index], data: bytes | None, *, whole: bool = True
    ) -> None:
        """Store a file, or see to it that there is none; say what became of its chunks."""
        position, keeper = self._level.position, self._keeper
        try:
            if data is not None:
                keeper.put(position, file, data, whole=whole)
            elif whole:
                keeper.leave_out(position, file)
            else:
                keeper.fail(position, file)
        except Exception as error:  # noqa: BLE001 - a store's, whatever it is: its chunks' failure
            keeper.fail(position, file)
            for each in chunks:
                self._note(each, self._not_stored(each, file, error))
        else:
            if data is not None:
                self._tally.stored(len(chunks), len(data))
            else:
                for _ in chunks:
                    self._tally.skipped()

    # ------------------------------------------------------------------ failures

    def fail(self, chunk: Index, error: ChunkError) -> None:
        """Take note of a chunk that cannot be stored; a shard goes on without it."""
        self._note(chunk, error)
        if self._plan.shards is None:
            self._keeper.fail(self._level.position, chunk)
        else:
            self._put(chunk, None, failed=True)

    def _not_stored(self, chunk: Index, file: Index, error: Exception) -> ChunkError:
        path = self._plan.layout.chunk_key(self._level.position, file)
        failure = ChunkError(
            f"chunk {chunk} of {self._title} could not be written as {path}: {reason_of(error)}"
        )
        failure.__cause__ = error
        return failure

    def _note(self, chunk: Index, error: ChunkError) -> None:
        self._tally.failed(self._viewed, chunk, error)


class Halver:
    """Makes the next coarser level of one that is written: whole tiles of it are halved."""

    def __init__(
        self, fine: Level, region: Box, plan: CoarserPlan, target: Written, todo: Todo
    ) -> None:
        self._plan = plan
        self._target = target
        self._tiles = Assembly(
            fine.grid,
            region,
            plan.tiles,
            (0,) * fine.ndim,
            fine.fill,
            wanted=None if todo.fresh else partial(todo.wants_tile, plan),
        )

    def take(self, chunk: Index, voxels: np.ndarray) -> None:
        """Take a written chunk; hand on what it completes, halved."""
        for tile, block in self._tiles.add(chunk, voxels):
            try:
                half = shrink(block, self._plan.factors, self._plan.method)
            except Exception as error:  # noqa: BLE001 - no memory, say: its chunk's failure
                failure = ChunkError(
                    f"voxels of the derived level {self._plan.position} could not be made: "
                    f"{reason_of(error)}"
                )
                failure.__cause__ = error
                self._target.lose(tile, failure)
            else:
                self._target.take(tile, half)

    def lose(self, chunk: Index, error: ChunkError) -> None:
        """Take note that a chunk will not come."""
        for tile in self._tiles.lose(chunk):
            self._target.lose(tile, error)


def written_levels(
    plan: Plan,
    tally: Tally,
    seen: Extremes | None,
    todo: Todo,
    keeper: Keeper,
    *,
    aside: Aside | None = None,
) -> dict[int, Written]:
    """Return the arrays that are written, by position; those derived hang on the last viewed.

    What there is to do about a chunk of these is done ``aside``.
    """

    def wanted(level: LevelPlan | CoarserPlan) -> Callable[[Index], bool] | None:
        return None if todo.fresh else partial(todo.wants, level.position)

    finer = [(plan.levels[-1].array, plan.levels[-1].region)]
    finer += [(each.array, each.region) for each in plan.coarser]
    halver = None
    levels = {}
    for each, (array, region) in reversed(list(zip(plan.coarser, finer, strict=False))):
        zero = (0,) * array.ndim
        assembly = Assembly(
            each.parts, each.region, each.array.grid, zero, array.fill, wanted=wanted(each)
        )
        target = Written(plan, each, assembly, tally, keeper=keeper, coarser=halver, aside=aside)
        levels[each.position] = target
        halver = Halver(array, region, each, target, todo)
    for level in plan.levels:
        grid = plan.view.levels[level.level].grid
        assembly = Assembly(
            grid,
            level.box,
            level.array.grid,
            level.offset,
            level.array.fill,
            wanted=wanted(level),
        )
        levels[level.position] = Written(
            plan, level, assembly, tally, keeper=keeper, coarser=halver, seen=seen
        )
    return levels
