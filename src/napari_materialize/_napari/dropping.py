"""What is done for layers that were collected without being removed.

Owns the thread that does it, which lives as long as there is a layer to wait for. A layer may be
collected in any thread, inside any lock, so that nothing can be done there but to put its end into
a queue made for that.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Dropped", "when_dropped"]


class Dropped:
    """Calls what is to be called once something was collected, in a thread made for that.

    Examples
    --------
    >>> dropped, done = Dropped(), threading.Event()
    >>> thing = threading.Event()  # anything that may be referred to weakly
    >>> dropped.watch(thing, done.set)
    >>> del thing
    >>> done.wait(10)
    True
    """

    def __init__(self) -> None:
        self._ends: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        """Never taken where something is collected."""
        self._waiting = 0
        """How many ends are still to come; the thread runs while there are any."""

    def watch(self, thing: object, then: Callable[[], None]) -> None:
        """Call ``then`` once a thing was collected; may be called in any thread."""
        with self._lock:
            self._waiting += 1
            if self._waiting == 1:
                threading.Thread(
                    target=self._work, name="napari-materialize layers", daemon=True
                ).start()
        weakref.finalize(thing, self._ends.put, then).atexit = False

    def _work(self) -> None:
        over = False
        while not over:
            self._ends.get()()
            with self._lock:
                self._waiting -= 1
                over = self._waiting == 0


_layers = Dropped()


def when_dropped(layer: object, then: Callable[[], None]) -> None:
    """Call ``then``, in a thread made for that, once a layer was collected."""
    _layers.watch(layer, then)
