"""Microseconds per claim, run and finish of the demand queue, by how many jobs wait.

    ./dev bench queue

Each round claims one more chunk, starts the next, finishes it, so that the number of waiting
jobs stays. The bare heap beside it only pushes and pops: what an ordering costs at least.
"""

from __future__ import annotations

import gc
import heapq
import statistics
import time
from typing import TYPE_CHECKING

from napari_materialize.demand import Queue, Request

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING = (100, 10_000, 100_000, 1_000_000)
ROUNDS = 20_000
REPEATS = 5


def queue_rounds(waiting: int) -> Callable[[], float]:
    queue: Queue[int] = Queue({"compute": 4})
    for number in range(waiting):
        queue.claim(Request(number, "compute", level=number % 5), background=number % 2 == 0)
    following = iter(range(waiting, 10**9))

    def rounds() -> float:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            number = next(following)
            queue.claim(Request(number, "compute", level=number % 5), background=number % 2 == 0)
            key = queue.next("compute")
            assert key is not None
            queue.finish(key)
        return (time.perf_counter() - began) / ROUNDS * 1e6

    return rounds


def drop_rounds(waiting: int) -> Callable[[], float]:
    queue: Queue[int] = Queue({"compute": 4})
    for number in range(waiting):
        queue.claim(Request(number, "compute", level=number % 5))
    following = iter(range(waiting, 10**9))

    def rounds() -> float:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            number = next(following)
            queue.release(queue.claim(Request(number, "compute", level=number % 5)))
        return (time.perf_counter() - began) / ROUNDS * 1e6

    return rounds


def heap_rounds(waiting: int) -> Callable[[], float]:
    heap = [(number % 2, number % 5, number) for number in range(waiting)]
    heapq.heapify(heap)
    following = iter(range(waiting, 10**9))

    def rounds() -> float:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            number = next(following)
            heapq.heappush(heap, (number % 2, number % 5, number))
            heapq.heappop(heap)
        return (time.perf_counter() - began) / ROUNDS * 1e6

    return rounds


def stall(waiting: int) -> float:
    """Drop all that wait at once; return the longest single step after it, in milliseconds."""
    queue: Queue[int] = Queue({"compute": 4})
    claims = [queue.claim(Request(number, "compute")) for number in range(waiting)]
    for claim in claims:
        queue.release(claim)
    began = time.perf_counter()
    queue.claim(Request(-1, "compute"))
    assert queue.next("compute") == -1
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    print(
        "| waiting | claim + next + finish, us | claim + release, us | bare heap, us "
        "| first step after dropping all, ms |"
    )
    print("| ---: | ---: | ---: | ---: | ---: |")
    for waiting in WAITING:
        columns = [queue_rounds(waiting), drop_rounds(waiting), heap_rounds(waiting)]
        gc.collect()
        gc.freeze()
        times: list[list[float]] = [[] for _ in columns]
        for _ in range(REPEATS):
            for column, rounds in zip(times, columns, strict=True):
                column.append(rounds())
        medians = [statistics.median(column) for column in times]
        row = " | ".join(f"{value:.1f}" for value in medians)
        print(f"| {waiting:,} | {row} | {stall(waiting):.2f} |")
        gc.unfreeze()


if __name__ == "__main__":
    main()
