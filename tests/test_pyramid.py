"""Derived levels and shards: one mechanism, whatever the chunks, the box and the format."""

from __future__ import annotations

import json
import math
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from doubles import Gate, RecordingArray
from napari_materialize import Box, Engine, MemoryStore, errors, materialize, open_view
from napari_materialize.arrays import Level
from napari_materialize.downsample import halving
from napari_materialize.job import _run, _walk
from napari_materialize.job._keeper import Keeper
from napari_materialize.plan import Options, _levels, make_plan
from readback import document, format_of, opened, record, with_tensorstore

if TYPE_CHECKING:
    from collections.abc import Callable


def written(store: MemoryStore) -> int:
    """Return how many levels a store has."""
    names = {"zarr2": ".zarray", "zarr3": "zarr.json", "n5": "attributes.json"}
    name = names[format_of(store)]
    return sum(path.endswith(f"/{name}") for path in store.files)


def placements(store: MemoryStore) -> list[tuple[list[float], list[float]]]:
    """Return scale and translation of each level, as the metadata says."""
    attributes = document(store)
    entry = attributes.get("ome", attributes)["multiscales"][0]
    if format_of(store) == "n5":
        found = [each["transform"] for each in entry["datasets"]]
        return [(each["scale"], each["translate"]) for each in found]
    pairs = [each["coordinateTransformations"] for each in entry["datasets"]]
    return [(scale["scale"], shift["translation"]) for scale, shift in pairs]


def check_levels(store, expected: np.ndarray, first: Level, method: str) -> None:
    """Compare each level with tensorstore's of the one before it, and its place with the rule."""
    scale, level = first.scale, expected
    for position, (found_scale, found_place) in enumerate(placements(store)):
        if position:
            shape = Level(level.shape, level.dtype, level.shape, first.axes, scale)
            factors = halving(shape)
            scale = tuple(s * f for s, f in zip(scale, factors, strict=True))
            coarse = tensorstore.downsample(tensorstore.array(level), list(factors), method)
            level = coarse.read().result()
        found = with_tensorstore(store, position)
        np.testing.assert_array_equal(found, level)
        assert found.dtype == first.dtype
        np.testing.assert_allclose(found_scale, scale, atol=1e-9)
        place = [
            t + (s - s0) / 2 for t, s, s0 in zip(first.translation, scale, first.scale, strict=True)
        ]
        np.testing.assert_allclose(found_place, place, atol=1e-9)


@settings(max_examples=120)
@given(data=st.data())
def test_every_level_is_the_one_before_halved_and_lies_where_it_should(data):
    draw = data.draw
    array = draw(oracle.arrays(max_side=14)).astype(draw(st.sampled_from(["u1", "i2", "u4", "u8"])))
    chunks = tuple(draw(st.integers(1, 6)) for _ in array.shape)
    scale = tuple(draw(st.sampled_from([1.0, 2.0, 3.7, 0.5])) for _ in array.shape)
    kind = draw(st.sampled_from(["image", "label"]))
    stored = draw(st.sampled_from(["zarr2", "zarr3", "n5"]))
    shards = None
    if stored == "zarr3":
        shards = draw(
            st.one_of(st.none(), st.lists(st.integers(1, 4), min_size=1, max_size=array.ndim))
        )
    view = open_view(
        array,
        draw(st.sampled_from([[], ["median:size=2"]])),
        chunks=chunks,
        scale=scale,
        translation=tuple(-7.25 * s for s in scale),
        kind=kind,
    )
    box = draw(st.one_of(st.none(), oracle.inside(array.shape).map(lambda pair: Box(*pair))))
    extent = draw(st.sampled_from(["level", "box"]))
    options = {
        "format": stored,
        "shards": shards,
        "box": box,
        "extent": extent,
        "pyramid": draw(st.sampled_from([0, "auto", "auto"])),
        "skip_empty": draw(st.booleans()),
        "compression": draw(st.sampled_from(["gzip:1", "zstd", "blosc", None])),
    }
    limits = draw(st.sampled_from([2**28, 300])), draw(st.sampled_from([2**18, 400, 0]))
    before = _walk.LAYER_BYTES, _levels.TOGETHER
    _walk.LAYER_BYTES, _levels.TOGETHER = limits
    store = MemoryStore()
    try:
        with Engine(slots=draw(st.integers(1, 3))) as engine:
            whole = engine.array(view, 0)[...]
            done = engine.materialize(view, store, **options)
    finally:
        _walk.LAYER_BYTES, _levels.TOGETHER = before
    assert (done.failed, done.written + done.skipped) == (0, done.chunks)
    inside = box or Box.whole(array.shape)
    first = view.levels[0]
    if extent == "box":
        expected, first = whole[inside.slices], first.crop(inside)
    else:
        rounded = first.grid.round_out(inside).slices
        expected = np.zeros_like(whole)
        expected[rounded] = whole[rounded]
    check_levels(store, expected, first, "mean" if kind == "image" else "mode")


# ---------------------------------------------------------------------- pyramids


@pytest.mark.parametrize(
    ("dtype", "chunk", "scale", "tile"),
    [
        ("u1", 32, (1, 1, 1), (64, 64, 64)),  # as much as a coarser chunk is made of
        ("u2", 32, (1, 1, 1), (32, 64, 64)),
        ("u1", 64, (1, 1, 1), (64, 64, 64)),  # large enough as it is
        ("u1", 32, (4, 1, 1), (32, 64, 64)),  # axes that are not halved stay
        ("u1", 96, (1, 1, 1), (96, 96, 96)),
        ("u1", 31, (1, 1, 1), (62, 62, 62)),  # ends where a voxel of the coarser level does
    ],
)
def test_small_chunks_are_halved_together(dtype, chunk, scale, tile):
    view = open_view(np.empty((400, 400, 400), dtype), chunks=(chunk,) * 3, scale=scale)
    coarser = make_plan(view, MemoryStore(), Options(pyramid=1)).coarser[0]
    assert coarser.tiles.chunks == tile
    made = [n // factor for n, factor in zip(tile, coarser.factors, strict=True)]
    assert all(n % part == 0 for n, part in zip(coarser.array.chunks, made, strict=True))


def test_auto_ends_where_a_level_fits_into_a_chunk():
    store = MemoryStore()
    materialize(open_view(np.ones((100, 60), "u1"), chunks=(16, 16)), store, pyramid="auto")
    shapes = [opened(store, str(level)).shape for level in range(written(store))]
    assert shapes == [(100, 60), (50, 30), (25, 15), (13, 8)]
    assert materialize(np.ones((4, 4), "u1"), small := MemoryStore(), pyramid="auto").chunks == 1
    assert written(small) == 1


def test_the_record_and_the_metadata_say_derived_or_viewed():
    view = open_view([np.ones((8, 8), "u1"), np.ones((4, 4), "u1")], chunks=(4, 4))
    stores = [MemoryStore() for _ in range(3)]
    with Engine(slots=1) as engine:
        engine.materialize(view, stores[0], pyramid=1)
        engine.materialize(view, stores[1], levels=[0, 1])
        engine.materialize(view, stores[2])
    derived, viewed, single = map(record, stores)
    assert derived["pyramid"] == {"made": "derived", "method": "mean", "factors": [[2, 2]]}
    assert viewed["pyramid"] == {"made": "viewed"}
    assert single["pyramid"] is None
    assert document(stores[0])["multiscales"][0]["type"] == "mean"
    assert "derived" in document(stores[0])["multiscales"][0]["metadata"]["description"]
    assert document(stores[1])["multiscales"][0]["type"] == "viewed"
    assert "type" not in document(stores[2])["multiscales"][0]


def test_several_levels_and_a_pyramid_are_refused():
    view = open_view([np.ones((8, 8)), np.ones((4, 4))])
    with Engine(slots=1) as engine, pytest.raises(errors.OptionError, match="give one level"):
        engine.materialize(view, MemoryStore(), levels=[0, 1], pyramid=1)


def test_a_coarser_level_can_be_the_one_that_is_written():
    fine = np.arange(256, dtype="u2").reshape(16, 16)
    view = open_view([fine, fine[::2, ::2].copy()], chunks=(4, 4), scale=(3, 3))
    store = MemoryStore()
    with Engine(slots=2) as engine:
        engine.materialize(view, store, levels=1, pyramid=1)
    check_levels(store, fine[::2, ::2], view.levels[1], "mean")


def test_what_is_outside_the_box_counts_as_the_fill_value():
    store = MemoryStore()
    view = open_view(np.full((8, 8), 100, "u1"), chunks=(2, 2))
    with Engine(slots=1) as engine:
        engine.materialize(view, store, box=Box((0, 0), (2, 2)), pyramid=2)
    assert opened(store, "1")[0, 0] == 100
    assert opened(store, "2")[...].tolist() == [[25, 0], [0, 0]]


def test_a_failed_chunk_takes_along_the_coarser_ones_made_of_it():
    source = RecordingArray(np.ones((4, 8), "u1"), (2, 2))
    source.broken = {(0, 1): OSError("unreadable")}
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(source.view(), store, pyramid=2, on_error="collect")
    # level 1 has two chunks and level 2 one
    assert done.chunks == 8 + 2 + 1
    assert (done.failed, done.written) == (3, 8)
    assert opened(store, "0")[...].sum() == 28
    assert opened(store, "1")[...].tolist() == [[0, 0, 1, 1]] * 2
    assert opened(store, "2")[...].tolist() == [[0, 0]]
    assert all("unreadable" in each.reason for each in done.failures)


def test_a_derived_chunk_that_cannot_be_stored_is_named():
    class Odd(MemoryStore):
        def put(self, path, data, /):
            if path.startswith("1/") and not path.endswith(("y", "s")):
                raise OSError("no room")
            super().put(path, data)

    with Engine(slots=1) as engine:
        view = open_view(np.ones((4, 4), "u1"), chunks=(2, 2))
        with pytest.raises(
            errors.ChunkError, match=r"\(0, 0\) of the level 1 derived.*1/0/0.*room"
        ):
            engine.materialize(view, Odd(), pyramid=1)
        done = engine.materialize(view, Odd(), pyramid=1, on_error="collect")
    assert (done.written, done.failed) == (4, 1)


def test_labels_keep_their_ids_and_masks_stay_masks():
    ids = np.zeros((6, 6), "u8")
    ids[:3, :3], ids[3:, 3:] = 2**63 + 7, 5
    store = MemoryStore()
    materialize(open_view(ids, chunks=(3, 3), kind="label"), store, pyramid=2)
    assert set(np.unique(opened(store, "1")[...]).tolist()) <= {0, 5, 2**63 + 7}
    assert 2**63 + 7 in opened(store, "1")[...]
    assert document(store)["multiscales"][0]["type"] == "mode"
    mask = MemoryStore()
    materialize(np.eye(8, dtype="u1") * 9, mask, ops=["threshold:low=5"], pyramid=1)
    assert set(np.unique(opened(mask, "1")[...]).tolist()) <= {0, 1}


def test_the_fill_of_a_float_view_of_nan(tmp_path):
    import zarr

    path = tmp_path / "nan.zarr"
    source = zarr.create_array(path, shape=(6, 6), chunks=(2, 2), dtype="f4", fill_value=np.nan)
    source[:3, :3] = 2.0
    expected = np.full((6, 6), np.nan, "f4")
    expected[:3, :3] = 2
    for stored in ("zarr2", "zarr3", "n5"):
        store = MemoryStore()
        materialize(path, store, format=stored, pyramid=1)
        np.testing.assert_array_equal(with_tensorstore(store), expected)
        coarse = with_tensorstore(store, 1)
        assert coarse[0, 0] == 2
        assert np.isnan(coarse[1:, 1:]).all()
        if stored != "n5":
            assert np.isnan(opened(store).fill_value)


# ---------------------------------------------------------------------- shards


def sharded(store: MemoryStore, position: int = 0) -> set[str]:
    return {path for path in store.files if path.startswith(f"{position}/c/")}


def test_each_shard_is_put_once_and_whole():
    puts = []

    class Once(MemoryStore):
        def put(self, path, data, /):
            puts.append(path)
            super().put(path, data)

    array = np.random.default_rng(0).integers(0, 99, (20, 20, 20)).astype("u1")
    store = Once()
    view = open_view(array, ["median:size=3"], chunks=(4, 4, 4))
    with Engine(slots=3) as engine:
        done = engine.materialize(view, store, format="zarr3", shards=(2, 2, 3), pyramid=1)
        expected = engine.array(view)[...]
    assert done.chunks == done.written == 125 + 27
    voxels = [path for path in puts if "/c/" in path]
    assert len(voxels) == len(set(voxels)) == 3 * 3 * 2 + 2 * 2 * 1
    np.testing.assert_array_equal(opened(store)[...], expected)
    assert opened(store).shards == (8, 8, 12)
    assert opened(store).chunks == (4, 4, 4)
    assert record(store)["shards"] == [2, 2, 3]


def test_empty_chunks_are_missing_in_the_index_and_empty_shards_have_no_file():
    array = np.zeros((4, 8), "u1")
    array[0, 0] = 1
    store = MemoryStore()
    view = open_view(array, chunks=(2, 2))
    with Engine(slots=1) as engine:
        done = engine.materialize(view, store, format="zarr3", shards=(2, 2), compression=None)
    assert (done.written, done.skipped) == (1, 7)
    assert sharded(store) == {"0/c/0/0"}
    data = store.files["0/c/0/0"]
    index = np.frombuffer(data[-68:-4], "<u8").reshape(2, 2, 2)
    assert index[0, 0].tolist() == [0, 4]
    assert (index.reshape(4, 2)[1:] == 2**64 - 1).all()
    assert done.bytes == len(data) == 4 + 64 + 4
    np.testing.assert_array_equal(opened(store)[...], array)


def test_a_failed_chunk_is_missing_in_its_shard_and_no_other():
    source = RecordingArray(np.ones((2, 8), "u1"), (1, 2))
    source.broken = {(0, 1): OSError("unreadable")}
    store = MemoryStore()
    with Engine(slots=2) as engine:
        done = engine.materialize(
            source.view(), store, format="zarr3", shards=(2, 2), on_error="collect"
        )
    assert (done.written, done.failed) == (7, 1)
    assert opened(store)[...].tolist() == [[1, 1, 0, 0, 1, 1, 1, 1], [1] * 8]


def test_a_shard_that_cannot_be_stored_fails_each_of_its_chunks():
    class Odd(MemoryStore):
        def put(self, path, data, /):
            if path == "0/c/0/1":
                raise OSError("no room")
            super().put(path, data)

    array = np.ones((4, 8), "u1")
    array[:2, 6:] = 0
    with Engine(slots=1) as engine:
        done = engine.materialize(
            open_view(array, chunks=(2, 2)),
            Odd(),
            format="zarr3",
            shards=(2, 2),
            on_error="collect",
        )
    assert sorted(each.index for each in done.failures) == [(0, 2), (1, 2), (1, 3)]
    assert all("0/c/0/1" in each.reason for each in done.failures)
    assert (done.written, done.skipped) == (4, 1)


@pytest.mark.parametrize("shards", [(4,), (2, 3), (1, 1, 1)])
def test_shards_are_along_the_last_axes(shards):
    store = MemoryStore()
    view = open_view(np.ones((3, 6, 8), "u1"), chunks=(1, 2, 2))
    materialize(view, store, format="zarr3", shards=shards)
    whole = (1,) * (3 - len(shards)) + shards
    assert opened(store).shards == tuple(n * c for n, c in zip(whole, (1, 2, 2), strict=True))


# ---------------------------------------------------------------------- bounded memory


def most_begun(monkeypatch, view, **options) -> tuple[int, int, int]:
    """Return the most chunks and shards of any array that were begun at a time, and the claims."""
    most, claimed = [0, 0], 0
    take = _run.Run._take

    def taking(self, unit, claim):
        nonlocal claimed
        claimed += 1
        take(self, unit, claim)
        level = next(iter(self._written.values()))
        while level is not None:
            most[:] = map(max, most, level.begun)
            level = level._coarser._target if level._coarser is not None else None

    monkeypatch.setattr(_run.Run, "_take", taking)
    with Engine(slots=1) as engine:
        done = engine.materialize(view, MemoryStore(), concurrency=1, **options)
    assert done.written + done.skipped == done.chunks
    return most[0], most[1], claimed


def test_a_pyramid_keeps_few_chunks_begun(monkeypatch):
    view = open_view(np.ones((48, 48, 48), "u1"), chunks=(4, 4, 4))
    chunks, _, claimed = most_begun(monkeypatch, view, pyramid="auto")
    assert claimed == 12**3
    assert chunks <= 6  # row by row it would be 36


def test_coarser_chunks_may_be_made_in_another_thread_and_are_waited_for(monkeypatch):
    # whenever they are made, before or after the last chunk of the view is written
    voxels = np.random.default_rng(0).integers(0, 255, (16, 16, 32), "u1")
    view = open_view(voxels, chunks=(8, 8, 8))
    last = threading.Event()

    class Told(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            if sum(each.startswith("0/c/") for each in self.files) == 16:
                last.set()

    run_writer, store, aside = Engine.run_writer, Told(), []

    def later(work: Callable[[], None]) -> None:
        assert last.wait(60)
        work()

    def running(self, work, *, more=False, **options):
        if more:
            aside.append(threading.Thread(target=later, args=(work,)))
            aside[-1].start()
        else:
            run_writer(self, work, more=more, **options)

    monkeypatch.setattr(Engine, "run_writer", running)
    monkeypatch.setattr(_run, "QUICK_WRITE", math.inf)  # however slow this machine is
    with Engine(slots=2) as engine:
        done = engine.materialize(view, store, format="zarr3", pyramid=2)
    assert len(aside) == 3
    assert (done.written, done.failed) == (16 + 2 + 1, 0)
    check_levels(store, voxels, view.levels[0], "mean")
    for thread in aside:
        thread.join()


def test_a_job_that_stops_before_a_coarser_chunk_is_begun_leaves_its_store_alone(
    monkeypatch, tmp_path
):
    view = open_view(np.ones((16, 16), "u1"), chunks=(8, 8))
    run_writer, cancel, held = Engine.run_writer, threading.Event(), []

    def running(self, work, *, more=False, **options):
        if more:  # it is in line, and the job is stopped
            held.append(work)
            cancel.set()
        else:
            run_writer(self, work, more=more, **options)

    with monkeypatch.context() as patch, Engine(slots=2) as engine:
        patch.setattr(Engine, "run_writer", running)
        patch.setattr(_run, "QUICK_WRITE", math.inf)
        done = engine.materialize(view, tmp_path / "a.zarr", pyramid=1, cancel=cancel)
    assert (done.aborted, done.written, len(held)) == (True, 4, 1)
    with Engine(slots=2) as engine:  # its lock is free, and what is missing is made
        again = engine.materialize(view, tmp_path / "a.zarr", pyramid=1, existing="resume")
    assert (again.aborted, again.found, again.written) == (False, 4, 1)
    (tmp_path / "a.zarr" / "1" / "0" / "0").unlink()
    held[0]()
    assert not (tmp_path / "a.zarr" / "1" / "0" / "0").exists()


def test_while_chunks_take_long_to_write_a_coarser_one_is_not_handed_over(monkeypatch):
    run_writer, handed = Engine.run_writer, []

    def running(self, work, *, more=False, **options):
        if more:
            handed.append(work)
        run_writer(self, work, more=more, **options)

    monkeypatch.setattr(Engine, "run_writer", running)
    monkeypatch.setattr(_run, "QUICK_WRITE", 0.0)
    view = open_view(np.ones((128, 64), "u1"), chunks=(8, 8))
    with Engine(slots=1) as engine:
        done = engine.materialize(view, MemoryStore(), pyramid=1, concurrency=1)
    assert done.written == 128 + 32
    assert len(handed) < 32  # once all is asked for there may be an idle core


def test_what_fails_about_a_coarser_chunk_ends_the_job(monkeypatch):
    def fail(self, position, file):
        raise RuntimeError("no room for a line")

    def put(self, position, file, data, *, whole=True):
        if position:
            raise OSError("no room")
        kept(self, position, file, data, whole=whole)

    kept = Keeper.put
    monkeypatch.setattr(Keeper, "put", put)
    monkeypatch.setattr(Keeper, "fail", fail)
    view = open_view(np.ones((16, 16), "u1"), chunks=(8, 8))
    with Engine(slots=2) as engine, pytest.raises(RuntimeError, match="no room for a line"):
        engine.materialize(view, MemoryStore(), pyramid=1, on_error="collect")


def test_shards_keep_few_begun_though_they_are_no_power_of_two(monkeypatch):
    view = open_view(np.ones((36, 36, 36), "u1"), chunks=(4, 4, 4))
    _, shards, _ = most_begun(monkeypatch, view, format="zarr3", shards=(3, 3, 3))
    assert shards <= 4  # row by row it would be 9
    _, shards, _ = most_begun(monkeypatch, view, format="zarr3", shards=(2, 2, 2), pyramid=2)
    assert shards <= 6  # row by row it would be 25


def test_a_box_that_begins_inside_a_chunk_holds_no_more_than_a_layer(monkeypatch):
    view = open_view(np.ones((40, 40, 40), "u1"), chunks=(4, 4, 4))
    box = Box((1, 1, 1), (39, 39, 39))
    chunks, _, claimed = most_begun(monkeypatch, view, box=box, extent="box")
    assert claimed == 10**3
    assert chunks <= (_walk.SLAB + 1) * 10**2
    # with less room it is cut into pieces, and the chunks at the cuts are asked for twice
    budget = 5 * 4 * 20 * 20
    monkeypatch.setattr(_walk, "LAYER_BYTES", budget)
    cut, _, claimed = most_begun(monkeypatch, view, box=box, extent="box")
    assert 10**3 < claimed <= 10 * 12**2
    assert cut <= budget // 4**3
    assert cut < chunks


def test_each_chunk_of_the_view_is_computed_once(tmp_path):
    gate = Gate()
    view = RecordingArray(np.arange(4096).reshape(64, 64), (4, 4)).view(gate.op)
    with Engine(slots=3) as engine:
        engine.materialize(view, tmp_path / "a.zarr", format="zarr3", shards=(3, 2), pyramid="auto")
    assert set(gate.counts.values()) == {1}
    assert len(gate.counts) == math.prod((16, 16))


def test_windows_of_channels_are_what_was_seen():
    array = np.stack([np.arange(16), np.arange(16) * 3 + 1]).reshape(2, 4, 4).astype("u2")
    store = MemoryStore()
    materialize(open_view(array, axes="cyx", chunks=(1, 2, 2)), store)
    channels = json.loads(store.files[".zattrs"])["omero"]["channels"]
    windows = [(each["window"]["start"], each["window"]["end"]) for each in channels]
    assert windows == [(0, 15), (1, 46)]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("i8", 2**63 - 1), ("u8", 2**64 - 1), ("i8", -(2**63)), ("f8", np.finfo("f8").max)],
)
def test_a_window_has_a_width_beside_the_largest_numbers(dtype, value):
    """Two values that are one as JSON's numbers make no window of nothing."""
    voxels = np.full((2, 4, 4), value, dtype)
    if voxels.dtype.kind != "f":
        voxels[0, 0, 0] = value - 1 if value > 0 else value + 1
    store = MemoryStore()
    materialize(open_view(voxels, axes="cyx"), store)
    for channel in json.loads(store.files[".zattrs"])["omero"]["channels"]:
        window = channel["window"]
        assert window["min"] == window["start"] < window["end"] == window["max"]
        assert window["start"] <= float(value) <= window["end"]
