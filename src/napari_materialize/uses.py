"""Which source chunks a job still needs, and of each what: so that no more of it is held.

A chunk is let go after the last use, and when only a margin of it is needed, for the halo of what
comes later, it gives way to that: a `Rest`, under a key of its own. Where it is cheap to read again
what is needed much later, whole, counts as not needed.

Pure counting over a region of chunks. A miscount is never an error in what is computed: a source
chunk that is let go too early is read again, one that is held too long falls to the cache's budget.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from napari_materialize.blocks import Rest
from napari_materialize.cache import ChunkState, Pool
from napari_materialize.geometry import Box
from napari_materialize.stages import ChunkKey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from napari_materialize.cache import ChunkCache
    from napari_materialize.geometry import Index
    from napari_materialize.stages import OpStage, Stage

__all__ = ["Regions", "Uses", "first_region", "found_rest"]

CUT_BYTES = 2**16
"""Bytes of a chunk that may be cut: of a smaller one little is gained."""

CUT_TO = 2
"""How many times smaller the part that is still needed has to be."""

AHEAD_VOXELS = 2**24
"""Voxels of the walk: a chunk whose own place is further ahead is read again, if that is cheap."""

KNOWN_TURNS = 4096
"""Blocks whose turns are remembered."""


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
    ([], [(0, 0), (0, 1)])
    >>> uses.rest((0, 0))
    Box(start=(0, 6), stop=(1, 10))
    >>> uses.done([(0, 1)])
    ([(0, 0)], [(0, 1), (0, 2)])
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
        spread = stage.spread(level)
        self._spread = [at is not None and spread[at] for at in self._follows]
        chunks = stage.levels[level].chunks
        self._alike = self._grid.chunks == tuple(
            0 if at is None else chunks[at] for at in self._follows
        )
        self._last: Index | None = None
        self._turns: dict[Index, int] = {}
        self._ranges: dict[tuple[int, int], range] = {}
        self._reaches: dict[tuple[int, int], tuple[int, int]] = {}
        self._users: dict[tuple[int, int], range] = {}
        self._left: dict[Index, set[Index]] = {}
        shared = [
            (0, 1) if at is None else (region.start[at], region.stop[at]) for at in self._follows
        ]
        self._places = [range(start, stop) for start, stop in shared]
        self._done = bytearray(math.prod(map(len, self._places)))
        """Which places were computed."""

    def done(self, chunks: Iterable[Index]) -> tuple[list[Index], list[Index]]:
        """Take note that chunks were computed.

        Returns
        -------
        tuple of two lists of index
            The input chunks that none needs any more, and those that some still need.
        """
        over: dict[Index, None] = {}
        still: dict[Index, None] = {}
        for place in dict.fromkeys(map(self._shared, chunks)):
            again = self._note(place)
            self._last = self._last if again is None else place
            for part in () if again is None else itertools.product(*self._needs(place)):
                left = self._left.get(part)
                if left is None and not again:
                    left = self._left[part] = set(itertools.product(*self._all_users(part)))
                if left is not None:
                    left.discard(place)
                if left:
                    still[part] = None
                else:
                    self._left.pop(part, None)
                    still.pop(part, None)
                    over[part] = None
        return list(over), list(still)

    def _note(self, place: Index) -> bool | None:
        """Note that a place was computed; return whether it was before, None outside the region."""
        number = 0
        for at, places in zip(place, self._places, strict=True):
            if at not in places:
                return None
            number = number * len(places) + at - places.start
        again, self._done[number] = bool(self._done[number]), True
        return again

    def rest(self, part: Index, block: Index | None = None) -> Box | None:
        """Return the box of the voxels of an input chunk that are still needed.

        Parameters
        ----------
        part : tuple of int
            The input chunk.
        block : tuple of int, optional
            If it is cheap to read again: how many chunks are computed in one call. Of one whose own
            place is far ahead counts what is needed before, and if that is nothing, None comes out.
        """
        left: Collection[Index] = self._left[part]
        if block is not None:
            left = self._before(part, left, block)
            if not left:
                return None
        start, stop = [], []
        for axis in range(len(part)):
            first, last = min(user[axis] for user in left), max(user[axis] for user in left)
            # further places need what lies further
            start.append(self._reach(axis, first)[0])
            stop.append(self._reach(axis, last)[1])
        return Box(tuple(start), tuple(stop)).intersect(self._grid.box(part))

    def _before(self, part: Index, left: Collection[Index], block: Index) -> Collection[Index]:
        """Return which of the places that are ``left`` come before that of an input chunk itself,
        whose block needs it whole; all of them, if it is not far ahead.
        """
        if not self._alike or self._last is None or part not in left:
            return left
        own = self._turn(part, block)
        ahead = own - self._turn(self._last, block)
        if ahead * math.prod(self._grid.chunks) <= AHEAD_VOXELS:
            return left
        return [place for place in left if self._turn(place, block) < own]

    def _turn(self, place: Index, block: Index) -> int:
        """Return how many chunks come before the block of a place, about: those of Morton's order,
        as in `geometry.walk_blocks`, whatever the region.
        """
        corner = tuple(
            at // block[axis] * block[axis]
            for at, axis, spread in zip(place, self._follows, self._spread, strict=True)
            if spread and axis is not None
        )
        turn = self._turns.get(corner)
        if turn is None:
            turn = 0
            for bit in reversed(range(max(corner, default=0).bit_length())):
                for at in corner:
                    turn = 2 * turn + (at >> bit & 1)
            if len(self._turns) >= KNOWN_TURNS:
                self._turns.clear()
            self._turns[corner] = turn
        return turn

    def _shared(self, chunk: Index) -> Index:
        """Return a chunk's place along the axes that its inputs have too."""
        return tuple(0 if axis is None else chunk[axis] for axis in self._follows)

    def _needs(self, place: Index) -> list[range]:
        return [self._range(axis, at) for axis, at in enumerate(place)]

    def _range(self, axis: int, at: int) -> range:
        """Return which input chunks along an axis an output chunk needs that is at ``at``."""
        known = self._ranges.get((axis, at))
        if known is None:
            start, stop = self._reach(axis, at)
            size = self._grid.chunks[axis]
            known = self._ranges[axis, at] = range(start // size, -(-stop // size))
        return known

    def _reach(self, axis: int, at: int) -> tuple[int, int]:
        """Return which input voxels along an axis an output chunk needs that is at ``at``."""
        known = self._reaches.get((axis, at))
        if known is None:
            chunk = list(self._region.start)
            follows = self._follows[axis]
            if follows is not None:
                chunk[follows] = at
            box = self._stage.reach(self._level, [tuple(chunk)])
            known = self._reaches[axis, at] = (box.start[axis], box.stop[axis])
        return known

    def _all_users(self, part: Index) -> list[range]:
        """Return which places of the region need an input chunk, along each axis."""
        return [self._users_along(axis, at) for axis, at in enumerate(part)]

    def _users_along(self, axis: int, at: int) -> range:
        follows = self._follows[axis]
        if follows is None:
            return range(1)
        known = self._users.get((axis, at))
        if known is None:
            places = range(self._region.start[follows], self._region.stop[follows])
            # further places need what lies further: the ranges' ends only grow
            first = bisect_right(places, at, key=lambda place: self._range(axis, place).stop)
            last = bisect_right(places, at, key=lambda place: self._range(axis, place).start)
            known = self._users[axis, at] = places[first:last]
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

    def settle(
        self,
        cache: ChunkCache[ChunkKey],
        stage: Stage,
        level: int,
        chunks: Iterable[Index],
        block: Index | None = None,
    ) -> None:
        """Take note that chunks were computed; let go what no job needs any more of the inputs.

        ``block`` is how many chunks are computed in one call, if the inputs are cheap to read
        again: then what is needed whole much later is let go, too. Where two jobs are over the
        same, neither knows what the other needs: nothing.
        """
        uses = self._uses.get((stage.identity, level), ())
        if len(uses) != 1:
            return
        feeding, number = stage.feeds(level)
        over, still = uses[0].done(chunks)
        for index in over:
            key = ChunkKey(feeding.identity, number, index)
            cache.let_go(key, "no chunk of the job needs it any more")
            cache.let_go(_rest_key(key), "no chunk of the job needs it any more")
        for index in still:
            key = ChunkKey(feeding.identity, number, index)
            if cache.spare(key) >= CUT_BYTES:
                _cut(cache, key, feeding.levels[number].grid.box(index), uses[0].rest(index, block))


def found_rest(cache: ChunkCache[ChunkKey], key: ChunkKey, reach: Box) -> ChunkKey | None:
    """Return the key of what is left of a chunk, if that has all of ``reach`` that the chunk had.

    Parameters
    ----------
    cache : ChunkCache
        Where it may be.
    key : ChunkKey
        The chunk, which is not there.
    reach : Box
        Voxels of the chunk's level that are needed, of this and of other chunks.
    """
    there = _rest_key(key)
    rest = cache.peek(there)
    return there if rest is not None and rest.covers(reach) else None


def _rest_key(key: ChunkKey) -> ChunkKey:
    return ChunkKey(f"{key.stage} rest", key.level, key.chunk)


def _cut(cache: ChunkCache[ChunkKey], key: ChunkKey, whole: Box, box: Box | None) -> None:
    """Let a chunk give way to a part of it, if that is much less, or to nothing."""
    there = _rest_key(key)
    if box is None:
        cache.let_go(key, "it is cheap to read again when it is needed")
        cache.let_go(there, "it is cheap to read again when it is needed")
        return
    if CUT_TO * box.size > whole.size:
        return
    before = cache.peek(there)
    if before is not None and before.covers(box):
        cache.let_go(key, "what is needed of it is held")
        return
    cache.let_go(there, "another part of it is needed")
    if cache.state(there) is ChunkState.READY:
        return  # it is in use
    voxels = cache.get(key)[box.relative_to(whole.start).slices].copy()
    voxels.flags.writeable = False
    reason = "only a part of it is still needed"
    cache.let_go(key, reason)
    cache.request(there, Pool.INPUTS, reason, lasting=False)
    cache.start(there, reason)
    cache.fulfil(there, Rest(box, whole, voxels), reason=reason)
