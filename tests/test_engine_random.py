"""The engine at random: claims, releases, steps, failures and retries in any order, by hand."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from doubles import RecordingArray, Stack, cranked
from napari_materialize import Box, ops
from napari_materialize.cache import ChunkState, Pool
from napari_materialize.demand import Phase
from napari_materialize.errors import ChunkError, ClaimReleased, EngineClosed

SIDE, CHUNK = 8, 2

LANES = ("read", "compute", "background", "background read")


class Kept(ops.Function):
    """A function whose results are kept, so that it ends a stage."""

    kept = True


def add(number):
    return lambda block: block[1:-1, 1:-1] + number


class EngineMachine(RuleBasedStateMachine):
    """Two views over one source, the second going on from the first; blocks, and a source that
    breaks. Whatever the order: voxels are right, budgets hold, and in the end nothing is left.
    """

    def __init__(self):
        super().__init__()
        array = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
        self.source = RecordingArray(array, (CHUNK, CHUNK))
        source = self.source.view()
        first = source.then([Kept(add(100), halo=1, dtype="int64", name="one", version="1")])
        second = first.then(
            [ops.Function(add(1000), halo=1, dtype="int64", name="two", version="1")]
        )
        channels = source.then([Stack(halo=1)])
        plain = source.then([ops.Function(np.negative, dtype="int64", name="neg", version="1")])
        self.views = {
            "first": first,
            "second": second,
            "channels": channels,
            "plain": plain,
            "source": source,
        }
        self.expected = {
            "first": array + 100,
            "second": array + 1100,
            "channels": np.stack([array, array + 1]),
            "plain": -array,
            "source": array,
        }
        self.rows = 1
        self.start_over()

    @initialize(rows=st.sampled_from([1, 4]))
    def begin_rows_together(self, rows):
        self.rows = rows
        self.start_over()

    def start_over(self):
        budgets = {"chunk_bytes": 100, "stage_bytes": 150, "input_bytes": 200}
        self.engine, self.workers = cranked(
            slots=2, readers=2, block_seconds=1e9, along=True, rows=self.rows, **budgets
        )
        self.claims = []
        self.cancel = threading.Event()

    @rule(
        name=st.sampled_from(["first", "second", "plain", "source"]),
        index=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        background=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def claim(self, name, index, background, priority):
        self._claim(name, index, background, priority)

    def _claim(self, name, index, background, priority=0):
        claim = self.engine.claim(
            self.views[name], 0, index, background=background, priority=priority
        )
        self.claims.append((name, index, claim))

    @rule(channel=st.integers(0, 1), row=st.integers(0, 2), background=st.booleans())
    def claim_a_channel(self, channel, row, background):
        indices = [(channel, row + i, j) for i in (0, 1) for j in range(4)]
        claims = self.engine.claim_all(
            self.views["channels"], 0, indices, background=background, cancel=self.cancel
        )
        self.claims += [("channels", i, c) for i, c in zip(indices, claims, strict=True)]

    @rule()
    def cancel_the_channels(self):
        self.cancel.set()
        self.workers.step()
        self.cancel = threading.Event()

    @rule(
        name=st.sampled_from(["first", "plain", "source"]),
        index=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        background=st.booleans(),
        first=st.booleans(),
    )
    def claim_in_the_middle_of_a_read(self, name, index, background, first):
        def meanwhile():
            self._claim(name, index, background)
            if first:
                self.claims.pop(0)[2].release()

        self.source.meanwhile = meanwhile
        self.workers.step()
        self.source.meanwhile = None

    @rule(name=st.sampled_from(["first", "second", "plain", "source"]), row=st.integers(0, 2))
    def claim_a_row_and_the_next(self, name, row):
        indices = [(row + i, j) for i in (0, 1) for j in range(4)]
        claims = self.engine.claim_all(self.views[name], 0, indices, background=True)
        self.claims += [(name, i, c) for i, c in zip(indices, claims, strict=True)]

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data):
        number = data.draw(st.integers(0, len(self.claims) - 1))
        self.claims.pop(number)[2].release()

    @rule(lane=st.sampled_from([*LANES, None]), times=st.integers(1, 5))
    def step(self, lane, times):
        for _ in range(times):
            self.workers.step(lane)

    @rule(index=st.tuples(st.integers(0, 3), st.integers(0, 3)), broken=st.booleans())
    def break_or_mend(self, index, broken):
        if broken:
            self.source.broken[index] = OSError("unreadable")
        else:
            self.source.broken.pop(index, None)

    @rule()
    def retry_what_failed(self):
        for view in self.views.values():
            for index in view.walk(0, Box.whole(view.levels[0].shape)):
                if self.engine.state(view, 0, index) is ChunkState.FAILED:
                    self.engine.retry(view, 0, index)
                    return

    @precondition(lambda self: len(self.claims) > 8)
    @rule()
    def close(self):
        """Close the engine with everything under way: whoever waits is told, nobody hangs."""
        self.engine.close()
        assert self.workers.closed
        for _, _, claim in self.claims:
            assert claim.done
            with contextlib.suppress(ChunkError, ClaimReleased, EngineClosed):
                claim.result(timeout=0)
            claim.release()
        with pytest.raises(EngineClosed):
            self.engine.claim(self.views["first"], 0, (0, 0))
        self.start_over()

    @invariant()
    def voxels_are_right(self):
        for name, index, claim in self.claims:
            if claim.done and claim._value is not None:
                box = self.views[name].levels[0].grid.box(index)
                np.testing.assert_array_equal(claim.result(), self.expected[name][box.slices])

    @invariant()
    def slots_and_budgets_hold(self):
        queue, cache = self.engine._dispatch.queue, self.engine._dispatch.cache
        for lane in ("compute", "read"):
            assert sum(n for place, n in queue._running.items() if place[0] == lane) <= 2
        handed = sum(map(self.workers.waiting, LANES))
        assert handed <= sum(queue._running.values())
        for pool, limit in zip(
            (Pool.CHUNKS, Pool.STAGES, Pool.INPUTS), (100, 150, 200), strict=True
        ):
            loose = [
                key
                for key in cache.resident()
                if cache.pool(key) is pool and not cache._entries[key].pins
            ]
            assert cache.bytes(pool) <= limit or not loose
        for key in self.engine._dispatch.needs.jobs:
            state, phase = cache.state(key), queue.phase(key)
            expected = ChunkState.LOADING if phase is Phase.RUNNING else ChunkState.QUEUED
            assert state is expected, (key, state, phase)

    def teardown(self):
        self.source.broken.clear()
        self.workers.run_all()
        for _, _, claim in self.claims:
            assert claim.done
            with contextlib.suppress(
                ChunkError, ClaimReleased
            ):  # the source was broken, or cancelled
                claim.result()
            claim.release()
        queue, cache = self.engine._dispatch.queue, self.engine._dispatch.cache
        assert len(queue) == 0
        assert not self.engine._dispatch.needs.jobs
        assert not self.engine._dispatch._tickets
        assert not any(entry.pins for entry in cache._entries.values())
        assert set(queue._running.values()) == {0}
        assert not queue._admitted
        assert set(cache.counts())
        assert cache.counts()[ChunkState.LOADING] == 0
        assert cache.counts()[ChunkState.QUEUED] == 0
        self.engine.close()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(stateful_step_count=40, max_examples=80)
