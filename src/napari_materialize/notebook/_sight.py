"""One view as it is looked at: the claims behind its picture, and what is there of it.

Owns what is claimed for a look, and in which order: a coarse picture first where that is much less
work, then the sharp one from the middle out, and last what the contrast limits are taken from. When
to look and to paint is `_painter`'s business.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from napari_materialize.cache import ChunkState
from napari_materialize.errors import EngineClosed
from napari_materialize.looking import (
    LAST,
    Held,
    compose,
    covered,
    first_limits,
    limits_of,
    nearest_first,
    sample,
)
from napari_materialize.notebook._camera import Frame, Look, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from napari_materialize.engine import Engine
    from napari_materialize.errors import MaterializeError
    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = ["Sight"]

FIRST = -1
"""The priority of the coarse picture's claims, which go before the sharp one's."""

MUCH_LESS = 4
"""A coarse picture comes first if it has at most one chunk for so many of the sharp one."""


class Sight:
    """What is seen of one view. Used by one thread at a time."""

    def __init__(self, view: View, engine: Engine, on_news: Callable[[], None]) -> None:
        self.view = view
        self.held = Held(view, engine, on_news)
        self.limits = first_limits(view)
        """The contrast limits to show it with, until something says better."""
        self._sampled = False
        self._told: list[MaterializeError] = []
        self.frame: Frame | None = None
        self._coarse: list[Index] = []
        self._sharp: list[Index] = []

    def aim(self, look: Look) -> Frame | None:
        """Claim what a look needs, and give up what it does not."""
        frame = self.frame = frame_of(self.view, look)
        self._sharp = [] if frame is None else _chunks(self.view, frame)
        self._coarse = [] if frame is None else self._coarse_chunks(look, frame)
        self.claim()
        self._sample()
        return frame

    def claim(self) -> None:
        """Claim what is not claimed yet of what was aimed at: of many chunks, some at a time."""
        number = 0 if self.frame is None else self.frame.level
        self.held.hold("coarse", len(self.view.levels) - 1, self._coarse, priority=FIRST)
        self.held.hold("sharp", number, self._sharp)

    def _coarse_chunks(self, look: Look, frame: Frame) -> list[Index]:
        number = len(self.view.levels) - 1
        if number == frame.level:
            return []
        coarse = frame_of(self.view, look, number)
        if coarse is None:
            return []
        rows = covered(self.view.levels[number], coarse.axes)
        there = self.held.ready_all(frame.level, self._sharp)
        missing = sum(chunk is None for chunk in there)
        if math.prod(map(len, rows)) * MUCH_LESS > missing:
            return []
        return _chunks(self.view, coarse)

    def _sample(self) -> None:
        if self._sampled or self.frame is None:
            return
        down_right = self.frame.displayed
        coarse = len(self.view.levels) - 1
        whole = tuple(
            range(size) if axis in down_right else size // 2
            for axis, size in enumerate(self.view.levels[coarse].shape)
        )
        wanted = sample(self.view, whole, down_right)
        self._sampled = not wanted
        self.held.hold("sample", coarse, wanted, priority=LAST)

    def settle_limits(self) -> None:
        """Take the limits from the sample, once it is there."""
        claims = self.held.claims("sample")
        if self._sampled or not claims or not all(claim.done for claim in claims.values()):
            return
        self._sampled = True
        chunks = [self.held.ready(*place) for place in claims]
        self.held.hold("sample", 0, ())
        found = limits_of(chunk for chunk in chunks if chunk is not None)
        self.limits = self.limits if found is None else found

    def take(self) -> tuple[np.ndarray, bool, bool] | None:
        """Return what is there of what was aimed at.

        Returns
        -------
        numpy.ndarray, bool, bool
            (down, right) voxels; whether all of them are the level's own; whether any are there.
        """
        if self.frame is None:
            return None
        found = 0

        def ready(level: int, indices: Sequence[Index]) -> list[np.ndarray | None]:
            nonlocal found
            chunks = self.held.ready_all(level, indices)
            found += sum(chunk is not None for chunk in chunks)
            return chunks

        frame = self.frame
        voxels, complete = compose(self.view.levels, frame.level, frame.axes, ready)
        down, right = frame.displayed
        return (voxels if down < right else voxels.T), complete, found > 0

    def retry(self) -> None:
        """Let what failed of what is claimed be computed anew. In any thread."""
        engine = self.held.engine
        for (level, index), _ in self.held.failures():
            if engine.state(self.view, level, index) is ChunkState.FAILED:
                engine.retry(self.view, level, index)

    def failures(self) -> Sequence[MaterializeError]:
        """Return why chunks of the picture failed, one entry each."""
        self._told += self.held.take_failures()  # an engine that was closed fails no claim
        over = [error for error in self._told if isinstance(error, EngineClosed)]
        return [*over[:1], *(error for _, error in self.held.failures())]


def _chunks(view: View, frame: Frame) -> list[Index]:
    return nearest_first(view.levels[frame.level], frame.axes, frame.displayed)
