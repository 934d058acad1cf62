"""A result of a model made once more from its record, and mended: the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import onnx_models as models
from napari_materialize import Box, Engine, open_view
from napari_materialize.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTS = (".zattrs", ".zmetadata", "zarr.json")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_MATERIALIZE_CACHE", "")


def voxels(folder: Path) -> dict[str, bytes]:
    """Return the files of chunks: documents have times in them."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in DOCUMENTS and ".napari" not in path.as_posix()
    }


@pytest.fixture(params=["3D", "strided with a skip"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A model, and what a job made with it: blocks of chunks, in part of the level, in float32."""
    flat = request.param != "3D"
    make: Callable[[Path], Path] = models.unet if flat else models.deep
    shape, chunks = ((130, 120), (16, 16)) if flat else ((40, 44, 48), (12, 12, 12))
    box = Box((5, 7), (99, 111)) if flat else Box((3, 8, 0), (36, 44, 40))
    model, source, target = (tmp_path / name for name in ("m.onnx", "s.zarr", "made.zarr"))
    make(model)
    image = np.random.default_rng(4).integers(0, 200, shape).astype("u1")
    with Engine(slots=2) as engine:
        engine.materialize(open_view(image, chunks=chunks), source)
        view = open_view(source, f"onnx:model={model},halo=auto,normalise=zscore")
        engine.materialize(view, target, box=box, box_level=0)
    return model, target


def test_a_rerun_with_a_model_gives_the_same_bytes(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one slot, and the model at another place: where the blocks lie decides nothing."""
    model, target = made
    moved = tmp_path / "elsewhere" / "m.onnx"
    moved.parent.mkdir()
    shutil.move(model, moved)
    again = tmp_path / "again.zarr"
    capsys.readouterr()
    assert main(["rerun", str(target), str(again), "--json"]) == 2  # where is the model?
    assert "m.onnx" in capsys.readouterr().err
    assert not again.exists()
    words = ["--model", str(moved), "--slots", "1"]
    assert main(["rerun", str(target), str(again), *words]) == 0
    assert len(voxels(target)) > 8
    assert voxels(again) == voxels(target)


def test_a_rerun_with_another_model_of_that_name_is_refused(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, target = made
    again = tmp_path / "again.zarr"
    models.plain(model)
    assert main(["rerun", str(target), str(again), "--model", str(model)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "m.onnx" in line
    assert not again.exists()


def test_chunks_of_a_model_are_mended_to_the_same_bytes(
    made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One chunk is lost and one damaged: each is computed alone, not in the block it came of."""
    model, target = made
    before = voxels(target)
    chunks = sorted(name for name in before if Path(name).name.isdigit())
    lost, damaged = chunks[0], chunks[len(chunks) // 2]
    (target / lost).unlink()
    (target / damaged).write_bytes(b"damaged")
    capsys.readouterr()
    assert main(["verify", str(target), "--json"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(told["damaged"]) == sorted([lost, damaged])
    assert main(["verify", str(target), "--repair", "--model", str(model)]) == 0
    after = voxels(target)
    assert {name: after[name] for name in chunks} == {name: before[name] for name in chunks}
    assert main(["verify", str(target)]) == 0
