"""A folder that holds zarr: the metadata documents in it, and what else is inside.

Owns which files make an array or a group, in zarr v2 and v3, and reads them as JSON. It does not
know OME-Zarr (`multiscales`) and reads no voxels (`zarr_store`). Consolidated metadata is not
used: a stale copy would be believed over the documents it was copied from.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from napari_materialize.errors import SourceError
from napari_materialize.sources.rules import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Node", "inside", "inside_text", "node_at"]

_DEEPEST = 4
"""Groups within groups that are looked through for images."""

_FOLDERS_LOOKED_AT = 2000
"""Folders after which looking for images stops: a plate can have very many."""

_SHOWN = 8
"""Images named in a message."""


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group of a zarr hierarchy on disk."""

    folder: Path
    """Where it is."""

    zarr_format: Literal[2, 3]
    """The version of zarr it is written in."""

    type: Literal["array", "group"]
    """Which of the two it is."""

    document: Mapping[str, Any]
    """Its metadata document: ``zarr.json``, ``.zarray`` or ``.zgroup``."""

    attributes: Mapping[str, Any]
    """What users and conventions say of it."""

    stamp: str
    """A digest of its documents' text and of the times they were last written."""

    @property
    def ome(self) -> Mapping[str, Any]:
        """The attributes OME-Zarr uses: in v3 those under ``ome`` if there are such, else all."""
        if self.zarr_format == 2:
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
        """Whether it is a group that describes an image."""
        return self.type == "group" and "multiscales" in self.ome


_MOST_BYTES = 64 * 2**20
"""The largest metadata document that is read."""


def _document(path: Path, stamp: hashlib._Hash) -> dict[str, Any] | None:
    """Read a metadata document; None where there is no such file."""
    try:
        found_there = path.stat()
        if not stat.S_ISREG(found_there.st_mode) or found_there.st_size > _MOST_BYTES:
            raise SourceError(
                f"{path}: this metadata file cannot be read: a regular file of at most "
                f"{_MOST_BYTES} bytes is expected, got {stat.filemode(found_there.st_mode)} of "
                f"{found_there.st_size}; write it again"
            )
        data = path.read_bytes()
        written = found_there.st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(
            f"{path}: this metadata file cannot be read ({one_line(error)}); check its permissions"
        ) from error
    stamp.update(f"{path.name}:{written}:{len(data)}:".encode() + data)
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


def node_at(folder: Path) -> Node | None:
    """Return what zarr has in ``folder``, or None if it has nothing there.

    Where there are documents of both versions, v3 wins, as it does in zarr.

    Raises
    ------
    SourceError
        If a metadata document cannot be read, is not JSON, or is not an array's or group's.
    """
    return _node_v3(folder) or _node_v2(folder)


def _node_v3(folder: Path) -> Node | None:
    stamp = hashlib.sha256()
    document = _document(folder / "zarr.json", stamp)
    if document is None:
        return None
    version, kind = document.get("zarr_format"), document.get("node_type")
    if version != 3 or kind not in ("array", "group"):
        raise SourceError(
            f"{folder / 'zarr.json'}: needs zarr_format 3 and node_type 'array' or 'group', got "
            f"{version!r:.40} and {kind!r:.40}; write the file again"
        )
    attributes = document.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise SourceError(
            f"{folder / 'zarr.json'}: attributes are a JSON object, got {attributes!r:.80}; write "
            "the file again"
        )
    return Node(folder, 3, kind, document, attributes, stamp.hexdigest())


def _node_v2(folder: Path) -> Node | None:
    stamp = hashlib.sha256()
    kind: Literal["array", "group"] = "array"
    document = _document(folder / ".zarray", stamp)
    if document is None:
        kind, document = "group", _document(folder / ".zgroup", stamp)
    if document is None:
        return None
    if document.get("zarr_format") != 2:
        raise SourceError(
            f"{folder / ('.zarray' if kind == 'array' else '.zgroup')}: needs zarr_format 2, got "
            f"{document.get('zarr_format')!r:.40}; write the file again"
        )
    attributes = _document(folder / ".zattrs", stamp) or {}
    return Node(folder, 2, kind, document, attributes, stamp.hexdigest())


def _in_order(path: Path) -> list[tuple[int, int, str]]:
    """Sort key: s2 before s10."""
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p]


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted((path for path in folder.iterdir() if path.is_dir()), key=_in_order)
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed ({one_line(error)}); check its permissions"
        ) from error


def inside(folder: Path, deepest: int = _DEEPEST) -> Iterator[Node]:
    """Walk the images and arrays below ``folder``, in natural order.

    An image's own arrays and labels are not named: it is one thing. The walk ends after
    2000 folders.
    """
    pending = [(path, 1) for path in reversed(_subfolders(folder))]
    for _ in range(_FOLDERS_LOOKED_AT):
        if not pending:
            return
        path, depth = pending.pop()
        node = node_at(path)
        if node is not None and (node.type == "array" or node.has_image):
            yield node
        elif depth < deepest:
            pending += [(child, depth + 1) for child in reversed(_subfolders(path))]


def inside_text(folder: Path, deepest: int = _DEEPEST) -> str:
    """Say which images and arrays are below ``folder`` and how to address one."""
    found = list(itertools.islice(inside(folder, deepest), _SHOWN + 1))
    if not found:
        return "there is no image or array in it, so name a folder that is one"
    names = ", ".join(node.folder.relative_to(folder).as_posix() for node in found[:_SHOWN])
    more = " and more" if len(found) > _SHOWN else ""
    return f"inside are {names}{more}: open one by its path, such as {found[0].folder}"
