"""Peak memory of a job, by its op and how large its region is; and 10,000 dropped claims.

    ./dev bench memory

Each size runs in a process of its own, on a source that is computed and held nowhere. The first
table has default budgets and no client: *above the import* is the peak of the resident size less
what it was after `import napari_materialize`, the median of three processes each; *growth* compares
the two regions by that, and *of the whole* by the peaks themselves. *Decodes* are source chunks
read, for each of the region's. In the second one, *above the start* is the peak less what it was
before the job, everything imported. With
the default budgets a job holds the source chunks that its next ones need, 128 MiB at most. Small
budgets (2 MiB of chunks, 4 of stages, 2 of inputs) show regions that are many times the budgets:
before the job a viewer looks at some chunks, and after it they must still be there.
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

KINDS = {"no op": [], "threshold": ["threshold:low=50"], "gaussian": ["gaussian:sigma=1.5"]}
REGIONS = ((256, 256, 256), (1024, 512, 512))
REPEATS = 3
SIZES = ((256, 256, 256), (1024, 512, 512), (2048, 1024, 512))
SMALL = ((256, 256, 256), (512, 512, 512), (1024, 512, 512))
CHUNK = 64
SMALL_CHUNK = 32
MIB = 2**20
BUDGETS = {"chunk_bytes": 2 * MIB, "stage_bytes": 4 * MIB, "input_bytes": 2 * MIB}


class Made:
    """An array that is made as it is read."""

    dtype = np.dtype("u1")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        shape = tuple(part.stop - part.start for part in key)
        return np.random.default_rng(key[0].start).integers(0, 99, shape, dtype="u1")


class Counting:
    """A store that keeps nothing."""

    def put(self, path: str, data: object, /) -> None:
        """Forget it."""


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def job(shape: tuple[int, ...], small: bool) -> None:
    chunk = SMALL_CHUNK if small else CHUNK
    view = open_view(Made(shape), "gaussian:sigma=1.5", chunks=(chunk,) * 3)
    with Engine(slots=3, **(BUDGETS if small else {})) as engine:
        engine.materialize(open_view(np.zeros((8, 8), "u1"), "gaussian:sigma=1"), MemoryStore())
        engine.array(view, 0)[:chunk, : 2 * chunk, : 4 * chunk]
        looked_at = engine.resident(view)
        before = peak()
        done = engine.materialize(view, Counting())
        kept = len(set(looked_at) & set(engine.resident(view)))
    assert done.written == done.chunks
    assert kept == len(looked_at) == 8, f"{kept} of {len(looked_at)} chunks looked at are left"
    print(f"{peak() - before:.0f}")


def plain_job(shape: tuple[int, ...], kind: str) -> None:
    """Print the peak above the import, the whole peak (MB), decodes a chunk, processor seconds."""
    before = peak()
    view = open_view(Made(shape), KINDS[kind], chunks=(CHUNK,) * 3)
    with Engine() as engine:
        began = time.process_time()
        done = engine.materialize(view, Counting())
        seconds = time.process_time() - began
        reads = engine.stats()["read"]
    assert done.written == done.chunks
    print(f"{peak() - before:.1f} {peak():.1f} {reads / done.chunks:.2f} {seconds:.1f}")


def regions() -> None:
    """Print how the peak of a job depends on its op and its region."""
    print(
        "| op | region | peak above the import, MB | growth | of the whole | decodes a chunk |"
        " processor seconds |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for kind in KINDS:
        first: tuple[float, ...] = ()
        for shape in REGIONS:
            command = [sys.executable, __file__, ",".join(map(str, shape)), kind]
            runs = [
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                for _ in range(REPEATS)
            ]
            above, whole, decodes, seconds = (
                statistics.median(map(float, column)) for column in zip(*runs, strict=True)
            )
            first = first or (above, whole)
            print(
                f"| {kind} | {' x '.join(map(str, shape))} | {above:.0f} | {above / first[0]:.2f} "
                f"| {whole / first[1]:.2f} | {decodes:.2f} | {seconds:.1f} |",
                flush=True,
            )


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
        shape, which = tuple(int(n) for n in sys.argv[1].split(",")), sys.argv[2]
        if which in KINDS:
            plain_job(shape, which)
        else:
            job(shape, which == "small")
        return
    regions()
    print("\n| budgets | region | MB of voxels | times the budgets | peak above the start, MB |")
    print("| --- | --- | ---: | ---: | ---: |")
    cases = [("default", shape) for shape in SIZES] + [("small", shape) for shape in SMALL]
    for which, shape in cases:
        command = [sys.executable, __file__, ",".join(map(str, shape)), which]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        size, budget = np.prod(shape) / MIB, 896 if which == "default" else 8
        name = " x ".join(map(str, shape))
        print(
            f"| {which} | {name} | {size:.0f} | {size / budget:.1f} | {found.strip()} |", flush=True
        )
    for at_once in (True, False):
        waits = dropped(20_000, at_once)
        how = "at once" if at_once else "one by one"
        print(
            f"\nWhile 10,000 claims are dropped {how}: {len(waits)} client requests of 10 ms, "
            f"median {statistics.median(waits):.1f} ms, longest {max(waits):.1f} ms"
        )


if __name__ == "__main__":
    main()
