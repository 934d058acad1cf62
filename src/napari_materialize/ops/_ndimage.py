"""Two filters of `scipy.ndimage`, without the half second that importing the package takes.

Most of what `import scipy.ndimage` loads are other parts of scipy, numpy.f2py among them, which no
filter here needs, and a person waits for it before the first chunk. So the one compiled module that
does the work is loaded by itself and called as scipy's own functions call it. Its functions are not
public: they are tried once on a few voxels, and where they are missing or answer otherwise than
known here, the public ones take their place.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import numpy as np

from napari_materialize.buffers import buffer

__all__ = ["compiled", "median_filter", "smooth_axis"]

_NAME = "scipy.ndimage._nd_image"
_NEAREST = 0
"""scipy's number for its mode ``nearest``."""


@cache
def compiled() -> Any:
    """Return scipy's compiled module; None where it is not what is known here.

    `scipy` itself is imported, so that its version can be told.
    """
    try:
        found = sys.modules.get(_NAME) or _load()
        _try(found)
    except Exception:  # noqa: BLE001 - whatever it is: the public functions do the same
        return None
    return found


def _load() -> Any:
    import scipy

    spec = PathFinder.find_spec(_NAME, [f"{folder}/ndimage" for folder in scipy.__path__])
    if spec is None or spec.loader is None:
        raise ImportError(_NAME)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _try(module: Any) -> None:
    """Raise unless a few voxels come out as they should."""
    line = np.array([[0, 4, 2, 8]], np.float32)
    module.correlate1d(line, np.array([0.25, 0.5, 0.25]), 1, line, _NEAREST, 0.0, 0)
    made = np.empty((1, 4), np.uint8)
    window, places = np.ones((1, 3), bool), np.array([[9, 1, 5, 4]], np.uint8)
    module.rank_filter(places, 1, window, made, _NEAREST, 0.0, [0, 0])
    if line.tolist() != [[1, 2.5, 4, 6.5]] or made.tolist() != [[9, 5, 4, 4]]:
        raise ValueError(_NAME)


@cache
def _kernel(sigma: float, radius: int) -> np.ndarray:
    distances = np.arange(-radius, radius + 1)
    weights: np.ndarray = np.exp(-0.5 / (sigma * sigma) * distances**2)
    weights /= weights.sum()
    weights.flags.writeable = False
    return weights


def smooth_axis(values: np.ndarray, sigma: float, radius: int, axis: int) -> None:
    """Smooth along one axis, in place: `scipy.ndimage.gaussian_filter1d`, mode ``nearest``.

    Parameters
    ----------
    values : numpy.ndarray
        float32 or float64; overwritten. scipy works on copies of single lines, in float64.
    sigma : float
        In voxels, above 0.
    radius : int
        Voxels on each side that are weighed.
    axis : int
        Along which.
    """
    module = compiled()
    if module is None:
        from scipy.ndimage import gaussian_filter1d

        gaussian_filter1d(values, sigma, axis, output=values, mode="nearest", radius=radius)
    else:
        module.correlate1d(values, _kernel(sigma, radius), axis, values, _NEAREST, 0.0, 0)


def median_filter(values: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the median of windows: `scipy.ndimage.median_filter`, mode ``nearest``.

    Parameters
    ----------
    values : numpy.ndarray
        Real, of a dtype that scipy knows.
    sizes : tuple of int
        The window, along every axis.
    """
    count, module = int(np.prod(sizes)), compiled()
    # in other functions scipy treats lines, and windows of which the least or greatest is asked
    if module is None or values.ndim == 1 or count <= 2:
        from scipy import ndimage

        found: np.ndarray = ndimage.median_filter(values, size=sizes, mode="nearest")
        return found
    made = buffer(values.shape, values.dtype.newbyteorder("="))
    window, origins = np.ones(sizes, bool), [0] * values.ndim
    module.rank_filter(values, count // 2, window, made, _NEAREST, 0.0, origins)
    return made
