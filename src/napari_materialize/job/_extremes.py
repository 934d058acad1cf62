"""The lowest and the highest value of each channel that a job writes, for display.

A viewer needs a window for each channel, and a made-up one shows a dark image: where nobody knows
the limits before, they are looked at while the voxels are written.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index

__all__ = ["Extremes"]


class Extremes:
    """Looks at every chunk of an array with channels. May be told from any thread.

    Examples
    --------
    >>> from napari_materialize.arrays import Axis, Level
    >>> axes = (Axis("c", "channel"), Axis("y"), Axis("x"))
    >>> seen = Extremes(Level((2, 1, 2), "f4", (1, 1, 2), axes))
    >>> seen.add((0, 0, 0), np.array([[[1, np.nan]]], "f4"))
    True
    >>> seen.add((1, 0, 0), np.array([[[5, -3]]], "f4"))
    True
    >>> seen.windows
    ((1.0, 2.0), (-3.0, 5.0))
    """

    def __init__(self, array: Level) -> None:
        types = [axis.type for axis in array.axes]
        self._axis = types.index("channel") if "channel" in types else None
        self._chunk = 1 if self._axis is None else array.chunks[self._axis]
        self._lock = threading.Lock()
        count = 0 if self._axis is None else array.shape[self._axis]
        self._found: list[tuple[float, float] | None] = [None] * count

    def add(self, chunk: Index, voxels: np.ndarray) -> bool:
        """Look at a chunk; return whether it changed anything."""
        if self._axis is None:
            return False
        changed = False
        first = chunk[self._axis] * self._chunk
        for number, plane in enumerate(np.moveaxis(voxels, self._axis, 0), first):
            if (window := _extremes(plane)) is not None:
                with self._lock:
                    before = self._found[number]
                    now = window if before is None else _both(before, window)
                    changed = changed or now != before
                    self._found[number] = now
        return changed

    @property
    def seen(self) -> list[tuple[float, float] | None]:
        """The lowest and the highest value of each channel so far."""
        with self._lock:
            return list(self._found)

    def merge(self, seen: Sequence[Sequence[float] | None]) -> None:
        """Take what was seen before."""
        with self._lock:
            for number, window in enumerate(seen[: len(self._found)]):
                if window is not None:
                    before = self._found[number]
                    now = (window[0], window[1])
                    self._found[number] = now if before is None else _both(before, now)

    @property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """Return the values from black to white, for each channel; none without channels."""
        with self._lock:
            found = [(0.0, 1.0) if each is None else each for each in self._found]
        return tuple((low, high) if high > low else _around(low) for low, high in found)


def _around(value: float) -> tuple[float, float]:
    """Return a window of some width: beside 2^63 a 1 vanishes."""
    above = max(value + 1, math.nextafter(value, math.inf))
    return (value, above) if math.isfinite(above) else (math.nextafter(value, 0), value)


def _both(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])


def _extremes(voxels: np.ndarray) -> tuple[float, float] | None:
    """Return the lowest and the highest finite value, if there is one."""
    low, high = float(voxels.min()), float(voxels.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = voxels[np.isfinite(voxels)]
        if finite.size == 0:
            return None
        low, high = float(finite.min()), float(finite.max())
    return low, high
