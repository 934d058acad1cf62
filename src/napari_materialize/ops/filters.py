"""Ops that weigh a voxel's neighbours in space: gaussian, median.

scipy computes them, in C and without the GIL.
Time and channels are never mixed: the ops work along the level's space axes alone.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.buffers import buffer
from napari_materialize.errors import OpError
from napari_materialize.ops._axes import along, crop, one_or_each, space_axes
from napari_materialize.ops._base import Abandoned, Description, Op, never
from napari_materialize.ops._convert import dtype_name, saturate
from napari_materialize.ops._ndimage import median_filter, smooth_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index

__all__ = ["Gaussian", "Median"]

_TRUNCATE = 4.0
"""Standard deviations at which a Gaussian is cut off: scipy's own default."""


def _output_dtype(value: Any, place: str) -> str | None:
    """Check the ``dtype`` of a filter: left out, or a float dtype."""
    if value is None:
        return None
    name = dtype_name(value, place)
    if np.dtype(name).kind != "f":
        raise OpError(
            f"{place}: a float dtype, or left out to keep the image's, got {name}; take float32"
        )
    return name


@dataclass(frozen=True, slots=True)
class Gaussian(Op):
    """A Gaussian of ``sigma`` voxels along the space axes, truncated at 4 sigma.

    Each axis in turn is correlated with ``exp(-d**2 / (2 sigma**2))`` at the whole distances
    ``d = -r..r``, ``r = int(4 sigma + 0.5)``, divided by its sum: `scipy.ndimage.gaussian_filter`
    with ``truncate=4``, bit for bit. Computed in float32 between the axes (float64 images in
    float64); integers are rounded to nearest, ties to even, and saturated. An image of bool is
    smoothed as 0 and 1 and rounded.

    Raises
    ------
    OpError
        If ``sigma`` is negative or not finite; in ``describe``, if it has another number of
        entries than the level has space axes, or if the level holds labels.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> op = Gaussian((0, 0.5))
    >>> block = np.zeros((1, 5), "u1"); block[0, 2] = 100
    >>> level = Level(block.shape, block.dtype, block.shape)
    >>> op.halo(level), op.compute(block, level)
    ((0, 2), array([[79]], dtype=uint8))
    """

    name = "gaussian"

    sigma: float | tuple[float, ...] = field(
        metadata={"help": "standard deviation in voxels: one number, or one per space axis"}
    )
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the result, float32 say; the image's if left out"}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", one_or_each(self.sigma, _sigma, "gaussian: sigma"))
        object.__setattr__(self, "dtype", _output_dtype(self.dtype, "gaussian: dtype"))

    def _sigmas(self, level: Level) -> tuple[float, ...]:
        """Return sigma along every axis of ``level``."""
        return along(self.sigma, space_axes(level), level, 0.0, "gaussian: sigma")

    def halo(self, level: Level) -> Index:
        """Return ``int(4 sigma + 0.5)`` along space axes, 0 along others."""
        return tuple(int(_TRUNCATE * sigma + 0.5) for sigma in self._sigmas(level))

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe a level of the same shape; a mask stays one unless it becomes float."""
        if kind == "label":
            raise OpError(
                "gaussian: an image or a mask, got labels, whose ids cannot be averaged; make a "
                "mask with threshold first, or use median"
            )
        self._sigmas(level)
        dtype = np.dtype(self.dtype) if self.dtype else level.dtype
        if kind == "mask":
            kind = "image" if dtype.kind == "f" else "mask"
            return Description(replace(level, dtype=dtype, fill=0), kind, (0.0, 1.0))
        return Description(replace(level, dtype=dtype, fill=0), kind)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Smooth a block, one axis after the other, dropping each axis' halo as soon as it is used.

        Raises
        ------
        Abandoned
            If, between two axes, nobody waits any more.
        """
        working = np.dtype(np.float64 if block.dtype == np.float64 else np.float32)
        values = buffer(block.shape, working)
        np.copyto(values, block)
        for axis, (sigma, halo) in enumerate(
            zip(self._sigmas(level), self.halo(level), strict=True)
        ):
            if halo == 0:  # a window of one voxel, of weight 1
                continue
            if abandoned():
                raise Abandoned
            smooth_axis(values, sigma, halo, axis)  # in place, as scipy itself does between axes
            values = crop(values, tuple(halo if each == axis else 0 for each in range(level.ndim)))
        return _as_image(values, np.dtype(self.dtype) if self.dtype else level.dtype, own=True)


@dataclass(frozen=True, slots=True)
class Median(Op):
    """The median of a window of ``size`` voxels along the space axes.

    `scipy.ndimage.median_filter`: the window of an even size reaches ``size / 2`` back and
    ``size / 2 - 1`` ahead, and of an even number of voxels the upper of the two middle ones is
    taken, so the values are always values of the image.

    Raises
    ------
    OpError
        If ``size`` is not a whole number above 0; in ``describe``, if it has another number of
        entries than the level has space axes.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> block = np.array([[9, 1, 5]], "u1")
    >>> Median((1, 3)).compute(block, Level(block.shape, block.dtype, block.shape))
    array([[5]], dtype=uint8)
    """

    name = "median"

    size: int | tuple[int, ...] = field(
        metadata={"help": "window in voxels: one number, or one per space axis"}
    )
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the result, float32 say; the image's if left out"}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", one_or_each(self.size, _size, "median: size"))
        object.__setattr__(self, "dtype", _output_dtype(self.dtype, "median: dtype"))

    def _sizes(self, level: Level) -> Index:
        """Return the window along every axis of ``level``."""
        return along(self.size, space_axes(level), level, 1, "median: size")

    def halo(self, level: Level) -> Index:
        """Return half the window, rounded down."""
        return tuple(size // 2 for size in self._sizes(level))

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe a level of the same shape and kind."""
        self._sizes(level)
        dtype = np.dtype(self.dtype) if self.dtype else level.dtype
        if dtype.kind == "f" and kind == "label":
            kind = "image"
        limits = (0.0, 1.0) if kind == "mask" else None
        return Description(replace(level, dtype=dtype, fill=0), kind, limits)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block."""
        if block.dtype.kind == "b":
            block = block.view(np.uint8)
        elif block.dtype == np.float16:  # not known to scipy; float32 keeps the order
            block = block.astype(np.float32)
        values = None
        if block.dtype.kind in "iu" and block.dtype.itemsize == 8:
            # scipy compares as float64, which is exact for the places of the values in their order
            values, places = np.unique(block, return_inverse=True)
            block = places.reshape(block.shape)
        median = median_filter(block, self._sizes(level))
        if values is not None:
            median = values[median]
        target = np.dtype(self.dtype) if self.dtype else level.dtype
        return _as_image(crop(median, self.halo(level)), target)


def _as_image(values: np.ndarray, dtype: np.dtype, *, own: bool = False) -> np.ndarray:
    """Return ``values`` in ``dtype``, rounded and saturated; bool is rounded too."""
    if dtype.kind == "b":
        return saturate(values, np.dtype("u1"), own=own).view(np.bool_)
    return saturate(values, dtype, own=own)


def _sigma(value: Any) -> float:
    """Check one sigma."""
    try:
        sigma = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        sigma = math.nan
    if not (math.isfinite(sigma) and sigma >= 0):
        raise OpError(
            f"gaussian: sigma must be a finite number, 0 or more, got {value!r}; correct it"
        )
    return sigma


def _size(value: Any) -> int:
    """Check one window size."""
    try:
        size = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = 0
    if size < 1:
        raise OpError(
            f"median: size must be a whole number of voxels, 1 or more, got {value!r}; correct it"
        )
    return size
