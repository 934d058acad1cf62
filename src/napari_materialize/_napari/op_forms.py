"""The list of operations in the widget: cards with a form each, made from an op's parameters.

Owns the fields and what is typed into them. What a value means, and whether it is one, is the
registry's business: a card hands over what is there and shows the sentence that comes back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from qtpy.QtCore import Signal  # type: ignore[attr-defined]  # qtpy ships no such export for types
from qtpy.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QMenu,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from napari_materialize import ops
from napari_materialize._napari.op_fields import Rows, as_text, field_for
from napari_materialize._napari.pieces import Problem, choose, narrow_combo, narrow_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.session import Resolved, Session
    from napari_materialize.view import View

__all__ = ["OpCard", "OpsForm"]

STARTS: Mapping[tuple[str, str], Any] = {
    ("gaussian", "sigma"): "1",
    ("median", "size"): "3",
    ("cast", "dtype"): "float32",
    ("select", "channel"): 0,
}
"""What a required parameter starts with, so that a new card works at once."""

BOUNDARIES = (("The edge, repeated", "edge"), ("Zeros", "zeros"))

FEW = 2
"""Optional parameters that are shown at once; more of them wait behind a button."""


_CARD = (
    "#OpCard { background: rgba(128, 128, 128, 34); border-radius: 4px; } "
    "#OpCard QLabel, #OpCard #Fields, #OpCard QToolButton { background: transparent; }"
)


class OpCard(QFrame):
    """One operation: its name, buttons to move and remove it, its parameters, what is wrong."""

    edited = Signal()
    moved = Signal(int)
    removed = Signal()

    def __init__(
        self,
        title: str,
        name: str | None,
        values: Mapping[str, Any],
        window: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.setObjectName("OpCard")
        self.setStyleSheet(_CARD)
        self.name, self.fields = name, dict[str, Any]()
        self.made_of: Any = None
        """The choice it was made for."""
        layout = QVBoxLayout(self)
        layout.setContentsMargins(6, 4, 6, 6)
        layout.setSpacing(3)
        layout.addLayout(self._header(title))
        if name is not None:
            self._add_fields(layout, name, values, window)
        self.problem = Problem()
        layout.addWidget(self.problem)

    def _header(self, title: str) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(2)
        label = QLabel(f"<b>{title}</b>")
        row.addWidget(label, 1)
        self.up = self._button("\N{UPWARDS ARROW}", "Move this operation up")
        self.down = self._button("\N{DOWNWARDS ARROW}", "Move this operation down")
        self.remove = self._button("\N{MULTIPLICATION SIGN}", "Remove this operation")
        self.up.clicked.connect(lambda: self.moved.emit(-1))
        self.down.clicked.connect(lambda: self.moved.emit(1))
        self.remove.clicked.connect(self.removed)
        for button in (self.up, self.down, self.remove):
            row.addWidget(button)
        return row

    @staticmethod
    def _button(text: str, tip: str) -> QToolButton:
        button = QToolButton()
        button.setText(text)
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.setFixedSize(22, 22)
        return button

    def _add_fields(
        self,
        layout: QVBoxLayout,
        name: str,
        values: Mapping[str, Any],
        window: tuple[float, float],
    ) -> None:
        described = ops.describe_parameters(ops.available()[name])
        rest = [each for each in described if not each.required]
        hidden = {each.name for each in rest} if len(rest) > FEW else set()
        shown, more = QWidget(), QWidget()
        for part in (shown, more):
            part.setObjectName("Fields")
        grids = {False: Rows(shown), True: Rows(more)}
        for parameter in described:
            value = values.get(parameter.name, parameter.default)
            field = field_for(name, parameter, value, window)
            self.fields[parameter.name] = field
            field.changed.connect(self._on_edit)
            grids[parameter.name in hidden].add(parameter, field)
        layout.addWidget(shown)
        shown.setVisible(len(hidden) < len(described))
        if hidden:
            button = QToolButton()
            button.setText("More\N{HORIZONTAL ELLIPSIS}")
            button.setCheckable(True)
            button.toggled.connect(more.setVisible)
            more.setVisible(any(key in hidden for key in values))
            button.setChecked(more.isVisibleTo(self))
            layout.addWidget(button)
            layout.addWidget(more)

    def _on_edit(self) -> None:
        self.edited.emit()

    def values(self) -> dict[str, Any]:
        """Return what the fields hold, without those that are empty."""
        found: dict[str, Any] = {}
        for key, field in self.fields.items():
            value = field.value
            if isinstance(value, Path):
                value = None if value == Path() else str(value)
            if value is not None and value != "":
                found[key] = value
        return {k: v for k, v in found.items() if k in _said(self.name or "", found)}

    def values_as_text(self) -> dict[str, str]:
        """Return the same as text, to compare."""
        return {key: as_text(value) for key, value in self.values().items()}


def _said(op: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text, without those that say what is the default anyway."""
    defaults = {p.name: as_text(p.default) for p in ops.describe_parameters(ops.available()[op])}
    texts = {key: as_text(value) for key, value in values.items()}
    return {key: text for key, text in texts.items() if text and text != defaults.get(key)}


def _window(view: View | None) -> tuple[float, float]:
    """Return the lowest and highest value that a view may hold, as far as anybody knows."""
    if view is None:
        return 0.0, 1.0
    if view.limits is not None:
        return view.limits
    dtype = view.levels[0].dtype
    if dtype.kind not in "iu":
        return 0.0, 1.0
    return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)


def _given(state: Resolved, place: int) -> tuple[float, float]:
    """Return the lowest and highest value that an operation is given, as far as anybody knows."""
    before = state.chain.made[:place]
    if place == 0:
        known = getattr(state.intent.source, "contrast_limits_range", None)
        if known is not None and known[0] < known[1]:
            return float(known[0]), float(known[1])
    made = [op for op in before if op is not None]
    base = state.chain.base
    if base is None or len(made) < len(before):
        return _window(base)
    try:
        return _window(base.then(made))
    except Exception:  # noqa: BLE001 - what does not fit says so on its own card, whatever it raises
        return _window(base)


class OpsForm(QWidget):
    """The operations of a session, in order, and the button that adds one."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self.cards: list[OpCard] = []
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        self._list = QVBoxLayout()
        self._list.setSpacing(4)
        layout.addLayout(self._list)
        self.add_button = QPushButton("Add operation")
        self.add_button.setToolTip("Compute something from the source; the operations run in order")
        self.menu = QMenu(self)
        self.menu.aboutToShow.connect(self._fill_menu)
        self.add_button.setMenu(self.menu)
        layout.addWidget(self.add_button)
        self.boundary = narrow_combo(BOUNDARIES)
        self.boundary.setToolTip(
            "What operations that look around a voxel are given beyond the volume's edge"
        )
        self.boundary.activated.connect(
            lambda _row: self._session.change(boundary=self.boundary.currentData())
        )
        self._edge = QWidget()
        narrow_form(self._edge).addRow("Past the edge", self.boundary)
        layout.addWidget(self._edge)

    def _fill_menu(self) -> None:
        self.menu.clear()
        self.menu.setToolTipsVisible(True)
        for name, op in ops.available().items():
            action: Any = self.menu.addAction(name)
            action.setToolTip((op.__doc__ or name).partition("\n")[0].replace("``", ""))
            action.triggered.connect(lambda _checked=False, name=name: self.add(name))

    def add(self, name: str) -> None:
        """Add an operation at the end, with values to start from."""
        described = ops.describe_parameters(ops.available()[name])
        starts = {p.name: STARTS[name, p.name] for p in described if (name, p.name) in STARTS}
        low, high = _window(self._session.resolved.view)
        if name == "threshold":
            starts["low"] = f"{low + (high - low) / 2:.6g}"
        elif name == "rescale":
            starts |= {"low": f"{low:.6g}", "high": f"{high:.6g}"}
        self._session.change(ops=(*self._session.intent.ops, (name, starts)))

    def show_state(self, state: Resolved) -> None:
        """Show the operations and what is wrong with each."""
        choices = state.intent.ops
        choose(self.boundary, state.intent.boundary)
        self._edge.setVisible(bool(choices))
        if not self._same(choices):
            self._rebuild(state)
        for number, card in enumerate(self.cards):
            card.up.setEnabled(number > 0)
            card.down.setEnabled(number < len(self.cards) - 1)
            problems = state.chain.op_problems
            card.problem.say(problems[number] if number < len(problems) else None)

    def _same(self, choices: tuple[Any, ...]) -> bool:
        """Whether the cards show these operations already, so that nobody's cursor moves."""
        if len(choices) != len(self.cards):
            return False
        for choice, card in zip(choices, self.cards, strict=True):
            if card.name is None or not isinstance(choice, tuple):
                if card.made_of != choice:
                    return False
                continue
            if choice[0] != card.name or _said(choice[0], choice[1]) != card.values_as_text():
                return False
        return True

    def _rebuild(self, state: Resolved) -> None:
        choices = state.intent.ops
        for card in self.cards:
            self._list.removeWidget(card)
            card.setParent(None)
            card.deleteLater()
        self.cards = []
        for number, choice in enumerate(choices, 1):
            if isinstance(choice, tuple):
                window = _given(state, number - 1)
                card = OpCard(f"{number}  {choice[0]}", choice[0], choice[1], window)
            else:
                card = OpCard(f"{number}  {getattr(choice, 'name', choice)}", None, {})
            place, card.made_of = number - 1, choice
            card.edited.connect(self._on_edit)
            card.moved.connect(lambda step, place=place: self._move(place, step))
            card.removed.connect(lambda place=place: self._remove(place))
            self.cards.append(card)
            self._list.addWidget(card)

    def _on_edit(self) -> None:
        choices = [
            choice if card.name is None else (card.name, card.values())
            for choice, card in zip(self._session.intent.ops, self.cards, strict=True)
        ]
        self._session.change(ops=tuple(choices))

    def _move(self, place: int, step: int) -> None:
        choices = list(self._session.intent.ops)
        choices.insert(place + step, choices.pop(place))
        self._session.change(ops=tuple(choices))

    def _remove(self, place: int) -> None:
        choices = list(self._session.intent.ops)
        del choices[place]
        self._session.change(ops=tuple(choices))
