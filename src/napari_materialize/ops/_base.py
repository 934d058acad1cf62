"""What an op is: a function of a block, with a halo. Owns no op and no registry.

An op never sees a chunk, a neighbour, a thread or a file. It is told the level it works on and
is handed a block that already holds its halo; it hands back the block without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Box, Index

__all__ = ["Abandoned", "Description", "Op", "never"]


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


class Op(ABC):
    """A function of a block of voxels.

    Subclasses are frozen dataclasses whose fields are the op's parameters. All methods may be
    called from any thread, several at once.
    """

    name: ClassVar[str]
    """The name in the registry and in text, ``name:key=value``."""

    kept: ClassVar[bool] = False
    """Whether the op's output chunks are kept, so that the op ends a stage."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters as JSON values: enough to make the same op again in another process."""
        raise NotImplementedError

    @property
    def identity(self) -> str | None:
        """Text that is equal for ops that compute the same, or None if nobody can know.

        It holds the name, the parameters and, for a model, the digest of its bytes.
        """
        raise NotImplementedError

    @property
    def record(self) -> Mapping[str, Any]:
        """What a result says of this op: ``{"name", "parameters", ...}``, without paths of folders
        or secrets (a model by its file's name and sha256).
        """
        return {"name": self.name, "parameters": dict(self.parameters)}

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

    def inputs(self, box: Box, level: Level) -> Box:
        """The input voxels, without halo, that the output ``box`` is made of."""
        return box

    @abstractmethod
    def compute(
        self, block: np.ndarray, level: Level, abandoned: Callable[[], bool] = never
    ) -> np.ndarray:
        """Compute a block.

        Parameters
        ----------
        block : numpy.ndarray
            The voxels of ``inputs(box)`` grown by ``halo`` on every side, in ``level.dtype``;
            read-only. Voxels past the level's edge are filled in by the caller.
        level : Level
            The input level.
        abandoned : callable
            Returns True once nobody waits for the block any more; an op that takes long may look
            at it now and then and raise `Abandoned`.

        Returns
        -------
        numpy.ndarray
            The voxels of ``box``: the halo is gone. An op that adds a leading axis returns the
            whole of it.
        """
