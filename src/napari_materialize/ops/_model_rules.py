"""Which voxels an operator needs of its input where its output is wanted without its margin.

Owns the arithmetic of each kind of operator: for voxels cut off each side of what comes out, what
may be cut off what goes in, and what becomes of the operator's own padding. Which operator is of
which kind is told by `_model_operators`; what is cut where is decided by `_model_trim`.

Rules: the formulas of ONNX's Operators.md for the sizes of Conv, ConvTranspose, the pools, Pad and
Resize.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Crop", "Image", "Larger", "Rule", "Side", "Transposed", "Window"]

type Crop = tuple[tuple[int, int], ...]
"""Voxels of a tensor cut off its low and its high side, per space axis of the image."""


class Image(NamedTuple):
    """A tensor that is an image: its size grows with the tile."""

    axes: tuple[int | None, ...]
    """The image's space axis that each of its axes is; None for batch and channel."""

    ratio: tuple[Fraction, ...]
    """Its voxels per voxel of the model's input, per space axis of the image."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One operator that has a rule; as it stands, one that looks at each voxel by itself."""

    images: tuple[int, ...]
    """Which of its inputs are images."""

    made: Image
    """What comes out."""

    weight: Fraction = Fraction(0)
    """Multiplications per voxel that comes out."""

    def needs(self, crop: Crop) -> Crop:
        """Return what may be cut off its inputs where ``crop`` is cut off its output."""
        return crop

    def gives(self, crop: Crop) -> Crop:
        """Return what is cut off its output then: ``crop``, or less."""
        return crop

    def pads(self, crop: Crop) -> Crop | None:
        """Return its own padding then, in the image's order; None if it has none."""
        return None


class Side(NamedTuple):
    """A window along one axis."""

    window: int
    """Voxels from its first to its last."""
    stride: int
    low: int
    high: int
    more: int = 0
    """Of a transposed one, voxels added at the high side."""


@dataclass(frozen=True, slots=True)
class Window(Rule):
    """A window moved over padded voxels: a convolution, a pool, a padding (a window of one)."""

    sides: tuple[Side, ...] = ()

    def needs(self, crop: Crop) -> Crop:
        return self._with(crop, lambda cut, stride, pad: max(0, cut * stride - pad))

    def pads(self, crop: Crop) -> Crop:
        return self._with(crop, lambda cut, stride, pad: max(0, pad - cut * stride))

    def _with(self, crop: Crop, rule: Callable[[int, int, int], int]) -> Crop:
        return tuple(
            (rule(low, side.stride, side.low), rule(high, side.stride, side.high))
            for (low, high), side in zip(crop, self.sides, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Transposed(Rule):
    """A transposed convolution: voxel i adds to ``window`` voxels from ``i stride - low`` on."""

    sides: tuple[Side, ...] = ()

    def needs(self, crop: Crop) -> Crop:
        return tuple(
            (_reach(low + s.low, s), _reach(high + s.high - s.more, s))
            for (low, high), s in zip(crop, self.sides, strict=True)
        )

    def pads(self, crop: Crop) -> Crop:
        rows = zip(crop, self.needs(crop), self.sides, strict=True)
        return tuple(
            (s.low + low - a * s.stride, s.high + high - b * s.stride)
            for (low, high), (a, b), s in rows
        )


def _reach(cut: int, side: Side) -> int:
    return max(0, -((side.window - 1 - cut) // side.stride))


@dataclass(frozen=True, slots=True)
class Larger(Rule):
    """A grid made finer by whole factors; one voxel more is looked at, for interpolation."""

    factors: tuple[int, ...] = ()

    def needs(self, crop: Crop) -> Crop:
        return tuple(
            (_coarser(low, factor), _coarser(high, factor))
            for (low, high), factor in zip(crop, self.factors, strict=True)
        )

    def gives(self, crop: Crop) -> Crop:
        rows = zip(self.needs(crop), self.factors, strict=True)
        return tuple((low * factor, high * factor) for (low, high), factor in rows)


def _coarser(cut: int, factor: int) -> int:
    return cut if factor == 1 else max(0, cut // factor - 1)
