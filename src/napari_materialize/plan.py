"""What a job will write, decided before anything is created: options in, a `Plan` out.

Owns the options' meaning and every reason to refuse them. It computes no voxel and writes nothing;
`job` carries a plan out, and whoever wants to show what a box will cost makes a plan and looks.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote, urlsplit

import numpy as np

from napari_materialize.codecs import Compression
from napari_materialize.errors import BoxError, LevelError, OptionError, TargetError
from napari_materialize.geometry import Box
from napari_materialize.layout import ImageDocument, Layout, layout_for
from napari_materialize.stores import ReadableStore, WritableStore, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Level
    from napari_materialize.view import View

__all__ = ["LevelPlan", "Options", "Plan", "Where", "box_on_level", "make_plan"]

type Where = str | os.PathLike[str] | WritableStore
"""A path, a URL, or a store."""

type Extent = Literal["level", "box"]

EXTENTS: tuple[str, ...] = get_args(Extent.__value__)
EXISTING = ("error", "resume", "add", "overwrite")
ON_ERROR = ("raise", "collect")

MOST_CHUNKS = 2**32
"""Chunks of one job; metadata that announces more than anybody can write is refused."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a box is written. The names are those of `Engine.materialize` and the command line."""

    levels: int | Sequence[int] | None = None
    """A level or several; the finest if left out."""

    box: Box | None = None
    """Voxels of level ``box_level``, along the last axes it has; the whole level if left out."""

    box_level: int = 0
    """Which level's voxels ``box`` counts."""

    extent: Extent = "level"
    """``level``: arrays of the level's whole shape, the box rounded out to whole chunks, nothing
    stored outside it. ``box``: arrays of exactly the box, moved to its corner."""

    format: str = "zarr2"
    """``zarr2`` (OME-Zarr 0.4) or ``zarr3`` (OME-Zarr 0.5)."""

    compression: str | Sequence[Any] | Compression | None = "gzip"
    """``gzip``, ``zstd``, ``blosc`` or None, each with a level, as in ``gzip:6``."""

    shards: Sequence[int] | None = None
    """Not built yet."""

    pyramid: int | str = 0
    """Not built yet."""

    skip_empty: bool = True
    """Whether a chunk of nothing but the fill value is left out."""

    existing: str = "error"
    """What to do with a store that is not empty: ``error``. The others are not built yet."""

    on_error: Literal["raise", "collect"] = "raise"
    """``raise``: stop at a failing chunk. ``collect``: go on and report all."""

    concurrency: int | None = None
    """Chunks asked for at a time; the engine's slots if left out."""

    cancel: threading.Event | None = field(default=None, compare=False)
    """Set it from any thread to stop."""

    on_progress: Callable[[dict[str, int]], None] | None = field(default=None, compare=False)
    """Called with ``{done, total, written, skipped, failed, bytes}``, in the thread that called
    ``materialize``."""

    attributes: Mapping[str, Any] | None = None
    """Merged into the group's attributes."""


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """One level of what will be written."""

    position: int
    """The path it is written under: 0, 1, ... in order."""

    level: int
    """The view's level."""

    box: Box
    """The voxels that are computed and written, of the view's level."""

    array: Level
    """The array that is written."""

    array_is_level: bool = True
    """Whether the array has the level's whole shape."""

    @property
    def offset(self) -> tuple[int, ...]:
        """Where the written array's voxel 0 lies in the view's level."""
        return (0,) * self.box.ndim if self.array_is_level else self.box.start

    @property
    def chunks(self) -> int:
        """How many chunks of the written array are dealt with."""
        indices = self.array.grid.indices(self.box.relative_to(self.offset))
        return indices.size

    @property
    def nbytes(self) -> int:
        """Their voxels' bytes, uncompressed."""
        return self.box.size * self.array.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a job needs to know; nothing in it can be refused any more."""

    view: View
    levels: tuple[LevelPlan, ...]
    layout: Layout
    compression: Compression
    store: WritableStore
    options: Options
    document: ImageDocument
    """The metadata, without the record."""

    @property
    def chunks(self) -> int:
        """How many chunks are dealt with in all."""
        return sum(level.chunks for level in self.levels)

    @property
    def nbytes(self) -> int:
        """Their voxels' bytes, uncompressed."""
        return sum(level.nbytes for level in self.levels)


def box_on_level(view: View, box: Box | None, box_level: int, level: int) -> Box:
    """Return a box in voxels of ``level``, with all its axes, clipped; not rounded to chunks.

    Parameters
    ----------
    view : View
        Whose levels.
    box : Box or None
        Voxels of ``box_level`` along the last axes it has; None for everything.
    box_level, level : int
        The level the box counts voxels of, and the one that is asked for.

    Raises
    ------
    LevelError
        If there is no such level.
    BoxError
        If the box is empty, has too many axes, or lies outside.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.recipe import open_view
    >>> view = open_view([np.zeros((8, 8)), np.zeros((4, 4))])
    >>> box_on_level(view, Box((2, 3), (5, 5)), 0, 1)
    Box(start=(1, 1), stop=(3, 3))
    """
    target, counted = view.level(level), view.level(box_level)
    if box is None:
        return Box.whole(target.shape)
    if box.is_empty:
        raise BoxError(
            f"box {box.start} to {box.stop}: at least one voxel along each axis, got "
            f"{box.shape}; draw or type a larger one"
        )
    if counted.box_from(box, counted).is_empty:
        raise BoxError(
            f"box {box.start} to {box.stop}: must overlap level {box_level}, whose shape is "
            f"{counted.shape}, and lies outside it"
        )
    inside = target.box_from(box, counted)
    if not inside.is_empty:
        return inside
    # past the edge of a coarser level, which may end earlier: the voxels there that are nearest
    low = tuple(min(start, n - 1) for start, n in zip(inside.start, target.shape, strict=True))
    return Box(low, tuple(max(a + 1, b) for a, b in zip(low, inside.stop, strict=True)))


def make_plan(view: View, where: Where, options: Options) -> Plan:
    """Decide what a job will write, or refuse; nothing is created.

    Raises
    ------
    InputError
        Of the kind that fits: one sentence with the place, the rule, the value, what to do.
    """
    _check_options(options)
    layout, compression = layout_for(options.format), Compression.parse(options.compression)
    levels = plan_levels(view, options)
    document = ImageDocument(
        name=view.name,
        kind=view.kind,
        levels=tuple(each.array for each in levels),
        compression=compression,
        attributes=options.attributes or {},
        limits=view.limits,
    )
    reason = layout.refusal(document)
    if reason is not None:
        raise OptionError(reason)
    chunks = sum(each.chunks for each in levels)
    if chunks > MOST_CHUNKS:
        raise BoxError(f"box: at most {MOST_CHUNKS} chunks, got {chunks}; choose a smaller box")
    store = open_store(where)
    _check_target(view, store)
    return Plan(view, levels, layout, compression, store, options, document)


def plan_levels(view: View, options: Options) -> tuple[LevelPlan, ...]:
    """Decide which boxes of which levels are written; see `make_plan`."""
    plans = []
    for position, number in enumerate(_levels(view, options.levels)):
        level = view.level(number)
        box = box_on_level(view, options.box, options.box_level, number)
        if options.extent == "level":
            plans.append(LevelPlan(position, number, level.grid.round_out(box), level))
        else:
            chunks = tuple(map(min, level.chunks, box.shape))
            array = replace(level.crop(box), chunks=chunks)
            plans.append(LevelPlan(position, number, box, array, array_is_level=False))
    return tuple(plans)


def _levels(view: View, levels: int | Sequence[int] | None) -> list[int]:
    numbers = [0] if levels is None else levels
    try:
        listed = [
            operator.index(n) for n in (numbers if isinstance(numbers, Sequence) else [numbers])
        ]
    except TypeError:
        raise LevelError(f"levels: whole numbers from 0 on, got {levels!r}") from None
    if not listed or len(set(listed)) != len(listed):
        raise LevelError(f"levels: at least one, and none twice, got {levels!r}")
    for number in listed:
        view.level(number)
    return sorted(listed)


def _check_options(options: Options) -> None:
    choices = (
        ("extent", options.extent, EXTENTS),
        ("existing", options.existing, EXISTING),
        ("on_error", options.on_error, ON_ERROR),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise OptionError(f"{name}: one of {', '.join(allowed)}, got {value!r}")
    if options.box is not None and not isinstance(options.box, Box):
        raise BoxError(f"box: a Box is expected, as in Box((0, 0), (64, 64)), got {options.box!r}")
    for name, number, least in (
        ("concurrency", options.concurrency, 1),
        ("box_level", options.box_level, 0),
    ):
        if number is not None and (not _is_whole(number) or number < least):
            raise OptionError(f"{name}: a whole number, {least} or more, got {number!r}")
    if not isinstance(options.skip_empty, bool | np.bool):
        raise OptionError(f"skip_empty: True or False, got {options.skip_empty!r}")
    if options.cancel is not None and not isinstance(options.cancel, threading.Event):
        raise OptionError(f"cancel: a threading.Event is expected, got {options.cancel!r}")
    if options.on_progress is not None and not callable(options.on_progress):
        raise OptionError(f"on_progress: a callable is expected, got {options.on_progress!r}")
    later: tuple[tuple[str, Any, Any], ...] = (
        ("shards", options.shards, None),
        ("pyramid", options.pyramid, 0),
        ("existing", options.existing, "error"),
    )
    for name, asked, built in later:
        if asked != built:
            raise OptionError(
                f"{name}: {asked!r} cannot be done yet, only {built!r}; the roadmap says what comes"
            )


def _is_whole(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return False
    return not isinstance(value, bool)


def _check_target(view: View, store: WritableStore) -> None:
    """Refuse a target that is the source, lies in it or around it, or is not empty."""
    location = store.location if isinstance(store, ReadableStore) else None
    # an image of several stored arrays has a place for each of them
    places = view.source.record.get("locations") or [view.source.location]
    for place in places:
        target = Path(os.path.realpath(location)) if location is not None else None
        source = _container(_local(place))
        if (
            target is not None
            and source is not None
            and (target == source or source in target.parents or target in source.parents)
        ):
            raise TargetError(
                f"target {location}: must lie apart from the source {place}; choose another folder"
            )
    if isinstance(store, ReadableStore) and not store.is_empty():
        raise TargetError(
            f"target {location or type(store).__name__}: must be empty or not there yet, and holds "
            "something; choose another folder"
        )


def _container(source: Path | None) -> Path | None:
    """Return the outermost zarr hierarchy that a source lies in: that is somebody's image."""
    while source is not None and any(
        (source.parent / name).is_file() for name in (".zgroup", ".zattrs", "zarr.json")
    ):
        source = source.parent
    return source


def _local(location: str | None) -> Path | None:
    """Return a source's real path, or None if it is not a local one."""
    if location is None:
        return None
    parts = urlsplit(location)
    if parts.scheme == "file":
        location = unquote(parts.path)
    elif parts.netloc and parts.scheme:
        return None
    return Path(os.path.realpath(location))
