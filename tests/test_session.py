"""The session without a screen: what is asked, what follows from it, one job at a time."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import napari_materialize as nm
from napari_materialize import ops
from napari_materialize.arrays import Axis
from napari_materialize.errors import OptionError, TargetError, TransitionError
from napari_materialize.geometry import Box
from napari_materialize.session import (
    Intent,
    Job,
    JobState,
    Pace,
    Progress,
    Session,
    follow,
    resolve,
)

WAIT = 60.0
"""Seconds after which a test that waits has failed."""


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CountedArray:
    """An array-like that counts how often it is looked into."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.reads = data, 0
        self.shape, self.dtype = data.shape, data.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        self.reads += 1
        return self.data[key]


class Gate:
    """An op's function that waits until it is let through, and notes what it was asked."""

    def __init__(self) -> None:
        self.opened, self.entered, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.entered.set()
        assert self.opened.wait(WAIT)
        return block + 1


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (8, 96, 128), "u1")


def finish(session: Session) -> Job:
    """Run the job and wait for its end."""
    over = threading.Event()
    session.finished.connect(lambda _: over.set(), check_nargs=False)
    session.run()
    assert over.wait(WAIT)
    return session.job


# ---------------------------------------------------------------------- resolving


def test_an_empty_intent_says_what_to_do_first() -> None:
    state = resolve(Intent())
    assert state.view is None
    assert state.blocked == "source: choose a layer or a path"


def test_every_state_is_frozen(data: np.ndarray) -> None:
    state = resolve(Intent(data))
    for value in (state, state.intent, state.chain, Job(), Progress()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 1)


def test_resolving_twice_gives_the_same_and_reads_no_voxels() -> None:
    source = CountedArray(np.zeros((64, 64), "u1"))
    intent = Intent(source, ops=("gaussian:sigma=2",), box=Box((3, 5), (9, 60)))
    chain = follow(intent)
    first, second = resolve(intent, chain), resolve(intent, chain)
    assert (first.plan, first.corners, first.problems) == (
        second.plan,
        second.corners,
        second.problems,
    )
    assert source.reads == 0


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"source": "/nowhere/at/all.zarr"}, "source", "/nowhere"),
        ({"ops": (("blur", {}),)}, "ops", "no op is called 'blur'"),
        ({"ops": (("gaussian", {}),)}, "ops", "needs sigma"),
        ({"level": 3}, "level", "levels 0 to 0"),
        ({"box": Box((0, 500, 500), (1, 600, 600))}, "box", "lies outside"),
        ({"box": Box((0, 5, 5), (1, 5, 9))}, "box", "at least one voxel"),
        ({"format": "hdf5"}, "output", "hdf5"),
        ({"compression": "gzip:99"}, "output", "gzip"),
        ({}, "target", "choose a folder"),
        ({"target": "/nowhere/at/all/out.zarr"}, "target", "/nowhere/at/all does not"),
    ],
)
def test_what_stands_in_the_way_is_one_sentence(
    data: np.ndarray, fields: dict[str, Any], place: str, words: str
) -> None:
    state = resolve(Intent(**{"source": data, **fields}))
    assert words in state.problems[place]
    assert state.blocked == state.problems[place]
    assert "\n" not in state.blocked


@pytest.mark.parametrize(
    "target", ["x" * 300, "nul\0x", "\ud800", f"{'x' * 300}/out.zarr", "out.zarr/" + "y" * 300]
)
def test_a_name_that_no_disk_can_have_is_one_sentence(
    data: np.ndarray, tmp_path: Path, target: str
) -> None:
    state = resolve(Intent(data, target=str(tmp_path / target)))
    assert state.blocked is not None
    assert state.blocked.startswith("target")
    assert "\n" not in state.blocked
    if "/" not in target:
        with pytest.raises(TargetError, match=r"^target"):
            nm.materialize(data, str(tmp_path / target))
    assert list(tmp_path.iterdir()) == []


def test_a_target_has_to_be_a_whole_path(data: np.ndarray) -> None:
    assert "must be a whole path" in resolve(Intent(data, target="out.zarr")).problems["target"]


@pytest.mark.parametrize(
    "name", ["x" * 400, "\N{GREEK SMALL LETTER ZETA}" * 300, "  ", "..", "a/b"]
)
def test_a_name_is_made_up_that_a_disk_can_have(
    data: np.ndarray, tmp_path: Path, name: str
) -> None:
    for ops_ in ((), ("invert",) * 60):
        target = resolve(Intent(data, name=name, folder=str(tmp_path), ops=ops_)).target
        assert target is not None
        Path(target).mkdir()
        assert Path(target).parent == tmp_path
        assert not Path(target).name.startswith((".", "-"))
        again = resolve(Intent(data, name=name, folder=str(tmp_path), ops=ops_)).target
        assert again not in (None, target)


def test_a_target_that_holds_something_is_in_the_way(data: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    state = resolve(Intent(data, target=str(tmp_path)))
    assert "must be empty" in state.problems["target"]


def test_the_first_op_that_does_not_fit_is_named(data: np.ndarray) -> None:
    chain = follow(Intent(data, ops=("invert", ("select", {"channel": 0}), "invert")))
    assert chain.view is None
    assert [problem is not None for problem in chain.op_problems] == [False, True, False]
    assert chain.op_problems[1] is not None
    assert "channel" in chain.op_problems[1]


def test_an_op_that_raises_anything_is_a_sentence_too(data: np.ndarray) -> None:
    def bad(block: np.ndarray) -> np.ndarray:
        raise KeyError("weights")

    chain = follow(Intent(data, ops=(ops.Function(bad),)))
    assert chain.op_problems[0] is not None
    assert "weights" in chain.op_problems[0]


def test_the_box_is_rounded_out_to_chunks_and_costed(data: np.ndarray) -> None:
    source = nm.open_view(data, chunks=(4, 32, 32), scale=(2, 0.5, 0.5), units="um")
    state = resolve(Intent(source, box=Box((0, 40, 10), (3, 50, 64))))
    assert state.plan is not None
    assert state.plan.box == Box((0, 32, 0), (4, 64, 64))
    assert (state.plan.chunks, state.plan.nbytes) == (2, 4 * 32 * 64)
    assert state.corners == ((-1.0, 15.75, -0.25), (7.0, 31.75, 31.75))
    exact = resolve(Intent(source, box=Box((0, 40, 10), (3, 50, 64)), extent="box"))
    assert exact.plan is not None
    assert exact.plan.box == Box((0, 40, 10), (3, 50, 64))


def test_a_box_is_matched_to_the_view_by_the_names_of_axes() -> None:
    """Ops that add or drop channels leave a box where it is."""
    axes = [Axis("t", "time"), Axis("c", "channel"), Axis("y"), Axis("x")]
    source = nm.open_view(np.zeros((3, 2, 64, 64), "u1"), axes=axes, chunks=(1, 1, 32, 32))
    box, names = Box((1, 0, 33, 0), (2, 2, 40, 64)), ("t", "c", "y", "x")
    state = resolve(Intent(source, ops=("select:channel=1",), box=box, box_axes=names))
    assert state.plan is not None
    assert state.plan.box == Box((1, 32, 0), (2, 64, 64))
    assert state.source_corners == ((0.5, -0.5, 31.5, -0.5), (1.5, 1.5, 63.5, 63.5))
    assert state.source_box == box


def test_a_coarser_level_gets_the_same_place() -> None:
    source = nm.open_view([np.zeros((64, 64), "u1"), np.zeros((32, 32), "u1")], chunks=(8, 8))
    state = resolve(Intent(source, level=1, box=Box((16, 17), (32, 49)), extent="box"))
    assert state.plan is not None
    assert state.plan.box == Box((8, 8), (16, 25))


def test_a_made_up_name_is_free(data: np.ndarray, tmp_path: Path) -> None:
    intent = Intent(
        data, name="EM / site 3", ops=("invert", ("threshold", {})), folder=str(tmp_path)
    )
    first = resolve(intent).target
    assert first == str(tmp_path / "EM-site-3-invert-threshold.ome.zarr")
    Path(first).mkdir()
    assert resolve(intent).target == str(tmp_path / "EM-site-3-invert-threshold-2.ome.zarr")


# ---------------------------------------------------------------------- changing


def test_typing_a_number_opens_no_source_again(session: Session, data: np.ndarray) -> None:
    session.change(source=data, ops=(("gaussian", {"sigma": "1"}), "invert"))
    base, invert = session.resolved.chain.base, session.resolved.chain.made[1]
    session.change(ops=(("gaussian", {"sigma": "1.5"}), "invert"), level=0)
    assert session.resolved.chain.base is base
    assert session.resolved.chain.made[1] is invert
    session.reopen()
    assert session.resolved.chain.base is not base


def test_a_new_source_starts_whole_and_fine(session: Session, data: np.ndarray) -> None:
    session.change(source=data, level=0, box=Box((0, 0, 0), (1, 2, 3)), name="old")
    session.change(source=data.copy())
    intent = session.intent
    assert (intent.box, intent.level, intent.name, intent.affine) == (None, 0, "", None)


def test_changes_are_told(session: Session, data: np.ndarray) -> None:
    told: list[Any] = []
    session.changed.connect(told.append)
    session.change(source=data)
    session.change(ops=("invert",))
    assert [len(state.intent.ops) for state in told] == [0, 1]
    assert told[-1] is session.resolved


# ---------------------------------------------------------------------- rate and time left


def test_rate_and_time_left_follow_the_clock() -> None:
    clock = Clock()
    pace = Pace(clock)
    first = pace.tell({"done": 0, "total": 100})
    assert (first.rate, first.left) == (None, None)
    clock.now = 4.0
    assert pace.tell({"done": 8, "total": 100}).rate == 2.0
    for second in range(5, 60):  # it gets slower: the rate forgets how it began
        clock.now = float(second)
        progress = pace.tell({"done": 8 + (second - 4), "total": 100})
    assert progress.rate == pytest.approx(1.0)
    assert progress.left == pytest.approx(100 - progress.done)
    assert progress.seconds == 59.0


# ---------------------------------------------------------------------- the job


def test_a_job_writes_what_was_resolved(session: Session, data: np.ndarray, tmp_path: Path) -> None:
    view = nm.open_view(data, chunks=(4, 32, 32))
    session.change(source=view, ops=("invert",), box=Box((0, 40, 10), (3, 50, 64)))
    session.change(folder=str(tmp_path), name="em")
    steps: list[Progress] = []
    session.progress.connect(steps.append)
    job = finish(session)
    assert job.state is JobState.DONE
    assert job.receipt is not None
    assert (job.receipt.chunks, job.receipt.written) == (2, 2)
    assert steps[-1].done == steps[-1].total == 2
    stored = zarr.open_array(tmp_path / "em-invert.ome.zarr" / "0", mode="r")[:]
    expected = np.zeros_like(data)
    expected[0:4, 32:64, 0:64] = 255 - data[0:4, 32:64, 0:64]
    np.testing.assert_array_equal(stored, expected)


def test_a_job_stands_apart_from_later_changes(
    session: Session, data: np.ndarray, tmp_path: Path
) -> None:
    gate = Gate()
    view = nm.open_view(data, chunks=(4, 48, 64), ops=[ops.Function(gate, dtype="u1")])
    session.change(source=view, target=str(tmp_path / "a.zarr"))
    over = threading.Event()
    session.finished.connect(lambda _: over.set(), check_nargs=False)
    session.run()
    assert gate.entered.wait(WAIT)
    assert session.job.state is JobState.RUNNING
    assert session.blocked is not None
    with pytest.raises(OptionError, match="a job is running"):
        session.run()
    session.change(target=str(tmp_path / "b.zarr"), box=Box((0, 0, 0), (1, 1, 1)))
    gate.opened.set()
    assert over.wait(WAIT)
    assert session.job.resolved is not None
    assert session.job.resolved.target == str(tmp_path / "a.zarr")
    assert session.job.progress.total == 8
    assert not (tmp_path / "b.zarr").exists()


def test_signals_come_in_the_jobs_thread(
    session: Session, data: np.ndarray, tmp_path: Path
) -> None:
    threads: set[str] = set()
    session.change(source=data, target=str(tmp_path / "a.zarr"))
    session.progress.connect(lambda _: threads.add(threading.current_thread().name))
    session.finished.connect(lambda _: threads.add(threading.current_thread().name))
    finish(session)
    assert threads == {"napari-materialize job"}


def test_cancel_computes_nothing_more(session: Session, data: np.ndarray, tmp_path: Path) -> None:
    gate = Gate()
    view = nm.open_view(data, chunks=(1, 32, 32), ops=[ops.Function(gate, dtype="u1")])
    session.change(source=view, target=str(tmp_path / "a.zarr"))
    over = threading.Event()
    session.finished.connect(lambda _: over.set(), check_nargs=False)
    session.run()
    assert gate.entered.wait(WAIT)
    session.cancel()
    assert over.wait(WAIT)
    assert session.job.state is JobState.ABORTED
    calls = gate.calls
    assert calls <= session.engine.slots
    gate.opened.set()
    # a client's chunk goes through the same slots: whatever was waiting would have gone before
    session.engine.array(nm.open_view(data, chunks=(8, 96, 128)), 0)[0, 0, 0]
    assert gate.calls == calls


def test_a_failing_op_is_a_sentence_and_run_again_tries_again(
    session: Session, data: np.ndarray, tmp_path: Path
) -> None:
    broken = [True]

    def sometimes(block: np.ndarray) -> np.ndarray:
        if broken[0]:
            raise ValueError("out of film")
        return block

    view = nm.open_view(data, chunks=data.shape, ops=[ops.Function(sometimes, dtype="u1")])
    session.change(source=view, folder=str(tmp_path))
    job = finish(session)
    assert job.state is JobState.FAILED
    assert job.reason is not None
    assert "out of film" in job.reason
    assert "chunk (0, 0, 0) of level 0" in job.reason
    broken[0] = False
    session.refresh()
    assert finish(session).state is JobState.DONE


def test_what_is_in_the_way_is_what_run_says(session: Session, data: np.ndarray) -> None:
    session.change(source=data)
    with pytest.raises(OptionError, match="choose a folder"):
        session.run()
    assert session.job.state is JobState.IDLE


def test_close_in_mid_job_ends_it_and_tells_nobody(data: np.ndarray, tmp_path: Path) -> None:
    gate = Gate()
    session = Session()
    view = nm.open_view(data, chunks=(1, 32, 32), ops=[ops.Function(gate, dtype="u1")])
    session.change(source=view, target=str(tmp_path / "a.zarr"))
    told: list[Job] = []
    session.finished.connect(told.append)
    session.run()
    assert gate.entered.wait(WAIT)
    engine = session.engine
    session.close()
    assert session.job.state is JobState.ABORTED
    assert (engine.closed, told) == (True, [])
    gate.opened.set()
    session.change(source=data, target=str(tmp_path / "b.zarr"))
    assert finish(session).state is JobState.DONE  # it may be used again
    session.close()


@pytest.mark.parametrize("state", [JobState.IDLE, JobState.DONE])
def test_a_job_that_does_not_run_cannot_end(state: JobState) -> None:
    with pytest.raises(TransitionError, match="cannot become"):
        Job(state).become(JobState.ABORTED)


def test_a_session_that_makes_its_engine_later_knows_its_views_too() -> None:
    session = Session()
    try:
        session.change(source="view:mine")
        assert session.blocked is not None
        session.engine.views["mine"] = nm.open_view(np.ones((4, 4), "u1"), ["invert"])
        session.reopen()
        assert session.resolved.view is not None
        assert session.resolved.view.identity == session.engine.views["mine"].identity
    finally:
        session.close()


def test_a_source_by_name_is_what_has_that_name_now(data: np.ndarray, tmp_path: Path) -> None:
    with nm.Engine(slots=2) as engine:
        session = Session(engine)
        session.change(source="view:mine", folder=str(tmp_path))
        assert "registered are none" in str(session.blocked)
        for op in ("invert", "threshold:low=7"):
            engine.views["mine"] = nm.open_view(data, op)
            session.reopen()
            assert session.resolved.view is not None
            assert session.resolved.view.identity == engine.views["mine"].identity
            session.change(source="view:mine", ops=("cast:dtype=float32",))
            assert session.blocked is None
            assert [one.name for one in session.resolved.view.ops][1:] == ["cast"]
            session.change(ops=())
        session.close()


def test_a_new_box_has_the_last_axes_again(session: Session, data: np.ndarray) -> None:
    session.change(source=data, box=Box((0, 0), (5, 6)), box_axes=("z", "y"))
    assert session.resolved.source_box == Box((0, 0, 0), (5, 6, data.shape[2]))
    session.change(box=Box((0, 0), (5, 6)))
    assert session.resolved.source_box == Box((0, 0, 0), (data.shape[0], 5, 6))
    assert "box" not in session.resolved.problems
    with pytest.raises(OptionError, match="no field 'boks'; it has source"):
        session.change(boks=None)
