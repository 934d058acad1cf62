"""One job as a panel shows it: its state, how far it is, how fast, how long still.

Owns the table of a job's states and the arithmetic of rate and time left. It starts nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import TransitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from napari_materialize.job import Materialized
    from napari_materialize.session._resolve import Resolved

__all__ = ["NEXT", "Job", "JobState", "Pace", "Progress"]

WINDOW = 15.0
"""Seconds over which the rate is taken: long enough to be calm, short enough to follow."""


class JobState(StrEnum):
    """What a job is; the transitions are in `NEXT`."""

    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"
    FAILED = "failed"


_ENDS = frozenset({JobState.DONE, JobState.ABORTED, JobState.FAILED})

NEXT: Mapping[JobState, frozenset[JobState]] = {
    JobState.IDLE: frozenset({JobState.RUNNING}),
    JobState.RUNNING: _ENDS,
    JobState.DONE: frozenset({JobState.RUNNING}),
    JobState.ABORTED: frozenset({JobState.RUNNING}),
    JobState.FAILED: frozenset({JobState.RUNNING}),
}
"""Which state may follow which."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. Chunks, bytes and seconds."""

    done: int = 0
    """Chunks dealt with: written, skipped or failed."""

    total: int = 0
    """Chunks in all."""

    written: int = 0
    """Chunks stored."""

    skipped: int = 0
    """Chunks of nothing but the fill value."""

    failed: int = 0
    """Chunks that failed."""

    bytes: int = 0
    """Bytes stored, compressed."""

    seconds: float = 0.0
    """Since the start."""

    rate: float | None = None
    """Chunks per second lately; None before the first."""

    left: float | None = None
    """Seconds that the rest will take at that rate; None where nobody can know yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The last job, or none yet."""

    state: JobState = JobState.IDLE
    """Where it stands."""

    resolved: Resolved | None = None
    """What it does: the state that `Session.run` found. Later changes do not touch it."""

    progress: Progress = Progress()
    """How far it is."""

    receipt: Materialized | None = None
    """What was done, once it is done or aborted."""

    reason: str | None = None
    """Why it failed, in a sentence."""

    def become(self, state: JobState, **changes: Any) -> Job:
        """Return the job in another state.

        Raises
        ------
        TransitionError
            If that state cannot follow this one.
        """
        if state not in NEXT[self.state]:
            raise TransitionError(f"job: {self.state} cannot become {state}")
        return replace(self, state=state, **changes)


class Pace:
    """Turns counts into a rate and a time left, by a clock that is handed in.

    Examples
    --------
    >>> now = iter([0.0, 2.0])
    >>> progress = Pace(lambda: next(now)).tell({"done": 4, "total": 10})
    >>> progress.rate, progress.left
    (2.0, 3.0)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._start, 0)])

    def tell(self, counts: Mapping[str, int]) -> Progress:
        """Return the progress that ``counts`` (as `Options.on_progress` gets them) mean now."""
        now, done = self._clock(), counts["done"]
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW:
            self._marks.popleft()
        then, before = self._marks[0]
        rate = (done - before) / (now - then) if now > then and done > before else None
        left = None if rate is None else (counts["total"] - done) / rate
        return Progress(**counts, seconds=now - self._start, rate=rate, left=left)
