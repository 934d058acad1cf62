"""How smooth a live layer is, and how soon its picture is complete, in a real window.

    ./dev bench stall                 # about six minutes
    python bench/stall.py --full      # a minute of gestures each, every combination: an hour
    python bench/stall.py --only live --slicing sync --layer image --dims 2 --ms 60
    python bench/stall.py --coarse on off --seconds 20   # two minutes: with a coarser picture first

Gestures as a hand makes them, an event every 40 ms: drags of the slider, pans, zooms, each
followed by a rest until the picture is complete. A view of 4,096 chunks on its finest level is
behind them, whose op takes 60 or 300 ms a chunk and lets go of Python's lock; 4 slots. *job*:
beside it a job of 4,096 other chunks of the same cost runs in the same engine. In 3D the slider is
that of time, a pan is a turn, and the level on screen has 128 chunks, drawn at a quarter of the
canvas's width: software draws a full canvas for 200 ms, and while napari's window draws, Python
stands still. *numpy* is a pyramid of the same shape in memory, *dask* a lazy array of the same op
with 4 threads. Each case runs in a process of its own.

*gap* is between two ticks of a 5 ms timer of Qt. *complete* is from a gesture's last event to the
complete picture, the sum over all gestures that needed chunks, and *ideal* the sum of what these
chunks take: chunks / slots, rounded up, times the op. *needed* are the chunks of the pictures that
were rested on, each once; *computed* is how often the op was called for the view.

With `--coarse` another thing is measured: the op is exchanged for another one, again and again, so
that nothing of the picture is there, and a coarser one goes ahead of it, or does not. *first* is
from there to the first picture without a hole, coarse or not; both are means.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `queue.py` beside this file must not be taken for the standard library's.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOTS = 4
EVENT = 0.040
CALM = 0.25
"""Seconds that a picture has to stay complete to count."""
PATIENCE = 8.0
"""Seconds after which a rest ends although the picture is not complete; beyond twice the ideal."""
SHAPES = {2: ((64, 2048, 2048), (4, 128, 128), 5), 3: ((64, 64, 128, 128), (1, 8, 8, 16), 2)}
"""Shape, chunks and levels for each number of displayed axes."""

FARTHER = 4
"""How much smaller than the canvas the volume is in 3D, where software draws it ray by ray."""

type Index = tuple[int, ...]


class Slow:
    """An op that takes its time without computing, and counts its calls."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls, self._lock = seconds, 0, threading.Lock()

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Wait, and return the block as it is."""
        with self._lock:
            self.calls += 1
        time.sleep(self.seconds)
        return block


def pyramid(dims: int) -> list[np.ndarray]:
    shape, _, count = SHAPES[dims]
    rows = np.ogrid[tuple(slice(size) for size in shape)]
    base = np.zeros(shape, "u1")
    for number, row in enumerate(rows):
        base ^= ((row >> (number + 1)) & 127).astype("u1")
    steps = [(2**n,) * len(shape) if dims == 2 else (1, 2**n, 2**n, 2**n) for n in range(count)]
    return [base[tuple(slice(None, None, step) for step in row)].copy() for row in steps]


@dataclass
class Seen:
    """What a run has measured."""

    gaps: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    ideal: list[float] = field(default_factory=list)
    needed: set[tuple[int, Index]] = field(default_factory=set)
    refreshes: int = 0
    late: int = 0
    first: list[float] = field(default_factory=list)


class Case:
    """One layer in one window, and the gestures."""

    def __init__(self, args: argparse.Namespace) -> None:
        import napari
        from qtpy.QtWidgets import QApplication

        self.args, self.seen = args, Seen()
        self.op = Slow(args.ms / 1000)
        self.levels = pyramid(args.dims)
        self.viewer = napari.Viewer(show=True)
        self.viewer.window.resize(900, 760)
        self.app = QApplication.instance()
        self.engine: Any = None
        self.cancel = threading.Event()
        self.job: threading.Thread | None = None
        self.layer = getattr(self, f"_{args.only}")()
        self.layer.events.set_data.connect(self._on_refresh)
        self.viewer.dims.ndisplay = args.dims
        if args.job == "job":
            self._start_job()

    # ------------------------------------------------------------------ layers

    def _live(self) -> Any:
        import napari_materialize as nm

        _, chunks, _ = SHAPES[self.args.dims]
        kind = "image" if self.args.layer == "image" else "label"
        view = nm.open_view(self.levels, [self._named("slow")], chunks=chunks, kind=kind)
        self.engine = nm.Engine(slots=SLOTS, chunk_bytes=2**29)
        layer = nm.add_view(self.viewer, view, self.engine)
        assert type(layer).__name__.lower() == self.args.layer
        return layer

    def _named(self, name: str) -> Any:
        """Return the op; labels stay labels, which those of a function do not."""
        from dataclasses import replace

        import napari_materialize as nm

        class Kept(nm.ops.Function):
            def describe(self, level: Any, kind: Any) -> Any:
                return replace(super().describe(level, kind), kind=kind)

        return Kept(self.op, dtype="u1", name=name, version="1")

    def _numpy(self) -> Any:
        return self._plain(self.levels)

    def _dask(self) -> Any:
        from multiprocessing.pool import ThreadPool

        import dask
        import dask.array as da

        dask.config.set(pool=ThreadPool(SLOTS))
        _, chunks, _ = SHAPES[self.args.dims]
        arrays = [da.from_array(level, chunks=chunks) for level in self.levels]
        return self._plain(
            [array.map_blocks(self.op, dtype="u1", meta=np.empty(0, "u1")) for array in arrays]
        )

    def _plain(self, levels: list[Any]) -> Any:
        if self.args.layer == "labels":
            return self.viewer.add_labels(levels, multiscale=True)
        return self.viewer.add_image(levels, multiscale=True, contrast_limits=(0, 127))

    def _start_job(self) -> None:
        import napari_materialize as nm

        engine = self.engine or nm.Engine(slots=SLOTS)
        op = nm.ops.Function(Slow(self.args.ms / 1000), dtype="u1", name="job", version="1")
        view = nm.open_view(np.ones((128,) * 3, "u1"), [op], chunks=(8, 8, 8))
        options = {"compression": None, "cancel": self.cancel}
        self.job = threading.Thread(
            target=engine.materialize, args=(view, nm.MemoryStore()), kwargs=options, daemon=True
        )
        self.job.start()

    # ------------------------------------------------------------------ looking

    def _on_refresh(self, _: object = None) -> None:
        self.seen.refreshes += 1

    def on_screen(self) -> set[tuple[int, Index]]:
        """Return the chunks that the picture is made of."""
        number, rows = self._rows()
        return {(number, index) for index in itertools.product(*rows)}

    def _rows(self) -> tuple[int, list[range]]:
        """Return the level on screen, and the chunks along each axis."""
        layer, (_, chunks, _) = self.layer, SHAPES[self.args.dims]
        number = layer.data_level
        shown = list(self.viewer.dims.displayed)
        rows = []
        for axis, size in enumerate(chunks):
            if axis in shown:
                low, high = layer.corner_pixels[:, axis]
            else:
                step = self.viewer.dims.current_step[axis]
                low = high = round(step / layer.downsample_factors[number][axis])
            high = min(high, self.levels[number].shape[axis] - 1)
            rows.append(range(int(low) // size, int(high) // size + 1))
        return number, rows

    def whole(self) -> bool:
        """Return whether some level, or a coarser one, is there for all of the picture."""
        from napari_materialize._napari.repaint import live_layer
        from napari_materialize.looking import covering

        live, (number, rows) = live_layer(self.layer), self._rows()
        assert live is not None
        levels, level = live.view.levels, live.view.levels[number]
        axes = tuple(
            range(row.start * size, min(row.stop * size, length))
            for row, size, length in zip(rows, level.chunks, level.shape, strict=True)
        )
        return any(
            all(
                self.engine.peek(live.view, coarser, index) is not None
                for index in covering(level, axes, levels[coarser])
            )
            for coarser in range(number, len(levels))
        )

    def complete(self) -> bool:
        """Return whether nothing is missing from what is painted."""
        if not self.layer.loaded:
            return False
        if self.args.only != "live":
            return True
        from napari_materialize._napari.repaint import live_layer

        live = live_layer(self.layer)
        assert live is not None
        return live.reads.complete

    # ------------------------------------------------------------------ gestures

    def gestures(self) -> Iterator[list[Callable[[], None]]]:
        """Yield gestures, each a list of events, for ever."""
        viewer = self.viewer
        drag_axis = 0

        def drag(step: int) -> Callable[[], None]:
            def event() -> None:
                size = viewer.dims.nsteps[drag_axis]
                viewer.dims.set_current_step(
                    drag_axis, (viewer.dims.current_step[drag_axis] + step) % size
                )

            return event

        def pan(down: float, right: float) -> Callable[[], None]:
            def event() -> None:
                camera = viewer.scene.camera
                if viewer.dims.ndisplay == 3:
                    camera.angles = (camera.angles[0] + 2, camera.angles[1] + 2, camera.angles[2])
                    return
                y, x = camera.center[-2:]
                camera.center = (0, y + down / camera.zoom, x + right / camera.zoom)

            return event

        def zoom(factor: float) -> Callable[[], None]:
            def event() -> None:
                viewer.scene.camera.zoom *= factor

            return event

        while True:
            yield [drag(1)] * 15
            yield [pan(20, 30)] * 15
            yield [zoom(1.07)] * 12
            yield [drag(2)] * 10
            yield [pan(-25, 15)] * 15
            yield [zoom(1 / 1.07)] * 12
            yield [drag(-1)] * 15

    def run(self, seconds: float) -> Seen:
        """Make gestures for so long and return what was measured."""
        from qtpy.QtCore import Qt, QTimer

        if self.args.dims == 2:
            self.viewer.scene.camera.zoom = 1.25
        else:
            self.viewer.scene.camera.zoom /= FARTHER
        self.viewer.dims.set_current_step(0, 20)
        self._rest(time.perf_counter(), None)
        self.op.calls = self.seen.refreshes = 0
        gc.collect()  # a full collection of napari's objects takes 150 ms: not of the start's
        known = self.on_screen()
        last = [time.perf_counter()]

        def tick() -> None:
            now = time.perf_counter()
            self.seen.gaps.append(now - last[0])
            last[0] = now

        timer = QTimer()
        timer.setTimerType(Qt.TimerType.PreciseTimer)
        timer.timeout.connect(tick)
        last[0] = time.perf_counter()
        timer.start(5)
        began = time.perf_counter()
        for gesture in self.gestures():
            ended = self._make(gesture)
            self._rest(ended, known)
            if time.perf_counter() - began >= seconds:
                break
        timer.stop()
        return self.seen

    def run_changes(self, seconds: float) -> Seen:
        """Show one op after another for so long; nothing of a picture is there at first."""
        from napari_materialize._napari.repaint import live_layer

        live = live_layer(self.layer)
        assert live is not None
        self.viewer.scene.camera.zoom = 1.25
        self._rest(time.perf_counter(), None)
        self.op.calls = self.seen.refreshes = 0
        base, last = live.view, time.perf_counter() + seconds
        for number in itertools.count():
            if time.perf_counter() >= last:
                return self.seen
            seen = len(self.seen.first)
            view = type(base).of(base.source, [self._named(f"slow {number}")])
            began = time.perf_counter()

            def painted(_: object = None, began: float = began, seen: int = seen) -> None:
                if len(self.seen.first) == seen and self.whole():
                    self.seen.first.append(time.perf_counter() - began)

            self.layer.events.set_data.connect(painted)
            live.show(view)
            self._rest(began, set())
            self.layer.events.set_data.disconnect(painted)
        raise AssertionError("a count ended")

    def _make(self, gesture: list[Callable[[], None]]) -> float:
        """Make a gesture in real time; what is late is made at once. Return when it ended.

        Events are made where the window hears of them, among its timers, as those of a mouse are.
        """
        began = ended = time.perf_counter()
        left = deque(enumerate(gesture))

        def all_made() -> bool:
            nonlocal ended
            while left and time.perf_counter() >= began + left[0][0] * EVENT:
                ended = time.perf_counter()
                left.popleft()[1]()
            return not left

        self._wait(all_made)
        return ended

    def _rest(self, ended: float, known: set[tuple[int, Index]] | None) -> None:
        """Wait until the picture is complete and stays so; note how long that took."""
        since: list[float | None] = [None]
        rounds = math.ceil(len(self.on_screen()) / SLOTS)
        patience = PATIENCE + 2 * rounds * self.op.seconds

        def calm() -> bool:
            now = time.perf_counter()
            if not self.complete():
                since[0] = None
            elif since[0] is None:
                since[0] = now
            return now - ended > patience or (since[0] is not None and now - since[0] > CALM)

        self._wait(calm)
        if known is None:
            return
        fresh = self.on_screen() - known
        known |= fresh
        self.seen.needed |= fresh
        self.seen.late += since[0] is None
        if fresh:
            self.seen.complete.append((since[0] or time.perf_counter()) - ended)
            self.seen.ideal.append(math.ceil(len(fresh) / SLOTS) * self.op.seconds)

    def _wait(self, until: Callable[[], bool]) -> None:
        """Let the window live until something is the case."""
        from qtpy.QtCore import QEventLoop, Qt, QTimer

        if until():
            return
        loop, timer = QEventLoop(), QTimer()
        timer.setTimerType(Qt.TimerType.PreciseTimer)
        timer.timeout.connect(lambda: loop.quit() if until() else None)
        timer.start(5)
        loop.exec()
        timer.stop()


def one(args: argparse.Namespace) -> None:
    """Run one case in this process and print what it measured, as JSON."""
    os.environ["NAPARI_CONFIG"] = str(Path(tempfile.mkdtemp(), "settings.yaml"))
    os.environ["NAPARI_ASYNC"] = "1" if args.slicing == "async" else "0"
    if args.coarse == "off":
        from napari_materialize._napari import reads

        reads.COARSE_SHARE = math.inf
    case = Case(args)
    seen = case.run_changes(args.seconds) if args.coarse else case.run(args.seconds)
    if case.job is not None and not case.job.is_alive():
        raise RuntimeError("the job was over before the gestures were")
    gaps = np.array(seen.gaps or [math.nan]) * 1e3
    print(
        json.dumps(
            {
                "p99": float(np.percentile(gaps, 99)),
                "largest": float(gaps.max()),
                "complete": sum(seen.complete),
                "ideal": sum(seen.ideal),
                "each": [round(t, 3) for t in seen.complete],
                "ideals": [round(t, 3) for t in seen.ideal],
                "late": seen.late,
                "rests": len(seen.complete),
                "computed": case.op.calls,
                "needed": len(seen.needed),
                "refreshes": seen.refreshes,
                "first": sum(seen.first),
                "pictures": len(seen.first),
            }
        ),
        flush=True,
    )
    case.cancel.set()
    os._exit(0)  # dask's threads and a job would be waited for


CHOICES: dict[str, tuple[Any, ...]] = {
    "dims": (2, 3),
    "slicing": ("sync", "async"),
    "layer": ("image", "labels"),
    "ms": (60, 300),
    "job": ("alone", "job"),
    "only": ("numpy", "live", "dask"),
}


def cases(chosen: dict[str, list[Any]], full: bool) -> Iterator[dict[str, Any]]:
    """Yield the cases to run; without `full` those that differ from one in one thing at most."""
    base = {"dims": 2, "slicing": "sync", "layer": "image", "ms": 60, "job": "alone"}
    for values in itertools.product(*chosen.values()):
        case = dict(zip(chosen, values, strict=True))
        if case["only"] == "numpy" and (case["ms"], case["job"]) != (60, "alone"):
            continue  # it computes nothing
        if case["only"] == "dask" and case["job"] != "alone":
            continue  # nothing that it could share with a job
        apart = sum(case[name] != value for name, value in base.items() if len(chosen[name]) > 1)
        if full or apart <= 1:
            yield case


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, values in CHOICES.items():
        parser.add_argument(f"--{name}", type=type(values[0]), choices=values, nargs="*")
    parser.add_argument("--full", action="store_true", help="every combination, a minute each")
    parser.add_argument("--seconds", type=float, help="of gestures in each case")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--coarse", choices=("on", "off"), nargs="*", help="see above")
    args = parser.parse_args()
    if args.one:
        one(
            argparse.Namespace(
                **{k: v[0] if isinstance(v, list) else v for k, v in vars(args).items()}
            )
        )
    chosen = {name: list(getattr(args, name) or values) for name, values in CHOICES.items()}
    if args.coarse:
        compare(chosen, args.coarse, args.seconds or 20.0)
        return
    seconds = args.seconds or (60.0 if args.full else 9.0)
    head = "| layer | dims | slicing | ms | job | shows | gap 99 %, ms | largest | complete, s | "
    head += "ideal | ratio | computed | needed | ratio | refreshes |"
    print(head + "\n| " + "--- | " * 6 + "---: | " * 9, flush=True)
    for case in cases(chosen, args.full):
        print(row(case, seconds), flush=True)


def compare(chosen: dict[str, list[Any]], coarse: list[str], seconds: float) -> None:
    """Print how soon there is a picture, with a coarser one first and without."""
    print("| slicing | ms | coarser first | first, s | complete, s | ideal | computed | pictures |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for slicing, ms, first in itertools.product(chosen["slicing"], chosen["ms"], coarse):
        case = {"slicing": slicing, "ms": ms, "coarse": first}
        case |= {"dims": 2, "layer": "image", "job": "alone", "only": "live"}
        seen = measured(case, seconds)
        count = max(1, seen["pictures"])
        means = [f"{seen[name] / count:.2f}" for name in ("first", "complete", "ideal")]
        means.append(f"{seen['computed'] / count:.1f}")
        print(f"| {slicing} | {ms} | {first} | {' | '.join(means)} | {count} |", flush=True)


def measured(case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run a case in a process of its own; return what it measured.

    Raises
    ------
    RuntimeError
        If it failed.
    """
    options = [part for name, value in case.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--one", "--seconds", str(seconds), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if os.environ.get("STALL_DETAILS"):
        print(found, file=sys.stderr)
    return found


def row(case: dict[str, Any], seconds: float) -> str:
    """Run a case in a process of its own; return its row of the table."""
    names = ("layer", "dims", "slicing", "ms", "job", "only")
    words = " | ".join(str(case[name]) for name in names)
    try:
        seen = measured(case, seconds)
    except RuntimeError as error:
        return f"| {words} | failed: {error} |"
    columns = [f"{seen['p99']:.0f}", f"{seen['largest']:.0f}"]
    if case["only"] == "numpy":
        columns += [f"{seen['complete']:.2f}", "-", "-", "-", "-", "-"]
    else:
        late = f" ({seen['late']} never)" if seen["late"] else ""
        columns += [
            f"{seen['complete']:.2f}{late}",
            f"{seen['ideal']:.2f}",
            f"{seen['complete'] / max(seen['ideal'], 1e-9):.2f}",
            str(seen["computed"]),
            str(seen["needed"]),
            f"{seen['computed'] / max(1, seen['needed']):.2f}",
        ]
    return f"| {words} | {' | '.join(columns)} | {seen['refreshes']} |"


if __name__ == "__main__":
    main()
