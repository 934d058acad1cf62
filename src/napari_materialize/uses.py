"""Which source chunks a job still needs, so that each is let go after the last use.

Pure counting over a region of chunks. A miscount is never an error in what is computed: a source
chunk that is let go too early is read again, one that is held too long falls to the cache's budget.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from napari_materialize.stages import ChunkKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from napari_materialize.geometry import Box, Index
    from napari_materialize.stages import OpStage, Stage

__all__ = ["Regions", "Uses", "first_region"]


def first_region(stage: Stage, level: int, box: Box) -> tuple[OpStage, int, Box] | None:
    """Return which chunks of the stage that reads the source a box of a stage's voxels takes.

    Parameters
    ----------
    stage : Stage
        A view's last one.
    level : int
        0 is the finest.
    box : Box
        Voxels of that level.

    Returns
    -------
    tuple of OpStage, int and Box, or None
        The stage, its level, and the indices of its chunks; None if nothing is computed.
    """
    while not box.is_empty and stage.previous is not None:
        cover = stage.levels[level].grid.indices(box)
        last = tuple(stop - 1 for stop in cover.stop)
        feeding, number = stage.feeds(level)
        if feeding.previous is None:
            return stage, level, cover
        box = stage.reach(level, [cover.start, last])
        stage, level = feeding, number
    return None


class Uses:
    """Counts how often each input chunk is still needed by a region of a stage's chunks.

    What a chunk needs is taken to be a range along each axis that depends on its place along that
    axis alone, as it is for every op that is a function of a block and its halo. An axis that the
    stage adds or takes away is computed whole.

    Parameters
    ----------
    stage : OpStage
        Whose chunks are computed.
    level : int
        0 is the finest.
    region : Box
        The indices of the chunks that will be computed.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize import Box, open_view
    >>> view = open_view(np.zeros(40, "u1").reshape(1, 40), "gaussian:sigma=1", chunks=(1, 10))
    >>> uses = Uses(view.stages[-1], 0, Box((0, 0), (1, 4)))
    >>> uses.done([(0, 0)])  # its neighbour needs chunk 0 too
    []
    >>> uses.done([(0, 1)])
    [(0, 0)]
    """

    def __init__(self, stage: OpStage, level: int, region: Box) -> None:
        assert stage.previous is not None
        self._stage, self._level, self._region = stage, level, region
        feeding, number = stage.feeds(level)
        self._grid = feeding.levels[number].grid
        made = [axis.name for axis in stage.levels[level].axes]
        given = [axis.name for axis in feeding.levels[number].axes]
        # for each input axis, which output axis it follows; None if it is needed whole
        self._follows = [made.index(name) if name in made else None for name in given]
        self._ranges: dict[tuple[int, int], range] = {}
        self._users: dict[tuple[int, int], int] = {}
        self._left: dict[Index, int] = {}

    def done(self, chunks: Iterable[Index]) -> list[Index]:
        """Take note that chunks were computed; return the input chunks that none needs any more."""
        over = []
        for place in dict.fromkeys(map(self._shared, chunks)):
            for part in itertools.product(*self._needs(place)):
                left = self._left.get(part)
                left = (self._count(part) if left is None else left) - 1
                if left > 0:
                    self._left[part] = left
                else:
                    self._left.pop(part, None)
                    over.append(part)
        return over

    def _shared(self, chunk: Index) -> Index:
        """Return a chunk's place along the axes that its inputs have too."""
        return tuple(0 if axis is None else chunk[axis] for axis in self._follows)

    def _needs(self, place: Index) -> list[range]:
        return [self._range(axis, at) for axis, at in enumerate(place)]

    def _range(self, axis: int, at: int) -> range:
        """Return which input chunks along an axis an output chunk needs that is at ``at``."""
        known = self._ranges.get((axis, at))
        if known is None:
            chunk = list(self._region.start)
            follows = self._follows[axis]
            if follows is not None:
                chunk[follows] = at
            reach = self._grid.indices(self._stage.reach(self._level, [tuple(chunk)]))
            known = self._ranges[axis, at] = range(reach.start[axis], reach.stop[axis])
        return known

    def _count(self, part: Index) -> int:
        """Return how many places of the region need an input chunk."""
        return math.prod(self._users_along(axis, at) for axis, at in enumerate(part))

    def _users_along(self, axis: int, at: int) -> int:
        follows = self._follows[axis]
        if follows is None:
            return 1
        known = self._users.get((axis, at))
        if known is None:
            places = range(self._region.start[follows], self._region.stop[follows])
            # further places need what lies further: the ranges' ends only grow
            first = bisect_right(places, at, key=lambda place: self._range(axis, place).stop)
            last = bisect_right(places, at, key=lambda place: self._range(axis, place).start)
            known = self._users[axis, at] = max(1, last - first)
        return known


class Regions:
    """What the jobs under way will ask for, each chunk once: so what they need no more is known."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, int], list[Uses]] = {}

    def enter(self, stage: OpStage, level: int, region: Box) -> Uses:
        """Take note that a job will compute a region of a stage's chunks."""
        uses = Uses(stage, level, region)
        self._uses.setdefault((stage.identity, level), []).append(uses)
        return uses

    def leave(self, stage: OpStage, level: int, uses: Uses) -> None:
        """Take note that the job is over."""
        here = self._uses[stage.identity, level]
        here.remove(uses)
        if not here:
            del self._uses[stage.identity, level]

    def done(self, stage: Stage, level: int, chunks: Iterable[Index]) -> list[ChunkKey]:
        """Take note that chunks were computed; return the inputs that no job needs any more.

        Where two jobs are over the same, neither knows what the other needs: none.
        """
        uses = self._uses.get((stage.identity, level), ())
        if len(uses) != 1:
            return []
        feeding, number = stage.feeds(level)
        return [ChunkKey(feeding.identity, number, index) for index in uses[0].done(chunks)]
