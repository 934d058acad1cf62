"""What jobs will ask for, and how much of their source they hold for it.

A source chunk is let go after the last use, and when only margins of it are needed, for the halos
of what comes later, it gives way to these: a `Rest`, under a key of its own. A computation that
needs a margin takes a piece of its own as soon as the chunk is there, and does not hold the chunk.

A chunk that is read for a halo is needed whole when the walk comes to its place, which may be a
layer of the region later. Where it is cheap to read it again only so many are held until then, and
of the others what is needed before: so what a job holds does not grow with the region.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.blocks import Rest
from napari_materialize.cache import Pool
from napari_materialize.stages import ChunkKey
from napari_materialize.uses import CUT_TO, Uses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy as np

    from napari_materialize.cache import ChunkCache
    from napari_materialize.geometry import Box, Index
    from napari_materialize.stages import OpStage, Stage

__all__ = ["Ahead", "Regions", "found_rest", "piece"]

CUT_BYTES = 2**16
"""Bytes of a chunk that may be cut: of a smaller one little is gained."""


class Ahead(NamedTuple):
    """How a job walks, and what it may hold of what it will need later."""

    counts: Index
    """Chunks along each axis that are computed in one call."""

    voxels: int | None
    """Voxels of source chunks that are held until they are needed whole; None: all of them."""


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

    def only(self, stage: Stage, level: int) -> Uses | None:
        """Return what is counted of the one job over a stage's level.

        Where two jobs are over the same, neither knows what the other needs: nothing is.
        """
        uses = self._uses.get((stage.identity, level), ())
        return uses[0] if len(uses) == 1 else None

    def settle(
        self,
        cache: ChunkCache[ChunkKey],
        stage: Stage,
        level: int,
        chunks: Iterable[Index],
        *,
        ahead: Ahead,
    ) -> None:
        """Take note that chunks were computed; let go what the job needs no more of the inputs."""
        uses = self.only(stage, level)
        if uses is not None:
            _tend(cache, stage, level, uses, split=uses.done(chunks), ahead=ahead)

    def took(
        self,
        cache: ChunkCache[ChunkKey],
        stage: Stage,
        level: int,
        chunks: Iterable[Index],
        *,
        pieces: Iterable[Index],
        whole: Iterable[Index] = (),
        ahead: Ahead,
    ) -> None:
        """Take note that chunks have what they need of some inputs, and hold others; let go what
        none needs.
        """
        uses = self.only(stage, level)
        if uses is not None:
            for part in whole:
                uses.ahead.pop(part, None)
            _tend(cache, stage, level, uses, split=uses.took(pieces, chunks), ahead=ahead)


def found_rest(cache: ChunkCache[ChunkKey], key: ChunkKey, reach: Box) -> Rest | None:
    """Return what is left of a chunk, if that has all of ``reach`` that the chunk had.

    Parameters
    ----------
    cache : ChunkCache
        Where it may be.
    key : ChunkKey
        The chunk, which is not there.
    reach : Box
        Voxels of the chunk's level that are needed, of this and of other chunks.
    """
    rest = cache.peek(_rest_key(key))
    return None if rest is None else rest.piece(reach)


def piece(voxels: np.ndarray, whole: Box, reach: Box) -> Rest | None:
    """Return a copy of what is needed of a chunk, if that is much less than the chunk."""
    box = reach.intersect(whole)
    if voxels.nbytes < CUT_BYTES or CUT_TO * box.size > whole.size:
        return None
    return Rest.of(whole, voxels, [box])


def _rest_key(key: ChunkKey) -> ChunkKey:
    return ChunkKey(f"{key.stage} rest", key.level, key.chunk)


def _tend(
    cache: ChunkCache[ChunkKey],
    stage: Stage,
    level: int,
    uses: Uses,
    *,
    split: tuple[Collection[Index], Collection[Index]],
    ahead: Ahead,
) -> None:
    """Let input chunks go that are over, and of those that some still need what none does."""
    feeding, number = stage.feeds(level)
    over, still = split
    for index in over:
        key = ChunkKey(feeding.identity, number, index)
        uses.ahead.pop(index, None)
        uses.held.pop(index, None)
        cache.let_go(key, "no chunk of the job needs it any more")
        cache.let_go(_rest_key(key), "no chunk of the job needs it any more")
    for index in still:
        key = ChunkKey(feeding.identity, number, index)
        if not all(uses.held.get(index, {}).values()):
            _hold_parts(cache, key, uses, index)
        if uses.waits_for(index) or cache.spare(key) < CUT_BYTES:
            continue
        whole = uses.needed_whole(index, ahead.counts)
        if whole is not None:
            uses.ahead[index] = whole
        else:
            uses.ahead.pop(index, None)
            _cut(cache, key, feeding.levels[number].grid.box(index), uses, uses.margins(index))
    if ahead.voxels is not None:
        _hold_less(cache, feeding, number, uses, ahead.voxels)


def _hold_less(
    cache: ChunkCache[ChunkKey], feeding: Stage, number: int, uses: Uses, most: int
) -> None:
    """Of what is held until it is needed whole, hold no more than ``most`` voxels so: of what
    comes last only what is needed before, and it is read again then.
    """
    grid, size = feeding.levels[number].grid, math.prod(feeding.levels[number].chunks)
    while len(uses.ahead) * size > most:
        index, (turn, _) = max(uses.ahead.items(), key=_turn_of)
        del uses.ahead[index]
        key = ChunkKey(feeding.identity, number, index)
        if cache.spare(key):
            _cut(cache, key, grid.box(index), uses, uses.margins(index, turn))
            cache.let_go(key, "needed much later, and cheap to read again")


def _turn_of(entry: tuple[Index, tuple[tuple[int, ...], Index]]) -> tuple[int, ...]:
    return entry[1][0]


def _cut(
    cache: ChunkCache[ChunkKey],
    key: ChunkKey,
    whole: Box,
    uses: Uses,
    margins: dict[Box, set[Index]],
) -> None:
    """Let a chunk give way to parts of it, if that is much less."""
    if margins and CUT_TO * sum(box.size for box in margins) <= whole.size:
        rest = Rest.of(whole, cache.get(key), list(margins))
        uses.held[key.chunk] = margins
        cache.let_go(key, "only a part of it is still needed")
        _put_rest(cache, key, rest)


def _hold_parts(cache: ChunkCache[ChunkKey], key: ChunkKey, uses: Uses, index: Index) -> None:
    """Let the parts of a chunk go that nobody needs any more."""
    uses.held[index] = margins = {box: who for box, who in uses.held[index].items() if who}
    rest = cache.peek(_rest_key(key))
    if rest is not None:
        _put_rest(cache, key, Rest(rest.whole, tuple(p for p in rest.parts if p[0] in margins)))


def _put_rest(cache: ChunkCache[ChunkKey], key: ChunkKey, rest: Rest) -> None:
    """Hold what is left of a chunk, and nothing else of it."""
    there, reason = _rest_key(key), "only a part of it is still needed"
    cache.let_go(there, "less of it is still needed")
    if rest.parts:
        cache.request(there, Pool.INPUTS, reason, lasting=False)
        cache.start(there, reason)
        cache.fulfil(there, rest, reason=reason)
