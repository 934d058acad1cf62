"""Which thread does what: quick work is one's, and with all cores at work nothing is handed on."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from doubles import RecordingArray
from napari_materialize import Engine, MemoryStore, ops, runner
from napari_materialize.dispatch import Start
from napari_materialize.workers import DaemonWorkers
from readback import opened

SIDE, CHUNK = 24, 4
CHUNKS = (SIDE // CHUNK) ** 2


class Threads(DaemonWorkers):
    """The engine's threads, with what they take for quick and for busy told."""

    def __init__(self, *, quick: float, at_work: int) -> None:
        background = ("background", "background read")
        super().__init__({("read", "compute"): 4, background: 4, "write": 2})
        self.quick = quick
        self.at_work = at_work
        self.handed: list[str] = []
        self.at_once: list[int] = []
        """How many threads were in the op, each time that one had come into it."""

    def busy(self, *lanes: str) -> int:
        return self.at_work

    def submit(self, lane, work) -> None:
        self.handed.append(lane)
        super().submit(lane, work)


class Putting(MemoryStore):
    """A store that remembers which thread put each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def put(self, path, data, /):
        if path.startswith("0/") and path.rpartition("/")[2].isdecimal():
            self.threads.append(threading.current_thread().name)
        return super().put(path, data)


def job(threads: Threads) -> tuple[list[str], list[str]]:
    """Return the names of the threads that computed each chunk, and of those that put it."""
    computed, store = [], Putting()
    inside: set[int] = set()

    def op(block):
        computed.append(threading.current_thread().name)
        inside.add(threading.get_ident())
        time.sleep(0)  # whoever wants to may come in now
        threads.at_once.append(len(inside))
        inside.remove(threading.get_ident())
        return block + 1

    view = RecordingArray(np.arange(1, SIDE * SIDE + 1).reshape(SIDE, SIDE), (CHUNK, CHUNK)).view(
        ops.Function(op, dtype="int64", name="named", version="1")
    )
    with Engine(slots=3, workers=threads) as engine:
        done = engine.materialize(view, store)
    assert done.written == CHUNKS == len(store.threads) == len(computed)
    np.testing.assert_array_equal(
        opened(store)[...], np.arange(2, SIDE * SIDE + 2).reshape(SIDE, SIDE)
    )
    return computed, store.threads


def test_quick_background_work_is_done_by_one_thread():
    threads = Threads(quick=1e9, at_work=0)
    computed, _ = job(threads)
    # the first ones are begun before anybody knows how long they take; where the job is slow to ask
    # for more, another thread may be the one
    assert set(threads.at_once[CHUNKS // 2 :]) == {1}
    assert all(name.startswith("napari-materialize background") for name in computed[CHUNKS // 2 :])
    handed = [lane for lane in threads.handed if lane.startswith("background")]
    assert len(handed) < CHUNKS


def test_work_that_is_not_quick_is_handed_to_a_writer():
    _, put = job(Threads(quick=0.0, at_work=0))
    assert all(name.startswith("napari-materialize write") for name in put)


@pytest.mark.parametrize("computes", [True, False], ids=["computing", "waiting"])
def test_with_all_cores_at_work_a_thread_writes_what_it_computed(computes, monkeypatch):
    monkeypatch.setattr(runner, "COMPUTES", -1.0 if computes else 2.0)  # of its time
    _, put = job(Threads(quick=0.0, at_work=99))
    itself = [name for name in put if name.startswith("napari-materialize background")]
    # a chunk that comes while others wait takes its turn behind them
    assert len(itself) > CHUNKS // 2 if computes else not itself


def test_a_thread_that_cannot_go_on_leaves_the_line_to_another(monkeypatch, caplog):
    """Only a mistake of ours ends like that; what others wait for is computed all the same."""
    source = RecordingArray(np.arange(SIDE * SIDE).reshape(SIDE, SIDE), (CHUNK, CHUNK))
    view = source.view(ops.Function(lambda block: -block, dtype="int64", name="neg", version="1"))
    plain, broken = runner.Runner._run, threading.Event()

    def run(self, batch):
        after = plain(self, batch)
        if self._serving and not broken.is_set():
            broken.set()
            raise RuntimeError("a mistake")
        return after

    monkeypatch.setattr(runner.Runner, "_run", run)
    with Engine(slots=3, workers=Threads(quick=60.0, at_work=1)) as engine:
        done = engine.materialize(view, MemoryStore())
    assert broken.is_set()
    assert done.written == CHUNKS
    assert "a mistake" in caplog.text


@pytest.mark.parametrize(
    ("share", "writes", "servers"),
    [
        (0.0, {"quick": True}, None),  # it waits: for a server, a GPU
        # quick by the processor's time, slow by the clock's for want of the lock
        (0.3, {"quick": True}, 1),
        (0.9, {"quick": True}, 4),
        (0.3, {"quick": False}, 4),  # what comes after it keeps cores busy
        (0.3, {"quick": True, "seconds": 0.7e-3}, 1),
        (0.3, {"quick": True, "seconds": 0.9e-3}, 4),  # and here the two together
        (0.3, {}, 1),  # nobody knows yet
    ],
)
def test_how_many_threads_serve_the_line(share, writes, servers):
    view = RecordingArray(np.zeros((4, 4), "u1"), (4, 4)).view(
        ops.Function(np.negative, name="negative", version="1")
    )
    stage, index = view.stages[-1], (0, 0)
    workers = Threads(quick=1e-3, at_work=0)
    with Engine(slots=2, workers=workers) as engine:
        pace, served = engine._dispatch.pace, engine._runner
        served._cores = 4
        pace.measure(stage, 0, [index], 2e-3)
        pace.note_share(stage, share)
        served.write(lambda: None, **writes)
        start = Start(stage, (view.key(0, index),), (index,), background=True)
        assert served._servers(start) == servers
        assert served._servers(start._replace(background=False)) is None
