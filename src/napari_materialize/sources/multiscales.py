"""OME-Zarr's ``multiscales`` documents, 0.1 to 0.5: axes, levels and where each is in the world.

Owns the reading of these documents and what is made of their gaps. It opens no file and no array
(`folder`, `zarr_store`).

Rules: https://ngff.openmicroscopy.org/0.4/#multiscale-md and https://ngff.openmicroscopy.org/0.5/.
What older or careless writers leave out is filled in: axes are the last of t, c, z, y, x, and a
level without transformations is placed by the ratio of shapes (`pyramid`). Transformations are
applied in the order they are listed, the multiscale's own after the dataset's.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from napari_materialize.arrays import default_axes
from napari_materialize.errors import SourceError
from napari_materialize.sources.pyramid import place_by_shape
from napari_materialize.sources.rules import axis_named, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from napari_materialize.arrays import Axis
    from napari_materialize.geometry import Index
    from napari_materialize.sources.pyramid import Placement

__all__ = ["Dataset", "Multiscale", "read_multiscale"]

_VERSIONS = ("0.1", "0.2", "0.3", "0.4", "0.5")


@dataclass(frozen=True, slots=True)
class Dataset:
    """One level as the document lists it."""

    path: str
    """Of its array, inside the group."""

    transformations: Any
    """As found; None where the document has none."""


@dataclass(frozen=True, slots=True)
class Multiscale:
    """The first entry of a ``multiscales`` list."""

    place: str
    """For messages."""

    version: str
    """As found, or the version such a document usually has."""

    name: str
    """As found; empty where the document has none."""

    axes: tuple[Axis, ...] | None
    """None where the document has none."""

    datasets: tuple[Dataset, ...]
    """The levels, finest first."""

    transformations: Any
    """Those of the whole, applied after each dataset's; None where the document has none."""

    def level_at(self, path: str) -> int | None:
        """Return which level the array at ``path`` inside the group is, or None if it is none."""
        paths = [dataset.path for dataset in self.datasets]
        return paths.index(path) if path in paths else None

    def axes_for(self, ndim: int) -> tuple[Axis, ...]:
        """Return the axes of arrays of ``ndim`` axes, the usual ones where none are listed."""
        if self.axes is None:
            return default_axes(ndim)
        if len(self.axes) != ndim:
            raise SourceError(
                f"{self.place}.axes: needs one entry per axis of its arrays, which have {ndim}, "
                f"got {[axis.name for axis in self.axes]}; correct the metadata or open an array "
                "by its path"
            )
        return self.axes

    def placement(self, level: int, ndim: int) -> Placement | None:
        """Return scale and translation of a level, or None where the document has none.

        Raises
        ------
        SourceError
            If a transformation is not a scale or a translation, or its numbers are not usable.
        """
        found = self._own(level, ndim)
        return None if found is None else self._in_world(found)

    def placements(self, shapes: Sequence[Index]) -> list[Placement]:
        """Return scale and translation of every level, of arrays of ``shapes``, all of one rank.

        Raises
        ------
        SourceError
            If a transformation is not a scale or a translation, or its numbers are not usable.
        """
        ndim = len(shapes[0])
        own = [self._own(level, ndim) for level in range(len(self.datasets))]
        guessed = place_by_shape(shapes, own[0] or _unplaced(ndim))
        return [self._in_world(a or b) for a, b in zip(own, guessed, strict=True)]

    def _own(self, level: int, ndim: int) -> Placement | None:
        listed = self.datasets[level].transformations
        if listed is None or listed == []:
            return None
        return _apply(f"{self.place}.datasets[{level}]", listed, _unplaced(ndim))

    def _in_world(self, placement: Placement) -> Placement:
        if self.transformations is None:
            return placement
        return _apply(self.place, self.transformations, placement)


def _unplaced(ndim: int) -> Placement:
    return (1.0,) * ndim, (0.0,) * ndim


def _apply(place: str, transformations: Any, start: Placement) -> Placement:
    """Apply transformations in the order they are listed."""
    if not isinstance(transformations, list):
        raise SourceError(
            f"{place}.coordinateTransformations: a list, got {transformations!r:.80}; correct the "
            "metadata or open an array by its path"
        )
    scale, translation = start
    ndim = len(scale)
    for transformation in transformations:
        found = transformation if isinstance(transformation, dict) else {}
        kind = found.get("type")
        values = found.get(kind) if kind in ("scale", "translation") else None
        if kind == "scale" and values is not None:
            factor = numbers(f"{place}: scale", values, ndim, positive=True) or ()
            scale = tuple(map(operator.mul, scale, factor))
            translation = tuple(map(operator.mul, translation, factor))
        elif values is not None:
            offset = numbers(f"{place}: translation", values, ndim) or ()
            translation = tuple(map(operator.add, translation, offset))
        elif kind != "identity":
            raise SourceError(
                f"{place}.coordinateTransformations: only scale, translation and identity, with "
                f"their numbers in place, are read, got {transformation!r:.80}; open an array by "
                "its path and give scale and translation"
            )
    # Products of usable numbers can still overflow or vanish.
    numbers(f"{place}: scale", scale, ndim, positive=True)
    numbers(f"{place}: translation", translation, ndim)
    return scale, translation


def read_multiscale(folder: str, zarr_format: int, attributes: Mapping[str, Any]) -> Multiscale:
    """Read the first multiscale image of a group.

    Parameters
    ----------
    folder : str
        Where the group is, for messages.
    zarr_format : int
        2 or 3.
    attributes : mapping
        The group's; in OME-Zarr 0.5, those under ``ome``.

    Raises
    ------
    SourceError
        If there is no image in it, if it is of a version not read here, or malformed.
    """
    place = f"{folder}: multiscales"
    entries = attributes["multiscales"]
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise SourceError(
            f"{place}: a list with one JSON object per image, got {entries!r:.80}; there is no "
            "image to open, so open an array by its path"
        )
    place, entry = f"{place}[0]", entries[0]
    usual = "0.5" if zarr_format == 3 else "0.4"
    version = str(entry.get("version") or attributes.get("version") or usual)
    if not version.startswith(_VERSIONS) or "coordinateSystems" in entry:
        raise SourceError(
            f"{place}: OME-Zarr 0.1 to 0.5 is read, got version {version}; open an array by its "
            "path and give scale and translation"
        )
    name = entry.get("name")
    return Multiscale(
        place,
        version,
        name.strip() if isinstance(name, str) else "",
        _axes(place, entry.get("axes")),
        _datasets(place, entry.get("datasets")),
        entry.get("coordinateTransformations"),
    )


def _axes(place: str, listed: Any) -> tuple[Axis, ...] | None:
    if listed is None:
        return None
    named: list[Axis] = []
    for axis in listed if isinstance(listed, list) else [listed]:
        # 0.3 lists names, later versions objects
        found = {"name": axis} if isinstance(axis, str) else axis
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            raise SourceError(
                f"{place}.axes: a list of objects with a name each, got {listed!r:.80}; correct "
                "the metadata or open an array by its path"
            )
        named.append(axis_named(found["name"], found.get("type"), found.get("unit")))
    names = [axis.name for axis in named]
    if len(set(names)) != len(names):
        raise SourceError(
            f"{place}.axes: names must differ, got {names}; correct the metadata or open an array "
            "by its path"
        )
    return tuple(named)


def _datasets(place: str, listed: Any) -> tuple[Dataset, ...]:
    if not isinstance(listed, list) or not listed:
        raise SourceError(
            f"{place}.datasets: a list with one entry per level, got {listed!r:.80}; there is no "
            "image to open, so open an array by its path"
        )
    found = []
    for dataset in listed:
        path = dataset.get("path") if isinstance(dataset, dict) else None
        inside = path.strip("/") if isinstance(path, str) else ""
        if not inside or ".." in inside.split("/") or "\0" in inside:
            raise SourceError(
                f"{place}.datasets: each needs the path of an array inside the group, got "
                f"{dataset!r:.80}; correct the metadata or open an array by its path"
            )
        found.append(Dataset(inside, dataset.get("coordinateTransformations")))
    return tuple(found)
