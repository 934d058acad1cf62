"""From the chunks of a view to the chunks of the array that is written.

Owns the cutting and joining where the two grids differ: a box that is written as an array of its
own is chunked from its corner, so a written chunk may be made of several of the view's. Where the
grids agree, nothing is copied. It knows nothing of stores, codecs or threads; whoever calls from
several threads holds a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from napari_materialize.geometry import Box, ChunkGrid, Index
    from napari_materialize.plan import LevelPlan

__all__ = ["Assembly", "Made"]


class Made(NamedTuple):
    """A chunk of the written array, complete."""

    chunk: Index
    """Its place in the written array."""

    block: np.ndarray
    """Clipped to the array."""


class _Partial:
    def __init__(self, shape: Index, dtype: np.dtype) -> None:
        self.block = np.empty(shape, dtype)
        self.missing = self.block.size


class Assembly:
    """Takes one level's chunks as they come and gives the written chunks as they are complete.

    Examples
    --------
    >>> from napari_materialize.geometry import Box, ChunkGrid
    >>> assembly = Assembly(ChunkGrid((4,), (2,)), Box((1,), (4,)), ChunkGrid((3,), (2,)))
    >>> list(assembly.add((0,), np.array([0, 1])))
    []
    >>> [(made.chunk, made.block.tolist()) for made in assembly.add((1,), np.array([2, 3]))]
    [((0,), [1, 2]), ((1,), [3])]
    """

    def __init__(self, grid: ChunkGrid, box: Box, written: ChunkGrid, offset: Index = ()) -> None:
        self._grid = grid
        self._box = box
        self._written = written
        self._offset = offset or box.start
        self._partial: dict[Index, _Partial] = {}
        self._lost: set[Index] = set()

    @classmethod
    def of(cls, plan: LevelPlan, grid: ChunkGrid) -> Assembly:
        """Return the assembly of a level that is planned, whose view has ``grid``."""
        return cls(grid, plan.box, plan.array.grid, plan.offset)

    def add(self, index: Index, block: np.ndarray) -> Iterator[Made]:
        """Take a chunk of the view; yield what it completes."""
        origin = self._grid.box(index).start
        part = self._grid.box(index).intersect(self._box)
        inside = part.relative_to(self._offset)
        for target in self._written.covering(inside):
            if target in self._lost:
                continue
            whole = self._whole(target)
            share = whole.intersect(inside)
            voxels = block[share.shift(self._offset).relative_to(origin).slices]
            if share == whole:
                yield Made(target, voxels)
                continue
            partial = self._partial.get(target)
            if partial is None:
                partial = self._partial[target] = _Partial(whole.shape, block.dtype)
            partial.block[share.relative_to(whole.start).slices] = voxels
            partial.missing -= share.size
            if partial.missing == 0:
                del self._partial[target]
                yield Made(target, partial.block)

    def lose(self, index: Index) -> list[Index]:
        """Take note that a chunk of the view failed; return the written chunks lost for it."""
        inside = self._grid.box(index).intersect(self._box).relative_to(self._offset)
        lost = [target for target in self._written.covering(inside) if target not in self._lost]
        for target in lost:
            self._lost.add(target)
            self._partial.pop(target, None)
        return lost

    def _whole(self, target: Index) -> Box:
        return self._written.box(target).intersect(self._box.relative_to(self._offset))
