"""Chunks of plain zarr arrays, read as files: one file, one decompression, no machinery between.

Owns the way from a chunk's bytes to its voxels. Which arrays are plain their document tells
(`plain_document`). Bytes come from a place, and how much may be unpacked is limited by `bounded`.
Everything that is not plain is zarr-python's to read (`zarr_array`).

zarr-python takes more than a millisecond for a chunk before it does anything, and one thread at a
time; this takes what the file and its decompression take.
"""

from __future__ import annotations

import importlib
import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from napari_materialize.errors import DamagedChunk
from napari_materialize.sources.bounded import check_said, limit_for, unpack
from napari_materialize.sources.plain_document import way_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Box, ChunkGrid, Index
    from napari_materialize.sources.places import Place
    from napari_materialize.sources.plain_document import Way

__all__ = ["PlainReader", "plain_reader"]


@dataclass(frozen=True, eq=False)
class PlainReader:
    """Reads boxes of one plain zarr array, the fill value where no chunk is stored.

    May be called from any thread.
    """

    place: Place
    most: int
    """Bytes that a chunk's file has at most."""
    grid: ChunkGrid
    fill: float | int | bool
    way: Way

    def __call__(self, box: Box) -> np.ndarray:
        """Return the voxels of ``box``."""
        cover = list(self.grid.covering(box))
        if len(cover) == 1:
            there = self.grid.box(cover[0])
            chunk = self._chunk(cover[0])
            if chunk is None:
                return np.full(box.shape, self.fill, self.way.stored)
            return chunk[box.relative_to(there.start).slices]
        found = np.full(box.shape, self.fill, self.way.stored)
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
        if chunk is not None and self._never_clipped:
            return chunk
        shape = self.grid.box(index).shape
        if chunk is None:
            return np.full(shape, self.fill, self.way.stored)
        return chunk if shape == self.grid.chunks else chunk[tuple(map(slice, shape))]

    def key(self, index: Index) -> str:
        """Return what a chunk's file is called in the array's folder."""
        return self.way.prefix + self.way.separator.join(map(str, index))

    def _chunk(self, index: Index) -> np.ndarray | None:
        """Return a whole chunk; what lies past the array's edge too."""
        key = self.key(index)
        data = self.place.chunk(key, self.most)
        if data is None:
            return None
        size = self._size
        try:
            voxels = data if self.way.compressor is None else self._unpack(data, size)
            if len(voxels) != size:
                raise DamagedChunk(f"it holds {len(voxels)} bytes, and a chunk here has {size}")
        except DamagedChunk as error:
            raise DamagedChunk(f"chunk {self.place}/{key}: {error}") from error
        return np.frombuffer(voxels, self.way.stored).reshape(self.grid.chunks)

    def _unpack(self, data: bytes, size: int) -> bytes | bytearray:
        assert self.way.compressor is not None
        limit = limit_for(size)
        check_said(self.way.compressor, data, limit)
        found = unpack(self.way.compressor, data, size, limit)
        if found is not None:
            return found
        try:
            return self._decode(data)
        except (RuntimeError, ValueError) as error:
            raise DamagedChunk(f"its {self.way.compressor} is damaged ({error})") from error

    @cached_property
    def _never_clipped(self) -> bool:
        return not any(map(operator.mod, self.grid.shape, self.grid.chunks))

    @cached_property
    def _size(self) -> int:
        return math.prod(self.grid.chunks) * self.way.stored.itemsize

    @cached_property
    def _decode(self) -> Callable[[bytes], bytes]:
        import numcodecs

        name = self.way.compressor
        if name in ("blosc", "lz4", "zstd"):  # what their codecs call after a look at the buffer
            module: Any = importlib.import_module(f"numcodecs.{name}")
            return cast("Callable[[bytes], bytes]", module.decompress)
        codec: Any = numcodecs.get_codec({"id": name})
        return cast("Callable[[bytes], bytes]", codec.decode)


def plain_reader(
    document: Mapping[str, Any], zarr_format: int | None, place: Place, level: Level, most: int
) -> PlainReader | None:
    """Return a reader of an array's chunks, or None if the array is not plain.

    Parameters
    ----------
    document : mapping
        Of a valid array.
    zarr_format : int
        Of which version of zarr that is.
    place : Place
        Where its chunks are.
    level : Level
        The array.
    most : int
        Bytes that a chunk's file has at most.
    """
    way = way_of(document, zarr_format)
    return None if way is None else PlainReader(place, most, level.grid, level.fill, way)
