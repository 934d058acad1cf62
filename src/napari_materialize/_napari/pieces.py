"""Small parts that the widget's forms are made of: labels that wrap, forms that stay narrow.

Owns looks and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qtpy.QtCore import Qt
from qtpy.QtWidgets import QComboBox, QFormLayout, QLabel, QSizePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qtpy.QtWidgets import QWidget

__all__ = ["Caption", "Note", "Problem", "choose", "narrow_combo", "narrow_form", "set_text"]

NARROW = 60
"""Pixels that a field may shrink to, so that the widget fits a narrow dock."""


class Note(QLabel):
    """A line of text that wraps and takes no place while it is empty."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.setWordWrap(True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumWidth(NARROW)
        self.setVisible(bool(text))

    def say(self, text: str | None) -> None:
        """Show a text, or nothing."""
        self.setText(text or "")
        self.setVisible(bool(text))


class Problem(Note):
    """A sentence that says what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.setStyleSheet("color: #ff8f8f;")


class Caption(QLabel):
    """The heading of a part of the widget."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        font = self.font()
        font.setBold(True)
        self.setFont(font)


def narrow_form(parent: QWidget | None = None) -> QFormLayout:
    """Return a form whose fields take what room there is."""
    form = QFormLayout() if parent is None else QFormLayout(parent)
    form.setContentsMargins(0, 0, 0, 0)
    form.setHorizontalSpacing(6)
    form.setVerticalSpacing(3)
    form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
    form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return form


def narrow_combo(rows: Iterable[tuple[str, Any]] = ()) -> QComboBox:
    """Return a combo box that does not grow with its longest row."""
    combo = QComboBox()
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    combo.setMinimumContentsLength(3)
    combo.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    for text, value in rows:
        combo.addItem(text, value)
    return combo


def choose(combo: QComboBox, value: Any) -> None:
    """Show the row that holds ``value``, and tell nobody."""
    combo.blockSignals(True)
    combo.setCurrentIndex(combo.findData(value))
    combo.blockSignals(False)


def set_text(line: Any, text: str) -> None:
    """Show a text in a line edit, unless it is there already or somebody is typing."""
    if line.text() != text and not line.hasFocus():
        line.setText(text)
