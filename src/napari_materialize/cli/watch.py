"""A job as a person at a terminal has it: a bar while it runs, and Ctrl-C that stops it.

Owns the bar and the signals, for the length of one job. The job itself is the engine's.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from napari_materialize.engine import Engine
    from napari_materialize.job import Materialized
    from napari_materialize.plan import Plan

__all__ = ["Rate", "Stop", "materialize_watched", "watched"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)

MEGABYTE = 1e6

type Progress = Callable[[dict[str, int]], None]


@dataclass(slots=True)
class Stop:
    """Whether somebody wants a job to stop, and by which signal."""

    event: threading.Event = field(default_factory=threading.Event)
    """What the job looks at."""

    signal: int | None = None
    """The first signal that came."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal: the first one asks the job to stop, the next one does not wait for it.

        Raises
        ------
        KeyboardInterrupt
            At the second signal.
        """
        if self.signal is not None:
            raise KeyboardInterrupt(self.signal)
        self.signal = number
        self.event.set()


@contextlib.contextmanager
def _signals_to(stop: Stop) -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class Rate:
    """Chunks per second over the last seconds.

    Examples
    --------
    >>> rate = Rate(seconds=10)
    >>> rate.add(0.0, 0), rate.add(2.0, 8), rate.add(11.0, 26)
    (0.0, 4.0, 2.0)
    """

    seconds: float = 10.0
    """How far back it looks."""

    _past: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, done: int) -> float:
        """Take note of how many are done, and return the rate."""
        self._past.append((now, done))
        while len(self._past) > 2 and self._past[0][0] < now - self.seconds:
            self._past.popleft()
        then, before = self._past[0]
        return (done - before) / (now - then) if now > then else 0.0


@contextlib.contextmanager
def _bar(plan: Plan) -> Iterator[Progress]:
    """Yield what a job's progress is told to: a bar where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield _show_nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    rate, mean = Rate(), plan.nbytes / max(1, plan.chunks) / MEGABYTE
    rate.add(time.monotonic(), 0)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("materializing", total=plan.chunks, told="")

        def show(counts: dict[str, int]) -> None:
            pace = rate.add(time.monotonic(), counts["done"])
            bar.update(task, completed=counts["done"], told=_told(counts, pace, mean))

        yield show


def _show_nothing(counts: Mapping[str, int]) -> None:
    """Take note of nothing: what is told goes to a file or another program."""


def _told(counts: Mapping[str, int], pace: float, mean: float) -> str:
    """Return what stands beside the bar; ``mean`` is a chunk's megabytes, uncompressed.

    Examples
    --------
    >>> _told({"done": 4, "total": 64, "failed": 0}, 2.0, 0.25)
    '4/64 chunks  2.0 chunks/s  0.5 MB/s  0:30 left'
    """
    pieces = [f"{counts['done']}/{counts['total']} chunks"]
    if counts["failed"]:
        pieces.append(f"{counts['failed']} failed")
    if pace > 0:
        left = round((counts["total"] - counts["done"]) / pace)
        hours, minutes = divmod(left // 60, 60)
        clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
        pieces += [
            f"{pace:.1f} chunks/s",
            f"{pace * mean:.1f} MB/s",
            f"{clock}:{left % 60:02} left",
        ]
    return "  ".join(pieces)


def materialize_watched(
    engine: Engine, plan: Plan, options: Mapping[str, Any]
) -> tuple[Materialized, int | None]:
    """Carry out what is planned, with a bar on a terminal, until it is done or a signal comes.

    Parameters
    ----------
    engine : Engine
        Does the job.
    plan : Plan
        What it will be: its view, its store, and how much.
    options : mapping
        Those the plan was made with.

    Returns
    -------
    Materialized, int or None
        What was done; the signal that stopped it, if one did.

    Raises
    ------
    KeyboardInterrupt
        At a second signal, before the job has come to its end.
    """

    def work(told: Mapping[str, Any]) -> Materialized:
        return engine.materialize(plan.view, plan.store, **options, **told)

    done, number = watched(plan, work)
    return done, number if done.aborted else None


def watched[T](plan: Plan, work: Callable[[Mapping[str, Any]], T]) -> tuple[T, int | None]:
    """Do some of what is planned, with the bar and the signals of a job.

    Parameters
    ----------
    plan : Plan
        How much there is.
    work : callable
        Is handed ``cancel`` and ``on_progress``.

    Returns
    -------
    Any, int or None
        What it returns; the signal that came.

    Raises
    ------
    KeyboardInterrupt
        At a second signal, before it has come to its end.
    """
    stop = Stop()
    with _signals_to(stop), _bar(plan) as show:
        return work({"cancel": stop.event, "on_progress": show}), stop.signal
