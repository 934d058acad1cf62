"""The engine: queue, cache and views together; by hand, and with real threads."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from doubles import Gate, RecordingArray, Stack, cranked
from napari_materialize import Engine, MemoryStore, open_view, ops
from napari_materialize.cache import ChunkState
from napari_materialize.errors import (
    ChunkError,
    ClaimReleased,
    EngineClosed,
    LevelError,
    OptionError,
    TransitionError,
)


def numbers(shape=(8,), chunks=(2,), ndim=2):
    """Return a recording array of 1 x n voxels, counting up."""
    full, pieces = (1, *shape), (1, *chunks)
    return RecordingArray(np.arange(int(np.prod(full))).reshape(full), pieces)


# ---------------------------------------------------------------------- claims


def test_one_computation_serves_every_claim():
    engine, workers = cranked(slots=2)
    gate = Gate()
    view = numbers().view(gate.op)
    claims = [engine.claim(view, 0, (0, 1), background=b) for b in (True, False, False)]
    workers.run_all()
    late = engine.claim(view, 0, (0, 1))
    assert all(claim.result() is late.result() for claim in claims)
    assert late.result().tolist() == [[3, 4]]
    assert gate.counts == {2: 1}


def test_a_claim_is_a_claim_on_what_it_needs():
    engine, workers = cranked(slots=1, readers=1)
    source = numbers()
    view = source.view("gaussian:sigma=0.3")
    engine.claim(view, 0, (0, 0), background=True)
    engine.claim(view, 0, (0, 3), background=True)
    engine.claim(view, 0, (0, 2))
    workers.run_all()
    # the first chunk's inputs were being read; then the client's came before the rest of the job's
    assert source.reads == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_neighbours_with_halos_read_each_source_chunk_once():
    source = RecordingArray(np.arange(400).reshape(20, 20), (4, 4))
    view = source.view("gaussian:sigma=0.5")
    with Engine(slots=3) as engine:
        out = engine.array(view)[:]
    assert sorted(source.reads) == sorted({(i, j) for i in range(5) for j in range(5)})
    np.testing.assert_array_equal(
        out, oracle.run(source.array, [("gaussian", {"sigma": 0.5})], "edge")
    )


def test_a_released_claim_is_dropped_unrun_and_says_so():
    engine, workers = cranked(slots=1)
    gate = Gate()
    view = numbers().view(gate.op)
    kept, given_up = (engine.claim(view, 0, (0, i)) for i in (0, 1))
    given_up.release()
    given_up.release()
    workers.run_all()
    assert kept.done
    assert gate.counts == {0: 1}
    assert engine.state(view, 0, (0, 1)) is ChunkState.NEW
    with pytest.raises(ClaimReleased):
        given_up.result()


def test_who_claims_several_chunks_is_told_at_once_of_those_that_are_over_at_once():
    engine, workers = cranked(slots=2, along=True, rows=4)
    view = open_view(np.arange(32).reshape(2, 16), ["invert"], chunks=(2, 2))
    told = []
    claims = engine.claim_all(
        view, 0, [(0, i) for i in range(8)], background=True, together=told.append
    )
    lone = engine.claim_all(view, 0, [(0, 0)], together=told.append)  # a client's ends its row
    workers.run_all()
    assert all(claim.done for claim in (*claims, *lone))
    assert sorted(claim.key.chunk for some in told for claim in some) == [
        (0, 0),
        *((0, i) for i in range(8)),
    ]
    assert max(map(len, told)) == 4
    assert all(len({claim.together for claim in some}) == 1 for some in told)


def test_claims_that_are_given_up_are_told_of_once_each(caplog):
    engine, workers = cranked(slots=1)
    view = open_view(np.arange(32).reshape(2, 16), ["invert"], chunks=(2, 2))
    told, cancel = [], threading.Event()

    def together(claims):
        told.extend(claims)
        raise RuntimeError("a mistake")

    options = {"background": True, "cancel": cancel, "together": together}
    claims = engine.claim_all(view, 0, [(0, i) for i in range(8)], **options)
    workers.run_all()
    engine.release_all(claims[:4])
    more = engine.claim_all(view, 0, [(0, i) for i in range(4)], **options)
    engine.release_all(more[:1])
    cancel.set()
    workers.run_all()
    engine.claim(view, 0, (0, 7))  # whoever comes next finds the event set
    assert sorted(map(id, told)) == sorted(map(id, (*claims, *more)))
    assert caplog.text.count("a callback of claims on") >= 2  # logged, and the engine goes on
    engine.close()


def test_a_claim_that_is_cancelled_starts_nothing():
    engine, workers = cranked(slots=1)
    gate = Gate()
    view = numbers().view(gate.op)
    cancel = threading.Event()
    claims = [engine.claim(view, 0, (0, i), background=True, cancel=cancel) for i in range(4)]
    workers.step("background read")
    cancel.set()
    workers.run_all()
    assert gate.calls == []
    other = engine.claim(view, 0, (0, 0))
    workers.run_all()
    assert other.result().tolist() == [[1, 2]]
    for claim in claims:
        assert claim.released
        with pytest.raises(ClaimReleased):
            claim.result(60)


def test_an_op_that_looks_stops_when_nobody_waits_any_more():
    started, go = threading.Event(), threading.Event()

    class Patient(ops.Op):
        name = "patient"
        parameters = {}  # noqa: RUF012 - a double

        def describe(self, level, kind):
            return ops.Description(level, kind)

        def compute(self, block, level, abandoned=ops.never):
            started.set()
            go.wait(60)
            if abandoned():
                raise ops.Abandoned
            return block

    view = numbers().view(Patient())
    with Engine(slots=1) as engine:
        claim = engine.claim(view, 0, (0, 0))
        started.wait(60)
        claim.release()
        go.set()
        again = engine.claim(view, 0, (0, 0))
        assert again.result(60).tolist() == [[0, 1]]
        reasons = [e.reason for e in engine.events(view)]
    assert reasons[-1] == "finished"


def test_result_waits_no_longer_than_told():
    engine, workers = cranked(slots=1)
    claim = engine.claim(numbers().view(), 0, (0, 0))
    with pytest.raises(TimeoutError):
        claim.result(timeout=0)
    workers.run_all()
    assert claim.result(timeout=0).tolist() == [[0, 1]]


def test_callbacks_are_called_once_at_once_or_later():
    engine, workers = cranked(slots=1)
    told = []
    claim = engine.claim(numbers().view(), 0, (0, 0))
    claim.add_done_callback(told.append)
    assert told == []
    workers.run_all()
    claim.add_done_callback(told.append)
    assert told == [claim, claim]


def test_what_is_not_there_is_refused():
    view = numbers().view()
    with Engine(slots=1) as engine:
        with pytest.raises(LevelError, match="levels 0 to 0"):
            engine.claim(view, 1, (0, 0))
        with pytest.raises(IndexError, match="chunk"):
            engine.claim(view, 0, (0, 99))
    with pytest.raises(OptionError, match="slots"):
        Engine(slots=0)
    with pytest.raises(OptionError, match=r"whole, got 1\.5"):
        Engine(slots=1.5)
    with Engine(slots=np.int64(2), readers=np.int64(3)) as engine:
        assert engine.slots == 2


# ---------------------------------------------------------------------- caches


@pytest.mark.parametrize("what", ["em.zarr", np.zeros((4, 4)), None])
def test_what_is_no_view_is_one_sentence(what):
    with Engine(slots=1) as engine:
        for ask in (
            lambda: engine.claim(what, 0, (0, 0)),
            lambda: engine.array(what),
            lambda: engine.materialize(what, MemoryStore()),
            lambda: engine.estimate(what, MemoryStore()),
        ):
            with pytest.raises(OptionError, match=f"got {type(what).__name__}; open it"):
                ask()


def test_what_only_background_asked_for_is_not_kept():
    engine, workers = cranked(slots=2)
    view = numbers().view(Gate().op)
    background = engine.claim(view, 0, (0, 0), background=True)
    both = [engine.claim(view, 0, (0, 1), background=b) for b in (True, False)]
    workers.run_all()
    for claim in (background, *both):
        claim.release()
    assert engine.resident(view) == [(0, (0, 1))]
    assert engine.state(view, 0, (0, 0)) is ChunkState.EVICTED


def test_the_chunk_budget_holds_and_inputs_have_their_own():
    source = numbers((16,), (2,))
    view = source.view(Gate().op)
    with Engine(slots=2, chunk_bytes=2 * 16, input_bytes=3 * 16) as engine:
        array = engine.array(view)
        for start in range(0, 16, 2):
            assert array[0, start] == start + 1
        assert engine.resident(view) == [(0, (0, 6)), (0, (0, 7))]
        assert engine.stats()["bytes"] == {"none": 0, "inputs": 48, "stages": 0, "chunks": 32}


def test_a_job_leaves_what_the_viewer_looked_at():
    """A region 20 times both budgets goes through, and the viewer's chunks are still there."""
    source = numbers((800,), (2,))
    with Engine(slots=2, chunk_bytes=20 * 16, stage_bytes=20 * 16, input_bytes=4 * 16) as engine:
        view = source.view(Gate().op)
        engine.array(view)[0, :32]
        looked_at = engine.resident(view)
        assert len(looked_at) == 16
        done = engine.materialize(view, MemoryStore())
        assert done.written == 400
        assert engine.resident(view) == looked_at
        held = engine.stats()["bytes"]
    assert held["chunks"] == 16 * 16
    assert held["none"] == 0
    assert held["inputs"] <= 4 * 16


def test_changing_a_late_op_computes_again_only_from_there():
    early = Gate()

    class Kept(ops.Function):
        kept = True

    first = Kept(early, dtype="int64", name="early", version="1")
    source = numbers()
    base = source.view(first)
    with Engine(slots=2) as engine:
        low = engine.array(base.then([ops.Threshold(low=3)]))[:]
        high = engine.array(base.then([ops.Threshold(low=5)]))[:]
    assert low.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1]]
    assert high.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert early.counts == {0: 1, 2: 1, 4: 1, 6: 1}
    assert len(source.reads) == 4


def basic(array, rows, columns):
    return array[rows, columns]


def outer(array, rows, columns):
    """Ask for the same voxels by index arrays."""
    columns = columns if isinstance(columns, slice) else slice(columns, columns + 1)
    picked = array.oindex[np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)]
    return picked if picked.shape[1] > 1 else picked[:, 0]


@pytest.mark.parametrize("read", [basic, outer])
def test_the_scenario_of_the_caches_ancestor(read):
    source = RecordingArray(np.arange(48).reshape(6, 8), (3, 4))
    view = source.view()
    with Engine(slots=2, chunk_bytes=2 * 3 * 4 * 8) as engine:
        array = engine.array(view)

        def reads():
            new, source.reads = sorted(source.reads), []
            return new

        def resident():
            return [index for _, index in engine.resident(view)]

        assert read(array, slice(1, 5), 2).tolist() == [10, 18, 26, 34]
        assert reads() == [(0, 0), (1, 0)]
        assert read(array, slice(3, 5), 2).tolist() == [26, 34]
        assert reads() == []
        assert read(array, slice(0, 2), 5).tolist() == [5, 13]
        assert reads() == [(0, 1)]
        assert resident() == [(0, 1), (1, 0)]
        assert read(array, slice(1, 5), 2).tolist() == [10, 18, 26, 34]
        assert reads() == [(0, 0)]
        assert resident() == [(0, 0), (1, 0)]

        source.broken[1, 1] = OSError("unreadable")
        for expected in ([(1, 1)], []):
            with pytest.raises(
                ChunkError, match=r"chunk \(1, 1\) of level 0.*unreadable"
            ) as caught:
                read(array, slice(3, 5), slice(4, 6))
            assert isinstance(caught.value.__cause__, OSError)
            assert reads() == expected
        assert engine.state(view, 0, (1, 1)) is ChunkState.FAILED
        del source.broken[1, 1]
        engine.retry(view, 0, (1, 1))
        assert read(array, slice(3, 5), slice(4, 6)).tolist() == [[28, 29], [36, 37]]
        assert reads() == [(1, 1)]
        went = [e.after.value for e in engine.events(view) if e.key.chunk == (1, 1)]
        assert went == ["queued", "loading", "failed", "queued", "loading", "ready"]


# ---------------------------------------------------------------------- failures


def test_a_failing_op_fails_its_chunk_alone_and_is_not_run_again():
    calls = []

    def touchy(block):
        calls.append(block[0, 0])
        if block[0, 0] == 2:
            raise KeyError("any exception")
        return block

    view = numbers().view(ops.Function(touchy, dtype="int64", name="touchy", version="1"))
    with Engine(slots=2) as engine:
        array = engine.array(view)
        for _ in range(3):
            with pytest.raises(ChunkError, match=r"touchy.*KeyError"):
                array[0, 2]
        assert array[0, 4] == 4
        assert sorted(calls) == [2, 4]
        assert engine.stats()["failures"] == 1
        with pytest.raises(TransitionError, match="did not fail"):
            engine.retry(view, 0, (0, 2))


class Mute(ValueError):
    def __str__(self):
        raise LookupError("no words")


def circular():
    """Return an error whose causes lead back to it."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Mute(), r"Mute: \(its text could not be made: LookupError\)"),
        (circular(), "ValueError: first"),
        (SystemExit(3), "SystemExit: 3"),
        (MemoryError(), "failed: MemoryError$"),
        (KeyboardInterrupt(), "failed: KeyboardInterrupt$"),
    ],
)
def test_whatever_an_op_raises_is_its_chunks_failure(error, said):
    def fails(block):
        if block[0, 0] == 2:
            raise error
        return block

    view = numbers().view(ops.Function(fails, dtype="int64", name="fails", version="1"))
    with Engine(slots=2) as engine:
        claim = engine.claim(view, 0, (0, 1))
        with pytest.raises(ChunkError, match=said):
            claim.result(60)
        assert engine.array(view)[0, 4] == 4
        assert engine.materialize(view, MemoryStore(), on_error="collect").failed == 1


def test_a_failed_input_fails_what_needs_it_and_is_retried_with_it():
    source = numbers()
    source.broken[0, 1] = OSError("unreadable")
    gate = Gate()
    view = source.view(gate.op)
    with Engine(slots=1) as engine:
        array = engine.array(view)
        with pytest.raises(ChunkError, match="unreadable"):
            array[0, 2]
        assert gate.calls == []
        del source.broken[0, 1]
        with pytest.raises(ChunkError, match="unreadable"):
            array[0, 2]
        engine.retry(view, 0, (0, 1))
        assert array[0, 2] == 3
    assert source.reads.count((0, 1)) == 2


def test_a_failure_keeps_no_voxels_alive():
    blocks = []

    def fail(block):
        blocks.append(weakref.ref(block.base if block.base is not None else block))
        raise ValueError("no")

    view = numbers().view(ops.Function(fail, dtype="int64", name="fail", version="1"))
    engine, workers = cranked(slots=1, input_bytes=0)
    claim = engine.claim(view, 0, (0, 0))
    workers.run_all()
    with pytest.raises(ChunkError):
        claim.result()
    gc.collect()
    assert [block() is None for block in blocks] == [True]


def test_a_sibling_of_a_retried_chunk_asks_for_the_shared_input_again():
    source = numbers()
    source.broken[0, 1] = OSError("unreadable")
    op = ops.Function(lambda b: b[1:-1, 1:-1], halo=1, dtype="int64", name="crop", version="1")
    view = source.view(op)
    engine, workers = cranked(slots=1)
    first = engine.claim(view, 0, (0, 0))
    while not first.done:
        workers.step()
    second = engine.claim(view, 0, (0, 2))  # waits, with the failed input noted
    source.broken.clear()
    engine.retry(view, 0, (0, 0))
    workers.run_all()
    assert second.result().tolist() == [[4, 5]]
    assert engine.claim(view, 0, (0, 0)).result().tolist() == [[0, 1]]


def test_an_op_that_cannot_say_what_it_needs_fails_its_own_chunks_alone():
    class Lost(ops.Function):
        def halo(self, level):
            if self.fn.armed:
                raise LookupError("no halo today")
            return (0,) * level.ndim

    class Same:
        armed = False

        def __call__(self, block):
            return block

    fn = Same()
    lost = numbers().view(Lost(fn, dtype="int64", name="lost", version="1"))
    fine = numbers().view(Gate().op)
    fn.armed = True
    with Engine(slots=1) as engine:
        with pytest.raises(ChunkError, match="no halo today"):
            engine.claim(lost, 0, (0, 0)).result(60)
        assert engine.claim(fine, 0, (0, 0)).result(60).tolist() == [[1, 2]]


def test_a_callback_that_raises_harms_nobody_else(caplog):
    def bad(claim):
        raise ValueError("a mistake")

    view = numbers().view(Gate().op)
    with Engine(slots=1) as engine:
        told = threading.Event()
        claim = engine.claim(view, 0, (0, 0))
        claim.add_done_callback(bad)
        claim.add_done_callback(lambda _: told.set())  # nor whoever is told after it
        assert engine.claim(view, 0, (0, 1)).result(60).tolist() == [[3, 4]]
        assert engine.claim(view, 0, (0, 2)).result(60).tolist() == [[5, 6]]
        assert told.wait(60)
    assert "a mistake" in caplog.text


# ---------------------------------------------------------------------- channels made at once


def test_channels_that_are_made_at_once_are_computed_once():
    source, stack = numbers(), Stack(channels=3)
    view = source.view(stack)
    engine, workers = cranked(slots=2)
    first = engine.claim(view, 0, (1, 0, 0))
    second = engine.claim(view, 0, (2, 0, 0), background=True)
    workers.run_all()
    assert first.result().tolist() == [[[1, 2]]]
    assert second.result().tolist() == [[[2, 3]]]
    assert engine.claim(view, 0, (0, 0, 0)).done
    assert stack.calls == [0]
    assert len(source.reads) == 1
    expected = np.stack([source.array + k for k in range(3)])
    with Engine(slots=2) as other:
        np.testing.assert_array_equal(other.array(view)[:], expected)
    assert len(stack.calls) == 5


# ---------------------------------------------------------------------- reading like numpy

SLICES = st.one_of(
    st.integers(-6, 5),
    st.builds(slice, st.integers(-8, 8), st.integers(-8, 8), st.sampled_from([None, 1, 2, 3])),
    st.just(slice(None)),
)


@given(key=st.tuples(SLICES, SLICES), then=SLICES)
def test_reading_equals_numpy(key, then):
    array = np.arange(48).reshape(6, 8)
    with Engine(slots=1) as engine:
        reader = engine.array(open_view(array, chunks=(3, 4)))
        expected = array[key]
        np.testing.assert_array_equal(reader[key], expected)
        np.testing.assert_array_equal(np.asarray(reader.lazy[key]), expected)
        if expected.ndim and isinstance(then, slice):
            np.testing.assert_array_equal(reader.lazy[key][then].result(), expected[then])


@given(
    rows=st.lists(st.integers(0, 5), max_size=5), columns=st.lists(st.integers(0, 7), max_size=5)
)
def test_outer_products_equal_numpy(rows, columns):
    array = np.arange(48).reshape(6, 8)
    with Engine(slots=1) as engine:
        reader = engine.array(open_view(array, chunks=(3, 4)))
        rows, columns = np.array(rows, int), np.array(columns, int)
        np.testing.assert_array_equal(reader.oindex[rows, columns], array[np.ix_(rows, columns)])


def test_a_reader_says_what_it_is():
    view = open_view(np.zeros((6, 8), "u1"), chunks=(3, 4))
    with Engine(slots=1) as engine:
        reader = engine.array(view)
        assert (reader.shape, reader.ndim, reader.size, len(reader)) == ((6, 8), 2, 48, 6)
        assert (reader.chunks, reader.dtype) == ((3, 4), np.dtype("u1"))
        assert np.asarray(reader, dtype="f4").dtype == np.float32
        assert reader[0, 0] == 0
        with pytest.raises(ValueError, match="copy"):
            np.array(reader.lazy, copy=False)
        with pytest.raises(IndexError):
            reader[99]


def test_a_large_read_goes_in_portions(monkeypatch):
    from napari_materialize import reader as reader_room

    monkeypatch.setattr(reader_room, "HELD_BYTES", 3 * 16)
    source = numbers((40,), (2,))
    engine, workers = cranked(slots=1)
    array = engine.array(source.view())
    done = threading.Event()
    out = []
    thread = threading.Thread(target=lambda: (out.append(array[0]), done.set()), daemon=True)
    thread.start()
    most = 0
    while not done.wait(0.001):
        most = max(most, len(engine._dispatch._tickets))
        workers.step()
    np.testing.assert_array_equal(out[0], np.arange(40))
    assert 1 <= most <= 3


# ---------------------------------------------------------------------- ending


def test_closing_tells_everybody_who_waits():
    gate = Gate(shut=True)
    view = numbers().view(gate.op)
    engine = Engine(slots=1)
    claim = engine.claim(view, 0, (0, 0))
    gate.entered.acquire(timeout=60)
    waiting = engine.claim(view, 0, (0, 1), background=True)
    engine.close()
    engine.close()
    for each in (claim, waiting):
        with pytest.raises(EngineClosed):
            each.result(60)
    with pytest.raises(EngineClosed):
        engine.claim(view, 0, (0, 2))
    assert engine.closed
    gate.open.set()


def test_closing_ends_a_read_that_waits():
    gate = Gate(shut=True)
    view = numbers().view(gate.op)
    engine, problems = Engine(slots=1), []

    def read():
        try:
            engine.array(view)[:]
        except EngineClosed as error:
            problems.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    gate.entered.acquire(timeout=60)
    engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(problems) == 1
    gate.open.set()


def test_a_closed_engines_threads_end():
    gate = Gate()
    view = numbers().view(gate.op)
    before = set(threading.enumerate())
    with Engine(slots=3) as engine:
        engine.array(view)[:]
        mine = set(threading.enumerate()) - before
        assert mine
        assert all(thread.daemon for thread in mine)
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()


def test_two_engines_share_nothing():
    gate = Gate()
    view = numbers().view(gate.op)
    with Engine(slots=1) as one, Engine(slots=1) as other:
        assert one.array(view)[0, 0] == other.array(view)[0, 0] == 1
        assert gate.counts == {0: 2}
        assert other.stats()["computed"] == 1


def test_stats_and_events_say_what_happened():
    engine, workers = cranked(slots=2)
    view = numbers().view(Gate().op)
    first = engine.claim(view, 0, (0, 0))
    engine.claim(view, 0, (0, 1), background=True)
    engine.claim(view, 0, (0, 2)).release()
    stats = engine.stats()
    assert stats["waiting"] == {"client": {0: 1}, "background": {0: 1}}
    assert (
        sum(stats["running"]["client"].values()) + sum(stats["running"]["background"].values()) >= 1
    )
    assert stats["dropped"]["client"] == {0: 2}  # the chunk, and its input
    assert stats["misses"] == 3
    workers.run_all()
    assert engine.claim(view, 0, (0, 0)).result() is first.result()
    stats = engine.stats()
    assert (stats["hits"], stats["computed"], stats["failures"]) == (1, 2, 0)
    assert {e.key.stage for e in engine.events(view)} == {view.identity}
    assert len(engine.events()) > len(engine.events(view))


def test_many_threads_at_random():
    """20,000 claims, reads and releases in 8 threads: every chunk right, nothing left behind."""
    source = RecordingArray(np.arange(16 * 16).reshape(16, 16), (2, 2))
    view = source.view("gaussian:sigma=0.4")
    expected = oracle.run(source.array, [("gaussian", {"sigma": 0.4})], "edge")
    grid = view.levels[0].grid
    problems = []

    with Engine(slots=4, chunk_bytes=1000, input_bytes=1000) as engine:

        def work(seed):
            generator = np.random.default_rng(seed)
            try:
                for _ in range(2_500):
                    index = tuple(int(i) for i in generator.integers(0, 8, 2))
                    background = bool(generator.integers(2))
                    with engine.claim(view, 0, index, background=background) as claim:
                        if generator.integers(2):
                            chunk = claim.result(60)
                            if not np.array_equal(chunk, expected[grid.box(index).slices]):
                                problems.append(index)
            except BaseException as error:
                problems.append(error)
                raise

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        np.testing.assert_array_equal(engine.array(view)[:], expected)
        dispatch = engine._dispatch
        with engine._lock:
            assert not dispatch._claims
            assert not dispatch._tickets
            assert all(not dispatch.queue.wanted(key) for key in dispatch.needs.jobs)


class Hand:
    """Somebody who drags a slider, and may be forgotten."""


@pytest.mark.parametrize("cycle", [False, True], ids=["dropped", "collected"])
def test_background_work_goes_on_when_a_client_that_was_expected_is_garbage(cycle):
    began = threading.Event()

    def fn(block):
        began.set()
        return block

    view = open_view(np.zeros((2, 4), "u1"), [ops.Function(fn, dtype="u1")], chunks=(2, 2))
    with Engine(slots=2) as engine:
        hand = Hand()
        hand.itself = hand if cycle else None
        engine.expect(hand, soon=True)
        claim = engine.claim(view, 0, (0, 1), background=True)
        gone = weakref.ref(hand)
        with engine._lock:  # the garbage collector asks nobody what is locked
            del hand
            gc.collect()
            assert gone() is None
            assert not began.is_set()
        assert claim.result(timeout=60).shape == (2, 2)  # nothing else happened
        claim.release()


def test_a_client_that_is_garbage_after_the_engine_closed_starts_nothing():
    engine, hand = Engine(slots=2), Hand()
    engine.expect(hand, soon=True)
    engine.close()
    threads = threading.active_count()
    del hand
    gc.collect()
    assert threading.active_count() <= threads
