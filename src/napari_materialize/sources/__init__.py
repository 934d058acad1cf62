"""Sources: multiscale images that exist, opened from a path, an array or a napari layer.

Owns `open_source` and the choice of who opens what. It writes nothing and computes nothing. One
module per kind of source: `stored` for paths and URLs, `array_like` for arrays, `layers` for
layers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import SourceError
from napari_materialize.sources.opened import OpenedSource
from napari_materialize.sources.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Axis, Kind

__all__ = ["OpenedSource", "open_source"]


def open_source(
    what: Any,
    *,
    chunks: Sequence[int] | None = None,
    scale: Sequence[float] | None = None,
    translation: Sequence[float] | None = None,
    units: str | Sequence[str | None] | None = None,
    axes: str | Sequence[str | Axis] | None = None,
    kind: Kind | None = None,
    name: str | None = None,
) -> OpenedSource:
    """Open a multiscale image for reading.

    Parameters
    ----------
    what : path, array, sequence of arrays or layer
        A path or URL (``file``, ``s3``, ``gs``, ``http``, ``https``) of an OME-Zarr image (0.1 to
        0.5, and 0.6 where it is scaled and moved only), of its labels or one of its levels, of a
        zarr array, an N5 array or image, or a group that holds exactly one; an array with
        ``shape``, ``dtype`` and slicing (numpy, dask, zarr, h5py ...), or several, finest first; a
        napari Image or Labels layer, whose rotation, shear and affine are not looked at.
    chunks : sequence of int, optional
        Voxels per chunk along each axis, of every level. By default the source's own, or, where it
        has none, blocks of about 64 x 64 x 64 voxels.
    scale, translation : sequence of float, optional
        World units per voxel, and the world position of the centre of voxel 0, of the finest level;
        coarser levels keep their factors and offsets. By default what the source says, or 1 and 0.
    units : str or sequence of str, optional
        Of all axes in space, or one per axis (None for none); short or full names.
    axes : str or sequence of str or Axis, optional
        One per axis, such as ``"zyx"``. By default what the source says, or the last of t, c, z, y,
        x.
    kind : {"image", "label", "mask"}, optional
        What the voxels mean. By default what the source says; truth values are a mask.
    name : str, optional
        Short, for layers and results.

    Returns
    -------
    OpenedSource
        Described; nothing but metadata was read, except that numpy arrays of up to 256 MiB are
        hashed once, for their identity.

    Raises
    ------
    SourceError
        If ``what`` is missing, malformed, not an image, or more than one; or if an option does not
        fit it.

    Examples
    --------
    >>> import numpy as np
    >>> source = open_source([np.zeros((5, 100)), np.zeros((3, 50))], scale=(2, 0.5), units="um")
    >>> source.levels[1].scale, source.levels[1].translation
    ((4.0, 1.0), (1.0, 0.25))
    """
    from napari_materialize.sources import array_like, layers, stored
    from napari_materialize.sources.places import place_of

    overrides = Overrides(chunks, scale, translation, units, axes, kind, name)
    if isinstance(what, str | os.PathLike):
        return stored.open_place(place_of(what), overrides)
    if layers.is_layer(what):
        return layers.open_layer(what, overrides)
    if isinstance(what, list | tuple):
        return array_like.open_arrays(what, overrides)
    if array_like.is_array_like(what):
        return array_like.open_arrays([what], overrides)
    raise SourceError(
        "source: a path, an array with shape, dtype and slicing, a list of arrays, or a napari "
        f"Image or Labels layer, got {type(what).__name__}; pass one of those"
    )
