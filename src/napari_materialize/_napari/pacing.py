"""When to ask for a picture, and when to paint it: neither for each that flies by, nor too often.

Owns these decisions and the memory they need. Seconds in, seconds out: no clock, no Qt.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

__all__ = ["Moving", "Pace"]

LONGER = 1.25
"""How much longer than the longest of the last steps to wait for the next one, and how much longer
than a chunk takes to wait at most."""

STEPS = 3
"""Steps that are remembered: a hand is not even, and neither is a busy window."""


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
    >>> moving.wait(0.20, "plane 3", chunk_seconds=0.06)  # steps slower than chunks
    0.0
    """

    def __init__(self) -> None:
        self._what: object = None
        self._steps: deque[float] = deque(maxlen=STEPS + 1)
        self._due = float("-inf")

    def wait(self, now: float, what: object, chunk_seconds: float | None) -> float:
        """Return how many seconds to wait before a picture is asked for.

        Parameters
        ----------
        now : float
            Seconds of a clock that never goes back.
        what : object
            The picture; equal to the last one if nothing moved.
        chunk_seconds : float or None
            How long a chunk takes; None if nobody knows yet, and then nothing waits.
        """
        if what != self._what:
            limit = 0.0 if chunk_seconds is None else LONGER * chunk_seconds
            pause = LONGER * self._longest_step(now, limit)
            self._what, self._due = what, now + pause if pause <= limit else now
        return round(max(0.0, self._due - now), 6)

    def _longest_step(self, now: float, limit: float) -> float:
        """Take note of a step; return the longest of the last ones that belong together."""
        if self._steps and LONGER * (now - self._steps[-1]) > limit:
            self._steps.clear()  # it moved from rest
        self._steps.append(now)
        steps = [after - before for before, after in itertools.pairwise(self._steps)]
        return max(steps, default=float("inf"))

    def rest(self) -> None:
        """Forget the last picture: the next one comes from rest."""
        self._what, self._due = None, float("-inf")
        self._steps.clear()


@dataclass(slots=True)
class Pace:
    """When to repaint: not sooner than an interval, nor than twice the last repaint's cost."""

    ended: float = float("-inf")
    """When the last repaint was over, in seconds of some clock."""

    cost: float = 0.0
    """How long it took, in seconds."""

    def wait(self, now: float, interval: float, *, last: bool = False) -> float:
        """Return how many seconds the next repaint has to wait.

        The ``last`` of a picture, after which nothing more of it comes, waits for the interval not.

        >>> pace = Pace(ended=10.0, cost=0.25)
        >>> pace.wait(now=10.125, interval=0.08), pace.wait(now=10.125, interval=0.08, last=True)
        (0.375, 0.125)
        """
        return max(0.0, self.ended + (self.cost if last else max(interval, 2 * self.cost)) - now)
