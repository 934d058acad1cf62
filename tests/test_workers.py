"""Who runs a piece of work, and in which thread what follows it is run."""

from __future__ import annotations

import threading

from napari_materialize.workers import DaemonWorkers, ManualWorkers

WAIT = 60


def here() -> str:
    return threading.current_thread().name


def test_what_follows_runs_in_the_same_thread_if_that_serves_its_lane():
    ran: list[str] = []
    over = threading.Event()
    workers = DaemonWorkers({("read", "compute"): 2, "background": 1})

    def last():
        ran.append(here())
        over.set()

    def compute():
        ran.append(here())
        return "background", last

    def read():
        ran.append(here())
        return "compute", compute

    workers.submit("read", read)
    assert over.wait(WAIT)
    workers.close()
    assert ran[0] == ran[1]
    assert "background" in ran[2]


def test_lanes_that_share_threads_have_as_many_as_both_need():
    inside, gate = threading.Semaphore(0), threading.Event()
    workers = DaemonWorkers({("read", "compute"): 3})

    def wait():
        inside.release()
        gate.wait(WAIT)

    for lane in ("read", "compute", "compute"):
        workers.submit(lane, wait)
    for _ in range(3):
        assert inside.acquire(timeout=WAIT)
    gate.set()
    workers.close()


def test_work_that_raises_ends_no_thread_and_is_logged(caplog):
    over = threading.Event()
    workers = DaemonWorkers({"compute": 1})

    def bad():
        raise ValueError("out of film")

    workers.submit("compute", bad)
    workers.submit("compute", over.set)
    assert over.wait(WAIT)
    workers.close()
    assert "out of film" in caplog.text


def test_after_the_end_nothing_that_follows_is_run():
    ran: list[int] = []
    workers = DaemonWorkers({"compute": 1})

    def first():
        workers.close()
        return "compute", lambda: ran.append(1)

    workers.submit("compute", first)
    threads = [t for t in threading.enumerate() if t.name.startswith("napari-materialize compute")]
    for thread in threads:
        thread.join(WAIT)
    assert threads
    assert not ran


def test_manual_workers_take_what_follows_as_one_more_step():
    workers, ran = ManualWorkers(), []

    def first():
        ran.append("first")
        return "compute", lambda: ran.append("second")

    workers.submit("read", first)
    assert workers.step("read")
    assert (ran, workers.waiting("compute")) == (["first"], 1)
    assert workers.run_all() == 1
    assert ran == ["first", "second"]
