"""From parts of an array to whole pieces of it, as the parts come.

Owns the cutting and joining where two grids differ. Three things are put together by it: a written
chunk from the view's chunks, where a box is written as an array of its own and so is chunked from
its corner; what is halved at a time from written chunks of an odd size; a chunk of a coarser level
from halves. Where the grids agree, nothing is copied. It knows nothing of stores or codecs.
"""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.geometry import Box, ChunkGrid, Index

__all__ = ["Assembly", "Made"]


class Made(NamedTuple):
    """A piece, complete."""

    place: Index
    """Its place in the grid of pieces."""

    block: np.ndarray
    """Clipped to the array."""


class _Partial:
    def __init__(self, block: np.ndarray, missing: int) -> None:
        self.block = block
        self.missing = missing


class Assembly:
    """Takes parts as they come and gives pieces as they are complete. May be told from any thread.

    Voxels are copied without the lock: who waits for it would wait for a copy, and then for
    Python's lock as well.

    Parameters
    ----------
    parts : ChunkGrid
        How what comes is cut.
    region : Box
        What will come, in voxels of the parts' array.
    pieces : ChunkGrid
        How what is made is cut.
    offset : tuple of int, optional
        Where voxel 0 of the pieces' array lies in the parts'; at the corner of the region if left
        out.
    fill : float, int or bool
        What the voxels of a piece outside the region are.
    wanted : callable, optional
        Which pieces are made; all if left out.

    Examples
    --------
    >>> from napari_materialize.geometry import Box, ChunkGrid
    >>> assembly = Assembly(ChunkGrid((4,), (2,)), Box((1,), (4,)), ChunkGrid((3,), (2,)))
    >>> assembly.add((0,), np.array([0, 1]))
    []
    >>> [(made.place, made.block.tolist()) for made in assembly.add((1,), np.array([2, 3]))]
    [((0,), [1, 2]), ((1,), [3])]
    """

    def __init__(
        self,
        parts: ChunkGrid,
        region: Box,
        pieces: ChunkGrid,
        offset: Index = (),
        fill: float | int | bool = 0,
        *,
        wanted: Callable[[Index], bool] | None = None,
    ) -> None:
        self._wanted = wanted
        self._parts = parts
        self._offset = offset or region.start
        self._region = region.relative_to(self._offset)
        self._pieces = pieces
        self._fill = fill
        self._whole = region
        aligned = not any(self._offset) and parts.round_out(region) == region
        # where both are cut alike a part is a piece
        self._same = aligned and parts == pieces
        self._factors = _factors(parts, pieces) if aligned else None
        self._partial: dict[Index, _Partial] = {}
        self._lost: set[Index] = set()
        self._lock = threading.Lock()
        """Guards these two."""

    @property
    def waiting(self) -> int:
        """Pieces that are begun and not complete."""
        return len(self._partial)

    def add(self, index: Index, block: np.ndarray, within: Box | None = None) -> list[Made]:
        """Take a part; return what it completes.

        Parameters
        ----------
        index : tuple of int
            The part's place.
        block : numpy.ndarray
            Its voxels, clipped to the parts' array.
        within : Box, optional
            Voxels of the parts' array, whole pieces: only those are made. For a part that comes
            more than once.
        """
        if within in (None, self._whole):
            if self._same:
                wanted = index not in self._lost and self._wants(index)
                return [Made(index, block)] if wanted else []
            if self._factors is not None:
                return self._add_nested(index, block, self._factors)
        made = []
        origin, inside = self._place(index, within)
        for target in self._pieces.covering(inside):
            whole = self._pieces.box(target)
            share = whole.intersect(inside)
            voxels = block[share.relative_to(origin).slices]
            made += self._put(target, voxels, share.relative_to(whole.start).slices)
        return made

    def _add_nested(self, index: Index, block: np.ndarray, factors: Index) -> list[Made]:
        """Take a part that lies in one piece, as most do; in a fraction of the time."""
        target = tuple(map(operator.floordiv, index, factors))
        places = map(operator.mod, index, factors)
        starts = map(operator.mul, places, self._parts.chunks)
        slices = tuple(slice(at, at + n) for at, n in zip(starts, block.shape, strict=True))
        return self._put(target, block, slices)

    def _put(self, target: Index, voxels: np.ndarray, slices: tuple[slice, ...]) -> list[Made]:
        """Put voxels where they belong in a piece; return it if it is complete."""
        if not self._wants(target):
            return []
        with self._lock:
            if target in self._lost:
                return []
            partial = self._partial.get(target)
            if partial is None:
                whole = self._pieces.box(target)
                if voxels.shape == whole.shape:
                    return [Made(target, voxels)]
                partial = self._partial[target] = self._begin(whole, voxels.dtype)
        partial.block[slices] = voxels
        with self._lock:
            partial.missing -= voxels.size
            if partial.missing or self._partial.get(target) is not partial:
                return []
            del self._partial[target]
        return [Made(target, partial.block)]

    def lose(self, index: Index, within: Box | None = None) -> list[Index]:
        """Take note that a part will not come; return the pieces lost for it."""
        _, inside = self._place(index, within)
        wanted = filter(self._wants, self._pieces.covering(inside))
        with self._lock:
            lost = [target for target in wanted if target not in self._lost]
            self._lost.update(lost)
            for target in lost:
                self._partial.pop(target, None)
        return lost

    def _wants(self, target: Index) -> bool:
        return self._wanted is None or self._wanted(target)

    def _place(self, index: Index, within: Box | None) -> tuple[Index, Box]:
        """Return a part's first voxel and what is wanted of it, in voxels of the pieces' array."""
        part = self._parts.box(index)
        wanted = part if within is None else part.intersect(within)
        inside = wanted.relative_to(self._offset).intersect(self._region)
        return part.relative_to(self._offset).start, inside

    def _begin(self, whole: Box, dtype: np.dtype) -> _Partial:
        expected = whole.intersect(self._region)
        if expected == whole:
            return _Partial(np.empty(whole.shape, dtype), whole.size)
        return _Partial(np.full(whole.shape, self._fill, dtype), expected.size)


def _factors(parts: ChunkGrid, pieces: ChunkGrid) -> Index | None:
    """Return how many parts make a piece along each axis; None if some lie in several pieces."""
    if parts.shape != pieces.shape or any(map(operator.mod, pieces.chunks, parts.chunks)):
        return None
    return tuple(map(operator.floordiv, pieces.chunks, parts.chunks))
