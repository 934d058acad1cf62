"""Whether a stored source is what a result was made of, tomorrow and from another folder.

Within a process a source is known by its place and by when its documents were written: whatever
writes it anew makes it another one, and at worst something is computed twice. A record is read
later. By then a source may have been copied, moved, unpacked or touched, and is the same to
whoever owns it; or it was written again with the same shape, and is not. So a record knows it by
its description and by the voxels of some of its chunks.

A change of a few chunks that are not among these is not noticed: nothing that is cheap could.
"""

from __future__ import annotations

import hashlib
import math
import operator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.sources.opened import fingerprint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index
    from napari_materialize.sources.opened import BlockReader

__all__ = ["Lasting"]

PROBED_BYTES, MOST_PROBED = 2**21, 64
"""Of each image so many bytes of voxels are looked at, or so many chunks if that is less; one chunk
at least."""

WORTH_A_THREAD = 2**16
"""Bytes of voxels in a chunk from which on several are read at a time."""


class Lasting:
    """What a record knows a source by: text that is equal for images with equal probed chunks.

    The finest level is probed: the others are made of it. A chunk that cannot be read says nothing
    of the source, so it is left out and named. A job that meets it fails there, and goes on from
    its record once it can be read again.

    Parameters
    ----------
    levels : sequence of Level
        The image, finest first.
    kind : {"image", "label", "mask"}
        What its voxels mean.
    readers : sequence of callable
        How each level is read, once: when something is first asked.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> level, voxels = Level((4, 4), "u1", (2, 2)), np.arange(16, dtype="u1").reshape(4, 4)
    >>> one = Lasting([level], "image", [lambda box: voxels[box.slices]])
    >>> one() == Lasting([level], "image", [lambda box: voxels.copy()[box.slices]])()
    True
    >>> one() == Lasting([level], "image", [lambda box: 0 * voxels[box.slices]])()
    False
    >>> one.unread
    ()
    """

    def __init__(self, levels: Sequence[Level], kind: Kind, readers: Sequence[BlockReader]) -> None:
        self._levels, self._kind, self._readers = levels, kind, readers

    def __call__(self, without: Collection[Index] = ()) -> str:
        """Return the text; chunks ``without`` are left out, as a record says it was made."""
        digest = hashlib.sha256()
        for chunk, told in self._told.items():
            if told is not None and chunk not in without:
                digest.update(told)
        return f"probed:{fingerprint(self._levels, self._kind, digest.hexdigest())}"

    @property
    def unread(self) -> tuple[Index, ...]:
        """The probed chunks of the finest level that could not be read."""
        return tuple(chunk for chunk, told in self._told.items() if told is None)

    @cached_property
    def _told(self) -> dict[Index, bytes | None]:
        finest = self._levels[0]
        chunks = list(probed(finest))
        told = partial(_told, finest, self._readers[0])
        if math.prod(finest.chunks) * finest.dtype.itemsize < WORTH_A_THREAD or len(chunks) == 1:
            return dict(zip(chunks, map(told, chunks), strict=True))
        # every job waits for it, and no core has anything else to do yet
        with ThreadPoolExecutor(min(4, len(chunks))) as pool:
            return dict(zip(chunks, pool.map(told, chunks), strict=True))


def _told(level: Level, reader: BlockReader, chunk: Index) -> bytes | None:
    """Return what a chunk adds to the identity; None of one that cannot be read."""
    try:
        block = np.ascontiguousarray(reader(level.grid.box(chunk)), level.dtype)
    except Exception:  # noqa: BLE001 - named as unread; the job will meet it too, and say why
        return None
    return hashlib.sha256(block).digest()


def probed(level: Level) -> Iterator[Index]:
    """Walk the chunks of a level that are looked at: all of a small one, else some from all over.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> list(probed(Level((4, 6), "u1", (2, 3))))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> len(list(probed(Level((5000, 5000, 5000), "u2", (64, 64, 64)))))
    4
    """
    counts = level.grid.counts
    size = math.prod(level.chunks) * level.dtype.itemsize
    count = min(MOST_PROBED, level.grid.size, max(1, PROBED_BYTES // max(1, size)))
    for at in range(count):
        # not at equal steps, which would meet the same column of each row
        offset = 0.5 if count == level.grid.size else (0.5 + at * 0.6180339887) % 1
        number = int((at + offset) * level.grid.size / count)
        place: list[int] = []
        for n in reversed(counts):
            number, along = divmod(number, n)
            place.append(along)
        yield tuple(map(operator.index, reversed(place)))
