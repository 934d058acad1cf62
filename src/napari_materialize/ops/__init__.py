"""Ops: functions of a block, each with a halo, and the registry that names them."""

from napari_materialize.ops._base import Abandoned, Description, Op, never
from napari_materialize.ops.channel import Argmax, Select
from napari_materialize.ops.filters import Gaussian, Median
from napari_materialize.ops.function import Function
from napari_materialize.ops.onnx import Onnx
from napari_materialize.ops.point import Cast, Invert, Rescale, Threshold
from napari_materialize.ops.registry import Parameter, available, create, describe_parameters

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
