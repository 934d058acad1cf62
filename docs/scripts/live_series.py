"""Takes the pictures of a live layer that becomes complete, and joins them to one.

    xvfb-run -a -s "-screen 0 1280x1024x24" python docs/scripts/live_series.py [FOLDER]

The sample, smoothed: what a coarser level says, half of the chunks, all of them. So
that each stage can be met every time, a chunk is let through when the picture before it has been
taken. CI runs it into a folder of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

IMAGES = Path(__file__).resolve().parents[1] / "images"
SIZE = (420, 420)
GAP = 6
CHUNKS = (16, 48, 48)
SECONDS = 60.0
NAME = "live-series.png"


class Turnstile:
    """The function of an op that lets as many chunks through as it is told to."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self.waiting = False

    def let(self, chunks: int) -> None:
        """Let some more through."""
        self.waiting = False
        self._passes.release(chunks)

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Wait for a pass."""
        self.waiting = True
        if not self._passes.acquire(timeout=SECONDS):
            raise TimeoutError("nobody took the picture")
        return block


def wait(until: Callable[[], bool]) -> None:
    """Let the window live until something is the case."""
    from qtpy.QtTest import QTest

    for _ in range(int(SECONDS * 50)):
        if until():
            QTest.qWait(300)  # painted
            return
        QTest.qWait(20)
    raise TimeoutError("what the picture is of did not come about")


def main(folder: Path = IMAGES) -> None:
    """Take the pictures, one after the other, and join them."""
    import napari

    import napari_materialize as nm
    from napari_materialize import ops
    from napari_materialize._napari.demo import SLICE
    from napari_materialize._napari.holding import Group
    from napari_materialize._napari.repaint import live_layer
    from napari_materialize._napari.samples import blobs

    folder.mkdir(exist_ok=True)
    shots: list[Any] = []
    viewer = napari.Viewer(show=True, show_welcome_screen=False)
    ((data, keywords, _),) = blobs()
    limits = keywords["contrast_limits"]
    turnstile = Turnstile()
    last = ops.Function(turnstile, dtype="uint8", name="turnstile", version="1")
    view = nm.open_view(list(data), [ops.Gaussian(sigma=1), last], chunks=CHUNKS)
    engine = nm.Engine(slots=2)
    layer = nm.add_view(
        viewer, view, engine, locked_data_level=0, contrast_limits=limits, visible=False
    )
    viewer.dims.set_point(0, SLICE)
    viewer.reset_view()
    viewer.scene.camera.zoom = 1.1 * SIZE[0] / data[0].shape[-1]
    layer.visible = True
    live = live_layer(layer)
    reads = live.reads

    def let(group: Group, share: float) -> None:
        """Let chunks through one by one until so many of a group are there."""

        def enough() -> bool:
            claims = reads.held(group).values()
            if sum(claim.done for claim in claims) >= share * len(claims) > 0:
                return True
            if turnstile.waiting:
                turnstile.let(1)
            return False

        wait(enough)

    wait(lambda: len(reads.held(Group.COARSE)) > 0)
    let(Group.COARSE, 1.0)
    shots.append(viewer.screenshot(size=SIZE, flash=False))
    let(Group.PICTURE, 0.4)
    shots.append(viewer.screenshot(size=SIZE, flash=False))
    turnstile.let(1000)
    wait(lambda: bool(live.settled and reads.complete))
    shots.append(viewer.screenshot(size=SIZE, flash=False))
    join(shots, folder / NAME)
    engine.close()
    viewer.close()


def join(shots: list[Any], path: Path) -> None:
    """Put pictures side by side."""
    import numpy as np
    from PIL import Image

    gap = np.full((shots[0].shape[0], GAP, 3), 255, "u1")
    parts = [part for shot in shots for part in (gap, shot[..., :3])][1:]
    Image.fromarray(np.concatenate(parts, axis=1)).save(path)


if __name__ == "__main__":
    # napari saves its settings, and these are not the user's
    os.environ["NAPARI_CONFIG"] = str(Path(tempfile.mkdtemp(), "settings.yaml"))
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
