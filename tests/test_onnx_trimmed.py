"""Models run without the margin that nobody keeps: the same, voxel by voxel."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

import napari_materialize as nm
import onnx_models as models
from napari_materialize import ops
from napari_materialize.arrays import Level
from napari_materialize.geometry import Box
from napari_materialize.ops import _model_trimmed
from napari_materialize.ops._model_file import read_model
from napari_materialize.ops._model_layout import Layout
from napari_materialize.ops._model_rewrite import rewrite
from napari_materialize.ops._model_trim import effort, trim
from onnx_models import node, weights

if TYPE_CHECKING:
    from pathlib import Path

NOISE = np.random.default_rng(17)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


class Chain:
    """Operators drawn one after the other; every one but the last grid ends where it began."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[tuple[str, np.ndarray]] = []
        self.numbers = itertools.count()
        self.last, self.channels = "in", 1

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{next(self.numbers)}"
        self.nodes.append(node(kind, inputs, [name], **attributes))
        return name

    def keep(self, values: np.ndarray) -> str:
        name = f"w{next(self.numbers)}"
        self.stored.append((name, values))
        return name

    def conv(self, given: str, taken: int, made: int) -> str:
        window = self.data.draw(st.sampled_from([1, 2, 3, 5]))
        spread = self.data.draw(st.integers(1, 3))
        kernel = self.keep(weights(made, taken, window, window, seed=len(self.nodes)))
        if self.data.draw(st.booleans()):
            how = self.data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
            return self.add("Conv", [given, kernel], auto_pad=how, dilations=[1, 1])
        reach = (window - 1) * spread
        pads = [reach // 2] * 2 + [reach - reach // 2] * 2
        return self.add("Conv", [given, kernel], pads=pads, dilations=[spread, spread])

    def step(self, depth: int) -> None:
        step = self.data.draw(
            st.sampled_from(["conv", "conv", "skip", "point", "pad", "turn", "softmax", "scale"]),
            "step",
        )
        if step == "conv":
            made = self.data.draw(st.integers(1, 3))
            self.last, self.channels = self.conv(self.last, self.channels, made), made
        elif step == "skip" and depth < 2:
            self.skip(depth)
        elif step == "point":
            kind = self.data.draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Identity"]))
            self.last = self.add(kind, [self.last])
        elif step == "pad":
            mode = self.data.draw(st.sampled_from(["constant", "edge", "reflect"]))
            pads = self.keep(np.array([0, 0, 2, 1, 0, 0, 2, 3]))
            padded = self.add("Pad", [self.last, pads], mode=mode)
            kernel = self.keep(weights(self.channels, self.channels, 5, 5, seed=len(self.nodes)))
            self.last = self.add("Conv", [padded, kernel])
        elif step == "turn":
            turned = self.add("Transpose", [self.last], perm=[0, 2, 3, 1])
            moved = self.add("Mul", [turned, self.keep(weights(self.channels))])
            self.last = self.add("Transpose", [moved], perm=[0, 3, 1, 2])
        elif step == "softmax":
            self.last = self.add("Softmax", [self.last], axis=1)
        else:
            kept = [self.keep(weights(self.channels, seed=n)) for n in range(3)]
            width = self.keep(np.ones(self.channels, "f4"))
            self.last = self.add("BatchNormalization", [self.last, *kept, width])

    def skip(self, depth: int) -> None:
        """One branch as it is or convolved, one on a coarser grid; joined or added."""
        before, channels = self.last, self.channels
        for _ in range(self.data.draw(st.integers(0, 2))):
            self.step(depth + 1)
        beside, wide = self.last, self.channels
        low = self.coarser(before, channels)
        if self.data.draw(st.booleans()):
            low = self.conv(low, channels, channels)
        up = self.finer(low, channels)
        if wide == channels and self.data.draw(st.booleans()):
            self.last = self.add("Add", [beside, up])
        else:
            self.last, self.channels = self.add("Concat", [up, beside], axis=1), wide + channels

    def coarser(self, given: str, channels: int) -> str:
        how = self.data.draw(st.sampled_from(["MaxPool", "AveragePool", "Conv"]))
        if how == "Conv":
            kernel = self.keep(weights(channels, channels, 3, 3))
            return self.add("Conv", [given, kernel], strides=[2, 2], pads=[1, 0, 0, 1])
        return self.add(how, [given], kernel_shape=[2, 2], strides=[2, 2])

    def finer(self, given: str, channels: int) -> str:
        how = self.data.draw(st.sampled_from(["nearest", "linear", "ConvTranspose", "wide"]))
        if how in {"nearest", "linear"}:
            factors = self.keep(np.array([1, 1, 2, 2], "f4"))
            places = self.data.draw(st.sampled_from(["asymmetric", "half_pixel"]))
            return self.add(
                "Resize", [given, "", factors], mode=how, coordinate_transformation_mode=places
            )
        window, more = (2, 0) if how == "ConvTranspose" else (3, 1)
        kernel = self.keep(weights(channels, channels, window, window))
        pads = [0] * 4 if how == "ConvTranspose" else [1] * 4
        return self.add(
            "ConvTranspose", [given, kernel], strides=[2, 2], pads=pads, output_padding=[more] * 2
        )


def run(data: bytes, tile: np.ndarray, output: str) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run([output], {"in": tile})[0]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_crop_of_any_graph_is_what_is_left_of_the_whole(
    tmp_path: Path, data: st.DataObject
) -> None:
    chain = Chain(data)
    for _ in range(data.draw(st.integers(1, 5), "steps")):
        chain.step(0)
    if data.draw(st.booleans(), "finer"):
        chain.last = chain.finer(chain.last, chain.channels)
    assume(chain.nodes)
    chain.nodes.append(node("Identity", [chain.last], ["out"]))
    path = models.save(tmp_path / "m.onnx", chain.nodes, chain.stored)
    file, content = read_model(path)
    tile = NOISE.normal(size=(2, 1, 32, 40)).astype("f4")
    whole = run(content, tile, "out")
    # where a voxel of a coarser grid has gone the rest must still hold one
    crop = tuple(data.draw(st.tuples(*[st.integers(0, 11)] * 2), "crop") for _ in range(2))
    found = trim(file.graph, ("in", "out"), (Layout("bcyx"),) * 2, crop)
    assert found is not None
    changed = rewrite(content, found, "out")
    onnx.checker.check_model(onnx.load_from_string(changed), full_check=True)
    (top, bottom), (left, right) = crop
    height, width = whole.shape[2:]
    kept = whole[:, :, top : height - bottom, left : width - right]
    made = run(changed, tile, found.output)
    assert made.shape == kept.shape
    np.testing.assert_allclose(made, kept, rtol=0, atol=1e-5 * (1 + abs(whole).max()))
    assert effort(found.layers, tile.shape[2:]) <= np.prod(tile.shape[2:]) * (1 + 1e-9)


def test_a_chain_of_convolutions_makes_at_each_layer_only_what_the_next_needs(
    tmp_path: Path,
) -> None:
    path = models.deep(tmp_path / "m.onnx")
    file, content = read_model(path)
    found = trim(file.graph, ("in", "out"), (Layout("bczyx"),) * 2, ((4, 4),) * 3)
    assert found is not None
    assert (found.cuts, found.inputs) == ({}, {})  # no copy is made for it
    assert list(found.pads.values()) == [[0] * 6] * 3
    assert [layer.cut[0] for layer in found.layers] == [2, 6, 8]
    tile = NOISE.normal(size=(1, 1, 12, 13, 14)).astype("f4")
    np.testing.assert_array_equal(
        run(rewrite(content, found, "out"), tile, "out"),
        run(content, tile, "out")[:, :, 4:-4, 4:-4, 4:-4],
    )


def test_a_smaller_halo_than_the_model_has_is_not_made_better(tmp_path: Path) -> None:
    """What a model's own padding does to voxels that are kept is part of what it makes."""
    path = models.deep(tmp_path / "m.onnx")
    file, content = read_model(path)
    found = trim(file.graph, ("in", "out"), (Layout("bczyx"),) * 2, ((2, 0),) * 3)
    assert found is not None
    tile = NOISE.normal(size=(1, 1, 9, 9, 9)).astype("f4")
    np.testing.assert_array_equal(
        run(rewrite(content, found, "out"), tile, "out"),
        run(content, tile, "out")[:, :, 2:, 2:, 2:],
    )


def test_of_several_outputs_only_what_is_asked_for_is_made(tmp_path: Path) -> None:
    path = models.two_outputs(tmp_path / "m.onnx")
    file, content = read_model(path)
    found = trim(file.graph, ("in", "near"), (Layout("bcyx"),) * 2, ((3, 3),) * 2)
    assert found is not None
    left = onnx.load_from_string(rewrite(content, found, "near")).graph
    assert [each.op_type for each in left.node] == ["Slice", "Conv"]
    assert [port.name for port in left.output] == ["near"]


def level_of(image: np.ndarray, chunks: tuple[int, ...]) -> Level:
    return Level(image.shape, image.dtype, chunks)


def settled(op: ops.Onnx, image: np.ndarray) -> ops.Onnx:
    view = nm.open_view(image, op, chunks=(8,) * image.ndim)
    (found,) = view.ops
    assert isinstance(found, ops.Onnx)
    return found


def test_an_op_in_a_view_runs_trimmed_and_says_so_in_its_effort(tmp_path: Path) -> None:
    image = NOISE.normal(size=(24, 24, 24)).astype("f4")
    op = ops.Onnx(models.deep(tmp_path / "m.onnx"), 4)
    slim, level, box = (
        settled(op, image),
        level_of(image, (8, 8, 8)),
        Box((0, 8, 8, 8), (2, 16, 16, 16)),
    )
    assert slim._trimmed is not None
    block = image[4:20, 4:20, 4:20]
    np.testing.assert_array_equal(op.run(block, box, level), slim.run(block, box, level))
    assert op.effort(box, level) == 16**3
    # convolutions of weights (made + 8) x 27 x taken, on what each of them still makes
    work = [(10 * 1, 14), (10 * 2, 10), (10 * 2, 8)]
    expected = 16**3 * sum(w * n**3 for w, n in work) / sum(w * 16**3 for w, _ in work)
    assert slim.effort(box, level) == pytest.approx(expected)


def test_tiles_that_lack_their_halo_run_the_model_as_it_came(tmp_path: Path) -> None:
    from napari_materialize.ops._model_grid import AxisGrid, Tiling

    tight = Tiling(AxisGrid(stride=8), halo=8, tile=32, cell=15)
    assert not tight.has_halo
    op = settled(ops.Onnx(models.plain(tmp_path / "m.onnx"), 2), np.zeros((16, 16), "f4"))
    assert op._trimmed is not None
    assert op._slim((tight, tight)) is None
    assert op._slim((Tiling(AxisGrid(), 2),) * 2) is op._trimmed


def test_a_rewritten_model_that_makes_something_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.plain(tmp_path / "m.onnx")
    image = NOISE.normal(size=(24, 24)).astype("f4")

    def wrong(data: bytes, *rest: Any) -> bytes:
        model = onnx.load_from_string(rewrite(data, *rest))
        (kernel,) = (each for each in model.graph.initializer if each.name == "b")
        kernel.CopyFrom(numpy_helper.from_array(1.01 * numpy_helper.to_array(kernel), "b"))
        return model.SerializeToString()

    monkeypatch.setattr(_model_trimmed, "rewrite", wrong)
    assert settled(ops.Onnx(path, 2), image)._trimmed is None
    monkeypatch.setattr(_model_trimmed, "rewrite", lambda data, *rest: data[:-9])
    assert settled(ops.Onnx(path, 2, threads=2), image)._trimmed is None
    monkeypatch.undo()
    assert settled(ops.Onnx(path, 3), image)._trimmed is not None


def test_what_is_not_understood_is_left_alone(tmp_path: Path) -> None:
    image = NOISE.normal(size=(24, 24)).astype("f4")
    old = models.plain(tmp_path / "old.onnx", opsets=[onnx.helper.make_opsetid("", 10)])
    assert settled(ops.Onnx(old, 2), image)._trimmed is None
    ends = [node("Loop", ["m", "t", "in"], ["out"], body=_body())]
    stored = [("m", np.array(1)), ("t", np.array(True))]
    looped = models.save(tmp_path / "looped.onnx", ends, stored)
    assert settled(ops.Onnx(looped, 2), image)._trimmed is None
    any_size = models.unet_of_any_size(tmp_path / "any.onnx")
    assert settled(ops.Onnx(any_size, 4), image)._trimmed is None


def _body() -> onnx.GraphProto:
    """A loop's body: one convolution of width 3 with ones."""
    make = onnx.helper.make_tensor_value_info
    kernel = numpy_helper.from_array(np.ones((1, 1, 3, 3), "f4"), "k")
    nodes = [node("Identity", ["go"], ["on"]), node("Conv", ["x", "k"], ["y"], pads=[1] * 4)]
    given = [make("i", TensorProto.INT64, []), make("go", TensorProto.BOOL, []),
             make("x", TensorProto.FLOAT, None)]  # fmt: skip
    made = [make("on", TensorProto.BOOL, []), make("y", TensorProto.FLOAT, None)]
    return onnx.helper.make_graph(nodes, "body", given, made, [kernel])


def test_weights_in_other_files_are_found_by_both(tmp_path: Path) -> None:
    path = models.deep(tmp_path / "m.onnx")
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    image = NOISE.normal(size=(16, 16, 16)).astype("f4")
    op = settled(ops.Onnx(path, 4), image)
    assert op.file.external
    assert op._trimmed is not None
    wide = np.pad(image, 4, mode="edge")
    whole = models.run(path, wide[None, None])[0][:, 4:-4, 4:-4, 4:-4]
    view = nm.open_view(image, op, chunks=(8, 8, 8))
    made = view.look(0, Box.whole(view.levels[0].shape))
    np.testing.assert_allclose(made, whole, rtol=0, atol=1e-6)
