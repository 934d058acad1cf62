"""Who runs a piece of work. Owns threads and the order of hand-over; decides nothing else.

Work arrives in *lanes*, each with threads of its own. The engine decides what runs and never
hands a lane more than it has slots, so nothing queues up here except what is about to start.
Threads are daemons: Python waits for no computation at its exit.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["DaemonWorkers", "ManualWorkers", "Workers"]

_log = logging.getLogger(__name__)

QUICK = 3e-4
"""Seconds below which a piece of work is not worth a thread of its own: to wake one takes a good
part of that, and several threads with such work only take turns at Python's lock."""

type Work = Callable[[], "Next | None"]
"""A piece of work; it may return what is to be run after it."""

type Next = tuple[str, Work]
"""A lane, and a piece of work for it."""


class Workers(Protocol):
    """Something that runs work."""

    @property
    def quick(self) -> float:
        """Seconds below which a piece of work is not worth a hand-over."""

    def busy(self, *lanes: str) -> int:
        """Return how many threads of some lanes are at work, about."""

    def submit(self, lane: str, work: Work) -> None:
        """Run ``work`` soon, in some thread of ``lane``, and then what it returns, if anything."""

    def close(self) -> None:
        """Begin nothing more; end the threads as they become idle. Does not wait."""


class _Lane:
    def __init__(self, name: str, threads: int, nice: int) -> None:
        self.name = name
        self.limit = threads
        self.nice = nice
        self.queue: SimpleQueue[Work | None] = SimpleQueue()
        self.threads = 0
        self.idle = 0


class DaemonWorkers:
    """Daemon threads, made when they are first needed.

    What a piece of work returns to be run after it is run in the same thread, if that serves its
    lane: to hand it to another costs more than many a chunk.

    Parameters
    ----------
    lanes : mapping of str, or tuple of str, to int
        The most threads of each lane; lanes that are named together share their threads.
    nice : mapping of str to int, optional
        How much lower than normal the operating system should rank a lane's threads (0 to 19).
        It is asked of Linux, whose priorities are a thread's own; elsewhere it does nothing.

    Examples
    --------
    >>> workers = DaemonWorkers({"compute": 2})
    >>> done = threading.Event()
    >>> workers.submit("compute", done.set)
    >>> done.wait(10)
    True
    >>> workers.close()
    """

    quick = QUICK

    def __init__(
        self, lanes: Mapping[str | tuple[str, ...], int], nice: Mapping[str, int] | None = None
    ) -> None:
        self._lanes: dict[str, _Lane] = {}
        for together, threads in lanes.items():
            names = (together,) if isinstance(together, str) else together
            lane = _Lane(" and ".join(names), threads, (nice or {}).get(names[0], 0))
            self._lanes.update(dict.fromkeys(names, lane))
        self._lock = threading.Lock()
        self._closed = False

    def busy(self, *lanes: str) -> int:
        """Return how many threads of some lanes are at work, about: nothing is locked."""
        places = {self._lanes[lane] for lane in lanes}
        return sum(place.threads - max(0, place.idle) for place in places)

    def submit(self, lane: str, work: Work) -> None:
        """Run ``work`` in a thread of ``lane``; after `close`, never."""
        place = self._lanes[lane]
        with self._lock:
            if self._closed:
                return
            if place.idle > 0:
                place.idle -= 1
            elif place.threads < place.limit:
                place.threads += 1
                name = f"napari-materialize {lane} {place.threads}"
                threading.Thread(target=self._loop, args=(place,), name=name, daemon=True).start()
            else:
                place.idle -= 1
            place.queue.put(work)

    def close(self) -> None:
        """Begin nothing more; each thread ends after what it runs now. Does not wait."""
        with self._lock:
            self._closed = True
            for place in set(self._lanes.values()):
                for _ in range(place.threads):
                    place.queue.put(None)

    def _loop(self, place: _Lane) -> None:
        if place.nice and sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), place.nice)
        while (work := place.queue.get()) is not None:
            while work is not None:
                if self._closed:
                    return
                work = self._do(place, work)
            with self._lock:
                place.idle += 1

    def _do(self, place: _Lane, work: Work) -> Work | None:
        """Run a piece of work; return what this thread is to run after it."""
        try:
            after = work()
        except Exception:  # noqa: BLE001 - a thread is for more than one piece of work
            _log.exception("work of the lane %s failed; the thread goes on", place.name)
            return None
        if after is None:
            return None
        lane, following = after
        if self._lanes[lane] is place:
            return following
        self.submit(lane, following)
        return None


class ManualWorkers:
    """Workers that run nothing until they are told to: for tests, step by step, in one thread.

    Examples
    --------
    >>> workers = ManualWorkers()
    >>> workers.submit("compute", lambda: print("computed"))
    >>> workers.waiting("compute")
    1
    >>> workers.step("compute")
    computed
    True
    """

    quick = 0.0
    """Each piece is a step of its own, however fast the machine is."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Work]] = {}
        self.closed = False

    def busy(self, *lanes: str) -> int:
        """Return 0: nothing is done that is not a step."""
        return 0

    def submit(self, lane: str, work: Work) -> None:
        """Remember ``work``."""
        self._waiting.setdefault(lane, deque()).append(work)

    def close(self) -> None:
        """Forget everything."""
        self.closed = True
        self._waiting.clear()

    def waiting(self, lane: str) -> int:
        """Return how much of a lane's work was handed over and not run."""
        return len(self._waiting.get(lane, ()))

    def step(self, lane: str | None = None) -> bool:
        """Run the oldest work of a lane, or of the first lane that has any; False if none has."""
        for name, works in list(self._waiting.items()):  # another thread may add a lane meanwhile
            if works and lane in (None, name):
                after = works.popleft()()
                if after is not None:
                    self.submit(*after)
                return True
        return False

    def run_all(self) -> int:
        """Step until nothing is left; return how many steps it took."""
        steps = 0
        while self.step():
            steps += 1
        return steps
