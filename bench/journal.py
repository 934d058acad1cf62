"""What it costs a job to keep a journal: lines, checksums, sums and the lock.

A job of 1,000 chunks of 64^3, with `threshold` and as a copy, gzip 6, into a folder, in processes
of its own: by turns as it is, and into a store that has only `put`, with the checksums left out, so
that nothing is kept. The difference is what all of it costs. Since that is smaller than what two
runs of the same job differ by, the calls are also timed one by one, by the clock of their thread.

    python bench/journal.py [--pairs 3] [--side 10] [--op threshold|copy|both]

The rule: at most 2 % of a job of 64^3 chunks (November 2026, two cores: 0.9 % with
`threshold`, 1.3 % as a copy, of 8 ms of CPU for a chunk).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `queue.py` beside this file must not be taken for the standard library's.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
from scipy import ndimage  # noqa: E402

import napari_materialize as nm  # noqa: E402
from napari_materialize import job, once, recipe  # noqa: E402, F401 - loaded before forking
from napari_materialize.codecs import Compression, encode_chunk  # noqa: E402
from napari_materialize.job import _keeper  # noqa: E402
from napari_materialize.journal import Journal, Sums  # noqa: E402
from napari_materialize.stores import DirectoryStore  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

OPS: dict[str, list[str]] = {"threshold": ["threshold:low=120"], "copy": []}


class Tiled:
    """A volume that repeats one of two chunks along each axis: as large as is asked for."""

    def __init__(self, side: int) -> None:
        rng = np.random.default_rng(0)
        smooth = ndimage.gaussian_filter(rng.normal(size=(128, 128, 128)), 2, mode="wrap")
        noise = rng.normal(scale=4, size=smooth.shape)
        self.tile = np.clip(smooth / smooth.std() * 30 + 120 + noise, 1, 255).astype("u1")
        self.shape, self.dtype = (64 * side,) * 3, self.tile.dtype

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        return self.tile[tuple(slice(k.start % 128, k.start % 128 + k.stop - k.start) for k in key)]


class OnlyPut:
    """A store that nobody can come back to."""

    def __init__(self, path: Path) -> None:
        self.put = DirectoryStore(path).put


class Timer:
    """Seconds of CPU spent in some calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that does the same and takes its time."""
        self.seconds[name] = 0.0

        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                # threads add to it without a lock: one sum in thousands may be lost
                self.seconds[name] += time.thread_time() - began

        return timed


def nothing(*_: Any) -> int:
    """Stand for a call that is left out."""
    return 0


def run(volume: Tiled, ops: list[str], target: Path, keeps: bool) -> dict[str, float]:
    """Do the job in this process; return its CPU and wall seconds, and those of the calls."""
    timer = Timer()
    if keeps:
        _keeper.checksum = timer.around("checksum", _keeper.checksum)
        Sums.add = timer.around("sums", Sums.add)  # type: ignore[method-assign]
        for name in ("note", "begin", "flush", "remove"):
            setattr(Journal, name, timer.around(f"journal {name}", getattr(Journal, name)))
        for name in ("begin", "beat", "end"):
            call = timer.around(f"lock {name}", getattr(DirectoryStore, name))
            setattr(DirectoryStore, name, call)
    else:
        _keeper.checksum = nothing
        Sums.add = nothing  # type: ignore[method-assign]
    view = nm.open_view(volume, ops, chunks=(64, 64, 64))
    store = DirectoryStore(target) if keeps else OnlyPut(target)
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF)
    with nm.Engine(nice=0) as engine:
        done = engine.materialize(view, store)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu, "chunks": done.written, **timer.seconds}


def in_child(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Do something in a forked process; return what it returns."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("a run failed")
    return json.loads(text)


def compare(name: str, volume: Tiled, pairs: int, root: Path) -> None:
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(2 * pairs):
        keeps = number % 4 in (1, 2)  # both as often first as second
        target = root / f"{name} {number}"
        found[keeps].append(in_child(lambda k=keeps, t=target: run(volume, OPS[name], t, k)))
        shutil.rmtree(target)
    print(f"{name}: {found[True][0]['chunks']:.0f} chunks, {pairs} pairs")
    for what in ("cpu", "wall"):
        with_, without = (
            statistics.median(each[what] for each in found[keeps]) for keeps in (True, False)
        )
        print(
            f"  {what:5} {without:7.2f} s without, {with_:7.2f} s with:"
            f" {100 * (with_ / without - 1):+.1f} %"
        )
    cpu = statistics.median(each["cpu"] for each in found[True])
    total = 0.0
    for call in found[True][0]:
        if call not in ("wall", "cpu", "chunks"):
            seconds = statistics.median(each[call] for each in found[True])
            total += seconds
            print(f"  {call:15} {1e3 * seconds:7.1f} ms of CPU, {100 * seconds / cpu:.2f} %")
    print(f"  {'all calls':15} {1e3 * total:7.1f} ms of CPU, {100 * total / cpu:.2f} % of the job")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--side", type=int, default=10, help="chunks along each axis")
    parser.add_argument("--op", choices=[*OPS, "both"], default="both")
    asked = parser.parse_args()
    volume = Tiled(asked.side)
    encode_chunk(volume.tile[:64, :64, :64], (64,) * 3, 0, Compression())  # loads the codec
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm"
        in_child(lambda: run(Tiled(2), OPS["copy"], warm, keeps=True))
        for name in OPS if asked.op == "both" else [asked.op]:
            compare(name, volume, asked.pairs, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
