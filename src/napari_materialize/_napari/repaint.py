"""The life of a live layer: repainted as its chunks arrive, and over when nobody looks at it.

Owns when a layer is repainted, and that it gives up its claims when it is hidden or removed or its
viewer closes. All of it runs on the main thread but for what says otherwise. What the layer reads
is in `reads`; its contrast limits, where they have to be found out, in `contrast`.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from napari.utils.notifications import show_error
from qtpy.QtCore import QObject, Qt, QTimer, Signal  # type: ignore[attr-defined]

from napari_materialize._napari.layer import reads_of
from napari_materialize._napari.sharing import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari.components import ViewerModel
    from napari.layers import Layer

    from napari_materialize._napari.contrast import Contrast
    from napari_materialize._napari.reads import LayerReads
    from napari_materialize.engine import Engine
    from napari_materialize.view import View

__all__ = ["LiveLayer", "Pace", "live_layer"]

INTERVAL, INTERVAL_3D = 0.08, 0.25
"""Seconds between the end of one repaint and the next, at least; and at least twice its cost."""


@dataclass(slots=True)
class Pace:
    """When to repaint: not sooner than an interval, nor than twice the last repaint's cost."""

    ended: float = float("-inf")
    """When the last repaint was over, in seconds of some clock."""

    cost: float = 0.0
    """How long it took, in seconds."""

    def wait(self, now: float, interval: float) -> float:
        """Return how many seconds the next repaint has to wait.

        >>> Pace(ended=10.0, cost=0.25).wait(now=10.125, interval=0.08)
        0.375
        """
        return max(0.0, self.ended + max(interval, 2 * self.cost) - now)


class LiveLayer(QObject):  # type: ignore[misc, unused-ignore]
    """What keeps one layer live. It holds neither the layer nor the viewer."""

    _news = Signal()

    def __init__(
        self,
        layer: Layer,
        reads: LayerReads,
        engine: Engine | None = None,
        contrast: Contrast | None = None,
    ) -> None:
        super().__init__()
        self.reads = reads
        """What the layer reads and claims."""
        self.repaints = 0
        """How often it was repainted because chunks arrived."""
        self._layer = weakref.ref(layer)
        self._home: Callable[[], ViewerModel | None] = _no_viewer
        self._engine = engine
        self._lease: Lease | None = None
        self._contrast = contrast
        self._pace = Pace()
        self._told = False
        self._reported = False
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._repaint)
        self._news.connect(self._plan, Qt.ConnectionType.QueuedConnection)
        reads.owner, reads.active, reads.on_news = self, self._on_show, self._announce
        # napari keeps the coarsest level of a two-dimensional pyramid for good once it has read it
        layer._level_materializer = None
        layer.events.visible.connect(self._on_visible)
        _watch_dropped()
        weakref.finalize(layer, _dropped.put, self._give_up).atexit = False

    @property
    def view(self) -> View:
        """What the layer shows."""
        return self.reads.view

    @property
    def engine(self) -> Engine:
        """Who computes it."""
        return self.reads.engine

    @property
    def settled(self) -> bool:
        """Whether all that the layer asked for is there, or failed, and is painted."""
        return not self._told and not self._timer.isActive() and self.reads.settled

    # ------------------------------------------------------------------ life

    def start(self, viewer: ViewerModel) -> None:
        """Be live in a viewer that the layer is about to be added to."""
        self._lease = Lease(self._engine)
        self.reads.engine = self._lease.engine
        if self._home() is viewer:
            return
        self._home = weakref.ref(viewer)
        viewer.layers.events.removed.connect(self._on_removed)
        viewer.layers.events.inserted.connect(self._on_inserted)
        # a window closed by its own button removes no layers; a viewer without Qt has none
        window = getattr(getattr(viewer, "window", None), "_qt_window", None)
        if window is not None:
            window.destroyed.connect(self.stop)

    def stop(self) -> None:
        """Give up every claim, repaint no more, and give a shared engine back."""
        self._timer.stop()
        self._give_up()
        self._told = False

    def _give_up(self) -> None:
        lease, self._lease = self._lease, None
        self.reads.release_all()
        if lease is not None:
            lease.end()

    def _on_show(self) -> bool:
        """Whether the layer is in a viewer and visible. Called in any thread."""
        layer = self._layer()
        if layer is None or self._home() is None or self._lease is None:
            return False
        return bool(layer.visible)

    def _on_removed(self, event: Any) -> None:
        if event.value is self._layer():
            self.stop()

    def _on_inserted(self, event: Any) -> None:
        """Take up a layer that was removed and comes back, and one that is a copy of this one."""
        viewer, reads = self._home(), reads_of(event.value)
        if viewer is None or reads is None:
            return
        if reads is self.reads and self._lease is None:
            self.start(viewer)
        elif reads.owner is None and reads.view is self.view:
            LiveLayer(event.value, reads, self._engine).start(viewer)
        else:
            return
        event.value.refresh(extent=False)  # it was read before it was live

    def _on_visible(self) -> None:
        """Give up everything when hidden; napari itself reads again when shown."""
        if self._on_show():
            self.ask_for_limits()
        else:
            self.reads.release_all()

    def ask_for_limits(self) -> None:
        """Ask for what is still needed to choose contrast limits."""
        if self._contrast is not None:
            self._contrast.ask()

    # ------------------------------------------------------------------ repainting

    def _announce(self) -> None:
        """Say that a chunk arrived, or failed. Called in any thread."""
        if not self._told:
            self._told = True
            self._news.emit()

    def _plan(self) -> None:
        if self._lease is not None and not self._timer.isActive():
            viewer = self._home()
            flat = viewer is None or viewer.dims.ndisplay == 2
            wait = self._pace.wait(time.monotonic(), INTERVAL if flat else INTERVAL_3D)
            self._timer.start(math.ceil(1000 * wait))

    def _repaint(self) -> None:
        layer = self._layer()
        self._told = False  # what arrives from here on needs another repaint
        if layer is None or not self._on_show():
            return
        if self._contrast is not None:
            self._contrast.settle(layer)
        self._report(layer)
        settled = self.reads.settled
        if settled or not self.reads.complete:
            began = time.monotonic()
            layer.refresh(thumbnail=settled, highlight=False, extent=False)
            self._pace.ended = time.monotonic()
            self._pace.cost = max(self._pace.ended - began, self.reads.seconds)
            self.repaints += 1

    def _report(self, layer: Layer) -> None:
        """Tell the first failure of a layer, and only that."""
        failures = self.reads.take_failures()
        if failures and not self._reported:
            self._reported = True
            show_error(
                f"{layer.name}: {failures[0]}; what fails shows as a hole, and of this layer no "
                "further failure is told"
            )


_dropped: SimpleQueue[Callable[[], None]] = SimpleQueue()
"""How layers that were collected without being removed give up, in the order they were."""


@functools.cache
def _watch_dropped() -> None:
    """Start the thread that lets dropped layers give up.

    A layer may be collected in any thread, inside any lock, so that nothing can be done there but
    to put its end into a queue made for that.
    """
    threading.Thread(target=_end_dropped, name="napari-materialize layers", daemon=True).start()


def _end_dropped() -> None:
    while True:
        _dropped.get()()


def _no_viewer() -> None:
    return None


def live_layer(layer: Layer) -> LiveLayer | None:
    """Return what keeps a layer live, or None if it is not a live layer.

    >>> import numpy as np
    >>> from napari.layers import Image
    >>> live_layer(Image(np.zeros((4, 4)))) is None
    True
    """
    owner = None if (reads := reads_of(layer)) is None else reads.owner
    return owner if isinstance(owner, LiveLayer) else None
