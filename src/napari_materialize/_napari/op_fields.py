"""The fields of an operation's form: one for each kind of parameter, and the grid they stand in.

Owns which widget a parameter gets and how its value is written in it. What a value means is the
registry's business.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magicgui.widgets import CheckBox, ComboBox, FileEdit, LineEdit, SpinBox
from psygnal import Signal
from qtpy.QtCore import Qt
from qtpy.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QSlider, QWidget

from napari_materialize._napari.pieces import NARROW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.ops import Parameter

__all__ = ["Rows", "SlidingField", "as_text", "field_for"]

DTYPES = ("uint8", "uint16", "uint32", "int16", "int32", "float32", "float64")


SPANS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("gaussian", "sigma"): (0.0, 10.0),
}
"""What a slider goes over, where that does not depend on the image."""

_OVER_VALUES = frozenset((op, name) for op in ("threshold", "rescale") for name in ("low", "high"))
"""Parameters that are values of the image: their slider goes over its window."""

_MOST = 2**31 - 1
"""The largest number that Qt's field for whole numbers holds."""

STEPS = 200
"""Places that a slider has."""


def field_for(
    op: str, parameter: Parameter, value: Any, window: tuple[float, float] = (0.0, 1.0)
) -> Any:
    """Return a field for a parameter, holding ``value``: magicgui's, or one of its kind.

    A value that a choice or a number's field cannot hold (none yet, where one is required; or one
    that a program chose) is added to the choices, or stands in a line.

    Parameters
    ----------
    op : str
        The op's name.
    parameter : Parameter
        What the field is for.
    value : object
        What it holds.
    window : (float, float)
        The lowest and highest value that the op is given, as far as anybody knows.
    """
    members = typing.get_args(parameter.type) or (parameter.type,)
    span = SPANS.get((op, parameter.name), window if (op, parameter.name) in _OVER_VALUES else None)
    if span is not None and members != (int,):
        field: Any = SlidingField(as_text(value), *span)
        hint = as_text(parameter.default) or ("required" if parameter.required else "not set")
        field.line.native.setPlaceholderText(hint)
    elif parameter.name == "dtype":
        field = ComboBox(choices=_dtypes(parameter, value), value=value)
    elif members == (bool,):
        field = CheckBox(value=bool(value))
    elif Path in members:
        field = FileEdit(value=Path(value or ""), filter="*.onnx" if op == "onnx" else None)
        field.native.setObjectName("Fields")
        field.choose_btn.text = "Browse\N{HORIZONTAL ELLIPSIS}"
    elif members == (int,) and _counts(value):
        field = SpinBox(value=int(value or 0), min=0, max=_MOST)
    else:
        field = LineEdit(value=as_text(value))
        several = any(typing.get_origin(member) is tuple for member in members)
        hint = "such as 2 or 0,2,2" if several else as_text(parameter.default)
        field.native.setPlaceholderText(hint or ("required" if parameter.required else "not set"))
    field.tooltip = parameter.help
    field.native.setToolTip(parameter.help)
    return field


def _dtypes(parameter: Parameter, value: Any) -> list[tuple[str, str | None]]:
    """Return the dtypes that are offered; the one that is chosen already is always among them."""
    choices: list[tuple[str, str | None]] = [(name, name) for name in DTYPES]
    if not (parameter.required or parameter.default):
        choices.insert(0, ("as the image", None))
    elif value is None:
        choices.insert(0, ("required", None))
    if value not in [known for _, known in choices]:
        choices.append((as_text(value), value))
    return choices


def _counts(value: Any) -> bool:
    """Return whether a field for whole numbers can hold a value."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value is None or (isinstance(value, int) and 0 <= value <= _MOST)


def as_text(value: Any) -> str:
    """Return a value as a line edit shows it: several numbers with commas.

    >>> as_text((0, 2.5)), as_text(None)
    ('0,2.5', '')
    """
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class SlidingField:
    """A line that takes what is typed, and a slider that types one number into it.

    Parameters
    ----------
    text : str
        What the line holds.
    low, high : float
        The slider's ends. What is typed may lie beyond them.
    """

    changed = Signal(str)
    """The text is another; on the main thread."""

    def __init__(self, text: str, low: float, high: float) -> None:
        self._low, self._step = low, (high - low) / STEPS
        self._whole = self._step >= 1
        self.line = LineEdit(value=text)
        self.line.native.setMinimumWidth(NARROW)
        self.line.native.setMaximumWidth(2 * NARROW)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, STEPS)
        self.slider.setMinimumWidth(NARROW)
        self.native = QWidget()
        self.native.setObjectName("Fields")
        row = QHBoxLayout(self.native)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        row.addWidget(self.line.native)
        row.addWidget(self.slider, 1)
        self.native.setFocusProxy(self.line.native)
        self._show()
        self.line.changed.connect(self._on_line)
        self.slider.valueChanged.connect(self._on_slider)

    @property
    def value(self) -> str:
        """What the line holds."""
        return str(self.line.value)

    @value.setter
    def value(self, value: object) -> None:
        self.line.value = as_text(value)

    @property
    def tooltip(self) -> str:
        """What both parts say of themselves."""
        return str(self.line.tooltip)

    @tooltip.setter
    def tooltip(self, text: str) -> None:
        self.line.tooltip = text
        self.slider.setToolTip(text)

    def _on_line(self) -> None:
        self._show()
        self.changed.emit(self.value)

    def _on_slider(self, place: int) -> None:
        number = self._low + place * self._step
        self.line.value = f"{round(number)}" if self._whole else f"{number:.4g}"

    def _show(self) -> None:
        """Let the slider stand where the line says, if that is one number."""
        try:
            number = float(self.value)
            place = round((number - self._low) / self._step)
        except (ValueError, OverflowError):
            return  # several numbers, or none yet: the slider stays where it was
        self.slider.blockSignals(True)
        self.slider.setValue(min(max(place, 0), STEPS))
        self.slider.blockSignals(False)


class Rows:
    """A grid of labelled fields: short ones two in a row, a file or a slider by itself."""

    def __init__(self, parent: QWidget) -> None:
        self._grid = QGridLayout(parent)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(6)
        self._grid.setVerticalSpacing(3)
        for column in (1, 3):
            self._grid.setColumnStretch(column, 1)
        self._place = 0

    def add(self, parameter: Parameter, field: Any) -> None:
        """Add a field after the others."""
        wide = isinstance(field, FileEdit | SlidingField)
        if wide:
            self._place += self._place % 2
        row, half = divmod(self._place, 2)
        # a long name may be broken at its underscores, or it would set the width of the dock
        label = QLabel(parameter.name.replace("_", "_\N{ZERO WIDTH SPACE}"))
        label.setWordWrap("_" in parameter.name)
        label.setToolTip(parameter.help)
        label.setBuddy(field.native)
        self._grid.addWidget(label, row, 2 * half)
        self._grid.addWidget(field.native, row, 2 * half + 1, 1, 3 if wide else 1)
        self._place += 2 if wide else 1
