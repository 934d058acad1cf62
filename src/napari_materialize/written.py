"""What jobs have written of views, so that clients read it back instead of computing it again.

Owns which places are known, by the identity of the view and its level, and the stage that reads a
chunk from one. How a place is read, and what makes sure that it holds what was written, is the
job's business. Plain and unlocked, like the rooms that it stands beside.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from napari_materialize.ops import Abandoned
from napari_materialize.stages import SourceStage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy as np

    from napari_materialize.arrays import Kind, Level
    from napari_materialize.geometry import Box, Index
    from napari_materialize.stages import ChunkKey, Stage

__all__ = ["LEVELS", "PLACES", "Places", "WrittenChunks"]

PLACES, LEVELS = 32, 256
"""Places of a level, and levels of views, that are remembered: those written last."""


class WrittenChunks(Protocol):
    """Chunks of one level of a view, as a job has written them. Asked from any thread."""

    def holds(self, index: Index) -> bool:
        """Whether a chunk was written, as far as anybody knows."""

    def read(self, index: Index) -> np.ndarray:
        """Return a chunk's voxels, the very ones that were computed; else raise anything."""


@dataclass(eq=False)
class _Reread:
    """A source of one chunk: what was written of it, if that is still there."""

    made_by: Stage
    key: ChunkKey
    place: WrittenChunks
    name: str = "what was written"
    stable: bool = False
    kind: Kind = "image"
    location: str | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    gone: bool = False
    """Whether it was looked for in vain."""

    @property
    def identity(self) -> str:
        """Not the view's: how long reading takes says nothing of how long computing does."""
        return f"written of {self.made_by.identity}"

    @property
    def levels(self) -> tuple[Level, ...]:
        """The view's."""
        return self.made_by.levels

    def read(self, level: int, box: Box) -> np.ndarray:
        """Return the chunk, which is all that is asked for.

        Raises
        ------
        Abandoned
            If it is not there any more: then it is to be computed.
        """
        try:
            return self.place.read(self.key.chunk)
        except Exception as error:  # not a failure of the chunk, whatever it is: it can be computed
            self.gone = True
            raise Abandoned from error


class Places:
    """Where jobs have written chunks of views.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view(np.zeros((4, 4), "u1"), ops=["invert"], chunks=(2, 2))
    >>> class Shelf:
    ...     def holds(self, index):
    ...         return index == (0, 1)
    ...
    ...     def read(self, index):
    ...         return np.full((2, 2), 255, "u1")
    >>> places, made_by = Places(), view.stages[-1]
    >>> places.add(view.identity, 0, Shelf())
    >>> places.stage(made_by, view.key(0, (0, 0))) is made_by
    True
    >>> places.stage(made_by, view.key(0, (0, 1))).title
    "reading 'what was written'"
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], deque[WrittenChunks]] = {}

    def add(self, identity: str, level: int, place: WrittenChunks) -> None:
        """Take note of a place where chunks of a view's level are being written."""
        known = self._places.pop((identity, level), None) or deque(maxlen=PLACES)
        known.append(place)
        self._places[identity, level] = known
        if len(self._places) > LEVELS:
            del self._places[next(iter(self._places))]

    def stage(self, stage: Stage, key: ChunkKey) -> Stage:
        """Return who is to make a chunk: who reads it where it was written, or ``stage``."""
        for place in reversed(self._places.get((key.stage, key.level), ())):
            if place.holds(key.chunk):
                return SourceStage(_Reread(stage, key, place))
        return stage

    @staticmethod
    def otherwise(stage: Stage) -> Stage:
        """Return who is to make a chunk that was given up: who computes it, if reading failed."""
        source = stage.source if isinstance(stage, SourceStage) else None
        return source.made_by if isinstance(source, _Reread) and source.gone else stage
