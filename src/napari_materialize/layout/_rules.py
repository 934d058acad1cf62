"""What OME-Zarr or N5 cannot hold, said before anything is created.

Owns the rules, each a function that returns a reason or None. OME-Zarr's are those of
https://ngff.openmicroscopy.org/0.4 and /0.5, and the order z, y, x, which the text only
recommends and some readers insist on. What an image is comes from `_image`.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from napari_materialize.arrays import Axis, Level
    from napari_materialize.layout._image import ImageDocument

__all__ = ["NO_SHARDS", "image_refusal", "n5_refusal"]

_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)

_N5_DTYPES = _DTYPES - {"bool", "float16"}

_N5_NAMES = frozenset(
    {"n5", "name", "axes", "units", "resolution", "offset", "scales", "downsamplingFactors"}
    | {"pixelResolution", "transform", "dimensions", "blockSize", "dataType", "compression"}
)

NO_SHARDS = "shards: only zarr3 has them; leave them out or write zarr3"

_LARGEST_SHARD = 2**32
_MOST_CHUNKS_IN_SHARD = 2**20
"""Sixteen MiB of index."""

_ORDER = {"time": 0, "channel": 1, "space": 2}

_LARGEST_CHUNK = 2**31 - 1
"""Bytes: what the compressors of numcodecs, in most Python readers, can take at once."""


def image_refusal(document: ImageDocument) -> str | None:
    """Return why OME-Zarr cannot hold the image, or None."""
    return (
        _no_levels(document)
        or _axes_refusal(document.axes)
        or _any_format_refusal(document, _DTYPES)
        or _shards_refusal(document)
    )


def n5_refusal(document: ImageDocument) -> str | None:
    """Return why N5 cannot hold the image, or None. Its axes have no rules, its voxels have."""
    if document.shards is not None:
        return NO_SHARDS
    if taken := sorted(_N5_NAMES & document.attributes.keys()):
        return (
            f"attributes: {', '.join(taken)} cannot be replaced, N5's readers look for them; "
            "choose other names"
        )
    return _no_levels(document) or _any_format_refusal(document, _N5_DTYPES)


def _no_levels(document: ImageDocument) -> str | None:
    return None if document.levels else "levels: at least one level is needed, got none"


def _any_format_refusal(document: ImageDocument, dtypes: frozenset[str]) -> str | None:
    """What holds for the levels of every format."""
    return (
        _levels_refusal(document.levels)
        or next(
            filter(
                None,
                (_level_refusal(n, level, dtypes) for n, level in enumerate(document.levels)),
            ),
            None,
        )
        or _kind_refusal(document)
    )


def _shards_refusal(document: ImageDocument) -> str | None:
    """What a shard can be: whole chunks along every axis, and no more than one write can hold."""
    shards = document.shards
    if shards is None:
        return None
    level = document.levels[0]
    if len(shards) != level.ndim or min(shards) < 1:
        return (
            f"shards: a whole number of chunks along each of the {level.ndim} axes, 1 or more, got "
            f"{shards}"
        )
    size = math.prod(map(operator.mul, level.chunks, shards)) * level.dtype.itemsize
    if size > _LARGEST_SHARD or math.prod(shards) > _MOST_CHUNKS_IN_SHARD:
        return (
            f"shards: at most {_LARGEST_SHARD // 2**30} GiB of voxels and {_MOST_CHUNKS_IN_SHARD} "
            f"chunks, since a shard is written whole, got {size} bytes in {math.prod(shards)} "
            f"chunks with {shards}; put fewer chunks in a shard"
        )
    return None


def _axes_refusal(axes: tuple[Axis, ...]) -> str | None:
    """The ``axes`` metadata: 2 to 5, one time, one channel, 2 or 3 of space, in this order."""
    found = ", ".join(f"{axis.name} ({axis.type})" for axis in axes)
    types = [axis.type for axis in axes]
    if not 2 <= len(axes) <= 5:
        return f"axes: OME-Zarr has 2 to 5, got {len(axes)}: {found}; select along some of them"
    if not all(axis.name for axis in axes):
        return f"axes: each needs a name, got {[axis.name for axis in axes]}"
    if types.count("space") not in {2, 3} or max(types.count("time"), types.count("channel")) > 1:
        return (
            "axes: OME-Zarr has 2 or 3 of space and at most one of time and one of channels, got "
            f"{found}; select along some of them"
        )
    if types != sorted(types, key=_ORDER.__getitem__):
        return f"axes: the order must be time, channel, space, got {found}; transpose the image"
    named = [axis.name for axis in axes if axis.type == "space" and axis.name in {"x", "y", "z"}]
    if named != sorted(named, reverse=True):
        return f"axes: the order in space must be z, y, x, got {found}; transpose the image"
    return None


def _levels_refusal(levels: tuple[Level, ...]) -> str | None:
    """All levels show one image: the same axes and dtype, the finest first."""
    first = levels[0]
    for number, level in enumerate(levels[1:], 1):
        if level.axes != first.axes or level.dtype != first.dtype:
            return (
                f"levels: all need the axes and the dtype of the first, level {number} has "
                f"{[axis.name for axis in level.axes]} {level.dtype} and not "
                f"{[axis.name for axis in first.axes]} {first.dtype}"
            )
        previous = levels[number - 1]
        if any(map(float.__lt__, level.scale, previous.scale)):
            return (
                f"levels: the finest must come first, level {number} has the scale {level.scale} "
                f"after {previous.scale}; list them from fine to coarse"
            )
    return None


def _level_refusal(number: int, level: Level, dtypes: frozenset[str]) -> str | None:
    """What one array can be."""
    if level.dtype.name not in dtypes:
        held = "bool, u/int8 to 64 or float16, 32, 64"
        if dtypes is _N5_DTYPES:
            held = "u/int8 to 64 or float32, 64 in N5"
        return f"dtype: must be {held}, level {number} has {level.dtype}; cast it"
    if min(level.shape) < 1 or min(level.chunks) < 1:
        return (
            f"level {number}: shape and chunks need at least one voxel along each axis, got "
            f"{level.shape} in chunks of {level.chunks}"
        )
    size = math.prod(level.chunks) * level.dtype.itemsize
    if size > _LARGEST_CHUNK:
        return (
            f"level {number}: a chunk must be smaller than 2 GiB, got {size} bytes in "
            f"{level.chunks}; use smaller chunks"
        )
    if not _fits(level):
        return f"level {number}: the fill value must be a {level.dtype}, got {level.fill!r}"
    return None


def _fits(level: Level) -> bool:
    """Whether the fill value is a value of the dtype, not one that would be changed."""
    fill, kind = level.fill, level.dtype.kind
    if kind == "b":
        return fill in (0, 1)
    if kind == "f":
        return not math.isfinite(fill) or abs(fill) <= float(np.finfo(level.dtype).max)
    limits = np.iinfo(level.dtype)
    return math.isfinite(fill) and int(fill) == fill and limits.min <= fill <= limits.max


def _kind_refusal(document: ImageDocument) -> str | None:
    """Labels are integers (0.4 and 0.5: "MUST be integer data types")."""
    dtype = document.levels[0].dtype
    if document.kind == "label" and dtype.kind not in "iu":
        return f"kind: labels must be integers, got {dtype}; cast them, or call the kind image"
    return None
