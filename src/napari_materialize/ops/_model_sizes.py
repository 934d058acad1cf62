"""Whether a model makes the same of small tiles and of large ones.

Owns a ladder of tiles of the same voxels, from one that has a little more than its halo to the
largest that can be afforded, and the comparison of what is inside of their halos. It is climbed
for models that look at the size of their tile (`_model_steering`): other models have no way to
tell sizes apart that `_model_context` does not see.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_grid import AxisGrid

__all__ = ["Sizes", "size_difference"]

MOST_VOXELS = {2: 2**20, 3: 2**21}
"""Voxels of the largest tile, by the number of space axes."""

ROUNDING = 64 * float(np.finfo(np.float32).eps)
"""Difference, as a part of the output's height, that counts as none."""

KEPT = 8
"""Voxels inside the halo of the smallest tile, at least."""


class Sizes(NamedTuple):
    """What was compared."""

    residual: float
    """The largest difference inside of the halos; 0 where it is no more than rounding."""
    least: Index
    """Sides of the smallest tile."""
    most: Index
    """Sides of the largest tile."""


def size_difference(
    run: Callable[[np.ndarray], np.ndarray],
    sample: Callable[[Index], Sequence[np.ndarray]],
    grid: Sequence[AxisGrid],
    halo: Index,
    residual: float,
) -> Sizes | None:
    """Compare tiles of several sizes with the largest; None where only one size can be tried.

    Parameters
    ----------
    run, sample, grid
        As in `_model_context.measure`.
    halo, residual
        The context that was measured, and the difference that it left.
    """
    ladder = list(_ladder(grid, halo))
    if len(ladder) < 2:
        return None
    most = ladder[-1]
    worst = 0.0
    for voxels in sample(most):
        whole = run(voxels).astype(np.float64)
        finite = whole[np.isfinite(whole)]
        height = float(np.ptp(finite)) if finite.size else 0.0
        allowed = max(ROUNDING * height, 2 * residual)
        for sides in ladder[:-1]:
            starts = [
                axis.down((large - side) // 2)
                for axis, large, side in zip(grid, most, sides, strict=True)
            ]
            cut = tuple(slice(a, a + n) for a, n in zip(starts, sides, strict=True))
            made = run(np.ascontiguousarray(voxels[:, :, *cut])).astype(np.float64)
            left = _apart(whole, made, [*map(_Placed, grid, halo, starts, sides)])
            worst = max(worst, left if left > allowed else 0.0)
    return Sizes(worst, ladder[0], most)


def _ladder(grid: Sequence[AxisGrid], halo: Index) -> Iterator[Index]:
    """Walk sides, from the smallest tile with something inside its halo to the largest."""
    most = MOST_VOXELS[len(grid)]
    low = [2 * far + max(KEPT, 2 * axis.stride) for axis, far in zip(grid, halo, strict=True)]
    least = tuple(axis.side(side) for axis, side in zip(grid, low, strict=True))
    free = [k for k, axis in enumerate(grid) if axis.fixed is None]
    if not free or math.prod(least) > most:
        return
    largest = least
    rungs = [least]
    while largest != (wider := _wider(grid, largest, free, most)):
        # one more stride, too: a side may be asked for its remainder
        rungs += [tuple(axis.side(n + 1) for axis, n in zip(grid, largest, strict=True)), wider]
        largest = wider
    if len(free) > 1:  # a side may be compared with another
        rungs += [
            tuple(n if k == j else m for k, (n, m) in enumerate(zip(largest, least, strict=True)))
            for j in free
        ]
    yield from (rung for rung in dict.fromkeys(rungs) if rung != largest)
    yield largest


def _wider(grid: Sequence[AxisGrid], sides: Index, free: Sequence[int], most: int) -> Index:
    """Return sides of twice the length, or as long as can be afforded; the same if no longer."""
    times = min(2.0, (most / math.prod(sides)) ** (1 / len(free)))
    wider = tuple(
        axis.down(int(times * side) - axis.rest) + axis.rest if k in free else side
        for k, (axis, side) in enumerate(zip(grid, sides, strict=True))
    )
    return tuple(map(max, wider, sides))


class _Placed(NamedTuple):
    """A tile along one axis, inside of the largest one."""

    axis: AxisGrid
    halo: int
    start: int
    side: int

    @property
    def inside(self) -> tuple[int, int]:
        """The output voxels, of the largest tile's grid, that lie inside the halo."""
        low = math.ceil((self.start + self.halo) * self.axis.ratio)
        high = math.floor((self.start + self.side - self.halo) * self.axis.ratio)
        first = self.axis.origin(self.start)
        made = self.axis.made(self.side)
        return max(low, first), min(high, first + made)


def _apart(whole: np.ndarray, made: np.ndarray, placed: Sequence[_Placed]) -> float:
    """Return the largest difference inside of the halo."""
    here: list[slice] = []
    there: list[slice] = []
    for each in placed:
        low, high = each.inside
        first = each.axis.origin(each.start)
        here.append(slice(low - first, high - first))
        there.append(slice(low - each.axis.first, high - each.axis.first))
    a, b = made[:, :, *here], whole[:, :, *there]
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
