"""Writing a box: what is stored equals the ops over the whole array, however it is cut."""

from __future__ import annotations

import errno
import itertools
import json
import sys
import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from doubles import Gate, RecordingArray, cranked
from napari_materialize import Box, Engine, MemoryStore, materialize, open_view, ops
from napari_materialize.errors import (
    BoxError,
    ChunkError,
    EngineClosed,
    LevelError,
    OptionError,
    StoreError,
    TargetError,
)
from readback import opened, record

# ---------------------------------------------------------------------- the voxels are right


@settings(max_examples=150)
@given(data=st.data(), array=oracle.arrays(), chain=oracle.chains())
def test_a_stored_box_equals_the_ops_over_the_whole_array(data, array, chain):
    chunks = tuple(data.draw(st.integers(1, n + 1)) for n in array.shape)
    levels = [array]
    if max(array.shape) > 1:
        levels.append(array[tuple(slice(None, None, 2) for _ in array.shape)].copy())
    boundary = data.draw(st.sampled_from(["edge", "zeros"]))
    view = open_view(levels, chain, chunks=chunks, boundary=boundary)
    level = data.draw(st.integers(0, len(levels) - 1))
    shape = view.levels[level].shape
    start, stop = data.draw(oracle.inside(shape))
    store = MemoryStore()
    with Engine(slots=data.draw(st.integers(1, 3))) as engine:
        done = engine.materialize(
            view,
            store,
            levels=level,
            box=Box(start, stop),
            box_level=level,
            format=data.draw(st.sampled_from(["zarr2", "zarr3"])),
            compression=data.draw(st.sampled_from(["gzip:1", "zstd", "blosc", None])),
            skip_empty=data.draw(st.booleans()),
            concurrency=data.draw(st.sampled_from([None, 1, 5])),
        )
    expected = oracle.run(levels[level], chain, boundary)
    rounded = view.levels[level].grid.round_out(Box(start, stop)).slices
    outside = np.zeros_like(expected)
    outside[rounded] = expected[rounded]
    result = opened(store)
    np.testing.assert_array_equal(result[...], outside)
    assert result.dtype == expected.dtype
    assert done.written + done.skipped == done.chunks
    assert not done.failed
    assert not done.aborted


@settings(max_examples=100)
@given(data=st.data(), array=oracle.arrays())
def test_an_array_of_exactly_the_box(data, array):
    chunks = tuple(data.draw(st.integers(1, n + 1)) for n in array.shape)
    start, stop = data.draw(oracle.inside(array.shape))
    scale = tuple(data.draw(st.sampled_from([0.5, 1.0, 3.25])) for _ in array.shape)
    view = open_view(array, chunks=chunks, scale=scale, translation=(-7.5,) * array.ndim)
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(view, store, box=Box(start, stop), extent="box")
    result = opened(store)
    np.testing.assert_array_equal(result[...], array[Box(start, stop).slices])
    transforms = json.loads(store.files[".zattrs"])["multiscales"][0]["datasets"][0][
        "coordinateTransformations"
    ]
    assert transforms[0]["scale"] == list(scale)
    expected = [-7.5 + s * a for s, a in zip(scale, start, strict=True)]
    np.testing.assert_allclose(transforms[1]["translation"], expected, atol=1e-9)
    assert done.chunks == done.written + done.skipped
    assert result.chunks == tuple(map(min, chunks, Box(start, stop).shape))


def test_levels_are_written_in_order_each_in_its_place():
    arrays = [np.arange(64).reshape(8, 8) // 2**k for k in range(3)]
    arrays = [a[:: 2**k, :: 2**k].copy() for k, a in enumerate(arrays)]
    view = open_view(arrays, chunks=(4, 4), scale=(2, 2))
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(view, store, levels=[2, 0], box=Box((0, 0), (4, 4)))
    np.testing.assert_array_equal(opened(store, "0")[:4, :4], arrays[0][:4, :4])
    assert opened(store, "0")[:].shape == (8, 8)
    np.testing.assert_array_equal(opened(store, "1")[...], arrays[2])
    datasets = json.loads(store.files[".zattrs"])["multiscales"][0]["datasets"]
    scales = [d["coordinateTransformations"][0]["scale"] for d in datasets]
    assert scales == [[2, 2], [8, 8]]
    assert done.chunks == 2
    assert [each["level"] for each in record(store)["levels"]] == [0, 2]


def test_channels_are_written_one_chunk_each():
    array = np.arange(2 * 4 * 6).reshape(2, 4, 6).astype("u2")
    view = open_view(array, axes="cyx", chunks=(1, 2, 3))
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(view, store, box=Box((0, 0), (2, 6)))
    assert done.chunks == 4
    result = opened(store)
    assert result.chunks == (1, 2, 3)
    np.testing.assert_array_equal(result[:, :2], array[:, :2])


def test_what_was_not_written_reads_as_the_fill_value():
    array = np.full((4, 4), 7, "u1")
    array[:2, :2] = 0
    store = MemoryStore()
    done = materialize(open_view(array, chunks=(2, 2)), store)
    assert (done.chunks, done.written, done.skipped) == (4, 3, 1)
    assert "0/0/0" not in store.files
    np.testing.assert_array_equal(opened(store)[...], array)
    kept = MemoryStore()
    done = materialize(open_view(array, chunks=(2, 2)), kept, skip_empty=False)
    assert (done.written, done.skipped) == (4, 0)
    assert "0/0/0" in kept.files


# ---------------------------------------------------------------------- claims and order


def test_rule_8_a_job_asks_for_a_few_chunks_at_a_time():
    engine, workers = cranked(slots=4)
    view = RecordingArray(np.arange(1000).reshape(1, 1000), (1, 10)).view(Gate().op)
    store = MemoryStore()
    thread = threading.Thread(
        target=lambda: engine.materialize(view, store, concurrency=3), daemon=True
    )
    thread.start()
    most = 0
    while thread.is_alive():
        with engine._lock:
            tickets = [t for t in engine._dispatch._tickets.values() if t is not None]
            assert all(ticket.background for ticket in tickets)
            most = max(most, len(tickets))
            held = len(engine._dispatch._tickets)
        assert held <= 6
        workers.step()
    thread.join()
    assert most == 3
    np.testing.assert_array_equal(opened(store)[...], np.arange(1, 1001).reshape(1, 1000))


def test_a_chunk_the_viewer_looked_at_costs_nothing():
    gate = Gate()
    array = np.arange(64).reshape(8, 8)
    view = RecordingArray(array, (4, 4)).view(gate.op)
    with Engine(slots=2) as engine:
        engine.array(view)[0, 0]
        first = engine.materialize(view, MemoryStore())
        assert gate.counts == {0: 1, 4: 1, 32: 1, 36: 1}
        assert engine.resident(view) == [(0, (0, 0))]
        engine.materialize(view, MemoryStore())
        assert gate.counts == {0: 1, 4: 2, 32: 2, 36: 2}
    assert first.chunks == first.written == 4


def test_thirty_six_chunks_four_of_them_empty():
    array = np.ones((60, 60), "u1")
    for index in ((0, 0), (1, 2), (3, 3), (5, 5)):
        array[index[0] * 10 : index[0] * 10 + 10, index[1] * 10 : index[1] * 10 + 10] = 0
    done = materialize(open_view(array, chunks=(10, 10)), MemoryStore())
    assert (done.chunks, done.written, done.skipped) == (36, 32, 4)


# ---------------------------------------------------------------------- stopping


def test_rule_5_cancel_starts_nothing_more_and_keeps_what_is_written():
    gate = Gate(shut=True)
    array = np.arange(400).reshape(20, 20)
    view = RecordingArray(array, (2, 2)).view(gate.op)
    cancel, results, store = threading.Event(), [], MemoryStore()
    with Engine(slots=4) as engine:
        thread = threading.Thread(
            target=lambda: results.append(engine.materialize(view, store, cancel=cancel)),
            daemon=True,
        )
        thread.start()
        for _ in range(3):  # background leaves one of the four slots free
            assert gate.entered.acquire(timeout=60)
        cancel.set()
        thread.join(60)
        assert not thread.is_alive()
        assert len(gate.calls) == 3
        gate.open.set()
        other = engine.array(view)[18, 18]
        assert other == array[18, 18] + 1
        assert len(gate.calls) == 4
        assert engine.stats()["waiting"] == {"client": {}, "background": {}}
    (done,) = results
    assert done.aborted
    assert done.written == 0
    assert record(store)["status"] == "aborted"
    assert opened(store)[...].max() == 0


def test_cancel_in_mid_job_from_the_progress_call():
    cancel, told, store = threading.Event(), [], MemoryStore()
    begun = itertools.count()

    def op(block):
        if next(begun) >= 20:  # whoever is told of progress is told now and then, not at each chunk
            cancel.wait(60)
        return block + 1

    array = RecordingArray(np.arange(1, 401).reshape(20, 20), (2, 2))
    view = array.view(ops.Function(op, name="waiting", version="1"))

    def progress(counts):
        told.append(counts)
        if counts["done"] >= 10:
            cancel.set()

    with Engine(slots=2) as engine:
        done = engine.materialize(view, store, cancel=cancel, on_progress=progress)
    assert done.aborted
    assert 10 <= done.written < 100
    stored = opened(store)[...]
    full = np.arange(2, 402).reshape(20, 20)
    assert ((stored == full) | (stored == 0)).all()
    assert np.count_nonzero(stored) == 4 * done.written


def test_progress_counts_up_to_the_total_in_the_callers_thread():
    array = np.arange(36).reshape(6, 6)
    array[:2, :2] = 0
    told, threads = [], set()

    def progress(counts):
        told.append(counts)
        threads.add(threading.get_ident())

    with Engine(slots=2) as engine:
        done = engine.materialize(
            open_view(array, chunks=(2, 2)), MemoryStore(), on_progress=progress
        )
    assert threads == {threading.get_ident()}
    assert set(told[0]) == {"done", "total", "written", "skipped", "failed", "bytes"}
    assert [t["done"] for t in told] == sorted({t["done"] for t in told})
    last = {"done": 9, "total": 9, "written": 8, "skipped": 1, "failed": 0, "bytes": done.bytes}
    assert told[-1] == last
    assert done.bytes > 0


def test_a_job_that_stands_still_has_told_all_that_it_did():
    three, stop = threading.Event(), threading.Event()
    turns = itertools.count()

    class Stuck(MemoryStore):
        def put(self, path, data, /):
            if path.startswith("0/") and not path.endswith((".zarray", ".zattrs")):
                assert next(turns) < 3 or stop.wait(60)
            super().put(path, data)

    def job():
        view = open_view(np.ones((40, 40)), chunks=(4, 4))
        engine.materialize(view, Stuck(), on_progress=lambda c: c["done"] == 3 and three.set())

    with Engine(slots=2) as engine:
        thread = threading.Thread(target=job, daemon=True)
        thread.start()
        assert three.wait(60), "the last of what was written was not told"
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_a_progress_call_that_raises_ends_the_job():
    def progress(counts):
        if counts["done"]:
            raise LookupError("the bar is gone")

    store = MemoryStore()
    with Engine(slots=1) as engine:
        with pytest.raises(LookupError, match="bar"):
            engine.materialize(
                open_view(np.ones((50, 50)), chunks=(2, 2)), store, on_progress=progress
            )
        assert engine.stats()["waiting"] == {"client": {}, "background": {}}
    assert record(store)["status"] == "failed"


def test_closing_the_engine_ends_its_jobs():
    gate = Gate(shut=True)
    view = RecordingArray(np.arange(64).reshape(8, 8), (2, 2)).view(gate.op)
    engine, problems = Engine(slots=2), []

    def run():
        try:
            engine.materialize(view, MemoryStore())
        except EngineClosed as error:
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    gate.entered.acquire(timeout=60)
    engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(problems) == 1
    gate.open.set()


# ---------------------------------------------------------------------- failing


def broken_at(*chunks):
    source = RecordingArray(np.ones((2, 8), "u1"), (1, 2))
    source.broken = {chunk: OSError("unreadable") for chunk in chunks}
    return source.view()


def test_raise_stops_and_names_the_chunk():
    store = MemoryStore()
    with Engine(slots=1) as engine, pytest.raises(ChunkError, match=r"\(0, 2\).*unreadable") as e:
        engine.materialize(broken_at((0, 2)), store, concurrency=1)
    receipt = e.value.receipt
    assert (receipt.chunks, receipt.written, receipt.failed) == (8, 2, 1)
    assert [f.index for f in receipt.failures] == [(0, 2)]
    assert record(store)["status"] == "failed"
    assert record(store)["counts"]["failed"] == 1
    assert opened(store)[...].sum() == 4


def test_collect_goes_on_and_reports_all():
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(broken_at((0, 2), (1, 0)), store, on_error="collect")
    assert (done.chunks, done.written, done.failed) == (8, 6, 2)
    assert sorted(f.index for f in done.failures) == [(0, 2), (1, 0)]
    assert all("unreadable" in f.reason for f in done.failures)
    assert opened(store)[...].sum() == 12


def test_a_failed_chunk_takes_along_what_is_made_of_it():
    with Engine(slots=2) as engine:
        done = engine.materialize(
            broken_at((0, 1)),
            store := MemoryStore(),
            on_error="collect",
            extent="box",
            box=Box((0, 1), (2, 8)),
        )
    assert done.chunks == 8
    assert sorted(f.index for f in done.failures) == [(0, 0), (0, 1)]
    assert opened(store)[...].tolist() == [[0, 0, 0, 0, 1, 1, 1], [1] * 7]


def test_a_store_that_fails_is_named_with_its_reason():
    class Full(MemoryStore):
        def put(self, path, data, /):
            if path == "0/1/1":
                raise OSError(errno.ENOSPC, "No space left on device")
            super().put(path, data)

    store = Full()
    with Engine(slots=2) as engine:
        with pytest.raises(ChunkError, match=r"0/1/1.*No space left"):
            engine.materialize(open_view(np.ones((4, 4)), chunks=(2, 2)), store)
        done = engine.materialize(
            open_view(np.ones((4, 4)), chunks=(2, 2)), Full(), on_error="collect"
        )
    assert [f.index for f in done.failures] == [(1, 1)]
    assert done.written == 3


def test_whatever_a_store_raises_is_its_chunks_failure():
    class Odd(MemoryStore):
        def put(self, path, data, /):
            if path == "0/0/1":
                raise LookupError("no such bucket")
            super().put(path, data)

    with Engine(slots=1) as engine:
        view = open_view(np.ones((4, 4)), chunks=(2, 2))
        done = engine.materialize(view, Odd(), on_error="collect")
    assert [f.index for f in done.failures] == [(0, 1)]
    assert (done.written, done.failed) == (3, 1)


def test_a_cancel_event_that_is_set_for_a_moment_ends_the_job():
    gate = Gate(shut=True)
    view = RecordingArray(np.arange(400).reshape(20, 20), (2, 2)).view(gate.op)
    cancel, results = threading.Event(), []
    with Engine(slots=3) as engine:
        thread = threading.Thread(
            target=lambda: results.append(engine.materialize(view, MemoryStore(), cancel=cancel)),
            daemon=True,
        )
        thread.start()
        for _ in range(2):
            assert gate.entered.acquire(timeout=60)
        cancel.set()
        with engine.claim(view, 0, (9, 9)):  # the engine looks at the event here
            cancel.clear()
            gate.open.set()
            thread.join(60)
    assert not thread.is_alive()
    assert results[0].aborted


def test_a_job_inside_an_op_is_refused():
    def nested(block):
        engine.materialize(open_view(np.ones((2, 2))), MemoryStore())
        return block

    view = open_view(np.ones((4, 4), "u1"), ops.Function(nested, dtype="uint8"))
    with Engine(slots=1) as engine, pytest.raises(ChunkError, match="inside an op"):
        engine.materialize(view, MemoryStore())


def test_a_store_that_fails_at_the_metadata_fails_the_job():
    class ReadOnly:
        def put(self, path, data, /):
            raise PermissionError(errno.EACCES, "Permission denied")

    told = r"writing 0/\.zarray failed.*PermissionError.*mend the store"
    with Engine(slots=1) as engine, pytest.raises(StoreError, match=told) as caught:
        engine.materialize(open_view(np.ones((4, 4))), ReadOnly())
    assert caught.value.errno == errno.EACCES


# ---------------------------------------------------------------------- the record


def test_the_record_says_what_made_the_result():
    array = np.arange(36).reshape(6, 6)
    store = MemoryStore()
    chain = ["gaussian:sigma=1.5", "threshold:low=3"]
    materialize(
        open_view(array, chain, chunks=(2, 2), name="cells"), store, box=Box((0, 0), (3, 3))
    )
    made = record(store)
    assert made["status"] == "complete"
    assert made["counts"] == {"chunks": 4, "written": 4, "skipped": 0, "failed": 0} | {
        "bytes": made["counts"]["bytes"]
    }
    assert [op["name"] for op in made["view"]["ops"]] == ["gaussian", "threshold"]
    assert made["levels"] == [{"level": 0, "box": [[0, 0], [4, 4]]}]
    assert (made["format"], made["compression"], made["extent"]) == ("zarr2", "gzip:6", "level")
    assert made["started"] <= made["ended"]
    assert (
        json.loads(store.files[".zmetadata"])["metadata"][".zattrs"]["napari_materialize"] == made
    )


def test_a_library_that_another_thread_is_about_to_load_is_not_in_the_record(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    store = MemoryStore()
    materialize(np.ones((4, 4)), store)
    assert record(store)["libraries"]["numpy"] == np.__version__
    assert "onnxruntime" not in record(store)["libraries"]


def test_attributes_of_the_users_own():
    store = MemoryStore()
    materialize(np.ones((4, 4)), store, attributes={"sample": "7b"})
    assert json.loads(store.files[".zattrs"])["sample"] == "7b"


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"levels": 3}, LevelError, "levels 0 to 0, got 3"),
        ({"levels": [0, 0]}, LevelError, "none twice"),
        ({"levels": []}, LevelError, "at least one"),
        ({"levels": "fine"}, LevelError, "whole numbers"),
        ({"box": Box((1, 1), (1, 3))}, BoxError, "at least one voxel"),
        ({"box": Box((90, 90), (99, 99))}, BoxError, "outside"),
        ({"box": Box((-9, 0), (0, 4))}, BoxError, "outside"),
        ({"box": Box((0, 0, 0), (1, 1, 1))}, BoxError, "at most 2 axes"),
        ({"box": ((0, 0), (1, 1))}, BoxError, "a Box is expected"),
        ({"box": Box((0, 0), (1, 1)), "box_level": 7}, LevelError, "got 7"),
        ({"extent": "all"}, OptionError, "level, box"),
        ({"format": "tiff"}, OptionError, "zarr2"),
        ({"compression": "lzma"}, OptionError, "lzma"),
        ({"compression": "gzip:99"}, OptionError, "99"),
        ({"on_error": "ignore"}, OptionError, "raise, collect"),
        ({"existing": "clobber"}, OptionError, "one of"),
        ({"shards": (8, 8)}, OptionError, "only zarr3"),
        ({"shards": (2, 2, 2), "format": "zarr3"}, OptionError, "at most 2 numbers"),
        ({"shards": 2, "format": "zarr3"}, OptionError, "one for each of the last axes"),
        ({"shards": (2, 0), "format": "zarr3"}, OptionError, "1 or more"),
        ({"shards": "2,2", "format": "zarr3"}, OptionError, "whole numbers"),
        ({"shards": (), "format": "zarr3"}, OptionError, "whole numbers"),
        ({"pyramid": "all"}, OptionError, "or auto"),
        ({"pyramid": -1}, OptionError, "0 or more"),
        ({"pyramid": True}, OptionError, "whole number"),
        ({"pyramid": 1.5}, OptionError, "whole number"),
        ({"pyramid": 9}, OptionError, "at most 3 coarser levels"),
        ({"concurrency": 0}, OptionError, "1 or more, got 0"),
        ({"concurrency": "4"}, OptionError, "whole number"),
        ({"concurrency": 2.5}, OptionError, "whole number"),
        ({"box_level": "0"}, OptionError, "whole number"),
        ({"skip_empty": "no"}, OptionError, "True or False"),
        ({"cancel": True}, OptionError, "threading.Event"),
        ({"on_progress": 5}, OptionError, "callable"),
        ({"attributes": {"multiscales": []}}, OptionError, "multiscales"),
        ({"colour": "blue"}, OptionError, "colour"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_bad_options_are_one_sentence_and_create_nothing(tmp_path, options, error, words):
    view = open_view(np.ones((8, 8)))
    with Engine(slots=1) as engine, pytest.raises(error, match=words) as caught:
        engine.materialize(view, tmp_path / "out.zarr", **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    view = open_view(np.ones((8, 8)))
    with Engine(slots=1) as engine:
        with pytest.raises(TargetError, match="must be empty"):
            engine.materialize(view, tmp_path)
        with pytest.raises(TargetError, match="file"):
            engine.materialize(view, tmp_path / "notes.txt")
        (tmp_path / "empty").mkdir()
        assert engine.materialize(view, tmp_path / "empty").written == 1
        full = MemoryStore()
        engine.materialize(view, full)
        with pytest.raises(TargetError, match="must be empty"):
            engine.materialize(view, full)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("where", ["", "0", "..", "link", "url"])
def test_the_source_itself_is_refused_however_it_is_named(tmp_path, where):
    source = tmp_path / "group" / "source.zarr"
    materialize(np.ones((8, 8)), source)
    (tmp_path / "link").symlink_to(source)
    places = {
        "": source,
        "0": source / "0" / "new",
        "..": tmp_path / "group",
        "link": tmp_path / "link",
        "url": source.as_uri(),
    }
    before = {p: p.stat().st_mtime_ns for p in source.rglob("*")}
    with Engine(slots=1) as engine, pytest.raises(TargetError, match="apart from the source"):
        engine.materialize(open_view(source), places[where])
    assert {p: p.stat().st_mtime_ns for p in source.rglob("*")} == before


def test_a_target_that_is_removed_in_mid_job_is_an_error(tmp_path):
    target = tmp_path / "out.zarr"

    def progress(counts):
        if counts["done"] >= 5 and target.exists():
            target.rename(tmp_path / "elsewhere")

    view = open_view(np.ones((50, 50)), chunks=(2, 2))
    with Engine(slots=1) as engine, pytest.raises(ChunkError, match="No such file"):
        engine.materialize(view, target, on_progress=progress, concurrency=1)
    assert not target.exists()


def test_one_of_two_jobs_on_one_target_is_refused(tmp_path):
    gate = Gate(shut=True)
    view = RecordingArray(np.arange(16).reshape(4, 4), (2, 2)).view(gate.op)
    results, target = [], tmp_path / "out.zarr"
    with Engine(slots=2) as engine:
        thread = threading.Thread(
            target=lambda: results.append(engine.materialize(view, target)), daemon=True
        )
        thread.start()
        assert gate.entered.acquire(timeout=60)
        with pytest.raises(TargetError, match=r"another job writes there .process"):
            engine.materialize(view, target)
        gate.open.set()
        thread.join(60)
    assert results[0].written == 4
    assert not [p for p in target.iterdir() if p.name.startswith(".napari")]


def test_a_target_beside_the_level_that_is_the_source_is_refused(tmp_path):
    image = tmp_path / "image.zarr"
    materialize(np.ones((8, 8)), image)
    with Engine(slots=1) as engine, pytest.raises(TargetError, match="apart from the source"):
        engine.materialize(open_view(image / "0"), image / "new")


def test_a_box_past_the_edge_of_a_coarser_level_takes_what_is_nearest():
    view = open_view([np.ones((9, 9)), np.ones((4, 4))])
    store = MemoryStore()
    with Engine(slots=1) as engine:
        done = engine.materialize(view, store, levels=[0, 1], box=Box((8, 8), (9, 9)), extent="box")
    assert done.written == 2
    assert opened(store, "1").shape == (1, 1)


@pytest.mark.parametrize("harm", ["removed", "rewritten"])
def test_a_source_that_goes_away_in_mid_job_is_an_error(tmp_path, harm):
    source = tmp_path / "source.zarr"
    materialize(open_view(np.ones((20, 20)), chunks=(2, 2)), source)

    def progress(counts):
        if counts["done"] >= 5 and not (tmp_path / "elsewhere").exists():
            source.rename(tmp_path / "elsewhere")
            if harm == "rewritten":
                materialize(open_view(np.zeros((20, 20)), chunks=(2, 2)), source)

    store = MemoryStore()
    with Engine(slots=1) as engine, pytest.raises(ChunkError, match="source changed") as caught:
        engine.materialize(open_view(source), store, on_progress=progress, concurrency=1)
    assert caught.value.receipt.chunks == 100
    assert record(store)["status"] == "failed"
