"""How much context a model needs, measured: tiles against a larger run, and where they agree.

Along one axis at a time two windows of the same voxels are run, one larger than the other or one
beside the other, and compared voxel by voxel. A voxel's *context* is its distance from the nearest
end of a window that the other window does not share. The halo is the smallest context from which
on all voxels agree. No window lies in the middle of the other, and they begin an odd number of
strides apart: where the model's true stride is larger than the one supposed, no context makes them
agree, and a larger one is tried.

Where no context that can be afforded makes them agree, or far voxels matter all the same
(`_model_far`), the model's output depends on the whole tile: global pooling, attention, a
normalisation over the tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from napari_materialize.ops._model_far import far_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_grid import AxisGrid

__all__ = ["Context", "measure"]

type Run = Callable[[np.ndarray], np.ndarray]
"""The model, from (1, channel, space...) in its dtype to (1, channel, space...)."""

type Sample = Callable[[Index], Sequence[np.ndarray]]
"""Voxels to measure on, for the sides of a window: (1, channel, space...) in the model's dtype."""

START = {2: 64, 3: 24}
"""Least side of the smaller window, by the number of space axes."""

MOST_VOXELS = {2: 2**20, 3: 2**21}
"""Voxels of a window beyond which nothing is measured."""

MOST_COMPARED = 2**13
"""The same, in places that are each compared with every other: 256 MiB for each such table."""

TIMES = (1, 2, 3, 4, 8)
"""Multiples of the supposed stride that are tried."""

FEW = 4
"""Contexts that by themselves prove nothing."""

SURE = 0.8
"""The share of the contexts in a window that tell something: a few voxels in its middle do not."""

ROUNDING = 64
"""Rounding errors of the model's dtype, at the height of its output, that count as agreement."""


@dataclass(frozen=True, slots=True)
class Context:
    """What was measured."""

    halo: Index
    """Voxels per space axis, multiples of the stride; the largest tried where none is enough."""

    stride: Index
    """Per space axis."""

    residual: float
    """The largest difference that is left from that halo on, in the output's own units."""

    height: float
    """The largest difference between two output values: what the residual is to be seen against."""

    tile_dependent: bool
    """Whether no context made tiles agree."""


class _Axis(NamedTuple):
    halo: int
    stride: int
    residual: float
    height: float
    agreed: bool


class _Window(NamedTuple):
    start: int
    side: int


def measure(
    run: Run,
    sample: Sample,
    grid: Sequence[AxisGrid],
    reach: Index | None,
    *,
    told: bool = False,
    whole: bool = False,
    branches: bool = False,
    sure: bool = False,
    compared: Fraction | None = None,
) -> Context:
    """Measure the context that a model needs along each of its space axes.

    Parameters
    ----------
    run, sample
        The model and the voxels.
    grid
        What is known of each axis.
    reach : tuple of int, optional
        How far the graph says a voxel looks: where to begin.
    told : bool
        Whether somebody gave the stride, so that no other is tried.
    whole : bool
        Whether the graph has operators that look at the whole tile, so that other strides are not
        tried before it is said.
    branches : bool
        Whether the graph may branch on the voxels of a tile.
    sure : bool
        Whether the graph was followed all the way, so that ``reach`` is as far as a voxel looks.
    compared : Fraction, optional
        Voxels per place, where every place is compared with every other: what a window takes grows
        with the square of its voxels then, so it is smaller.
    """
    most = MOST_VOXELS[len(grid)]
    if compared is not None:
        most = min(most, int(MOST_COMPARED * compared))
    times = (1,) if told or whole else TIMES
    far = reach if reach is not None and len(reach) == len(grid) else None
    found = [
        (sure and _returns_centre(axis, None if far is None else far[k]))
        or _along(k, run, sample, grid, far, times, most)
        for k, axis in enumerate(grid)
    ]
    halo, stride = tuple(axis.halo for axis in found), tuple(axis.stride for axis in found)
    residual, agreed = max(axis.residual for axis in found), all(axis.agreed for axis in found)
    if agreed:
        rows = zip(grid, stride, strict=True)
        steps = [replace(axis, stride=step) for axis, step in rows]
        left = far_difference(run, sample, steps, halo, far, flat=branches)
        residual, agreed = max(residual, left), left == 0
    return Context(halo, stride, residual, max(axis.height for axis in found), not agreed)


def _returns_centre(axis: AxisGrid, reach: int | None) -> _Axis | None:
    """Return what is known of an axis of which a tile's output is too short to be compared.

    As of a model that makes one plane of five: what it returns has all that it looks at.
    """
    if axis.fixed is None or reach is None or axis.lost < 2 * reach or axis.ratio != 1:
        return None
    if axis.made(axis.fixed) > FEW * axis.stride:
        return None
    return _Axis(_up(axis.least, axis), axis.stride, 0.0, 0.0, True)


def _along(  # noqa: PLR0917 - private
    k: int,
    run: Run,
    sample: Sample,
    grid: Sequence[AxisGrid],
    reach: Index | None,
    times: Sequence[int],
    most: int,
) -> _Axis:
    """Measure along one axis, with longer windows until they agree."""
    axis, last = grid[k], None
    for side, others in _sizes(k, grid, reach, most):
        for more in times:
            stepped = replace(axis, stride=axis.stride * more)
            windows = _windows(stepped, side)
            if windows is None:
                continue
            now = _compare(k, run, sample, grid, windows, others)
            found = _judge(now, stepped, None if reach is None else reach[k])
            if found.agreed:
                return found
            last = last or found
        if axis.fixed is not None:
            break
    return last or _Axis(0, axis.stride, math.inf, 0.0, False)


def _sizes(
    k: int, grid: Sequence[AxisGrid], reach: Index | None, most: int
) -> Iterator[tuple[int, Index]]:
    """Walk the side of the smaller window and the sides along the other axes, growing.

    Two windows have ``most`` voxels, about.
    """
    rank = len(grid)
    least = START[rank]
    wide = [least if reach is None else 2 * (reach[j] + axis.stride) for j, axis in enumerate(grid)]
    # what the graph says has to lie well inside, or nothing of it is confirmed
    seen = wide[k] if reach is None else math.ceil(2 / SURE * (reach[k] + grid[k].stride))
    side, first = max(least, seen + 16 + axis_margin(grid[k])), True
    while True:
        others = tuple(axis.side(max(16, wide[j])) for j, axis in enumerate(grid))
        voxels = 2 * side * math.prod(others) // others[k]
        if voxels > most:
            if not first:
                return
            # too much for once: narrower along the other axes, which both windows share
            room = int((most / (2 * side)) ** (1 / (rank - 1)))
            if room < 16:  # and what can be afforded, which may be too little to agree
                side, room = max(16, most // (2 * 16 ** (rank - 1))), 16
            others = tuple(axis.side(min(room, wide[j])) for j, axis in enumerate(grid))
        yield side, others
        if voxels > most:
            return
        first, side = False, 2 * side
        wide = [2 * value for value in wide]


def axis_margin(axis: AxisGrid) -> int:
    """Return the voxels that are lost at a tile's ends, and so tell nothing."""
    return 2 * axis.least


def _windows(axis: AxisGrid, side: int) -> tuple[_Window, _Window] | None:
    """Return two windows, the second an odd number of strides behind the first."""
    if axis.fixed is not None:
        shift = axis.stride * max(1, (axis.fixed // 4 // axis.stride) - 1 | 1)
        apart = shift > axis.fixed // 2 or shift * axis.ratio >= axis.made(axis.fixed)
        return None if apart else (_Window(0, axis.fixed), _Window(shift, axis.fixed))
    shift = axis.stride * (-(-8 // axis.stride) | 1)
    inner = axis.side(side)
    # not in the middle: a model that mirrors its tile would see no difference
    return _Window(0, axis.side(inner + 3 * shift)), _Window(shift, inner)


def _compare(  # noqa: PLR0917 - private
    k: int,
    run: Run,
    sample: Sample,
    grid: Sequence[AxisGrid],
    windows: tuple[_Window, _Window],
    others: Index,
) -> tuple[np.ndarray, float]:
    """Return the worst difference for each context and beyond, NaN where there is none."""
    axis = grid[k]
    stop = max(window.start + window.side for window in windows)
    sides = tuple(stop if j == k else side for j, side in enumerate(others))
    worst, height = np.zeros(0), 0.0
    for voxels in sample(sides):
        made = []
        for window in windows:
            cut = [slice(None)] * voxels.ndim
            cut[2 + k] = slice(window.start, window.start + window.side)
            made.append(_widened(run(voxels[tuple(cut)])))
        found = _differences(k, axis, windows, made)
        size = max(len(worst), len(found))
        worst = np.fmax(_padded(worst, size), _padded(found, size))
        with np.errstate(invalid="ignore"):
            finite = made[0][np.isfinite(made[0])]
        height = max(height, float(np.ptp(finite)) if finite.size else 0.0)
    return np.fmax.accumulate(worst[::-1])[::-1], height


def _widened(made: np.ndarray) -> np.ndarray:
    return made.astype(np.float64 if made.dtype.kind != "f" or made.itemsize > 4 else np.float32)


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([values, np.full(size - len(values), np.nan)])


def _differences(
    k: int, axis: AxisGrid, windows: tuple[_Window, _Window], made: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the worst difference for each context, along axis ``k`` of the space axes."""
    starts = [axis.origin(window.start) for window in windows]
    low = max(starts)
    high = min(s + array.shape[2 + k] for s, array in zip(starts, made, strict=True))
    parts = []
    for start, array in zip(starts, made, strict=True):
        cut = [slice(None)] * array.ndim
        cut[2 + k] = slice(low - start, high - start)
        parts.append(array[tuple(cut)])
    both_nan = np.isnan(parts[0]) & np.isnan(parts[1])
    with np.errstate(invalid="ignore"):
        apart = np.abs(parts[0] - parts[1])
    apart[both_nan | (parts[0] == parts[1])] = 0
    apart = np.nan_to_num(apart, nan=np.inf)
    each = apart.max(axis=tuple(j for j in range(apart.ndim) if j != 2 + k))
    places = np.arange(low, high)
    first = (places // axis.ratio).astype(int) if axis.ratio != 1 else places
    last = first if axis.ratio >= 1 else ((places + 1) / axis.ratio).astype(int) - 1
    context = np.min(
        [np.minimum(first - w.start, w.start + w.side - 1 - last) for w in windows], axis=0
    )
    worst = np.full(max(1, int(context.max()) + 1), np.nan)
    np.fmax.at(worst, np.maximum(context, 0), each)
    return worst


def _judge(measured: tuple[np.ndarray, float], axis: AxisGrid, reach: int | None) -> _Axis:
    """Return the smallest context from which on the windows agree, if there is one.

    A few contexts prove something only where they confirm what the graph says.
    """
    worst, height = measured
    far = int(SURE * (len(worst) - 1))
    told = len(worst) > FEW or (reach is not None and reach <= far)
    noise = float(worst[far]) if far < len(worst) and told else math.inf
    allowed = ROUNDING * float(np.finfo(np.float32).eps) * height
    if not noise <= allowed:
        return _Axis(
            _up(len(worst) // 2, axis), axis.stride, float(worst[len(worst) // 2]), height, False
        )
    enough = int(np.flatnonzero(worst <= max(2 * noise, 0.0))[0])
    known = np.flatnonzero(~np.isnan(worst))
    halo = _up(max(enough, int(known[0]) if axis.least else enough), axis)
    return _Axis(halo, axis.stride, float(worst[min(halo, far)]), height, True)


def _up(value: int, axis: AxisGrid) -> int:
    return -(-value // axis.stride) * axis.stride
