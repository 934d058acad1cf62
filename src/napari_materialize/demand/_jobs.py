"""What stands in the queue: jobs, the claims on them, and the lines they wait in.

Owns the values and one line's order. Which line a job stands in, and what runs next, is the
queue's.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["BACKGROUND", "CLIENT", "Claim", "Finished", "Job", "Line", "Phase", "Rank", "Request"]

CLIENT, BACKGROUND = 0, 1
"""The two classes, in their order."""

_COMPACT_AT = 64

type Rank = tuple[int, int, int, int]


class Phase(StrEnum):
    """Where a job stands; see `Queue`'s module."""

    WAITING = "waiting"
    BOUND = "bound"
    BLOCKED = "blocked"
    RUNNABLE = "runnable"
    RUNNING = "running"


class Request[K: Hashable](NamedTuple):
    """What the queue has to know of a key to make a job of it.

    Examples
    --------
    >>> Request("a", lane="read")
    Request(key='a', lane='read', level=0, has_inputs=False)
    """

    key: K
    """Opaque to the queue."""

    lane: str
    """Which slots it runs in: one of the lanes the queue was made with."""

    level: int = 0
    """0 is the finest; lower levels come first."""

    has_inputs: bool = False
    """Whether it needs other jobs' results before it can run."""


class Claim[K: Hashable]:
    """Somebody's wish for one key. Made by `Queue.claim`, given up by `Queue.release`."""

    __slots__ = ("_own_rank", "job", "number", "parent")

    def __init__(self, job: Job[K], number: int, rank: Rank | None, parent: Job[K] | None) -> None:
        self.job: Job[K] | None = job
        self.number = number
        self._own_rank = rank
        self.parent = parent

    @property
    def rank(self) -> Rank:
        """Class, priority, level and sequence; for an input's claim that of the job it feeds."""
        if self.parent is not None:
            return self.parent.rank
        assert self._own_rank is not None
        return self._own_rank

    @property
    def background(self) -> bool:
        """Whether it is background work's claim, not a client's."""
        return self.rank[0] == BACKGROUND


@dataclass(slots=True, eq=False)
class Job[K: Hashable]:
    """One key's place in the queue."""

    request: Request[K]
    number: int
    rank: Rank
    phase: Phase
    claims: dict[int, Claim[K]] = field(default_factory=dict)
    inputs: list[Claim[K]] = field(default_factory=list)
    needed: bool = False
    """Whether another job waits for it as an input."""
    missing: int = 0
    bucket: tuple[int, int, int] | None = None
    """Class, priority and level it was admitted under, until it starts."""
    block: list[Job[K]] | None = None
    """The jobs it is computed along with, itself among them; the first leads."""
    slots: tuple[tuple[str, int], ...] = ()
    """Lanes and classes it runs under; none for one that runs inside another's slot."""
    begins: str | None = None
    """The lane in whose slot it begins, if that is not its own."""

    @property
    def lane(self) -> str:
        """The lane it is in line for."""
        return self.begins or self.request.lane


class Line[K: Hashable]:
    """Jobs in order of rank: a heap whose outdated entries are skipped and swept now and then."""

    __slots__ = ("_heap", "live", "phase")

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.live = 0
        self._heap: list[tuple[Rank, int, Job[K]]] = []

    def push(self, job: Job[K]) -> None:
        """Put a job in line."""
        heapq.heappush(self._heap, (job.rank, job.number, job))

    def leave(self) -> None:
        """Take note that a job left the line; its entry is outdated."""
        self.live -= 1
        if not self.live:
            self._heap.clear()

    def first(self) -> Job[K] | None:
        """Return the job that is next, and leave it there."""
        if not self.live:
            return None
        self._sweep()
        while self._heap:
            rank, _, job = self._heap[0]
            if job.phase is self.phase and job.rank == rank:
                return job
            heapq.heappop(self._heap)
        return None

    def __len__(self) -> int:
        """Return how many entries there are, outdated ones included."""
        return len(self._heap)

    def _sweep(self) -> None:
        """Drop outdated entries all at once when they are most of the heap: O(1) each."""
        if len(self._heap) > 2 * self.live + _COMPACT_AT:
            fresh = {
                job.number: (rank, number, job)
                for rank, number, job in self._heap
                if job.phase is self.phase and job.rank == rank
            }
            self._heap = list(fresh.values())
            heapq.heapify(self._heap)


class Finished[K: Hashable](NamedTuple):
    """Who had waited for a job that is over."""

    claims: tuple[Claim[K], ...]
    """The claims somebody made directly."""

    parents: tuple[K, ...]
    """The keys whose jobs had it as an input."""
