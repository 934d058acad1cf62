"""What a finished result says of its files in a few kilobytes, however many there are."""

from __future__ import annotations

import base64
import math
import operator
import struct
import threading
import zlib
from collections import deque
from collections.abc import Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from napari_materialize.geometry import Index

__all__ = ["MOST_GROUPS", "Sums"]

MOST_GROUPS = 1024
"""Sums of one array: with as many files or fewer each has its own, else neighbours share one."""

MOST_TOLD = 4096
"""Files that are remembered before they are added up."""

MOST_FILES = 2**26
"""Files of an array whose sums are believed: who says more would fill the memory."""


class Sums:
    """Sums over the files of one array, in groups of neighbours; of any thread.

    A file's part depends on its place, size and checksum, and parts are added: the order does not
    matter, a file that is lost, changed or in another's place does. A file that is not there adds
    nothing.

    Examples
    --------
    >>> from napari_materialize.geometry import Box
    >>> sums = Sums(Box((0, 0), (1, 2)))
    >>> sums.add((0, 1), 120, 0xBEEF)
    >>> again = Sums.parse(sums.record())
    >>> again == sums, again.files
    (True, Box(start=(0, 0), stop=(1, 2)))
    """

    def __init__(self, files: Box) -> None:
        self.files = files
        """Which files, by their place among the array's chunks or shards."""
        self.group = -(-files.size // MOST_GROUPS)
        """Files, in C order, that share a sum."""
        self._values = np.zeros(-(-files.size // self.group), np.uint64)
        self._written = 0
        self._lock = threading.Lock()
        self._told: deque[tuple[Index, int, int]] = deque()
        """Files that are not added up yet: doing it for many at once costs a tenth."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums) and self.record() == other.record()

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def written(self) -> int:
        """How many files there are."""
        self._add_up()
        return self._written

    def _linear(self, file: Index) -> int:
        linear = 0
        for at, low, size in zip(file, self.files.start, self.files.shape, strict=True):
            linear = linear * size + at - low
        return linear

    def add(self, file: Index, size: int, crc: int) -> None:
        """Take note of a file that is there."""
        self._told.append((file, size, crc))
        if len(self._told) >= MOST_TOLD:
            self._add_up()

    def _add_up(self) -> None:
        with self._lock:
            while self._told:
                file, size, crc = self._told.popleft()
                linear = self._linear(file)
                part = zlib.crc32(struct.pack("<QQI", linear, size, crc)) or 1
                self._values[linear // self.group] += np.uint64(part)
                self._written += 1

    def differing(self, other: Sums) -> Iterator[Index]:
        """Walk the files of the groups that differ in another's sums over the same files."""
        for group in self.differing_groups(other):
            yield from group

    def differing_groups(self, other: Sums) -> Iterator[list[Index]]:
        """Walk the groups that differ in another's sums over the same files."""
        self._add_up()
        other._add_up()
        numbers = np.nonzero(self._values.astype(np.uint32) != other._values.astype(np.uint32))[0]
        counts = self.files.shape
        for number in numbers.tolist():
            first = number * self.group
            group = []
            for linear in range(first, min(first + self.group, self.files.size)):
                place = np.unravel_index(linear, counts)
                group.append(tuple(map(operator.add, map(int, place), self.files.start)))
            yield group

    def record(self) -> dict[str, Any]:
        """Return them as JSON values; `parse` reads them."""
        self._add_up()
        with self._lock:
            text = base64.b64encode(self._values.astype("<u4").tobytes()).decode()
            return {
                "files": [list(self.files.start), list(self.files.stop)],
                "written": self._written,
                "sums": text,
            }

    @classmethod
    def parse(cls, value: Any) -> Sums:
        """Return the sums that a record holds.

        Raises
        ------
        ValueError
            If it holds none.
        """
        if not isinstance(value, Mapping):
            raise ValueError("sums of files are an object")
        try:
            corners = [tuple(map(operator.index, corner)) for corner in value["files"]]
            sums = _sized(cls, *corners)
            values = np.frombuffer(base64.b64decode(value["sums"], validate=True), "<u4")
            written = operator.index(value["written"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"sums of files: {error}") from error
        if values.shape != sums._values.shape:
            raise ValueError(f"sums of files: {len(sums._values)} are expected, got {len(values)}")
        sums._values[:] = values
        sums._written = written
        return sums


def _sized(kind: type[Sums], start: Index, stop: Index) -> Sums:
    box = Box(start, stop)
    if not all(starmap(operator.le, zip((0,) * box.ndim, start, strict=True))):
        raise ValueError("a place is below 0")
    if not 0 < math.prod(box.shape) <= MOST_FILES:
        raise ValueError(f"1 to {MOST_FILES} files are expected, got {box.shape}")
    return kind(box)
