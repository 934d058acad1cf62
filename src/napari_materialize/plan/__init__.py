"""What a job will write, decided before anything is created: options in, a `Plan` out.

Owns the options' meaning and every reason to refuse them. It computes no voxel and writes nothing;
`job` carries a plan out, and whoever wants to show what a box will cost makes a plan and looks.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from napari_materialize.codecs import Compression
from napari_materialize.errors import BoxError, OptionError
from napari_materialize.geometry import Box
from napari_materialize.layout import ImageDocument, Layout, layout_for
from napari_materialize.plan._levels import (
    CoarserPlan,
    LevelPlan,
    box_on_level,
    plan_coarser,
    plan_levels,
)
from napari_materialize.plan._options import (
    Extent,
    Options,
    Where,
    check_existing,
    check_options,
)
from napari_materialize.plan._target import check_target
from napari_materialize.stores import WritableStore, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = [
    "CoarserPlan",
    "Extent",
    "LevelPlan",
    "Options",
    "Plan",
    "Where",
    "box_on_level",
    "make_plan",
    "plan_levels",
]

MOST_CHUNKS = 2**32
"""Chunks of one job; metadata that announces more than anybody can write is refused."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a job needs to know; nothing in it can be refused any more."""

    view: View
    levels: tuple[LevelPlan, ...]
    """What is written as viewed."""

    coarser: tuple[CoarserPlan, ...]
    """What is derived from it."""

    layout: Layout
    compression: Compression
    store: WritableStore
    options: Options
    document: ImageDocument
    """The metadata, without the record."""

    @property
    def written(self) -> tuple[LevelPlan | CoarserPlan, ...]:
        """All arrays, by their position."""
        return (*self.levels, *self.coarser)

    @property
    def chunks(self) -> int:
        """How many chunks are dealt with in all."""
        return sum(level.chunks for level in self.written)

    @property
    def nbytes(self) -> int:
        """Their voxels' bytes, uncompressed."""
        return sum(level.nbytes for level in self.written)

    @property
    def shards(self) -> Index | None:
        """Chunks in a shard along each axis; None for a file per chunk."""
        return self.document.shards

    def files(self, level: LevelPlan | CoarserPlan) -> Box:
        """Return which files of an array are dealt with, by their place among chunks or shards."""
        cover = level.array.grid.indices(level.region)
        if self.shards is None:
            return cover
        return Box(
            tuple(map(operator.floordiv, cover.start, self.shards)),
            tuple(-(-stop // n) for stop, n in zip(cover.stop, self.shards, strict=True)),
        )


def make_plan(view: View, where: Where, options: Options) -> Plan:
    """Decide what a job will write, or refuse; nothing is created.

    Raises
    ------
    InputError
        Of the kind that fits: one sentence with the place, the rule, the value, what to do.
    """
    check_options(options)
    layout, compression = layout_for(options.format), Compression.parse(options.compression)
    levels = tuple(
        replace(each, array=layout.stored(each.array)) for each in plan_levels(view, options)
    )
    coarser = plan_coarser(levels, options.pyramid, view.kind)
    written: tuple[LevelPlan | CoarserPlan, ...] = (*levels, *coarser)
    document = ImageDocument(
        name=view.name,
        kind=view.kind,
        levels=tuple(each.array for each in written),
        compression=compression,
        attributes=options.attributes or {},
        limits=view.limits,
        shards=_shards(options.shards, levels[0].array.ndim),
        **_how_made(levels, coarser),
    )
    reason = layout.refusal(document)
    if reason is not None:
        raise OptionError(reason)
    check_existing(view, options)
    chunks = sum(each.chunks for each in written)
    if chunks > MOST_CHUNKS:
        raise BoxError(f"box: at most {MOST_CHUNKS} chunks, got {chunks}; choose a smaller box")
    store = open_store(where)
    check_target(view, store, options.existing)
    return Plan(view, levels, coarser, layout, compression, store, options, document)


def _shards(asked: Sequence[int] | None, ndim: int) -> Index | None:
    """Return the chunks in a shard along every axis."""
    if asked is None:
        return None
    if len(asked) > ndim:
        raise OptionError(
            f"shards: at most {ndim} numbers, one for each axis, got {tuple(asked)}; leave some out"
        )
    return (1,) * (ndim - len(asked)) + tuple(map(operator.index, asked))


def _how_made(levels: Sequence[LevelPlan], coarser: Sequence[CoarserPlan]) -> dict[str, Any]:
    """Return what OME-Zarr's ``type`` and ``metadata`` say of the coarser levels."""
    if coarser:
        text = f"each level derived from the one before it by the {coarser[0].method}"
        return {"method": coarser[0].method, "details": {"description": text}}
    if len(levels) > 1:
        text = "each level computed on the level of the source that it stands for"
        return {"method": "viewed", "details": {"description": text}}
    return {}
