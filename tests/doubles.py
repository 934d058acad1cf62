"""Sources and ops that record what is asked of them, and wait when told to."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize import Box, Engine, open_view, ops
from napari_materialize.arrays import Axis
from napari_materialize.workers import ManualWorkers

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Kind, Level


class RecordingArray:
    """An array that counts the reads of each of its chunks and fails for those it is told to."""

    def __init__(self, array: np.ndarray, chunks: tuple[int, ...]) -> None:
        self.array = array
        self.chunks = chunks
        self.shape = array.shape
        self.dtype = array.dtype
        self.reads: list[tuple[int, ...]] = []
        self.broken: dict[tuple[int, ...], BaseException] = {}
        self.meanwhile: Callable[[], None] | None = None
        """Called in the middle of the next read, which the thread that reads is in."""
        self._lock = threading.Lock()

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        index = tuple(part.start // size for part, size in zip(key, self.chunks, strict=True))
        with self._lock:
            self.reads.append(index)
            meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if index in self.broken:
            raise self.broken[index]
        return self.array[key].copy()

    def view(self, chain: Any = (), **options: Any):
        """Open a view of it."""
        return open_view(self, chain, chunks=self.chunks, **options)


class Gate:
    """A function for an op: records its calls, and while it is shut lets none of them end."""

    def __init__(self, *, shut: bool = False) -> None:
        self.calls: list[int] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()
        if not shut:
            self.open.set()

    def __call__(self, block: np.ndarray) -> np.ndarray:
        with self._lock:
            self.calls.append(int(block.flat[0]))
            self.running += 1
            self.most = max(self.most, self.running)
        self.entered.release()
        if not self.open.wait(60):
            raise TimeoutError("the gate was never opened")
        with self._lock:
            self.running -= 1
        return block + 1

    @property
    def op(self) -> ops.Function:
        """An op of it, with an identity of its own."""
        return ops.Function(self, dtype="int64", name=f"gate {id(self)}", version="1")

    @property
    def counts(self) -> Counter[int]:
        """How often each block was computed, by its first voxel."""
        return Counter(self.calls)


def cranked(*, along: bool = False, rows: int = 1, **options: Any) -> tuple[Engine, ManualWorkers]:
    """Return an engine that does nothing until its workers are told to.

    ``along``: to read and to compute from it may be one step, and that of ``rows`` chunks.
    """
    workers = ManualWorkers()
    engine = Engine(workers=workers, **options)
    engine._dispatch.needs.reads_along = along
    engine._dispatch.pace.run = lambda stage, level: rows  # type: ignore[method-assign]
    return engine, workers


class Stack(ops.Op):
    """Makes channels at once, as a model does, and records the first voxel of each block.

    Channel ``k`` is the image plus ``k``.
    """

    name = "stack"
    kept = True

    def __init__(self, channels: int = 2, halo: int = 0) -> None:
        self.channels = channels
        self.extent = halo
        self.calls: list[int] = []

    @property
    def parameters(self) -> dict[str, int]:
        return {"channels": self.channels, "halo": self.extent}

    def describe(self, level: Level, kind: Kind) -> ops.Description:
        stacked = replace(
            level,
            shape=(self.channels, *level.shape),
            chunks=(1, *level.chunks),
            axes=(Axis("c", "channel"), *level.axes),
            scale=(1.0, *level.scale),
            translation=(0.0, *level.translation),
        )
        return ops.Description(stacked, kind)

    def halo(self, level: Level) -> tuple[int, ...]:
        return (self.extent,) * level.ndim

    def inputs(self, box: Box, level: Level) -> Box:
        return Box(box.start[1:], box.stop[1:])

    def outputs(self, box: Box, level: Level) -> Box:
        return Box((0, *box.start), (self.channels, *box.stop))

    def compute(self, block: np.ndarray, level: Level, abandoned: Any = ops.never) -> np.ndarray:
        inner = block[tuple(slice(self.extent, size - self.extent) for size in block.shape)]
        self.calls.append(int(inner.flat[0]))
        return np.stack([inner + k for k in range(self.channels)])
