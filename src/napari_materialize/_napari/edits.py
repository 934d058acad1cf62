"""Voxels of a layer that are edited where they are: painted, filled, erased, undone.

Owns noticing it. napari tells of each brush stroke and of no undo; a layer's array stays the same
object, so nobody who opened it would know.
"""

from __future__ import annotations

import weakref
from typing import Any

from qtpy.QtCore import QObject, QTimer, Signal  # type: ignore[attr-defined]  # qtpy ships no such export for types

__all__ = ["Edits"]

REST = 250
"""Milliseconds without another stroke after which an edit is told."""


class Edits(QObject):
    """Watches one layer at a time, and holds it weakly."""

    edited = Signal()
    """A layer's voxels were edited, and the hand rests."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._layer: weakref.ref[Any] | None = None
        self._history = (0, 0)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(REST)
        self._timer.timeout.connect(self.edited)

    @property
    def pending(self) -> bool:
        """Whether an edit is not told yet."""
        return self._timer.isActive()

    def watch(self, layer: Any) -> None:
        """Watch a layer and no other; None for none, or one that cannot be painted on."""
        before = None if self._layer is None else self._layer()
        if before is not None:
            before.events.paint.disconnect(self._on_paint)
            before.events.set_data.disconnect(self._on_shown)
        self._timer.stop()
        self._layer = None
        if layer is not None and hasattr(layer.events, "paint"):
            self._layer, self._history = weakref.ref(layer), _history(layer)
            layer.events.paint.connect(self._on_paint)
            layer.events.set_data.connect(self._on_shown)

    def _on_paint(self) -> None:
        self._timer.start()

    def _on_shown(self) -> None:
        """An undone stroke is told by nothing but the picture that is shown anew."""
        layer = None if self._layer is None else self._layer()
        if layer is not None and (history := _history(layer)) != self._history:
            self._history = history
            self._timer.start()


def _history(layer: Any) -> tuple[int, int]:
    """Return how many strokes can be undone and done again."""
    found = [len(getattr(layer, name, ())) for name in ("_undo_history", "_redo_history")]
    return found[0], found[1]
