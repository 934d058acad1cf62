"""Chunks of plain zarr arrays, read as files: one file, one decompression, no machinery between.

Owns what "plain" means, and the way from a chunk's bytes to its voxels. Bytes come from a place,
and how much may be unpacked is limited by `bounded`. Everything that is not plain is zarr-python's
to read (`zarr_array`), which also says what is valid at all: an array is opened by it first.

zarr-python takes more than a millisecond for a chunk before it does anything, and one thread at a
time; this takes what the file and its decompression take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import DamagedChunk
from napari_materialize.geometry import ChunkGrid
from napari_materialize.sources.bounded import check_said, limit_for, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    import zarr

    from napari_materialize.geometry import Box, Index
    from napari_materialize.sources.places import Place

__all__ = ["PlainReader", "plain_reader"]

_COMPRESSORS = frozenset({"blosc", "gzip", "lz4", "zlib", "zstd"})


@dataclass(frozen=True, eq=False)
class PlainReader:
    """Reads boxes of one plain zarr array, the fill value where no chunk is stored.

    May be called from any thread.
    """

    place: Place
    most: int
    """Bytes that a chunk's file has at most."""
    grid: ChunkGrid
    stored: np.dtype
    """As stored, in its byte order."""
    fill: float | int | bool
    prefix: str
    separator: str
    compressor: str | None
    """As numcodecs calls it; None if there is none."""

    def __call__(self, box: Box) -> np.ndarray:
        """Return the voxels of ``box``."""
        cover = list(self.grid.covering(box))
        if len(cover) == 1:
            there = self.grid.box(cover[0])
            chunk = self._chunk(cover[0])
            if chunk is None:
                return np.full(box.shape, self.fill, self.stored)
            return chunk[box.relative_to(there.start).slices]
        found = np.full(box.shape, self.fill, self.stored)
        for index in cover:
            chunk = self._chunk(index)
            if chunk is not None:
                there = self.grid.box(index)
                part = there.intersect(box)
                source = part.relative_to(there.start).slices
                found[part.relative_to(box.start).slices] = chunk[source]
        return found

    def whole(self, index: Index) -> np.ndarray:
        """Return the voxels of a chunk of the grid, clipped to the array."""
        chunk = self._chunk(index)
        if chunk is None:
            return np.full(self.grid.box(index).shape, self.fill, self.stored)
        shape = self.grid.box(index).shape
        return chunk if shape == self.grid.chunks else chunk[tuple(map(slice, shape))]

    def _chunk(self, index: Index) -> np.ndarray | None:
        """Return a whole chunk; what lies past the array's edge too."""
        key = self.prefix + self.separator.join(map(str, index))
        data = self.place.chunk(key, self.most)
        if data is None:
            return None
        size = self._size
        try:
            voxels = data if self.compressor is None else self._unpack(data, size)
            if len(voxels) != size:
                raise DamagedChunk(f"it holds {len(voxels)} bytes, and a chunk here has {size}")
        except DamagedChunk as error:
            raise DamagedChunk(f"chunk {self.place}/{key}: {error}") from error
        return np.frombuffer(voxels, self.stored).reshape(self.grid.chunks)

    def _unpack(self, data: bytes, size: int) -> bytes | bytearray:
        assert self.compressor is not None
        limit = limit_for(size)
        check_said(self.compressor, data, limit)
        found = unpack(self.compressor, data, size, limit)
        if found is not None:
            return found
        try:
            return self._decode(data)
        except (RuntimeError, ValueError) as error:
            raise DamagedChunk(f"its {self.compressor} is damaged ({error})") from error

    @cached_property
    def _size(self) -> int:
        return math.prod(self.grid.chunks) * self.stored.itemsize

    @cached_property
    def _decode(self) -> Callable[[bytes], bytes]:
        import numcodecs  # type: ignore[import-untyped]

        codec: Any = numcodecs.get_codec({"id": self.compressor})
        decode: Callable[[bytes], bytes] = codec.decode
        return decode


def plain_reader(
    array: zarr.Array[Any], place: Place, most: int, fill: float | int | bool
) -> PlainReader | None:
    """Return a reader of an array's chunks, or None if the array is not plain.

    Plain is: chunks on a regular grid, each a file of its own, C order, bytes as numpy has them,
    with at most one compressor, of those that are read here.

    Parameters
    ----------
    array : zarr.Array
        Open, and so valid.
    place : Place
        Where its chunks are.
    most : int
        Bytes that a chunk's file has at most.
    fill : float, int or bool
        What a voxel reads as that is stored nowhere.
    """
    metadata: Any = array.metadata
    found = _v2(metadata) if metadata.zarr_format == 2 else _v3(metadata)
    if found is None:
        return None
    stored, prefix, separator, compressor = found
    grid = ChunkGrid(tuple(array.shape), tuple(array.chunks))
    return PlainReader(place, most, grid, stored, fill, prefix, separator, compressor)


type _Way = tuple[np.dtype, str, str, str | None]
"""The dtype as stored, what a chunk's key begins with and is joined by, and the compressor."""


def _v2(metadata: Any) -> _Way | None:
    if metadata.order != "C" or metadata.filters:
        return None
    compressor = None
    if metadata.compressor is not None:
        compressor = getattr(metadata.compressor, "codec_id", None)
        if compressor not in _COMPRESSORS:
            return None
    return metadata.dtype.to_native_dtype(), "", metadata.dimension_separator, compressor


def _v3(metadata: Any) -> _Way | None:
    from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec

    names = {BloscCodec: "blosc", GzipCodec: "gzip", ZstdCodec: "zstd"}
    encoding = metadata.chunk_key_encoding.to_dict()
    first, *others = metadata.codecs
    if type(first) is not BytesCodec or len(others) > 1 or metadata.storage_transformers:
        return None
    if any(type(codec) not in names for codec in others):
        return None
    name = encoding.get("name")
    if name not in ("default", "v2"):
        return None
    default = "/" if name == "default" else "."
    separator = (encoding.get("configuration") or {}).get("separator", default)
    endian = getattr(first.endian, "value", first.endian)
    dtype = metadata.data_type.to_native_dtype()
    stored = dtype.newbyteorder(">" if endian == "big" else "<")
    prefix = f"c{separator}" if name == "default" else ""
    return stored, prefix, separator, names[type(others[0])] if others else None
