"""The codecs of a zarr array, each kept from taking more memory than a chunk has.

Owns the exchange of an array's codecs for watched ones. What the limit is and how it is kept is
`bounded`'s; which bytes are decoded is zarr's.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zarr
from numcodecs.abc import Codec
from numcodecs.compat import (
    ensure_bytes,
    ndarray_copy,
)
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec
from zarr.core.array import AsyncArray

from napari_materialize.sources.bounded import check_said, limit_for, unpack

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer

__all__ = ["watched"]


class WatchedV2(Codec):  # type: ignore[misc]  # it has no types
    """A compressor of zarr v2 that stops at a limit."""

    codec_id = "watched"

    def __init__(self, codec: Any, size: int, limit: int) -> None:
        self.codec = codec
        self.size = size
        self.limit = limit

    def encode(self, buf: Any) -> Any:
        """Compress: sources are not written to, so this is never asked for."""
        return self.codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decompress, or raise `DamagedChunk`."""
        found = _decoded(self.codec.codec_id, buf, self.size, self.limit)
        if found is None:
            return self.codec.decode(buf, out)
        return found if out is None else ndarray_copy(found, out)

    def get_config(self) -> dict[str, Any]:
        """Return what the compressor says."""
        config: dict[str, Any] = self.codec.get_config()
        return config


def _decoded(codec: str, data: Any, size: int, limit: int) -> bytes | bytearray | None:
    """Decompress within the limit; None if the codec may do it, since what it says is fine."""
    compressed = ensure_bytes(data)
    check_said(codec, compressed, limit)
    return unpack(codec, compressed, size, limit)


@dataclass(frozen=True)
class WatchedV3(BytesBytesCodec):
    """A compressor of zarr v3 that stops at a limit."""

    codec: Any
    name: str

    def to_dict(self) -> dict[str, Any]:
        """Return what the codec says."""
        said: dict[str, Any] = self.codec.to_dict()
        return said

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return what the codec says, which for a compressor is that it does not know."""
        size: int = self.codec.compute_encoded_size(input_byte_length, chunk_spec)
        return size

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Fill in what follows from the array."""
        return replace(self, codec=self.codec.evolve_from_array_spec(array_spec))

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        dtype = chunk_spec.dtype.to_native_dtype()
        size = math.prod(chunk_spec.shape) * dtype.itemsize
        found = _decoded(self.name, chunk_bytes.as_array_like(), size, limit_for(size))
        if found is None:
            decoded: Buffer = self.codec._decode_sync(chunk_bytes, chunk_spec)
            return decoded
        return chunk_spec.prototype.buffer.from_bytes(found)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)


def _name(codec: Any) -> str:
    return str(codec.to_dict().get("name", "")).removeprefix("numcodecs.")


_COMPRESSORS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})


def _watched_v3(codecs: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for codec in codecs:
        if isinstance(codec, ShardingCodec):
            found.append(
                ShardingCodec(
                    chunk_shape=codec.chunk_shape,
                    codecs=_watched_v3(codec.codecs),
                    index_codecs=_watched_v3(codec.index_codecs),
                    index_location=codec.index_location,
                )
            )
        elif isinstance(codec, BytesBytesCodec) and (name := _name(codec)) in _COMPRESSORS:
            found.append(WatchedV3(codec, name))
        else:
            found.append(codec)
    return tuple(found)


def watched(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array with the same chunks, whose compressors stop at a limit."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        if metadata.compressor is None:
            return array
        size = math.prod(metadata.chunks) * np.dtype(array.dtype).itemsize
        limit = limit_for(size, filtered=bool(metadata.filters))
        metadata = replace(metadata, compressor=WatchedV2(metadata.compressor, size, limit))
    else:
        metadata = replace(metadata, codecs=_watched_v3(metadata.codecs))
    return zarr.Array(AsyncArray(metadata, array.store_path))
