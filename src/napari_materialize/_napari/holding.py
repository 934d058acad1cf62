"""The claims that a live layer holds, and what became of them, for the canvas and for the widget.

Owns what a layer holds claims for, which of its chunks failed, and how long a chunk takes. How
claims are made and replaced is in `looking`, what a picture needs in `reads`. Knows neither napari
nor Qt.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import Enum
from typing import TYPE_CHECKING

from napari_materialize.cache import ChunkState
from napari_materialize.looking import Held

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.engine import Engine
    from napari_materialize.errors import MaterializeError
    from napari_materialize.geometry import Index
    from napari_materialize.looking import Place
    from napari_materialize.view import View

__all__ = ["Counts", "Group", "Holding"]


class Group(Enum):
    """What a layer holds claims for; those of one group replace each other."""

    COARSE = "a coarser picture, ahead of the canvas"
    PICTURE = "the canvas"
    THUMBNAIL = "the thumbnail"
    SAMPLE = "contrast limits"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many chunks of what is on the canvas are in which state."""

    computing: int = 0
    """A slot computes them, or a reader reads them."""
    waiting: int = 0
    """They are asked for, or are about to be."""
    ready: int = 0
    """They are there."""
    failed: int = 0
    """They failed, on the canvas or before it moved on."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class Holding(Held):
    """The claims of one layer on chunks of one view.

    All methods may be called from any thread.

    Parameters
    ----------
    view : View
        Whose chunks.
    engine : Engine
        Who computes them.
    """

    def __init__(self, view: View, engine: Engine) -> None:
        super().__init__(view, engine)
        self._held = {group: {} for group in Group}
        self.active: Callable[[], bool] = _never
        """Whether the layer is on show; where it is not, nothing is claimed."""
        self.news = 0
        """How many chunks have arrived or failed."""
        self.chunk_seconds: float | None = None
        """How long the canvas's quickest chunks took lately; None before the first."""
        self._quickest = float("inf")
        self._failed: dict[Place, MaterializeError] = {}

    # ------------------------------------------------------------------ claims

    def hold(self, group: Hashable, level: int, wanted: Sequence[Index], priority: int = 0) -> None:
        """Hold claims on these chunks and no others of the group, if the layer is on show."""
        super().hold(group, level, wanted if self.active() else (), priority)

    def keep_only(
        self, group: Hashable, level: int, wanted: Sequence[Index]
    ) -> dict[Place, ChunkClaim]:
        """Give up the group's claims on other chunks than these; return those that are kept."""
        with self._lock:
            before = len(self._held[group])
            kept = super().keep_only(group, level, wanted)
            if group is Group.PICTURE and len(kept) < before:
                self._settle_pace()
            return kept

    def change(self, view: View) -> None:
        """Give up every claim, forget the failures, and go on with another view."""
        with self._lock:
            self.release_all()
            self.view = view
            self._failed.clear()
            self._untold.clear()

    # ------------------------------------------------------------------ looking

    def held(self, group: Group) -> dict[Place, ChunkClaim]:
        """Return the claims of a group by (level, chunk), in the order they were made."""
        return self.claims(group)

    def counts(self) -> Counts:
        """Count what is on the canvas, a coarser picture that goes ahead of it included."""
        claims = self.held(Group.PICTURE) | self.held(Group.COARSE)
        waiting = [place for place, claim in claims.items() if not claim.done]
        states = [self.engine.state(self.view, *place) for place in waiting]
        computing = states.count(ChunkState.LOADING)
        failed = self.failed
        ready = len(claims) - len(waiting) - len(failed.keys() & claims.keys())
        return Counts(computing, len(waiting) - computing, ready, len(failed))

    def forget_failures(self) -> list[Place]:
        """Take failures for mended, until they are met again; return where they were."""
        with self._lock:
            places = list(self._failed)
            self._failed.clear()
            return places

    @property
    def failed(self) -> dict[Place, MaterializeError]:
        """The chunks of the view that failed while this layer waited for them, and why."""
        with self._lock:
            return dict(self._failed)

    # ------------------------------------------------------------------ news

    def _note(
        self, group: Hashable, place: Place, error: MaterializeError | None, seconds: float | None
    ) -> None:
        if error is not None:
            self._failed[place] = error
        else:
            self._failed.pop(place, None)
            if seconds is not None and group in (Group.PICTURE, Group.COARSE):
                self._quickest = min(self._quickest, seconds)
        self.news += seconds is not None

    def _settle_pace(self) -> None:
        """Learn from a picture that is over, or given up, how long a chunk takes."""
        if self._quickest < float("inf"):
            before = self._quickest if self.chunk_seconds is None else self.chunk_seconds
            self.chunk_seconds = (before + self._quickest) / 2
            self._quickest = float("inf")

    def _tell(self, error: MaterializeError) -> None:
        self.news += 1
        super()._tell(error)


def _never() -> bool:
    return False
