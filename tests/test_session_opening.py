"""Ops that look at their image first are opened while the person goes on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from napari_materialize import ops
from napari_materialize.session import Session

WAIT = 60


class Looking(ops.available()["invert"]):  # type: ignore[misc]
    """An op that looks for as long as it is told to."""

    entered = threading.Semaphore(0)
    go = threading.Semaphore(0)

    def settle(self, voxels: Any) -> Any:
        Looking.entered.release()
        assert Looking.go.acquire(timeout=WAIT)
        return self


@pytest.fixture
def session() -> Any:
    Looking.entered, Looking.go = threading.Semaphore(0), threading.Semaphore(0)
    session = Session(opens_apart=True)
    session.change(source=np.zeros((8, 8), "u1"))
    told = threading.Semaphore(0)

    def hear() -> None:
        told.release()

    session.opened.connect(hear)
    yield session, told
    Looking.go.release(100)
    session.close()


def test_the_session_goes_on_meanwhile(session: Any) -> None:
    session, told = session
    session.change(ops=(Looking(),))
    assert Looking.entered.acquire(timeout=WAIT)
    assert session.resolved.view is None
    assert session.resolved.source_level.shape == (8, 8)
    assert session.blocked.startswith("op invert: it is looking at the image")
    session.change(level=0, extent="box")  # what opens nothing
    Looking.go.release()
    assert told.acquire(timeout=WAIT)
    assert session.resolved.view is None  # until the panel's thread takes it
    session.take_opened()
    assert [op.name for op in session.resolved.view.ops] == ["invert"]
    assert session.resolved.intent.extent == "box"
    assert "ops" not in session.resolved.problems


def test_what_was_changed_meanwhile_is_not_taken(session: Any) -> None:
    session, told = session
    session.change(ops=(Looking(),))
    assert Looking.entered.acquire(timeout=WAIT)
    session.change(ops=())  # removed: that cancels
    assert session.resolved.view.ops == ()
    Looking.go.release()
    session.change(ops=(Looking(), "invert"))
    session.change(ops=(Looking(), "invert", "invert"))
    Looking.go.release(2)
    assert told.acquire(timeout=WAIT)
    session.take_opened()
    assert len(session.resolved.view.ops) == 3
    assert not told.acquire(blocking=False)
    session.take_opened()  # there is nothing more
    assert len(session.resolved.view.ops) == 3


def test_nobody_is_told_after_the_end(session: Any) -> None:
    session, told = session
    session.change(ops=(Looking(),))
    assert Looking.entered.acquire(timeout=WAIT)
    session.close()
    Looking.go.release()
    thread = next((t for t in threading.enumerate() if t.name.endswith("opening")), None)
    if thread is not None:
        thread.join(WAIT)
    assert not told.acquire(blocking=False)


def test_what_is_wrong_is_said(session: Any) -> None:
    class Wrong(Looking):
        def settle(self, voxels: Any) -> Any:
            raise ValueError("no film")

    session, told = session
    session.change(ops=(Wrong(),))
    assert told.acquire(timeout=WAIT)
    session.take_opened()
    assert "no film" in session.blocked


def test_elsewhere_ops_are_opened_at_once() -> None:
    session = Session()
    Looking.go = threading.Semaphore(1)
    session.change(source=np.zeros((8, 8), "u1"), ops=(Looking(),))
    assert session.resolved.view is not None
    session.close()
