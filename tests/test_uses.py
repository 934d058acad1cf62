"""Source chunks that a job alone needs are let go after their last use, and never before."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import napari_materialize as nm
from doubles import RecordingArray, Stack
from napari_materialize import Box, Engine, MemoryStore, open_view, ops
from napari_materialize.uses import Uses, first_region


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
    view = open_view(np.zeros(shape, "u1"), chain, chunks=chunks)
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
    places = {tuple(stage.makes(0, [chunk])): chunk for chunk in chunks}  # made along with others
    order.shuffle(todo := list(places.values()))
    uses, over = Uses(stage, 0, region), Counter()
    left = {chunk: set(stage.inputs(0, [chunk])) for chunk in todo}
    for chunk in todo:
        mine = left.pop(chunk)
        for part in uses.done(stage.makes(0, [chunk])):
            over[part] += 1
            assert not any(part in needs for needs in left.values())
            assert part in mine
    needed = set().union(*(stage.inputs(0, [chunk]) for chunk in todo))
    assert over == Counter(dict.fromkeys(needed, 1))


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
