"""Which boxes of which levels are written, and what is derived from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from napari_materialize.downsample import Method, halved, halving, method_for
from napari_materialize.errors import BoxError, LevelError, OptionError
from napari_materialize.geometry import Box, ChunkGrid, Index

if TYPE_CHECKING:
    from napari_materialize.arrays import Kind, Level
    from napari_materialize.plan._options import Options
    from napari_materialize.view import View

__all__ = ["CoarserPlan", "LevelPlan", "box_on_level", "plan_coarser", "plan_levels"]


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """One level of what will be written."""

    position: int
    """The path it is written under: 0, 1, ... in order."""

    level: int
    """The view's level."""

    box: Box
    """The voxels that are computed and written, of the view's level."""

    array: Level
    """The array that is written."""

    array_is_level: bool = True
    """Whether the array has the level's whole shape."""

    @property
    def offset(self) -> tuple[int, ...]:
        """Where the written array's voxel 0 lies in the view's level."""
        return (0,) * self.box.ndim if self.array_is_level else self.box.start

    @property
    def region(self) -> Box:
        """The box in voxels of the written array."""
        return self.box.relative_to(self.offset)

    @property
    def chunks(self) -> int:
        """How many chunks of the written array are dealt with."""
        return self.array.grid.indices(self.region).size

    @property
    def nbytes(self) -> int:
        """Their voxels' bytes, uncompressed."""
        return self.box.size * self.array.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CoarserPlan:
    """One level that is derived from the written one before it."""

    position: int
    """The path it is written under."""

    array: Level
    """The array that is written."""

    region: Box
    """The voxels that are written; the others read as the fill value."""

    factors: Index
    """2 along the axes that are halved, 1 along the others."""

    method: Method
    """What a voxel is of those it covers."""

    tiles: ChunkGrid
    """How the level before is cut to be halved: whole chunks, ending where a voxel does; small ones
    together, as far as they are part of one coarser chunk."""

    @property
    def parts(self) -> ChunkGrid:
        """What the tiles become."""
        sizes = tuple(map(operator.floordiv, self.tiles.chunks, self.factors))
        return ChunkGrid(self.array.shape, sizes)

    @property
    def chunks(self) -> int:
        """How many chunks are dealt with."""
        return self.array.grid.indices(self.region).size

    @property
    def nbytes(self) -> int:
        """Their voxels' bytes, uncompressed."""
        return self.region.size * self.array.dtype.itemsize


def box_on_level(view: View, box: Box | None, box_level: int, level: int) -> Box:
    """Return a box in voxels of ``level``, with all its axes, clipped; not rounded to chunks.

    Parameters
    ----------
    view : View
        Whose levels.
    box : Box or None
        Voxels of ``box_level`` along the last axes it has; None for everything.
    box_level, level : int
        The level the box counts voxels of, and the one that is asked for.

    Raises
    ------
    LevelError
        If there is no such level.
    BoxError
        If the box is empty, has too many axes, or lies outside.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.recipe import open_view
    >>> view = open_view([np.zeros((8, 8)), np.zeros((4, 4))])
    >>> box_on_level(view, Box((2, 3), (5, 5)), 0, 1)
    Box(start=(1, 1), stop=(3, 3))
    """
    target, counted = view.level(level), view.level(box_level)
    if box is None:
        return Box.whole(target.shape)
    if box.is_empty:
        raise BoxError(
            f"box {box.start} to {box.stop}: at least one voxel along each axis, got "
            f"{box.shape}; draw or type a larger one"
        )
    if counted.box_from(box, counted).is_empty:
        raise BoxError(
            f"box {box.start} to {box.stop}: must overlap level {box_level}, whose shape is "
            f"{counted.shape}, and lies outside it; give one inside"
        )
    inside = target.box_from(box, counted)
    if not inside.is_empty:
        return inside
    # past the edge of a coarser level, which may end earlier: the voxels there that are nearest
    low = tuple(min(start, n - 1) for start, n in zip(inside.start, target.shape, strict=True))
    return Box(low, tuple(max(a + 1, b) for a, b in zip(low, inside.stop, strict=True)))


def plan_levels(view: View, options: Options) -> tuple[LevelPlan, ...]:
    """Decide which boxes of which levels are written; see `make_plan`."""
    plans = []
    for position, number in enumerate(_levels(view, options.levels)):
        level = view.level(number)
        box = box_on_level(view, options.box, options.box_level, number)
        if options.extent == "level":
            plans.append(LevelPlan(position, number, level.grid.round_out(box), level))
        else:
            chunks = tuple(map(min, level.chunks, box.shape))
            array = replace(level.crop(box), chunks=chunks)
            plans.append(LevelPlan(position, number, box, array, array_is_level=False))
    return tuple(plans)


def _levels(view: View, levels: int | Sequence[int] | None) -> list[int]:
    numbers = [0] if levels is None else levels
    try:
        listed = [
            operator.index(n) for n in (numbers if isinstance(numbers, Sequence) else [numbers])
        ]
    except TypeError:
        raise LevelError(f"levels: whole numbers from 0 on, got {levels!r}; correct them") from None
    if not listed or len(set(listed)) != len(listed):
        raise LevelError(f"levels: at least one, and none twice, got {levels!r}; correct them")
    for number in listed:
        view.level(number)
    return sorted(listed)


def plan_coarser(
    written: Sequence[LevelPlan], pyramid: int | str, kind: Kind
) -> tuple[CoarserPlan, ...]:
    """Decide which levels are derived.

    Raises
    ------
    OptionError
        If several levels are written as viewed, or the level has not as many coarser ones.
    """
    if pyramid == 0:
        return ()
    if len(written) > 1:
        raise OptionError(
            "pyramid: coarser levels are derived from one written level, or written as viewed, got "
            f"pyramid={pyramid} and levels {[each.level for each in written]}; give one level, or "
            "leave the pyramid out"
        )
    found: list[CoarserPlan] = []
    array, region = written[0].array, written[0].region
    while pyramid == "auto" or len(found) < int(pyramid):
        factors = halving(array)
        if pyramid == "auto" and not any(
            factor == 2 and size > chunk
            for factor, size, chunk in zip(factors, array.shape, array.chunks, strict=True)
        ):
            break
        if 2 not in factors:
            raise OptionError(
                f"pyramid: at most {len(found)} coarser levels for {written[0].array.shape} "
                f"voxels, got {pyramid}; ask for fewer, or auto"
            )
        found.append(_coarser(len(found) + 1, array, region, factors, kind))
        array, region = found[-1].array, found[-1].region
    return tuple(found)


def _coarser(position: int, fine: Level, region: Box, factors: Index, kind: Kind) -> CoarserPlan:
    array = halved(fine, factors)
    tiles = ChunkGrid(fine.shape, tuple(map(_tile, fine.shape, fine.chunks, factors)))
    cover = tiles.indices(region)
    sizes = tuple(map(operator.floordiv, tiles.chunks, factors))
    reached = Box(
        tuple(map(operator.mul, cover.start, sizes)), tuple(map(operator.mul, cover.stop, sizes))
    )
    method = method_for(kind, fine.dtype)
    more = ChunkGrid(fine.shape, _together(fine, factors, tiles.chunks))
    return CoarserPlan(position, array, reached.clip(array.shape), factors, method, more)


TOGETHER = 2**18
"""Bytes that are halved at a time, of chunks of a quarter of that or less: each of many calls on
little waits for Python's lock. Of larger chunks it is copying them together that takes longer."""


def _together(fine: Level, factors: Index, tile: Index) -> Index:
    """Return how many voxels are halved at a time: small chunks together, up to a coarser one."""
    sides = list(tile)
    if 4 * math.prod(sides) * fine.dtype.itemsize > TOGETHER:
        return tile
    for axis in reversed(range(len(sides))):
        alike = factors[axis] == 2 and sides[axis] == fine.chunks[axis] < fine.shape[axis]
        if alike and 2 * math.prod(sides) * fine.dtype.itemsize <= TOGETHER:
            sides[axis] *= 2
    return tuple(sides)


def _tile(size: int, chunk: int, factor: int) -> int:
    """Return how many voxels of an axis are halved at a time: chunks, an even number of voxels."""
    if factor == 1 or chunk % 2 == 0:
        return chunk
    return 2 * chunk if chunk < size else size + size % 2
