"""What is computed from: one of the viewer's layers, or a path.

Owns the list of layers, which it keeps up to date and holds weakly, and the path's line. It opens
nothing: the session does.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from qtpy.QtWidgets import QFileDialog, QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from napari_materialize._napari.edits import Edits
from napari_materialize._napari.pieces import Note, Problem, narrow_combo, set_text
from napari_materialize._napari.viewport import affine_of
from napari_materialize.wording import DOT, count_text, level_text

if TYPE_CHECKING:
    from napari.viewer import Viewer

    from napari_materialize.session import Resolved, Session

__all__ = ["SourceForm"]

_PATH = "path"
_PLACING = ("data", "scale", "translate", "rotate", "shear", "affine", "units", "axis_labels")
"""Events of a layer after which its source is another one."""


class SourceForm(QWidget):
    """Chooses the session's source."""

    def __init__(self, viewer: Viewer, session: Session) -> None:
        super().__init__()
        self._viewer, self._session = weakref.ref(viewer), session
        self._watched: weakref.ref[Any] | None = None
        self._edits = Edits(self)
        self._edits.edited.connect(self._on_moved)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(3)
        self.combo = narrow_combo()
        self.combo.setToolTip("The layer that the operations compute from, or a path")
        self.combo.activated.connect(self._on_choice)
        layout.addWidget(self.combo)
        layout.addWidget(self._path_row())
        self.description, self.notices, self.problem = Note(), Note(), Problem()
        self.notices.setStyleSheet("color: #e0b050;")
        layout.addWidget(self.description)
        layout.addWidget(self.notices)
        layout.addWidget(self.problem)
        events = viewer.layers.events
        for emitter in (events.inserted, events.removed, events.reordered, events.renamed):
            emitter.connect(self._on_layers)
        self._on_layers()

    def _path_row(self) -> QWidget:
        self.path_row = QWidget()
        row = QHBoxLayout(self.path_row)
        row.setContentsMargins(0, 0, 0, 0)
        self.path = QLineEdit()
        self.path.setPlaceholderText("folder of an OME-Zarr or zarr array")
        self.path.setToolTip(
            "A path, a URL, or view:NAME for one of the engine's views; press Enter to open it"
        )
        self.path.editingFinished.connect(self._on_path)
        browse = QPushButton("Browse\N{HORIZONTAL ELLIPSIS}")
        browse.setToolTip("Choose the folder of an OME-Zarr image or a zarr array")
        browse.clicked.connect(self._browse)
        row.addWidget(self.path, 1)
        row.addWidget(browse)
        self.path_row.hide()
        return self.path_row

    # ------------------------------------------------------------------ the list

    def _on_layers(self) -> None:
        """List the layers anew; drop a source that was removed, take the first that comes."""
        viewer = self._viewer()
        if viewer is None:
            return
        layers = [one for one in viewer.layers if one.__class__.__name__ in ("Image", "Labels")]
        source = self._session.intent.source
        self.combo.blockSignals(True)
        self.combo.clear()
        for layer in layers:
            self.combo.addItem(layer.name, weakref.ref(layer))
        self.combo.addItem("A path\N{HORIZONTAL ELLIPSIS}", _PATH)
        self.combo.blockSignals(False)
        if _is_layer(source) and not any(source is layer for layer in layers):
            self.choose_layer(None)
        elif source is None and layers and self.path_row.isHidden():
            active = viewer.layers.selection.active
            self.choose_layer(active if active in layers else layers[-1])
        self._show_choice()

    def _show_choice(self) -> None:
        source = self._session.intent.source
        rows = [self.combo.itemData(row) for row in range(self.combo.count())]
        if _is_layer(source):
            found = [n for n, ref in enumerate(rows) if ref != _PATH and ref() is source]
            place = found[0] if found else -1
        else:
            place = len(rows) - 1 if source is not None or not self.path_row.isHidden() else -1
        self.combo.setCurrentIndex(place)

    # ------------------------------------------------------------------ choosing

    def _on_choice(self, row: int) -> None:
        chosen = self.combo.itemData(row)
        self.path_row.setVisible(chosen == _PATH)
        if chosen == _PATH:
            self.choose_layer(None)
            self._on_path()
            self.path.setFocus()
        else:
            self.choose_layer(chosen())

    def choose_layer(self, layer: Any) -> None:
        """Take a layer as the source, or none."""
        watched = None if self._watched is None else self._watched()
        for name in _PLACING:
            if watched is not None:
                getattr(watched.events, name).disconnect(self._on_moved)
            if layer is not None:
                getattr(layer.events, name).connect(self._on_moved)
        self._watched = None if layer is None else weakref.ref(layer)
        self._edits.watch(layer)
        if layer is None:
            self._session.change(source=None)
        else:
            self.path_row.hide()
            self._session.change(source=layer, name=layer.name, affine=affine_of(layer))
        self._show_choice()

    def choose_path(self, path: str) -> None:
        """Take a path as the source."""
        self.choose_layer(None)
        self.path_row.show()
        self.path.setText(path)
        self._on_path()
        self._show_choice()

    def _on_moved(self) -> None:
        """The layer was moved, or holds other voxels."""
        layer = self._session.intent.source
        if _is_layer(layer):
            self._session.change(affine=affine_of(layer))
            self._session.reopen()

    def _on_path(self) -> None:
        path = self.path.text().strip()
        if path != (self._session.intent.source or ""):
            self._session.change(source=path or None)
        elif path and self._session.resolved.chain.base is None:
            self._session.reopen()  # perhaps it is there by now

    def _browse(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, "Open an OME-Zarr image", self.path.text())
        if folder:
            self.choose_path(folder)

    # ------------------------------------------------------------------ showing

    def show_state(self, state: Resolved) -> None:
        """Say what the source is, or why it is none."""
        level, base = state.source_level, state.chain.base
        if level is not None and base is not None:
            self.description.say(DOT.join([level_text(level), level.dtype.name]))
            self.description.setToolTip(count_text(len(base.levels), "level"))
        else:
            self.description.say(None)
        notices = getattr(base.source, "notices", ()) if base is not None else ()
        more = f" (and {len(notices) - 1} more)" if len(notices) > 1 else ""
        self.notices.say(f"{notices[0]}{more}" if notices else None)
        self.notices.setToolTip("\n".join(notices))
        self.problem.say(state.problems.get("source") if state.intent.source is not None else None)
        if isinstance(state.intent.source, str):
            set_text(self.path, state.intent.source)


def _is_layer(source: Any) -> bool:
    return hasattr(source, "data_to_world")
