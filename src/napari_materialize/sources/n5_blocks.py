"""The blocks of an N5 array: a big-endian head, then the voxels, compressed as the array says.

Owns the bytes of a block and how a box is put together of blocks. What an array says of itself is
read in `n5`, bytes come from a place, and how much may be unpacked is limited by `bounded`.

Rules: https://github.com/saalfeldlab/n5#file-system-specification. Sizes are in N5's order there,
the fastest axis first; here they are turned once, in `key` and in `decode`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import DamagedChunk
from napari_materialize.sources.bounded import check_said, limit_for, too_large, unpack

if TYPE_CHECKING:
    from napari_materialize.geometry import Box, ChunkGrid, Index
    from napari_materialize.sources.places import Place

__all__ = ["COMPRESSIONS", "N5Reader", "decode"]

_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEAD = struct.Struct("<8sBiii")
"""Magic, method and level, compressed and plain size, checksum: what LZ4's Java streams hold."""

type Unpack = Callable[[bytes, int], bytes | bytearray]
"""Decompress bytes of which so many are expected."""


def _raw(data: bytes, _: int) -> bytes:
    return data


def _gzip(data: bytes, size: int) -> bytes | bytearray:
    # ``useZlib`` is not looked at: the first bytes say which of the two it is
    codec = "gzip" if data[:2] == b"\x1f\x8b" else "zlib"
    return unpack(codec, data, size, limit_for(size)) or b""


def _bzip2(data: bytes, size: int) -> bytes | bytearray:
    return unpack("bz2", data, size, limit_for(size)) or b""


def _xz(data: bytes, size: int) -> bytes | bytearray:
    return unpack("lzma", data, size, limit_for(size)) or b""


def _numcodecs(name: str) -> Unpack:
    def unpacked(data: bytes, size: int) -> bytes:
        import numcodecs

        check_said(name, data, limit_for(size))
        codec: Any = numcodecs.get_codec({"id": name})
        try:
            return bytes(codec.decode(data))
        except (RuntimeError, ValueError) as error:
            raise DamagedChunk(f"its {name} is damaged ({error})") from error

    return unpacked


def _lz4(data: bytes, size: int) -> bytes:
    from numcodecs import lz4

    parts, at, total = [], 0, 0
    while at < len(data):
        try:
            magic, token, stored, plain, _ = _LZ4_HEAD.unpack_from(data, at)
        except struct.error as error:
            raise DamagedChunk("its lz4 ends too early: it is damaged") from error
        at += _LZ4_HEAD.size
        part = data[at : at + max(0, stored)]
        if magic != _LZ4_MAGIC or stored < 0 or plain < 0 or len(part) != stored:
            raise DamagedChunk("its lz4 is not as Java writes it: it is damaged")
        if plain == 0:
            break
        total += plain
        if total > limit_for(size):
            raise too_large("lz4", limit_for(size))
        if token & 0xF0 == 0x10:
            parts.append(part)
        else:
            try:
                parts.append(bytes(lz4.decompress(struct.pack("<I", plain) + part)))
            except RuntimeError as error:
                raise DamagedChunk(f"its lz4 is damaged ({error})") from error
        at += stored
    return b"".join(parts)


COMPRESSIONS: dict[str, Unpack] = {
    "raw": _raw,
    "gzip": _gzip,
    "bzip2": _bzip2,
    "xz": _xz,
    "lz4": _lz4,
    "blosc": _numcodecs("blosc"),
    "zstd": _numcodecs("zstd"),
}
"""By what ``compression.type`` says."""


def decode(data: bytes, block: Index, dtype: np.dtype, compression: str) -> np.ndarray:
    """Return the voxels of a block, C order, as many as its head says.

    Parameters
    ----------
    data : bytes
        The file.
    block : tuple of int
        Voxels of a whole block along each axis, C order.
    dtype : numpy.dtype
        Of the voxels; stored big-endian.
    compression : str
        One of `COMPRESSIONS`.

    Raises
    ------
    DamagedChunk
        If it is not a block of such an array.
    """
    ndim = len(block)
    try:
        mode, axes = struct.unpack_from(">HH", data)
        if mode not in (0, 1) or axes != ndim:
            raise DamagedChunk(
                f"its head says mode {mode} and {axes} axes, and a block here is of mode 0 or 1 "
                f"with {ndim}"
            )
        sizes: Index = struct.unpack_from(f">{ndim}I", data, 4)[::-1]
        head = 4 + 4 * ndim + 4 * mode
        if len(data) < head:
            raise DamagedChunk("it ends within its head")
    except struct.error as error:
        raise DamagedChunk("it ends within its head") from error
    if any(size > whole for size, whole in zip(sizes, block, strict=True)):
        raise DamagedChunk(f"its head says {sizes} voxels, and blocks here have {block} at most")
    expected = math.prod(sizes) * dtype.itemsize
    voxels = COMPRESSIONS[compression](data[head:], expected)
    if len(voxels) != expected:
        raise DamagedChunk(
            f"it holds {len(voxels)} bytes, and {sizes} voxels of {dtype} have {expected}"
        )
    return np.frombuffer(voxels, dtype.newbyteorder(">")).reshape(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class N5Reader:
    """Reads boxes of one N5 array, 0 where no block is stored. May be called from any thread."""

    place: Place
    grid: ChunkGrid
    dtype: np.dtype
    compression: str

    def __call__(self, box: Box) -> np.ndarray:
        """Return the voxels of ``box``."""
        cover = list(self.grid.covering(box))
        if len(cover) == 1:
            there = self.grid.box(cover[0])
            block = self._block(cover[0], there)
            if block is None:
                return np.zeros(box.shape, self.dtype)
            return block[box.relative_to(there.start).slices]
        found: np.ndarray = np.zeros(box.shape, self.dtype)
        for index in cover:
            there = self.grid.box(index)
            block = self._block(index, there)
            if block is not None:
                part = there.intersect(box)
                found[part.relative_to(box.start).slices] = block[
                    part.relative_to(there.start).slices
                ]
        return found

    def _block(self, index: Index, there: Box) -> np.ndarray | None:
        key = "/".join(map(str, index[::-1]))
        most = 2 * math.prod(self.grid.chunks) * self.dtype.itemsize + 2**20
        data = self.place.chunk(key, most)
        if data is None:
            return None
        try:
            block = decode(data, self.grid.chunks, self.dtype, self.compression)
            if any(size < needed for size, needed in zip(block.shape, there.shape, strict=True)):
                raise DamagedChunk(f"it has {block.shape} voxels, and {there.shape} belong there")
        except DamagedChunk as error:
            raise DamagedChunk(f"block {self.place}/{key}: {error}") from error
        return block
