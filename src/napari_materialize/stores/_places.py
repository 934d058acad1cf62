"""What a store is, and which paths there are inside one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from napari_materialize.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator

    from napari_materialize.stores._volume import Volume

__all__ = [
    "LOCK",
    "TEMPORARY",
    "AppendStore",
    "KeptStore",
    "MeasuredStore",
    "ReadableStore",
    "TakenStore",
    "WritableStore",
    "segments",
]

LOCK = ".napari-materialize-job"
"""The file that stands for the one job that may write."""

TEMPORARY = ".napari-materialize-writing-"
"""How a file that is not whole yet is called: no document and no chunk begins like this."""


@runtime_checkable
class WritableStore(Protocol):
    """Anything a result can be written to.

    A store is called from several threads at once, never twice for the same path at a time.
    """

    def put(self, path: str, data: Buffer, /) -> object:
        """Store ``data`` under ``path`` ("/" between segments), whole or not at all.

        What was there before is replaced; what is returned is not looked at.
        """


@runtime_checkable
class TakenStore(Protocol):
    """A store that one job at a time can take for itself."""

    def begin(self, *, fresh: bool = True) -> None:
        """Take it, or raise a `TargetError`; ``fresh``: only if nothing is there."""

    def beat(self) -> None:
        """Give a sign of life; a `StoreError` if somebody else has taken it meanwhile."""

    def holder(self) -> str | None:
        """Return who has taken it now, for a sentence; None if nobody has."""

    def end(self) -> None:
        """Give it back."""


@runtime_checkable
class ReadableStore(Protocol):
    """What a job can ask of a store before it writes there and when it resumes."""

    @property
    def location(self) -> str | None:
        """A place a person can go to, or None."""

    def get(self, path: str, /) -> bytes | None:
        """Return what is stored under ``path``, or None if nothing is."""

    def exists(self) -> bool:
        """Whether the place is there, empty or not."""

    def is_empty(self) -> bool:
        """Whether nothing is stored there, by us or by anybody."""


@runtime_checkable
class KeptStore(ReadableStore, TakenStore, WritableStore, Protocol):
    """A store that a job can come back to: to go on, to add to, to overwrite, to verify."""

    def listing(self, *, sweep: bool = False) -> Iterator[tuple[str, int]]:
        """Walk the path and the size in bytes of all that is there, but for the lock.

        What is no file, a link say, has the size -1. ``sweep``: remove what a killed process was
        writing; else that is left and not told.
        """

    def delete(self, path: str, /) -> None:
        """Remove a file; nothing happens if there is none."""

    def tidy(self) -> None:
        """Remove folders that hold nothing, where there are folders."""


@runtime_checkable
class AppendStore(Protocol):
    """A store with files that can grow."""

    def append(self, path: str, data: bytes, /) -> None:
        """Put ``data`` behind what a file holds; in one piece, unless the disk is full."""


@runtime_checkable
class MeasuredStore(Protocol):
    """A store of which one can know how much will fit."""

    def volume(self) -> Volume | None:
        """Return what is free where it lies; None if nobody tells."""


_PLAIN = re.compile(r"\w+(/\w+)*", re.ASCII)
"""Most paths, all of a chunk's: nothing in them needs a look."""


def segments(path: str) -> list[str]:
    """Check a path inside a store and return its segments."""
    if _PLAIN.fullmatch(path):
        return path.split("/")
    segments = path.split("/")
    if path.startswith("/") or os.path.splitdrive(path)[0]:
        rule = "must be relative to the store"
    elif "\\" in path or "\0" in path:
        rule = "must not hold a backslash or NUL; put / between segments"
    elif not {"", ".", ".."}.isdisjoint(segments):
        rule = 'must have segments other than "", "." and ".."'
    elif any(segment.startswith(TEMPORARY) for segment in segments):
        rule = f"must not begin like a file that is being written, {TEMPORARY!r}"
    else:
        return segments
    raise TargetError(f"path in a store: it {rule}, got {path!r}")
