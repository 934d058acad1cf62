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
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.sources.opened import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index
    from napari_materialize.sources.opened import BlockReader

__all__ = ["lasting_identity"]

PROBED_BYTES, MOST_PROBED = 2**22, 64
"""Of each image so many bytes of voxels are looked at, or so many chunks if that is less; one chunk
at least."""

WORTH_A_THREAD = 2**16
"""Bytes of voxels in a chunk from which on several are read at a time."""


def lasting_identity(levels: Sequence[Level], kind: Kind, readers: Sequence[BlockReader]) -> str:
    """Return text that is equal for images with equal descriptions whose probed chunks are equal.

    The finest level is probed: the others are made of it.

    Parameters
    ----------
    levels : sequence of Level
        The image, finest first.
    kind : {"image", "label", "mask"}
        What its voxels mean.
    readers : sequence of callable
        How each level is read.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> level, voxels = Level((4, 4), "u1", (2, 2)), np.arange(16, dtype="u1").reshape(4, 4)
    >>> one = lasting_identity([level], "image", [lambda box: voxels[box.slices]])
    >>> one == lasting_identity([level], "image", [lambda box: voxels.copy()[box.slices]])
    True
    >>> one == lasting_identity([level], "image", [lambda box: 0 * voxels[box.slices]])
    False
    """
    digest, finest = hashlib.sha256(), levels[0]
    chunks = list(probed(finest))
    told = partial(_told, finest, readers[0])
    if math.prod(finest.chunks) * finest.dtype.itemsize < WORTH_A_THREAD or len(chunks) == 1:
        found: Iterator[bytes] = map(told, chunks)
    else:  # every job waits for it, and no core has anything else to do yet
        with ThreadPoolExecutor(min(4, len(chunks))) as pool:
            found = pool.map(told, chunks)
    for each in found:
        digest.update(each)
    return f"probed:{fingerprint(levels, kind, digest.hexdigest())}"


def _told(level: Level, reader: BlockReader, chunk: Index) -> bytes:
    """Return what a chunk adds to the identity; one that cannot be read, its failure's name."""
    try:
        block = np.ascontiguousarray(reader(level.grid.box(chunk)), level.dtype)
    except Exception as error:  # noqa: BLE001 - told by its name
        # the job will meet it too; one that is mended meanwhile makes another source
        return type(error).__name__.encode()
    return hashlib.sha256(block).digest()


def probed(level: Level) -> Iterator[Index]:
    """Walk the chunks of a level that are looked at: all of a small one, else some from all over.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> list(probed(Level((4, 6), "u1", (2, 3))))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> len(list(probed(Level((5000, 5000, 5000), "u2", (64, 64, 64)))))
    8
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
