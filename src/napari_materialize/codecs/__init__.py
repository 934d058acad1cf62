"""Voxels to bytes and back: chunks, shards, compressors, and their metadata fragments.

Owns what the bytes of a file with voxels are. It does not name chunks or write documents (`layout`
is handed the fragments) and opens nothing (`stores`).
"""

from __future__ import annotations

from napari_materialize.codecs._chunk import Frame, chunk_bytes, decode_chunk, encode_chunk, is_fill
from napari_materialize.codecs._compression import Compression, CompressionName
from napari_materialize.codecs._shard import join_shard, split_shard

__all__ = [
    "Compression",
    "CompressionName",
    "Frame",
    "chunk_bytes",
    "decode_chunk",
    "encode_chunk",
    "is_fill",
    "join_shard",
    "split_shard",
]
