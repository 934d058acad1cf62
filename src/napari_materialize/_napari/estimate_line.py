"""The line above Run that says what the job would take: time, bytes, and whether they fit.

Owns the button, the line, and when it is asked without the button: where the target might be too
small. What a job takes is found out by the session, in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtpy.QtCore import QTimer
from qtpy.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from napari_materialize._napari.pieces import Note, Problem
from napari_materialize.errors import InputError
from napari_materialize.estimate import may_be_tight
from napari_materialize.plan import make_plan

if TYPE_CHECKING:
    from napari_materialize.session import Session

__all__ = ["EstimateLine"]

CALM = 500
"""Milliseconds without a change before anything is asked for that nobody pressed a button for."""


class EstimateLine(QWidget):
    """Says what the session's job would take. `Session.estimated` is told to `show_answer`."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 6, 0)
        layout.setSpacing(2)
        row = QHBoxLayout()
        row.setSpacing(4)
        self.button = QPushButton("Estimate")
        self.button.setToolTip("Compute a few chunks to see how long it takes and how large it is")
        self.button.clicked.connect(self.ask)
        self.text, self.problem = Note(), Problem()
        row.addWidget(self.text, 1)
        row.addWidget(self.button)
        layout.addWidget(self.problem)
        layout.addLayout(row)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._ask_if_tight)

    def show_state(self) -> None:
        """Take note that something else would be done, or that a job began or ended."""
        free = self._session.blocked is None
        self.button.setEnabled(free)
        self.text.say(None)
        self.problem.say(None)
        if free:
            self._timer.start(CALM)
        else:
            self._timer.stop()

    def _ask_if_tight(self) -> None:
        state = self._session.resolved
        if self._session.blocked or state.view is None or state.target is None:
            return
        if state.options is None:
            return
        try:
            tight = may_be_tight(make_plan(state.view, state.target, state.options))
        except (InputError, OSError):
            return  # the disk changed meanwhile: Run says so
        if tight:
            self.ask()

    def ask(self) -> None:
        """Begin to find out."""
        if self._session.blocked is None:
            self.button.setEnabled(False)
            self.text.say("Estimating\N{HORIZONTAL ELLIPSIS}")
            self._session.measure()

    def show_answer(self) -> None:
        """Show what was found; on the main thread."""
        found, reason = self._session.estimate, self._session.estimate_problem
        if found is None and reason is None:
            return  # something was changed meanwhile
        self.button.setEnabled(self._session.blocked is None)
        sentence = reason if found is None else found.sentence
        warns = found is None or found.fits is False
        text = None if sentence is None else f"{sentence[:1].upper()}{sentence[1:]}."
        self.problem.say(text if warns else None)
        self.text.say(None if warns else text)
