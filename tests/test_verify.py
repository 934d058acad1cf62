"""``verify`` and ``rerun``: a result compared with its record, mended from it, and made again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from napari_materialize import Box, Engine, open_view
from napari_materialize.cli import main
from napari_materialize.errors import TargetError
from napari_materialize.recipe import lasting_identity

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


ADDED = {
    "files": {},
    "shards": {"format": "zarr3", "shards": (2, 2, 2)},
    "pyramid": {"pyramid": 2},
    "shards, pyramid": {"format": "zarr3", "shards": (2, 2, 2), "pyramid": 2},
    "n5": {"format": "n5", "pyramid": 1},
}


DOCUMENT = {
    "files": ".zattrs", "shards": "zarr.json", "pyramid": ".zattrs", "shards, pyramid": "zarr.json",
    "n5": "attributes.json",
}  # fmt: skip


def _document(made, case):
    return (made / DOCUMENT[case]).read_bytes()


def _record(document):
    found = json.loads(document)
    return found.get("attributes", found)["napari_materialize"]


@pytest.mark.parametrize("case", ADDED)
@pytest.mark.parametrize("harm", ["all", "first", "some"])
def test_every_box_is_mended(source, tmp_path, case, harm, capsys):
    """What several boxes share too: shards, and coarser chunks across them."""
    made = tmp_path / "made"
    for box in (
        Box((0, 0, 0), (8, 30, 28)),
        Box((8, 8, 0), (24, 30, 20)),
        Box((4, 0, 0), (9, 9, 9)),
    ):
        written(source, made, box=box, existing="add", **ADDED[case])
    before, record = files(made), _document(made, case)
    paths = sorted(path for path in before if path.rpartition("/")[2].isdecimal())
    for number, path in enumerate(paths):
        if harm == "all" or number == 0 or (harm == "some" and number % 3 == 0):
            (made / path).write_bytes(before[path][: number % 2 * 7])
    assert main(["verify", str(made), "--repair"]) == 0, capsys.readouterr().err
    assert files(made) == before
    assert main(["verify", str(made)]) == 0
    kept = [_record(each) for each in (record, _document(made, case))]
    assert kept[0]["earlier"] == kept[1]["earlier"]
    assert kept[0]["checks"] == kept[1]["checks"]


def test_what_cannot_be_mended_is_listed_and_the_rest_is_mended(own, capsys):
    place, made = own
    before = files(made)
    for path in before:
        if path.rpartition("/")[2].isdecimal():
            (made / path).unlink()
    (place / "0" / "0" / "0" / "0").write_bytes(b"damaged")
    document = json.loads((made / ".zattrs").read_bytes())
    identity = lasting_identity(open_view(place, OPS))
    document["napari_materialize"]["view"]["identity"] = identity  # as if it had been so then
    (made / ".zattrs").write_text(json.dumps(document))
    assert main(["verify", str(made), "--repair", "--json"]) == 1
    told = capsys.readouterr()
    report = json.loads(told.out.splitlines()[-1])
    assert report["failures"]
    assert all("0/0/0" in reason or "damaged" in reason for reason in report["failures"])
    assert "failed" in told.err
    again = {path: data for path, data in files(made).items() if path in before}
    assert len(again) > len(before) // 2
    assert all(before[path] == data for path, data in again.items())


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


@pytest.fixture
def own(source, tmp_path):
    """A copy of the source that may be changed, and a result of it."""
    place = Path(shutil.copytree(source, tmp_path / "own.zarr"))
    return place, written(place, tmp_path / "made")


def test_a_source_that_was_touched_copied_or_moved_is_the_same(own, tmp_path):
    place, made = own
    for path in place.rglob("*"):
        os.utime(path, (1, 1))
    assert main(["rerun", str(made), str(tmp_path / "again")]) == 0
    next(path for path in made.rglob("0/*/*/*") if path.is_file()).unlink()
    assert main(["verify", str(made), "--repair"]) == 0
    assert files(made) == files(tmp_path / "again")
    moved = place.rename(tmp_path / "elsewhere.zarr")
    with Engine(slots=2) as engine:
        done = engine.materialize(open_view(moved, OPS), made, existing="resume")
        assert done.chunks == 0
    other = tmp_path / "packed.zarr"  # the same image, compressed otherwise
    with Engine(slots=2) as engine:
        engine.materialize(open_view(moved), other, compression="zstd")
        assert engine.materialize(open_view(other, OPS), made, existing="resume").chunks == 0


@pytest.mark.parametrize("change", ["voxels", "scale", "shape"])
def test_a_source_with_other_voxels_or_another_description_is_not(own, tmp_path, change, capsys):
    place, made = own
    voxels, scale = np.random.default_rng(9).integers(0, 200, (24, 30, 28)).astype("u1"), (2, 1, 1)
    if change == "voxels":
        path = place / "0" / "1" / "2" / "1"
        kept, times = path.read_bytes(), [(p, p.stat().st_mtime_ns) for p in place.rglob(".z*")]
        path.write_bytes((place / "0" / "1" / "1" / "1").read_bytes())
        assert path.read_bytes() != kept
        for document, time in times:
            os.utime(document, ns=(time, time))
    else:
        shutil.rmtree(place)
        scale, voxels = ((9, 1, 1), voxels) if change == "scale" else (scale, voxels[:20])
        with Engine(slots=1) as engine:
            engine.materialize(open_view(voxels, chunks=(8, 8, 8), scale=scale), place)
    assert main(["rerun", str(made), str(tmp_path / "again")]) == 2
    assert "not what the result was made of" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
    before = files(made)
    with Engine(slots=1) as engine, pytest.raises(TargetError, match="existing=resume cannot"):
        engine.materialize(open_view(place, OPS), made, existing="resume")
    assert files(made) == before


def test_a_chunk_of_the_source_that_cannot_be_read_is_no_obstacle_to_the_record(own, tmp_path):
    place, _ = own
    (place / "0" / "0" / "0" / "0").write_bytes(b"damaged")
    with Engine(slots=1) as engine:
        done = engine.materialize(open_view(place, OPS), tmp_path / "some", on_error="collect")
        again = engine.materialize(
            open_view(place, OPS), tmp_path / "some", existing="resume", on_error="collect"
        )
    assert 0 < done.failed < done.chunks
    assert again.chunks == again.failed == done.failed


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
