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
    >>> seen.add((1, 0, 0), np.array([[[5, -3]]], "f4"))
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

    def add(self, chunk: Index, voxels: np.ndarray) -> None:
        """Look at a chunk."""
        if self._axis is None:
            return
        first = chunk[self._axis] * self._chunk
        for number, plane in enumerate(np.moveaxis(voxels, self._axis, 0), first):
            if (window := _extremes(plane)) is not None:
                with self._lock:
                    before = self._found[number]
                    self._found[number] = window if before is None else _both(before, window)

    @property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """Return the values from black to white, for each channel; none without channels."""
        with self._lock:
            found = [(0.0, 1.0) if each is None else each for each in self._found]
        return tuple((low, high if high > low else low + 1) for low, high in found)


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
