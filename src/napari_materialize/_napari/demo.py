"""The demo in napari: the sample, a detector, a box, and the widget ready to press Run.

Owns what is chosen there. `build` opens a viewer and returns; `run` also starts napari's event loop
and returns when the window is closed.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from napari_materialize import samples
from napari_materialize._napari.samples import blobs
from napari_materialize._napari.widget import MaterializeWidget
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from napari.viewer import Viewer

    from napari_materialize.session import Session

__all__ = ["BOX", "OPS", "build", "prepare", "run"]

OPS = (
    ("onnx", {"model": str(samples.detector_path()), "halo": "6,14,14"}),
    ("select", {"channel": 1}),
    ("threshold", {"low": "0.5"}),
)
"""The shipped detector, its channel for large blobs, and where that says yes."""

BOX = Box((8, 70, 130), (56, 440, 380))
"""What is written: voxels of the finest level along z, y, x."""

SLICE = 43.0
"""Where the z slider stands, in micrometres."""


def build(
    folder: str | None = None, *, live: bool = True, **viewer_options: Any
) -> tuple[Viewer, MaterializeWidget]:
    """Open napari on the sample, ready to press Run; see `prepare`.

    Parameters
    ----------
    folder, live
        As `prepare` takes them.
    **viewer_options
        As ``napari.Viewer`` takes them.
    """
    import napari

    viewer = napari.Viewer(title="napari-materialize", **viewer_options)
    return viewer, prepare(viewer, folder, live=live)


def prepare(
    viewer: Viewer,
    folder: str | None = None,
    *,
    live: bool = True,
    session: Session | None = None,
) -> MaterializeWidget:
    """Show the sample in a viewer, with the widget, the detector and the box chosen.

    Parameters
    ----------
    viewer : napari.Viewer
        An empty one.
    folder : str, optional
        Where the result will go; a temporary folder if left out.
    live : bool
        Whether the detector's answer is also shown as a live layer.
    session : Session, optional
        What the widget shows; one of its own if left out.
    """
    ((data, keywords, _),) = blobs()
    viewer.add_image(data, **keywords)
    widget = MaterializeWidget(viewer, session)
    viewer.window.add_dock_widget(widget, name="Materialize", area="right")
    viewer.dims.set_point(0, SLICE)
    viewer.reset_view()
    widget.session.change(ops=OPS, folder=folder or tempfile.mkdtemp(prefix="napari-materialize-"))
    widget.box.take(BOX)
    if live:
        widget.add_live()
    return widget


def run() -> None:
    """Open the demo and wait until its window is closed."""
    import napari

    build()
    napari.run()
