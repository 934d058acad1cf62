"""One run of work of a view: reading a source, or a few ops computed together on one block.

A stage computes only when it is handed its input chunks; it keeps nothing, waits for nothing and
knows no threads. How a block is put together, and past which edges, is in `blocks`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from napari_materialize.blocks import (
    BlockLimits,
    Boundary,
    Link,
    Rest,
    Step,
    best_block,
    gather,
    made_box,
    own_voxels,
    pad,
    spread,
    steps_for,
    take,
)
from napari_materialize.errors import ChunkError
from napari_materialize.ops import Abandoned, Op, never

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Box, ChunkGrid, Index

__all__ = ["ChunkKey", "OpStage", "Source", "SourceStage", "Stage", "look"]

KNOWN_STEPS = 512
"""Computations of a stage whose boxes are remembered."""


class Source(Protocol):
    """A multiscale image that exists. Its methods may be called from any thread."""

    @property
    def name(self) -> str:
        """A short name for people."""

    @property
    def identity(self) -> str:
        """Text that is equal for sources with equal content."""

    @property
    def stable(self) -> bool:
        """Whether ``identity`` means the same in another process."""

    @property
    def kind(self) -> Kind:
        """What the voxels mean."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels, finest first."""

    @property
    def location(self) -> str | None:
        """A local path or a URL without credentials; None for arrays in memory."""

    @property
    def record(self) -> Mapping[str, Any]:
        """What a result says of its source, as JSON; without credentials."""

    def read(self, level: int, box: Box) -> np.ndarray:
        """Return exactly the voxels of ``box``."""


class ChunkKey(NamedTuple):
    """One chunk of one stage of one level, among all that an engine knows."""

    stage: str
    """The stage's identity."""

    level: int
    """0 is the finest."""

    chunk: Index
    """Its place in the level's chunk grid."""


@dataclass(frozen=True)
class _Work:
    """What computing some chunks comes to; what is long for a whole region when it is asked for."""

    made: Box
    """The voxels that come out."""

    chain: Sequence[Link]
    """The ops, as they run on the level."""

    given: ChunkGrid
    """How what goes in is cut."""

    grid: ChunkGrid
    """How what comes out is cut."""

    @cached_property
    def steps(self) -> list[Step]:
        """Each op's share; nobody needs it of a chunk that a block is made with."""
        return steps_for(self.chain, self.made)

    @cached_property
    def makes(self) -> tuple[Index, ...]:
        """The chunks that come out."""
        return tuple(self.grid.covering(self.made))

    @cached_property
    def needs(self) -> tuple[Index, ...]:
        """The chunks that go in."""
        return tuple(self.given.covering(self.steps[0].exists))

    @cached_property
    def effort(self) -> float:
        """The ops' work, in voxels that they are handed."""
        return sum(step.link.op.effort(step.makes, step.link.level) for step in self.steps)


@dataclass(frozen=True)
class SourceStage:
    """The stage that reads."""

    source: Source

    previous: None = None
    kept: bool = False
    lane: str = "read"

    @property
    def title(self) -> str:
        """What the stage does, in a few words for a message."""
        return f"reading {self.source.name!r}"

    # asked for ten times between a chunk's claim and its end
    @cached_property
    def identity(self) -> str:
        """The source's identity."""
        return self.source.identity

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The source's levels."""
        return self.source.levels

    def inputs(self, level: int, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Nothing: a source needs no chunks."""
        return ()

    def feeds(self, level: int) -> tuple[Stage, int]:
        """Return the stage and the level that a level is made of: there is none but itself."""
        return self, level

    def voxels(self, level: int, indices: Sequence[Index]) -> float:
        """Return how many voxels are read for some chunks, taken to be whole ones."""
        return math.prod(self.levels[level].chunks) * len(indices)

    def makes(self, level: int, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Each chunk is read alone."""
        return tuple(indices)

    def spread(self, level: int) -> tuple[bool, ...]:
        """Along no axis does a chunk need more than its own voxels."""
        return (False,) * self.levels[level].ndim

    def alike(self, level: int) -> bool:
        """Each chunk is read alone."""
        return True

    def block(self, level: int, voxel_seconds: float | None, limits: BlockLimits) -> Index:
        """Each chunk is read alone."""
        return (1,) * len(self.levels[level].shape)

    def compute(
        self,
        level: int,
        indices: Sequence[Index],
        inputs: Mapping[Index, np.ndarray | Rest],
        abandoned: Callable[[], bool] = never,
    ) -> dict[Index, np.ndarray]:
        """Read chunks."""
        chunks = {}
        whole: Callable[[int, Index], np.ndarray | None] = getattr(self.source, "read_chunk", _none)
        for index in indices:
            block = whole(level, index)
            if block is not None:
                chunks[index] = _own(block)
                continue
            box = self.levels[level].grid.box(index)
            block = np.asarray(self.source.read(level, box))
            _check(block, box, self.levels[level].dtype, f"source {self.source.name!r}")
            chunks[index] = _own(block)
        return chunks


@dataclass(frozen=True)
class OpStage:
    """A run of ops computed together on one block."""

    previous: Stage
    """The stage whose chunks it reads."""

    ops: tuple[Op, ...]
    boundary: Boundary
    chains: tuple[tuple[Link, ...], ...]
    """Per level, the ops as they run on it."""

    levels: tuple[Level, ...]
    """What comes out, per level."""

    marks: tuple[str, ...]
    """The ops' identities; of an op that has none, one that no other has."""

    lane: str = "compute"

    reads: tuple[int | None, ...] = ()
    """Per level, the level of the previous stage that it is computed from; None for a level that is
    computed from this stage's own next finer one. Empty: each from the level of the same number."""

    @cached_property
    def identity(self) -> str:
        """The digest of everything that decides what the stage's chunks are.

        Made op by op: the same ops cut into other stages have the same identity, and so one chunk.
        """
        digest = self.previous.identity
        for mark in self.marks:
            parts = (digest, self.boundary, mark)
            digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return digest

    @property
    def kept(self) -> bool:
        """Whether what comes out is kept, whoever asked for it."""
        return self.ops[-1].kept

    @property
    def title(self) -> str:
        """What the stage does, in a few words for a message."""
        return " and ".join(op.name for op in self.ops)

    def inputs(self, level: int, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Return the chunks of the previous stage that some chunks are computed from.

        None where the source's voxels are at hand: each block is copied from them at once.
        """
        return () if self.at_hand(level) is not None else self._steps(level, indices).needs

    def feeds(self, level: int) -> tuple[Stage, int]:
        """Return the stage and the level of it whose chunks a level is computed from."""
        if not self.reads:
            return self.previous, level
        number = self.reads[level]
        return (self, level - 1) if number is None else (self.previous, number)

    def reach(self, level: int, indices: Sequence[Index]) -> Box:
        """Return the voxels of the previous stage that some chunks are computed from."""
        return self._steps(level, indices).steps[0].exists

    def voxels(self, level: int, indices: Sequence[Index]) -> float:
        """Return the work of the stage's ops for some chunks, in voxels that they are handed.

        Of chunks that are computed alone, the work of a whole one is told for each.
        """
        if not self.alike(level):
            return self._steps(level, indices).effort
        known = self._whole.get(level)
        if known is None:
            first = (0,) * self.levels[level].ndim
            known = self._whole[level] = self._steps(level, [first]).effort
        return known * len(indices)

    def makes(self, level: int, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Return the chunks that one computation of some chunks yields, in order.

        An op that makes channels makes all of them at once.
        """
        return self._steps(level, indices).makes

    def spread(self, level: int) -> tuple[bool, ...]:
        """Return along which axes of a level a chunk needs voxels beyond its own: has a halo."""
        return spread(self.chains[level], self.levels[level])

    def alike(self, level: int) -> bool:
        """Whether each chunk is computed from the chunk at its place alone, and it from nothing
        else: one goes in, and one comes out.
        """
        known = self._alike.get(level)
        if known is None:
            stage, number = self.feeds(level)
            made = self.levels[level]
            same = made.grid == stage.levels[number].grid
            known = self._alike[level] = same and own_voxels(self.chains[level], made)
        return known

    @cached_property
    def _whole(self) -> dict[int, float]:
        """The work of a chunk, by level."""
        return {}

    @cached_property
    def _alike(self) -> dict[int, bool]:
        return {}

    def at_hand(self, level: int) -> np.ndarray | None:
        """Return all voxels that a level is computed from, if they are in memory and a chunk needs
        more of them than its own.

        To cut them into chunks and to put blocks together from these would copy all of it twice.
        """
        stage, number = self.feeds(level)
        if not isinstance(stage, SourceStage) or self.alike(level):
            return None
        lend: Callable[[int], np.ndarray | None] = getattr(stage.source, "lend", _none)
        return lend(number)

    def block(self, level: int, voxel_seconds: float | None, limits: BlockLimits) -> Index:
        """Return how many chunks along each axis are best computed in one call; see `blocks`."""
        return best_block(self.chains[level], self.levels[level], voxel_seconds, limits)

    def compute(
        self,
        level: int,
        indices: Sequence[Index],
        inputs: Mapping[Index, np.ndarray | Rest],
        abandoned: Callable[[], bool] = never,
    ) -> dict[Index, np.ndarray]:
        """Compute chunks that form a box together, and those that come with them.

        Parameters
        ----------
        level, indices
            Which chunks, the outermost ones first and last.
        inputs : mapping of index to numpy.ndarray or Rest
            The previous stage's chunks that `inputs` names, and perhaps more; of a chunk at least
            what is in `reach`.
        abandoned : callable
            Returns True once nobody waits any more.

        Returns
        -------
        dict of index to numpy.ndarray
            The chunks of `makes`, clipped to the level, contiguous, read-only.

        Raises
        ------
        Abandoned
            If nobody waits any more and an op noticed.
        """
        if self.alike(level):
            return {index: self._one(level, index, inputs[index], abandoned) for index in indices}
        work = self._steps(level, indices)
        made, steps = work.made, work.steps
        stage, number = self.feeds(level)
        voxels, given = self.at_hand(level), stage.levels[number]
        if voxels is None:
            block = gather(steps[0], given, inputs, self.boundary)
        else:
            block = take(steps[0], given, voxels, self.boundary)
        for place, step in enumerate(steps):
            if abandoned():
                raise Abandoned
            if place:
                block = pad(block, step, self.boundary)
            block.flags.writeable = False
            block = step.link.op.run(block, step.makes, step.link.level, abandoned)
        return self._cut(level, block, made)

    def _one(
        self, level: int, index: Index, block: np.ndarray | Rest, abandoned: Callable[[], bool]
    ) -> np.ndarray:
        """Compute a chunk from the one at its place: nothing is put together, and nothing cut."""
        assert isinstance(block, np.ndarray)  # all of it is needed, so there is all of it
        output = self.levels[level]
        box, block = output.grid.box(index), block.view()
        for link in self.chains[level]:
            if abandoned():
                raise Abandoned
            block.flags.writeable = False
            block = link.op.run(block, box, link.level, abandoned)
        _check(block, box, output.dtype, f"op {self.ops[-1].name}")
        return _own(block)

    def _cut(self, level: int, block: np.ndarray, made: Box) -> dict[Index, np.ndarray]:
        """Cut a computed block into chunks."""
        output, who = self.levels[level], f"op {self.ops[-1].name}"
        _check(block, made, output.dtype, who)
        parts = {index: output.grid.box(index) for index in output.grid.covering(made)}
        if len(parts) == 1:
            return {index: _own(block) for index in parts}
        return {
            index: _own(block[box.relative_to(made.start).slices].copy())
            for index, box in parts.items()
        }

    def _steps(self, level: int, indices: Sequence[Index]) -> _Work:
        """Return what computing some chunks comes to.

        It is asked for half a dozen times between a chunk's claim and its end.
        """
        place = (level, indices[0], indices[-1])
        known = self._known.get(place)
        if known is None:
            chain = self.chains[level]
            made = made_box(chain, self.levels[level], indices)
            stage, number = self.feeds(level)
            known = _Work(made, chain, stage.levels[number].grid, self.levels[level].grid)
            if len(self._known) >= KNOWN_STEPS:
                self._known.clear()
            self._known[place] = known
        return known

    @cached_property
    def _known(self) -> dict[tuple[int, Index, Index], _Work]:
        return {}


type Stage = SourceStage | OpStage
"""One run of work whose output chunks have a state and may be kept."""


def look(stage: Stage, level: int, box: Box) -> np.ndarray:
    """Return the voxels of a box of a stage's level, computed here and now; nothing is kept."""
    if isinstance(stage, SourceStage):
        return np.asarray(stage.source.read(level, box))
    grid, (previous, number) = stage.levels[level].grid, stage.feeds(level)
    result = np.empty(box.shape, stage.levels[level].dtype)
    missing = dict.fromkeys(grid.covering(box))
    while missing:
        index = next(iter(missing))
        inputs = {
            part: look(previous, number, previous.levels[number].grid.box(part))
            for part in stage.inputs(level, [index])
        }
        for place, block in stage.compute(level, [index], inputs).items():
            made = grid.box(place)
            part = made.intersect(box)
            if not part.is_empty:
                cut = part.relative_to(made.start).slices
                result[part.relative_to(box.start).slices] = block[cut]
            missing.pop(place, None)
    return result


def _none(level: int, index: Index = ()) -> None:
    """Return nothing: a source that has no way of its own to a chunk is asked for its box."""


def _check(block: np.ndarray, box: Box, dtype: np.dtype, who: str) -> None:
    if block.shape != box.shape or block.dtype != dtype:
        raise ChunkError(
            f"{who}: shape {box.shape} and dtype {dtype} were announced for voxels {box.start} to "
            f"{box.stop}, got {block.shape} and {block.dtype}; what it announces must be kept"
        )


def _own(block: np.ndarray) -> np.ndarray:
    """Make a result a contiguous, read-only array that holds no more memory than it shows."""
    block = np.ascontiguousarray(block).view()
    base = block.base
    if isinstance(base, np.ndarray) and base.nbytes > 2 * block.nbytes:
        block = block.copy()
    block.flags.writeable = False
    return block
