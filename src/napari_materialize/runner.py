"""Runs what is to start, in threads, and tells who waited. Owns the engine's lock.

The lock is held while `Dispatch` is asked and told things, and never while something is computed,
read, written or called back. What may start is the dispatch's to say; here it is only carried
out: in which thread, several reads at a time, or one thing after the other without a hand-over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.claims import failure
from napari_materialize.dispatch import COMPUTE, READ, Dispatch, Outcome, Start
from napari_materialize.ops import Abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from napari_materialize.blocks import Rest
    from napari_materialize.claims import ChunkClaim
    from napari_materialize.geometry import Index
    from napari_materialize.workers import Next, Workers

__all__ = ["BACKGROUND", "BACKGROUND_READ", "WRITE", "Runner"]

BACKGROUND, BACKGROUND_READ, WRITE = "background", "background read", "write"
"""Lanes of threads beside the queue's: background work has threads of its own, which the system
may rank lower, and so has encoding and storing."""


COMPUTES = 0.5
"""The share of its time that a thread has to be at work itself, to count as busy with it."""

type _Given = dict[Index, np.ndarray | Rest] | BaseException


class _Here(threading.local):
    """What is known of the calling thread."""

    op = False
    """Whether it is inside an op."""

    background = False
    """Whether it does background work now."""

    computes = False
    """Whether the last piece of work kept a core busy."""

    own: Start | None = None
    """What it goes on with."""


class _End(NamedTuple):
    start: Start
    results: Mapping[Index, np.ndarray] | None
    error: BaseException | None
    seconds: float


class Runner:
    """Carries out what a dispatch starts.

    Parameters
    ----------
    new_dispatch : callable
        Makes the dispatch, and another that knows nothing once it is closed.
    workers : Workers
        Who runs the work, in the lanes of the queue and those of this module.
    cores : int
        How many threads can compute at a time: with as many of background work at it, a further
        one gains nothing.
    """

    def __init__(
        self, new_dispatch: Callable[[], Dispatch], workers: Workers, cores: int = 1
    ) -> None:
        self.lock = threading.Lock()
        """Guards everything that follows."""
        self.dispatch = new_dispatch()
        self.dispatch.queue.on_gone = self._look_again
        self.seconds = {READ: 0.0, COMPUTE: 0.0}
        self.counts = {READ: 0, COMPUTE: 0, "failures": 0}
        self.closed = False
        self._new_dispatch = new_dispatch
        self._workers = workers
        self._cores = cores
        self._here = _Here()
        self._line: deque[Start] = deque()
        """Quick pieces of background work: one thread does them all, one after the other."""
        self._line_lock = threading.Lock()
        self._served = False
        """Whether a thread does them now."""

    @property
    def in_op(self) -> bool:
        """Whether the calling thread is inside an op."""
        return self._here.op

    def start(self) -> list[Start]:
        """Start whatever may start now; the caller holds the lock."""
        return [] if self.closed else self.dispatch.start()

    def close(self) -> list[ChunkClaim]:
        """End: nothing more is started; return the claims that still wait."""
        with self.lock:
            if self.closed:
                return []
            self.closed = True
            waiting = self.dispatch.take_all()
            self.dispatch = self._new_dispatch()  # and with the old one all that was kept
        self._workers.close()
        return waiting

    def write(
        self, work: Callable[[], None], *, quick: bool = False, in_turn: bool = False
    ) -> None:
        """Run work that encodes and stores in the threads for it, which take no slots.

        Where it is quick, or all cores have work, a thread of background work does it itself,
        unless it has to be begun ``in_turn``, after what was handed over before.
        """
        quick = quick and self._workers.quick > 0
        if self._here.background and not in_turn and (quick or self._saturated()):
            work()
        else:
            self._workers.submit(WRITE, work)

    def _saturated(self) -> bool:
        """Whether the machine is busy with background work that this thread has a share in.

        Who waits for a server or a GPU keeps no core busy.
        """
        return self._here.computes and self._workers.busy(BACKGROUND, WRITE) >= self._cores

    # ------------------------------------------------------------------ handing over

    def _look_again(self) -> None:
        """Start what may start since a client is gone; in a thread that holds no lock."""
        if not self.closed:
            with suppress(RuntimeError):  # Python ends, and begins no thread any more
                threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        with self.lock:
            starts = self.start()
        self.hand_over([], starts)

    def hand_over(self, outcomes: Sequence[Outcome], starts: Iterable[Start]) -> None:
        """See to it that what started is run, and tell who waited; without the lock."""
        together: list[Start] = []
        here = self._here
        for start in starts:
            if not self._is_quick(start):
                if start.background and here.background and not here.own and self._saturated():
                    here.own = start
                else:
                    self._submit([start])
            elif not start.background:
                together.append(start)
            elif self._put_in_line(start):
                self._workers.submit(BACKGROUND, self._serve)
        if together:
            self._submit(together)
        self._tell(outcomes)

    def _submit(self, starts: list[Start]) -> None:
        self._workers.submit(*self._work(starts))

    def _work(self, starts: Sequence[Start]) -> Next:
        lane = starts[0].stage.lane
        if starts[0].background:
            lane = BACKGROUND_READ if lane == READ else BACKGROUND
        return lane, partial(self._go, starts)

    def _is_quick(self, start: Start) -> bool:
        """Whether it takes about as long as to hand it to another thread, and can be anywhere."""
        if start.stage.lane != READ and not start.background:
            return False
        seconds = self.dispatch.pace.expected(start.stage, start.members[0].level, start.asked)
        return seconds is not None and seconds < self._workers.quick

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        for claim, value, error in outcomes:
            claim._finish(value, error)
        given_up = self.dispatch.given_up
        while given_up:
            try:
                claim = given_up.popleft()
            except IndexError:  # another thread told the last one
                break
            claim.tell_released()

    # ------------------------------------------------------------------ quick work

    def _put_in_line(self, start: Start) -> bool:
        """Put quick background work in line; return whether the caller has to see to a thread."""
        with self._line_lock:
            self._line.append(start)
            served, self._served = self._served, True
        return not served

    def _serve(self) -> None:
        """Do the quick background work, until there is none."""
        self._here.background = True
        while True:
            with self._line_lock:
                if not self._line:
                    self._served = False
                    return
                start = self._line.popleft()
            after = self._run([start])
            if after is None:
                continue
            if self._is_quick(after):
                self._line.appendleft(after)
            else:
                self._submit([after])

    # ------------------------------------------------------------------ running

    def _go(self, starts: Sequence[Start]) -> Next | None:
        """Run what started, in a worker; return what it may go on with."""
        self._here.background = starts[0].background
        after = self._run(starts)
        if after is None:
            return None
        if after.background and self._is_quick(after) and self._is_quick(starts[0]):
            # a chain of quick work, which is one thread's
            return (BACKGROUND, self._serve) if self._put_in_line(after) else None
        return self._work([after])

    def _run(self, batch: Sequence[Start]) -> Start | None:
        """Compute or read; return what started then that the same thread may go on with."""
        with self.lock:
            if self.closed:
                return None
            given = [self._inputs(start) for start in batch]
        given.reverse()
        ended = [self._compute(start, given) for start in batch]
        with self.lock:
            if self.closed:
                return None
            outcomes = [outcome for end in ended for outcome in self._finish(end)]
            starts = self.start()
        here = self._here
        mine = next((start for start in starts if start.background == here.background), None)
        here.own = mine
        self.hand_over(outcomes, [other for other in starts if other is not mine])
        mine, here.own = here.own, None
        return mine

    def _inputs(self, start: Start) -> _Given:
        """Return what a start is computed from, or what keeps it from that; with the lock."""
        try:
            if not self.dispatch.wanted(start.members):
                raise Abandoned
            return self.dispatch.inputs(start.members[0])
        except BaseException as error:  # noqa: BLE001 - an op's, which was kept until now
            return error

    def _compute(self, start: Start, given: list[_Given]) -> _End:
        """Compute or read; the inputs are the last ones given."""
        stage, level = start.stage, start.members[0].level

        def abandoned() -> bool:
            with self.lock:
                return not self.dispatch.wanted(start.members)

        began, worked = time.perf_counter(), time.thread_time()
        results: Mapping[Index, np.ndarray] | None = None
        error: BaseException | None = None
        try:
            self._here.op = True
            # handed straight on: a local variable would outlive a failure in its traceback
            results = stage.compute(level, start.asked, _voxels(given.pop()), abandoned)
        except Abandoned:
            pass
        except BaseException as cause:  # noqa: BLE001 - whatever an op raises is its chunk's failure
            error = failure(stage.title, start.members[0], cause)
        finally:
            self._here.op = False
        seconds = time.perf_counter() - began
        self._here.computes = time.thread_time() - worked > COMPUTES * seconds
        return _End(start, results, error, seconds)

    def _finish(self, end: _End) -> list[Outcome]:
        lane = end.start.stage.lane
        self.seconds[lane] += end.seconds
        self.counts[lane] += end.results is not None
        self.counts["failures"] += end.error is not None
        return self.dispatch.finish(*end)


def _voxels(given: _Given) -> dict[Index, np.ndarray | Rest]:
    if isinstance(given, BaseException):
        raise given
    return given
