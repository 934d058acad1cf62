"""What is done for layers that were collected without being removed.

Owns the thread that does it. A layer may be collected in any thread, inside any lock, so that
nothing can be done there but to put its end into a queue made for that.
"""

from __future__ import annotations

import functools
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["when_dropped"]

_dropped: SimpleQueue[Callable[[], None]] = SimpleQueue()
"""What is to be done, in the order in which layers were collected."""


def when_dropped(layer: object, then: Callable[[], None]) -> None:
    """Call ``then``, in a thread made for that, once a layer was collected."""
    _watch()
    weakref.finalize(layer, _dropped.put, then).atexit = False


@functools.cache
def _watch() -> None:
    threading.Thread(target=_end, name="napari-materialize layers", daemon=True).start()


def _end() -> None:
    while True:
        _dropped.get()()
