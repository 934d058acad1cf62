"""Models that were not thought of when the op was made: each runs rightly or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import napari_materialize as nm
import onnx_models as models
from napari_materialize import ops
from napari_materialize.errors import ModelError
from napari_materialize.geometry import Box
from napari_materialize.ops._model_context import MOST_COMPARED
from napari_materialize.ops._model_session import Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

node = models.node
IMAGE = np.random.default_rng(5).normal(size=(50, 61)).astype("f4")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


@pytest.mark.parametrize(
    "shape", [("n", 1, 40, "x"), (1, 1, "y", 40), (2, 1, "y", 40)], ids=["y", "x", "batch and x"]
)
def test_one_side_fixed_and_one_free_equals_both_free(tmp_path: Path, shape: Sequence[Any]) -> None:
    free = models.unet(tmp_path / "free.onnx")
    mixed = models.unet(tmp_path / "mixed.onnx", shape)
    made = []
    for path in (free, mixed):
        view = nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(11, 13))
        assert view.ops[0].parameters["halo"] == 6
        made.append(view.look(0, Box((3, 8), (47, 61))))
    np.testing.assert_allclose(made[1], made[0], rtol=0, atol=1e-5)


CONV = node("Conv", ["in", "a"], ["h"], pads=[1] * 4)
LAST = node("Conv", ["g", "b"], ["out"], pads=[1] * 4)
MIRROR = [("i1", [-1]), ("i2", [-(2**62)]), ("i3", [3]), ("i4", [-1])]

WHOLE = {
    "highest": [
        node("ReduceMax", ["h"], ["p"], axes=[2, 3]),
        node("Sub", ["h", "p"], ["g"]),
    ],
    "faint mean": [
        node("ReduceMean", ["h"], ["p"], axes=[2, 3]),
        node("Mul", ["p", "little"], ["q"]),
        node("Sub", ["h", "q"], ["g"]),
    ],
    "mirror": [node("Slice", ["h", *(name for name, _ in MIRROR)], ["g"])],
    "softmax along x": [node("Softmax", ["h"], ["g"], axis=-1)],
    "softmax of channels": [node("Softmax", ["h"], ["g"], axis=1)],
    "mean of channels": [
        node("ReduceMean", ["h"], ["p"], axes=[1]),
        node("Sub", ["h", "p"], ["g"]),
    ],
}


def middle(path: Path, name: str) -> Path:
    stored = [
        ("a", models.weights(3, 1, 3, 3)),
        ("b", models.weights(1, 3, 3, 3)),
        ("little", np.array(0.01, "f4")),
        *((key, np.array(value)) for key, value in MIRROR),
    ]
    return models.save(path, [CONV, *WHOLE[name], LAST], stored)


@pytest.mark.parametrize("name", ["highest", "faint mean", "mirror", "softmax along x"])
def test_far_voxels_that_matter_are_found(tmp_path: Path, name: str) -> None:
    """Two large tiles of noise have nearly the same mean, and the same highest value."""
    path = middle(tmp_path / "m.onnx", name)
    with pytest.raises(ModelError, match=r"depends on the whole tile.*allow_tile_dependent=true"):
        nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(16, 16))


@pytest.mark.parametrize("name", ["highest", "faint mean", "softmax along x"])
def test_a_given_halo_hides_no_far_voxels(tmp_path: Path, name: str) -> None:
    path = middle(tmp_path / "m.onnx", name)
    with pytest.raises(ModelError, match="depends on the whole tile"):
        nm.open_view(IMAGE, ops.Onnx(path, 8), chunks=(16, 16))


@pytest.mark.parametrize("name", ["softmax of channels", "mean of channels"])
@pytest.mark.parametrize("halo", ["auto", 2])
def test_what_looks_along_the_channels_only_is_run(tmp_path: Path, name: str, halo: Any) -> None:
    path = middle(tmp_path / "m.onnx", name)
    view = nm.open_view(IMAGE, ops.Onnx(path, halo), chunks=(16, 16))
    assert view.ops[0].parameters["halo"] == 2
    whole = models.run(path, np.pad(IMAGE, 8, mode="edge")[None, None])[0, 0, 8:-8, 8:-8]
    np.testing.assert_allclose(view.look(0, Box.whole(IMAGE.shape)), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("times", "stride"), [(1.5, 2), (2.5, 2), (0.75, 4), (0.1, 10)])
@pytest.mark.parametrize("conv", [False, True])
def test_broken_ratios_have_the_stride_that_makes_them_whole(
    tmp_path: Path, times: float, stride: int, conv: bool
) -> None:
    nodes = [node("Resize", ["h", "", "s"], ["out"], mode="nearest")]
    nodes.insert(0, CONV if conv else node("Identity", ["in"], ["h"]))
    stored = [("s", np.array([1, 1, times, times], "f4")), ("a", models.weights(1, 1, 3, 3))]
    path = models.save(tmp_path / "m.onnx", nodes, stored)
    view = nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(16, 20))
    op = view.ops[0]
    assert isinstance(op, ops.Onnx)
    assert op.multiple == stride
    wide = np.pad(IMAGE, [(20, 30), (20, 39)], mode="edge")
    first = round(20 * times)
    whole = models.run(path, wide[None, None])[0, 0, first:, first:]
    box = Box.whole(view.levels[0].shape)
    np.testing.assert_allclose(view.look(0, box), whole[box.slices], rtol=0, atol=1e-5)


def test_sides_that_are_multiples_of_ten_are_found_without_convolutions(tmp_path: Path) -> None:
    nodes = [
        node("SpaceToDepth", ["in"], ["h"], blocksize=10),
        node("DepthToSpace", ["h"], ["out"], blocksize=10),
    ]
    path = models.save(tmp_path / "m.onnx", nodes)
    view = nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(16, 20))
    np.testing.assert_array_equal(view.look(0, Box.whole(IMAGE.shape)), IMAGE)


def test_a_name_of_weights_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "w.bin\0x"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="which is no name of a file"):
        ops.Onnx(path, 2)


def test_a_model_that_takes_nothing_is_refused(tmp_path: Path) -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [1, 1, 4, 4], [0.0] * 16)
    path = models.save(tmp_path / "m.onnx", [node("Constant", [], ["out"], value=value)])
    model = onnx.load(path)
    del model.graph.input[:]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="has no input, and a model of one image has one"):
        ops.Onnx(path, 2)


@pytest.mark.parametrize("side", [5, 8])
def test_small_fixed_sides_are_run_where_measuring_confirms_the_graph(
    tmp_path: Path, side: int
) -> None:
    shape = (1, 1, "y", side)
    one = [node("Conv", ["in", "a"], ["out"], pads=[1] * 4)]
    path = models.save(tmp_path / "m.onnx", one, [("a", models.weights(1, 1, 3, 3))], shape=shape)
    free = models.save(tmp_path / "free.onnx", one, [("a", models.weights(1, 1, 3, 3))])
    if side == 5:  # of which nothing can be said
        with pytest.raises(ModelError, match="its tiles are too small to find out how much"):
            nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(11, 13))
        return
    box = Box((0, 0), IMAGE.shape)
    made, wanted = (
        nm.open_view(IMAGE, ops.Onnx(each, "auto"), chunks=(11, 13)).look(0, box)
        for each in (path, free)
    )
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-6)


def test_more_threads_than_a_machine_can_make_are_refused(tmp_path: Path) -> None:
    with pytest.raises(nm.errors.OpError, match="threads must be 1024 or fewer, got 1000000"):
        ops.Onnx(models.plain(tmp_path / "m.onnx"), 2, threads=1_000_000)


@pytest.mark.parametrize(("rank", "far"), [(2, 190), (3, 52)])
def test_a_net_that_looks_far_is_not_taken_for_one_that_looks_at_its_whole_tile(
    tmp_path: Path, rank: int, far: int
) -> None:
    conv = node("Conv", ["in", "a"], ["out"], pads=[far] * 2 * rank, dilations=[far] * rank)
    weights = [("a", models.weights(1, 1, *[3] * rank))]
    shape, made = ("n", 1, "z", "y", "x")[: 2 + rank], [("out", 2 + rank)]
    path = models.save(tmp_path / "far.onnx", [conv], weights, shape=shape, outputs=made)
    image = np.random.default_rng(6).normal(size=(2 * far + 9, *[20] * (rank - 1))).astype("f4")
    view = nm.open_view(image, ops.Onnx(path, "auto"), chunks=(16,) * rank)
    assert view.ops[0].parameters["halo"] == far


def attention(path: Path, patch: int = 1) -> Path:
    """Every patch looks at every other, as a tile's own: what that takes is quadratic."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], strides=[patch, patch]),
        node("Shape", ["h"], ["sides"]),
        node("Reshape", ["h", "flat"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "q"], ["scores"]),
        node("Softmax", ["scores"], ["s"], axis=-1),
        node("MatMul", ["s", "t"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1]),
        node("Reshape", ["back", "sides"], ["out"]),
    ]
    stored = [("a", models.weights(2, 1, patch, patch)), ("flat", np.array([0, 2, -1]))]
    return models.save(path, nodes, stored)


@pytest.mark.parametrize("patch", [1, 4])
def test_what_is_quadratic_is_measured_on_small_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: int
) -> None:
    """Attention over a million voxels would want terabytes, and the system would end us."""
    handed = []
    run = Runtime.run

    def recorded(self: Runtime, tile: np.ndarray, source: str, target: str) -> np.ndarray:
        handed.append(tile.size)
        return run(self, tile, source, target)

    monkeypatch.setattr(Runtime, "run", recorded)
    path = attention(tmp_path / "m.onnx", patch)
    assert ops.Onnx(path, 0).file.graph.strides("in", "out").compared == patch**2
    with pytest.raises(ModelError, match=r"depends on the whole tile \(it has MatMul\)"):
        nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(16, 16))
    assert 64 * 64 <= max(handed) <= 2 * MOST_COMPARED * patch**2


def test_products_with_stored_weights_are_not_quadratic(tmp_path: Path) -> None:
    nodes = [node("Einsum", ["in", "w"], ["out"], equation="nchw,kc->nkhw")]
    path = models.save(tmp_path / "m.onnx", nodes, [("w", np.ones((1, 1), "f4"))])
    assert ops.Onnx(path, 0).file.graph.strides("in", "out").compared is None


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (1, 1, "y", 32), ("n", 1, "y", "x")])
def test_a_model_without_context_gets_whole_tiles_at_the_levels_edge(
    tmp_path: Path, shape: Sequence[Any]
) -> None:
    """Its chunks need no others; but one that the edge cuts off is no tile."""
    nodes = [
        node("SpaceToDepth", ["in"], ["h"], blocksize=8),
        node("Relu", ["h"], ["r"]),
        node("DepthToSpace", ["r"], ["out"], blocksize=8),
    ]
    path = models.save(tmp_path / "m.onnx", nodes, shape=shape)
    view = nm.open_view(IMAGE, f"onnx:model={path},halo=auto", chunks=(32, 32))
    assert view.ops[0].parameters["halo"] == 0
    with nm.Engine() as engine:
        np.testing.assert_array_equal(engine.array(view)[:], np.maximum(IMAGE, 0))
    assert nm.materialize(view, nm.MemoryStore()).failed == 0
