"""What a pyramid costs where there is no framework: the floor under the bench of formats.

As many threads as cores take the chunks of a volume in memory, in Morton's order, and encode and
write each whole, through a temporary name. With a pyramid each chunk is halved as well, into its
eighth of a coarser one, which is dealt with alike once it is whole. Codecs and halving are a job's
own; claims, queue, cache, journal, sums and refusals are left out. Sizes are the chunk's times
powers of two.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from _files import Files
from napari_materialize.codecs import Compression, encode_chunk
from napari_materialize.downsample import Method, shrink
from napari_materialize.geometry import Box, walk_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from napari_materialize.codecs import CompressionName

__all__ = ["write"]

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

type Place = tuple[int, ...]


class _Loop:
    def __init__(
        self, voxels: np.ndarray, chunk: int, out: Path, compression: Compression, method: Method
    ) -> None:
        self.voxels, self.chunk, self.files = voxels, (chunk,) * voxels.ndim, Files(str(out))
        self.compression, self.method = compression, method
        self.levels = 1
        self.begun: dict[tuple[int, Place], tuple[np.ndarray, list[Place]]] = {}
        self.lock = threading.Lock()

    def put(self, level: int, index: Place, data: bytes) -> None:
        self.files.put("/".join((str(level), "c", *map(str, index))), data)

    def halve(self, level: int, index: Place, block: np.ndarray) -> None:
        """Put a chunk's half where it belongs; deal with a coarser chunk that it completes."""
        half = shrink(block, (2,) * block.ndim, self.method)
        sizes = [size >> (level + 1) for size in self.voxels.shape]
        shape = tuple(map(min, self.chunk, sizes))
        target = tuple(at // 2 for at in index)
        with self.lock:
            whole, parts = self.begun.setdefault(
                (level + 1, target), (np.empty(shape, block.dtype), [])
            )
        place = zip(index, half.shape, shape, strict=True)
        whole[tuple(slice(at * n % size, at * n % size + n) for at, n, size in place)] = half
        with self.lock:
            parts.append(index)
            complete = len(parts) * half.size == whole.size
            if complete:
                del self.begun[level + 1, target]
        if complete:
            self.write(level + 1, target, whole)

    def write(self, level: int, index: Place, block: np.ndarray) -> None:
        if level + 1 < self.levels:
            self.halve(level, index, block)
        if block.flat[0] or block.any():
            self.put(level, index, encode_chunk(block, block.shape, 0, self.compression))

    def take(self, index: Place) -> None:
        cut = tuple(slice(at * n, (at + 1) * n) for at, n in zip(index, self.chunk, strict=True))
        self.write(0, index, np.ascontiguousarray(self.voxels[cut]))

    def go(self) -> None:
        counts = tuple(map(int.__floordiv__, self.voxels.shape, self.chunk))
        walk = walk_blocks(Box.whole(counts), (True,) * len(counts))
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self.take, walk))


def write(
    voxels: np.ndarray,
    chunk: int,
    out: Path,
    compression: CompressionName,
    method: Method,
    *,
    levels: int = 1,
) -> None:
    """Write a volume, and coarser levels of it, as chunks without documents."""
    loop = _Loop(voxels, chunk, out, Compression(compression), method)
    loop.levels = levels
    loop.go()
