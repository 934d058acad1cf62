"""What a job has written of one level of its view, for clients who look at the same view.

Owns the proof that what is read back is what was computed: a checksum of each chunk's voxels, taken
before they were written. A file that is not there yet, that was changed, exchanged or lost is none.
"""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.errors import StoreError
from napari_materialize.job._stored import Stored
from napari_materialize.journal import checksum
from napari_materialize.stores import ReadableStore

if TYPE_CHECKING:
    from napari_materialize.geometry import Box, ChunkGrid, Index
    from napari_materialize.plan import LevelPlan, Plan

__all__ = ["Shelf", "shelves"]


MOST_CHUNKS = 2**24
"""Chunks of a job's box above which none is read back: 84 MB of checksums."""


class Shelf:
    """The chunks of one level of a view, as a job writes them. May be told and asked by any thread.

    It keeps five bytes for each chunk of the job's box, and neither the view nor its source.

    Parameters
    ----------
    plan : Plan
        Of the job.
    level : LevelPlan
        Which of its levels.
    """

    def __init__(self, plan: Plan, level: LevelPlan) -> None:
        viewed = plan.view.levels[level.level]
        cover = viewed.grid.indices(level.box)
        self._stored = Stored(plan, keep_shards=0)
        self._position, self._offset = level.position, level.offset
        self._grid, self._dtype = viewed.grid, viewed.dtype
        self._first = cover.start
        self._whole = _whole_chunks(self._grid, level.box)
        self._sums = np.zeros(cover.shape, np.uint32)
        self._there = np.zeros(cover.shape, np.bool)
        self._lock = threading.Lock()

    def note(self, index: Index, voxels: np.ndarray) -> None:
        """Take note of a chunk that was handed on to be written, if it is written whole."""
        for at, low, high in zip(index, *self._whole, strict=True):
            if not low <= at < high:
                return
        place, crc = self._place(index), _crc(voxels)
        with self._lock:
            self._sums[place], self._there[place] = crc, True

    def holds(self, index: Index) -> bool:
        """Whether a chunk was written, or is about to be."""
        place = self._place(index)
        inside = all(0 <= at < size for at, size in zip(place, self._there.shape, strict=True))
        return inside and bool(self._there[place])

    def read(self, index: Index) -> np.ndarray:
        """Return a chunk's voxels.

        Raises
        ------
        ChunkError, StoreError
            If it cannot be read, or is not what was written.
        """
        box = self._grid.box(index).relative_to(self._offset)
        voxels = self._stored.read(self._position, box).astype(self._dtype, copy=False)
        with self._lock:
            expected = int(self._sums[self._place(index)])
        if _crc(voxels) != expected:
            raise StoreError(f"chunk {index}: what is stored is not what was written")
        return voxels

    def _place(self, index: Index) -> Index:
        return tuple(map(operator.sub, index, self._first))


def shelves(plan: Plan) -> dict[int, Shelf]:
    """Return where the levels of a job can be read back, by position; those that can.

    A store in memory is its owner's, and is not kept alive; one that has the method ``put`` alone
    cannot be read.
    """
    if not isinstance(plan.store, ReadableStore) or plan.store.location is None:
        return {}
    covers = ((each, plan.view.levels[each.level].grid.indices(each.box)) for each in plan.levels)
    return {each.position: Shelf(plan, each) for each, cover in covers if cover.size <= MOST_CHUNKS}


def _whole_chunks(grid: ChunkGrid, box: Box) -> tuple[Index, Index]:
    """Return the first chunk along each axis all of which lies in a box, and the first beyond."""
    first = tuple(-(-low // size) for low, size in zip(box.start, grid.chunks, strict=True))
    ends = zip(box.stop, grid.shape, grid.chunks, grid.counts, strict=True)
    stop = tuple(
        # the last chunk of the grid is clipped to it
        count if high >= shape else high // size
        for high, shape, size, count in ends
    )
    return first, stop


def _crc(voxels: np.ndarray) -> int:
    flags = voxels.flags
    # one that may be written to is not taken for bytes as it is
    return checksum(voxels if flags.c_contiguous and not flags.writeable else voxels.tobytes())
