"""A model run on the tiles that make a box: cut, normalised, run in batches, kept, put together.

Owns the loop over tiles. Which tiles there are is `_model_grid`'s business, what is done to their
voxels `_model_scale`'s.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.ops._base import Abandoned
from napari_materialize.ops._model_axes import cell_of
from napari_materialize.ops._model_grid import AxisGrid, Tiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from napari_materialize.geometry import Box, Index
    from napari_materialize.ops._model_axes import ModelAxes
    from napari_materialize.ops._model_grid import Cell
    from napari_materialize.ops._model_ports import Ports, Runner
    from napari_materialize.ops._model_scale import After, Constants

__all__ = ["Tiles", "cut_axes", "tilings_for"]

BATCH_VOXELS = 1 << 18
"""Voxels run in one call: a batch saves calls, but its memory grows with it."""

type Part = tuple[int, int, tuple[Cell, ...]]
"""A few planes of one tile: the first, the one behind the last, and the tile along each axis."""


@lru_cache(maxsize=256)
def cut_axes(
    grids: tuple[AxisGrid, ...], margin: Index, tiles: tuple[int | None, ...], chunks: Index
) -> tuple[Tiling, ...]:
    """Cut each axis into tiles.

    Raises
    ------
    ValueError
        If a halo fills its tile, which is refused when the op is made.
    """
    found = list(map(Tiling.of, grids, margin, tiles, chunks))
    if None in found:
        raise ValueError(f"a halo of {margin} leaves nothing of tiles of {tiles}")
    return tuple(tiling for tiling in found if tiling is not None)


def tilings_for(
    axes: ModelAxes,
    grids: tuple[AxisGrid, ...],
    margin: Index,
    tiles: tuple[int | None, ...],
    *,
    alone: bool,
) -> tuple[Tiling, ...]:
    """Return how a level is cut into tiles along the axes that a model sees.

    Parameters
    ----------
    axes, grids, margin, tiles
        The level's axes; per space axis the model's grid, the halo and the fixed side.
    alone
        Whether what a voxel becomes depends on its tile: then each chunk has a tile of its own,
        always the same.
    """
    rows = zip(axes.space, grids, strict=True)
    chunks = tuple(cell_of(grid, axes.level.chunks[axis]) for axis, grid in rows)
    if alone:
        tiles = tuple(
            tile or grid.side(chunk + 2 * halo + grid.stride - 1)
            for tile, grid, chunk, halo in zip(tiles, grids, chunks, margin, strict=True)
        )
    return cut_axes(grids, margin, tiles, chunks)


@dataclass(frozen=True, slots=True)
class Tiles:
    """One model on one level."""

    runner: Runner
    ports: Ports
    axes: ModelAxes
    tilings: tuple[Tiling, ...]
    scaling: Constants
    after: After
    batch: int | None

    def run(
        self, block: np.ndarray, start: Index, box: Box, abandoned: Callable[[], bool]
    ) -> np.ndarray:
        """Return the output ``box`` made of a block whose first voxel is ``start`` of the level.

        Raises
        ------
        Abandoned
            If, between two calls of the model, nobody waits any more.
        """
        axes, ports = self.axes, self.ports
        planes = axes.to_model(block)
        origin = tuple(start[axis] for axis in axes.space)
        wanted = axes.spans(box, (AxisGrid(),) * ports.rank)
        channels, dtype, _, _ = self.after.describe(ports.made, ports.gives, "image", None)
        made = _Made((len(planes), channels, *(b - a for a, b in wanted)), dtype)
        spans = zip(self.tilings, axes.spans(box, ports.grid), strict=True)
        cells = [list(tiling.cells(*span)) for tiling, span in spans]
        for parts in self._batches(len(planes), cells):
            if abandoned():
                raise Abandoned
            given = [
                planes[(slice(p, q), slice(None), *_cut(tile, origin))] for p, q, tile in parts
            ]
            voxels = given[0] if len(given) == 1 else np.concatenate(given)
            result = ports.run(self.runner, self.scaling.apply(voxels, ports.takes))
            place = 0
            for p, q, tile in parts:
                there, here = _kept(tile, ports.grid, wanted)
                kept = self.after.apply(result[(slice(place, place + q - p), slice(None), *here)])
                made.put((slice(p, q), slice(None), *there), kept)
                place += q - p
        return axes.pick(axes.from_model(made.voxels, block.shape), box)

    def _batches(self, planes: int, cells: Sequence[Sequence[Cell]]) -> Iterator[list[Part]]:
        """Walk the calls of the model: a few planes of one tile, or of several of equal sides."""
        voxels = math.prod(axis[0].side for axis in cells)
        most = self.ports.batch or self.batch or max(1, BATCH_VOXELS // max(1, voxels))
        some: list[Part] = []
        for tile in itertools.product(*cells):
            for first in range(0, planes, most):
                last = min(planes, first + most)
                if some and sum(q - p for p, q, _ in some) + last - first > most:
                    yield some
                    some = []
                some.append((first, last, tile))
        if some:
            yield some


class _Made:
    """What comes out, put together of parts; a part that is all of it is not copied."""

    def __init__(self, shape: Index, dtype: np.dtype) -> None:
        self._shape = shape
        self._dtype = dtype
        self._voxels: np.ndarray | None = None

    def put(self, place: tuple[slice, ...], part: np.ndarray) -> None:
        """Put a part where it belongs."""
        if part.shape == self._shape and part.dtype == self._dtype:
            self._voxels = part
        else:
            self.voxels[place] = part

    @property
    def voxels(self) -> np.ndarray:
        """What was put in so far."""
        if self._voxels is None:
            self._voxels = np.empty(self._shape, self._dtype)
        return self._voxels


def _cut(tile: tuple[Cell, ...], origin: Index) -> tuple[slice, ...]:
    return tuple(
        slice(cell.start - low, cell.start - low + cell.side)
        for cell, low in zip(tile, origin, strict=True)
    )


def _kept(
    tile: tuple[Cell, ...], grids: tuple[AxisGrid, ...], wanted: list[tuple[int, int]]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where in the box, and where in the tile's output, the voxels that are kept lie."""
    there, here = [], []
    for cell, grid, (low, high) in zip(tile, grids, wanted, strict=True):
        first = max(low, grid.floor(cell.keep[0]))
        last = min(high, grid.ceil(cell.keep[1]))
        there.append(slice(first - low, last - low))
        begin = grid.origin(cell.start)
        here.append(slice(first - begin, last - begin))
    return tuple(there), tuple(here)
