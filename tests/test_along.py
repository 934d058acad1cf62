"""Chunks that read by themselves what they are computed from, step by step and with threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from doubles import RecordingArray, cranked
from napari_materialize import Engine, MemoryStore, ops
from napari_materialize.blocks import BlockLimits
from napari_materialize.cache import ChunkState
from napari_materialize.errors import ChunkError
from napari_materialize.pace import Pace

CHUNK, SIDE = 4, 16
CHUNKS = (SIDE // CHUNK) ** 2


def negative(number: int = 0) -> ops.Function:
    return ops.Function(
        lambda block: -block - number, dtype="int64", name=f"negative {number}", version="1"
    )


class Source(RecordingArray):
    """An array whose views are all of one source."""

    def __init__(self) -> None:
        super().__init__(np.arange(SIDE * SIDE).reshape(SIDE, SIDE), (CHUNK, CHUNK))
        self.plain = super().view()

    def view(self, *chain):
        return self.plain.then(chain)


@pytest.fixture
def source():
    return Source()


def voxels(source, index):
    box = source.view().levels[0].grid.box(index)
    return source.array[box.slices]


def running(engine):
    return {place: n for place, n in engine._dispatch.queue._running.items() if n}


def test_one_step_reads_and_computes_and_the_source_chunk_has_no_state(source):
    engine, workers = cranked(slots=2, along=True)
    view = source.view(negative())
    claim = engine.claim(view, 0, (1, 2), background=True)
    assert workers.step()
    np.testing.assert_array_equal(claim.result(0), -voxels(source, (1, 2)))
    assert source.reads == [(1, 2)]
    assert engine.state(source.view(), 0, (1, 2)) is ChunkState.NEW
    assert [event.after.value for event in engine.events()] == ["queued", "loading", "ready"]
    stats = engine.stats()
    assert (stats["read"], stats["computed"]) == (1, 1)
    assert not running(engine)


def test_a_clients_chunk_and_its_input_are_steps_of_their_own(source):
    engine, workers = cranked(slots=2, along=True)
    view = source.view(negative())
    engine.claim(view, 0, (0, 0))
    assert workers.step("read")
    assert engine.state(source.view(), 0, (0, 0)) is ChunkState.READY
    assert workers.step("compute")
    assert engine.state(view, 0, (0, 0)) is ChunkState.READY


def test_reading_holds_no_slot_of_computing_and_computing_holds_one(source):
    engine, workers = cranked(slots=2, along=True)
    seen = []
    view = source.view(
        ops.Function(lambda b: seen.append(running(engine)) or -b, dtype="int64", name="look")
    )
    engine.claim(view, 0, (0, 0), background=True)
    source.meanwhile = lambda: seen.append(running(engine))
    workers.step()
    assert seen == [{("read", 1): 1}, {("compute", 1): 1}]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("other", ["source", "another op"])
def test_whoever_asks_for_what_is_being_read_gets_it(source, other, background):
    engine, workers = cranked(slots=2, along=True)
    claim = engine.claim(source.view(negative()), 0, (1, 1), background=True)
    wanted = source.view() if other == "source" else source.view(negative(5))
    expected = voxels(source, (1, 1)) if other == "source" else -voxels(source, (1, 1)) - 5
    claims = []

    def meanwhile():
        claims.append(engine.claim(wanted, 0, (1, 1), background=background))
        assert engine.state(source.view(), 0, (1, 1)) is ChunkState.LOADING

    source.meanwhile = meanwhile
    workers.run_all()
    np.testing.assert_array_equal(claims[0].result(0), expected)
    np.testing.assert_array_equal(claim.result(0), -voxels(source, (1, 1)))
    assert source.reads == [(1, 1)]


def test_what_somebody_reads_by_now_is_waited_for(source):
    """Asked for between the moment a chunk is let in and the moment it begins."""
    engine, workers = cranked(slots=2, readers=2, along=True)
    view = source.view(negative())
    jobs = engine.claim_all(view, 0, [(0, 0), (0, 1), (0, 2)], background=True)
    client = engine.claim(source.view(), 0, (0, 1))  # let in, and not begun: one slot is free
    assert workers.waiting("read") == 1
    workers.run_all()
    for index, claim in zip([(0, 0), (0, 1), (0, 2)], jobs, strict=True):
        np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    np.testing.assert_array_equal(client.result(0), voxels(source, (0, 1)))
    assert sorted(source.reads) == [(0, 0), (0, 1), (0, 2)]


def test_two_jobs_over_one_source_read_a_chunk_once(source):
    engine, workers = cranked(slots=3, readers=3, along=True)
    one = engine.claim(source.view(negative(1)), 0, (2, 2), background=True)
    two = engine.claim(source.view(negative(2)), 0, (2, 2), background=True)
    workers.run_all()
    np.testing.assert_array_equal(one.result(0), -voxels(source, (2, 2)) - 1)
    np.testing.assert_array_equal(two.result(0), -voxels(source, (2, 2)) - 2)
    assert source.reads == [(2, 2)]


def test_what_cannot_be_read_fails_like_any_input_and_can_be_tried_again(source):
    source.broken[(0, 3)] = OSError("no such disk")
    said = []
    for along in (False, True):
        engine, workers = cranked(slots=2, along=along)
        view = source.view(negative())
        claim = engine.claim(view, 0, (0, 3), background=True)
        workers.run_all()
        with pytest.raises(ChunkError) as caught:
            claim.result(0)
        said.append(str(caught.value))
        assert isinstance(caught.value.__cause__, OSError)
        assert engine.state(source.view(), 0, (0, 3)) is ChunkState.FAILED
        assert engine.stats()["failures"] == 2
    assert said[0] == said[1]
    source.broken.clear()
    engine.retry(view, 0, (0, 3))
    workers.run_all()
    assert engine.state(view, 0, (0, 3)) is ChunkState.READY


def test_without_a_slot_after_reading_a_chunk_waits_and_is_not_read_again(source):
    engine, workers = cranked(slots=1, readers=2, along=True)
    other = Source()
    mine, theirs = source.view(negative()), other.view(negative())
    ready = engine.claim(other.view(), 0, (0, 0))
    workers.run_all()
    claim = engine.claim(mine, 0, (0, 0), background=True)
    # meanwhile a client's chunk, whose input is there, takes the only slot
    source.meanwhile = lambda: engine.claim(theirs, 0, (0, 0))
    workers.step("background read") or workers.step("background")
    assert not claim.done
    assert engine.state(mine, 0, (0, 0)) is ChunkState.QUEUED
    assert engine.state(source.view(), 0, (0, 0)) is ChunkState.READY
    workers.run_all()
    np.testing.assert_array_equal(claim.result(0), -voxels(source, (0, 0)))
    assert source.reads == [(0, 0)]
    ready.release()


def test_given_up_before_it_is_read(source):
    engine, workers = cranked(slots=2, along=True)
    claim = engine.claim(source.view(negative()), 0, (0, 0), background=True)
    claim.release()
    workers.run_all()
    assert not source.reads
    assert not running(engine)
    assert not engine._dispatch.needs._under_way


def test_given_up_while_it_is_read_and_wanted_by_somebody_else(source):
    engine, workers = cranked(slots=2, along=True)
    claim = engine.claim(source.view(negative()), 0, (0, 0), background=True)
    client = engine.claim(source.view(), 0, (0, 0))  # before the step: it is being loaded
    assert engine.state(source.view(), 0, (0, 0)) is ChunkState.LOADING
    claim.release()
    workers.run_all()
    np.testing.assert_array_equal(client.result(0), voxels(source, (0, 0)))
    assert source.reads == [(0, 0)]
    assert not running(engine)


def test_an_op_that_fails_leaves_what_was_read_to_who_waits_for_it(source):
    def fails(block):
        raise RuntimeError("no")

    engine, workers = cranked(slots=2, along=True)
    view = source.view(ops.Function(fails, dtype="int64", name="fails", version="1"))
    claim = engine.claim(view, 0, (3, 3), background=True)
    client = engine.claim(source.view(), 0, (3, 3))
    workers.run_all()
    with pytest.raises(ChunkError, match="no"):
        claim.result(0)
    np.testing.assert_array_equal(client.result(0), voxels(source, (3, 3)))
    assert source.reads == [(3, 3)]


def test_a_job_reads_along_and_a_viewer_beside_it_shares(source):
    """With threads: every chunk of both is right, and each source chunk is read once."""
    view = source.view(negative())
    at_once = threading.Barrier(2)

    def look(block):
        return -block

    slow = source.view(ops.Function(look, dtype="int64", name="slow", version="1"))
    with Engine(slots=3) as engine:
        failed = []

        def client():
            at_once.wait(30)
            got = np.asarray(engine.array(slow)[...])
            if not np.array_equal(got, -source.array):
                failed.append(got)

        thread = threading.Thread(target=client)
        thread.start()
        store = MemoryStore()
        at_once.wait(30)
        done = engine.materialize(view, store)
        thread.join(60)
    assert done.written == CHUNKS
    assert not failed
    # who comes after a chunk was let go reads it again; nobody reads one that is being read
    assert set(source.reads) == {(i, j) for i in range(4) for j in range(4)}
    assert len(source.reads) <= 2 * CHUNKS


# ---------------------------------------------------------------------- small chunks in a row

ROW = [(1, at) for at in range(SIDE // CHUNK)]


def states(engine, view, row=ROW):
    return [engine.state(view, 0, index) for index in row]


def test_a_row_is_one_step_in_one_slot(source):
    engine, workers = cranked(slots=2, along=True, rows=4)
    seen = []
    op = ops.Function(lambda b: seen.append(running(engine)) or -b, dtype="int64", name="look")
    view = source.view(op)
    claims = engine.claim_all(view, 0, ROW, background=True)
    assert states(engine, view) == [ChunkState.LOADING] * 4
    workers.step()
    assert seen == [{("compute", 1): 1}] * 4
    for index, claim in zip(ROW, claims, strict=True):
        np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    assert source.reads == ROW
    assert states(engine, source.view()) == [ChunkState.NEW] * 4
    assert not running(engine)
    assert not engine._dispatch.needs._under_way


def test_a_row_ends_at_what_somebody_else_has(source):
    engine, workers = cranked(slots=4, readers=4, along=True, rows=4)
    view = source.view(negative())
    ready = engine.claim(source.view(), 0, (1, 1))
    workers.run_all()
    claims = engine.claim_all(view, 0, ROW, background=True)
    workers.run_all()
    for index, claim in zip(ROW, claims, strict=True):
        np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    assert sorted(source.reads) == ROW
    ready.release()
    assert not running(engine)


def test_a_clients_chunk_is_not_part_of_a_row(source):
    engine, workers = cranked(slots=4, readers=4, along=True, rows=4)
    view = source.view(negative())
    blocker = engine.claim(source.view(negative(9)), 0, (3, 3), background=True)
    engine.expect(engine, soon=True)  # nothing of a job begins
    claims = engine.claim_all(view, 0, ROW, background=True)
    client = engine.claim(view, 0, (1, 2))
    engine.expect(engine, soon=False)
    assert states(engine, view)[:2] == [ChunkState.LOADING] * 2
    workers.run_all()
    for index, claim in zip(ROW, claims, strict=True):
        np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    np.testing.assert_array_equal(client.result(0), -voxels(source, (1, 2)))
    np.testing.assert_array_equal(blocker.result(0), -voxels(source, (3, 3)) - 9)


@pytest.mark.parametrize("wanted", ["source", "another op", "the chunk"])
def test_whoever_asks_for_one_of_a_row_meanwhile_gets_it(source, wanted):
    engine, workers = cranked(slots=3, along=True, rows=4)
    view = source.view(negative())
    theirs = {"source": source.view(), "another op": source.view(negative(5)), "the chunk": view}
    expected = voxels(source, (1, 3))
    expected = {"source": expected, "another op": -expected - 5, "the chunk": -expected}[wanted]
    claims = engine.claim_all(view, 0, ROW, background=True)
    found = []

    def meanwhile():  # the row is at its first chunk
        found.append(engine.claim(theirs[wanted], 0, (1, 3)))
        source.meanwhile = None

    source.meanwhile = meanwhile
    workers.run_all()
    np.testing.assert_array_equal(found[0].result(0), expected)
    for index, claim in zip(ROW, claims, strict=True):
        np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    assert source.reads == ROW
    assert not running(engine)


@pytest.mark.parametrize("what", ["reading", "computing"])
def test_one_that_fails_is_the_only_one_of_its_row(source, what):
    def picky(block):
        if what == "computing" and block.flat[0] == voxels(source, (1, 2)).flat[0]:
            raise RuntimeError("no such voxel")
        return -block

    if what == "reading":
        source.broken[(1, 2)] = OSError("no such disk")
    engine, workers = cranked(slots=2, along=True, rows=4)
    view = source.view(ops.Function(picky, dtype="int64", name="picky", version="1"))
    claims = engine.claim_all(view, 0, ROW, background=True)
    workers.run_all()
    for index, claim in zip(ROW, claims, strict=True):
        if index == (1, 2):
            with pytest.raises(ChunkError, match=r"chunk \(1, 2\).*no such"):
                claim.result(0)
        else:
            np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    assert not running(engine)
    assert not engine._dispatch.needs._under_way
    assert not engine._dispatch.needs.alone


@pytest.mark.parametrize("given_up", [[0], [2], [0, 1, 2, 3]])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_given_up_of_a_row_takes_nothing_else_with_it(source, given_up, when):
    engine, workers = cranked(slots=2, along=True, rows=4)
    view = source.view(negative())
    claims = engine.claim_all(view, 0, ROW, background=True)

    def give_up():
        for place in given_up:
            claims[place].release()
        source.meanwhile = None

    if when == "before":
        give_up()
    else:
        source.meanwhile = give_up
    workers.run_all()
    for place, (index, claim) in enumerate(zip(ROW, claims, strict=True)):
        if place not in given_up:
            np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    assert not running(engine)
    assert not engine._dispatch.needs._under_way
    assert not engine._dispatch.needs.jobs


def test_a_row_without_a_slot_waits_and_reads_nothing_again(source):
    engine, workers = cranked(slots=1, readers=2, along=True, rows=4)
    other = Source()
    mine, theirs = source.view(negative()), other.view(negative())
    ready = engine.claim(other.view(), 0, (0, 0))
    workers.run_all()
    claims = engine.claim_all(mine, 0, ROW, background=True)

    def meanwhile():  # a client's chunk, whose input is there, takes the only slot
        source.meanwhile = None
        engine.claim(theirs, 0, (0, 0))

    source.meanwhile = meanwhile
    workers.step("background read") or workers.step("background")
    assert states(engine, mine) == [ChunkState.QUEUED] * 4
    assert states(engine, source.view()) == [ChunkState.READY] * 4
    workers.run_all()
    for index, claim in zip(ROW, claims, strict=True):
        np.testing.assert_array_equal(claim.result(0), -voxels(source, index))
    assert source.reads == ROW
    ready.release()


def test_a_row_is_as_long_as_chunks_are_small_and_quick():
    def run(side, seconds, **limits):
        view = RecordingArray(np.zeros((4 * side, 16 * side), "u1"), (side, side)).view(
            ["threshold:low=1"]
        )
        stage, pace = view.stages[-1], Pace(BlockLimits(**limits))
        for each in (stage, stage.previous):
            if seconds is not None:
                pace.measure(each, 0, [(0, 0)], seconds)
        return pace.run(stage, 0)

    assert run(16, None) == 1  # nobody knows yet what it takes
    assert run(16, 1e-4) == 16
    assert run(16, 1e-3) == 4
    assert run(16, 8e-3) == 1
    assert [run(side, 1e-6) for side in (256, 512, 1024)] == [16, 4, 1]
    assert run(16, 1e-6, memory=600) == 2
    assert run(16, 1e-6, lanes=32) == 2


def test_a_job_in_rows_writes_what_the_op_makes(source, monkeypatch):
    monkeypatch.setattr(Pace, "run", lambda self, stage, level: 4)
    with Engine(slots=3) as engine:
        store = MemoryStore()
        options = {"compression": "none", "format": "zarr2"}
        done = engine.materialize(source.view(negative()), store, **options)
    assert done.written == CHUNKS
    assert sorted(source.reads) == [(i, j) for i in range(4) for j in range(4)]
    for i in range(4):
        for j in range(4):
            found = np.frombuffer(store.files[f"0/{i}/{j}"], "<i8").reshape(CHUNK, CHUNK)
            np.testing.assert_array_equal(found, -voxels(source, (i, j)))


def test_chunks_of_the_source_are_read_in_rows_too(source):
    engine, workers = cranked(slots=2, readers=2, along=True, rows=4)
    view = source.view()
    claims = engine.claim_all(view, 0, ROW, background=True)
    assert running(engine) == {("read", 1): 1}
    assert states(engine, view) == [ChunkState.LOADING] * 4
    client = engine.claim(view, 0, (1, 3))
    workers.step()
    assert engine.stats()["read"] == 4
    for index, claim in zip(ROW, [*claims[:3], client], strict=True):
        np.testing.assert_array_equal(claim.result(0), voxels(source, index))
    assert not running(engine)


def test_a_source_chunk_that_fails_is_the_only_one_of_its_row(source):
    source.broken[(1, 1)] = OSError("no such disk")
    engine, workers = cranked(slots=2, along=True, rows=4)
    claims = engine.claim_all(source.view(), 0, ROW, background=True)
    workers.run_all()
    failed = [claim.failed for claim in claims]
    assert failed == [False, True, False, False]
    with pytest.raises(ChunkError, match=r"chunk \(1, 1\).*no such disk"):
        claims[1].result(0)
    assert not running(engine)
    assert not engine._dispatch.needs.alone


def test_inputs_and_clients_chunks_are_read_one_by_one(source):
    engine, workers = cranked(slots=3, readers=8, along=True, rows=4)
    engine.claim_all(source.view(), 0, ROW)
    halo = ops.Function(np.negative, halo=1, dtype="int64", name="halo", version="1")
    engine.claim(source.view(halo), 0, (3, 1), background=True)
    while workers.step():
        pass
    assert sorted(source.reads) == [*ROW, *[(i, j) for i in (2, 3) for j in (0, 1, 2)]]


def test_a_client_is_told_before_the_job_that_writes(source):
    """Whoever of background work is told may go on to write there and then."""
    engine, workers = cranked(slots=2, along=True, rows=4)
    view, told = source.view(negative()), []
    jobs = engine.claim_all(view, 0, ROW, background=True)
    clients = [engine.claim(view, 0, index) for index in ROW[2:]]
    for kind, claims in (("job", jobs), ("client", clients)):
        for claim in claims:
            claim.add_done_callback(lambda claim, kind=kind: told.append((kind, claim.key.chunk)))
    workers.step()
    assert told == [*[("client", index) for index in ROW[2:]], *[("job", index) for index in ROW]]
