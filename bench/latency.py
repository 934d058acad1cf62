"""How long a viewer waits for a chunk while a job of 4,096 chunks runs.

    ./dev bench latency

A client asks for chunks of its own at random times, one at a time or eight at once, of the finest
and of a coarser level. ``sleep`` is an op that waits 60 ms without computing: what is above 60 ms is
the queue's. ``compute`` is one that computes for about 60 ms and lets go of Python's lock: there the
machine's cores are shared with the job, whose threads the operating system ranks lower. ``idle`` is
the same op with no job running. An op that holds Python's lock cannot be helped by an order, and is
not measured here: `docs/concepts/caching.md` says what helps.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# `queue.py` beside this file must not be taken for the standard library's.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402

from napari_materialize import Box, Engine, MemoryStore, open_view, ops  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize import View

SECONDS = 0.060
REQUESTS = 200
SIDE = 16  # chunks along each axis: 16 ** 3 = 4,096 of the finest level


def sleep(block: np.ndarray) -> np.ndarray:
    time.sleep(SECONDS)
    return block


def computing() -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that computes for about 60 ms, releasing Python's lock."""
    data = bytes(1 << 20)
    began = time.perf_counter()
    for _ in range(20):
        hashlib.sha256(data)
    rounds = max(1, round(SECONDS / ((time.perf_counter() - began) / 20)))

    def compute(block: np.ndarray) -> np.ndarray:
        for _ in range(rounds):
            hashlib.sha256(data)
        return block

    return compute


def view_of(function: Any, halo: int = 0) -> View:
    """Return a view of two levels, of 4,096 and 512 chunks; with a halo a chunk has 27 inputs."""
    fine = np.ones((SIDE * 8,) * 3, "u1")
    op = ops.Function(function, halo=halo, dtype="uint8", name="op", version=str(id(function)))
    return open_view([fine, fine[::2, ::2, ::2].copy()], op, chunks=(8, 8, 8))


def wait(engine: Engine, view: View, level: int, indices: list[tuple[int, ...]]) -> list[float]:
    """Ask for chunks at the same time and return how long each took, in milliseconds."""
    began = time.perf_counter()
    times: list[float] = []
    claims = [engine.claim(view, level, index) for index in indices]
    for claim in claims:
        claim.add_done_callback(lambda _: times.append((time.perf_counter() - began) * 1e3))
    for claim in claims:
        claim.result()
        claim.release()
    return times


def measure(
    slots: int, function: Any, *, clients: int = 1, level: int = 0, halo: int = 0, job: bool = True
) -> tuple[list[float], float]:
    """Return the waits in milliseconds, and the job's chunks per second."""
    view, generator = view_of(function, halo), random.Random(0)
    cancel, done = threading.Event(), []
    with Engine(slots=slots) as engine:
        began = time.perf_counter()
        thread = threading.Thread(
            target=lambda: done.append(
                engine.materialize(view, MemoryStore(), cancel=cancel, compression=None)
            )
        )
        if job:
            thread.start()
            time.sleep(0.5)
        # from the job's far end, so that it has computed none of them
        counts = view.levels[level].grid.counts
        free = [index for index in view.walk(level, Box.whole(view.levels[level].shape))]
        free = free[::-1][: REQUESTS + clients]
        waits: list[float] = []
        while len(waits) < REQUESTS:
            time.sleep(generator.uniform(0, 2 * SECONDS))
            waits += wait(engine, view, level, [free.pop() for _ in range(min(clients, len(free)))])
        cancel.set()
        if job:
            thread.join()
        assert len(counts) == 3
        elapsed = time.perf_counter() - began
    return waits, (done[0].chunks and done[0].written / elapsed) if done else 0.0


def main() -> None:
    compute = computing()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("sleep, finest level", {"slots": 4, "function": sleep}),
        ("sleep, coarser level", {"slots": 4, "function": sleep, "level": 1}),
        ("sleep, 8 clients at once", {"slots": 4, "function": sleep, "clients": 8}),
        ("sleep, 27 inputs", {"slots": 4, "function": sleep, "halo": 2}),
        ("sleep, 1 slot", {"slots": 1, "function": sleep}),
        ("compute, idle", {"slots": 4, "function": compute, "job": False}),
        ("compute", {"slots": 4, "function": compute}),
        ("compute, 27 inputs", {"slots": 4, "function": compute, "halo": 2}),
        ("compute, 1 slot", {"slots": 1, "function": compute}),
    ]
    print("| op | slots | median, ms | 99 % within, ms | longest, ms | job, chunks/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, case in cases:
        waits, rate = measure(**case)
        waits.sort()
        high = waits[int(len(waits) * 0.99) - 1]
        print(
            f"| {name} | {case['slots']} | {statistics.median(waits):.1f} | {high:.1f} "
            f"| {waits[-1]:.1f} | {rate:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
