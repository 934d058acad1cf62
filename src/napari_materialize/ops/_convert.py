"""From one dtype to another: rounded to nearest and saturated, never wrapped.

Owns dtype names as parameters and the conversion that every op shares. It knows no op.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from napari_materialize.buffers import buffer
from napari_materialize.errors import OpError


def dtype_name(value: Any, place: str) -> str:
    """Return the name of a dtype an image can have: bool, integers, floats.

    Raises
    ------
    OpError
        If it is not the name of such a dtype.
    """
    try:
        dtype = np.dtype(value)
    except (TypeError, SyntaxError, ValueError):  # numpy parses some texts as Python
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise OpError(
            f"{place}: bool, an integer or a float dtype such as uint8 or float32, got "
            f"{value!r}; name one"
        )
    return str(dtype.name)


def working_float(*dtypes: np.dtype) -> np.dtype:
    """Return the float dtype in which voxels of ``dtypes`` are computed: float32 where it holds
    them all exactly (floats and integers of up to two bytes), else float64.
    """
    wide = any(d.itemsize > (4 if d.kind == "f" else 2) for d in dtypes)
    return np.dtype(np.float64 if wide else np.float32)


def to_float(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return ``values`` in a float dtype; a finite value beyond its range becomes its extreme."""
    with np.errstate(over="ignore"):
        result = values.astype(dtype, copy=False)
    narrower = values.dtype.kind == "f" and dtype.itemsize < values.dtype.itemsize
    if narrower or dtype.itemsize < 4:
        beyond = np.isinf(result)
        if beyond.any() and (beyond := beyond & np.isfinite(values)).any():
            limit = np.finfo(dtype).max
            result[beyond] = np.where(values[beyond] > 0, limit, -limit)
    return result


def saturate(values: np.ndarray, dtype: np.dtype, *, own: bool = False) -> np.ndarray:
    """Return ``values`` in ``dtype``, rounded to nearest (ties to even) and saturated.

    NaN becomes 0 in an integer dtype and False in bool; any other value but 0 becomes True.
    The result may share memory with ``values``; those that are the caller's ``own`` may be
    overwritten.

    Examples
    --------
    >>> import numpy as np
    >>> saturate(np.array([-3.0, 1.5, 2.5, 900.0, np.nan]), np.dtype("u1")).tolist()
    [0, 2, 2, 255, 0]
    """
    source = values.dtype
    if dtype == source:
        return values
    if dtype.kind == "f":
        return to_float(values, dtype)
    if dtype.kind == "b":
        nonzero: np.ndarray = values != 0
        return nonzero & ~np.isnan(values) if source.kind == "f" else nonzero
    if source.kind == "f":
        return _round(values, dtype, own=own)
    if source.kind == "b" or np.can_cast(source, dtype):
        return values.astype(dtype)
    here, there = np.iinfo(source), np.iinfo(dtype)
    low, high = max(here.min, there.min), min(here.max, there.max)
    clipped: np.ndarray = np.clip(values, source.type(low), source.type(high))
    return clipped.astype(dtype)


def _round(values: np.ndarray, dtype: np.dtype, *, own: bool) -> np.ndarray:
    """Round floats to nearest into an integer dtype."""
    if values.dtype.itemsize < 4:
        values, own = values.astype(np.float32), True
    limits = np.iinfo(dtype)
    low, high = values.dtype.type(limits.min), values.dtype.type(limits.max)
    rounded = np.rint(values, out=values if own else buffer(values.shape, values.dtype))
    result = buffer(values.shape, dtype)
    if int(low) == limits.min and int(high) == limits.max:
        np.clip(rounded, low, high, out=rounded)
        if rounded.size and np.isnan(rounded.min()):
            rounded[np.isnan(rounded)] = 0
        np.copyto(result, rounded, casting="unsafe")
        return result
    # the float nearest to an integer dtype's extreme lies beyond it: compare, do not clip
    with np.errstate(invalid="ignore"):
        np.copyto(result, rounded, casting="unsafe")
    for outside, extreme in ((rounded >= high, limits.max), (rounded <= low, limits.min)):
        result[outside] = extreme
    result[np.isnan(rounded)] = 0
    return result
