"""Voxels of a result read back while it is made, and coarser chunks made of them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.codecs import decode_chunk, split_shard
from napari_materialize.downsample import shrink
from napari_materialize.errors import ChunkError, reason_of
from napari_materialize.geometry import Box
from napari_materialize.stores import ReadableStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from napari_materialize.geometry import Index
    from napari_materialize.job._keeper import Keeper
    from napari_materialize.job._written import Written
    from napari_materialize.plan import CoarserPlan, LevelPlan, Plan

__all__ = ["Deriver", "Stored"]


class Stored:
    """Reads the arrays of a result as they are stored. Of the plan it keeps what that takes.

    Parameters
    ----------
    plan : Plan
        Of the job.
    keep_shards : int
        How many of the last shards are kept; with any it is not for several threads.
    """

    def __init__(self, plan: Plan, keep_shards: int = 8) -> None:
        if not isinstance(plan.store, ReadableStore):
            raise TypeError("only a store that can be read is read")
        self._store = plan.store
        self._layout, self._compression = plan.layout, plan.compression
        self._counts = plan.shards
        self._arrays = tuple(each.array for each in plan.written)
        self._most = keep_shards
        self._shards: dict[str, dict[Index, bytes]] = {}

    def read(self, position: int, box: Box) -> np.ndarray:
        """Return the voxels of a box of an array; what is not stored is the fill value.

        Raises
        ------
        ChunkError
            If something that is stored is damaged.
        StoreError
            If it cannot be read.
        """
        array = self._arrays[position]
        voxels = np.full(box.shape, array.fill, array.dtype)
        for chunk in array.grid.covering(box):
            whole = array.grid.box(chunk)
            data = self._encoded(position, chunk)
            if data is None:
                continue
            block = decode_chunk(
                data,
                whole.shape,
                array.chunks,
                array.dtype,
                self._compression,
                frame=self._layout.frame,
            )
            part = whole.intersect(box)
            there, here = part.relative_to(box.start), part.relative_to(whole.start)
            voxels[there.slices] = block[here.slices]
        return voxels

    def _encoded(self, position: int, chunk: Index) -> bytes | None:
        counts = self._counts
        if counts is None:
            return self._store.get(self._layout.chunk_key(position, chunk))
        file = tuple(map(operator.floordiv, chunk, counts))
        path = self._layout.chunk_key(position, file)
        chunks = self._shards.get(path)
        if chunks is None:
            data = self._store.get(path)
            chunks = {} if data is None else split_shard(data, counts)
            if self._most:
                if len(self._shards) >= self._most:
                    self._shards.pop(next(iter(self._shards)))
                self._shards[path] = chunks
        return chunks.get(tuple(map(operator.mod, chunk, counts)))


class Deriver:
    """Makes files of coarser levels of the finer ones as they are stored; for one thread."""

    def __init__(self, plan: Plan, keeper: Keeper, written: Mapping[int, Written]) -> None:
        self._plan = plan
        self._keeper = keeper
        self._written = written
        self._stored = Stored(plan)

    def make(self, coarser: CoarserPlan, file: Index) -> None:
        """Make a file, and say what became of its chunks."""
        target = self._written[coarser.position]
        for chunk in _chunks_of(self._plan, coarser, file):
            try:
                voxels = self._halved(coarser, chunk)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is its chunk's failure
                failure = ChunkError(
                    f"chunk {chunk} of the derived level {coarser.position} could not be made: "
                    f"{reason_of(error)}"
                )
                failure.__cause__ = error
                target.fail(chunk, failure)
            else:
                target.store(chunk, voxels)

    def _halved(self, coarser: CoarserPlan, chunk: Index) -> np.ndarray:
        """Return the voxels of a chunk, made of stored ones.

        Raises
        ------
        ChunkError, StoreError
            If some of these could not be made, are damaged, or cannot be read.
        """
        fine, box = self._plan.written[coarser.position - 1], coarser.array.grid.box(chunk)
        start, stop = (
            tuple(map(operator.mul, corner, coarser.factors)) for corner in (box.start, box.stop)
        )
        finer = Box(start, stop).clip(fine.array.shape)
        for file in _files_under(self._plan, fine, finer):
            if file in self._keeper.failed:
                path = self._plan.layout.chunk_key(*file)
                raise ChunkError(f"it is made of {path}, which failed")
        return shrink(self._stored.read(fine.position, finer), coarser.factors, coarser.method)


def _chunks_of(plan: Plan, level: CoarserPlan, file: Index) -> Iterator[Index]:
    cover = level.array.grid.indices(level.region)
    counts = plan.shards or (1,) * cover.ndim
    corner = tuple(map(operator.mul, file, counts))
    inside = Box(corner, tuple(map(operator.add, corner, counts))).intersect(cover)
    for place in np.ndindex(*inside.shape):
        yield tuple(map(operator.add, inside.start, place))


def _files_under(
    plan: Plan, level: LevelPlan | CoarserPlan, box: Box
) -> Iterator[tuple[int, Index]]:
    counts = plan.shards or (1,) * box.ndim
    for chunk in level.array.grid.covering(box):
        yield level.position, tuple(map(operator.floordiv, chunk, counts))
