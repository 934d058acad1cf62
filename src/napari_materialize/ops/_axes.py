"""Which axes of a level an op works along, and one number or one per axis.

Owns the arithmetic that several ops share about axes. It computes no voxel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from napari_materialize.arrays import Axis, Level
    from napari_materialize.geometry import Index


def space_axes(level: Level) -> Index:
    """Return the positions of the level's space axes."""
    return tuple(i for i, axis in enumerate(level.axes) if axis.type == "space")


def channel_axis(level: Level, place: str) -> int:
    """Return the position of the level's channel axis, or raise OpError naming ``place``."""
    for position, axis in enumerate(level.axes):
        if axis.type == "channel":
            return position
    names = ", ".join(axis.name for axis in level.axes)
    raise OpError(
        f"{place}: needs a channel axis, the image has the axes {names}; leave the op out, or say "
        "which axis is the channel when opening the source"
    )


def one_or_each[Number: (int, float)](
    value: Any, number: Callable[[Any], Number], place: str
) -> Number | tuple[Number, ...]:
    """Check a parameter that is one number or one per axis; lists become tuples."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return number(value)
    each = tuple(map(number, value))
    if not each:
        raise OpError(f"{place}: one number, or one per axis, got none; give at least one")
    return each


def along[Number: (int, float)](
    value: Number | tuple[Number, ...],
    axes: Sequence[int],
    level: Level,
    rest: Number,
    place: str,
) -> tuple[Number, ...]:
    """Spread one number, or one per axis of ``axes``, over all axes of ``level``.

    Raises
    ------
    OpError
        If there are several numbers, but not as many as ``axes``.
    """
    each = value if isinstance(value, tuple) else (value,) * len(axes)
    if len(each) != len(axes):
        names = ", ".join(level.axes[axis].name for axis in axes)
        raise OpError(
            f"{place}: one number, or one for each of the {len(axes)} axes {names}, got "
            f"{len(each)} in {each}; give one of these"
        )
    found = [rest] * level.ndim
    for axis, number in zip(axes, each, strict=True):
        found[axis] = number
    return tuple(found)


def crop(block: np.ndarray, halo: Sequence[int]) -> np.ndarray:
    """Return ``block`` without ``halo`` voxels on both sides of each axis."""
    return block[tuple(slice(n, size - n) for n, size in zip(halo, block.shape, strict=True))]


def without(values: Sequence[Any], position: int) -> tuple[Any, ...]:
    """Return ``values`` without the one at ``position``."""
    return (*values[:position], *values[position + 1 :])


def with_item(values: Sequence[Any], position: int, item: Any) -> tuple[Any, ...]:
    """Return ``values`` with ``item`` put in at ``position``."""
    return (*values[:position], item, *values[position:])


def drop_axis(level: Level, position: int) -> Level:
    """Return ``level`` without one of its axes."""
    return replace(
        level,
        shape=without(level.shape, position),
        chunks=without(level.chunks, position),
        axes=without(level.axes, position),
        scale=without(level.scale, position),
        translation=without(level.translation, position),
    )


def add_axis(level: Level, position: int, axis: Axis, size: int) -> Level:
    """Return ``level`` with one more axis of ``size``, cut into chunks of one."""
    return replace(
        level,
        shape=with_item(level.shape, position, size),
        chunks=with_item(level.chunks, position, 1),
        axes=with_item(level.axes, position, axis),
        scale=with_item(level.scale, position, 1.0),
        translation=with_item(level.translation, position, 0.0),
    )
