"""Ops over a whole array with numpy and scipy alone, to compare chunks with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from scipy import ndimage

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = ("bool", "uint8", "int16", "uint16", "uint32", "float32")

MODES = {"edge": "nearest", "zeros": "constant"}


def _as(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.rint(values.astype("f8"))
    return np.clip(whole, limits.min, limits.max).astype(dtype)


def gaussian(array: np.ndarray, boundary: str, sigma: float) -> np.ndarray:
    smooth = ndimage.gaussian_filter(
        array.astype("f4"), sigma, mode=MODES[boundary], cval=0, truncate=4
    )
    return _as(smooth, array.dtype)


def median(array: np.ndarray, boundary: str, size: int) -> np.ndarray:
    return ndimage.median_filter(array, size, mode=MODES[boundary], cval=0)


def threshold(array: np.ndarray, boundary: str, low: float) -> np.ndarray:
    return (array >= low).astype("u1")


def cast(array: np.ndarray, boundary: str, dtype: str) -> np.ndarray:
    wide = array.astype("f8")
    return _as(wide, np.dtype(dtype))


def invert(array: np.ndarray, boundary: str) -> np.ndarray:
    if array.dtype.kind == "f":
        return 1 - array
    limits = np.iinfo(array.dtype)
    return (int(limits.max) + int(limits.min) - array.astype("i8")).astype(array.dtype)


OPS: dict[str, Callable[..., np.ndarray]] = {
    "gaussian": gaussian,
    "median": median,
    "threshold": threshold,
    "cast": cast,
    "invert": invert,
}


def run(array: np.ndarray, ops: list[tuple[str, dict[str, Any]]], boundary: str) -> np.ndarray:
    """Run each op over the whole array in turn."""
    for name, parameters in ops:
        array = OPS[name](array, boundary, **parameters)
    return array


def one_op() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Draw an op with its parameters; masks are not drawn here, since invert treats them apart."""
    return st.one_of(
        st.floats(0.3, 1.2).map(lambda s: ("gaussian", {"sigma": round(s, 2)})),
        st.integers(2, 4).map(lambda n: ("median", {"size": n})),
        st.sampled_from(["uint8", "int16", "float32"]).map(lambda d: ("cast", {"dtype": d})),
        st.just(("invert", {})),
    )


def chains() -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    """Draw a chain of ops, perhaps ending in a threshold."""
    end = st.sampled_from([[], [("threshold", {"low": 3.0})]])
    return st.tuples(st.lists(one_op(), max_size=3), end).map(lambda pair: pair[0] + pair[1])


@st.composite
def arrays(draw: st.DrawFn, max_side: int = 12) -> np.ndarray:
    """Draw a small array of random voxels, 2D or 3D."""
    shape = tuple(draw(st.lists(st.integers(1, max_side), min_size=2, max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES[1:])))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    return generator.integers(0, 200, shape).astype(dtype)


@st.composite
def inside(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw a box that is not empty and lies inside ``shape``."""
    pairs = [sorted(draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))) for n in shape]
    return tuple(low for low, _ in pairs), tuple(high + 1 for _, high in pairs)
