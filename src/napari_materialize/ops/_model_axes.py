"""How a level's axes and a model's axes meet, and which voxels of one are which of the other.

Arithmetic on axes and boxes only: which of a level's axes the model sees, which it is run along,
where the channels it makes go, and what its output's grid is. It knows no model file and runs
nothing (`onnx`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from napari_materialize.arrays import Axis
from napari_materialize.errors import ModelError, OpError
from napari_materialize.geometry import Box
from napari_materialize.ops._axes import add_axis, drop_axis, space_axes, with_item, without

if TYPE_CHECKING:
    import numpy as np

    from napari_materialize.arrays import Level
    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_grid import AxisGrid, Tiling

__all__ = ["ModelAxes", "cell_of"]


def cell_of(grid: AxisGrid, chunk: int) -> int:
    """Return the input voxels that one chunk of the output is made of.

    It is the image's own chunk, rounded to whole output voxels where the output is coarser.
    """
    whole = grid.ratio.denominator
    return whole * max(1, round(chunk / whole))


@dataclass(frozen=True, slots=True)
class ModelAxes:
    """A level's axes as one model sees them."""

    level: Level
    """The input level."""

    channel: int | None
    """Position of the level's channel axis, all of whose channels the model takes."""

    space: Index
    """Positions of the space axes that the model sees, in the level's order."""

    made: int
    """Channels that come out."""

    @classmethod
    def of(cls, level: Level, rank: int, channels: int, made: int, place: str) -> ModelAxes:
        """Match a level with a model of ``rank`` space axes that takes ``channels``.

        Raises
        ------
        OpError
            If the level has fewer space axes than the model.
        ModelError
            If the level has another number of channels than the model takes.
        """
        space = space_axes(level)
        if len(space) < rank:
            names = ", ".join(level.axes[axis].name for axis in space) or "none"
            raise OpError(
                f"{place}: a {rank}D model needs {rank} space axes, the image has {names}; use a "
                f"{len(space)}D model"
            )
        position = next((i for i, axis in enumerate(level.axes) if axis.type == "channel"), None)
        have = 1 if position is None else level.shape[position]
        if have != channels:
            raise ModelError(
                f"{place}: takes {channels} channel{'s' * (channels != 1)}, the image has {have}; "
                + (
                    "take one with select first"
                    if channels == 1
                    else "open a source with as many, or use another model"
                )
            )
        return cls(level, position, space[len(space) - rank :], made)

    @property
    def lead(self) -> Index:
        """Positions of the axes that the model is run along, one run or one of a batch each."""
        return tuple(
            axis
            for axis in range(self.level.ndim)
            if axis not in self.space and axis != self.channel
        )

    @property
    def _added(self) -> int | None:
        """Where in the output the channels go: first, or right after a leading time axis."""
        if self.made == 1:
            return None
        kept = (
            without(self.level.axes, self.channel)
            if self.channel is not None
            else (self.level.axes)
        )
        return 1 if kept[0].type == "time" else 0

    def output(self, grids: tuple[AxisGrid, ...]) -> Level:
        """Return the output level, its dtype not yet set.

        An output voxel covers as much of the world as the input voxels it stands for, so its
        centre moves by half the difference.
        """
        level = self.level
        shape, chunks = list(level.shape), list(level.chunks)
        scale, translation = list(level.scale), list(level.translation)
        for axis, grid in zip(self.space, grids, strict=True):
            if grid.ratio != 1:
                shape[axis] = math.ceil(shape[axis] * grid.ratio)
                chunks[axis] = int(cell_of(grid, chunks[axis]) * grid.ratio)
                scale[axis] = level.scale[axis] / float(grid.ratio)
                translation[axis] += (scale[axis] - level.scale[axis]) / 2
        level = replace(
            level,
            shape=tuple(shape),
            chunks=tuple(chunks),
            scale=tuple(scale),
            translation=tuple(translation),
        )
        name = "c"
        if self.channel is not None:
            name = level.axes[self.channel].name
            level = drop_axis(level, self.channel)
        if self._added is None:
            return level
        taken = {axis.name for axis in level.axes}
        while name in taken:
            name += "_"
        return add_axis(level, self._added, Axis(name, "channel"), self.made)

    def spans(self, box: Box, grids: tuple[AxisGrid, ...]) -> list[tuple[int, int]]:
        """Return, per space axis, the input voxels that an output box stands for."""
        box = self._input_axes(box)
        return [
            grid.span(box.start[axis], box.stop[axis])
            for axis, grid in zip(self.space, grids, strict=True)
        ]

    def inputs(self, box: Box, tilings: tuple[Tiling, ...]) -> Box:
        """Return the input voxels of an output box: all channels of them, and whole groups."""
        grids = tuple(tiling.grid for tiling in tilings)
        spans = self.spans(box, grids)
        whole = [tiling.whole(*span) for tiling, span in zip(tilings, spans, strict=True)]
        return self._with_spans(self._input_axes(box), whole)

    def outputs(self, box: Box, grids: tuple[AxisGrid, ...]) -> Box:
        """Return the output voxels of an input box: all channels of them."""
        spans = [
            (grid.ceil(box.start[axis]), grid.ceil(box.stop[axis]))
            for axis, grid in zip(self.space, grids, strict=True)
        ]
        box = self._with_spans(box, spans)
        start, stop = box.start, box.stop
        if self.channel is not None:
            start, stop = without(start, self.channel), without(stop, self.channel)
        if self._added is not None:
            start = with_item(start, self._added, 0)
            stop = with_item(stop, self._added, self.made)
        return Box(start, stop)

    def reach(self, box: Box, tilings: tuple[Tiling, ...]) -> Box:
        """Return the input voxels of all the tiles that make an output box."""
        spans = self.spans(box, tuple(tiling.grid for tiling in tilings))
        far = [tiling.reach(*span) for tiling, span in zip(tilings, spans, strict=True)]
        return self._with_spans(self._input_axes(box), far)

    def _input_axes(self, box: Box) -> Box:
        """Return an output box with the input's axes: all its channels, the rest as it is."""
        start, stop = box.start, box.stop
        if self._added is not None:
            start, stop = without(start, self._added), without(stop, self._added)
        if self.channel is not None:
            count = self.level.shape[self.channel]
            start = with_item(start, self.channel, 0)
            stop = with_item(stop, self.channel, count)
        return Box(start, stop)

    def _with_spans(self, box: Box, spans: list[tuple[int, int]]) -> Box:
        start, stop = list(box.start), list(box.stop)
        for axis, (low, high) in zip(self.space, spans, strict=True):
            start[axis], stop[axis] = low, high
        return Box(tuple(start), tuple(stop))

    def spread(self, values: Index, rest: int) -> Index:
        """Return one number per axis of the level from one per axis that the model sees."""
        each = dict(zip(self.space, values, strict=True))
        return tuple(each.get(axis, rest) for axis in range(self.level.ndim))

    def to_model(self, block: np.ndarray) -> np.ndarray:
        """Return a block as (batch, channel, space...), a view of it where numpy can."""
        channel = () if self.channel is None else (self.channel,)
        moved = block.transpose((*self.lead, *channel, *self.space))
        inner = tuple(block.shape[axis] for axis in self.space)
        count = math.prod(block.shape[axis] for axis in self.lead)
        return moved.reshape((count, -1 if channel else 1, *inner))

    def from_model(self, made: np.ndarray, shape: Index) -> np.ndarray:
        """Return (batch, channel, space...) made of a block of ``shape`` with the output's axes."""
        lead = tuple(shape[axis] for axis in self.lead)
        result = made.reshape((*lead, *made.shape[1:]))
        order = [*self.lead, -1, *self.space]
        wanted: list[int] = sorted((*self.lead, *self.space))
        if self._added is None:
            result = result.squeeze(len(lead))
            order.remove(-1)
        else:
            wanted.insert(self._added, -1)
        return result.transpose([order.index(axis) for axis in wanted])

    def pick(self, made: np.ndarray, box: Box) -> np.ndarray:
        """Return the channels of an output box, of all that were made."""
        if self._added is None:
            return made
        cut = [slice(None)] * made.ndim
        cut[self._added] = slice(box.start[self._added], box.stop[self._added])
        return made[tuple(cut)]
