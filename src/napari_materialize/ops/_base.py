"""What an op is: a function of a block, with a halo. Owns no op and no registry.

An op never sees a chunk, a neighbour, a thread or a file. It is told the level it works on and
is handed a block that already holds its halo; it hands back the block without it.

How a caller (the view) gets the voxels ``box`` of an op's output, exactly::

    op = op.settle(voxels)                        # once, when it is put in a view
    op = op.fit(level, kind)                      # once per level, when the chain is built
    need = op.reach(box, level)                   # voxels of `level`, perhaps past its edges
    block = read(need)                            # past the edges: by the view's boundary rule
    voxels = op.run(block, box, level, abandoned) # exactly `box`, nothing to crop

`Op.reach` is ``inputs(box)`` grown by ``halo`` and then rounded out to whole multiples of
``align``; `Op.run` is ``compute`` followed by cutting ``box`` out of what `Op.outputs` says was
made. Because the multiples are counted from voxel 0 of the level, and never from where a block
happens to begin, the result does not depend on how a level was cut into blocks.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from napari_materialize.errors import OpError
from napari_materialize.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Index

__all__ = ["Abandoned", "Description", "Op", "Voxels", "never"]


class Abandoned(Exception):
    """Raised inside `Op.compute` when it notices that nobody waits for the block any more."""


def never() -> bool:
    """Return False: somebody waits."""
    return False


@dataclass(frozen=True, slots=True)
class Description:
    """What comes out of an op, as far as it is known before anything is computed."""

    level: Level
    """The output level: shape, dtype, chunks, axes, scale, translation."""

    kind: Kind
    """What the output's voxels mean."""

    limits: tuple[float, float] | None = field(default=None)
    """Lowest and highest value the output can have, where the op knows; for display."""


class Voxels(Protocol):
    """What goes into an op, to be looked at before anything is computed."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels, finest first."""

    @property
    def kind(self) -> Kind:
        """What the voxels mean."""

    def look(self, level: int, box: Box) -> np.ndarray:
        """Return the voxels of a box of a level, computed here and now."""


class Op(ABC):
    """A function of a block of voxels.

    Subclasses are frozen dataclasses whose fields (those with ``init``) are the op's parameters. In
    a field's metadata, ``help`` is the line a form or a listing shows, and ``name`` the keyword
    where it cannot be the field's own. All methods may be called from any thread, several at once.
    """

    __slots__ = ()

    name: str
    """The name in the registry and in text, ``name:key=value``; set on the class."""

    kept: ClassVar[bool] = False
    """Whether the op's output chunks are kept, so that the op ends a stage."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters as JSON values: enough to make the same op again in another process."""
        return {
            each.metadata.get("name", each.name): _as_json(getattr(self, each.name))
            for each in dataclasses.fields(self)  # type: ignore[arg-type]  # ops are dataclasses
            if each.init
        }

    @property
    def identity(self) -> str | None:
        """Text that is equal for ops that compute the same, or None if nobody can know.

        It holds the name, the parameters and, for a model, the digest of its bytes.
        """
        return json.dumps([self.name, dict(self.parameters)], sort_keys=True)

    @property
    def record(self) -> Mapping[str, Any]:
        """What a result says of this op: ``{"name", "parameters", ...}``, without paths of folders
        or secrets (a model by its file's name and sha256).
        """
        return {"name": self.name, "parameters": dict(self.parameters)}

    @property
    def voxel_size(self) -> tuple[float, ...] | None:
        """The size of the only voxels the op works on, one number per space axis; None for any."""
        return None

    def settle(self, voxels: Voxels) -> Op:
        """Return the op with what it has to find out from the image found out; mostly itself.

        Called once, before ``fit``, when the op is put in a view.

        Parameters
        ----------
        voxels : Voxels
            What goes into the op, to be looked at.
        """
        return self

    def fit(self, level: Level, kind: Kind) -> Op:
        """Return the op as it runs on ``level`` of ``kind``: itself, unless it must know them.

        Called once per level before ``describe``; ``identity``, ``parameters`` and ``record``
        are those of the op that was fitted.
        """
        return self

    @abstractmethod
    def describe(self, level: Level, kind: Kind) -> Description:
        """Say what comes out when ``level`` goes in.

        Raises
        ------
        OpError
            If the op does not fit the level: too few axes, no channel axis, a wrong dtype.
        """

    def halo(self, level: Level) -> Index:
        """Voxels of context the op needs on both sides of each axis of its input ``level``."""
        return (0,) * level.ndim

    def align(self, level: Level) -> Index:
        """Multiples, along each axis of ``level``, on which a block must begin and end.

        Counted from voxel 0 of the level, the halo included. A U-Net that halves its input three
        times says 8 along its axes.
        """
        return (1,) * level.ndim

    def inputs(self, box: Box, level: Level) -> Box:
        """The input voxels, without halo, that the output ``box`` is made of."""
        return box

    def outputs(self, box: Box, level: Level) -> Box:
        """The output voxels that ``compute`` makes of the input ``box``, given without halo."""
        return box

    @abstractmethod
    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block.

        Parameters
        ----------
        block : numpy.ndarray
            The voxels of ``reach(box)``: ``inputs(box)`` grown by ``halo`` on every side and
            rounded out to ``align``, in ``level.dtype``; read-only. Voxels past the level's edge
            are filled in by the caller.
        level : Level
            The input level.
        abandoned : callable
            Returns True once nobody waits for the block any more; an op that takes long may look
            at it now and then and raise `Abandoned`.

        Returns
        -------
        numpy.ndarray
            The block without its halo. An op that adds a leading axis returns the whole of it.
            What was added to reach ``align``, and channels outside the box, are still there:
            `run` cuts them off.
        """

    def reach(self, box: Box, level: Level) -> Box:
        """The voxels of ``level`` that ``compute`` is handed to make the output ``box``.

        Examples
        --------
        >>> from napari_materialize.arrays import Level
        >>> from napari_materialize.ops import Gaussian
        >>> level = Level((64, 64), "u1", (16, 16))
        >>> Gaussian(1.0).reach(Box((0, 16), (16, 32)), level)
        Box(start=(-4, 12), stop=(20, 36))
        """
        halo, steps = self.halo(level), self.align(level)
        need = self.inputs(box, level)
        if any(halo):
            need = need.grow(halo)
        if max(steps) == 1:
            return need
        return Box(
            tuple(low // step * step for low, step in zip(need.start, steps, strict=True)),
            tuple(-(-high // step) * step for high, step in zip(need.stop, steps, strict=True)),
        )

    def effort(self, box: Box, level: Level) -> float:
        """How much work the output ``box`` is, in voxels that it is handed; for estimates.

        An op that does less work on its halo than on what is kept says so here.
        """
        return self.reach(box, level).size

    def run(
        self, block: np.ndarray, box: Box, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute exactly the output voxels of ``box`` from the block of ``reach(box)``.

        Parameters
        ----------
        block : numpy.ndarray
            The voxels of ``reach(box, level)``, in ``level.dtype``; not written to.
        box : Box
            In voxels of the output.
        level : Level
            The input level.
        abandoned : callable
            Handed on to ``compute``.

        Raises
        ------
        OpError
            If ``compute`` returned another shape than it promised.
        Abandoned
            If the op noticed that nobody waits any more.
        """
        inner, halo = self.reach(box, level), self.halo(level)
        if any(halo):
            inner = inner.grow(tuple(-size for size in halo))
        made = self.outputs(inner, level)
        result = self.compute(block, level, abandoned)
        if result.shape != made.shape:
            raise OpError(
                f"op {self.name}: a block of {block.shape} must become {made.shape}, but became "
                f"{result.shape}; mend the op"
            )
        return result if box == made else result[box.relative_to(made.start).slices]


def _as_json(value: Any) -> Any:
    """Turn a parameter into what JSON can hold: tuples into lists, paths into text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [_as_json(item) for item in value] if isinstance(value, tuple) else str(value)
