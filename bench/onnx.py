"""What a job adds to a model's own time, and what its blocks save.

    ./dev bench onnx [sessions] [tiles] [whole] [MODEL.onnx:HALO]

``sessions``: voxels per second of one session or several, called by one thread or several, with one
thread per call or two: the table behind the default, one session with one thread that all slots
share. ``tiles``: a job, from claims to files in memory, against onnxruntime alone on the very tiles
that the job ran, on the op's own sessions, by as many threads. ``whole``: jobs in chunks of 64^3 of
a volume of 256^3, with a halo of 24, against one run of the model as it came over the whole volume
with all cores, which has no halo at all; once in an engine as it is, whose blocks take a second at
most, once with large blocks. A halo of 24 hands the model 5.4 times the voxels chunk by chunk, 2.6
times in blocks of 128^3, 1.9 times in 128 x 256 x 256; what of it no layer needs is cut off.

The model is three convolutions of 3^3 with dilation 8: halo 24, a few channels; or another 3D model
of one channel, by its file and its halo.

Jobs run at the priority of what they are compared with (in an engine as it is they give way to
everything else), and processor seconds are printed beside the clock's: a machine that other work
shares tells more by them.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `onnx.py` and `queue.py` beside this file must not be taken for the libraries.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import itertools  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from typing import TYPE_CHECKING, Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # type: ignore[import-untyped]  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from napari_materialize import Engine, MemoryStore, open_view  # noqa: E402
from napari_materialize.ops import _model_session  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CORES = os.cpu_count() or 1
CHANNELS, DILATION, HALO = 8, 8, 24
ROUNDS = 5
"""Of which the median is taken, after one more to get warm."""

SAME: dict[str, Any] = {"nice": 0}
"""What the engine is told: a job has the priority of what it is compared with."""

BLOCKS: dict[str, Any] = SAME | {"block_seconds": 10.0, "block_bytes": 2**29}
"""What the engine is told of the size of its blocks: a viewer is not waiting here."""


class Net(NamedTuple):
    """A model of (n, 1, z, y, x) float32."""

    path: Path
    halo: int

    def view(self, volume: np.ndarray) -> Any:
        """Return the view of a volume through it."""
        op = f"onnx:model={self.path},halo={self.halo},description=none"
        return open_view(volume, op, chunks=(64, 64, 64))


def make_model(path: Path) -> Net:
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
    return Net(path, HALO)


def session(net: Net, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that runs the model, with the options that the op has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = onnxruntime.InferenceSession(net.path, options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda tile: made.run(None, {name: tile})[0]


def noise(*sides: int) -> np.ndarray:
    return np.random.default_rng(1).random(sides, np.float32)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Taken(NamedTuple):
    """What something took."""

    seconds: float
    processor: float
    """Seconds of all cores together."""


def taken_by(work: Callable[[], Any]) -> Taken:
    before = time.process_time()
    return Taken(seconds(work), time.process_time() - before)


def sessions(net: Net) -> None:
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
        runs = [session(net, threads) for _ in range(many)]
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


class Call(NamedTuple):
    """One call of onnxruntime by the op."""

    runtime: _model_session.Runtime
    source: str
    target: str
    shape: tuple[int, ...]


class Recorder:
    """Records what the op hands to onnxruntime."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._run = _model_session.Runtime.run
        self._lock = threading.Lock()

    def __enter__(self) -> Recorder:
        recorder = self

        def run(self: Any, tile: np.ndarray, source: str, target: str) -> np.ndarray:
            with recorder._lock:
                recorder.calls.append(Call(self, source, target, tile.shape))
            return recorder._run(self, tile, source, target)

        _model_session.Runtime.run = run
        return self

    def __exit__(self, *exc: object) -> None:
        _model_session.Runtime.run = self._run


class Job(NamedTuple):
    """What a job took."""

    taken: Taken
    calls: list[Call]


def run_job(net: Net, volume: np.ndarray, options: dict[str, Any] = SAME) -> Job:
    """Run a job over a volume, in an engine that has seen one of its chunks."""
    view = net.view(volume)
    with Engine(**options) as engine, Recorder() as recorder:
        # the engine learns how long a voxel takes from a first chunk, as in any session
        engine.array(view)[..., :64, :64, :64]
        recorder.calls.clear()
        taken = taken_by(lambda: engine.materialize(view, MemoryStore(), compression=None))
    return Job(taken, list(recorder.calls))


def alone(calls: list[Call]) -> Taken:
    """Run the same tiles on the same sessions by onnxruntime alone."""
    given = {call.shape: noise(*call.shape) for call in calls}

    def one(call: Call) -> None:
        call.runtime.session.run([call.target], {call.source: given[call.shape]})

    with ThreadPoolExecutor(CORES) as pool:
        return taken_by(lambda: list(pool.map(one, calls)))


def tiles(net: Net) -> None:
    """Print a job's throughput against onnxruntime alone."""
    volume, rows = noise(256, 256, 512), []
    keep = net.view(volume)  # the op's sessions, which go with their last user
    for _ in range(ROUNDS + 1):
        job = run_job(net, volume)
        rows.append((alone(job.calls), job.taken))
    del keep
    print(f"tiles: {volume.shape}, {_counted(job.calls)}, medians of {ROUNDS}")
    print("                                          s  processor s")
    for name, column in zip(("onnxruntime alone", "job"), zip(*rows[1:], strict=True), strict=True):
        clock, processor = map(statistics.median, zip(*column, strict=True))
        print(f"  {name:33} {clock:7.2f}  {processor:11.2f}")
    said = []
    for k in range(2):
        ratios = sorted(bare[k] / job[k] for bare, job in rows[1:])
        said.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"  ratio, of each round (goal 0.95)  {'  '.join(said)}", flush=True)


def whole(net: Net) -> None:
    """Print a job's throughput against one run over everything."""
    volume, rows, jobs = noise(256, 256, 256), [], {}
    run, keep = session(net, CORES), net.view(volume)
    kinds = {"as an engine is": SAME, "nobody waits": BLOCKS}
    for _ in range(ROUNDS + 1):
        row = [seconds(lambda: run(volume[None, None]))]
        for kind, options in kinds.items():
            jobs[kind] = run_job(net, volume, options)
            row.append(jobs[kind].taken.seconds)
        rows.append(row)
    del keep
    best, *taken = _medians(rows)
    print(f"whole: {volume.shape}, halo {net.halo}, medians of {ROUNDS} interleaved")
    print("  run                    s  ratio (goal 0.6)  voxels handed per voxel  tiles")
    print(f"  one over all     {best:7.2f}  {1:16.2f}  {1:23.2f}  1")
    for number, (kind, time_) in enumerate(zip(kinds, taken, strict=True), 1):
        ratio = statistics.median(row[0] / row[number] for row in rows[1:])
        work = sum(math.prod(call.shape) for call in jobs[kind].calls) / volume.size
        said = _counted(jobs[kind].calls)
        print(f"  {kind:16} {time_:7.2f}  {ratio:16.2f}  {work:23.2f}  {said}", flush=True)


def _medians(rows: list[Any]) -> list[float]:
    """Return the medians of columns; the first row finds nothing ready, and does not count."""
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


def _counted(calls: list[Call]) -> str:
    counts = Counter(call.shape for call in calls).most_common()
    return ", ".join(f"{n} of {' x '.join(map(str, s[2:]))}" for s, n in counts)


def _chosen() -> Iterator[Callable[[Net], None]]:
    named = [each for each in sys.argv[1:] if ".onnx:" not in each]
    for part in (sessions, tiles, whole):
        if not named or part.__name__ in named:
            yield part


def _given() -> Net | None:
    """Return the model that was named, if one was."""
    for each in sys.argv[1:]:
        path, colon, halo = each.rpartition(":")
        if colon:
            return Net(Path(path), int(halo))
    return None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        net = _given() or make_model(Path(folder) / "bench.onnx")
        for part in _chosen():
            part(net)
