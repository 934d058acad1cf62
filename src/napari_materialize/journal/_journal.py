"""The journal's text, and where it is kept.

A line is a kind, its content and a checksum of both. A line that is torn, since the process was
killed or the disk was full, is passed over: it says nothing, and what it would have said is done
once more. A later line of a file counts, not an earlier one.

A process that is killed loses the lines of a moment at most of a journal that is a file: each is
handed to the operating system as it is made, or with those of the chunks that are written in the
same go, if that takes no longer. Where files cannot grow, lines are put in batches, and the last
batch is lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from napari_materialize.journal._ledger import FileState, Ledger
from napari_materialize.layout import check_writable
from napari_materialize.stores import AppendStore, KeptStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from napari_materialize.geometry import Box, Index

__all__ = ["JOURNAL", "Found", "Journal", "Seen", "is_journal", "parse_extremes", "read_journal"]

JOURNAL = ".napari-materialize-journal"
"""The file, or the folder of batches."""

BATCH, SECONDS = 64, 2.0
"""Lines in a batch, and how long one waits for more of them."""

_KINDS = {"w": FileState.WRITTEN, "e": FileState.EMPTY, "f": FileState.FAILED}
_LETTERS = {state: letter for letter, state in _KINDS.items()}

_NOT_OURS = (ValueError, TypeError, LookupError, OverflowError, RecursionError)
"""What reading a line raises that only looks like one."""

type Seen = list[tuple[float, float] | None]
"""The lowest and the highest value of each channel."""


@dataclass
class Found:
    """What a journal says."""

    key: Mapping[str, Any]
    """What its job was to do."""

    cleared: bool = True
    """Whether what was there before is gone; else it was being removed."""

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    """What became of the files, by the position of their array."""

    extremes: list[Seen] = field(default_factory=list)
    """What was seen of the values, for display."""

    batches: int = 0
    """How many there are, where it is kept in batches."""


def is_journal(path: str) -> bool:
    """Whether a path in a store is a journal's."""
    return path == JOURNAL or path.startswith(f"{JOURNAL}/")


def read_journal(store: KeptStore, files: Sequence[Box] | None = None) -> Found | None:
    """Return what the journal in a store says, or None if there is none.

    Parameters
    ----------
    store : KeptStore
        Where it is.
    files : sequence of Box, optional
        Which files each written array has, by position; those elsewhere are passed over. Without it
        only the job is read.
    """
    batches = sorted(path for path, _ in store.listing() if path.startswith(f"{JOURNAL}/"))
    whole = store.get(JOURNAL)
    pieces = [whole] if whole is not None else [store.get(path) or b"" for path in batches]
    found: Found | None = None
    for kind, content in _lines(pieces):
        if kind == "j":
            key = _object(content)
            if found is None and key is not None:
                found = Found(key, batches=_last(batches))
                found.ledgers = {at: Ledger(box) for at, box in enumerate(files or ())}
                found.cleared = not key.get("clears", False)
        elif found is not None:
            with contextlib.suppress(*_NOT_OURS):
                _take(found, kind, content)
    if found is None and pieces:
        return Found({}, batches=_last(batches))  # begun and killed: it is ours, and empty
    return found


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
        check_writable(value)  # what is gone on with is written again
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None


def _last(batches: Sequence[str]) -> int:
    numbers = [path.rpartition("/")[2] for path in batches]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _lines(pieces: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Walk the kinds and contents of the lines that are whole."""
    for piece in pieces:
        for line in piece.split(b"\n"):
            body, _, check = line.rpartition(b" ")
            if len(check) == 8 and f"{zlib.crc32(body):08x}".encode() == check:
                kind, _, content = body.decode(errors="replace").partition(" ")
                yield kind, content


def _take(found: Found, kind: str, content: str) -> None:
    if kind == "c":
        found.cleared = True
    elif kind == "s":
        found.extremes.append(parse_extremes(json.loads(content)))
    elif kind in _KINDS:
        position, file, *numbers = content.split(" ")
        ledger = found.ledgers.get(int(position))
        index = tuple(map(int, file.split(",")))
        if ledger is not None and index in ledger:
            ledger.note(index, _KINDS[kind], *(int(number, 16) for number in numbers))


def parse_extremes(value: Any) -> Seen:
    """Return what JSON holds of the values that were seen.

    Raises
    ------
    TypeError, ValueError, LookupError, OverflowError
        If it is something else.
    """
    found: Seen = [
        None if window is None else (float(window[0]), float(window[1])) for window in list(value)
    ]
    if not all(math.isfinite(each) for window in found if window is not None for each in window):
        raise ValueError("values that were seen are finite numbers")
    return found


def _line(kind: str, content: str = "") -> bytes:
    body = f"{kind} {content}".encode()
    return b"%s %08x\n" % (body, zlib.crc32(body))


class Journal:
    """The journal of the job that has taken a store. May be told from any thread.

    Parameters
    ----------
    store : KeptStore
        Where it is kept.
    batches : int
        How many batches there are already, where it is kept in batches.

    Examples
    --------
    >>> from napari_materialize import Box, MemoryStore
    >>> store = MemoryStore()
    >>> journal = Journal(store)
    >>> journal.begin({"view": "a"})
    >>> journal.note(0, (1, 2), FileState.WRITTEN, 120, 0xBEEF)
    >>> journal.flush()
    >>> found = read_journal(store, [Box((0, 0), (4, 4))])
    >>> found.key, found.ledgers[0].at((1, 2))
    ({'view': 'a'}, (<FileState.WRITTEN: 1>, 120, 48879))
    >>> journal.remove()
    >>> store.files
    {}
    """

    def __init__(self, store: KeptStore, batches: int = 0) -> None:
        self._store = store
        self._grows = store if isinstance(store, AppendStore) else None
        self._batches = batches
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._together = 0
        """How many collect what they note, to add it at once."""
        self._since = time.monotonic()
        self._torn = True
        """Whether the last line may not be whole: a new one begins behind a line's end."""

    def begin(self, key: Mapping[str, Any], ledgers: Mapping[int, Ledger] | None = None) -> None:
        """Begin anew, with what is done already.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        text = [_line("j", json.dumps(key))]
        for position, ledger in (ledgers or {}).items():
            for state in (FileState.WRITTEN, FileState.EMPTY):
                for file, size, crc in ledger.walk(state):
                    text.append(_file_line(position, file, state, size, crc))
        path = JOURNAL if self._grows else self._next_batch()
        self._store.put(path, b"".join(text))

    def cleared(self) -> None:
        """Take note that what was there before is gone."""
        self._add(_line("c"))
        self.flush()

    def seen(self, extremes: Seen) -> None:
        """Take note of what was seen of the values."""
        self._add(_line("s", json.dumps(extremes)))

    def note(
        self, position: int, file: Index, state: FileState, size: int = 0, crc: int = 0
    ) -> None:
        """Take note of what became of a file.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        self._add(_file_line(position, file, state, size, crc))

    def _add(self, line: bytes) -> None:
        if self._grows is not None:
            with self._lock:
                self._waiting.append(line)
                if not self._together:
                    self._append(self._grows)
            return
        with self._lock:
            self._waiting.append(line)
            old = time.monotonic() - self._since
            if len(self._waiting) < BATCH and old < SECONDS:
                return
        self.flush()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Add what is noted while the context is open in one piece, at its end or before.

        For what takes a moment, since whoever is killed meanwhile makes these files anew.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        with self._lock:
            self._together += 1
        try:
            yield
        finally:
            with self._lock:
                self._together -= 1
                if self._grows is not None:
                    self._append(self._grows)

    def _append(self, store: AppendStore) -> None:
        """Add what waits to a journal that grows; with the lock."""
        if not self._waiting:
            return
        lines, self._waiting = self._waiting, []
        torn, self._torn = self._torn, True
        store.append(JOURNAL, b"".join([b"\n", *lines] if torn else lines))
        self._torn = False

    def _next_batch(self) -> str:
        with self._lock:
            number, self._batches = self._batches, self._batches + 1
            self._since = time.monotonic()
        return f"{JOURNAL}/{number:08}"

    def flush(self) -> None:
        """Put what waits."""
        with self._lock:
            if self._grows is not None:
                self._append(self._grows)
            lines, self._waiting = self._waiting, []
        if lines:
            self._store.put(self._next_batch(), b"".join(lines))

    def remove(self) -> None:
        """Remove it: what it was for is done."""
        with self._lock:
            self._waiting = []
        self._store.delete(JOURNAL)
        for number in range(self._batches):
            self._store.delete(f"{JOURNAL}/{number:08}")
        if self._batches:
            self._store.tidy()


def _file_line(position: int, file: Index, state: FileState, size: int, crc: int) -> bytes:
    place = ",".join(map(str, file))
    if state is FileState.WRITTEN:  # most are, and a job writes many
        body = b"w %d %s %x %x" % (position, place.encode(), size, crc)
        return b"%s %08x\n" % (body, zlib.crc32(body))
    return _line(_LETTERS[state], f"{position} {place}")
