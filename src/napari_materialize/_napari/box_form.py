"""Level and box in the widget: choosing them, and saying what will be written.

Owns the fields. Drawing on the canvas is `overlay`'s; this form only says that it was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtpy.QtCore import Qt, Signal  # type: ignore[attr-defined]  # qtpy ships no such export for types
from qtpy.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget
from superqt import QLabeledRangeSlider

from napari_materialize._napari.pieces import (
    Note,
    Problem,
    choose,
    narrow_combo,
    narrow_form,
    set_text,
)
from napari_materialize.errors import InputError
from napari_materialize.geometry import Box
from napari_materialize.recipe import parse_box
from napari_materialize.wording import (
    DOT,
    TIMES,
    box_text,
    bytes_text,
    count_text,
    level_text,
    size_text,
    typed_box,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.session import Resolved, Session

__all__ = ["BoxForm"]

COARSER = (("No coarser levels", "none"), ("Computed", "computed"), ("By halving", "derived"))


class BoxForm(QWidget):
    """Chooses the session's level and box."""

    draw_asked = Signal()
    view_asked = Signal()

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self.sliders: dict[int, QLabeledRangeSlider] = {}
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        self._form = narrow_form()
        self.level = narrow_combo()
        self.level.setToolTip("The level that is computed and written; 0 is the finest")
        self.level.activated.connect(lambda row: self._session.change(level=row))
        self._form.addRow("Level", self.level)
        self.coarser = narrow_combo(COARSER)
        self.coarser.setToolTip(
            "Coarser levels that are written along, so that the result is quick to look at: "
            "computed as the view shows them, or made of what is written, by halving"
        )
        self.coarser.activated.connect(
            lambda _row: self._session.change(coarser=self.coarser.currentData())
        )
        self._form.addRow("Coarser", self.coarser)
        layout.addLayout(self._form)
        layout.addLayout(self._buttons())
        self._ranges = narrow_form()
        layout.addLayout(self._ranges)
        self.typed = QLineEdit()
        self.typed.setPlaceholderText("z,y,x:z,y,x")
        self.typed.setToolTip(
            "First voxel and first voxel beyond, of level 0, as z,y,x:z,y,x; empty for everything"
        )
        self.typed.editingFinished.connect(self._on_typed)
        typed_row = narrow_form()
        typed_row.addRow("Voxels", self.typed)
        layout.addLayout(typed_row)
        self.written, self.cost, self.problem = Note(), Note(), Problem()
        for note in (self.written, self.cost, self.problem):
            layout.addWidget(note)

    def _buttons(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(4)
        self.draw = QPushButton("Draw box")
        self.draw.setToolTip("Draw a rectangle on the canvas; the last one drawn counts")
        self.draw.clicked.connect(self.draw_asked)
        self.view = QPushButton("Current view")
        self.view.setToolTip("Take what the canvas shows, and the slice it shows")
        self.view.clicked.connect(self.view_asked)
        self.whole = QPushButton("Whole level")
        self.whole.setToolTip("Take everything")
        self.whole.clicked.connect(self._on_whole)
        for button in (self.draw, self.view, self.whole):
            row.addWidget(button, 1)
        return row

    # ------------------------------------------------------------------ asking

    def _on_whole(self) -> None:
        self._session.change(box=None, box_level=0, box_axes=None)

    def take(self, box: Box) -> None:
        """Take a box of the source's finest voxels, along its last axes."""
        level = self._session.resolved.source_level
        names = None if level is None else tuple(axis.name for axis in level.axes)[-box.ndim :]
        self._session.change(box=box, box_level=0, box_axes=names)

    def _on_typed(self) -> None:
        text = self.typed.text().strip()
        if text == typed_box(self._shown_box(self._session.resolved)):
            return
        if not text:
            self._on_whole()
            return
        try:
            self.take(parse_box(text))
        except InputError as error:
            self.problem.say(str(error))

    def _on_slider(self, axis: int, values: tuple[int, int]) -> None:
        box = self._session.resolved.source_box
        if box is None or (box.start[axis], box.stop[axis]) == tuple(values):
            return
        start, stop = list(box.start), list(box.stop)
        start[axis], stop[axis] = map(int, values)
        self.take(Box(tuple(start), tuple(stop)))

    # ------------------------------------------------------------------ showing

    @staticmethod
    def _shown_box(state: Resolved) -> Box | None:
        return None if state.intent.box is None else state.source_box

    def show_state(self, state: Resolved, hidden: Sequence[int]) -> None:
        """Show level, box and cost.

        Parameters
        ----------
        state : Resolved
            What to show.
        hidden : sequence of int
            The source's axes that the canvas does not show, which get a slider.
        """
        self._show_levels(state)
        self._show_sliders(state, hidden)
        set_text(self.typed, typed_box(self._shown_box(state)))
        there = state.source_level is not None
        for button in (self.draw, self.view, self.whole, self.typed):
            button.setEnabled(there)
        self.problem.say(state.problems.get("level") or state.problems.get("box"))
        plan, level = state.plan, state.level
        if plan is None or level is None:
            self.written.say(None)
            self.cost.say(None)
            return
        lengths = [n * s for n, s in zip(plan.box.shape, level.scale, strict=True)]
        sizes = TIMES.join(map(str, plan.box.shape))
        size = size_text(lengths, level.axes)
        self.written.say(f"Writes {box_text(level, plan.box)}\n{sizes} voxels{DOT}{size}")
        chunks = sum(each.chunks for each in state.plans)
        nbytes = sum(each.nbytes for each in state.plans)
        more = ", and what is halved" if state.intent.coarser == "derived" else ""
        self.cost.say(f"{count_text(chunks, 'chunk')}, {bytes_text(nbytes)} uncompressed{more}")

    def _show_levels(self, state: Resolved) -> None:
        view = state.view or state.chain.base
        rows = [] if view is None else list(view.levels)
        texts = [f"{number}: {level_text(level)}" for number, level in enumerate(rows)]
        if texts != [self.level.itemText(n) for n in range(self.level.count())]:
            self.level.clear()
            for number, text in enumerate(texts):
                self.level.addItem(text, number)
        choose(self.level, state.intent.level)
        choose(self.coarser, state.intent.coarser)
        self.level.setEnabled(len(rows) > 1)

    def _show_sliders(self, state: Resolved, hidden: Sequence[int]) -> None:
        level, box = state.source_level, state.source_box
        wanted = [] if level is None else [axis for axis in hidden if level.shape[axis] > 1]
        if level is None or box is None or list(self.sliders) != wanted:
            while self._ranges.rowCount():
                self._ranges.removeRow(0)
            self.sliders = {}
            layout = self.layout()
            if layout is not None:  # or their room stays
                layout.invalidate()
                self.updateGeometry()
        if level is None or box is None:
            return
        for axis in wanted:
            if axis not in self.sliders:
                self._add_slider(axis, level.axes[axis].name)
            slider = self.sliders[axis]
            slider.blockSignals(True)
            slider.setRange(0, level.shape[axis])
            slider.setValue((box.start[axis], box.stop[axis]))
            slider.blockSignals(False)

    def _add_slider(self, axis: int, name: str) -> None:
        slider = QLabeledRangeSlider(Qt.Orientation.Horizontal)
        slider.setToolTip(f"Voxels of level 0 along {name}, which the rectangle does not span")
        slider.valueChanged.connect(lambda values, axis=axis: self._on_slider(axis, values))
        self.sliders[axis] = slider
        self._ranges.addRow(name, slider)
