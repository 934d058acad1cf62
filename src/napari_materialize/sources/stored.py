"""Sources that are stored: OME-Zarr images, N5, plain arrays, and paths inside a container.

Owns the way from a place to a source, and what is said of a place that leads to none. Places are
read in `places`, documents in `folder`, OME-Zarr's in `multiscales`, N5's in `n5`, arrays in
`zarr_array`; what levels of one image have in common is checked in `pyramid`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import SourceError, StoreError
from napari_materialize.sources.folder import Node, inside, inside_text, node_at
from napari_materialize.sources.lasting import Lasting
from napari_materialize.sources.multiscales import Multiscale, read_multiscale
from napari_materialize.sources.n5 import describe_n5, level_nodes, levels_of, placed_alone
from napari_materialize.sources.opened import BlockReader, OpenedSource, fingerprint
from napari_materialize.sources.places import LocalPlace, Place, around, unreadable_source
from napari_materialize.sources.pyramid import check_levels, contradictions, placed
from napari_materialize.sources.rules import checked_kind, one_line
from napari_materialize.sources.storage import storage_of
from napari_materialize.sources.zarr_array import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.sources.overrides import Overrides

__all__ = ["open_place"]

type Described = tuple[Level, BlockReader]

_HOLDING_MANY = {
    "plate": "a plate holds many images",
    "well": "a well holds many images",
    "bioformats2raw.layout": "a bioformats2raw container holds a series of images",
}


def open_place(place: Place, overrides: Overrides) -> OpenedSource:
    """Open what zarr or N5 has at a place.

    A group without an image that holds exactly one array or image opens that one.

    Raises
    ------
    SourceError
        If there is nothing to open there, or more than one thing, or it is malformed.
    """
    try:
        node = _existing(_contained(place))
        if node.type == "group" and not node.has_image:
            node = _only_one(node)
        source = (_open_array if node.type == "array" else _open_image)(node, overrides)
    except StoreError as error:  # a server's answer, while metadata is read
        raise unreadable_source(error) from error
    except OSError as error:
        raise SourceError(
            f"{place}: a source has to be readable, looking at it failed ({one_line(error)}); "
            "check the path and its permissions"
        ) from error
    current = (
        (lambda: open_place(place, overrides).identity) if isinstance(place, LocalPlace) else None
    )
    return replace(source, reopen=lambda: open_place(place, overrides), current=current)


_GROUPS = ("zarr.json", ".zgroup", ".zattrs", "attributes.json")
_DOCUMENTS = (*_GROUPS, ".zarray", ".zmetadata")


def _contained(place: Place) -> Place:
    """Let the links of a folder lead anywhere in the outermost container it lies in, not out."""
    if not isinstance(place, LocalPlace):
        return place
    outer = place.folder
    while any((outer.parent / name).is_file() for name in _GROUPS):
        outer = outer.parent
    return place.within(outer)


def _instead_of_file(place: Place) -> str:
    """Return what to do with a file in a source's place."""
    if place.name in _DOCUMENTS:
        return f"open the folder it is in, {place.parent}"
    if place.name.lower().endswith(".zip"):
        return "unpack it and open the folder"
    return (
        "load it with the library it belongs to and pass the array, or open it in napari and "
        "choose its layer"
    )


def _existing(place: Place) -> Node:
    """Return the array or group at a place, or say why there is none."""
    reason = place.missing() if isinstance(place, LocalPlace) else None
    if reason == "nothing is there":
        raise SourceError(f"{place}: a source has to exist, nothing is there; {_nearest(place)}")
    if reason is not None:
        raise SourceError(f"{place}: zarr is a folder, got a file; {_instead_of_file(place)}")
    node = node_at(place)
    if node is not None:
        return node
    if (reason := place.missing()) is not None:
        raise SourceError(
            f"{place}: a source has to be readable, {reason}; check the URL and the credentials in "
            "the environment"
        )
    if _precomputed(place):
        raise SourceError(
            f"{place}: OME-Zarr, zarr and N5 are read, got Neuroglancer's precomputed (info); "
            "convert it, or open it with a library and pass the array"
        )
    if not isinstance(place, LocalPlace) and not place.folders():
        raise SourceError(f"{place}: a source has to exist, nothing is there; {_nearest(place)}")
    raise SourceError(
        f"{place}: zarr holds zarr.json, .zarray or .zgroup and N5 attributes.json, got none of "
        f"them; {inside_text(place, deepest=1)}"
    )


def _precomputed(place: Place) -> bool:
    found = place.document("info")
    return found is not None and b"scales" in found.data and b"data_type" in found.data


def _nearest(place: Place) -> str:
    """Say what is there instead, nearest above."""
    for up in itertools.islice(around(place), 4):
        try:
            node = node_at(up) if up.missing() is None else None
            image = node is not None and (node.type == "array" or node.has_image)
            if image and next(inside(up), None) is None:
                return f"{up} is there and can be opened: open that"
            if node is not None:
                return f"{up} is there, and {inside_text(up)}"
        except SourceError:
            break
        if isinstance(up, LocalPlace) and up.missing() is None:
            break
    return "check the path"


def _only_one(node: Node) -> Node:
    """Return the one array or image in a group that is none itself."""
    for mark, sentence in _HOLDING_MANY.items():
        if mark in node.ome:
            raise SourceError(
                f"{node.folder}: {sentence} and is none itself; {inside_text(node.folder)}"
            )
    found = list(itertools.islice(inside(node.folder), 2))
    if len(found) != 1:
        raise SourceError(
            f"{node.folder}: a group is opened if it is an image (multiscales, or s0 in N5) "
            f"or holds exactly one array, got {'several' if found else 'none'}; "
            f"{inside_text(node.folder)}"
        )
    return found[0]


def _described(node: Node) -> Described:
    return describe_n5(node) if node.zarr_format is None else describe(node)


def _open_image(group: Node, overrides: Overrides) -> OpenedSource:
    place = str(group.folder)
    multiscale = None
    if group.zarr_format is None:
        nodes, name = level_nodes(group), ""
    else:
        multiscale = read_multiscale(place, group.zarr_format, group.ome)
        nodes = [_level_node(group, dataset.path) for dataset in multiscale.datasets]
        name = multiscale.name
    described = [_described(node) for node in nodes]
    levels = [level for level, _ in described]
    check_levels(place, levels)
    if multiscale is None:
        levels, record = levels_of(group, nodes, levels), {"type": "n5"}
    else:
        levels = _levels(place, multiscale, levels)
        record = {"type": "ome-zarr", "format": multiscale.version}
    pairs = [(level, reader) for level, (_, reader) in zip(levels, described, strict=True)]
    return _source(
        [group, *nodes],
        pairs,
        overrides,
        kind="label" if _is_label(group) else "image",
        name=name or _stem(group.folder),
        record=record,
        notices=() if multiscale is None else multiscale.notices,
    )


def _levels(place: str, multiscale: Multiscale, levels: list[Level]) -> list[Level]:
    axes = multiscale.axes_for(levels[0].ndim)
    placements = multiscale.placements([level.shape for level in levels])
    return [placed(place, level, axes, at) for level, at in zip(levels, placements, strict=True)]


def _level_node(group: Node, path: str) -> Node:
    place = group.folder.at(path)
    if isinstance(place, LocalPlace) and not place.stays:
        raise SourceError(
            f"{group.folder}: the levels of an image are inside it, got {path!r}, a link that "
            "leads out; open what it leads to by its own path"
        )
    node = node_at(place)
    if node is None or node.type != "array" or node.zarr_format is None:
        raise SourceError(
            f"{group.folder}: each level that multiscales lists is an array, got none at "
            f"{path!r}; {inside_text(group.folder)}"
        )
    return node


def _open_array(node: Node, overrides: Overrides) -> OpenedSource:
    """Open an array by itself: placed as the image that lists it says, where there is one."""
    level, reader = _described(node)
    kind: Kind = "label" if _is_label(node) else "image"
    name, record = _stem(node.folder), {"type": "zarr" if node.zarr_format else "n5"}
    if node.zarr_format is None:
        level = placed_alone(node, level)
        return _source([node], [(level, reader)], overrides, kind=kind, name=name, record=record)
    image = _image_above(node)
    index = image[1].level_at(node.folder.path_in(image[0].folder)) if image else None
    if image is not None and index is not None:
        group, multiscale = image
        kind = "label" if _is_label(group) else "image"
        found = _placed(node, level, multiscale, index)
        if found is not None:
            path = multiscale.datasets[index].path
            level, name = found, f"{multiscale.name or _stem(group.folder)} {path}"
            record = {"type": "ome-zarr", "format": multiscale.version, "path": path}
    return _source([node], [(level, reader)], overrides, kind=kind, name=name, record=record)


def _image_above(node: Node) -> tuple[Node, Multiscale] | None:
    """Return the nearest image that ``node`` is inside of, if that can be read."""
    for up in itertools.islice(around(node.folder), 4):
        try:
            group = node_at(up)
            if group is not None and group.zarr_format is not None and group.has_image:
                return group, read_multiscale(str(up), group.zarr_format, group.ome)
        except SourceError:
            # Opening an array by its path is the way out of an image that cannot be used. What
            # such an image says of it is not used either, and the record says "zarr".
            return None
    return None


def _placed(node: Node, level: Level, multiscale: Multiscale, index: int) -> Level | None:
    try:
        axes = multiscale.axes_for(level.ndim)
        placement = multiscale.placement(index, level.ndim)
        return None if placement is None else placed(str(node.folder), level, axes, placement)
    except SourceError:
        return None  # as above


def _is_label(node: Node) -> bool:
    """Whether the metadata says labels: by itself, or by being in a ``labels`` group."""
    if node.type == "group" and "image-label" in node.ome:
        return True
    above = node.folder.parent
    if above is None:
        return False
    if (
        node.type == "array"
        and node.zarr_format is None
        and re.fullmatch(r"s\d+", node.folder.name)
    ):
        image = node_at(above)  # a level of N5 is what its image is
        return image is not None and image.zarr_format is None and _is_label(image)
    group = node_at(above) if above.name == "labels" else None
    return group is not None and group.type == "group"


def _stem(place: Place) -> str:
    name = place.name
    for ending in (".zarr", ".ome", ".n5"):
        name = name.removesuffix(ending)
    return name or place.name


def _source(
    nodes: Sequence[Node],
    described: Sequence[Described],
    overrides: Overrides,
    *,
    kind: Kind,
    name: str,
    record: dict[str, Any],
    notices: tuple[str, ...] = (),
) -> OpenedSource:
    """Make the source of ``nodes[0]``, whose arrays are in ``nodes`` too.

    Its identity is its location, its description, and its documents' text and times of writing. The
    times are in it because a program that writes an image again at the same place often writes the
    same documents: what was computed from the old voxels must not be taken for the new. The price
    is small: after a file was merely touched, chunks are computed anew. What a record knows it by
    is another question, `lasting`.
    """
    location = str(nodes[0].folder)
    levels = overrides.apply(location, tuple(level for level, _ in described))
    kind = checked_kind(location, overrides.kind, kind, levels[0].dtype)
    record = {**record, "location": location}
    if nodes[0].zarr_format is not None:
        record["zarr_format"] = nodes[0].zarr_format
    if overrides.given:
        record["options"] = overrides.given
    readers = tuple(reader for _, reader in described)
    near = nodes[0].folder.near
    return OpenedSource(
        name=overrides.name or name,
        identity=f"zarr:{fingerprint(levels, kind, location, *(node.stamp for node in nodes))}",
        stable=True,
        kind=kind,
        levels=levels,
        location=location,
        record=record,
        readers=readers,
        # far away a look at chunks would take as long as a small job
        lasting=Lasting(levels, kind, readers) if near else None,
        notices=(*notices, *contradictions(levels)),
        storage=tuple(
            storage_of(node, node.folder.path_in(nodes[0].folder) or node.folder.name)
            for node in nodes
            if node.type == "array"
        ),
    )
