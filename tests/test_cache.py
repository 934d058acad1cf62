"""The chunk cache: states along the table only, budgets, pins, failures."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from napari_materialize.cache import TRANSITIONS, ChunkCache, ChunkState, Pool
from napari_materialize.errors import TransitionError


def chunk(nbytes=10):
    return np.zeros(nbytes, "u1")


def ready(cache, key, pool=Pool.CHUNKS, nbytes=10, pins=0):
    cache.request(key, pool)
    cache.start(key)
    cache.fulfil(key, chunk(nbytes), pins=pins)


def bring(cache, key, state):
    """Bring a new chunk into a state along legal ways."""
    if state is ChunkState.NEW:
        return
    cache.request(key, Pool.CHUNKS)
    if state is ChunkState.QUEUED:
        return
    cache.start(key)
    if state is ChunkState.FAILED:
        cache.fail(key, OSError("broken"))
    elif state is not ChunkState.LOADING:
        cache.fulfil(key, chunk())
        if state is ChunkState.EVICTED:
            ready(cache, "other", nbytes=1000)


MOVES = {
    ChunkState.QUEUED: lambda cache, key: cache.request(key, Pool.CHUNKS),
    ChunkState.LOADING: lambda cache, key: cache.start(key),
    ChunkState.READY: lambda cache, key: cache.fulfil(key, chunk()),
    ChunkState.FAILED: lambda cache, key: cache.fail(key, OSError("broken")),
    ChunkState.NEW: lambda cache, key: cache.abandon(key),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ChunkState, MOVES)))
def test_only_what_the_table_allows_is_possible(before, after):
    cache = ChunkCache({Pool.CHUNKS: 1000})
    bring(cache, "a", before)
    assert cache.state("a") is before
    legal = (before, after) in TRANSITIONS
    if before is ChunkState.FAILED and after is ChunkState.QUEUED:
        legal = False  # retry, and only retry
        with pytest.raises(TransitionError):
            cache.request("a", Pool.CHUNKS)
        cache.retry("a")
        assert cache.state("a") is ChunkState.QUEUED
        return
    if legal:
        MOVES[after](cache, "a")
        assert cache.state("a") is after
    else:
        with pytest.raises(TransitionError, match=f"from {before.value} to {after.value}"):
            MOVES[after](cache, "a")
        assert cache.state("a") is before


def test_every_change_is_an_event_with_a_reason():
    cache = ChunkCache({Pool.CHUNKS: 10})
    ready(cache, "a")
    ready(cache, "b")
    told = [(e.key, e.before.value, e.after.value, e.reason) for e in cache.events()]
    assert told == [
        ("a", "new", "queued", "requested"),
        ("a", "queued", "loading", "a slot opened"),
        ("a", "loading", "ready", "finished"),
        ("b", "new", "queued", "requested"),
        ("b", "queued", "loading", "a slot opened"),
        ("b", "loading", "ready", "finished"),
        ("a", "ready", "evicted", "over the budget"),
    ]
    assert [e.number for e in cache.events()] == list(range(1, 8))


def test_an_illegal_change_tells_the_chunks_history():
    cache = ChunkCache()
    cache.request("a", Pool.CHUNKS)
    cache.start("a")
    with pytest.raises(TransitionError, match=r"was new \(not held\), queued .*, loading"):
        cache.start("a")


def test_least_recently_used_goes_first():
    cache = ChunkCache({Pool.CHUNKS: 20})
    ready(cache, "a")
    ready(cache, "b")
    cache.get("a")
    ready(cache, "c")
    assert cache.resident() == ["a", "c"]
    assert cache.state("b") is ChunkState.EVICTED


def test_looking_without_using_does_not_count_as_use():
    cache = ChunkCache({Pool.CHUNKS: 20})
    ready(cache, "a")
    ready(cache, "b")
    assert cache.peek("a") is not None
    assert cache.peek("z") is None
    ready(cache, "c")
    assert cache.resident() == ["b", "c"]


def test_pinned_chunks_stay_even_over_the_budget():
    cache = ChunkCache({Pool.CHUNKS: 10})
    ready(cache, "a", pins=1)
    ready(cache, "b", pins=2)
    assert cache.bytes(Pool.CHUNKS) == 20
    cache.unpin("b")
    assert cache.resident() == ["a", "b"]
    cache.unpin("a")
    assert cache.resident() == ["b"]
    with pytest.raises(KeyError, match="evicted"):
        cache.unpin("a")
    cache.unpin("b")
    with pytest.raises(ValueError, match="not pinned"):
        cache.unpin("b")


def test_a_chunk_larger_than_the_budget_is_there_while_pinned():
    cache = ChunkCache({Pool.CHUNKS: 10})
    ready(cache, "a", nbytes=50, pins=1)
    assert cache.get("a").nbytes == 50
    cache.unpin("a")
    assert cache.state("a") is ChunkState.EVICTED


def test_a_chunk_kept_by_nobody_goes_with_its_last_pin():
    cache = ChunkCache()
    ready(cache, "a", Pool.NONE, pins=1)
    assert cache.state("a") is ChunkState.READY
    cache.unpin("a")
    assert cache.state("a") is ChunkState.EVICTED
    ready(cache, "a", Pool.NONE)
    assert cache.state("a") is ChunkState.EVICTED


def test_a_chunk_moves_up_between_pools_and_never_down():
    cache = ChunkCache()
    ready(cache, "a", Pool.INPUTS)
    cache.keep("a", Pool.CHUNKS)
    cache.keep("a", Pool.STAGES)
    cache.keep("unknown", Pool.CHUNKS)
    assert cache.pool("a") is Pool.CHUNKS
    assert [cache.bytes(pool) for pool in Pool] == [0, 0, 0, 10]


def test_budgets_are_apart():
    cache = ChunkCache({Pool.CHUNKS: 10, Pool.INPUTS: 20})
    for number in range(4):
        ready(cache, f"in{number}", Pool.INPUTS)
    ready(cache, "a")
    assert cache.resident() == ["in2", "in3", "a"]


def test_a_failure_is_kept_with_its_cause_until_retry():
    cache = ChunkCache()
    cache.request("a", Pool.CHUNKS)
    cache.start("a")
    error = ZeroDivisionError("any exception, not only OSError")
    cache.fail("a", error)
    assert cache.error("a") is error
    assert "ZeroDivisionError" in cache.events()[-1].reason
    cache.retry("a")
    assert cache.error("a") is None
    assert cache.state("a") is ChunkState.QUEUED
    with pytest.raises(TransitionError, match="did not fail"):
        cache.retry("a")


def test_memory_of_what_is_gone_is_bounded():
    cache = ChunkCache(events=7, evicted=5)
    for number in range(20):
        ready(cache, number, Pool.NONE)
    assert cache.state(19) is ChunkState.EVICTED
    assert cache.state(0) is ChunkState.NEW
    assert len(cache.events()) == 7
    assert cache.counts()[ChunkState.EVICTED] == 5
    assert cache.evictions == 20


def test_what_is_remembered_of_a_large_job_takes_little():
    """A quarter of a kilobyte for each of its chunks was 16 MB."""
    cache = ChunkCache()
    tracemalloc.start()
    try:
        for number in range(20_000):
            ready(cache, ("stage", 0, (number, number, number)), Pool.NONE)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.evictions == 20_000
    assert taken < 2 * 2**20


class CacheMachine(RuleBasedStateMachine):
    """Random legal moves against a model; the books must balance after each."""

    KEYS = tuple("abcdef")

    def __init__(self):
        super().__init__()
        self.budgets = {Pool.CHUNKS: 30, Pool.STAGES: 20, Pool.INPUTS: 10}
        self.cache = ChunkCache(self.budgets)
        self.pins = dict.fromkeys(self.KEYS, 0)

    def those(self, *states):
        return [key for key in self.KEYS if self.cache.state(key) in states]

    @rule(key=st.sampled_from(KEYS), pool=st.sampled_from(Pool))
    def request(self, key, pool):
        if key in self.those(ChunkState.NEW, ChunkState.EVICTED):
            self.cache.request(key, pool)
        else:
            self.cache.keep(key, pool)

    @rule(key=st.sampled_from(KEYS))
    def start(self, key):
        if key in self.those(ChunkState.QUEUED):
            self.cache.start(key)

    @rule(key=st.sampled_from(KEYS), nbytes=st.integers(0, 25), pins=st.integers(0, 2))
    def fulfil(self, key, nbytes, pins):
        if key in self.those(ChunkState.LOADING):
            self.cache.fulfil(key, chunk(nbytes), pins=pins)
            self.pins[key] = pins

    @rule(key=st.sampled_from(KEYS))
    def fail(self, key):
        if key in self.those(ChunkState.LOADING):
            self.cache.fail(key, ValueError())

    @rule(key=st.sampled_from(KEYS))
    def retry(self, key):
        if key in self.those(ChunkState.FAILED):
            self.cache.retry(key)

    @rule(key=st.sampled_from(KEYS))
    def abandon(self, key):
        if key in self.those(ChunkState.QUEUED, ChunkState.LOADING):
            self.cache.abandon(key)

    @rule(key=st.sampled_from(KEYS))
    def use(self, key):
        if key in self.those(ChunkState.READY):
            self.cache.get(key)
            self.cache.pin(key)
            self.pins[key] += 1

    @precondition(lambda self: any(self.pins.values()))
    @rule(data=st.data())
    def unpin(self, data):
        key = data.draw(st.sampled_from([k for k, n in self.pins.items() if n]))
        self.cache.unpin(key)
        self.pins[key] -= 1

    @invariant()
    def the_books_balance(self):
        resident = self.cache.resident()
        assert sorted(resident) == self.those(ChunkState.READY)
        for pool in Pool:
            mine = [key for key in resident if self.cache.pool(key) is pool]
            held = sum(self.cache.peek(key).nbytes for key in mine)
            assert self.cache.bytes(pool) == held
            loose = [key for key in mine if not self.pins[key]]
            if pool is Pool.NONE:
                assert not loose
            elif held > self.budgets[pool]:
                assert not loose or sum(self.cache.peek(k).nbytes for k in loose) == 0

    @invariant()
    def pinned_chunks_are_there(self):
        for key, pins in self.pins.items():
            assert not pins or self.cache.state(key) is ChunkState.READY


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(stateful_step_count=80)
