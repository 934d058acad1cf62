"""The bytes of a shard: several chunks of zarr v3 in one file, and an index of where each is.

Owns zarr v3's ``sharding_indexed`` with its index at the end
(https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html): for every chunk
of the shard, in C order, its offset and its length as little-endian uint64, both 2**64 - 1 for a
chunk that is not there; then the crc32c of these bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.geometry import Index

__all__ = ["join_shard", "split_shard"]

_MISSING = 2**64 - 1


def join_shard(chunks: Mapping[Index, bytes], counts: Index) -> bytes:
    """Return a whole shard.

    Parameters
    ----------
    chunks : mapping of index to bytes
        The chunks that are there, encoded, by their place in the shard.
    counts : tuple of int
        Chunks along each axis of a whole shard, at the array's far edges too.

    Examples
    --------
    >>> shard = join_shard({(1,): b"voxels"}, (2,))
    >>> len(shard), shard[:6], np.frombuffer(shard[6:38], "<u8").tolist()[2:]
    (42, b'voxels', [0, 6])
    """
    from google_crc32c import value

    index = np.full((math.prod(counts), 2), _MISSING, "<u8")
    offset = 0
    order = sorted(chunks)
    for place in order:
        size = len(chunks[place])
        index[np.ravel_multi_index(place, counts)] = offset, size
        offset += size
    table = index.tobytes()
    checksum = int(value(table)).to_bytes(4, "little")
    return b"".join((*(chunks[place] for place in order), table, checksum))


def split_shard(data: bytes, counts: Index) -> dict[Index, bytes]:
    """Return the chunks of a shard that are there, encoded, by their place in it.

    Raises
    ------
    ChunkError
        If the shard is damaged.

    Examples
    --------
    >>> split_shard(join_shard({(1,): b"voxels"}, (2,)), (2,))
    {(1,): b'voxels'}
    """
    from google_crc32c import value

    size = 16 * math.prod(counts)
    table, checksum = data[-size - 4 : -4], data[-4:]
    if len(table) != size or int(value(table)).to_bytes(4, "little") != checksum:
        raise ChunkError("shard: its index is damaged")
    chunks: dict[Index, bytes] = {}
    for number, (offset, length) in enumerate(np.frombuffer(table, "<u8").reshape(-1, 2).tolist()):
        if (offset, length) == (_MISSING, _MISSING):
            continue
        if offset + length > len(data) - size - 4:
            raise ChunkError("shard: its index leads out of it")
        place = tuple(map(int, np.unravel_index(number, counts)))
        chunks[place] = data[offset : offset + length]
    return chunks
