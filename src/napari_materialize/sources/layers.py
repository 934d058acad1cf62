"""Sources that are napari layers, or look like one. napari is not imported.

Owns which attributes of an Image or Labels layer a source is made of. The layer's data is read
as any array (`array_like`); its file, where it came from one, is not opened: the data may have
been changed since.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.arrays import Axis, normalize_unit
from napari_materialize.errors import SourceError
from napari_materialize.sources.array_like import channel_first, is_array_like, open_arrays
from napari_materialize.sources.overrides import Overrides
from napari_materialize.sources.rules import named_axes
from napari_materialize.sources.zarr_array import is_zarr

if TYPE_CHECKING:
    from napari_materialize.sources.opened import OpenedSource

__all__ = ["is_layer", "open_layer"]

_COLOURS = Axis("c", "channel")

_NOT_VOXELS = frozenset({"Points", "Shapes", "Surface", "Tracks", "Vectors"})


def is_layer(what: object) -> bool:
    """Whether ``what`` has what is asked of a layer."""
    # Data last: numpy raises from it for dtypes that have no buffer.
    return all(hasattr(what, name) for name in ("multiscale", "translate", "scale", "data"))


def open_layer(layer: Any, overrides: Overrides) -> OpenedSource:
    """Open the data of an Image or Labels layer, placed as the layer is.

    A layer's ``translate`` is where the centre of voxel 0 is, and so is a translation here.
    ``rotate``, ``shear`` and ``affine`` are not looked at, nor is the sign of a scale, which
    OME-Zarr has no place for: whoever shows a result in napari gives them to the new layer too. The
    colours of an RGB layer, its data's last axis, become a channel axis that comes first.

    Raises
    ------
    SourceError
        If it is another type of layer, or its data is not an image's.
    """
    # The class as it says itself: what plugins are handed is a proxy of another type.
    classes = {base.__name__ for base in layer.__class__.__mro__}
    name = str(getattr(layer, "name", None) or "layer")
    if classes & _NOT_VOXELS:
        raise SourceError(
            f"layer {name!r}: only Image and Labels layers have voxels, got a "
            f"{layer.__class__.__name__} layer; choose one of those"
        )
    arrays = list(layer.data) if layer.multiscale else [layer.data]
    if not arrays or not all(map(is_array_like, arrays)):
        raise SourceError(
            f"layer {name!r}: its data is an array, or arrays if it is multiscale, got "
            f"{type(layer.data).__name__}; choose an Image or Labels layer"
        )
    colours = bool(getattr(layer, "rgb", False))
    if colours:
        arrays = list(map(channel_first, arrays))
    placed = _as_shown(layer, len(arrays[0].shape), classes, overrides, colours=colours)
    source = open_arrays(arrays, placed, name, f"layer {name!r}")
    if "Labels" in classes and any(map(is_zarr, arrays)):
        # painting writes into the stored arrays and leaves no trace in their documents
        source = replace(
            source,
            identity=f"{source.identity}:{uuid.uuid4().hex}",
            stable=source.stable and source.lasting is not None,
            current=None,
        )
    shown = {"name": name, "class": layer.__class__.__name__}
    return replace(source, name=overrides.name or name, record={**source.record, "layer": shown})


def _as_shown(
    layer: Any, ndim: int, classes: set[str], overrides: Overrides, *, colours: bool
) -> Overrides:
    """Return ``overrides``, filled up with what the layer says."""
    # what the layer says is of the axes it shows, and colours are none of these
    shown, name = ndim - colours, str(getattr(layer, "name", None) or "layer")
    axes = named_axes(list(getattr(layer, "axis_labels", None) or ()), shown)
    units = getattr(layer, "units", None)
    if units is not None and not isinstance(units, str):
        units = [normalize_unit(str(unit)) for unit in units]
    scale = tuple(np.abs(np.asarray(layer.scale, dtype=float)))
    translation = layer.translate
    if colours:
        usable = axes is not None and all(axis.type != "channel" for axis in axes)
        axes = (_COLOURS, *(axes if axes is not None and usable else _unnamed(shown, name)))
        scale, translation = (1.0, *scale), (0.0, *translation)
        units = units if units is None or isinstance(units, str) else [None, *units]
    said = Overrides(
        scale=scale,
        translation=translation,
        units=units,
        axes=axes,
        kind="label" if "Labels" in classes else None,
    )
    chosen = {
        key: getattr(said if getattr(overrides, key) is None else overrides, key)
        for key in ("chunks", "scale", "translation", "units", "axes", "kind", "name")
    }
    return Overrides(**chosen)


def _unnamed(ndim: int, name: str) -> tuple[Axis, ...]:
    """Return the axes of an RGB layer that names none: the last of t, z, y, x."""
    if not 1 <= ndim <= 4:
        raise SourceError(
            f"layer {name!r}: an RGB layer has 1 to 4 axes besides its colours, got {ndim}; choose "
            "or reshape one that has"
        )
    return (Axis("t", "time"), Axis("z"), Axis("y"), Axis("x"))[-ndim:]
