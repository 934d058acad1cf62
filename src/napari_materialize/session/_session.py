"""The session: mutable intent on one side, one job at a time on the other.

Owns the thread that a job runs in and, unless one is handed in, the engine. Deciding is
`_resolve`'s, showing is a panel's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psygnal import Signal

from napari_materialize.cache import ChunkState
from napari_materialize.engine import Engine
from napari_materialize.errors import OptionError, reason_of
from napari_materialize.session._estimating import Estimating
from napari_materialize.session._intent import Intent, follow, outdated
from napari_materialize.session._job import Job, JobState, Pace, Progress
from napari_materialize.session._opening import Opening, looks_first
from napari_materialize.session._resolve import Resolved, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from napari_materialize.estimate import Estimate
    from napari_materialize.session._intent import Chain
    from napari_materialize.view import View

__all__ = ["Session"]

JOIN = 2.0
"""Seconds that `Session.close` waits for the job's thread."""

_REOPEN = ("source", "ops", "boundary")


class Session:
    """What a person at a panel is doing. Use it from one thread, the panel's.

    Parameters
    ----------
    engine : Engine, optional
        What computes. If left out, the session makes one when it is first needed and closes it.
    opens_apart : bool
        Whether ops that look at the image first, as models do, are opened in a thread of their own.
        Whoever says so listens to `opened`.
    clock : callable
        Seconds that never go back, for rate and time left.

    Examples
    --------
    >>> import numpy as np
    >>> session = Session()
    >>> session.change(source=np.zeros((100, 100), "u1"), ops=("invert",))
    >>> session.resolved.plan.chunks, session.blocked
    (1, 'target: choose a folder for the result')
    >>> session.close()
    """

    changed = Signal(Resolved)
    """Something resolves differently, or a job began; in the thread that changed it."""

    progress = Signal(Progress)
    """A job went on; emitted in the job's thread, at most every 50 ms."""

    finished = Signal(Job)
    """A job ended; emitted in the job's thread, after its last progress."""

    estimated = Signal()
    """`estimate`, or `estimate_problem`, is there; emitted in a thread of its own."""

    opened = Signal()
    """Ops that took long are there: call `take_opened`; emitted in a thread of its own."""

    def __init__(
        self,
        engine: Engine | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        opens_apart: bool = False,
    ) -> None:
        self._engine, self._owns = engine, engine is None
        self._clock = clock
        self._intent = Intent(views=None if engine is None else engine.views)
        self._chain = follow(self._intent)
        self._resolved = resolve(self._intent, self._chain)
        self._job = Job()
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._estimating = Estimating(self._tell_estimate)
        self.opens_apart = opens_apart
        """Whether ops that look at the image first are opened in a thread of their own."""
        self._opening = Opening(self._tell_opened)
        self._last = self._chain

    # ------------------------------------------------------------------ what is

    @property
    def engine(self) -> Engine:
        """What computes, for jobs and for whoever looks at the same view."""
        if self._engine is None or (self._owns and self._engine.closed):
            self._engine = Engine()
            self._intent = replace(self._intent, views=self._engine.views)
        return self._engine

    @property
    def intent(self) -> Intent:
        """What was asked for."""
        return self._intent

    @property
    def resolved(self) -> Resolved:
        """What follows from it."""
        return self._resolved

    @property
    def job(self) -> Job:
        """The job under way, or the last one."""
        return self._job

    @property
    def blocked(self) -> str | None:
        """Why `run` would refuse, in one sentence, or None."""
        if self._job.state is JobState.RUNNING:
            return "a job is running; wait for it, or cancel it"
        return self._resolved.blocked

    @property
    def estimate(self) -> Estimate | None:
        """What a job would take, once `measure` has found out; gone with the next change."""
        return self._estimating.answer

    @property
    def estimate_problem(self) -> str | None:
        """Why `measure` found nothing, in a sentence, or None."""
        return self._estimating.problem

    # ------------------------------------------------------------------ what is asked

    def change(self, **fields: Any) -> None:
        """Change fields of the `Intent` and resolve anew.

        A new source starts at its finest level, whole, with its own name, unless told otherwise. A
        box that comes without the names of its axes has the view's last ones.

        Raises
        ------
        OptionError
            If there is no such field.
        """
        if unknown := fields.keys() - Intent.__dataclass_fields__.keys():
            raise OptionError(
                f"session: there is no field {min(unknown)!r}; it has "
                f"{', '.join(Intent.__dataclass_fields__)}; change one of these"
            )
        if "box" in fields:
            fields = {"box_axes": None, **fields}
        if "source" in fields and not _same(fields["source"], self._intent.source):
            fresh = {"name": "", "affine": None, "level": 0, "box": None, "box_level": 0}
            fields = {**fresh, "box_axes": None, "target": None, **fields}
        self._intent = replace(self._intent, **fields)
        if any(name in fields for name in _REOPEN):
            self._follow(self._last)
        self.refresh()

    def reopen(self) -> None:
        """Open the source again: it changed where it is."""
        self._follow(replace(self._last, base=None))
        self.refresh()

    def take_opened(self) -> None:
        """Go on with ops that were opened in the background, if they are still asked for."""
        chain = self._opening.take()
        if chain is not None and not self._closed:
            self._chain = self._last = chain
            self.refresh()

    def _follow(self, previous: Chain) -> None:
        """Open what is asked for, taking over what did not change."""
        if self.opens_apart and any(map(looks_first, self._intent.ops)):
            self._chain = self._opening.begin(self._intent, previous)
        else:
            self._opening.drop()
            self._chain = self._last = follow(self._intent, previous)

    def refresh(self) -> None:
        """Resolve anew: the disk may have changed."""
        self._estimating.drop()
        self._resolved = resolve(self._intent, self._chain)
        self.changed.emit(self._resolved)

    def measure(self) -> None:
        """Begin to find out what a job would take, from a few chunks; `estimated` tells the end.

        Nothing happens if something is in the way of a job, or a job is running, or it is known.
        """
        if self.blocked is None and not self._closed:
            self._estimating.ask(self.engine, self._resolved)

    # ------------------------------------------------------------------ the job

    def run(self) -> None:
        """Start the job, in a thread of its own.

        A source that holds other voxels by now is opened again.

        Raises
        ------
        InputError
            If something stands in the way: the sentence of `blocked`.
        """
        self._estimating.drop()
        if self._job.state is not JobState.RUNNING and outdated(self._chain):
            self.reopen()
        self._resolved = resolve(self._intent, self._chain)
        if self.blocked is not None:
            raise OptionError(self.blocked)
        engine, state = self.engine, self._resolved
        if state.plan is None:
            raise AssertionError("nothing is in the way and yet there is no plan")
        self._cancel, self._closed = threading.Event(), False
        began = Progress(total=sum(each.chunks for each in state.plans))
        self._job = self._job.become(
            JobState.RUNNING, resolved=state, progress=began, receipt=None, reason=None
        )
        self._thread = threading.Thread(
            target=self._work,
            args=(engine, state, self._cancel),
            name="napari-materialize job",
            daemon=True,
        )
        try:
            # whoever shows it hears of the beginning before the end, however short the job
            self.changed.emit(self._resolved)
        finally:
            self._thread.start()

    def cancel(self) -> None:
        """Stop the job, if one runs; it ends as aborted a moment later."""
        self._cancel.set()

    def close(self) -> None:
        """Cancel the job, wait a moment for its thread, and close the engine if it is our own.

        Nothing is signalled from then on, until another job is run, on another engine.
        """
        self._closed = True
        self._estimating.drop()
        self._opening.drop()
        self.cancel()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(JOIN)
        if self._owns and self._engine is not None:
            self._engine.close()

    # ------------------------------------------------------------------ the job's thread

    def _work(self, engine: Engine, state: Resolved, cancel: threading.Event) -> None:
        pace = Pace(self._clock)

        def tell(counts: dict[str, int]) -> None:
            progress = pace.tell(counts)
            self._job = replace(self._job, progress=progress)
            self._emit(self.progress, progress)

        try:
            receipt = _materialize(engine, state, cancel, tell)
        except Exception as error:  # noqa: BLE001 - whatever ends the job is what the panel says
            self._job = self._job.become(JobState.FAILED, reason=reason_of(error))
        else:
            ended = JobState.ABORTED if receipt.aborted else JobState.DONE
            self._job = self._job.become(ended, receipt=receipt)
        self._emit(self.finished, self._job)

    def _tell_opened(self) -> None:
        if not self._closed:
            self.opened.emit()

    def _tell_estimate(self) -> None:
        if not self._closed:
            self.estimated.emit()

    def _emit(self, signal: Any, value: Any) -> None:
        """Tell who listens, unless the session is closed and they are gone."""
        if not self._closed:
            signal.emit(value)


def _same(one: object, other: object) -> bool:
    """Whether two sources are one: arrays and layers are compared by what they are, not hold."""
    return one is other or (isinstance(one, str) and isinstance(other, str) and one == other)


def _materialize(
    engine: Engine,
    state: Resolved,
    cancel: threading.Event,
    tell: Callable[[dict[str, int]], None],
) -> Any:
    view, options, target = state.view, state.options, state.target
    if view is None or options is None or target is None:
        raise AssertionError("a job was started without a view, options or a target")
    _retry_failed(engine, view)
    return engine.materialize(
        view,
        target,
        levels=options.levels,
        pyramid=options.pyramid,
        box=options.box,
        box_level=options.box_level,
        extent=options.extent,
        format=options.format,
        compression=options.compression,
        skip_empty=options.skip_empty,
        cancel=cancel,
        on_progress=tell,
    )


def _retry_failed(engine: Engine, view: View) -> None:
    """Compute anew what failed before: pressing Run again is an explicit retry."""
    failed = {e.key for e in engine.events(view) if e.after is ChunkState.FAILED}
    for key in sorted(failed):
        if engine.state(view, key.level, key.chunk) is ChunkState.FAILED:
            engine.retry(view, key.level, key.chunk)
