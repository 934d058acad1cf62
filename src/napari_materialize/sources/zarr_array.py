"""One zarr array: what it says of itself, and how its voxels are read.

Owns the way into zarr-python: nothing else opens an array, and `ZarrReader` alone reads voxels
through it. What is plain enough to be read as files is `plain`'s, and where a document has nothing
unusual it is not even asked.
Where an array lies in the world is not its business (`multiscales`), nor which path led to it
(`stored`).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.arrays import Level, default_axes
from napari_materialize.errors import SourceError
from napari_materialize.sources.plain import PlainReader, plain_reader
from napari_materialize.sources.plain_document import said_in
from napari_materialize.sources.rules import (
    check_size,
    checked_chunks,
    checked_dtype,
    checked_shape,
    named_axes,
    one_line,
)

if TYPE_CHECKING:
    import zarr
    from typing_extensions import TypeIs

    from napari_materialize.arrays import Axis
    from napari_materialize.geometry import Box, Index
    from napari_materialize.sources.folder import Node
    from napari_materialize.sources.place_store import PlaceStore

__all__ = ["ZarrReader", "axes_of", "describe", "fill_of", "folder_of", "is_zarr"]

_MOST_IN_SHARD = 2**22
"""Chunks of a shard beyond which its shape is taken for a mistake."""

_BESIDES = 2**20
"""Bytes that a file may have besides its voxels: heads, checksums."""


@dataclass(frozen=True, slots=True, eq=False)
class ZarrReader:
    """Reads boxes of one zarr array. Zarr's synchronous interface may be called by any thread."""

    array: zarr.Array[Any]
    """Open for reading."""

    def __call__(self, box: Box) -> np.ndarray:
        """Return the voxels of ``box``, the fill value where no chunk is stored."""
        try:
            return np.asarray(self.array[box.slices])
        except BaseExceptionGroup as group:
            # zarr reads the parts of a shard together; the first failure says what was wrong
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from group


def describe(node: Node) -> tuple[Level, PlainReader | ZarrReader]:
    """Open the array at ``node`` and describe it as it says itself, not placed in the world.

    Raises
    ------
    SourceError
        If it is not an image's array, or not one that zarr-python can read.
    """
    place, document = str(node.folder), node.document
    # Checked in the document first, so that the sentence is ours and not a guess at zarr's, and
    # before zarr makes anything of these sizes.
    shape = checked_shape(place, document.get("shape"))
    dtype = checked_dtype(place, document.get("dtype" if node.zarr_format == 2 else "data_type"))
    check_size(place, shape, dtype)
    stored = _stored_chunks(node)
    # what a chunk's file becomes is held whole, also where a shard has many chunks
    checked_chunks(place, stored, shape, dtype)
    most = 2 * math.prod(stored) * dtype.itemsize + _BESIDES
    said = said_in(node)
    if said is not None:
        axes = named_axes(said.names, len(shape)) or default_axes(len(shape))
        level = Level(shape, dtype, stored, axes, fill=said.fill)
        reader = plain_reader(node.document, node.zarr_format, node.folder, level, most)
        if reader is not None:
            return level, reader
    store = _store(node, most)
    opened, fill = _open(node, store)
    chunks = checked_chunks(place, opened.chunks, shape, dtype)
    count = math.prod(-(-n // m) for n, m in zip(stored, chunks, strict=True))
    if count > _MOST_IN_SHARD:
        raise SourceError(
            f"{place}: a shard's index is held in memory, so a shard has at most {_MOST_IN_SHARD} "
            f"chunks, got shards of {stored} with chunks of {chunks}; write it with larger chunks"
        )
    store.most += 32 * (count - 1)  # the index
    axes = axes_of(opened) or default_axes(len(shape))
    level = Level(shape, dtype, chunks, axes, fill=fill)
    plain = plain_reader(node.document, node.zarr_format, node.folder, level, store.most)
    return level, plain or ZarrReader(_watched(opened))


def _store(node: Node, most: int) -> PlaceStore:
    """Return what an array's files, of at most ``most`` bytes, are read from."""
    from napari_materialize.sources.place_store import PlaceStore

    return PlaceStore(node.folder, most)


def _open(node: Node, store: PlaceStore) -> tuple[zarr.Array[Any], float | int | bool]:
    """Open an array from its document as it was read."""
    import zarr
    from zarr.storage import StorePath

    try:
        document: dict[str, Any] = dict(node.document)
        if node.zarr_format == 2:
            document["attributes"] = dict(node.attributes)
        else:
            document["codecs"] = _in_numbers(document.get("codecs"), len(document["shape"]))
        array = zarr.Array.from_dict(StorePath(store), document)
        return array, fill_of(array)
    except Exception as error:
        # zarr raises whatever its parsers do: KeyError, TypeError, OverflowError and others.
        raise SourceError(
            f"{node.folder}: an array's metadata has to be zarr v{node.zarr_format} as zarr-python "
            f"reads it, it refuses this ({one_line(error)}); correct it or install what it names"
        ) from error


def _watched(array: zarr.Array[Any]) -> zarr.Array[Any]:
    from napari_materialize.sources.zarr_codecs import watched

    return watched(array)


def _in_numbers(codecs: Any, ndim: int) -> Any:
    """Return codecs with the orders C and F as numbers: drafts of zarr v3 wrote them as letters."""
    if not isinstance(codecs, list):
        return codecs
    orders = {"C": list(range(ndim)), "F": list(range(ndim))[::-1]}
    found = []
    for codec in codecs:
        settings = codec.get("configuration") if isinstance(codec, dict) else None
        if isinstance(settings, dict) and codec.get("name") == "transpose":
            order = settings.get("order")
            if isinstance(order, str) and order in orders:
                codec = codec | {"configuration": {"order": orders[order]}}  # noqa: PLW2901 - replaced
        elif isinstance(settings, dict) and isinstance(settings.get("codecs"), list):
            inner = {"codecs": _in_numbers(settings["codecs"], ndim)}
            codec = codec | {"configuration": settings | inner}  # noqa: PLW2901 - replaced
        found.append(codec)
    return found


def _stored_chunks(node: Node) -> Index:
    """Return what is stored in one file, in voxels.

    A grid that is not regular or has chunks of no voxels is refused: zarr reads the fill from it.
    """
    chunks: Any = node.document.get("chunks")
    if node.zarr_format == 3:
        grid = node.document.get("chunk_grid")
        regular = isinstance(grid, dict) and grid.get("name") == "regular"
        settings = grid.get("configuration") if regular and isinstance(grid, dict) else None
        chunks = settings.get("chunk_shape") if isinstance(settings, dict) else grid
    usable = isinstance(chunks, list) and all(type(n) is int and n > 0 for n in chunks)
    if not usable:
        raise SourceError(
            f"{node.folder}: chunks form a regular grid, with at least one voxel along each axis, "
            f"got {chunks!r:.80}; write the array again with such chunks"
        )
    return tuple(chunks)


def fill_of(array: zarr.Array[Any]) -> float | int | bool:
    """Return what a voxel of ``array`` reads as that is stored nowhere; 0 where it says nothing."""
    stored = 0 if array.fill_value is None else array.fill_value
    value: float | int | bool = np.asarray(stored, array.dtype).item()
    return value


def axes_of(array: zarr.Array[Any]) -> tuple[Axis, ...] | None:
    """Return the axes that ``array`` names, or None where it names none that make sense."""
    names = getattr(array.metadata, "dimension_names", None)
    return named_axes(names or array.attrs.get("_ARRAY_DIMENSIONS"), array.ndim)


def is_zarr(what: object) -> TypeIs[zarr.Array[Any]]:
    """Whether ``what`` is a zarr array."""
    if "zarr" not in sys.modules:  # then nobody can have made one
        return False
    import zarr

    return isinstance(what, zarr.Array)


def folder_of(what: object) -> Path | None:
    """Return the local folder of a zarr array, or None if it is no zarr array or not in one."""
    if not is_zarr(what):
        return None
    from zarr.storage import LocalStore

    store = what.store_path.store
    return (
        Path(store.root, what.store_path.path).resolve() if isinstance(store, LocalStore) else None
    )
