"""``check-model``: what is said of a model, to a person and to a program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import onnx_models as models
from napari_materialize.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


def image(folder: Path) -> str:
    """Write a small image, and return its path."""
    import zarr

    path = folder / "image.zarr"
    array = np.random.default_rng(0).integers(0, 99, (50, 50)).astype("u1")
    stored = zarr.create_array(path, shape=array.shape, dtype=array.dtype, chunks=(20, 20))
    stored[...] = array
    return str(path)


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["check-model", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_model_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.unet(tmp_path / "m.onnx")
    said = report(capsys, str(path))
    assert said["layout"] == said["output_layout"] == "bcyx"
    assert (said["halo"], said["stride"], said["tile_dependent"]) == (6, 2, False)
    assert (said["device"], said["warnings"], said["measured_on"]) == ("cpu", [], "noise")
    chunk = said["chunk"]
    assert isinstance(chunk, dict)
    assert chunk["seconds"] > 0
    assert chunk["shape"] == [256, 256]
    assert 1 < chunk["voxels_per_voxel"] < 1.2
    assert main(["check-model", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("m.onnx (")
    assert any("halo" in line and "measured on noise" in line for line in lines)


def test_a_tile_dependent_one_is_reported_and_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = report(capsys, str(models.pooled_globally(tmp_path / "m.onnx")))
    assert said["tile_dependent"] is True
    assert said["halo"] is None
    (warning,) = said["warnings"]  # type: ignore[misc]
    assert "depends on the whole tile (it has GlobalAveragePool)" in warning


def test_it_is_measured_on_a_source_with_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.two_outputs(tmp_path / "m.onnx")
    words = ["--source", image(tmp_path), "--with", "output=far,normalise=percentile:2,98"]
    said = report(capsys, str(path), *words)
    assert (said["halo"], said["normalise"]) == (3, "percentile:2,98")
    assert said["measured_on"] == "the source"
    assert said["output"]["channels"] == 2  # type: ignore[index]


def test_a_wrong_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.two_outputs(tmp_path / "m.onnx")
    assert main(["check-model", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert "has the outputs near, far; choose one with output=NAME" in err
    assert json.loads(out.splitlines()[-1])["status"] == "refused"
    assert main(["check-model", str(tmp_path / "gone.onnx")]) == 2
    assert "there is no model file" in capsys.readouterr().err


def test_what_onnxruntime_cannot_run_is_refused_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes no float64 convolution; the model says float32 at both ends."""
    nodes = [
        models.node("Cast", ["in"], ["d"], to=11),
        models.node("Conv", ["d", "a"], ["c"], pads=[1] * 4),
        models.node("Cast", ["c"], ["out"], to=1),
    ]
    stored = [("a", models.weights(1, 1, 3, 3, dtype="f8"))]
    path = models.save(tmp_path / "m.onnx", nodes, stored)
    source, target = image(tmp_path), tmp_path / "out.zarr"
    op = f"onnx:model={path},halo=auto"
    for words in (["check-model", str(path)], ["run", source, str(target), "--op", op]):
        capsys.readouterr()
        assert main(words) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "m.onnx" in lines[0]
        assert "no Conv for float64" in lines[0]
        assert "export it in float32" in lines[0]
    assert not target.exists()


def test_a_run_and_a_rerun_tell_what_should_be_known_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.plain(tmp_path / "m.onnx")
    source, first, second = image(tmp_path), tmp_path / "a.zarr", tmp_path / "b.zarr"
    op = f"onnx:model={path},halo=1"
    for words in (
        ["run", source, str(first), "--op", op],
        ["rerun", str(first), str(second), "--model", str(path)],
    ):
        capsys.readouterr()
        assert main([*words, "--json"]) == 0
        out, err = capsys.readouterr()
        notes = json.loads(out.splitlines()[-1])["notes"]
        assert [line for line in err.splitlines() if "note:" in line] == [
            f"napari-materialize: note: {note}" for note in notes
        ]
    assert main(["info", source, "--op", op]) == 0
    assert f"note    {notes[0]}" in capsys.readouterr().out


@pytest.mark.filterwarnings("default:onnx")
def test_a_device_that_is_not_there_is_said_by_this_program_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The process that tries a chunk loads the model too, and has nothing to add."""
    path = models.plain(tmp_path / "m.onnx")
    assert main(["check-model", str(path), "--with", "device=cuda", "--json"]) == 0
    out, err = capfd.readouterr()
    said = json.loads(out.splitlines()[-1])
    assert all(line.startswith("napari-materialize: ") for line in err.splitlines())
    assert any(
        "device=cuda was asked for" in warning or "no test of this project" in warning
        for warning in said["warnings"]
    )


def test_run_tells_a_device_that_is_not_there_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from napari_materialize import materialize

    source, target = str(tmp_path / "in.zarr"), str(tmp_path / "out.zarr")
    materialize(np.random.default_rng(2).random((40, 40), np.float32), source)
    path = models.plain(tmp_path / "once.onnx", producer_name="once")
    op = f"onnx:model={path},halo=2,device=cuda"
    assert main(["run", source, target, "--op", op]) == 0
    said = capsys.readouterr().err
    assert said.count("device=cuda was asked for") + said.count("no test of this project") == 1


def test_a_model_on_a_gpu_is_marked_as_not_run_by_our_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made to believe that the CPU's provider is the GPU's, which is all that is asked of it."""
    from napari_materialize import open_view
    from napari_materialize.ops import Onnx, _model_session

    path = models.plain(tmp_path / "m.onnx", producer_name="a session of its own")
    monkeypatch.setattr(_model_session, "_CUDA", "CPUExecutionProvider")
    monkeypatch.setattr(
        _model_session.Runtime,
        "_run_bound",
        lambda self, tile, source, target: self.session.run([target], {source: tile})[0],
    )
    op = open_view(np.zeros((40, 40), "f4"), Onnx(path, 2, device="cpu")).ops[0]
    assert op.notes == ("it runs on cuda:0, which no test of this project has done",)
    assert op.record["notes"] == list(op.notes)
