"""What of a result is still to be made, and how each part of it comes about.

A chunk of a coarser level is halved while its finer chunks pass by, if all of them are made in this
job. Where some were made before, by an interrupted job or for another box, it is made in the end,
of the finer level as it is stored: so nothing is computed again only to be halved, and what is
stored is the same either way.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from napari_materialize.geometry import Box, Index
    from napari_materialize.plan import CoarserPlan, LevelPlan, Plan

__all__ = ["Todo"]

type Ranges = list[list[range]]
"""For each axis, for each place along it: which places of another grid it is made of."""


class Todo:
    """Which files of each array are to be made.

    Parameters
    ----------
    plan : Plan
        Of the job.
    settled : mapping of int to numpy.ndarray, optional
        Which files are done already, by position; none if left out.
    shared : bool
        Whether the arrays hold voxels outside the job's box that another job made.
    """

    def __init__(
        self, plan: Plan, settled: Mapping[int, np.ndarray] | None = None, *, shared: bool = False
    ) -> None:
        self._plan = plan
        self.fresh = settled is None and not shared
        """Whether all is to be made, of this job's chunks alone."""
        self._passing: dict[int, np.ndarray] = {}
        """Which chunks are made while the job's chunks pass by."""
        self._later: list[tuple[CoarserPlan, np.ndarray]] = []
        self.chunks = plan.chunks
        """How many chunks are to be made in all."""
        if self.fresh:
            return
        self.chunks = 0
        for level in plan.levels:
            files = self._open(level, settled)
            self._passing[level.position] = self._chunks(level, files)
            self.chunks += int(self._passing[level.position].sum())
        fine: LevelPlan | CoarserPlan = plan.levels[-1]
        for coarser in plan.coarser:
            files = self._open(coarser, settled)
            passing = files & self._whole_files(coarser, self._halved(fine, coarser, shared))
            self._passing[coarser.position] = self._chunks(coarser, passing)
            self._later.append((coarser, files & ~passing))
            self.chunks += int(self._chunks(coarser, files).sum())
            fine = coarser

    def _open(
        self, level: LevelPlan | CoarserPlan, settled: Mapping[int, np.ndarray] | None
    ) -> np.ndarray:
        if settled is None:
            return np.ones(self._plan.files(level).shape, bool)
        return ~settled[level.position]

    def wants(self, position: int, chunk: Index) -> bool:
        """Whether a chunk is made while the job's chunks pass by."""
        if self.fresh:
            return True
        first = self._first(position)
        return bool(self._passing[position][tuple(map(operator.sub, chunk, first))])

    def wants_tile(self, coarser: CoarserPlan, tile: Index) -> bool:
        """Whether anything is made, in passing, of what is halved at a time."""
        if self.fresh:
            return True
        part = coarser.parts.box(tile).intersect(coarser.region)
        return any(
            self.wants(coarser.position, chunk) for chunk in coarser.array.grid.covering(part)
        )

    def needs(self, level: LevelPlan, chunk: Index, piece: Box) -> bool:
        """Whether a chunk of the view has to be computed."""
        if self.fresh:
            return True
        voxels = self._plan.view.levels[level.level].grid.box(chunk).intersect(piece)
        covered = level.array.grid.indices(voxels.relative_to(level.offset))
        here = covered.relative_to(self._first(level.position))
        return bool(self._passing[level.position][here.slices].any())

    def later(self) -> Iterator[tuple[CoarserPlan, Index]]:
        """Walk the files that are made in the end, of what is stored; the finer levels first."""
        for level, files in self._later:
            first = self._plan.files(level).start
            for place in zip(*np.nonzero(files), strict=True):
                yield level, tuple(map(operator.add, map(int, place), first))

    def _first(self, position: int) -> Index:
        level = self._plan.written[position]
        return level.array.grid.indices(level.region).start

    # ------------------------------------------------------------------ files, chunks, halves

    def _chunks(self, level: LevelPlan | CoarserPlan, files: np.ndarray) -> np.ndarray:
        """Return for each chunk of the job what is so for its file."""
        counts = self._plan.shards
        if counts is None:
            return files
        cover, first = level.array.grid.indices(level.region), self._plan.files(level).start
        places = [
            np.arange(low, high) // count - start
            for low, high, count, start in zip(cover.start, cover.stop, counts, first, strict=True)
        ]
        return files[np.ix_(*places)]

    def _whole_files(self, level: CoarserPlan, chunks: np.ndarray) -> np.ndarray:
        """Return for each file whether something is so for all its chunks."""
        counts = self._plan.shards
        if counts is None:
            return chunks
        cover, files = level.array.grid.indices(level.region), self._plan.files(level)
        ranges = [
            [range(at * count, (at + 1) * count) for at in range(low, high)]
            for low, high, count in zip(files.start, files.stop, counts, strict=True)
        ]
        return _all_of(chunks, cover.start, ranges, outside=True)

    def _halved(
        self, fine: LevelPlan | CoarserPlan, coarse: CoarserPlan, shared: bool
    ) -> np.ndarray:
        """Return for each chunk whether all it is made of passes by; else the rest is fill."""
        cover = coarse.array.grid.indices(coarse.region)
        ranges = []
        for axis, factor in enumerate(coarse.factors):
            chunk, size = coarse.array.chunks[axis], coarse.array.shape[axis]
            finer, limit = fine.array.chunks[axis], fine.array.shape[axis]
            places = []
            for at in range(cover.start[axis], cover.stop[axis]):
                low = at * chunk * factor
                high = min(min((at + 1) * chunk, size) * factor, limit)
                places.append(range(low // finer, -(-high // finer)))
            ranges.append(places)
        first = fine.array.grid.indices(fine.region).start
        return _all_of(self._passing[fine.position], first, ranges, outside=not shared)


def _all_of(
    array: np.ndarray, first: Sequence[int], ranges: Ranges, *, outside: bool
) -> np.ndarray:
    """Return for each product of ranges whether all of the array is true there.

    Parameters
    ----------
    array : numpy.ndarray
        Of bools.
    first : sequence of int
        What the ranges count as the array's first place.
    ranges : list of lists of range
        For each axis, for each place of the result.
    outside : bool
        What lies outside the array.
    """
    for axis, places in enumerate(ranges):
        size = array.shape[axis]
        rows = []
        for place in places:
            low, high = place.start - first[axis], place.stop - first[axis]
            row = array.take(range(max(low, 0), min(high, size)), axis).all(axis)
            rows.append(row if outside or (low >= 0 and high <= size) else np.zeros_like(row))
        array = np.stack(rows, axis)
    return array
