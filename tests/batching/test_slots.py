"""Promises of a lane: several signatures before the slots of one model. Times have no unit here."""

from __future__ import annotations

import itertools
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.batching.rule import NEVER, Adaptive, DispatchReason, Fixed, Rule, WakeAt
from proxy.batching.slots import Held, Lane, Slots
from tests.batching.company import accustom


def sent(lane: Lane[str], now: float) -> list[Held[str]]:
    """What leaves now."""
    batches = []
    while isinstance(effect := lane.decide(now), Held):
        batches.append(effect)
    return batches


def parts(batches: list[Held[str]]) -> list[tuple[str, ...]]:
    return [batch.dispatch.parts for batch in batches]


def test_a_freed_slot_goes_to_the_oldest_of_any_signature() -> None:
    """No signature is served before another whose caller has waited longer."""
    lane: Lane[str] = Lane(1, 0.0)
    red, blue = Adaptive(8, 5, step=1), Adaptive(8, 5, step=1)
    lane.add("first", 1, red, 0.0)
    (first,) = sent(lane, 0.0)
    lane.add("b1", 1, blue, 1.0)
    lane.add("r1", 1, red, 2.0)
    lane.add("b2", 1, blue, 3.0)
    assert sent(lane, 3.0) == []
    lane.answered(first, 4.0, ok=True)
    (second,) = sent(lane, 4.0)
    assert second.dispatch.parts == ("b1", "b2")
    lane.answered(second, 5.0, ok=True)
    assert parts(sent(lane, 5.0)) == [("r1",)]


def test_the_order_holds_when_the_oldest_leaves_its_window() -> None:
    """A withdrawn part no longer keeps its signature's place in the row."""
    lane: Lane[str] = Lane(1, 0.0)
    red, blue = Adaptive(8, 5, step=1), Adaptive(8, 5, step=1)
    lane.add("first", 1, red, 0.0)
    (first,) = sent(lane, 0.0)
    lane.add("r1", 1, red, 1.0)
    lane.add("b1", 1, blue, 2.0)
    lane.add("r2", 1, red, 3.0)
    assert lane.withdraw("r1", red)
    lane.answered(first, 4.0, ok=True)
    assert parts(sent(lane, 4.0)) == [("b1",)]


def test_full_batches_do_not_starve_an_older_part_of_another_signature() -> None:
    """A crowd that always fills its batches cannot keep a stranger from ever seeing a free slot."""
    lane: Lane[str] = Lane(1, 0.0)
    crowd, stranger = Adaptive(2, 5, step=1), Adaptive(2, 5, step=1)
    names = (f"c{n}" for n in itertools.count())
    for _ in range(4):
        lane.add(next(names), 1, crowd, 0.0)
    out = deque(sent(lane, 0.0))
    assert len(out) == 2  # one computing, one queued up
    lane.add("stranger", 1, stranger, 1.0)
    served = []
    for now in (2.0, 3.0, 4.0):
        lane.add(next(names), 1, crowd, now)
        lane.add(next(names), 1, crowd, now)
        lane.answered(out.popleft(), now, ok=True)
        batches = sent(lane, now)
        out += batches
        served += parts(batches)
    assert served[0] == ("stranger",)
    assert len(served) == 3


def test_waiting_for_company_holds_no_slot_back_from_others() -> None:
    """A lone request of another signature waits for nobody, though an older window waits for its own company."""
    lane: Lane[str] = Lane(1, 0.0)
    patient, lone = Fixed(8, 5), Adaptive(8, 5, step=1)
    lane.add("patient", 1, patient, 0.0)
    assert lane.decide(0.0) == WakeAt(5.0)
    lane.add("lone", 1, lone, 1.0)
    assert parts(sent(lane, 1.0)) == [("lone",)]


def test_the_earliest_wake_counts() -> None:
    """Of several windows that wait, none is forgotten."""
    for delays in ((9, 2, 5), (2, 5, 9), (9, 5, 2)):
        lane: Lane[str] = Lane(1, 0.0)
        for delay in delays:
            lane.add("part", 1, Fixed(8, delay), 1.0)
        assert lane.decide(1.0) == WakeAt(3.0)


def test_only_a_batch_that_had_the_backend_to_itself_tells_how_long_one_takes() -> None:
    """Time in the backend's queue, and failures, are not mistaken for computing."""
    rule = Adaptive(2, 5, step=1)
    lane: Lane[str] = Lane(1, 0.0)
    for name in "abcd":
        lane.add(name, 1, rule, 0.0)
    alone, behind = sent(lane, 0.0)
    lane.answered(alone, 10.0, ok=True)
    assert rule.forecast(2) == 10.0
    lane.answered(behind, 30.0, ok=True)
    lane.add("e", 1, rule, 40.0)
    (failed,) = sent(lane, 40.0)
    lane.answered(failed, 41.0, ok=False)
    assert rule.forecast(2) == 10.0


def test_more_slots_are_used_at_once() -> None:
    """A model that gains an instance gets its batches."""
    lane: Lane[str] = Lane(1, 0.0)
    rule = Adaptive(8, 5, step=1)
    lane.add("a", 1, rule, 0.0)
    sent(lane, 0.0)
    lane.add("b", 1, rule, 1.0)
    assert sent(lane, 1.0) == []
    lane.slots.resize(2, 2.0)
    assert parts(sent(lane, 2.0)) == [("b",)]


def test_slots_forecast_the_next_answer() -> None:
    """Forecasts that did not come true say nothing."""
    slots = Slots(2, 0.0)
    assert slots.next_answer(0.0) == NEVER
    slots.take(0.0, 10.0)
    slots.take(1.0, 5.0)
    assert slots.next_answer(1.0) == 5.0
    assert slots.next_answer(6.0) == 10.0
    slots.give_back(6.0)
    assert slots.next_answer(2.0) == 10.0


def test_idle_time_is_the_time_with_a_free_slot() -> None:
    """The clock of voluntary waits stands still while no slot is free."""
    slots = Slots(2, 1.0)
    assert slots.idle(2.0) == 1.0
    slots.take(3.0, NEVER)
    assert slots.idle(4.0) == 3.0  # the other one is free
    slots.take(4.0, NEVER)
    assert slots.idle(9.0) == 3.0
    slots.give_back(10.0)
    assert slots.idle(12.0) == 5.0
    slots.resize(1, 12.0)
    assert slots.idle(20.0) == 5.0


def test_repr_tells_the_truth() -> None:
    """What a lane says of itself in a log is what waits and what is out."""
    lane: Lane[str] = Lane(2, 0.0)
    assert repr(lane) == "<Lane <Slots 0/2> []>"
    lane.add("a", 3, Fixed(8, 5), 1.0)
    assert repr(lane) == "<Lane <Slots 0/2> [<Window 3/8 oldest=1.0>]>"
    lane.draining = True
    assert len(sent(lane, 1.0)) == 1
    assert repr(lane) == "<Lane <Slots 1/2> [] draining>"


MAX_SIZE = 4
MAX_DELAY = 0.008


def record(kind: str) -> Rule:
    if kind == "fixed":
        return Fixed(MAX_SIZE, MAX_DELAY, preferred=(2,))
    rule = Adaptive(MAX_SIZE, MAX_DELAY)
    if kind == "accustomed":
        accustom(rule, joiners=2, after=0.0009, hold=0.020)
    return rule


class LaneMachine(RuleBasedStateMachine):
    """Under any order of arrivals, leavers, answers and time, nothing is lost, doubled, torn, overtaken or late."""

    @initialize(
        slots=st.integers(1, 3), kinds=st.lists(st.sampled_from(["fixed", "new", "accustomed"]), min_size=3, max_size=3)
    )
    def begin(self, slots: int, kinds: list[str]) -> None:
        self.now = 0.0
        self.lane: Lane[int] = Lane(slots, 0.0)
        self.records = [record(kind) for kind in kinds]
        self.numbers = itertools.count()
        self.waiting: dict[int, tuple[int, int, float]] = {}  # the model: part -> rule, size, when it came
        self.out: list[Held[int]] = []
        self.free: dict[int, float] = {}  # part -> how long a slot was free while it waited

    def settle(self) -> float:
        """Ask the lane until nothing leaves, hold every batch against the model, and return when to ask again."""
        while True:
            free = len(self.out) < self.lane.slots.limit
            effect = self.lane.decide(self.now)
            if isinstance(effect, WakeAt):
                break
            dispatch = effect.dispatch
            index = self.records.index(dispatch.rule)
            mine = [part for part in self.waiting if self.waiting[part][0] == index]
            taken = [self.waiting[part] for part in dispatch.parts]
            assert list(dispatch.parts) == mine[: len(dispatch.parts)]  # first come, first served, nobody doubled
            assert dispatch.items == sum(size for _, size, _ in taken)  # whole parts
            assert dispatch.items <= MAX_SIZE or len(dispatch.parts) == 1
            assert effect.alone == free
            if not free:  # only a full batch, only one a slot, only the oldest
                assert sum(self.waiting[part][1] for part in mine) >= MAX_SIZE
                assert len(self.out) < 2 * self.lane.slots.limit
                assert taken[0][2] == min(came for _, _, came in self.waiting.values())
            for part, voluntary in zip(dispatch.parts, dispatch.voluntary, strict=True):
                assert -1e-9 <= voluntary <= min(self.free[part], MAX_DELAY) + 1e-9
                del self.waiting[part]
            if dispatch.reason is DispatchReason.READY:
                assert max(dispatch.voluntary) == 0.0
            self.out.append(effect)
        if len(self.out) < self.lane.slots.limit and self.waiting:
            assert self.now < effect.time <= self.now + MAX_DELAY  # somebody chose to wait, and will be asked
            for index in range(len(self.records)):
                assert sum(size for i, size, _ in self.waiting.values() if i == index) < MAX_SIZE
        else:
            assert effect.time == NEVER
        return effect.time

    @rule(index=st.integers(0, 2), size=st.sampled_from([1, 1, 1, 2, 3, 4, 7]), at_once=st.booleans())
    def arrive(self, index: int, size: int, at_once: bool) -> None:
        part = next(self.numbers)
        self.lane.add(part, size, self.records[index], self.now)
        self.waiting[part] = index, size, self.now
        self.free[part] = 0.0
        if at_once:
            self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(list(self.waiting)))
        rule = self.records[self.waiting.pop(part)[0]]
        assert self.lane.withdraw(part, rule)
        assert not self.lane.withdraw(part, rule)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), ok=st.booleans())
    def answer(self, data: st.DataObject, ok: bool) -> None:
        held = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.lane.answered(held, self.now, ok=ok)
        for part in held.dispatch.parts:
            assert not self.lane.withdraw(part, held.dispatch.rule)
        self.settle()

    @rule(step=st.sampled_from([0.0001, 0.00025, 0.001, 0.005, 0.02]))
    def time_passes(self, step: float) -> None:
        """As a driver lets it pass: whoever asked to be woken is."""
        end = self.now + step
        while True:
            wake = self.settle()
            until = min(wake, end)
            if len(self.out) < self.lane.slots.limit:
                for part in self.waiting:
                    self.free[part] += until - self.now
            self.now = until
            if wake > end:
                break

    @rule(slots=st.integers(1, 3))
    def another_number_of_slots(self, slots: int) -> None:
        self.lane.slots.resize(slots, self.now)
        self.settle()

    @rule()
    def drain_for_a_moment(self) -> None:
        self.lane.draining = True
        self.settle()
        self.lane.draining = False
        assert not self.waiting or len(self.out) >= self.lane.slots.limit

    @invariant()
    def repr_tells_the_truth(self) -> None:
        assert repr(self.lane).startswith(f"<Lane <Slots {len(self.out)}/{self.lane.slots.limit}> [")
        assert sum(window.items for window in self.lane.windows()) == sum(size for _, size, _ in self.waiting.values())
        assert all(window.items for window in self.lane.windows())
        assert self.lane.vacant == (not self.waiting and not self.out)

    def teardown(self) -> None:
        """Every part leaves in the end, if batches are answered."""
        while self.waiting or self.out:
            self.time_passes(MAX_DELAY)
            assert self.out
            self.lane.answered(self.out.pop(0), self.now, ok=True)
        assert self.lane.vacant


LaneMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestLane = LaneMachine.TestCase
