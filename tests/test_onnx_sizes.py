"""Models that follow the size or the voxels of their tile: refused, or said to be in doubt."""

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
from napari_materialize.ops._model_file import read_model
from napari_materialize.ops._model_grid import AxisGrid
from napari_materialize.ops._model_sizes import size_difference
from napari_materialize.ops._model_steering import steering

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

node = models.node
IMAGE = np.random.default_rng(8).normal(size=(90, 80)).astype("f4")
STORED = [
    ("a", models.weights(1, 1, 3, 3)),
    ("b", models.weights(1, 1, 3, 3, seed=9)),
    ("half", np.array(0.5, "f4")),
    ("pieces", np.array(64)),
    ("three", np.array(3)),
]


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


def conv(weights: str, made: str, taken: str = "in") -> onnx.NodeProto:
    return node("Conv", [taken, weights], [made], pads=[1] * 4)


def one(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def branch(weights: str, made: str) -> onnx.GraphProto:
    return helper.make_graph([conv(weights, made)], made, [], [one(made)])


def if_(no: str = "b") -> onnx.NodeProto:
    """One convolution or another, by ``cond``."""
    yes, other = branch("a", "yes"), branch(no, "no")
    return node("If", ["cond"], ["out"], then_branch=yes, else_branch=other)


def loop(count: str) -> onnx.NodeProto:
    flag = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", ["go"], ["goes"]), conv("a", "after", "before")],
        "body",
        [flag("turn", TensorProto.INT64, []), flag("go", TensorProto.BOOL, []), one("before")],
        [flag("goes", TensorProto.BOOL, []), one("after")],
    )
    return node("Loop", [count, "", "in"], ["out"], body=body)


HEIGHT = [node("Shape", ["in"], ["s"], start=2, end=3), node("Squeeze", ["s"], ["height"])]
TALL = [*HEIGHT, node("Greater", ["height", "limit"], ["cond"])]
WHERE = [conv("a", "x"), conv("b", "y"), node("Where", ["cond", "x", "y"], ["out"])]
ODD = [
    *HEIGHT,
    node("Mod", ["height", "three"], ["r"]),
    node("Cast", ["r"], ["cond"], to=TensorProto.BOOL),
]
HIGHEST = [
    node("ReduceMax", ["in"], ["m"], keepdims=0),
    node("Greater", ["m", "half"], ["cond"]),
]
WIDTH = [
    node("Shape", ["in"], ["s"], start=3, end=4),
    node("Cast", ["s"], ["width"], to=TensorProto.FLOAT),
]

FOLLOWING: dict[str, tuple[Sequence[onnx.NodeProto], int]] = {
    "branch on the height": ([*TALL, if_()], 100),
    "branch on a large height": ([*TALL, if_()], 900),
    "choice by the height": ([*TALL, *WHERE], 500),
    "branch on a remainder": ([*ODD, if_()], 0),
    "branch on the highest voxel": ([*HIGHEST, if_()], 0),
    "divided by the width": ([*WIDTH, conv("a", "x"), node("Div", ["x", "width"], ["out"])], 0),
    "as many turns as the height has": (
        [*HEIGHT, node("Div", ["height", "pieces"], ["n"]), loop("n")],
        0,
    ),
}


def save(path: Path, nodes: Sequence[onnx.NodeProto], limit: int = 0) -> Path:
    return models.save(path, nodes, [*STORED, ("limit", np.array(limit))])


@pytest.mark.parametrize("halo", ["auto", 8])
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_model_that_follows_its_tile_is_refused(tmp_path: Path, name: str, halo: Any) -> None:
    nodes, limit = FOLLOWING[name]
    path = save(tmp_path / "m.onnx", nodes, limit)
    with pytest.raises(ModelError, match=r"depends on the whole tile.*allow_tile_dependent=true"):
        nm.open_view(IMAGE, ops.Onnx(path, halo), chunks=(32, 32))
    view = nm.open_view(IMAGE, ops.Onnx(path, halo, allow_tile_dependent=True), chunks=(32, 32))
    assert any("seams" in note for note in view.ops[0].notes)


@pytest.mark.parametrize(
    ("nodes", "limit", "name"),
    [([*TALL, if_("a")], 100, "If"), ([*TALL, if_()], 5000, "If"), ([*TALL, *WHERE], 1, "Where")],
    ids=["both branches are the same", "beyond what is compared", "below what is compared"],
)
def test_where_all_sizes_agree_the_doubt_is_said(
    tmp_path: Path, nodes: Sequence[onnx.NodeProto], limit: int, name: str
) -> None:
    path = save(tmp_path / "m.onnx", nodes, limit)
    view = nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(32, 32))
    op = view.ops[0]
    (note,) = op.notes
    assert f"the size or the voxels of its tile ({name})" in note
    assert "tiles of 10 x 10 to 1024 x 1024 voxels agree" in note
    assert op.record["notes"] == [note]
    assert op.record["measured"]["sizes"] == ((10, 10), (1024, 1024))
    expected = models.run(path, np.pad(IMAGE, 1, mode="edge")[None, None])[0, 0, 1:-1, 1:-1]
    np.testing.assert_allclose(view.look(0, nm.Box.whole(IMAGE.shape)), expected, rtol=0, atol=1e-5)


def test_sizes_that_only_say_where_voxels_lie_are_no_doubt(tmp_path: Path) -> None:
    """A side cut to what it was, and a loop of a fixed number of turns."""
    turning = save(tmp_path / "loop.onnx", [loop("three")])
    for path, halo in ((models.unet_of_any_size(tmp_path / "u.onnx"), None), (turning, 3)):
        graph = read_model(path)[0].graph
        assert steering(graph, "in") == ()
        op = nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(32, 32)).ops[0]
        assert op.notes == ()
        assert halo in (None, op.parameters["halo"])


def resized(path: Path, factor: float, **how: str) -> Path:
    """Convolve, resize, convolve."""
    nodes = [
        node("Conv", ["in", "a"], ["h"], pads=[1] * 4),
        node("Resize", ["h", "", "s"], ["r"], **how),
        node("Conv", ["r", "b"], ["out"], pads=[1] * 4),
    ]
    stored = [*STORED[:2], ("s", np.array([1, 1, factor, factor], "f4"))]
    return models.save(path, nodes, stored, opsets=[helper.make_opsetid("", 19)])


@pytest.mark.parametrize(
    ("factor", "mode", "rule", "nearest"),
    [
        (2, "linear", "align_corners", "floor"),
        (1 / 3, "linear", "align_corners", "floor"),
        (3, "nearest", "align_corners", "round_prefer_floor"),
        (1 / 3, "nearest", "align_corners", "round_prefer_ceil"),
        (1 / 3, "nearest", "half_pixel_symmetric", "floor"),
    ],
)
def test_a_resize_whose_places_follow_from_the_tile_is_refused(
    tmp_path: Path, factor: float, mode: str, rule: str, nearest: str
) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": rule, "nearest_mode": nearest}
    path = resized(tmp_path / "m.onnx", factor, **how)
    with pytest.raises(ModelError, match=rf"whole tile \(it has Resize with {rule}\)"):
        nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(32, 32))


@pytest.mark.parametrize("factor", [2, 3, 1 / 2, 1 / 3])
@pytest.mark.parametrize(
    ("mode", "rule", "nearest"),
    [
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "ceil"),
        ("linear", "half_pixel", "floor"),
        ("linear", "half_pixel_symmetric", "floor"),
        ("cubic", "pytorch_half_pixel", "floor"),
    ],
)
def test_a_resize_by_its_factor_equals_one_large_run(
    tmp_path: Path, factor: float, mode: str, rule: str, nearest: str
) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": rule, "nearest_mode": nearest}
    path = resized(tmp_path / "m.onnx", factor, **how)
    image = np.random.default_rng(2).normal(size=(72, 96)).astype("f4")
    view = nm.open_view(image, ops.Onnx(path, "auto"), chunks=(24, 32))
    assert view.ops[0].notes == ()
    made, expected = (
        view.look(0, nm.Box.whole(view.levels[0].shape)),
        models.run(path, image[None, None]),
    )
    assert made.shape == expected.shape[2:]
    inner = (slice(round(9 * factor), -round(9 * factor)),) * 2
    # onnxruntime counts places in float32, which is coarser far from the tile's corner
    np.testing.assert_allclose(made[inner], expected[0, 0][inner], rtol=0, atol=1e-4)


def test_a_branch_inside_of_a_function_is_seen(tmp_path: Path) -> None:
    """The branch is in a function that the file defines; a walk of the main graph passes it by."""
    inside = [
        node("Shape", ["given"], ["s"], start=2, end=3),
        node("Squeeze", ["s"], ["height"]),
        node("Cast", ["height"], ["h"], to=TensorProto.FLOAT),
        node("Mul", ["given", "h"], ["made"]),
    ]
    ids = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Scaled", ["given"], ["made"], inside, ids)
    nodes = [node("Scaled", ["in"], ["x"], domain="own"), conv("a", "out", "x")]
    path = models.save(
        tmp_path / "m.onnx",
        nodes,
        STORED[:1],
        opsets=[*ids, helper.make_opsetid("own", 1)],
        functions=[function],
    )
    assert "Shape" in steering(read_model(path)[0].graph, "in")
    with pytest.raises(ModelError, match=r"depends on the whole tile \(it has .*Shape"):
        nm.open_view(IMAGE, ops.Onnx(path, "auto"), chunks=(32, 32))


@pytest.mark.parametrize(
    "grid",
    [
        (AxisGrid(stride=8), AxisGrid(stride=4, rest=2)),
        (AxisGrid(fixed=40), AxisGrid()),
        (AxisGrid(lost=4), AxisGrid(lost=6)),
    ],
)
def test_only_sides_that_the_model_takes_are_compared(grid: tuple[AxisGrid, AxisGrid]) -> None:
    tried = []

    def run(tile: np.ndarray) -> np.ndarray:
        tried.append(tile.shape[2:])
        cut = [
            slice(a.first, a.first + a.made(n)) for a, n in zip(grid, tile.shape[2:], strict=True)
        ]
        return tile[(..., *cut)]

    def sample(sides: tuple[int, ...]) -> list[np.ndarray]:
        return [np.arange(np.prod(sides), dtype="f4").reshape(1, 1, *sides)]

    found = size_difference(run, sample, grid, (8, 8), 0.0)
    assert found is not None
    assert found.residual == 0
    assert len(set(tried)) == len(tried) > 4
    assert np.prod(found.most) <= 2**20 < 4 * np.prod(found.most)
    for sides in tried:
        assert all(axis.side(n) == n for axis, n in zip(grid, sides, strict=True))


def test_a_model_of_one_size_has_nothing_to_compare() -> None:
    grid = (AxisGrid(fixed=64), AxisGrid(fixed=64))
    assert size_difference(lambda tile: tile, lambda _: [], grid, (8, 8), 0.0) is None
