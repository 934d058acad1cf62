"""Whether a model's output depends on voxels of its tile however far away they lie.

Two tiles of ordinary voxels may agree although their outputs depend on all of them: the mean or
the highest value of two large tiles is nearly the same. So the far voxels are changed outright, to
values far above and far below all others, and what the model makes of the middle is compared.
Where it changes, it must change less from a doubled distance on: a network may look further than
was measured on ordinary voxels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_grid import AxisGrid

__all__ = ["far_difference"]

MOST_VOXELS = 2**22
"""Voxels of a tile beyond which nothing is tried."""

MIDDLE = 8
"""Output voxels in the middle that are compared, at least."""

CHANGED = 16
"""Voxels that are changed at each end, at least."""

ROUNDING = 64 * float(np.finfo(np.float32).eps)
"""Difference, as a part of the output's height, that counts as none."""


def far_difference(
    run: Callable[[np.ndarray], np.ndarray],
    sample: Callable[[Index], Sequence[np.ndarray]],
    grid: Sequence[AxisGrid],
    halo: Index,
    reach: Index | None,
    *,
    flat: bool = False,
) -> float:
    """Return by how much the middle of a tile changes with its far voxels; 0 if it does not.

    Parameters
    ----------
    run, sample, grid
        As in `_model_context.measure`.
    halo
        The context that was measured, in voxels per space axis.
    reach
        The context that the graph says, if it says one.
    flat
        Whether tiles of one value are tried too: a branch that the voxels of ordinary tiles always
        take is seen where the far voxels are the only ones that take it.
    """
    far = reach if reach is not None and len(reach) == len(grid) else (0,) * len(grid)
    near = [max(pair) + axis.stride for *pair, axis in zip(halo, far, grid, strict=True)]
    worst = 0.0
    for k in range(len(grid)):
        left = math.inf
        for distance in (near[k], 2 * near[k]):
            sides = _sides(k, grid, distance)
            if sides is None:
                left = 0.0 if left == math.inf else left  # nothing can be said, or no more
                break
            voxels = sample(sides)[-1]
            others = tuple(_extremes(voxels))
            changes = (_change(k, grid[k], run, t, distance, others) for t in _tiles(voxels, flat))
            left = min(left, max(changes))
            if left == 0:
                break
        worst = max(worst, left)
    return worst


def _sides(k: int, grid: Sequence[AxisGrid], distance: int) -> Index | None:
    """Return the sides of a tile with a middle ``distance`` from changed ends along axis ``k``."""
    wanted = [max(16, 2 * axis.stride, 4 * axis.least) for axis in grid]
    wanted[k] = max(wanted[k], _needed(grid[k], distance))
    sides = tuple(axis.side(side) for axis, side in zip(grid, wanted, strict=True))
    if sides[k] < _needed(grid[k], distance) or math.prod(sides) > MOST_VOXELS:
        return None
    return sides


def _needed(axis: AxisGrid, distance: int) -> int:
    """Return the side of a tile with two ends to change and a middle to compare."""
    middle = MIDDLE * axis.ratio.denominator
    return middle + 2 * (distance + CHANGED + axis.least)


def _change(  # noqa: PLR0917 - private
    k: int,
    axis: AxisGrid,
    run: Callable[[np.ndarray], np.ndarray],
    tile: np.ndarray,
    distance: int,
    others: tuple[float, ...],
) -> float:
    """Return the worst difference in the middle when all voxels far from it have other values."""
    side = tile.shape[2 + k]
    ends = CHANGED + axis.least
    low = math.ceil((ends + distance) * axis.ratio) - axis.first
    high = math.floor((side - ends - distance) * axis.ratio) - axis.first
    middle = (*(slice(None),) * (2 + k), slice(low, high))
    before = run(tile)[middle].astype(np.float64)
    finite = before[np.isfinite(before)]
    height = float(np.ptp(finite)) if finite.size else 0.0
    if not height and finite.size:  # of a flat tile comes a flat one
        height = float(np.abs(finite).max())
    allowed = ROUNDING * height
    worst = 0.0
    for value in others:
        other = tile.copy()
        along = np.moveaxis(other, 2 + k, 0)
        along[:ends] = value
        along[side - ends :] = value
        after = run(other)[middle].astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.abs(after - before)
        apart[(before == after) | (np.isnan(before) & np.isnan(after))] = 0
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
    return worst if worst > allowed else 0.0


def _tiles(tile: np.ndarray, flat: bool) -> list[np.ndarray]:
    """Return a tile, and the same with its lowest and its highest value everywhere if ``flat``."""
    values = (tile.min(), tile.max()) if flat else ()
    return [tile, *(np.full_like(tile, value) for value in values)]


def _extremes(tile: np.ndarray) -> Iterator[float]:
    """Return a value far above all voxels, and one far below, within the dtype."""
    low, high = float(tile.min()), float(tile.max())
    spread = 4 * max(high - low, 1e-3 * (abs(low) + 1))
    limits = np.iinfo(tile.dtype) if tile.dtype.kind in "iu" else np.finfo(tile.dtype)
    yield min(high + spread, float(limits.max))
    yield max(low - spread, float(limits.min))
