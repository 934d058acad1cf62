"""What a live layer tells the list of layers of its pictures: not before they are painted.

Whatever a layer says napari's list of layers hears, and is painted for it. While a canvas is in the
same window that takes as long as the canvas itself, and Python stands still: so it is told once the
picture is there, and not of each plane that is passed. Owns when it is told; who listens to one
event of the layer's, as the canvas does, hears of it at once.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from qtpy.QtCore import QObject, Qt, QTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari.layers import Layer

__all__ = ["PUT_OFF", "Telling"]

PUT_OFF = ("set_data", "thumbnail", "_extent_augmented")
"""What napari says of a layer with each picture; a name that a napari does not have is left out."""

PATIENCE = 1.0
"""Seconds for which the list is told nothing of pictures that go on being in a hurry, at most."""


class Telling(QObject):
    """Passes on what a layer says of its pictures to those who listen to all that it says.

    Several events of a kind are told as one. All on the main thread.

    Parameters
    ----------
    layer : napari.layers.Layer
        Who speaks. It is not kept alive.
    in_a_hurry : callable
        Whether the canvas needs the time; asked again when the next picture is handed over.
    clock : callable
        Seconds that never go back.
    """

    def __init__(
        self,
        layer: Layer,
        in_a_hurry: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._layer = weakref.ref(layer)
        self._in_a_hurry = in_a_hurry
        self._clock = clock
        self._untold: dict[str, Any] = {}
        self._since = 0.0
        self._began = False
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self.tell)

    def begin(self) -> None:
        """Put off from here on. Doing it twice does nothing."""
        layer = self._layer()
        if layer is None or self._began:
            return
        self._began = True
        for emitter in self._emitters(layer):
            emitter.block(layer.events)
            emitter.connect(self._note)

    def end(self) -> None:
        """Tell what is untold, and put off nothing more. Doing it twice does nothing."""
        layer = self._layer()
        if layer is not None and self._began:
            for emitter in self._emitters(layer):
                emitter.disconnect(self._note)
                emitter.unblock(layer.events)
            self._tell_all()
        self._began = False
        self._timer.stop()

    def _emitters(self, layer: Layer) -> list[Any]:
        return [layer.events[name] for name in PUT_OFF if name in layer.events.emitters]

    def _note(self, event: Any) -> None:
        if not self._untold:
            self._since = self._clock()
        self._untold[event.type] = event
        self._timer.start(0)  # over when the window has painted the picture

    def tell(self) -> None:
        """Tell what is untold, unless the canvas needs the time."""
        left = self._since + PATIENCE - self._clock()
        if self._untold and left > 0 and self._in_a_hurry():
            self._timer.start(round(1000 * left) + 1)
        else:
            self._tell_all()

    def _tell_all(self) -> None:
        untold, self._untold = self._untold, {}
        layer = self._layer()
        if layer is not None:
            for event in untold.values():
                layer.events(event)
