"""Going on, adding, overwriting, and being refused: what was computed is kept, nothing is lost."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr

from doubles import Gate, RecordingArray
from napari_materialize import Box, DirectoryStore, Engine, MemoryStore, materialize, open_view, ops
from napari_materialize.errors import ChunkError, OptionError, StoreError, TargetError
from napari_materialize.stores._lock import STALE, FolderLock, Owner
from readback import opened, record

DOCUMENTS = (".zattrs", ".zmetadata", "zarr.json", "attributes.json")
FORMATS = {
    "zarr2": {"format": "zarr2"},
    "zarr3": {"format": "zarr3", "compression": "zstd"},
    "shards": {"format": "zarr3", "shards": (2, 2, 2)},
    "n5": {"format": "n5", "compression": "blosc"},
}


def volume(shape=(40, 36, 34), seed=0):
    voxels = np.random.default_rng(seed).integers(1, 250, shape).astype("u1")
    voxels[:8, 8:24, :16] = 0
    return voxels


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def chunks(content):
    """Return the files with voxels, and what the documents say but for times and counts."""
    kept = {}
    for path, data in content.items():
        if path.rpartition("/")[2] not in DOCUMENTS:
            kept[path] = data
    return kept


class Counted:
    """A function for an op that counts its calls, and stops its job at one of them."""

    def __init__(self, stop=None):
        self.calls = 0
        self.stop = stop
        self.cancel = threading.Event()

    def __call__(self, block):
        self.calls += 1
        if self.calls == self.stop:
            self.cancel.set()
        return block // 2

    def view(self, array, **options):
        op = ops.Function(self, dtype="uint8", name="half", version="1")
        return open_view(array, [op], chunks=(8, 8, 8), **options)


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize("pyramid", [0, 2])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("stop", [3, 40])
def test_an_aborted_job_goes_on_and_ends_like_one_that_was_not(tmp_path, name, pyramid, stop):
    options = {**FORMATS[name], "pyramid": pyramid}
    array = volume()
    materialize(Counted().view(array), tmp_path / "whole", **options)
    first, second = Counted(stop), Counted()
    target = tmp_path / "out.zarr"
    with Engine(slots=2) as engine:
        view = first.view(array)
        done = engine.materialize(view, target, cancel=first.cancel, **options)
    assert done.aborted
    with Engine(slots=2) as engine:
        again = engine.materialize(second.view(array), target, existing="resume", **options)
    assert chunks(files(target)) == chunks(files(tmp_path / "whole"))
    assert set(files(target)) == set(files(tmp_path / "whole"))
    assert again.chunks + again.found == done.chunks
    assert again.written + again.skipped == again.chunks
    if name != "shards":
        unfinished = 125 - (done.written + done.skipped if not pyramid else 0)
        assert second.calls <= (unfinished if not pyramid else 125) + 2
        assert second.calls < 125 or stop == 3


@pytest.mark.parametrize("harm", ["cut off", "emptied", "exchanged", "removed", "garbage", "new"])
@pytest.mark.parametrize("name", ["zarr2", "shards"])
@pytest.mark.parametrize("finished", [True, False])
def test_what_was_harmed_is_made_again_and_nothing_else(tmp_path, name, harm, finished):
    array, target = volume(), tmp_path / "out.zarr"
    options = {**FORMATS[name], "pyramid": 1}
    materialize(Counted().view(array), tmp_path / "whole", **options)
    with Engine(slots=2) as engine:
        stopper = threading.Event()
        told = None if finished else lambda c: stopper.set() if c["done"] > 60 else None
        engine.materialize(
            Counted().view(array), target, cancel=stopper, on_progress=told, **options
        )
    before = files(target)
    there = sorted(p for p in before if p.rpartition("/")[2].isdecimal())
    one, other = target / there[0], target / there[1]
    if harm == "exchanged":
        one_data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(one_data)
    elif harm == "removed":
        one.unlink()
    elif harm == "new":
        key = {"n5": "s0/0/1/0", "zarr2": "0/0/1/0"}.get(name, "0/c/0/1/0")
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        (target / key).write_bytes(b"never written by anybody")
    else:
        size = {"cut off": 9, "emptied": 0}.get(harm)
        one.write_bytes(bytes(one.stat().st_size) if size is None else one.read_bytes()[:size])
    again = Counted()
    with Engine(slots=2) as engine:
        engine.materialize(again.view(array), target, existing="resume", **options)
    assert chunks(files(target)) == chunks(files(tmp_path / "whole"))
    if finished and name != "shards":
        assert again.calls <= 2


def test_a_finished_result_is_found_done_and_nothing_is_computed(tmp_path):
    counted = Counted()
    view = counted.view(volume())
    with Engine(slots=2) as engine:
        first = engine.materialize(view, tmp_path / "out")
        calls, before = counted.calls, files(tmp_path / "out")
        again = engine.materialize(view, tmp_path / "out", existing="resume")
    assert counted.calls == calls
    assert (again.chunks, again.written, again.found) == (0, 0, first.chunks)
    assert chunks(files(tmp_path / "out")) == chunks(before)
    assert set(before) == set(files(tmp_path / "out"))


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_chunk_of_the_source_that_was_mended_is_all_that_is_left_to_do(tmp_path, on_error):
    stored, voxels = tmp_path / "em.zarr", volume((16, 16, 16))
    zarr.create_array(stored, data=voxels, chunks=(8, 8, 8), zarr_format=2)
    chunk = stored / "1.0.1"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:9])

    def run(existing, **options):
        return materialize(stored, tmp_path / "out", ops=["invert"], existing=existing, **options)

    def unread():
        document = json.loads((tmp_path / "out" / ".zattrs").read_bytes())
        return document["napari_materialize"]["view"].get("unread")

    options = {"on_error": on_error, "concurrency": 1}
    if on_error == "raise":
        with pytest.raises(ChunkError, match=r"1\.0\.1"):
            run("error", **options)
    else:
        assert run("error", **options).failed == 1
    assert unread() == [[1, 0, 1]]
    assert run("resume", on_error="collect").failed == 1  # it is still damaged
    other = stored / "0.0.1"
    kept = other.read_bytes()
    for data in (kept[:9], (stored / "1.1.1").read_bytes()):
        other.write_bytes(data)  # the rest has to be what it was
        rule = "chunk \\(0, 0, 1\\)|other content"
        with pytest.raises(TargetError, match=rule):
            run("resume")
    other.write_bytes(kept)
    chunk.write_bytes(whole)
    done = run("resume")
    assert (done.written, done.found, done.failed) == (1, 7, 0)
    np.testing.assert_array_equal(zarr.open(tmp_path / "out/0")[...], 255 - voxels)
    assert unread() is None
    assert run("resume").found == 8


def test_an_array_that_only_this_process_knows_cannot_be_gone_on_with():
    source = RecordingArray(np.ones((4, 16)), (2, 4))
    with Engine(slots=2) as engine, pytest.raises(OptionError, match="this process alone"):
        engine.materialize(source.view(), MemoryStore(), existing="resume")


def test_the_rerun_after_collect_computes_one_chunk_of_eight(tmp_path):
    class Fails(Counted):
        broken = True

        def __call__(self, block):
            super().__call__(block)
            if self.broken and block.flat[0] == 41:
                raise ArithmeticError("not this one")
            return block

    fails, store = Fails(), MemoryStore()
    array = np.arange(1, 65, dtype="u1").reshape(4, 16)
    op = ops.Function(fails, dtype="uint8", name="fails", version="1")
    view = open_view(array, [op], chunks=(2, 4))
    with Engine(slots=2) as engine:
        with pytest.raises(ChunkError, match="not this one") as caught:
            engine.materialize(view, MemoryStore(), concurrency=1)
        assert caught.value.receipt.failed == 1
        done = engine.materialize(view, store, on_error="collect", existing="overwrite")
        assert (done.chunks, done.written, done.failed) == (8, 7, 1)
        assert record(store)["status"] == "incomplete"
        fails.broken, calls = False, fails.calls
        again = engine.materialize(view, store, existing="resume")
    assert fails.calls - calls == 1
    assert (again.chunks, again.written, again.found) == (1, 1, 7)
    assert record(store)["status"] == "complete"
    np.testing.assert_array_equal(opened(store)[...], array)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"compression": "zstd"}, "compression there: gzip:6, here: zstd:3"),
        ({"format": "zarr3"}, "format there: zarr2, here: zarr3"),
        ({"box": Box((0, 0, 0), (8, 8, 8))}, "levels and boxes"),
        ({"extent": "box"}, "extent there: level, here: box"),
        ({"pyramid": 1}, "pyramid there"),
        ({"skip_empty": False}, "skip_empty there"),
        ({"attributes": {"a": 1}}, "attributes there"),
        ({"ops": ["gaussian:sigma=2"]}, "ops there"),
        ({"seed": 5}, "source or a model has other content"),
    ],
    ids=str,
)
def test_another_job_is_refused_naming_what_differs_and_nothing_is_touched(tmp_path, change, named):
    view = open_view(volume(), ["threshold:low=90"], chunks=(8, 8, 8))
    stop = threading.Event()
    with Engine(slots=1) as engine:
        engine.materialize(view, tmp_path / "out", cancel=stop, on_progress=lambda _: stop.set())
        before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
        change = dict(change)
        other = open_view(
            volume(seed=change.pop("seed", 0)),
            change.pop("ops", ["threshold:low=90"]),
            chunks=(8, 8, 8),
        )
        with pytest.raises(TargetError, match=named) as caught:
            engine.materialize(other, tmp_path / "out", existing="resume", **change)
    assert "\n" not in str(caught.value)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before


def test_a_function_without_a_name_cannot_be_gone_on_with(tmp_path):
    view = open_view(volume(), [ops.Function(lambda block: block)])
    with Engine(slots=1) as engine:
        for existing in ("resume", "add"):
            with pytest.raises(OptionError, match="no name and version"):
                engine.materialize(view, tmp_path / "out", existing=existing)
    assert list(tmp_path.iterdir()) == []


def test_windows_of_channels_are_those_of_an_undisturbed_run(tmp_path):
    array = (volume((2, 16, 16)).astype("f4") - 100)[:, None]
    stop = threading.Event()
    view = open_view(array, axes="czyx", chunks=(1, 1, 8, 8))
    with Engine(slots=1) as engine:
        engine.materialize(view, tmp_path / "whole")
        engine.materialize(
            view, tmp_path / "out", cancel=stop, on_progress=lambda c: c["done"] > 2 and stop.set()
        )
        engine.materialize(view, tmp_path / "out", existing="resume")
    one, other = (json.loads((tmp_path / n / ".zattrs").read_bytes()) for n in ("whole", "out"))
    assert one["omero"] == other["omero"]


# ---------------------------------------------------------------------- adding


@pytest.mark.parametrize("pyramid", [0, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_boxes_that_are_added_make_what_one_box_would_have(tmp_path, name, pyramid):
    options = {**FORMATS[name], "pyramid": pyramid}
    view = open_view(volume(), ["gaussian:sigma=1"], chunks=(8, 8, 8))
    boxes = [
        Box((0, 0, 0), (24, 36, 34)),
        Box((24, 0, 0), (40, 16, 34)),
        Box((8, 16, 0), (40, 36, 34)),
    ]
    with Engine(slots=2) as engine:
        engine.materialize(view, tmp_path / "whole", **options)
        for box in boxes:
            engine.materialize(view, tmp_path / "out", box=box, existing="add", **options)
        with pytest.raises(TargetError, match="compression there"):
            engine.materialize(
                view, tmp_path / "out", **{**options, "existing": "add", "compression": None}
            )
    assert chunks(files(tmp_path / "out")) == chunks(files(tmp_path / "whole"))


def test_an_added_box_that_was_stopped_goes_on(tmp_path):
    view = open_view(volume(), ["gaussian:sigma=1"], chunks=(8, 8, 8))
    boxes = [Box((0, 0, 0), (16, 36, 34)), Box((8, 0, 0), (40, 36, 34))]
    stop = threading.Event()
    with Engine(slots=2) as engine:
        engine.materialize(view, tmp_path / "whole", pyramid=1)
        how = {"pyramid": 1, "existing": "add"}
        engine.materialize(view, tmp_path / "out", box=boxes[0], **how)
        done = engine.materialize(
            view,
            tmp_path / "out",
            box=boxes[1],
            cancel=stop,
            on_progress=lambda counts: counts["done"] > 20 and stop.set(),
            **how,
        )
        assert done.aborted
        with pytest.raises(TargetError, match="unfinished there"):
            engine.materialize(view, tmp_path / "out", box=boxes[0], **how)
        engine.materialize(view, tmp_path / "out", box=boxes[1], pyramid=1, existing="resume")
    assert chunks(files(tmp_path / "out")) == chunks(files(tmp_path / "whole"))
    made = json.loads((tmp_path / "out" / ".zattrs").read_bytes())["napari_materialize"]
    assert [len(each["levels"]) for each in made["earlier"]] == [1]


# ---------------------------------------------------------------------- overwriting


def test_overwriting_ones_with_half_leaves_the_sum_of_half(tmp_path):
    target = tmp_path / "out"
    materialize(open_view(np.ones((64, 64), "f4"), chunks=(8, 8)), target, format="n5")
    half = np.full((32, 64), 0.5, "f4")
    half[:8] = 0
    materialize(open_view(half, chunks=(16, 16)), target, existing="overwrite")
    view = open_view(target)
    with Engine(slots=1) as engine:
        assert float(engine.array(view)[:].sum()) == float(half.sum())
    names = set(files(target))
    assert not [name for name in names if name.startswith(("s0", "attributes", ".napari"))]


@pytest.mark.parametrize("existing", ["overwrite", "resume", "add"])
def test_what_this_project_did_not_write_is_refused(tmp_path, existing):
    view = open_view(np.ones((8, 8)))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(TargetError, match="did not write"):
        materialize(view, tmp_path / "thesis", existing=existing)
    materialize(view, tmp_path / "out")
    if existing == "overwrite":
        (tmp_path / "out" / "notes.txt").write_text("mine")
        with pytest.raises(TargetError, match=r"notes\.txt"):
            materialize(open_view(np.zeros((8, 8))), tmp_path / "out", existing=existing)
        (tmp_path / "out" / "notes.txt").unlink()
    (tmp_path / "out" / "0" / "7").symlink_to(tmp_path / "thesis")
    before = files(tmp_path)
    with pytest.raises(TargetError, match="no file"):
        materialize(view, tmp_path / "out", existing=existing)
    assert files(tmp_path) == before


@pytest.mark.parametrize("where", ["", "0", "..", "link", "../../group/source.zarr"])
@pytest.mark.parametrize("existing", ["overwrite", "resume", "add"])
def test_the_source_itself_is_refused_however_it_is_named(tmp_path, where, existing):
    source = tmp_path / "group" / "source.zarr"
    materialize(np.ones((8, 8)), source)
    (tmp_path / "link").symlink_to(source)
    place = tmp_path / "link" if where == "link" else source / where
    before = files(tmp_path)
    with pytest.raises(TargetError, match="apart from the source"):
        materialize(open_view(source), place, existing=existing)
    assert files(tmp_path) == before


@pytest.mark.parametrize("made", ["from_zarr", "from_array", "levels"])
def test_the_source_itself_is_not_overwritten_as_a_dask_array(tmp_path, made):
    materialize(np.ones((8, 8)), tmp_path / "source.zarr", pyramid=1)
    array = zarr.open_array(tmp_path / "source.zarr" / "0", mode="r")
    if made == "from_zarr":
        source = (da.from_zarr(array) + 1)[1:]
    elif made == "from_array":
        source = da.from_array(array).T
    else:
        source = [da.ones((8, 8)), zarr.open_array(tmp_path / "source.zarr" / "1", mode="r")]
    before = files(tmp_path)
    with pytest.raises(TargetError, match="apart from the source"):
        materialize(source, tmp_path / "source.zarr", existing="overwrite")
    assert files(tmp_path) == before


@pytest.mark.parametrize("existing", ["overwrite", "resume", "add", "error"])
def test_a_store_in_use_is_refused_naming_who_has_it(tmp_path, existing):
    gate = Gate(shut=True)
    view = open_view(np.arange(16).reshape(4, 4), [gate.op], chunks=(2, 2))
    with Engine(slots=2) as engine:
        thread = threading.Thread(target=lambda: engine.materialize(view, tmp_path / "out"))
        thread.start()
        assert gate.entered.acquire(timeout=60)
        with pytest.raises(TargetError, match=rf"process {os.getpid()} on .*, since 20"):
            engine.materialize(view, tmp_path / "out", existing=existing)
        gate.open.set()
        thread.join(60)
        assert engine.materialize(view, tmp_path / "out", existing="resume").found == 4


# ---------------------------------------------------------------------- one writer


def lock_of(folder, **changes):
    """Leave a lock as another process would."""
    me = Owner.me()
    value = {"host": me.host, "space": me.space, "pid": me.pid, "started": me.started}
    value |= {"since": me.since, "token": "another", **changes}
    Path(folder).mkdir(exist_ok=True)
    path = Path(folder) / ".napari-materialize-job"
    path.write_text(json.dumps(value))
    return path


def test_a_lock_that_a_killed_process_left_is_taken_over(tmp_path):
    lock_of(tmp_path / "out", pid=2**22 + 5)
    assert materialize(np.ones((4, 4)), tmp_path / "out").written == 1
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".napari-materialize-job").touch()
    assert materialize(np.ones((4, 4)), tmp_path / "empty").written == 1


def test_the_lock_of_another_machine_counts_while_it_gives_signs_of_life(tmp_path):
    path = lock_of(tmp_path / "out", host="far", space="another machine")
    with pytest.raises(TargetError, match="on far, since"):
        materialize(np.ones((4, 4)), tmp_path / "out")
    assert json.loads(path.read_text())["host"] == "far"
    then = time.time() - STALE - 60
    os.utime(path, (then, then))
    assert materialize(np.ones((4, 4)), tmp_path / "out").written == 1
    assert not path.exists()


def test_a_job_whose_lock_was_taken_over_notices(tmp_path):
    store = DirectoryStore(tmp_path / "out")
    store.begin()
    store.beat()
    lock_of(tmp_path / "out", host="far", space="another machine")
    with pytest.raises(StoreError, match=r"took it over meanwhile .*on far"):
        store.beat()
    store.end()
    assert (tmp_path / "out" / ".napari-materialize-job").exists()  # it is the other's


def test_where_there_are_no_locks_the_file_alone_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("napari_materialize.stores._lock._lock", lambda _: None)
    path = str(tmp_path / "lock")
    one, other = FolderLock(path), FolderLock(path)
    one.take()
    assert str(other.holder()).startswith(f"process {os.getpid()}")
    with pytest.raises(Exception, match="process"):
        other.take()
    one.release()
    other.take()
    other.release()
    assert list(tmp_path.iterdir()) == []


def test_a_write_under_way_when_the_job_ends_keeps_the_store(tmp_path):
    slow, go = threading.Event(), threading.Event()

    class Slow(DirectoryStore):
        def put(self, path, data, /):
            if path == "0/1/1":
                slow.set()
                assert go.wait(60)
            super().put(path, data)

    view, cancel = open_view(np.ones((4, 4)), chunks=(2, 2)), threading.Event()
    with Engine(slots=2) as engine:
        results = []
        thread = threading.Thread(
            target=lambda: results.append(
                engine.materialize(view, Slow(tmp_path / "out"), cancel=cancel)
            )
        )
        thread.start()
        assert slow.wait(60)
        cancel.set()
        thread.join(60)
        assert results[0].aborted
        with pytest.raises(TargetError, match="another job writes there"):
            engine.materialize(view, tmp_path / "out", existing="resume")
        go.set()
        deadline = time.monotonic() + 60
        while (tmp_path / "out" / ".napari-materialize-job").exists():
            assert time.monotonic() < deadline
        again = engine.materialize(view, tmp_path / "out", existing="resume")
    assert again.found + again.written == 4
    assert set(files(tmp_path / "out")) >= {"0/0/0", "0/0/1", "0/1/0", "0/1/1"}


RACE = """
import sys, numpy as np, napari_materialize as nm
from napari_materialize.errors import TargetError
target, half = sys.argv[1], int(sys.argv[2])
view = nm.open_view(np.arange(1, 4097, dtype="u2").reshape(64, 64), chunks=(8, 8))
with nm.Engine(2, nice=0) as engine:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        engine.materialize(view, target, box=nm.Box((32 * half, 0), (32 * half + 32, 64)),
                           existing="add")
        print("done")
    except TargetError as error:
        print("refused", error)
"""


def test_of_two_processes_at_once_one_is_refused_or_both_are_right(tmp_path):
    expected = np.arange(1, 4097, dtype="u2").reshape(64, 64)
    for number in range(3):
        target = tmp_path / f"out{number}"
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", RACE, str(target), str(half)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for half in (0, 1)
        ]
        for each in pair:
            assert each.stdout.readline() == "ready\n"
        for each in pair:
            each.stdin.write("\n")
            each.stdin.flush()
        told = [each.communicate(timeout=60)[0] for each in pair]
        assert [each.returncode for each in pair] == [0, 0]
        assert any(text.startswith("done") for text in told)
        assert all(text.startswith(("done", "refused target")) for text in told)
        with Engine(slots=1) as engine:
            got = engine.array(open_view(target))[:]
        for half, text in enumerate(told):
            part = slice(32 * half, 32 * half + 32)
            right = expected[part] if text.startswith("done") else 0
            np.testing.assert_array_equal(got[part], right)


# ---------------------------------------------------------------------- disks and the like

FULL = """
import resource, sys, numpy as np, napari_materialize as nm
from napari_materialize.errors import ChunkError
voxels = np.random.default_rng(0).integers(0, 2**16, (256, 128)).astype("u2")
voxels[:128] = 7
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    done = nm.materialize(nm.open_view(voxels, chunks=(128, 128)), sys.argv[1], existing="resume")
    print("done", done.written, done.found)
except ChunkError as error:
    print(error)
"""


def test_a_disk_that_is_full_is_named_and_going_on_completes(tmp_path):
    target = tmp_path / "out"

    def run(limit):
        command = [sys.executable, "-c", FULL, str(target), str(limit)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    told = run(20_000)  # between the documents and a chunk of noise
    assert str(target / "0/1/0") in told
    assert "larger than this system allows" in told
    assert set(files(target)) - {"0/0/0"} == {
        ".napari-materialize-journal",
        ".zattrs",
        ".zgroup",
        ".zmetadata",
        "0/.zarray",
        "0/.zattrs",
    }
    assert run(0) in ("done 1 1\n", "done 2 0\n")
    assert opened_sum(target) > 128 * 128 * 7


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a megabyte, where this system lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        allowed = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    yield place if allowed else None
    if allowed:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_small_disk_that_fills_is_named_and_going_on_completes(small_disk, tmp_path):
    """Where nothing can be mounted, the test before this one has the limit of a file's size."""
    if small_disk is None:
        pytest.skip("mounting is not allowed here; a limit of the file's size stands for it")
    view = open_view(volume((128, 128, 128)), chunks=(32, 32, 32))
    materialize(view, tmp_path / "whole")
    whole = chunks(files(tmp_path / "whole"))
    ballast, target = small_disk / "ballast", small_disk / "out"
    ballast.write_bytes(bytes(700_000))
    options = {"box": Box((0, 0, 0), (32, 128, 128)), "existing": "resume"}
    with Engine(slots=2) as engine:
        told = engine.estimate(view, target, **options)
        assert told.fits is False
        with pytest.raises(ChunkError, match=r"disk/out/0/.*the disk is full"):
            engine.materialize(view, target, **options)
        left = files(target)
        assert "writing" not in "".join(left)
        assert all(left[path] == whole[path] for path in left if path in whole)
        assert open_view(target).levels[0].shape == (128, 128, 128)
        ballast.unlink()
        done = engine.materialize(view, target, **options)
    assert done.found > 0
    assert done.written + done.found == 16
    made = chunks(files(target))
    assert {path: data for path, data in whole.items() if path.startswith("0/0/")} == {
        path: data for path, data in made.items() if path.startswith("0/0/")
    }


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES])
@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_store_that_fails_is_gone_on_with_once_it_does_not(tmp_path, number, on_error):
    class Fails(DirectoryStore):
        broken = True

        def put(self, path, data, /):
            if self.broken and path in {"0/1/0", "0/1/1"}:
                raise OSError(number, os.strerror(number))
            super().put(path, data)

    view, store = open_view(np.ones((4, 4)), chunks=(2, 2)), Fails(tmp_path / "out")
    with Engine(slots=2) as engine:
        if on_error == "raise":
            with pytest.raises(ChunkError, match=rf"0/1/.*{os.strerror(number)}"):
                engine.materialize(view, store)
        else:
            done = engine.materialize(view, store, on_error="collect")
            assert (done.written, done.failed) == (2, 2)
        store.broken = False
        again = engine.materialize(view, store, existing="resume")
    assert again.found + again.written == 4
    assert again.written >= 2
    assert (opened_sum(tmp_path / "out")) == 16


class Refuses:
    """A store of somebody else's, which refuses a document from some time on."""

    def __init__(self, after):
        self.left, self.files = after, {}

    def put(self, path, data, /):
        if path == ".zattrs":
            self.left -= 1
            if self.left < 0:
                raise LookupError("quota of Tuesday")
        self.files[path] = data


@pytest.mark.parametrize("after", [0, 1])
def test_a_store_that_refuses_a_document_is_told_by_name(after):
    view, store = open_view(np.ones((4, 4)), chunks=(2, 2)), Refuses(after)
    with Engine(slots=1) as engine, pytest.raises(StoreError) as caught:
        engine.materialize(view, store)
    assert str(caught.value) == (
        "writing .zattrs failed, and a result needs its metadata: LookupError: quota of Tuesday; "
        "mend the store and run the job again"
    )
    assert {path for path in store.files if path.startswith("0/")} >= (
        {"0/0/0", "0/1/1"} if after else set()
    )


def test_a_chunk_that_failed_is_told_though_the_record_cannot_be_written():
    def fails(block):
        raise ArithmeticError("not this one")

    view = open_view(np.ones((4, 4)), [ops.Function(fails, dtype="f8")], chunks=(2, 2))
    with Engine(slots=1) as engine, pytest.raises(ChunkError, match="not this one") as caught:
        engine.materialize(view, Refuses(1))
    assert "quota of Tuesday" in caught.value.__notes__[0]
    assert caught.value.receipt.failed >= 1


def opened_sum(path):
    with Engine(slots=1) as engine:
        return float(engine.array(open_view(path))[:].sum())


def test_what_passes_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("napari_materialize.job._keeper.WAITS", (0.0, 0.0))

    class Away(MemoryStore):
        left = 2

        def put(self, path, data, /):
            if path == "0/0/0" and self.left:
                self.left -= 1
                raise OSError(errno.ESTALE, "Stale file handle")
            super().put(path, data)

    assert materialize(np.ones((4, 4)), Away()).written == 1


def test_a_receipt_lists_some_failures_and_counts_all(monkeypatch):
    monkeypatch.setattr("napari_materialize.job._receipt.MOST_FAILURES", 3)

    def never(block):
        raise ArithmeticError("no")

    op = ops.Function(never, dtype="uint8", name="never", version="1")
    view = open_view(np.ones((4, 12), "u1"), [op], chunks=(2, 2))
    done = materialize(view, MemoryStore(), on_error="collect")
    assert (done.failed, len(done.failures)) == (12, 3)


KILLING = Path(__file__).with_name("killing.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("zarr2", "resume"),
        ("zarr2", "overwrite"),
        ("zarr3", "add"),
        ("zarr3", "resume"),
        ("n5", "repair"),
    ],
)
def test_a_job_killed_before_any_of_its_steps_goes_on_to_the_same_end(kind, what, tmp_path):
    command = [sys.executable, "-W", "ignore", str(KILLING), str(tmp_path), kind, what]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["moments"] > 20, said
    assert (said["then"], said["wrong"]) == (0, [])


def test_what_a_job_killed_in_its_first_step_left_is_nothing(tmp_path):
    target = tmp_path / "out.zarr"
    target.mkdir()
    (target / ".napari-materialize-writing-1-ab-0").write_bytes(b"j {")
    assert DirectoryStore(target).is_empty()
    materialize(open_view(np.ones((8, 8), "u1")), target)
    assert not [path for path in files(target) if "writing" in path]


class Forgetful(DirectoryStore):
    """A folder in which some notes cannot be added to the journal."""

    def __init__(self, path, refuses):
        super().__init__(path)
        self.refuses, self.refused = refuses, 0

    def append(self, path, data, /):
        if self.refuses(data):
            self.refused += 1
            raise StoreError("writing the journal: no space left; make room")
        super().append(path, data)


@pytest.mark.parametrize("axes", ["zyx", "cyx"])  # of channels it is noted what was seen
def test_a_chunk_that_cannot_be_noted_fails_alone_where_others_go_on(tmp_path, axes):
    view = open_view(volume((32, 32, 64)), ["cast:dtype=int16"], chunks=(8, 8, 8), axes=axes)
    numbers = itertools.count()
    store = Forgetful(tmp_path / "out.zarr", lambda _: next(numbers) % 10 == 3)
    options = {"compression": None, "skip_empty": False, "on_error": "collect"}
    with Engine(slots=1) as engine:
        done = engine.materialize(view, store, **options)
        assert done.failed >= 10
        assert done.failed == store.refused
        assert done.written + done.failed == done.chunks
        again = engine.materialize(view, tmp_path / "out.zarr", existing="resume", **options)
    assert (again.found, again.written) == (done.written, done.failed)
    np.testing.assert_array_equal(zarr.open(tmp_path / "out.zarr")["0"][...], volume((32, 32, 64)))


def test_chunks_that_cannot_be_noted_together_end_a_job_with_its_receipt(tmp_path, monkeypatch):
    monkeypatch.setattr("napari_materialize.job._run.QUICK_WRITE", 60)
    view = open_view(volume((32, 32, 64)), ["cast:dtype=int16"], chunks=(8, 8, 8))
    store = Forgetful(tmp_path / "out.zarr", lambda data: data.strip().count(b"\nw ") > 0)
    with Engine(slots=1) as engine:
        engine._dispatch.pace.run = lambda stage, level: 8
        with pytest.raises(ChunkError, match="could not be noted as written: writing the") as told:
            engine.materialize(view, store, compression=None)
        assert store.refused == 1
        assert 0 < told.value.receipt.written < 128
        done = engine.materialize(view, tmp_path / "out.zarr", compression=None, existing="resume")
    assert done.found + done.written + done.skipped == 128
    np.testing.assert_array_equal(zarr.open(tmp_path / "out.zarr")["0"][...], volume((32, 32, 64)))


def test_every_chunk_of_an_empty_shard_is_counted_once(tmp_path):
    voxels = np.zeros((16, 16, 32), "u1")
    voxels[:, :, :8] = 3
    view = open_view(voxels, chunks=(8, 8, 8))
    options = {"format": "zarr3", "shards": (1, 2, 2), "on_error": "collect"}
    lines = b"e 0 0,0,1 ", b"w 0 1,0,0 "
    store = Forgetful(tmp_path / "out.zarr", lambda data: data.lstrip().startswith(lines))
    with Engine(slots=1) as engine:
        done = engine.materialize(view, store, **options)
        assert (store.refused, done.failed) == (2, 3)  # two chunks of one shard and an empty one
        assert done.written + done.skipped + done.failed == done.chunks == 16
        # of a shard that another job wrote, this one adds a chunk of nothing
        folder, box = tmp_path / "two.zarr", Box((0, 0, 0), (8, 8, 8))
        engine.materialize(view, folder, box=box, **options)
        box = Box((0, 0, 8), (8, 8, 16))
        more = engine.materialize(view, folder, box=box, existing="add", **options)
    assert more.written + more.skipped + more.failed == more.chunks == 1
