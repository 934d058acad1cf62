"""What a live layer reads of its view, and which claims its reads turn into.

Owns what a picture needs: each picture replaces the claims of the picture before and keeps those on
chunks it still needs. Knows neither napari nor Qt, and does not decide when to repaint (`repaint`).
The claims themselves are in `holding`, what a picture is made of while chunks are missing in
`picture`, who asks for one in `asking`, and when a picture that flies by is not asked for in
`pacing`.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from napari_materialize._napari.asking import Asker
from napari_materialize._napari.holding import Counts, Group, Holding
from napari_materialize._napari.pacing import Moving
from napari_materialize.cache import ChunkState
from napari_materialize.looking import (
    LAST,
    Axes,
    compose,
    covered,
    covering,
    nearest_first,
)
from napari_materialize.ops import Select

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from napari_materialize._napari.asking import Asking
    from napari_materialize.engine import Engine
    from napari_materialize.errors import MaterializeError
    from napari_materialize.geometry import Index
    from napari_materialize.looking import Place
    from napari_materialize.view import View

__all__ = ["Group", "LayerReads"]

THUMBNAIL_CHUNKS = 4
"""A thumbnail whose plane has more chunks than these orders none, and shows what is there."""

COARSE_SHARE = 8
"""How many missing chunks of the canvas there are for each coarser one that goes ahead of them."""

ENOUGH = 1024
"""Chunks of the canvas that are looked at to find out whether a coarser picture pays."""

A_READ = 0.1
"""Seconds that background work holds back at most for a picture that is asked for."""

FIRST = -1
"""The priority of a coarser picture: ahead of the finest chunks."""


class _Wish(NamedTuple):
    """A picture that is asked for once nothing moves any more."""

    level: int
    wanted: Sequence[Index]


class _Picture(NamedTuple):
    """A picture that was just read; napari reads the coarsest level's again, as a thumbnail."""

    of: View
    level: int
    axes: Axes
    voxels: np.ndarray


class LayerReads(Holding):
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
    clock : callable
        Seconds that never go back, to tell a picture that is passed from one that is looked at.
    """

    def __init__(
        self,
        view: View,
        engine: Engine,
        channel: tuple[int, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(view, engine)
        self._clock = clock
        self.channel = channel
        self.on_pause: Callable[[float], None] | None = None
        """Told to call `go_on` after so many seconds, in any thread; None if nobody would."""
        self.seconds = 0.0
        """How long the last picture took to put together."""
        self.complete = True
        """Whether the last picture was made of its own level's voxels alone."""
        self.looked = 0
        """How many chunks had arrived or failed when the last picture was put together."""
        self.unseen: Callable[[Any], bool] = _never
        """Whether a volume's voxels of a value are not drawn at all. Asked in any thread."""
        self.owner: object = None
        """Whoever repaints the layer (`live`); it lives as long as the layer's data."""
        self._moving = Moving()
        self._wish: _Wish | None = None
        self._expecting = False
        self._slid = False
        self._last: _Picture | None = None

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
        while True:
            began, news, view = time.monotonic(), self.news, self.view
            last, self._last = self._last, None
            failed: set[Index] = set()
            if asking.asker is Asker.PICTURE:
                displayed = [self.shown[axis] for axis in asking.displayed]
                wanted = nearest_first(view.levels[level], axes, displayed or self.shown)
                self._ask(view, level, axes, wanted)
                failed = {index for number, index in self.failed if number == level}
            elif asking.asker is Asker.THUMBNAIL:
                self._ask_for_thumbnail(view, level, axes)
                if last is not None and last.of is view and last[1:3] == (level, axes):
                    return last.voxels.copy()
            ready = partial(self.ready_all, view=view)
            picture, complete = compose(view.levels, level, axes, ready, failed)
            if len(asking.displayed) == 3 and not complete and self._is_nothing(level, picture):
                picture = picture[:1, :1, :1].copy()
            if view is self.view:  # else it changed meanwhile, and nothing of the old one is shown
                break
        if asking.asker is Asker.PICTURE:
            self.complete, self.seconds = complete, time.monotonic() - began
            self.looked = news
            if level == len(view.levels) - 1:
                self._last = _Picture(view, level, axes, picture)
        return picture

    def _is_nothing(self, level: int, volume: np.ndarray) -> bool:
        """Whether a volume is of the fill value alone, and the layer draws nothing of that.

        It is handed over as one voxel then, as napari itself does where a slice is empty: to look
        for something along every ray takes longer than to draw what is there.
        """
        fill = self.view.levels[level].fill
        return volume.ndim == 3 and not np.any(volume != fill) and self.unseen(fill)

    def _ask_for_thumbnail(self, view: View, level: int, axes: Axes) -> None:
        if self._wish is None:
            rows = covered(view.levels[level], axes)
            few = math.prod(map(len, rows)) <= THUMBNAIL_CHUNKS
            wanted = nearest_first(view.levels[level], axes, self.shown) if few else []
            self.hold(Group.THUMBNAIL, level, wanted, priority=LAST)

    def _ask(self, view: View, level: int, axes: Axes, wanted: Sequence[Index]) -> None:
        """Claim a picture's chunks, or, while pictures fly by, see to it that they are soon."""
        with self._lock:
            wait = 0.0
            if self.on_pause is not None and self.active():
                what = (view.identity, level, axes)
                wait = self._moving.wait(self._clock(), what, self.chunk_seconds)
            if wait > 0:
                kept = self._begun(level, wanted) if self._slid else wanted
                self.keep_only(Group.PICTURE, level, kept)
                self.keep_only(Group.THUMBNAIL, level, ())  # of a plane that is left
                wait = 0.0 if not self._lacking(level, wanted) else wait
            self._slid = False
            self._wish = _Wish(level, wanted) if wait > 0 else None
            # a coarser picture that runs is waited for: else each that flies by would begin one
            if wait == 0 or self.over(Group.COARSE):
                self._ask_coarser(level, axes, wanted)
            if self._wish is not None:
                self._expect(soon=True)
            else:
                self.hold(Group.PICTURE, level, wanted)
                wait = self._until_one_comes()
        if wait > 0 and self.on_pause is not None:
            self.on_pause(wait)

    def _expect(self, *, soon: bool) -> None:
        """Have background work hold back while a picture is put off, or no more."""
        if soon or self._expecting:
            self._expecting = soon
            self.engine.expect(self, soon=soon)

    def _until_one_comes(self) -> float:
        """Have background work hold back a little longer, if it does; return for how long.

        What is asked for takes no slot while its source is read.
        """
        waits = not all(claim.done for claim in self._held[Group.PICTURE].values())
        if self._expecting and waits:
            return A_READ
        self._expect(soon=False)
        return 0.0

    def _note(
        self, group: Hashable, place: Place, error: MaterializeError | None, seconds: float | None
    ) -> None:
        super()._note(group, place, error, seconds)
        if group is Group.PICTURE and seconds is not None and self._wish is None:
            self._expect(soon=False)

    def moved(self, *, read: bool = False) -> None:
        """Take note that a slider was moved by whoever looks.

        Where its picture was ``read`` before this was told, the step was counted then.
        """
        with self._lock:
            if not read:
                self._moving.step(self._clock())
            self._slid = True

    def awake(self) -> None:
        """Take note that the window has done what the last step brought."""
        with self._lock:
            self._moving.awake(self._clock())

    def go_on(self) -> None:
        """Ask for the picture that was put off, if there is one and nothing moves any more."""
        with self._lock:
            left = self._moving.left(self._clock()) if self._wish is not None else 0.0
            if left > 0 and self.on_pause is not None:
                self.on_pause(left)
                return
            wish, self._wish = self._wish, None
            if wish is None:
                self._expect(soon=False)
                return
            self.hold(Group.PICTURE, wish.level, wish.wanted)
            wait = self._until_one_comes()
            # what is there already tells nobody that it arrived
            self.news += any(claim.done for claim in self.held(Group.PICTURE).values())
        if wait > 0 and self.on_pause is not None:
            self.on_pause(wait)
        self.on_news()

    def _ask_coarser(self, level: int, axes: Axes, wanted: Sequence[Index]) -> None:
        """Let a coarser picture go ahead of one that takes long, where it costs little.

        That is where the canvas misses more chunks than are made at a time, no coarser level is
        there as a whole, and one has at most an eighth as many chunks to make.
        """
        levels = self.view.levels
        # that so many are missing says all there is to know
        some = itertools.islice(wanted, ENOUGH if level + 1 < len(levels) else 0)
        missing = self._lacking(level, some)
        if missing <= self.engine.slots:
            self.hold(Group.COARSE, level, ())
            return
        chosen: tuple[int, list[Index]] = (level, [])
        for number in range(level + 1, len(levels)):
            indices = covering(levels[level], axes, levels[number])
            lacking = self._lacking(number, indices)
            if not lacking or (lacking * COARSE_SHARE <= missing and not chosen[1]):
                chosen = (number, indices)
            if not lacking:
                break
        self.hold(Group.COARSE, *chosen, priority=FIRST)

    def _begun(self, level: int, wanted: Sequence[Index]) -> list[Index]:
        """Return which chunks of a picture that is passed are to be waited for: what runs.

        Planes that lie in the same chunks may all be passed, so that none of the others begins;
        while the canvas is panned, what it still shows goes on.
        """
        held, state = self._held[Group.PICTURE], self.engine.state
        return [
            index
            for index in wanted
            if (claim := held.get((level, index))) is not None
            and (claim.done or state(self.view, level, index) is ChunkState.LOADING)
        ]

    def _lacking(self, level: int, wanted: Iterable[Index]) -> int:
        """Count the chunks that are not there."""
        return sum(chunk is None for chunk in self.engine.peek_all(self.view, level, wanted))

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

    # ------------------------------------------------------------------ claims

    def release_all(self) -> None:
        """Give up every claim, and what was put off."""
        with self._lock:
            self._wish = None
            self._moving.rest()
            super().release_all()
            self._expect(soon=False)

    def counts(self) -> Counts:
        """Count what is on the canvas, and what was put off."""
        found, wish = super().counts(), self._wish
        if wish is None:
            return found
        held = self.held(Group.PICTURE)
        put_off = sum((wish.level, index) not in held for index in wish.wanted)
        return replace(found, waiting=found.waiting + put_off)

    @property
    def passing(self) -> bool:
        """Whether the last picture is passed by, as far as anybody knows: none is asked for yet."""
        return self._wish is not None

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked for is still to come."""
        with self._lock:
            return self._wish is None and all(map(self.over, self._held))

    @property
    def picture_over(self) -> bool:
        """Whether nothing of the canvas is still to come."""
        with self._lock:
            return self._wish is None and self.over(Group.PICTURE)

    def remaining(self) -> float:
        """Return how many seconds the canvas's chunks still take, as far as one can know.

        0 if all are there; infinity if nobody knows how long one takes.
        """
        with self._lock:
            if self.picture_over:
                return 0.0
            if self.chunk_seconds is None or self._wish is not None:
                return math.inf
            waiting = sum(not claim.done for claim in self._held[Group.PICTURE].values())
            return math.ceil(waiting / self.engine.slots) * self.chunk_seconds

    def fits(self, view: View) -> bool:
        """Whether another view can be shown in the place of this one: only its voxels differ."""
        if view.kind != self.view.kind or len(view.levels) != len(self.view.levels):
            return False
        return all(
            (a.shape, a.dtype, a.axes, a.scale, a.translation)
            == (b.shape, b.dtype, b.axes, b.scale, b.translation)
            for a, b in zip(view.levels, self.view.levels, strict=True)
        )

    def change(self, view: View) -> None:
        """Show another view that `fits`: no chunk of the old one is shown from here on."""
        with self._lock:
            moving, self._moving = self._moving, Moving()
            super().change(view)
            self._moving = moving  # a parameter that is dragged moves as a plane does

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerReads:
        """Return reads of the same view for another layer, which holds claims of its own."""
        copy = LayerReads(self.view, self.engine, self.channel, self._clock)
        memo[id(self)] = copy
        return copy


def _never(_: object) -> bool:
    return False


def _as_slice(axis: range) -> slice:
    """Return the slice that selects what a range counts."""
    if not axis:
        return slice(0, 0)
    return slice(axis.start, axis.stop if axis.stop >= 0 else None, axis.step)
