"""Ops: functions of a block, each with a halo, and the registry that names them.

Each op is imported when it is first used: a job is of few of them, or none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from napari_materialize.ops._base import Abandoned, Description, Op, never
from napari_materialize.ops.registry import Parameter, available, create, describe_parameters

if TYPE_CHECKING:
    from napari_materialize.ops.channel import Argmax, Select
    from napari_materialize.ops.filters import Gaussian, Median
    from napari_materialize.ops.function import Function
    from napari_materialize.ops.onnx import Onnx
    from napari_materialize.ops.point import Cast, Invert, Rescale, Threshold

__all__ = [
    "Abandoned",
    "Argmax",
    "Cast",
    "Description",
    "Function",
    "Gaussian",
    "Invert",
    "Median",
    "Onnx",
    "Op",
    "Parameter",
    "Rescale",
    "Select",
    "Threshold",
    "available",
    "create",
    "describe_parameters",
    "never",
]


_HOME = {
    "Argmax": "channel",
    "Cast": "point",
    "Function": "function",
    "Gaussian": "filters",
    "Invert": "point",
    "Median": "filters",
    "Onnx": "onnx",
    "Rescale": "point",
    "Select": "channel",
    "Threshold": "point",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
