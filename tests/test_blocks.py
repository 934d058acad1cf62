"""Blocks: several chunks in one call where halos make each alone dear, and never for a client."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from doubles import RecordingArray, cranked
from napari_materialize import Box, Engine, MemoryStore, open_view, ops
from napari_materialize.blocks import BlockLimits
from napari_materialize.cache import ChunkState
from napari_materialize.demand import Phase, Queue, Request
from napari_materialize.geometry import walk_blocks
from readback import opened


def blurred(shape=(16, 16), chunks=(4, 4)):
    """Return a view with a halo whose op records the shape of each block, and the record."""
    shapes = []

    def blur(block):
        shapes.append(block.shape)
        return block[2:-2, 2:-2] + 1

    array = np.arange(math.prod(shape)).reshape(shape)
    op = ops.Function(blur, halo=2, dtype="int64", name=f"blur {id(shapes)}", version="1")
    return RecordingArray(array, chunks).view(op), shapes


def warm(engine, workers, view):
    """Let the engine find out how long a voxel takes."""
    claim = engine.claim(view, 0, (3, 3), background=True)
    workers.run_all()
    claim.release()


# ---------------------------------------------------------------------- the shape


@pytest.mark.parametrize(
    ("halo", "seconds", "limit", "expected"),
    [
        (24, None, 1.0, (1, 1, 1)),  # nobody knows how long it takes
        (24, 1e-9, 1.0, (2, 2, 2)),  # 2.6 times the work of what is kept, not 5.4; then memory
        (24, 1e-7, 1.0, (2, 2, 2)),
        (24, 1e-6, 1.0, (1, 1, 1)),  # the time
        (24, 1e-6, 100.0, (2, 2, 2)),
        (0, 1e-9, 1.0, (1, 1, 1)),  # nothing to save
        (1, 1e-9, 1.0, (1, 1, 1)),  # 1.1 times the work: not enough to save
        (6, 1e-9, 1.0, (2, 2, 2)),  # twice the side once more would save 1.14 times
        (9, 1e-9, 1.0, (2, 2, 4)),  # the last axis alone still saves its share; then memory
    ],
)
def test_the_shape_follows_from_halo_memory_and_time(halo, seconds, limit, expected):
    op = ops.Function(lambda block: block, halo=halo, dtype="uint8", name="f", version="1")
    array = np.broadcast_to(np.zeros((), "u1"), (1024, 1024, 1024))
    stage = open_view(array, op, chunks=(64, 64, 64)).stages[-1]
    assert stage.block(0, seconds, BlockLimits(limit)) == expected


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (2**40, (64, 1, 1)),  # 13 planes for one, 76 for 64
        (96 * 2**20, (4, 1, 1)),  # one alone is above that: a quarter more saves two thirds
        (1, (4, 1, 1)),
    ],
)
def test_planes_are_joined_although_one_alone_takes_more_than_the_limit(memory, expected):
    op = ops.Function(lambda block: block, halo=6, dtype="uint8", name="f", version="1")
    array = np.broadcast_to(np.zeros((), "u1"), (512, 1024, 1024))
    stage = open_view(array, op, chunks=(1, 1024, 1024)).stages[-1]
    assert stage.block(0, 1e-9, BlockLimits(memory=memory)) == expected


def test_only_axes_with_a_halo_are_joined_and_no_more_chunks_than_there_are():
    op = ops.Function(lambda b: b, halo=(0, 9, 9), dtype="uint8", name="f", version="1")
    stage = open_view(np.zeros((8, 40, 400), "u1"), op, chunks=(1, 16, 16)).stages[-1]
    assert stage.block(0, 1e-9, BlockLimits()) == (1, 4, 4)
    assert open_view(np.zeros((8, 40)), chunks=(4, 4)).stages[-1].block(0, 1e-9, BlockLimits()) == (
        1,
        1,
    )


@given(
    box=oracle.inside((9, 6, 7)).map(lambda pair: Box(*pair)),
    axes=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_the_walk_meets_each_chunk_once_and_blocks_in_one_run(box, axes):
    walk = list(walk_blocks(box, axes))
    assert sorted(walk) == sorted(walk_blocks(box, (False,) * 3))
    assert len(set(walk)) == len(walk) == box.size
    for power in (2, 4):
        sizes = [power if marked else 1 for marked in axes]
        blocks = [tuple(i // n for i, n in zip(index, sizes, strict=True)) for index in walk]
        runs = [
            block for block, before in zip(blocks, [None, *blocks], strict=False) if block != before
        ]
        assert len(runs) == len(set(runs))


# ---------------------------------------------------------------------- the queue's part


def stage_request(key):
    return Request(key, "compute", has_inputs=True)


def bound_queue():
    queue = Queue({"compute": 2})
    claims = {key: queue.claim(stage_request(key), background=True) for key in "abcd"}
    queue.bind("a", ["b", "c"])
    assert [queue.phase(key) for key in "abcd"] == [
        Phase.WAITING, Phase.BOUND, Phase.BOUND, Phase.WAITING,
    ]  # fmt: skip
    return queue, claims


def test_rule_9_bound_jobs_start_with_the_one_that_leads():
    queue, claims = bound_queue()
    assert queue.admit("compute") == "a"
    queue.expand("a", [])
    assert queue.next("compute") == "a"
    assert queue.start_bound("a") == ["b", "c"]
    assert queue.finish("b").claims == (claims["b"],)
    assert queue.phase("c") is Phase.RUNNING
    assert queue.admit("compute") == "d"


@pytest.mark.parametrize("taken", ["a", "b"])
def test_rule_9_a_clients_claim_dissolves_a_block(taken):
    queue, _ = bound_queue()
    queue.claim(stage_request(taken))
    assert Phase.BOUND not in {queue.phase(key) for key in "abcd"}
    assert queue.admit("compute") == taken
    queue.expand(taken, [])
    assert queue.next("compute") == taken
    assert queue.start_bound(taken) == []


@pytest.mark.parametrize("given_up", ["a", "b"])
def test_the_last_claims_end_dissolves_a_block(given_up):
    queue, claims = bound_queue()
    assert queue.release(claims[given_up]) == [given_up]
    rest = [key for key in "abcd" if key != given_up]
    assert [queue.phase(key) for key in rest] == [Phase.WAITING] * 3
    admitted = []
    while (key := queue.admit("compute")) is not None:
        queue.expand(key, [])
        admitted.append(key)
    assert admitted == rest


def test_what_others_wait_for_is_let_in_when_its_block_dissolves():
    queue = Queue({"compute": 1})
    for root in ("r1", "r2", "r3"):
        queue.claim(stage_request(root), background=True)
    assert queue.admit("compute") == "r1"
    assert queue.expand("r1", [stage_request("p1"), stage_request("p2")]) == ["p1", "p2"]
    queue.bind("p1", ["p2"])
    queue.expand("p1", [])
    assert queue.admit("compute") == "r2"
    queue.expand("r2", [stage_request("p2")])
    queue.claim(stage_request("p1"))  # a client takes it out; two jobs are let in already
    assert queue.admit("compute") == "p2"


def test_what_others_wait_for_is_let_in_even_behind_a_chunk_that_may_not():
    queue = Queue({"compute": 1})
    for root in ("r1", "r2"):
        queue.claim(stage_request(root), background=True)
    assert queue.admit("compute") == "r1"
    queue.expand("r1", [stage_request("p1"), stage_request("p2")])
    queue.bind("p1", ["p2"])
    queue.expand("p1", [])
    assert queue.admit("compute") == "r2"
    queue.expand("r2", [])
    queue.claim(stage_request("other"))
    for root in ("r1", "r2"):  # clients now, two of them let in, and later than the other
        queue.claim(stage_request(root))
    assert queue.admit("compute") == "p2"


def test_a_job_that_is_made_along_with_another_leaves_its_block_whole():
    queue, claims = bound_queue()
    assert queue.join(stage_request("b"))
    assert [queue.phase(key) for key in "acd"] == [Phase.WAITING] * 3
    assert queue.finish("b").claims == (claims["b"],)


def test_only_what_waits_in_the_background_is_bound():
    queue = Queue({"compute": 2})
    queue.claim(stage_request("a"), background=True)
    queue.claim(stage_request("b"))
    with pytest.raises(ValueError, match="only waiting background jobs"):
        queue.bind("a", ["b"])


# ---------------------------------------------------------------------- all together


def test_rule_9_background_chunks_come_in_one_call_and_each_is_fulfilled():
    engine, workers = cranked(slots=2)
    view, shapes = blurred()
    warm(engine, workers, view)
    indices = [(0, 0), (0, 1), (1, 0), (1, 1)]
    claims = engine.claim_all(view, 0, indices, background=True)
    workers.run_all()
    assert shapes == [(8, 8), (12, 12)]
    for index, claim in zip(indices, claims, strict=True):
        box = view.levels[0].grid.box(index)
        np.testing.assert_array_equal(claim.result(), view.source.read(0, box) + 1)
        claim.release()
    went = [e.after.value for e in engine.events(view) if e.key.chunk == (1, 1)]
    assert went == ["queued", "loading", "ready", "evicted"]


def test_rule_9_a_client_takes_its_chunk_out_of_a_waiting_block_and_goes_first():
    engine, workers = cranked(slots=1)
    view, shapes = blurred()
    warm(engine, workers, view)
    busy = engine.claim(view, 0, (3, 2), background=True)
    indices = [(0, 0), (0, 1), (1, 0), (1, 1)]
    claims = engine.claim_all(view, 0, indices, background=True)
    while workers.step("background read"):
        pass
    assert workers.waiting("background") == 1  # the slot is taken; the block waits with its inputs
    client = engine.claim(view, 0, (1, 1))
    order = []
    for claim in (client, *claims[:3]):
        claim.add_done_callback(order.append)
    workers.run_all()
    assert busy.done
    assert order[0] is client
    assert claims[3].result() is client.result()
    # the block goes on without it: a box with a hole is still less work than three chunks alone
    assert shapes[1:] == [(8, 8)] * 3 + [(12, 12)]
    assert engine.stats()["computed"] == 5


def test_rule_9_a_client_shares_a_block_that_runs():
    engine, workers = cranked(slots=2)
    view, shapes = blurred()
    warm(engine, workers, view)
    claims = engine.claim_all(view, 0, [(0, 0), (0, 1), (1, 0), (1, 1)], background=True)
    while workers.step("background read"):
        pass
    assert engine.state(view, 0, (1, 1)) is ChunkState.LOADING
    client = engine.claim(view, 0, (1, 1))
    workers.run_all()
    assert client.result() is claims[3].result()
    assert shapes[1:] == [(12, 12)]
    for claim in (client, *claims):
        claim.release()
    assert engine.resident(view) == [(0, (1, 1))]


def test_a_block_that_nobody_wants_any_more_is_dropped():
    engine, workers = cranked(slots=2)
    view, shapes = blurred()
    warm(engine, workers, view)
    for claim in engine.claim_all(view, 0, [(0, 0), (0, 1), (1, 0), (1, 1)], background=True):
        claim.release()
    workers.run_all()
    assert len(shapes) == 1
    assert engine.stats()["waiting"] == {"client": {}, "background": {}}
    assert {engine.state(view, 0, (i, j)) for i in (0, 1) for j in (0, 1)} == {ChunkState.NEW}


def test_one_bad_chunk_fails_no_other_of_its_block():
    def touchy(block):
        if 17 in block:
            raise ValueError("seventeen")
        return block

    op = ops.Function(touchy, halo=2, dtype="int64", name="touchy", version="1")
    source = RecordingArray(np.arange(256).reshape(16, 16), (4, 4))
    bad = source.view(op)
    with Engine(slots=1) as real:
        done = real.materialize(bad, MemoryStore(), on_error="collect")
        assert real.materialize(bad, MemoryStore(), on_error="collect").failed == done.failed
        array = real.array(bad)
        assert array[9, 9] == 9 * 16 + 9
    # the voxel 17, at (1, 1), lies in chunk (0, 0) and in no other's halo of two voxels
    assert sorted(f.index for f in done.failures) == [(0, 0)]
    assert "chunk (0, 0) of level 0" in done.failures[0].reason
    assert done.written + done.skipped == 15


def test_an_unreadable_input_fails_only_what_needs_it():
    source = RecordingArray(np.ones((16, 16), int), (4, 4))
    op = ops.Function(lambda b: b[2:-2, 2:-2], halo=2, dtype="int64", name="crop", version="1")
    source.broken[0, 0] = OSError("unreadable")
    with Engine(slots=2) as engine:
        done = engine.materialize(source.view(op), MemoryStore(), on_error="collect")
    assert sorted(f.index for f in done.failures) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for failure in done.failures:
        assert f"chunk {failure.index} of level 0" in failure.reason


@settings(max_examples=60)
@given(data=st.data(), array=oracle.arrays(20), chain=oracle.chains())
def test_a_job_in_blocks_stores_the_same(data, array, chain):
    chunks = tuple(data.draw(st.integers(1, 5)) for _ in array.shape)
    view = open_view(array, chain, chunks=chunks)
    start, stop = data.draw(oracle.inside(array.shape))
    stores = [MemoryStore(), MemoryStore()]
    with Engine(slots=2, block_seconds=1e9) as engine:
        for store in stores:
            engine.materialize(
                view,
                store,
                box=Box(start, stop),
                extent="box",
                compression=None,
                skip_empty=False,
                concurrency=data.draw(st.integers(1, 3)),
            )
    expected = oracle.run(array, chain, "edge")[Box(start, stop).slices]
    for store in stores:
        np.testing.assert_array_equal(opened(store)[...], expected)


# ---------------------------------------------------------------------- its memory


@pytest.mark.parametrize("keeps", [False, True])
def test_a_large_blocks_memory_serves_the_next_one_unless_somebody_holds_on_to_it(keeps):
    places, held = [], []

    def look(block):
        places.append(block.__array_interface__["data"][0])
        if keeps:
            held.append(block)
        return block[1:-1, 1:-1] * 2.0

    array = np.random.default_rng(3).random((1200, 1200))
    op = ops.Function(look, halo=1, dtype="float64", name=f"look {keeps}", version="1")
    view = open_view(array, op, chunks=(600, 600))
    engine, workers = cranked()
    with engine:
        claims = [engine.claim(view, 0, index) for index in np.ndindex(2, 2)]
        workers.run_all()
        made = [claim.result() for claim in claims]
    assert len(set(places)) == (4 if keeps else 1)
    for index, block in zip(np.ndindex(2, 2), made, strict=True):
        cut = tuple(slice(600 * n, 600 * n + 600) for n in index)
        assert np.array_equal(block, array[cut] * 2)
    padded = np.pad(array, 1, mode="edge")
    cuts = [tuple(slice(600 * n, 600 * n + 602) for n in index) for index in np.ndindex(2, 2)]
    assert all(any(np.array_equal(block, padded[cut]) for cut in cuts) for block in held)


def test_what_an_op_makes_in_its_large_blocks_memory_stays_as_it_is():
    array = np.random.default_rng(4).random((1200, 1200))
    same = ops.Function(lambda block: block[1:-1, 1:-1], halo=1, dtype="float64")
    store = MemoryStore()
    with Engine() as engine:
        engine.materialize(open_view(array, same, chunks=(600, 600)), store, compression=None)
    assert np.array_equal(opened(store), array)
