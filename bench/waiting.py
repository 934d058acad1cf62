"""How long a viewer waits for a chunk while a job that is all gzip runs, against an idle engine.

    ./dev bench waiting [--requests N]

The job writes an image with no op, gzip level 9, so both cores do nothing but compress, in C and
without Python's lock. The client asks for chunks of 64^3 of other views of another part of the same
file, one at a time, at random moments: read and decoded only, a threshold, a gaussian. None of them
was asked for before. Idle and busy take turns. Rule: busy at most twice idle, in the median.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# `queue.py` beside this file must not be taken for the standard library's
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE] + [str(HERE)]

from _cases import Case, make_source  # noqa: E402
from napari_materialize import Box, Engine, MemoryStore, View, open_view  # noqa: E402

CHUNK = 64
CHAINS = {"no op": [], "threshold": ["threshold:low=120"], "gaussian": ["gaussian:sigma=1.5"]}


def waits(engine: Engine, view: View, requests: int, generator: random.Random) -> list[float]:
    """Ask for chunks one at a time, from the image's far end, and return milliseconds."""
    last = [n - 1 for n in view.levels[0].grid.counts]
    found = []
    for number in range(requests):
        index = (last[0] - number // 16, number // 4 % 4, number % 4)
        time.sleep(generator.uniform(0.02, 0.06))
        began = time.perf_counter()
        with engine.claim(view, 0, index) as claim:
            claim.result()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def measure(view: View, job: View | None, requests: int) -> tuple[list[float], float]:
    """Return the waits, and MB of voxels that the job wrote per second."""
    stop, done = threading.Event(), []
    with Engine() as engine:
        size = view.levels[0].shape
        box = Box((0, 0, 0), (size[0] - CHUNK * (requests // 16 + 1), *size[1:]))

        def write() -> None:
            done.append(
                engine.materialize(job, MemoryStore(), box=box, compression="gzip:9", cancel=stop)
            )

        thread = threading.Thread(target=write)
        began = time.perf_counter()
        if job is not None:
            thread.start()
            time.sleep(0.5)
        found = waits(engine, view, requests, random.Random(1))
        seconds = time.perf_counter() - began
        stop.set()
        if job is None:
            return found, 0.0
        running = thread.is_alive()
        thread.join()
        assert running, "the job was over before the client was"
        return found, (done[0].written + done[0].skipped) * CHUNK**3 / 1e6 / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=48)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source = make_source(Case("", shape=(2560, 256, 256)), Path(name))
        job = open_view(source)
        print("| the client's view | idle, ms | beside the job, ms | ratio | job, MB/s |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for what, chain in CHAINS.items():
            view = open_view(source, chain, name=what)
            measure(view, None, 4)  # what is imported is not measured
            idle: list[float] = []
            busy: list[float] = []
            rate = 0.0
            for _ in range(2):
                idle += measure(view, None, asked.requests // 2)[0]
                more, rate = measure(view, job, asked.requests // 2)
                busy += more
            first, second = statistics.median(idle), statistics.median(busy)
            print(
                f"| {what} | {first:.1f} | {second:.1f} | {second / first:.2f} | {rate:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
