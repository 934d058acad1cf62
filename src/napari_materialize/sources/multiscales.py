"""OME-Zarr's ``multiscales`` documents, 0.1 to 0.6: axes, levels and where each is in the world.

Owns the reading of these documents and what is made of their gaps. It opens no file and no array
(`folder`, `zarr_array`).

Rules: https://ngff.openmicroscopy.org/0.4/#multiscale-md and https://ngff.openmicroscopy.org/0.5/.
What older or careless writers leave out is filled in: axes are the last of t, c, z, y, x, and a
level without transformations is placed by the ratio of shapes (`pyramid`). Transformations are
applied in the order they are listed, the multiscale's own after the dataset's (`transforms`). In
0.6 they lead from system to system: a level lies where its own leads, and further on as long as
there is one way only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from napari_materialize.arrays import default_axes
from napari_materialize.errors import SourceError
from napari_materialize.sources.pyramid import place_by_shape
from napari_materialize.sources.rules import axis_named
from napari_materialize.sources.transforms import moved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from napari_materialize.arrays import Axis
    from napari_materialize.geometry import Index
    from napari_materialize.sources.pyramid import Placement

__all__ = ["Dataset", "Multiscale", "read_multiscale"]

_VERSIONS = re.compile(r"0\.[1-6](?!\d)")
"""How a version begins that is read: 0.5.2 and 0.6.dev1 too, but not 0.10."""


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

    notices: tuple[str, ...] = ()
    """What a person should know of it, a sentence each."""

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
        return moved(f"{self.place}.datasets[{level}]", listed, _unplaced(ndim))

    def _in_world(self, placement: Placement) -> Placement:
        if self.transformations is None:
            return placement
        return moved(self.place, self.transformations, placement)


def _unplaced(ndim: int) -> Placement:
    return (1.0,) * ndim, (0.0,) * ndim


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
    if not _VERSIONS.match(version):
        raise SourceError(
            f"{place}: OME-Zarr 0.1 to 0.6 is read, got version {version:.20}; open an array by "
            "its path and give scale and translation"
        )
    axes, further = entry.get("axes"), entry.get("coordinateTransformations")
    datasets = _datasets(place, entry.get("datasets"))
    if "coordinateSystems" in entry:
        axes, further = _in_system(place, entry, datasets)
    name = entry.get("name")
    return Multiscale(
        place,
        version,
        name.strip() if isinstance(name, str) else "",
        _axes(place, axes),
        datasets,
        further,
        _further(place, entries[1:]),
    )


def _further(place: str, others: Sequence[Any]) -> tuple[str, ...]:
    """Return what there is to say of the entries that are not opened."""
    paths = [
        str(dataset["path"])
        for other in others
        if isinstance(other, dict) and isinstance(other.get("datasets"), list)
        for dataset in other["datasets"][:1]
        if isinstance(dataset, dict) and "path" in dataset
    ]
    if not paths:
        return ()
    shown = ", ".join(f"{path:.40}" for path in paths[:4]) + (" ..." if len(paths) > 4 else "")
    return (
        f"{place}: the first of {len(others) + 1} images in one group is opened; open an array of "
        f"another by its path ({shown})",
    )


def _in_system(
    place: str, entry: Mapping[str, Any], datasets: Sequence[Dataset]
) -> tuple[Any, list[Any]]:
    """Return the axes of the system that the levels lie in, and the transformations that lead on.

    Raises
    ------
    SourceError
        If the levels lead to several systems, or to one that is not described.
    """
    listed = entry["coordinateSystems"]
    systems = {
        system["name"]: system.get("axes")
        for system in (listed if isinstance(listed, list) else ())
        if isinstance(system, dict) and isinstance(system.get("name"), str)
    }
    ends = {_system(steps[-1].get("output")) for steps in map(_steps, datasets) if steps}
    system = next(iter(ends), None)
    if len(ends) != 1 or system not in systems:
        raise SourceError(
            f"{place}: the transformations of all levels lead to one of its coordinateSystems, "
            f"{sorted(systems)!r:.80}, got {sorted(map(str, ends))!r:.80}; open an array by its "
            "path and give scale and translation"
        )
    further = entry.get("coordinateTransformations") or []
    chain: list[Any] = []
    for _ in systems:
        onward = [
            step
            for step in (further if isinstance(further, list) else ())
            if isinstance(step, dict) and _system(step.get("input")) == system
        ]
        if len(onward) != 1 or _system(onward[0].get("output")) not in systems:
            break
        chain += onward
        system = _system(onward[0].get("output"))
    return systems[system], chain


def _steps(dataset: Dataset) -> list[dict[str, Any]]:
    listed = dataset.transformations
    return [step for step in listed if isinstance(step, dict)] if isinstance(listed, list) else []


def _system(end: Any) -> str | None:
    """Return the system that an end of a transformation names."""
    named = end.get("name") if isinstance(end, dict) else end
    return named if isinstance(named, str) else None


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
        inside = path if isinstance(path, str) else ""
        odd = not {"", ".", ".."}.isdisjoint(inside.removesuffix("/").split("/"))
        inside = inside.removesuffix("/")
        if odd or "\0" in inside or "\\" in inside:
            raise SourceError(
                f"{place}.datasets: each needs the path of an array inside the group, got "
                f"{dataset!r:.80}; correct the metadata or open an array by its path"
            )
        found.append(Dataset(inside, dataset.get("coordinateTransformations")))
    paths = [dataset.path for dataset in found]
    if len(set(paths)) != len(paths):
        raise SourceError(
            f"{place}.datasets: each level is an array of its own, got the paths {paths!r:.80}; "
            "correct the metadata or open an array by its path"
        )
    return tuple(found)
