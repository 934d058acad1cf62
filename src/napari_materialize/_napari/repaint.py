"""The life of a live layer: repainted as its chunks arrive, and over when nobody looks at it.

Owns when a layer is repainted, and that it gives up its claims when it is hidden or removed or its
viewer closes. All of it runs on the main thread but for what says otherwise. What the layer reads
is in `reads`; its contrast limits, where they have to be found out, in `contrast`.
"""

from __future__ import annotations

import math
import time
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from napari.layers import Labels
from napari.settings import get_settings
from napari.utils.notifications import show_error
from qtpy.QtCore import QObject, Qt, QTimer, Signal  # type: ignore[attr-defined]  # qtpy ships no such export for types

from napari_materialize._napari.dropping import when_dropped
from napari_materialize._napari.layer import reads_of
from napari_materialize._napari.pacing import Pace
from napari_materialize._napari.telling import Telling
from napari_materialize.cache import ChunkState
from napari_materialize.errors import OptionError
from napari_materialize.looking import Lease, first_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari.components import ViewerModel
    from napari.layers import Layer

    from napari_materialize._napari.contrast import Contrast
    from napari_materialize._napari.reads import LayerReads
    from napari_materialize.engine import Engine
    from napari_materialize.view import View

__all__ = ["LiveLayer", "live_layer"]

INTERVAL, INTERVAL_3D = 0.08, 0.25
"""Seconds between the end of one repaint and the next, at least; more where one costs much."""

PATIENCE = 1.0
"""Seconds after which a repaint that nothing was heard of holds up the next one no more."""

SOON = 1.5
"""Intervals within which the last chunk of a picture is waited for, at most; or two repaints."""

LATE = 1.25
"""How much longer than it should take a chunk is waited for."""

QUICK = 0.15
"""Seconds a chunk takes at most for a repaint to wait for one: right after it there is the most to
see, and chunks that were begun then are not over before the window has drawn."""


class LiveLayer(QObject):
    """What keeps one layer live. It holds neither the layer nor the viewer."""

    changed = Signal()
    """Something that the layer waits for has arrived, failed, or was asked for; main thread."""

    _news = Signal()
    _pause = Signal(float)

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
        self._painted = 0
        self._due = math.inf
        self._painting: float | None = None
        self._reported = False
        self._reported_before: type[BaseException] | None = None
        self._put_off_once = False
        self._timer = self._single_shot(self._repaint)
        self._pause_timer = self._single_shot(self._go_on)
        self._awake_timer = self._single_shot(self._on_awake)
        self._went_round = False
        self._drawn_timer = self._single_shot(self._on_drawn)
        self._telling = Telling(layer, in_a_hurry=lambda: not reads.picture_over)
        self._news.connect(self._plan, Qt.ConnectionType.QueuedConnection)
        self._pause.connect(self._put_off)
        reads.owner, reads.active, reads.unseen = self, self._on_show, self._unseen
        reads.on_news, reads.on_pause = self._announce, self._announce_pause
        # napari keeps the coarsest level of a two-dimensional pyramid for good once it has read it
        layer._level_materializer = None
        layer.events.visible.connect(self._on_visible)
        layer.events.data.connect(self._on_data)
        layer.events.set_data.connect(self._on_painted)
        when_dropped(layer, self._give_up)

    def _single_shot(self, then: Callable[[], None]) -> QTimer:
        timer = QTimer(self)
        timer.setSingleShot(True)
        timer.setTimerType(Qt.TimerType.PreciseTimer)
        timer.timeout.connect(then)
        return timer

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

    @property
    def given_engine(self) -> Engine | None:
        """The engine that was named for it; None for the one that live layers share."""
        return self._engine

    # ------------------------------------------------------------------ what it shows

    def show(self, view: View) -> None:
        """Show another view, which differs in its voxels alone, in the same layer.

        What it has in common with the one before, up to the first op that differs, is not
        computed again, and nothing of the one before is painted from here on.

        Raises
        ------
        OptionError
            If the view's kind, shape, dtype or place is another.
        """
        if not self.reads.fits(view):
            raise OptionError(
                f"live layer: shows views that differ in their voxels alone, and {view.name!r} has "
                "another kind, shape, dtype or place; add it as a layer of its own"
            )
        layer, before = self._layer(), self.reads.view
        self.reads.moved()
        self.reads.change(view)
        self._reported = False
        if layer is None:
            return
        if view.limits != before.limits and hasattr(layer, "contrast_limits"):
            first = first_limits(before)
            if tuple(layer.contrast_limits) == first:
                layer.contrast_limits = first_limits(view)
        self._read_again(layer)

    def retry(self) -> None:
        """Compute the chunks that failed once more."""
        for level, index in self.reads.forget_failures():
            # another layer may have had it retried, and a chunk that is only read is nobody's
            if self.engine.state(self.view, level, index) is ChunkState.FAILED:
                self.engine.retry(self.view, level, index)
        self._reported, self._reported_before = False, None
        if (layer := self._layer()) is not None:
            self._read_again(layer)

    def _read_again(self, layer: Layer) -> None:
        if self._on_show():
            layer.refresh(highlight=False, extent=False)
        self.changed.emit()

    # ------------------------------------------------------------------ life

    def start(self, viewer: ViewerModel) -> None:
        """Be live in a viewer that the layer is about to be added to."""
        self._lease = Lease(self._engine)
        self.reads.engine = self._lease.engine
        self._telling.begin()
        if self._home() is viewer:
            return
        self._home = weakref.ref(viewer)
        viewer.layers.events.removed.connect(self._on_removed)
        viewer.layers.events.inserted.connect(self._on_inserted)
        # where napari slices in a thread of its own, reads come late or not at all; it sets about
        # it just before this is told, and once more up to 30 ms later, at `current_step`
        viewer.dims.events.point.connect(self._on_step)
        # a window closed by its own button removes no layers; a viewer without Qt has none
        window = getattr(getattr(viewer, "window", None), "_qt_window", None)
        if window is not None:
            window.destroyed.connect(self.stop)

    def stop(self) -> None:
        """Give up every claim, repaint no more, and give a shared engine back."""
        self._timer.stop()
        self._pause_timer.stop()
        self._awake_timer.stop()
        self._drawn_timer.stop()
        self._telling.end()
        self._give_up()
        self._told = False
        self.changed.emit()

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

    def _unseen(self, value: Any) -> bool:
        """Whether the layer draws nothing where a value is: a label without a colour, in 3D.

        Called in any thread.
        """
        layer = self._layer()
        return isinstance(layer, Labels) and not layer.colormap.map(value)[..., 3].any()

    def _on_removed(self, event: Any) -> None:
        if event.value is self._layer():
            self.stop()

    def _on_step(self) -> None:
        # napari's own callbacks come first, so that without a thread it has sliced already
        self.reads.moved(read=not get_settings().experimental.async_)
        self._went_round = False
        self._awake_timer.start(0)  # over when what the step brings is done, and painted

    def _on_awake(self) -> None:
        """Say that the window has done what a step brought, and has heard all there is to hear.

        It does so in the order in which things were due, and this was due before what it has not
        heard: so it goes round once more.
        """
        if self._went_round:
            self._pace.ended = time.monotonic()  # napari has painted by itself
            self.reads.awake()
        else:
            self._went_round = True
            self._awake_timer.start(0)

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

    def _on_data(self) -> None:
        """Give up everything where somebody has put other data into the layer; else take it up."""
        layer, viewer = self._layer(), self._home()
        if layer is None or viewer is None:
            return
        if reads_of(layer) is not self.reads:
            self.stop()
        elif self._lease is None and layer in viewer.layers:
            self.start(viewer)
            layer.refresh(extent=False)  # it was read before it was live again

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

    def _announce_pause(self, seconds: float) -> None:
        """Say that a picture is to be asked for later. Called in any thread."""
        self._pause.emit(time.monotonic() + seconds)  # a busy window hears of it late

    def _go_on(self) -> None:
        self.reads.go_on()

    def _put_off(self, due: float) -> None:
        """Ask for the picture at some time, unless another one comes before that."""
        self._pause_timer.start(max(0, math.ceil(1000 * (due - time.monotonic()))))

    def _plan(self) -> None:
        """See to it that what arrived is painted, in a while; the last of it sooner."""
        self._told = False  # what arrives from here on is told again
        self.changed.emit()
        self._plan_repaint()

    def _plan_repaint(self) -> None:
        if self._lease is None or self.reads.news == self._painted or self.reads.passing:
            return  # what is passed is painted by the next step, or when nothing moves any more
        now, last = time.monotonic(), self.reads.picture_over
        if self._put_off_once and not last and self._timer.isActive():
            return  # it waits for the last chunk
        due = now + self._pace.wait(now, self._interval, last=last)
        chunk = self.reads.chunk_seconds
        if due > now and not last and chunk is not None and chunk <= QUICK:
            due += LATE * chunk  # the next chunk that comes after that is painted at once
        if self._painting is not None:
            due = max(due, self._painting + PATIENCE)  # `_on_painted` comes sooner
        if not self._timer.isActive() or due < self._due:
            self._due = due
            self._timer.start(math.ceil(1000 * (due - now)))

    @property
    def _interval(self) -> float:
        viewer = self._home()
        flat = viewer is None or viewer.dims.ndisplay == 2
        return INTERVAL if flat else INTERVAL_3D

    def _waits_for_the_last(self) -> bool:
        """Put a repaint off, once, if the last chunk of the picture is about to come.

        It would arrive while this is painted, and have to wait for that.
        """
        left, soon = self.reads.remaining(), max(SOON * self._interval, 2 * self._pace.cost)
        self._put_off_once = not self._put_off_once and 0 < left <= soon
        if self._put_off_once:
            self._due = time.monotonic() + LATE * left
            self._timer.start(math.ceil(1000 * LATE * left))
        return self._put_off_once

    def _repaint(self) -> None:
        if self._waits_for_the_last():
            return
        layer = self._layer()
        self._painted = self.reads.news
        if layer is None or not self._on_show():
            return
        if self._contrast is not None:
            self._contrast.settle(layer)
        settled = self.reads.settled
        self._report(layer, settled)
        # what napari read by itself since the last chunk arrived is painted already
        if settled or not (self.reads.complete or self.reads.looked == self.reads.news):
            self._painting = time.monotonic()
            _refresh(layer, thumbnail=settled)
            self.repaints += 1
        self.changed.emit()

    def _on_painted(self) -> None:
        """Hear that a picture was handed over; where napari slices in a thread, a while later."""
        if self._painting is not None:
            self._drawn_timer.start(0)  # over when the window has drawn it

    def _on_drawn(self) -> None:
        """Learn what a repaint cost."""
        began, self._painting = self._painting, None
        if began is not None:
            self._pace.ended = time.monotonic()
            self._pace.cost = max(self._pace.ended - began, self.reads.seconds)
            self._plan_repaint()

    def _report(self, layer: Layer, settled: bool) -> None:
        """Tell the first failure of a view, and only that.

        Where a source fails, each view that a dragged slider passes fails as the one before did:
        that is not told again until a picture was whole in between.
        """
        failures = self.reads.take_failures()
        if settled and not self.reads.failed:
            self._reported_before = None
        if failures and not self._reported:
            self._reported = True
            kind = type(failures[0].__cause__ or failures[0])
            known, self._reported_before = kind is self._reported_before, kind
            if known:
                return
            show_error(
                f"{layer.name}: {failures[0]}; what fails shows as a hole, and of this layer no "
                "further failure is told"
            )


def _refresh(layer: Layer, *, thumbnail: bool) -> None:
    """Have napari read and draw a layer again.

    Where it slices in a thread it says no more than that, and the list of layers, which hears of
    whatever a layer says, would be drawn for it: that takes longer than the slicing, and goes ahead
    of the picture.
    """
    with ExitStack() as quiet:
        if get_settings().experimental.async_:
            # those who listen to one event of the layer's hear of it still
            quiet.enter_context(layer.events.blocker())
        layer.refresh(thumbnail=thumbnail, highlight=False, extent=False)


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
