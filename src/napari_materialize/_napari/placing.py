"""Where a layer of ours lies: a level's scale and translation, its units, and a source's affine.

Owns the keywords that put an Image, Labels or Shapes layer in place. Arithmetic is `viewport`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from napari_materialize._napari.viewport import embed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize._napari.viewport import Affine
    from napari_materialize.arrays import Axis, Level

__all__ = ["mask_colours", "place", "units_of"]

MASK = "#ff4f9a"
"""The colour of a mask: it stands out on grey, and from the outline of the box."""


def place(level: Level, affine: Affine | None = None, axes: Sequence[Axis] = ()) -> dict[str, Any]:
    """Return the keywords that put a layer of ``level`` in place.

    Parameters
    ----------
    level : Level
        What the layer shows; a translation is the centre of voxel 0, in napari as here.
    affine : Affine, optional
        What the viewer does to the world of the source beyond that.
    axes : sequence of Axis
        The axes that ``affine`` is over.
    """
    names = [axis.name for axis in level.axes]
    keywords: dict[str, Any] = {
        "scale": level.scale,
        "translate": level.translation,
        "axis_labels": names,
        "units": units_of(level.axes),
    }
    matrix = embed(affine, [axis.name for axis in axes], names)
    return keywords if matrix is None else {**keywords, "affine": matrix}


def units_of(axes: Sequence[Axis]) -> list[str]:
    """Return the units of axes as napari takes them; pixels where it does not know one.

    They belong in a layer's constructor: in napari 0.9.2 a layer that is given units later may go
    on slicing by the old ones, because an inverse transform is cached.
    """
    from napari.utils.transforms import Affine as Transform

    units = [axis.unit or "pixel" for axis in axes]
    try:
        Transform(ndim=len(units), units=units)
    except ValueError as error:
        from napari.utils.notifications import show_warning

        show_warning(f"the layer counts in pixels, since napari says: {error}")
        return ["pixel"] * len(units)
    return units


def mask_colours() -> Any:
    """Return the colormap of a mask's Labels layer: its one value gets one colour that is seen.

    napari's own first label is a dark brown, which on a dark image is not.
    """
    from napari.utils.colormaps import DirectLabelColormap

    return DirectLabelColormap(color_dict={0: "transparent", 1: MASK, None: MASK})
