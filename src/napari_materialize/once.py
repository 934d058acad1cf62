"""Open, write and close in one call, for those who want one result and no engine to look after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from napari_materialize.engine import Engine
from napari_materialize.recipe import open_view

if TYPE_CHECKING:
    from napari_materialize.blocks import Boundary
    from napari_materialize.job import Materialized, Where

__all__ = ["materialize"]


def materialize(
    source: Any,
    where: Where,
    ops: Any = (),
    *,
    slots: int | None = None,
    boundary: Boundary | None = None,
    **options: Any,
) -> Materialized:
    """Open a source, write a box of it through a chain of ops, and close: all in one call.

    Parameters
    ----------
    source : View, path, array, list of arrays, or napari layer
        What to compute from; see `napari_materialize.open_view`.
    where : path, URL or WritableStore
        Where to write.
    ops : op or sequence of ops
        As `napari_materialize.open_view` takes them.
    slots : int, optional
        Computations at a time; see `Engine`.
    boundary : {"edge", "zeros"}, optional
        What lies past the volume's edge.
    **options
        As `Engine.materialize` takes them.

    Returns
    -------
    Materialized
        What was done.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> store = nm.MemoryStore()
    >>> done = nm.materialize(np.arange(12).reshape(3, 4), store, ops=["threshold:low=5"])
    >>> done.chunks, done.written, sorted(store.files)[:3]
    (1, 1, ['.zattrs', '.zgroup', '.zmetadata'])
    """
    view = open_view(source, ops, boundary=boundary)
    with Engine(slots, nice=0) as engine:
        return engine.materialize(view, where, **options)
