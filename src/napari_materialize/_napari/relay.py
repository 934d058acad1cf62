"""What lies between a session and a widget that shows it: its threads, and its end.

Owns the way of a job's signals to the main thread, and what is closed when a widget is gone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from qtpy.QtCore import QObject, Signal  # type: ignore[attr-defined]  # qtpy ships no such export for types

if TYPE_CHECKING:
    from napari_materialize.looking import Lease
    from napari_materialize.session import Session

__all__ = ["Ending", "Relay"]


class Relay(QObject):
    """Brings a session's signals from its threads to the main thread."""

    progress = Signal(object)
    finished = Signal(object)
    estimated = Signal()
    opened = Signal()

    def on_progress(self, progress: object) -> None:
        """Pass on; in the job's thread."""
        self.progress.emit(progress)

    def on_estimated(self) -> None:
        """Pass on; in a thread of its own."""
        self.estimated.emit()

    def on_opened(self) -> None:
        """Pass on; in a thread of its own."""
        self.opened.emit()

    def on_finished(self, job: object) -> None:
        """Pass on; in the job's thread."""
        self.finished.emit(job)


class Ending:
    """What happens when the widget is gone; holds nothing of Qt. Doing it twice does nothing."""

    def __init__(self, session: Session, lease: Lease | None) -> None:
        self._session, self._lease = session, lease

    def __call__(self, *_: object) -> None:
        self._session.close()
        if self._lease is not None:
            self._lease.end()

    def later(self) -> None:
        """Do it in a thread of its own: a finalizer runs anywhere, under any lock."""
        threading.Thread(target=self, name="napari-materialize end", daemon=True).start()
