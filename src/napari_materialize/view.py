"""What a chunk would be: a source and a chain of ops, cut into stages. Pure description.

A `View` is a multiscale image that nobody has computed yet: a line of stages. The first is the
source. Each further one is a run of ops that are computed together on one block, read once with
the halos of all of them; an op marked as kept ends its stage, whose output chunks are kept.
"""

from __future__ import annotations

import operator
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from napari_materialize.blocks import BOUNDARIES, Link
from napari_materialize.downsample import method_for
from napari_materialize.errors import LevelError, OpError, OptionError, SourceError
from napari_materialize.geometry import Box, walk_blocks
from napari_materialize.ops import Op
from napari_materialize.resample import Resample, choose_level, steps_down
from napari_materialize.stages import ChunkKey, OpStage, SourceStage, look

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.blocks import Boundary
    from napari_materialize.geometry import Index
    from napari_materialize.stages import Source, Stage

__all__ = ["View"]

MOST_VOXELS = 2**31
"""Voxels that an op may be handed to compute one chunk."""


@dataclass(frozen=True)
class View:
    """A source and a chain of ops: a multiscale image that nobody has computed yet.

    Made by `View.of`, `View.then`, or `napari_materialize.open_view`.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize import ops
    >>> from napari_materialize.sources import open_source
    >>> source = open_source(np.arange(24, dtype="u1").reshape(4, 6), chunks=(2, 3))
    >>> view = View.of(source, [ops.Threshold(low=10)])
    >>> view.levels[0].shape, view.levels[0].dtype.name, view.kind, len(view.stages)
    ((4, 6), 'uint8', 'mask', 2)
    """

    name: str
    """A short name for people and layers."""

    source: Source
    """What the first stage reads."""

    ops: tuple[Op, ...]
    """All ops, in order."""

    boundary: Boundary
    """What lies past the volume's edge."""

    stages: tuple[Stage, ...]
    """The source, then runs of ops."""

    kind: Kind
    """What the voxels mean."""

    limits: tuple[float, float] | None
    """Lowest and highest possible value, where known; for display."""

    @classmethod
    def of(cls, source: Source, ops: Sequence[Op] = (), *, boundary: Boundary = "edge") -> View:
        """Return the view of a source through a chain of ops.

        Raises
        ------
        OpError
            If an op does not fit what it is given.
        OptionError
            If ``boundary`` is neither ``edge`` nor ``zeros``.
        """
        if boundary not in BOUNDARIES:
            raise OptionError(
                f"boundary: one of {', '.join(BOUNDARIES)}, got {boundary!r}; choose one of them"
            )
        if not source.levels:
            raise SourceError(f"source {source.name!r}: at least one level, got none")
        stages: tuple[Stage, ...] = (SourceStage(source),)
        return cls(source.name, source, (), boundary, stages, source.kind, None).then(ops)

    def then(self, ops: Sequence[Op]) -> View:
        """Return the view of this view through further ops; this one's last stage is reused."""
        run: list[Op] = []
        view = self
        for given in ops:
            op = given
            if type(op).settle is not Op.settle:
                op = op.settle(view._append(run) if run else view)
            if op.voxel_size is not None:
                view, run = (view._append(run) if run else view)._append_bound(op), []
                continue
            run.append(op)
            if op.kept:
                view, run = view._append(run), []
        return view._append(run) if run else view

    def _append(self, ops: Sequence[Op]) -> View:
        chains, levels, kind, limits = [], [], self.kind, self.limits
        for level in self.levels:
            links, kind, limits = [], self.kind, self.limits
            for op in ops:
                fitted = op.fit(level, kind)
                links.append(Link(fitted, level))
                described = fitted.describe(level, kind)
                # an op that cannot say what it needs is refused here, not in mid-job
                block = fitted.reach(described.level.grid.box((0,) * described.level.ndim), level)
                if block.size > MOST_VOXELS:
                    raise OpError(
                        f"op {op.name}: computes a chunk from at most {MOST_VOXELS} voxels, needs "
                        f"a block of {' x '.join(map(str, block.shape))} with its halo; make the "
                        "halo or the chunks smaller"
                    )
                level, kind, limits = described.level, described.kind, described.limits  # noqa: PLW2901 - one op's output is the next one's input
            chains.append(tuple(links))
            levels.append(level)
        marks = tuple(op.identity or f"{op.name}@{uuid.uuid4()}" for op in ops)
        stage = OpStage(
            self.stages[-1], tuple(ops), self.boundary, tuple(chains), tuple(levels), marks
        )
        return replace(
            self, ops=(*self.ops, *ops), stages=(*self.stages, stage), kind=kind, limits=limits
        )

    def _append_bound(self, op: Op) -> View:
        """Return the view through an op that works on one voxel size.

        It runs on one level; the coarser ones are made of its output, and finer ones there are not.
        """
        number, larger = choose_level(self.levels, op, self.kind)
        chain, level = list[Link](), self.levels[number]
        if larger is not None:
            chain.append(Link(larger, level))
            level = larger.describe(level, self.kind).level
        fitted = op.fit(level, self.kind)
        chain.append(Link(fitted, level))
        made = fitted.describe(level, self.kind)
        chains, levels = [tuple(chain)], [made.level]
        reads: list[int | None] = [number]
        for factors in steps_down(self.levels[number + 1 :], level.scale, made.level):
            shrunk = Resample(factors, method_for(made.kind, made.level.dtype))
            chains.append((Link(shrunk, levels[-1]),))
            levels.append(shrunk.describe(levels[-1], made.kind).level)
            reads.append(None)
        stage = OpStage(
            self.stages[-1],
            (op,),
            self.boundary,
            tuple(chains),
            tuple(levels),
            (op.identity or f"{op.name}@{uuid.uuid4()}",),
            reads=tuple(reads),
        )
        return replace(
            self,
            ops=(*self.ops, op),
            stages=(*self.stages, stage),
            kind=made.kind,
            limits=made.limits,
        )

    def look(self, level: int, box: Box) -> np.ndarray:
        """Return the voxels of a box of a level, computed here and now, without an engine.

        For what has to be known before anything is computed: the range of the voxels, the
        context that a model needs. Nothing is kept.
        """
        return look(self.stages[-1], level, box)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The output levels, finest first."""
        return self.stages[-1].levels

    @property
    def identity(self) -> str:
        """The digest of everything that decides what the view's chunks are."""
        return self.stages[-1].identity

    @property
    def stable(self) -> bool:
        """Whether ``identity`` means the same in another process, so that a job can be resumed."""
        return self.source.stable and all(op.identity is not None for op in self.ops)

    def level(self, number: int) -> Level:
        """Return a level by its number.

        Raises
        ------
        LevelError
            If there is none of that number.
        """
        if not 0 <= operator.index(number) < len(self.levels):
            raise LevelError(
                f"level: {self.name!r} has levels 0 to {len(self.levels) - 1}, got {number}; "
                "choose one of them"
            )
        return self.levels[number]

    def key(self, level: int, index: Sequence[int]) -> ChunkKey:
        """Return the key of one of the view's own chunks.

        Raises
        ------
        LevelError, IndexError
            If there is no such level, or no such chunk in it.
        """
        (key,) = self.keys(level, [index])
        return key

    def keys(self, level: int, indices: Iterable[Sequence[int]]) -> list[ChunkKey]:
        """Return the keys of some of the view's own chunks; see `key`."""
        grid, identity, keys = self.level(level).grid, self.identity, []
        for index in indices:
            place = tuple(map(operator.index, index))
            if not grid.holds(place):
                raise IndexError(
                    f"chunk: level {level} of {self.name!r} has {grid.counts} chunks, got {place}"
                )
            keys.append(ChunkKey(identity, level, place))
        return keys

    def walk(self, level: int, box: Box, order: Iterable[Index] | None = None) -> Iterator[Index]:
        """Walk the chunks that cover ``box``.

        Chunks that one computation yields come one after the other. Else the order is the one
        given, or one in which the chunks of a block come together along the axes that have a halo.
        """
        stage, grid = self.stages[-1], self.levels[level].grid
        cover = grid.indices(box)
        if order is None:
            order = walk_blocks(cover, stage.spread(level))
        if stage.alike(level):
            yield from order
            return
        for index in order:
            made = stage.makes(level, [index])
            if len(made) == 1:
                yield index
                continue
            group = [
                one for one in made if Box(one, tuple(i + 1 for i in one)).intersect(cover).size
            ]
            if index == group[0]:
                yield from group
