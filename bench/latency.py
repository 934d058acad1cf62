"""How long a viewer waits for a chunk while a job of 4,096 chunks runs.

    ./dev bench latency [WORDS]

Only the rows whose name has all of the words, if some are given.

A client asks for chunks of its own at random times, one at a time or eight at once, of the finest
and of a coarser level. ``sleep`` is an op that waits 60 ms without computing: what is above 60 ms
is the queue's. ``compute`` is one that computes for about 60 ms and lets go of Python's lock: there
the machine's cores are shared with the job, whose threads the operating system ranks lower (one
row is without that: compare the job's chunks per second, too).
``idle`` is the same op with no job running. ``best`` is what the best order could give for sleeping
ops: one slot that is free, others that become free at random within an op's time, simulated. An op
that holds Python's lock cannot be helped by an order, and is not measured here;
`docs/concepts/caching.md` says what helps.
"""

from __future__ import annotations

import hashlib
import math
import random
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


def view_of(function: Any, inputs: int = 1) -> View:
    """Return a view of two levels, of 4,096 and 512 chunks, each made of 1, 8 or 27 chunks."""
    fine = np.ones((SIDE * 8,) * 3, "u1")
    halo = 2 if inputs == 27 else 0
    chain: list[Any] = [
        ops.Function(function, halo=halo, dtype="uint8", name="op", version=str(id(function)))
    ]
    levels = [fine, fine[::2, ::2, ::2].copy()]
    if inputs == 8:
        levels = [np.broadcast_to(level, (8, *level.shape)) for level in levels]
        chain.insert(0, ops.Argmax())
    axes, chunks = ("czyx", (1, 8, 8, 8)) if inputs == 8 else ("zyx", (8, 8, 8))
    return open_view(levels, chain, axes=axes, chunks=chunks)


def best(slots: int, clients: int) -> list[float]:
    """Simulate the waits of the best order: each request takes the slot that is free first."""
    generator, waits = random.Random(0), []
    for _ in range(2_000):
        busy = max(1, slots - 1)
        free = sorted([generator.uniform(0, SECONDS) for _ in range(busy)] + [0.0] * (slots - busy))
        for _ in range(clients):
            end = free.pop(0) + SECONDS
            waits.append(end * 1e3)
            free = sorted([*free, end])
    return sorted(waits)


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
    slots: int,
    function: Any,
    *,
    clients: int = 1,
    level: int = 0,
    inputs: int = 1,
    job: bool = True,
    nice: int = 19,
) -> tuple[list[float], float]:
    """Return the waits in milliseconds, and the job's chunks per second."""
    view, generator = view_of(function, inputs), random.Random(0)
    cancel, done = threading.Event(), []
    with Engine(slots=slots, nice=nice) as engine:
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
        free = list(view.walk(level, Box.whole(view.levels[level].shape)))
        free = free[::-1][: REQUESTS + clients]
        waits: list[float] = []
        while len(waits) < REQUESTS:
            time.sleep(generator.uniform(0, 2 * SECONDS))
            waits += wait(engine, view, level, [free.pop() for _ in range(min(clients, len(free)))])
        cancel.set()
        if job:
            thread.join()
        elapsed = time.perf_counter() - began
    return waits, (done[0].written + done[0].skipped) / elapsed if done else 0.0


def main() -> None:
    compute = computing()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("sleep, finest level", {"slots": 4, "function": sleep}),
        ("sleep, coarser level", {"slots": 4, "function": sleep, "level": 1}),
        ("sleep, 8 clients at once", {"slots": 4, "function": sleep, "clients": 8}),
        ("sleep, 8 inputs", {"slots": 4, "function": sleep, "inputs": 8}),
        ("sleep, 27 inputs", {"slots": 4, "function": sleep, "inputs": 27}),
        ("sleep, 1 slot", {"slots": 1, "function": sleep}),
        ("compute, idle", {"slots": 4, "function": compute, "job": False}),
        ("compute", {"slots": 4, "function": compute}),
        ("compute, nobody ranked lower", {"slots": 4, "function": compute, "nice": 0}),
        ("compute, 27 inputs", {"slots": 4, "function": compute, "inputs": 27}),
        ("compute, 1 slot", {"slots": 1, "function": compute}),
    ]
    print("| op | slots | median, ms | best | 99 % within, ms | best | job, chunks/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, case in cases:
        if not all(word in name for word in sys.argv[1:]):
            continue
        waits, rate = measure(**case)
        columns = [f"{name} | {case['slots']}"]
        ideal = best(case["slots"], case.get("clients", 1)) if case["function"] is sleep else None
        for share in (0.5, 0.99):
            columns += [f"{at(waits, share):.1f}", f"{at(ideal, share):.1f}" if ideal else "-"]
        print(f"| {' | '.join(columns)} | {rate:.0f} |", flush=True)


def at(values: list[float], share: float) -> float:
    """Return the value that a share of the values lie below or at."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


if __name__ == "__main__":
    main()
