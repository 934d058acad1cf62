"""The contrast limits of a live image: what is known of them, else what a sample says.

napari would take them from the first picture, which is empty here. Owns the sample and what is made
of it; when to look is the layer's business (`live`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from napari_materialize._napari.picture import nearest_first
from napari_materialize._napari.reads import LAST, Group, LayerReads

if TYPE_CHECKING:
    from napari.layers import Image

    from napari_materialize.view import View

__all__ = ["Contrast", "first_limits"]

SAMPLE_CHUNKS = 4
"""Chunks of the coarsest level, those nearest its middle, that are looked at."""


def first_limits(view: View) -> tuple[float, float]:
    """Return the limits a view's layer starts with: its own, else its dtype's range, else 0 to 1.

    Examples
    --------
    >>> import napari_materialize as nm
    >>> first_limits(nm.open_view(np.zeros((4, 4), "u2")))
    (0.0, 65535.0)
    """
    dtype = view.levels[0].dtype
    if view.limits is not None:
        return float(view.limits[0]), float(view.limits[1])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return float(limits.min), float(limits.max)
    return 0.0, 1.0


class Contrast:
    """Finds the contrast limits of one live image, unless they are known or somebody sets them."""

    def __init__(self, reads: LayerReads) -> None:
        self._reads = reads
        self._first = first_limits(reads.view)
        dtype = reads.view.levels[0].dtype
        self._over = reads.view.limits is not None or dtype in (np.uint8, np.bool)

    def ask(self) -> None:
        """Ask for the sample, after everything else."""
        if self._over:
            return
        coarsest = len(self._reads.view.levels) - 1
        level = self._reads.view.levels[coarsest]
        axes = tuple(
            axis if isinstance(axis, int) else range(*_middle(len(axis), size))
            for axis, size in zip(self._reads.whole(coarsest), level.chunks, strict=True)
        )
        sample = nearest_first(level, axes, self._reads.shown)[:SAMPLE_CHUNKS]
        self._reads.hold(Group.SAMPLE, coarsest, sample, priority=LAST)

    def settle(self, layer: Image) -> None:
        """Set the limits if the sample is there and nobody has set others meanwhile."""
        claims = self._reads.held(Group.SAMPLE)
        if self._over or not claims or not all(claim.done for claim in claims.values()):
            return
        self._over = True
        limits = self._limits(list(claims))
        self._reads.hold(Group.SAMPLE, 0, ())
        if limits is None or tuple(layer.contrast_limits) != self._first:
            return
        if layer.dtype.kind == "f":
            layer.contrast_limits_range = limits
        layer.contrast_limits = limits

    def _limits(self, places: list[tuple[int, tuple[int, ...]]]) -> tuple[float, float] | None:
        lows, highs = [], []
        for level, index in places:
            chunk = self._reads.engine.peek(self._reads.view, level, index)
            if chunk is None:
                continue
            finite = chunk[np.isfinite(chunk)]
            if finite.size:
                lows.append(float(finite.min()))
                highs.append(float(finite.max()))
        if not lows:
            return None
        low, high = min(lows), max(highs)
        # as napari does for an image of one value
        return (low, high) if low < high else (min(low, 0.0), max(high, 1.0))


def _middle(size: int, chunk: int) -> tuple[int, int]:
    """Return the start and stop of the voxels at most a chunk from the middle."""
    return max(0, size // 2 - chunk), min(size, size // 2 + chunk + 1)
