"""Ops over the channel axis, which they take away: select, argmax.

They need no context in space. An op that adds a channel axis is not here (`onnx`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from napari_materialize.errors import OpError
from napari_materialize.geometry import Box
from napari_materialize.ops._axes import channel_axis, drop_axis, with_item, without
from napari_materialize.ops._base import Description, Op, never

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.arrays import Kind, Level

__all__ = ["Argmax", "Select"]


@dataclass(frozen=True, slots=True)
class Select(Op):
    """One channel; the channel axis is gone.

    Raises
    ------
    OpError
        If the channel is negative; in ``describe``, if the level has no channel axis or too few
        channels.

    Examples
    --------
    >>> from napari_materialize.arrays import Axis, Level
    >>> axes = (Axis("c", "channel"), Axis("y"), Axis("x"))
    >>> rgb = Level((3, 64, 64), "u1", (1, 64, 64), axes)
    >>> rgb.axes[0].name, Select(2).describe(rgb, "image").level.shape
    ('c', (64, 64))
    """

    name = "select"

    channel: int = field(metadata={"help": "which channel, counted from 0"})

    def __post_init__(self) -> None:
        if not isinstance(self.channel, int) or isinstance(self.channel, bool) or self.channel < 0:
            raise OpError(
                f"select: channel is counted from 0, got {self.channel!r}; take 0 or more"
            )

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe the level without its channel axis."""
        axis = channel_axis(level, "select")
        if self.channel >= level.shape[axis]:
            raise OpError(
                f"select: the image has {level.shape[axis]} channels, counted from 0, got channel "
                f"{self.channel}; take one of 0 to {level.shape[axis] - 1}"
            )
        limits = (0.0, 1.0) if kind == "mask" else None
        return Description(replace(drop_axis(level, axis), fill=0), kind, limits)

    def inputs(self, box: Box, level: Level) -> Box:
        """The same voxels of the one channel."""
        axis = channel_axis(level, "select")
        return Box(
            with_item(box.start, axis, self.channel), with_item(box.stop, axis, self.channel + 1)
        )

    def outputs(self, box: Box, level: Level) -> Box:
        """The same voxels, without the channel axis."""
        axis = channel_axis(level, "select")
        return Box(without(box.start, axis), without(box.stop, axis))

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Return the block, whose one channel is the asked one, without its channel axis."""
        return np.squeeze(block, axis=channel_axis(level, "select"))


@dataclass(frozen=True, slots=True)
class Argmax(Op):
    """The channel with the highest value; the channel axis is gone. Kind label.

    uint8, or uint16 for more than 256 channels. Of equal values the first channel wins; NaN
    counts as the highest, as in `numpy.argmax`.

    Examples
    --------
    >>> import numpy as np
    >>> from napari_materialize.arrays import Axis, Level
    >>> block = np.array([[[1, 5]], [[1, 7]]], "u1")
    >>> axes = (Axis("c", "channel"), Axis("y"), Axis("x"))
    >>> Argmax().compute(block, Level(block.shape, block.dtype, (1, 1, 2), axes))
    array([[0, 1]], dtype=uint8)
    """

    name = "argmax"

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe labels without the channel axis."""
        axis = channel_axis(level, "argmax")
        count = level.shape[axis]
        if count > 65536:
            raise OpError(f"argmax: at most 65536 channels, the image has {count}; leave it out")
        dtype = np.dtype("u1" if count <= 256 else "u2")
        return Description(
            replace(drop_axis(level, axis), dtype=dtype, fill=0), "label", (0.0, float(count - 1))
        )

    def inputs(self, box: Box, level: Level) -> Box:
        """The same voxels of all channels."""
        axis = channel_axis(level, "argmax")
        return Box(with_item(box.start, axis, 0), with_item(box.stop, axis, level.shape[axis]))

    def outputs(self, box: Box, level: Level) -> Box:
        """The same voxels, without the channel axis."""
        axis = channel_axis(level, "argmax")
        return Box(without(box.start, axis), without(box.stop, axis))

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block of channel numbers."""
        axis = channel_axis(level, "argmax")
        dtype = np.uint8 if level.shape[axis] <= 256 else np.uint16
        return np.argmax(block, axis=axis).astype(dtype)
