"""The widget around a job: what it will take, the window that is closed meanwhile, what is told."""

from __future__ import annotations

import ctypes
import ctypes.util
import inspect
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from napari._qt import qt_main_window
from napari.settings import get_settings
from qtpy.QtCore import QEvent, QEventLoop, QObject, QTimer
from qtpy.QtGui import QCloseEvent, QGuiApplication
from qtpy.QtWidgets import QApplication, QMessageBox

import napari_materialize as nm
from napari_materialize import ops
from napari_materialize._napari import closing
from napari_materialize._napari.closing import Answer
from napari_materialize.session import JobState
from napari_materialize.stores import DirectoryStore, Volume
from windows import WAIT, click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPE, CHUNKS = (16, 96, 128), (4, 32, 32)


class Gate:
    """An op's function that waits until it is let through."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.fails = False

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.entered.set()
        assert self.opened.wait(WAIT / 1000)
        if self.fails:
            raise ValueError("out of film")
        return block + 1


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 250, SHAPE, "u1")


@pytest.fixture
def running(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> Iterator[Any]:
    """A window in which a job waits, and what its question is answered with."""
    viewer, widget = dock(show=True)
    gate = Gate()
    view = nm.open_view(data, chunks=CHUNKS, ops=[ops.Function(gate, dtype="u1")])
    widget.session.change(source=view, name="gated", folder=str(tmp_path))
    click(widget.run_bar.run)
    qtbot.waitUntil(gate.entered.is_set, timeout=WAIT)
    asked: list[Any] = []
    found = SimpleNamespace(
        viewer=viewer,
        widget=widget,
        session=widget.session,
        window=viewer.window._qt_window,
        gate=gate,
        answer=Answer.STAY,
        asked=asked,
    )

    def ask(window: Any) -> Answer:
        asked.append(window)
        return found.answer

    state: set[str] = set()
    found.window.destroyed.connect(lambda: state.add("closed"))
    widget.closing.ask = ask
    settings = get_settings().application
    before, settings.confirm_close_window = settings.confirm_close_window, False
    yield found
    settings.confirm_close_window = before
    gate.opened.set()
    found.session.cancel()
    if "closed" in state:
        viewer.window.__dict__.pop("_qt_window", None)  # or it is closed, and deleted, twice
    asked.clear()
    vars(found).clear()  # what holds a window is taken for a leak


class _FromOutside(QCloseEvent):
    def spontaneous(self) -> bool:
        return True


class _ClientMessage(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("serial", ctypes.c_ulong),
        ("send_event", ctypes.c_int),
        ("display", ctypes.c_void_p),
        ("window", ctypes.c_ulong),
        ("message_type", ctypes.c_ulong),
        ("format", ctypes.c_int),
        ("data", ctypes.c_long * 5),
        ("pad", ctypes.c_long * 24),
    )


def by_button(window: Any) -> None:
    """Close as the system does when the window's button is pressed."""
    library = ctypes.util.find_library("X11")
    if QGuiApplication.platformName() != "xcb" or library is None:
        QApplication.sendEvent(window, _FromOutside())
        return
    x11 = ctypes.CDLL(library)
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.restype = ctypes.c_ulong
    x11.XInternAtom.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    x11.XSendEvent.argtypes = (
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_int,
        ctypes.c_long,
        ctypes.c_void_p,
    )
    x11.XCloseDisplay.argtypes = (ctypes.c_void_p,)
    display = x11.XOpenDisplay(None)
    atoms = (x11.XInternAtom(display, name, 0) for name in (b"WM_PROTOCOLS", b"WM_DELETE_WINDOW"))
    protocols, delete = atoms
    message = _ClientMessage(33, 0, 1, display, int(window.winId()), protocols, 32)
    message.data[0] = delete
    heard: list[int] = []

    class Ears(QObject):
        def eventFilter(self, _: Any, event: Any) -> bool:  # noqa: N802 - Qt's name
            heard.append(event.type() == QEvent.Type.Close)
            return False

    ears = Ears()
    window.installEventFilter(ears)  # asked before those that were there
    assert x11.XSendEvent(display, message.window, 0, 0, ctypes.byref(message))
    x11.XCloseDisplay(display)
    while not any(heard):
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)


def gone(running: Any) -> bool:
    """Whether the window is closed; Qt deletes it then."""
    try:
        return not running.window.isVisible()
    except RuntimeError:
        return True


def by_menu(window: Any) -> None:
    """Close as napari's menu does."""
    window.close(quit_app=False, confirm_need=True)


# ---------------------------------------------------------------------- closing


def test_the_names_that_tell_who_closes() -> None:
    owner = getattr(qt_main_window, "_QtMainWindow")  # noqa: B009 - a private name, on purpose
    function = getattr(owner, closing.CLOSING_FUNCTION)
    assert function.__module__ == closing.CLOSING_MODULE
    names = set(inspect.signature(function).parameters)
    assert {"confirm_need", "quit_app"} <= names, (
        "napari renamed what its menu says when it closes a window; without it nobody is asked: "
        "look up how it asks for consent now, and say so in _napari/closing.py"
    )


@pytest.mark.parametrize("close", [by_button, by_menu])
def test_a_window_that_stays(running: Any, qtbot: Any, close: Any) -> None:
    close(running.window)
    assert running.asked == [running.window]
    assert running.window.isVisible()
    assert running.session.job.state is JobState.RUNNING
    running.gate.opened.set()
    qtbot.waitUntil(running.widget.run_bar.bar.isHidden, timeout=WAIT)
    assert running.session.job.state is JobState.DONE
    assert running.window.isVisible()


@pytest.mark.parametrize("close", [by_button, by_menu])
def test_a_window_that_closes_at_once_stops_the_job(running: Any, qtbot: Any, close: Any) -> None:
    session, running.answer = running.session, Answer.STOP
    close(running.window)
    assert len(running.asked) == 1
    assert gone(running)
    qtbot.waitUntil(lambda: session.job.state is JobState.ABORTED, timeout=WAIT)


@pytest.mark.parametrize("close", [by_button, by_menu])
def test_a_window_that_closes_when_the_job_is_done(running: Any, qtbot: Any, close: Any) -> None:
    session, running.answer = running.session, Answer.LATER
    close(running.window)
    assert running.window.isVisible()
    assert session.job.state is JobState.RUNNING
    running.gate.opened.set()
    qtbot.waitUntil(lambda: gone(running), timeout=WAIT)
    assert session.job.state is JobState.DONE
    assert len(running.asked) == 1
    target = session.job.resolved.target
    assert np.count_nonzero(zarr.open_array(f"{target}/0", mode="r")[:]) == np.prod(SHAPE)


def test_a_window_stays_where_the_job_failed(running: Any, qtbot: Any) -> None:
    session, running.answer = running.session, Answer.LATER
    by_menu(running.window)
    running.gate.fails = True
    running.gate.opened.set()
    qtbot.waitUntil(lambda: session.job.state is JobState.FAILED, timeout=WAIT)
    qtbot.waitUntil(running.widget.run_bar.bar.isHidden, timeout=WAIT)
    assert running.window.isVisible()
    assert "out of film" in running.widget.run_bar.problem.text()


def test_a_program_is_not_asked(running: Any, qtbot: Any) -> None:
    session = running.session
    running.viewer.close()
    assert not running.asked
    qtbot.waitUntil(lambda: session.job.state is JobState.ABORTED, timeout=WAIT)


def test_nobody_is_asked_when_nothing_runs(running: Any, qtbot: Any) -> None:
    running.gate.opened.set()
    qtbot.waitUntil(running.widget.run_bar.bar.isHidden, timeout=WAIT)
    by_button(running.window)
    assert not running.asked
    assert gone(running)


@pytest.mark.parametrize("answer", list(Answer))
def test_the_question(qtbot: Any, answer: Answer) -> None:
    from qtpy.QtWidgets import QWidget

    window = QWidget()
    qtbot.addWidget(window)
    window.show()

    def press() -> None:
        box = QApplication.activeModalWidget()
        if not isinstance(box, QMessageBox):
            QTimer.singleShot(10, press)
            return
        assert box.defaultButton().text() == Answer.STAY.value
        next(button for button in box.buttons() if button.text() == answer.value).click()

    QTimer.singleShot(0, press)
    assert closing._ask(window) is answer


# ---------------------------------------------------------------------- what it will take


def test_an_estimate(dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path) -> None:
    _, widget = dock()
    line = widget.estimate
    assert not line.button.isEnabled()
    view = nm.open_view(data, chunks=CHUNKS, ops=["invert"])
    widget.session.change(source=view, folder=str(tmp_path))
    click(line.button)
    qtbot.waitUntil(lambda: "for 48 chunks" in line.text.text(), timeout=WAIT)
    assert "are free" in line.text.text()
    assert line.problem.text() == ""
    assert line.button.isEnabled()
    widget.session.change(extent="box")
    assert line.text.text() == ""
    assert not list(tmp_path.iterdir())


def test_a_target_that_is_too_small_is_told_without_asking(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryStore, "volume", lambda _: Volume("there", free=1000, block=1))
    _, widget = dock()
    view = nm.open_view(data, chunks=CHUNKS)
    widget.session.change(source=view, folder=str(tmp_path))
    problem = widget.estimate.problem
    qtbot.waitUntil(lambda: "will not fit: 1.0 kB are free" in problem.text(), timeout=WAIT)
    assert widget.run_bar.run.isEnabled()  # a warning: whoever knows better may go on


def test_what_cannot_be_estimated_is_said(
    dock: Any, qtbot: Any, data: np.ndarray, tmp_path: Path
) -> None:
    _, widget = dock()
    view = nm.open_view(data, chunks=CHUNKS)
    widget.session.change(source=view, folder=str(tmp_path))
    widget.session.engine.close()
    click(widget.estimate.button)
    qtbot.waitUntil(lambda: "closed" in widget.estimate.problem.text(), timeout=WAIT)


# ---------------------------------------------------------------------- the view


def test_what_lies_past_the_edge(dock: Any, data: np.ndarray) -> None:
    _, widget = dock()
    widget.session.change(source=data + 100)
    assert widget.ops._edge.isHidden()
    widget.ops.add("gaussian")
    assert not widget.ops._edge.isHidden()
    form = widget.ops.boundary
    before = widget.session.resolved.view
    form.setCurrentIndex(form.findData("zeros"))
    form.activated.emit(form.currentIndex())
    after = widget.session.resolved.view
    assert (before.boundary, after.boundary) == ("edge", "zeros")
    with nm.Engine(slots=1) as engine:
        edge, zeros = (int(engine.array(view, 0)[0, 0, 0]) for view in (before, after))
    assert zeros < edge
    widget.session.change(boundary="edge")
    assert form.currentData() == "edge"


def test_what_is_odd_about_a_source_is_told(dock: Any, tmp_path: Path) -> None:
    _, widget = dock()
    folder = tmp_path / "odd.zarr"
    nm.materialize(nm.open_view(np.ones((32, 32), "u1"), chunks=(16, 16)), folder, pyramid=1)
    group = zarr.open_group(folder, mode="r+")
    attributes = dict(group.attrs)
    scales = attributes["multiscales"][0]["datasets"][1]["coordinateTransformations"]
    scales[0]["scale"] = [9.0, 9.0]
    group.attrs.update(attributes)
    zarr.consolidate_metadata(folder)
    widget.session.change(source=str(folder))
    text = widget.source.notices.text()
    assert text
    assert widget.source.notices.toolTip().startswith(text.partition(" (and")[0])
    widget.session.change(source=np.ones((8, 8)))
    assert widget.source.notices.isHidden()


@pytest.mark.parametrize(("coarser", "expected"), [("none", 1), ("computed", 2), ("derived", 2)])
def test_coarser_levels_along(
    dock: Any, qtbot: Any, tmp_path: Path, coarser: str, expected: int
) -> None:
    viewer, widget = dock()
    fine = np.random.default_rng(1).integers(1, 250, (96, 96), "u1")
    view = nm.open_view([fine, fine[::2, ::2]], ["invert"], chunks=(16, 16))
    widget.session.change(source=view, folder=str(tmp_path))
    form = widget.box.coarser
    form.setCurrentIndex(form.findData(coarser))
    form.activated.emit(form.currentIndex())
    assert widget.box.cost.text().startswith("45 chunks" if coarser == "computed" else "36 chunks")
    click(widget.run_bar.run)
    session = widget.session
    qtbot.waitUntil(lambda: session.job.state is JobState.DONE, timeout=WAIT)
    group = zarr.open_group(session.job.resolved.target, mode="r")
    arrays = sorted(group.array_keys())
    assert len(arrays) >= expected
    if coarser == "computed":
        assert np.array_equal(group["1"][:], 255 - fine[::2, ::2])
    if coarser == "derived":
        assert group["1"].shape == (48, 48)
    assert (len(arrays) == 1) == (coarser == "none")
    qtbot.waitUntil(widget.run_bar.bar.isHidden, timeout=WAIT)
    click(widget.run_bar.open)
    shown = viewer.layers[-1].data
    shown = shown[0] if viewer.layers[-1].multiscale else shown
    assert np.array_equal(np.asarray(shown), 255 - fine)
