"""Which shapes, dtypes, chunks and numbers an image can have, and what is said of others.

Owns the checks that every kind of source shares. It opens nothing and knows no format: `place`
in each function is where the value was found, for the message.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from napari_materialize.arrays import Axis, AxisType, Kind, normalize_unit
from napari_materialize.errors import SourceError, named

if TYPE_CHECKING:
    from napari_materialize.geometry import Index

__all__ = [
    "LARGEST_CHUNK",
    "axis_named",
    "check_size",
    "checked_chunks",
    "checked_dtype",
    "checked_kind",
    "checked_shape",
    "named_axes",
    "numbers",
    "one_line",
]

LARGEST_CHUNK = 2**32
"""Bytes of a chunk beyond which its shape is taken for a mistake: a chunk is held whole."""

_LONGEST_SIDE = 2**31
"""Voxels of a chunk along one axis beyond which its shape is taken for a mistake."""

_TIME = frozenset({"t", "time"})
_CHANNEL = frozenset({"c", "ch", "channel"})
_SPACE = frozenset({"z", "y", "x"})
_NAME = re.compile(r"(?!dim_\d)[A-Za-z]\w*")  # xarray calls unnamed dimensions dim_0, dim_1


def one_line(error: BaseException) -> str:
    """Return what an exception says as a part of a sentence: on one line and not at length."""
    text = " ".join(named(error).split()).rstrip(".").replace(". ", "; ")
    return text if len(text) <= 200 else text[:199] + "\N{HORIZONTAL ELLIPSIS}"


def numbers(
    place: str, values: Any, ndim: int, *, positive: bool = False
) -> tuple[float, ...] | None:
    """Return ``values`` as ``ndim`` finite floats; None stays None.

    Raises
    ------
    SourceError
        If they are not numbers, not as many as axes, not finite or, if asked, not positive.
    """
    if values is None:
        return None
    rule = f"{ndim} {'positive' if positive else 'finite'} numbers, one per axis"
    try:
        given = list(values)
        found = tuple(float(value) for value in given if not isinstance(value, str))
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{place} needs {rule}, got {values!r:.80}; give a list") from error
    bad = any(not math.isfinite(value) or (positive and value <= 0) for value in found)
    if isinstance(values, str) or not len(given) == len(found) == ndim or bad:
        raise SourceError(
            f"{place} needs {rule}, got {values!r:.80}; correct the metadata or give your own"
        )
    return found


def checked_shape(place: str, shape: Any) -> Index:
    """Return ``shape`` as integers, if it is an image's: 2 to 5 axes, none of them empty."""
    try:
        found = tuple(map(operator.index, shape))
    except TypeError as error:
        raise SourceError(
            f"{place}: a shape is whole numbers, got {shape!r:.80}; compute the sizes first"
        ) from error
    if not 2 <= len(found) <= 5:
        raise SourceError(
            f"{place}: an image has 2 to 5 axes, got {len(found)} in shape {found}; choose or "
            "reshape an array that has"
        )
    if any(size < 1 for size in found):
        raise SourceError(
            f"{place}: an image has at least one voxel along each axis, got shape {found}; choose "
            "an array that has"
        )
    return found


def check_size(place: str, shape: Index, dtype: np.dtype) -> None:
    """Refuse an array that no computer can count the bytes of: its shape is a mistake, or a trap.

    Raises
    ------
    SourceError
        If it has 2^63 bytes or more.
    """
    if math.prod(shape) * dtype.itemsize >= 2**63:
        raise SourceError(
            f"{place}: a level has fewer than 2^63 bytes, got shape {shape!r:.80} of {dtype}; "
            "correct the metadata"
        )


def checked_dtype(place: str, dtype: Any) -> np.dtype:
    """Return ``dtype`` in the machine's byte order, if its values are ones an image has."""
    message = (
        f"{place}: an image's values are bool, integers or floats of up to 64 bits, got "
        f"{str(dtype).strip():.80}; convert them or choose another array"
    )
    if dtype is None:  # numpy takes it for float64
        raise SourceError(message)
    try:
        # tensorstore's dtypes are its own and name numpy's
        found = np.dtype(getattr(dtype, "numpy_dtype", dtype))
    except (TypeError, ValueError, SyntaxError) as error:
        raise SourceError(message) from error
    if found.kind not in "biuf" or found.itemsize > 8:
        raise SourceError(message)
    native: np.dtype = found.newbyteorder("=")
    return native


def checked_chunks(place: str, chunks: Any, shape: Index, dtype: np.dtype) -> Index:
    """Return ``chunks`` as integers, if they are a chunk shape for ``shape``.

    Raises
    ------
    SourceError
        If they are not positive whole numbers, not one per axis, or a chunk is absurdly large.
    """
    try:
        found = tuple(map(operator.index, chunks))
    except TypeError as error:
        raise SourceError(
            f"{place}: chunks needs {len(shape)} whole numbers, one per axis, got {chunks!r:.80}; "
            "give a chunk shape"
        ) from error
    if len(found) != len(shape) or any(size < 1 for size in found):
        raise SourceError(
            f"{place}: chunks needs {len(shape)} numbers of at least 1, one per axis of shape "
            f"{shape}, got {found}; give a chunk shape"
        )
    size = math.prod(map(min, found, shape)) * dtype.itemsize
    if size > LARGEST_CHUNK or max(found) > _LONGEST_SIDE:
        raise SourceError(
            f"{place}: a chunk is held in memory whole and has at most {LARGEST_CHUNK // 2**30} "
            f"GiB, got chunks of {found} voxels; store or cut the array in smaller chunks"
        )
    return found


def checked_kind(place: str, kind: Any, found: Kind, dtype: np.dtype) -> Kind:
    """Return the kind asked for or, if none is, the kind found, as far as the dtype bears it.

    Truth values are a mask whatever the metadata says, and floats are never labels: some writers
    mark float images as labels, and no reader could use such values as ids.
    """
    if kind is None:
        if dtype.kind == "b":
            return "mask"
        return found if dtype.kind in "iu" else "image"
    if kind not in get_args(Kind.__value__):
        raise SourceError(
            f"{place}: kind is 'image', 'label' or 'mask', got {kind!r}; choose one of them"
        )
    if kind != "image" and dtype.kind == "f":
        raise SourceError(
            f"{place}: a {kind} has whole numbers for values, got {dtype}; open it as an image"
        )
    chosen: Kind = kind
    return chosen


def axis_named(name: str, said: object = None, unit: object = None) -> Axis:
    """Return the axis ``name``, its type as said or, if that is not one we know, by its name.

    OME-Zarr allows one axis of an unusual type in the channel's place, so that is what such an
    axis becomes. A channel has no unit.

    Examples
    --------
    >>> axis_named("t").type, axis_named("angle", "custom").type
    ('time', 'channel')
    """
    lower = name.lower()
    found: AxisType = "space"
    if said == "time" or (said not in ("space", "channel") and lower in _TIME):
        found = "time"
    elif said == "channel" or (
        said not in ("space", "time")
        and (lower in _CHANNEL or (said is not None and lower not in _SPACE))
    ):
        found = "channel"
    usable = unit if isinstance(unit, str) and found != "channel" else None
    return Axis(name, found, normalize_unit(usable))


def named_axes(names: Any, ndim: int) -> tuple[Axis, ...] | None:
    """Return the axes that dimension names stand for, or None if they are not sensible names.

    Sensible are ``ndim`` different words; not the numbers and placeholders that libraries fill in
    where nobody named a dimension (``"-2"``, ``"dim_0"``).
    """
    if isinstance(names, str) or not isinstance(names, list | tuple) or len(names) != ndim:
        return None
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        return None
    usual = [name.lower() if name.lower() in {*"tczyx"} else name for name in names]
    return tuple(map(axis_named, usual)) if len(set(usual)) == ndim else None
