"""How long a slider's move takes to reach the panel's picture in the browser while a job runs.

    ./dev bench notebook

A JupyterLab on loopback and a headless chromium. The op waits 60 ms a chunk, the engine has 4
slots, a job over 4,096 chunks runs. Each move goes to a slice that nobody has computed, of one
chunk or of nine. Measured in the browser: from the slider's event to the pixel on the canvas. The
goal is the queue's (bench/latency.py: 62 ms in the median and 70 at 99 % for one chunk) plus 150
ms. ``idle`` is the same without a job, ``busy cell`` with a cell that runs all the while.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

# `queue.py` beside this file must not be taken for the standard library's.
HERE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry).resolve() != HERE]
sys.path.insert(0, str(HERE.parent / "tests"))

import notebook_lab  # noqa: E402

MOVES = 40

SETUP = """
import threading, time
import numpy as np
import napari_materialize as nm

def sleep(block):
    time.sleep(0.060)
    return block

def shown(side, version):
    z = np.broadcast_to(np.arange(256, dtype="u1")[:, None, None], (256, side, side))
    op = nm.ops.Function(sleep, dtype="uint8", name="sleep", version=version)
    return nm.open_view(z, [op], chunks=(1, 64, 64))

def job(engine):
    view = nm.open_view(np.ones((128,) * 3, "u1"),
        [nm.ops.Function(sleep, dtype="uint8", name="job", version="1")], chunks=(8, 8, 8))
    cancel = threading.Event()
    work = lambda: engine.materialize(view, nm.MemoryStore(), cancel=cancel)
    threading.Thread(target=work, daemon=True).start()
    return cancel
"""

CASE = """
engine = nm.Engine(slots=4)
panel = nm.panel(shown({side}, "{name}"), engine=engine)
cancel = job(engine) if {job} else threading.Event()
panel
"""

MOVE = """async ([panel, z]) => {
    const slider = panel.querySelector('[name=z]'), canvas = panel.querySelector('canvas');
    const context = canvas.getContext('2d', { willReadFrequently: true });
    const began = performance.now();
    slider.value = z;
    slider.dispatchEvent(new Event('input'));
    for (;;) {
        await new Promise(requestAnimationFrame);
        const [grey] = context.getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
        if (grey === z && canvas.dataset.complete === 'true') return performance.now() - began;
        if (performance.now() - began > 20000) throw new Error(`slice ${z} did not come`);
    }
}"""

SET_WHITE = """white => { white.max = 255; white.value = 255;
    white.dispatchEvent(new Event('input')); white.dispatchEvent(new Event('change')); }"""

CASES = [
    ("idle, 1 chunk", 64, False, False),
    ("job, 1 chunk", 64, True, False),
    ("job, 1 chunk, busy cell", 64, True, True),
    ("job, 9 chunks", 192, True, False),
]


def main() -> None:
    if (reason := notebook_lab.missing()) is not None:
        sys.exit(reason)
    cells = [SETUP]
    for name, side, job, _ in CASES:
        cells += [
            CASE.format(name=name, side=side, job=job),
            "while not cancel.is_set():\n    time.sleep(0.01)",
            "cancel.set()\npanel.close()\nengine.close()",
        ]
    print("| slider to pixel | median, ms | 95 % within, ms | worst, ms | goal, ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder, notebook_lab.Lab(Path(folder)) as lab:
        lab.write("bench.ipynb", cells)
        with notebook_lab.browser() as context:
            notebook = notebook_lab.Notebook(context.new_page(), lab, "bench.ipynb")
            notebook.run(0)
            for number, case in enumerate(CASES):
                measure(notebook, 1 + 3 * number, case)


def measure(notebook: notebook_lab.Notebook, cell: int, case: tuple[str, int, bool, bool]) -> None:
    name, side, _, busy = case
    notebook.run(cell)
    panel = notebook.panel()
    panel.wait_picture()
    panel.root.get_by_label("white").evaluate(SET_WHITE)
    if busy:
        notebook.run(cell + 1, wait=False)
    element = panel.root.element_handle()
    # the first move also waits for the window that was just set
    panel.page.evaluate(MOVE, [element, 250])
    slices = [(37 * n) % 240 for n in range(1, MOVES + 1)]
    waits = sorted(panel.page.evaluate(MOVE, [element, z]) for z in slices if z != 128)
    if not busy:
        notebook.run(cell + 2)
    else:
        panel.page.evaluate("() => window.jupyterapp.commands.execute('kernelmenu:interrupt')")
        notebook.run(cell + 2)
    goal = "212 (median)" if side == 64 else "-"
    middle, high = waits[len(waits) // 2], waits[int(0.95 * len(waits))]
    print(f"| {name} | {middle:.0f} | {high:.0f} | {waits[-1]:.0f} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
