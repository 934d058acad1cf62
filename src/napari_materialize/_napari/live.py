"""Adds a view to a napari viewer as a live layer.

Owns what a view becomes in napari: which type of layer, where it lies, in which units, one layer or
one per channel. What the layer reads is in `layer` and `reads`, how it lives and is repainted in
`repaint`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from napari.layers import Image, Labels, Layer
from napari.layers._multiscale_data import MultiScaleData
from napari.layers.utils.stack_utils import split_channels
from napari.utils.notifications import show_warning

from napari_materialize._napari.contrast import Contrast
from napari_materialize._napari.layer import LiveArray
from napari_materialize._napari.reads import LayerReads
from napari_materialize._napari.repaint import LiveLayer
from napari_materialize.errors import EngineClosed, OptionError
from napari_materialize.looking import Lease, first_limits
from napari_materialize.recipe import open_view
from napari_materialize.view import View

if TYPE_CHECKING:
    from napari.components import ViewerModel

    from napari_materialize.engine import Engine

__all__ = ["add_view", "placement"]


def add_view(
    viewer: ViewerModel,
    view: Any,
    engine: Engine | None = None,
    *,
    channel_axis: int | None = None,
    **layer_kwargs: Any,
) -> Layer | list[Layer]:
    """Add a view to a viewer as a layer that is computed as it comes on screen.

    The window never waits: what is not there yet shows the nearest coarser level that is, or the
    fill value, and is painted when it arrives. Anybody else who reads ``layer.data[level][...]``
    gets exact voxels, and waits for them. To be called on the main thread.

    Parameters
    ----------
    viewer : napari.Viewer
        Where to add it.
    view : View
        What to show, or anything that `napari_materialize.open_view` takes. Its kind decides what
        it becomes: an image is an Image layer, labels and masks are a Labels layer. A mask says
        which voxels belong to something, and in napari that is what Labels are for: 0 is
        transparent over the image, there are no contrast limits to set, and plugins that measure
        take no other.
    engine : Engine, optional
        Who computes. If left out, one that all live layers of the process share, and that ends
        when the last of them is removed.
    channel_axis : int, optional
        Show each place along this axis as a layer of its own.
    **layer_kwargs
        As napari's ``Image`` or ``Labels`` take them; they go before what the view says. With
        ``channel_axis``, as ``viewer.add_image`` takes them.

    Returns
    -------
    napari.layers.Layer or list of them
        What was added; a list if ``channel_axis`` is given.

    Raises
    ------
    OptionError
        If there is no such channel axis.
    SourceError
        If it is no view, and cannot be opened as one.
    EngineClosed
        If the engine is closed.

    Examples
    --------
    >>> import napari_materialize as nm
    >>> from napari.components import ViewerModel
    >>> view = nm.open_view(np.arange(12, dtype="u1").reshape(3, 4), ops=["threshold:low=5"])
    >>> viewer = ViewerModel()  # or napari.Viewer(), with a window
    >>> layer = add_view(viewer, view)
    >>> type(layer).__name__, np.asarray(layer.data[0][1]).tolist()
    ('Labels', [0, 1, 1, 1])
    >>> viewer.layers.remove(layer)
    """
    if engine is not None and engine.closed:
        raise EngineClosed("the engine is closed; make a new one, or leave it out")
    # widgets are handed a proxy that lives no longer than they do
    viewer = getattr(viewer, "__wrapped__", viewer)
    if not isinstance(view, View):
        view = open_view(view, views=None if engine is None else engine.views)
    if channel_axis is None:
        return _add(viewer, view, engine, None, layer_kwargs)
    axis, rows = _channels(view, channel_axis, layer_kwargs)
    return [_add(viewer, view, engine, (axis, number), row) for number, row in enumerate(rows)]


def placement(view: View, channel: int | None = None) -> dict[str, Any]:
    """Return where a layer of a view belongs: scale, translate, axis_labels and units.

    A translation and napari's translate are both the position of the centre of voxel 0.

    >>> import napari_materialize as nm
    >>> placement(nm.open_view(np.zeros((4, 4)), scale=(2, 3), units="um"))["scale"]
    (2.0, 3.0)
    """
    level = view.levels[0]
    kept = [axis for axis in range(level.ndim) if axis != channel]
    return {
        "scale": tuple(level.scale[axis] for axis in kept),
        "translate": tuple(level.translation[axis] for axis in kept),
        "axis_labels": tuple(level.axes[axis].name for axis in kept),
        "units": tuple(level.axes[axis].unit or "pixel" for axis in kept),
    }


def _add(
    viewer: ViewerModel,
    view: View,
    engine: Engine | None,
    channel: tuple[int, int] | None,
    layer_kwargs: dict[str, Any],
) -> Layer:
    lease = Lease(engine)  # held from before the layer reads until it has a lease of its own
    try:
        reads = LayerReads(view, lease.engine, channel)
        layer = _make_layer(reads, layer_kwargs)
        chosen = layer_kwargs.get("contrast_limits") is not None
        contrast = Contrast(reads) if isinstance(layer, Image) and not chosen else None
        live = LiveLayer(layer, reads, engine, contrast)
        live.start(viewer)
        try:
            viewer.add_layer(layer)
        except BaseException:
            live.stop()
            raise
    finally:
        lease.end()
    live.ask_for_limits()
    return layer


def _make_layer(reads: LayerReads, layer_kwargs: dict[str, Any]) -> Layer:
    view = reads.view
    labels = view.kind != "image" and view.levels[0].dtype.kind in "biu"
    given = {"name": view.name, **_placement_of(reads, layer_kwargs), **layer_kwargs}
    # a napari to come loads any layer with chunks progressively by itself, but for this key
    given["metadata"] = {"progressive_loader": "napari-materialize", **given.get("metadata", {})}
    units = given.pop("units")
    dtype = np.uint8 if view.levels[0].dtype.kind == "b" else None
    levels = range(len(view.levels))
    # a list of one level would be taken for an array
    data = MultiScaleData([LiveArray(reads, level, dtype=dtype) for level in levels])
    layer: Layer
    if labels:
        layer = Labels(data, multiscale=True, **given)
    else:
        if given.get("contrast_limits") is None:
            given["contrast_limits"] = first_limits(view)
        given.setdefault("rgb", False)  # three voxels along x are not colours
        layer = Image(data, multiscale=True, **given)
    _set_units(layer, units)
    return layer


def _placement_of(reads: LayerReads, layer_kwargs: dict[str, Any]) -> dict[str, Any]:
    placed = placement(reads.view, None if reads.channel is None else reads.channel[0])
    if layer_kwargs.get("rgb"):
        return {key: value[:-1] for key, value in placed.items()}
    return placed


def _set_units(layer: Layer, units: Any) -> None:
    try:
        layer.units = units
    except ValueError:
        show_warning(f"{layer.name}: napari does not know the units {units}; it counts in pixels")


def _channels(
    view: View, channel_axis: int, layer_kwargs: dict[str, Any]
) -> tuple[int, list[dict[str, Any]]]:
    """Return the channel axis and the arguments of each channel's layer."""
    level = view.levels[0]
    axis = operator.index(channel_axis)
    if not -level.ndim <= axis < level.ndim or level.ndim < 3:
        raise OptionError(
            f"channel_axis: {view.name!r} has {level.ndim} axes, of which two at least are to "
            f"be seen, got {channel_axis}; leave it out, or choose another"
        )
    axis %= level.ndim
    if view.kind != "image":
        names = [f"{layer_kwargs.get('name', view.name)} [{n}]" for n in range(level.shape[axis])]
        return axis, [{**layer_kwargs, "name": name} for name in names]
    # napari's own rules for colormaps, blending and arguments given once per channel
    shape = np.broadcast_to(np.zeros((), level.dtype), level.shape)
    split = split_channels(shape, axis, **{"name": view.name, **layer_kwargs}, multiscale=False)
    rows = [dict(arguments) for _, arguments, _ in split]
    for number, row in enumerate(rows):
        row.pop("multiscale", None)
        row["name"] = row["name"] if "name" in layer_kwargs else f"{view.name} [{number}]"
    return axis, rows
