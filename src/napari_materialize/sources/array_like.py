"""Sources that are arrays in memory or behind another library: numpy, dask, zarr, h5py and others.

Owns what is asked of such an array (``shape``, ``dtype``, ``__getitem__`` with slices) and how
it is read. Dask is known by what it has and never imported. Paths are `stored`'s.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.arrays import Level, default_axes
from napari_materialize.errors import SourceError
from napari_materialize.sources.folder import node_at
from napari_materialize.sources.opened import OpenedSource, fingerprint
from napari_materialize.sources.places import LocalPlace
from napari_materialize.sources.pyramid import place_by_shape
from napari_materialize.sources.rules import (
    LARGEST_CHUNK,
    check_size,
    checked_dtype,
    checked_kind,
    checked_shape,
)
from napari_materialize.sources.stored import open_place
from napari_materialize.sources.zarr_array import ZarrReader, axes_of, fill_of, folder_of, is_zarr

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from napari_materialize.arrays import Axis
    from napari_materialize.geometry import Box, Index
    from napari_materialize.sources.opened import BlockReader
    from napari_materialize.sources.overrides import Overrides

__all__ = [
    "ArrayReader",
    "DaskReader",
    "channel_first",
    "default_chunks",
    "is_array_like",
    "open_arrays",
]

_HASHED = 256 * 2**20
"""Bytes up to which the content of numpy arrays is hashed for their identity."""

_BLOCK = {1: 2**18, 2: 512, 3: 64}
"""Voxels of a chunk along each axis in space, by how many such axes there are."""


def is_array_like(what: object) -> bool:
    """Whether ``what`` has what is asked of an array."""
    return all(hasattr(what, name) for name in ("shape", "dtype", "__getitem__"))


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReader:
    """Reads boxes of anything that is indexed like numpy."""

    array: Any

    def __call__(self, box: Box) -> np.ndarray:
        """Return a copy of the voxels of ``box``: the array's owner may change it later."""
        return np.array(self.array[box.slices], order="C")


@dataclass(frozen=True, slots=True, eq=False)
class DaskReader:
    """Computes boxes of a dask array in the calling thread.

    Dask's own pool would come on top of the threads that call this.
    """

    array: Any

    def __call__(self, box: Box) -> np.ndarray:
        """Compute the voxels of ``box``."""
        return np.asarray(self.array[box.slices].compute(scheduler="synchronous"))


class _ChannelFirst:
    """An array whose last axis is put first, one block at a time."""

    def __init__(self, array: Any) -> None:
        self._array = array
        *rest, channels = array.shape
        self.shape, self.dtype = (channels, *rest), array.dtype
        chunks = getattr(array, "chunks", None)
        listed = isinstance(chunks, tuple | list) and len(chunks) == len(self.shape)
        self.chunks = (chunks[-1], *chunks[:-1]) if listed and chunks is not None else None

    def __getitem__(self, slices: tuple[slice, ...]) -> np.ndarray:
        first, *rest = slices
        return np.moveaxis(np.asarray(self._array[(*rest, first)]), -1, 0)


def channel_first(array: Any) -> Any:
    """Return an array with its last axis first; nothing is read.

    Examples
    --------
    >>> channel_first(np.zeros((4, 5, 3))).shape
    (3, 4, 5)
    """
    if isinstance(array, np.ndarray):
        return np.moveaxis(array, -1, 0)
    last = len(array.shape) - 1
    return array.transpose(last, *range(last)) if _dask(array) else _ChannelFirst(array)


def open_arrays(
    arrays: Sequence[Any], overrides: Overrides, name: str = "array", place: str = "array"
) -> OpenedSource:
    """Open arrays as the levels of an image, finest first; ``place`` is for messages.

    One zarr array in a local folder is opened by its path: the same voxels, with a place in the
    world and an identity.

    Identity: numpy by its content when opened, up to 256 MiB in all; zarr in local folders by
    location and metadata; both mean the same in another process. Dask by the arrays' names: equal
    names are equal graphs, but a name need not follow from the content (a path written again, a
    name that was given), so it is not trusted in another process. All others by a token of this
    call.

    Raises
    ------
    SourceError
        If an array is not an image's, or the levels do not get coarser one by one.
    """
    if not arrays or not all(map(is_array_like, arrays)):
        raise SourceError(
            f"{place}: levels are arrays with shape, dtype and slicing, finest first, got "
            f"{[type(array).__name__ for array in arrays]}; pass arrays"
        )
    if any(np.ma.is_masked(array) for array in arrays):
        raise SourceError(
            f"{place}: an array without a mask is expected, got a masked one; say what lies under "
            "the mask, as in array.filled(0)"
        )
    folders = [folder for array in arrays if (folder := folder_of(array)) is not None]
    if len(arrays) == len(folders) == 1:
        return open_place(LocalPlace(folders[0]), overrides)
    levels = overrides.apply(place, _levels(place, arrays, overrides))
    kind = checked_kind(place, overrides.kind, "image", levels[0].dtype)
    stored = len(folders) == len(arrays)
    token, stable = _token(arrays, folders)

    def current() -> str:
        return f"array:{fingerprint(levels, kind, _token(arrays, folders)[0])}"

    first = type(arrays[0])
    record: dict[str, Any] = {
        "type": "array",
        "library": first.__module__.partition(".")[0],
        "shapes": [list(level.shape) for level in levels],
        "dtype": levels[0].dtype.name,
    }
    if read := folders + [folder for array in arrays for folder in _read_by(array)]:
        record["locations"] = list(dict.fromkeys(map(str, read)))
    if overrides.given:
        record["options"] = overrides.given
    return OpenedSource(
        name=overrides.name or name,
        identity=f"array:{fingerprint(levels, kind, token)}",
        stable=stable,
        current=current if stable else None,
        kind=kind,
        levels=levels,
        location=str(folders[0]) if stored and len(folders) == 1 else None,
        record=record,
        readers=tuple(map(_reader, arrays)),
    )


def _levels(place: str, arrays: Sequence[Any], overrides: Overrides) -> tuple[Level, ...]:
    """Describe arrays with the finest at scale 1; their axes matter for their chunks already."""
    shapes = [checked_shape(place, array.shape) for array in arrays]
    for fine, coarse in itertools.pairwise(shapes):
        if len(fine) != len(coarse) or not all(map(operator.ge, fine, coarse)) or fine == coarse:
            raise SourceError(
                f"{place}: levels are listed finest first, with the same axes, got shapes "
                f"{shapes}; put them in order, or stack them into one array"
            )
    ndim = len(shapes[0])
    axes = (axes_of(arrays[0]) if is_zarr(arrays[0]) else None) or default_axes(ndim)
    axes = overrides.chosen_axes(place, axes)
    placements = place_by_shape(shapes, ((1.0,) * ndim, (0.0,) * ndim))
    levels = []
    for array, shape, (scale, translation) in zip(arrays, shapes, placements, strict=True):
        dtype = checked_dtype(place, array.dtype)
        check_size(place, shape, dtype)
        chunks = _own_chunks(array, shape, dtype) or default_chunks(shape, axes)
        fill = fill_of(array) if is_zarr(array) else 0
        levels.append(Level(shape, dtype, chunks, axes, scale, translation, fill))
    return tuple(levels)


def _own_chunks(array: Any, shape: Index, dtype: np.dtype) -> Index | None:
    """Return the chunks an array says it has, if they are usable.

    Zarr and h5py give a size per axis, dask all sizes along each axis, of which the first is taken.
    """
    listed = getattr(array, "chunks", None)
    if not isinstance(listed, tuple | list) or len(listed) != len(shape):
        return None
    sizes = [size[0] if isinstance(size, tuple | list) and size else size for size in listed]
    if not all(isinstance(size, int | np.integer) and size > 0 for size in sizes):
        return None
    found = tuple(map(min, map(int, sizes), shape))
    return found if math.prod(found) * dtype.itemsize <= LARGEST_CHUNK else None


def default_chunks(shape: Sequence[int], axes: Sequence[Axis]) -> Index:
    """Return chunks for an array that has none: 64 along z, y and x, 512 in a plane, 1 in t and c.

    Examples
    --------
    >>> default_chunks((3, 100, 1000, 1000), default_axes(4))
    (1, 64, 64, 64)
    >>> default_chunks((3, 1, 1000, 40), default_axes(4))
    (1, 1, 512, 40)
    """
    wide = [i for i, axis in enumerate(axes) if axis.type == "space" and shape[i] > 1][-3:]
    return tuple(min(n, _BLOCK[len(wide)]) if i in wide else 1 for i, n in enumerate(shape))


def _dask(array: Any) -> bool:
    return hasattr(array, "__dask_graph__") and hasattr(array, "compute")


def _read_by(array: Any) -> list[Path]:
    """Return the folders of the zarr arrays that a dask array is made of: no target either.

    Its graph has them as layers of one entry, as dask's ``from_zarr`` and ``from_array`` make them.
    """
    layers = getattr(array.__dask_graph__(), "layers", {}) if _dask(array) else {}
    single = [
        each
        for layer in layers.values()
        if isinstance(each := getattr(layer, "mapping", None), dict) and len(each) == 1
    ]
    found = [getattr(node, "value", node) for mapping in single for node in mapping.values()]
    return [folder for each in found if (folder := folder_of(each)) is not None]


def _reader(array: Any) -> BlockReader:
    if _dask(array):
        return DaskReader(array)
    return ZarrReader(array) if is_zarr(array) else ArrayReader(array)


def _token(arrays: Sequence[Any], folders: Sequence[Path]) -> tuple[str, bool]:
    """Return text that stands for the arrays' content, and whether other processes can trust it."""
    if len(folders) == len(arrays):
        nodes = [node_at(LocalPlace(folder)) for folder in folders]
        stamps = [f"{node.folder}:{node.stamp}" for node in nodes if node is not None]
        if len(stamps) == len(arrays):
            return "|".join(stamps), True
    if all(isinstance(array, np.ndarray) for array in arrays):
        if sum(array.nbytes for array in arrays) <= _HASHED:
            return _content(arrays), True
    elif all(_dask(array) and hasattr(array, "name") for array in arrays):
        return "|".join(str(array.name) for array in arrays), False
    return uuid.uuid4().hex, False


def _content(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for array in arrays:
        # In the machine's byte order: equal bytes of two orders are not equal voxels.
        native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        digest.update(native.reshape(-1).view(np.uint8))
    return digest.hexdigest()
