"""Models of every kind, in views cut into chunks, against one large run by onnxruntime."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import napari_materialize as nm
import onnx_models as models
from napari_materialize import ops
from napari_materialize.errors import ModelError, OpError
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOISE = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


class Case(NamedTuple):
    make: Callable[[Path], Path]
    halo: int
    stride: int = 1
    ratio: float = 1
    lost: int = 0
    """Voxels by which a run's output is shorter on each side, on the output's grid."""
    layout: str = "bcyx"
    dtype: str = "f4"
    takes: str = "f4"
    output: str | None = None
    tolerance: float = 1e-5


CASES = {
    "plain": Case(models.plain, 2),
    "stride": Case(models.strided, 2, 2, 0.5),
    "valid": Case(models.valid, 2, lost=2),
    "transpose": Case(models.transposed, 2, ratio=2),
    "unet": Case(models.unet, 6, 2),
    "any size": Case(models.unet_of_any_size, 4, 4),
    "channels last": Case(models.channels_last, 2, layout="byxc"),
    "float16": Case(models.half, 1, takes="f2", tolerance=2e-2),
    "uint8": Case(models.bytes_, 1, dtype="u1", takes="u1", tolerance=1e-3),
    "two outputs": Case(models.two_outputs, 3, output="far"),
    "fixed": Case(lambda path: models.unet(path, (1, 1, 24, 32)), 6, 2),
}


def large_run(case: Case, path: Path, image: np.ndarray) -> np.ndarray:
    """Run the model once over the image and a wide margin of its edge: (channel, y, x)."""
    margin = 16  # a multiple of every stride, and more than every halo
    sides = [-(-size // 4) * 4 - size for size in image.shape]
    wide = np.pad(image, [(margin, margin + more) for more in sides], mode="edge")
    if case.takes != case.dtype:
        wide = wide.astype(case.takes)
    given = wide[None, ..., None] if case.layout == "byxc" else wide[None, None]
    made = models.run(path, given, case.output)
    made = np.moveaxis(made[0], -1, 0) if case.layout == "byxc" else made[0]
    first = int(margin * case.ratio) - case.lost
    sizes = [math.ceil(size * case.ratio) for size in image.shape]
    return made[:, first : first + sizes[0], first : first + sizes[1]]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_box_in_chunks_equals_one_large_run(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    case = CASES[name]
    path = tmp_path / "m.onnx"
    case.make(path)
    shape = data.draw(st.tuples(st.integers(5, 50), st.integers(5, 50)), "shape")
    chunks = data.draw(st.tuples(st.integers(3, 20), st.integers(3, 20)), "chunks")
    image = NOISE.integers(0, 200, shape).astype(case.dtype)
    if case.dtype != "u1":
        image /= 50
    view = nm.open_view(image, ops.Onnx(path, "auto", output=case.output), chunks=chunks)
    (op,) = view.ops
    assert isinstance(op, ops.Onnx)
    assert (op.extent, op.multiple) == (case.halo, case.stride)
    whole_path = models.unet(tmp_path / "w.onnx") if name == "fixed" else path
    whole = large_run(case, whole_path, image)
    whole = whole[0] if len(whole) == 1 else whole
    level = view.levels[0]
    assert level.shape == whole.shape
    assert level.scale[-1] == 1 / case.ratio
    assert level.translation[-1] == (1 / case.ratio - 1) / 2
    start = [data.draw(st.integers(0, n - 1)) for n in whole.shape]
    stop = [data.draw(st.integers(a + 1, n)) for a, n in zip(start, whole.shape, strict=True)]
    box = Box(tuple(start), tuple(stop))
    np.testing.assert_allclose(
        view.look(0, box), whole[box.slices], rtol=0, atol=case.tolerance * (1 + abs(whole).max())
    )


@pytest.mark.parametrize("name", ["stride", "transpose", "fixed", "unet"])
def test_a_job_in_blocks_equals_one_large_run(tmp_path: Path, name: str) -> None:
    from readback import opened

    case = CASES[name]
    path = case.make(tmp_path / "m.onnx")
    image = NOISE.normal(size=(90, 101)).astype("f4")
    view = nm.open_view(image, f"onnx:model={path},halo=auto", chunks=(16, 20))
    store = nm.MemoryStore()
    with nm.Engine(slots=3, block_seconds=60) as engine:
        done = engine.materialize(view, store)
    assert done.failed == 0
    whole_path = models.unet(tmp_path / "w.onnx") if name == "fixed" else path
    np.testing.assert_allclose(
        opened(store)[...], large_run(case, whole_path, image)[0], rtol=0, atol=1e-4
    )


def test_a_3d_model_of_fixed_sides_equals_its_twin_of_any(tmp_path: Path) -> None:
    image = NOISE.normal(size=(20, 30, 26)).astype("f4")
    made = []
    for name, shape in (("any", ("n", 1, "z", "y", "x")), ("fixed", (1, 1, 16, 20, 24))):
        path = models.deep(tmp_path / f"{name}.onnx", shape)
        view = nm.open_view(image, ops.Onnx(path, "auto"), chunks=(8, 10, 12))
        assert view.ops[0].parameters["halo"] == 4
        made.append(view.look(0, Box.whole(view.levels[0].shape)))
    np.testing.assert_allclose(made[0], made[1], rtol=0, atol=1e-5)
    wide = np.pad(image, 8, mode="edge")
    whole = models.run(tmp_path / "any.onnx", wide[None, None])[0][:, 8:-8, 8:-8, 8:-8]
    np.testing.assert_allclose(made[0], whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("depth", [5, 6, 7, 9])
@pytest.mark.parametrize("halo", ["auto", 2])
def test_a_model_of_few_planes_makes_the_middle_ones(
    tmp_path: Path, depth: int, halo: str | int
) -> None:
    image = NOISE.normal(size=(11, 20, 24)).astype("f4")
    made = []
    for size in (depth, "z"):
        path = models.planes(tmp_path / f"{size}.onnx", size)
        view = nm.open_view(image, [ops.Onnx(path, halo=halo)], chunks=(4, 8, 16))
        with nm.Engine() as engine:
            made.append(np.asarray(engine.array(view, 0)[...]))
    np.testing.assert_allclose(made[0], made[1], atol=1e-5)


@pytest.mark.parametrize(
    ("make", "because"),
    [(models.pooled_globally, "GlobalAveragePool"), (models.normalised, "InstanceNormalization")],
)
@pytest.mark.parametrize("halo", ["auto", 96])
def test_a_model_that_depends_on_its_tile_is_refused_unless_allowed(
    tmp_path: Path, make: Any, because: str, halo: Any
) -> None:
    path = make(tmp_path / "m.onnx")
    image = NOISE.normal(size=(64, 64)).astype("f4")
    sentence = rf"m\.onnx: its output depends on the whole tile \(it has {because}.*=true"
    with pytest.raises(ModelError, match=sentence) as caught:
        nm.open_view(image, ops.Onnx(path, halo))
    assert "\n" not in str(caught.value)


def test_an_allowed_one_is_the_same_whatever_else_is_computed(tmp_path: Path) -> None:
    path = models.pooled_globally(tmp_path / "m.onnx")
    image = NOISE.normal(size=(64, 70)).astype("f4")
    op = ops.Onnx(path, "auto", allow_tile_dependent=True)
    view = nm.open_view(image, op, chunks=(16, 16))
    (note,) = view.ops[0].record["notes"]
    assert "depends on the whole tile" in note
    assert "with seams" in note
    everything = view.look(0, Box.whole(image.shape))
    with nm.Engine(slots=3, block_seconds=60) as engine:
        store = nm.MemoryStore()
        engine.materialize(view, store)
        part = engine.array(view)[20:40, 17:50]
    from readback import opened

    np.testing.assert_array_equal(opened(store)[...], everything)
    np.testing.assert_array_equal(part, everything[20:40, 17:50])


def test_a_tile_may_be_given_and_changes_nothing(tmp_path: Path) -> None:
    path = models.unet(tmp_path / "m.onnx")
    image = NOISE.normal(size=(50, 61)).astype("f4")
    plain, tiled = (
        nm.open_view(image, ops.Onnx(path, "auto", tile=tile), chunks=(11, 13))
        for tile in (None, (32, 28))
    )
    box = Box.whole(image.shape)
    np.testing.assert_allclose(plain.look(0, box), tiled.look(0, box), rtol=0, atol=1e-5)
    with pytest.raises(OpError, match="takes sides of 32 voxels, not of 31, as tile=31 wants"):
        ops.Onnx(path, 6, tile=31)
    with pytest.raises(OpError, match="a halo of 16 leaves nothing of tiles of 32 voxels"):
        ops.Onnx(path, 16, tile=32)


@pytest.mark.parametrize("batch", [None, 1, 3, 100])
def test_planes_are_run_in_batches(tmp_path: Path, batch: int | None) -> None:
    path = models.plain(tmp_path / "m.onnx")
    image = NOISE.normal(size=(7, 20, 20)).astype("f4")
    view = nm.open_view(image, ops.Onnx(path, "auto", batch=batch), chunks=(5, 9, 9))
    made = view.look(0, Box.whole(view.levels[0].shape))
    whole = models.run(path, np.pad(image, [(0, 0), (4, 4), (4, 4)], mode="edge")[:, None])
    np.testing.assert_allclose(
        made, whole[:, :, 4:-4, 4:-4].transpose(1, 0, 2, 3), rtol=0, atol=1e-5
    )


def test_a_fixed_batch_is_filled_up(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx", shape=(4, 1, "y", "x"))
    image = NOISE.normal(size=(6, 12, 12)).astype("f4")
    view = nm.open_view(image, ops.Onnx(path, "auto"), chunks=(6, 12, 12))
    free = nm.open_view(image, ops.Onnx(models.plain(tmp_path / "n.onnx"), "auto"))
    box = Box.whole(view.levels[0].shape)
    np.testing.assert_allclose(view.look(0, box), free.look(0, box), rtol=0, atol=1e-5)


@pytest.mark.parametrize("takes", ["u1", "i1", "u2", "i4"])
def test_integers_are_rounded_and_saturated_or_scaled(tmp_path: Path, takes: str) -> None:
    kind = {"u1": TensorProto.UINT8, "i1": TensorProto.INT8, "u2": TensorProto.UINT16,
            "i4": TensorProto.INT32}[takes]  # fmt: skip
    nodes = [models.node("Cast", ["in"], ["out"], to=TensorProto.DOUBLE)]
    path = models.save(tmp_path / "m.onnx", nodes, takes=kind, gives=TensorProto.DOUBLE)
    image = np.array([[0, 1, 127, 255, 256, 65535]], "u2")
    limit = min(np.iinfo(takes).max, 65535)
    seen = nm.open_view(image, ops.Onnx(path, 0)).look(0, Box.whole(image.shape))
    np.testing.assert_array_equal(seen, np.minimum(image, limit))
    scaled = nm.open_view(image, ops.Onnx(path, 0, normalise="scale"))
    expected = np.rint(image / np.float32(65535) * np.float32(np.iinfo(takes).max))
    np.testing.assert_allclose(scaled.look(0, Box.whole(image.shape)), expected, rtol=1e-6, atol=0)


def identity(path: Path) -> Path:
    return models.save(path, [models.node("Identity", ["in"], ["out"])])


@pytest.mark.parametrize(
    ("normalise", "constants"),
    [("none", None), ("scale", None), ("minmax", None), ("percentile:2,98", None),
     ("zscore", None), ("zscore", (10.0, 4.0)), ("minmax", (5.0, 9.0))],
)  # fmt: skip
def test_constants_are_those_of_the_level_whatever_the_box(
    tmp_path: Path, normalise: str, constants: tuple[float, float] | None
) -> None:
    path = identity(tmp_path / "m.onnx")
    image = NOISE.integers(0, 5000, (40, 40)).astype("u2")
    op = ops.Onnx(path, 0, normalise=normalise, constants=constants)
    view = nm.open_view(image, op, chunks=(8, 8))
    wide = image.astype("f8")
    if constants is not None:
        shift, other = constants
        divisor = other if normalise == "zscore" else other - shift
    else:
        low, high = np.percentile(wide, [2, 98])
        shift, divisor = {
            "none": (0, 1),
            "scale": (0, 65535),
            "minmax": (wide.min(), wide.max() - wide.min()),
            "percentile:2,98": (low, high - low),
            "zscore": (wide.mean(), wide.std()),
        }[normalise]
    box = Box((3, 9), (21, 33))
    np.testing.assert_allclose(
        view.look(0, box), ((wide - shift) / divisor)[box.slices], rtol=1e-5, atol=1e-6
    )
    record = view.ops[0].record
    assert record["parameters"]["normalise"] == normalise
    if normalise in {"minmax", "percentile:2,98", "zscore"} and constants is None:
        (said,) = record["constants"]
        assert (said["shift"], said["divisor"]) == pytest.approx((shift, divisor))
        assert said["of"] == "all voxels"


def test_what_cannot_normalise_is_refused(tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx")
    for options, message in (
        ({"normalise": "percentile"}, "percentile:low,high with two growing numbers"),
        ({"normalise": "percentile:98,2"}, "growing numbers from 0 to 100"),
        ({"normalise": "zsore"}, "got 'zsore'"),
        ({"normalise": "zscore", "constants": (1.0, 0.0)}, "make no scale"),
        ({"normalise": "minmax", "constants": (1.0,)}, "constants are two numbers"),
        ({"constants": (0.0, 1.0)}, "with normalise=none make no scale"),
        ({"after": "softmaxx"}, "after is sigmoid, .* got 'softmaxx'"),
        ({"after": "cast:text"}, "bool, an integer or a float dtype"),
        ({"layout": "bcyy"}, "each at most once, .* got 'bcyy'"),
        ({"layout": "byx"}, "names each of the 4 axes"),
        ({"batch": 0}, "batch must be a whole number, 1 or more"),
    ):
        with pytest.raises(OpError, match=message):
            ops.Onnx(path, 0, **options)
    with pytest.raises(OpError, match="takes an integer dtype's range, and the image is float32"):
        nm.open_view(np.zeros((4, 4), "f4"), ops.Onnx(path, 0, normalise="scale"))


@pytest.mark.parametrize(
    ("after", "kind", "dtype", "channels"),
    [("sigmoid", "image", "f4", 2), ("softmax", "image", "f4", 2),
     ("softmax+argmax", "label", "u1", 1), ("argmax", "label", "u1", 1),
     ("threshold:0.25", "mask", "u1", 2),
     ("sigmoid+threshold:0.6", "mask", "u1", 2), ("cast:int16", "image", "i2", 2)],
)  # fmt: skip
def test_steps_after_the_model(
    tmp_path: Path, after: str, kind: str, dtype: str, channels: int
) -> None:
    path = models.plain(tmp_path / "m.onnx")
    image = 3 * NOISE.normal(size=(20, 22)).astype("f4")
    raw = nm.open_view(image, ops.Onnx(path, 2), chunks=(8, 8))
    scores = raw.look(0, Box.whole(raw.levels[0].shape)).astype("f8")
    view = nm.open_view(image, ops.Onnx(path, 2, after=after), chunks=(8, 8))
    level = view.levels[0]
    assert (view.kind, level.dtype) == (kind, np.dtype(dtype))
    assert level.shape == ((2, 20, 22) if channels == 2 else (20, 22))
    powers = np.exp(scores - scores.max(0))
    expected = {
        "sigmoid": 1 / (1 + np.exp(-scores)),
        "softmax": powers / powers.sum(0),
        "softmax+argmax": scores.argmax(0),
        "argmax": scores.argmax(0),
        "threshold:0.25": scores >= 0.25,
        "sigmoid+threshold:0.6": 1 / (1 + np.exp(-scores)) >= 0.6,
        "cast:int16": np.rint(scores),
    }[after]
    np.testing.assert_allclose(view.look(0, Box.whole(level.shape)), expected, rtol=0, atol=1e-5)


def test_the_text_form_and_the_record_make_the_same_op_again(tmp_path: Path) -> None:
    from napari_materialize.recipe import op_text, parse_op

    path = models.two_outputs(tmp_path / "m.onnx")
    text = (
        f"onnx:model={path},halo=auto,normalise=percentile:2,98,after=sigmoid+threshold:0.6,"
        "output=far,batch=2,tile=64,input=in,layout=bcyx,device=cpu,threads=1,description=none"
    )
    image = NOISE.integers(0, 99, (30, 40)).astype("u1")
    view = nm.open_view(image, text, chunks=(16, 16))
    again = nm.open_view(image, op_text(view.ops[0]), chunks=(16, 16))
    assert again.identity == view.identity
    assert again.ops[0].parameters == view.ops[0].parameters
    assert view.ops[0].parameters["halo"] == 3
    record = {**view.ops[0].record["parameters"], "model": str(path)}
    third = nm.open_view(image, ("onnx", record), chunks=(16, 16))
    assert third.identity == view.identity
    assert parse_op(text).parameters["normalise"] == "percentile:2,98"


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget what the process measured, as a new one has; a folder of its own is remembered."""
    from napari_materialize.ops import _model_findings

    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", str(tmp_path / "memory"))
    monkeypatch.setattr(_model_findings, "_known", {})
    return lambda: monkeypatch.setattr(_model_findings, "_known", {})


def test_a_measured_halo_is_remembered_by_the_models_bytes(
    tmp_path: Path, forget: Callable[[], None]
) -> None:
    path = models.plain(tmp_path / "m.onnx")
    image = NOISE.normal(size=(30, 40)).astype("f4")
    found = nm.open_view(image, ops.Onnx(path, "auto")).ops[0]
    (file,) = (tmp_path / "memory").iterdir()
    assert isinstance(found, ops.Onnx)
    forget()
    changed = file.read_text().replace('"halo": [2, 2]', '"halo": [7, 5]')
    assert changed != file.read_text()
    file.write_text(changed)
    assert nm.open_view(image, ops.Onnx(path, "auto")).ops[0].parameters["halo"] == [7, 5]
    forget()
    file.write_text("nonsense")
    assert nm.open_view(image, ops.Onnx(path, "auto")).ops[0].parameters["halo"] == 2


@pytest.mark.usefixtures("forget")
def test_what_saturates_a_model_does_not_decide_its_halo_for_other_voxels(tmp_path: Path) -> None:
    path = models.saturating(tmp_path / "m.onnx")
    bright = NOISE.integers(50, 255, (30, 40)).astype("u1")
    assert nm.open_view(bright, ops.Onnx(path, "auto")).ops[0].parameters["halo"] == 0
    image = NOISE.random((30, 40)).astype("f4")
    view = nm.open_view(image, ops.Onnx(path, "auto"), chunks=(16, 16))
    assert view.ops[0].parameters["halo"] == 2
    assert len(list((tmp_path / "memory").iterdir())) == 2


def test_a_halo_that_covers_too_little_is_refused_or_noted(tmp_path: Path) -> None:
    with pytest.raises(OpError, match="returns 4 voxels less than it takes, so that halo must be"):
        ops.Onnx(models.valid(tmp_path / "v.onnx"), 1)
    path = models.plain(tmp_path / "m.onnx")
    image = NOISE.normal(size=(30, 40)).astype("f4")
    (note,) = nm.open_view(image, ops.Onnx(path, 1)).ops[0].notes
    assert note.startswith("halo=1 is given, but a halo of 2 was measured")
    assert nm.open_view(image, ops.Onnx(path, 2)).ops[0].notes == ()
