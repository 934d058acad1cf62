"""Source chunks that a job alone needs are let go after their last use, and never before."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import napari_materialize as nm
from doubles import RecordingArray, Stack
from napari_materialize import Box, Engine, MemoryStore, open_view, ops
from napari_materialize import uses as uses_room
from napari_materialize.blocks import BlockLimits
from napari_materialize.pace import Pace
from napari_materialize.uses import Uses, first_region
from readback import opened


@st.composite
def cases(draw: st.DrawFn) -> tuple[nm.View, Box]:
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=2, max_size=3)))
    chunks = tuple(draw(st.integers(1, 12)) for _ in shape)
    chain = draw(
        st.sampled_from(
            [
                "gaussian:sigma=1",
                ops.Function(np.negative, halo=5, dtype="u1", name="f", version="1"),
                "invert",
                Stack(channels=3, halo=2),
            ]
        )
    )
    # not an array in memory, whose blocks are made of no chunks
    view = RecordingArray(np.zeros(shape, "u1"), chunks).view(chain)
    sizes = view.levels[0].shape
    corners = [sorted(draw(st.tuples(*2 * [st.integers(0, n)]))) for n in sizes]
    box = Box(tuple(low for low, _ in corners), tuple(high for _, high in corners))
    return view, box


@given(case=cases(), order=st.randoms(use_true_random=False))
def test_an_input_is_over_with_the_last_chunk_that_needs_it(case, order):
    view, box = case
    stage = view.stages[-1]
    found = first_region(stage, 0, box)
    if found is None:
        assert box.is_empty
        return
    assert found[:2] == (stage, 0)
    region = found[2]
    chunks = list(itertools.product(*map(range, region.start, region.stop)))
    assume(len(chunks) <= 150)  # each is compared with all that are left
    places = {tuple(stage.makes(0, [chunk])): chunk for chunk in chunks}  # made along with others
    order.shuffle(todo := list(places.values()))
    uses, over = Uses(stage, 0, region), Counter()
    left = {chunk: set(stage.inputs(0, [chunk])) for chunk in todo}
    for chunk in todo:
        mine = left.pop(chunk)
        ended, still = uses.done(stage.makes(0, [chunk]))
        assert {*ended, *still} == mine
        for part in ended:
            over[part] += 1
            assert not any(part in needs for needs in left.values())
        for part in still:
            whole = stage.previous.levels[0].grid.box(part)
            reaches = [stage.reach(0, [user]) for user, needs in left.items() if part in needs]
            shares = [reach.intersect(whole) for reach in reaches]
            rest = uses.rest(part)
            assert all(rest.contains(share) for share in shares)
            assert rest.start == tuple(
                map(min, zip(*(share.start for share in shares), strict=True))
            )
            assert rest.stop == tuple(map(max, zip(*(share.stop for share in shares), strict=True)))
    needed = set().union(*(stage.inputs(0, [chunk]) for chunk in todo))
    assert over == Counter(dict.fromkeys(needed, 1))


def test_what_is_computed_again_or_outside_takes_nothing_from_what_is_left():
    view = open_view(np.zeros((8, 80), "u1"), "gaussian:sigma=1", chunks=(8, 10))
    uses = Uses(view.stages[-1], 0, Box((0, 2), (1, 6)))
    assert uses.done([(0, 2)]) == ([(0, 1)], [(0, 2), (0, 3)])
    assert uses.done([(0, 2)]) == ([(0, 1)], [(0, 2), (0, 3)])
    assert uses.done([(0, 1), (0, 6)]) == ([], [])
    assert uses.done([(0, 3), (0, 2)]) == ([(0, 2), (0, 1)], [(0, 3), (0, 4)])
    assert uses.rest((0, 3)) == Box((0, 36), (8, 40))


def test_earlier_stages_reach_further():
    chain = [Stack(halo=2), "select:channel=0"]
    view = open_view(np.zeros((8, 40), "u1"), chain, chunks=(8, 10))
    found = first_region(view.stages[-1], 0, Box((0, 20), (8, 30)))
    assert found == (view.stages[1], 0, Box((0, 0, 2), (1, 1, 3)))
    wider = [Stack(halo=2), "select:channel=0", "gaussian:sigma=1"]
    view = open_view(np.zeros((8, 40), "u1"), wider, chunks=(8, 10))
    assert first_region(view.stages[-1], 0, Box((0, 20), (8, 30)))[2] == Box((0, 0, 1), (1, 1, 4))
    assert first_region(open_view(np.zeros((8, 40))).stages[-1], 0, Box((0, 0), (8, 40))) is None


def test_a_job_holds_few_source_chunks_and_reads_each_once():
    data = np.random.default_rng(0).integers(0, 99, (8, 8, 256)).astype("u1")
    array = RecordingArray(data, (8, 8, 8))
    most = 0
    with Engine(slots=2) as engine:

        def look(_: object) -> None:
            nonlocal most
            most = max(most, engine.stats()["bytes"]["inputs"])

        done = engine.materialize(array.view("gaussian:sigma=1"), MemoryStore(), on_progress=look)
        assert engine.stats()["bytes"]["inputs"] == 0
        reasons = {event.reason for event in engine.events()}
    assert done.written == 32
    assert max(Counter(array.reads).values()) == 1
    assert most <= 20 * 8**3  # of 32: what is asked for at a time, and a neighbour on each side
    assert "no chunk of the job needs it any more" in reasons


@pytest.fixture
def _cut_small_ones(monkeypatch):
    monkeypatch.setattr(uses_room, "CUT_BYTES", 1)


def held_of_a_walk(engine: Engine, view: nm.View, box: Box) -> tuple[int, int, set[int]]:
    """Claim the chunks of a box one by one, let each go; return what inputs held, by count."""
    most, rests, sizes = 0, 0, set()
    with engine.working_on(view, 0, box):
        for index in view.walk(0, box):
            with engine.claim(view, 0, index, background=True) as claim:
                claim.result(60)
            most = max(most, engine.stats()["bytes"]["inputs"])
            entries = engine._dispatch.cache
            cut = [key for key in entries.resident() if key.stage.endswith(" rest")]
            rests += len(cut)
            sizes |= {entries.peek(key).nbytes for key in cut}
    return most, rests, sizes


@pytest.mark.usefixtures("_cut_small_ones")
def test_of_a_chunk_only_the_margin_is_held_that_is_still_needed():
    """A halo of 4 in chunks of 32: seven eighths are let go."""
    array = RecordingArray(np.ones((32, 32 * 16), "u1"), (32, 32))
    view, box = array.view("gaussian:sigma=1"), Box((0, 0), (32, 32 * 16))
    with Engine(slots=2) as engine:
        most, rests, sizes = held_of_a_walk(engine, view, box)
        assert engine.stats()["bytes"]["inputs"] == 0
    assert len(array.reads) == 16  # each once
    assert (rests, sizes) == (15, {32 * 4})
    assert most == 32 * 32 + 32 * 4  # the margin of the chunk before, and the next one whole


@pytest.mark.usefixtures("_cut_small_ones")
@pytest.mark.parametrize("slots", [1, 3])
def test_a_job_that_holds_margins_computes_what_the_whole_says(slots):
    voxels = np.random.default_rng(0).integers(0, 255, (50, 45, 70), dtype="u1")
    array = RecordingArray(voxels, (9, 8, 10))
    store = MemoryStore()
    # without blocks, which grow by the clock: one of all chunks leaves no margin to hold
    with Engine(slots=slots, nice=0, block_bytes=1) as engine:
        engine.materialize(array.view("gaussian:sigma=0.6"), store, compression=None)
        assert engine.stats()["bytes"]["inputs"] == 0
        assert any(event.key.stage.endswith(" rest") for event in engine.events())
    assert len(array.reads) == 6 * 6 * 7
    whole = open_view(voxels, "gaussian:sigma=0.6", chunks=voxels.shape)
    with Engine() as engine:
        expected = engine.array(whole, 0)[:]
    found = opened(store)[:]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("_cut_small_ones")
@pytest.mark.parametrize("cheap", [True, False])
def test_of_what_is_cheap_to_read_again_few_chunks_are_held_ahead(monkeypatch, cheap):
    """Layers of 6 x 6 chunks; what is needed whole in 8 chunks' time is held until then."""
    monkeypatch.setattr(Pace, "reads_cheaply", lambda *_: cheap)
    monkeypatch.setattr(uses_room, "AHEAD_VOXELS", 8 * 12**3)
    voxels = np.random.default_rng(0).integers(0, 255, (36, 72, 72), dtype="u1")
    array = RecordingArray(voxels, (12, 12, 12))
    view, box = array.view("gaussian:sigma=0.25"), Box((0, 0, 0), voxels.shape)  # a halo of 1
    found, most = np.zeros_like(voxels), 0
    with Engine(slots=2, nice=0, block_bytes=1) as engine, engine.working_on(view, 0, box):
        for index in view.walk(0, box):
            with engine.claim(view, 0, index, background=True) as claim:
                found[view.levels[0].grid.box(index).slices] = claim.result(60)
            most = max(most, engine.stats()["bytes"]["inputs"])
        assert engine.stats()["bytes"]["inputs"] == 0
    whole = open_view(voxels, "gaussian:sigma=0.25", chunks=voxels.shape)
    with Engine() as engine:
        np.testing.assert_array_equal(found, engine.array(whole, 0)[:])
    assert len(Counter(array.reads)) == 3 * 6 * 6
    if cheap:
        assert len(array.reads) > 3 * 6 * 6
        assert most <= 48 * 12**3
    else:
        assert len(array.reads) == 3 * 6 * 6
        assert most >= 55 * 12**3


def test_of_a_chunk_far_ahead_counts_what_is_needed_before(monkeypatch):
    view = RecordingArray(np.zeros((80, 80), "u1"), (8, 8)).view("gaussian:sigma=1")
    uses = Uses(view.stages[-1], 0, Box((0, 0), (10, 10)))
    part, alone = (0, 2), (1, 1)
    whole = Box((0, 16), (8, 24))
    uses.done([(0, 0), (0, 1)])
    assert uses.rest(part, alone) == whole  # its place comes soon enough
    monkeypatch.setattr(uses_room, "AHEAD_VOXELS", 8**2)
    assert uses.rest(part) == whole
    assert uses.rest(part, (4, 4)) == whole  # it is computed in the same call
    assert uses.rest(part, alone) == Box((4, 16), (8, 20))  # for the chunk at (1, 1)
    monkeypatch.setattr(uses_room, "AHEAD_VOXELS", 0)
    uses.done([(1, 0), (1, 1)])
    assert uses.rest(part, alone) is None


def test_what_is_cheap_to_read_again():
    view = RecordingArray(np.zeros((8, 64), "u1"), (8, 8)).view("gaussian:sigma=1")
    source, stage = view.stages

    def cheap(reading: float, share: float) -> bool:
        pace = Pace(BlockLimits())
        pace.measure(stage, 0, [(0, 0)], 1.0)
        pace.note_share(stage, 0.9)
        assert not pace.reads_cheaply(stage, 0)  # nobody knows yet
        pace.measure(source, 0, [(0, 0)], reading)
        pace.note_share(source, share)
        return pace.reads_cheaply(stage, 0)

    assert cheap(0.1, share=0.9)
    assert not cheap(2.0, share=0.9)  # more work than to compute
    assert not cheap(0.1, share=0.05)  # it waits: for a server


@pytest.mark.usefixtures("_cut_small_ones")
def test_a_client_gets_a_whole_chunk_where_a_job_holds_a_margin():
    voxels = np.arange(32 * 32 * 4, dtype="u2").reshape(32, -1)
    array = RecordingArray(voxels, (32, 32))
    view = array.view("gaussian:sigma=1")
    plain = nm.View.of(view.source, [])
    with Engine(slots=2) as engine, engine.working_on(view, 0, Box((0, 0), voxels.shape)):
        for index in ((0, 0), (0, 1)):
            with engine.claim(view, 0, index, background=True) as claim:
                claim.result(60)
        assert any(key.stage.endswith(" rest") for key in engine._dispatch.cache.resident())
        np.testing.assert_array_equal(engine.array(plain, 0)[:, :64], voxels[:, :64])
        other = nm.View.of(view.source, [ops.Gaussian(2.0, dtype="float32")])
        with Engine(slots=2) as fresh:
            np.testing.assert_array_equal(
                engine.array(other, 0)[:, :64], fresh.array(other, 0)[:, :64]
            )


@pytest.mark.usefixtures("_cut_small_ones")
def test_a_margin_that_does_not_reach_far_enough_is_not_taken():
    """A view with a larger halo, in a job of its own, over the same source."""
    voxels = np.random.default_rng(0).integers(0, 255, (32, 128), dtype="u1")
    array = RecordingArray(voxels, (32, 32))
    near = array.view("gaussian:sigma=1")
    far = nm.View.of(near.source, [ops.Gaussian(2.0)])
    box = Box((0, 0), voxels.shape)
    with Engine(slots=2) as engine, engine.working_on(near, 0, box):
        for index in ((0, 0), (0, 1)):
            with engine.claim(near, 0, index, background=True) as claim:
                claim.result(60)
        with engine.claim(far, 0, (0, 2), background=True) as claim:
            found = claim.result(60).copy()
    assert Counter(array.reads) == {(0, 0): 1, (0, 1): 2, (0, 2): 1, (0, 3): 1}
    with Engine(slots=2) as engine:
        np.testing.assert_array_equal(found, engine.array(far, 0)[:, 64:96])


def test_what_a_client_needed_stays_when_a_job_is_done_with_it():
    array = RecordingArray(np.ones((8, 64), "u1"), (8, 8))
    view = array.view("gaussian:sigma=1")
    with Engine(slots=2) as engine:
        seen = engine.array(view, 0)[:, :8]
        engine.materialize(view, MemoryStore())
        reads = len(array.reads)
        other = nm.View.of(view.source, [ops.Gaussian(1.0, dtype="float32")])
        np.testing.assert_allclose(engine.array(other, 0)[:, :8], seen, atol=0.5)
        assert len(array.reads) == reads
        assert engine.stats()["bytes"]["inputs"] == 2 * 64  # chunk 0 and the one its halo reaches


def test_two_jobs_over_the_same_let_nothing_go_early():
    array = RecordingArray(np.ones((8, 64), "u1"), (8, 8))
    view = array.view("gaussian:sigma=1")
    with Engine(slots=2) as engine, engine.working_on(view, 0, Box((0, 0), (8, 64))):
        engine.materialize(view, MemoryStore())
        assert engine.stats()["bytes"]["inputs"] == 8 * 64
