"""The onnx op: small designed models against scipy, what is refused and how, a real U-Net."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import scipy.ndimage
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from napari_materialize import Engine, MemoryStore, open_view, ops
from napari_materialize.arrays import Axis, Level
from napari_materialize.errors import ModelError, OpError
from napari_materialize.geometry import Box
from readback import opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TYPES = {"t": "time", "c": "channel"}
RANDOM = np.random.default_rng(7)


def axes_of(names: str) -> tuple[Axis, ...]:
    return tuple(Axis(name, TYPES.get(name, "space")) for name in names)  # type: ignore[arg-type]


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[tuple[str, np.ndarray]] = (),
    *,
    shape: Sequence[Any] = ("n", 1, "y", "x"),
    kind: int = TensorProto.FLOAT,
    gives: int | None = None,
    outputs: Sequence[str] = ("out",),
    more: Sequence[str] = (),
) -> Path:
    free = [axis if isinstance(axis, str) else f"d{i}" for i, axis in enumerate(shape)]
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kind, shape) for name in ("in", *more)],
        [helper.make_tensor_value_info(name, gives or kind, free) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def conv(
    path: Path, rank: int, taken: int, made: int, batch: str | int = "n", dtype: str = "f4"
) -> tuple[Path, np.ndarray]:
    """Save a model of one 5-wide convolution; return its weights (made, taken, space...)."""
    weights = RANDOM.normal(size=(made, taken, *(5,) * rank)).astype(dtype)
    node = helper.make_node("Conv", ["in", "w"], ["out"], pads=[2] * (2 * rank))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shape = (batch, taken, *"zyx"[-rank:])
    return save(path, [node], [("w", weights)], shape=shape, kind=kind), weights


def correlate(array: np.ndarray, names: str, weights: np.ndarray) -> np.ndarray:
    """Return what the convolution makes of a whole array, its edge repeated: channels first."""
    rank = weights.ndim - 2
    array = array.astype("f8")
    array = np.moveaxis(array, names.index("c"), 0) if "c" in names else array[np.newaxis]
    lead = array.ndim - 1 - rank
    return np.stack(
        [
            sum(
                scipy.ndimage.correlate(channel, w[(None,) * lead], mode="nearest")
                for channel, w in zip(array, each, strict=True)
            )
            for each in weights.astype("f8")
        ]
    )


def apply(op: ops.Op, array: np.ndarray, level: Level, box: Box) -> np.ndarray:
    need = op.reach(box, level)
    low = [max(0, -start) for start in need.start]
    high = [max(0, stop - size) for stop, size in zip(need.stop, array.shape, strict=True)]
    padded = np.pad(array, list(zip(low, high, strict=True)), mode="edge")
    block = padded[need.shift(low).slices]
    block.flags.writeable = False
    result = op.run(block, box, level)
    assert result.dtype == op.describe(level, "image").level.dtype
    return result


@pytest.mark.parametrize(
    ("names", "rank", "taken", "made", "batch", "output"),
    [
        ("yx", 2, 1, 1, "n", "yx"),
        ("zyx", 2, 1, 1, 1, "zyx"),
        ("zyx", 2, 1, 2, "n", "czyx"),
        ("zyx", 3, 1, 2, "n", "czyx"),
        ("cyx", 2, 3, 1, "n", "yx"),
        ("czyx", 2, 2, 3, "n", "czyx"),
        ("tczyx", 3, 2, 3, 1, "tczyx"),
        ("tczyx", 2, 2, 1, "n", "tzyx"),
        ("tzyx", 3, 1, 2, "n", "tczyx"),
        ("tyx", 2, 1, 2, "n", "tcyx"),
        ("yxc", 2, 3, 2, "n", "cyx"),
    ],
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_boxes_equal_one_run_over_everything(
    tmp_path: Path,
    names: str,
    rank: int,
    taken: int,
    made: int,
    batch: str | int,
    output: str,
    data: st.DataObject,
) -> None:
    path, weights = conv(tmp_path / "m.onnx", rank, taken, made, batch)
    shape = tuple(taken if name == "c" else data.draw(st.integers(1, 9)) for name in names)
    array = np.random.default_rng(0).integers(0, 255, shape).astype("u1")
    level = Level(shape, array.dtype, (2,) * len(shape), axes_of(names), range(1, len(names) + 1))
    op = ops.Onnx(path, halo=2)
    found = op.describe(level, "image")
    assert "".join(axis.name for axis in found.level.axes) == output
    kept = {name: (n, s) for name, n, s in zip(names, shape, level.scale, strict=True)}
    for position, name in enumerate(output):
        size, scale, chunk = (made, 1, 1) if name == "c" else (*kept[name], 2)
        assert found.level.shape[position] == size
        assert found.level.scale[position] == scale
        assert found.level.chunks[position] == chunk
    whole = correlate(array, names, weights)
    current = "c" + names.replace("c", "")
    if made == 1:
        whole, current = whole[0], current[1:]
    whole = whole.transpose([current.index(name) for name in output])
    start = [data.draw(st.integers(0, n - 1)) for n in whole.shape]
    stop = [data.draw(st.integers(a + 1, n)) for a, n in zip(start, whole.shape, strict=True)]
    box = Box(tuple(start), tuple(stop))
    np.testing.assert_allclose(apply(op, array, level, box), whole[box.slices], atol=0.02)


def pooled(path: Path) -> Path:
    """Save a model that averages over 4 x 4 voxels and repeats each average 4 x 4 times."""
    nodes = [
        helper.make_node("AveragePool", ["in"], ["p"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Resize", ["p", "", "s"], ["out"], mode="nearest",
                         nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
    ]  # fmt: skip
    return save(path, nodes, [("s", np.array([1, 1, 4, 4], "f4"))])


@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_model_with_a_stride_sees_blocks_on_its_multiples(
    tmp_path: Path, data: st.DataObject
) -> None:
    op = ops.Onnx(pooled(tmp_path / "pool.onnx"), halo=0, multiple=4)
    shape = data.draw(st.tuples(st.integers(1, 13), st.integers(1, 13)))
    array = np.random.default_rng(1).normal(size=shape).astype("f4")
    level = Level(shape, array.dtype, (3, 3))
    assert op.align(level) == (4, 4)
    full = np.pad(array, [(0, -n % 4) for n in shape], mode="edge")
    means = full.reshape(full.shape[0] // 4, 4, -1, 4).mean((1, 3))
    whole = means.repeat(4, 0).repeat(4, 1)
    start = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
    box = Box(start, stop)
    np.testing.assert_allclose(apply(op, array, level, box), whole[box.slices], atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 12), (9, 12), (8, 15), (30, 26), (3, 2)])
def test_chunks_that_the_volumes_edge_cuts_are_handed_on_in_whole_strides(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    array = np.random.default_rng(1).normal(size=shape).astype("f4")
    full = np.pad(array, [(0, -n % 4) for n in shape], mode="edge")
    means = full.reshape(full.shape[0] // 4, 4, -1, 4).mean((1, 3))
    whole = means.repeat(4, 0).repeat(4, 1)[: shape[0], : shape[1]]
    op, store = ops.Onnx(pooled(tmp_path / "pool.onnx"), halo=0), MemoryStore()
    view = open_view(zarr.array(array, chunks=(8, 8)), [op])
    with Engine(slots=2) as engine:
        np.testing.assert_allclose(engine.array(view)[...], whole, atol=1e-6)
    with Engine(slots=2) as engine:
        assert engine.materialize(view, store).failed == 0
    np.testing.assert_allclose(opened(store)[...], whole, atol=1e-6)


def test_the_multiple_a_model_runs_on_is_found_if_nobody_says(tmp_path: Path) -> None:
    path = pooled(tmp_path / "pool.onnx")
    found = ops.Onnx(path, halo=0)
    assert found.multiple == 4
    assert found.identity == ops.Onnx(path, halo=0, multiple=4).identity
    assert ops.create("onnx", {"model": str(path), "halo": "0", "multiple": "8"}).multiple == 8
    with pytest.raises(ModelError, match=r"but it makes \(1, 1, 8, 8\) of \(1, 1, 9, 11\) and"):
        ops.Onnx(path, halo=0, multiple=1)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_voxels_are_converted_to_what_the_model_takes(tmp_path: Path, dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    path = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["in"], ["out"])], kind=kind)
    op = ops.Onnx(path, 0)
    array = np.array([[0, 7, 65535]], "u2")
    level = Level(array.shape, array.dtype, (1, 3))
    result = op.compute(array, level)
    assert result.dtype == dtype
    assert result.tolist() == [[0, -7, -65504 if dtype == "f2" else -65535]]


@pytest.mark.parametrize(
    ("operator", "attributes", "gives", "kind", "limits"),
    [
        ("Sigmoid", {}, "f4", "image", (0, 1)),
        ("Softmax", {"axis": 1}, "f4", "image", (0, 1)),
        ("Relu", {}, "f4", "image", None),
        ("ArgMax", {"axis": 1}, "i8", "image", None),
        ("Cast", {"to": TensorProto.UINT8}, "u1", "image", None),
        ("IsNaN", {}, "?", "mask", (0, 1)),
    ],
)
def test_the_output_is_described_in_the_models_dtype(
    tmp_path: Path, operator: str, attributes: dict[str, int], gives: str, kind: str, limits: Any
) -> None:
    path = save(
        tmp_path / "m.onnx",
        [helper.make_node(operator, ["in"], ["out"], **attributes)],
        gives=helper.np_dtype_to_tensor_dtype(np.dtype(gives)),
    )
    op = ops.Onnx(path, 0)
    level = Level((4, 4), "u1", (4, 4))
    found = op.describe(level, "image")
    assert (found.level.dtype, found.kind, found.limits) == (np.dtype(gives), kind, limits)
    assert op.compute(np.zeros((4, 4), "u1"), level).dtype == gives


def test_outputs_and_inputs_are_chosen_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["in"], ["a"]), helper.make_node("Abs", ["a"], ["b"])]
    path = save(tmp_path / "m.onnx", nodes, outputs=("a", "b"))
    with pytest.raises(ModelError, match="has the outputs a, b; choose one with output=NAME"):
        ops.Onnx(path, 0)
    with pytest.raises(ModelError, match="no output 'c', it has a, b"):
        ops.Onnx(path, 0, output="c")
    with pytest.raises(ModelError, match="no input 'x', it has in"):
        ops.Onnx(path, 0, output="a", input="x")
    level = Level((1, 1), "u1", (1, 1))
    block = np.array([[3]], "u1")
    assert ops.Onnx(path, 0, output="a").compute(block, level).tolist() == [[-3]]
    assert ops.Onnx(path, 0, output="b", input="in").compute(block, level).tolist() == [[3]]


IDENTITY = [helper.make_node("Identity", ["in"], ["out"])]


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        (IDENTITY, {"shape": ("n",)}, r"2 to 5 axes, its input in has 1, \('n',\)"),
        (IDENTITY, {"shape": tuple("abcdef")}, "an image has 2 to 5 axes, its input in has 6"),
        (
            IDENTITY,
            {"shape": (1, 1, 40000, 40000)},
            "40000 x 40000 voxels with 1 channels, at most",
        ),
        (IDENTITY, {"kind": TensorProto.STRING}, r"in is tensor\(string\), and an image is one of"),
        (
            [helper.make_node("Flatten", ["in"], ["out"])],
            {},
            r"an image of the same space axes as the input \(bcyx\), but it makes \(1, 99\)",
        ),
        (
            [helper.make_node("Add", ["in", "other"], ["out"])],
            {"more": ("other",)},
            "must need one input, needs in, other",
        ),
        ([helper.make_node("Nonsense", ["in"], ["out"])], {}, "cannot be loaded by onnxruntime"),
        (
            [helper.make_node("Concat", ["in", "w"], ["out"], axis=1)],
            {"weights": [("w", np.zeros((1, 1, 8, 8), "f4"))]},
            "fails on a block of 1 x 1 x 9 x 11: Concat: .* multiple=8",
        ),
    ],
)
def test_a_model_that_cannot_work_is_refused_when_made(
    tmp_path: Path, nodes: list[onnx.NodeProto], options: dict[str, Any], message: str
) -> None:
    path = save(tmp_path / "model.onnx", nodes, **options)
    with pytest.raises(ModelError, match=message) as caught:
        ops.Onnx(path, 0)
    assert str(caught.value).startswith("onnx: model.onnx")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    good = save(tmp_path / "good.onnx", IDENTITY).read_bytes()
    with pytest.raises(ModelError, match=r"there is no model file .*missing\.onnx; check the path"):
        ops.Onnx(tmp_path / "missing.onnx", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"must be a file or a folder, got ''; name the"):
        ops.Onnx("")
    with pytest.raises(ModelError, match=r"is a folder, which must hold one \.onnx file, has none"):
        ops.Onnx(tmp_path / "empty", 0)
    bad = tmp_path / "bad.onnx"
    for content in (b"", b"hello, this is text", good[:-9], b"\x08\x07" * 40, b"\xff" * 30):
        bad.write_bytes(content)
        with pytest.raises(ModelError, match=r"bad\.onnx is not an ONNX model, or is damaged"):
            ops.Onnx(bad, 0)
    model = onnx.load_from_string(good)
    model.opset_import[0].version = 99
    bad.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="it is written for opset 99, and opsets up to"):
        ops.Onnx(bad, 0)


@given(
    cut=st.integers(0, 10_000), flips=st.dictionaries(st.integers(0, 10_000), st.integers(1, 255))
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_never_raises_anything_else(
    tmp_path: Path, cut: int, flips: dict[int, int]
) -> None:
    path, _ = conv(tmp_path / "m.onnx", 2, 1, 1)
    content = bytearray(path.read_bytes())
    for place, change in flips.items():
        content[place % 120] ^= change  # where the structure is; the weights may be anything
    path.write_bytes(content[: len(content) - cut % 40])
    with contextlib.suppress(ModelError):
        op = ops.Onnx(path, 2)
        assert op.file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("names", "shape", "error", "message"),
    [
        ("cyx", (3, 8, 8), ModelError, "takes 1 channel, the image has 3; take one with select"),
        ("zy", (8, 8), OpError, "a 3D model needs 3 space axes, the image has z, y"),
    ],
)
def test_levels_that_do_not_fit_are_refused(
    tmp_path: Path, names: str, shape: tuple[int, ...], error: type[Exception], message: str
) -> None:
    rank = 2 if "c" in names else 3
    op = ops.Onnx(conv(tmp_path / "m.onnx", rank, 1, 1)[0], 2)
    level = Level(shape, "u1", shape, axes_of(names))
    with pytest.raises(error, match=message):
        op.describe(level, "image")
    many = ops.Onnx(conv(tmp_path / "n.onnx", 2, 3, 1)[0], 2)
    with pytest.raises(ModelError, match="takes 3 channels, the image has 1"):
        many.describe(Level((8, 8), "u1", (8, 8)), "image")


def test_parameters_are_checked(tmp_path: Path) -> None:
    path, _ = conv(tmp_path / "m.onnx", 2, 1, 1)
    for options, message in (
        ({"halo": -1}, "halo must be a whole number, 0 or more, got -1"),
        ({"halo": (1, 2, 3)}, "halo is one number, or one for each of the model's 2 space axes"),
        ({"halo": 1, "multiple": 0}, "multiple must be a whole number, 1 or more, got 0"),
        ({"halo": 1, "device": "gpu"}, "device is auto, cpu, cuda or cuda:1, got 'gpu'"),
    ):
        with pytest.raises(OpError, match=message):
            ops.Onnx(path, **options)  # type: ignore[arg-type]


def external(folder: Path, location: str, weights: bytes) -> Path:
    path, _ = conv(folder / "m.onnx", 2, 1, 1)
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    (folder / "w.bin").write_bytes(weights)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_beside_the_model_count_as_the_model(tmp_path: Path) -> None:
    weights = RANDOM.normal(size=25).astype("f4")
    op = ops.Onnx(external(tmp_path, "w.bin", weights.tobytes()), 2)
    array = RANDOM.normal(size=(6, 6)).astype("f4")
    level = Level((6, 6), "f4", (6, 6))
    expected = correlate(array, "yx", weights.reshape(1, 1, 5, 5))[0]
    result = apply(op, array, level, Box.whole((6, 6)))
    np.testing.assert_allclose(result, expected, atol=1e-4)
    assert op.record["model"]["external"] == {
        "w.bin": hashlib.sha256(weights.tobytes()).hexdigest()
    }
    other = ops.Onnx(external(tmp_path, "w.bin", (2 * weights).tobytes()), 2)
    assert other.identity != op.identity
    doubled = apply(other, array, level, Box.whole((6, 6)))
    np.testing.assert_allclose(doubled, 2 * expected, atol=1e-4)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../outside.bin", r"weights outside its folder, in '\.\./outside\.bin', which is refused"),
        ("/etc/hostname", "outside its folder"),
        ("C:\\weights.bin", "outside its folder"),
        ("link.bin", "outside its folder"),
        ("missing.bin", "'missing.bin', which is not in its folder"),
    ],
)
def test_weights_elsewhere_are_refused(tmp_path: Path, location: str, message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(100))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = external(folder, location, bytes(100))
    with pytest.raises(ModelError, match=message):
        ops.Onnx(path, 2)


def test_identity_is_of_the_bytes_and_the_record_names_no_folder(tmp_path: Path) -> None:
    path, _ = conv(tmp_path / "m.onnx", 2, 1, 1)
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "copy.onnx"
    copy.write_bytes(path.read_bytes())
    op = ops.Onnx(path, 2)
    assert op.kept
    assert op.identity == ops.Onnx(copy, 2).identity
    assert op.identity != ops.Onnx(path, 3).identity
    assert op.identity != ops.Onnx(conv(tmp_path / "n.onnx", 2, 1, 1)[0], 2).identity
    record = json.dumps(op.record)
    assert str(tmp_path) not in record
    assert op.record["model"] == {
        "file": "m.onnx",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    assert op.record["providers"] == ["CPUExecutionProvider"]
    again = ops.create("onnx", json.loads(json.dumps(op.parameters)))
    assert again == op
    assert pickle.loads(pickle.dumps(op)) == op


def test_one_session_is_shared_and_goes_with_its_last_op(tmp_path: Path) -> None:
    from napari_materialize.ops._model_session import Runtime

    path, _ = conv(tmp_path / "m.onnx", 2, 1, 1)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda halo: ops.Onnx(path, halo), range(8)))
    key = (made[0].file.digest, "auto", 1, "")
    assert len({id(op._runtime) for op in made}) == 1
    assert made[0]._runtime is Runtime._all[key]
    del made
    gc.collect()
    assert key not in Runtime._all


def test_threads_share_a_session_and_get_their_own_results(tmp_path: Path) -> None:
    path, weights = conv(tmp_path / "m.onnx", 2, 1, 2)
    op = ops.Onnx(path, 2)
    arrays = [RANDOM.normal(size=(20 + i, 24)).astype("f4") for i in range(8)]

    def work(array: np.ndarray) -> np.ndarray:
        level = Level(array.shape, array.dtype, (8, 8))
        return apply(op, array, level, Box.whole((2, *array.shape)))

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, arrays))
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_allclose(result, correlate(array, "yx", weights), atol=1e-3)


def test_it_stops_between_planes_when_abandoned(tmp_path: Path) -> None:
    op = ops.Onnx(conv(tmp_path / "m.onnx", 2, 1, 1, batch=1)[0], 2)
    level = Level((5, 4, 4), "u1", (5, 4, 4))
    asked: list[int] = []

    def abandoned() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(ops.Abandoned):
        op.compute(np.zeros((5, 8, 8), "u1"), level, abandoned)
    assert len(asked) == 3


@pytest.mark.parametrize("required", [False, True])
def test_a_gpu_that_is_not_there_is_one_sentence_and_no_noise(
    tmp_path: Path, required: bool
) -> None:
    path, _ = conv(tmp_path / "m.onnx", 2, 1, 1)
    code = (
        "import sys, warnings\nfrom napari_materialize import errors, ops\n"
        "warnings.showwarning = lambda message, *rest: print('said:', message)\n"
        "try: op = ops.Onnx(sys.argv[1], 2, device='cuda', require_device=sys.argv[2] == 'True')\n"
        "except errors.ModelError as error: print('refused:', error)\n"
        "else: print(op.device_used)"
    )
    command = [sys.executable, "-c", code, str(path), str(required)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    if lines == ["cuda:0"]:
        return  # there is one
    sentence = "onnx: device=cuda was asked for, but onnxruntime "
    if required:
        (line,) = lines
        assert line.startswith(f"refused: {sentence}")
    else:
        said, used = lines
        assert said.startswith(f"said: {sentence}")
        assert said.endswith("the CPU is used")
        assert used == "cpu"


@pytest.mark.real_data
@pytest.mark.parametrize("chunk", [(96, 128), (100, 75)])
def test_a_real_unet_in_chunks_equals_one_run(shared_data: Path, chunk: tuple[int, int]) -> None:
    import onnxruntime

    model = shared_data / "models/unet2d_nuclei_broad/unet2d_nuclei_broad_dyn.onnx"
    image = np.load(shared_data / "volumes/nuclei_dsb2018/test_input.npy")[0, 0]
    image = ((image - image.mean()) / image.std()).astype("f4")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    whole = session.run(None, {"input.1": image[np.newaxis, np.newaxis]})[0][0, 0]
    op = ops.Onnx(model, halo=56, multiple=8)
    level = Level(image.shape, image.dtype, chunk)
    assert op.describe(level, "image").limits == (0, 1)
    inner = Box.whole(image.shape).grow((-56, -56))
    compared = 0
    for index in ((1, 1), (1, 2), (2, 1), (2, 3)):
        box = level.grid.box(index).intersect(inner)
        result = apply(op, image, level, box)
        np.testing.assert_allclose(result, whole[box.slices], rtol=0, atol=1e-5)
        compared += box.size
    assert compared > 25_000


@pytest.mark.real_data
def test_a_job_with_a_real_unet_equals_one_run(shared_data: Path) -> None:
    import onnxruntime

    import napari_materialize as nm
    from readback import opened

    model = shared_data / "models/unet2d_nuclei_broad/unet2d_nuclei_broad_dyn.onnx"
    image = np.load(shared_data / "volumes/nuclei_dsb2018/test_input.npy")[0, 0]
    image = ((image - image.mean()) / image.std()).astype("f4")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    whole = session.run(None, {"input.1": image[np.newaxis, np.newaxis]})[0][0, 0]
    view = nm.open_view(image, f"onnx:model={model},halo=56", chunks=(100, 90))
    store = nm.MemoryStore()
    nm.materialize(view, store, box=nm.Box((130, 75), (333, 401)), slots=2)
    written = (slice(100, 400), slice(0, 450))
    inner = (written[0], slice(56, 450))
    stored = opened(store)[...]
    np.testing.assert_allclose(stored[inner], whole[inner], rtol=0, atol=1e-5)
    outside = np.ones(image.shape, bool)
    outside[written] = False
    assert not stored[outside].any()
