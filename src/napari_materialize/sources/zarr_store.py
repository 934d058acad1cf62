"""Sources that are zarr on disk: OME-Zarr images, plain arrays, and paths inside a container.

Owns the way from a path to a source, and what is said of a path that leads to none. Documents
are read in `folder`, OME-Zarr's in `multiscales`, arrays in `zarr_array`. URLs of object stores
are refused here until they are read.
"""

from __future__ import annotations

import itertools
import os
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import SourceError
from napari_materialize.sources.folder import Node, inside, inside_text, node_at
from napari_materialize.sources.multiscales import Multiscale, read_multiscale
from napari_materialize.sources.opened import OpenedSource, fingerprint
from napari_materialize.sources.rules import checked_kind, one_line
from napari_materialize.sources.zarr_array import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.sources.overrides import Overrides
    from napari_materialize.sources.zarr_array import ZarrReader

__all__ = ["local_folder", "open_folder"]

_HOLDING_MANY = {
    "plate": "a plate holds many images",
    "well": "a well holds many images",
    "bioformats2raw.layout": "a bioformats2raw container holds a series of images",
}


def local_folder(what: str | os.PathLike[str]) -> Path:
    """Return the absolute path that a path or a ``file://`` URL means, links followed.

    Raises
    ------
    SourceError
        If it is another URL, or no path at all.
    """
    text = os.fspath(what)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise SourceError(f"source: a path or a file:// URL, got {text!r:.80}; name a folder")
    if "://" in text:
        text = _local_part(text)
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise SourceError(
            f"source: a path to a folder, got one that leads nowhere ({one_line(error)}); check it"
        ) from error


def _local_part(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise SourceError(
            f"source: a path or a file:// URL, got a malformed URL ({one_line(error)}); correct it"
        ) from error
    if parts.scheme != "file" or host not in ("", "localhost"):
        # Without user, password and query: those can be credentials.
        raise SourceError(
            f"source: only local folders are read yet, got {parts.scheme}://{host}{parts.path}; "
            "copy it to this machine, or open its array with a library and pass that"
        )
    path = urllib.parse.unquote(parts.path)
    return path.lstrip("/") if os.name == "nt" else path


def open_folder(folder: Path, overrides: Overrides) -> OpenedSource:
    """Open what zarr has in ``folder``.

    A group without an image that holds exactly one array or image opens that one.

    Raises
    ------
    SourceError
        If there is nothing to open there, or more than one thing, or it is malformed.
    """
    node = _existing(folder)
    if node.type == "group" and not node.has_image:
        for mark, sentence in _HOLDING_MANY.items():
            if mark in node.ome:
                raise SourceError(f"{folder}: {sentence} and is none itself; {inside_text(folder)}")
        found = list(itertools.islice(inside(folder), 2))
        if len(found) != 1:
            raise SourceError(
                f"{folder}: a group is opened if it is an image (multiscales) or holds exactly one "
                f"array, got {'several' if found else 'none'}; {inside_text(folder)}"
            )
        node = found[0]
    return (_open_array if node.type == "array" else _open_image)(node, overrides)


def _existing(folder: Path) -> Node:
    """Return the array or group in ``folder``, or say why there is none."""
    try:
        if not folder.exists():
            container = next((up for up in folder.parents if up.exists()), None)
            rest = "check the path"
            if container is not None and node_at(container) is not None:
                rest = f"{container} is there, and {inside_text(container)}"
            raise SourceError(f"{folder}: a source has to exist, nothing is there; {rest}")
        if not folder.is_dir():
            raise SourceError(
                f"{folder}: zarr is a folder, got a file; load it with the library it belongs to "
                "and pass the array, or open it in napari and choose its layer"
            )
        node = node_at(folder)
        if node is None and (folder / "attributes.json").exists():
            raise SourceError(
                f"{folder}: OME-Zarr and zarr are read, got N5 (attributes.json), which is not "
                "read yet; convert it, or open its array with a library and pass that"
            )
    except OSError as error:
        raise SourceError(
            f"{folder}: a source has to be readable, looking at it failed ({one_line(error)}); "
            "check the path and its permissions"
        ) from error
    if node is None:
        raise SourceError(
            f"{folder}: a zarr folder holds zarr.json, .zarray or .zgroup, got none of them; "
            f"{inside_text(folder, deepest=1)}"
        )
    return node


def _open_image(group: Node, overrides: Overrides) -> OpenedSource:
    multiscale = read_multiscale(str(group.folder), group.zarr_format, group.ome)
    nodes = [_level_node(group, dataset.path) for dataset in multiscale.datasets]
    described = [describe(node) for node in nodes]
    shapes = [level.shape for level, _ in described]
    if len({len(shape) for shape in shapes}) != 1:
        raise SourceError(
            f"{group.folder}: the levels of an image have the same axes, got shapes {shapes}; open "
            "one of them by its path"
        )
    axes = multiscale.axes_for(len(shapes[0]))
    placed = [
        (replace(level, axes=axes, scale=scale, translation=translation), reader)
        for (level, reader), (scale, translation) in zip(
            described, multiscale.placements(shapes), strict=True
        )
    ]
    return _source(
        [group, *nodes],
        placed,
        overrides,
        kind="label" if _is_label(group) else "image",
        name=multiscale.name or _stem(group.folder),
        record={"type": "ome-zarr", "format": multiscale.version},
    )


def _level_node(group: Node, path: str) -> Node:
    node = node_at(group.folder / path)
    if node is None or node.type != "array":
        raise SourceError(
            f"{group.folder}: each level that multiscales lists is an array, got none at "
            f"{path!r}; {inside_text(group.folder)}"
        )
    return node


def _open_array(node: Node, overrides: Overrides) -> OpenedSource:
    """Open an array by itself: placed as the image that lists it says, where there is one."""
    level, reader = describe(node)
    kind: Kind = "label" if _is_label(node) else "image"
    name, record = _stem(node.folder), {"type": "zarr"}
    image = _image_above(node)
    index = (
        image[1].level_at(node.folder.relative_to(image[0].folder).as_posix()) if image else None
    )
    if image is not None and index is not None:
        group, multiscale = image
        kind = "label" if _is_label(group) else "image"
        placed = _placed(level, multiscale, index)
        if placed is not None:
            path = multiscale.datasets[index].path
            level, name = placed, f"{multiscale.name or _stem(group.folder)} {path}"
            record = {"type": "ome-zarr", "format": multiscale.version, "path": path}
    return _source([node], [(level, reader)], overrides, kind=kind, name=name, record=record)


def _image_above(node: Node) -> tuple[Node, Multiscale] | None:
    """Return the nearest image that ``node`` is inside of, if that can be read."""
    for up in itertools.islice(node.folder.parents, 4):
        try:
            group = node_at(up)
            if group is not None and group.has_image:
                return group, read_multiscale(str(up), group.zarr_format, group.ome)
        except SourceError:
            # Opening an array by its path is the way out of an image that cannot be used. What
            # such an image says of it is not used either, and the record says "zarr".
            return None
    return None


def _placed(level: Level, multiscale: Multiscale, index: int) -> Level | None:
    try:
        axes = multiscale.axes_for(level.ndim)
        placement = multiscale.placement(index, level.ndim)
    except SourceError:
        return None  # as above
    if placement is None:
        return None
    return replace(level, axes=axes, scale=placement[0], translation=placement[1])


def _is_label(node: Node) -> bool:
    """Whether the metadata says labels: by itself, or by being in a ``labels`` group."""
    if node.type == "group" and "image-label" in node.ome:
        return True
    above = node.folder.parent
    group = node_at(above) if above.name == "labels" else None
    return group is not None and group.type == "group"


def _stem(folder: Path) -> str:
    return folder.name.removesuffix(".zarr").removesuffix(".ome") or folder.name


def _source(
    nodes: Sequence[Node],
    described: Sequence[tuple[Level, ZarrReader]],
    overrides: Overrides,
    *,
    kind: Kind,
    name: str,
    record: dict[str, Any],
) -> OpenedSource:
    """Make the source of ``nodes[0]``, whose arrays are in ``nodes`` too.

    Its identity is its location, its description, and its documents' text and times of writing. The
    times are in it because a program that writes an image again at the same place often writes the
    same documents: what was computed from the old voxels must not be taken for the new. The price
    is small: after a file was merely touched, chunks are computed anew.
    """
    location = str(nodes[0].folder)
    levels = overrides.apply(location, tuple(level for level, _ in described))
    kind = checked_kind(location, overrides.kind, kind, levels[0].dtype)
    record = {**record, "location": location, "zarr_format": nodes[0].zarr_format}
    if overrides.given:
        record["options"] = overrides.given
    return OpenedSource(
        name=overrides.name or name,
        identity=f"zarr:{fingerprint(levels, kind, location, *(node.stamp for node in nodes))}",
        stable=True,
        kind=kind,
        levels=levels,
        location=location,
        record=record,
        readers=tuple(reader for _, reader in described),
    )
