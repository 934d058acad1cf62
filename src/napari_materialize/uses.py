"""Which source chunks a job still needs, and of each what.

Pure counting over a region of chunks. A miscount is never an error in what is computed: a source
chunk that is let go too early is read again, one that is held too long falls to the cache's budget.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Iterable

    from napari_materialize.geometry import Index
    from napari_materialize.stages import OpStage, Stage

__all__ = ["CUT_TO", "Uses", "first_region"]

CUT_TO = 2
"""How many times smaller than a chunk what is needed of it has to be, to count as a margin."""

KNOWN_TURNS = 4096
"""Places in the walk that are remembered."""


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
    >>> list(uses.margins((0, 0)))
    [Box(start=(0, 6), stop=(1, 10))]
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
        self._ranges: dict[tuple[int, int], range] = {}
        self._reaches: dict[tuple[int, int], tuple[int, int]] = {}
        self._users: dict[tuple[int, int], range] = {}
        self._left: dict[Index, set[Index]] = {}
        shared = [
            (0, 1) if at is None else (region.start[at], region.stop[at]) for at in self._follows
        ]
        self._places = [range(start, stop) for start, stop in shared]
        marks = stage.spread(level)
        self._spread = [at is not None and marks[at] for at in self._follows]
        self._bits = max((place.stop for place in self._places), default=0).bit_length()
        self._shares: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self._turns: dict[Index, tuple[int, ...]] = {}
        self._counts: Index = ()
        self.ahead: dict[Index, tuple[tuple[int, ...], Index]] = {}
        """Input chunks that are held whole, and that will be needed so: in which turn, by whom."""
        self.held: dict[Index, dict[Box, set[Index]]] = {}
        """Of input chunks that gave way to parts: who still needs each of these."""
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
            if not self._note(place):
                continue
            for part in itertools.product(*self._needs(place)):
                if self._took(part, {place}):
                    still[part] = None
                else:
                    still.pop(part, None)
                    over[part] = None
        return list(over), list(still)

    def took(
        self, parts: Iterable[Index], chunks: Iterable[Index]
    ) -> tuple[list[Index], list[Index]]:
        """Take note that chunks, not computed yet, need nothing more of some input chunks.

        Returns
        -------
        tuple of two lists of index
            The input chunks that none needs any more, and those that some still need.
        """
        places = set(map(self._shared, chunks))
        split: tuple[list[Index], list[Index]] = ([], [])
        for part in parts:
            split[self._took(part, places)].append(part)
        return split

    def _took(self, part: Index, places: set[Index]) -> bool:
        """Note who needs nothing more of an input chunk; return whether others do."""
        left = self._left.get(part)
        if left is None:
            users = itertools.product(*self._all_users(part))
            left = self._left[part] = {user for user in users if not self._is_done(user)}
        left -= places
        for who in self.held.get(part, {}).values():
            who.difference_update(places)
        if not left:
            del self._left[part]
        return bool(left)

    def _is_done(self, place: Index) -> bool:
        number = self._number(place)
        return number is not None and bool(self._done[number])

    def _number(self, place: Index) -> int | None:
        """Return the number of a place of the region, None outside of it."""
        number = 0
        for at, places in zip(place, self._places, strict=True):
            if at not in places:
                return None
            number = number * len(places) + at - places.start
        return number

    def _note(self, place: Index) -> bool:
        """Note that a place was computed; return whether it is one of the region."""
        number = self._number(place)
        if number is not None:
            self._done[number] = True
        return number is not None

    def margins(self, part: Index, before: tuple[int, ...] | None = None) -> dict[Box, set[Index]]:
        """Return the largest boxes of an input chunk that are still needed, perhaps ``before``
        some turn of the walk, and by whom.
        """
        shares = [self._shares_along(axis, at) for axis, at in enumerate(part)]
        needed: dict[tuple[tuple[int, int], ...], set[Index]] = {}
        for user in self._left[part]:
            if before is None or self._turn(user) < before:
                ranges = tuple(share[at] for share, at in zip(shares, user, strict=True))
                needed.setdefault(ranges, set()).add(user)
        largest: dict[Box, set[Index]] = {}
        for ranges in sorted(needed, key=_voxels, reverse=True):
            box = Box(*zip(*ranges, strict=True))
            there = next((one for one in largest if one.contains(box)), box)
            largest.setdefault(there, set()).update(needed[ranges])
        return largest

    def needed_whole(self, part: Index, counts: Index) -> tuple[tuple[int, ...], Index] | None:
        """Return the first turn, and whose it is, in which more of an input chunk is needed than a
        margin; None if there is none.
        """
        if counts != self._counts:
            self._counts = counts
            self._turns.clear()
        shares = [self._shares_along(axis, at) for axis, at in enumerate(part)]
        whole, first = self._grid.box(part).size, None
        for user in self._left[part]:
            size = _voxels([share[at] for share, at in zip(shares, user, strict=True)])
            if CUT_TO * size > whole:
                turn = (self._turn(user), user)
                first = turn if first is None else min(first, turn)
        return first

    def waits_for(self, part: Index) -> bool:
        """Whether who will need a chunk whole, as found before, still needs it."""
        found = self.ahead.get(part)
        return found is not None and found[1] in self._left[part]

    def _turn(self, place: Index) -> tuple[int, ...]:
        """Return a number that grows along the walk; chunks of one block have the same."""
        cell = tuple(
            at if axis is None else at // self._counts[axis]
            for at, axis in zip(place, self._follows, strict=True)
        )
        known = self._turns.get(cell)
        if known is None:
            marked = [at for at, spread in zip(cell, self._spread, strict=True) if spread]
            plain = [at for at, spread in zip(cell, self._spread, strict=True) if not spread]
            # Morton's order, as in `geometry.walk_blocks`
            morton = 0
            for bit in reversed(range(self._bits)):
                for at in marked:
                    morton = 2 * morton + (at >> bit & 1)
            if len(self._turns) >= KNOWN_TURNS:
                self._turns.clear()
            known = self._turns[cell] = (*plain, morton)
        return known

    def _shares_along(self, axis: int, at: int) -> dict[int, tuple[int, int]]:
        """Return, for each place along an axis, which voxels it needs of an input chunk there."""
        known = self._shares.get((axis, at))
        if known is None:
            size = self._grid.chunks[axis]
            low, high = at * size, min((at + 1) * size, self._grid.shape[axis])
            known = self._shares[axis, at] = {}
            for user in self._users_along(axis, at):
                start, stop = self._reach(axis, user)
                known[user] = (max(low, start), min(high, stop))
        return known

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


def _voxels(ranges: Iterable[tuple[int, int]]) -> int:
    return math.prod(stop - start for start, stop in ranges)
