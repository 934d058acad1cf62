"""What a job counts while it runs, and the receipt it ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from napari_materialize.errors import ChunkError
    from napari_materialize.geometry import Index

__all__ = ["MOST_FAILURES", "Failure", "Materialized", "Tally"]


MOST_FAILURES = 1000
"""Failed chunks that a receipt tells of; all are counted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One chunk that could not be written."""

    level: int
    """The view's level; of a derived one, the level it is derived from."""

    index: Index
    """The chunk's place in the written array."""

    reason: str
    """Why, in a sentence."""


@dataclass(frozen=True, slots=True)
class Materialized:
    """The receipt of a job."""

    chunks: int
    """Chunks the job was about."""

    written: int
    """Chunks stored."""

    skipped: int
    """Chunks of nothing but the fill value, left out."""

    failed: int
    """Chunks that failed."""

    bytes: int
    """Bytes of the stored chunks, compressed."""

    aborted: bool
    """Whether it was stopped before its end."""

    seconds: float
    """How long it took."""

    failures: tuple[Failure, ...] = ()
    """Which chunks failed, and why: the first of them, `MOST_FAILURES` at most."""

    found: int = 0
    """Chunks that an earlier job had made already; they count nowhere else."""


class Tally:
    """Counts the chunks a job is done with. May be told from any thread.

    Parameters
    ----------
    chunks : int
        How many there are.
    guard : threading.Lock
        Guards the counts.
    on_failure : callable
        Called with the error of each chunk that failed, without the lock held.
    found : int
        How many more there are, made already.
    """

    def __init__(
        self,
        chunks: int,
        guard: threading.Lock,
        on_failure: Callable[[ChunkError], None],
        found: int = 0,
    ) -> None:
        self._chunks = chunks
        self._found = found
        self._guard = guard
        self._on_failure = on_failure
        self._written = self._skipped = self._bytes = 0
        self._failed = 0
        self._failures: list[Failure] = []

    def stored(self, chunks: int, size: int) -> None:
        """Take note of a file with some chunks in it."""
        with self._guard:
            self._written += chunks
            self._bytes += size

    def skipped(self) -> None:
        """Take note of a chunk of nothing but the fill value."""
        with self._guard:
            self._skipped += 1

    def failed(self, level: int, index: Index, error: ChunkError) -> None:
        """Take note of a chunk that failed."""
        with self._guard:
            self._failed += 1
            if len(self._failures) < MOST_FAILURES:
                self._failures.append(Failure(level, index, str(error)))
        self._on_failure(error)

    def progress(self) -> dict[str, int]:
        """Return how far the job is; the caller holds the lock."""
        return {
            "done": self._written + self._skipped + self._failed,
            "total": self._chunks,
            "written": self._written,
            "skipped": self._skipped,
            "failed": self._failed,
            "bytes": self._bytes,
        }

    def receipt(self, seconds: float, *, aborted: bool) -> Materialized:
        """Say what was done."""
        with self._guard:
            return Materialized(
                chunks=self._chunks,
                written=self._written,
                skipped=self._skipped,
                failed=self._failed,
                bytes=self._bytes,
                aborted=aborted,
                seconds=seconds,
                failures=tuple(self._failures),
                found=self._found,
            )
