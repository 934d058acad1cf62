"""N5: ``attributes.json`` for the group and each dataset, blocks ``s0/k/j/i``.

Owns this format's file names and documents. N5 counts axes from the fastest: every list in its
attributes is reversed. Voxels are in the same order as in zarr, big-endian and behind a header
(`codecs`).

N5 itself has no place for scale and position. Its readers found four, and all are written, in
agreement with each other:

- ``resolution``, ``units``, ``axes``, ``offset`` on the group and on ``s0`` (neuroglancer,
  tensorstore);
- ``downsamplingFactors`` of each dataset, against ``s0``, and ``scales`` of the group
  (neuroglancer, BigDataViewer, n5-viewer);
- ``pixelResolution`` of ``s0``, on each dataset, where one unit is known (n5-viewer, Paintera);
- ``transform`` of each dataset and ``multiscales`` of the group, in C order (COSEM, n5-ij): the
  only one that says where each level lies.

An offset is the centre of voxel 0, as a translation is. Sources: https://github.com/saalfeldlab/n5,
https://github.com/saalfeldlab/n5-viewer, https://github.com/janelia-cosem/schemas, and
https://neuroglancer-docs.web.app/datasource/n5/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from napari_materialize.arrays import normalize_unit
from napari_materialize.errors import OptionError
from napari_materialize.layout._image import Frame, ImageDocument, to_json, with_record
from napari_materialize.layout._rules import n5_refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Axis, Level
    from napari_materialize.geometry import Index

__all__ = ["N5Layout"]

_VERSION = "2.0.0"
"""Of the format; a newer one shuts out readers that know no better."""

_SYMBOLS = {
    "picometer": "pm",
    "nanometer": "nm",
    "micrometer": "um",
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
}
"""N5's readers know symbols: neuroglancer opens nothing whose unit is "nanometer"."""


@dataclass(frozen=True, slots=True)
class N5Layout:
    """N5, as n5-viewer, BigDataViewer, neuroglancer and tensorstore read it.

    Examples
    --------
    >>> N5Layout().chunk_key(1, (2, 0, 12))
    's1/12/0/2'
    """

    format: ClassVar[str] = "n5"
    frame: ClassVar[Frame] = "n5"

    def refusal(self, document: ImageDocument) -> str | None:
        """Return why the image cannot be held, as a sentence, or None."""
        return n5_refusal(document)

    def stored(self, level: Level) -> Level:
        """Return the level with the fill value 0: what every reader takes a missing block for."""
        return replace(level, fill=0)

    def chunk_key(self, position: int, index: Index) -> str:
        """Return the path of block ``index`` of the written level ``position``."""
        return f"s{position}/{'/'.join(map(str, reversed(index)))}"

    def documents(self, document: ImageDocument) -> dict[str, bytes]:
        """Return every document, datasets first.

        Raises
        ------
        OptionError
            If `refusal` has a reason.
        """
        if reason := self.refusal(document):
            raise OptionError(reason)
        content = {
            f"s{position}/attributes.json": _dataset(document, position)
            for position in range(len(document.levels))
        }
        content["attributes.json"] = _group(document)
        return {path: to_json(value) for path, value in content.items()}


def _dataset(document: ImageDocument, position: int) -> dict[str, Any]:
    level, finest = document.levels[position], document.levels[0]
    attributes = {
        "dimensions": _reversed(level.shape),
        "blockSize": _reversed(level.chunks),
        "dataType": level.dtype.name,
        "compression": document.compression.n5_config(level.dtype),
        "downsamplingFactors": _factors(level, finest),
        "transform": _transform(level),
    }
    if position == 0:
        attributes |= _place(finest)
    return attributes | _pixel_resolution(finest)


def _group(document: ImageDocument) -> dict[str, Any]:
    """Return the group's attributes: ours first, the user's beside them."""
    finest = document.levels[0]
    datasets = [
        {"path": f"s{position}", "transform": _transform(level)}
        for position, level in enumerate(document.levels)
    ]
    attributes: dict[str, Any] = {
        "n5": _VERSION,
        "name": document.name,
        **_place(finest),
        "scales": [_factors(level, finest) for level in document.levels],
        **_pixel_resolution(finest),
        "multiscales": [{"name": document.name, "datasets": datasets}],
    }
    if document.kind == "label":
        attributes["image-label"] = {}  # N5 has no word for it; this is OME-Zarr's
    return with_record(document, attributes)


def _place(level: Level) -> dict[str, Any]:
    return {
        "axes": _reversed([axis.name for axis in level.axes]),
        "units": _reversed(list(map(_symbol, level.axes))),
        "resolution": _reversed(level.scale),
        "offset": _reversed(level.translation),
    }


def _pixel_resolution(level: Level) -> dict[str, Any]:
    """Return n5-viewer's attribute, which has one unit for all axes."""
    units = set(map(_symbol, level.axes))
    if len(units) > 1 or "" in units:
        return {}
    return {"pixelResolution": {"unit": units.pop(), "dimensions": _reversed(level.scale)}}


def _transform(level: Level) -> dict[str, Any]:
    return {
        "axes": [axis.name for axis in level.axes],
        "scale": list(level.scale),
        "translate": list(level.translation),
        "units": list(map(_symbol, level.axes)),
    }


def _factors(level: Level, finest: Level) -> list[float]:
    """Return how much longer a level's voxels are than the finest's; whole numbers as such."""
    ratios = (coarse / fine for coarse, fine in zip(level.scale, finest.scale, strict=True))
    return _reversed([round(r) if abs(r - round(r)) < 1e-9 * r else r for r in ratios])


def _symbol(axis: Axis) -> str:
    """Return the unit's symbol, or nothing where the unit is not known."""
    unit = normalize_unit(axis.unit) if axis.type != "channel" else None
    return _SYMBOLS.get(unit, unit) if unit is not None else ""


def _reversed(values: Sequence[Any]) -> list[Any]:
    return list(values)[::-1]
