"""The lazy array that a live layer shows, one per level.

Owns how a selection composes, and that an array answers by who asks. What it answers, and which
claims that makes, is in `reads`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize._napari.asking import Asker, who_asks

if TYPE_CHECKING:
    from napari.layers import Layer

    from napari_materialize._napari.reads import LayerReads
    from napari_materialize.looking import Axes
    from napari_materialize.view import View

__all__ = ["LiveArray", "reads_of"]


class LiveArray:
    """A level of a view, or a part of it, as a live layer's data.

    Indexing composes and reads nothing. numpy asking for an array reads: for napari's slicing at
    once, whatever is there, and what is missing is claimed; for other parts of napari at once and
    claiming nothing; for anyone else exactly, waiting until all is there (`asking`).

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> from napari_materialize._napari.reads import LayerReads
    >>> view = nm.open_view(np.arange(24, dtype="u1").reshape(4, 6), ops=["threshold:low=9"])
    >>> with nm.Engine(slots=1) as engine:
    ...     array = LiveArray(LayerReads(view, engine), level=0)
    ...     array[1:][::-1, 3].shape, np.asarray(array[1:][::-1, 3])
    ((3,), array([1, 1, 1], dtype=uint8))
    """

    def __init__(
        self, reads: LayerReads, level: int, axes: Axes | None = None, dtype: Any = None
    ) -> None:
        self.reads = reads
        """The layer's claims; shared by all its levels."""
        self.level = level
        """0 is the finest."""
        self.dtype: np.dtype[Any] = np.dtype(dtype or reads.view.levels[level].dtype)
        """The voxels' dtype."""
        self._axes = reads.whole(level) if axes is None else axes

    @property
    def computed_view(self) -> View | None:
        """The view that a whole level of this is one of, for `open_view` to go on from."""
        whole = self._axes == self.reads.whole(self.level)
        return self.reads.computed if whole else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Voxels along each axis."""
        return tuple(len(axis) for axis in self._axes if isinstance(axis, range))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of voxels."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def chunks(self) -> tuple[int, ...]:
        """A whole chunk's voxels along each axis; of the level, where this is a part of it."""
        sizes = self.reads.view.levels[self.level].chunks
        pairs = zip(sizes, self._axes, strict=True)
        return tuple(size for size, axis in pairs if isinstance(axis, range))

    def __getitem__(self, key: Any) -> LiveArray:
        """Compose a selection: integers, slices and an ellipsis, as numpy has them.

        Raises
        ------
        IndexError
            If an integer lies outside, there are too many indices, or one is of another kind.
        """
        return LiveArray(self.reads, self.level, _compose(self._axes, key), self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read, for numpy; what of, and whether waiting for it, depends on who asks."""
        if copy is False:
            raise ValueError("a view's voxels are computed: an array of them is always a copy")
        asking = who_asks()
        if asking.asker is Asker.ANYONE:
            voxels = self.reads.exact(self.level, self._axes)
        else:
            voxels = self.reads.glance(self.level, self._axes, asking)
        return voxels.astype(self.dtype if dtype is None else dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("one voxel has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        name = self.reads.view.name
        return f"LiveArray(shape={self.shape}, dtype={self.dtype}, view={name!r})"


def _compose(axes: Axes, key: Any) -> Axes:
    """Return what ``key`` selects of ``axes``; a range knows how to index and slice itself."""
    kept = [number for number, axis in enumerate(axes) if isinstance(axis, range)]
    parts = list(key) if isinstance(key, tuple) else [key]
    ellipses = [number for number, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1 or len(parts) - len(ellipses) > len(kept):
        raise IndexError(
            f"index: at most {len(kept)} indices, one per axis, and one ellipsis, got {key!r}"
        )
    if ellipses:
        missing = len(kept) - len(parts) + 1
        parts[ellipses[0] : ellipses[0] + 1] = [slice(None)] * missing
    composed = list(axes)
    for number, part in zip(kept, parts, strict=False):
        axis = axes[number]
        assert isinstance(axis, range)
        composed[number] = axis[part] if isinstance(part, slice) else _voxel(axis, part)
    return tuple(composed)


def _voxel(axis: range, part: Any) -> int:
    try:
        if isinstance(part, (bool, np.bool)):
            raise TypeError
        place = operator.index(part)
    except TypeError:
        raise IndexError(
            f"index: an integer, a slice or an ellipsis is expected, got {part!r}; for another "
            "kind make a numpy array of the part that is needed first"
        ) from None
    if not -len(axis) <= place < len(axis):
        raise IndexError(f"index: {place} lies outside an axis of {len(axis)} voxels")
    return axis[place]


def reads_of(layer: Layer) -> LayerReads | None:
    """Return what a layer reads, or None if its data is not a view's."""
    data = layer.data[0] if getattr(layer, "multiscale", False) else getattr(layer, "data", None)
    return data.reads if isinstance(data, LiveArray) else None
