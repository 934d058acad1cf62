"""What a job adds to a model's own time, and what its blocks save.

    ./dev bench onnx [sessions] [tiles] [whole]

``sessions``: voxels per second of one session or several, called by one thread or several, with one
thread per call or two: the table behind the default, one session with one thread that all slots
share. ``tiles``: a job, from claims to files in memory, against onnxruntime alone on the very
tiles that the job ran, by as many threads. ``whole``: a job in chunks of 64^3 of a volume of
256^3, with a halo of 24, against one run over the whole volume with all cores, which has no halo at
all. A halo of 24 makes chunk by chunk 5.4 times the work, blocks of 128^3 2.6 times, of 128 x 256 x
256 1.9 times; so the job's ceiling is below 1, and how large its blocks are decides.

The model is three convolutions of 3^3 with dilation 8: halo 24, a few channels.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `onnx.py` and `queue.py` beside this file must not be taken for the libraries.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import contextlib  # noqa: E402
import itertools  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # type: ignore[import-untyped]  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from napari_materialize import Engine, MemoryStore, open_view  # noqa: E402
from napari_materialize.ops import Onnx, _model_session  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CORES = os.cpu_count() or 1
CHANNELS, DILATION, HALO = 8, 8, 24
BLOCKS: dict[str, Any] = {"block_seconds": 10.0, "block_bytes": 2**29}
"""What the engine is told of the size of its blocks: a viewer is not waiting here."""


def make_model(path: Path) -> Path:
    """Write the model: (n, 1, z, y, x) float32 to the same."""
    generator = np.random.default_rng(0)
    sizes = itertools.pairwise((1, CHANNELS, CHANNELS, 1))
    nodes, weights, given = [], [], "in"
    for layer, (taken, made) in enumerate(sizes):
        values = generator.normal(size=(made, taken, 3, 3, 3)) / np.sqrt(27 * taken)
        weights.append(numpy_helper.from_array(values.astype("f4"), f"w{layer}"))
        name = "out" if layer == 2 else f"h{layer}"
        inputs, dilations = [given, f"w{layer}"], [DILATION] * 3
        nodes.append(
            helper.make_node("Conv", inputs, [name], pads=[DILATION] * 6, dilations=dilations)
        )
        if layer < 2:
            nodes.append(helper.make_node("Relu", [name], [f"r{layer}"]))
            given = f"r{layer}"
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1, "z", "y", "x"])
        for name in ("in", "out")
    ]
    graph = helper.make_graph(nodes, "bench", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def session(path: Path, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that runs the model, with the options that the op has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda tile: made.run(None, {"in": tile})[0]


def noise(*sides: int) -> np.ndarray:
    return np.random.default_rng(1).random(sides, np.float32)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def sessions(path: Path) -> None:
    """Print voxels per second by sessions, callers and threads."""
    tile = noise(1, 1, 112, 112, 112)
    calls = 4 * CORES
    print(f"sessions: {calls} tiles of 112^3, million voxels per second")
    print("  sessions  callers  threads  Mvoxel/s")
    for many, callers, threads in (
        (1, 1, 1),
        (1, 1, CORES),
        (1, CORES, 1),
        (CORES, CORES, 1),
        (1, CORES, CORES),
        (1, 2 * CORES, 1),
    ):
        runs = [session(path, threads) for _ in range(many)]
        for run in runs:
            run(tile)
        with ThreadPoolExecutor(callers) as pool:
            taken = seconds(
                lambda pool=pool, runs=runs: list(
                    pool.map(lambda i: runs[i % len(runs)](tile), range(calls))
                )
            )
        rate = calls * tile.size / taken / 1e6
        print(f"  {many:8}  {callers:7}  {threads:7}  {rate:8.1f}", flush=True)


class Recorder:
    """Counts the tiles that the op hands to onnxruntime."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._run = _model_session.Runtime.run
        self._lock = threading.Lock()

    def __enter__(self) -> Recorder:
        recorder = self

        def run(self: Any, tile: np.ndarray, source: str, target: str) -> np.ndarray:
            with recorder._lock:
                recorder.shapes.append(tile.shape)
            return recorder._run(self, tile, source, target)

        _model_session.Runtime.run = run
        return self

    def __exit__(self, *exc: object) -> None:
        _model_session.Runtime.run = self._run


def job(path: Path, volume: np.ndarray) -> tuple[float, list[tuple[int, ...]]]:
    """Run a job over a volume twice; return the better one's seconds and the tiles it ran.

    The first one finds onnxruntime without memory, which the runs it is compared with have.
    """
    with open_session(path):
        return min((one_job(path, volume) for _ in range(2)), key=lambda pair: pair[0])


@contextlib.contextmanager
def open_session(path: Path) -> Iterator[None]:
    """Keep the op's session, which goes with its last user."""
    keep = Onnx(path, HALO)
    yield
    del keep


def one_job(path: Path, volume: np.ndarray) -> tuple[float, list[tuple[int, ...]]]:
    op = f"onnx:model={path},halo={HALO},after=threshold:0.5"
    view = open_view(volume, op, chunks=(64, 64, 64))
    with Engine(slots=CORES + 1, **BLOCKS) as engine:
        with Recorder() as recorder:
            # the engine learns how long a voxel takes from a first chunk, as in any session
            engine.array(view)[:64, :64, :64]
            recorder.shapes.clear()
            taken = seconds(lambda: engine.materialize(view, MemoryStore(), existing="error"))
        return taken, list(recorder.shapes)


def alone(path: Path, shapes: list[tuple[int, ...]]) -> float:
    """Run the same tiles by onnxruntime alone; return the seconds."""
    run = session(path, 1)
    given = {shape: noise(*shape) for shape in set(shapes)}
    for tile in given.values():
        run(tile)
    with ThreadPoolExecutor(CORES) as pool:
        return seconds(lambda: list(pool.map(lambda shape: run(given[shape]), shapes)))


def tiles(path: Path) -> None:
    """Print a job's throughput against onnxruntime alone."""
    volume = noise(128, 256, 256)
    taken, shapes = job(path, volume)
    bare = alone(path, shapes)
    voxels = sum(int(np.prod(shape)) for shape in shapes)
    print(f"tiles: {volume.shape}, {_counted(shapes)}")
    print(f"  job {taken:.2f} s, onnxruntime alone {bare:.2f} s, {voxels / 1e6:.0f} million voxels")
    print(f"  ratio {bare / taken:.2f} (goal 0.95)", flush=True)


def whole(path: Path) -> None:
    """Print a job's throughput against one run over everything."""
    volume = noise(256, 256, 256)
    run = session(path, CORES)
    best = min(seconds(lambda: run(volume[None, None])) for _ in range(2))
    taken, shapes = job(path, volume)
    work = sum(int(np.prod(shape)) for shape in shapes) / volume.size
    print(f"whole: {volume.shape}, {_counted(shapes)}: {work:.2f} times the voxels")
    print(f"  job {taken:.2f} s, one run {best:.2f} s")
    print(f"  ratio {best / taken:.2f} (goal 0.6)", flush=True)


def _counted(shapes: list[tuple[int, ...]]) -> str:
    counts = Counter(shapes).most_common()
    return ", ".join(f"{n} tiles of {' x '.join(map(str, s[2:]))}" for s, n in counts)


def _chosen() -> Iterator[Callable[[Path], None]]:
    for part in (sessions, tiles, whole):
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            yield part


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "bench.onnx")
        for part in _chosen():
            part(model)
