"""What a job will take, before it runs: time, bytes, and whether they fit.

A few of its chunks are computed, encoded as they would be stored, and let go. Owns the arithmetic
from these to the whole, and the sentence. It writes nothing, and asks for its chunks as background
work, so whoever looks at something goes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from napari_materialize.estimate._sample import Sample
from napari_materialize.job import planned, refuse_target
from napari_materialize.journal import read_journal
from napari_materialize.quantities import bytes_text, count_text, seconds_text
from napari_materialize.stores import KeptStore, MeasuredStore, Volume

if TYPE_CHECKING:
    from napari_materialize.job import ChunkService
    from napari_materialize.plan import Plan, Where
    from napari_materialize.view import View

__all__ = ["Estimate", "estimate", "estimate_plan", "may_be_tight"]

WITHIN = 2.0
"""Seconds after which no chunk is begun."""

PER_CHUNK = 64
"""Bytes beside a chunk's own: of its line in the journal, or of its place in a shard's index."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job will take, as far as a few of its chunks tell.

    Examples
    --------
    >>> print(Estimate(100, seconds=75, bytes=2 * 10**9, most=3 * 10**9, free=10**9, measured=96))
    about 1 min 15 s and 2.0 GB for 100 chunks (96 measured), and it will not fit: 1.0 GB are free
    """

    chunks: int
    """Chunks that are to be made."""

    seconds: float | None
    """How long it will take; None if no chunk was there in time."""

    bytes: int
    """What will be stored, compressed."""

    most: int
    """What may have to be free for it: the upper end of what the measured chunks allow, every file
    rounded up as the volume does."""

    free: int | None = None
    """Bytes that are free where it will be stored, those included that it will replace; None where
    nobody tells, as in a bucket."""

    measured: int = 0
    """Chunks that were computed."""

    found: int = 0
    """Chunks that an earlier job made already, by its journal."""

    failed: int = 0
    """Chunks that were tried and failed."""

    reason: str | None = None
    """Why the first of them failed."""

    @property
    def fits(self) -> bool | None:
        """Whether it will fit, with what is uncertain counted in; None where nobody can know."""
        return None if self.free is None else self.most <= self.free

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        if not self.chunks:
            return "nothing is left to be made"
        known = self.measured > 0
        time = "an unknown time" if self.seconds is None else f"about {_time(self.seconds)}"
        size = f"{'' if known else 'at most '}{bytes_text(self.bytes)}"
        told = f"{time} and {size} for {count_text(self.chunks, 'chunk')} ({self.measured} measured"
        told += f", {self.failed} of them failed: {self.reason})" if self.failed else ")"
        if self.free is None:
            return f"{told}; how much is free there is not known"
        free = f"{bytes_text(self.free)} are free"
        if self.fits:
            return f"{told}; {free}"
        may = "may not fit" if self.bytes <= self.free else "will not fit"
        return f"{told}, and it {may}: {free}"

    def __str__(self) -> str:
        """Return the sentence."""
        return self.sentence


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds < 10 else seconds_text(float(round(seconds)))


def estimate(
    service: ChunkService, view: View, where: Where, *, within: float = WITHIN, **options: Any
) -> Estimate:
    """Say what `Engine.materialize` would take; nothing is created, nothing is written.

    Time is right to a factor of two or so where the machine has nothing else to do; a slow target
    is not in it. A bucket's free space, and a quota, are not known.

    Parameters
    ----------
    service : Engine
        What will do the job.
    view, where, **options
        As `Engine.materialize` takes them. ``cancel`` ends the measuring.
    within : float
        Seconds after which no chunk is begun. If not one is there by then, one is waited for, four
        times as long at most.

    Raises
    ------
    InputError
        What `Engine.materialize` would refuse.
    EngineClosed
        If the engine is closed, or was closed meanwhile.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view(np.ones((64, 64), "u1"), chunks=(8, 8))
    >>> with nm.Engine(slots=2) as engine:
    ...     told = engine.estimate(view, nm.MemoryStore(), compression=None)
    >>> told.chunks, told.bytes, told.fits
    (64, 4096, None)
    """
    return estimate_plan(service, planned(view, where, options), within)


def estimate_plan(service: ChunkService, plan: Plan, within: float = WITHIN) -> Estimate:
    """Say what it would take to carry out a plan; see `estimate`."""
    refuse_target(plan)
    volume = _volume(plan)
    open_parts = _open_parts(plan)
    chunks = sum(round(each.chunks * open_parts[each.position]) for each in plan.written)
    free = None if volume is None else volume.free + _replaced(plan, volume)
    found = plan.chunks - chunks
    if not chunks:
        return Estimate(0, 0.0, 0, 0, free, found=found)
    sample = Sample(service, plan, within)
    voxels = sum(each.nbytes * open_parts[each.position] for each in plan.written)
    computed = sum(each.nbytes * open_parts[each.position] for each in plan.levels)
    size, most = _stored(plan, sample, voxels, chunks, volume)
    return Estimate(
        chunks,
        None if sample.pace is None else sample.pace * computed,
        size,
        most,
        free,
        sample.measured,
        found,
        sample.failed,
        sample.reason,
    )


def may_be_tight(plan: Plan) -> bool:
    """Whether a plan's voxels, uncompressed, would not fit where they go; computes nothing."""
    volume = _volume(plan)
    return volume is not None and _bound(plan, plan.chunks, volume) > volume.free


def _volume(plan: Plan) -> Volume | None:
    return plan.store.volume() if isinstance(plan.store, MeasuredStore) else None


def _bound(plan: Plan, chunks: int, volume: Volume | None) -> int:
    """Return the bytes that files may take if nothing can be compressed."""
    share = chunks / max(1, plan.chunks)
    whole = sum(
        each.chunks * (math.prod(each.array.chunks) * each.array.dtype.itemsize + PER_CHUNK)
        for each in plan.written
    )
    return math.ceil(share * (whole + _rounding(plan, volume)))


def _rounding(plan: Plan, volume: Volume | None) -> int:
    """Return the bytes that rounding up files takes at most."""
    block = 0 if volume is None else volume.block
    return sum(plan.files(each).size for each in plan.written) * block


def _open_parts(plan: Plan) -> dict[int, float]:
    """Return which part of each array is to be made; all, unless a job is gone on with."""
    everything = {each.position: 1.0 for each in plan.written}
    store = plan.store
    if plan.options.existing != "resume" or not isinstance(store, KeptStore) or store.is_empty():
        return everything
    found = read_journal(store, [plan.files(each) for each in plan.written])
    if found is None:
        return dict.fromkeys(everything, 0.0)  # a finished one: only what is damaged is made
    if not found.cleared:
        return everything
    return {at: 1 - float(each.settled.mean()) for at, each in found.ledgers.items()}


def _replaced(plan: Plan, volume: Volume) -> int:
    """Return the bytes that are given back before anything is written."""
    if plan.options.existing != "overwrite" or not isinstance(plan.store, KeptStore):
        return 0
    return sum(volume.taken(size) for _, size in plan.store.listing() if size > 0)


def _stored(
    plan: Plan, sample: Sample, voxels: float, chunks: int, volume: Volume | None
) -> tuple[int, int]:
    """Return the bytes of the files, and the most that they may take on their volume."""
    bound = _bound(plan, chunks, volume)
    size, count = sum(each for each, _ in sample.chunks), len(sample.chunks)
    if not size:
        return bound, bound
    ratio = sum(data for _, data in sample.chunks) / size
    # how far chunks are from what the ratio says of them: twice the error of their mean
    apart = math.sqrt(sum((data - ratio * raw) ** 2 for raw, data in sample.chunks) / count)
    doubt = 2 * apart / math.sqrt(count) * chunks if count > 2 else bound
    expected = ratio * voxels
    files = sum(data > 0 for _, data in sample.chunks) / count
    around = chunks * PER_CHUNK + files * _rounding(plan, volume) * chunks / max(1, plan.chunks)
    return math.ceil(expected), min(bound, math.ceil(expected + doubt + around))
