"""What is done to voxels before a model, and to its output after it.

Owns the normalisations, whose two constants are taken once for a level and never per tile, and the
steps that turn scores into probabilities, labels or masks. It runs no model.

Formulas: every normalisation is ``(v - shift) / scale`` in float32; ``zscore`` as bioimage.io's
``zero_mean_unit_variance`` (over all voxels, channels together), ``percentile`` as its
``scale_range`` (nothing is cut off), ``minmax`` the same from the lowest to the highest value.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import OpError
from napari_materialize.ops._convert import dtype_name, saturate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.ops._base import Voxels

__all__ = ["After", "Constants", "Normalisation", "Pending", "scaling_for"]

KINDS = ("none", "scale", "minmax", "percentile", "zscore")

MOST_VOXELS = 2**25
"""Voxels that constants are taken from: the whole level up to this, else chunks spread over it."""


@dataclass(frozen=True, slots=True)
class Normalisation:
    """One way to bring voxels into the range that a model was trained on.

    Examples
    --------
    >>> Normalisation.parse("percentile:2,98")
    Normalisation(kind='percentile', percents=(2.0, 98.0))
    >>> str(Normalisation.parse("zscore"))
    'zscore'
    """

    kind: str = "none"
    percents: tuple[float, float] = (0.0, 100.0)

    @classmethod
    def parse(cls, text: str) -> Normalisation:
        """Read what a person wrote.

        Raises
        ------
        OpError
            If it is none of those that there are.
        """
        kind, _, rest = text.strip().lower().partition(":")
        try:
            numbers = tuple(map(float, rest.split(","))) if rest else ()
        except ValueError:
            numbers = (math.nan,)
        if kind == "percentile" and len(numbers) == 2 and 0 <= numbers[0] < numbers[1] <= 100:
            return cls(kind, (numbers[0], numbers[1]))
        if kind not in KINDS or kind == "percentile" or numbers:
            raise OpError(
                "onnx: normalise is none, scale, minmax, zscore or percentile:low,high with two "
                f"growing numbers from 0 to 100, got {text!r}"
            )
        return cls(kind)

    def __str__(self) -> str:
        low, high = self.percents
        return (
            f"percentile:{_short(low)},{_short(high)}" if self.kind == "percentile" else self.kind
        )

    @property
    def measured(self) -> bool:
        """Whether its constants are taken from voxels."""
        return self.kind in {"minmax", "percentile", "zscore"}

    def of_dtype(self, dtype: np.dtype) -> tuple[float, float]:
        """Return the shift and the scale of a normalisation that needs no voxels.

        Raises
        ------
        OpError
            If ``scale`` is asked for of a dtype without a range.
        """
        if self.kind == "none" or dtype.kind == "b":
            return 0.0, 1.0
        if dtype.kind == "f":
            raise OpError(
                f"onnx: normalise=scale takes an integer dtype's range, and the image is {dtype}; "
                "give constants=low,high with normalise=minmax"
            )
        limits = np.iinfo(dtype)
        return float(limits.min), float(limits.max) - float(limits.min)

    def given(self, constants: tuple[float, ...]) -> tuple[float, float]:
        """Return the shift and the scale from two constants that a person gave."""
        if len(constants) != 2 or not all(map(math.isfinite, constants)):
            raise OpError(
                "onnx: constants are two numbers, mean and standard deviation for zscore, the "
                f"lowest and the highest value for the others, got {constants}"
            )
        first, second = constants
        scale = second if self.kind == "zscore" else second - first
        if self.kind == "none" or scale <= 0:
            raise OpError(
                f"onnx: constants={first:g},{second:g} with normalise={self} make no scale; give "
                "zscore with a positive deviation, or minmax with two growing values"
            )
        return first, scale

    def measure(self, voxels: Voxels, level: int) -> Constants:
        """Take the constants from a level's voxels."""
        parts = [part.reshape(-1) for part in _spread(voxels, level)]
        values = np.concatenate(parts)
        every = len(values) == math.prod(voxels.levels[level].shape)
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        if not values.size:
            return Constants(0.0, 1.0, every)
        if self.kind == "zscore":
            low, scale = float(np.mean(values, dtype="f8")), float(np.std(values, dtype="f8"))
        else:
            low, high = _percentiles(values, self.percents)
            scale = high - low
        return Constants(low, scale if scale > 0 else 1.0, every)


@dataclass(frozen=True, slots=True)
class Constants:
    """A shift and a scale."""

    shift: float
    scale: float
    every: bool = True
    """Whether all the level's voxels were looked at."""

    def apply(self, block: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return ``(block - shift) / scale`` in ``dtype``; 0 to 1 fills an integer's range."""
        if (self.shift, self.scale) == (0.0, 1.0):
            return saturate(block, dtype)
        wide = np.float64 if dtype.itemsize > 4 and dtype.kind == "f" else np.float32
        with np.errstate(over="ignore"):
            result: Any = block.astype(wide)
        result -= wide(self.shift)
        result /= wide(self.scale)
        if dtype.kind in "iu":
            result *= wide(np.iinfo(dtype).max)
        return saturate(result, dtype)


@dataclass(slots=True)
class Pending:
    """Constants that are taken when somebody first needs them, once."""

    take: Any
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: Constants | None = None

    def get(self) -> Constants:
        """Return the constants."""
        with self._lock:
            if self._found is None:
                self._found = self.take()
                self.take = None  # the source need not live as long as the op
            found: Constants = self._found
            return found


def scaling_for(
    level: Level,
    kind: Normalisation,
    given: tuple[float, ...] | None,
    taken: Mapping[Level, Pending],
    place: str,
) -> Constants:
    """Return the shift and the scale of a level: given, from its dtype, or taken from its voxels.

    Raises
    ------
    OpError
        If they have to be taken from a level that nobody showed.
    """
    if given is not None:
        return Constants(*kind.given(given))
    if not kind.measured:
        return Constants(*kind.of_dtype(level.dtype))
    if not taken:
        raise OpError(
            f"{place}: normalise={kind} takes its constants from the level, which the op was not "
            "shown; put it in a view, or give constants="
        )
    # voxels made larger for the model have the constants of what they were made of
    return taken[min(taken, key=lambda other: _apart(level, other))].get()


def _apart(one: Level, other: Level) -> float:
    """Return how different the voxel sizes of two levels are."""
    return sum(abs(math.log(a / b)) for a, b in zip(one.scale, other.scale, strict=True))


def _percentiles(values: np.ndarray, percents: tuple[float, float]) -> tuple[float, float]:
    if percents == (0.0, 100.0):
        return float(values.min()), float(values.max())
    low, high = np.percentile(values, percents)
    return float(low), float(high)


def _spread(voxels: Voxels, level: int) -> Iterator[np.ndarray]:
    """Walk a level's chunks; where it is too large, some of them, evenly spread."""
    grid = voxels.levels[level].grid
    some = max(1, min(grid.size, MOST_VOXELS // max(1, math.prod(grid.chunks))))
    for number in range(some):
        # evenly through the numbers of all chunks, from the middle of the first share on
        flat = grid.size * (2 * number + 1) // (2 * some)
        index = []
        for count in reversed(grid.counts):
            flat, place = divmod(flat, count)
            index.append(place)
        yield np.asarray(voxels.look(level, grid.box(index[::-1])))


@dataclass(frozen=True, slots=True)
class After:
    """What is done to a model's output, step by step.

    Examples
    --------
    >>> After.parse("softmax+argmax").steps
    (('softmax', None), ('argmax', None))
    >>> import numpy as np
    >>> After.parse("sigmoid+threshold:0.5").apply(np.array([[[-1.0, 2.0]]])).tolist()
    [[[0, 1]]]
    """

    steps: tuple[tuple[str, float | str | None], ...] = ()

    @classmethod
    def parse(cls, text: str) -> After:
        """Read ``sigmoid``, ``softmax``, ``argmax``, ``threshold:0.5`` (1 where ``v >= 0.5``),
        ``above:0.5`` (where ``v > 0.5``), ``cast:uint8``, or several.

        Raises
        ------
        OpError
            If a step is none of them.
        """
        if text.strip().lower() in {"", "none"}:
            return cls()
        return cls(tuple(map(_step, text.split("+"))))

    def __str__(self) -> str:
        words = (
            n if v is None else f"{n}:{_short(v) if isinstance(v, float) else v}"
            for n, v in self.steps
        )
        return "+".join(words) or "none"

    def describe(
        self, channels: int, dtype: np.dtype, kind: Kind, limits: tuple[float, float] | None
    ) -> tuple[int, np.dtype, Kind, tuple[float, float] | None]:
        """Return the channels, dtype, kind and limits behind the steps."""
        for name, value in self.steps:
            if name in {"sigmoid", "softmax"}:
                dtype, limits = np.result_type(dtype, np.float16), (0.0, 1.0)
                dtype = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
            elif name == "argmax":
                dtype = np.dtype(np.uint8 if channels <= 256 else np.uint16)
                channels, kind, limits = 1, "label", (0.0, float(max(1, channels - 1)))
            elif name in {"threshold", "above"}:
                dtype, kind, limits = np.dtype(np.uint8), "mask", (0.0, 1.0)
            else:
                dtype = np.dtype(str(value))
        return channels, dtype, kind, limits

    def apply(self, made: np.ndarray) -> np.ndarray:
        """Return (batch, channel, space...) behind the steps."""
        for name, value in self.steps:
            if name == "sigmoid":
                made = _sigmoid(_floating(made))
            elif name == "softmax":
                made = _softmax(_floating(made))
            elif name == "argmax":
                kind = np.uint8 if made.shape[1] <= 256 else np.uint16
                made = made.argmax(axis=1).astype(kind)[:, np.newaxis]
            elif name == "threshold":
                made = (made >= value).astype(np.uint8)
            elif name == "above":
                made = (made > value).astype(np.uint8)
            else:
                made = saturate(made, np.dtype(str(value)))
        return made


def _short(value: float) -> str:
    """Return a number in as many digits as it has."""
    return repr(value).removesuffix(".0")


def _step(text: str) -> tuple[str, float | str | None]:
    name, colon, rest = text.strip().lower().partition(":")
    if name in {"sigmoid", "softmax", "argmax"} and not colon:
        return name, None
    if name == "cast" and rest:
        return name, dtype_name(rest, "onnx: after=cast")
    if name in {"threshold", "above"}:
        try:
            value = float(rest) if rest else 0.5
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return name, value
    raise OpError(
        "onnx: after is sigmoid, softmax, argmax, threshold:VALUE, above:VALUE or cast:DTYPE, "
        f"several joined by +, got {text!r}"
    )


def _floating(made: np.ndarray) -> np.ndarray:
    wide = np.result_type(made.dtype, np.float16)
    return made.astype(np.float32 if wide.itemsize < 4 else wide)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.negative(values)
    with np.errstate(over="ignore"):
        np.exp(result, out=result)
    result += 1
    return np.reciprocal(result, out=result)


def _softmax(values: np.ndarray) -> np.ndarray:
    values = values - values.max(axis=1, keepdims=True)
    np.exp(values, out=values)
    values /= values.sum(axis=1, keepdims=True)
    return values
