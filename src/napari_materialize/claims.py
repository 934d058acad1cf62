"""One claim on one chunk, as its holder sees it: wait for it, read it, give it up.

Owns the hand-over of a finished chunk from the engine's threads to whoever claimed it. It does
not know the order of things (`demand`) nor what is kept (`cache`).
"""

from __future__ import annotations

import logging
import threading
import traceback
from typing import TYPE_CHECKING, Self

from napari_materialize.errors import ChunkError, ClaimReleased, EngineClosed, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from napari_materialize.stages import ChunkKey

__all__ = ["ChunkClaim", "failure", "finish"]

_log = logging.getLogger(__name__)


class ChunkClaim:
    """A wish for one chunk, made by `Engine.claim`; a context manager that releases itself.

    While it is held, the chunk's job is not dropped, and once the chunk is there it is pinned.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view(np.arange(12, dtype="u1").reshape(3, 4), chunks=(3, 2))
    >>> with nm.Engine(slots=1) as engine, engine.claim(view, level=0, index=(0, 1)) as claim:
    ...     claim.result().tolist()
    [[2, 3], [6, 7], [10, 11]]
    """

    def __init__(
        self,
        key: ChunkKey,
        release: Callable[[ChunkClaim], None],
        together: Callable[[list[ChunkClaim]], None] | None = None,
    ) -> None:
        self.key = key
        """Which chunk: the stage's identity, the level, and the place in the chunk grid."""
        self.together = together
        """Who is told of all its claims at once that are over at once."""
        self._release = release
        self._lock = threading.Lock()
        self._over: threading.Event | None = None
        self._value: np.ndarray | None = None
        self._error: BaseException | None = None
        self._done = False
        self._released = False
        self._callbacks: list[Callable[[ChunkClaim], None]] = []

    @property
    def done(self) -> bool:
        """Whether the chunk is there, or failed."""
        return self._done

    @property
    def failed(self) -> bool:
        """Whether there is no chunk, and will not be: it could not be made, or was given up."""
        return self._error is not None

    @property
    def released(self) -> bool:
        """Whether the claim was given up."""
        return self._released

    def result(self, timeout: float | None = None) -> np.ndarray:
        """Wait for the chunk and return it.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; for ever if left out.

        Returns
        -------
        numpy.ndarray
            The chunk's voxels, clipped to the level, read-only.

        Raises
        ------
        ChunkError
            If the chunk could not be read or computed; the cause is attached.
        ClaimReleased, EngineClosed
            If the claim was given up or the engine closed before the chunk was there.
        TimeoutError
            If it is not there in time; the claim still stands.
        """
        with self._lock:
            if not self._done and self._over is None:
                self._over = threading.Event()
            over = self._over
        if over is not None and not over.wait(timeout):
            raise TimeoutError(f"chunk {self.key.chunk} of level {self.key.level}: not there yet")
        if self._value is not None:
            return self._value
        raise self._exception()

    def release(self) -> None:
        """Give the claim up. Doing it twice does nothing."""
        if self.mark_released():
            self._release(self)
            self.tell_released()

    def mark_released(self) -> bool:
        """Take note that the claim is given up; False if it was before. For the engine."""
        with self._lock:
            before, self._released = self._released, True
        return not before

    def tell_released(self) -> None:
        """Tell whoever waits for it that the claim was given up. For the engine."""
        if self._done:  # as most are by then
            return
        self._finish(None, ClaimReleased("the claim was released before its chunk was there"))

    def add_done_callback(self, callback: Callable[[ChunkClaim], None]) -> None:
        """Call ``callback(claim)`` once it is over: at once if it is, else in an engine's thread.

        The callback must be short. What it raises is logged.
        """
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def _finish(self, value: np.ndarray | None, error: BaseException | None) -> None:
        """Hand the outcome over; only the first one counts. Never called under a lock."""
        if self._end(value, error) and self.together is not None:
            tell([self])

    def _end(self, value: np.ndarray | None, error: BaseException | None) -> bool:
        """Do the same, but for who is told of several; whether it was not over before."""
        with self._lock:
            if self._done:
                return False
            self._value, self._error, self._done = value, error, True
            over, callbacks = self._over, self._callbacks
            self._callbacks = []
        if over is not None:
            over.set()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - a callback's, in a thread of the engine
                _log.exception("a callback of a claim on chunk %s failed", self.key.chunk)
        return True

    def _exception(self) -> BaseException:
        """Return an exception of its own for each reader, since raising one changes it."""
        error = self._error
        if isinstance(error, ChunkError):
            copy = ChunkError(*error.args)
            copy.__cause__ = error.__cause__
            return copy
        if isinstance(error, (ClaimReleased, EngineClosed)):
            return type(error)(*error.args)
        raise AssertionError(f"claim {self.key}: neither a value nor an error")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def finish(outcomes: Iterable[tuple[ChunkClaim, np.ndarray | None, BaseException | None]]) -> None:
    """Hand outcomes over, in their order; see `ChunkClaim._finish`."""
    ended: list[ChunkClaim] = []
    for claim, value, error in outcomes:
        if ended and claim.together is not ended[0].together:
            tell(ended)
            ended = []
        if claim._end(value, error) and claim.together is not None:
            ended.append(claim)
    if ended:
        tell(ended)


def tell(claims: list[ChunkClaim]) -> None:
    """Tell who is told of all of some claims, the same of each, that they are over."""
    together = claims[0].together
    assert together is not None
    try:
        together(claims)
    except Exception:  # noqa: BLE001 - a callback's, in a thread of the engine
        _log.exception("a callback of claims on %d chunks failed", len(claims))


def failure(title: str, key: ChunkKey, cause: BaseException) -> ChunkError:
    """Say which chunk failed and why; the traceback is kept, the voxels in its frames are not."""
    if isinstance(cause, ChunkError) and cause.__cause__ is not None:
        reason, cause = str(cause), cause.__cause__
    else:
        reason = named(cause)
    chained: BaseException | None = cause
    seen = set[int]()  # an op's errors may lead back to each other
    while chained is not None and id(chained) not in seen:
        seen.add(id(chained))
        traceback.clear_frames(chained.__traceback__)
        chained = chained.__context__ if chained.__cause__ is None else chained.__cause__
    error = ChunkError(f"chunk {key.chunk} of level {key.level} ({title}) failed: {reason}")
    error.__cause__ = cause
    return error
