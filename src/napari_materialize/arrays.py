"""What one level of a multiscale image is: shape, dtype, chunks, axes, scale, translation.

Owns the words of the field (axis, unit, scale, translation, kind) and the arithmetic between
voxels of two levels and between voxels and the world. It reads and computes nothing.

A translation is the position of the *centre* of voxel 0, as in OME-Zarr, so voxel ``i`` covers
the world from ``translation + (i - 1/2) * scale`` to ``translation + (i + 1/2) * scale``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from napari_materialize.errors import BoxError
from napari_materialize.geometry import Box, ChunkGrid, Index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Axis", "Kind", "Level", "default_axes", "normalize_unit"]

type Kind = Literal["image", "label", "mask"]
"""What the voxels mean: intensities, ids, or 0 and 1."""

type AxisType = Literal["space", "time", "channel"]

_ROUNDING = 1e-6
"""Voxels of slack when a world position falls on a voxel's face but for rounding."""

_UNITS = {
    "pm": "picometer",
    "nm": "nanometer",
    "um": "micrometer",
    "\N{MICRO SIGN}m": "micrometer",
    "\N{GREEK SMALL LETTER MU}m": "micrometer",
    "micron": "micrometer",
    "microns": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
    "\N{ANGSTROM SIGN}": "angstrom",
    "\N{LATIN CAPITAL LETTER A WITH RING ABOVE}": "angstrom",
    "s": "second",
    "sec": "second",
    "ms": "millisecond",
    "us": "microsecond",
    "ns": "nanosecond",
    "min": "minute",
    "h": "hour",
}

_NO_UNIT = frozenset({"", "pixel", "pixels", "px", "voxel", "dimensionless", "none"})


def normalize_unit(unit: str | None) -> str | None:
    """Return the full name of a unit, or None for no unit. A unit is never invented.

    Parameters
    ----------
    unit : str or None
        As found: ``"um"``, ``"nanometer"``, ``"nanometers"``, ``"pixel"``, None.

    Returns
    -------
    str or None
        A full name as OME-Zarr lists them; a name not known here is returned as it is.

    Examples
    --------
    >>> normalize_unit("um"), normalize_unit("nanometers"), normalize_unit("pixel")
    ('micrometer', 'nanometer', None)
    """
    if unit is None or unit.strip().lower() in _NO_UNIT:
        return None
    unit = unit.strip()
    if unit in _UNITS:
        return _UNITS[unit]
    lower = unit.lower().replace("metre", "meter")
    full = lower.removesuffix("s") if lower.endswith(("meters", "seconds")) else lower
    return _UNITS.get(lower, full)


def _whole(rounding: Callable[[float], int], voxel: float) -> int:
    """Round a place in voxels, or refuse one that no number of voxels reaches."""
    if not math.isfinite(voxel):
        raise BoxError(
            "box: its place in voxels must be finite, and is not with this level's scale and "
            "translation; mend those"
        )
    return rounding(voxel)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its name, what it is an axis of, and its unit."""

    name: str
    """As in OME-Zarr: ``"z"``, ``"y"``, ``"x"``, ``"c"``, ``"t"``, or another unique name."""

    type: AxisType = "space"
    """``space``, ``time`` or ``channel``."""

    unit: str | None = None
    """A full unit name, or None where the source says none."""


def default_axes(ndim: int) -> tuple[Axis, ...]:
    """Return the axes an array of ``ndim`` axes has when nobody says: the last of t, c, z, y, x.

    Examples
    --------
    >>> [axis.name for axis in default_axes(3)]
    ['z', 'y', 'x']
    """
    if not 2 <= ndim <= 5:
        raise ValueError(f"an image has 2 to 5 axes, got {ndim}")
    known = (Axis("t", "time"), Axis("c", "channel"), Axis("z"), Axis("y"), Axis("x"))
    return known[-ndim:]


@lru_cache(maxsize=1024)
def _grid(shape: Index, chunks: Index) -> ChunkGrid:
    """Return the grid of a level, made once: it is asked for several times for every chunk."""
    return ChunkGrid(shape, chunks)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a multiscale image, described and not read.

    Every tuple has one entry per axis, C order.

    Examples
    --------
    >>> level = Level((10, 20), np.dtype("u1"), (4, 8), scale=(2.0, 0.5))
    >>> level.grid.counts, [axis.name for axis in level.axes], level.translation
    ((3, 3), ['y', 'x'], (0.0, 0.0))
    """

    shape: Index
    """Voxels along each axis."""

    dtype: np.dtype
    """Always in the machine's byte order."""

    chunks: Index
    """A whole chunk's voxels along each axis."""

    axes: tuple[Axis, ...] = ()
    """Names, types and units; the usual ones for the rank if left out."""

    scale: tuple[float, ...] = ()
    """World units per voxel; 1 if left out."""

    translation: tuple[float, ...] = ()
    """World position of the centre of voxel 0; 0 if left out."""

    fill: float | int | bool = 0
    """What a voxel that is stored nowhere reads as."""

    def __post_init__(self) -> None:
        ndim = len(self.shape)
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "chunks", tuple(map(int, self.chunks)))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).newbyteorder("="))
        object.__setattr__(self, "axes", tuple(self.axes) or default_axes(ndim))
        object.__setattr__(self, "scale", tuple(map(float, self.scale)) or (1.0,) * ndim)
        object.__setattr__(
            self, "translation", tuple(map(float, self.translation)) or (0.0,) * ndim
        )
        for name in ("chunks", "axes", "scale", "translation"):
            if len(getattr(self, name)) != ndim:
                raise ValueError(
                    f"level: {name} needs one entry per axis of shape {self.shape}, got "
                    f"{getattr(self, name)}"
                )
        if not all(math.isfinite(s) and s > 0 for s in self.scale):
            raise ValueError(f"level: a scale is a positive number, got {self.scale}")
        if not all(map(math.isfinite, self.translation)):
            raise ValueError(f"level: a translation is a finite number, got {self.translation}")
        if len({axis.name for axis in self.axes}) != ndim:
            raise ValueError(f"level: axis names must differ, got {self.axes}")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def grid(self) -> ChunkGrid:
        """The chunks this level is cut into."""
        return _grid(self.shape, self.chunks)

    @property
    def nbytes(self) -> int:
        """The level's size in bytes, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    def box_from(self, box: Box, other: Level) -> Box:
        """Return ``box``, in voxels of ``other``, in voxels of this level.

        Parameters
        ----------
        box : Box
            Along the *last* axes it has; this level's leading axes are taken whole.
        other : Level
            The level whose voxels ``box`` counts.

        Returns
        -------
        Box
            With all axes of this level, rounded out to whole voxels and clipped to the level;
            empty where the box lies outside.

        Raises
        ------
        BoxError
            If the box has more axes than the level.
        """
        if box.ndim > self.ndim:
            raise BoxError(
                f"box: at most {self.ndim} axes, as many as the level of shape {self.shape} has, "
                f"got {box.ndim} in {box.start} to {box.stop}; leave out the first"
            )
        lead = self.ndim - box.ndim
        low, high = [0] * lead, list(self.shape[:lead])
        for mine, theirs, start, stop in zip(
            range(lead, self.ndim),
            range(other.ndim - box.ndim, other.ndim),
            box.start,
            box.stop,
            strict=True,
        ):
            step, origin = other.scale[theirs], other.translation[theirs]
            if (step, origin) == (self.scale[mine], self.translation[mine]):
                low.append(start)  # the same voxels: nothing to round
                high.append(stop)
                continue
            edges = (origin + (start - 0.5) * step, origin + (stop - 0.5) * step)
            first, last = (
                (edge - self.translation[mine]) / self.scale[mine] + 0.5 for edge in edges
            )
            low.append(_whole(math.floor, first + _ROUNDING))
            high.append(_whole(math.ceil, last - _ROUNDING) if start < stop else low[-1])
            high[-1] = max(low[-1], high[-1])
        return Box(tuple(low), tuple(high)).clip(self.shape)

    def box_from_world(self, low: Sequence[float], high: Sequence[float]) -> Box:
        """Return the voxels that a box of the world touches, clipped to the level.

        Parameters
        ----------
        low, high : sequence of float
            World positions of two opposite corners, along the last axes they have.

        Raises
        ------
        BoxError
            If they differ in length, are not finite or inverted, or have too many axes.
        """
        if len(low) != len(high) or len(low) > self.ndim:
            raise BoxError(
                f"world box: two corners with at most {self.ndim} numbers each, got "
                f"{tuple(low)} and {tuple(high)}; leave out the first"
            )
        if not all(map(math.isfinite, (*low, *high))):
            raise BoxError(
                f"world box: finite numbers only, got {tuple(low)} to {tuple(high)}; correct them"
            )
        if any(a > b for a, b in zip(low, high, strict=True)):
            raise BoxError(
                f"world box: the upper corner must not lie below the lower, got {tuple(low)} to "
                f"{tuple(high)}; swap them"
            )
        lead = self.ndim - len(low)
        start, stop = [0] * lead, list(self.shape[:lead])
        for axis, a, b in zip(range(lead, self.ndim), low, high, strict=True):
            first, last = ((v - self.translation[axis]) / self.scale[axis] + 0.5 for v in (a, b))
            start.append(_whole(math.floor, first + _ROUNDING))
            stop.append(max(start[-1], _whole(math.ceil, last - _ROUNDING)))
        return Box(tuple(start), tuple(stop)).clip(self.shape)

    def world_corners(self, box: Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the world positions of the outer faces of ``box``: (lowest, highest) corner."""
        rows = list(zip(self.translation, self.scale, box.start, box.stop, strict=True))
        return (
            tuple(t + (start - 0.5) * s for t, s, start, _ in rows),
            tuple(t + (stop - 0.5) * s for t, s, _, stop in rows),
        )

    def crop(self, box: Box) -> Level:
        """Return a level of exactly ``box``, its translation moved to the box's corner."""
        moved = (t + s * a for t, s, a in zip(self.translation, self.scale, box.start, strict=True))
        return replace(self, shape=box.shape, translation=tuple(moved))
