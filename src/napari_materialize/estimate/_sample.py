"""A few chunks of a job, computed and encoded as the job would, and not written.

Two kinds. Some are spread over all that the job makes, since what they come to in bytes differs
from place to place. Some come in groups of neighbours, since neighbours share what they are made
of, and so tell how fast a job goes. Each kind has half of the time.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from napari_materialize.codecs import encode_chunk, is_fill
from napari_materialize.errors import reason_of
from napari_materialize.geometry import Box, ChunkGrid, walk_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.geometry import Index
    from napari_materialize.job import ChunkService
    from napari_materialize.plan import LevelPlan, Plan

__all__ = ["Sample"]

SPREAD, TOGETHER = 32, 64
"""Chunks of each kind at most."""

SHARE = 8
"""Of a small job one chunk in so many is computed."""

PATIENCE = 4
"""What was asked for in time is waited for so many times as long; what is late then is given up."""

POLL = 0.05
"""Seconds between looks at the cancel event."""

type Unit = tuple[LevelPlan, list[Index]]


class Sample:
    """Chunks that were computed, what they came to, and how long it took.

    Parameters
    ----------
    service : ChunkService
        Computes them, as background work.
    plan : Plan
        Of the job.
    within : float
        Seconds after which no chunk is begun.
    """

    def __init__(self, service: ChunkService, plan: Plan, within: float) -> None:
        self._service = service
        self._plan = plan
        self._changed = threading.Condition()
        self._claims: set[ChunkClaim] = set()
        self._waiting = 0
        self._stopped = False
        self._limit = plan.options.concurrency or service.slots
        self.chunks: list[tuple[int, int]] = []
        """The voxels' bytes and the stored bytes of each chunk, of those that are spread."""
        self.measured = 0
        """Chunks of both kinds."""
        self.failed = 0
        self.reason: str | None = None
        """Why the first of them failed."""
        self._voxels = 0
        self._latest = 0.0
        self.pace: float | None = None
        """Seconds for a byte of voxels; None if nothing was done in time."""
        began = time.perf_counter()
        self._end, self._last = began + within, began + PATIENCE * within
        spread = list(_spread(plan))
        self._run([(level, [index]) for level, index in spread[:1]], self._end)
        self._run([(level, [index]) for level, index in spread[1:]], began + within / 2)
        apart = list(self.chunks)
        self._run(_together(plan, service), self._end)
        # neighbours are alike: together they say no more of the rest than one of them would
        self.chunks = apart or self.chunks

    def _run(self, units: Sequence[Unit], until: float) -> None:
        """Compute units until a time; keep the pace if more was done than before."""
        began, before, size = time.perf_counter(), self.measured, self._voxels
        for unit in units:
            has_room = partial(self._has_room, (self._limit + 1) * len(unit[1]))
            if time.perf_counter() >= until or not self._wait(has_room, until):
                break
            self._ask(unit)
        self._wait(lambda: not self._waiting, self._last)
        with self._changed:
            claims, done = list(self._claims), self._voxels - size
            worth = self.pace is None or self.measured - before >= 2 * self._limit
            if done and worth:
                self.pace = (self._latest - began) / done
        self._service.release_all(claims)

    def _has_room(self, most: int) -> bool:
        return self._waiting < most

    def _wait(self, over: Callable[[], bool], until: float) -> bool:
        """Wait until something is so; False if it was not in time, or nobody wants it any more."""
        cancel = self._plan.options.cancel
        with self._changed:
            while not over():
                left = until - time.perf_counter()
                self._stopped = self._stopped or (cancel is not None and cancel.is_set())
                if left <= 0 or self._stopped:
                    return False
                self._changed.wait(min(left, POLL))
        return not self._stopped

    def _ask(self, unit: Unit) -> None:
        level, indices = unit
        claims = self._service.claim_all(
            self._plan.view,
            level.level,
            indices,
            background=True,
            cancel=self._plan.options.cancel,
        )
        with self._changed:
            self._waiting += len(claims)
            self._claims.update(claims)
        for claim in claims:
            claim.add_done_callback(partial(self._arrive, level))

    def _arrive(self, level: LevelPlan, claim: ChunkClaim) -> None:
        if claim.released:
            self._over(claim)
        else:
            self._service.run_writer(partial(self._weigh, level, claim))

    def _weigh(self, level: LevelPlan, claim: ChunkClaim) -> None:
        """Encode a chunk and see how large it is; in a writer's thread."""
        found, why = None, None
        try:
            found = self._encoded(level, claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job would meet it too
            why = reason_of(error)
        claim.release()
        self._over(claim, found, why)

    def _encoded(self, level: LevelPlan, claim: ChunkClaim) -> tuple[int, int]:
        plan, array = self._plan, level.array
        voxels, index = claim.result(), claim.key.chunk
        whole = plan.view.levels[level.level].grid.box(index)
        part = whole.intersect(level.box)
        block = voxels[part.relative_to(whole.start).slices]
        if plan.options.skip_empty and is_fill(block, array.fill):
            return block.nbytes, 0
        frame = plan.layout.frame
        data = encode_chunk(block, array.chunks, array.fill, plan.compression, frame)
        return block.nbytes, len(data)

    def _over(
        self, claim: ChunkClaim, found: tuple[int, int] | None = None, reason: str | None = None
    ) -> None:
        with self._changed:
            self._claims.discard(claim)
            self._waiting -= 1
            if found is not None:
                self.measured += 1
                self._voxels += found[0]
                self._latest = time.perf_counter()
                self.chunks.append(found)
            if reason is not None:
                self.failed += 1
                self.reason = self.reason or reason
            self._changed.notify_all()


def _covers(plan: Plan) -> list[tuple[LevelPlan, Box]]:
    """Return the view's chunks that each level is made of."""
    return [(each, plan.view.levels[each.level].grid.indices(each.box)) for each in plan.levels]


def _spread(plan: Plan) -> Iterator[tuple[LevelPlan, Index]]:
    """Walk chunks from all over a job, those of the middle first; the same ones each time."""
    covers = _covers(plan)
    total = sum(cover.size for _, cover in covers)
    for number in _numbers(total, min(SPREAD, max(1, total // SHARE))):
        before = 0
        for level, cover in covers:
            if number < before + cover.size:
                yield level, _place(cover, number - before)
                break
            before += cover.size


def _numbers(total: int, count: int) -> Iterator[int]:
    """Walk some of the numbers below a total, spread over them, those of the middle first."""
    for at in sorted(range(count), key=lambda at: abs(2 * at + 1 - count)):
        # not at equal steps: these would meet the same column of each row
        yield int((at + (0.5 + at * 0.6180339887) % 1) * total / count)


def _place(cover: Box, number: int) -> Index:
    place: list[int] = []
    for low, size in zip(reversed(cover.start), reversed(cover.shape), strict=True):
        number, at = divmod(number, size)
        place.append(low + at)
    return tuple(reversed(place))


def _together(plan: Plan, service: ChunkService) -> list[Unit]:
    """Return groups of neighbours from all over the largest level, as a job would ask for them."""
    level, cover = max(_covers(plan), key=lambda pair: pair[1].size)
    counts = service.block(plan.view, level.level)
    sides = _pairs(cover)
    if not plan.view.stages[-1].alike(level.level):  # else a chunk costs the same alone
        sides = tuple(map(max, counts, sides))
    grid, groups = ChunkGrid(cover.shape, tuple(map(min, sides, cover.shape))), []
    most = max(1, min(TOGETHER, cover.size // SHARE) // math.prod(grid.chunks))
    for number in _numbers(grid.size, min(most, grid.size)):
        group = grid.box(_place(Box.whole(grid.counts), number))
        groups.append(group.relative_to(tuple(-low for low in cover.start)))
    return [(level, unit) for group in groups for unit in _units(plan, level, group, counts)]


def _pairs(cover: Box) -> Index:
    """Return two along each of the last three axes, if there are two."""
    first = max(0, cover.ndim - 3)
    return tuple(min(2, size) if axis >= first else 1 for axis, size in enumerate(cover.shape))


def _units(plan: Plan, level: LevelPlan, group: Box, counts: Index) -> Iterator[list[Index]]:
    """Walk the chunks of a group, those that are computed in one call together."""
    grid = plan.view.levels[level.level].grid
    last = tuple(n - 1 for n in group.stop)
    voxels = Box(grid.box(group.start).start, grid.box(last).stop)
    units: dict[Index, list[Index]] = {}
    for index in plan.view.walk(level.level, voxels, walk_blocks(group, (True,) * group.ndim)):
        units.setdefault(tuple(map(operator.floordiv, index, counts)), []).append(index)
    yield from units.values()
