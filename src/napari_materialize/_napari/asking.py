"""Who asks a live layer's array for its voxels.

numpy's protocol does not say who calls ``__array__``, and napari asks for pictures, thumbnails,
histograms and contrast limits in the same way as a script asks for the data. What tells them apart
is the calling function: the nearest one that is neither numpy's nor this package's. Owns the names
of napari's functions that this leans on, and nothing else; the tests pin each of them.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["SLICING_FUNCTION", "SLICING_MODULE", "Asker", "Asking", "who_asks"]

SLICING_MODULE = "napari.layers._scalar_field._slice"
"""Where napari turns the place of its sliders and its camera into reads."""

SLICING_FUNCTION = "_project_thick_slice"
"""The function there that reads; a method of the request, which knows what is displayed."""

DATA_MODULES = (
    "napari.layers._layer_actions",
    "napari.layers.utils.stack_utils",
    "napari.plugins",
    "napari.utils.io",
)
"""Parts of napari that make or save data, and want it as exact as a script does."""

_SKIPPED = ("numpy", __package__)


class Asker(Enum):
    """Who asks."""

    PICTURE = "napari's slicing, for the canvas"
    THUMBNAIL = "napari's slicing, for the thumbnail in the layer list"
    LOOK = "another part of napari that shows something: a histogram, contrast limits"
    ANYONE = "anyone else: a script, a writer, another plugin"


class Asking(NamedTuple):
    """Who asks, and for what view."""

    asker: Asker

    displayed: tuple[int, ...] = ()
    """The layer's axes on the canvas; empty where nobody says."""


def who_asks() -> Asking:
    """Find out who called numpy, or whatever of ours called this.

    Returns
    -------
    Asking
        `Asker.ANYONE` where the caller is not a part of napari that only shows.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _within(_module(frame), _SKIPPED):
        frame = frame.f_back
    if frame is None:
        return Asking(Asker.ANYONE)
    module = _module(frame)
    if module == SLICING_MODULE and frame.f_code.co_name == SLICING_FUNCTION:
        return _slicing(frame)
    if _within(module, ("napari",)) and not _within(module, DATA_MODULES):
        return Asking(Asker.LOOK)
    return Asking(Asker.ANYONE)


def _slicing(frame: FrameType) -> Asking:
    """Tell a picture from a thumbnail: a thumbnail is read from the whole level, uncut."""
    names = frame.f_locals
    request, data = names.get("self"), names.get("data")
    slice_input = getattr(request, "slice_input", None)
    displayed = tuple(map(int, getattr(slice_input, "displayed", ())))
    uncut = data is not None and data is getattr(request, "data_at_thumbnail_level", None)
    return Asking(Asker.THUMBNAIL if uncut else Asker.PICTURE, displayed)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)
