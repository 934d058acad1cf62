"""How a box is written, as somebody asks for it: the options, and which values they can have.

Owns the options' names, defaults and the refusals that need no image. What they come to for a view
is `_levels`'.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from napari_materialize.errors import BoxError, OptionError
from napari_materialize.geometry import Box
from napari_materialize.stores import WritableStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.codecs import Compression
    from napari_materialize.view import View

__all__ = ["Extent", "Options", "Where", "check_existing", "check_options", "is_whole"]

type Where = str | os.PathLike[str] | WritableStore
"""A path, a URL, or a store."""

type Extent = Literal["level", "box"]

EXTENTS: tuple[str, ...] = get_args(Extent.__value__)
EXISTING = ("error", "resume", "add", "overwrite")
ON_ERROR = ("raise", "collect")


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
    """``zarr2`` (OME-Zarr 0.4), ``zarr3`` (OME-Zarr 0.5) or ``n5``."""

    compression: str | Sequence[Any] | Compression | None = "gzip"
    """``gzip``, ``zstd``, ``blosc`` or None, each with a level, as in ``gzip:6``."""

    shards: Sequence[int] | None = None
    """Chunks in a shard along the last axes, as many as are given, one along the others: a file
    holds a shard and not a chunk. For ``zarr3``; a file per chunk if left out."""

    pyramid: int | str = 0
    """Coarser levels derived from the one that is written: how many, or ``auto``: until a level
    fits into one chunk along the axes that are halved."""

    skip_empty: bool = True
    """Whether a chunk of nothing but the fill value is left out."""

    existing: str = "error"
    """What to do with a store that is not empty. ``error``: refuse it. ``resume``: go on with the
    same job, and make what is unfinished or damaged. ``add``: another box into the same arrays.
    ``overwrite``: remove what this project wrote there, and begin anew."""

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


def check_options(options: Options) -> None:
    choices = (
        ("extent", options.extent, EXTENTS),
        ("existing", options.existing, EXISTING),
        ("on_error", options.on_error, ON_ERROR),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise OptionError(f"{name}: one of {', '.join(allowed)}, got {value!r}; take one")
    if options.box is not None and not isinstance(options.box, Box):
        raise BoxError(
            f"box: a Box is expected, as in Box((0, 0), (64, 64)), got {options.box!r}; give one"
        )
    for name, number, least in (
        ("concurrency", options.concurrency, 1),
        ("box_level", options.box_level, 0),
    ):
        if number is not None and (not is_whole(number) or number < least):
            raise OptionError(
                f"{name}: a whole number, {least} or more, got {number!r}; correct it"
            )
    if not isinstance(options.skip_empty, bool | np.bool):
        raise OptionError(f"skip_empty: True or False, got {options.skip_empty!r}")
    if options.cancel is not None and not isinstance(options.cancel, threading.Event):
        raise OptionError(f"cancel: a threading.Event is expected, got {options.cancel!r}")
    if options.on_progress is not None and not callable(options.on_progress):
        raise OptionError(f"on_progress: a callable is expected, got {options.on_progress!r}")
    _check_shards(options.shards)
    if options.pyramid != "auto" and not (is_whole(options.pyramid) and int(options.pyramid) >= 0):
        raise OptionError(
            f"pyramid: a whole number of levels, 0 or more, or auto, got "
            f"{options.pyramid!r}; correct it"
        )


def check_existing(view: View, options: Options) -> None:
    """Refuse to go on, or to add, where nobody can know whether it is the same computation.

    Raises
    ------
    OptionError
        If the view has no identity outside this process, or boxes of one store cannot be added.
    """
    if options.existing in ("resume", "add") and not view.stable:
        nameless = [op.name for op in view.ops if op.identity is None]
        why = (
            f"op {nameless[0]} has no name and version that say what it computes"
            if nameless
            else "its source is known to this process alone"
        )
        raise OptionError(
            f"existing: {options.existing} needs to know that the stored result is of the same "
            f"view, and of this one nobody can tell: {why}; give it these, or write elsewhere"
        )
    if options.existing == "add" and options.extent != "level":
        raise OptionError(
            "existing: add puts another box into an array of the level's whole shape, got extent "
            f"{options.extent!r}; write with extent level, or elsewhere"
        )


def _check_shards(shards: object) -> None:
    if shards is None:
        return
    listed = shards if isinstance(shards, Sequence) and not isinstance(shards, str) else ()
    if not listed or not all(is_whole(n) and n >= 1 for n in listed):
        raise OptionError(
            "shards: whole numbers of chunks, 1 or more, one for each of the last axes, as in "
            f"(4, 4, 4), got {shards!r}; correct them"
        )


def is_whole(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return False
    return not isinstance(value, bool)
