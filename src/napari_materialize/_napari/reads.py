"""What a live layer reads of its view, and the claims that its reads turn into.

Owns which chunks a layer holds claims on: each picture replaces the claims of the picture before,
and keeps those on chunks it still needs. Knows neither napari nor Qt, and does not decide when to
repaint (`repaint`). What a picture is made of while chunks are missing is in `picture`, who asks
for one in `asking`.
"""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from napari_materialize._napari.asking import Asker
from napari_materialize._napari.picture import Axes, compose, covered, nearest_first
from napari_materialize.errors import EngineClosed, MaterializeError
from napari_materialize.ops import Select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from napari_materialize._napari.asking import Asking
    from napari_materialize.claims import ChunkClaim
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = ["LAST", "Group", "LayerReads"]

LAST = 1_000_000
"""The priority of claims that come after every other client's."""

THUMBNAIL_CHUNKS = 4
"""A thumbnail whose plane has more chunks than these orders none, and shows what is there."""

AT_A_TIME = 256
"""Chunks of one picture that are waited for at a time; the rest are asked for as these arrive."""

type Place = tuple[int, Index]


class Group(Enum):
    """What a layer holds claims for; those of one group replace each other."""

    PICTURE = "the canvas"
    THUMBNAIL = "the thumbnail"
    SAMPLE = "contrast limits"


class LayerReads:
    """What one layer reads of one view, and the claims it holds for that.

    All methods may be called from any thread: with asynchronous slicing napari reads in a thread
    of its own.

    Parameters
    ----------
    view : View
        What is shown.
    engine : Engine
        Who computes it.
    channel : (int, int), optional
        The axis and the place along it that the layer shows alone; all of the view if left out.
    """

    def __init__(self, view: View, engine: Engine, channel: tuple[int, int] | None = None) -> None:
        self.view = view
        self.engine = engine
        self.channel = channel
        self.active: Callable[[], bool] = _never
        """Whether the layer is on show; where it is not, reads claim nothing."""
        self.on_news: Callable[[], None] = _nothing
        """Called when a chunk that is waited for has arrived or failed, in any thread."""
        self.seconds = 0.0
        """How long the last picture took to put together."""
        self.complete = True
        """Whether the last picture was made of its own level's voxels alone."""
        self.owner: object = None
        """Whoever repaints the layer (`live`); it lives as long as the layer's data."""
        self._lock = threading.RLock()
        self._held: dict[Group, dict[Place, ChunkClaim]] = {group: {} for group in Group}
        self._left_out: dict[Group, bool] = dict.fromkeys(Group, False)
        self._failures: list[MaterializeError] = []
        self._engine_over: Engine | None = None

    # ------------------------------------------------------------------ reading

    @property
    def shown(self) -> list[int]:
        """The view's axes that the layer has, in order."""
        dropped = None if self.channel is None else self.channel[0]
        return [axis for axis in range(self.view.levels[0].ndim) if axis != dropped]

    @property
    def computed(self) -> View | None:
        """What the layer shows, as a view to go on from; None if that is no view."""
        if self.channel is None:
            return self.view
        axis, place = self.channel
        if self.view.levels[0].axes[axis].type != "channel":
            return None
        return self.view.then([Select(place)])

    def whole(self, level: int) -> Axes:
        """Return the axes of a read of all that the layer shows of a level."""
        axes: list[range | int] = [range(size) for size in self.view.levels[level].shape]
        if self.channel is not None:
            axes[self.channel[0]] = self.channel[1]
        return tuple(axes)

    def glance(self, level: int, axes: Axes, asking: Asking) -> np.ndarray:
        """Return what is there of a read, at once; claim what is missing if it is for a view."""
        began, described = time.monotonic(), self.view.levels[level]
        if asking.asker is Asker.PICTURE:
            displayed = [self.shown[axis] for axis in asking.displayed]
            wanted = nearest_first(described, axes, displayed or self.shown)
            self.hold(Group.PICTURE, level, wanted)
        elif asking.asker is Asker.THUMBNAIL:
            few = np.prod([len(row) for row in covered(described, axes)]) <= THUMBNAIL_CHUNKS
            wanted = nearest_first(described, axes, self.shown) if few else []
            self.hold(Group.THUMBNAIL, level, wanted, priority=LAST)
        picture, complete = compose(self.view.levels, level, axes, self._ready())
        if asking.asker is Asker.PICTURE:
            self.complete, self.seconds = complete, time.monotonic() - began
        return picture

    def exact(self, level: int, axes: Axes) -> np.ndarray:
        """Return a read when all of it is there.

        Raises
        ------
        ChunkError
            If a chunk could not be read or computed.
        EngineClosed
            If the engine is closed.
        """
        key = tuple(_as_slice(axis) if isinstance(axis, range) else axis for axis in axes)
        return self.engine.array(self.view, level).lazy[key].result()

    def _ready(self) -> Callable[[int, Index], np.ndarray | None]:
        """Return what finds chunks that are there: by the claims held, or by asking the engine."""
        claims: dict[Place, ChunkClaim] = {}
        for group in Group:
            claims |= self.held(group)

        def ready(level: int, index: Index) -> np.ndarray | None:
            claim = claims.get((level, index))
            if claim is None:
                return self.engine.peek(self.view, level, index)
            return claim.result() if claim.done and _failure(claim) is None else None

        return ready

    # ------------------------------------------------------------------ claims

    def hold(self, group: Group, level: int, wanted: Sequence[Index], priority: int = 0) -> None:
        """Hold claims on these chunks and no others of the group; make new ones in this order.

        Claims on chunks that are still wanted are kept. The others are given up first, so that
        what nobody wants any more does not start. A claim that failed is made again: that costs
        nothing, and finds the chunk after a retry.
        """
        with self._lock:
            places = {(level, index): None for index in wanted} if self.active() else {}
            held = self._held[group]
            kept = {p: claim for p, claim in held.items() if p in places and not _failure(claim)}
            self._held[group] = kept
            self.engine.release_all(
                claim for place, claim in reversed(held.items()) if place not in kept
            )
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
                    self._watch(claim, known=place in held)
                    room -= not claim.done
            self._left_out[group] = bool(missing)

    def _claim(self, level: int, wanted: list[Index], priority: int) -> list[ChunkClaim] | None:
        """Claim chunks; None if the engine is closed, which is told once."""
        try:
            return self.engine.claim_all(self.view, level, wanted, priority=priority)
        except EngineClosed as error:
            if self._engine_over is not self.engine:
                self._engine_over = self.engine
                self._tell(error)
            return None

    def _watch(self, claim: ChunkClaim, *, known: bool) -> None:
        """Hear of a claim's end. A failure that is already known is not told again."""
        if not claim.done:
            claim.add_done_callback(self._arrived)
        elif (failure := _failure(claim)) is not None and not known:
            self._tell(failure)

    def release_all(self) -> None:
        """Give up every claim."""
        with self._lock:
            for group in Group:
                held, self._held[group] = self._held[group], {}
                self._left_out[group] = False
                self.engine.release_all(reversed(held.values()))

    def held(self, group: Group) -> dict[Place, ChunkClaim]:
        """Return the claims of a group by (level, chunk), in the order they were made."""
        with self._lock:
            return dict(self._held[group])

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked for is still to come."""
        with self._lock:
            return not any(self._left_out.values()) and all(
                claim.done for held in self._held.values() for claim in held.values()
            )

    # ------------------------------------------------------------------ news

    def _arrived(self, claim: ChunkClaim) -> None:
        """Take note that a claim is over; in an engine's thread, or inside `hold`."""
        if claim.released:
            return
        error = _failure(claim)
        if error is not None:
            self._failures.append(error)
        self.on_news()

    def _tell(self, error: MaterializeError) -> None:
        self._failures.append(error)
        self.on_news()

    def take_failures(self) -> list[MaterializeError]:
        """Return the failures since the last time this was asked."""
        taken = len(self._failures)
        failures = self._failures[:taken]
        del self._failures[:taken]
        return failures

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerReads:
        """Return reads of the same view for another layer, which holds claims of its own."""
        copy = LayerReads(self.view, self.engine, self.channel)
        memo[id(self)] = copy
        return copy


def _as_slice(axis: range) -> slice:
    """Return the slice that selects what a range counts."""
    if not axis:
        return slice(0, 0)
    return slice(axis.start, axis.stop if axis.stop >= 0 else None, axis.step)


def _failure(claim: ChunkClaim) -> MaterializeError | None:
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
