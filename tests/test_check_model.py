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
    image = tmp_path / "image.npy"
    import zarr

    image = tmp_path / "image.zarr"
    array = np.random.default_rng(0).integers(0, 99, (50, 50)).astype("u1")
    stored = zarr.create_array(image, shape=array.shape, dtype=array.dtype, chunks=(20, 20))
    stored[...] = array
    words = ["--source", str(image), "--with", "output=far,normalise=percentile:2,98"]
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
