"""What a zarr array's document says, as far as nobody but this project has to judge it.

Owns two questions that a document answers by itself: how the chunks of a *plain* array become
voxels (`way_of`), and what the array is where nothing in the document is unusual (`said_in`).
zarr-python stays the judge of all that is not listed here, of which it knows far more; to import it
takes longer than the rest of the program, so an array that it would open just like this one is
opened without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.sources.folder import Node

__all__ = ["Said", "Way", "said_in", "way_of"]

_COMPRESSORS = {
    2: frozenset({"blosc", "gzip", "lz4", "zlib", "zstd"}),
    3: frozenset({"blosc", "gzip", "zstd"}),
}
"""Those whose chunks are read as files, by the version of zarr and as it calls them."""


class Way(NamedTuple):
    """How a chunk's file is called and what it becomes."""

    stored: np.dtype
    """As stored, in its byte order."""
    prefix: str
    """What a chunk's key begins with."""
    separator: str
    """What joins its numbers."""
    compressor: str | None
    """As numcodecs calls it; None if there is none."""


@dataclass(frozen=True, slots=True)
class Said:
    """An array of which nothing is unusual."""

    chunks: tuple[int, ...]
    fill: float | int | bool
    names: Any
    """Of its dimensions, as found; None where it has none."""


def way_of(document: Mapping[str, Any], zarr_format: int | None) -> Way | None:
    """Return how chunks of a valid array are read as files, or None if the array is not plain.

    Plain is: chunks on a regular grid, each a file of its own, C order, bytes as numpy has them,
    with at most one compressor, of those that are read here.
    """
    return _way_v2(document) if zarr_format == 2 else _way_v3(document)


def _way_v2(document: Mapping[str, Any]) -> Way | None:
    if document.get("order") != "C" or document.get("filters"):
        return None
    compressor = _name(document.get("compressor"), "id")
    if document.get("compressor") is not None and compressor not in _COMPRESSORS[2]:
        return None
    separator = document.get("dimension_separator", ".")
    return Way(np.dtype(document["dtype"]), "", separator, compressor)


def _way_v3(document: Mapping[str, Any]) -> Way | None:
    encoding, codecs = document.get("chunk_key_encoding"), document.get("codecs")
    if document.get("storage_transformers") or not isinstance(codecs, list):
        return None
    names = [_name(codec, "name") for codec in codecs]
    known = len(names) < 2 or names[1] in _COMPRESSORS[3]
    keys = _name(encoding, "name")
    if names[:1] != ["bytes"] or len(names) > 2 or not known or keys not in ("default", "v2"):
        return None
    default = "/" if keys == "default" else "."
    separator = _settings(encoding).get("separator", default)
    endian = _settings(codecs[0]).get("endian", "little")
    stored = np.dtype(document["data_type"]).newbyteorder(">" if endian == "big" else "<")
    prefix = f"c{separator}" if keys == "default" else ""
    return Way(stored, prefix, separator, names[1] if names[1:] else None)


def said_in(node: Node) -> Said | None:
    """Return what an array's document says; None if a part of it is not one that is known here.

    A document that is read here is one that zarr-python opens, as the same array.
    """
    document = node.document
    known = _KEYS_V2 if node.zarr_format == 2 else _KEYS_V3
    if not all(key in known and known[key](value) for key, value in document.items()):
        return None
    if not known.keys() - _OPTIONAL <= document.keys():
        return None
    if node.zarr_format == 2:
        chunks, kind = document["chunks"], document["dtype"]
        names = node.attributes.get("_ARRAY_DIMENSIONS")
    else:
        chunks, kind = document["chunk_grid"]["configuration"]["chunk_shape"], document["data_type"]
        names = document.get("dimension_names") or node.attributes.get("_ARRAY_DIMENSIONS")
        if not _endian_fits(document["codecs"], np.dtype(kind)):
            return None
    ndim, named = len(document["shape"]), document.get("dimension_names")
    if len(chunks) != ndim or (named is not None and len(named) != ndim):
        return None
    fill = _fill(document["fill_value"], np.dtype(kind), node.zarr_format)
    return None if fill is None else Said(tuple(chunks), fill, names)


def _fill(value: Any, dtype: np.dtype, zarr_format: int | None) -> float | int | bool | None:
    """Return what a voxel reads as that is stored nowhere; None if zarr has to say."""
    if value is None:
        return np.zeros((), dtype).item() if zarr_format == 2 else None
    if dtype.kind == "b":
        return value if type(value) is bool else None
    if dtype.kind == "f":
        # compared as Python's numbers: numpy's would make one of the dtype of it first
        usual = type(value) in (int, float) and abs(value) <= float(np.finfo(dtype).max)
        return np.asarray(value, dtype).item() if usual else None
    limits = np.iinfo(dtype)
    return value if type(value) is int and limits.min <= value <= limits.max else None


def _name(what: Any, key: str) -> str | None:
    name = what.get(key) if isinstance(what, dict) else None
    return name if isinstance(name, str) else None


def _settings(what: Any) -> Mapping[str, Any]:
    settings = what.get("configuration") if isinstance(what, dict) else None
    return settings if isinstance(settings, dict) else {}


# ------------------------------------------------------------------ what is known of each part

type _Check = Callable[[Any], bool]


def _one_of(*values: Any) -> _Check:
    return lambda found: any(found == value and type(found) is type(value) for value in values)


def _whole(low: int, high: int) -> _Check:
    return lambda found: type(found) is int and low <= found <= high


def _exactly(**parts: _Check) -> _Check:
    """Return a check that something is an object with these members and no others."""
    return lambda found: (
        isinstance(found, dict)
        and found.keys() == parts.keys()
        and all(check(found[key]) for key, check in parts.items())
    )


def _sizes(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and n > 0 for n in found)


def _any_of(*checks: _Check) -> _Check:
    return lambda found: any(check(found) for check in checks)


_IN_BLOSC = _one_of("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_SIZE = _whole(0, 2**20)

_COMPRESSOR_V2 = _any_of(
    _one_of(None),
    _exactly(id=_one_of("gzip", "zlib"), level=_whole(0, 9)),
    _exactly(id=_one_of("zstd"), level=_whole(0, 22)),
    _exactly(id=_one_of("zstd"), level=_whole(0, 22), checksum=_one_of(True, False)),
    _exactly(
        id=_one_of("blosc"),
        cname=_IN_BLOSC,
        clevel=_whole(0, 9),
        shuffle=_whole(-1, 2),
        blocksize=_SIZE,
    ),
)

_BYTES = _any_of(
    _exactly(name=_one_of("bytes")),
    _exactly(name=_one_of("bytes"), configuration=_exactly(endian=_one_of("little", "big"))),
)

_COMPRESSOR_V3 = _any_of(
    _exactly(name=_one_of("gzip"), configuration=_exactly(level=_whole(0, 9))),
    _exactly(
        name=_one_of("zstd"),
        configuration=_exactly(level=_whole(0, 22), checksum=_one_of(True, False)),
    ),
    _exactly(
        name=_one_of("blosc"),
        configuration=_exactly(
            typesize=_whole(1, 255),
            cname=_IN_BLOSC,
            clevel=_whole(0, 9),
            shuffle=_one_of("noshuffle", "shuffle", "bitshuffle"),
            blocksize=_SIZE,
        ),
    ),
)


def _codecs(found: Any) -> bool:
    checks = (_BYTES, _COMPRESSOR_V3)
    fits = isinstance(found, list) and 1 <= len(found) <= len(checks)
    return fits and all(check(each) for check, each in zip(checks, found, strict=False))


def _endian_fits(codecs: Any, dtype: np.dtype) -> bool:
    return dtype.itemsize == 1 or "endian" in _settings(codecs[0])


def _dimension_names(found: Any) -> bool:
    return found is None or (
        isinstance(found, list) and all(each is None or isinstance(each, str) for each in found)
    )


def _anything(_: Any) -> bool:
    return True


_NUMBERS = [f"{kind}{size}" for kind in ("i", "u") for size in (1, 2, 4, 8)] + ["f4", "f8"]
_SEPARATOR = _one_of(".", "/")

_KEYS_V2: dict[str, _Check] = {
    "zarr_format": _one_of(2),
    "shape": _sizes,
    "chunks": _sizes,
    "dtype": _one_of(
        "|b1", *(f"{'|' if name[1] == '1' else order}{name}" for name in _NUMBERS for order in "<>")
    ),
    "compressor": _COMPRESSOR_V2,
    "fill_value": _anything,
    "order": _one_of("C", "F"),
    "filters": _one_of(None),
    "dimension_separator": _SEPARATOR,
}

_KEYS_V3: dict[str, _Check] = {
    "zarr_format": _one_of(3),
    "node_type": _one_of("array"),
    "shape": _sizes,
    "data_type": _one_of("bool", *(np.dtype(name).name for name in _NUMBERS)),
    "chunk_grid": _exactly(name=_one_of("regular"), configuration=_exactly(chunk_shape=_sizes)),
    "chunk_key_encoding": _any_of(
        _exactly(name=_one_of("default", "v2")),
        _exactly(name=_one_of("default", "v2"), configuration=_exactly(separator=_SEPARATOR)),
    ),
    "fill_value": _anything,
    "codecs": _codecs,
    "attributes": lambda found: isinstance(found, dict),
    "dimension_names": _dimension_names,
    "storage_transformers": lambda found: found == [],
}

_OPTIONAL = frozenset(
    {"dimension_separator", "attributes", "dimension_names", "storage_transformers"}
)
