"""One job under way: chunks are asked for, arrive, are handed on to be written, and let go.

Owns how much is asked for at a time, and every way a job can end before its end.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from napari_materialize.errors import ChunkError, EngineClosed, StoreError, reason_of
from napari_materialize.job._extremes import Extremes
from napari_materialize.job._receipt import Tally
from napari_materialize.job._shelf import shelves
from napari_materialize.job._stored import Deriver
from napari_materialize.job._walk import walk
from napari_materialize.job._written import written_levels
from napari_materialize.stores import BEAT, TakenStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.geometry import Box, Index
    from napari_materialize.job._keeper import Keeper
    from napari_materialize.job._receipt import Materialized
    from napari_materialize.job._service import ChunkService
    from napari_materialize.job._todo import Todo
    from napari_materialize.plan import LevelPlan, Plan

__all__ = ["Run"]

QUICK_WRITE = 5e-4
"""Seconds below which a chunk is written by the thread that computed it."""

SLOWER = 0.05
"""The share that a write has in what is remembered of them, unless it was a faster one: that many
threads wait for each other makes nothing slow."""

COMPUTES = 0.2
"""The share of its time that a write has to be at work itself, to count as busy with it."""

LOOKS = 4
"""Of so many writes that share is measured once, by a clock that is the system's to read."""

BLOCK_HOLDS = 0.02
"""Seconds for which a block's size, once asked for, is not asked for again."""

POLL = 0.02
"""Seconds between looks at the cancel event, which nobody else can wait for, and at progress."""

TELL_EVERY = 0.05
"""Seconds between two reports of progress, so that a fast job does not drown who listens."""

GRACE = 0.15
"""Seconds that an aborted job waits for the writes under way."""


class _Unit(NamedTuple):
    """What is asked for at a time."""

    level: LevelPlan
    piece: Box
    """What it is asked for: voxels of the view's level."""

    chunks: list[Index]
    """Chunks of the view."""

    full: int
    """How many chunks are computed in one call, away from the box's faces."""


class Run:
    """One job under way. Its lock guards its own counts, and is never held while anything runs."""

    def __init__(self, service: ChunkService, plan: Plan, todo: Todo, keeper: Keeper) -> None:
        self._service = service
        self._plan = plan
        self._todo = todo
        self._keeper = keeper
        self._limit = plan.options.concurrency or service.slots
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._writing = 0
        """Portions of chunks that are being written."""
        self._when_quiet: Callable[[], None] | None = None
        self._beaten = time.monotonic()
        self._said = time.monotonic() - TELL_EVERY
        """When progress was reported last."""
        self._told: dict[str, int] = {}
        """What was reported then."""
        self._walk = self._units()
        self._unit = next(self._walk, None)
        """What is asked for next; None once all is asked for."""
        self._claims: set[ChunkClaim] = set()
        self._asked = 0
        """Chunks asked for and not there yet."""
        self._arrived = 0
        """Chunks that are there, or failed, and not dealt with yet."""
        self._failing = 0
        """Those of them that failed."""
        self._feeders: set[int] = set()
        self._pace: float | None = None
        """Seconds that a chunk takes to write, as measured."""
        self._share = 1.0
        """The share of them that the thread is at work itself, and does not wait for the store."""
        self._looks = itertools.cycle([True] + [False] * (LOOKS - 1))
        found = plan.chunks - todo.chunks
        self._tally = Tally(todo.chunks, self._lock, self._note, found)
        self.seen = Extremes(plan.levels[0].array) if plan.document.wants_windows else None
        """What was seen of the values of each channel, where it is looked for."""
        self._written = written_levels(
            plan, self._tally, self.seen, todo, keeper, aside=self._aside
        )
        self._shelves = shelves(plan)
        for level in plan.levels:
            if level.position in self._shelves:
                service.remember(plan.view, level.level, self._shelves[level.position])
        self._error: BaseException | None = None
        self._aborted = False
        self._cancelled = False
        """Whether the engine found the cancel event set, if only for a moment."""

    def _units(self) -> Iterator[_Unit]:
        """Walk what is asked for at a time: a chunk, or as many as are computed in one call."""
        view = self._plan.view
        for each, piece, indices in walk(self._plan):
            unit: list[Index] = []
            before: tuple[Index, Index] | None = None
            counts, asked = self._service.block(view, each.level), time.monotonic()
            for index in indices:
                if not self._todo.needs(each, index, piece):
                    continue
                if (now := time.monotonic()) > asked + BLOCK_HOLDS:
                    counts, asked = self._service.block(view, each.level), now
                place = (counts, tuple(map(operator.floordiv, index, counts)))
                if unit and place != before:
                    yield _Unit(each, piece, unit, math.prod(before[0] if before else ()))
                    unit = []
                unit.append(index)
                before = place
            if unit:
                yield _Unit(each, piece, unit, math.prod(before[0] if before else ()))

    # ------------------------------------------------------------------ the caller's thread

    def go(self) -> None:
        """Feed the engine until all is done or something stops it; raise what failed."""
        try:
            self._feed()
            over = False
            while not over:
                with self._changed:
                    if not self._over():
                        self._changed.wait(POLL)
                    over = self._over()
                self._report(last=over)
                over = over or self._stopped()
            self._report(last=True)
            self._derive()
        finally:
            self._end()
        self._aborted = self._aborted or self._cancelled
        if self._error is not None and not self._aborted:
            raise self._error

    def _report(self, *, last: bool) -> None:
        """Tell whoever listens what is new: now and then, and what was held back when it is due.

        A job may stand still after any chunk, so nothing waits for the next one to be told.
        """
        listener, now = self._plan.options.on_progress, time.monotonic()
        if listener is None or not (last or now - self._said >= TELL_EVERY):
            return
        with self._lock:
            counts = self._tally.progress()
        if counts != self._told:
            self._said, self._told = now, counts
            listener(dict(counts))

    def _derive(self) -> None:
        """Make what is made of stored voxels, now that these are there."""
        if self._todo.fresh:
            return
        deriver = Deriver(self._plan, self._keeper, self._written)
        for coarser, file in self._todo.later():
            if self._stop.is_set() or self._stopped():
                return
            deriver.make(coarser, file)
            self._report(last=False)
        self._report(last=True)

    def _beat(self) -> None:
        """Give a sign of life now and then: other machines see no process."""
        store, now = self._plan.store, time.monotonic()
        if now - self._beaten >= BEAT and isinstance(store, TakenStore):
            self._beaten = now
            store.beat()

    def _stopped(self) -> bool:
        """Look whether somebody stops the job from outside."""
        self._beat()
        if self._service.closed:
            raise EngineClosed("the engine was closed before the job was done")
        cancel = self._plan.options.cancel
        self._aborted = self._cancelled or (cancel is not None and cancel.is_set())
        return self._aborted

    def _over(self) -> bool:
        if self._stop.is_set():
            return self._arrived == 0
        return self._unit is None and self._asked == 0 and self._arrived == 0

    def _end(self) -> None:
        """Start nothing more, give up what waits, let the writes under way finish for a moment."""
        self._give_up()
        self._keeper.gone.set()
        deadline = time.monotonic() + GRACE
        with self._changed:
            while self._writing and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    @property
    def asks_for_all(self) -> bool:
        """Whether every chunk of the job's boxes is asked for."""
        return self._todo.fresh

    def when_quiet(self, call: Callable[[], None]) -> None:
        """Call something once nothing is written any more: now, or after the last write ends.

        A store may take long for a write that was under way when the job ended. Nobody else may
        write there until it is over.
        """
        with self._lock:
            if self._writing:
                self._when_quiet = call
                return
        call()

    def receipt(self, seconds: float) -> Materialized:
        """Say what was done."""
        return self._tally.receipt(seconds, aborted=self._aborted)

    # ------------------------------------------------------------------ any thread

    def _feed(self) -> None:
        """Claim chunks while there is room."""
        if not self._may_ask(self._unit):
            return
        me = threading.get_ident()
        if me in self._feeders:  # a claim was fulfilled at once: the loop below goes on anyway
            return
        self._feeders.add(me)
        try:
            while (work := self._next()) is not None:
                self._claim(work)
        except EngineClosed as error:
            self._fail(error)
        finally:
            self._feeders.discard(me)

    def _next(self) -> _Unit | None:
        """Return what to ask for next, if there is something and room for it."""
        with self._lock:
            unit = self._unit
            if unit is None or not self._may_ask(unit):
                return None
            self._asked += len(unit.chunks)
            self._unit = next(self._walk, None)
            return unit

    def _may_ask(self, unit: _Unit | None) -> bool:
        """Whether there is room for a unit. Without the lock it may be wrong, but not after the
        last change: who made that looks again.
        """
        if unit is None or self._stop.is_set():
            return False
        room, more = self._limit * unit.full, len(unit.chunks)
        return self._asked + more <= room and self._asked + self._arrived + more <= 2 * room

    def _claim(self, unit: _Unit) -> None:
        claims = self._service.claim_all(
            self._plan.view,
            unit.level.level,
            unit.chunks,
            background=True,
            cancel=self._plan.options.cancel,
            together=partial(self._arrive, unit),
        )
        with self._lock:
            self._claims.update(claims)
            # who was told of them already is told no more
            self._claims.difference_update([claim for claim in claims if claim.done])
        if self._stop.is_set():
            self._service.release_all(claims)

    def _arrive(self, unit: _Unit, claims: list[ChunkClaim]) -> None:
        """Take chunks that are there, or failed; hand them on to be written."""
        quick = None if self._pace is None else self._pace < QUICK_WRITE
        with self._lock:
            self._claims.difference_update(claims)
            self._asked -= len(claims)
            there = [claim for claim in claims if not claim.released]
            if len(there) < len(claims):
                # given up by the job itself, or by the engine because the cancel event was set
                if not self._stop.is_set():
                    self._cancelled = True
                    self._stop.set()
                self._changed.notify_all()
            self._arrived += len(there)
            together = quick and not any(claim.failed for claim in there)
            portions = [there] if together else [[claim] for claim in there]
            works = [(self._portion(unit, each), self._in_turn(each)) for each in portions if each]
        for work, in_turn in works:
            self._service.run_writer(
                work,
                quick=quick,
                seconds=self._pace,
                computes=self._share > COMPUTES,
                in_turn=in_turn,
            )
        self._feed()

    def _portion(self, unit: _Unit, claims: list[ChunkClaim]) -> Callable[[], None]:
        """Return what there is to do for chunks that are written by one thread; with the lock."""
        # a failure may stop the job: what came before it is written first, what comes after not
        late = self._failing > 0 and self._plan.options.on_error == "raise"
        self._failing += sum(claim.failed for claim in claims)
        return partial(self._deal, unit, claims, late=late)

    def _in_turn(self, claims: list[ChunkClaim]) -> bool:
        """Whether a failure has to wait for what is to be written before it; with the lock."""
        return claims[0].failed and self._arrived - self._writing > 1

    def _deal(self, unit: _Unit, claims: list[ChunkClaim], *, late: bool) -> None:
        """Write chunks, unless they came too ``late``; in a writer's thread."""
        with self._lock:
            writes = not late and not self._stop.is_set()
            self._writing += writes
        worked = time.thread_time() if (looks := next(self._looks)) else 0.0
        began = time.perf_counter()
        try:
            if writes:
                self._take_all(unit, claims)
                took = time.perf_counter() - began
                self._note_pace(took / len(claims))
                if looks:
                    share = min(1.0, (time.thread_time() - worked) / max(took, 1e-9))
                    self._share += LOOKS * SLOWER * (share - self._share)
        except Exception as error:  # noqa: BLE001 - whatever it is ends the job, not the thread
            self._fail(error)
        finally:
            self._service.release_all(claims)
            failed = sum(claim.failed for claim in claims)
            self._dealt(len(claims), failed=failed, wrote=writes)
        self._feed()

    def _note_pace(self, took: float) -> None:
        pace = took if self._pace is None else self._pace
        self._pace = min(took, pace + SLOWER * (took - pace))

    def _dealt(self, count: int = 1, *, failed: int = 0, wrote: bool = True) -> None:
        """Take note that chunks that were there are dealt with."""
        call = None
        with self._lock:
            self._arrived -= count
            self._failing -= failed
            self._writing -= wrote
            if not self._writing:
                call, self._when_quiet = self._when_quiet, None
            if self._stop.is_set() or self._over():
                self._changed.notify_all()
        if call is not None:
            call()

    def _take_all(self, unit: _Unit, claims: list[ChunkClaim]) -> None:
        # where others go on, a note that cannot be made is the failure of its own chunk alone
        each = len(claims) == 1 or self._plan.options.on_error == "collect"
        try:
            with nullcontext() if each else self._keeper.together():
                for claim in claims:
                    if self._stop.is_set():
                        return
                    self._take(unit, claim)
        except StoreError as error:
            places = " to ".join(str(claim.key.chunk) for claim in (claims[0], claims[-1]))
            raise ChunkError(
                f"chunks {places} of level {unit.level.level} could not be noted as written: "
                f"{reason_of(error)}"
            ) from error

    def _take(self, unit: _Unit, claim: ChunkClaim) -> None:
        written, index = self._written[unit.level.position], claim.key.chunk
        try:
            block = claim.result()
        except ChunkError as error:
            written.lose(index, error, unit.piece)
        else:
            written.take(index, block, unit.piece)
            if unit.level.position in self._shelves:
                self._shelves[unit.level.position].note(index, block)

    def _aside(self, work: Callable[[], None]) -> None:
        """Deal with a coarser chunk: in another thread, unless all cores have work.

        So they have while chunks come that take a while to write. It counts as one that is there.
        """
        with self._lock:
            self._arrived += 1
            slow = self._pace is not None and self._pace >= QUICK_WRITE
            busy = slow and self._unit is not None
        computes = self._share > COMPUTES
        if busy and computes:
            self._deal_aside(work)
        else:
            aside = partial(self._deal_aside, work)
            self._service.run_writer(aside, computes=computes, more=True)

    def _deal_aside(self, work: Callable[[], None]) -> None:
        """Deal with a coarser chunk, unless the job stopped: its store may be another's by now."""
        with self._lock:
            writes = not self._stop.is_set()
            self._writing += writes
        try:
            if writes:
                work()
        except Exception as error:  # noqa: BLE001 - whatever it is ends the job, not the thread
            self._fail(error)
        finally:
            self._dealt(wrote=writes)
        self._feed()

    def _note(self, error: ChunkError) -> None:
        """Stop for a chunk that failed, if that is what was asked."""
        if self._plan.options.on_error == "raise":
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the job for an error; the first one is raised."""
        with self._lock:
            if self._error is None:
                self._error = error
        self._give_up()

    def _give_up(self) -> None:
        """Ask for nothing more and give up what is asked for."""
        self._stop.set()
        with self._lock:
            claims = list(self._claims)
            self._changed.notify_all()
        self._service.release_all(claims)
