"""The claims behind what is shown of a view: each picture's replace those of the one before.

Owns which chunks are claimed, and the news of their ends. What a picture is made of them is in
`_picture`; when one is made is the business of whoever shows it.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from napari_materialize.errors import EngineClosed, MaterializeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np

    from napari_materialize.claims import ChunkClaim
    from napari_materialize.engine import Engine
    from napari_materialize.geometry import Index
    from napari_materialize.view import View

__all__ = ["AT_A_TIME", "LAST", "Held", "Place", "failure"]

LAST = 1_000_000
"""The priority of claims that come after every other client's."""

AT_A_TIME = 256
"""Chunks of one picture that are waited for at a time; the rest are asked for as these arrive."""

type Place = tuple[int, Index]
"""The level and the index of a chunk."""


class Held:
    """Client claims on the chunks of one view, in groups; those of a group replace each other.

    All methods may be called from any thread.

    Parameters
    ----------
    view : View
        What is shown.
    engine : Engine
        Who computes it.
    on_news : callable, optional
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

    def __init__(
        self, view: View, engine: Engine, on_news: Callable[[], None] | None = None
    ) -> None:
        self.view = view
        self.engine = engine
        self.on_news: Callable[[], None] = on_news or _nothing
        """Called when a chunk that is waited for has arrived or failed; in any thread."""
        self._lock = threading.RLock()
        self._held: dict[Hashable, dict[Place, ChunkClaim]] = {}
        self._left_out: dict[Hashable, bool] = {}
        self._untold: list[MaterializeError] = []
        self._engine_over: Engine | None = None

    def hold(self, group: Hashable, level: int, wanted: Sequence[Index], priority: int = 0) -> None:
        """Hold claims on these chunks and no others of the group; make new ones in this order.

        Claims on chunks that are still wanted are kept. The others are given up first, so that
        what nobody wants any more does not start. A claim that failed is made again: that costs
        nothing, and finds the chunk after a retry.
        """
        with self._lock:
            before = self._held.get(group, {})
            kept = self.keep_only(group, level, wanted)
            missing = [place for index in wanted if (place := (level, index)) not in kept]
            room = AT_A_TIME - sum(not claim.done for claim in kept.values())
            while missing and room > 0:
                batch, missing = missing[:room], missing[room:]
                claims = self._claim(level, [index for _, index in batch], priority)
                if claims is None:
                    missing = []
                    break
                for place, claim in zip(batch, claims, strict=True):
                    kept[place] = claim
                    self._watch(group, place, claim, known=place in before)
                    room -= not claim.done
            self._left_out[group] = bool(missing)

    def keep_only(
        self, group: Hashable, level: int, wanted: Sequence[Index]
    ) -> dict[Place, ChunkClaim]:
        """Give up the group's claims on other chunks than these; return those that are kept."""
        with self._lock:
            places, held = {(level, index) for index in wanted}, self._held.get(group, {})
            kept = {p: claim for p, claim in held.items() if p in places and not failure(claim)}
            self._held[group], self._left_out[group] = kept, False
            self.engine.release_all(c for p, c in reversed(held.items()) if p not in kept)
            return kept

    def _claim(self, level: int, wanted: list[Index], priority: int) -> list[ChunkClaim] | None:
        """Claim chunks; None if the engine is closed, which is told once."""
        try:
            return self.engine.claim_all(self.view, level, wanted, priority=priority)
        except EngineClosed as error:
            if self._engine_over is not self.engine:
                self._engine_over = self.engine
                self._tell(error)
            return None

    def _watch(self, group: Hashable, place: Place, claim: ChunkClaim, *, known: bool) -> None:
        """Hear of a claim's end. A failure that is already known is not told again."""
        if not claim.done:
            claim.add_done_callback(partial(self._arrived, group, place, time.monotonic()))
            return
        error = failure(claim)
        self._note(group, place, error, None)
        if error is not None and not known:
            self._tell(error)

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
        """Return a chunk that is there: by asking the engine, or by a claim held; else None."""
        return self.ready_all(level, [index])[0]

    def ready_all(
        self, level: int, indices: Sequence[Index], view: View | None = None
    ) -> list[np.ndarray | None]:
        """Return several chunks as `ready` does; of ``view``, if what is shown may have changed."""
        view = view or self.view
        found = self.engine.peek_all(view, level, indices)
        if self.engine.closed:  # it has forgotten what a claim still holds
            claims = self.claims()
            for number, index in enumerate(indices):
                claim = claims.get((level, index))
                if claim is None or not claim.done or claim.key.stage != view.identity:
                    continue
                found[number] = None if failure(claim) else claim.result()
        return found

    def over(self, group: Hashable) -> bool:
        """Whether nothing that was asked for in a group is still to come."""
        with self._lock:
            held = self._held.get(group, {})
            return not self._left_out.get(group) and all(claim.done for claim in held.values())

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked for is still to come."""
        with self._lock:
            return all(map(self.over, self._held))

    def failures(self) -> list[tuple[Place, MaterializeError]]:
        """Return the chunks that are held and failed, and why, in the order they were asked for."""
        found = ((place, failure(claim)) for place, claim in self.claims().items())
        return [(place, error) for place, error in found if error is not None]

    def take_failures(self) -> list[MaterializeError]:
        """Return the failures since the last time this was asked."""
        with self._lock:
            taken, self._untold = self._untold, []
        return taken

    # ------------------------------------------------------------------ news

    def _arrived(self, group: Hashable, place: Place, began: float, claim: ChunkClaim) -> None:
        """Take note that a claim is over; in an engine's thread, or inside `hold`."""
        error = failure(claim)
        with self._lock:
            # of another view by now, or nobody's
            if claim.released or claim.key.stage != self.view.identity:
                return
            if error is not None:
                self._untold.append(error)
            self._note(group, place, error, time.monotonic() - began)
        self.on_news()

    def _note(
        self, group: Hashable, place: Place, error: MaterializeError | None, seconds: float | None
    ) -> None:
        """Hear what became of a chunk, and how long it took; None if it was over before."""

    def _tell(self, error: MaterializeError) -> None:
        with self._lock:
            self._untold.append(error)
        self.on_news()


def failure(claim: ChunkClaim) -> MaterializeError | None:
    """Return why a claim failed; None if it did not, or not yet."""
    if not claim.done:
        return None
    try:
        claim.result()
    except MaterializeError as error:
        return error
    return None


def _nothing() -> None:
    return None
