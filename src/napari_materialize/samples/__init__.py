"""A sample to look at: a generated volume of two kinds of blobs, and a small detector for them.

Owns what ships with the package to be tried without data of one's own. It opens no window and
registers nothing with napari.

The volume is 8 bit, with voxels of 1.0 x 0.4 x 0.4 micrometres (z, y, x): Gaussian blobs, small
and bright or large and dim, on a background that slowly changes, with noise. The detector is a
designed network, not a trained one: differences of Gaussians at the two sizes, each through a
sigmoid (``make_detector.py`` writes it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.arrays import Axis, Level

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AXES",
    "CHUNKS",
    "DETECTOR_HALO",
    "SCALE",
    "Blobs",
    "detector_path",
    "pyramid",
    "volume",
]

SCALE = (1.0, 0.4, 0.4)
"""Micrometres per voxel along z, y, x."""

AXES = (Axis("z", unit="micrometer"), Axis("y", unit="micrometer"), Axis("x", unit="micrometer"))
"""The axes of the volume."""

CHUNKS = (32, 64, 64)
"""Voxels of a chunk along z, y, x, at every level."""

DETECTOR_HALO = (6, 14, 14)
"""Voxels of context along z, y, x that make the detector exact: the reach of its widest filter."""

SMALL_SIGMA = 0.6
"""Standard deviation of a small blob, in micrometres."""

LARGE_SIGMA = 1.6
"""Standard deviation of a large blob, in micrometres."""

SMALL_HEIGHT = 150.0
"""Intensity of a small blob's centre above the background."""

LARGE_HEIGHT = 60.0
"""Intensity of a large blob's centre above the background."""

_BACKGROUND, _SLOPE, _NOISE = 30.0, 10.0, 6.0

_VOXELS_PER_BLOB = 60_000
"""One blob of each two small and one large in so many voxels."""

_REDUCTIONS = ((1, 1, 1), (1, 2, 2), (2, 4, 4))
"""Voxels of the finest level in one voxel of each level: coarser ones are nearly isotropic."""


@dataclass(frozen=True, slots=True)
class Blobs:
    """Where the blobs of a volume are: the truth that a detector is measured against."""

    small: np.ndarray
    """(blob, axis) float64: centres of the small, bright ones, in voxels along z, y, x."""

    large: np.ndarray
    """(blob, axis) float64: centres of the large, dim ones."""


def volume(shape: Sequence[int] = (64, 512, 512), seed: int = 0) -> tuple[np.ndarray, Blobs]:
    """Generate the sample volume: the same for the same shape and seed.

    Parameters
    ----------
    shape : sequence of int
        Voxels along z, y, x.
    seed : int
        Of the places and the noise.

    Returns
    -------
    numpy.ndarray, Blobs
        (z, y, x) uint8 intensities, and the centres of the blobs.

    Examples
    --------
    >>> data, blobs = volume((32, 96, 96))
    >>> data.shape, data.dtype, len(blobs.small), len(blobs.large)
    ((32, 96, 96), dtype('uint8'), 4, 2)
    """
    random = np.random.default_rng(seed)
    slices, rows, columns = map(int, shape)
    blobs = _place((slices, rows, columns), random)
    signal = random.standard_normal((slices, rows, columns), dtype=np.float32)
    signal *= np.float32(_NOISE)
    along_y = np.sin(np.linspace(0, math.pi, rows, dtype=np.float32))[:, np.newaxis]
    along_x = np.cos(np.linspace(0, 2 * math.pi, columns, dtype=np.float32))
    signal += np.float32(_BACKGROUND) + np.float32(_SLOPE) * along_y * along_x
    for centres, sigma, height in (
        (blobs.small, SMALL_SIGMA, SMALL_HEIGHT),
        (blobs.large, LARGE_SIGMA, LARGE_HEIGHT),
    ):
        for centre in centres:
            _add_blob(signal, centre, sigma, height)
    return np.clip(np.rint(signal, out=signal), 0, 255).astype(np.uint8), blobs


def _place(shape: tuple[int, int, int], random: np.random.Generator) -> Blobs:
    """Draw centres that keep apart, so that what is one blob is never in doubt."""
    count = max(1, math.prod(shape) // _VOXELS_PER_BLOB // 2)
    radii = [3 * LARGE_SIGMA] * count + [3 * SMALL_SIGMA] * (2 * count)
    extent = np.array(shape) * SCALE
    placed: list[np.ndarray] = []
    kept: list[float] = []
    for radius in radii:
        for _ in range(100):
            margin = np.minimum(radius, extent / 2 - 1e-3)
            centre = random.uniform(margin, extent - margin)
            gaps = [np.linalg.norm(centre - other) for other in placed]
            if all(gap > radius + other for gap, other in zip(gaps, kept, strict=True)):
                placed.append(centre)
                kept.append(radius)
                break
    centres = np.array(placed) / SCALE - 0.5
    large = np.array(kept) == radii[0]
    return Blobs(centres[~large], centres[large])


def _add_blob(signal: np.ndarray, centre: np.ndarray, sigma: float, height: float) -> None:
    """Add a Gaussian blob around ``centre``, in place, as far as 4 sigma."""
    slices, profiles = [], []
    for middle, step, size in zip(centre, SCALE, signal.shape, strict=True):
        reach = 4 * sigma / step
        inside = slice(max(0, math.floor(middle - reach)), min(size, math.ceil(middle + reach) + 1))
        distance = (np.arange(inside.start, inside.stop, dtype=np.float32) - middle) * step
        slices.append(inside)
        profiles.append(np.exp(-(distance**2) / (2 * sigma**2)).astype(np.float32))
    z, y, x = profiles
    signal[tuple(slices)] += np.float32(height) * z[:, None, None] * y[:, None] * x


def pyramid(data: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[Level, ...]]:
    """Return three levels of the volume by mean, and what each is.

    Parameters
    ----------
    data : numpy.ndarray
        (z, y, x), as `volume` makes it; an edge that does not fill a coarser voxel is left out.

    Returns
    -------
    tuple of numpy.ndarray, tuple of Level
        Finest first: x and y halved, then all axes, so that coarser voxels are nearly as deep as
        they are wide.

    Examples
    --------
    >>> arrays, levels = pyramid(volume((32, 96, 96))[0])
    >>> [array.shape for array in arrays], levels[2].scale
    ([(32, 96, 96), (32, 48, 48), (16, 24, 24)], (2.0, 1.6, 1.6))
    """
    arrays = tuple(_mean(data, factors) for factors in _REDUCTIONS)
    levels = tuple(
        Level(
            array.shape,
            array.dtype,
            tuple(map(min, CHUNKS, array.shape)),
            AXES,
            tuple(step * factor for step, factor in zip(SCALE, factors, strict=True)),
            tuple((factor - 1) / 2 * step for step, factor in zip(SCALE, factors, strict=True)),
        )
        for array, factors in zip(arrays, _REDUCTIONS, strict=True)
    )
    return arrays, levels


def _mean(data: np.ndarray, factors: tuple[int, ...]) -> np.ndarray:
    """Return the rounded means of blocks of ``factors`` voxels."""
    total = data.astype(np.uint32)
    for axis, factor in enumerate(factors):
        whole = total.shape[axis] // factor * factor
        lead = (slice(None),) * axis
        total = sum(
            (total[(*lead, slice(start, whole, factor))] for start in range(1, factor)),
            start=total[(*lead, slice(0, whole, factor))],
        )
    count = math.prod(factors)
    return ((total + count // 2) // count).astype(data.dtype)


def detector_path() -> Path:
    """Return the blob detector: an ONNX file.

    Its input is (batch, 1, z, y, x) float32 with the volume's own intensities; its output has
    two channels of 0..1, for the small and for the large blobs: above 0.5 inside one.

    Examples
    --------
    >>> detector_path().name
    'blob_detector.onnx'
    """
    return Path(__file__).with_name("blob_detector.onnx")
