"""Takes the pictures of the widget that the docs and the README show.

    xvfb-run -a -s "-screen 0 1600x1200x24" python docs/scripts/screenshots.py

A whole napari window on the sample, in the middle of a job, then on its result in 2D and in 3D. The
job is real; so that it can be met half-way every time, reading the source waits there for the
picture to be taken.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize._napari.widget import MaterializeWidget

IMAGES = Path(__file__).resolve().parents[1] / "images"
SIZE = (1280, 960)
SECONDS = 60.0
READS = 84
"""Source chunks after which the job is about half done."""


class HalfwayArray:
    """An array whose readers, but for the window's own thread, wait after so many reads."""

    def __init__(self, data: Any) -> None:
        self.data, self.shape, self.dtype, self.ndim = data, data.shape, data.dtype, data.ndim
        self.size, self.chunks = data.size, (32, 64, 64)
        self.reads_left: int | None = None
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __getitem__(self, key: Any) -> Any:
        """Read; perhaps wait."""
        if threading.current_thread() is not threading.main_thread():
            with self._lock:
                if self.reads_left is not None:
                    self.reads_left -= 1
                waits = self.reads_left is not None and self.reads_left < 0
            if waits and not self.go_on.wait(SECONDS):
                raise TimeoutError("nobody took the picture")
        return self.data[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Read everything."""
        return self.data.__array__(dtype, copy=copy)


def wait(until: Callable[[], bool]) -> None:
    """Let the window live until something is the case."""
    from qtpy.QtTest import QTest

    for _ in range(int(SECONDS * 50)):
        if until():
            return
        QTest.qWait(20)
    raise TimeoutError("what the picture is of did not come about")


def settle() -> None:
    """Let the window paint."""
    from qtpy.QtTest import QTest

    QTest.qWait(700)


def shoot(viewer: Any, name: str) -> None:
    """Keep a picture of the whole window."""
    settle()
    IMAGES.mkdir(exist_ok=True)
    viewer.window.screenshot(str(IMAGES / name), flash=False)


def look_at(viewer: Any, widget: MaterializeWidget, share: float) -> None:
    """Point the camera at the box, which then takes this share of the canvas."""
    low, high = widget.session.resolved.source_corners or ((0.0,) * 3, (1.0,) * 3)
    height, width = viewer.canvas.size
    viewer.scene.camera.center = tuple((a + b) / 2 for a, b in zip(low, high, strict=True))
    viewer.scene.camera.zoom = share * min(height / (high[1] - low[1]), width / (high[2] - low[2]))


def main() -> None:
    """Take all pictures."""
    import napari
    from qtpy.QtTest import QTest

    from napari_materialize._napari import demo
    from napari_materialize.engine import Engine
    from napari_materialize.session import JobState, Session

    viewer = napari.Viewer(title="napari", show=True, show_welcome_screen=False)
    viewer.window.resize(*SIZE)
    # an engine apart from the live layer's, which has most of the box already
    session = Session(Engine(slots=2))
    folder = Path(tempfile.mkdtemp(), "results")
    folder.mkdir()
    widget = demo.prepare(viewer, str(folder), live=False, session=session)
    source = viewer.layers["blobs"]
    finest = HalfwayArray(source.data[0])
    source.data = [finest, *source.data[1:]]
    settle()
    look_at(viewer, widget, 0.92)
    widget.add_live()
    settle()
    QTest.qWait(4000)  # the live layer is there
    viewer.layers.selection.active = source
    finest.reads_left = READS
    widget.run_bar.run.click()
    wait(lambda: finest.reads_left is not None and finest.reads_left < 0)
    QTest.qWait(2000)  # what was read is computed
    shoot(viewer, "widget-running.png")
    finest.go_on.set()
    wait(lambda: widget.session.job.state is not JobState.RUNNING)
    settle()
    if widget.session.job.state is not JobState.DONE:
        raise RuntimeError(widget.session.job.reason)
    viewer.layers.remove(viewer.layers[-1])  # the live layer
    widget.run_bar.open.click()
    viewer.layers.selection.active = source
    shoot(viewer, "widget-result.png")
    viewer.dims.ndisplay = 3
    viewer.reset_view()
    viewer.scene.camera.angles = (8, 28, 62)
    viewer.scene.camera.zoom *= 1.35
    viewer.layers.selection.active = source
    shoot(viewer, "widget-result-3d.png")
    viewer.close()


if __name__ == "__main__":
    # napari saves its settings, and these are not the user's
    os.environ["NAPARI_CONFIG"] = str(Path(tempfile.mkdtemp(), "settings.yaml"))
    main()
