"""The live layer that a widget added last: it shows what the widget says, as that changes.

Owns what becomes of the layer when an operation is changed: the same layer shows the new
computation where only voxels differ, and another takes its place where more does. How a layer
changes what it shows is in `repaint`, what it is made of in `live`.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qtpy.QtCore import QObject, QTimer

from napari_materialize._napari.live import add_view
from napari_materialize._napari.placing import mask_colours
from napari_materialize._napari.repaint import live_layer
from napari_materialize._napari.viewport import embed

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari.layers import Layer

    from napari_materialize.engine import Engine
    from napari_materialize.session import Resolved
    from napari_materialize.view import View

__all__ = ["Following"]

BREATH = 30
"""Milliseconds between two changes of what is shown, so that a dragged slider does not flood."""


class Following(QObject):
    """Adds live layers for a widget, and keeps the last of them at what the widget says.

    Parameters
    ----------
    viewer : callable
        Returns the viewer, or None once it is gone.
    parent : QObject
        Whose life it shares.
    """

    def __init__(self, viewer: Callable[[], Any], parent: QObject) -> None:
        super().__init__(parent)
        self._viewer = viewer
        self._layer: Callable[[], Layer | None] = _no_layer
        self._state: Resolved | None = None
        self._name = ""
        self._edited = 0
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._catch_up)

    @property
    def layer(self) -> Layer | None:
        """The layer that follows, if there is one and it is in the viewer."""
        viewer, layer = self._viewer(), self._layer()
        return layer if viewer is not None and layer in viewer.layers else None

    def add(self, state: Resolved, engine: Engine | None = None, **looks: Any) -> Layer | None:
        """Add what a session computes as a live layer, which follows it from here on.

        A layer that followed before stays as it is, to compare with.

        Raises
        ------
        MaterializeError
            If it cannot be shown.
        """
        viewer = self._viewer()
        if viewer is None or state.view is None:
            return None
        if state.view.kind == "mask":
            looks = {"colormap": mask_colours(), **looks}
        name = _name(state)
        looks = {"name": name, "affine": _affine(state), **looks}
        layer = add_view(viewer, state.view, engine, **looks)
        assert not isinstance(layer, list)
        self._layer, self._state, self._name = weakref.ref(layer), state, name
        return layer

    def follow(self, state: Resolved) -> None:
        """Show what a session says now, in a moment."""
        if self._state is not None:
            self._state, before = state, self._state
            self._edited = _first_change(before, state, self._edited)
            if state.intent.source is not before.intent.source:
                self._let_go()  # it shows another image: the layer is of the one before
            elif not self._timer.isActive():
                self._timer.start(BREATH)

    def _let_go(self) -> None:
        self._timer.stop()
        self._layer, self._state = _no_layer, None

    def _catch_up(self) -> None:
        layer, state = self.layer, self._state
        live = None if layer is None else live_layer(layer)
        if layer is None or live is None or state is None:
            self._let_go()
            return
        view = _cut(state, self._edited)
        if view is None or view.identity == live.view.identity:
            return  # something is being typed, or nothing of this changed
        named, self._name = layer.name == self._name, _name(state)
        if live.reads.fits(view):
            live.show(view)
            if named:
                layer.name = self._name
            return
        self._replace(layer, state, self._name if named else layer.name)

    def _replace(self, layer: Layer, state: Resolved, name: str) -> None:
        """Let another layer take the place of one that cannot show the view."""
        viewer, live = self._viewer(), live_layer(layer)
        assert live is not None
        place, chosen = viewer.layers.index(layer), viewer.layers.selection.active
        looks = {name: getattr(layer, name) for name in _looks(live.view, state.view)}
        # the new one before the old one goes: an engine that they share lives on
        fresh = self.add(state, live.given_engine, **looks)
        viewer.layers.remove(layer)
        viewer.layers.move(viewer.layers.index(fresh), place)
        if fresh is not None:
            fresh.name = name
        viewer.layers.selection.active = fresh if chosen is layer else chosen


def _looks(before: View, after: View | None) -> tuple[str, ...]:
    """Return what of a layer's looks suits the one that takes its place, too.

    Limits of contrast do not: voxels of another dtype have others.
    """
    looks: tuple[str, ...] = ("visible", "opacity")
    if after is not None and before.kind == after.kind:
        looks += ("blending", "colormap", "gamma") if after.kind == "image" else ("blending",)
    return looks


def _first_change(before: Resolved, after: Resolved, known: int) -> int:
    """Return the place of the first op that is another one; ``known`` if none is."""
    pairs = zip(before.chain.made, after.chain.made, strict=False)
    return next((place for place, (old, new) in enumerate(pairs) if old is not new), known)


def _cut(state: Resolved, place: int) -> View | None:
    """Return a session's view, with what comes before an op kept: it is the same view.

    Whoever drags that op's slider computes what comes before it once.
    """
    view, base, made = state.view, state.chain.base, state.chain.made
    ops = [op for op in made if op is not None]
    if view is None or base is None or not 0 < place < len(made):
        return view
    if any(op.identity is None for op in ops):
        return view  # each time it is put together it is another view
    return replace(base.then(ops[:place]).then(ops[place:]), name=view.name)


def _name(state: Resolved) -> str:
    ops = () if state.view is None else state.view.ops
    return " \u203a ".join([state.name, *(op.name for op in ops)])


def _affine(state: Resolved) -> Any:
    level, view = state.source_level, state.view
    if level is None or view is None:
        return None
    names = [axis.name for axis in view.levels[0].axes]
    return embed(state.intent.affine, [axis.name for axis in level.axes], names)


def _no_layer() -> None:
    return None
