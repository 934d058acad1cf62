"""Integer geometry: voxel boxes, chunk grids and the order chunks are walked in.

Owns nothing but arithmetic on tuples of integers. It does not know of scales, units or
axis names (`arrays`), nor of who wants a chunk (`demand`).
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from napari_materialize.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Box", "ChunkGrid", "Index", "box_around", "walk_blocks"]

type Index = tuple[int, ...]
"""Integers along the axes of an array, C order: a chunk's place in its grid, or a shape."""


_LISTED = 4096
"""Numbers along all axes of which tuples are made; beyond it they are counted one by one."""


def _integers(values: Sequence[int], place: str) -> Index:
    """Check that ``values`` are whole numbers and return them as Python integers."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise BoxError(
            f"{place}: a box counts whole voxels, got {tuple(values)!r}; round it first"
        ) from None


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open box of voxels, ``start <= index < stop`` along each axis, C order.

    Parameters
    ----------
    start, stop : sequence of int
        First voxel inside and first voxel beyond, one integer per axis.

    Raises
    ------
    BoxError
        If the two differ in length, hold something other than whole numbers, or if
        ``stop`` lies before ``start``. An empty box (``start == stop``) is allowed here
        and refused where something has to be in it.

    Examples
    --------
    >>> box = Box((0, 10), (4, 30))
    >>> box.shape, box.size
    ((4, 20), 80)
    >>> box.clip((8, 25))
    Box(start=(0, 10), stop=(4, 25))
    """

    start: Index
    """First voxel inside, per axis."""

    stop: Index
    """First voxel beyond, per axis."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _integers(self.start, "box start"))
        object.__setattr__(self, "stop", _integers(self.stop, "box stop"))
        if len(self.start) != len(self.stop):
            raise BoxError(
                f"box: start and stop need one number per axis each, got {len(self.start)} in "
                f"{self.start} and {len(self.stop)} in {self.stop}; give both as many"
            )
        if any(low > high for low, high in zip(self.start, self.stop, strict=True)):
            raise BoxError(
                f"box: stop must not lie before start, got {self.start} to {self.stop}; swap them"
            )

    @classmethod
    def _sure(cls, start: Index, stop: Index) -> Box:
        """Return a box of numbers that were checked before: a dozen are made for every chunk."""
        box = object.__new__(cls)
        _set_start(box, start)
        _set_stop(box, stop)
        return box

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box of a whole array of ``shape``."""
        return _whole(tuple(shape))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.start)

    @property
    def shape(self) -> Index:
        """The number of voxels along each axis."""
        return tuple(map(operator.sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """The number of voxels inside."""
        return math.prod(map(operator.sub, self.stop, self.start))

    @property
    def is_empty(self) -> bool:
        """Whether no voxel is inside."""
        return any(map(operator.eq, self.start, self.stop))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index into an array."""
        return tuple(map(slice, self.start, self.stop))

    def clip(self, shape: Sequence[int]) -> Box:
        """Return the part of the box inside an array of ``shape``, perhaps empty."""
        return self.intersect(_whole(tuple(shape)))

    def intersect(self, other: Box) -> Box:
        """Return the voxels in both boxes; an empty box where there are none."""
        start = tuple(map(max, self.start, other.start))
        return Box._sure(start, tuple(map(max, start, map(min, self.stop, other.stop))))

    def grow(self, halo: Sequence[int]) -> Box:
        """Return the box with ``halo`` more voxels on both sides of each axis."""
        start = tuple(map(operator.sub, self.start, halo))
        stop = tuple(map(operator.add, self.stop, halo))
        if any(map(operator.gt, start, stop)):
            return Box(start, stop)  # which refuses: it was shrunk to less than nothing
        return Box._sure(start, stop)

    def shift(self, offset: Sequence[int]) -> Box:
        """Return the box moved by ``offset``."""
        return Box(
            tuple(map(operator.add, self.start, offset)),
            tuple(map(operator.add, self.stop, offset)),
        )

    def relative_to(self, origin: Sequence[int]) -> Box:
        """Return the box as seen from ``origin``."""
        return Box._sure(
            tuple(map(operator.sub, self.start, origin)),
            tuple(map(operator.sub, self.stop, origin)),
        )

    def contains(self, other: Box) -> bool:
        """Whether every voxel of ``other`` lies in this box."""
        return other.is_empty or (
            all(map(operator.le, self.start, other.start))
            and all(map(operator.ge, self.stop, other.stop))
        )


@lru_cache(maxsize=1024)
def _whole(shape: Index) -> Box:
    return Box((0,) * len(shape), shape)


# The class is frozen: its own slots are set through these.
_set_start = vars(Box)["start"].__set__
_set_stop = vars(Box)["stop"].__set__


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """An array of ``shape`` cut into equal chunks; the last ones are clipped to the shape.

    Examples
    --------
    >>> grid = ChunkGrid((5, 8), (2, 4))
    >>> grid.counts, grid.box((2, 1))
    ((3, 2), Box(start=(4, 4), stop=(5, 8)))
    >>> list(grid.covering(Box((1, 5), (3, 6))))
    [(0, 1), (1, 1)]
    """

    shape: Index
    """The array's voxels along each axis."""

    chunks: Index
    """A whole chunk's voxels along each axis."""

    counts: Index = field(init=False, repr=False, compare=False)
    """The number of chunks along each axis."""

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.chunks):
            raise ValueError(f"shape {self.shape} and chunks {self.chunks} differ in rank")
        if any(size < 0 for size in self.shape) or any(size < 1 for size in self.chunks):
            raise ValueError(f"shape {self.shape} or chunks {self.chunks} are not sizes")
        counts = tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))
        object.__setattr__(self, "counts", counts)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return math.prod(self.counts)

    def box(self, index: Sequence[int]) -> Box:
        """Return the voxels of chunk ``index``, clipped to the array."""
        start = tuple(map(operator.mul, index, self.chunks))
        stop = tuple(map(min, map(operator.add, start, self.chunks), self.shape))
        if any(map(operator.gt, start, stop)):
            return Box(start, stop)  # which refuses: there is no such chunk
        return Box._sure(start, stop)

    def indices(self, box: Box) -> Box:
        """Return the box of chunk indices that together cover the voxels of ``box``."""
        if box.is_empty:
            return Box(*((tuple(map(operator.floordiv, box.start, self.chunks)),) * 2))
        return Box._sure(
            tuple(map(operator.floordiv, box.start, self.chunks)),
            tuple(map(_up, box.stop, self.chunks)),
        )

    def round_out(self, box: Box) -> Box:
        """Return ``box`` grown to whole chunks and clipped to the array."""
        cover = self.indices(box)
        return Box(
            tuple(map(operator.mul, cover.start, self.chunks)),
            tuple(map(operator.mul, cover.stop, self.chunks)),
        ).clip(self.shape)

    def covering(self, box: Box) -> Iterator[Index]:
        """Walk the indices of the chunks that cover ``box``, last axis fastest."""
        cover = self.indices(box)
        return _odometer([range(a, b) for a, b in zip(cover.start, cover.stop, strict=True)])

    def holds(self, index: Sequence[int]) -> bool:
        """Whether ``index`` names a chunk of this grid."""
        if len(index) != len(self.counts):
            return False
        # each claim asks, and a generator takes three times as long
        for at, count in zip(index, self.counts, strict=True):  # noqa: SIM110 - see above
            if not 0 <= at < count:
                return False
        return True


def _up(stop: int, size: int) -> int:
    """Return how many whole sizes cover ``stop``."""
    return -(-stop // size)


def _odometer(ranges: Sequence[Sequence[int]]) -> Iterator[Index]:
    """Walk the combinations, last fastest."""
    # `product` makes a tuple of each range first, and is many times as fast
    if sum(map(len, ranges)) <= _LISTED:
        return itertools.product(*ranges)
    return _walked(ranges)


def _walked(ranges: Sequence[Sequence[int]]) -> Iterator[Index]:
    if not ranges:
        yield ()
        return
    *outer, last = ranges
    for head in _walked(outer):
        for at in last:
            yield (*head, at)


def box_around(places: Sequence[Index]) -> list[Index]:
    """Return all places of the box around some, in order."""
    axes = [range(min(axis), max(axis) + 1) for axis in zip(*places, strict=True)]
    return list(itertools.product(*axes))


def walk_blocks(box: Box, axes: Sequence[bool]) -> Iterator[Index]:
    """Walk the whole numbers in ``box`` so that neighbours along some axes come close together.

    Along the axes that are marked this is Morton's order: a block of a power of two of them that
    begins at a multiple of it comes in one run, whatever the power. The other axes are walked
    outermost, the last one fastest.

    Parameters
    ----------
    box : Box
        Of chunk indices, say.
    axes : sequence of bool
        Which axes are walked in blocks.

    Examples
    --------
    >>> list(walk_blocks(Box((0, 0), (2, 3)), (True, True)))
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    >>> list(walk_blocks(Box((0, 0), (2, 3)), (False, False)))[:4]
    [(0, 0), (0, 1), (0, 2), (1, 0)]
    """
    plain = [range(low, high) for low, high in zip(box.start, box.stop, strict=True)]
    if not any(axes):
        yield from _odometer(plain)
        return
    outer = [[0] if marked else values for values, marked in zip(plain, axes, strict=True)]
    side = 1 << max((stop - 1).bit_length() for stop in (*box.stop, 1) if stop > 0)
    for place in _odometer(outer):
        cell = tuple(0 if marked else at for at, marked in zip(place, axes, strict=True))
        yield from _walk_cell(box, axes, cell, side)


def _walk_cell(box: Box, axes: Sequence[bool], corner: Index, side: int) -> Iterator[Index]:
    """Walk a cube of ``side`` along the marked axes, half by half along each."""
    for at, marked, low, high in zip(corner, axes, box.start, box.stop, strict=True):
        if marked and (at >= high or at + side <= low):
            return
    if side == 1:
        yield corner
        return
    half = side // 2
    steps = [(0, half) if marked else (0,) for marked in axes]
    for step in itertools.product(*steps):
        yield from _walk_cell(box, axes, tuple(map(operator.add, corner, step)), half)
