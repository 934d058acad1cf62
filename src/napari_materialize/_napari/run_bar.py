"""The bottom of the widget: run, cancel, how far it is, what came of it.

Owns the buttons, the bar and the message. The job is the session's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtpy.QtCore import Signal  # type: ignore[attr-defined]  # qtpy ships no such export for types
from qtpy.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QVBoxLayout, QWidget

from napari_materialize._napari.pieces import Note, Problem
from napari_materialize.session import JobState
from napari_materialize.wording import ending_text, progress_text

if TYPE_CHECKING:
    from napari_materialize.session import Job, Progress, Session

__all__ = ["RunBar"]


_BAR = "QProgressBar { text-align: center; } QProgressBar::chunk { background: #4162c5; }"
_RUN = "QPushButton:enabled { background: #4162c5; color: white; font-weight: bold; }"


class RunBar(QWidget):
    """Runs the session's job and shows it."""

    run_asked = Signal()
    cancel_asked = Signal()
    open_asked = Signal()
    live_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 4, 6, 0)
        layout.setSpacing(4)
        self.bar = QProgressBar()
        self.bar.setTextVisible(True)
        self.bar.setStyleSheet(_BAR)
        self.bar.hide()
        self.progress, self.message, self.problem = Note(), Note(), Problem()
        for widget in (self.problem, self.message, self.bar, self.progress):
            layout.addWidget(widget)
        self.run = QPushButton("Run")
        self.cancel = QPushButton("Cancel")
        self.open = QPushButton("Open result")
        self.live = QPushButton("Live view")
        self.live.setToolTip("Add the computation as a layer: it is computed as you look")
        self.cancel.setToolTip("Stop the job; what was written stays")
        self.open.setToolTip("Add what was written as a layer, exactly where the box is")
        for button, signal in (
            (self.run, self.run_asked),
            (self.cancel, self.cancel_asked),
            (self.open, self.open_asked),
            (self.live, self.live_asked),
        ):
            button.clicked.connect(signal)
        for row in ((self.live, self.open), (self.cancel, self.run)):
            line = QHBoxLayout()
            line.setSpacing(4)
            for button in row:
                line.addWidget(button, 1)
            layout.addLayout(line)
        self.run.setStyleSheet(_RUN)

    def show_state(self, session: Session) -> None:
        """Show what can be done, and why not."""
        job, blocked = session.job, session.blocked
        running = job.state is JobState.RUNNING
        self.run.setEnabled(blocked is None)
        self.run.setToolTip(f"Not yet: {blocked}" if blocked else "Compute the box and write it")
        self.cancel.setEnabled(running)
        self.live.setEnabled(session.resolved.view is not None)
        receipt = job.receipt
        something = receipt is not None and receipt.chunks > receipt.failed
        self.open.setEnabled(not running and something)
        self.bar.setVisible(running)
        if running:
            self.show_progress(job.progress)
            target = "" if job.resolved is None else job.resolved.target or ""
            self.message.say(f"Writing {_last(target)}")
            self.problem.say(None)
        elif job.state is JobState.IDLE:
            self.message.say(None if blocked is None else _sentence(blocked))

    def show_progress(self, progress: Progress) -> None:
        """Show how far the job is."""
        self.bar.setMaximum(max(1, progress.total))
        self.bar.setValue(progress.done)
        self.progress.say(progress_text(progress))

    def show_end(self, job: Job) -> None:
        """Show what came of it."""
        text = ending_text(job)
        failed = job.state is JobState.FAILED
        self.problem.say(text if failed else None)
        self.message.say(None if failed else text)
        self.progress.say(None)

    def say(self, sentence: str | None) -> None:
        """Say something that went wrong."""
        self.problem.say(sentence)


def _last(target: str) -> str:
    return target.rstrip("/\\").replace("\\", "/").rpartition("/")[2]


def _sentence(text: str) -> str:
    """Return a reason as a person is told it: without the field's name, with a capital."""
    _, colon, rest = text.partition(": ")
    words = rest if colon and " " not in text.partition(": ")[0] else text
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!")) else ".")
