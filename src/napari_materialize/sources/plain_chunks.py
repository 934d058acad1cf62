"""Chunks that are nothing but voxels, compressed once or not at all, read without zarr's pipeline.

Owns the short way for arrays as most are: whole chunks in files, C order, one known compressor.
Zarr stays the judge of what is valid: it has opened the array, and whatever does not decode here to
exactly one chunk is asked of zarr again, which then says what is wrong with it. The short way
matters: `zarr.Array[...]` costs more than a millisecond before it does anything, most of it with
Python's lock held, which is more than decompressing a chunk of 64^3 takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import DamagedChunk
from napari_materialize.sources.bounded import check_said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.geometry import Box, Index
    from napari_materialize.sources.places import Place

__all__ = ["PlainChunks", "plain_chunks"]

type _Decode = Callable[[bytes, int], Any]
"""Decompress bytes of which so many are expected; anything with a buffer."""


def _stored(data: bytes, _: int) -> bytes:
    return data


def _gzip(data: bytes, size: int) -> Any:
    import deflate

    try:
        # writes no more than it is told to expect
        return deflate.gzip_decompress(data, size)
    except deflate.DeflateError as error:
        raise DamagedChunk(str(error)) from error


def _zstd(data: bytes, size: int) -> Any:
    from numcodecs import zstd  # type: ignore[import-untyped]

    check_said("zstd", data, size)
    return zstd.decompress(data)


def _blosc(data: bytes, size: int) -> Any:
    from numcodecs import blosc

    check_said("blosc", data, size)
    return blosc.decompress(data)


_DECODE: dict[str, _Decode] = {"gzip": _gzip, "zstd": _zstd, "blosc": _blosc, "": _stored}
"""By the compressor's name in zarr; none is the empty text."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainChunks:
    """Reads boxes of one zarr array. May be called from any thread."""

    place: Place
    key: Callable[[Index], str]
    """Names a chunk's file."""

    shape: Index
    chunks: Index
    stored: np.dtype
    """In the byte order of the files."""

    dtype: np.dtype
    """In the machine's."""

    fill: float | int | bool
    most: int
    """Bytes that a file can have at most."""

    decode: _Decode

    def read(self, box: Box) -> np.ndarray | None:
        """Return the voxels of ``box``, or None if zarr has to look at what is stored.

        Raises
        ------
        StoreError
            If a file cannot be read.
        """
        ranges = [
            range(start // size, -(-stop // size))
            for start, stop, size in zip(box.start, box.stop, self.chunks, strict=True)
        ]
        if all(len(each) == 1 for each in ranges):  # a chunk of the grid, and so asked for mostly
            index = tuple(each.start for each in ranges)
            chunk = self._chunk(index)
            if chunk is None or chunk is MISSING:
                return None if chunk is None else np.full(box.shape, self.fill, self.dtype)
            return np.asarray(chunk[self._within(index, box)]).astype(self.dtype, copy=False)
        return self._joined(box, ranges)

    def _joined(self, box: Box, ranges: Sequence[range]) -> np.ndarray | None:
        found = np.full(box.shape, self.fill, self.dtype)
        for places in np.ndindex(*map(len, ranges)):
            index = tuple(each[place] for each, place in zip(ranges, places, strict=True))
            chunk = self._chunk(index)
            if chunk is None:
                return None
            if chunk is not MISSING:
                target = tuple(
                    slice(max(0, i * size - start), min(stop, (i + 1) * size) - start)
                    for i, size, start, stop in zip(
                        index, self.chunks, box.start, box.stop, strict=True
                    )
                )
                found[target] = chunk[self._within(index, box)]
        return found

    def _within(self, index: Index, box: Box) -> tuple[slice, ...]:
        """Return which voxels of a chunk are in ``box``."""
        return tuple(
            slice(max(0, start - i * size), min(size, stop - i * size))
            for i, size, start, stop in zip(index, self.chunks, box.start, box.stop, strict=True)
        )

    def _chunk(self, index: Index) -> np.ndarray | None:
        """Return a chunk as it is stored, `MISSING`, or None for one that zarr has to look at."""
        data = self.place.chunk(self.key(index), self.most)
        if data is None:
            return MISSING
        size = math.prod(self.chunks) * self.stored.itemsize
        try:
            voxels = np.frombuffer(self.decode(data, size), self.stored)
        except (DamagedChunk, RuntimeError, ValueError):
            return None  # zarr says what is wrong, or knows better
        return voxels.reshape(self.chunks) if voxels.nbytes == size else None


MISSING = np.empty(0)
"""Stands for a chunk that is stored nowhere."""


def plain_chunks(
    metadata: Any, place: Place, most: int, fill: float | int | bool
) -> PlainChunks | None:
    """Return the short way to an array that zarr described, or None if there is none.

    Parameters
    ----------
    metadata : zarr's ArrayV2Metadata or ArrayV3Metadata
        As zarr made it of the document, before anything in it is exchanged.
    place : Place
        Where the array is.
    most : int
        Bytes that a file can have at most.
    fill : float, int or bool
        What a voxel is that is stored nowhere.
    """
    native = np.dtype(
        metadata.dtype.to_native_dtype()
        if metadata.zarr_format == 2
        else metadata.data_type.to_native_dtype()
    )
    if metadata.zarr_format == 2:
        if metadata.order != "C" or metadata.filters:
            return None
        codec = metadata.compressor
        name = "" if codec is None else str(codec.codec_id)
        stored, chunks = native, metadata.chunks
    else:
        first, *rest = metadata.codecs
        names = [str(each.to_dict().get("name", "")) for each in metadata.codecs]
        if names[0] != "bytes" or len(rest) > 1 or metadata.storage_transformers:
            return None
        name = names[1] if rest else ""
        big = getattr(first.endian, "value", first.endian) == "big"
        stored = native.newbyteorder(">" if big else "<")
        chunks = metadata.chunk_grid.chunk_shape
    if name not in _DECODE or not chunks:
        return None
    return PlainChunks(
        place,
        metadata.encode_chunk_key,
        tuple(metadata.shape),
        tuple(chunks),
        stored,
        native.newbyteorder("="),
        fill,
        most,
        _DECODE[name],
    )
