"""The parameters of the onnx op, checked: what a person may write and what is made of it.

Owns the check of each value by itself. What fits the model is found out by `_model_ports`.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import OpError
from napari_materialize.ops._axes import one_or_each
from napari_materialize.ops._model_layout import check_letters
from napari_materialize.ops._model_scale import After, Normalisation

if TYPE_CHECKING:
    from collections.abc import Callable

AUTO = "auto"


def checked(key: str, value: Any) -> Any:
    """Return one parameter's value as the op keeps it.

    Raises
    ------
    OpError
        If it is none that the parameter can have.

    Examples
    --------
    >>> checked("halo", " AUTO "), checked("halo", [3, 4]), checked("normalise", "Percentile:2,98")
    ('auto', (3, 4), 'percentile:2,98')
    """
    if value is None:
        return None
    check = _CHECKS.get(key)
    return check(value) if check else value


def _halo(value: Any) -> int | tuple[int, ...] | str:
    if isinstance(value, str):
        if value.strip().lower() == AUTO:
            return AUTO
        raise OpError(f"onnx: halo is auto, one number, or one per space axis, got {value!r}")
    return one_or_each(value, _whole(0, "halo"), "onnx: halo")


def _text(value: Any) -> str | None:
    """Return ``auto`` if a text says that."""
    if not isinstance(value, str):
        raise OpError(f"onnx: normalise and after are texts, got {value!r}")
    return AUTO if value.strip().lower() == AUTO else None


def _each(least: int, key: str) -> Callable[[Any], int | tuple[int, ...]]:
    return lambda value: one_or_each(value, _whole(least, key), f"onnx: {key}")


MOST_THREADS = 1024
"""Threads in one call of a model: each is made when the model is loaded."""


def _threads(value: Any) -> int:
    number = _whole(1, "threads")(value)
    if number > MOST_THREADS:
        raise OpError(
            f"onnx: threads must be {MOST_THREADS} or fewer, got {number}; slots times threads "
            "should be the cores"
        )
    return number


def _whole(least: int, key: str) -> Callable[[Any], int]:
    """Return a check of one whole number of voxels."""

    def check(value: Any) -> int:
        try:
            number = least - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = least - 1
        if number < least:
            raise OpError(f"onnx: {key} must be a whole number, {least} or more, got {value!r}")
        return number

    return check


def _device(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise OpError(f"onnx: device is auto, cpu, cuda or cuda:1, got {value!r}")
    return value


def _size(value: Any) -> float | tuple[float, ...]:
    def positive(one: Any) -> float:
        number = math.nan if isinstance(one, bool | str) else float(one)
        if not (math.isfinite(number) and number > 0):
            raise OpError(
                "onnx: input_voxel_size is a positive number in the image's unit, or one per "
                f"space axis, got {value!r}"
            )
        return number

    return one_or_each(value, positive, "onnx: input_voxel_size")


def _constants(value: Any) -> tuple[float, ...]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise OpError(f"onnx: constants are two numbers, as in constants=0,255, got {value!r}")
    return tuple(float(number) for number in value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "halo": _halo,
    "multiple": _each(1, "multiple"),
    "tile": _each(1, "tile"),
    "batch": _whole(1, "batch"),
    "threads": _threads,
    "layout": check_letters,
    "normalise": lambda value: _text(value) or str(Normalisation.parse(value)),
    "after": lambda value: _text(value) or str(After.parse(value)),
    "device": _device,
    "input_voxel_size": _size,
    "constants": _constants,
}
