"""What the caller of `open_source` says instead of the source.

Owns the meaning of its keyword arguments, one for one, for every kind of source. It does not
know where a level's own description came from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize.arrays import Axis, normalize_unit
from napari_materialize.errors import SourceError
from napari_materialize.sources.rules import axis_named, checked_chunks, numbers

if TYPE_CHECKING:
    from napari_materialize.arrays import Level

__all__ = ["Overrides"]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the caller says; None leaves it to the source.

    ``scale`` and ``translation`` are the finest level's. Coarser levels keep their factors, and
    their offsets in voxels of the finest.

    Examples
    --------
    >>> from napari_materialize.arrays import Level
    >>> finest = Level((4, 4), np.dtype("u1"), (4, 4))
    >>> coarse = Level((2, 2), np.dtype("u1"), (2, 2), scale=(2, 2), translation=(0.5, 0.5))
    >>> placed = Overrides(scale=(8, 8), translation=(100, 0)).apply("here", (finest, coarse))
    >>> placed[1].scale, placed[1].translation
    ((16.0, 16.0), (104.0, 4.0))
    """

    chunks: Any = None
    scale: Any = None
    translation: Any = None
    units: Any = None
    axes: Any = None
    kind: Any = None
    name: Any = None

    def __post_init__(self) -> None:
        for key in ("chunks", "scale", "translation", "units", "axes"):
            if isinstance(getattr(self, key), Iterator):  # it is looked at more than once
                object.__setattr__(self, key, list(getattr(self, key)))

    @property
    def given(self) -> dict[str, Any]:
        """What was given, as JSON values that `open_source` takes again."""
        found: dict[str, Any] = {}
        for key in ("chunks", "scale", "translation"):
            values = getattr(self, key)
            if values is not None:
                found[key] = np.asarray(values).tolist()
        if self.units is not None:
            found["units"] = _unit_texts(self.units)
        if self.axes is not None:
            found["axes"] = [
                {"name": axis.name, "type": axis.type, "unit": axis.unit}
                for axis in map(_axis, ["axes"] * len(self.axes), self.axes)
            ]
        return found | {
            key: value for key in ("kind", "name") if (value := getattr(self, key)) is not None
        }

    def apply(self, place: str, levels: tuple[Level, ...]) -> tuple[Level, ...]:
        """Return ``levels``, of one rank and finest first, as the caller wants them.

        Raises
        ------
        SourceError
            If an override does not fit: a wrong length, a scale that is not positive, an axis name
            that appears twice, a chunk shape that is not one, a name that is not text.
        """
        if self.name is not None and not (isinstance(self.name, str) and self.name.strip()):
            raise SourceError(f"{place}: name is text, got {self.name!r:.80}; give a short one")
        finest = levels[0]
        axes = self.chosen_axes(place, finest.axes)
        scale = numbers(f"{place}: scale", self.scale, finest.ndim, positive=True)
        origin = numbers(f"{place}: translation", self.translation, finest.ndim)
        ratio = tuple(map(operator.truediv, scale or finest.scale, finest.scale))
        placed = []
        for level in levels:
            grown = tuple(map(operator.mul, level.scale, ratio))
            offset = map(operator.sub, level.translation, finest.translation)
            offset = map(operator.mul, offset, ratio)
            moved = tuple(map(operator.add, origin or finest.translation, offset))
            if scale is None and origin is None:
                moved = level.translation  # as it was, to the last bit
            chosen = scale if scale is not None and level is finest else grown
            chunks = self._chunks(place, level)
            try:
                placed.append(
                    replace(level, chunks=chunks, axes=axes, scale=chosen, translation=moved)
                )
            except ValueError as error:  # usable numbers whose product is not
                raise SourceError(
                    f"{place}: every level needs a positive scale and a finite translation, got "
                    f"{chosen} and {moved}; give other numbers"
                ) from error
        return tuple(placed)

    def _chunks(self, place: str, level: Level) -> tuple[int, ...]:
        if self.chunks is None:
            return level.chunks
        return checked_chunks(place, self.chunks, level.shape, level.dtype)

    def chosen_axes(self, place: str, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Return ``axes`` as the caller wants them; a unit stays with an axis of the same type.

        Raises
        ------
        SourceError
            If axes or units are not one per axis, or a name appears twice.
        """
        ndim = len(axes)
        if self.axes is not None:
            named = [_axis(place, axis) for axis in _sequence(f"{place}: axes", self.axes)]
            if len({axis.name for axis in named}) != ndim or len(named) != ndim:
                raise SourceError(
                    f"{place}: axes needs {ndim} different names, one per axis of the array, got "
                    f"{[axis.name for axis in named]}; name each axis once"
                )
            axes = tuple(
                replace(new, unit=new.unit or (old.unit if new.type == old.type else None))
                for new, old in zip(named, axes, strict=True)
            )
        if self.units is None:
            return axes
        units = _unit_texts(self.units)
        if isinstance(units, str):
            units = [units if axis.type == "space" else axis.unit for axis in axes]
        if len(units) != ndim:
            raise SourceError(
                f"{place}: units needs one name for all of space, or {ndim}, one per axis, "
                f"got {units}; give None where an axis has none"
            )
        return tuple(
            replace(axis, unit=None if axis.type == "channel" else normalize_unit(unit))
            for axis, unit in zip(axes, units, strict=True)
        )


def _sequence(place: str, values: Any) -> list[Any]:
    if not isinstance(values, Iterable):
        raise SourceError(f"{place} needs one entry per axis, got {values!r:.80}; give a list")
    return list(values)


def _unit_texts(units: Any) -> str | list[str | None]:
    """Return units as text, be they pint's or text already: one, or one per axis."""
    if isinstance(units, str) or not isinstance(units, Iterable):
        return str(units)
    return [None if unit is None else str(unit) for unit in units]


def _axis(place: str, axis: object) -> Axis:
    if isinstance(axis, Axis):
        return axis
    if isinstance(axis, str) and axis.strip():
        return axis_named(axis)
    if isinstance(axis, Mapping) and isinstance(axis.get("name"), str):
        return axis_named(axis["name"], axis.get("type"), axis.get("unit"))
    raise SourceError(
        f"{place}: an axis is a name such as 'z' or an Axis, got {axis!r:.80}; name it"
    )
