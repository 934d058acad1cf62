"""The op that runs an ONNX model.

Owns what the op promises of a model: which voxels it needs for a box, what comes out, and that the
result does not depend on where a box or a block begins. What the model is, and what was found out
of it, is `_model_op`'s business.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from napari_materialize.geometry import Box
from napari_materialize.ops._base import Description, never
from napari_materialize.ops._model_axes import ModelAxes
from napari_materialize.ops._model_grid import Tiling
from napari_materialize.ops._model_op import ModelOp
from napari_materialize.ops._model_scale import scaling_for
from napari_materialize.ops._model_tiles import Tiles, tilings_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index
    from napari_materialize.ops._model_scale import Constants
    from napari_materialize.ops._model_trimmed import Trimmed

__all__ = ["Onnx"]

_UNIT_RANGE = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
"""Operators whose output lies in 0..1."""


class Onnx(ModelOp):
    """An ONNX model of one image, run on tiles with a halo; its output chunks are kept.

    What the model says of itself, and what a description beside it says, fills in whatever is
    not given here; what nobody says is found out by trying the model on small blocks of zeros
    when the op is made: the axes of its input and output, the sides it takes, its stride, and the
    grid of its output, which may be coarser, finer or smaller than its input. A model that cannot
    work is refused then, before anything is created.

    A 2D model runs plane by plane on data with more axes, several planes at once where its batch
    axis is free. It takes all channels of the image, and one where the image has no channel axis.
    Channels that it makes come first (after a leading time axis), one chunk each; a single one
    adds no axis.

    Parameters
    ----------
    model : Path
        The ``.onnx`` file, or a folder that holds one with its description.
    halo : int, tuple of int or "auto", optional
        Voxels of context on each side: one number, or one per space axis of the model. Enough of
        them make every block equal a run over the whole level; too few leave seams. ``auto`` (and
        left out, where no description says it): measured once per model on the source's voxels.
    normalise : str
        ``auto`` (what a description says, else none), ``none``, ``scale`` (the dtype's range to
        0..1), ``minmax``, ``percentile:low,high`` or ``zscore``: ``(v - shift) / scale``, whose
        constants are taken once for the level. A model of integers gets 0..1 as its dtype's range.
        Values are cast to the model's dtype rounded and saturated.
    constants : tuple of float, optional
        Mean and standard deviation for ``zscore``, lowest and highest value for the others,
        instead of taking them from the level.
    after : str
        ``auto`` (what a description says, else none), ``none``, ``sigmoid``, ``softmax``,
        ``argmax``, ``threshold:0.5`` (1 where ``v >= 0.5``), ``above:0`` (where ``v > 0``),
        ``cast:uint8``, several joined by ``+``.
    input_voxel_size : float or tuple of float, optional
        The model runs on voxels of this size, in the image's unit.
    multiple : int or tuple of int, optional
        The stride: tiles begin on multiples of this, from voxel 0 of the level on, and have such
        sides. If left out, what the graph says and trial and measurement confirm.
    tile : int or tuple of int, optional
        The sides of every tile; if left out, the model's fixed ones, or whatever is asked for.
    batch : int, optional
        Tiles or planes run in one call, where the model's batch axis is free.
    output, input : str, optional
        Names, where the model has several.
    layout : str, optional
        The axes of the model's input, as in ``bcyx`` or ``byxc``, where the guess is wrong.
    allow_tile_dependent : bool
        Run a model whose output depends on the whole tile: one tile per chunk, with seams.
    device : str
        ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:1`` (not run by our tests).
    require_device : bool
        Whether a device that is not there is refused instead of said.
    threads : int
        Threads in one call of the model; slots times threads should be the cores.
    description : str
        The description's file; ``auto`` for one beside the model, ``none`` to ignore it.

    Raises
    ------
    ModelError
        If the file is missing, damaged, refers to files outside its folder, cannot be run by
        onnxruntime, is no model of one image, or depends on the whole tile.
    OpError
        If a parameter is wrong.

    Examples
    --------
    >>> from napari_materialize import samples
    >>> op = Onnx(samples.detector_path(), halo=samples.DETECTOR_HALO)
    >>> from napari_materialize.arrays import Level
    >>> level = op.describe(Level((64, 512, 512), "u1", (32, 64, 64)), "image").level
    >>> level.shape, level.chunks, level.dtype
    ((2, 64, 512, 512), (1, 32, 64, 64), dtype('float32'))
    """

    __slots__ = ()

    def _axes(self, level: Level) -> ModelAxes:
        """Match the axes of ``level`` with the model's."""
        ports = self._ports
        made = self._after.describe(ports.made, ports.gives, "image", None)[0]
        return ModelAxes.of(level, ports.rank, ports.channels, made, self._runtime.place)

    def _tilings(self, axes: ModelAxes) -> tuple[Tiling, ...]:
        """Return how the level is cut into tiles along the axes the model sees."""
        grids, margin = self._ports.grid, self._margin
        alone = self._found is not None and self._found.context.tile_dependent
        return tilings_for(axes, grids, margin, self._sides(grids), alone=alone)

    def halo(self, level: Level) -> Index:
        """Return the halo along the axes that the model sees, 0 along others."""
        return self._axes(level).spread(self._margin, 0)

    def align(self, level: Level) -> Index:
        """Return the stride along the axes that the model sees, 1 along others."""
        return self._axes(level).spread(tuple(axis.stride for axis in self._ports.grid), 1)

    def inputs(self, box: Box, level: Level) -> Box:
        """The voxels that a box stands for, of all the channels of the input.

        Where tiles have fixed sides, of all the chunks that one tile makes.
        """
        axes = self._axes(level)
        return axes.inputs(box, self._tilings(axes))

    def outputs(self, box: Box, level: Level) -> Box:
        """The voxels that come of a box, of all the channels that the model makes."""
        return self._axes(level).outputs(box, self._ports.grid)

    def reach(self, box: Box, level: Level) -> Box:
        """The voxels of all the tiles that make the output ``box``."""
        axes = self._axes(level)
        return axes.reach(box, self._tilings(axes))

    def effort(self, box: Box, level: Level) -> float:
        """Voxels run through the model for the output ``box``, tile by tile, in voxels of the model
        as it came: what is cut off its margins counts as little as it costs.
        """
        axes = self._axes(level)
        tilings = self._tilings(axes)
        spans = axes.spans(box, self._ports.grid)
        cells = [list(tiling.cells(*span)) for tiling, span in zip(tilings, spans, strict=True)]
        sides = tuple(each[0].side for each in cells)
        slim = self._slim(tilings)
        one = math.prod(sides) if slim is None else slim.effort(sides)
        reach = axes.reach(box, tilings).shape
        planes = math.prod(n for axis, n in enumerate(reach) if axis not in axes.space)
        return planes * math.prod(map(len, cells)) * one

    def describe(self, level: Level, kind: Kind) -> Description:
        """Describe an image in the model's dtype, with its channels first if it makes several.

        Raises
        ------
        OpError
            If the level has fewer space axes than the model, or cannot be normalised so.
        ModelError
            If the level has another number of channels than the model takes.
        """
        ports = self._ports
        if not self._normalisation.measured and self.constants is None:
            self._normalisation.of_dtype(level.dtype)
        mask = ports.gives.kind == "b"
        unit = mask or self.file.graph.operator(ports.output) in _UNIT_RANGE
        _, dtype, kind, limits = self._after.describe(
            ports.made, ports.gives, "mask" if mask else "image", (0.0, 1.0) if unit else None
        )
        made = replace(self._axes(level).output(ports.grid), dtype=dtype, fill=0)
        return Description(made, kind, limits)

    def scaling(self, level: Level) -> Constants:
        """Return the shift and the scale that a level's voxels are normalised with.

        Raises
        ------
        OpError
            If they have to be taken from a level that nobody showed (see ``settle``).
        """
        return scaling_for(
            level, self._normalisation, self.constants, self._taken, self._runtime.place
        )

    def run(
        self, block: np.ndarray, box: Box, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Run the model on the tiles that make the output ``box``; see `Op.run`.

        Raises
        ------
        Abandoned
            If, between two calls of the model, nobody waits any more.
        ModelError
            If the model fails on a tile, or makes another shape of it than it did of others.
        """
        axes = self._axes(level)
        tilings = self._tilings(axes)
        start = axes.reach(box, tilings).start
        return self._tiles(axes, tilings).run(block, start, box, abandoned)

    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Run the model on a block that begins on its grid, and return what its halo leaves."""
        axes = self._axes(level)
        free = tuple(
            Tiling(axis, halo) for axis, halo in zip(self._ports.grid, self._margin, strict=True)
        )
        inner = Box.whole(block.shape).grow(tuple(-n for n in axes.spread(self._margin, 0)))
        box = axes.outputs(inner, self._ports.grid)
        return self._tiles(axes, free).run(block, (0,) * block.ndim, box, abandoned)

    def _tiles(self, axes: ModelAxes, tilings: tuple[Tiling, ...]) -> Tiles:
        scaling, slim = self.scaling(axes.level), self._slim(tilings)
        runner, ports = (self._runtime, self._ports) if slim is None else (slim.runtime, slim.ports)
        return Tiles(runner, ports, axes, tilings, scaling, self._after, self.batch)

    def _slim(self, tilings: tuple[Tiling, ...]) -> Trimmed | None:
        """Return the trimmed model, where every tile has the halo that it was trimmed by."""
        return self._trimmed if all(tiling.has_halo for tiling in tilings) else None
