"""Runs what is to start, in threads, and tells who waited. Owns the engine's lock.

The lock is held while `Dispatch` is asked and told things, and never while something is computed,
read, written or called back. What may start is the dispatch's to say; here it is only carried
out: in which thread, several reads at a time, or one thing after the other without a hand-over.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.claims import failure, finish
from napari_materialize.dispatch import COMPUTE, NOTHING, READ, Along, Dispatch, Outcome, Start
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


BRIEF = 5e-3
"""Seconds of computing for which a thread that has read goes on without anybody else being begun:
what could be would wait for a core, or not be taken up before."""

COMPUTES = 0.2
"""The share of its time that a thread has to be at work itself, to count as busy with it: well
above that of one that waits for a server or a GPU, and below what is left of a core that others
want too."""

SMALL, SMALL_QUICK, LARGE_QUICK = 2**15, 1.4, 0.7
"""Bytes of a small chunk, and how much of what the workers take for quick is quick for it, and for
a larger one. Of what a small chunk takes more is Python's own, which threads do by turns: chunks of
16^3 bytes in gzip take 0.16 ms by one thread and 0.22 by two, of 32^3 bytes 0.58 and 0.38."""

type _Given = dict[Index, np.ndarray | Rest] | BaseException


_is_background = operator.attrgetter("background")


class _Here(threading.local):
    """What is known of the calling thread."""

    op = False
    """Whether it is inside an op."""

    background = False
    """Whether it does background work now."""

    computes = False
    """Whether the last piece of work kept a core busy."""


class _End(NamedTuple):
    start: Start
    results: Mapping[Index, np.ndarray] | None
    error: BaseException | None
    seconds: float
    along: Along
    share: float
    """Of that time, and of reading, what the thread was at work itself."""


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
        self.dispatch.queue.expected.on_gone = self._look_again
        # where each piece of work is a step of its own, reading is one
        self.dispatch.needs.reads_along = workers.quick > 0
        self.seconds = {READ: 0.0, COMPUTE: 0.0}
        self.counts = {READ: 0, COMPUTE: 0, "failures": 0}
        self.closed = False
        self._new_dispatch = new_dispatch
        self._workers = workers
        self._cores = cores
        self._here = _Here()
        self._line: deque[Start] = deque()
        """Background work that is for as many threads as there are cores, or for one if it is
        quick: who is done with something takes what is first."""
        self._line_lock = threading.Lock()
        self._serving = 0
        """How many threads do so now."""
        self._writing = 0.0
        """Seconds that it takes to write what is computed; 0 if nobody knows yet."""

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
        self,
        work: Callable[[], None],
        *,
        quick: bool | None = None,
        seconds: float | None = None,
        computes: bool = True,
        in_turn: bool = False,
        more: bool = False,
    ) -> None:
        """Run work that encodes and stores in the threads for it, which take no slots.

        Where it is known to be quick, or ``computes`` and all cores have work, a thread of
        background work does it itself, unless it has to be begun ``in_turn``, after what was handed
        over before. ``seconds``: what it takes for each chunk, as far as known. ``more``: it comes
        of other such work, and says nothing of the time that takes.
        """
        if not more:
            self._writing = math.inf if quick is False else seconds or 0.0
        here = quick and self._workers.quick > 0
        if self._here.background and not in_turn and (here or (computes and self._saturated())):
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

    def hand_over(
        self, outcomes: Sequence[Outcome], starts: Iterable[Start], *, keep: bool = False
    ) -> Start | None:
        """See to it that what started is run, and tell who waited; without the lock.

        ``keep``: return what the calling thread may go on with, if there is something.
        """
        together: list[Start] = []
        kept: Start | None = None
        for start in starts:
            servers = self._servers(start)
            if servers is not None:
                self._put_in_line(start, servers)
            elif keep and kept is None and start.background == self._here.background:
                kept = start
            elif self._is_quick_read(start):
                together.append(start)
            else:
                self._submit([start])
        if together:
            self._submit(together)
        self._tell(outcomes)
        return kept

    def _submit(self, starts: list[Start]) -> None:
        self._workers.submit(*self._work(starts))

    def _work(self, starts: Sequence[Start]) -> Next:
        lane = starts[0].stage.lane
        if starts[0].background:
            lane = BACKGROUND_READ if lane == READ else BACKGROUND
        return lane, partial(self._go, starts)

    def _servers(self, start: Start) -> int | None:
        """Return how many threads are of use for what is like a start; None if any number is.

        One is for quick work, since several would only take turns at Python's lock, and as many as
        there are cores for what keeps a core busy. Work is quick by the processor's time, since
        waiting for that lock counts in the clock's; what is written then is part of it.
        """
        if not start.background or not self._workers.quick:
            return None
        pace = self.dispatch.pace
        seconds, share = self._expected(start), pace.share(start.stage)
        computes = share > COMPUTES
        if seconds is not None:
            worked = (seconds * share if computes else seconds) / len(start.asked)
            level = start.stage.levels[start.members[0].level]
            small = math.prod(level.chunks) * level.dtype.itemsize < SMALL
            quick = self._workers.quick * (SMALL_QUICK if small else LARGE_QUICK)
            if worked + self._writing < quick:
                return 1
        return self._cores if computes else None

    def _is_quick_read(self, start: Start) -> bool:
        """Whether it takes about as long as to hand it to another thread, and can be anywhere."""
        if start.stage.lane != READ or start.background:
            return False
        seconds = self._expected(start)
        return seconds is not None and seconds < self._workers.quick

    def _expected(self, start: Start) -> float | None:
        """Return how many seconds a start will take, reading along included; None if unknown."""
        pace, level = self.dispatch.pace, start.members[0].level
        seconds = pace.expected(start.stage, level, start.asked)
        if start.along and seconds is not None:
            feeding, number = start.stage.feeds(level)
            reading = pace.expected(feeding, number, start.asked)
            return None if reading is None else seconds + reading
        return seconds

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) > 1:
            outcomes = sorted(outcomes, key=_is_background)
        finish(outcome[:3] for outcome in outcomes)
        given_up = self.dispatch.given_up
        while given_up:
            try:
                claim = given_up.popleft()
            except IndexError:  # another thread told the last one
                break
            claim.tell_released()

    # ------------------------------------------------------------------ the line

    def _put_in_line(self, start: Start, servers: int) -> None:
        """Put background work in line, and see to it that up to ``servers`` threads are at it."""
        with self._line_lock:
            self._line.append(start)
            more = self._serving < servers
            self._serving += more
        if more:
            self._workers.submit(BACKGROUND, self._serve)

    def _serve(self) -> None:
        """Do what is in line, until there is nothing, or others are enough for what is first."""
        self._here.background = True
        while True:
            with self._line_lock:
                servers = self._servers(self._line[0]) if self._line else 0
                if servers is not None and self._serving > servers:
                    self._serving -= 1
                    return
                start = self._line.popleft()
            try:
                after = self._run([start])
            except BaseException:
                self._leave_line()
                raise
            if after is not None:
                self._submit([after])

    def _leave_line(self) -> None:
        """Let another thread serve what is in line, for one that cannot go on."""
        with self._line_lock:
            left = bool(self._line)
            self._serving -= not left
        if left:
            self._workers.submit(BACKGROUND, self._serve)

    # ------------------------------------------------------------------ running

    def _go(self, starts: Sequence[Start]) -> Next | None:
        """Run what started, in a worker; return what it may go on with."""
        self._here.background = starts[0].background
        after = self._run(starts)
        return None if after is None else self._work([after])

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
            outcomes = [outcome for end in ended if end for outcome in self._finish(end)]
            starts = self.start()
        return self.hand_over(outcomes, starts, keep=True)

    def _inputs(self, start: Start) -> _Given:
        """Return what a start is computed from, or what keeps it from that; with the lock."""
        try:
            if not self.dispatch.wanted(start.members):
                raise Abandoned
            return self.dispatch.needs.inputs(start.members[0])
        except BaseException as error:  # noqa: BLE001 - an op's, which was kept until now
            return error

    def _compute(self, start: Start, given: list[_Given]) -> _End | None:
        """Compute or read; the inputs are the last ones given. None if it is in line again."""
        along = NOTHING
        began, worked = time.perf_counter(), time.thread_time()
        if start.along and not isinstance(given[-1], BaseException):
            along, given[-1] = self._read_along(start)
            if not self._take_slot(start, along):
                given.pop()
                return None
        results, error = self._results(start, given)
        seconds = time.perf_counter() - began
        share = min(1.0, (time.thread_time() - worked) / max(seconds, 1e-9))
        self._here.computes = share > COMPUTES
        return _End(start, results, error, seconds - along.seconds, along, share)

    def _results(
        self, start: Start, given: list[_Given]
    ) -> tuple[Mapping[Index, np.ndarray] | None, BaseException | None]:
        """Compute or read; no voxels in this frame, which outlives a failure in its traceback."""
        level = start.members[0].level
        try:
            self._here.op = True
            abandoned = partial(self._abandoned, start)
            # handed straight on: a local variable would outlive a failure
            results = start.stage.compute(level, start.asked, _voxels(given.pop()), abandoned)
        except Abandoned:
            return None, None
        except BaseException as cause:  # noqa: BLE001 - whatever an op raises is its chunk's failure
            return None, failure(start.stage.title, start.members[0], cause)
        finally:
            self._here.op = False
        return results, None

    def _abandoned(self, start: Start) -> bool:
        with self.lock:
            return not self.dispatch.wanted(start.members)

    def _read_along(self, start: Start) -> tuple[Along, _Given]:
        """Read what a start reads by itself; return it, and what there is to compute from."""
        key = start.members[0]
        feeding, level = start.stage.feeds(key.level)
        blocks: dict[Index, np.ndarray | BaseException] = {}
        found: dict[Index, np.ndarray] = {}
        began, failed = time.perf_counter(), None
        for part in start.along:
            try:
                found.update(feeding.compute(level, (part.chunk,), {}))
            except BaseException as cause:  # noqa: BLE001 - whatever a source raises is its chunk's
                failed = blocks[part.chunk] = failure(feeding.title, part, cause)
                break
        blocks.update(found)
        along = Along(blocks, time.perf_counter() - began)
        return along, {**found} if failed is None else failed

    def _take_slot(self, start: Start, along: Along) -> bool:
        """Take a slot for computing after reading; False if there is none now."""
        with self.lock:
            if self.closed:
                return False
            seconds = self.dispatch.pace.expected(start.stage, start.members[0].level, start.asked)
            brief = seconds is not None and seconds < BRIEF
            outcomes = self.dispatch.go_on(start, along, brief=brief)
            starts = [] if brief and outcomes is None else self.start()
            if outcomes is not None:
                self._count(along)
        if starts or outcomes:
            self.hand_over(outcomes or (), starts)
        return outcomes is None

    def _count(self, along: Along) -> None:
        failed = sum(isinstance(block, BaseException) for block in along.blocks.values())
        self.seconds[READ] += along.seconds
        self.counts[READ] += len(along.blocks) - failed
        self.counts["failures"] += failed

    def _finish(self, end: _End) -> list[Outcome]:
        lane = end.start.stage.lane
        self._count(end.along)
        self.seconds[lane] += end.seconds
        made = 0 if end.results is None else len(end.results) if lane == READ else 1
        self.counts[lane] += made
        self.counts["failures"] += end.error is not None
        if end.results is not None:
            self.dispatch.pace.note_share(end.start.stage, end.share)
        return self.dispatch.finish(end.start, end.results, end.error, end.seconds, end.along)


def _voxels(given: _Given) -> dict[Index, np.ndarray | Rest]:
    if isinstance(given, BaseException):
        raise given
    return given
