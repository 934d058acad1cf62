"""The levels of a pyramid together: where they lie, and whether what they say can be.

Owns the guess of a downsampling factor from two shapes, and the rules that levels of one image keep
among themselves; nothing of where shapes come from.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING

from napari_materialize.errors import SourceError
from napari_materialize.sources.rules import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Axis, Level
    from napari_materialize.geometry import Index

__all__ = ["Placement", "check_levels", "contradictions", "place_by_shape", "placed"]

_ROUNDING = 1 + 1e-6
"""Coarse voxels by which a level may be wider or narrower than the finest."""

type Placement = tuple[tuple[float, ...], tuple[float, ...]]
"""A scale and a translation, one number per axis each."""


def placed(place: str, level: Level, axes: tuple[Axis, ...], at: Placement) -> Level:
    """Return a level with its axes, where it lies.

    Raises
    ------
    SourceError
        If a number is not usable: products and ratios of usable ones can overflow or vanish.
    """
    numbers(f"{place}: scale", at[0], level.ndim, positive=True)
    numbers(f"{place}: translation", at[1], level.ndim)
    return replace(level, axes=axes, scale=at[0], translation=at[1])


def _factor(fine: int, coarse: int) -> float:
    """Return how much larger a voxel became when ``fine`` voxels became ``coarse``.

    A whole number where one explains the sizes, rounded up or down: 5 voxels become 3 by a factor
    of 2, not of 5/3. Else the ratio itself, as when a level was resampled to a size of its own.
    """
    whole = max(1, round(fine / coarse))
    return whole if coarse in (fine // whole, -(-fine // whole)) else fine / coarse


def place_by_shape(shapes: Sequence[Index], finest: Placement) -> list[Placement]:
    """Place each level by the ratio of its shape to the one before.

    A voxel of a coarser level covers the same world as the voxels it was made of, so its centre is
    theirs: ``t_k = t_0 + (s_k - s_0) / 2``. Going level by level finds the factor more surely
    than a comparison with the finest: 100, 50, 25, 13, 7, 4 is five times 2, while 100 / 4 is 25.

    Examples
    --------
    >>> place_by_shape([(5, 100), (3, 50), (2, 50)], ((1.0, 0.5), (0.0, 10.0)))[1:]
    [((2.0, 1.0), (0.5, 10.25)), ((4.0, 1.0), (1.5, 10.25))]
    """
    scale, translation = finest
    placed = [finest]
    total: tuple[float, ...] = (1.0,) * len(scale)
    for fine, coarse in itertools.pairwise(shapes):
        total = tuple(map(operator.mul, total, map(_factor, fine, coarse)))
        grown = tuple(map(operator.mul, scale, total))
        moved = (t + (s - s0) / 2 for t, s, s0 in zip(translation, grown, scale, strict=True))
        placed.append((grown, tuple(moved)))
    return placed


def check_levels(place: str, levels: Sequence[Level]) -> None:
    """Refuse levels that cannot be those of one image.

    Raises
    ------
    SourceError
        If they differ in their number of axes or their dtype, or one is larger than the level
        before it.
    """
    shapes = [level.shape for level in levels]
    if len({level.ndim for level in levels}) != 1:
        raise SourceError(
            f"{place}: the levels of an image have the same axes, got shapes {shapes!r:.120}; open "
            "one of them by its path"
        )
    if len({level.dtype for level in levels}) != 1:
        raise SourceError(
            f"{place}: the levels of an image have the same dtype, got "
            f"{[level.dtype.name for level in levels]!r:.120}; open one of them by its path"
        )
    if any(any(map(operator.lt, fine, coarse)) for fine, coarse in itertools.pairwise(shapes)):
        raise SourceError(
            f"{place}: levels are listed finest first, and none is larger than the one before it, "
            f"got shapes {shapes!r:.120}; correct the metadata or open one of them by its path"
        )


def _edges(level: Level) -> list[tuple[float, float]]:
    """Return where a level begins and ends in the world, along each axis."""
    return [
        (center - step / 2, center - step / 2 + size * step)
        for size, step, center in zip(level.shape, level.scale, level.translation, strict=True)
    ]


def contradictions(levels: Sequence[Level]) -> tuple[str, ...]:
    """Say which levels do not cover the world that the finest covers, by their own scale.

    Rounding a size down or up at every step moves the far edge by less than a coarse voxel in all;
    more cannot come from rounding. A box that was cut out of each level on its own is rounded at
    both ends: there it is each edge that lies less than a coarse voxel off. Where a level lies is
    what its metadata says, all the same.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> fine, coarse = (Level((n, n), np.dtype("u1"), (4, 4)) for n in (64, 32))
    >>> contradictions((fine, coarse))[0][:69]
    'level 1: its scale makes it 32 wide along y, and level 0 is 64 wide; '
    """
    found = []
    finest = levels[0]
    for number, level in enumerate(levels[1:], start=1):
        edges = zip(_edges(level), _edges(finest), strict=True)
        for axis, step, ((low, high), (first, last)) in zip(
            level.axes, level.scale, edges, strict=True
        ):
            mine, theirs, most = high - low, last - first, step * _ROUNDING
            if abs(mine - theirs) > most and max(abs(low - first), abs(high - last)) > most:
                found.append(
                    f"level {number}: its scale makes it {mine:g} wide along {axis.name}, and "
                    f"level 0 is {theirs:g} wide; it is shown where its metadata says, so correct "
                    "that, or open one level by its path"
                )
                break
    return tuple(found)
