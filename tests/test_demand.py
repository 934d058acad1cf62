"""The demand queue: at least one test for each of its rules, with plain calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from napari_materialize.demand import Phase, Queue, Request


def compute(key, level=0):
    return Request(key, "compute", level)


def stage(key, level=0):
    return Request(key, "compute", level, has_inputs=True)


def read(key, level=0):
    return Request(key, "read", level)


def drain(queue, lane="compute"):
    """Start and finish one job after the other; return the order."""
    order = []
    while (key := queue.next(lane)) is not None:
        order.append(key)
        queue.finish(key)
    return order


# ---------------------------------------------------------------------- 1. one job per chunk


def test_rule_1_many_claims_make_one_job():
    queue = Queue({"compute": 2})
    claims = [queue.claim(compute("a"), background=b) for b in (True, False, False)]
    assert len(queue) == 1
    assert queue.next("compute") == "a"
    late = queue.claim(compute("a"))
    assert queue.next("compute") is None
    assert set(queue.finish("a").claims) == {*claims, late}


def test_rule_1_what_runs_along_with_another_is_not_started_again():
    queue = Queue({"compute": 2})
    queue.claim(compute("a"))
    queue.claim(compute("b"))
    assert queue.next("compute") == "a"
    assert queue.join(compute("b"))
    assert not queue.join(compute("b"))
    assert queue.join(compute("c"))
    assert queue.next("compute") is None
    assert len(queue.finish("b").claims) == 1
    assert queue.finish("c").claims == ()


# ---------------------------------------------------------------------- 2. clients first


def test_rule_2_a_client_comes_before_background_whatever_the_level():
    queue = Queue({"compute": 1})
    queue.claim(compute("job", level=0), background=True)
    queue.claim(compute("viewer", level=5))
    assert drain(queue) == ["viewer", "job"]


@pytest.mark.parametrize("background", [False, True])
def test_rule_2_within_a_class_finest_first_then_first_asked(background):
    queue = Queue({"compute": 1})
    for key, level in [("c1", 1), ("f1", 0), ("c2", 1), ("f2", 0)]:
        queue.claim(compute(key, level), background=background)
    assert drain(queue) == ["f1", "f2", "c1", "c2"]


def test_rule_2_a_priority_goes_before_the_level_for_anybody():
    queue = Queue({"compute": 1})
    queue.claim(compute("fine", level=0))
    queue.claim(compute("coarse", level=3), priority=-1)
    queue.claim(compute("later", level=0), priority=1)
    assert drain(queue) == ["coarse", "fine", "later"]


def test_rule_2_a_request_keeps_its_place_while_its_inputs_load():
    queue = Queue({"compute": 1, "read": 1})
    queue.claim(stage("first"))
    queue.claim(stage("second"))
    assert queue.admit("compute") == "first"
    queue.expand("first", [read("slow")])
    assert queue.admit("compute") == "second"
    queue.expand("second", [])
    queue.claim(compute("third"))
    assert queue.next("read") == "slow"
    assert queue.finish("slow").parents == ("first",)
    assert drain(queue) == ["first", "second", "third"]


# ---------------------------------------------------------------------- 3. a slot kept free


@pytest.mark.parametrize(("slots", "background"), [(1, 1), (2, 1), (4, 3)])
def test_rule_3_background_leaves_a_slot_free(slots, background):
    queue = Queue({"compute": slots})
    for number in range(slots + 2):
        queue.claim(compute(number), background=True)
    started = [key for _ in range(slots) if (key := queue.next("compute")) is not None]
    assert len(started) == background
    queue.claim(compute("viewer"))
    assert queue.next("compute") == ("viewer" if slots > 1 else None)


# ---------------------------------------------------------------------- 4. promotion


def test_rule_3_background_holds_back_while_a_client_is_about_to_ask():
    class Hand:
        """Somebody who may be forgotten."""

    queue, left, right, told = Queue({"compute": 4}), Hand(), Hand(), []
    queue.expected.on_gone = lambda: told.append("gone")
    for number in range(8):
        queue.claim(compute(number), background=True)
    queue.expect(left, soon=True)
    queue.expect(right, soon=True)
    assert queue.next("compute") is None
    queue.claim(compute("client"))
    assert queue.next("compute") == "client"  # it is for background work alone
    queue.expect(right, soon=False)
    assert queue.next("compute") is None
    assert not told
    del left  # whoever is gone holds nothing back
    assert told == ["gone"]
    assert [queue.next("compute"), queue.next("compute")] == [0, 1]


def test_rule_6_background_gets_a_turn_though_a_client_is_about_to_ask():
    class Hand:
        """Somebody who drags a slider."""

    queue, hand, order = Queue({"compute": 4}, patience=5), Hand(), []
    for number in range(3):
        queue.claim(compute(number), background=True)
    for _ in range(7):
        queue.expect(hand, soon=True)
        order.append(queue.next("compute"))
    assert order == [None] * 4 + [0] + [None] * 2
    queue.finish(0)
    assert [queue.next("compute"), queue.next("compute")] == [1, None]  # one at a time
    queue.expect(hand, soon=False)
    queue.expect(hand, soon=True)
    queue.finish(1)
    assert queue.next("compute") is None


def test_rule_4_a_clients_claim_promotes_and_its_release_demotes():
    queue = Queue({"compute": 1})
    for key in ("a", "b", "c"):
        queue.claim(compute(key), background=True)
    client = queue.claim(compute("c"))
    assert not queue.background("c")
    assert queue.release(client) == []
    assert queue.background("c")
    assert drain(queue) == ["a", "b", "c"]
    for key in ("a", "b", "c"):
        queue.claim(compute(key), background=True)
    queue.claim(compute("c"))
    assert drain(queue) == ["c", "a", "b"]


def test_rule_4_inputs_are_promoted_and_demoted_with_what_needs_them():
    queue = Queue({"compute": 1, "read": 1})
    queue.claim(stage("job"), background=True)
    queue.admit("compute")
    queue.expand("job", [read("part")])
    other = queue.claim(read("other"), background=True)
    client = queue.claim(stage("job"))
    assert not queue.background("part")
    queue.release(client)
    assert queue.background("part")
    assert queue.background("other")
    assert other.background


# ---------------------------------------------------------------------- 5. abandonment


def test_rule_5_the_last_claim_drops_a_waiting_job_and_its_inputs():
    queue = Queue({"compute": 1, "read": 1})
    claim = queue.claim(stage("a"))
    other = queue.claim(stage("b"))
    for _ in range(2):
        key = queue.admit("compute")
        queue.expand(key, [read("shared"), read(f"of {key}")])
    assert queue.release(claim) == ["a", "of a"]
    assert queue.release(claim) == []
    assert queue.wanted("shared")
    assert sorted(queue.release(other)) == ["b", "of b", "shared"]
    assert len(queue) == 0


def test_rule_5_a_client_giving_up_never_releases_background():
    queue = Queue({"compute": 1})
    queue.claim(compute("a"), background=True)
    assert queue.release(queue.claim(compute("a"))) == []
    assert queue.next("compute") == "a"


def test_rule_5_a_running_job_finishes_and_knows_that_nobody_waits():
    queue = Queue({"compute": 1})
    claim = queue.claim(compute("a"))
    assert queue.next("compute") == "a"
    assert queue.release(claim) == []
    assert not queue.wanted("a")
    assert queue.finish("a").claims == ()


def test_rule_5_an_abandoned_job_that_is_wanted_after_all_starts_over():
    queue = Queue({"compute": 1})
    queue.release(queue.claim(compute("a")))
    claim = queue.claim(compute("a"))
    assert queue.next("compute") == "a"
    queue.restart(compute("a"))
    assert queue.phase("a") is Phase.RUNNABLE
    assert queue.next("compute") == "a"
    assert queue.finish("a").claims == (claim,)


# ---------------------------------------------------------------------- 6. no starvation


def test_rule_6_background_gets_a_turn_under_a_steady_stream_of_clients():
    queue = Queue({"compute": 2}, patience=5)
    queue.claim(compute("job"), background=True)
    order = []
    for number in range(12):
        queue.claim(compute(number))
        key = queue.next("compute")
        queue.finish(key)
        order.append(key)
    assert order.index("job") == 5


# ---------------------------------------------------------------------- 7. waiting holds no slot


def test_rule_7_reading_and_waiting_for_inputs_hold_no_slot():
    queue = Queue({"compute": 1, "read": 1})
    queue.claim(stage("needs"))
    queue.admit("compute")
    queue.expand("needs", [read("part")])
    assert queue.next("read") == "part"
    assert queue.phase("needs") is Phase.BLOCKED
    queue.claim(compute("other"))
    assert queue.next("compute") == "other"


def test_inputs_of_inputs_are_asked_for_at_once():
    queue = Queue({"compute": 1, "read": 1})
    queue.claim(stage("late"), background=True)
    queue.admit("compute")
    assert queue.expand("late", [stage("early")]) == ["early"]
    assert queue.expand("early", [read("part")]) == []
    assert queue.background("part")
    queue.claim(stage("late"))
    assert not queue.background("part")


# ---------------------------------------------------------------------- 8. bounded


def test_rule_8_inputs_are_asked_for_a_few_jobs_ahead_only():
    queue = Queue({"compute": 2, "read": 1})
    for number in range(100):
        queue.claim(stage(number))
    admitted = []
    while (key := queue.admit("compute")) is not None:
        admitted.append(key)
        queue.expand(key, [])
    assert admitted == [0, 1, 2, 3]
    queue.next("compute")
    assert queue.admit("compute") == 4


def test_a_finer_request_does_not_wait_behind_coarser_ones_that_were_admitted():
    queue = Queue({"compute": 1, "read": 1})
    for number in range(4):
        queue.claim(stage(f"coarse {number}", level=2))
    while (key := queue.admit("compute")) is not None:
        queue.expand(key, [])
    queue.claim(stage("fine", level=0))
    assert queue.admit("compute") == "fine"
    queue.expand("fine", [])
    assert queue.next("compute") == "fine"


def test_dropped_and_dead_entries_do_not_pile_up():
    queue = Queue({"compute": 1})
    for _ in range(50):
        for claim in [queue.claim(compute(number)) for number in range(100)]:
            queue.release(claim)
    assert len(queue) == 0
    assert queue.next("compute") is None
    assert sum(map(len, queue._lines.values())) <= 200
    assert queue.dropped == {(0, 0): 5000}


def test_misuse_is_named():
    queue = Queue({"compute": 1})
    queue.claim(compute("a"))
    with pytest.raises(ValueError, match="only a running job ends"):
        queue.finish("a")
    with pytest.raises(ValueError, match="only a waiting job is expanded"):
        queue.expand("a", [])
    with pytest.raises(ValueError, match="at least one slot"):
        Queue({"compute": 0})


# ---------------------------------------------------------------------- all of it, at random


class QueueMachine(RuleBasedStateMachine):
    """The queue against a model that keeps plain lists and sorts them."""

    KEYS = tuple(f"{kind}{number}" for kind in "rs" for number in range(4))

    def __init__(self):
        super().__init__()
        self.slots = 3
        self.queue = Queue({"compute": self.slots, "read": 2}, patience=10**9)
        self.claims = []  # (sequence, key, background, level, claim)
        self.running = {}  # key -> class it started under
        self.needs = {}  # stage key -> read keys still missing, once expanded
        self.sequence = 0

    @staticmethod
    def request(key, level):
        return stage(key, level) if key.startswith("s") else read(key, level)

    def level(self, key):
        return int(key[1:]) % 2

    def direct(self, key):
        return [(background, self.level(key), n) for n, k, background, _ in self.claims if k == key]

    def rank(self, key):
        ranks = self.direct(key)
        for parent, missing in self.needs.items():
            if key in missing and parent not in self.running:
                ranks.append(self.rank(parent))
        return min(ranks, default=None)

    @rule(key=st.sampled_from(KEYS), background=st.booleans())
    def claim(self, key, background):
        claim = self.queue.claim(self.request(key, self.level(key)), background=background)
        self.claims.append((self.sequence, key, background, claim))
        self.sequence += 1

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data):
        number, key, _, claim = data.draw(st.sampled_from(self.claims))
        before = {k for k in self.KEYS if k in self.queue and k not in self.running}
        dropped = self.queue.release(claim)
        self.claims = [each for each in self.claims if each[0] != number]
        for gone in dropped:
            self.needs.pop(gone, None)
        wanted = {k for k in before if self.rank(k) is not None}
        assert set(dropped) == before - wanted, key

    @rule(data=st.data())
    def admit(self, data):
        key = self.queue.admit("compute")
        if key is None:
            return
        parts = data.draw(st.sets(st.sampled_from([k for k in self.KEYS if k[0] == "r"])))
        self.needs[key] = set(parts)
        assert self.queue.expand(key, [self.request(k, self.level(k)) for k in sorted(parts)]) == []

    @rule(lane=st.sampled_from(["compute", "read"]))
    def start(self, lane):
        kind = "s" if lane == "compute" else "r"
        slots = self.queue.lanes[lane]
        used = [which for key, which in self.running.items() if key[0] == kind]
        ready = [
            key
            for key in self.KEYS
            if key[0] == kind
            and key not in self.running
            and self.rank(key) is not None
            and (kind == "r" or self.needs.get(key) == set())
        ]
        if len(used) >= slots:
            ready = []
        elif sum(used) >= max(1, slots - 1):
            ready = [key for key in ready if not self.rank(key)[0]]
        best = min((self.rank(key)[:2] for key in ready), default=None)
        key = self.queue.next(lane)
        if best is None:
            assert key is None
            return
        assert key in ready
        assert self.rank(key)[:2] == best
        firsts = [self.rank(k) for k in ready if self.rank(k)[:2] == best]
        assert self.rank(key) == min(firsts)
        self.running[key] = self.rank(key)[0]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        key = data.draw(st.sampled_from(sorted(self.running)))
        over = self.queue.finish(key)
        del self.running[key]
        self.needs.pop(key, None)
        assert {c for *_, c in self.claims if c in over.claims} == {
            c for _, k, _, c in self.claims if k == key
        }
        self.claims = [each for each in self.claims if each[1] != key]
        for parent, missing in self.needs.items():
            assert (key in missing) == (parent in over.parents)
            missing.discard(key)

    @invariant()
    def same_jobs(self):
        for key in self.KEYS:
            expected = key in self.running or self.rank(key) is not None
            assert (key in self.queue) == expected, key
        for key in self.running:
            assert self.queue.phase(key) is Phase.RUNNING

    @invariant()
    def never_too_many(self):
        for kind, slots in (("s", self.slots), ("r", 2)):
            which = [w for key, w in self.running.items() if key[0] == kind]
            assert len(which) <= slots
            assert sum(which) <= max(1, slots - 1)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(stateful_step_count=60)
