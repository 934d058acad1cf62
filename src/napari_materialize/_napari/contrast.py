"""The contrast limits of a live image: what is known of them, else what a sample says.

napari would take them from the first picture, which is empty here. What is looked at, and what is
made of it, is in `looking`; when to look is the layer's business (`live`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from napari_materialize._napari.reads import Group, LayerReads
from napari_materialize.looking import LAST, first_limits, limits_of, sample

if TYPE_CHECKING:
    from napari.layers import Image

__all__ = ["Contrast"]


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
        view = self._reads.view
        coarsest = len(view.levels) - 1
        chunks = sample(view, self._reads.whole(coarsest), self._reads.shown)
        self._reads.hold(Group.SAMPLE, coarsest, chunks, priority=LAST)

    def settle(self, layer: Image) -> None:
        """Set the limits if the sample is there and nobody has set others meanwhile."""
        claims = self._reads.held(Group.SAMPLE)
        if self._over or not claims or not all(claim.done for claim in claims.values()):
            return
        self._over = True
        peek, view = self._reads.engine.peek, self._reads.view
        chunks = (peek(view, level, index) for level, index in claims)
        limits = limits_of(chunk for chunk in chunks if chunk is not None)
        self._reads.hold(Group.SAMPLE, 0, ())
        if limits is None or tuple(layer.contrast_limits) != self._first:
            return
        if layer.dtype.kind == "f":
            layer.contrast_limits_range = limits
        layer.contrast_limits = limits
