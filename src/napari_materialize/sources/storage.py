"""How an array is stored, for a person who asks: format, codecs, order, shards.

Owns the reading of what is only told. Nothing here decides how anything is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.sources.folder import Node

__all__ = ["storage_of"]


def storage_of(node: Node, path: str) -> dict[str, Any]:
    """Return how the array at ``path`` in an image is stored, as JSON values.

    Returns
    -------
    dict
        ``path``, ``format`` (``"zarr v2"``, ``"zarr v3"`` or ``"N5"``),
        ``codecs`` (names in the order in which voxels went through them) and, where they say
        something, ``byte_order``, ``order``, ``shards`` (voxels of a file) and
        ``chunks_per_shard``.
    """
    found: dict[str, Any] = {"path": path}
    document = node.document
    if node.zarr_format is None:
        compression = document.get("compression", document.get("compressionType"))
        return found | {"format": "N5", "codecs": [_named(compression)], "byte_order": "big"}
    if node.zarr_format == 2:
        filters = document.get("filters")
        before = [_named(each) for each in (filters if isinstance(filters, list) else [])]
        if document.get("compressor") is not None:
            before.append(_named(document["compressor"]))
        found |= {"format": "zarr v2", "codecs": before or ["raw"]}
        if str(document.get("dtype"))[:1] == ">":
            found["byte_order"] = "big"
        return found | ({"order": "F"} if document.get("order") == "F" else {})
    found["format"] = "zarr v3"
    codecs = document.get("codecs")
    listed = codecs if isinstance(codecs, list) else []
    shard = next((each for each in listed if _name(each) == "sharding_indexed"), None)
    if isinstance(shard, dict):
        grid = document.get("chunk_grid")
        settings = grid.get("configuration") if isinstance(grid, dict) else None
        outer = settings.get("chunk_shape") if isinstance(settings, dict) else None
        found["shards"] = outer
        inside = shard.get("configuration")
        if isinstance(inside, dict):
            counts = _counts(outer, inside.get("chunk_shape"))
            found |= {} if counts is None else {"chunks_per_shard": counts}
        inner = inside.get("codecs") if isinstance(inside, dict) else None
        listed = inner if isinstance(inner, list) else []
    names = [_named(each) for each in listed if _name(each) not in ("bytes", "transpose")]
    for each in listed:
        settings = each.get("configuration") if isinstance(each, dict) else None
        if _name(each) == "bytes" and isinstance(settings, dict):
            found |= {"byte_order": "big"} if settings.get("endian") == "big" else {}
        if _name(each) == "transpose":
            found["order"] = "F"
    return found | {"codecs": names or ["raw"]}


def _counts(outer: Any, inner: Any) -> list[int] | None:
    """Return how many chunks a shard has along each axis, if its sizes are what they should be."""
    sizes = [outer, inner]
    if not all(isinstance(each, list) and all(isinstance(n, int) for n in each) for each in sizes):
        return None
    if len(outer) != len(inner) or any(b < 1 or a % b for a, b in zip(outer, inner, strict=True)):
        return None
    return [a // b for a, b in zip(outer, inner, strict=True)]


def _name(codec: Any) -> str:
    if isinstance(codec, dict):
        return str(codec.get("name", codec.get("id", codec.get("type", "?"))))
    return str(codec)


def _named(codec: Any) -> str:
    """Return a codec's name, with its level or what is inside where it says that."""
    settings: Mapping[str, Any] = codec if isinstance(codec, dict) else {}
    inner = settings.get("configuration", settings)
    parts = [_name(codec)]
    for key in ("cname", "level", "clevel", "preset"):
        value = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(value, str | int) and not isinstance(value, bool):
            parts.append(str(value))
    return ":".join(parts)
