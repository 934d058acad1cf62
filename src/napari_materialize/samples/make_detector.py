"""Write the sample's blob detector: ``python -m napari_materialize.samples.make_detector [FILE]``.

Owns the detector's design. It needs the package `onnx`, which running the detector does not.

Three Gaussians of growing width are taken of the image, each by three convolutions along one axis:
narrow, middle and wide. A small blob stands out in narrow - middle, a large one in middle - wide;
a sigmoid around a threshold makes each a value from 0 to 1.

Of a blob ``h exp(-r^2 / 2 s^2)`` a normalised Gaussian of width ``a`` makes, at its centre,
``h (s^2 / (s^2 + a^2))^(3/2)``: the convolution of two Gaussians in three dimensions. So what each
kind of blob gives in each difference is known, and a threshold lies between the two.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.samples import (
    DETECTOR_HALO,
    LARGE_HEIGHT,
    LARGE_SIGMA,
    SCALE,
    SMALL_HEIGHT,
    SMALL_SIGMA,
    detector_path,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

WIDTHS = (0.6, 1.4, 2.8)
"""Standard deviations of the Gaussians in micrometres: narrow, middle, wide."""

TRUNCATE = 2.0
"""Standard deviations at which a Gaussian is cut off: what bounds the halo."""

CAUTION = 0.35
"""Where a threshold lies between the wrong kind of blob (0) and the right one (1)."""

STEEPNESS = (0.4, 1.2)
"""Slopes of the two sigmoids, per unit of intensity."""

OPSET, IR_VERSION = 17, 8
"""Old enough for every onnxruntime that the package accepts."""


def response(height: float, sigma: float, widths: tuple[float, float]) -> float:
    """Return what the centre of a blob gives in the difference of two Gaussians.

    Examples
    --------
    >>> round(response(150, 0.6, (0.6, 1.4)), 1)
    43.9
    """
    near, far = (math.pow(sigma**2 / (sigma**2 + width**2), 1.5) for width in widths)
    return height * (near - far)


def thresholds() -> tuple[float, float]:
    """Return the differences that give 0.5: for small blobs and for large ones."""
    small, large = (SMALL_HEIGHT, SMALL_SIGMA), (LARGE_HEIGHT, LARGE_SIGMA)
    found = []
    for widths, right, wrong in ((WIDTHS[:2], small, large), (WIDTHS[1:], large, small)):
        low, high = response(*wrong, widths), response(*right, widths)
        found.append(low + CAUTION * (high - low))
    return found[0], found[1]


def kernel(width: float, axis: int) -> np.ndarray:
    """Return a normalised Gaussian along one axis, as (1, 1, z, y, x) float32."""
    sigma = width / SCALE[axis]
    reach = int(TRUNCATE * sigma + 0.5)
    if reach > DETECTOR_HALO[axis]:
        raise ValueError(f"axis {axis}: a reach of {reach} voxels exceeds the halo {DETECTOR_HALO}")
    distance = np.arange(-reach, reach + 1)
    weights = np.exp(-(distance**2) / (2 * sigma**2))
    weights /= weights.sum()
    shape = [1, 1, 1, 1, 1]
    shape[2 + axis] = len(distance)
    return weights.reshape(shape).astype(np.float32)


def make() -> ModelProto:
    """Build the detector.

    Returns
    -------
    onnx.ModelProto
        ``image`` (batch, 1, z, y, x) float32 to ``blobs`` (batch, 2, z, y, x) float32.
    """
    import onnx
    from onnx import helper, numpy_helper

    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []
    for width, name in zip(WIDTHS, ("narrow", "middle", "wide"), strict=True):
        given = "image"
        for axis, letter in enumerate("zyx"):
            made = name if letter == "x" else f"{name}_{letter}"
            values = kernel(width, axis)
            weights.append(numpy_helper.from_array(values, f"{made}_weights"))
            pads = [(size - 1) // 2 for size in values.shape[2:]]
            node = helper.make_node("Conv", [given, f"{made}_weights"], [made], pads=pads * 2)
            nodes.append(node)
            given = made
    steepness = np.array(STEEPNESS, np.float32)
    mix = np.array([[1, -1, 0], [0, 1, -1]], np.float32) * steepness[:, np.newaxis]
    bias = -steepness * np.array(thresholds(), np.float32)
    weights.append(numpy_helper.from_array(mix.reshape(2, 3, 1, 1, 1), "mix_weights"))
    weights.append(numpy_helper.from_array(bias, "mix_bias"))
    nodes += [
        helper.make_node("Concat", ["narrow", "middle", "wide"], ["gaussians"], axis=1),
        helper.make_node("Conv", ["gaussians", "mix_weights", "mix_bias"], ["evidence"]),
        helper.make_node("Sigmoid", ["evidence"], ["blobs"]),
    ]
    ports = [
        helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT, ["batch", channels, "z", "y", "x"]
        )
        for name, channels in (("image", 1), ("blobs", 2))
    ]
    graph = helper.make_graph(nodes, "blob_detector", ports[:1], ports[1:], weights)
    return helper.make_model(
        graph,
        producer_name="napari-materialize",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )


def main(arguments: list[str]) -> None:
    """Write the detector to the file named, or to where the package looks for it."""
    import onnx

    target = Path(arguments[0]) if arguments else detector_path()
    model = make()
    onnx.checker.check_model(model, full_check=True)
    target.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(sys.argv[1:])
