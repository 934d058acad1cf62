"""Takes the pictures of the notebook panel that the docs show.

    python docs/scripts/notebook_screenshots.py

A real JupyterLab and a headless chromium, on the sample: a box that is being drawn, the job in its
middle, the end. So that the job can be met half-way every time, background work waits there.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import notebook_lab  # noqa: E402

IMAGES = ROOT / "docs" / "images"
HALF = 60
"""Chunks of the job's background work before the picture is taken."""

CELL = f"""
import os, threading, time
import napari_materialize as nm
from napari_materialize import samples

arrays, levels = samples.pyramid(samples.volume()[0])
lock, made = threading.Lock(), 0

def half_way(block):
    global made
    if "background" in threading.current_thread().name:
        with lock:
            made += 1
            waits = made > {HALF}
        while waits and not os.path.exists("go-on"):
            time.sleep(0.01)
        time.sleep(0.05)
    return block

detect = nm.ops.Function(half_way, dtype="uint8", name="detect", version="1")
ops = ["gaussian:sigma=1", detect, "threshold:low=45"]
known = dict(chunks=samples.CHUNKS, scale=levels[0].scale, units="um", name="blobs")
view = nm.open_view(list(arrays), ops, **known)
engine = nm.Engine(block_seconds=0)
"""

SHOW = """os.makedirs("/tmp/results")
panel = nm.panel(view, engine=engine)
panel.change(folder="/tmp/results")
panel"""


def main() -> None:
    """Take them."""
    with tempfile.TemporaryDirectory() as folder, notebook_lab.Lab(Path(folder)) as lab:
        lab.write("panel.ipynb", [CELL, SHOW])
        with notebook_lab.browser(device_scale_factor=1.25) as context:
            page = context.new_page()
            notebook = notebook_lab.Notebook(page, lab, "panel.ipynb")
            notebook.run(0)
            notebook.run(1)
            panel = notebook.panel()
            panel.wait_picture()
            draw(panel)
            panel.root.screenshot(path=IMAGES / "panel-drawing.png")
            page.mouse.up()
            panel.until("panel => panel.querySelector('.nm-cost').textContent.includes('x 128')")
            for end, number in enumerate((8, 56)):
                panel.place("z", end).fill(str(number))
                panel.place("z", end).press("Enter")
            panel.until("panel => panel.querySelector('.nm-cost').textContent.startsWith('z 0')")
            panel.button("Run").click()
            panel.wait("running")
            panel.wait_bar(14)
            panel.root.screenshot(path=IMAGES / "panel-running.png")
            (lab.root / "go-on").touch()
            panel.wait("done")
            panel.root.screenshot(path=IMAGES / "panel-done.png")
    shutil.rmtree("/tmp/results")


def draw(panel: notebook_lab.Panel) -> None:
    """Begin to drag a box, and hold the mouse."""
    panel.button("Draw box").click()
    around = panel.canvas.bounding_box()
    if around is None:
        raise RuntimeError("the canvas is not on the page")
    middle = (around["x"] + around["width"] / 2, around["y"] + around["height"] / 2)
    mouse = panel.page.mouse
    mouse.move(middle[0] - 90, middle[1] - 80)
    mouse.down()
    mouse.move(middle[0] + 40, middle[1] + 60)
    mouse.move(middle[0] + 110, middle[1] + 95)


if __name__ == "__main__":
    main()
