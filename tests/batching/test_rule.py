"""What the two rules promise, one decision at a time. Times have no unit here."""

from __future__ import annotations

import pytest

from proxy.batching.rule import NEVER, Adaptive, DispatchReason, Fixed, HoldFit, Leave, WakeAt
from tests.batching.company import Crowd, accustom


def with_company(joiners: int, after: float, *, size: int = 1) -> Adaptive:
    """A rule for 32 items that may wait for 8, before a backend that takes 20, and is used to company."""
    rule = Adaptive(32, 8, step=1)
    accustom(rule, joiners, after=after, hold=20, size=size)
    return rule


def test_nothing_is_known_at_first_and_nobody_waits() -> None:
    """A fresh start, or a signature never seen, costs no caller a wait."""
    rule = Adaptive(32, 8, step=1)
    rule.arrived(1, 5.0)
    assert rule.decide(5.0, Crowd(1), NEVER) == Leave(1, DispatchReason.READY)


def test_company_that_always_comes_is_waited_for_and_no_longer() -> None:
    """Once as many have come as ever came lately, the batch leaves: it waits for nobody who is not expected."""
    rule = with_company(7, after=0.5)
    assert rule.decide(1000.0, Crowd(1), NEVER) == WakeAt(1001.0)
    assert rule.decide(1000.4, Crowd(*[1] * 7), NEVER) == WakeAt(1001.0)
    assert rule.decide(1000.5, Crowd(*[1] * 8), NEVER) == Leave(8, DispatchReason.EXPECTED)


def test_company_that_stays_away_is_not_waited_for_beyond_the_chosen_time() -> None:
    """A wait that was a mistake is short."""
    rule = with_company(7, after=0.5)
    assert rule.decide(1000.0, Crowd(1), NEVER) == WakeAt(1001.0)
    assert rule.decide(1001.0, Crowd(1, 1), NEVER) == Leave(2, DispatchReason.DELAY)


def test_a_part_counts_by_its_items() -> None:
    """One caller who brings seven items is as good company as seven callers."""
    one, seven = with_company(1, after=0.5, size=7), with_company(7, after=0.5)
    for rule in (one, seven):
        assert rule.decide(1000.0, Crowd(1), NEVER) == WakeAt(1001.0)
        assert rule.decide(1000.4, Crowd(1, 1, 1), NEVER) == WakeAt(1001.0)
        assert rule.decide(1000.5, Crowd(1, 7), NEVER) == Leave(8, DispatchReason.EXPECTED)


def test_a_part_that_fills_a_batch_by_itself_is_no_company() -> None:
    """Nobody waits for a call with which it cannot travel."""
    rule = with_company(1, after=0.5, size=32)
    assert rule.decide(1000.0, Crowd(1), NEVER) == Leave(1, DispatchReason.READY)


def test_a_long_busy_spell_leaves_nothing_behind() -> None:
    """Who comes too late to be company is not remembered, however many there are before the next ready moment."""
    rule = with_company(7, after=0.5)
    rule.decide(1000.0, Crowd(1), NEVER)
    for n in range(1000):
        rule.arrived(1, 1000.0 + n)
    assert rule._moment is not None
    assert rule._moment.offsets == [float(n) for n in range(9)]


def test_company_after_answers_says_nothing_of_a_request_out_of_the_blue() -> None:
    """A lone caller does not wait because others came back together a while ago."""
    rule = Adaptive(32, 8, step=1)
    for cycle in range(10):  # here everybody comes just after an answer
        now = cycle * 100.0
        rule.answered(now, 8, 20, representative=True)
        rule.decide(now, Crowd(1), NEVER)
        for _ in range(7):
            rule.arrived(1, now + 0.5)
        rule.end_moment()
    assert rule.decide(5000.0, Crowd(1), NEVER) == Leave(1, DispatchReason.READY)
    rule.end_moment()
    rule.answered(6000.0, 8, 20, representative=True)
    assert rule.decide(6000.0, Crowd(1), NEVER) == WakeAt(6001.0)


def test_a_slot_about_to_come_free_makes_waiting_pointless() -> None:
    """Where another batch can leave in a moment, late comers take that one."""
    assert with_company(7, after=0.5).decide(1000.0, Crowd(1), 1000.1) == Leave(1, DispatchReason.READY)


def test_a_failure_teaches_nothing_about_the_model() -> None:
    """A backend that fails fast does not make the next batches believe that it computes fast."""
    rule = with_company(7, after=0.5)
    before = rule.forecast(8)
    for _ in range(50):
        rule.answered(999.0, 8, 0.001, representative=False)
    assert rule.forecast(8) == before == 20


@pytest.mark.parametrize("sizes", [(1, 32), (4, 8, 16), (7, 7, 9, 30)])
def test_the_fit_finds_fixed_and_marginal_cost(sizes: tuple[int, ...]) -> None:
    """What one more item costs is learnt from ordinary traffic."""
    fit = HoldFit()
    for _ in range(200):
        for size in sizes:
            fit.add(size, 20 + 0.5 * size)
    assert fit.of(16) == pytest.approx(28, rel=0.03)
    assert fit.each == pytest.approx(0.5, rel=0.1)


def test_a_straggler_hardly_moves_the_fit() -> None:
    """One hiccup of the backend does not make everybody wait."""
    fit = HoldFit()
    for _ in range(200):
        fit.add(8, 20.0)
    fit.add(8, 2000.0)
    assert 20 < fit.of(8) < 20.5


def test_larger_batches_that_happen_to_be_quicker_cost_nothing_less() -> None:
    """Chance is not taken for a backend that computes more in less time."""
    fit = HoldFit()
    for size, held in ((2, 22.0), (16, 18.0)) * 50:
        fit.add(size, held)
    assert fit.each == 0.0
    assert fit.fixed == pytest.approx(20, rel=0.01)


def test_a_cost_that_grows_with_size_only_has_no_fixed_part() -> None:
    """Where a batch saves nothing, nothing is waited for."""
    fit = HoldFit()
    for size in (2, 4, 8, 16) * 20:
        fit.add(size, 2.0 * size - 1)
    assert fit.fixed == 0.0
    assert fit.each == pytest.approx(1.9, rel=0.1)


def test_fixed_holds_a_lone_item_for_the_whole_delay() -> None:
    """`mode: fixed` does what Triton's dynamic batcher does, for those who want to compare."""
    rule = Fixed(32, 8)
    assert rule.decide(0.0, Crowd(1), NEVER) == WakeAt(8.0)
    assert rule.decide(8.0, Crowd(1), NEVER) == Leave(1, DispatchReason.DELAY)
    assert Fixed(32, 0).decide(0.0, Crowd(1), NEVER) == Leave(1, DispatchReason.READY)


def test_fixed_counts_from_the_oldest_arrival_even_while_the_backend_was_busy() -> None:
    """Whoever has waited for a slot longer than the delay does not wait again."""
    assert Fixed(32, 8).decide(9.0, Crowd(1, 2, oldest=1.0), NEVER) == Leave(3, DispatchReason.DELAY)
    assert Fixed(32, 8).decide(9.0, Crowd(1, 2, oldest=2.0), NEVER) == WakeAt(10.0)


def test_fixed_lets_the_largest_preferred_size_leave_at_once() -> None:
    """A preferred size is not held back for more; what is left over waits on."""
    rule = Fixed(32, 8, preferred=(4, 8))
    assert rule.decide(0.0, Crowd(1, 2), NEVER) == WakeAt(8.0)
    assert rule.decide(0.0, Crowd(1, 3), NEVER) == Leave(4, DispatchReason.FULL)
    assert rule.decide(0.0, Crowd(1, 3, 4, 3), NEVER) == Leave(8, DispatchReason.FULL)
    assert rule.decide(0.0, Crowd(3, 6), NEVER) == WakeAt(8.0)


def test_repr_tells_the_truth() -> None:
    """What a rule says of itself in a log is what it knows."""
    rule = with_company(7, after=0.5)
    assert repr(rule) == "<Adaptive 32 within 8 hold=20+0n>"
    rule.decide(1000.0, Crowd(1), NEVER)
    assert repr(rule) == "<Adaptive 32 within 8 hold=20+0n until=1001.0 target=8>"
    assert repr(Fixed(32, 8, preferred=(8, 4))) == "<Fixed 32 within 8 preferred=[4, 8]>"
