"""Voxels of another size: what a view needs for an op that works on one voxel size alone.

Owns the op that makes larger voxels of smaller ones, by any factor, and the choice of the level
that an op bound to a voxel size runs on. Halving the levels of a written pyramid is `downsample`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.downsample import method_for, shrink
from napari_materialize.errors import OpError
from napari_materialize.geometry import Box
from napari_materialize.ops import Description, Op, never

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from napari_materialize.arrays import Kind, Level

__all__ = ["Resample", "choose_level", "steps_down"]

SLACK = 0.01
"""How far, relatively, a level's voxel size may lie from the one that is asked for."""


@dataclass(frozen=True, slots=True)
class Resample(Op):
    """Larger voxels: each is made of the voxels it covers, as far as they exist.

    Intensities are averaged, weighted by how much of a voxel is covered, in float64, and rounded
    to nearest in an integer dtype. Ids and masks become what most of the covered voxels are where
    the factor is 2, else what lies at the centre.

    Parameters
    ----------
    factors : tuple of Fraction
        How many voxels, along each axis of the level, make one; 1 or more.
    method : {"mean", "mode"}
        For intensities, or for ids and masks.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> op = Resample((Fraction(3, 2), Fraction(2)), "mean")
    >>> level = op.describe(Level((6, 8), "f4", (6, 4)), "image").level
    >>> level.shape, level.scale, level.translation
    ((4, 4), (1.5, 2.0), (0.25, 0.5))
    """

    name = "resample"

    factors: tuple[Fraction, ...]
    method: str = "mean"

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe the level with larger voxels; its first voxel begins where the first one did."""
        rows = list(zip(level.shape, self.factors, strict=True))
        moved = zip(level.translation, level.scale, self.factors, strict=True)
        made = replace(
            level,
            shape=tuple(math.ceil(n / f) for n, f in rows),
            scale=tuple(s * float(f) for s, f in zip(level.scale, self.factors, strict=True)),
            translation=tuple(t + s * float(f - 1) / 2 for t, s, f in moved),
        )
        return Description(made, kind)

    def inputs(self, box: Box, level: Level) -> Box:
        """The voxels that a box of larger ones covers, in part too."""
        return Box(
            tuple(math.floor(a * f) for a, f in zip(box.start, self.factors, strict=True)),
            tuple(math.ceil(b * f) for b, f in zip(box.stop, self.factors, strict=True)),
        )

    def outputs(self, box: Box, level: Level) -> Box:
        """The larger voxels that ``inputs`` made a box of."""
        start = tuple(math.ceil(a / f) for a, f in zip(box.start, self.factors, strict=True))
        stop = tuple(math.floor(b / f) for b, f in zip(box.stop, self.factors, strict=True))
        return Box(start, tuple(map(max, start, stop)))

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Make larger voxels of a block that begins at the level's first voxel."""
        box = self.outputs(Box.whole(block.shape), level)
        return self.run(block, box, level, abandoned)

    def run(
        self, block: np.ndarray, box: Box, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Make the voxels of ``box`` of the block of ``reach(box)``; see `Op.run`."""
        inside = self.inputs(box, level)
        exists = inside.clip(level.shape)
        block = block[exists.relative_to(inside.start).slices]
        halves = all(f in {1, 2} for f in self.factors)
        if self.method == "mode" and halves:
            halved: np.ndarray = shrink(block, [int(f) for f in self.factors], "mode")
            return halved
        result: Any = block
        for axis, factor in enumerate(self.factors):
            if factor != 1:
                span = (box.start[axis], box.stop[axis], exists.start[axis], exists.stop[axis])
                result = self._along(result, axis, factor, span)
        if self.method == "mean" and block.dtype.kind in "iu":
            result = np.rint(result)
        made: np.ndarray = np.asarray(result).astype(block.dtype, copy=False)
        return made

    def _along(
        self, block: np.ndarray, axis: int, factor: Fraction, span: tuple[int, int, int, int]
    ) -> np.ndarray:
        """Make larger voxels along one axis: those from ``span[0]`` to ``span[1]``."""
        low, high, first, last = span
        if self.method == "mode":
            centres = [
                min(last - 1, math.floor((j + Fraction(1, 2)) * factor)) for j in range(low, high)
            ]
            return block.take([centre - first for centre in centres], axis=axis)
        weights = np.zeros((high - low, last - first))
        for row, j in enumerate(range(low, high)):
            a, b = j * factor, (j + 1) * factor
            for voxel in range(math.floor(a), min(last, math.ceil(b))):
                covered = min(b, Fraction(voxel + 1)) - max(a, Fraction(voxel))
                weights[row, voxel - first] = float(covered)
        weights /= weights.sum(axis=1, keepdims=True)
        made = np.tensordot(weights, block, axes=(1, axis))
        return np.moveaxis(made, 0, axis)


def choose_level(levels: Sequence[Level], op: Op, kind: Kind) -> tuple[int, Resample | None]:
    """Return the level that an op bound to a voxel size runs on, and how it is made larger first.

    Raises
    ------
    OpError
        If every level's voxels are larger than the op's.
    """
    size = op.voxel_size
    assert size is not None
    for number, level in enumerate(levels):
        if all(abs(r - 1) <= SLACK for r in _ratios(level, size).values()):
            return number, None
    finer = [n for n, v in enumerate(levels) if min(_ratios(v, size).values()) >= 1 - SLACK]
    if not finer:
        space = list(_ratios(levels[0], size))
        unit = levels[0].axes[space[-1]].unit or "units"
        have = ", ".join(f"{levels[0].scale[axis]:g}" for axis in space)
        raise OpError(
            f"op {op.name}: runs on voxels of {', '.join(f'{s:g}' for s in size)} {unit} "
            f"(input_voxel_size), and the finest level has larger ones, {have} {unit}; open a "
            "finer image, or give the size in the image's own unit"
        )
    level = levels[finer[-1]]
    ratios = _ratios(level, size)
    factors = [Fraction(1)] * level.ndim
    for axis, ratio in ratios.items():
        if abs(ratio - 1) > SLACK:
            factors[axis] = Fraction(ratio).limit_denominator(1000)
    return finer[-1], Resample(tuple(factors), method_for(kind, level.dtype))


def _ratios(level: Level, size: Sequence[float]) -> dict[int, float]:
    """Return how many of a level's voxels make one of ``size``, per space axis, the last ones."""
    space = [axis for axis, one in enumerate(level.axes) if one.type == "space"][-len(size) :]
    if len(space) < len(size):
        raise OpError(
            f"input_voxel_size: one number for each of {len(space)} space axes, got "
            f"{tuple(size)}; give as many"
        )
    return {axis: wanted / level.scale[axis] for axis, wanted in zip(space, size, strict=True)}


def steps_down(
    levels: Sequence[Level], first: Sequence[float], made: Level
) -> list[tuple[Fraction, ...]]:
    """Return the factors from each coarser level to the next, along the axes of what is ``made``.

    Parameters
    ----------
    levels
        The image's levels that are coarser than the one the op runs on.
    first
        The voxel size that the op runs on, one number per axis of the image.
    made
        The op's output there.
    """
    names = [axis.name for axis in made.axes]
    before, found = list(first), []
    for level in levels:
        factors = [Fraction(1)] * made.ndim
        for axis, one in enumerate(level.axes):
            times = round(level.scale[axis] / before[axis])
            if one.type == "space" and one.name in names and times > 1:
                factors[names.index(one.name)] = Fraction(times)
                before[axis] *= times
        if any(factor != 1 for factor in factors):
            found.append(tuple(factors))
    return found
