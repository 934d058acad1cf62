"""One multiscale image as every format's documents describe it, and what OME-Zarr says of it.

Owns what the two OME-Zarr versions share: axes, datasets, display window, how a document is
written as text. Which file says it, and where in the file, is each format's own; what cannot be
said at all is in `_rules`.

Documents are plain dictionaries: the models of yaozarrs, which judge them in the tests, take
longer to import than everything else a job needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from napari_materialize.arrays import Axis, normalize_unit
from napari_materialize.errors import OptionError

if TYPE_CHECKING:
    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index

__all__ = [
    "RECORD_KEY",
    "CodecFragments",
    "Frame",
    "ImageDocument",
    "fill_value",
    "multiscale",
    "omero",
    "to_json",
    "with_record",
]

type Frame = Literal["zarr", "n5"]
"""How the bytes of a chunk are framed; `codecs` knows what that means."""

RECORD_KEY = "napari_materialize"
"""The key of the group's attributes under which our own record stands."""

_RESERVED = frozenset(
    {
        RECORD_KEY,
        "ome",
        "multiscales",
        "omero",
        "image-label",
        "labels",
        "_ARRAY_DIMENSIONS",
        # each of these turns the group into something else for a reader
        "plate",
        "well",
        "bioformats2raw.layout",
    }
)

_COLORS = ("00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF")
"""Display colours in turn where there are several channels; a single one is white."""


class CodecFragments(Protocol):
    """What a layout needs to know of a compressor; `codecs.Compression` is one."""

    def zarr2_config(self, dtype: np.dtype) -> dict[str, Any] | None:
        """Return the ``compressor`` of a ``.zarray``, or None."""

    def zarr3_codecs(self, dtype: np.dtype) -> list[dict[str, Any]]:
        """Return the codecs that come after ``bytes`` in a ``zarr.json``, perhaps none."""

    def n5_config(self, dtype: np.dtype) -> dict[str, Any]:
        """Return the ``compression`` of an N5 dataset."""


@dataclass(frozen=True, slots=True)
class ImageDocument:
    """Everything the metadata documents of one image say.

    Raises
    ------
    OptionError
        If ``attributes`` would replace what a format or this project writes, or hold something
        that JSON cannot; if ``limits`` are not two finite numbers, the lower one first.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> from napari_materialize.codecs import Compression
    >>> level = Level((10, 20), np.dtype("u1"), (4, 8))
    >>> image = ImageDocument("cells", "image", (level,), Compression())
    >>> from napari_materialize.layout import layout_for
    >>> list(layout_for("zarr2").documents(image))
    ['0/.zarray', '0/.zattrs', '.zattrs', '.zgroup', '.zmetadata']
    """

    name: str
    """The image's name, for people."""

    kind: Kind
    """What the voxels mean.

    A label gets ``image-label``. A mask does not: for OME-Zarr, labels are ids of objects, kept
    under ``labels`` of an image and always integers, while a mask may be of bools; it is an image
    with the display window 0 to 1.
    """

    levels: tuple[Level, ...]
    """The levels that are written, finest first; the first is called ``0``."""

    compression: CodecFragments
    """Of every level."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    """The user's own, merged into the group's."""

    record: Mapping[str, Any] | None = None
    """What made the image, under `RECORD_KEY` of the group's attributes."""

    method: str | None = None
    """How the coarser levels were made, where known."""

    details: Mapping[str, Any] | None = None
    """More about that, for the ``metadata`` of OME-Zarr."""

    shards: Index | None = None
    """Chunks in a shard along each axis, of every level; None for a file per chunk."""

    limits: tuple[float, float] | None = None
    """Lowest and highest value a voxel can have, where known; for display."""

    windows: tuple[tuple[float, float], ...] | None = None
    """From black to white for each channel, as seen in the voxels; for display."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not isinstance(self.attributes, Mapping):
            raise OptionError(
                f"attributes: must be a mapping of names to values, got {self.attributes!r}"
            )
        attributes = _json_copy("attributes", self.attributes)
        if taken := sorted(_RESERVED & attributes.keys()):
            raise OptionError(
                f"attributes: {', '.join(taken)} cannot be replaced, they say what the image is; "
                "choose other names"
            )
        object.__setattr__(self, "attributes", attributes)
        for name in ("record", "details"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _json_copy(name, value))
        if self.limits is not None:
            low, high = self.limits
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise OptionError(
                    "limits: must be two finite numbers, the lower one first, got "
                    f"{tuple(self.limits)}"
                )

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of every level."""
        return self.levels[0].axes

    @property
    def channels(self) -> int | None:
        """How many channels there are; None without an axis of them."""
        types = [axis.type for axis in self.axes]
        return self.levels[0].shape[types.index("channel")] if "channel" in types else None

    @property
    def wants_windows(self) -> bool:
        """Whether each channel needs a window that nobody knows before the voxels are there."""
        return self.kind != "label" and self.channels is not None and _window(self) is None


def _json_copy(place: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy as JSON has it, so that later changes to ``value`` reach no file."""
    try:
        text = json.dumps(dict(value), allow_nan=False, ensure_ascii=False)
        text.encode()
        copy = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{place}: must hold nothing but what JSON can (text, finite numbers, true, false, "
            f"null, lists, objects): {error}"
        ) from error
    return dict(copy)


def with_record(document: ImageDocument, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a group's attributes with the record of what made it, and the user's beside them."""
    ours = {} if document.record is None else {RECORD_KEY: document.record}
    return attributes | ours | dict(document.attributes)


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return a document as UTF-8 text, the same for the same content, keys in their order."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode()


def fill_value(level: Level) -> bool | int | float | str:
    """Return a level's fill value with the type JSON has to have for it.

    zarr v2 and v3 agree: false and true for bool, whole numbers for integers, text for what
    JSON has no number for.
    """
    value: bool | int | float = level.dtype.type(level.fill).item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def multiscale(document: ImageDocument) -> dict[str, Any]:
    """Return the entry of ``multiscales``, without a version."""
    entry: dict[str, Any] = {
        "name": document.name,
        "axes": [_axis(axis) for axis in document.axes],
        "datasets": _datasets(document.levels),
    }
    if document.method is not None:
        entry["type"] = document.method
    if document.details is not None:
        entry["metadata"] = document.details
    return entry


def _axis(axis: Axis) -> dict[str, str]:
    """Return one axis; its unit by its full name and only where it is known."""
    entry = {"name": axis.name, "type": str(axis.type)}
    unit = None if axis.type == "channel" else normalize_unit(axis.unit)
    return entry if unit is None else entry | {"unit": unit}


def _datasets(levels: tuple[Level, ...]) -> list[dict[str, Any]]:
    """Return ``datasets``: for each level one scale and, after it, one translation."""
    return [
        {
            "path": str(position),
            "coordinateTransformations": [
                {"type": "scale", "scale": list(level.scale)},
                {"type": "translation", "translation": list(level.translation)},
            ],
        }
        for position, level in enumerate(levels)
    ]


def omero(document: ImageDocument) -> dict[str, Any] | None:
    """Return how to show the image, or None where nobody knows.

    A channel must have a window, and a made-up one shows a dark image: it is written where the
    limits are known or were seen, for a mask, and for the whole range of an 8-bit image with
    channels.
    """
    count = document.channels or 1
    known = _window(document)
    windows = document.windows if known is None else (known,) * count
    if windows is None or document.kind == "label":
        return None
    return {
        "channels": [
            {
                "active": True,
                "color": "FFFFFF" if count == 1 else _COLORS[channel % len(_COLORS)],
                "label": document.name if count == 1 else f"channel {channel}",
                "window": {"min": low, "max": high, "start": low, "end": high},
            }
            for channel, (low, high) in enumerate(windows)
        ],
    }


def _window(document: ImageDocument) -> tuple[float, float] | None:
    """Return the values from black to white, or None where they are not known."""
    dtype = document.levels[0].dtype
    if document.kind == "label":
        return None
    if document.limits is not None:
        low, high = map(float, document.limits)
        if low < high:
            return low, high
    if document.kind == "mask" or dtype.kind == "b":
        return 0.0, 1.0
    if dtype.itemsize == 1 and any(axis.type == "channel" for axis in document.axes):
        return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    return None
