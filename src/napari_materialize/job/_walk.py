"""In which order a job asks for chunks, so that little is begun and not written.

Along the axes where something is put together of several chunks (a shard, a chunk of a coarser
level) chunks that are neighbours come close together, in Morton's order: whatever is made of a
power of two of them is whole before the next is begun. A shard is walked to its end.

Where an array is chunked from a box's corner that is no corner of a chunk, each written chunk
is made of several of the view's, and a whole layer of them is begun at a time. Where such a layer
would hold too much, the box is cut into pieces along the later axes; the view's chunks at the cuts
are asked for twice.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from napari_materialize.geometry import Box, walk_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from napari_materialize.geometry import Index
    from napari_materialize.plan import LevelPlan, Plan

__all__ = ["LAYER_BYTES", "walk"]

LAYER_BYTES = 2**28
"""Voxels' bytes that may be begun and not written because two grids differ."""

SLAB = 4
"""Chunks along the first such axis that are walked at a time: a block of several is computed in one
call."""


def walk(plan: Plan) -> Iterator[tuple[LevelPlan, Box, Iterator[Index]]]:
    """Walk the levels, the pieces of each, and the chunks of the view for each of these."""
    for level in plan.levels:
        slab, pieces = _pieces(plan, level)
        for piece in pieces:
            order = _order(plan, level, piece, slab)
            yield level, piece, plan.view.walk(level.level, piece, order)


def _order(plan: Plan, level: LevelPlan, piece: Box, slab: Index | None) -> Iterator[Index]:
    """Walk the chunks that cover a piece: slab by slab, shard by shard, block by block."""
    view, grid = plan.view, plan.view.levels[level.level].grid
    cover = grid.indices(piece)
    together = list(view.stages[-1].spread(level.level))
    for coarser in plan.coarser:
        together = [
            mark or factor > 1 for mark, factor in zip(together, coarser.factors, strict=True)
        ]
    corner = tuple(map(operator.floordiv, level.offset, grid.chunks))
    groups = [group for group in (slab, plan.shards) if group is not None]
    return _nested(cover, corner, groups, tuple(together))


def _nested(
    cover: Box, corner: Index, groups: list[Index], together: tuple[bool, ...]
) -> Iterator[Index]:
    """Walk groups, counted from a corner, and in each of them smaller groups, down to the chunk."""
    if not groups:
        yield from walk_blocks(cover, together)
        return
    size, *smaller = groups
    seen = cover.relative_to(corner)
    low = tuple(map(operator.floordiv, seen.start, size))
    high = tuple(-(-stop // n) for stop, n in zip(seen.stop, size, strict=True))
    for place in walk_blocks(Box(low, high), together):
        start = tuple(c + at * n for c, at, n in zip(corner, place, size, strict=True))
        group = Box(start, tuple(map(operator.add, start, size)))
        yield from _nested(group.intersect(cover), corner, smaller, together)


def _pieces(plan: Plan, level: LevelPlan) -> tuple[Index | None, list[Box]]:
    """Return the slabs a level is walked in and what it is cut into, if its grids differ."""
    box, grid = level.box, plan.view.levels[level.level].grid
    counts = grid.indices(box).shape
    cut = [
        offset % chunk != 0 and count > 1
        for offset, chunk, count in zip(level.offset, grid.chunks, counts, strict=True)
    ]
    if not any(cut):
        return None, [box]
    first = cut.index(True)
    unit = level.array.chunks
    if plan.shards is not None:
        unit = tuple(map(operator.mul, unit, plan.shards))
    size = list(box.shape)

    def begun() -> int:
        layers = min(size[first], (SLAB + 1) * unit[first])
        return layers * math.prod(size[first + 1 :]) * level.array.dtype.itemsize

    while begun() > LAYER_BYTES:
        units = [1] * (first + 1)
        units += [-(-n // u) for n, u in zip(size[first + 1 :], unit[first + 1 :], strict=True)]
        axis = max(range(len(size)), key=units.__getitem__)
        if units[axis] == 1:
            break
        size[axis] = -(-units[axis] // 2) * unit[axis]
    slab = tuple(SLAB if axis == first else count for axis, count in enumerate(grid.counts))
    return slab, list(_cut(box, tuple(size)))


def _cut(box: Box, size: Index) -> Iterator[Box]:
    """Cut a box into pieces of a size, from its corner."""
    counts = tuple(-(-n // s) for n, s in zip(box.shape, size, strict=True))
    for place in walk_blocks(Box.whole(counts), (False,) * len(counts)):
        start = tuple(low + at * s for low, at, s in zip(box.start, place, size, strict=True))
        yield Box(start, tuple(map(operator.add, start, size))).intersect(box)
