"""The panel in a real JupyterLab, in a real browser, with the mouse: `notebook_lab` opens both.

How fast a job goes is told by the test: background work waits until a file says how many chunks
may be computed. So a job is half-way for as long as it takes to look.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from scipy import ndimage

import notebook_lab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page

    from notebook_lab import Lab, Notebook, Panel

needs_browser = pytest.mark.skipif(
    notebook_lab.missing() is not None and os.environ.get(notebook_lab.REQUIRED) != "required",
    reason=notebook_lab.missing() or "",
)

SETUP = """
import os, threading, time
import numpy as np
import napari_materialize as nm
from scipy import ndimage

z, y, x = np.ogrid[:96, :64, :96]
fine = (100 + 20 * np.sin(z / 3) + 40 * np.sin(y / 5) * np.cos(x / 7) + (x + y) % 7).astype("u1")
levels = [fine, fine[:, ::2, ::2].copy()]
lock, made = threading.Lock(), 0

def smooth(block):
    "A filter that does background work only as fast as the file `allowed` lets it."
    global made
    if "background" in threading.current_thread().name:
        with lock:
            made += 1
            mine = made
            with open("made", "w") as file:
                file.write(str(made))
        end = time.monotonic() + 120
        while int(open("allowed").read() or 0) < mine:
            if time.monotonic() > end:
                raise TimeoutError("nobody allowed it")
            time.sleep(0.01)
    return ndimage.uniform_filter(block, 3, mode="nearest")

op = nm.ops.Function(smooth, halo=1, name="smooth", version="1")
engine = nm.Engine(slots=2, block_seconds=0)
view = nm.open_view(levels, [op], chunks=(8, 32, 32), scale=(2, 1, 1), units="um", name="waves")
"""

CELLS = [
    SETUP,
    "first = nm.panel(view, engine=engine)\nfirst",
    "second = nm.panel(view, engine=engine)\nsecond.box = nm.Box((0, 0, 0), (8, 32, 32))\nsecond",
    "while not os.path.exists('go-on'):\n    time.sleep(0.01)\nprint('over')",
    "print(first.box, first.job.state, np.asarray(first.result).shape, first.job.receipt.written)",
    "before = first",
    "before._desk.closed, before._desk.painter.alive, first._desk.closed",
    "first.close()\nsecond.close()\n"
    "ends = [t for t in threading.enumerate() if 'panel' in t.name or 'job' in t.name]\n"
    "for thread in ends:\n    thread.join(60)\n"  # closing does not wait for them
    "engine.stats()['waiting'], [t.name for t in ends if t.is_alive()]",
]


def finest() -> np.ndarray:
    """The notebook's volume, and `smoothed` what its op makes of a level of it."""
    z, y, x = np.ogrid[:96, :64, :96]
    wave = 100 + 20 * np.sin(z / 3) + 40 * np.sin(y / 5) * np.cos(x / 7)
    return (wave + (x + y) % 7).astype("u1")


def smoothed(level: np.ndarray) -> np.ndarray:
    return ndimage.uniform_filter(level, 3, mode="nearest")


def limits() -> tuple[int, int]:
    """Black and white: of the coarsest level's chunks around the middle."""
    sample = smoothed(finest()[:, ::2, ::2])[48:56]
    return int(sample.min()), int(sample.max())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if (reason := notebook_lab.missing()) is not None:
        pytest.fail(reason)
    with notebook_lab.Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab
        assert lab.foreign() == [], "the server or a kernel asked another host"


@pytest.fixture
def asked() -> list[str]:
    """What the browser asks of hosts other than loopback."""
    return []


@pytest.fixture
def context(asked: list[str]) -> Iterator[BrowserContext]:
    with notebook_lab.browser(asked) as context:
        yield context


def allow(folder: Path, chunks: int) -> None:
    """Let background work compute so many chunks in all."""
    new = folder / "allowed.new"
    new.write_text(str(chunks))
    new.replace(folder / "allowed")


def open_notebook(page: Page, lab: Lab, errors: list[str]) -> Notebook:
    page.on("pageerror", lambda error: errors.append(str(error)))
    return notebook_lab.Notebook(page, lab, "panel.ipynb")


def check_picture(panel: Panel, plane: np.ndarray) -> None:
    """Compare the pixel in the middle of each voxel with its grey; nothing hides them."""
    pixels = panel.pixels()
    height, width = pixels.shape[:2]
    zoom = min(height / plane.shape[0], width / plane.shape[1])
    rows = (height / 2 + (np.arange(plane.shape[0]) + 0.5 - plane.shape[0] / 2) * zoom).astype(int)
    columns = (width / 2 + (np.arange(plane.shape[1]) + 0.5 - plane.shape[1] / 2) * zoom).astype(
        int
    )
    low, high = limits()
    expected = np.floor(np.clip((plane.astype(float) - low) * 255 / (high - low), 0, 255) + 0.5)
    seen = pixels[np.ix_(rows, columns)]
    assert (seen[..., 3] == 255).all()
    for colour in range(3):
        np.testing.assert_array_equal(seen[..., colour], expected)


def drag(panel: Panel, start: tuple[float, float], stop: tuple[float, float]) -> None:
    """Drag the mouse between two places of the volume's finest plane, (y, x) in voxels."""
    around = panel.canvas.bounding_box()
    assert around is not None
    zoom = min(around["height"] / 64, around["width"] / 96)

    def place(y: float, x: float) -> tuple[float, float]:
        return (
            around["x"] + around["width"] / 2 + (x - 48) * zoom,
            around["y"] + around["height"] / 2 + (y - 32) * zoom,
        )

    mouse = panel.page.mouse
    mouse.move(*place(*start))
    mouse.down()
    mouse.move(*place((start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2))
    mouse.move(*place(*stop))
    mouse.up()


@needs_browser
def test_a_session_in_jupyterlab(lab: Lab, context: BrowserContext, asked: list[str]) -> None:
    """Draw, choose, run, cancel, run again, close the tab in mid-job, come back, compare."""
    allow(lab.root, 0)
    lab.write("panel.ipynb", CELLS)
    errors: list[str] = []
    notebook = open_notebook(context.new_page(), lab, errors)
    for cell in range(3):
        notebook.run(cell)
    panel, second = notebook.panel(0), notebook.panel(1)
    looks(notebook, panel, second)
    draws(panel)
    cancels(lab, panel)
    notebook.save()
    comes_back(lab, context, panel, errors)
    page = next(page for page in context.pages if not page.is_closed())
    assert asked == []
    assert errors == []
    page.close()


def looks(notebook: Notebook, panel: Panel, second: Panel) -> None:
    """The pictures' pixels, and that each panel looks for itself."""
    volume = smoothed(finest())
    panel.wait_picture(0)
    second.wait_picture(0)
    panel.field("z").fill("20")
    panel.until("panel => panel.querySelector('output').textContent === '20'")
    wait_pixels(panel, volume[20])
    check_picture(panel, volume[20])
    wait_pixels(second, volume[48])
    assert second.box() == {"z": (0, 8), "y": (0, 32), "x": (0, 32)}
    # keys of the canvas are not JupyterLab's: D would delete, B would insert a cell
    cells = notebook.page.locator(".jp-Cell").count()
    panel.canvas.focus()
    for key in ("d", "d", "b", "x", "PageUp"):
        notebook.page.keyboard.press(key)
    panel.until("panel => panel.querySelector('output').textContent === '21'")
    assert notebook.page.locator(".jp-Cell").count() == cells
    panel.field("z").fill("20")


def wait_pixels(panel: Panel, plane: np.ndarray) -> None:
    """Wait until the middle voxel's pixel is the plane's: the newest picture has been drawn."""
    low, high = limits()
    y, x = plane.shape[0] // 2, plane.shape[1] // 2
    grey = int(np.floor(np.clip((float(plane[y, x]) - low) * 255 / (high - low), 0, 255) + 0.5))
    panel.until(
        """(panel, grey) => { const canvas = panel.querySelector('canvas');
            const { width, height, dataset } = canvas, zoom = Math.min(height / 64, width / 96);
            const place = [width / 2 + zoom / 2, height / 2 + zoom / 2];
            const [seen] = canvas.getContext('2d').getImageData(...place, 1, 1).data;
            return seen === grey && dataset.complete === 'true'; }""",
        grey,
    )


def draws(panel: Panel) -> None:
    """A box by mouse, its edge by mouse, its place by keys, its depth by numbers; the level."""
    panel.button("Draw box").click()
    drag(panel, (10.5, 20.5), (40.5, 70.5))
    panel.until("panel => panel.querySelector(\"[data-axis='x'][data-end='1']\").value === '71'")
    assert panel.box() == {"z": (20, 21), "y": (10, 41), "x": (20, 71)}
    drag(panel, (41, 45), (51, 45))  # its lower edge
    panel.until("panel => panel.querySelector(\"[data-axis='y'][data-end='1']\").value === '51'")
    drag(panel, (30, 40), (32, 44))  # its inside
    panel.until("panel => panel.querySelector(\"[data-axis='y'][data-end='1']\").value === '53'")
    assert panel.box() == {"z": (20, 21), "y": (12, 53), "x": (24, 75)}
    panel.canvas.focus()
    panel.page.keyboard.press("ArrowRight")
    panel.page.keyboard.press("Shift+ArrowDown")
    panel.until("panel => panel.querySelector(\"[data-axis='y'][data-end='1']\").value === '54'")
    for end, number in enumerate((2, 90)):
        panel.place("z", end).fill(str(number))
        panel.place("z", end).press("Enter")
    panel.until("panel => panel.querySelector('.nm-cost').textContent.startsWith('z 0\u201396')")
    assert panel.box() == {"z": (2, 90), "y": (12, 54), "x": (25, 76)}
    panel.field("level").select_option("1")
    panel.until("panel => panel.querySelector('.nm-cost').textContent.includes('x 0\\u201348')")
    panel.field("level").select_option("0")
    panel.field("extent").select_option("box")
    panel.until("panel => panel.querySelector('.nm-cost').textContent.includes('x 25\\u201376')")


def cancels(lab: Lab, panel: Panel) -> None:
    """The bar moves; Cancel ends the job, while a cell of the kernel runs."""
    notebook_lab.Notebook.run(_shown(panel), 3, wait=False)
    panel.button("Run").click()
    panel.wait("running")
    allow(lab.root, 24)
    panel.wait_bar(1)
    allow(lab.root, 40)
    panel.wait_bar(3)
    assert panel.root.locator("progress").evaluate("bar => bar.value < bar.max")
    panel.field("z").fill("5")  # looking goes on meanwhile, and so it does while a cell runs
    wait_pixels(panel, smoothed(finest())[5])
    panel.button("Cancel").click()
    allow(lab.root, 10_000)
    panel.wait("aborted")
    assert "what was written stays" in panel.root.locator(".nm-told").inner_text()
    assert "over" not in _shown(panel).output(3), "the cell was to run all the while"
    (lab.root / "go-on").touch()


def _shown(panel: Panel) -> Notebook:
    notebook = notebook_lab.Notebook.__new__(notebook_lab.Notebook)
    notebook.page = panel.page
    return notebook


def comes_back(lab: Lab, context: BrowserContext, panel: Panel, errors: list[str]) -> None:
    """A tab that is closed in mid-job and opened again shows the job, which went on."""
    panel.page.wait_for_function("() => window.cellsDone[3]")
    made = int((lab.root / "made").read_text())
    allow(lab.root, made + 24)
    panel.button("Run").click()
    panel.wait("running")
    panel.wait_bar(1)
    panel.page.close()
    notebook = open_notebook(context.new_page(), lab, errors)
    panel = notebook.panel(0)
    panel.wait("running")
    panel.wait_picture()
    assert panel.root.locator("progress").evaluate("bar => bar.value >= 1 && bar.value < bar.max")
    assert panel.box() == {"z": (2, 90), "y": (12, 54), "x": (25, 76)}
    allow(lab.root, 10_000)
    panel.wait("done")
    notebook.run(4)
    assert "Box(start=(2, 12, 25), stop=(90, 54, 76)) done (88, 42, 51)" in notebook.output(4)
    stored = zarr.open_array(lab.root / "waves-smooth-2.ome.zarr" / "0", mode="r")[...]
    np.testing.assert_array_equal(stored, smoothed(finest())[2:90, 12:54, 25:76])
    notebook.run(5)
    notebook.run(1)  # the cell that made it, again
    notebook.run(6)
    assert "(True, False, False)" in notebook.output(6)
    notebook.run(7)
    assert "{'client': {}, 'background': {}}, []" in notebook.output(7)
