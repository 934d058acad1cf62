"""The state of every file of one written array."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Buffer, Callable, Iterator

    from napari_materialize.geometry import Box, Index

__all__ = ["FileState", "Ledger", "checksum"]


def checksum(data: Buffer) -> int:
    """Return the crc32c of a file: a tenth of a second for a gigabyte.

    Examples
    --------
    >>> checksum(b"123456789") == 0xE3069283
    True
    """
    return _crc32c()(data)


@cache
def _crc32c() -> Callable[[Buffer], int]:
    from google_crc32c import value

    return value  # type: ignore[no-any-return]  # it has no types


class FileState(IntEnum):
    """What became of a file with a chunk, or a shard."""

    OPEN = 0
    """Nothing is known of it: it is to be made."""

    WRITTEN = 1
    """It is there."""

    EMPTY = 2
    """It would hold nothing but the fill value, and is not there."""

    FAILED = 3
    """A chunk of it could not be made."""


class Ledger:
    """The state of the files of a box of one array; 13 bytes for each.

    Parameters
    ----------
    files : Box
        Which files, by their place among the array's chunks or shards.

    Examples
    --------
    >>> from napari_materialize.geometry import Box
    >>> ledger = Ledger(Box((2, 0), (4, 1)))
    >>> ledger.note((3, 0), FileState.WRITTEN, 120, 0xBEEF)
    >>> ledger.at((3, 0)), ledger.at((2, 0))
    ((<FileState.WRITTEN: 1>, 120, 48879), (<FileState.OPEN: 0>, 0, 0))
    """

    def __init__(self, files: Box) -> None:
        self.files = files
        """Which files."""
        self.states = np.zeros(files.shape, np.uint8)
        """The state of each."""
        self._sizes = np.zeros(files.shape, np.uint64)
        self._checksums = np.zeros(files.shape, np.uint32)

    def __contains__(self, file: Index) -> bool:
        return len(file) == self.files.ndim and all(
            low <= at < high
            for at, low, high in zip(file, self.files.start, self.files.stop, strict=True)
        )

    def _place(self, file: Index) -> Index:
        return tuple(at - low for at, low in zip(file, self.files.start, strict=True))

    def note(self, file: Index, state: FileState, size: int = 0, crc: int = 0) -> None:
        """Take note of what became of a file."""
        place = self._place(file)
        self._sizes[place] = size
        self._checksums[place] = crc
        self.states[place] = state  # last: numbers that do not fit leave it as it was

    def at(self, file: Index) -> tuple[FileState, int, int]:
        """Return the state, the size and the checksum of a file."""
        place = self._place(file)
        state = FileState(int(self.states[place]))
        return state, int(self._sizes[place]), int(self._checksums[place])

    @property
    def settled(self) -> np.ndarray:
        """Which files are done."""
        done: np.ndarray = (self.states == FileState.WRITTEN) | (self.states == FileState.EMPTY)
        return done

    def walk(self, state: FileState) -> Iterator[tuple[Index, int, int]]:
        """Walk the place, size and checksum of the files in a state."""
        for place in zip(*np.nonzero(self.states == state), strict=True):
            file = tuple(int(at) + low for at, low in zip(place, self.files.start, strict=True))
            yield file, int(self._sizes[place]), int(self._checksums[place])
