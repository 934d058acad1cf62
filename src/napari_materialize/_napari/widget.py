"""The dock widget: choose a source and operations, draw a box, press Run, open the result.

Owns the wiring between a session, the forms and the viewer, and what ends with the widget. It keeps
nothing of what the user asked for (`napari_materialize.session` does) and no viewer: it holds that
weakly. Everything runs on the main thread; a job's signals are brought there by `relay`.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qtpy.QtCore import QEvent, QSize, Qt
from qtpy.QtGui import QIcon
from qtpy.QtWidgets import QFrame, QScrollArea, QSizePolicy, QVBoxLayout, QWidget
from superqt import QCollapsible

from napari_materialize._napari.box_form import BoxForm
from napari_materialize._napari.closing import Closing
from napari_materialize._napari.estimate_line import EstimateLine
from napari_materialize._napari.following import Following
from napari_materialize._napari.live_bar import LiveBar
from napari_materialize._napari.op_forms import OpsForm
from napari_materialize._napari.output_form import OutputForm
from napari_materialize._napari.overlay import Overlay
from napari_materialize._napari.pieces import Caption
from napari_materialize._napari.relay import Ending, Relay
from napari_materialize._napari.run_bar import RunBar
from napari_materialize._napari.source_form import SourceForm
from napari_materialize._napari.viewport import Frame, view_corners
from napari_materialize.errors import BoxError, MaterializeError
from napari_materialize.geometry import Box
from napari_materialize.looking import Lease
from napari_materialize.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from napari_materialize.session import Corners, Job, Resolved

__all__ = ["MaterializeWidget"]

WIDTH = 340
"""Pixels that the widget would like to be wide."""


class MaterializeWidget(QWidget):
    """Computes a box of a layer through operations and writes it as OME-Zarr.

    Parameters
    ----------
    viewer : napari.viewer.Viewer
        Whose layers it offers and on whose canvas the box is drawn.
    session : Session, optional
        What it shows; one of its own if left out, which computes in the engine that the live
        layers of the process share.
    """

    def __init__(self, viewer: napari.viewer.Viewer, session: Session | None = None) -> None:  # type: ignore[name-defined]  # noqa: F821 - napari reads it
        super().__init__()
        # a plugin is handed a proxy that lives no longer than this call
        viewer = getattr(viewer, "__wrapped__", viewer)
        self._viewer: weakref.ref[Any] = weakref.ref(viewer)
        lease = Lease(None) if session is None else None
        self.session = Session(lease.engine) if session is None and lease else session or Session()
        self._overlay: Overlay | None = None
        self._build(viewer)
        self._wire()
        viewer.dims.events.order.connect(self._on_dims)
        viewer.dims.events.ndisplay.connect(self._on_dims)
        ending = Ending(self.session, lease)
        self.destroyed.connect(ending)  # by Qt, with its window
        weakref.finalize(self, ending.later).atexit = False  # by Python, out of its dock
        self._show(self.session.resolved)

    def _build(self, viewer: Any) -> None:
        self.source = SourceForm(viewer, self.session)
        self.ops = OpsForm(self.session)
        self.box = BoxForm(self.session)
        self.output = OutputForm(self.session)
        self.run_bar = RunBar()
        self.estimate = EstimateLine(self.session)
        self.closing = Closing(self.session, self)
        self.live_bar = LiveBar(viewer)
        self.following = Following(self._viewer, self)
        content = QWidget()
        layout = QVBoxLayout(content)
        layout.setContentsMargins(0, 0, 6, 0)
        layout.setSpacing(6)
        self.output.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        for text, form in (("Source", self.source), ("Operations", self.ops), ("Box", self.box)):
            form.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
            layout.addWidget(Caption(text))
            layout.addWidget(form)
        section = self._section("Output", self.output)
        layout.addWidget(section)
        layout.addStretch(1)
        self.area = QScrollArea()
        self.area.setWidgetResizable(True)
        self.area.setFrameShape(QFrame.Shape.NoFrame)
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.area.setWidget(content)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(8, 4, 2, 8)
        outer.addWidget(self.area, 1)
        outer.addWidget(self.live_bar)
        outer.addWidget(self.estimate)
        outer.addWidget(self.run_bar)

    @staticmethod
    def _section(title: str, form: QWidget) -> QCollapsible:
        """Return a part of the widget that folds away."""
        section = QCollapsible(f"\u25be {title}", expandedIcon=QIcon(), collapsedIcon=QIcon())
        for layout in (section.layout(), section.content().layout()):
            if layout is not None:
                layout.setContentsMargins(0, 0, 0, 0)
        section.toggleButton().setStyleSheet(
            "text-align: left; border: none; padding: 2px 0; background: transparent; "
            "font-weight: bold;"
        )
        section.toggled.connect(
            lambda open_: section.setText(f"{'\u25be' if open_ else '\u25b8'} {title}")
        )
        section.addWidget(form)
        section.expand(animate=False)
        return section

    def _wire(self) -> None:
        self._relay = Relay(self)
        self._relay.progress.connect(self.run_bar.show_progress)
        self._relay.finished.connect(self._on_finished)
        self.session.changed.connect(self._show)
        self.session.changed.connect(self.following.follow)
        self.session.progress.connect(self._relay.on_progress)
        self.session.finished.connect(self._relay.on_finished)
        self._relay.estimated.connect(self.estimate.show_answer)
        self.session.estimated.connect(self._relay.on_estimated)
        self.session.opens_apart = True
        self._relay.opened.connect(self.session.take_opened)
        self.session.opened.connect(self._relay.on_opened)
        self.box.draw_asked.connect(self._draw)
        self.box.view_asked.connect(self._take_view)
        self.run_bar.run_asked.connect(self._run)
        self.run_bar.cancel_asked.connect(self.session.cancel)
        self.run_bar.open_asked.connect(self.open_result)
        self.run_bar.live_asked.connect(self.add_live)

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        """Return a narrow, tall size."""
        return QSize(WIDTH, super().sizeHint().height())

    # ------------------------------------------------------------------ showing

    def _show(self, state: Resolved) -> None:
        self.source.show_state(state)
        self.ops.show_state(state)
        self.box.show_state(state, self._hidden_axes(state))
        self.output.show_state(state)
        self.run_bar.show_state(self.session)
        self.estimate.show_state()
        overlay, frame = self._overlays(), _frame(state)
        if overlay is not None:
            drawn = state.intent.box is not None
            overlay.show(frame, _shown_corners(frame, state) if drawn else None)

    def _on_dims(self) -> None:
        state = self.session.resolved
        self.box.show_state(state, self._hidden_axes(state))

    def _hidden_axes(self, state: Resolved) -> Sequence[int]:
        """Return the source's axes that the canvas does not show."""
        viewer, level = self._viewer(), state.source_level
        if viewer is None or level is None:
            return []
        lead = viewer.dims.ndim - level.ndim
        shown = {axis - lead for axis in viewer.dims.displayed}
        return [axis for axis in range(level.ndim) if axis not in shown]

    def _overlays(self) -> Overlay | None:
        viewer = self._viewer()
        if self._overlay is None and viewer is not None:
            self._overlay = Overlay(viewer, self._on_drawn, self.box.problem.say)
        return self._overlay

    # ------------------------------------------------------------------ the box

    def _draw(self) -> None:
        viewer, overlay, frame = self._viewer(), self._overlays(), _frame(self.session.resolved)
        if viewer is None or overlay is None or frame is None:
            return
        if viewer.dims.ndisplay != 2:
            self.box.problem.say("Boxes are drawn on a slice: switch the viewer to 2D.")
            return
        overlay.draw(frame)

    def _take_view(self) -> None:
        viewer = self._viewer()
        if viewer is None:
            return
        if viewer.dims.ndisplay != 2:
            self.box.problem.say("The view of a slice is taken: switch the viewer to 2D.")
            return
        camera = viewer.scene.camera
        corners = view_corners(
            camera.center, camera.zoom, viewer.canvas.size, viewer.dims.displayed, viewer.dims.point
        )
        self._on_drawn(corners)

    def _on_drawn(self, points: np.ndarray) -> None:
        """Take a rectangle in the world as the box."""
        state = self.session.resolved
        frame = _frame(state)
        if frame is None:
            return
        try:
            self.box.take(frame.box(points, self._rest(state, frame, points)))
        except BoxError as error:
            self.box.problem.say(str(error))

    @staticmethod
    def _rest(state: Resolved, frame: Frame, points: np.ndarray) -> Box:
        """Return what a rectangle means along the axes it does not span.

        The slice it was drawn on; or the range asked for before, if that holds the slice.
        """
        here, asked = frame.slice_box(points.mean(axis=0).tolist()), state.source_box
        if asked is None or state.intent.box is None:
            return here
        start, stop = list(here.start), list(here.stop)
        spans = list(zip(asked.start, asked.stop, strict=True))[-here.ndim :]
        for axis, (place, (low, high)) in enumerate(zip(here.start, spans, strict=True)):
            if low <= place < high:
                start[axis], stop[axis] = low, high
        return Box(tuple(start), tuple(stop))

    # ------------------------------------------------------------------ the job

    def _run(self) -> None:
        self.run_bar.say(None)
        try:
            self.session.run()
        except MaterializeError as error:
            self.run_bar.say(str(error))

    def _on_finished(self, job: Job) -> None:
        self.session.refresh()
        self.run_bar.show_end(job)
        self.closing.settle()

    def open_result(self) -> None:
        """Add what the last job wrote as a layer, exactly where the box is."""
        from napari_materialize._napari.result import result_layer

        viewer, resolved = self._viewer(), self.session.job.resolved
        if viewer is None or resolved is None:
            return
        limits = getattr(resolved.intent.source, "contrast_limits", None)
        try:
            layer = result_layer(resolved, source_limits=limits)
        except MaterializeError as error:
            self.run_bar.say(str(error))
            return
        viewer.add_layer(layer)

    def add_live(self) -> None:
        """Add the computation as a layer that is computed as it comes on screen."""
        try:
            self.following.add(self.session.resolved)
        except MaterializeError as error:
            self.run_bar.say(str(error))

    # ------------------------------------------------------------------ the end

    def event(self, event: Any) -> bool:
        """Notice being taken out of a dock: what is under way ends with the panel."""
        if event.type() == QEvent.Type.ParentChange and self.parent() is None:
            self._leave()
        return bool(super().event(event))

    def showEvent(self, event: Any) -> None:  # noqa: N802 - Qt's name
        """Watch the window that the widget has come to, to ask before it closes in mid-job."""
        super().showEvent(event)
        window = self.window()
        if window is not None:
            self.closing.watch(window)

    def hideEvent(self, event: Any) -> None:  # noqa: N802 - Qt's name
        """Notice the whole window closing; a hidden dock or tab goes on working."""
        super().hideEvent(event)
        window: Any = self.window()
        if self.parent() is not None and not window.isVisible():
            self.session.cancel()

    def closeEvent(self, event: Any) -> None:  # noqa: N802 - Qt's name
        """Cancel the job when the panel itself is closed."""
        self._leave()
        super().closeEvent(event)

    def _leave(self) -> None:
        self.session.cancel()
        if self._overlay is not None:
            self._overlay.close()
            self._overlay = None


def _frame(state: Resolved) -> Frame | None:
    """Return how the source lies in the viewer, along the axes that a viewer has of it.

    The colours of an RGB layer are an axis of the source and none of the viewer's.
    """
    level, affine = state.source_level, state.intent.affine
    if level is None or not getattr(state.intent.source, "rgb", False):
        return None if level is None else Frame(level, affine)
    shown = replace(
        level,
        shape=level.shape[1:],
        chunks=level.chunks[1:],
        axes=level.axes[1:],
        scale=level.scale[1:],
        translation=level.translation[1:],
    )
    return Frame(shown, None if affine is None else tuple(row[1:] for row in affine[1:]))


def _shown_corners(frame: Frame | None, state: Resolved) -> Corners | None:
    """Return the box that is written along the axes of the frame, which are the source's last."""
    corners = state.source_corners
    if frame is None or corners is None:
        return None
    low, high = corners
    return low[-frame.level.ndim :], high[-frame.level.ndim :]
