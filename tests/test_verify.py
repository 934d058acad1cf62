"""``verify`` and ``rerun``: a result compared with its record, mended from it, and made again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from napari_materialize import Box, Engine, open_view
from napari_materialize.cli import main

DOCUMENTS = (".zattrs", ".zmetadata", "zarr.json", "attributes.json")
OPS = ["gaussian:sigma=1", "threshold:low=90"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "source.zarr"
    voxels = np.random.default_rng(1).integers(0, 200, (24, 30, 28)).astype("u1")
    with Engine(slots=2) as engine:
        engine.materialize(open_view(voxels, chunks=(8, 8, 8), scale=(2, 1, 1)), path)
    return path


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name not in DOCUMENTS
    }


def written(source, target, **options):
    with Engine(slots=2) as engine:
        engine.materialize(open_view(source, OPS), target, **options)
    return target


CASES = {
    "zarr2": {"pyramid": 1},
    "zarr3": {"format": "zarr3", "shards": (2, 2, 2), "attributes": {"sample": "7b"}},
    "n5": {"format": "n5", "extent": "box", "box": Box((3, 4, 5), (20, 30, 28))},
    "keep empty": {"skip_empty": False, "compression": "zstd", "box": Box((0, 0), (8, 9))},
}


@pytest.mark.parametrize("case", CASES)
def test_a_rerun_from_the_record_alone_gives_the_same_bytes(source, tmp_path, case, capsys):
    made = written(source, tmp_path / "made", **CASES[case])
    assert main(["rerun", str(made), str(tmp_path / "again"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["status"] == "complete"
    assert files(tmp_path / "again") == files(made)
    assert main(["verify", str(tmp_path / "again")]) == 0


def test_a_rerun_makes_every_box_that_was_added(source, tmp_path):
    made = tmp_path / "made"
    for box in (Box((0, 0, 0), (8, 30, 28)), Box((8, 8, 0), (24, 30, 28))):
        written(source, made, box=box, existing="add", pyramid=1)
    assert main(["rerun", str(made), str(tmp_path / "again")]) == 0
    assert files(tmp_path / "again") == files(made)
    assert main(["verify", str(made)]) == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("harm", ["cut off", "removed", "exchanged", "one too many"])
def test_what_is_damaged_is_named_and_mended(source, tmp_path, case, harm, capsys):
    made = written(source, tmp_path / "made", **CASES[case])
    before = files(made)
    assert main(["verify", str(made), "--json"]) == 0
    capsys.readouterr()
    paths = sorted(path for path in before if path.rpartition("/")[2].isdecimal())
    odd = [paths[0]]
    if harm == "cut off":
        (made / paths[0]).write_bytes(before[paths[0]][:-3])
    elif harm == "removed":
        (made / paths[0]).unlink()
    elif harm == "exchanged":
        odd = [path for path in paths if before[path] != before[paths[0]]][:1] + odd
        for path, other in zip(odd, reversed(odd), strict=True):
            (made / path).write_bytes(before[other])
    else:
        (made / paths[0]).unlink()
        (made / paths[0]).write_bytes(b"not a chunk")
    assert main(["verify", str(made), "--json"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(told["damaged"]) == sorted(odd)
    assert main(["verify", str(made), "--repair"]) == 0
    assert files(made) == before
    assert main(["verify", str(made)]) == 0


def test_what_is_no_result_is_refused(source, tmp_path, capsys):
    for command in (["verify"], ["rerun"]):
        where = [str(tmp_path / "nothing")] + (
            [str(tmp_path / "x")] if command == ["rerun"] else []
        )
        assert main([*command, *where]) == 2
    made = written(source, tmp_path / "made")
    assert main(["rerun", str(source), str(tmp_path / "x")]) == 2
    assert "array in memory" in capsys.readouterr().err
    assert main(["rerun", str(made), str(made)]) == 2
    (made / "0" / ".zarray").write_text("{")
    assert main(["verify", str(made)]) == 1
    assert "0/.zarray" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_source_that_was_written_anew_is_not_the_same(tmp_path, capsys):
    place = tmp_path / "source"
    with Engine(slots=1) as engine:
        engine.materialize(open_view(np.ones((8, 8), "u1")), place)
        made = tmp_path / "made"
        engine.materialize(open_view(place, ["invert"]), made)
        engine.materialize(open_view(np.zeros((8, 4), "u1")), place, existing="overwrite")
    assert main(["rerun", str(made), str(tmp_path / "again")]) == 2
    assert "not what the result was made of" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"view": 5},
        {"view": {"source": [], "ops": 3, "boundary": "edge"}},
        {"view": None},
        {"levels": "all"},
        {"box": [[1], ["a"]]},
        {"pyramid": 3},
        {"earlier": [7]},
        {"format": "tiff"},
        {"checks": [{"files": 1}]},
        {"compression": "rm -rf"},
    ],
    ids=str,
)
def test_a_record_of_rubbish_is_one_sentence(source, tmp_path, change, capsys):
    made = written(source, tmp_path / "made")
    document = json.loads((made / ".zattrs").read_bytes())
    document["napari_materialize"] |= change
    (made / ".zattrs").write_text(json.dumps(document))
    for command in (
        ["rerun", str(made), str(tmp_path / "again")],
        ["verify", str(made), "--repair"],
    ):
        code = main(command)
        told = capsys.readouterr().err
        assert "Traceback" not in told
        assert "unexpected error" not in told
        assert code in (0, 1, 2)
    assert not (tmp_path / "again").exists() or "checks" in change
