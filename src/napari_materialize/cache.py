"""What we have: the state of every chunk, its bytes, the budgets, the pins. Decides; locks nothing.

A `ChunkCache` knows opaque keys and values that have ``nbytes``. A chunk's state changes only along
the table `TRANSITIONS`, each change is an `Event` with a reason, and any other change raises
`TransitionError` with the chunk's history.

Chunks are kept in *pools* with a budget in bytes each, least recently used out first:

``chunks``
    chunks that a client asked for;
``stages``
    outputs of ops whose chunks are kept, whoever asked;
``inputs``
    decoded source chunks, whoever asked, so that neighbours with halos do not read them again.

A chunk in no pool lives only while it is pinned. Who asked, and in what order chunks are made, is
the business of `demand`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

from napari_materialize.errors import TransitionError, named

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

__all__ = ["BUDGETS", "TRANSITIONS", "ChunkCache", "ChunkState", "Event", "Pool"]

HISTORY = 16
"""States of one chunk that are remembered with it."""

EVENTS, EVICTED = 2_048, 4_096
"""Changes of state, and chunks as EVICTED, that are remembered by default: a megabyte and a half.
Ten times as many of each were a third of the memory of a job of 65,536 small chunks, and more."""


class ChunkState(StrEnum):
    """What a chunk is; the transitions are in `TRANSITIONS`."""

    NEW = "new"
    QUEUED = "queued"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    EVICTED = "evicted"


class Pool(IntEnum):
    """Where a chunk's bytes are counted; a chunk moves up, never down."""

    NONE = 0
    INPUTS = 1
    STAGES = 2
    CHUNKS = 3


MIB = 2**20

BUDGETS = {Pool.CHUNKS: 256 * MIB, Pool.STAGES: 512 * MIB, Pool.INPUTS: 128 * MIB}
"""Default budgets in bytes."""

_S = ChunkState

TRANSITIONS: frozenset[tuple[ChunkState, ChunkState]] = frozenset(
    {
        (_S.NEW, _S.QUEUED),  # requested
        (_S.EVICTED, _S.QUEUED),  # requested again
        (_S.QUEUED, _S.LOADING),  # a slot opened
        (_S.QUEUED, _S.NEW),  # the last claim was released before it ran
        (_S.LOADING, _S.READY),  # finished
        (_S.LOADING, _S.FAILED),  # finished, with an error
        (_S.LOADING, _S.NEW),  # the op noticed that nobody waits any more
        (_S.READY, _S.EVICTED),  # over the budget and not pinned, or kept by nobody
        (_S.FAILED, _S.QUEUED),  # retry, and only retry
    }
)
"""The legal changes of state: (from, to)."""


@dataclass(frozen=True, slots=True)
class Event[K: Hashable]:
    """One change of one chunk's state."""

    number: int
    """Counts up over the cache's life."""

    key: K
    """Whose."""

    before: ChunkState
    """The state it had."""

    after: ChunkState
    """The state it has."""

    reason: str
    """Why, in a few words."""


class _Entry:
    """What is known of a chunk. One is made for each, so it is no dataclass."""

    __slots__ = ("error", "history", "lasting", "nbytes", "pins", "pool", "state", "value")

    def __init__(self, state: ChunkState) -> None:
        self.state = state
        self.pool = Pool.NONE
        self.pins = 0
        self.value: Any = None
        self.nbytes = 0
        self.error: BaseException | None = None
        self.lasting = False
        self.history = [(state, "not held")]

    def change(self, after: ChunkState, reason: str) -> None:
        """Take note of a new state."""
        self.state = after
        self.history.append((after, reason))
        if len(self.history) > HISTORY:
            del self.history[0]


class ChunkCache[K: Hashable]:
    """The states, values, budgets and pins of chunks.

    Parameters
    ----------
    budgets : mapping of Pool to int, optional
        Bytes per pool; `BUDGETS` for those left out.
    events, evicted : int
        How many events, and how many chunks as EVICTED, are remembered. What is older is
        forgotten, and such a chunk is NEW again, so that memory does not grow with use.

    Examples
    --------
    >>> import numpy as np
    >>> cache = ChunkCache({Pool.CHUNKS: 100})
    >>> cache.request("a", Pool.CHUNKS)
    >>> cache.start("a")
    >>> cache.fulfil("a", np.zeros(100, "u1"))
    >>> cache.state("a").value, cache.bytes(Pool.CHUNKS)
    ('ready', 100)
    """

    def __init__(
        self,
        budgets: Mapping[Pool, int] | None = None,
        *,
        events: int = EVENTS,
        evicted: int = EVICTED,
    ) -> None:
        self.budgets = {**BUDGETS, **(budgets or {})}
        self._entries: dict[K, _Entry] = {}
        self._evicted: OrderedDict[K, None] = OrderedDict()
        self._recent: dict[Pool, OrderedDict[K, None]] = {pool: OrderedDict() for pool in Pool}
        self._bytes: dict[Pool, int] = dict.fromkeys(Pool, 0)
        self._events: deque[tuple[int, K, ChunkState, ChunkState, str]] = deque(maxlen=events)
        """What an `Event` is made of, when somebody looks."""
        self._evicted_limit = evicted
        self._count = 0
        self.evictions = 0
        """Chunks evicted so far."""

    # ------------------------------------------------------------------ states

    def state(self, key: K) -> ChunkState:
        """Return a chunk's state."""
        entry = self._entries.get(key)
        if entry is not None:
            return entry.state
        return ChunkState.EVICTED if key in self._evicted else ChunkState.NEW

    def request(
        self, key: K, pool: Pool, reason: str = "requested", *, lasting: bool = True
    ) -> None:
        """NEW or EVICTED to QUEUED."""
        entry = self._entries.get(key)
        failed = entry is not None and entry.state is ChunkState.FAILED
        self._change(key, ChunkState.QUEUED, reason, legal=not failed)
        self.keep(key, pool, lasting=lasting)

    def start(self, key: K, reason: str = "a slot opened") -> None:
        """QUEUED to LOADING."""
        self._change(key, ChunkState.LOADING, reason)

    def fulfil(self, key: K, value: Any, *, pins: int = 0, reason: str = "finished") -> None:
        """LOADING to READY, pinned ``pins`` times; then evict what is over the budget.

        A chunk that belongs to no pool and is not pinned is evicted at once.
        """
        entry = self._change(key, ChunkState.READY, reason)
        entry.value, entry.nbytes, entry.pins = value, int(value.nbytes), pins
        self._bytes[entry.pool] += entry.nbytes
        self._recent[entry.pool][key] = None
        self._settle(key, entry)
        self._evict(entry.pool)

    def fail(self, key: K, error: BaseException, reason: str | None = None) -> None:
        """LOADING to FAILED; the error is kept with its traceback until `retry`."""
        self._change(key, ChunkState.FAILED, reason or named(error))
        self._entries[key].error = error

    def abandon(self, key: K, reason: str = "nobody waits any more") -> None:
        """QUEUED or LOADING back to NEW."""
        self._change(key, ChunkState.NEW, reason)
        del self._entries[key]

    def retry(self, key: K, reason: str = "retry") -> None:
        """FAILED to QUEUED."""
        if self.state(key) is not ChunkState.FAILED:
            raise self._illegal(key, ChunkState.QUEUED, f"{reason} of a chunk that did not fail")
        self._change(key, ChunkState.QUEUED, reason)
        self._entries[key].error = None

    # ------------------------------------------------------------------ values

    def get(self, key: K) -> Any:
        """Return a READY chunk's value and mark it as used now."""
        entry = self._ready(key)
        self._recent[entry.pool].move_to_end(key)
        return entry.value

    def peek(self, key: K) -> Any | None:
        """Return a READY chunk's value without marking it as used; None if it is not READY."""
        entry = self._entries.get(key)
        return None if entry is None or entry.state is not ChunkState.READY else entry.value

    def pool(self, key: K) -> Pool:
        """Return where a chunk is, or will be, counted."""
        entry = self._entries.get(key)
        return Pool.NONE if entry is None else entry.pool

    def error(self, key: K) -> BaseException | None:
        """Return why a FAILED chunk failed; None for any other."""
        entry = self._entries.get(key)
        return None if entry is None else entry.error

    def keep(self, key: K, pool: Pool, *, lasting: bool = True) -> None:
        """Move a chunk that is known up to ``pool``, if that is higher than where it is.

        One that nobody wanted as ``lasting`` may be let go; see `let_go`.
        """
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.lasting = entry.lasting or lasting
        if pool <= entry.pool:
            return
        before, entry.pool = entry.pool, pool
        if entry.state is ChunkState.READY:
            del self._recent[before][key]
            self._recent[pool][key] = None
            self._bytes[before] -= entry.nbytes
            self._bytes[pool] += entry.nbytes
            self._evict(pool)

    def let_go(self, key: K, reason: str) -> None:
        """Evict a READY input that is neither pinned nor lasting, before its pool is full."""
        if self.spare(key):
            self._drop(key, self._entries[key], reason)

    def spare(self, key: K) -> int:
        """Return the bytes of a READY input that is neither pinned nor lasting; 0 of any other."""
        entry = self._entries.get(key)
        if entry is None or entry.state is not ChunkState.READY or entry.pool is not Pool.INPUTS:
            return 0
        return entry.nbytes if entry.pins == 0 and not entry.lasting else 0

    def pin(self, key: K) -> None:
        """Hold a READY chunk, even over the budget, until it is unpinned as often."""
        self._ready(key).pins += 1

    def unpin(self, key: K) -> None:
        """Take one pin off; the chunk may be evicted for it."""
        entry = self._ready(key)
        if entry.pins < 1:
            raise ValueError(f"cache: {key!r} is not pinned")
        entry.pins -= 1
        self._settle(key, entry)
        self._evict(entry.pool)

    # ------------------------------------------------------------------ looking

    def bytes(self, pool: Pool) -> int:
        """Return how many bytes of READY chunks a pool holds."""
        return self._bytes[pool]

    def resident(self) -> list[K]:
        """Return the keys of the READY chunks, pool by pool, least recently used first."""
        return [key for pool in Pool for key in self._recent[pool]]

    def failed(self) -> list[K]:
        """Return the keys of the FAILED chunks."""
        return [key for key, entry in self._entries.items() if entry.state is ChunkState.FAILED]

    def events(self) -> list[Event[K]]:
        """Return the last changes of state, oldest first."""
        return [Event(*change) for change in self._events]

    def counts(self) -> dict[ChunkState, int]:
        """Count the chunks that are known, by state."""
        counts = dict.fromkeys(ChunkState, 0)
        for entry in self._entries.values():
            counts[entry.state] += 1
        counts[ChunkState.EVICTED] += len(self._evicted)
        return counts

    # ------------------------------------------------------------------ inside

    def _ready(self, key: K) -> _Entry:
        entry = self._entries.get(key)
        if entry is None or entry.state is not ChunkState.READY:
            raise KeyError(f"cache: {key!r} is {self.state(key).value}, not ready")
        return entry

    def _settle(self, key: K, entry: _Entry) -> None:
        if entry.pool is Pool.NONE and entry.pins == 0:
            self._drop(key, entry, "kept by nobody")

    def _evict(self, pool: Pool) -> None:
        if pool is Pool.NONE or self._bytes[pool] <= self.budgets[pool]:
            return
        for key in list(self._over(pool)):
            self._drop(key, self._entries[key], "over the budget")

    def _over(self, pool: Pool) -> Iterable[K]:
        """Walk the chunks to evict from a pool, least recently used first."""
        surplus = self._bytes[pool] - self.budgets[pool]
        for key in self._recent[pool]:
            if surplus <= 0:
                return
            entry = self._entries[key]
            if entry.pins == 0:
                surplus -= entry.nbytes
                yield key

    def _drop(self, key: K, entry: _Entry, reason: str) -> None:
        self._change(key, ChunkState.EVICTED, reason)
        del self._recent[entry.pool][key]
        self._bytes[entry.pool] -= entry.nbytes
        del self._entries[key]
        self.evictions += 1
        self._evicted[key] = None
        if len(self._evicted) > self._evicted_limit:
            self._evicted.popitem(last=False)

    def _change(self, key: K, after: ChunkState, reason: str, *, legal: bool = True) -> _Entry:
        entry = self._entries.get(key)
        before = self.state(key) if entry is None else entry.state
        if not legal or (before, after) not in TRANSITIONS:
            raise self._illegal(key, after, reason)
        if entry is None:
            entry = self._entries[key] = _Entry(before)
            self._evicted.pop(key, None)
        entry.change(after, reason)
        self._count += 1
        self._events.append((self._count, key, before, after, reason))
        return entry

    def _illegal(self, key: K, after: ChunkState, reason: str) -> TransitionError:
        entry = self._entries.get(key)
        steps = entry.history if entry is not None else [(self.state(key), "not held")]
        story = ", ".join(f"{state.value} ({why})" for state, why in steps)
        return TransitionError(
            f"chunk {key!r} cannot go from {self.state(key).value} to {after.value} ({reason}); "
            f"it was {story}"
        )
