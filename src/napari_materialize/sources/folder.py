"""A place that holds zarr or N5: the metadata documents in it, and what else is inside.

Owns which files make an array or a group, in zarr v2, v3 and N5, and reads them as JSON. It does
not know OME-Zarr (`multiscales`) and reads no voxels. Consolidated metadata is not used: a stale
copy would be believed over the documents it was copied from. Where a place cannot be listed it
names what is inside, which is only told and looked at, never believed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from napari_materialize.errors import SourceError
from napari_materialize.sources.rules import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from napari_materialize.sources.places import Place

__all__ = ["Node", "inside", "inside_text", "node_at", "ome_in_n5"]

_DEEPEST = 4
"""Groups within groups that are looked through for images."""

_FOLDERS_LOOKED_AT = 2000
"""Folders after which looking for images stops: a plate can have very many."""

_PLACES_LOOKED_AT = 40
"""The same where each look is several requests to a server."""

_SHOWN = 8
"""Images named in a message."""


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group of a hierarchy of zarr or N5."""

    folder: Place
    """Where it is."""

    zarr_format: Literal[2, 3] | None
    """The version of zarr it is written in; None if it is N5."""

    type: Literal["array", "group"]
    """Which of the two it is."""

    document: Mapping[str, Any]
    """Its metadata document: ``zarr.json``, ``.zarray``, ``.zgroup`` or ``attributes.json``."""

    attributes: Mapping[str, Any]
    """What users and conventions say of it."""

    stamp: str
    """A digest of its documents' text and of the times they were last written."""

    @property
    def ome(self) -> Mapping[str, Any]:
        """The attributes OME-Zarr uses: in v3 those under ``ome`` if there are such, else all."""
        if self.zarr_format != 3:
            return self.attributes
        ome = self.attributes.get("ome", self.attributes)
        if not isinstance(ome, dict):
            raise SourceError(
                f"{self.folder}: the attribute 'ome' is a JSON object, got {ome!r:.60}; the "
                "metadata is damaged"
            )
        return ome

    @property
    def has_image(self) -> bool:
        """Whether it is a group that describes an image, or that N5 makes one of (s0, s1, ...)."""
        if self.type == "group" and self.zarr_format is None:
            return ome_in_n5(self.attributes) is not None or _n5_finest(self.folder) is not None
        return self.type == "group" and "multiscales" in self.ome


def _document(place: Place, name: str, stamp: hashlib._Hash) -> dict[str, Any] | None:
    """Read a metadata document; None where there is no such file."""
    file = place.document(name)
    if file is None:
        return None
    path, data = f"{place}/{name}", file.data
    stamp.update(f"{name}:{file.written}:{len(data)}:".encode() + data)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{path}: metadata has to be JSON, got something else ({one_line(error)}); write the "
            "file again"
        ) from error
    if not isinstance(found, dict):
        raise SourceError(
            f"{path}: metadata has to be a JSON object, got {type(found).__name__}; write the file "
            "again"
        )
    return found


def node_at(folder: Place) -> Node | None:
    """Return what zarr or N5 has in ``folder``, or None if they have nothing there.

    Where there are documents of several, v3 wins over v2, as it does in zarr, and zarr over N5.

    Raises
    ------
    SourceError
        If a metadata document cannot be read, is not JSON, or is not an array's or group's.
    """
    return _node_v3(folder) or _node_v2(folder) or _node_n5(folder)


def _node_v3(folder: Place) -> Node | None:
    stamp = hashlib.sha256()
    document = _document(folder, "zarr.json", stamp)
    if document is None:
        return None
    version, kind = document.get("zarr_format"), document.get("node_type")
    if version != 3 or kind not in ("array", "group"):
        raise SourceError(
            f"{folder}/zarr.json: needs zarr_format 3 and node_type 'array' or 'group', got "
            f"{version!r:.40} and {kind!r:.40}; write the file again"
        )
    attributes = document.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise SourceError(
            f"{folder}/zarr.json: attributes are a JSON object, got {attributes!r:.80}; write "
            "the file again"
        )
    return Node(folder, 3, kind, document, attributes, stamp.hexdigest())


def _node_v2(folder: Place) -> Node | None:
    stamp = hashlib.sha256()
    kind: Literal["array", "group"] = "array"
    document = _document(folder, ".zarray", stamp)
    if document is None:
        kind, document = "group", _document(folder, ".zgroup", stamp)
    if document is None:
        return None
    if document.get("zarr_format") != 2:
        raise SourceError(
            f"{folder}/{'.zarray' if kind == 'array' else '.zgroup'}: needs zarr_format 2, got "
            f"{document.get('zarr_format')!r:.40}; write the file again"
        )
    attributes = _document(folder, ".zattrs", stamp) or {}
    return Node(folder, 2, kind, document, attributes, stamp.hexdigest())


def _node_n5(folder: Place) -> Node | None:
    """Read N5's one document: of an array if it says its size. A group needs to have none."""
    stamp = hashlib.sha256()
    document = _document(folder, "attributes.json", stamp)
    if document is None:
        if _n5_finest(folder) is None:
            return None
        document = {}
    kind: Literal["array", "group"] = "array" if "dimensions" in document else "group"
    return Node(folder, None, kind, document, document, stamp.hexdigest())


def ome_in_n5(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entry of ``multiscales`` by which a group of N5 is an image as in OME-Zarr.

    COSEM's entries are not: each array has the same in its own attributes.
    """
    entries = attributes.get("multiscales")
    first = entries[0] if isinstance(entries, list) and entries else None
    datasets = first.get("datasets") if isinstance(first, dict) else None
    if not isinstance(datasets, list) or not datasets or not isinstance(first, dict):
        return None
    cosem = any(isinstance(each, dict) and "transform" in each for each in datasets)
    return None if cosem else first


def _n5_finest(folder: Place) -> dict[str, Any] | None:
    """Return the document of ``s0``, by which a group of N5 is an image."""
    found = _document(folder.at("s0"), "attributes.json", hashlib.sha256())
    return found if found is not None and "dimensions" in found else None


def _in_order(place: Place) -> list[tuple[int, int, str]]:
    """Sort key: s2 before s10."""
    parts = re.split(r"(\d+)", place.name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p]


def _subfolders(folder: Place) -> list[Place]:
    found = folder.folders()
    return sorted(_named_inside(folder) if found is None else found, key=_in_order)


def _named_inside(folder: Place) -> list[Place]:
    """Return what a group's documents say is inside, for a place that cannot be listed."""
    names: set[str] = set()
    node = node_at(folder)
    if node is not None and isinstance(node.ome, dict):
        for owner, key in (("plate", "wells"), ("well", "images")):
            listed = node.ome.get(owner)
            entries = listed.get(key) if isinstance(listed, dict) else None
            for entry in entries if isinstance(entries, list) else ():
                names.add(str(entry.get("path")) if isinstance(entry, dict) else "")
        for key in ("labels", "series"):
            listed = node.ome.get(key)
            names |= {str(name) for name in listed} if isinstance(listed, list) else set()
        if "bioformats2raw.layout" in node.ome:
            names |= {str(number) for number in range(_SHOWN + 1)}
    usable = (name for name in names if name and not {"", ".", ".."} & {*name.split("/")})
    return [folder.at(name) for name in usable]


def inside(folder: Place, deepest: int = _DEEPEST) -> Iterator[Node]:
    """Walk the images and arrays below ``folder``, in natural order.

    An image's own arrays and labels are not named: it is one thing. The walk ends after
    2000 folders.
    """
    pending = [(place, 1) for place in reversed(_subfolders(folder))]
    for _ in range(_FOLDERS_LOOKED_AT if folder.near else _PLACES_LOOKED_AT):
        if not pending:
            return
        place, depth = pending.pop()
        node = node_at(place)
        if node is not None and (node.type == "array" or node.has_image):
            yield node
        elif depth < deepest:
            pending += [(child, depth + 1) for child in reversed(_subfolders(place))]


def inside_text(folder: Place, deepest: int = _DEEPEST) -> str:
    """Say which images and arrays are below ``folder`` and how to address one."""
    found = list(itertools.islice(inside(folder, deepest), _SHOWN + 1))
    if not found:
        return "there is no image or array in it, so name a folder that is one"
    names = ", ".join(node.folder.path_in(folder) for node in found[:_SHOWN])
    more = " and more" if len(found) > _SHOWN else ""
    return f"inside are {names}{more}: open one by its path, such as {found[0].folder}"
