"""The limit: what two threads and no framework make of the same files.

A thread takes the next block; for each source chunk that the block needs and that nobody has
decoded yet it reads the file and decodes it; it runs the op, and encodes and writes each chunk
whole, through a temporary name. Source chunks are decoded once and let go after their last use. The
codecs and ops are the same functions that a job uses, so what is measured is what lies between.
"""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from _files import Files
from napari_materialize import ops
from napari_materialize.arrays import Level
from napari_materialize.codecs import Compression, join_shard
from napari_materialize.sources.bounded import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from _cases import Case

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decoder(case: Case) -> Callable[[bytes], bytes]:
    size = int(np.prod(case.chunks))
    if case.compression == "gzip":
        return lambda data: unpack("gzip", data, size, size) or b""
    if case.compression == "none":
        return lambda data: data
    import numcodecs

    codec: Any = numcodecs.get_codec({"id": case.compression})
    return codec.decode  # type: ignore[no-any-return]


class Inputs:
    """Source chunks, each read and decoded by whoever needs it first, and counted down."""

    def __init__(self, case: Case, source: Path) -> None:
        self.source, self.chunks, self.decode = str(source), case.chunks, decoder(case)
        self.held: dict[tuple[int, ...], tuple[threading.Lock, list[np.ndarray]]] = {}
        self.uses: dict[tuple[int, ...], int] = {}
        self.lock = threading.Lock()

    def get(self, index: tuple[int, ...]) -> np.ndarray:
        with self.lock:
            lock, found = self.held.setdefault(index, (threading.Lock(), []))
        with lock:
            if not found:
                with open(f"{self.source}/{'/'.join(map(str, index))}", "rb") as file:  # noqa: PTH123
                    data = file.read()
                found.append(np.frombuffer(self.decode(data), np.uint8).reshape(self.chunks))
            return found[0]

    def done(self, index: tuple[int, ...]) -> None:
        with self.lock:
            self.uses[index] -= 1
            if not self.uses[index]:
                del self.held[index]


def operation(case: Case) -> Callable[[np.ndarray], np.ndarray]:
    """Return the op on a block with its halo."""
    if case.op == "none":
        return lambda block: block
    if case.op == "threshold":
        return lambda block: np.greater_equal(block, np.uint8(120)).view(np.uint8)
    op = ops.Gaussian(1.5)
    level = Level(case.shape, np.dtype("u1"), case.chunks)
    return lambda block: op.compute(block, level)


def key(case: Case, index: tuple[int, ...]) -> str:
    if case.format == "n5":
        return "/".join(map(str, index[::-1]))
    prefix = "c/" if case.format == "zarr3" else ""
    return prefix + "/".join(map(str, index))


class Loop:
    """The loop over one case."""

    def __init__(self, case: Case, source: Path, out: Path, counts: tuple[int, ...]) -> None:
        self.case, self.counts = case, counts
        self.put = Files(str(out)).put
        self.inputs, self.op = Inputs(case, source), operation(case)
        self.halo = tuple(case.halo for _ in case.shape)
        name: Any = case.compression
        self.compression = Compression(name)

    def reach(self, voxels: tuple[slice, ...]) -> tuple[list[range], list[tuple[int, int]]]:
        """Return the source chunks along each axis, and the first and last voxel, halo included."""
        chunks, ends = [], []
        for part, size, halo, total in zip(
            voxels, self.case.chunks, self.halo, self.case.shape, strict=True
        ):
            first, last = part.start - halo, part.stop + halo
            ends.append((first, last))
            chunks.append(range(max(0, first) // size, (min(total, last) - 1) // size + 1))
        return chunks, ends

    def block(self, voxels: tuple[slice, ...]) -> np.ndarray:
        chunks, ends = self.reach(voxels)
        if not any(self.halo) and all(len(axis) == 1 for axis in chunks):
            return self.inputs.get(tuple(axis[0] for axis in chunks))
        block = np.empty([last - first for first, last in ends], np.uint8)
        for index in itertools.product(*chunks):
            data, target, share = self.inputs.get(index), [], []
            for i, size, (first, last) in zip(index, self.case.chunks, ends, strict=True):
                low, high = max(first, i * size), min(last, (i + 1) * size)
                target.append(slice(low - first, high - first))
                share.append(slice(low - i * size, high - i * size))
            block[tuple(target)] = data[tuple(share)]
        for axis, ((first, last), total) in enumerate(zip(ends, self.case.shape, strict=True)):
            lead = (slice(None),) * axis
            if first < 0:
                block[(*lead, slice(0, -first))] = block[(*lead, slice(-first, -first + 1))]
            if last > total:
                end = total - first
                block[(*lead, slice(end, None))] = block[(*lead, slice(end - 1, end))]
        return block

    def run(self, place: tuple[tuple[slice, ...], tuple[slice, ...]]) -> None:
        chunks, voxels = place
        made = self.op(self.block(voxels))
        shard: dict[tuple[int, ...], bytes] = {}
        start = tuple(part.start for part in voxels)
        for index in itertools.product(*(range(part.start, part.stop) for part in chunks)):
            cut = tuple(
                slice(i * size - at, (i + 1) * size - at)
                for i, size, at in zip(index, self.case.chunks, start, strict=True)
            )
            chunk = np.ascontiguousarray(made[cut])
            if not chunk.flat[0] and not chunk.any():
                continue
            data = self.compression.encode(chunk.reshape(-1).data, chunk.dtype)
            if self.case.shards:
                place_in = zip(index, self.case.shards, strict=True)
                shard[tuple(i % n for i, n in place_in)] = data
            else:
                self.put(key(self.case, index), data)
        if self.case.shards and shard:
            number = tuple(
                part.start // n for part, n in zip(chunks, self.case.shards, strict=True)
            )
            self.put(key(self.case, number), join_shard(shard, self.case.shards))
        for index in itertools.product(*self.reach(voxels)[0]):
            self.inputs.done(index)

    def go(self) -> None:
        from _cases import boxes

        places = list(boxes(self.case, self.counts))
        for _, voxels in places:
            for index in itertools.product(*self.reach(voxels)[0]):
                self.inputs.uses[index] = self.inputs.uses.get(index, 0) + 1
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self.run, places, chunksize=1))


def run(case: Case, source: Path, out: Path) -> None:
    """Write the case; a filter in blocks of 2^3 chunks, which were the fastest."""
    counts = case.shards or tuple(2 if case.halo else 1 for _ in case.shape)
    if case.halo and case.chunks[0] == 1:
        counts = (8, 1, 1)
    Loop(case, source, out, counts).go()
