"""What tests of napari's window share: settling, clicking, what a layer has on the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qtpy.QtCore import Qt
from qtpy.QtTest import QTest
from qtpy.QtWidgets import QApplication

from napari_materialize._napari.repaint import LiveLayer, live_layer

if TYPE_CHECKING:
    from napari.layers import Layer

WAIT = 60_000
"""Milliseconds after which a test that waits has failed."""


def live_of(layer: Layer) -> LiveLayer:
    live = live_layer(layer)
    assert live is not None
    return live


def settle(qtbot: Any, *layers: Layer) -> None:
    """Let a window work until its live layers are complete."""

    def settled() -> bool:
        return all(live_of(layer).settled and layer.loaded for layer in layers)

    QApplication.processEvents()  # a draw that is due may read
    qtbot.waitUntil(settled, timeout=WAIT)


def click(button: Any) -> None:
    assert button.isEnabled(), button.toolTip()
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
