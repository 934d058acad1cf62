"""Shows a panel's box and its results in a napari viewer of the same kernel.

Owns the layers that are added for that. It asks the viewer for everything and imports neither
napari nor Qt; what it does, it does on the kernel's main thread, where the viewer lives.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.looking import Lease, first_limits
from napari_materialize.notebook._result import result_of
from napari_materialize.session import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Level
    from napari_materialize.notebook._desk import Desk
    from napari_materialize.session import Job, Resolved

__all__ = ["Mirror"]

COLOUR = "#ffd54a"
"""The outline of the box."""


class Mirror:
    """A panel's box and results as layers. It holds the viewer weakly."""

    def __init__(self, viewer: Any, desk: Desk) -> None:
        viewer = getattr(viewer, "__wrapped__", viewer)
        self._viewer = weakref.ref(viewer)
        self._desk = desk
        self._outline: Any = None
        desk.session.changed.connect(self._on_changed)
        desk.session.finished.connect(self._on_finished)
        viewer.dims.events.point.connect(self._on_point)

    def close(self) -> None:
        """Mirror nothing more; the layers stay."""
        self._desk.session.changed.disconnect(self._on_changed)
        self._desk.session.finished.disconnect(self._on_finished)
        viewer = self._viewer()
        if viewer is not None:
            viewer.dims.events.point.disconnect(self._on_point)

    def _on_changed(self, state: Resolved) -> None:
        on_main_thread(self._show)

    def _on_finished(self, job: Job) -> None:
        if job.state is JobState.DONE:
            on_main_thread(self._add_result)

    def _on_point(self, _: Any) -> None:
        if self._outline is not None:
            self._show()

    def _show(self) -> None:
        """Draw the box that is written where the viewer's slice meets it."""
        viewer, state = self._viewer(), self._desk.session.resolved
        level, corners = state.source_level, state.source_corners
        if viewer is None or level is None or corners is None or state.intent.box is None:
            if self._outline is not None:
                self._outline.visible = False
            return
        if self._outline is None or self._outline not in viewer.layers:
            self._outline = viewer.add_shapes(
                ndim=level.ndim,
                name=f"{state.name} box",
                edge_color=COLOUR,
                face_color="transparent",
                edge_width=min(level.scale[-2:]),
                **_units(level),
            )
            self._outline.mouse_pan = True
        place = np.asarray(viewer.dims.point, dtype=float)[-level.ndim :]
        low, high = (np.asarray(corner) for corner in corners)
        displayed = [a - viewer.dims.ndim + level.ndim for a in viewer.dims.displayed][-2:]
        hidden = [axis for axis in range(level.ndim) if axis not in displayed]
        inside = all(low[axis] <= place[axis] <= high[axis] for axis in hidden)
        rectangle = np.repeat(place[np.newaxis], 4, axis=0)
        for axis, ends in zip(displayed, ((0, 0, 1, 1), (0, 1, 1, 0)), strict=True):
            rectangle[:, axis] = np.where(ends, high[axis], low[axis])
        self._outline.data = [rectangle]
        self._outline.visible = inside

    def _add_result(self) -> None:
        """Add what the last job wrote, where its box is."""
        viewer, resolved = self._viewer(), self._desk.session.job.resolved
        if viewer is None or resolved is None or resolved.plan is None or resolved.view is None:
            return
        view, level = resolved.view, resolved.view.levels[resolved.plan.level]
        cropped = level.crop(resolved.plan.box)
        given = {
            "name": (resolved.target or "").replace("\\", "/").rpartition("/")[2],
            "scale": cropped.scale,
            "translate": cropped.translation,
            "axis_labels": [axis.name for axis in level.axes],
            **_units(level),
        }
        lease = Lease(None)  # the layer may outlive the panel, and an engine somebody closes
        data = result_of(self._desk.session.job, lease.engine)
        if data is None:
            lease.end()
            return
        if view.kind != "image" and data.dtype.kind in "iu":
            layer = viewer.add_labels(data, **given)
        else:
            layer = viewer.add_image(data, contrast_limits=first_limits(view), rgb=False, **given)
        weakref.finalize(layer, _end_later, lease).atexit = False


def _end_later(lease: Lease) -> None:
    """End a lease in a thread of its own: a finalizer runs anywhere, under any lock."""
    threading.Thread(target=lease.end, name="napari-materialize end", daemon=True).start()


def _units(level: Level) -> dict[str, Any]:
    return {"units": [axis.unit or "pixel" for axis in level.axes]}


def on_main_thread(work: Callable[[], None]) -> None:
    """Run work on the main thread: at once if this is it, else by the kernel's event loop."""
    if threading.current_thread() is threading.main_thread():
        work()
        return
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    loop = getattr(getattr(shell, "kernel", None), "io_loop", None)
    if loop is not None:
        loop.add_callback(work)
