"""One run of work of a view: reading a source, or a few ops computed together on one block.

Owns the arithmetic of halos and of the volume's edge. A stage computes only when it is handed its
input chunks; it keeps nothing, waits for nothing and knows no threads.

Halos are exact. The block an op is handed holds the voxels around it that the op run over the
whole level would see, and past the level's edge what the boundary rule says *of that op's input*,
so a chain of ops equals each op run over the whole level in turn, at every face.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

from napari_materialize.errors import ChunkError
from napari_materialize.ops import Abandoned, Op, never

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Box, Index

__all__ = [
    "BOUNDARIES",
    "Boundary",
    "ChunkKey",
    "Link",
    "OpStage",
    "Source",
    "SourceStage",
    "Stage",
]

type Boundary = Literal["edge", "zeros"]
"""What lies past the volume's edge: its outermost voxels repeated, or zeros."""

BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary.__value__)


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


class Link(NamedTuple):
    """One op of a stage, as it runs on one level."""

    op: Op
    level: Level
    """What goes in."""


class _Step(NamedTuple):
    """One op's share in making a block."""

    link: Link
    exists: Box
    """The input voxels it is handed, as far as they lie inside the level."""

    block: Box
    """All it is handed, perhaps past the level's edge."""

    makes: Box
    """The output voxels that are wanted of it."""


@dataclass(frozen=True)
class SourceStage:
    """The stage that reads."""

    source: Source

    previous: None = None
    lane: str = "read"

    @property
    def title(self) -> str:
        """What the stage does, in a few words for a message."""
        return f"reading {self.source.name!r}"

    @property
    def identity(self) -> str:
        """The source's identity."""
        return self.source.identity

    @property
    def levels(self) -> tuple[Level, ...]:
        """The source's levels."""
        return self.source.levels

    def inputs(self, level: int, index: Index) -> tuple[Index, ...]:
        """Nothing: a source needs no chunks."""
        return ()

    def together(self, level: int, index: Index) -> tuple[Index, ...]:
        """Each chunk is read alone."""
        return (index,)

    def compute(
        self,
        level: int,
        index: Index,
        inputs: Mapping[Index, np.ndarray],
        abandoned: Callable[[], bool] = never,
    ) -> dict[Index, np.ndarray]:
        """Read a chunk."""
        box = self.levels[level].grid.box(index)
        block = np.asarray(self.source.read(level, box))
        _check(block, box, self.levels[level].dtype, f"source {self.source.name!r}")
        return {index: _own(block)}


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

    lane: str = "compute"

    @cached_property
    def identity(self) -> str:
        """The digest of everything that decides what the stage's chunks are."""
        parts = [self.previous.identity, self.boundary]
        parts += (op.identity or f"{op.name}@{uuid.uuid4()}" for op in self.ops)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def title(self) -> str:
        """What the stage does, in a few words for a message."""
        return " and ".join(op.name for op in self.ops)

    def inputs(self, level: int, index: Index) -> tuple[Index, ...]:
        """Return the chunks of the previous stage that a chunk is computed from."""
        steps = self._steps(level, self._made(level, index))
        return tuple(self.previous.levels[level].grid.covering(steps[0].exists))

    def together(self, level: int, index: Index) -> tuple[Index, ...]:
        """Return the chunks that one computation yields, this one among them, in order.

        An op that makes channels makes all of them at once.
        """
        return tuple(self.levels[level].grid.covering(self._made(level, index)))

    def compute(
        self,
        level: int,
        index: Index,
        inputs: Mapping[Index, np.ndarray],
        abandoned: Callable[[], bool] = never,
    ) -> dict[Index, np.ndarray]:
        """Compute a chunk, and those that come with it.

        Parameters
        ----------
        level, index
            Which chunk.
        inputs : mapping of index to numpy.ndarray
            The previous stage's chunks that `inputs` names.
        abandoned : callable
            Returns True once nobody waits any more.

        Returns
        -------
        dict of index to numpy.ndarray
            The chunks of `together`, clipped to the level, contiguous, read-only.

        Raises
        ------
        Abandoned
            If nobody waits any more and an op noticed.
        """
        made = self._made(level, index)
        steps = self._steps(level, made)
        block = _gather(steps[0], self.previous.levels[level], inputs, self.boundary)
        for number, step in enumerate(steps):
            if abandoned():
                raise Abandoned
            if number:
                block = _pad(block, step, self.boundary)
            block.flags.writeable = False
            block = step.link.op.run(block, step.makes, step.link.level, abandoned)
        return self._cut(level, block, made)

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

    def _made(self, level: int, index: Index) -> Box:
        """Return the voxels that come out when a chunk is computed."""
        output, (op, given) = self.levels[level], self.chains[level][-1]
        return op.outputs(op.inputs(output.grid.box(index), given), given).clip(output.shape)

    def _steps(self, level: int, box: Box) -> list[_Step]:
        """Walk the ops from last to first: which voxels each needs for ``box`` to come out."""
        steps: list[_Step] = []
        for link in reversed(self.chains[level]):
            block = link.op.reach(box, link.level)
            exists = block.clip(link.level.shape)
            steps.append(_Step(link, exists, block, box))
            box = exists
        return steps[::-1]


type Stage = SourceStage | OpStage
"""One run of work whose output chunks have a state and may be kept."""


def _gather(
    step: _Step, level: Level, chunks: Mapping[Index, np.ndarray], boundary: Boundary
) -> np.ndarray:
    """Put the block of the first op together from chunks; no copy if it is one whole chunk."""
    if len(chunks) == 1:
        [(index, chunk)] = chunks.items()
        if level.grid.box(index) == step.block:
            return chunk.view()
    block = np.empty(step.block.shape, level.dtype)
    for index, chunk in chunks.items():
        box = level.grid.box(index)
        part = box.intersect(step.exists)
        target = part.relative_to(step.block.start).slices
        block[target] = chunk[part.relative_to(box.start).slices]
    _fill_outside(block, step, boundary)
    return block


def _pad(block: np.ndarray, step: _Step, boundary: Boundary) -> np.ndarray:
    """Return the block an op in the middle of a stage is handed, past the edge too."""
    if step.block == step.exists:
        return block
    padded = np.empty(step.block.shape, block.dtype)
    padded[step.exists.relative_to(step.block.start).slices] = block
    _fill_outside(padded, step, boundary)
    return padded


def _fill_outside(block: np.ndarray, step: _Step, boundary: Boundary) -> None:
    """Fill the voxels past the level's edge, axis by axis, in place."""
    inside = step.exists.relative_to(step.block.start)
    for axis, (low, high) in enumerate(zip(inside.start, inside.stop, strict=True)):
        lead = (slice(None),) * axis
        before, after = (*lead, slice(0, low)), (*lead, slice(high, None))
        if boundary == "zeros":
            block[before] = 0
            block[after] = 0
        else:
            block[before] = block[(*lead, slice(low, low + 1))]
            block[after] = block[(*lead, slice(high - 1, high))]


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
