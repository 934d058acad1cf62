"""A model's grid: on which voxels its tiles begin and end, and where its output voxels lie.

Owns integer arithmetic along the space axes, all of it in volume coordinates: a tile begins on a
multiple of the stride counted from voxel 0 of the level, wherever a box or a chunk begins. It
knows no level and no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["AxisGrid", "Cell", "Tiling"]


class Cell(NamedTuple):
    """One tile along one axis, and the voxels that are kept of it."""

    start: int
    """The tile's first voxel, of the input."""
    side: int
    """The tile's length."""
    keep: tuple[int, int]
    """The input voxels whose output is kept, half open."""


@dataclass(frozen=True, slots=True)
class AxisGrid:
    """One space axis of a model.

    Examples
    --------
    A convolution without padding of width 5, and a U-Net that halves its input three times:

    >>> AxisGrid(lost=4).made(20), AxisGrid(lost=4).first
    (16, 2)
    >>> AxisGrid(stride=8).side(100)
    104
    """

    stride: int = 1
    """Tiles begin on multiples of it."""

    rest: int = 0
    """Sides are multiples of the stride plus this."""

    ratio: Fraction = Fraction(1)
    """Output voxels per input voxel."""

    lost: int = 0
    """Output voxels by which the output is shorter than the input times the ratio."""

    fixed: int | None = None
    """The only side there is, where the model has one."""

    @property
    def first(self) -> int:
        """Output voxels that are missing at the tile's low side; the other side has the rest."""
        return self.lost // 2

    @property
    def least(self) -> int:
        """The smallest halo that covers what the model does not return."""
        far = max(self.first, self.lost - self.first, 0)
        return math.ceil(far / self.ratio)

    def side(self, least: int) -> int:
        """Return the smallest side, not below ``least``, that the model takes."""
        if self.fixed is not None:
            return self.fixed
        return max(1, -(-(least - self.rest) // self.stride)) * self.stride + self.rest

    def made(self, side: int) -> int:
        """Return the output voxels that come of a tile."""
        return int(self.ratio * side) - self.lost

    def floor(self, voxel: int) -> int:
        """Return the first output voxel that an input voxel has a share in."""
        return voxel * self.ratio.numerator // self.ratio.denominator

    def ceil(self, voxel: int) -> int:
        """Return the output voxel behind the last that voxels below an input voxel share in."""
        return -(-voxel * self.ratio.numerator // self.ratio.denominator)

    def span(self, low: int, high: int) -> tuple[int, int]:
        """Return the input voxels that the output voxels from ``low`` to ``high`` stand for."""
        part, whole = self.ratio.numerator, self.ratio.denominator
        return low * whole // part, -(-high * whole // part)

    def origin(self, start: int) -> int:
        """Return the output voxel, of the whole level, that the first one of a tile is."""
        return int(self.ratio * start) + self.first

    def down(self, voxel: int) -> int:
        """Return the last place on the grid that is not behind ``voxel``."""
        return voxel // self.stride * self.stride


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the voxels along one axis are cut into tiles.

    Without a ``tile`` one tile takes whatever is asked for. With one, the level is cut into cells
    of equal length from voxel 0 on, and each has a tile of its own around it: which voxels are
    computed from which tile does not depend on what else is asked for.

    Examples
    --------
    >>> tiling = Tiling(AxisGrid(stride=8), halo=16, tile=64, cell=32)
    >>> list(tiling.cells(40, 50)), tiling.reach(40, 50)
    ([Cell(start=16, side=64, keep=(32, 64))], (16, 80))
    """

    grid: AxisGrid
    halo: int
    tile: int | None = None
    cell: int = 1
    group: int = 1
    """What is computed at least in one go begins and ends on multiples of this."""

    @classmethod
    def of(cls, grid: AxisGrid, halo: int, tile: int | None, chunk: int) -> Tiling | None:
        """Choose cells for tiles of a given side, or return None where the halo leaves no room."""
        if tile is None:
            return cls(grid, halo)
        room = tile - 2 * halo
        if room < 1:
            return None
        whole = room // chunk * chunk
        if whole and cls(grid, halo, tile, whole).has_halo:
            return cls(grid, halo, tile, whole, whole)
        whole -= chunk
        if whole > 0:  # a little room is needed to begin on the grid
            return cls(grid, halo, tile, whole, whole)
        room -= grid.stride - 1
        parts = [n for n in range(room, 0, -1) if chunk % n == 0 and 2 * n > room]
        cell = parts[0] if parts else room
        return cls(grid, halo, tile, cell) if cell > 0 else None

    @property
    def has_halo(self) -> bool:
        """Whether every tile has its halo on both sides, wherever the grid lets it begin."""
        return self.tile is None or _all_covered(self)

    def whole(self, low: int, high: int) -> tuple[int, int]:
        """Return voxels grown to what is computed in one go."""
        return low // self.group * self.group, -(-high // self.group) * self.group

    def cells(self, low: int, high: int) -> Iterator[Cell]:
        """Walk the tiles that make the input voxels from ``low`` to ``high``."""
        if self.tile is None:
            start = self.grid.down(low - self.halo)
            yield Cell(start, self.grid.side(high + self.halo - start), (low, high))
            return
        for number in range(low // self.cell, -(-high // self.cell)):
            keep = (number * self.cell, (number + 1) * self.cell)
            start = self.grid.down(keep[0] - self.halo)
            spare = start + self.tile - (keep[1] + self.halo)
            # what is left over goes to both sides, so that the kept voxels lie in the middle
            start -= max(0, spare // 2 // self.grid.stride * self.grid.stride)
            yield Cell(start, self.tile, keep)

    def reach(self, low: int, high: int) -> tuple[int, int]:
        """Return the input voxels that all tiles for ``low`` to ``high`` are made of."""
        spans = [(cell.start, cell.start + cell.side) for cell in self.cells(low, high)]
        return min(a for a, _ in spans), max(b for _, b in spans)


@lru_cache(maxsize=256)
def _all_covered(tiling: Tiling) -> bool:
    assert tiling.tile is not None
    period = math.lcm(tiling.cell, tiling.grid.stride) // tiling.cell
    return all(
        cell.start <= cell.keep[0] - tiling.halo
        and cell.start + tiling.tile >= cell.keep[1] + tiling.halo
        for number in range(min(period, 4096))
        for cell in tiling.cells(number * tiling.cell, number * tiling.cell + 1)
    )
