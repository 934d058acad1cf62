"""The line in the widget that says what the viewer's live layers are doing.

Owns the sentence and the button that retries what failed. Which chunks those are, the layers know.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from qtpy.QtCore import QTimer
from qtpy.QtWidgets import QHBoxLayout, QPushButton, QWidget

from napari_materialize._napari.holding import Counts
from napari_materialize._napari.pieces import Note
from napari_materialize._napari.repaint import live_layer
from napari_materialize.wording import DOT, bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize._napari.repaint import LiveLayer

__all__ = ["LiveBar", "live_text"]

PERIOD = 200
"""Milliseconds between two looks while something is under way."""


class LiveBar(QWidget):
    """Says how many chunks are computed, waited for, failed and kept; hidden while nobody looks.

    Parameters
    ----------
    viewer : napari.viewer.Viewer
        Whose live layers; held weakly.
    """

    def __init__(self, viewer: Any) -> None:
        super().__init__()
        self._viewer = weakref.ref(viewer)
        self._known: weakref.WeakSet[LiveLayer] = weakref.WeakSet()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        self.text = Note()
        self.retry = QPushButton("Retry failed")
        self.retry.clicked.connect(self._retry)
        row.addWidget(self.text, 1)
        row.addWidget(self.retry)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.look)
        viewer.layers.events.inserted.connect(self._on_layers)
        viewer.layers.events.removed.connect(self._on_layers)
        self._on_layers()
        self.look()

    @property
    def lives(self) -> list[LiveLayer]:
        """What keeps the viewer's live layers live."""
        viewer = self._viewer()
        found = [] if viewer is None else [live_layer(layer) for layer in viewer.layers]
        return [live for live in found if live is not None]

    def _on_layers(self, event: Any = None) -> None:
        for live in self.lives:
            if live not in self._known:
                self._known.add(live)
                live.changed.connect(self.look_soon)
        self.look_soon()

    def look_soon(self) -> None:
        """Look at the layers in a moment; many calls make one look."""
        if not self._timer.isActive():
            self._timer.start(PERIOD)

    def look(self) -> None:
        """Show what the layers are doing now."""
        lives = self.lives
        counts = sum((live.reads.counts() for live in lives), Counts())
        self.text.say(live_text(counts, _kept(lives)) if lives else None)
        self.retry.setVisible(counts.failed > 0)
        reasons = [error for live in lives for error in live.reads.failed.values()]
        self.retry.setToolTip(f"Compute what failed once more. {reasons[0]}" if reasons else "")
        self.setVisible(bool(lives))
        if counts.computing or counts.waiting:
            self._timer.start(PERIOD)

    def _retry(self) -> None:
        for live in self.lives:
            live.retry()
        self.look()


def live_text(counts: Counts, kept: int) -> str:
    """Return what live layers are doing, in a line.

    >>> live_text(Counts(computing=4, waiting=12, ready=8), 7_130_000)
    'Live: 4 computing · 12 waiting · 8 ready · 7.1 MB cached'
    >>> live_text(Counts(ready=24, failed=1), 0)
    'Live: 1 failed · 24 ready · 0 B cached'
    """
    rows = (
        (counts.computing, "computing"),
        (counts.waiting, "waiting"),
        (counts.failed, "failed"),
        (counts.ready, "ready"),
    )
    parts = [f"{count} {word}" for count, word in rows if count or word == "ready"]
    return f"Live: {DOT.join([*parts, f'{bytes_text(kept)} cached'])}"


def _kept(lives: Sequence[LiveLayer]) -> int:
    """Return the bytes of computed chunks that the layers' engines keep."""
    engines = {id(live.engine): live.engine for live in lives}
    pools = [engine.stats()["bytes"] for engine in engines.values()]
    return sum(pool["chunks"] + pool["stages"] for pool in pools)
