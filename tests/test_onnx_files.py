"""What a model's file and the files beside it may be: descriptions, and what is refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import napari_materialize as nm
import onnx_models as models
from napari_materialize import ops
from napari_materialize.errors import InputError, ModelError
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


IMAGE = np.random.default_rng(5).integers(0, 255, (40, 44)).astype("u1")

BIOIMAGE = """
format_version: 0.4.9
inputs:
  - name: raw
    axes: bcyx
    shape: {min: [1, 1, 8, 8], step: [0, 0, 8, 8]}
    preprocessing:
      - name: zero_mean_unit_variance
        kwargs: {mode: per_sample, axes: yx}
      - name: gamma
outputs:
  - name: out
    axes: bcyx
    halo: [0, 0, 5, 5]
    postprocessing: [{name: sigmoid}]
"""

NEWER = """
format_version: 0.5.4
inputs:
  - id: raw
    axes:
      - {type: batch}
      - {type: channel, channel_names: [a]}
      - {type: space, id: y, size: {min: 8, step: 8}}
      - {type: space, id: x, size: {min: 8, step: 8}}
    preprocessing:
      - id: scale_range
        kwargs: {min_percentile: 1.0, max_percentile: 99.5}
      - id: ensure_dtype
        kwargs: {dtype: float32}
outputs:
  - id: out
    axes:
      - {type: batch}
      - {type: channel, channel_names: [a, b]}
      - {type: space, id: y, halo: 5, size: {tensor_id: raw, axis_id: y, offset: 0}}
      - {type: space, id: x, halo: 6, size: {tensor_id: raw, axis_id: x, offset: 0}}
"""


@pytest.mark.parametrize("name", ["rdf.yaml", "model.yaml", "m.rdf.yaml"])
def test_a_bioimage_description_fills_in_what_is_left_out(tmp_path: Path, name: str) -> None:
    path = models.plain(tmp_path / "m.onnx")
    (tmp_path / name).write_text(BIOIMAGE)
    op = nm.open_view(IMAGE, ops.Onnx(path)).ops[0]
    assert isinstance(op, ops.Onnx)
    assert (op.extent, op.normalise, op.after, op.layout) == (5, "zscore", "sigmoid", "bcyx")
    assert op.notes == ("its preprocessing gamma is not done here; do it before, with an op",)


def test_a_newer_description_is_read_too(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    (tmp_path / "rdf.yaml").write_text(NEWER)
    op = nm.open_view(IMAGE, ops.Onnx(tmp_path)).ops[0]
    assert isinstance(op, ops.Onnx)
    assert op.model == path
    assert (op.extent, op.normalise, op.after) == ((5, 6), "percentile:1,99.5", "none")


def test_what_is_given_wins_and_contradictions_are_named(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    (tmp_path / "rdf.yaml").write_text(BIOIMAGE.replace("halo: [0, 0, 5, 5]", "halo: [0, 0, 1, 1]"))
    given = nm.open_view(IMAGE, ops.Onnx(path, 3, normalise="none", after="none")).ops[0]
    assert isinstance(given, ops.Onnx)
    assert (given.extent, given.normalise, given.after) == (3, "none", "none")
    assert "rdf.yaml says normalise=zscore, but normalise=none was given" in given.notes
    assert "rdf.yaml says halo=1,1, but halo=3 was given" in given.notes
    short = nm.open_view(IMAGE, ops.Onnx(path)).ops[0]
    assert isinstance(short, ops.Onnx)
    assert short.extent == 2
    assert any("description says halo=1, but a halo of 2 was measured" in n for n in short.notes)
    ignored = ops.Onnx(path, 3, description="none")
    assert (ignored.normalise, ignored.notes) == ("none", ())


def test_a_description_of_another_name_is_offered_and_not_used(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    other = tmp_path / "Other.model.yaml"
    other.write_text(BIOIMAGE)
    op = ops.Onnx(path, 2)
    assert op.normalise == "none"
    (note,) = op.notes
    assert "Other.model.yaml lies beside the model under another name and is not used" in note
    assert ops.Onnx(path, 2, description=str(other)).normalise == "zscore"


def test_a_folder_with_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    models.deep(folder / "model.onnx")
    content: dict[str, Any] = {
        "model_name": "net",
        "input_voxel_size": [8, 8, 8],
        "output_voxel_size": [8, 8, 8],
        "read_shape": [32, 32, 32],
        "write_shape": [22, 22, 22],
        "output_channels": 3,
    }
    (folder / "metadata.json").write_text(json.dumps(content))
    image = np.random.default_rng(1).normal(size=(24, 24, 24)).astype("f4")
    view = nm.open_view(
        [image, image[::2, ::2, ::2]], ops.Onnx(folder), chunks=(8, 8, 8), scale=(4, 4, 4)
    )
    op = view.ops[0]
    assert isinstance(op, ops.Onnx)
    assert (op.extent, op.input_voxel_size) == (5, (8.0, 8.0, 8.0))
    assert "metadata.json says 3 channels, the model makes 2" in op.notes
    assert any("says tiles of 32,32,32, but the model takes any" in note for note in op.notes)
    assert len(view.levels) == 1
    assert view.levels[0].scale == (1, 8, 8, 8)
    with pytest.raises(
        InputError, match=r"runs on voxels of 8, 8, 8 .* has larger ones, 16, 16, 16"
    ):
        nm.open_view(image, ops.Onnx(folder), scale=(16, 16, 16))


def steps(**options: Any) -> str:
    return json.dumps([{"name": name, "kwargs": kwargs} for name, kwargs in options.items()])


MEASURED, FIXED = {"mode": "per_sample", "axes": "yx"}, {"mode": "fixed", "mean": [9], "std": [5.0]}

CHAINS: dict[str, tuple[str, tuple[str, Any], str]] = {
    "fixed numbers": (
        steps(zero_mean_unit_variance=FIXED),
        ("zscore", (9.0, 5.0)),
        "",
    ),
    "two fixed ones are one": (
        steps(scale_linear={"gain": 0.5, "offset": -1}, zero_mean_unit_variance=FIXED),
        ("zscore", (20.0, 10.0)),
        "",
    ),
    "a fixed one before a measured one falls away": (
        steps(scale_linear={"gain": 0.5}, scale_range={"max_percentile": 99.123456789}),
        ("percentile:0,99.123456789", None),
        "",
    ),
    "none behind a measured one": (
        steps(zero_mean_unit_variance=MEASURED, scale_linear={"gain": 2}),
        ("zscore", None),
        r"scale_linear \(after zscore\) is not done here",
    ),
    "numbers of each channel": (
        steps(zero_mean_unit_variance={"mean": [1, 2], "std": [1, 1]}),
        ("none", None),
        r"zero_mean_unit_variance \(mean of each channel\) is not done here",
    ),
    "no gain": (
        steps(scale_linear={"gain": 0}),
        ("none", None),
        r"scale_linear \(gain 0\) is not done here",
    ),
    "a gain that turns all round": (
        steps(scale_linear={"gain": -1, "offset": 255}),
        ("none", None),
        r"scale_linear \(a scale of -1\) is not done here",
    ),
    "no mean": (
        steps(zero_mean_unit_variance={"mode": "fixed"}),
        ("none", None),
        r"zero_mean_unit_variance \(mean None\) is not done here",
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_steps_is_done_or_named(tmp_path: Path, name: str) -> None:
    chain, made, note = CHAINS[name]
    path = models.plain(tmp_path / "m.onnx")
    old, new = BIOIMAGE.index("    preprocessing:"), BIOIMAGE.index("outputs:")
    text = f"{BIOIMAGE[:old]}    preprocessing: {chain}\n{BIOIMAGE[new:]}"
    (tmp_path / "rdf.yaml").write_text(text)
    op = ops.Onnx(path, 2)
    assert (op.normalise, op.constants) == made
    notes = [each for each in op.notes if "halo=" not in each]
    assert re.fullmatch(f"its preprocessing {note}.*", "".join(notes)) if note else not notes, notes


def test_a_fixed_chain_makes_what_its_formulas_say(tmp_path: Path) -> None:
    models.save(tmp_path / "m.onnx", [models.node("Identity", ["in"], ["out"])])
    chain = steps(scale_linear={"gain": 0.5, "offset": -1}, zero_mean_unit_variance=FIXED)
    old, new = BIOIMAGE.index("    preprocessing:"), BIOIMAGE.index("outputs:")
    text = f"{BIOIMAGE[:old]}    preprocessing: {chain}\n{BIOIMAGE[new:]}"
    (tmp_path / "rdf.yaml").write_text(text)
    view = nm.open_view(IMAGE, ops.Onnx(tmp_path, 0, after="none"))
    wanted = ((IMAGE.astype("f8") * 0.5 - 1) - 9) / 5
    found = view.look(0, Box.whole(IMAGE.shape))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("chain", "after", "note"),
    [
        (steps(binarize={"threshold": 0}), "above:0", ""),
        (steps(sigmoid={}, binarize={"threshold": 0.123456789}), "sigmoid+above:0.123456789", ""),
        (
            steps(binarize={"threshold": [0, 1]}),
            "none",
            r"binarize \(threshold of each channel\) .*",
        ),
        (
            steps(sigmoid={}, clip={}, binarize={}),
            "sigmoid",
            r"clip is not done here, nor what follows it \(binarize\)",
        ),
    ],
)
def test_steps_after_a_model_end_at_one_that_is_not_done(
    tmp_path: Path, chain: str, after: str, note: str
) -> None:
    path = models.plain(tmp_path / "m.onnx")
    text = BIOIMAGE.replace("[{name: sigmoid}]", chain).replace("      - name: gamma\n", "")
    (tmp_path / "rdf.yaml").write_text(text)
    op = ops.Onnx(path, 2)
    assert op.after == after
    notes = [each for each in op.notes if "halo=" not in each]
    assert re.fullmatch(f"its postprocessing {note}", "".join(notes)) if note else not notes, notes


def test_above_is_more_and_threshold_is_as_much_or_more(tmp_path: Path) -> None:
    path = models.save(tmp_path / "m.onnx", [models.node("Relu", ["in"], ["out"])])
    image = np.arange(-8, 8, dtype="f4").reshape(4, 4)
    for after, wanted in (("above:0", image > 0), ("threshold:0", np.ones((4, 4)))):
        view = nm.open_view(image, ops.Onnx(path, 0, after=after))
        assert view.levels[0].dtype == np.uint8
        np.testing.assert_array_equal(view.look(0, Box.whole((4, 4))), wanted)


def test_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    op = ops.Onnx(
        path, 2, normalise="percentile:0.0012345678,99.99999", after="threshold:1234567.5"
    )
    assert (op.normalise, op.after) == ("percentile:0.0012345678,99.99999", "threshold:1234567.5")


def test_constants_of_another_normalisation_are_not_taken(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    chain = steps(zero_mean_unit_variance=FIXED)
    text = BIOIMAGE.replace("    preprocessing:\n", f"    preprocessing: {chain}\n    was:\n")
    (tmp_path / "rdf.yaml").write_text(text)
    op = ops.Onnx(path, 2, normalise="minmax")
    assert (op.normalise, op.constants) == ("minmax", None)
    op = ops.Onnx(path, 2, constants=(1.0, 2.0))
    assert (op.normalise, op.constants) == ("zscore", (1.0, 2.0))


def test_channels_that_are_normalised_apart_are_named(tmp_path: Path) -> None:
    nodes = [models.node("Conv", ["in", "a"], ["out"], pads=[1] * 4)]
    stored = [("a", models.weights(1, 3, 3, 3))]
    path = models.save(tmp_path / "m.onnx", nodes, stored, shape=("n", 3, "y", "x"))
    (tmp_path / "rdf.yaml").write_text(BIOIMAGE.replace("      - name: gamma\n", ""))
    assert any("normalises each channel by itself" in note for note in ops.Onnx(path, 5).notes)


def test_a_metadata_of_another_rank_is_refused_by_its_name(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "model.onnx")
    content = {"read_shape": [32, 32, 32], "write_shape": [22, 22, 22]}
    (tmp_path / "metadata.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"metadata\.json says halo=5,5,5: mend it, or give descr"):
        ops.Onnx(path)
    assert ops.Onnx(path, 2).extent == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"input_voxel_size": [0, 1, 1]}, "input_voxel_size must be a list of positive numbers"),
        ({"input_voxel_size": 8}, "input_voxel_size must be a list of positive numbers, got 8"),
        ({"read_shape": [32, 32]}, "must have as many numbers as each other"),
        ({"read_shape": [9.5] * 3}, "read_shape must be a list of whole positive numbers"),
        ({"read_shape": [10**9] * 3}, "its halo must be 4096 voxels or less, got 499999989"),
        ({"output_channels": "3"}, "output_channels must be a number or a list, got '3'"),
    ],
)
def test_a_metadata_that_cannot_be_meant_is_noted(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    path = models.deep(tmp_path / "model.onnx")
    whole = {"input_voxel_size": [8, 8, 8], "read_shape": [32] * 3, "write_shape": [22] * 3}
    (tmp_path / "metadata.json").write_text(json.dumps(whole | content))
    (note,) = ops.Onnx(path, 4).notes
    assert note.startswith("onnx: the description metadata.json cannot be read: its")
    assert message in note


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 9999, "inputs: []", "inputs: 3\noutputs: 4", "a: [", "\x00"]
)
def test_a_damaged_description_is_noted_or_refused(tmp_path: Path, text: str) -> None:
    path = models.plain(tmp_path / "m.onnx")
    file = tmp_path / "rdf.yaml"
    file.write_text(text)
    (note,) = ops.Onnx(path, 2).notes
    assert note.startswith("onnx: the description rdf.yaml cannot be read: ")
    with pytest.raises(ModelError, match=r"rdf\.yaml cannot be read: .* give description=none"):
        ops.Onnx(path, 2, description=str(file))


def corrupt(path: Path) -> None:
    path.write_bytes(models.plain(path).read_bytes()[:-50])


def without_weights(path: Path) -> None:
    model = onnx.load(models.plain(path))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    path.write_bytes(model.SerializeToString())


def two_inputs(path: Path) -> None:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1, "y", "x"])
        for name in ("image", "mask", "out")
    ]
    nodes = [helper.make_node("Add", ["image", "mask"], ["out"])]
    graph = helper.make_graph(nodes, "test", ports[:2], ports[2:])
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )


def foreign(path: Path) -> None:
    nodes = [helper.make_node("Secret", ["in"], ["out"], domain="evil.corp")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("evil.corp", 1)]
    models.save(path, nodes, opsets=opsets)


def too_new(path: Path) -> None:
    models.plain(path, opsets=[helper.make_opsetid("", 99)])


def absurd(path: Path) -> None:
    model = onnx.load(models.plain(path))
    model.graph.initializer[0].dims[:] = [2**20, 2**20]
    path.write_bytes(model.SerializeToString())


def double(path: Path) -> None:
    """Floats in and out, and float64 between: onnxruntime's CPU has no such convolution."""
    nodes = [
        models.node("Cast", ["in"], ["d"], to=onnx.TensorProto.DOUBLE),
        models.node("Conv", ["d", "a"], ["c"], pads=[1] * 4),
        models.node("Cast", ["c"], ["out"], to=onnx.TensorProto.FLOAT),
    ]
    models.save(path, nodes, [("a", models.weights(1, 1, 3, 3, dtype="f8"))])


def too_new_a_file(path: Path) -> None:
    model = onnx.load(models.plain(path))
    model.ir_version = 99
    path.write_bytes(model.SerializeToString())


def nonsense(path: Path, **options: Any) -> None:
    models.save(path, [models.node("Nonsense", ["in"], ["out"], **options)])


WRONG = {
    "float64 convolution": (double, r"has no Conv for float64, which .*; export it in float32"),
    "float64 pool": (
        lambda path: models.save(
            path,
            [models.node("AveragePool", ["in"], ["out"], kernel_shape=[3, 3], pads=[1] * 4)],
            takes=onnx.TensorProto.DOUBLE,
        ),
        r"has no AveragePool for float64, .*; export it in float32",
    ),
    "bfloat16": (
        lambda path: models.save(
            path,
            [models.node("Mul", ["in", "in"], ["out"])],
            takes=onnx.TensorProto.BFLOAT16,
        ),
        r"has no Mul for bfloat16, .*; export it in float32",
    ),
    "opset too old": (
        lambda path: models.save(
            path,
            [models.node("Relu", ["in"], ["out"])],
            opsets=[onnx.helper.make_opsetid("", 1)],
        ),
        r"has no Relu of opset 1; export it again, for opset 13 or later",
    ),
    "file format too new": (too_new_a_file, r"ir_version is 99, .*; export it again, with an old"),
    "unknown operator": (nonsense, r"opset 17, .* has no operator Nonsense; export it again"),
    "unknown operator of Microsoft": (
        lambda path: nonsense(path, domain="com.microsoft"),
        r"has no operator Nonsense of com\.microsoft; export it again",
    ),
    "types that do not fit": (
        lambda path: models.save(
            path,
            [models.node("Conv", ["in", "a"], ["out"])],
            [("a", models.weights(1, 1, 3, 3, dtype="f8"))],
        ),
        r"is no valid model \(Type Error: .*\); export it again",
    ),
    "corrupt": (corrupt, r"bad\.onnx is not an ONNX model, or is damaged .* export it again"),
    "weights missing": (
        without_weights,
        r"weights in 'weights\.bin', which is not in its folder; put",
    ),
    "opset too new": (too_new, "written for opset 99, .*; export it again, for an older opset"),
    "two inputs": (
        two_inputs,
        "must need one input, needs image, mask; this op runs models of one",
    ),
    "custom ops": (foreign, r"uses operators of 'evil\.corp', which need a library .* export it"),
    "absurd sizes": (absurd, "announces a tensor 'a' of 1048576 x 1048576 values, at most"),
    "wrong rank": (
        lambda path: models.save(path, [models.node("Identity", ["in"], ["out"])], shape=("n",)),
        "an image has 2 to 5 axes, its input in has 1",
    ),
    "no voxels": (
        lambda path: models.save(
            path, [models.node("Relu", ["in"], ["out"])], shape=(1, 1, 0, "x")
        ),
        r"an axis has 1 voxel or more, .* in has \(1, 1, 0, 'x'\); export it",
    ),
    "no size works": (
        lambda path: models.save(
            path,
            [models.node("Concat", ["in", "w"], ["out"], axis=1)],
            [("w", np.zeros((1, 1, 8, 5), "f4"))],
        ),
        "fails on a block of .* give it: multiple=8",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_one_sentence_and_nothing_is_created(tmp_path: Path, name: str) -> None:
    make, message = WRONG[name]
    path, target = tmp_path / "bad.onnx", tmp_path / "out.zarr"
    make(path)
    with pytest.raises(ModelError, match=message) as caught:
        nm.materialize(IMAGE, target, ops=f"onnx:model={path},halo=auto")
    sentence = str(caught.value)
    assert "bad.onnx" in sentence
    assert "\n" not in sentence
    assert not target.exists()


def test_voxels_are_made_larger_for_a_model_bound_to_a_size(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    image = np.random.default_rng(2).normal(size=(60, 66)).astype("f4")
    half, third = (image.reshape(60 // n, n, 66 // n, n).mean((1, 3)) for n in (2, 3))
    levels = [image, half]
    box = Box.whole((2, 30, 33))
    on_half = nm.open_view(half, ops.Onnx(path, 2), chunks=(7, 8)).look(0, box)
    bound = nm.open_view(levels, ops.Onnx(path, 2, input_voxel_size=2.0), chunks=(7, 8))
    assert [level.shape for level in bound.levels] == [(2, 30, 33)]
    np.testing.assert_array_equal(bound.look(0, box), on_half)
    only = nm.open_view(image, ops.Onnx(path, 2, input_voxel_size=2.0), chunks=(7, 8))
    np.testing.assert_allclose(only.look(0, box), on_half, rtol=0, atol=1e-5)
    by_three = nm.open_view(image, ops.Onnx(path, 2, input_voxel_size=3.0), chunks=(7, 8))
    expected = nm.open_view(third, ops.Onnx(path, 2)).look(0, Box.whole((2, 20, 22)))
    np.testing.assert_allclose(
        by_three.look(0, Box.whole((2, 20, 22))), expected, rtol=0, atol=1e-5
    )
    assert by_three.levels[0].translation == (0, 1, 1)


def test_coarser_levels_are_made_of_the_output_and_through_the_engine(tmp_path: Path) -> None:
    path = models.plain(tmp_path / "m.onnx")
    image = np.random.default_rng(2).normal(size=(64, 64)).astype("f4")
    levels = [image, image[::2, ::2].copy(), image[::4, ::4].copy()]
    op = ops.Onnx(path, 2, input_voxel_size=1.0, after="threshold:0")
    view = nm.open_view(levels, op, chunks=(16, 16))
    fine = view.look(0, Box.whole((2, 64, 64)))
    coarse = fine.reshape(2, 32, 2, 32, 2).sum((2, 4)) > 2  # most of four; of a tie the smaller
    with nm.Engine(slots=3) as engine:
        np.testing.assert_array_equal(engine.array(view, 1)[...], coarse)
        store = nm.MemoryStore()
        done = engine.materialize(view, store, levels=[0, 1, 2])
        np.testing.assert_array_equal(
            engine.array(view, 2)[...], view.look(2, Box.whole((2, 16, 16)))
        )
    assert done.failed == 0
    assert [level.scale for level in view.levels] == [(1, 1, 1), (1, 2, 2), (1, 4, 4)]
    assert [level.translation[-1] for level in view.levels] == [0, 0.5, 1.5]
