"""Writing a box of a view to a store: the loop, its progress, its end, and the receipt.

Each chunk is claimed as background work, assembled, encoded, stored, and let go. At most
``concurrency`` chunks are asked for at a time, and no more than as many again wait to be written.
The engine owns the threads; this module owns what happens to a chunk between being there and being
stored, and the record of what made the result. What is asked for is decided in `plan`.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
import time
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from napari_materialize.assembly import Assembly, Made
from napari_materialize.codecs import chunk_bytes, is_fill
from napari_materialize.errors import ChunkError, EngineClosed, OptionError
from napari_materialize.plan import LevelPlan, Options, Plan, Where, make_plan
from napari_materialize.recipe import changed_source, view_record
from napari_materialize.stores import TakenStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = ["ChunkService", "Failure", "Materialized", "Where", "materialize"]

_LIBRARIES = ("numpy", "scipy", "zarr", "onnxruntime")
"""What had a hand in the voxels, if it was loaded."""

POLL = 0.02
"""Seconds between looks at the cancel event, which nobody else can wait for."""

GRACE = 0.15
"""Seconds that an aborted job waits for the writes under way."""


class ChunkService(Protocol):
    """What a job needs of an engine."""

    @property
    def slots(self) -> int:
        """Computations at a time."""

    @property
    def closed(self) -> bool:
        """Whether it takes no claims any more."""

    def claim_all(
        self,
        view: View,
        level: int,
        indices: Sequence[Sequence[int]],
        *,
        background: bool = False,
        priority: int = 0,
        cancel: threading.Event | None = None,
    ) -> list[ChunkClaim]:
        """Ask for chunks, before any of them is begun."""

    def release_all(self, claims: Iterable[ChunkClaim]) -> None:
        """Let chunks go."""

    def block(self, view: View, level: int) -> Index:
        """Return how many chunks along each axis are computed in one call, as of now."""

    def run_writer(self, work: Callable[[], None]) -> None:
        """Run work that encodes and stores, soon, in a thread for it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One chunk that could not be written."""

    level: int
    """The view's level."""

    index: Index
    """The chunk's place in the written array."""

    reason: str
    """Why, in a sentence."""


@dataclass(frozen=True, slots=True)
class Materialized:
    """The receipt of a job."""

    chunks: int
    """Chunks the job was about."""

    written: int
    """Chunks stored."""

    skipped: int
    """Chunks of nothing but the fill value, left out."""

    failed: int
    """Chunks that failed."""

    bytes: int
    """Bytes of the stored chunks, compressed."""

    aborted: bool
    """Whether it was stopped before its end."""

    seconds: float
    """How long it took."""

    failures: tuple[Failure, ...] = ()
    """Which chunks failed, and why."""


def materialize(service: ChunkService, view: View, where: Where, **options: Any) -> Materialized:
    """Compute a box of a view and write it; see `Engine.materialize`."""
    known = [each.name for each in fields(Options)]
    for name in options:
        if name not in known:
            raise OptionError(
                f"option {name!r}: there is none of that name; known are {', '.join(known)}"
            )
    return carry_out(service, make_plan(view, where, Options(**options)))


def carry_out(service: ChunkService, plan: Plan) -> Materialized:
    """Do what is planned."""
    began, started = time.perf_counter(), _now()
    run = _Run(service, plan)
    documents = _documents(plan, {"status": "running", "started": started})
    taken = plan.store if isinstance(plan.store, TakenStore) else None
    if taken is not None:
        taken.begin()
    try:
        _put(plan, documents)
        return _write(plan, run, began, started)
    finally:
        if taken is not None:
            taken.end()


def _write(plan: Plan, run: _Run, began: float, started: str) -> Materialized:
    try:
        run.go()
        if (reason := changed_source(plan.view)) is not None:
            raise ChunkError(f"the source changed in mid-job, so the result is not whole: {reason}")
    except BaseException as error:
        done = run.receipt(time.perf_counter() - began)
        if isinstance(error, ChunkError):
            error.receipt = done
        status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            _put_end(plan, status, started, done)
        except OSError as second:
            error.add_note(f"the record of this end could not be written either: {second}")
        raise
    done = run.receipt(time.perf_counter() - began)
    _put_end(plan, "aborted" if done.aborted else "complete", started, done)
    return done


def _put_end(plan: Plan, status: str, started: str, done: Materialized) -> None:
    names = ("chunks", "written", "skipped", "failed", "bytes")
    counts = {name: getattr(done, name) for name in names}
    end = {"status": status, "started": started, "ended": _now(), "counts": counts}
    _put(plan, _documents(plan, end))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _put(plan: Plan, documents: Mapping[str, bytes]) -> None:
    for path, data in documents.items():
        plan.store.put(path, data)


def _documents(plan: Plan, state: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the metadata with the record of what makes the result."""
    options = plan.options
    record = {
        "version": version("napari-materialize"),
        "libraries": {
            name: sys.modules[name].__version__ for name in _LIBRARIES if name in sys.modules
        },
        "view": view_record(plan.view),
        "levels": [
            {"level": each.level, "box": [list(each.box.start), list(each.box.stop)]}
            for each in plan.levels
        ],
        "extent": options.extent,
        "format": options.format,
        "compression": str(plan.compression),
        "skip_empty": options.skip_empty,
        **state,
    }
    return plan.layout.documents(replace(plan.document, record=record))


@dataclass(slots=True)
class _Tally:
    written: int = 0
    skipped: int = 0
    failed: int = 0
    bytes: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.written + self.skipped + self.failed


class _Unit(NamedTuple):
    """What is asked for at a time."""

    level: LevelPlan
    chunks: list[Index]
    """Chunks of the view."""

    full: int
    """How many chunks are computed in one call, away from the box's faces."""


class _Run:
    """One job under way. Its lock guards its own counts, and is never held while anything runs."""

    def __init__(self, service: ChunkService, plan: Plan) -> None:
        self._service = service
        self._plan = plan
        self._limit = plan.options.concurrency or service.slots
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._walk = self._units()
        self._unit = next(self._walk, None)
        """What is asked for next; None once all is asked for."""
        self._lines = {
            each.position: (Assembly.of(each, plan.view.levels[each.level].grid), threading.Lock())
            for each in plan.levels
        }
        self._claims: set[ChunkClaim] = set()
        self._asked = 0
        """Chunks asked for and not there yet."""
        self._arrived = 0
        """Chunks that are there, or failed, and not dealt with yet."""
        self._feeders: set[int] = set()
        self._tally = _Tally()
        self._error: BaseException | None = None
        self._aborted = False
        self._cancelled = False
        """Whether the engine found the cancel event set, if only for a moment."""

    def _units(self) -> Iterator[_Unit]:
        """Walk what is asked for at a time: a chunk, or as many as are computed in one call."""
        view = self._plan.view
        for each in self._plan.levels:
            unit: list[Index] = []
            before = None
            for index in view.walk(each.level, each.box):
                counts = self._service.block(view, each.level)
                place = (counts, tuple(map(operator.floordiv, index, counts)))
                if unit and place != before:
                    yield _Unit(each, unit, math.prod(before[0] if before else ()))
                    unit = []
                unit.append(index)
                before = place
            if unit:
                yield _Unit(each, unit, math.prod(before[0] if before else ()))

    # ------------------------------------------------------------------ the caller's thread

    def go(self) -> None:
        """Feed the engine until all is done or something stops it; raise what failed."""
        told: dict[str, int] | None = None
        try:
            self._feed()
            over = False
            while not over:
                with self._changed:
                    if self._progress() == told and not self._over():
                        self._changed.wait(POLL)
                    over, now = self._over(), self._progress()
                if now != told and self._plan.options.on_progress is not None:
                    self._plan.options.on_progress(dict(now))
                told = now
                over = over or self._stopped()
        finally:
            self._end()
        self._aborted = self._aborted or self._cancelled
        if self._error is not None and not self._aborted:
            raise self._error

    def _stopped(self) -> bool:
        """Look whether somebody stops the job from outside."""
        if self._service.closed:
            raise EngineClosed("the engine was closed before the job was done")
        cancel = self._plan.options.cancel
        self._aborted = self._cancelled or (cancel is not None and cancel.is_set())
        return self._aborted

    def _over(self) -> bool:
        if self._stop.is_set():
            return self._arrived == 0
        return self._unit is None and self._asked == 0 and self._arrived == 0

    def _progress(self) -> dict[str, int]:
        tally = self._tally
        counts = {name: getattr(tally, name) for name in ("written", "skipped", "failed", "bytes")}
        return {"done": tally.done, "total": self._plan.chunks, **counts}

    def _end(self) -> None:
        """Start nothing more, give up what waits, let the writes under way finish for a moment."""
        self._give_up()
        deadline = time.monotonic() + GRACE
        with self._changed:
            while self._arrived and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def receipt(self, seconds: float) -> Materialized:
        """Say what was done."""
        with self._changed:
            tally = self._tally
            return Materialized(
                chunks=self._plan.chunks,
                written=tally.written,
                skipped=tally.skipped,
                failed=tally.failed,
                bytes=tally.bytes,
                aborted=self._aborted,
                seconds=seconds,
                failures=tuple(tally.failures),
            )

    # ------------------------------------------------------------------ any thread

    def _feed(self) -> None:
        """Claim chunks while there is room."""
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
        with self._changed:
            unit = self._unit
            if unit is None or self._stop.is_set():
                return None
            room, more = self._limit * unit.full, len(unit.chunks)
            if self._asked + more > room or self._asked + self._arrived + more > 2 * room:
                return None
            self._asked += more
            self._unit = next(self._walk, None)
            return unit

    def _claim(self, unit: _Unit) -> None:
        claims = self._service.claim_all(
            self._plan.view,
            unit.level.level,
            unit.chunks,
            background=True,
            cancel=self._plan.options.cancel,
        )
        with self._changed:
            self._claims.update(claims)
        for claim in claims:
            if self._stop.is_set():
                claim.release()
            claim.add_done_callback(partial(self._arrive, unit.level))

    def _arrive(self, each: LevelPlan, claim: ChunkClaim) -> None:
        """Take a chunk that is there, or failed; hand it on to be written."""
        with self._changed:
            self._claims.discard(claim)
            self._asked -= 1
            if claim.released:
                # given up by the job itself, or by the engine because the cancel event was set
                if not self._stop.is_set():
                    self._cancelled = True
                    self._stop.set()
                self._changed.notify_all()
                return
            self._arrived += 1
        self._service.run_writer(partial(self._deal, each, claim))
        self._feed()

    def _deal(self, each: LevelPlan, claim: ChunkClaim) -> None:
        """Write a chunk; in a writer's thread."""
        try:
            if not self._stop.is_set():
                self._write(each, claim)
        except Exception as error:  # noqa: BLE001 - whatever it is ends the job, not the thread
            self._fail(error)
        finally:
            claim.release()
            with self._changed:
                self._arrived -= 1
                self._changed.notify_all()
        self._feed()

    def _write(self, each: LevelPlan, claim: ChunkClaim) -> None:
        assembly, lock = self._lines[each.position]
        try:
            block = claim.result()
        except ChunkError as error:
            with lock:
                lost = assembly.lose(claim.key.chunk)
            for index in lost:
                self._lose(each, index, error)
            return
        with lock:
            complete = list(assembly.add(claim.key.chunk, block))
        for made in complete:
            try:
                self._store(each, made)
            except Exception as error:  # noqa: BLE001 - a store's, whatever it is: its chunk's failure
                path = self._plan.layout.chunk_key(each.position, made.chunk)
                failure = ChunkError(
                    f"chunk {made.chunk} of level {each.level} could not be written as {path}: "
                    f"{error}"
                )
                failure.__cause__ = error
                self._lose(each, made.chunk, failure)

    def _store(self, each: LevelPlan, made: Made) -> None:
        plan, array = self._plan, each.array
        size = 0
        if not (plan.options.skip_empty and is_fill(made.block, array.fill)):
            data = plan.compression.encode(
                chunk_bytes(made.block, array.chunks, array.fill), array.dtype
            )
            plan.store.put(plan.layout.chunk_key(each.position, made.chunk), data)
            size = len(data)
        with self._changed:
            self._tally.written += size > 0
            self._tally.skipped += size == 0
            self._tally.bytes += size
            self._changed.notify_all()

    def _lose(self, each: LevelPlan, index: Index, error: ChunkError) -> None:
        """Take note of a failed chunk; stop for it if that is what was asked."""
        with self._changed:
            self._tally.failed += 1
            self._tally.failures.append(Failure(each.level, index, str(error)))
            self._changed.notify_all()
        if self._plan.options.on_error == "raise":
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the job for an error; the first one is raised."""
        with self._changed:
            if self._error is None:
                self._error = error
        self._give_up()

    def _give_up(self) -> None:
        """Ask for nothing more and give up what is asked for."""
        self._stop.set()
        with self._changed:
            claims = list(self._claims)
            self._changed.notify_all()
        self._service.release_all(claims)
