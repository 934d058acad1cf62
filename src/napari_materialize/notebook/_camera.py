"""Where somebody looks, and what has to be read for that. Numbers in, numbers out.

Owns the arithmetic between the canvas in the browser and the voxels of a view: which level is fine
enough, which of its voxels lie on the canvas, where they go. Positions on the canvas are counted in
voxels of the finest level, from the outer face of voxel 0: voxel ``i`` covers ``i`` to ``i + 1``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.looking import Axes
    from napari_materialize.view import View

__all__ = ["Frame", "Look", "first_look", "frame_of", "planes", "turned"]

SHARP = 1.25
"""Screen pixels that a voxel of the shown level may be wide, before a finer level is taken."""

LARGEST = 4096
"""Screen pixels along a side of a picture, at most."""

CLOSEST = 512.0
"""Screen pixels that a finest voxel may be wide, at most."""


@dataclass(frozen=True, slots=True)
class Look:
    """Where somebody looks."""

    plane: tuple[str, str]
    """The names of the axes that run down and to the right."""

    at: Mapping[str, int]
    """Which voxel of the finest level is shown along each of the other axes."""

    centre: tuple[float, float] = (0.0, 0.0)
    """The middle of the canvas, down and to the right."""

    zoom: float = 0.0
    """Screen pixels per finest voxel to the right; 0 for all of it in the canvas."""

    size: tuple[int, int] = (480, 640)
    """Screen pixels down and to the right."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is read for a look at a view: a level, voxels of it, and where they go."""

    level: int
    """0 is the finest."""

    axes: Axes
    """Which of its voxels, as `looking.compose` takes them."""

    displayed: tuple[int, int]
    """The places among the view's axes of those that run down and to the right."""

    rect: tuple[float, float, float, float] = field(default=(0.0, 0.0, 0.0, 0.0))
    """Top, bottom, left, right of what is read, on the canvas."""


def planes(view: View) -> list[tuple[str, str]]:
    """Return the pairs of axes that a view can be looked at along, the usual one first.

    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> planes(nm.open_view(np.zeros((2, 3, 4))))
    [('y', 'x'), ('z', 'x'), ('z', 'y')]
    """
    axes = view.levels[0].axes
    names = [axis.name for axis in axes if axis.type == "space"]
    if len(names) < 2:
        names = [axis.name for axis in axes][-2:]
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return sorted(pairs, key=lambda pair: (-names.index(pair[0]), -names.index(pair[1])))


def first_look(view: View, before: Look | None = None) -> Look:
    """Return a look at the middle of a view; as before where that is possible."""
    level = view.levels[0]
    pairs = planes(view)
    plane = before.plane if before and before.plane in pairs else pairs[0]
    at = {}
    for axis, size in zip(level.axes, level.shape, strict=True):
        middle = 0 if axis.type != "space" else size // 2
        place = before.at.get(axis.name, middle) if before else middle
        at[axis.name] = min(max(0, place), size - 1)
    if before is None:
        return Look(plane, at)
    return replace(before, plane=plane, at=at)


def turned(view: View, look: Look, asked: Mapping[str, Any]) -> Look:
    """Return the look that a browser asks for, within what the view has.

    Parameters
    ----------
    view : View
        What is looked at.
    look : Look
        Where somebody looked before.
    asked : mapping
        Some of ``plane``, ``at``, ``centre``, ``zoom`` and ``size``, as JSON has them.

    Raises
    ------
    OptionError
        If something is of another kind.
    """
    level = view.levels[0]
    try:
        plane = tuple(map(str, asked.get("plane", look.plane)))
        sizes = {axis.name: size for axis, size in zip(level.axes, level.shape, strict=True)}
        at = dict(look.at)
        for name, place in dict(asked.get("at", {})).items():
            at[name] = min(max(0, int(place)), sizes[name] - 1)
        down, right = map(float, asked.get("centre", look.centre))
        zoom = float(asked.get("zoom", look.zoom))
        height, width = (max(16, min(int(n), LARGEST)) for n in asked.get("size", look.size))
        if plane not in planes(view) or not all(map(math.isfinite, (down, right, zoom))):
            raise ValueError(f"{plane}, {down}, {right}, {zoom}")
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise OptionError(
            f"look: axes, places and numbers of {view.name!r}, got {asked}"
        ) from error
    fits = asked.get("centre") is None and (plane != look.plane or look.zoom == 0)
    moved = replace(look, plane=(plane[0], plane[1]), at=at, size=(height, width))
    if fits or zoom <= 0:
        return fitted(view, moved)
    smallest = fitted(view, moved).zoom / 8
    return replace(moved, centre=(down, right), zoom=min(max(zoom, smallest), CLOSEST))


def fitted(view: View, look: Look) -> Look:
    """Return a look at all of the plane."""
    level, (down, right) = view.levels[0], _displayed(view, look)
    height, width = level.shape[down], level.shape[right]
    tall = level.scale[down] / level.scale[right]
    zoom = min(look.size[0] / (height * tall), look.size[1] / width)
    return replace(look, centre=(height / 2, width / 2), zoom=min(zoom, CLOSEST))


def frame_of(view: View, look: Look, number: int | None = None) -> Frame | None:
    """Return what is read for a look; None where the canvas shows nothing of the view.

    The level is ``number``, else the coarsest whose voxels are hardly larger than a screen pixel.
    Where even that has many voxels to a pixel, every so many are read.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view([np.zeros((64, 64)), np.zeros((32, 32))], scale=(1, 1))
    >>> look = turned(view, first_look(view), {"size": (32, 32)})
    >>> frame_of(view, look)
    Frame(level=1, axes=(range(0, 32), range(0, 32)), displayed=(0, 1), rect=(0.0, 64.0, 0.0, 64.0))
    """
    finest, displayed = view.levels[0], _displayed(view, look)
    tall = finest.scale[displayed[0]] / finest.scale[displayed[1]]
    zooms = (look.zoom * tall, look.zoom)
    number = _fine_enough(view, displayed, zooms) if number is None else number
    level, rect, axes = view.levels[number], [], list(_hidden(view, look, number))
    for axis, zoom, middle, pixels in zip(displayed, zooms, look.centre, look.size, strict=True):
        half = pixels / zoom / 2
        low = _edge(finest, level, axis, middle - half)
        high = _edge(finest, level, axis, middle + half)
        step = max(1, math.floor(finest.scale[axis] / level.scale[axis] / zoom + 1e-6))
        start = max(0, math.floor(low + 1e-6)) // step * step
        stop = min(level.shape[axis], math.ceil(high - 1e-6))
        if start >= stop:
            return None
        voxels = range(start, stop, step)
        axes[axis] = voxels
        rect += [
            _edge(level, finest, axis, start),
            _edge(level, finest, axis, start + len(voxels) * step),
        ]
    return Frame(number, tuple(axes), displayed, (rect[0], rect[1], rect[2], rect[3]))


def _fine_enough(view: View, displayed: tuple[int, int], zooms: tuple[float, float]) -> int:
    """Return the coarsest level whose voxels are hardly larger than a screen pixel."""
    finest, found = view.levels[0], 0
    for number, level in enumerate(view.levels):
        if all(
            zoom * level.scale[axis] / finest.scale[axis] <= SHARP
            for zoom, axis in zip(zooms, displayed, strict=True)
        ):
            found = number
    return found


def _displayed(view: View, look: Look) -> tuple[int, int]:
    names = [axis.name for axis in view.levels[0].axes]
    return names.index(look.plane[0]), names.index(look.plane[1])


def _hidden(view: View, look: Look, number: int) -> list[range | int]:
    """Return which voxel of a level lies where the sliders stand, along all axes."""
    finest, level = view.levels[0], view.levels[number]
    found: list[range | int] = []
    for axis, described in enumerate(finest.axes):
        middle = look.at.get(described.name, 0) + 0.5
        place = math.floor(_edge(finest, level, axis, middle) + 1e-6)
        found.append(min(max(0, place), level.shape[axis] - 1))
    return found


def _edge(given: Level, wanted: Level, axis: int, position: float) -> float:
    """Return a position, in voxels of one level from its outer face, in those of another."""
    world = given.translation[axis] + (position - 0.5) * given.scale[axis]
    place: float = (world - wanted.translation[axis]) / wanted.scale[axis] + 0.5
    return place
