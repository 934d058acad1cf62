"""The fields of an operation's form: one for each kind of parameter, and the grid they stand in.

Owns which widget a parameter gets and how its value is written in it. What a value means is the
registry's business.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magicgui.widgets import CheckBox, ComboBox, FileEdit, LineEdit, SpinBox
from qtpy.QtWidgets import QGridLayout, QLabel, QWidget

if TYPE_CHECKING:
    from napari_materialize.ops import Parameter

__all__ = ["Rows", "as_text", "field_for"]

DTYPES = ("uint8", "uint16", "uint32", "int16", "int32", "float32", "float64")


def field_for(op: str, parameter: Parameter, value: Any) -> Any:
    """Return a magicgui field for a parameter, holding ``value``."""
    members = typing.get_args(parameter.type) or (parameter.type,)
    if parameter.name == "dtype":
        free = [] if parameter.required or parameter.default else [("as the image", None)]
        field: Any = ComboBox(choices=[*free, *((name, name) for name in DTYPES)], value=value)
    elif members == (bool,):
        field = CheckBox(value=bool(value))
    elif Path in members:
        field = FileEdit(value=Path(value or ""), filter="*.onnx" if op == "onnx" else None)
        field.native.setObjectName("Fields")
        field.choose_btn.text = "Browse\N{HORIZONTAL ELLIPSIS}"
    elif members == (int,):
        field = SpinBox(value=int(value or 0), min=0, max=2**31 - 1)
    else:
        field = LineEdit(value=as_text(value))
        several = any(typing.get_origin(member) is tuple for member in members)
        hint = "such as 2 or 0,2,2" if several else as_text(parameter.default)
        field.native.setPlaceholderText(hint or ("required" if parameter.required else "not set"))
    field.tooltip = parameter.help
    field.native.setToolTip(parameter.help)
    return field


def as_text(value: Any) -> str:
    """Return a value as a line edit shows it: several numbers with commas.

    >>> as_text((0, 2.5)), as_text(None)
    ('0,2.5', '')
    """
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class Rows:
    """A grid of labelled fields: short ones two in a row, a file by itself."""

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
        wide = isinstance(field, FileEdit)
        if wide:
            self._place += self._place % 2
        row, half = divmod(self._place, 2)
        label = QLabel(parameter.name)
        label.setToolTip(parameter.help)
        label.setBuddy(field.native)
        self._grid.addWidget(label, row, 2 * half)
        self._grid.addWidget(field.native, row, 2 * half + 1, 1, 3 if wide else 1)
        self._place += 2 if wide else 1
