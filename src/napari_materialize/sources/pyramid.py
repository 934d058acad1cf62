"""Where the levels of a pyramid lie when only their shapes are known.

Owns the guess of a downsampling factor from two shapes, and nothing of where shapes come from.
"""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.geometry import Index

__all__ = ["Placement", "place_by_shape"]

type Placement = tuple[tuple[float, ...], tuple[float, ...]]
"""A scale and a translation, one number per axis each."""


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
