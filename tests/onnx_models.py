"""Small ONNX models of every kind, made with onnx's helpers, and one large run of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

node = helper.make_node


def weights(*shape: int, seed: int = 3, dtype: str = "f4") -> np.ndarray:
    """Return random weights that keep the height of what they are applied to."""
    values = np.random.default_rng(seed).normal(size=shape)
    return (values / np.sqrt(np.prod(shape[1:]))).astype(dtype)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    stored: Sequence[tuple[str, np.ndarray]] = (),
    *,
    shape: Sequence[Any] = ("n", 1, "y", "x"),
    takes: int = TensorProto.FLOAT,
    gives: int | None = None,
    outputs: Sequence[tuple[str, int]] = (("out", 4),),
    **options: Any,
) -> Path:
    """Write a model of one input ``in``; outputs are (name, number of axes)."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("in", takes, shape)],
        [
            helper.make_tensor_value_info(
                name, gives or takes, [f"{name}{axis}" for axis in range(axes)]
            )
            for name, axes in outputs
        ],
        [numpy_helper.from_array(value, name) for name, value in stored],
    )
    opsets = options.pop("opsets", [helper.make_opsetid("", 17)])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)
    path.write_bytes(model.SerializeToString())
    return path


def plain(path: Path, **options: Any) -> Path:
    """Two convolutions of width 3, padded: a halo of 2."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], pads=[1] * 4),
        node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "b"], ["out"], pads=[1] * 4),
    ]
    return save(path, nodes, [("a", weights(4, 1, 3, 3)), ("b", weights(2, 4, 3, 3))], **options)


def saturating(path: Path) -> Path:
    """A mean of 5 x 5, padded with 1, cut off at 1: a halo of 2 below 1, the same above."""
    nodes = [
        node("Pad", ["in", "sides", "one"], ["wide"]),
        node("Conv", ["wide", "a"], ["h"]),
        node("Min", ["h", "one"], ["out"]),
    ]
    given = [
        ("sides", np.array([0, 0, 2, 2, 0, 0, 2, 2], np.int64)),
        ("one", np.float32(1)),
        ("a", np.full((1, 1, 5, 5), 1 / 25, "f4")),
    ]
    return save(path, nodes, given)


def strided(path: Path) -> Path:
    """A convolution of width 3 with stride 2, padded: half the grid."""
    nodes = [node("Conv", ["in", "a"], ["out"], pads=[1] * 4, strides=[2, 2])]
    return save(path, nodes, [("a", weights(1, 1, 3, 3))])


def valid(path: Path) -> Path:
    """A convolution of width 5 without padding: four voxels less on each axis."""
    return save(path, [node("Conv", ["in", "a"], ["out"])], [("a", weights(2, 1, 5, 5))])


def transposed(path: Path) -> Path:
    """A transposed convolution of width 4 and stride 2: twice the grid."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], pads=[1] * 4),
        node("ConvTranspose", ["h", "b"], ["out"], pads=[1] * 4, strides=[2, 2]),
    ]
    return save(path, nodes, [("a", weights(3, 1, 3, 3)), ("b", weights(3, 1, 4, 4))])


def unet(path: Path, shape: Sequence[Any] = ("n", 1, "y", "x")) -> Path:
    """Pool by 2, convolve, enlarge, join with the skip, convolve: sides that are multiples of 2."""
    nodes = [
        node("Conv", ["in", "a"], ["skip"], pads=[1] * 4),
        node("MaxPool", ["skip"], ["low"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["low", "b"], ["mid"], pads=[1] * 4),
        node("Resize", ["mid", "", "s"], ["up"], mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Concat", ["up", "skip"], ["both"], axis=1),
        node("Conv", ["both", "c"], ["out"], pads=[1] * 4),
    ]  # fmt: skip
    stored = [
        ("a", weights(2, 1, 3, 3)),
        ("b", weights(2, 2, 3, 3)),
        ("c", weights(1, 4, 3, 3)),
        ("s", np.array([1, 1, 2, 2], "f4")),
    ]
    return save(path, nodes, stored, shape=shape)


def unet_of_any_size(path: Path) -> Path:
    """Pool by 4 and enlarge by 4, a side cut to what it was: runs on any size, rightly on few."""
    nodes = [
        node("MaxPool", ["in"], ["low"], kernel_shape=[4, 4], strides=[4, 4], ceil_mode=1),
        node("Conv", ["low", "a"], ["mid"], pads=[1] * 4),
        node("Shape", ["in"], ["size"], start=2),
        node("Shape", ["mid"], ["head"], end=2),
        node("Concat", ["head", "size"], ["sizes"], axis=0),
        node("Resize", ["mid", "", "", "sizes"], ["up"], mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Add", ["up", "in"], ["out"]),
    ]  # fmt: skip
    return save(path, nodes, [("a", weights(1, 1, 3, 3))])


def channels_last(path: Path) -> Path:
    """The plain one, with its channels last."""
    nodes = [
        node("Transpose", ["in"], ["t"], perm=[0, 3, 1, 2]),
        node("Conv", ["t", "a"], ["h"], pads=[1] * 4),
        node("Conv", ["h", "b"], ["u"], pads=[1] * 4),
        node("Transpose", ["u"], ["out"], perm=[0, 2, 3, 1]),
    ]
    stored = [("a", weights(4, 1, 3, 3)), ("b", weights(2, 4, 3, 3))]
    return save(path, nodes, stored, shape=(1, "y", "x", 1))


def half(path: Path) -> Path:
    """One convolution in float16."""
    nodes = [node("Conv", ["in", "a"], ["out"], pads=[1] * 4)]
    stored = [("a", weights(1, 1, 3, 3, dtype="f2"))]
    return save(path, nodes, stored, takes=TensorProto.FLOAT16)


def bytes_(path: Path, takes: int = TensorProto.UINT8) -> Path:
    """Takes integers, and casts them to float32 itself."""
    nodes = [
        node("Cast", ["in"], ["f"], to=TensorProto.FLOAT),
        node("Conv", ["f", "a"], ["out"], pads=[1] * 4),
    ]
    return save(path, nodes, [("a", weights(1, 1, 3, 3))], takes=takes, gives=TensorProto.FLOAT)


def two_outputs(path: Path) -> Path:
    """Two outputs: ``near`` of width 3 and ``far`` of width 7."""
    nodes = [
        node("Conv", ["in", "a"], ["near"], pads=[1] * 4),
        node("Conv", ["in", "b"], ["far"], pads=[3] * 4),
    ]
    stored = [("a", weights(1, 1, 3, 3)), ("b", weights(2, 1, 7, 7))]
    return save(path, nodes, stored, outputs=(("near", 4), ("far", 4)))


def pooled_globally(path: Path) -> Path:
    """Divides by the mean of the whole tile."""
    nodes = [
        node("GlobalAveragePool", ["in"], ["mean"]),
        node("Sub", ["in", "mean"], ["out"]),
    ]
    return save(path, nodes)


def normalised(path: Path) -> Path:
    """A convolution, and its output normalised over the tile."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], pads=[1] * 4),
        node("InstanceNormalization", ["h", "g", "z"], ["out"]),
    ]
    one, zero = np.ones(1, "f4"), np.zeros(1, "f4")
    return save(path, nodes, [("a", weights(1, 1, 3, 3)), ("g", one), ("z", zero)])


def deep(path: Path, shape: Sequence[Any] = ("n", 1, "z", "y", "x")) -> Path:
    """Three convolutions in 3D with dilations 1, 2, 1: a halo of 4."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], pads=[1] * 6),
        node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "b"], ["i"], pads=[2] * 6, dilations=[2, 2, 2]),
        node("Conv", ["i", "c"], ["out"], pads=[1] * 6),
    ]
    stored = [
        ("a", weights(2, 1, 3, 3, 3)),
        ("b", weights(2, 2, 3, 3, 3)),
        ("c", weights(2, 2, 3, 3, 3)),
    ]
    return save(path, nodes, stored, shape=shape, outputs=(("out", 5),))


def run(path: Path, array: np.ndarray, output: str | None = None) -> np.ndarray:
    """Run a model on an array laid out as it takes it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = None if output is None else [output]
    return session.run(names, {session.get_inputs()[0].name: array})[0]


def planes(path: Path, depth: int | str) -> Path:
    """Convolutions of width 3 in a plane, the first over five of them: of five planes one."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], pads=[0, 1, 1, 0, 1, 1]),
        node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "b"], ["out"], pads=[0, 1, 1, 0, 1, 1]),
    ]
    stored = [("a", weights(3, 1, 5, 3, 3)), ("b", weights(2, 3, 1, 3, 3))]
    return save(path, nodes, stored, shape=("n", 1, depth, "y", "x"), outputs=[("out", 5)])
