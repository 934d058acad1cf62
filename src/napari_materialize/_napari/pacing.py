"""When to ask for a picture, and when to paint it: neither for each that flies by, nor too often.

Owns these decisions and the memory they need. Seconds in, seconds out: no clock, no Qt.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

__all__ = ["Moving", "Pace"]

LONGER = 1.25
"""How much longer than the last steps to wait for the next one, and how much longer than a chunk
takes to wait at most."""

A_MOMENT = 0.001
"""Seconds: as soon as the window has heard what is there to be heard."""

HAND = 0.05
"""Seconds between two steps of a hand, at most: what is read later came late. To wait less would
take a hand for resting; and a window that is busy for longer has made its steps late itself."""

BUSY = 0.02
"""Seconds by which a window that is not busy does what is due."""

STEPS = 4
"""Steps that are remembered: a busy window makes one late and the next one early by as much, so
that it is their mean that tells the hand's pace."""

LAST_APART = 0.04
"""Seconds between two repaints, at most, if the second is the last of a picture."""

SHARE = 4
"""How many times a repaint's cost lies between two repaints."""


class Moving:
    """Tells a picture that is looked at from one that is passed.

    A chunk that runs when its picture is given up runs to its end, and the picture that is stopped
    at waits for it, most of a chunk's time. So while pictures follow each other faster than chunks
    are made, a picture is asked for only when the next one has failed to come for a moment. That is
    little more than a chunk takes at most: where steps are slower than chunks, or where nothing
    moves, a picture is asked for at once.

    Examples
    --------
    >>> moving = Moving()
    >>> moving.wait(0.0, "plane 1", chunk_seconds=0.3)  # from rest
    0.0
    >>> moving.wait(0.04, "plane 2", chunk_seconds=0.3)
    0.05
    >>> moving.wait(0.06, "plane 2", chunk_seconds=0.3)  # the same picture, painted again
    0.03
    >>> moving.left(0.10)  # nothing came: now it is asked for
    0.0
    >>> moving.wait(0.20, "plane 3", chunk_seconds=0.06)  # steps slower than chunks
    0.0
    """

    def __init__(self) -> None:
        self._what: object = None
        self._steps: deque[float] = deque(maxlen=STEPS)
        """Seconds between the last steps."""
        self._last = float("-inf")
        self._awake = float("-inf")
        self._limit = 0.0
        self._doubted = False
        """Whether it was said since the last step that the window was busy."""
        self._heard = False
        """Whether a step was told of, and its picture was not read yet."""
        self._passing = False
        """Whether the last picture is one that is passed, as far as anybody knows."""

    def step(self, now: float) -> None:
        """Take note that a slider moved.

        Where pictures are read in a thread of its own some are left out and others come late, so
        that the hand's pace cannot be told from them. A step that is told of nowhere counts when
        its picture is read.
        """
        late = HAND < self._awake - self._last < float("inf")
        self._steps.append(now - (self._awake if late else self._last))
        self._last, self._heard, self._doubted = now, True, False

    def awake(self, now: float) -> None:
        """Take note that the window has done what the last step brought, its painting too.

        Where that takes long, as in 3D, the next step is there as soon as it is over, or it is not.
        """
        self._awake = now

    def wait(self, now: float, what: object, chunk_seconds: float | None) -> float:
        """Return how many seconds to wait before a picture is asked for; 0 to ask at once.

        A picture that was passed goes on waiting until `left` says that nothing moves, however
        late it is read: a window that is busy hears of the next step late, too.

        Parameters
        ----------
        now : float
            Seconds of a clock that never goes back.
        what : object
            The picture; equal to the last one if nothing moved.
        chunk_seconds : float or None
            How long a chunk takes; None if nobody knows yet, and then nothing waits.
        """
        if what != self._what and not self._heard:
            self.step(now)
        if self._heard:
            self._limit = 0.0 if chunk_seconds is None else LONGER * chunk_seconds
            self._passing = self._pause() <= self._limit
        self._what, self._heard = what, False
        return max(A_MOMENT, self._until_rest(now)) if self._passing else 0.0

    def left(self, now: float) -> float:
        """Return how many seconds are left until nothing has moved for a while; 0 if it has not.

        Asked much later than it was to be, it says a moment, once: the window was busy, and what
        moved meanwhile is there but not heard yet. Not so if it was awake when a step was due.
        """
        seconds = self._until_rest(now)
        if seconds or not self._passing:
            return seconds
        pause = self._pause()
        heard = self._awake - self._last >= pause / LONGER  # the next step would have been, too
        if now - self._last - pause > BUSY and not heard and not self._doubted:
            self._doubted = True
            return A_MOMENT
        self._passing = False
        return 0.0

    def rest(self) -> None:
        """Forget the last picture: the next one comes from rest."""
        self._what, self._heard, self._passing = None, False, False
        self._steps.clear()
        self._last = self._awake = float("-inf")

    def _until_rest(self, now: float) -> float:
        pause = self._pause()
        due = self._last + pause if pause <= self._limit else now
        return round(max(0.0, due - now), 6)

    def _pause(self) -> float:
        """Return a quarter more than the last steps took, in the mean; infinity from rest."""
        together = itertools.takewhile(
            lambda step: LONGER * step <= self._limit, reversed(self._steps)
        )
        steps = list(together)
        mean = sum(steps) / len(steps) if steps else float("inf")
        return max(LONGER * mean, min(HAND, self._limit))


@dataclass(slots=True)
class Pace:
    """When to repaint: not sooner than an interval, nor than four times the last repaint's cost.

    While a window of napari's draws, no other thread of Python's runs (its `event` calls Qt's with
    the lock held), so a repaint is time that chunks may have to wait, too.
    """

    ended: float = float("-inf")
    """When the last repaint was over, in seconds of some clock."""

    cost: float = 0.0
    """How long it took, the drawing included, in seconds."""

    def wait(self, now: float, interval: float, *, last: bool = False) -> float:
        """Return how many seconds the next repaint has to wait.

        The ``last`` of a picture, after which nothing more of it comes, waits for the interval not.

        >>> pace = Pace(ended=10.0, cost=0.25)
        >>> pace.wait(now=10.125, interval=0.08), pace.wait(now=10.125, interval=0.08, last=True)
        (0.875, 0.0)
        """
        apart = min(self.cost / 2, LAST_APART) if last else max(interval, SHARE * self.cost)
        return max(0.0, self.ended + apart - now)
