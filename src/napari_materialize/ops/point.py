"""Ops of one voxel at a time: threshold, rescale, invert, cast.

They need no context. Each class says its formula and what it does with NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.buffers import buffer
from napari_materialize.errors import OpError
from napari_materialize.ops._base import Description, Op, never
from napari_materialize.ops._convert import dtype_name, saturate, working_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Kind, Level

__all__ = ["Cast", "Invert", "Rescale", "Threshold"]


def _number(value: Any, place: str) -> int | float:
    """Return a parameter as a Python number, a whole one as an int; refuse NaN and the rest."""
    if isinstance(value, bool):
        number = math.nan
    else:
        try:
            number = float(value)
        except OverflowError:
            number = math.copysign(math.inf, value)
        except (TypeError, ValueError):
            number = math.nan
    if math.isnan(number):
        raise OpError(f"{place}: a number, got {value!r}; give one")
    if isinstance(value, int) and math.isfinite(number):
        return value
    return int(number) if number.is_integer() else number


@dataclass(frozen=True, slots=True)
class Threshold(Op):
    """1 where ``low <= v <= high``, else 0; uint8, kind mask. NaN gives 0.

    A bound left out is open. Integers are compared in their own dtype, exactly, whatever the
    bounds are; floats in their own dtype too, the bounds rounded to it.

    Raises
    ------
    OpError
        If both bounds are missing, one is not a number, or ``low > high``.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> block = np.array([[1, 2, 3, 4]], "u1")
    >>> Threshold(2, 3).compute(block, Level(block.shape, block.dtype, block.shape))
    array([[0, 1, 1, 0]], dtype=uint8)
    """

    name = "threshold"

    low: int | float | None = field(
        default=None, metadata={"help": "lowest value that gives 1; open if left out"}
    )
    high: int | float | None = field(
        default=None, metadata={"help": "highest value that gives 1; open if left out"}
    )

    def __post_init__(self) -> None:
        for bound in ("low", "high"):
            if (value := getattr(self, bound)) is not None:
                object.__setattr__(self, bound, _number(value, f"threshold: {bound}"))
        if self.low is None and self.high is None:
            raise OpError("threshold: needs low or high, got neither; give one, such as low=120")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise OpError(
                f"threshold: low must not lie above high, got {self.low} and {self.high}; swap them"
            )

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe a mask of 0 and 1."""
        return Description(replace(level, dtype=np.dtype("u1"), fill=0), "mask", (0.0, 1.0))

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block of 0 and 1."""
        low, high = self.low, self.high
        if block.dtype.kind == "b":
            block = block.view(np.uint8)
        if block.dtype.kind != "f":
            limits = np.iinfo(block.dtype)
            low = None if low is None or low <= limits.min else low
            high = None if high is None or high >= limits.max else high
            if (low is not None and low > limits.max) or (high is not None and high < limits.min):
                return np.zeros(block.shape, np.uint8)
            low = None if low is None else math.ceil(low)
            high = None if high is None else math.floor(high)
        with np.errstate(over="ignore"):  # a bound beyond a float dtype's range is infinite there
            inside: list[np.ndarray] = [
                compare(block, block.dtype.type(bound))
                for compare, bound in ((np.greater_equal, low), (np.less_equal, high))
                if bound is not None
            ]
        if not inside:
            return np.ones(block.shape, np.uint8)
        mask = inside[0]
        for other in inside[1:]:
            mask &= other
        return mask.view(np.uint8)


@dataclass(frozen=True, slots=True)
class Rescale(Op):
    """The window ``low..high`` to 0..1, or to the full range of an integer dtype, clipped.

    ``t = min(max((v - low) / (high - low), 0), 1)``; a float dtype gets ``t``, an integer dtype
    with the range ``a..b`` gets ``a + t * (b - a)`` rounded to nearest. Computed in float32, in
    float64 where the input or the output has more digits than float32 holds. NaN stays NaN in a
    float dtype and gives 0 in an integer one.

    Raises
    ------
    OpError
        If a bound is not finite, ``low >= high``, or ``dtype`` is neither float nor integer.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> block = np.array([[0, 100, 150, 300]], "u2")
    >>> Rescale(100, 200, "uint8").compute(block, Level(block.shape, block.dtype, block.shape))
    array([[  0,   0, 128, 255]], dtype=uint8)
    """

    name = "rescale"

    low: int | float = field(metadata={"help": "value that becomes 0, or the dtype's lowest"})
    high: int | float = field(metadata={"help": "value that becomes 1, or the dtype's highest"})
    dtype: str = field(default="float32", metadata={"help": "dtype of the result"})

    def __post_init__(self) -> None:
        for bound in ("low", "high"):
            value = _number(getattr(self, bound), f"rescale: {bound}")
            object.__setattr__(self, bound, value)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise OpError(
                f"rescale: low and high must be finite and low below high, got {self.low} and "
                f"{self.high}; to turn values round use invert"
            )
        object.__setattr__(self, "dtype", dtype_name(self.dtype, "rescale: dtype"))
        if self.dtype == "bool":
            raise OpError("rescale: dtype must be a float or an integer, got bool; use threshold")

    @property
    def _range(self) -> tuple[float, float]:
        """Lowest and highest value of the output."""
        if np.dtype(self.dtype).kind == "f":
            return 0.0, 1.0
        limits = np.iinfo(np.dtype(self.dtype))
        return float(limits.min), float(limits.max)

    @property
    def _float32_resolves(self) -> bool:
        """Whether float32 tells the window's two ends apart, and finely enough."""
        with np.errstate(over="ignore", invalid="ignore"):
            span = float(np.float32(self.high) - np.float32(self.low))
        return math.isclose(span, self.high - self.low, rel_tol=1e-6)

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe an image in the asked dtype."""
        return Description(replace(level, dtype=np.dtype(self.dtype), fill=0), "image", self._range)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block."""
        target = np.dtype(self.dtype)
        working = working_float(block.dtype, target)
        if not self._float32_resolves:
            working = np.dtype(np.float64)
        values = buffer(block.shape, working)
        np.copyto(values, block)
        values -= working.type(self.low)
        values /= working.type(self.high - self.low)
        np.clip(values, 0, 1, out=values)
        if target.kind != "f":
            low, high = self._range
            values *= working.type(high - low)
            values += working.type(low)
        return saturate(values, target, own=True)


@dataclass(frozen=True, slots=True)
class Invert(Op):
    """Dark becomes bright: integers ``lo + hi - v`` over their dtype's range, others ``1 - v``.

    For unsigned integers that is ``hi - v``, for signed ones ``-1 - v``. Masks of any dtype,
    bool and floats become ``1 - v``. Labels are refused: an id has no opposite.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> block = np.array([[0, 55, 255]], "u1")
    >>> level = Level(block.shape, block.dtype, block.shape)
    >>> Invert().compute(block, level), Invert().fit(level, "mask").compute(block[:, :1], level)
    (array([[255, 200,   0]], dtype=uint8), array([[1]], dtype=uint8))
    """

    name = "invert"

    def fit(self, level: Level, kind: Kind) -> Op:
        """Return the op for a mask where ``level`` is one: its 0 and 1 change places."""
        return _InvertMask() if kind == "mask" else self

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe an image or mask of the same dtype."""
        if kind == "label":
            raise OpError(
                "invert: an image or a mask, got labels, whose ids have no opposite; for the "
                "background use threshold:high=0"
            )
        if kind == "mask":
            raise OpError("invert: on a mask call fit(level, kind) first, and use what it returns")
        return Description(replace(level, fill=0), kind)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block."""
        if block.dtype.kind == "f":
            result: np.ndarray = block.dtype.type(1) - block
            return result
        return np.invert(block)


@dataclass(frozen=True, slots=True)
class _InvertMask(Invert):
    """`Invert` on a mask."""

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe a mask of the same dtype."""
        return Description(replace(level, fill=0), "mask", (0.0, 1.0))

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block."""
        if block.dtype.kind == "b":
            return np.logical_not(block)
        result: np.ndarray = block.dtype.type(1) - block
        return result


@dataclass(frozen=True, slots=True)
class Cast(Op):
    """The same values in another dtype, saturating: what does not fit becomes the extreme.

    Floats are rounded to nearest (ties to even) for integers, where NaN becomes 0. bool is
    True where the value is neither 0 nor NaN. Labels stay labels in an integer dtype, but ids
    beyond its range all become its highest.

    Raises
    ------
    OpError
        If ``dtype`` is not bool, an integer or a float.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Level
    >>> block = np.array([[-5.0, 1.6, 300.0]], "f4")
    >>> Cast("uint8").compute(block, Level(block.shape, block.dtype, block.shape))
    array([[  0,   2, 255]], dtype=uint8)
    """

    name = "cast"

    dtype: str = field(metadata={"help": "dtype of the result, such as uint8 or float32"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype, "cast: dtype"))

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe the same image in the asked dtype."""
        dtype = np.dtype(self.dtype)
        if dtype.kind == "b":
            kind = "mask"
        elif dtype.kind == "f" and kind == "label":
            kind = "image"
        limits = (0.0, 1.0) if kind == "mask" else None
        return Description(replace(level, dtype=dtype, fill=0), kind, limits)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block."""
        return saturate(block, np.dtype(self.dtype))
