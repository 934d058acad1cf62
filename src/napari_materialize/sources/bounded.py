"""Decompression that cannot take more memory than a chunk has.

Owns the limit: what a compressed chunk says it becomes is looked at first, and where a format
does not say, decompressing stops at the limit. Who asks, and what a chunk should have, is known
elsewhere (`zarr_codecs`, `n5_blocks`).

A few kilobytes of gzip, zstd or LZ4 can become gigabytes; a store from elsewhere is not trusted to
hold only what its metadata says.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import DamagedChunk

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_said", "gunzip", "limit_for", "unpack"]

_SLACK = 2**16
"""Bytes that a codec before the compressor may have added (checksums, counts)."""

_ZSTD = 0xFD2FB528
_ZSTD_SKIPPED = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK = 2**17
"""Bytes that a block of zstd becomes at most: https://www.rfc-editor.org/rfc/rfc8878 3.1.1.2.4."""


def limit_for(size: int, *, filtered: bool = False) -> int:
    """Return how many bytes the voxels of a chunk of ``size`` bytes may have on their way.

    A second compressor may have added a little. Filters between a compressor and the voxels may
    widen a value (8-bit integers kept as 64-bit floats), by eight at most.
    """
    return (8 * size if filtered else size + size // 8) + _SLACK


def too_large(what: str, limit: int) -> DamagedChunk:
    """Return the error for a chunk that becomes more than it may."""
    return DamagedChunk(
        f"its {what} becomes more than {limit} bytes, and a chunk of this array has fewer: it is "
        "damaged, or was made to fill the memory"
    )


def gunzip(data: bytes, size: int, limit: int) -> bytes | bytearray:
    """Decompress gzip, of which ``size`` bytes are expected and at most ``limit`` are taken."""
    import deflate

    try:
        # Twice as fast as zlib, and writes no more than it was told to expect.
        found: bytearray = deflate.gzip_decompress(data, size)
    except deflate.DeflateError:
        return inflate(data, limit)  # several streams in a row, another size, or damaged
    return found if len(found) == size else inflate(data, limit)


def inflate(data: bytes, limit: int) -> bytes:
    """Decompress gzip or zlib, streams in a row too, up to ``limit`` bytes."""
    return _streams("gzip", data, limit, lambda: zlib.decompressobj(wbits=47), zlib.error)


def _streams(
    what: str, data: bytes, limit: int, begin: Callable[[], Any], failure: type[Exception]
) -> bytes:
    parts, left = [], limit
    rest = bytes(data)
    while rest.strip(b"\0"):  # some writers pad
        stream = begin()
        try:
            part = stream.decompress(rest, left + 1)
        except (failure, EOFError, OSError) as error:
            raise DamagedChunk(f"its {what} is damaged ({error})") from error
        if len(part) > left:
            raise too_large(what, limit)
        if not stream.eof:
            raise DamagedChunk(f"its {what} ends too early: it is damaged")
        left -= len(part)
        parts.append(part)
        rest = stream.unused_data
    return b"".join(parts)


def unpack(codec: str, data: bytes, size: int, limit: int) -> bytes | bytearray | None:
    """Decompress what says nothing of its size, up to a limit; None for other codecs.

    Parameters
    ----------
    codec : str
        As numcodecs calls it.
    data : bytes
        Compressed.
    size, limit : int
        Bytes expected, and taken at most.

    Raises
    ------
    DamagedChunk
        If it is damaged or becomes more.
    """
    if codec == "gzip":
        return gunzip(data, size, limit)
    if codec == "zlib":
        return inflate(data, limit)
    if codec == "bz2":
        return _streams("bzip2", data, limit, bz2.BZ2Decompressor, OSError)
    if codec == "lzma":
        return _streams("xz", data, limit, _unlzma, lzma.LZMAError)
    return None


def _unlzma() -> lzma.LZMADecompressor:
    # a dictionary of a few gigabytes can be asked for by a few bytes
    return lzma.LZMADecompressor(memlimit=2**28)


def check_said(codec: str, data: bytes, limit: int) -> None:
    """Refuse a chunk that says, in its own head, that it becomes more than ``limit`` bytes.

    Raises
    ------
    DamagedChunk
        If it does, or its head is cut off.
    """
    try:
        if codec == "blosc":
            said, _, stored = struct.unpack_from("<III", data, 4)
            if stored > len(data):
                raise DamagedChunk("its blosc ends too early: it is damaged")
        elif codec == "lz4":
            (said,) = struct.unpack_from("<I", data)
        elif codec == "zstd":
            said = _zstd_size(data)
        else:
            return
    except struct.error as error:
        raise DamagedChunk(f"its {codec} ends too early: it is damaged") from error
    if said > limit:
        raise too_large(codec, limit)


def _zstd_size(data: bytes) -> int:
    """Return how many bytes the frames of zstd say they become, at most.

    A frame that does not say is taken for all its blocks could hold.
    """
    total, at = 0, 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic in _ZSTD_SKIPPED:
            (length,) = struct.unpack_from("<I", data, at + 4)
            at += 8 + length
            continue
        if magic != _ZSTD:
            raise DamagedChunk("its zstd does not begin like zstd: it is damaged")
        said, blocks, at = _zstd_frame(data, at + 4)
        # what it says is not believed beyond what its blocks could hold
        total += blocks if said is None else said
    return total


def _zstd_frame(data: bytes, at: int) -> tuple[int | None, int, int]:
    """Return the size a frame says, the size its blocks could have, and where it ends."""
    (flags,) = struct.unpack_from("<B", data, at)
    single = bool(flags & 0x20)
    at += 1 + (not single) + (0, 1, 2, 4)[flags & 3]
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    said = None
    if width:
        said = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
        at += width
    possible, last = 0, False
    while not last:
        head = data[at : at + 3]
        if len(head) < 3:
            raise DamagedChunk("its zstd ends too early: it is damaged")
        word = int.from_bytes(head, "little")
        last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        possible += size if kind < 2 else _ZSTD_BLOCK
        at += 3 + (1 if kind == 1 else size)
    return said, possible, at + (4 if flags & 4 else 0)
