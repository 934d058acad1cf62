"""What the widget draws in the viewer: the rectangle's layer and the outline of the written box.

Owns two Shapes layers and when they change. It decides nothing: what is drawn goes out through a
callback as corner points in the world, and which box is outlined comes in.

A layer that is not needed for a while is emptied and hidden, and one that is exchanged goes after
the new one has come: with software OpenGL napari 0.9 crashed when a Shapes layer was added
after the last one had been removed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize._napari.placing import place
from napari_materialize._napari.within import shapes_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari.layers import Shapes
    from napari.viewer import Viewer

    from napari_materialize._napari.viewport import Frame
    from napari_materialize.session import Corners

__all__ = ["DRAWING", "OUTLINE", "Overlay"]

DRAWING = "Box (drawn)"
"""The name of the layer that rectangles are drawn on."""

OUTLINE = "Box (to be written)"
"""The name of the layer that shows what will be written."""

_DRAWN_COLOUR, _INSIDE, _OUTSIDE = "#ffd166", "#2ee6a6", "#2ee6a650"
_DRAWN_PIXELS, _OUTLINE_PIXELS, _EDGE_PIXELS = 1.5, 2.5, 1.0


class Overlay:
    """The two layers. Everything here runs on the main thread.

    Parameters
    ----------
    viewer : napari.Viewer
        Where they are; held weakly.
    on_drawn : callable
        Called with (4, axes) corner points in the world when a rectangle was drawn or changed.
    on_message : callable
        Called with a sentence when something that was drawn does not count.
    """

    def __init__(
        self,
        viewer: Viewer,
        on_drawn: Callable[[np.ndarray], None],
        on_message: Callable[[str], None],
    ) -> None:
        self._viewer = weakref.ref(viewer)
        self._on_drawn, self._on_message = on_drawn, on_message
        self._drawing: weakref.ref[Any] | None = None
        self._outline: weakref.ref[Any] | None = None
        self._frame: Frame | None = None
        self._corners: Corners | None = None
        self._emitters = (
            viewer.dims.events.current_step,
            viewer.dims.events.order,
            viewer.dims.events.ndisplay,
        )
        for emitter in self._emitters:
            emitter.connect(self._on_dims)
        viewer.scene.camera.events.zoom.connect(self._on_zoom)

    # ------------------------------------------------------------------ drawing

    def draw(self, frame: Frame) -> None:
        """Make the layer that rectangles are drawn on, or find it again, and take up the tool."""
        viewer = self._viewer()
        if viewer is None:
            return
        layer = self._living(self._drawing)
        if layer is None or not _same_place(layer, frame):
            layer = self._add_layer(DRAWING, frame, turned=False, instead=layer)
            layer.current_edge_color = _DRAWN_COLOUR
            layer.events.data.connect(self._on_data)
            self._drawing = weakref.ref(layer)
        layer.visible = True
        layer.current_edge_width = self._edge_width(_DRAWN_PIXELS, frame)
        viewer.layers.selection.active = layer
        layer.mode = "add_rectangle"

    def _on_data(self, event: Any) -> None:
        if str(getattr(event.action, "value", event.action)) not in ("added", "changed", "removed"):
            return
        layer: Shapes = event.source
        types = list(layer.shape_type)
        rectangles = [n for n, kind in enumerate(types) if kind == "rectangle"]
        if types and types[-1] != "rectangle":
            self._on_message(f"Only rectangles count: the {types[-1]} is ignored.")
        if rectangles and (types[-1] == "rectangle" or str(event.action) != "added"):
            corners = np.asarray(layer.data[rectangles[-1]], dtype=float)
            self._on_drawn(np.array([layer.data_to_world(corner) for corner in corners]))

    # ------------------------------------------------------------------ the outline

    def show(self, frame: Frame | None, corners: Corners | None) -> None:
        """Outline a box, given by its faces in the frame's own world; None for no outline."""
        before = (self._frame, self._corners)
        self._frame, self._corners = frame, corners
        there = self._living(self._outline) is not None
        if not there or corners != before[1] or not _same_frame(frame, before[0]):
            self._paint()

    def _paint(self) -> None:
        viewer, layer = self._viewer(), self._living(self._outline)
        if viewer is None:
            return
        frame, corners = self._frame, self._corners
        if frame is None:
            if layer is not None:
                viewer.layers.remove(layer)
            return
        if corners is None:
            if layer is not None:
                _empty(layer)
                layer.visible = False
            return
        if layer is None or not _fits(layer, frame):
            layer = self._add_layer(OUTLINE, frame, turned=True, instead=layer)
            layer.mouse_pan, layer.editable = True, False
            self._outline = weakref.ref(layer)
        shapes, kind, inside = self._shapes(viewer, frame, corners)
        colour = _INSIDE if inside else _OUTSIDE
        _empty(layer)
        layer.visible = True
        if shapes:
            width = self._outline_width(viewer, frame)
            layer.add(
                shapes,
                shape_type=kind,
                edge_color=colour,
                face_color="transparent",
                edge_width=width,
            )

    def _shapes(
        self, viewer: Viewer, frame: Frame, corners: Corners
    ) -> tuple[list[np.ndarray], str, bool]:
        lead = viewer.dims.ndim - frame.level.ndim
        across = [axis - lead for axis in viewer.dims.displayed]
        if min(across) < 0:
            return [], "polygon", True
        if viewer.dims.ndisplay == 3:
            return frame.edges(*corners, viewer.dims.point, across), "path", True
        section, inside = frame.section(*corners, viewer.dims.point, across)
        return [section], "polygon", inside

    def _on_dims(self) -> None:
        if self._living(self._outline) is not None:
            self._paint()

    def _on_zoom(self) -> None:
        viewer, layer = self._viewer(), self._living(self._outline)
        if viewer is not None and layer is not None and self._frame is not None and layer.nshapes:
            layer.edge_width = [self._outline_width(viewer, self._frame)] * layer.nshapes

    # ------------------------------------------------------------------ both

    def close(self) -> None:
        """Remove both layers and listen no more."""
        viewer = self._viewer()
        if viewer is None:
            return
        for emitter in self._emitters:
            emitter.disconnect(self._on_dims)
        viewer.scene.camera.events.zoom.disconnect(self._on_zoom)
        for layer in (self._living(self._drawing), self._living(self._outline)):
            if layer is not None:
                viewer.layers.remove(layer)

    def _living(self, reference: weakref.ref[Any] | None) -> Any:
        """Return a layer if it is still in the viewer."""
        viewer, layer = self._viewer(), None if reference is None else reference()
        return (
            layer if viewer is not None and layer is not None and layer in viewer.layers else None
        )

    def _add_layer(self, name: str, frame: Frame, *, turned: bool, instead: Any = None) -> Any:
        """Add an empty Shapes layer in the source's space, turned as the source is or not.

        ``instead``: of this one, which is removed.
        """
        viewer = self._viewer()
        if viewer is None:
            raise RuntimeError("the viewer is gone")
        active = viewer.layers.selection.active
        level = frame.level
        keywords = place(level, frame.affine if turned else None, level.axes)
        layer = shapes_within(
            level.shape, name=name, face_color="transparent", opacity=1, **keywords
        )
        layer.current_face_color = "transparent"
        viewer.add_layer(layer)
        viewer.layers.selection.active = active
        if instead is not None:
            viewer.layers.remove(instead)
            layer.name = name  # it had a number while there were two
        return layer

    def _outline_width(self, viewer: Viewer, frame: Frame) -> float:
        # an edge in 3D is a ribbon that a coarse axis widens
        pixels = _EDGE_PIXELS if viewer.dims.ndisplay == 3 else _OUTLINE_PIXELS
        return self._edge_width(pixels, frame)

    def _edge_width(self, pixels: float, frame: Frame) -> float:
        """Return an edge that is so many pixels wide on the screen, in finest voxels."""
        viewer = self._viewer()
        zoom = 1.0 if viewer is None else viewer.scene.camera.zoom
        return float(pixels / zoom / min(frame.level.scale[-2:]))


def _empty(layer: Any) -> None:
    """Take all shapes from a layer."""
    if layer.nshapes:
        layer.selected_data = set(range(layer.nshapes))
        layer.remove_selected()


def _same_frame(one: Frame | None, other: Frame | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.level == other.level and one.affine == other.affine


def _same_place(layer: Any, frame: Frame) -> bool:
    level = frame.level
    return bool(
        layer.ndim == level.ndim
        and np.allclose(layer.scale, level.scale)
        and np.allclose(layer.translate, level.translation)
    )


def _fits(layer: Any, frame: Frame) -> bool:
    """Whether the outline's layer lies and turns as the source does."""
    if not _same_place(layer, frame):
        return False
    probe = np.vstack([np.zeros(frame.level.ndim), np.eye(frame.level.ndim)])
    shown = np.array([layer.data_to_world(point) for point in probe])
    return bool(np.allclose(shown, frame.to_world(probe)))
