"""The contrast limits an image starts with: what is known of them, else what a sample says.

Owns which chunks are the sample and what is made of their voxels. Claiming them, and showing the
limits, is the business of whoever shows the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.looking._picture import nearest_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from napari_materialize.geometry import Index
    from napari_materialize.looking._picture import Axes
    from napari_materialize.view import View

__all__ = ["first_limits", "limits_of", "sample"]

SAMPLE_CHUNKS = 4
"""Chunks of the coarsest level, those nearest its middle, that are looked at."""


def first_limits(view: View) -> tuple[float, float]:
    """Return the limits a view starts with: its own, else its dtype's range, else 0 to 1.

    Examples
    --------
    >>> import napari_materialize as nm
    >>> first_limits(nm.open_view(np.zeros((4, 4), "u2")))
    (0.0, 65535.0)
    """
    dtype = view.levels[0].dtype
    if view.limits is not None:
        return float(view.limits[0]), float(view.limits[1])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return float(limits.min), float(limits.max)
    return 0.0, 1.0


def sample(view: View, whole: Axes, displayed: Sequence[int]) -> list[Index]:
    """Return the chunks of the coarsest level that are looked at to choose limits.

    Parameters
    ----------
    view : View
        What is shown.
    whole : Axes
        A read of all that may be shown of the coarsest level.
    displayed : sequence of int
        The axes that lie on the canvas.

    Returns
    -------
    list of Index
        None where the limits are known without: those of an op, those of truth values.
    """
    level = view.levels[-1]
    if view.limits is not None or level.dtype == np.bool:
        return []
    axes = tuple(
        axis if isinstance(axis, int) else range(*_middle(len(axis), size))
        for axis, size in zip(whole, level.chunks, strict=True)
    )
    return nearest_first(level, axes, displayed)[:SAMPLE_CHUNKS]


def limits_of(chunks: Iterable[np.ndarray]) -> tuple[float, float] | None:
    """Return the lowest and highest finite value, or None where there is none.

    Examples
    --------
    >>> limits_of([np.float32([1, np.nan]), np.float32([3, 2])])
    (1.0, 3.0)
    """
    lows, highs = [], []
    for chunk in chunks:
        finite = chunk[np.isfinite(chunk)]
        if finite.size:
            lows.append(float(finite.min()))
            highs.append(float(finite.max()))
    if not lows:
        return None
    low, high = min(lows), max(highs)
    # as napari does for an image of one value
    return (low, high) if low < high else (min(low, 0.0), max(high, 1.0))


def _middle(size: int, chunk: int) -> tuple[int, int]:
    """Return the start and stop of the voxels at most a chunk from the middle."""
    return max(0, size // 2 - chunk), min(size, size // 2 + chunk + 1)
