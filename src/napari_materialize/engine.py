"""The engine: where a view, the queue and the cache meet, as everybody sees it.

What is asked of it is asked of a `Dispatch` under the lock of its `Runner`, which owns the threads.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from napari_materialize.blocks import BLOCK_BYTES, BlockLimits
from napari_materialize.cache import MIB, ChunkState, Event, Pool
from napari_materialize.claims import ChunkClaim
from napari_materialize.dispatch import COMPUTE, READ, Dispatch
from napari_materialize.errors import EngineClosed, OptionError
from napari_materialize.figures import figures, snapshot
from napari_materialize.runner import BACKGROUND, BACKGROUND_READ, WRITE, Runner
from napari_materialize.stages import ChunkKey
from napari_materialize.uses import first_region
from napari_materialize.workers import DaemonWorkers, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from napari_materialize.estimate import Estimate
    from napari_materialize.geometry import Box, Index
    from napari_materialize.job import Materialized, Where
    from napari_materialize.reader import ViewArray
    from napari_materialize.view import View
    from napari_materialize.written import WrittenChunks

__all__ = ["Engine"]

RELEASED_AT_A_TIME = 64
"""Claims that are released under the lock at a time."""

MAKE_WAY = 1e-4
"""Seconds that whoever releases many claims leaves to a client that asks."""


class Engine:
    """Computes the chunks of views, for viewers and jobs at once, each chunk once.

    Parameters
    ----------
    slots : int, optional
        Computations at a time; the number of cores plus one by default, since one is kept free of
        background work.
    readers : int, optional
        Source chunks read at a time, apart from the slots; as many as slots, at least 2, at most 8.
    chunk_bytes, stage_bytes, input_bytes : int
        Budgets: chunks a client asked for (256 MiB), kept outputs of stages (512 MiB), decoded
        source chunks (128 MiB).
    block_seconds : float
        How long background work may compute several chunks in one call, which saves work where
        halos are large: a client whose chunk is among them waits so long at most.
    block_bytes : int
        How much memory the voxels of such a block may take, in every slot (96 MiB): three times
        a float32 for each voxel that the ops are handed. A model with a large halo works best with
        much more.
    nice : int
        How much lower the system ranks background work's threads, 0 to 19 (on Linux alone).
    workers : Workers, optional
        What runs the work; daemon threads by default. A test may hand in `ManualWorkers`.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view(np.arange(12, dtype="u1").reshape(3, 4), ops=["threshold:low=5"])
    >>> with nm.Engine(slots=2) as engine:
    ...     engine.array(view, level=0)[1]
    array([0, 1, 1, 1], dtype=uint8)
    """

    def __init__(
        self,
        slots: int | None = None,
        *,
        readers: int | None = None,
        chunk_bytes: int = 256 * MIB,
        stage_bytes: int = 512 * MIB,
        input_bytes: int = 128 * MIB,
        block_seconds: float = 1.0,
        block_bytes: int = BLOCK_BYTES,
        nice: int = 19,
        workers: Workers | None = None,
    ) -> None:
        cores = os.cpu_count() or 1
        self.slots = cores + 1 if slots is None else slots
        readers = min(8, max(2, self.slots)) if readers is None else readers
        for name, value in (("slots", self.slots), ("readers", readers)):
            if not isinstance(value, Integral) or value < 1:
                raise OptionError(
                    f"engine: {name} must be at least 1, and whole, got {value!r}; correct it"
                )
        budgets = {Pool.CHUNKS: chunk_bytes, Pool.STAGES: stage_bytes, Pool.INPUTS: input_bytes}
        limits = BlockLimits(block_seconds, block_bytes, max(1, self.slots - 1))
        new_dispatch = partial(Dispatch, {COMPUTE: self.slots, READ: readers}, budgets, limits)
        # a client's chunk is computed by the thread that read the last of its inputs, and all that
        # is background work's by threads of its own
        threads = readers + self.slots
        lanes: dict[str | tuple[str, ...], int] = {
            (READ, COMPUTE): threads,
            (BACKGROUND, BACKGROUND_READ): threads,
            WRITE: max(2, cores),
        }
        workers = workers or DaemonWorkers(lanes, {BACKGROUND: nice, WRITE: nice})
        self.views: dict[str, View] = {}
        """Views by name, for text such as ``view:smooth`` that names one of them as a source."""
        self._runner = Runner(new_dispatch, workers, cores)
        self._lock = self._runner.lock
        self._arriving = 0

    @property
    def _dispatch(self) -> Dispatch:
        return self._runner.dispatch

    # ------------------------------------------------------------------ asking

    def claim(
        self,
        view: View,
        level: int,
        index: Sequence[int],
        *,
        background: bool = False,
        priority: int = 0,
        cancel: threading.Event | None = None,
    ) -> ChunkClaim:
        """Ask for one chunk.

        Parameters
        ----------
        view : View
            Whose chunk.
        level : int
            0 is the finest.
        index : sequence of int
            The chunk's place in the level's grid, one number per axis.
        background : bool
            Whether the claim is background work's, which gives way to every client.
        priority : int
            Within its class a lower number comes first, before the level counts.
        cancel : threading.Event, optional
            Once it is set the claim counts as given up.

        Returns
        -------
        ChunkClaim
            Hold it until the chunk is used, then release it.

        Raises
        ------
        LevelError, IndexError
            If there is no such level or chunk.
        EngineClosed
            If the engine is closed.
        """
        (claim,) = self.claim_all(
            view, level, [index], background=background, priority=priority, cancel=cancel
        )
        return claim

    def claim_all(
        self,
        view: View,
        level: int,
        indices: Sequence[Sequence[int]],
        *,
        background: bool = False,
        priority: int = 0,
        cancel: threading.Event | None = None,
        together: Callable[[list[ChunkClaim]], None] | None = None,
    ) -> list[ChunkClaim]:
        """Ask for several chunks of a level before any of them is begun; see `claim`.

        ``together`` is called with all of them that are over at once, in an engine's thread; those
        given up too, though not with others. It must be short, as any callback of a claim.
        """
        if cancel is not None and not isinstance(cancel, threading.Event):
            raise OptionError(f"cancel: a threading.Event is expected, got {cancel!r}")
        _check_view(view)
        claims = [ChunkClaim(key, self._release, together) for key in view.keys(level, indices)]
        self._arriving += not background
        try:
            with self._lock:
                self._check_open()
                ask = partial(self._dispatch.claim, background=background, priority=priority)
                given = [ask(claim, view.stages[-1], cancel=cancel) for claim in claims]
                starts = self._runner.start()
        finally:
            self._arriving -= not background
        self._runner.hand_over([outcome for outcome in given if outcome is not None], starts)
        return claims

    def release_all(self, claims: Iterable[ChunkClaim]) -> None:
        """Release many claims: a few at a time, so that a client that asks meanwhile gets in."""
        left, may = [claim for claim in claims if claim.mark_released()], False
        while left:
            some, left = left[:RELEASED_AT_A_TIME], left[RELEASED_AT_A_TIME:]
            with self._lock:
                for claim in some:
                    may = self._dispatch.release(claim) or may
                # what these would have been followed by may be about to be released too
                starts = self._runner.start() if may and not left else []
            self._runner.hand_over([], starts)
            for claim in some:
                claim.tell_released()
            self._make_way()

    def expect(self, client: object, *, soon: bool) -> None:
        """Say that a client is about to ask for chunks, or, where not ``soon``, no more.

        Meanwhile background work starts nothing: what it has started when the client asks takes a
        slot each, until it is over. To say so again and again, as for each step of a slider, lets
        it go on after a while, one computation at a time. A client that is gone is forgotten.

        Examples
        --------
        >>> engine, slider = Engine(slots=4), threading.Event()  # any object may stand for a client
        >>> engine.expect(slider, soon=True)  # it is dragged
        >>> engine.expect(slider, soon=False)
        >>> engine.close()
        """
        with self._lock:
            self._dispatch.queue.expect(client, soon=soon)
            starts = self._runner.start()
        self._runner.hand_over([], starts)

    def block(self, view: View, level: int) -> Index:
        """Return how many chunks along each axis background work computes in one call now."""
        with self._lock:
            return self._dispatch.needs.block(view.stages[-1], level)

    def array(self, view: View, level: int = 0) -> ViewArray:
        """Return a reader of one level, indexed like a numpy array; every read is exact.

        Reading makes client claims and waits for them. See `napari_materialize.reader.ViewArray`.
        """
        from napari_materialize.reader import ViewArray

        _check_view(view)
        return ViewArray(self, view, level)

    def materialize(self, view: View, where: Where, **options: Any) -> Materialized:
        """Compute a box of a view and write it to a store as OME-Zarr.

        Parameters
        ----------
        view, where : View; path, URL or WritableStore
            What to compute, and where to write it.
        **options
            The fields of `napari_materialize.job.Options`.

        Raises
        ------
        InputError
            If something asked for cannot be done; nothing was created.
        ChunkError
            If a chunk failed and ``on_error`` is ``raise``.
        EngineClosed
            If the engine is closed, or was closed meanwhile.
        """
        from napari_materialize.job import materialize

        _check_view(view)
        if self._runner.in_op:
            raise OptionError(
                "materialize: cannot be called from inside an op of the same engine, whose slot it "
                "would wait for; write the view first, and use what is written as a source"
            )
        with self._lock:
            self._check_open()
        return materialize(self, view, where, **options)

    def estimate(self, view: View, where: Where, **options: Any) -> Estimate:
        """Return what `materialize` would take; see `napari_materialize.estimate.estimate`."""
        from napari_materialize.estimate import estimate

        _check_view(view)
        return estimate(self, view, where, **options)

    def run_writer(
        self,
        work: Callable[[], None],
        *,
        quick: bool | None = None,
        seconds: float | None = None,
        computes: bool = True,
        in_turn: bool = False,
        more: bool = False,
    ) -> None:
        """Run work that encodes and stores in the engine's threads for it, which take no slots.

        Where it is ``quick``, or ``computes`` more than it waits and all cores have work, a thread
        of background work that asks for it does it itself, at once, unless it has to be begun
        ``in_turn``. ``seconds``: what it takes for each chunk, as far as known. ``more``: it comes
        of other such work, and says nothing of the time that takes.
        """
        self._runner.write(
            work, quick=quick, seconds=seconds, computes=computes, in_turn=in_turn, more=more
        )

    def remember(self, view: View, level: int, place: WrittenChunks) -> None:
        """Let clients read chunks of a view back from where a job writes them; see `written`."""
        with self._lock:
            self._dispatch.written.add(view.identity, level, place)

    @contextmanager
    def working_on(self, view: View, level: int, box: Box) -> Iterator[None]:
        """Say that a job will ask for all chunks of a box once, while the context is open.

        Source chunks that only the job needs are then kept until the last of its chunks that
        needs them is computed, and no longer; what a client needed stays, within the budget.
        """
        found = first_region(view.stages[-1], level, box)
        if found is None or found[0].at_hand(found[1]) is not None:  # no chunks of it are kept
            yield
            return
        with self._lock:
            jobs = self._dispatch.regions
            uses = jobs.enter(*found)
        try:
            yield
        finally:
            with self._lock:
                jobs.leave(*found[:2], uses)

    def retry(self, view: View, level: int, index: Sequence[int]) -> None:
        """Compute a failed chunk once more, and those of its inputs that failed.

        Raises
        ------
        TransitionError
            If the chunk did not fail.
        """
        key = view.key(level, index)
        claim = ChunkClaim(key, self._release)
        with self._lock:
            self._check_open()
            self._dispatch.retry(claim, view.stages[-1])
            starts = self._runner.start()
        self._runner.hand_over([], starts)
        claim.add_done_callback(ChunkClaim.release)

    def forget_failures(self, view: View) -> None:
        """Take what failed of a view, and of what it is made of, for not asked for yet."""
        with self._lock:
            self._dispatch.forgive({stage.identity for stage in view.stages})

    # ------------------------------------------------------------------ looking

    def state(self, view: View, level: int, index: Sequence[int]) -> ChunkState:
        """Return the state of one of the view's chunks."""
        key = view.key(level, index)
        with self._lock:
            return self._dispatch.cache.state(key)

    def peek(self, view: View, level: int, index: Sequence[int]) -> np.ndarray | None:
        """Return a chunk if it is READY, asking for nothing; else None."""
        key = view.key(level, index)
        with self._lock:
            value: np.ndarray | None = self._dispatch.cache.peek(key)
            return value

    def peek_all(self, view: View, level: int, indices: Iterable[Index]) -> list[np.ndarray | None]:
        """Return several chunks of a level as of one moment, each None if it is not READY."""
        keys = [ChunkKey(view.identity, level, index) for index in indices]
        with self._lock:
            return list(map(self._dispatch.cache.peek, keys))

    def resident(self, view: View) -> list[tuple[int, Index]]:
        """Return the (level, index) of the view's own chunks that are READY, in order."""
        with self._lock:
            keys = self._dispatch.cache.resident()
        return sorted((key.level, key.chunk) for key in keys if key.stage == view.identity)

    def events(self, view: View | None = None) -> list[Event[ChunkKey]]:
        """Return the last changes of state, oldest first; of one view's own chunks if given."""
        with self._lock:
            events = self._dispatch.cache.events()
        return [e for e in events if view is None or e.key.stage == view.identity]

    def stats(self) -> dict[str, Any]:
        """Return counts of what waits, runs, was dropped, found, computed and is held, as JSON."""
        with self._lock:
            taken = snapshot(self._dispatch)
            counts, seconds = dict(self._runner.counts), dict(self._runner.seconds)
        return {
            **figures(taken),
            "read": counts[READ],
            "computed": counts[COMPUTE],
            "failures": counts["failures"],
            "seconds": seconds,
        }

    # ------------------------------------------------------------------ ending

    def close(self) -> None:
        """End the engine: whoever waits gets `EngineClosed`; what runs is not waited for."""
        for claim in self._runner.close():
            claim._finish(None, EngineClosed("the engine was closed before the chunk was there"))

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""
        return self._runner.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._runner.closed:
            raise EngineClosed("the engine is closed; make a new one")

    # ------------------------------------------------------------------ inside

    def _release(self, claim: ChunkClaim) -> None:
        """Take a claim back; called by `ChunkClaim.release`."""
        with self._lock:
            starts = self._runner.start() if self._dispatch.release(claim) else []
        self._runner.hand_over([], starts)
        self._make_way()

    def _make_way(self) -> None:
        """Let a client that waits for the lock have it; a loop of releases would win each time."""
        if self._arriving:
            time.sleep(MAKE_WAY)


def _check_view(view: object) -> None:
    if not hasattr(view, "stages"):
        raise OptionError(
            f"view: a View is expected, as open_view returns, got {type(view).__name__}; open it"
        )
