"""The arithmetic between what is drawn on a canvas and a box of voxels.

Owns the way from a rectangle in the viewer's world to voxels of a source, and back to the outline
of a box. Numbers in, numbers out: it imports neither napari nor Qt, and changes no layer.

A viewer may have more axes than a source; the source's are then the viewer's last ones. Voxel ``i``
covers ``i - 1/2`` to ``i + 1/2``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.errors import BoxError
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari_materialize.arrays import Level

__all__ = ["Affine", "Frame", "affine_of", "embed", "spanned_axes", "view_corners"]

type Affine = tuple[tuple[float, ...], ...]
"""A homogeneous matrix, (axes + 1, axes + 1)."""


def affine_of(layer: Any) -> Affine | None:
    """Return what a layer does to the world beyond the size of its voxels and its translation.

    Rotation, shear and the affine of a napari layer, and what a negative scale mirrors, as one
    matrix that is applied to ``translate + |scale| * voxel``.

    Returns
    -------
    Affine or None
        Over the axes of the source that the layer is: an RGB layer's begin with its colours.
        None where there is nothing beyond.
    """
    ndim = layer.ndim
    origin = np.asarray(layer.data_to_world((0.0,) * ndim), dtype=float)
    columns = [np.asarray(layer.data_to_world(row), dtype=float) - origin for row in np.eye(ndim)]
    whole = _homogeneous(np.stack(columns, axis=1), origin)
    size = np.abs(np.asarray(layer.scale, dtype=float))
    placed = _homogeneous(np.diag(size), layer.translate)
    matrix = whole @ np.linalg.inv(placed)
    if np.allclose(matrix, np.eye(ndim + 1), rtol=0, atol=1e-9 * max(1.0, np.abs(whole).max())):
        return None
    if getattr(layer, "rgb", False):
        over_colours = np.eye(ndim + 2)
        over_colours[1:, 1:] = matrix
        matrix = over_colours
    return tuple(map(tuple, matrix.tolist()))


def embed(affine: Affine | None, axes: Sequence[str], wanted: Sequence[str]) -> np.ndarray | None:
    """Return ``affine`` over other axes, matched by name; axes that it lacks are left alone.

    Examples
    --------
    >>> embed(((0.0, -1.0, 5.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)), "yx", "zyx")[:3].tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 5.0], [0.0, 1.0, 0.0, 0.0]]
    """
    if affine is None:
        return None
    matrix = np.asarray(affine, dtype=float)
    pairs = [(wanted.index(name), axes.index(name)) for name in axes if name in wanted]
    out = np.eye(len(wanted) + 1)
    for row, from_row in [*pairs, (len(wanted), len(axes))]:
        for column, from_column in [*pairs, (len(wanted), len(axes))]:
            out[row, column] = matrix[from_row, from_column]
    return out


def spanned_axes(points: np.ndarray) -> tuple[int, ...]:
    """Return the axes along which corner points differ: those that a rectangle spans.

    Examples
    --------
    >>> spanned_axes(np.array([[3, 0, 0], [3, 0, 9], [3, 5, 9], [3, 5, 0]]))
    (1, 2)
    """
    width = np.ptp(np.asarray(points, dtype=float), axis=0)
    return tuple(int(axis) for axis in np.flatnonzero(width > 1e-6 * max(1e-12, width.max())))


def view_corners(
    centre: Sequence[float],
    zoom: float,
    size: Sequence[float],
    displayed: Sequence[int],
    point: Sequence[float],
) -> np.ndarray:
    """Return the corners of what a canvas shows of two axes.

    Parameters
    ----------
    centre : sequence of float
        The camera's centre in world units; the last two count.
    zoom : float
        Canvas pixels per world unit.
    size : sequence of float
        The canvas's height and width in pixels.
    displayed : sequence of int
        The world axes that run down and to the right.
    point : sequence of float
        Where the sliders of all world axes stand, in world units.

    Returns
    -------
    numpy.ndarray
        (4, axes) float64, world units.
    """
    corners = np.repeat(np.asarray(point, dtype=float)[np.newaxis], 4, axis=0)
    for axis, middle, pixels, signs in zip(
        displayed, centre[-2:], size, ((-1, -1, 1, 1), (-1, 1, 1, -1)), strict=True
    ):
        corners[:, axis] = middle + np.array(signs) * pixels / zoom / 2
    return corners


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """How the finest voxels of a source lie in a viewer's world.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> frame = Frame(Level((10, 100, 100), "u1", (5, 50, 50), scale=(2, 0.5, 0.5)))
    >>> rectangle = [[4, 1, 1], [4, 1, 9.9], [4, 6.1, 9.9], [4, 6.1, 1]]
    >>> frame.box(rectangle, Box((2, 0, 0), (3, 100, 100)))
    Box(start=(2, 2, 2), stop=(3, 13, 21))
    """

    level: Level
    """The source's finest level."""

    affine: Affine | None = None
    """What the viewer does to the level's world, over the level's axes."""

    def _matrix(self) -> np.ndarray:
        """The way from voxels to the viewer's world."""
        placed = _homogeneous(np.diag(self.level.scale), self.level.translation)
        return placed if self.affine is None else np.asarray(self.affine) @ placed

    def to_world(self, voxels: Any) -> np.ndarray:
        """Return world positions of voxel positions, (points, axes) both."""
        return _apply(self._matrix(), np.asarray(voxels, dtype=float))

    def to_voxels(self, points: Any) -> np.ndarray:
        """Return voxel positions of world positions.

        A point may have more axes than the source, or fewer, and lies at 0 along those it lacks.
        """
        points = np.atleast_2d(np.asarray(points, dtype=float))
        ndim, given = self.level.ndim, points.shape[1]
        if given < ndim:
            points = np.hstack([np.zeros((len(points), ndim - given)), points])
        return _apply(np.linalg.inv(self._matrix()), points[:, -ndim:])

    def slice_box(self, point: Sequence[float]) -> Box:
        """Return the one voxel at a world position; the nearest where the position lies outside."""
        (place,) = np.rint(self.to_voxels(point)).astype(int)
        start = tuple(
            int(np.clip(i, 0, n - 1)) for i, n in zip(place, self.level.shape, strict=True)
        )
        return Box(start, tuple(i + 1 for i in start))

    def box(self, points: Any, rest: Box) -> Box:
        """Return the voxels that a flat figure touches.

        Parameters
        ----------
        points : array_like
            (points, axes), world units: the figure's corners.
        rest : Box
            What to take along the axes that the figure does not span.

        Raises
        ------
        BoxError
            If the figure is a point or a line, or lies outside the source.
        """
        points = np.asarray(points, dtype=float)
        lead = points.shape[1] - self.level.ndim
        spanned = [axis - lead for axis in spanned_axes(points) if axis >= lead]
        if len(spanned) < 2:
            raise BoxError("rectangle: must span two axes of the source; draw a larger one")
        voxels = self.to_voxels(points)
        own = np.asarray(self.level.translation) + voxels * np.asarray(self.level.scale)
        touched = self.level.box_from_world(own.min(axis=0).tolist(), own.max(axis=0).tolist())
        start, stop = list(rest.start), list(rest.stop)
        for axis in spanned:
            start[axis], stop[axis] = touched.start[axis], touched.stop[axis]
        box = Box(tuple(start), tuple(stop))
        if box.is_empty:
            raise BoxError("rectangle: must overlap the source, and lies outside it; draw it there")
        return box

    def section(
        self,
        low: Sequence[float],
        high: Sequence[float],
        point: Sequence[float],
        across: Sequence[int],
    ) -> tuple[np.ndarray, bool]:
        """Return where a box meets the plane that is shown.

        Parameters
        ----------
        low, high : sequence of float
            The box's outer faces in the level's own world.
        point : sequence of float
            Where the sliders of all world axes stand.
        across : sequence of int
            The two source axes that are shown.

        Returns
        -------
        numpy.ndarray, bool
            (4, axes) voxel positions of a rectangle in that plane, and whether the plane lies
            inside the box.
        """
        faces = self._faces(low, high)
        (place,) = self.to_voxels(point)
        hidden = [axis for axis in range(self.level.ndim) if axis not in across]
        inside = all(faces[0, axis] <= place[axis] <= faces[1, axis] for axis in hidden)
        corners = np.repeat(place[np.newaxis], 4, axis=0)
        for axis, ends in zip(across, ((0, 0, 1, 1), (0, 1, 1, 0)), strict=True):
            corners[:, axis] = faces[list(ends), axis]
        return corners, inside

    def edges(
        self,
        low: Sequence[float],
        high: Sequence[float],
        point: Sequence[float],
        across: Sequence[int],
    ) -> list[np.ndarray]:
        """Return the edges of a box along the source axes ``across``, 12 of them for three axes.

        Each is (2, axes) voxel positions.
        """
        faces = self._faces(low, high)
        (place,) = self.to_voxels(point)
        lines = []
        for along in across:
            others = [axis for axis in across if axis != along]
            for ends in itertools.product((0, 1), repeat=len(others)):
                line = np.repeat(place[np.newaxis], 2, axis=0)
                for axis, end in zip(others, ends, strict=True):
                    line[:, axis] = faces[end, axis]
                line[:, along] = faces[:, along]
                lines.append(line)
        return lines

    def _faces(self, low: Sequence[float], high: Sequence[float]) -> np.ndarray:
        corners = np.array([low, high], dtype=float)
        faces: np.ndarray = (corners - self.level.translation) / np.asarray(self.level.scale)
        return faces


def _homogeneous(linear: np.ndarray, offset: Any) -> np.ndarray:
    matrix = np.eye(len(linear) + 1)
    matrix[:-1, :-1] = linear
    matrix[:-1, -1] = offset
    return matrix


def _apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    moved: np.ndarray = points @ matrix[:-1, :-1].T + matrix[:-1, -1]
    return moved
