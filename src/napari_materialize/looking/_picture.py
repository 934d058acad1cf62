"""What is shown of a read while part of it is not computed yet. Arithmetic on arrays alone.

Owns how a picture is put together: READY chunks of the level that is read, where one is missing the
nearest coarser level that is READY there, and the fill value where there is none. It asks for
nothing and waits for nothing: whoever calls says which chunks are there.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index

__all__ = ["Axes", "compose", "covered", "covering", "nearest_first"]

type Axes = tuple[range | int, ...]
"""What is read along each axis of a level: voxels in steps, or one voxel whose axis is dropped."""

type Ready = Callable[[int, list[Index]], Sequence[np.ndarray | None]]
"""Returns chunks of a level, None for each that is not there."""

_ROUNDING = 1e-6
"""Voxels of slack when a voxel's centre falls on a coarser voxel's face but for rounding."""


class _Part(NamedTuple):
    """The voxels along one axis that lie in one chunk."""

    chunk: int
    target: slice
    """Where they go."""
    inside: slice | np.ndarray
    """Where they are in the chunk."""


def compose(
    levels: Sequence[Level],
    number: int,
    axes: Axes,
    ready: Ready,
    failed: Collection[Index] = (),
) -> tuple[np.ndarray, bool]:
    """Put a picture together from what is there.

    Parameters
    ----------
    levels : sequence of Level
        All levels of the view, finest first.
    number : int
        The level that is read.
    axes : Axes
        Which voxels of it, one entry per axis of the level.
    ready : callable
        ``ready(number, indices)`` returns these chunks, each clipped to its level, or None.
    failed : collection of index
        Chunks of the level that is read which could not be computed. They are holes, whatever a
        coarser level has there: a picture must not look whole where it is not.

    Returns
    -------
    numpy.ndarray
        Of the level's dtype, without the axes of which one voxel is read.
    bool
        Whether every voxel is the level's own.

    Examples
    --------
    >>> from napari_materialize.arrays import Axis, Level
    >>> fine = Level((4,), "u1", (2,), axes=(Axis("x"),))
    >>> coarse = Level((2,), "u1", (2,), axes=(Axis("x"),), scale=(2,), translation=(0.5,))
    >>> there = {(0, (0,)): np.uint8([1, 2]), (1, (0,)): np.uint8([1, 3])}
    >>> def ready(number, indices):
    ...     return [there.get((number, index)) for index in indices]
    >>> picture, complete = compose([fine, coarse], 0, (range(4),), ready)
    >>> picture.tolist(), complete
    ([1, 2, 3, 3], False)
    """
    level = levels[number]
    spans = [axis if isinstance(axis, range) else range(axis, axis + 1) for axis in axes]
    out = np.full([len(span) for span in spans], level.fill, level.dtype)
    own, missing = _found(number, list(map(_cut_span, spans, level.chunks)), ready)
    if missing and number + 1 < len(levels):
        # all holes at once, down to a level that is there as a whole
        voxels = [np.arange(span.start, span.stop, span.step) for span in spans]
        around = tuple(map(_around, zip(*missing.values(), strict=True)))
        rest = [along[part] for along, part in zip(voxels, around, strict=True)]
        layers = []
        for coarser in range(number + 1, len(levels)):
            places = _on_coarser(level, levels[coarser], rest)
            there, lacking = _found(coarser, list(map(_cut, places, levels[coarser].chunks)), ready)
            layers.append(there)
            if not lacking:
                break
        for there in reversed(layers):  # so that what is finer covers what is coarser
            _paint(out[around], there)
    for index in missing.keys() & failed:
        out[tuple(part.target for part in missing[index])] = level.fill
    _paint(out, own)
    kept = tuple(slice(None) if isinstance(axis, range) else 0 for axis in axes)
    return out[kept], not missing


type _Parts = tuple[_Part, ...]
"""The voxels that lie in one chunk, axis by axis."""


def _found(
    number: int, rows: Sequence[Sequence[_Part]], ready: Ready
) -> tuple[list[tuple[np.ndarray, _Parts]], dict[Index, _Parts]]:
    """Return the chunks of a level that are there, and what lies in those that are not."""
    there = []
    missing: dict[Index, _Parts] = {}
    indices = list(itertools.product(*([part.chunk for part in row] for row in rows)))
    chunks = ready(number, indices)
    for index, parts, chunk in zip(indices, itertools.product(*rows), chunks, strict=True):
        if chunk is None:
            missing[index] = parts
        else:
            there.append((chunk, parts))
    return there, missing


def _paint(out: np.ndarray, there: Sequence[tuple[np.ndarray, _Parts]]) -> None:
    for chunk, parts in there:
        _, target, inside = zip(*parts, strict=True)
        even = np.ndarray not in map(type, inside)
        out[target] = chunk[inside] if even else _pick(chunk, inside)


def _around(parts: Sequence[_Part]) -> slice:
    return slice(min(part.target.start for part in parts), max(part.target.stop for part in parts))


@lru_cache(maxsize=64)
def _cut_span(span: range, size: int) -> tuple[_Part, ...]:
    """Cut voxels in steps as `_cut` does: for one picture after the other they are the same."""
    return tuple(_cut(np.arange(span.start, span.stop, span.step), size))


def _cut(voxels: np.ndarray, size: int) -> list[_Part]:
    """Cut voxels along one axis into the chunks they lie in."""
    if not len(voxels):
        return []
    chunks = voxels // size
    edges = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(voxels)]
    parts = []
    for low, high in itertools.pairwise(edges):
        chunk = int(chunks[low])
        inside = voxels[low:high] - chunk * size
        parts.append(_Part(chunk, slice(low, high), _as_slice(inside)))
    return parts


def _as_slice(places: np.ndarray) -> slice | np.ndarray:
    """Return places in even steps as a slice, which numpy copies several times faster."""
    first, last = int(places[0]), int(places[-1])
    step = int(places[1]) - first if len(places) > 1 else 1
    if step == 0 or last - first != step * (len(places) - 1) or np.any(np.diff(places) != step):
        return places
    stop = last + (1 if step > 0 else -1)
    return slice(first, None if stop < 0 else stop, step)


def _pick(chunk: np.ndarray, inside: Sequence[slice | np.ndarray]) -> np.ndarray:
    """Return the outer product of places along each axis."""
    picked = chunk[tuple(part if isinstance(part, slice) else slice(None) for part in inside)]
    for axis, part in enumerate(inside):
        if not isinstance(part, slice):
            picked = picked.take(part, axis)
    return picked


def _on_coarser(level: Level, coarser: Level, voxels: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the coarser voxels in which the centres of voxels lie, clipped to their level."""
    found = []
    for axis, along in enumerate(voxels):
        world = level.translation[axis] + along * level.scale[axis]
        place = (world - coarser.translation[axis]) / coarser.scale[axis] + 0.5 + _ROUNDING
        found.append(np.clip(np.floor(place).astype(np.int64), 0, coarser.shape[axis] - 1))
    return found


def covering(level: Level, axes: Axes, coarser: Level) -> list[Index]:
    """Return the chunks of a coarser level that a read of a level lies in.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> fine, coarse = Level((8, 8), "u1", (2, 2)), Level((4, 4), "u1", (2, 2), scale=(2, 2))
    >>> covering(fine, (range(2, 8), 0), coarse)
    [(0, 0), (1, 0)]
    """
    ends = [
        np.array([axis, axis] if isinstance(axis, int) else [axis[0], axis[-1]])
        if axis != range(0)
        else np.array([], int)
        for axis in axes
    ]
    rows = []
    for places, size in zip(_on_coarser(level, coarser, ends), coarser.chunks, strict=True):
        low, high = (min(places) // size, max(places) // size) if len(places) else (0, -1)
        rows.append(range(int(low), int(high) + 1))
    return list(itertools.product(*rows))


def covered(level: Level, axes: Axes) -> list[list[int]]:
    """Return, for each axis of a level, the chunks in which the voxels of a read lie."""
    rows = []
    for axis, size in zip(axes, level.chunks, strict=True):
        if isinstance(axis, int):
            rows.append([axis // size])
        elif abs(axis.step) <= size and len(axis):
            first, last = sorted((axis[0] // size, axis[-1] // size))
            rows.append(list(range(first, last + 1)))
        else:
            rows.append(sorted({voxel // size for voxel in axis}))
    return rows


def nearest_first(level: Level, axes: Axes, displayed: Sequence[int]) -> list[Index]:
    """Return the chunks of a read: those of the current plane first, then from the centre out.

    Parameters
    ----------
    level : Level
        Whose chunks.
    axes : Axes
        What is read of it.
    displayed : sequence of int
        The level's axes that lie on the canvas. The middle of what is read along the other axes is
        the current plane.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> nearest_first(Level((6, 6), "u1", (2, 2)), (range(6), 3), [0])
    [(1, 1), (0, 1), (2, 1)]
    """
    distances: list[dict[int, float]] = []
    for number, (axis, chunks) in enumerate(zip(axes, covered(level, axes), strict=True)):
        size, scale = level.chunks[number], level.scale[number]
        middle = axis if isinstance(axis, int) else (axis[0] + axis[-1]) / 2 if axis else 0
        if number in displayed:
            apart = {chunk: abs((chunk + 0.5) * size - 0.5 - middle) for chunk in chunks}
        else:
            apart = {
                chunk: max(chunk * size - middle, middle - (chunk + 1) * size + 1, 0)
                for chunk in chunks
            }
        distances.append({chunk: (scale * voxels) ** 2 for chunk, voxels in apart.items()})

    def rank(index: Index) -> tuple[float, float]:
        beside, on_canvas = 0.0, 0.0
        for number, chunk in enumerate(index):
            if number in displayed:
                on_canvas += distances[number][chunk]
            else:
                beside += distances[number][chunk]
        return beside, on_canvas

    return sorted(itertools.product(*distances), key=rank)
