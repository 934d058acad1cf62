"""N5: what its arrays say of themselves, and the dialects that place them in the world.

Owns the reading of ``attributes.json``. Blocks are read in `n5_blocks`, places in `places`.

N5 lists sizes with the fastest axis first; everything here is turned to C order where it is read.
What is understood, in this order (https://github.com/saalfeldlab/n5-viewer,
https://github.com/janelia-cosem/schemas, neuroglancer's and TensorStore's N5 drivers):

- a group's OME ``multiscales``, its axes in either order;
- an array's ``transform`` (COSEM): axes, scale, translate, units, in C order unless it says F;
- ``pixelResolution`` (n5-viewer): of level 0, times an array's ``downsamplingFactors``;
- ``resolution``, ``units``, ``axes``, ``offset``: an array's own, or the group's of level 0 with
  ``downsamplingFactors`` or ``scales``.

A level averaged by a factor ``f`` has its first centre ``(f - 1) / 2`` voxels of level 0 further
on.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from napari_materialize.arrays import Level, default_axes, normalize_unit
from napari_materialize.errors import SourceError
from napari_materialize.geometry import ChunkGrid
from napari_materialize.sources.folder import Node, node_at, ome_in_n5
from napari_materialize.sources.multiscales import Multiscale, read_multiscale
from napari_materialize.sources.n5_blocks import COMPRESSIONS, N5Reader
from napari_materialize.sources.places import around
from napari_materialize.sources.pyramid import place_by_shape, placed
from napari_materialize.sources.rules import (
    axis_named,
    check_size,
    checked_chunks,
    checked_dtype,
    checked_shape,
    numbers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from napari_materialize.arrays import Axis
    from napari_materialize.geometry import Index
    from napari_materialize.sources.pyramid import Placement

__all__ = ["describe_n5", "level_nodes", "levels_of", "placed_alone"]

_DTYPES = frozenset(
    [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)] + ["float32", "float64"]
)

_MOST_LEVELS = 64
"""Levels that are looked for."""


def describe_n5(node: Node) -> tuple[Level, N5Reader]:
    """Describe an N5 array as it says itself, not placed in the world.

    Raises
    ------
    SourceError
        If it is not an image's array, or compressed in a way that is not read.
    """
    place, document = str(node.folder), node.document
    named = document.get("dataType")
    if not isinstance(named, str) or named not in _DTYPES:
        raise SourceError(
            f"{place}: an image's values are integers or floats of up to 64 bits, got dataType "
            f"{named!r:.40}; choose another array"
        )
    dtype = checked_dtype(place, named)
    shape = checked_shape(place, _turned(document.get("dimensions")))
    check_size(place, shape, dtype)
    block = checked_chunks(place, _turned(document.get("blockSize")), shape, dtype)
    compression = document.get("compression", document.get("compressionType"))
    if isinstance(compression, dict):
        compression = compression.get("type")
    if not isinstance(compression, str) or compression not in COMPRESSIONS:
        raise SourceError(
            f"{place}: N5 compressed with {', '.join(COMPRESSIONS)} is read, got "
            f"{compression!r:.40}; write it again with one of those"
        )
    level = Level(shape, dtype, block, default_axes(len(shape)))
    return level, N5Reader(node.folder, ChunkGrid(shape, block), dtype, compression)


def _turned(listed: Any) -> Any:
    return listed[::-1] if isinstance(listed, list) else listed


def level_nodes(group: Node) -> list[Node]:
    """Return the arrays of an image's levels: those its ``multiscales`` lists, else s0, s1, ...

    Raises
    ------
    SourceError
        If one that is listed is not there.
    """
    multiscale = _ome(group)
    if multiscale is not None:
        paths = [dataset.path for dataset in multiscale.datasets]
    else:
        paths = []
        for number in range(_MOST_LEVELS):
            node = node_at(group.folder.at(f"s{number}"))
            if node is None or node.zarr_format is not None or node.type != "array":
                break
            paths.append(f"s{number}")
    nodes = []
    for path in paths:
        node = node_at(group.folder.at(path))
        if node is None or node.type != "array" or node.zarr_format is not None:
            raise SourceError(
                f"{group.folder}: each level that multiscales lists is an N5 array, got none at "
                f"{path!r}; open one of its arrays by its path"
            )
        nodes.append(node)
    return nodes


def levels_of(group: Node, nodes: list[Node], levels: list[Level]) -> list[Level]:
    """Return the levels of an image, placed; ``levels`` are those of ``nodes``, of one rank.

    Raises
    ------
    SourceError
        If a number or a name in the metadata is not usable.
    """
    ndim = levels[0].ndim
    multiscale = _ome(group)
    if multiscale is not None:
        axes = multiscale.axes_for(ndim)
        placements = multiscale.placements([level.shape for level in levels])
        listed = zip(nodes, levels, placements, strict=True)
        return [_moved(node, level, axes, at) for node, level, at in listed]
    axes = _axes(nodes[0], group, ndim)
    own = [_placement(node, group, number, ndim) for number, node in enumerate(nodes)]
    unplaced = ((1.0,) * ndim, (0.0,) * ndim)
    guessed = place_by_shape([level.shape for level in levels], own[0] or unplaced)
    return [
        _moved(node, level, axes, found or guess)
        for node, level, found, guess in zip(nodes, levels, own, guessed, strict=True)
    ]


def placed_alone(node: Node, level: Level) -> Level:
    """Return the level of an array that is opened by its path, placed if anything places it.

    Raises
    ------
    SourceError
        If a number or a name in its metadata is not usable.
    """
    listed = _placed_by_ome(node, level)
    if listed is not None:
        return listed
    above, name = node.folder.parent, node.folder.name
    group, number = None, 0
    if above is not None and name[:1] == "s" and name[1:].isdecimal():
        group, number = node_at(above), int(name[1:])
        if group is not None and group.zarr_format is not None:
            group = None
    found = _placement(node, group, number, level.ndim)
    if found is None and group is not None and number:
        found = _by_those_before(group, number, level.shape)
    return _moved(node, level, _axes(node, group, level.ndim), found)


def _placed_by_ome(node: Node, level: Level) -> Level | None:
    """Place an array as the nearest ``multiscales`` above says, if it lists it and can be used."""
    try:
        for up in itertools.islice(around(node.folder), 4):
            group = node_at(up)
            multiscale = _ome(group) if group is not None and group.zarr_format is None else None
            if multiscale is not None:
                index = multiscale.level_at(node.folder.path_in(up))
                at = None if index is None else multiscale.placement(index, level.ndim)
                return (
                    None if at is None else _moved(node, level, multiscale.axes_for(level.ndim), at)
                )
    except SourceError:
        pass  # one by itself is the way out of an image that cannot be used
    return None


def _by_those_before(group: Node, number: int, shape: Index) -> Placement | None:
    """Place a level of which nothing says where it lies by the shapes of those before it."""
    try:
        nodes = level_nodes(group)[:number]
        shapes = [describe_n5(node)[0].shape for node in nodes]
        own = _placement(nodes[0], group, 0, len(shape)) if nodes else None
    except SourceError:
        return None  # as above
    if own is None or len(nodes) < number or any(len(each) != len(shape) for each in shapes):
        return None
    return place_by_shape([*shapes, shape], own)[-1]


def _moved(node: Node, level: Level, axes: tuple[Axis, ...], placement: Placement | None) -> Level:
    if placement is None:
        return replace(level, axes=axes)
    return placed(str(node.folder), level, axes, placement)


def _ome(group: Node) -> Multiscale | None:
    """Read a group's OME metadata, turned to C order; None where it places nothing by itself."""
    first = ome_in_n5(group.attributes)
    if first is None:
        return None
    axes = first.get("axes")
    names = [axis.get("name") if isinstance(axis, dict) else axis for axis in _list(axes)]
    if names and names[0] == "x":  # as N5 lists sizes
        first = first | {
            "axes": _turned(axes),
            "datasets": [*map(_turned_dataset, first["datasets"])],
        }
        if "coordinateTransformations" in first:
            first = _turned_dataset(first)
    return read_multiscale(str(group.folder), 2, {"multiscales": [first]})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _turned_dataset(dataset: Any) -> Any:
    if not isinstance(dataset, dict):
        return dataset
    key = "coordinateTransformations"
    steps = [
        {name: _turned(value) for name, value in step.items()} if isinstance(step, dict) else step
        for step in _list(dataset.get(key))
    ]
    return dataset | {key: steps} if key in dataset else dataset


def _placement(node: Node, group: Node | None, number: int, ndim: int) -> Placement | None:
    """Return scale and translation of one level by what it or its group says; None if nothing."""
    place, mine = str(node.folder), node.attributes
    theirs: Mapping[str, Any] = {} if group is None else group.attributes
    if isinstance(mine.get("transform"), dict):
        return _cosem(place, mine["transform"], ndim)
    factors = _factors(place, mine, theirs, number, ndim)
    if "resolution" in mine:  # the array's own voxels, as TensorStore has it
        scale = _numbers(f"{place}: resolution", mine["resolution"], ndim, positive=True) or ()
        origin = _numbers(f"{place}: offset", mine.get("offset"), ndim) or _half(scale, factors)
        return scale, origin
    base = mine.get("pixelResolution", theirs.get("pixelResolution", theirs.get("resolution")))
    if isinstance(base, dict):
        base = base.get("dimensions")
    finest = _numbers(f"{place}: resolution", base, ndim, positive=True)
    if factors is None and (finest is None or (number and "pixelResolution" not in mine)):
        return None  # nothing, or the finest level's alone
    finest = finest or (1.0,) * ndim
    scale = tuple(map(operator.mul, finest, factors or (1.0,) * ndim))
    own = _numbers(f"{place}: offset", mine.get("offset"), ndim)
    if own is None:
        start = _numbers(f"{place}: offset", theirs.get("offset"), ndim) or (0.0,) * ndim
        own = tuple(o + (s - r) / 2 for o, s, r in zip(start, scale, finest, strict=True))
    return scale, own


def _half(scale: tuple[float, ...], factors: tuple[float, ...] | None) -> tuple[float, ...]:
    pairs = zip(scale, factors or (1.0,) * len(scale), strict=True)
    return tuple(s * (1 - 1 / f) / 2 for s, f in pairs)


def _factors(
    place: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], number: int, ndim: int
) -> tuple[float, ...] | None:
    """Return a level's factors to level 0: its own, or its row in a table of the group's."""
    found = mine.get("downsamplingFactors")
    for key in ("downsamplingFactors", "scales"):
        rows = _list(theirs.get(key))
        if found is None and number < len(rows) and isinstance(rows[number], list):
            found = rows[number]
    return _numbers(f"{place}: downsamplingFactors", found, ndim, positive=True)


def _numbers(
    place: str, listed: Any, ndim: int, *, positive: bool = False
) -> tuple[float, ...] | None:
    return numbers(place, _turned(listed), ndim, positive=positive)


def _cosem(place: str, transform: Mapping[str, Any], ndim: int) -> Placement:
    fortran = transform.get("ordering") == "F"

    def listed(key: str, positive: bool) -> tuple[float, ...] | None:
        values = transform.get(key)
        values = _turned(values) if fortran else values
        return numbers(f"{place}: transform.{key}", values, ndim, positive=positive)

    return (
        listed("scale", True) or (1.0,) * ndim,
        listed("translate", False) or (0.0,) * ndim,
    )


def _axes(node: Node, group: Node | None, ndim: int) -> tuple[Axis, ...]:
    """Return axes with their units, by what an array or its group says; else the usual ones."""
    mine = node.attributes
    theirs: Mapping[str, Any] = {} if group is None else group.attributes
    transform = mine.get("transform")
    if isinstance(transform, dict):
        names, units = transform.get("axes"), transform.get("units")
        if transform.get("ordering") == "F":
            names, units = _turned(names), _turned(units)
    else:
        names = _turned(mine.get("axes", theirs.get("axes")))
        units = _turned(mine.get("units", theirs.get("units")))
        resolution = mine.get("pixelResolution", theirs.get("pixelResolution"))
        if units is None and isinstance(resolution, dict):
            units = resolution.get("unit")
    axes = default_axes(ndim)
    texts = [name for name in _list(names) if isinstance(name, str) and name.strip()]
    if len(texts) == len(set(texts)) == ndim:
        axes = tuple(map(axis_named, texts))
    if isinstance(units, str):
        units = [units if axis.type == "space" else None for axis in axes]
    if not isinstance(units, list) or len(units) != ndim:
        return axes
    return tuple(
        replace(axis, unit=_unit(unit) if axis.type != "channel" else None)
        for axis, unit in zip(axes, units, strict=True)
    )


def _unit(unit: Any) -> str | None:
    return normalize_unit(unit) if isinstance(unit, str) and unit.strip() else None
