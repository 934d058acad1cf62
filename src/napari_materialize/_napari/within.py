"""A Shapes layer that leaves the viewer's sliders as its image has them.

A box ends at the faces of voxels, half a voxel beyond their centres. napari lets its sliders begin
where the first thing in any layer does, so the outline of a box at the edge of an image would put
every plane between two of the image's: another plane would be shown than the slider says, a
rectangle would be drawn between planes, and napari 0.9.2 raises while it draws one there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari.layers import Shapes

__all__ = ["shapes_within"]


def shapes_within(shape: Sequence[int], **keywords: Any) -> Shapes:
    """Return an empty Shapes layer that tells the viewer of an image's extent, not of its own.

    Parameters
    ----------
    shape : sequence of int
        Voxels of the image along each axis, in whose voxels the layer counts.
    **keywords
        For `napari.layers.Shapes`.
    """
    layer = _kind()(None, ndim=len(shape), **keywords)
    layer._last_voxel = np.array(shape, dtype=float) - 1
    return layer


@cache
def _kind() -> Any:
    from napari.layers import Shapes as Base

    # the name is what napari's writers know a layer by
    class Shapes(Base):  # type: ignore[misc]  # napari is not typed for others
        _last_voxel: np.ndarray | None = None

        @property
        def _extent_data(self) -> np.ndarray:
            own: np.ndarray = super()._extent_data
            last = self._last_voxel
            return own if last is None else np.clip(own, 0.0, last)

    return Shapes
