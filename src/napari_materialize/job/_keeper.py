"""Puts the files of a result, and takes note of what became of each."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from typing import TYPE_CHECKING

from napari_materialize.errors import StoreError
from napari_materialize.journal import FileState, Sums, checksum
from napari_materialize.stores import KeptStore

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from napari_materialize.geometry import Index
    from napari_materialize.journal import Journal, Ledger, Seen
    from napari_materialize.plan import Plan

__all__ = ["Keeper"]

PASSING = frozenset(
    {
        errno.EINTR,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ETIMEDOUT,
        errno.ESTALE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)
"""What a shared file system says when it is away for a moment."""

WAITS = (0.1, 0.5, 2.0)
"""Seconds before each further attempt."""


class Keeper:
    """Puts files and keeps the journal and the sums. May be told from any thread.

    Parameters
    ----------
    plan : Plan
        Of the job.
    journal : Journal, optional
        None for a store that nobody can come back to.
    stale : bool
        Whether a file may be there that is not to be.
    shared : bool
        Whether other jobs wrote other boxes of the same arrays.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal | None = None,
        *,
        stale: bool = False,
        shared: bool = False,
    ) -> None:
        self._plan = plan
        self.journal = journal
        store = plan.store
        self._stale = store if stale and isinstance(store, KeptStore) else None
        self._shared = plan.store if shared and isinstance(plan.store, KeptStore) else None
        self.sums = {each.position: Sums(plan.files(each)) for each in plan.written}
        """Over the files that are there, by position."""
        self.failed: set[tuple[int, Index]] = set()
        """Files that could not be made."""
        self.gone = threading.Event()
        """Set once nobody waits for another attempt."""

    def found(self, position: int, ledger: Ledger) -> None:
        """Take files for done that were found to be."""
        for file, size, crc in ledger.walk(FileState.WRITTEN):
            self.sums[position].add(file, size, crc)

    def before(self, position: int, file: Index) -> bytes | None:
        """Return what is there of a file that other jobs may have a part in.

        Raises
        ------
        StoreError
            If it cannot be read.
        """
        if self._shared is None:
            return None
        return self._shared.get(self._plan.layout.chunk_key(position, file))

    def put(self, position: int, file: Index, data: bytes, *, whole: bool = True) -> None:
        """Store a file; ``whole``: with all its chunks, none of which failed.

        Raises
        ------
        Exception
            Whatever the store raises, after as many attempts as make sense; or the journal's.
        """
        self._put(self._plan.layout.chunk_key(position, file), data)
        if not whole:
            self.fail(position, file)
            return
        size, crc = len(data), checksum(data)
        if self.journal is not None:
            self.journal.note(position, file, FileState.WRITTEN, size, crc)
        self.sums[position].add(file, size, crc)

    def together(self) -> AbstractContextManager[None]:
        """Take note of all files of a moment in one go, when it is over."""
        return contextlib.nullcontext() if self.journal is None else self.journal.together()

    def _put(self, path: str, data: bytes) -> None:
        for wait in WAITS:
            try:
                self._plan.store.put(path, data)
            except OSError as error:
                if error.errno not in PASSING or self.gone.is_set():
                    raise
                time.sleep(wait)
            else:
                return
        self._plan.store.put(path, data)

    def leave_out(self, position: int, file: Index) -> None:
        """Take note of a file that holds nothing and so is not there.

        Raises
        ------
        StoreError
            If one is there and cannot be removed, or the journal cannot be written.
        """
        if self._stale is not None:
            self._stale.delete(self._plan.layout.chunk_key(position, file))
        if self.journal is not None:
            self.journal.note(position, file, FileState.EMPTY)

    def fail(self, position: int, file: Index) -> None:
        """Take note of a file that could not be made."""
        self.failed.add((position, file))
        if self.journal is not None:
            # without this line it is a file of which nothing is known: it is made anew as well
            with contextlib.suppress(StoreError):
                self.journal.note(position, file, FileState.FAILED)

    def seen(self, extremes: Seen) -> None:
        """Take note of what was seen of the values, for display."""
        if self.journal is not None:
            self.journal.seen(extremes)
