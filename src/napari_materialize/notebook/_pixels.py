"""Voxels as pixels: windows of grey, colours of labels, PNG. Arithmetic on arrays alone."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from napari_materialize.arrays import Kind

__all__ = ["MASK", "blend", "colour", "grey", "png"]

MASK = (255, 79, 154)
"""The colour of a mask, as in the napari widget."""

OPACITY = 0.55
"""Of labels and masks over an image."""


def grey(voxels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return voxels as grey: ``low`` and what is below is 0, ``high`` and above 255, rounded.

    Parameters
    ----------
    voxels : numpy.ndarray
        (down, right), any real dtype; not a number is black.

    Returns
    -------
    numpy.ndarray
        (down, right) uint8.

    Examples
    --------
    >>> grey(np.array([[0, 5, 10, 99]], "u2"), 0, 10).tolist()
    [[0, 128, 255, 255]]
    """
    span = float(high) - float(low)
    with np.errstate(invalid="ignore", over="ignore"):
        if not span > 0:
            return np.where(np.asarray(voxels, np.float64) > low, 255, 0).astype(np.uint8)
        scaled = (np.asarray(voxels, np.float64) - low) * (255 / span)
        return np.floor(np.nan_to_num(np.clip(scaled, 0, 255), nan=0.0) + 0.5).astype(np.uint8)


def colour(voxels: np.ndarray, kind: Kind) -> np.ndarray:
    """Return labels or a mask as colours; 0 is black, a label has the same colour everywhere.

    Returns
    -------
    numpy.ndarray
        (down, right, 3) uint8.

    Examples
    --------
    >>> colour(np.array([[0, 1]], "u1"), "mask").tolist()
    [[[0, 0, 0], [255, 79, 154]]]
    """
    there = voxels != 0
    if kind == "mask" or voxels.dtype.kind not in "iu":
        return np.where(there[..., np.newaxis], np.array(MASK, np.uint8), np.uint8(0))
    # a label's bits, mixed well (the finalizer of splitmix64), so that neighbours differ
    mixed = voxels.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    parts = [(mixed >> np.uint64(shift)) & np.uint64(0xFF) for shift in (0, 8, 16)]
    coloured = 64 + np.stack(parts, axis=-1).astype(np.uint16) * 3 // 4
    return np.where(there[..., np.newaxis], coloured, 0).astype(np.uint8)


def blend(under: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Return grey with colours over it where those are not black: (down, right, 3) uint8."""
    base = np.repeat(under[..., np.newaxis], 3, axis=-1)
    mixed = base * (1 - OPACITY) + over * OPACITY
    return np.where(over.any(axis=-1, keepdims=True), mixed, base).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """Return pixels, (down, right) or (down, right, 3) uint8, as a PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "png", compress_level=1)
    return file.getvalue()
