"""zarr v3 with OME-Zarr 0.5: ``zarr.json`` for the group and each array, chunks ``0/c/i/j/k``.

Owns this format's file names and documents; what OME-Zarr says of an image is in `_image`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from napari_materialize.errors import OptionError
from napari_materialize.layout._image import (
    Frame,
    ImageDocument,
    fill_value,
    multiscale,
    omero,
    to_json,
    with_record,
)
from napari_materialize.layout._rules import image_refusal

if TYPE_CHECKING:
    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index

__all__ = ["Zarr3Layout"]

_VERSION = "0.5"


@dataclass(frozen=True, slots=True)
class Zarr3Layout:
    """zarr v3, OME-Zarr 0.5.

    Examples
    --------
    >>> Zarr3Layout().chunk_key(1, (0, 12))
    '1/c/0/12'
    """

    format: ClassVar[str] = "zarr3"
    frame: ClassVar[Frame] = "zarr"

    def refusal(self, document: ImageDocument) -> str | None:
        """Return why the image cannot be held, as a sentence, or None."""
        return image_refusal(document)

    def stored(self, level: Level) -> Level:
        """Return the level itself: zarr keeps its fill value."""
        return level

    def chunk_key(self, position: int, index: Index) -> str:
        """Return the path of chunk ``index`` of the written level ``position``."""
        return f"{position}/c/{'/'.join(map(str, index))}"

    def documents(self, document: ImageDocument) -> dict[str, bytes]:
        """Return every document, arrays first.

        Raises
        ------
        OptionError
            If `refusal` has a reason.
        """
        if reason := self.refusal(document):
            raise OptionError(reason)
        content = {
            f"{position}/zarr.json": _array(document, level)
            for position, level in enumerate(document.levels)
        }
        content["zarr.json"] = {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": _attributes(document),
        }
        return {path: to_json(value) for path, value in content.items()}


def _array(document: ImageDocument, level: Level) -> dict[str, Any]:
    """Return the ``zarr.json`` of an array. Voxels are little-endian and in C order."""
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        *document.compression.zarr3_codecs(level.dtype),
    ]
    files = level.chunks
    if document.shards is not None:
        files = tuple(map(operator.mul, level.chunks, document.shards))
        codecs = [_sharding(level.chunks, codecs)]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(level.shape),
        "data_type": level.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(files)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value(level),
        "codecs": codecs,
        # OME-Zarr 0.5: they MUST be there and equal the axes
        "dimension_names": [axis.name for axis in level.axes],
        "attributes": {},
    }


def _sharding(chunks: Index, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the codec of an array whose files are shards, its index at the end of each."""
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunks),
            "codecs": codecs,
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            "index_location": "end",
        },
    }


def _attributes(document: ImageDocument) -> dict[str, Any]:
    """Return the group's attributes; the version stands once, beside ``multiscales``."""
    ome: dict[str, Any] = {"version": _VERSION, "multiscales": [multiscale(document)]}
    if (display := omero(document)) is not None:
        ome["omero"] = {"name": document.name, **display}
    if document.kind == "label":
        ome["image-label"] = {}
    attributes: dict[str, Any] = {"ome": ome}
    return with_record(document, attributes)
