"""The lazy array of a live layer and its claims, without Qt: selections, pictures, who asks."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import napari_materialize as nm
from doubles import Gate, RecordingArray, cranked
from napari_materialize._napari.asking import Asker, Asking
from napari_materialize._napari.holding import Group
from napari_materialize._napari.layer import LiveArray
from napari_materialize._napari.pacing import Moving
from napari_materialize._napari.reads import LayerReads
from napari_materialize.arrays import Axis, Level
from napari_materialize.cache import ChunkState
from napari_materialize.errors import ChunkError, EngineClosed
from napari_materialize.looking import AT_A_TIME, LAST, compose, nearest_first

PICTURE = Asking(Asker.PICTURE)
THUMBNAIL = Asking(Asker.THUMBNAIL)
LOOK = Asking(Asker.LOOK)


def shown(reads: LayerReads) -> LayerReads:
    """Let reads claim, as those of a visible layer in a viewer do."""
    reads.active = lambda: True
    return reads


def hurried(view: nm.View, engine: nm.Engine) -> tuple[LayerReads, list[float]]:
    """Return what is read of a view whose chunks take 0.3 s, and the time, which stands still."""
    now = [0.0]
    reads = shown(LayerReads(view, engine, clock=lambda: now[0]))
    reads.on_pause, reads.chunk_seconds = list[float]().append, 0.3
    return reads, now


def pyramid(shape: tuple[int, ...] = (8, 16, 16), levels: int = 2) -> list[np.ndarray]:
    """Arrays halved along each axis; every voxel of every level differs."""
    base = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    return [base[(slice(None, None, 2**n),) * base.ndim] + 100_000 * n for n in range(levels)]


# ---------------------------------------------------------------------- composition


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Basic indices into an array of ``shape``, numpy's integers, steps and ellipses among them."""
    parts: list[Any] = []
    for size in shape:
        bound = st.none() | st.integers(-size - 2, size + 2)
        step = st.none() | st.integers(1, 4) | st.integers(-4, -1)
        choices: list[st.SearchStrategy[Any]] = [st.builds(slice, bound, bound, step)]
        if size:
            integers = st.integers(-size, size - 1)
            choices += [integers, st.builds(np.int64, integers), st.builds(np.intp, integers)]
        parts.append(draw(st.one_of(choices)))
    start = draw(st.integers(0, len(parts)))
    if draw(st.booleans()):
        return (*parts[:start], Ellipsis, *parts[draw(st.integers(start, len(parts))) :])
    return tuple(parts[:start])


@given(data=st.data(), shape=st.lists(st.integers(1, 7), min_size=2, max_size=4).map(tuple))
def test_composing_is_what_numpy_does(data: st.DataObject, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    view = nm.open_view(array, chunks=tuple(min(3, size) for size in shape))
    with nm.Engine(slots=1) as engine:
        live, expected = LiveArray(LayerReads(view, engine), 0), array
        for _ in range(data.draw(st.integers(0, 3))):
            key = data.draw(_fitting(expected.shape))
            live, expected = live[key], expected[key]
            assert live.shape == np.shape(expected)
            assert (live.ndim, live.size) == (np.ndim(expected), np.size(expected))
            if not np.ndim(expected):
                break
        np.testing.assert_array_equal(np.asarray(live), expected)


def _fitting(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Indices into ``shape`` as a tuple, or the only one of them bare."""
    return selections(shape).map(lambda key: key[0] if len(key) == 1 else key)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ((0, 0, 0, 0), "at most 3 indices"),
        ((Ellipsis, Ellipsis), "one ellipsis"),
        (None, "an integer, a slice or an ellipsis"),
        ([0, 1], "an integer, a slice or an ellipsis"),
        (True, "an integer, a slice or an ellipsis"),
        (np.ones(8, bool), "an integer, a slice or an ellipsis"),
        (8, "axis of 8 voxels"),
        ((0, -17), "axis of 16 voxels"),
    ],
)
def test_other_indices_are_refused(key: Any, told: str) -> None:
    engine, _ = cranked(slots=1)
    live = LiveArray(LayerReads(nm.open_view(pyramid()[0]), engine), 0)
    with pytest.raises(IndexError, match=told):
        live[key]


def test_what_napari_asks_of_an_array() -> None:
    engine, _ = cranked(slots=1)
    view = nm.open_view(pyramid(), chunks=(4, 8, 8))
    live = LiveArray(LayerReads(view, engine), 1)
    assert (live.shape, live.ndim, live.size, live.dtype) == ((4, 8, 8), 3, 256, np.dtype("i4"))
    assert live.chunks == view.levels[1].chunks
    assert live[0, :, 2:].chunks == view.levels[1].chunks[1:]
    assert len(live) == 4
    with pytest.raises(TypeError, match="no length"):
        len(live[0, 0, 0])
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(live, copy=False)


def test_a_channel_is_shown_alone() -> None:
    array = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    view = nm.open_view(array, chunks=(1, 2, 3), axes="cyx")
    with nm.Engine(slots=1) as engine:
        live = LiveArray(LayerReads(view, engine, channel=(0, 1)), 0)
        assert (live.shape, live.chunks) == ((4, 6), (2, 3))
        np.testing.assert_array_equal(live, array[1])


def test_truth_values_can_be_read_as_numbers() -> None:
    view = nm.open_view(np.eye(4, dtype=bool))
    with nm.Engine(slots=1) as engine:
        live = LiveArray(LayerReads(view, engine), 0, dtype="u1")
        assert np.asarray(live[0]).dtype == np.uint8
        np.testing.assert_array_equal(live, np.eye(4, dtype="u1"))


# ---------------------------------------------------------------------- pictures


@st.composite
def images(draw: st.DrawFn) -> tuple[list[Level], list[np.ndarray]]:
    """Two or three levels, each coarser and shifted, with a value of its own per voxel."""
    ndim = draw(st.integers(1, 2))
    axes = (Axis("y"), Axis("x"))[:ndim]
    levels, arrays = [], []
    for number in range(draw(st.integers(1, 3))):
        scale = tuple(float(draw(st.sampled_from([1, 2, 3])) ** number) for _ in range(ndim))
        shift = tuple(draw(st.sampled_from([0.0, (s - 1) / 2, -0.75])) for s in scale)
        shape = tuple(max(1, round(draw(st.integers(4, 9)) / s)) for s in scale)
        chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
        levels.append(Level(shape, "i4", chunks, axes, scale, shift, fill=-1))
        arrays.append(np.arange(np.prod(shape), dtype="i4").reshape(shape) + 1000 * number)
    return levels, arrays


def one_voxel(
    levels: list[Level], arrays: list[np.ndarray], there: set[Any], voxel: tuple[int, ...]
) -> int:
    """What a voxel of level 0 shows, looked up alone: the nearest coarser one that is there."""
    world = [
        t + v * s for t, v, s in zip(levels[0].translation, voxel, levels[0].scale, strict=True)
    ]
    for number, level in enumerate(levels):
        place = tuple(
            min(max(int(np.floor((w - t) / s + 0.5 + 1e-6)), 0), n - 1)
            for w, t, s, n in zip(world, level.translation, level.scale, level.shape, strict=True)
        )
        if (number, tuple(p // c for p, c in zip(place, level.chunks, strict=True))) in there:
            return int(arrays[number][place])
    return int(levels[0].fill)


@given(data=st.data(), image=images())
def test_a_picture_is_the_finest_that_is_there(data: st.DataObject, image: Any) -> None:
    levels, arrays = image
    every = [
        (n, index) for n, level in enumerate(levels) for index in np.ndindex(level.grid.counts)
    ]
    there = {key for key in every if data.draw(st.booleans())}
    bound = {key: arrays[key[0]][levels[key[0]].grid.box(key[1]).slices] for key in there}
    axes = tuple(
        data.draw(st.integers(0, size - 1))
        if data.draw(st.booleans())
        else range(size)[
            data.draw(st.builds(slice, st.none(), st.none(), st.sampled_from([1, 2, -1])))
        ]
        for size in levels[0].shape
    )

    def ready(number: int, indices: list[Any]) -> list[Any]:
        return [bound.get((number, index)) for index in indices]

    picture, complete = compose(levels, 0, axes, ready)
    spans = [axis if isinstance(axis, range) else [axis] for axis in axes]
    expected = [one_voxel(levels, arrays, there, voxel) for voxel in product(*spans)]
    assert picture.shape == tuple(len(axis) for axis in axes if isinstance(axis, range))
    assert picture.ravel().tolist() == expected
    own = [arrays[0][voxel] for voxel in product(*spans)]
    assert complete <= (expected == own)


def test_a_coarser_chunk_fills_in_at_its_place() -> None:
    """The voxels of a level that halves by blocks lie under those they were made of."""
    fine = np.arange(64).reshape(8, 8)
    coarse = fine[::2, ::2]
    view = nm.open_view([fine, coarse], chunks=(4, 4))
    engine, workers = cranked(slots=1)
    reads = shown(LayerReads(view, engine))
    engine.claim(view, 1, (0, 0))
    engine.claim(view, 0, (1, 1))
    workers.run_all()
    picture = reads.glance(0, reads.whole(0), LOOK)
    expected = coarse.repeat(2, 0).repeat(2, 1)
    expected[4:, 4:] = fine[4:, 4:]
    np.testing.assert_array_equal(picture, expected)


def test_from_the_centre_out_and_the_current_plane_first() -> None:
    level = Level((6, 10, 10), "u1", (2, 2, 2))
    plane = nearest_first(level, (range(2, 5), range(10), range(10)), [1, 2])
    centre = [index for index in plane if index[1:] == (2, 2)]
    assert plane[0] == (1, 2, 2)
    assert [index[0] for index in plane] == [1] * 25 + [2] * 25
    assert centre == [(1, 2, 2), (2, 2, 2)]
    distance = [(y - 2) ** 2 + (x - 2) ** 2 for _, y, x in plane[:25]]
    assert distance == sorted(distance)


def test_distances_are_the_worlds() -> None:
    level = Level((10, 10), "u1", (2, 2), scale=(10, 1))
    order = nearest_first(level, (range(10), range(10)), [0, 1])
    assert order[:5] == [(2, 2), (2, 1), (2, 3), (2, 0), (2, 4)]


# ---------------------------------------------------------------------- claims


def plane(reads: LayerReads, z: int, level: int = 0) -> np.ndarray:
    """Read a plane as napari's slicing does for the canvas."""
    whole = reads.whole(level)
    return reads.glance(level, (range(z, z + 1), *whole[1:]), Asking(Asker.PICTURE, (1, 2)))


def chunks_of(reads: LayerReads, group: Group = Group.PICTURE) -> set[Any]:
    return {index for _, index in reads.held(group)}


def test_each_picture_replaces_the_claims_of_the_one_before() -> None:
    array = RecordingArray(pyramid((8, 16, 16), 1)[0], (2, 8, 8))
    engine, workers = cranked(slots=1, readers=1)
    reads = shown(LayerReads(array.view(), engine))
    plane(reads, 0)
    before = reads.held(Group.PICTURE)
    assert chunks_of(reads) == {(0, y, x) for y in (0, 1) for x in (0, 1)}
    plane(reads, 5)
    assert chunks_of(reads) == {(2, y, x) for y in (0, 1) for x in (0, 1)}
    assert all(claim.released for claim in before.values())
    workers.run_all()
    assert [index[0] for index in array.reads] == [2, 2, 2, 2]


def test_claims_on_chunks_still_needed_are_kept() -> None:
    engine, _ = cranked(slots=1)
    reads = shown(LayerReads(nm.open_view(pyramid((8, 16, 16), 1), chunks=(4, 8, 8)), engine))
    reads.glance(0, (range(1), range(16), range(8)), PICTURE)
    before = reads.held(Group.PICTURE)
    reads.glance(0, (range(1, 2), range(8), range(16)), PICTURE)
    after = reads.held(Group.PICTURE)
    assert after[0, (0, 0, 0)] is before[0, (0, 0, 0)]
    assert before[0, (0, 1, 0)].released
    assert engine.stats()["misses"] == 3
    plane(reads, 2)
    whole = reads.held(Group.PICTURE)
    plane(reads, 3)
    assert reads.held(Group.PICTURE) == whole
    assert engine.stats()["misses"] == 5


def test_claims_are_made_from_the_centre_out() -> None:
    array = RecordingArray(np.zeros((2, 40, 40), "u1"), (2, 8, 8))
    engine, workers = cranked(slots=1, readers=1)
    reads = shown(LayerReads(array.view(), engine))
    plane(reads, 0)
    workers.run_all()
    away = [(y - 2) ** 2 + (x - 2) ** 2 for _, y, x in array.reads]
    assert away[0] == 0
    assert away == sorted(away)


def test_a_chunk_on_screen_stays_though_the_budget_is_small() -> None:
    engine, workers = cranked(slots=1, chunk_bytes=1)
    reads = shown(LayerReads(nm.open_view(pyramid((8, 16, 16), 1), chunks=(4, 8, 8)), engine))
    plane(reads, 0)
    workers.run_all()
    np.testing.assert_array_equal(plane(reads, 0), pyramid((8, 16, 16), 1)[0][:1])
    assert reads.complete


def test_a_thumbnail_comes_last_and_never_orders_many_chunks() -> None:
    gate = Gate()
    base = np.repeat(np.arange(4), 64).reshape(4, 8, 8)
    view = nm.open_view(base, [gate.op], chunks=(1, 8, 8))
    engine, workers = cranked(slots=1)
    reads = shown(LayerReads(view, engine))
    whole = reads.whole(0)
    reads.glance(0, (range(3), *whole[1:]), THUMBNAIL)
    reads.glance(0, (range(3, 4), *whole[1:]), PICTURE)
    assert chunks_of(reads, Group.THUMBNAIL) == {(0, 0, 0), (1, 0, 0), (2, 0, 0)}
    workers.run_all()
    assert gate.calls.index(3) <= 1  # after what had started, before the rest
    many = nm.open_view(np.zeros((4, 64, 64), "u1"), chunks=(1, 8, 8))
    reads = shown(LayerReads(many, engine))
    reads.glance(0, (range(1), range(64), range(64)), THUMBNAIL)
    assert not reads.held(Group.THUMBNAIL)


def test_the_picture_just_read_is_the_thumbnail_that_is_read_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, workers = cranked(slots=1)
    base = np.arange(4 * 64, dtype="u1").reshape(4, 8, 8)
    reads = shown(LayerReads(nm.open_view(base, chunks=(1, 4, 4)), engine))
    asked: list[Any] = []
    old = engine.peek_all
    monkeypatch.setattr(engine, "peek_all", lambda *what: asked.append(what) or old(*what))
    plane, other = ((range(n, n + 1), range(8), range(8)) for n in (1, 2))
    reads.glance(0, plane, PICTURE)
    workers.run_all()
    picture = reads.glance(0, plane, PICTURE)
    np.testing.assert_array_equal(picture, base[1:2])
    asked.clear()
    thumbnail = reads.glance(0, plane, THUMBNAIL)
    assert not asked
    np.testing.assert_array_equal(thumbnail, picture)
    assert not np.shares_memory(thumbnail, picture)
    reads.glance(0, plane, PICTURE)
    reads.glance(0, other, THUMBNAIL)  # of another plane
    assert not reads.glance(0, other, THUMBNAIL).any()
    reads.glance(0, plane, PICTURE)
    reads.change(nm.open_view(255 - base, chunks=(1, 4, 4)))
    assert not reads.glance(0, plane, THUMBNAIL).any()  # nothing of another view


def test_a_volume_of_nothing_that_is_seen_is_one_voxel() -> None:
    engine, workers = cranked(slots=1)
    base = np.zeros((2, 4, 4, 4), "u1")
    base[0, 3, 3, 3] = 7
    reads = shown(LayerReads(nm.open_view(base, chunks=(1, 2, 4, 4), kind="label"), engine))
    first, second = ((n, *[range(4)] * 3) for n in (0, 1))
    asking, flat = Asking(Asker.PICTURE, (1, 2, 3)), Asking(Asker.PICTURE, (2, 3))
    assert reads.glance(0, first, asking).shape == (4, 4, 4)  # where nobody says that it is unseen
    asked: list[Any] = []

    def unseen(value: Any) -> bool:
        asked.append(value)
        return True

    reads.unseen = unseen
    assert reads.glance(0, first, asking).tolist() == [[[0]]]
    assert reads.glance(0, first, Asking(Asker.THUMBNAIL, (1, 2, 3))).tolist() == [[[0]]]
    assert asked == [0]  # the thumbnail is the picture that was just read
    plane = (0, 0, range(4), range(4))
    assert reads.glance(0, plane, flat).shape == (4, 4)  # a plane costs the same, whatever it shows
    reads.glance(0, first, asking)
    workers.run_all()
    np.testing.assert_array_equal(reads.glance(0, first, asking), base[0])
    reads.glance(0, second, asking)
    workers.run_all()
    np.testing.assert_array_equal(reads.glance(0, second, asking), base[1])  # 0 as computed
    reads.unseen = lambda value: False
    reads.change(nm.open_view(base + 1, chunks=(1, 2, 4, 4), kind="label"))
    assert reads.glance(0, first, asking).shape == (4, 4, 4)


def test_what_a_claim_holds_is_shown_though_the_engine_is_closed() -> None:
    engine, workers = cranked(slots=1)
    base = np.arange(64, dtype="u1").reshape(1, 8, 8)
    reads = shown(LayerReads(nm.open_view(base, chunks=(1, 4, 4)), engine))
    reads.hold(Group.PICTURE, 0, [(0, 0, 0)])
    workers.run_all()
    reads.hold(Group.PICTURE, 0, [(0, 0, 0), (0, 1, 1)])
    engine.close()
    there = reads.ready_all(0, [(0, 0, 0), (0, 1, 1), (0, 0, 1)])
    np.testing.assert_array_equal(there[0], base[:, :4, :4])
    assert there[1:] == [None, None]


def test_other_looks_claim_nothing() -> None:
    engine, workers = cranked(slots=1)
    reads = shown(LayerReads(nm.open_view(pyramid(), chunks=(4, 8, 8)), engine))
    assert not reads.glance(0, reads.whole(0), LOOK).any()
    assert not workers.step()
    assert engine.stats()["misses"] == 0


def test_a_layer_that_is_not_shown_claims_nothing() -> None:
    engine, workers = cranked(slots=1)
    reads = LayerReads(nm.open_view(pyramid(), chunks=(4, 8, 8)), engine)
    plane(reads, 0)
    assert not workers.step()
    plane(shown(reads), 0)
    reads.active = lambda: False
    plane(reads, 0)
    assert not reads.held(Group.PICTURE)
    assert not engine.stats()["waiting"]["client"]


def test_giving_up_drops_what_has_not_started() -> None:
    array = RecordingArray(np.zeros((4, 64, 64), "u1"), (4, 8, 8))
    engine, workers = cranked(slots=1, readers=1)
    reads = shown(LayerReads(array.view(), engine))
    plane(reads, 0)
    reads.release_all()
    assert reads.settled
    workers.run_all()
    assert array.reads == []
    assert not engine.stats()["waiting"]["client"]


def test_many_chunks_are_asked_for_in_portions() -> None:
    view = nm.open_view(np.arange(1600).reshape(1, 40, 40), chunks=(1, 1, 2))
    engine, workers = cranked(slots=2)
    reads = shown(LayerReads(view, engine))
    news = []
    reads.on_news = lambda: news.append(1)
    rounds = 0
    while not reads.complete or not rounds:
        plane(reads, 0)
        waiting = [claim for claim in reads.held(Group.PICTURE).values() if not claim.done]
        assert len(waiting) <= AT_A_TIME
        assert reads.settled == (not waiting)
        assert len(news) == min(800, rounds * AT_A_TIME)  # there is news to go on at
        workers.run_all()
        rounds += 1
    assert rounds == 5
    np.testing.assert_array_equal(plane(reads, 0), np.arange(1600).reshape(1, 40, 40))


def test_news_of_what_is_waited_for_and_of_nothing_else() -> None:
    engine, workers = cranked(slots=1, readers=1)
    reads = shown(LayerReads(nm.open_view(pyramid((8, 16, 16), 1), chunks=(4, 8, 8)), engine))
    news: list[int] = []
    reads.on_news = lambda: news.append(len(news))
    plane(reads, 0)
    workers.step()
    assert len(news) == 1
    plane(reads, 7)  # replaces what waited, which is no news
    assert len(news) == 1
    workers.run_all()
    assert len(news) == 5
    plane(reads, 7)  # all there
    assert len(news) == 5


def test_a_failed_chunk_is_a_hole_and_is_told_once() -> None:
    array = RecordingArray(np.ones((4, 16, 16), "u1"), (4, 8, 8))
    array.broken[0, 1, 1] = RuntimeError("a bad block")
    engine, workers = cranked(slots=1)
    view = array.view()
    reads = shown(LayerReads(view, engine))
    plane(reads, 0)
    workers.run_all()
    picture = plane(reads, 0)[0]
    assert picture[:8].all()
    assert not picture[8:, 8:].any()
    assert reads.settled
    assert not reads.complete
    [failure] = reads.take_failures()
    assert isinstance(failure, ChunkError)
    assert "a bad block" in str(failure)
    plane(reads, 0)
    assert reads.take_failures() == []
    assert len(array.reads) == 4  # it was not read again
    array.broken.clear()
    engine.retry(view, 0, (0, 1, 1))
    workers.run_all()
    assert plane(reads, 0).all()


def test_a_closed_engine_leaves_holes_and_raises_nothing() -> None:
    engine, workers = cranked(slots=1)
    reads = shown(LayerReads(nm.open_view(np.ones((4, 16, 16), "u1"), chunks=(4, 8, 8)), engine))
    plane(reads, 0)
    workers.step()
    engine.close()
    news: list[int] = []
    reads.on_news = lambda: news.append(1)
    told = reads.take_failures()
    assert told
    assert {type(failure) for failure in told} == {EngineClosed}
    picture = plane(reads, 0)
    assert 0 < picture.sum() < picture.size
    plane(reads, 0)
    assert len(news) == len(reads.take_failures()) == 1
    with pytest.raises(EngineClosed):
        reads.exact(0, reads.whole(0))


def test_a_copy_holds_claims_of_its_own() -> None:
    engine, _ = cranked(slots=1)
    reads = shown(LayerReads(nm.open_view(pyramid(), chunks=(4, 8, 8)), engine))
    levels = [LiveArray(reads, 0)[1:], LiveArray(reads, 1)]
    copied = copy.deepcopy(levels)
    assert copied[0].reads is copied[1].reads is not reads
    assert copied[0].shape == levels[0].shape
    plane(shown(copied[0].reads), 0)
    assert not reads.held(Group.PICTURE)


def test_the_priority_of_what_can_wait() -> None:
    """A thumbnail's claim gives way to every other client's, and not to background work."""
    array = RecordingArray(np.zeros((3, 8, 8), "u1"), (1, 8, 8))
    engine, workers = cranked(slots=1, readers=1)
    view = array.view()
    reads = shown(LayerReads(view, engine))
    engine.claim(view, 0, (0, 0, 0))
    engine.claim(view, 0, (1, 0, 0), background=True)
    reads.hold(Group.THUMBNAIL, 0, [(2, 0, 0)], priority=LAST)
    engine.claim(view, 0, (0, 0, 0))
    workers.run_all()
    assert [index[0] for index in array.reads] == [0, 2, 1]
    assert engine.state(view, 0, (2, 0, 0)) is ChunkState.READY


# ---------------------------------------------------------------------- who asks


def asked_from(module: str, statement: str, array: Any) -> Any:
    """Run a statement as a line of another module, which is not imported."""
    scope = {"__name__": module, "np": np, "array": array}
    exec(f"def line():\n    return {statement}", scope)
    return scope["line"]()  # type: ignore[operator]


class Asked(LayerReads):
    """Reads that record who asks, and answer nothing."""

    def __init__(self) -> None:
        engine, _ = cranked(slots=1)
        super().__init__(nm.open_view(np.zeros((2, 2))), engine)
        self.by: list[Asker] = []

    def glance(self, level: int, axes: Any, asking: Asking) -> np.ndarray:
        self.by.append(asking.asker)
        return np.zeros((2, 2))

    def exact(self, level: int, axes: Any) -> np.ndarray:
        self.by.append(Asker.ANYONE)
        return np.zeros((2, 2))


@pytest.mark.parametrize("statement", ["np.asarray(array)", "np.max(array)", "np.mean(array, 0)"])
@pytest.mark.parametrize(
    ("module", "asker"),
    [
        ("napari.components.histogram", Asker.LOOK),
        ("napari.layers.utils.layer_utils", Asker.LOOK),
        ("napari._vispy.layers.image", Asker.LOOK),
        ("napari.layers._layer_actions", Asker.ANYONE),
        ("napari.utils.io", Asker.ANYONE),
        ("napari.plugins.io", Asker.ANYONE),
        ("napari_builtins.io._write", Asker.ANYONE),
        ("naparify", Asker.ANYONE),
        ("skimage.measure", Asker.ANYONE),
        ("__main__", Asker.ANYONE),
    ],
)
def test_the_nearest_caller_beyond_numpy_decides(module: str, asker: Asker, statement: str) -> None:
    asked = Asked()
    asked_from(module, statement, LiveArray(asked, 0))
    assert set(asked.by) == {asker}


def test_a_script_started_by_napari_is_still_a_script() -> None:
    """All that runs in napari's window has napari's event loop below it."""
    asked = Asked()
    scope: dict[str, Any] = {"__name__": "napari._qt.qt_event_loop"}
    exec("def run(work):\n    return work()", scope)
    scope["run"](lambda: asked_from("my_console", "np.asarray(array)", LiveArray(asked, 0)))
    assert asked.by == [Asker.ANYONE]


# ---------------------------------------------------------------------- going on from a live layer


def test_what_a_live_layer_shows_is_gone_on_from_as_a_view() -> None:
    view = nm.open_view(pyramid(), ["invert"])
    with nm.Engine(slots=1) as engine:
        reads = LayerReads(view, engine)
        levels = [LiveArray(reads, 0), LiveArray(reads, 1)]
        more = nm.open_view(levels, ["threshold:low=3"])
        assert more.stages[:2] == view.stages
        expected = (np.asarray(engine.array(view)) >= 3).astype("u1")
        np.testing.assert_array_equal(engine.array(more)[:], expected)
        part = nm.open_view(levels[0][1:])
        assert part.source is not view.source


def test_one_channel_of_a_live_layer_is_gone_on_from_as_that_channel() -> None:
    array = np.arange(2 * 6 * 6).reshape(2, 6, 6)
    view = nm.open_view(array, axes="cyx")
    with nm.Engine(slots=1) as engine:
        live = LiveArray(LayerReads(view, engine, channel=(0, 1)), 0)
        more = nm.open_view(live)
        assert [op.name for op in more.ops] == ["select"]
        np.testing.assert_array_equal(engine.array(more)[:], array[1])


# ---------------------------------------------------------------------- what is asked for, and when


def flat_pyramid() -> list[np.ndarray]:
    base = np.arange(64 * 64, dtype="i4").reshape(1, 64, 64)
    return [base[:, :: 2**n, :: 2**n] for n in range(3)]


def computed_order(view: Any, engine: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Return the (level, index) of the chunks that began, in order."""
    begun = [e for e in engine.events(view) if e.after is ChunkState.LOADING]
    return [(event.key.level, event.key.chunk) for event in begun]


def test_a_coarser_picture_goes_ahead_of_one_that_takes_long() -> None:
    engine, workers = cranked(slots=2)
    view = nm.open_view(flat_pyramid(), ["invert"], chunks=(1, 8, 8))
    reads = shown(LayerReads(view, engine))
    live = LiveArray(reads, 0)
    reads.glance(0, live[0]._axes, PICTURE)
    coarse = set(reads.held(Group.COARSE))
    assert coarse == {(2, (0, y, x)) for y in range(2) for x in range(2)}
    assert len(reads.held(Group.PICTURE)) == 64
    workers.run_all()
    order = computed_order(view, engine)
    assert set(order[:4]) == coarse
    assert order[4:] == list(reads.held(Group.PICTURE))
    assert reads.settled


@pytest.mark.parametrize("there", [1, 2])
def test_no_coarser_picture_where_one_is_there(there: int) -> None:
    engine, workers = cranked(slots=2)
    view = nm.open_view(flat_pyramid(), ["invert"], chunks=(1, 8, 8))
    reads = shown(LayerReads(view, engine))
    whole = LiveArray(reads, there)
    claims = engine.claim_all(view, there, [i for _, i in _places(view, there)])
    workers.run_all()
    before = engine.stats()["computed"]
    reads.glance(0, LiveArray(reads, 0)[0]._axes, PICTURE)
    workers.run_all()
    assert engine.stats()["computed"] - before == 64
    assert whole.shape == view.levels[there].shape
    engine.release_all(claims)


def _places(view: Any, level: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(level, index) for index in product(*map(range, view.levels[level].grid.counts))]


def test_no_coarser_picture_where_it_would_cost_as_much_as_it_saves() -> None:
    engine, _ = cranked(slots=2)
    view = nm.open_view(flat_pyramid(), ["invert"], chunks=(1, 32, 32))
    reads = shown(LayerReads(view, engine))
    reads.glance(0, LiveArray(reads, 0)[0]._axes, PICTURE)  # four chunks, and a coarser one
    assert not reads.held(Group.COARSE)
    many, _ = cranked(slots=64)
    view = nm.open_view(flat_pyramid(), ["invert"], chunks=(1, 8, 8))
    reads = shown(LayerReads(view, many))
    reads.glance(0, LiveArray(reads, 0)[0]._axes, PICTURE)  # all of them at once
    assert not reads.held(Group.COARSE)


def test_pictures_that_fly_by_are_not_asked_for() -> None:
    engine, workers = cranked(slots=2)
    array = RecordingArray(np.arange(8 * 16 * 16).reshape(8, 16, 16), (1, 8, 8))
    view, pauses, now = array.view(), list[float](), [0.0]
    reads = shown(LayerReads(view, engine, clock=lambda: now[0]))
    reads.on_pause, reads.chunk_seconds = pauses.append, 0.3
    live = LiveArray(reads, 0)
    reads.glance(0, live[0]._axes, PICTURE)
    assert {index[0] for _, index in reads.held(Group.PICTURE)} == {0}  # at once, from rest
    for z in (1, 2, 3):
        now[0] += 0.04
        reads.glance(0, live[z]._axes, PICTURE)
        assert reads.passing
        assert not reads.held(Group.PICTURE)
        assert reads.counts().waiting == 4
        assert not reads.settled
        assert not reads.picture_over
    assert pauses == pytest.approx([0.05] * 3)
    now[0] += 0.03
    reads.glance(0, live[3]._axes, PICTURE)  # painted again meanwhile: nothing else is asked for
    assert not reads.held(Group.PICTURE)
    reads.moved()  # the next step is heard before its picture is read
    now[0] += 0.03
    reads.go_on()
    assert not reads.held(Group.PICTURE)
    assert pauses[-1] == pytest.approx(0.02)
    now[0] += 0.1
    reads.glance(0, live[3]._axes, PICTURE)  # read late: that nothing came meanwhile says nothing
    assert not reads.held(Group.PICTURE)
    assert pauses[-1] == 0.001
    reads.go_on()  # called late: once more, when the window has heard what is there
    assert reads.passing
    assert pauses[-1] == 0.001
    reads.go_on()
    assert not reads.passing
    assert {index[0] for _, index in reads.held(Group.PICTURE)} == {3}
    reads.go_on()  # there is nothing more to go on with
    workers.run_all()
    assert reads.settled
    assert {index[0] for index in array.reads} <= {0, 3}
    assert {index[0] for index in array.reads if index[0] == 3} == {3}
    # what was released in mid-read had begun; nothing else of the first plane was read
    assert sum(index[0] == 0 for index in array.reads) <= 4
    reads.glance(0, live[0]._axes, PICTURE)
    reads.release_all()
    reads.go_on()
    assert not reads.held(Group.PICTURE)


def test_the_thumbnail_of_a_plane_that_is_left_is_not_computed() -> None:
    engine, workers = cranked(slots=2)
    view = nm.open_view(np.arange(8 * 16 * 16).reshape(8, 16, 16), ["invert"], chunks=(1, 8, 8))
    reads, now = hurried(view, engine)
    for z in (0, 1):
        reads.glance(0, LiveArray(reads, 0)[z]._axes, PICTURE)
        reads.glance(0, LiveArray(reads, 0)[z]._axes, THUMBNAIL)
        assert len(reads.held(Group.THUMBNAIL)) == (0 if reads.passing else 4)
        now[0] += 0.04
    assert reads.passing
    workers.run_all()
    assert engine.stats()["computed"] == 0


def test_planes_that_fly_by_in_the_same_chunks_begin_none_of_the_rest() -> None:
    engine, workers = cranked(slots=2)
    view = nm.open_view(np.arange(8 * 16 * 16).reshape(8, 16, 16), ["invert"], chunks=(8, 8, 8))
    reads, now = hurried(view, engine)
    reads.glance(0, LiveArray(reads, 0)[0]._axes, PICTURE)  # from rest
    while workers.step("read"):
        pass
    for z in (1, 2, 3):
        now[0] += 0.04
        reads.moved()
        reads.glance(0, LiveArray(reads, 0)[z]._axes, PICTURE)
        assert len(reads.held(Group.PICTURE)) == 2  # those that run
        assert reads.counts().waiting == 2
    workers.run_all()
    assert engine.stats()["computed"] == 2
    now[0] += 0.06
    reads.go_on()
    workers.run_all()
    assert engine.stats()["computed"] == 4
    assert reads.settled


def test_what_a_canvas_that_is_panned_still_shows_goes_on() -> None:
    engine, workers = cranked(slots=2)
    view = nm.open_view(np.arange(64 * 16).reshape(16, 64), ["invert"], chunks=(8, 8))
    reads, now = hurried(view, engine)
    for x in (0, 8):
        reads.glance(0, LiveArray(reads, 0)[:, x : x + 24]._axes, PICTURE)
        now[0] += 0.04
    assert reads.passing
    assert {index[1] for _, index in reads.held(Group.PICTURE)} == {1, 2}
    workers.run_all()
    assert engine.stats()["computed"] >= 4


def test_background_work_holds_back_while_planes_fly_by() -> None:
    engine, workers = cranked(slots=4, readers=8)
    view = nm.open_view(np.arange(8 * 16 * 16).reshape(8, 16, 16), ["invert"], chunks=(1, 8, 8))
    reads, now = hurried(view, engine)

    def look(z: int) -> None:
        now[0] += 0.04
        reads.glance(0, LiveArray(reads, 0)[z]._axes, PICTURE)

    def started() -> int:
        while workers.step("background read") or workers.step("read"):
            pass
        return workers.waiting("background")

    look(0)
    workers.run_all()
    look(1)
    assert reads.passing
    engine.claim_all(view, 0, [(7, y, x) for y in (0, 1) for x in (0, 1)], background=True)
    assert started() == 0  # whoever stops at a plane would have to wait for what is begun
    now[0] += 0.06
    reads.go_on()
    assert not reads.passing
    assert workers.waiting("compute") == 0  # the plane is asked for, and its source is read now
    assert started() == 0
    assert workers.waiting("compute") == 4
    workers.run_all()
    assert reads.settled
    look(2)
    look(3)
    engine.claim_all(view, 0, [(6, y, x) for y in (0, 1) for x in (0, 1)], background=True)
    assert started() == 0
    reads.release_all()  # hidden, or removed
    assert started() == 3
    workers.run_all()
    look(4)
    workers.run_all()
    look(5)
    now[0] += 0.06
    reads.go_on()
    engine.claim_all(view, 0, [(3, y, x) for y in (0, 1) for x in (0, 1)], background=True)
    assert workers.waiting("background read") == 0
    reads.go_on()  # a while later, and the source is slow: it holds back no more
    assert workers.waiting("background read") > 0


def test_a_picture_that_is_there_waits_for_nothing() -> None:
    engine, workers = cranked(slots=2)
    view = nm.open_view(np.arange(8 * 16 * 16).reshape(8, 16, 16), chunks=(8, 8, 8))
    reads = shown(LayerReads(view, engine))
    pauses: list[float] = []
    live = LiveArray(reads, 0)
    reads.glance(0, live[0]._axes, PICTURE)
    workers.run_all()
    reads.on_pause, reads.chunk_seconds = pauses.append, 1000.0
    for z in range(1, 8):
        reads.glance(0, live[z]._axes, PICTURE)
        assert len(reads.held(Group.PICTURE)) == 4
    assert reads.complete
    assert not pauses


def test_a_failed_chunk_is_a_hole_though_a_coarser_level_is_there() -> None:
    levels = [
        Level((4,), "i4", (2,), (Axis("x"),)),
        Level((2,), "i4", (2,), (Axis("x"),), scale=(2,), translation=(0.5,)),
    ]
    there = {(1, (0,)): np.array([5, 6], "i4")}

    def ready(number: int, indices: list[Any]) -> list[Any]:
        return [there.get((number, index)) for index in indices]

    picture, complete = compose(levels, 0, (range(4),), ready, {(1,)})
    assert picture.tolist() == [5, 5, 0, 0]
    assert not complete


def test_steps_that_are_told_apart() -> None:
    moving = Moving()
    assert moving.wait(0.0, "a", None) == 0  # nobody knows how long a chunk takes
    assert moving.wait(0.01, "b", None) == 0
    assert moving.wait(5.0, "c", 0.3) == 0  # from rest
    assert moving.wait(5.02, "d", 0.3) == pytest.approx(0.05)  # a hand's steps are that far apart
    assert moving.wait(5.12, "e", 0.3) == pytest.approx(0.075)  # what the steps took in the mean
    assert moving.wait(5.13, "f", 0.3) == pytest.approx(1.25 * 0.13 / 3, abs=1e-6)
    assert moving.wait(5.17, "f", 0.3) == pytest.approx(0.014167)
    assert moving.wait(5.19, "f", 0.3) == 0.001  # it is for the window to say that nothing moves
    assert moving.left(5.19) == 0
    assert moving.wait(5.19, "f", 0.3) == 0
    assert moving.wait(6.0, "g", 0.3) == 0
    moving.rest()
    assert moving.wait(6.01, "h", 0.3) == 0


def test_a_step_is_heard_before_its_picture_is_read() -> None:
    """As in asynchronous slicing, which leaves pictures out and reads others late."""
    moving = Moving()
    moving.step(0.0)
    assert moving.wait(0.03, "a", 0.06) == 0  # from rest
    moving.step(0.04)
    moving.step(0.08)
    assert moving.wait(0.11, "c", 0.06) == pytest.approx(0.02)  # though 80 ms lie between reads
    moving.step(0.12)
    assert moving.left(0.13) == pytest.approx(0.04)
    assert moving.wait(0.2, "d", 0.06) == 0.001
    assert moving.left(0.2) == 0.001  # the window was busy: perhaps it has not heard of all
    assert moving.left(0.201) == 0
    moving.step(0.4)
    assert moving.wait(0.41, "e", 0.06) == 0  # from rest again


def test_a_window_that_is_busy_makes_steps_late() -> None:
    """As in 3D, where painting may take a quarter of a second: steps come in bursts."""
    moving = Moving()
    assert moving.wait(0.0, "a", 0.06) == 0
    moving.awake(0.25)
    assert moving.wait(0.26, "b", 0.06) == pytest.approx(0.05)
    assert moving.wait(0.261, "c", 0.06) == pytest.approx(0.05)
    moving.awake(0.5)
    moving.step(0.505)
    assert moving.left(0.51) == pytest.approx(0.045)
    assert moving.wait(0.51, "d", 0.06) == pytest.approx(0.045)
    moving.awake(0.75)
    assert moving.left(0.76) == 0  # awake when a step was due, it has heard of none: it rests
    assert moving.wait(1.0, "e", 0.06) == 0
