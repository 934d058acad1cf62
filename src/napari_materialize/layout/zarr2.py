"""zarr v2 with OME-Zarr 0.4: ``.zgroup``, ``.zattrs``, ``.zarray``, chunks ``0/i/j/k``.

Owns this format's file names and documents; what OME-Zarr says of an image is in `_image`.
"""

from __future__ import annotations

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
from napari_materialize.layout._rules import NO_SHARDS, image_refusal

if TYPE_CHECKING:
    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index

__all__ = ["Zarr2Layout"]

_VERSION = "0.4"


@dataclass(frozen=True, slots=True)
class Zarr2Layout:
    """zarr v2, OME-Zarr 0.4, with consolidated metadata.

    Examples
    --------
    >>> Zarr2Layout().chunk_key(1, (0, 12))
    '1/0/12'
    """

    format: ClassVar[str] = "zarr2"
    frame: ClassVar[Frame] = "zarr"

    def refusal(self, document: ImageDocument) -> str | None:
        """Return why the image cannot be held, as a sentence, or None."""
        return NO_SHARDS if document.shards is not None else image_refusal(document)

    def stored(self, level: Level) -> Level:
        """Return the level itself: zarr keeps its fill value."""
        return level

    def chunk_key(self, position: int, index: Index) -> str:
        """Return the path of chunk ``index`` of the written level ``position``."""
        return f"{position}/{'/'.join(map(str, index))}"

    def documents(self, document: ImageDocument) -> dict[str, bytes]:
        """Return every document, arrays first, the consolidated copy last.

        Raises
        ------
        OptionError
            If `refusal` has a reason.
        """
        if reason := self.refusal(document):
            raise OptionError(reason)
        content: dict[str, dict[str, Any]] = {}
        for position, level in enumerate(document.levels):
            content[f"{position}/.zarray"] = _array(document, level)
            content[f"{position}/.zattrs"] = {
                "_ARRAY_DIMENSIONS": [axis.name for axis in level.axes]
            }
        content[".zattrs"] = _attributes(document)
        content[".zgroup"] = {"zarr_format": 2}
        consolidated = {
            "zarr_consolidated_format": 1,
            "metadata": dict(sorted(content.items())),
        }
        return {
            path: to_json(value) for path, value in (content | {".zmetadata": consolidated}).items()
        }


def _array(document: ImageDocument, level: Level) -> dict[str, Any]:
    """Return a ``.zarray``. Voxels are little-endian and in C order."""
    return {
        "zarr_format": 2,
        "shape": list(level.shape),
        "chunks": list(level.chunks),
        "dtype": level.dtype.newbyteorder("<").str,
        "compressor": document.compression.zarr2_config(level.dtype),
        "fill_value": fill_value(level),
        "order": "C",
        "filters": None,
        "dimension_separator": "/",
    }


def _attributes(document: ImageDocument) -> dict[str, Any]:
    """Return the group's ``.zattrs``: ours first, the user's beside them."""
    attributes: dict[str, Any] = {"multiscales": [{"version": _VERSION, **multiscale(document)}]}
    if (display := omero(document)) is not None:
        attributes["omero"] = {"name": document.name, "version": _VERSION, **display}
    if document.kind == "label":
        attributes["image-label"] = {"version": _VERSION}
    return with_record(document, attributes)
