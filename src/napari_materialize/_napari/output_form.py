"""Where and how the result is written, in the widget.

Owns the fields of folder, name, format, compression and extent. Whether they make sense is the
session's to say.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from qtpy.QtWidgets import (
    QCheckBox,
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from napari_materialize._napari.pieces import Problem, choose, narrow_combo, narrow_form, set_text

if TYPE_CHECKING:
    from napari_materialize.session import Resolved, Session

__all__ = ["OutputForm"]

FORMATS = (("OME-Zarr 0.4 (zarr v2)", "zarr2"), ("OME-Zarr 0.5 (zarr v3)", "zarr3"), ("N5", "n5"))
EXTENTS = (("Whole level", "level"), ("Only the box", "box"))
COMPRESSIONS = (("gzip", (6, 0, 9)), ("zstd", (3, 1, 22)), ("blosc", (3, 0, 9)), ("none", None))
"""Names, and the level that is usual, the lowest and the highest."""

_LEVELS = dict(COMPRESSIONS)


class OutputForm(QWidget):
    """Chooses the session's target and options."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        form = narrow_form()
        layout.addLayout(form)
        form.addRow("Folder", self._folder_row())
        self.name = QLineEdit()
        self.name.setToolTip("The new folder that is written; empty for a name that is free")
        self.name.editingFinished.connect(self._on_place)
        form.addRow("Name", self.name)
        self.format = narrow_combo(FORMATS)
        self.format.setToolTip("Which format is written: OME-Zarr of zarr v2 or v3, or N5")
        self.format.activated.connect(
            lambda _row: self._session.change(format=self.format.currentData())
        )
        form.addRow("Format", self.format)
        form.addRow("Compression", self._compression_row())
        self.extent = narrow_combo(EXTENTS)
        self.extent.setToolTip(
            "Arrays of the level's whole shape, in which only the box is stored, rounded out to "
            "whole chunks; or arrays of exactly the box"
        )
        self.extent.activated.connect(
            lambda _row: self._session.change(extent=self.extent.currentData())
        )
        form.addRow("Extent", self.extent)
        self.skip_empty = QCheckBox("Leave out empty chunks")
        self.skip_empty.setToolTip("A chunk of nothing but the fill value is not written")
        self.skip_empty.toggled.connect(lambda on: self._session.change(skip_empty=on))
        form.addRow("", self.skip_empty)
        self.problem = Problem()
        layout.addWidget(self.problem)

    def _folder_row(self) -> QWidget:
        widget = QWidget()
        row = QHBoxLayout(widget)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        self.folder = QLineEdit()
        self.folder.setPlaceholderText("where the result goes")
        self.folder.setToolTip("A folder that exists; the result becomes a new folder in it")
        self.folder.editingFinished.connect(self._on_place)
        self.browse = QPushButton("Browse\N{HORIZONTAL ELLIPSIS}")
        self.browse.setToolTip("Choose the folder that the result goes into")
        self.browse.clicked.connect(self._browse)
        row.addWidget(self.folder, 1)
        row.addWidget(self.browse)
        return widget

    def _compression_row(self) -> QWidget:
        widget = QWidget()
        row = QHBoxLayout(widget)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        self.compression = narrow_combo((name, name) for name, _ in COMPRESSIONS)
        self.compression.setToolTip("How chunks are compressed")
        self.compression.activated.connect(self._on_compression)
        self.strength = QSpinBox()
        self.strength.setMaximumWidth(84)
        self.strength.setToolTip("How hard it tries; more is smaller and slower")
        self.strength.valueChanged.connect(self._on_strength)
        row.addWidget(self.compression, 1)
        row.addWidget(self.strength)
        return widget

    # ------------------------------------------------------------------ asking

    def _on_place(self) -> None:
        """Take folder and name; a name that was not changed stays one that is made up."""
        intent, resolved = self._session.intent, self._session.resolved
        folder, name = self.folder.text().strip(), self.name.text().strip()
        folder = os.path.expanduser(folder)  # noqa: PTH111  (an unknown ~user stays, and is said)
        made_up = intent.target is None
        unchanged = resolved.target is not None and name == Path(resolved.target).name
        if not folder or not name or (made_up and unchanged):
            target = None
        else:
            target = str(Path(folder, name))
        if (folder or None, target) != (intent.folder, intent.target):
            self._session.change(folder=folder or None, target=target)

    def _browse(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, "Where the result goes", self.folder.text())
        if folder:
            self.folder.setText(folder)
            self._on_place()

    def _on_compression(self) -> None:
        name = self.compression.currentData()
        usual = _LEVELS[name]
        self._session.change(compression=name if usual is None else f"{name}:{usual[0]}")

    def _on_strength(self, level: int) -> None:
        self._session.change(compression=f"{self.compression.currentData()}:{level}")

    # ------------------------------------------------------------------ showing

    def show_state(self, state: Resolved) -> None:
        """Show what is asked for and what is wrong with it."""
        intent = state.intent
        target = None if state.target is None else Path(state.target)
        set_text(self.folder, intent.folder or ("" if target is None else str(target.parent)))
        set_text(self.name, "" if target is None else target.name)
        if not self.name.hasFocus():
            self.name.setCursorPosition(0)  # a long name is seen from its beginning
        choose(self.format, intent.format)
        choose(self.extent, intent.extent)
        name, _, level = (intent.compression or "none").partition(":")
        choose(self.compression, name)
        usual = _LEVELS.get(name)
        self.strength.blockSignals(True)
        self.strength.setVisible(usual is not None)
        if usual is not None:
            self.strength.setRange(usual[1], usual[2])
            self.strength.setValue(int(level or usual[0]))
        self.strength.blockSignals(False)
        self.skip_empty.blockSignals(True)
        self.skip_empty.setChecked(intent.skip_empty)
        self.skip_empty.blockSignals(False)
        missing = intent.folder is None and intent.target is None
        wrong = state.problems.get("output") or state.problems.get("target")
        self.problem.say(None if missing and "output" not in state.problems else wrong)
