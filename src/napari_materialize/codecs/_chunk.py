"""The bytes of one chunk: voxels in the order and the frame that a format stores.

Owns byte order, the surplus at an array's far edges and N5's block header. What is done with the
bytes afterwards is `_compression`'s.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Literal

import numpy as np

from napari_materialize.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.codecs._compression import Compression

__all__ = ["Frame", "chunk_bytes", "decode_chunk", "encode_chunk", "is_fill"]

SOME = 1009
"""Of so many voxels one is looked at first; a prime, so that no side is a multiple of it."""

_AS_STORED = frozenset(
    np.dtype(code) for code in "?bBhHiIlLqQefd" if np.dtype(code).newbyteorder("<").isnative
)
"""The dtypes whose voxels lie in memory as they are stored."""

type Frame = Literal["zarr", "n5"]
"""How a format frames a chunk: the whole chunk little-endian, or N5's block."""


def encode_chunk(
    block: np.ndarray,
    chunk_shape: Sequence[int],
    fill: float | int | bool,
    compression: Compression,
    frame: Frame = "zarr",
) -> bytes:
    """Return a chunk as it is stored.

    Parameters
    ----------
    block : numpy.ndarray
        The chunk's voxels inside the array; smaller than the chunk at the array's far edges.
    chunk_shape : sequence of int
        A whole chunk's voxels along each axis.
    fill : float, int or bool
        What the voxels beyond the array are set to, where a format stores them.
    compression : Compression
        How the voxels are compressed.
    frame : {"zarr", "n5"}
        ``zarr``: the whole chunk, little-endian. ``n5``: a header with the block's own size, then
        its voxels, big-endian, clipped to the array
        (https://github.com/saalfeldlab/n5#file-system-specification).

    Examples
    --------
    >>> from napari_materialize.codecs import Compression
    >>> encode_chunk(np.array([[1, 2]], "u2"), (2, 2), 9, Compression("none"), "n5").hex(" ", 2)
    '0000 0002 0000 0002 0000 0001 0001 0002'
    """
    if frame == "zarr":
        return compression.encode(chunk_bytes(block, chunk_shape, fill), block.dtype)
    voxels = np.ascontiguousarray(block, block.dtype.newbyteorder(">"))
    plain = voxels.reshape(-1).view(np.uint8).data
    # mode 0, the number of axes, and their sizes, the fastest axis first
    header = struct.pack(f">HH{block.ndim}I", 0, block.ndim, *reversed(block.shape))
    return header + compression.encode(plain, block.dtype)


def decode_chunk(
    data: bytes,
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    dtype: np.dtype,
    compression: Compression,
    *,
    frame: Frame = "zarr",
) -> np.ndarray:
    """Return the voxels of a chunk as `encode_chunk` stored it.

    Parameters
    ----------
    data : bytes
        What is stored.
    shape : sequence of int
        The voxels of the chunk that are inside the array.
    chunk_shape : sequence of int
        A whole chunk's voxels along each axis.
    dtype : numpy.dtype
        Of the voxels.
    compression, frame
        As it was encoded.

    Returns
    -------
    numpy.ndarray
        Of ``shape`` and ``dtype``; not to be written to.

    Raises
    ------
    ChunkError
        If the data are damaged, or not of such a chunk.

    Examples
    --------
    >>> from napari_materialize.codecs import Compression
    >>> data = encode_chunk(np.array([[1, 2]], "u2"), (2, 2), 9, Compression(), "n5")
    >>> decode_chunk(data, (1, 2), (2, 2), np.dtype("u2"), Compression(), frame="n5")
    array([[1, 2]], dtype=uint16)
    """
    stored, order = tuple(chunk_shape), dtype.newbyteorder("<")
    if frame == "n5":
        stored, order = tuple(shape), dtype.newbyteorder(">")
        header = struct.pack(f">HH{len(stored)}I", 0, len(stored), *reversed(stored))
        if not data.startswith(header):
            raise ChunkError(f"chunk: not an N5 block of {stored} voxels")
        data = data[len(header) :]
    plain = compression.decode(data, math.prod(stored) * dtype.itemsize)
    chunk = np.frombuffer(plain, order).reshape(stored)
    return chunk[tuple(map(slice, shape))].astype(dtype.newbyteorder("="), copy=False)


def chunk_bytes(
    block: np.ndarray, chunk_shape: Sequence[int], fill: float | int | bool
) -> memoryview:
    """Return the bytes of a whole chunk: C order, little-endian, every voxel of the chunk.

    Parameters
    ----------
    block : numpy.ndarray
        The chunk's voxels inside the array; smaller than the chunk at the array's far edges.
    chunk_shape : sequence of int
        A whole chunk's voxels along each axis.
    fill : float, int or bool
        What the voxels beyond the array are set to.

    Returns
    -------
    memoryview
        Of the block itself where its bytes are the chunk's already, else of a copy.

    Raises
    ------
    ValueError
        If the block has another number of axes than the chunk or does not fit into it.

    Examples
    --------
    >>> list(chunk_bytes(np.array([[1, 2]], ">u2"), (2, 2), 9))
    [1, 0, 2, 0, 9, 0, 9, 0]
    """
    shape = tuple(chunk_shape)
    if block.shape == shape and block.flags.c_contiguous and block.dtype in _AS_STORED:
        return block.data.cast("B")
    dtype = block.dtype.newbyteorder("<")
    if len(block.shape) != len(shape) or any(map(int.__gt__, block.shape, shape)):
        raise ValueError(f"a block of shape {block.shape} does not fit into a chunk of {shape}")
    if block.shape == shape:
        chunk = np.ascontiguousarray(block, dtype)
    else:
        chunk = np.full(shape, fill, dtype)
        chunk[tuple(map(slice, block.shape))] = block
    return chunk.reshape(-1).view(np.uint8).data


def is_fill(block: np.ndarray, fill: float | int | bool) -> bool:
    """Whether every voxel is the fill value, so that leaving the chunk out loses nothing.

    NaN is NaN, whatever its payload; -0.0 is not 0.0.

    Examples
    --------
    >>> is_fill(np.zeros(4, np.float32), 0), is_fill(-np.zeros(4, np.float32), 0)
    (True, False)
    >>> is_fill(np.full(4, np.nan), float("nan"))
    True
    """
    if block.size == 0:
        return True
    if block.dtype.kind != "f" and block.item(0) != fill:
        return False  # most blocks differ in the first voxel already
    value = np.asarray(fill, block.dtype)
    if block.dtype.kind != "f":
        # and most others in one of a few
        some = block.reshape(-1)[::SOME] if block.flags.c_contiguous else block.flat[0]
        return bool((some == value).all()) and bool((block == value).all())
    if np.isnan(value):
        return bool(np.isnan(block.flat[0])) and bool(np.isnan(block).all())
    bits = np.dtype(f"u{block.dtype.itemsize}").newbyteorder(block.dtype.byteorder)
    same = value.view(bits)
    return bool(block.flat[0] == value) and bool((block.view(bits) == same).all())
