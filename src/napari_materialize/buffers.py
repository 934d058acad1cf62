"""Memory for large blocks of voxels, used again for the next ones. Knows nothing of what is in it.

What ops work in is large, is needed for tens of milliseconds, and is needed again at once. Fresh
memory costs more than to fill it, since the system clears each page; and the C library keeps what
is freed, for each thread apart and with holes: a job held twice what it used. So memory for blocks
is the system's own pages, shared by all threads, and whatever nobody refers to any more is used
again, or given back.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["KEPT_BYTES", "SIZES", "buffer", "expect_traffic", "give_back", "held"]

SIZES = range(2**20, 2**27)
"""Bytes of a block that is made here: to get less costs nothing, and more is too much to keep."""

KEPT_BYTES = 2**28
"""Bytes that are remembered, to be used again, at most: no more than were once in use, either."""

TRAFFIC_BYTES = 2**22
"""Bytes of the largest piece of less than a block that comes and goes, about."""

HUGE_BYTES = 2**22
"""Bytes from which on memory is asked for in pages of 2 MiB, as numpy asks for its own: they are
there in a third of the time, and a model that is handed such a tile is done 1 or 2 % sooner."""

WASTE = 2
"""How many times larger than asked for a memory that is used again may be."""


class _Memory:
    """Pages of the system's, and who has them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pages = _pages(size)
        self._lent: Callable[[], np.ndarray | None] = _nobody

    @property
    def free(self) -> bool:
        """Whether nothing refers to it any more."""
        return self._lent() is None

    def lend(self) -> np.ndarray:
        """Return its bytes; whatever shows a part of them has a reference to this array."""
        lent = np.frombuffer(self._pages, np.uint8)
        self._lent = weakref.ref(lent)
        return lent


def _pages(size: int) -> mmap.mmap:
    """Return fresh pages: this process's alone, so that one that is forked does not write there."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux" and size >= HUGE_BYTES:
        with suppress(OSError):  # advice, which a kernel without such pages refuses
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _nobody() -> None:
    return None


_memories: list[_Memory] = []
"""Those that are remembered, last used last."""

_most = 0
"""Bytes that were in use at once since memory was given back."""

_lock = threading.Lock()


def buffer(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array, C-contiguous, with anything in it.

    Its memory is used again once nothing refers to the array or to a view of it. May be called
    from any thread.

    Examples
    --------
    >>> buffer((2, 3), np.dtype("u1")).shape
    (2, 3)
    """
    size = math.prod(shape) * dtype.itemsize
    if size not in SIZES:
        return np.empty(shape, dtype)
    with _lock:
        memory = _unused(size) or _Memory(size)
        _remember(memory)
        lent = memory.lend()
    return lent[:size].view(dtype).reshape(shape)


def expect_traffic() -> None:
    """Let the C library know that pieces of some megabytes come and go: chunks, and their files.

    At first glibc gives each piece back to the system as soon as it is freed, and the pages of the
    next one are cleared anew: a sixth of the time of a job whose op is cheap. It keeps pieces of a
    size once one of that size was freed (https://man7.org/linux/man-pages/man3/mallopt.3.html, on
    ``M_MMAP_THRESHOLD``), as any program sees to that uses large arrays. Elsewhere nothing
    happens.
    """
    bytes(TRAFFIC_BYTES)


def give_back() -> None:
    """Give memory that is not in use back to the system."""
    global _most  # noqa: PLW0603 - one pool per process, as the system's is
    with _lock:
        _memories[:] = [memory for memory in _memories if not memory.free]
        _most = 0


def held() -> tuple[int, int]:
    """Return how many bytes are remembered, and how many of them are in use.

    Examples
    --------
    >>> remembered, used = held()
    >>> used <= remembered
    True
    """
    with _lock:
        used = sum(memory.size for memory in _memories if not memory.free)
        return sum(memory.size for memory in _memories), used


def _unused(size: int) -> _Memory | None:
    """Return the smallest memory for so many bytes that is not in use, and forget it."""
    fitting = [each for each in _memories if size <= each.size <= WASTE * size and each.free]
    if not fitting:
        return None
    found = min(fitting, key=lambda memory: memory.size)
    _memories.remove(found)
    return found


def _remember(memory: _Memory) -> None:
    """Remember one that is about to be used; of the others no more than were ever in use at once.

    One that is forgotten while it is in use goes back to the system with its last user.
    """
    global _most  # noqa: PLW0603 - one pool per process, as the system's is
    total = sum(each.size for each in _memories) + memory.size
    used = sum(each.size for each in _memories if not each.free) + memory.size
    _most = min(KEPT_BYTES, max(_most, used))
    for each in sorted(_memories, key=lambda each: not each.free) if total > _most else ():
        if total <= _most:
            break
        _memories.remove(each)
        total -= each.size
    _memories.append(memory)
