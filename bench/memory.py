"""Peak memory of a job, by how large its region is; and what becomes of 10,000 dropped claims.

    ./dev bench memory

Each size runs in a process of its own, on a source that is computed and held nowhere, with the
default budgets and no client. *Above the start* is the peak of the resident size less what it was
before the job, everything imported. It grows until the pool of source chunks is full (128 MiB).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

# `queue.py` beside this file must not be taken for the standard library's.
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402

from napari_materialize import Engine, MemoryStore, open_view, ops  # noqa: E402

SIZES = ((256, 256, 256), (1024, 512, 512), (2048, 1024, 512))
CHUNK = 64


class Made:
    """An array that is made as it is read."""

    dtype = np.dtype("u1")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        shape = tuple(part.stop - part.start for part in key)
        return np.random.default_rng(key[0].start).integers(0, 99, shape).astype("u1")


class Counting:
    """A store that keeps nothing."""

    def put(self, path: str, data: object, /) -> None:
        """Forget it."""


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def job(shape: tuple[int, ...]) -> None:
    view = open_view(Made(shape), "gaussian:sigma=1.5", chunks=(CHUNK,) * 3)
    with Engine(slots=3) as engine:
        engine.materialize(open_view(np.zeros((8, 8), "u1"), "gaussian:sigma=1"), MemoryStore())
        before = peak()
        done = engine.materialize(view, Counting())
    assert done.written == done.chunks
    print(f"{peak() - before:.0f}")


def sleep(block: np.ndarray) -> np.ndarray:
    time.sleep(0.01)
    return block


def dropped(claims: int, at_once: bool) -> list[float]:
    """Return a client's waits, in milliseconds, while another thread drops many claims at once."""
    op = ops.Function(sleep, dtype="uint8", name="sleep", version="1")
    view = open_view(np.zeros((claims * 2, 2), "u1"), op, chunks=(2, 2))
    waits = []
    with Engine(slots=2) as engine:
        held = engine.claim_all(view, 0, [(i, 0) for i in range(claims // 2, claims)])

        def drop() -> None:
            if at_once:
                engine.release_all(held)
            else:
                for claim in held:
                    claim.release()

        thread = threading.Thread(target=drop)
        thread.start()
        number = 0
        while thread.is_alive():
            began = time.perf_counter()
            # ahead of those that are being dropped: what is left is the engine's own stall
            with engine.claim(view, 0, (number, 0), priority=-1) as claim:
                claim.result()
            waits.append((time.perf_counter() - began) * 1e3)
            number += 1
        thread.join()
    return waits


def main() -> None:
    if len(sys.argv) > 1:
        job(tuple(int(n) for n in sys.argv[1].split(",")))
        return
    print("| region | MB of voxels | peak above the start, MB |")
    print("| --- | ---: | ---: |")
    for shape in SIZES:
        command = [sys.executable, __file__, ",".join(map(str, shape))]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        size = np.prod(shape) / 2**20
        print(f"| {' x '.join(map(str, shape))} | {size:.0f} | {found.strip()} |", flush=True)
    for at_once in (True, False):
        waits = dropped(20_000, at_once)
        how = "at once" if at_once else "one by one"
        print(
            f"\nWhile 10,000 claims are dropped {how}: {len(waits)} client requests of 10 ms, "
            f"median {statistics.median(waits):.1f} ms, longest {max(waits):.1f} ms"
        )


if __name__ == "__main__":
    main()
