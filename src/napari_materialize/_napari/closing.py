"""A window that is closed while a job runs asks what is to become of the job.

Owns the question, and who is asked: a person who closes the window by its button, its menu or a
key. A program that does so (a script's ``viewer.close()``, a test) is never held up: its job stops,
and what it wrote stays.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from qtpy.QtCore import QEvent, QObject
from qtpy.QtWidgets import QMessageBox

from napari_materialize.session import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from qtpy.QtWidgets import QWidget

    from napari_materialize.session import Session

__all__ = ["CLOSING_FUNCTION", "CLOSING_MODULE", "Answer", "Closing"]

CLOSING_MODULE, CLOSING_FUNCTION = "napari._qt.qt_main_window", "close"
"""Where napari's menu closes a window or quits; only it says ``confirm_need``. A test pins it."""


class Answer(Enum):
    """What is to become of the job, and of the window."""

    STOP = "Stop the job"
    LATER = "Close when it is done"
    STAY = "Do not close"


class _Way(NamedTuple):
    """How a window is being closed."""

    by_person: bool
    quits: bool
    """Whether the application is to end with it."""


class Closing(QObject):
    """Watches the window that a widget is in.

    Parameters
    ----------
    session : Session
        Whose job.
    parent : QObject
        Whose life it shares.
    ask : callable
        Asks in a window; a dialog by default.
    """

    def __init__(
        self, session: Session, parent: QObject, ask: Callable[[QWidget], Answer] | None = None
    ) -> None:
        super().__init__(parent)
        self._session = session
        self.ask = _ask if ask is None else ask
        """Asks a person in a window."""
        self._window: Any = None
        self._later: _Way | None = None

    def watch(self, window: QWidget) -> None:
        """Watch this window, and no other."""
        if window is self._window:
            return
        if self._window is not None:
            self._window.removeEventFilter(self)
        self._window = window
        window.installEventFilter(self)
        window.destroyed.connect(self._forget)

    def _forget(self) -> None:
        self._window = None

    def eventFilter(self, watched: Any, event: Any) -> bool:  # noqa: N802 - Qt's name
        """Hold a window open if that is the answer."""
        running = self._session.job.state is JobState.RUNNING
        if watched is not self._window or event.type() != QEvent.Type.Close or not running:
            return False
        way = _way(event)
        if not way.by_person:
            return False
        answer = self.ask(self._window)
        if answer is Answer.STOP:
            self._later = None
            self._session.cancel()
            return False
        self._later = way if answer is Answer.LATER else None
        event.ignore()
        if self._session.job.state is not JobState.RUNNING:
            self.settle()  # it ended while the question was there
        return True

    def settle(self) -> None:
        """Close the window if that was to wait for the job, which is over; not if it failed."""
        later, self._later = self._later, None
        failed = self._session.job.state is JobState.FAILED  # what went wrong is on the screen
        if later is None or self._window is None or failed:
            return
        if later.quits:
            self._window.close(quit_app=True)
        else:
            self._window.close()


def _way(event: Any) -> _Way:
    """Find out who closes a window: its button is the system's, and the menu asks for consent."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        where = frame.f_globals.get("__name__"), frame.f_code.co_name
        if where == (CLOSING_MODULE, CLOSING_FUNCTION):
            names = frame.f_locals
            return _Way(bool(names.get("confirm_need")), bool(names.get("quit_app")))
        frame = frame.f_back
    return _Way(bool(event.spontaneous()), quits=False)


def _ask(window: QWidget) -> Answer:
    """Ask in a dialog; to close that is to stay."""
    box = QMessageBox(window)
    box.setIcon(QMessageBox.Icon.Question)
    box.setWindowTitle("A job is running")
    box.setText("A job is running. What is written stays, and can be gone on with later.")
    rows = {
        Answer.LATER: QMessageBox.ButtonRole.AcceptRole,
        Answer.STOP: QMessageBox.ButtonRole.DestructiveRole,
        Answer.STAY: QMessageBox.ButtonRole.RejectRole,
    }
    buttons = {answer: box.addButton(answer.value, role) for answer, role in rows.items()}
    box.setDefaultButton(buttons[Answer.STAY])
    box.setEscapeButton(buttons[Answer.STAY])
    box.exec()
    clicked = box.clickedButton()
    return next((one for one, button in buttons.items() if button is clicked), Answer.STAY)
