"""Targets that somebody prepared, and records that say anything: nothing outside is touched."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from napari_materialize import Box, Engine, materialize, open_view
from napari_materialize.errors import InputError
from napari_materialize.job import recorded_jobs, recorded_view, verify_result
from napari_materialize.journal import JOURNAL, read_journal
from napari_materialize.plan import Options
from napari_materialize.stores import MemoryStore
from napari_materialize.stores._lock import Owner
from terminal import everything_in, here
from test_sources_fuzz import places_in, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCK = ".napari-materialize-job"
VOXELS = np.arange(1, 65, dtype="u1").reshape(8, 8)

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes and few links")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "source.zarr"
    materialize(open_view(VOXELS, chunks=(4, 4)), place)
    return place


# ---------------------------------------------------------------------- the lock and the documents


def a_link_out(path: Path) -> None:
    (path.parent.parent / "thesis").write_text("two years of work")
    path.symlink_to("../thesis")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("../thesis")


def a_folder(path: Path) -> None:
    path.mkdir()


IN_ITS_PLACE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link out": (a_link_out, "a link is in its place"),
    "a link to nothing": (a_link_to_nothing, "a link is in its place"),
    "a link in a circle": (lambda path: path.symlink_to(path.name), "a link is in its place"),
    "a pipe": (os.mkfifo if hasattr(os, "mkfifo") else a_folder, "no file is in its place"),
    "a folder": (a_folder, "a folder is in its place"),
}


@posix
@pytest.mark.parametrize("name", IN_ITS_PLACE)
@pytest.mark.parametrize("existing", ["error", "resume", "add", "overwrite"])
def test_what_stands_in_the_place_of_the_lock_is_left_alone(
    name: str, existing: str, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make, told = IN_ITS_PLACE[name]
    target = tmp_path / "out.zarr"
    materialize(open_view(source), target) if existing != "error" else target.mkdir()
    make(target / LOCK)
    before = everything_in(tmp_path)
    ended = here(capfd, "run", str(source), str(target), "--existing", existing)
    assert ended.code in (1, 2)
    assert re.fullmatch(rf"napari-materialize: [^\n]*{told}[^\n]*\n", ended.err), ended.err
    assert everything_in(tmp_path) == before
    here(capfd, "verify", str(target))
    assert everything_in(tmp_path) == before


def a_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@posix
@pytest.mark.parametrize("document", [".zattrs", "0/.zarray", "0/1/1", JOURNAL])
@pytest.mark.parametrize("existing", ["resume", "add", "overwrite"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a terabyte of holes"])
def test_files_that_never_end_are_not_read(
    document: str,
    existing: str,
    kind: str,
    source: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "out.zarr"
    materialize(open_view(source, ["invert"]), target)
    path = target / document
    path.unlink(missing_ok=True)
    {"a pipe": os.mkfifo, "a device": lambda p: p.symlink_to("/dev/zero")}.get(kind, a_hole)(path)
    arguments = ["run", str(source), str(target), "--op", "invert", "--existing", existing]
    ended = here(capfd, *arguments)
    assert ended.err.count("\n") <= 1
    assert "unexpected" not in ended.err
    whole = kind == "a terabyte of holes" and document in {"0/1/1", "0/.zarray"}
    assert ended.code == 0 if whole else ended.code in (1, 2), ended
    told = here(capfd, "verify", str(target))
    assert "unexpected" not in told.err
    assert told.code == 0 if whole else told.code in (0, 1, 2)


# ---------------------------------------------------------------------- records that say anything


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A result of two boxes with a pyramid, and its group's attributes."""
    place = tmp_path_factory.mktemp("made")
    materialize(open_view(VOXELS, chunks=(4, 4)), place / "source.zarr")
    view, target = open_view(place / "source.zarr", ["rescale:low=0,high=80"]), place / "out.zarr"
    for box in (Box((0, 0), (4, 8)), Box((4, 0), (8, 8))):
        materialize(view, target, box=box, existing="add", pyramid=1)
    document = json.loads((target / ".zattrs").read_bytes())
    return target, document["napari_materialize"]


def changed(record: Any, data: st.DataObject) -> Any:
    """Return a record, changed in one to three places."""
    record = json.loads(json.dumps(record))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places_in(record)[1:]))
        holder = record
        for key in way:
            holder = holder[key]
        if data.draw(st.integers(0, 4)):
            holder[last] = copy.deepcopy(data.draw(values))
        else:
            del holder[last]
    return record


def is_a_sentence(error: BaseException) -> None:
    assert "\n" not in str(error)
    assert 10 < len(str(error)) < 10_000


@given(st.data())
def test_a_record_changed_at_random_is_refused_or_means_a_job(
    made: tuple[Path, dict[str, Any]], data: st.DataObject
) -> None:
    target, record = made
    record = changed(record, data)
    for ask in (
        lambda: verify_result(str(target), record),
        lambda: recorded_view(record),
        lambda: [Options(**each) for each in recorded_jobs(record)],
    ):
        try:
            ask()
        except InputError as error:
            is_a_sentence(error)


def test_a_corner_of_four_hundred_digits_is_not_repeated(made: tuple[Path, dict[str, Any]]) -> None:
    """Found by the test above."""
    with pytest.raises(InputError, match="farther away than any level") as refused:
        recorded_jobs(made[1] | {"box": [[10**400, 0], [8, 8]]})
    assert len(str(refused.value)) < 300


@given(st.data())
def test_going_on_where_the_record_is_changed_is_refused_or_right(
    made: tuple[Path, dict[str, Any]], data: st.DataObject
) -> None:
    """The voxels in the end are those of the view, whatever the record said."""
    target, record = made
    store = MemoryStore()
    for path in target.rglob("*"):
        if path.is_file():
            store.files[path.relative_to(target).as_posix()] = path.read_bytes()
    document = json.loads(store.files[".zattrs"])
    document["napari_materialize"] = changed(record, data)
    store.files[".zattrs"] = json.dumps(document).encode()
    before = dict(store.files)
    view = open_view(target.parent / "source.zarr", ["rescale:low=0,high=80"])
    existing = data.draw(st.sampled_from(["resume", "add"]))
    try:
        with Engine(slots=1) as engine:
            engine.materialize(view, store, box=Box((4, 0), (8, 8)), existing=existing, pyramid=1)
    except InputError as error:
        is_a_sentence(error)
        assert store.files == before
        return
    assert {path for path in before if path[0].isdecimal()} == {
        path for path in store.files if path[0].isdecimal()
    }
    assert all(before[path] == store.files[path] for path in before if path[0].isdecimal())


@given(st.lists(st.tuples(st.sampled_from("jwefscx"), st.text(max_size=30) | values), max_size=8))
def test_a_journal_of_lines_with_right_sums_never_raises(lines: list[tuple[str, Any]]) -> None:
    """Somebody who can write there can make a checksum too."""
    text = b""
    for kind, content in lines:
        said = content if isinstance(content, str) else json.dumps(content)
        body = f"{kind} {said}".encode(errors="replace")
        text += b"%s %08x\n" % (body, zlib.crc32(body))
    store = MemoryStore()
    store.files[JOURNAL] = b"j {} %08x\n" % zlib.crc32(b"j {}") + text
    found = read_journal(store, [Box((0, 0), (3, 3))])
    assert found is not None
    assert set(found.ledgers) <= {0}


NUMBERS = [
    "-1",
    "0",
    "2",
    "ffffffffffffffffffff",
    "-f",
    "x",
    "1_0",
    "",
    "9" * 5000,
    "1e3",
    "\u0664",
]


@given(st.lists(st.tuples(*[st.sampled_from(NUMBERS)] * 5, st.sampled_from("wef"))))
def test_a_journal_of_odd_numbers_never_raises(lines: list[tuple[str, ...]]) -> None:
    text = b"j {} %08x\n" % zlib.crc32(b"j {}")
    for position, z, y, size, crc, kind in lines:
        body = f"{kind} {position} {z},{y} {size} {crc}".encode()
        text += b"%s %08x\n" % (body, zlib.crc32(body))
    store = MemoryStore()
    store.files[JOURNAL] = text
    found = read_journal(store, [Box((0, 0), (3, 3))])
    assert found is not None
    ledger = found.ledgers[0]
    said = [ledger.at((z, y)) for z in range(3) for y in range(3)]
    assert all(0 <= size < 2**64 and 0 <= crc < 2**32 for _, size, crc in said)


@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_a_lock_of_anything_is_an_owner_or_nobody(data: bytes) -> None:
    owner = Owner.parse(data)
    assert owner is None or str(owner)
