"""The claims that a live layer holds, in groups whose newest members replace the older ones.

Owns which chunks claims are held on, what became of them, and how long a chunk takes. What a
picture needs is `reads`' to say. Knows neither napari nor Qt.
"""

from __future__ import annotations

import threading
import time
from dataclasses import astuple, dataclass
from enum import Enum
from typing import TYPE_CHECKING

from napari_materialize.cache import ChunkState
from napari_materialize.errors import EngineClosed, MaterializeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = ["AT_A_TIME", "LAST", "Counts", "Group", "Holding", "Place", "failure"]

LAST = 1_000_000
"""The priority of claims that come after every other client's."""

AT_A_TIME = 256
"""Chunks of one picture that are waited for at a time; the rest are asked for as these arrive."""

type Place = tuple[int, Index]
"""The level and the index of a chunk."""


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


class Holding:
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
        self.view = view
        self.engine = engine
        self.active: Callable[[], bool] = _never
        """Whether the layer is on show; where it is not, nothing is claimed."""
        self.on_news: Callable[[], None] = _nothing
        """Called when a chunk that is waited for has arrived or failed, in any thread."""
        self.news = 0
        """How many chunks have arrived or failed."""
        self.chunk_seconds: float | None = None
        """How long the canvas's quickest chunks took lately; None before the first."""
        self._quickest = float("inf")
        self._lock = threading.RLock()
        self._held: dict[Group, dict[Place, ChunkClaim]] = {group: {} for group in Group}
        self._left_out: dict[Group, bool] = dict.fromkeys(Group, False)
        self._failed: dict[Place, MaterializeError] = {}
        self._untold: list[MaterializeError] = []
        self._engine_over: Engine | None = None

    # ------------------------------------------------------------------ claims

    def hold(self, group: Group, level: int, wanted: Sequence[Index], priority: int = 0) -> None:
        """Hold claims on these chunks and no others of the group; make new ones in this order.

        Claims on chunks that are still wanted are kept. The others are given up first, so that
        what nobody wants any more does not start. A claim that failed is made again: that costs
        nothing, and finds the chunk after a retry.
        """
        with self._lock:
            held = self._held[group]
            places = {(level, index): None for index in wanted} if self.active() else {}
            kept = self._keep(group, places)
            missing = [place for place in places if place not in kept]
            room = AT_A_TIME - sum(not claim.done for claim in kept.values())
            while missing and room > 0:
                batch, missing = missing[:room], missing[room:]
                claims = self._claim(level, [index for _, index in batch], priority)
                if claims is None:
                    missing = []
                    break
                for place, claim in zip(batch, claims, strict=True):
                    kept[place] = claim
                    self._watch(group, place, claim, known=place in held)
                    room -= not claim.done
            self._left_out[group] = bool(missing)

    def keep_only(self, group: Group, level: int, wanted: Sequence[Index]) -> None:
        """Give up the group's claims on other chunks than these, and make no new ones."""
        with self._lock:
            self._keep(group, {(level, index): None for index in wanted})
            self._left_out[group] = False

    def _keep(self, group: Group, places: dict[Place, None]) -> dict[Place, ChunkClaim]:
        held = self._held[group]
        kept = {p: claim for p, claim in held.items() if p in places and not failure(claim)}
        self._held[group] = kept
        if group is Group.PICTURE and len(kept) < len(held):
            self._settle_pace()
        self.engine.release_all(c for place, c in reversed(held.items()) if place not in kept)
        return kept

    def _claim(self, level: int, wanted: list[Index], priority: int) -> list[ChunkClaim] | None:
        """Claim chunks; None if the engine is closed, which is told once."""
        try:
            return self.engine.claim_all(self.view, level, wanted, priority=priority)
        except EngineClosed as error:
            if self._engine_over is not self.engine:
                self._engine_over = self.engine
                self._tell(error)
            return None

    def _watch(self, group: Group, place: Place, claim: ChunkClaim, *, known: bool) -> None:
        """Hear of a claim's end. A failure that is already known is not told again."""
        if not claim.done:
            began = time.monotonic()
            canvas = group in (Group.PICTURE, Group.COARSE)
            claim.add_done_callback(lambda over: self._arrived(place, over, began, canvas))
            return
        error = failure(claim)
        if error is None:
            self._failed.pop(place, None)
        else:
            self._failed[place] = error
            if not known:
                self._tell(error)

    def release_all(self) -> None:
        """Give up every claim."""
        with self._lock:
            for group in Group:
                held, self._held[group] = self._held[group], {}
                self._left_out[group] = False
                self.engine.release_all(reversed(held.values()))

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
        with self._lock:
            return dict(self._held[group])

    def over(self, group: Group) -> bool:
        """Whether nothing that was asked for in a group is still to come."""
        with self._lock:
            return not self._left_out[group] and all(c.done for c in self._held[group].values())

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked for is still to come."""
        with self._lock:
            return all(map(self.over, Group))

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

    def _arrived(self, place: Place, claim: ChunkClaim, began: float, canvas: bool) -> None:
        """Take note that a claim is over; in an engine's thread, or inside `hold`."""
        error = failure(claim)
        with self._lock:
            # of another view by now, or nobody's
            if claim.released or claim.key.stage != self.view.identity:
                return
            if error is not None:
                self._failed[place] = error
                self._untold.append(error)
            else:
                self._failed.pop(place, None)
                if canvas:
                    self._quickest = min(self._quickest, time.monotonic() - began)
            self.news += 1
        self.on_news()

    def _settle_pace(self) -> None:
        """Learn from a picture that is over, or given up, how long a chunk takes."""
        if self._quickest < float("inf"):
            before = self._quickest if self.chunk_seconds is None else self.chunk_seconds
            self.chunk_seconds = (before + self._quickest) / 2
            self._quickest = float("inf")

    def _tell(self, error: MaterializeError) -> None:
        self._untold.append(error)
        self.news += 1
        self.on_news()

    def take_failures(self) -> list[MaterializeError]:
        """Return the failures since the last time this was asked."""
        with self._lock:
            failures, self._untold = self._untold, []
        return failures


def failure(claim: ChunkClaim) -> MaterializeError | None:
    """Return why a claim failed; None if it did not, or not yet."""
    if not claim.done:
        return None
    try:
        claim.result()
    except MaterializeError as error:
        return error
    return None


def _never() -> bool:
    return False


def _nothing() -> None:
    return None
