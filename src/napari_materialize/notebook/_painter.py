"""The thread that paints: from what is there to a picture, as chunks come.

Owns when a picture is made, and the thread that makes it; there is none while nobody looks. What is
claimed for it is in `_sight`, what its pixels are in `_pixels`.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from napari_materialize.notebook._pixels import blend, colour, grey, png

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from napari_materialize.notebook._camera import Look
    from napari_materialize.notebook._sight import Sight

__all__ = ["Painter", "Picture", "Request", "paint"]

INTERVAL = 0.08
"""Seconds between two pictures of one look, at least, and at least twice a picture's cost."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What is to be painted."""

    sights: tuple[Sight, ...]
    """What is seen, the lowest first."""

    look: Look
    """Where it is looked at."""

    window: tuple[float, float] | None
    """What is black and what is white; None for the sight's own limits."""

    mark: int
    """Comes back with every picture of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """What is sent to whoever looks."""

    mark: int
    """The request that it answers."""

    png: bytes
    rect: tuple[float, float, float, float]
    """Top, bottom, left, right, as `_camera.Frame` has them."""

    level: int
    """Which level it shows, or will once it is complete."""

    complete: bool
    """Whether every voxel is that level's own."""

    settled: bool
    """Whether nothing of it is still to come."""

    limits: tuple[float, float]
    """What is black and what is white unless somebody says."""

    failures: tuple[str, ...]
    """Why chunks of it failed."""


def paint(request: Request) -> Picture | None:
    """Return the picture of what is there; None if there is nothing yet."""
    taken = []
    for sight in request.sights:
        sight.settle_limits()
        settled, shown = sight.held.settled, sight.take()
        if shown is not None:
            taken.append((sight, settled, shown))
    failures = _failures(request.sights)
    there = any(there for _, _, (_, _, there) in taken)
    frame = taken[-1][0].frame if taken else None
    if frame is None or not (there or failures):
        return None
    pixels, limits = _pixels(taken, request.window)
    return Picture(
        request.mark,
        png(pixels),
        frame.rect,
        frame.level,
        all(complete for _, _, (_, complete, _) in taken),
        all(settled for _, settled, _ in taken),
        limits,
        failures,
    )


def _pixels(
    taken: Sequence[tuple[Sight, bool, tuple[np.ndarray, bool, bool]]],
    window: tuple[float, float] | None,
) -> tuple[np.ndarray, tuple[float, float]]:
    """Put what is seen together: an image as grey, labels as colours, colours over grey."""
    out: np.ndarray | None = None
    limits = taken[0][0].limits
    for sight, _, (voxels, _, _) in taken:
        if sight.view.kind == "image":
            limits = sight.limits
            out = grey(voxels, *(window or limits))
            continue
        coloured = colour(voxels, sight.view.kind)
        fits = out is not None and out.shape == coloured.shape[:2]
        out = blend(out, coloured) if fits and out is not None else coloured
    assert out is not None
    return out, limits


def _failures(sights: Sequence[Sight]) -> tuple[str, ...]:
    found = [str(error) for sight in sights for error in sight.failures()]
    return tuple(dict.fromkeys(found))


class Painter:
    """Paints what was asked for last, again and again while chunks come.

    Parameters
    ----------
    deliver : callable
        Called with each `Picture`, in the painter's thread.
    """

    def __init__(self, deliver: Callable[[Picture], None]) -> None:
        self._deliver = deliver
        self._changed = threading.Condition()
        self._asked: Request | None = None
        self._news = False
        self._thread: threading.Thread | None = None
        self.painted = 0
        """Pictures delivered."""

    def ask(self, request: Request) -> None:
        """Paint this from now on, beginning at once; starts the thread if there is none."""
        with self._changed:
            self._asked = request
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="napari-materialize panel", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def news(self) -> None:
        """Take note that a chunk arrived or failed. Called in any thread."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Paint no more, and end the thread, which gives up its claims; does not wait."""
        with self._changed:
            self._asked, self._thread = None, None
            self._changed.notify_all()

    @property
    def alive(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def _work(self) -> None:
        me, current, due = threading.current_thread(), None, 0.0
        sights: dict[int, Sight] = {}
        while (request := self._next(me, current, due)) is not None:
            began = time.monotonic()
            try:
                if request is not current:
                    self._let_go(sights, request.sights)
                    for sight in request.sights:
                        sight.aim(request.look)
                    current = request
                else:
                    for sight in request.sights:
                        sight.claim()
                picture = paint(request)
                if picture is not None:
                    self._deliver(picture)
                    self.painted += 1
            except Exception:  # noqa: BLE001 - the thread paints more than one picture
                _log.exception("a picture of the panel failed; the next is tried")
                current = request
            ended = time.monotonic()
            due = ended + max(INTERVAL, 2 * (ended - began))
        self._let_go(sights, ())

    def _next(self, me: threading.Thread, current: Request | None, due: float) -> Request | None:
        """Wait for something to paint: what is new at once, what is old when there is news."""
        with self._changed:
            while self._thread is me:
                if self._asked is not current:
                    self._news = False
                    return self._asked
                wait = due - time.monotonic()
                if self._news and wait <= 0:
                    self._news = False
                    return current
                self._changed.wait(wait if self._news else None)
        return None

    @staticmethod
    def _let_go(sights: dict[int, Sight], kept: Sequence[Sight]) -> None:
        """Give up the claims of what is not seen any more."""
        for sight in list(sights.values()):
            if not any(sight is one for one in kept):
                del sights[id(sight)]
                sight.held.release_all()
        sights.update({id(sight): sight for sight in kept})
