"""The claims behind what is shown of a view: each picture's replace those of the one before.

Owns which chunks are claimed, and the news of their ends. What a picture is made of them is in
`_picture`; when one is made is the business of whoever shows it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from napari_materialize.errors import EngineClosed, MaterializeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = ["LAST", "Held"]

LAST = 1_000_000
"""The priority of claims that come after every other client's."""

AT_A_TIME = 256
"""Chunks of one picture that are waited for at a time; the rest are asked for as these arrive."""

type Place = tuple[int, Index]


class Held:
    """Client claims on the chunks of one view, in groups; those of a group replace each other.

    All methods may be called from any thread.

    Parameters
    ----------
    view : View
        What is shown.
    engine : Engine
        Who computes it.
    on_news : callable
        Called when a chunk that is waited for has arrived or failed; in any thread, so be short.

    Examples
    --------
    >>> import numpy as np
    >>> import napari_materialize as nm
    >>> view = nm.open_view(np.arange(12, dtype="u1").reshape(3, 4), chunks=(3, 2))
    >>> with nm.Engine(slots=1) as engine:
    ...     held = Held(view, engine, on_news=lambda: None)
    ...     held.hold("picture", 0, [(0, 1)])
    ...     claim = held.claims()[0, (0, 1)]
    ...     claim.result().shape, held.settled, held.ready(0, (0, 1)) is claim.result()
    ((3, 2), True, True)
    >>> held.release_all()
    """

    def __init__(self, view: View, engine: Engine, on_news: Callable[[], None]) -> None:
        self.view = view
        self.engine = engine
        self._on_news = on_news
        self._lock = threading.RLock()
        self._held: dict[Hashable, dict[Place, ChunkClaim]] = {}
        self._left_out: dict[Hashable, bool] = {}
        self._failures: deque[MaterializeError] = deque()
        self._engine_over = False

    def hold(self, group: Hashable, level: int, wanted: Sequence[Index], priority: int = 0) -> None:
        """Hold claims on these chunks and no others of the group; make new ones in this order.

        Claims on chunks that are still wanted are kept. The others are given up first, so that
        what nobody wants any more does not start. A claim that failed is made again: that costs
        nothing, and finds the chunk after a retry.
        """
        with self._lock:
            places: dict[Place, None] = {(level, index): None for index in wanted}
            held = self._held.get(group, {})
            kept = {p: claim for p, claim in held.items() if p in places and not _failure(claim)}
            self._held[group] = kept
            self.engine.release_all(
                claim for place, claim in reversed(held.items()) if place not in kept
            )
            missing = [place for place in places if place not in kept]
            room = AT_A_TIME - sum(not claim.done for claim in kept.values())
            while missing and room > 0:
                batch, missing = missing[:room], missing[room:]
                claims = self._claim(level, [index for _, index in batch], priority)
                if claims is None:
                    missing = []
                    break
                for place, claim in zip(batch, claims, strict=True):
                    kept[place] = claim
                    self._watch(claim, known=place in held)
                    room -= not claim.done
            self._left_out[group] = bool(missing)

    def _claim(self, level: int, wanted: list[Index], priority: int) -> list[ChunkClaim] | None:
        """Claim chunks; None if the engine is closed, which is told once."""
        try:
            return self.engine.claim_all(self.view, level, wanted, priority=priority)
        except EngineClosed as error:
            if not self._engine_over:
                self._engine_over = True
                self._tell(error)
            return None

    def _watch(self, claim: ChunkClaim, *, known: bool) -> None:
        """Hear of a claim's end. A failure that is already known is not told again."""
        if not claim.done:
            claim.add_done_callback(self._arrived)
        elif (failure := _failure(claim)) is not None and not known:
            self._tell(failure)

    def release_all(self) -> None:
        """Give up every claim."""
        with self._lock:
            for group in self._held:
                held, self._held[group] = self._held[group], {}
                self._left_out[group] = False
                self.engine.release_all(reversed(held.values()))

    # ------------------------------------------------------------------ what is there

    def claims(self, group: Hashable | None = None) -> dict[Place, ChunkClaim]:
        """Return the claims by (level, chunk), in the order they were made; of a group if given."""
        with self._lock:
            groups = list(self._held) if group is None else [group]
            return {p: claim for name in groups for p, claim in self._held.get(name, {}).items()}

    def ready(self, level: int, index: Index) -> np.ndarray | None:
        """Return a chunk that is there: by a claim held, or by asking the engine; else None."""
        with self._lock:
            found = [held.get((level, index)) for held in self._held.values()]
        for claim in found:
            if claim is not None and claim.done and _failure(claim) is None:
                return claim.result()
        return self.engine.peek(self.view, level, index)

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked for is still to come."""
        with self._lock:
            return not any(self._left_out.values()) and all(
                claim.done for held in self._held.values() for claim in held.values()
            )

    def failed(self) -> list[tuple[Place, MaterializeError]]:
        """Return the chunks that are held and failed, and why, in the order they were asked for."""
        found = ((place, _failure(claim)) for place, claim in self.claims().items())
        return [(place, error) for place, error in found if error is not None]

    def take_failures(self) -> list[MaterializeError]:
        """Return the failures since the last time this was asked."""
        return [self._failures.popleft() for _ in range(len(self._failures))]

    # ------------------------------------------------------------------ news

    def _arrived(self, claim: ChunkClaim) -> None:
        """Take note that a claim is over; in an engine's thread, or inside `hold`."""
        if claim.released:
            return
        error = _failure(claim)
        if error is not None:
            self._failures.append(error)
        self._on_news()

    def _tell(self, error: MaterializeError) -> None:
        self._failures.append(error)
        self._on_news()


def _failure(claim: ChunkClaim) -> MaterializeError | None:
    """Return why a claim failed; None if it did not, or not yet."""
    if not claim.done:
        return None
    try:
        claim.result()
    except MaterializeError as error:
        return error
    return None
