"""Coordinate transformations of OME-Zarr, as far as they are a scale and a translation.

Owns what each type of transformation does to a placement, and the refusal of those that turn,
shear or exchange axes. Which of them apply to a level is read in `multiscales`.

Rules: https://ngff.openmicroscopy.org/0.5/#trafo-md and, for 0.6, RFC-5.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import SourceError
from napari_materialize.sources.rules import numbers

if TYPE_CHECKING:
    from napari_materialize.sources.pyramid import Placement

__all__ = ["moved"]

_DEEPEST = 8
"""Sequences within sequences: the standard allows none."""


def moved(place: str, steps: Any, start: Placement, depth: int = 0) -> Placement:
    """Apply transformations in the order they are listed.

    Parameters
    ----------
    place : str
        For messages.
    steps : list of dict
        As found in the metadata.
    start : Placement
        Scale and translation before.

    Raises
    ------
    SourceError
        If one is not a scale and a translation, or its numbers are not usable.
    """
    if not isinstance(steps, list) or depth > _DEEPEST:
        raise SourceError(
            f"{place}.coordinateTransformations: a list, got {steps!r:.80}; correct the metadata "
            "or open an array by its path"
        )
    placement = start
    for step in steps:
        placement = _after(place, step, placement, depth)
    # Products of usable numbers can still overflow or vanish.
    numbers(f"{place}: scale", placement[0], len(start[0]), positive=True)
    numbers(f"{place}: translation", placement[1], len(start[0]))
    return placement


def _after(place: str, step: Any, before: Placement, depth: int) -> Placement:
    found = step if isinstance(step, dict) else {}
    kind = found.get("type")
    ndim = len(before[0])
    if kind == "identity":
        return before
    if kind == "sequence" and "transformations" in found:
        return moved(place, found["transformations"], before, depth + 1)
    values = found.get(kind) if isinstance(kind, str) else None
    factor: tuple[float, ...] = (1.0,) * ndim
    offset: tuple[float, ...] = (0.0,) * ndim
    if kind == "scale" and values is not None:
        factor = numbers(f"{place}: scale", values, ndim, positive=True) or factor
    elif kind == "translation" and values is not None:
        offset = numbers(f"{place}: translation", values, ndim) or offset
    elif kind == "affine" and (reduced := _diagonal(values, ndim, ndim + 1)) is not None:
        factor = numbers(f"{place}: affine", reduced[0], ndim, positive=True) or factor
        offset = numbers(f"{place}: affine", reduced[1], ndim) or offset
    elif not (
        (kind == "rotation" and _diagonal(values, ndim, ndim) == ([1] * ndim, [0] * ndim))
        or (kind == "mapAxis" and values == list(range(ndim)))
    ):
        raise SourceError(
            f"{place}.coordinateTransformations: what is a scale and a translation, with its "
            f"numbers in place, is read, got {_brief(step)}; open an array by its path and give "
            "scale and translation"
        )
    scale = tuple(map(operator.mul, before[0], factor))
    return scale, tuple(t * f + o for t, f, o in zip(before[1], factor, offset, strict=True))


def _brief(step: Any) -> str:
    """Return a transformation as a message shows it: what it is comes first."""
    if isinstance(step, dict) and isinstance(step.get("type"), str):
        kind = step["type"]
        return f"{kind!r:.40} {step.get(kind)!r:.60}"
    return f"{step!r:.80}"


def _diagonal(matrix: Any, ndim: int, width: int) -> tuple[list[Any], list[Any]] | None:
    """Return the diagonal and the last column of a matrix with zeros beside them, else None."""
    rows = matrix if isinstance(matrix, list) and len(matrix) == ndim else []
    if not rows or not all(isinstance(row, list) and len(row) == width for row in rows):
        return None
    for i, row in enumerate(rows):
        if any(value != 0 for j, value in enumerate(row[:ndim]) if j != i):
            return None
    last = [row[ndim] for row in rows] if width > ndim else [0] * ndim
    return [row[i] for i, row in enumerate(rows)], last
