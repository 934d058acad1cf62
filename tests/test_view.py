"""Views: a chunk equals the same voxels of the ops run over the whole level, one after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from doubles import Stack
from napari_materialize import Engine, materialize, open_view, ops
from napari_materialize.errors import ChunkError, LevelError, OpError, OptionError, SourceError
from napari_materialize.geometry import Box
from napari_materialize.stages import SourceStage


def compute(view, level=0):
    """Compute a whole level, stage by stage, chunk by chunk, without an engine."""
    previous = {}
    for stage in view.stages:
        made = {}
        grid = stage.levels[level].grid
        for index in grid.covering(Box.whole(grid.shape)):
            needed = stage.inputs(level, [index])
            chunks = stage.compute(level, [index], {one: previous[one] for one in needed})
            assert index in chunks
            assert tuple(chunks) == stage.makes(level, [index])
            made.update(chunks)
        previous = made
    described = view.levels[level]
    whole = np.empty(described.shape, described.dtype)
    for index, chunk in previous.items():
        assert not chunk.flags.writeable
        whole[described.grid.box(index).slices] = chunk
    return whole


@given(data=st.data(), array=oracle.arrays(), chain=oracle.chains())
def test_chunks_equal_the_ops_over_the_whole_array(data, array, chain):
    chunks = tuple(data.draw(st.integers(1, n + 2)) for n in array.shape)
    boundary = data.draw(st.sampled_from(["edge", "zeros"]))
    view = open_view(array, chain, chunks=chunks, boundary=boundary)
    np.testing.assert_array_equal(compute(view), oracle.run(array, chain, boundary))


@pytest.mark.parametrize("boundary", ["edge", "zeros"])
def test_two_filters_in_one_stage_are_exact_at_the_faces(boundary):
    array = np.random.default_rng(0).integers(0, 255, (17, 23)).astype("u1")
    chain = [("gaussian", {"sigma": 1.5}), ("median", {"size": 3}), ("gaussian", {"sigma": 0.8})]
    view = open_view(array, chain, chunks=(5, 7), boundary=boundary)
    assert len(view.stages) == 2
    np.testing.assert_array_equal(compute(view), oracle.run(array, chain, boundary))


def test_every_level_is_computed_on_its_own_voxels():
    fine = np.random.default_rng(1).integers(0, 255, (16, 16)).astype("u1")
    coarse = fine[::2, ::2].copy()
    view = open_view([fine, coarse], "gaussian:sigma=1", chunks=(5, 5))
    chain = [("gaussian", {"sigma": 1.0})]
    np.testing.assert_array_equal(compute(view, 0), oracle.run(fine, chain, "edge"))
    np.testing.assert_array_equal(compute(view, 1), oracle.run(coarse, chain, "edge"))


def test_without_ops_the_chunks_are_the_sources_own_voxels():
    array = np.arange(30).reshape(5, 6)
    view = open_view(array, chunks=(2, 4))
    assert isinstance(view.stages[-1], SourceStage)
    np.testing.assert_array_equal(compute(view), array)


def test_channels_are_picked_and_compared():
    array = np.random.default_rng(2).integers(0, 9, (3, 6, 7)).astype("f4")
    view = open_view(array, axes="cyx", chunks=(1, 4, 4))
    np.testing.assert_array_equal(compute(view.then([ops.Select(2)])), array[2])
    labels = view.then([ops.Argmax()])
    assert labels.kind == "label"
    np.testing.assert_array_equal(compute(labels), array.argmax(0))


def test_channels_that_are_made_at_once_come_at_once():
    array = np.arange(20).reshape(4, 5)
    view = open_view(array, chunks=(2, 3)).then([Stack(), ops.Threshold(low=10)])
    assert len(view.stages) == 3
    assert view.stages[1].makes(0, [(1, 0, 1)]) == ((0, 0, 1), (1, 0, 1))
    expected = (np.stack([array, array + 1]) >= 10).astype("u1")
    np.testing.assert_array_equal(compute(view), expected)


def test_the_walk_keeps_together_what_is_computed_together():
    view = open_view(np.arange(20).reshape(4, 5), chunks=(2, 3)).then([Stack()])
    walk = list(view.walk(0, Box((0, 0, 0), (2, 4, 5))))
    assert walk[:4] == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]
    assert sorted(walk) == [(c, y, x) for c in (0, 1) for y in (0, 1) for x in (0, 1)]
    assert list(view.walk(0, Box((1, 0, 0), (2, 2, 5)))) == [(1, 0, 0), (1, 0, 1)]


def test_identity_follows_what_decides_the_voxels():
    array = np.arange(12).reshape(3, 4)
    view = open_view(array, "gaussian:sigma=1")
    assert view.stable
    assert view.identity == open_view(array.copy(), "gaussian:sigma=1.0").identity
    others = [
        open_view(array, "gaussian:sigma=2"),
        open_view(array + 1, "gaussian:sigma=1"),
        open_view(array, "gaussian:sigma=1", boundary="zeros"),
        open_view(array),
    ]
    assert len({view.identity, *(other.identity for other in others)}) == 5


def test_a_function_without_a_name_and_a_version_is_not_stable():
    array = np.arange(12).reshape(3, 4)
    nameless = open_view(array, ops.Function(np.negative))
    assert not nameless.stable
    assert nameless.identity != open_view(array, ops.Function(np.abs)).identity
    named = ops.Function(np.negative, name="negative", version="1")
    assert open_view(array, named).stable


def test_an_earlier_stage_is_the_same_when_only_a_later_op_changes():
    array = np.arange(12).reshape(3, 4)
    first = open_view(array).then([Stack()])
    second = first.then([ops.Threshold(low=1)])
    third = first.then([ops.Threshold(low=2)])
    assert second.stages[1] is third.stages[1]
    assert second.identity != third.identity


def test_an_op_that_returns_something_else_than_announced_is_named():
    view = open_view(np.zeros((4, 4), "u1")).then([Stack()])
    stage = view.stages[-1]
    wrong = type("Wrong", (Stack,), {"compute": lambda self, block, *_: block[:1]})()
    broken = open_view(np.zeros((4, 4), "u1")).then([wrong]).stages[-1]
    inputs = {(0, 0): np.zeros((4, 4), "u1")}
    assert len(stage.compute(0, [(0, 0, 0)], inputs)) == 2
    with pytest.raises(OpError, match="stack"):
        broken.compute(0, [(0, 0, 0)], inputs)


def test_a_source_that_returns_something_else_than_announced_is_named():
    class Short:
        name, identity, stable, kind, location = "short", "short", True, "image", None
        record = {}  # noqa: RUF012 - a double
        levels = open_view(np.zeros((4, 4), "u1")).levels

        def read(self, level, box):
            return np.zeros((1, 1), "u1")

    with pytest.raises(ChunkError, match="'short'"):
        SourceStage(Short()).compute(0, [(0, 0)], {})


def test_refusals_name_what_is_there():
    view = open_view(np.zeros((4, 4), "u1"))
    with pytest.raises(LevelError, match="levels 0 to 0, got 3"):
        view.level(3)
    with pytest.raises(IndexError, match="got"):
        view.key(0, (9, 9))
    with pytest.raises(OptionError, match="boundary"):
        open_view(np.zeros((4, 4)), boundary="mirror")
    with pytest.raises(OptionError, match="leave them out"):
        open_view(view, scale=(1, 1))


@pytest.mark.parametrize(
    "op", ["gaussian:sigma=1e6", "gaussian:sigma=1e300", "median:size=99999999"]
)
def test_a_halo_that_no_memory_holds_is_refused(op):
    with pytest.raises(OpError, match="halo") as caught:
        open_view(np.zeros((4, 4, 4)), op)
    assert "\n" not in str(caught.value)


def test_a_box_on_its_own_level_is_itself_however_far_away():
    view = open_view(np.zeros((100, 4)), scale=(0.01, 1), translation=(1.7e9, 0))
    for start in range(99):
        box = Box((start, 0), (start + 1, 4))
        assert view.levels[0].box_from(box, view.levels[0]) == box


def test_a_view_by_name_goes_on_from_the_one_that_is_registered():
    array = np.random.default_rng(0).integers(0, 255, (17, 23)).astype("u1")
    counted = []

    def smooth(block):
        counted.append(block.shape)
        return block // 2

    first = open_view(array, ops.Function(smooth, dtype="u1"), chunks=(8, 8))
    with Engine(slots=2) as engine:
        engine.views["half"] = first
        second = open_view("view:half", "threshold:low=60", views=engine.views)
        assert second.stages[: len(first.stages)] == first.stages, "kept by its own identity"
        np.testing.assert_array_equal(engine.array(first), array // 2)
        before = len(counted)
        assert before == 9
        np.testing.assert_array_equal(engine.array(second), array // 2 >= 60)
        assert len(counted) == before, "what was computed of the first serves the second"
        assert open_view("view:half", views=engine.views).identity == first.identity


def test_a_name_that_no_view_has_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(SourceError, match="here is no engine"):
        open_view("view:half")
    with pytest.raises(SourceError, match=r"registered are 'third'; do so with engine.views"):
        open_view("view:half", views={"third": open_view(np.zeros((4, 4)))})
    monkeypatch.chdir(tmp_path)
    materialize(np.ones((4, 4), "u1"), tmp_path / "view:half")
    assert open_view("./view:half").levels[0].shape == (4, 4)
