"""Ops: functions of a block, each with a halo, and the registry that names them.

`Onnx` is imported when it is first used: it takes as long as all the others together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from napari_materialize.ops._base import Abandoned, Description, Op, never
from napari_materialize.ops.channel import Argmax, Select
from napari_materialize.ops.filters import Gaussian, Median
from napari_materialize.ops.function import Function
from napari_materialize.ops.point import Cast, Invert, Rescale, Threshold
from napari_materialize.ops.registry import Parameter, available, create, describe_parameters

if TYPE_CHECKING:
    from napari_materialize.ops.onnx import Onnx

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


def __getattr__(name: str) -> Any:
    if name != "Onnx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from napari_materialize.ops.onnx import Onnx

    globals()[name] = Onnx
    return Onnx
