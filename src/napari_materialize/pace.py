"""How long a voxel takes in each stage, and how many chunks are best computed in one call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.blocks import BlockLimits
    from napari_materialize.geometry import Index
    from napari_materialize.stages import Stage

__all__ = ["Pace"]

RUN, RUN_BYTES, RUN_SECONDS = 16, 2**21, 1e-2
"""Chunks that are read and computed in one go: how many at most, what they may hold that would not
be held if each were written before the next is read, and how long a client may have to wait."""

REMEMBERED = 256
"""Stages whose seconds per voxel are remembered, and places whose blocks are."""

NEWEST = 0.3
"""The share that the latest computation has in what is remembered."""


CHEAP = 1.5
"""How many times less work it has to be to read a voxel than to compute with it, to do it again: a
gaussian's job reads a quarter of its chunks twice."""

READS = 0.2
"""The share of its time that a thread that reads has to be at work itself, and not to wait."""


class Pace:
    """Remembers what computations took, and says how large the next ones should be.

    Parameters
    ----------
    limits : BlockLimits
        How large a computation of several chunks may be.
    """

    def __init__(self, limits: BlockLimits) -> None:
        self.limits = limits
        self._seconds: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._blocks: dict[tuple[str, int, int], Index] = {}

    def block(self, stage: Stage, level: int) -> Index:
        """Return how many chunks along each axis background work computes in one call."""
        seconds = self._seconds.get(stage.identity)
        if seconds is None:
            return stage.block(level, None, self.limits)
        # thought over again only when the pace has changed by a good part, and once for each
        place = (stage.identity, level, round(2 * math.log2(max(seconds, 1e-12))))
        known = self._blocks.get(place)
        if known is None:
            known = self._blocks[place] = stage.block(level, seconds, self.limits)
            _forget_oldest(self._blocks)
        return known

    def run(self, stage: Stage, level: int) -> int:
        """Return how many chunks in a row background work reads and computes in one go.

        For stages that read, and those whose chunks need their own source chunk alone. More than
        one where that is quick: handing over takes as long for each, whatever its size.
        """
        made, first = stage.levels[level], [(0,) * stage.levels[level].ndim]
        seconds, itemsize = self.expected(stage, level, first), made.dtype.itemsize
        if stage.previous is not None:
            feeding, number = stage.feeds(level)
            reading = self.expected(feeding, number, first)
            seconds = None if seconds is None or reading is None else seconds + reading
            itemsize += feeding.levels[number].dtype.itemsize
        if seconds is None:
            return 1
        voxels = math.prod(made.chunks)
        most = min(
            RUN_BYTES // (voxels * itemsize),
            RUN_SECONDS // max(seconds, 1e-9),
            self.limits.memory // voxels,
            math.prod(made.grid.counts) // max(1, self.limits.lanes),
            made.grid.counts[-1],
            RUN,
        )
        return 1 << (max(1, int(most)).bit_length() - 1)

    def expected(self, stage: Stage, level: int, indices: Sequence[Index]) -> float | None:
        """Return how many seconds some chunks will take, as measured; None if nobody knows yet."""
        seconds = self._seconds.get(stage.identity)
        return None if seconds is None else seconds * stage.voxels(level, indices)

    def reads_cheaply(self, stage: Stage, level: int) -> bool:
        """Whether to read a voxel that goes into a stage is much less work than to compute with it.

        A source that is waited for, on a server or on a slow disk, is not cheap to read.
        """
        feeding, _ = stage.feeds(level)
        reading = self._seconds.get(feeding.identity)
        computing = self._seconds.get(stage.identity)
        share = self.share(feeding)
        if reading is None or computing is None or share < READS:
            return False
        # by the processor's time: to wait for Python's lock is no work
        return CHEAP * reading * share < computing * self.share(stage)

    def measure(self, stage: Stage, level: int, indices: Sequence[Index], seconds: float) -> None:
        """Take note that some chunks took ``seconds`` to compute."""
        now = seconds / max(1, stage.voxels(level, indices))
        before = self._seconds.pop(stage.identity, now)
        self._seconds[stage.identity] = (1 - NEWEST) * before + NEWEST * now
        _forget_oldest(self._seconds)

    def note_share(self, stage: Stage, share: float) -> None:
        """Take note of the share of its time that a thread was at work itself in a stage.

        The rest it waited: for a server, a disk, a GPU.
        """
        before = self._shares.pop(stage.identity, share)
        self._shares[stage.identity] = (1 - NEWEST) * before + NEWEST * share
        _forget_oldest(self._shares)

    def share(self, stage: Stage) -> float:
        """Return the share of its time that a stage keeps a core busy; 0 if nobody knows yet."""
        return self._shares.get(stage.identity, 0.0)


def _forget_oldest[K, V](memory: dict[K, V]) -> None:
    if len(memory) > REMEMBERED:
        del memory[next(iter(memory))]
