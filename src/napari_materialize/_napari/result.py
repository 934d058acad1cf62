"""A finished job as a layer, exactly where the box was.

Owns the reading of the stored box and the layer's place, colours and name. A zarr store is read
through zarr, as any other reader would, N5 as a source is; only what napari shows of the box is
read.

A mask becomes a Labels layer: a segmentation is what people look at over its image, coloured and
see-through, and measure with tools that ask for labels. A mask of several channels keeps its
channel axis as a slider. Everything else that is no label becomes an Image.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize._napari.placing import mask_colours, place
from napari_materialize.errors import SourceError, StoreError
from napari_materialize.geometry import Box
from napari_materialize.plan import plan_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from napari.layers import Layer

    from napari_materialize.plan import LevelPlan, Options
    from napari_materialize.session import Resolved
    from napari_materialize.sources import OpenedSource
    from napari_materialize.view import View

__all__ = ["StoredBox", "result_layer"]

SAMPLED = 2**22
"""Voxels that are read to find contrast limits where nothing says them."""


class StoredBox:
    """A box of a stored array, as napari asks for it: indexing composes, `__array__` reads.

    Parameters
    ----------
    selection : zarr_indexing.LazyArray
        The box, not read.
    dtype : numpy.dtype
        What it is read as: truth values become uint8, which Labels need.
    chunks : sequence of int
        The stored array's chunks. The box begins at one, so panning inside chunks reads nothing.
    """

    def __init__(self, selection: Any, dtype: np.dtype, chunks: Sequence[int] | None) -> None:
        self._selection = selection
        self.dtype = dtype
        if chunks is not None:
            self.chunks = tuple(chunks)

    @classmethod
    def of(cls, array: Any, box: Box) -> StoredBox:
        """Return a box of a zarr array, or of anything that reads slices without steps."""
        from zarr_indexing import LazyArray, unit_step_reader

        dtype = np.dtype("u1") if array.dtype.kind == "b" else array.dtype.newbyteorder("=")
        aligned = all(
            start % size == 0 for start, size in zip(box.start, array.chunks, strict=True)
        )
        lazy = LazyArray(array).with_reader(unit_step_reader)
        return cls(lazy[box.slices], dtype, array.chunks if aligned else None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The box's voxels along each axis."""
        return tuple(self._selection.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of voxels."""
        return int(np.prod(self.shape))

    def __getitem__(self, key: Any) -> StoredBox:
        """Compose a basic selection, and read nothing."""
        return StoredBox(self._selection[key], self.dtype, None)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read it."""
        return np.asarray(self._selection.result(), dtype=dtype or self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"StoredBox(shape={self.shape}, dtype={self.dtype})"


def result_layer(resolved: Resolved, *, source_limits: tuple[float, float] | None = None) -> Layer:
    """Return a layer of what a job wrote, not yet in any viewer.

    Parameters
    ----------
    resolved : Resolved
        What the job did, as `Job.resolved` says.
    source_limits : (low, high), optional
        How the source is shown; taken over where the result has the source's dtype and nothing
        says better.

    Returns
    -------
    napari.layers.Image or napari.layers.Labels
        Of the written box alone, multiscale if several levels were written, in the units and axes
        of the written level; what turned or sheared the source does the same to it.

    Raises
    ------
    StoreError
        If the store cannot be read.
    """
    from napari.layers import Image, Labels

    view, options, target = resolved.view, resolved.options, resolved.target
    if view is None or options is None or target is None:
        raise StoreError("result: there is none to open; run a job first")
    plans = plan_levels(view, options)
    levels = _levels(view, target, options, plans)
    data: Any = levels if len(levels) > 1 else levels[0]
    written = plans[0].array
    shown = written.crop(plans[0].box) if plans[0].array_is_level else written
    source = resolved.source_level
    axes = () if source is None else source.axes
    keywords = {"name": _name(target), **place(shown, resolved.intent.affine, axes)}
    keywords |= {"multiscale": len(levels) > 1, "metadata": {"napari-materialize": target}}
    if view.kind == "mask" and levels[0].dtype.kind in "iu":
        return Labels(data, colormap=mask_colours(), **keywords)
    if view.kind == "label" and levels[0].dtype.kind in "iu":
        return Labels(data, **keywords)
    limits = _limits(view, levels[-1], source_limits)
    return Image(data, contrast_limits=limits, rgb=False, **keywords)


def _name(target: str) -> str:
    name = Path(target).name
    return name.removesuffix(".n5").removesuffix(".zarr").removesuffix(".ome")


def _levels(
    view: View, target: str, options: Options, plans: Sequence[LevelPlan]
) -> list[StoredBox]:
    """Return the finest level's box on every level: napari lets levels cover one place.

    Coarser chunks reach further, so what was written of a coarser level holds that box. A level
    that is no smaller than the one before is left out.
    """
    finest = plans[0]
    found: list[StoredBox] = []
    for plan in plans:
        box = view.levels[plan.level].box_from(finest.box, view.levels[finest.level])
        stored = _stored(target, options.format, plan, box)
        if not found or stored.size < found[-1].size:
            found.append(stored)
    return found


def _stored(target: str, written_as: str, plan: LevelPlan, box: Box) -> StoredBox:
    array = _n5(target, plan) if written_as == "n5" else _zarr(target, plan)
    return StoredBox.of(array, box.intersect(plan.box).relative_to(plan.offset))


def _zarr(target: str, plan: LevelPlan) -> Any:
    import zarr

    path = Path(target, str(plan.position))
    try:
        return zarr.open_array(path, mode="r")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"result {path}: cannot be read as a zarr array ({error}); run the job again"
        ) from error


def _n5(target: str, plan: LevelPlan) -> _SourceLevel:
    from napari_materialize.sources import open_source

    try:
        source = open_source(target)
    except SourceError as error:
        raise StoreError(f"result {target}: cannot be read; {error}") from error
    if plan.position >= len(source.levels):
        raise StoreError(
            f"result {target}: level {plan.position} was written, and it has levels 0 to "
            f"{len(source.levels) - 1}; run the job again"
        )
    return _SourceLevel(source, plan.position)


class _SourceLevel:
    """A level of an opened source, for zarr-indexing to read in slices without steps."""

    def __init__(self, source: OpenedSource, number: int) -> None:
        self._source, self._number = source, number
        level = source.levels[number]
        self.shape, self.dtype, self.chunks = level.shape, level.dtype, level.chunks

    def __getitem__(self, key: Any) -> np.ndarray:
        spans = [each.indices(n)[:2] for each, n in zip(key, self.shape, strict=True)]
        box = Box(tuple(low for low, _ in spans), tuple(high for _, high in spans))
        return self._source.read(self._number, box)


def _limits(
    view: View, coarsest: StoredBox, source_limits: tuple[float, float] | None
) -> tuple[float, float]:
    """Return contrast limits: what the ops say, else the source's, else what is there."""
    if view.limits is not None:
        return view.limits
    if source_limits is not None and view.levels[0].dtype == view.source.levels[0].dtype:
        return source_limits
    step = max(1, round((coarsest.size / SAMPLED) ** (1 / coarsest.ndim)))
    sample = np.asarray(coarsest[(slice(None, None, step),) * coarsest.ndim])
    finite = sample[np.isfinite(sample)] if sample.dtype.kind == "f" else sample.ravel()
    if finite.size == 0 or finite.min() == finite.max():
        return (0.0, 1.0) if finite.size == 0 else (float(finite[0]), float(finite[0]) + 1.0)
    return float(finite.min()), float(finite.max())
