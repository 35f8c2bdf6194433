"""What batching gains on a simulated backend, by the very classes that serve."""

from __future__ import annotations

import pytest

from proxy.batching.rule import Adaptive
from proxy.measure.simulator import MS, simulate


@pytest.mark.parametrize(
    ("callers", "rate", "p50", "p99"),
    [(8, 320, 25, 25), (31, 835, 37, 37), (32, 848, 37, 38), (40, 857, 37, 74), (64, 891, 71, 72)],
)
def test_callers_that_come_back_together_leave_together(callers: int, rate: float, p50: float, p99: float) -> None:
    """Any number of steady callers gets the throughput and latency that the rule was chosen for, with no tuning."""
    run = simulate(Adaptive(32, 5 * MS), callers=callers, answers=8000)
    assert run.rate == pytest.approx(rate, rel=0.02)
    assert run.p50 / MS == pytest.approx(p50, rel=0.02)
    assert run.p99 / MS == pytest.approx(p99, rel=0.02)


def test_a_lone_caller_never_waits() -> None:
    """Who is alone pays nothing for batching, from the first request on."""
    run = simulate(Adaptive(32, 5 * MS), callers=1, answers=500)
    assert run.waits == [0.0] * 500


def test_a_crowd_that_shrinks_to_one_is_forgotten_at_once() -> None:
    """The last caller of a crowd waits in vain for eight of its requests, and then never again."""
    run = simulate(Adaptive(32, 5 * MS), callers=32, crowd=lambda answered: 32 if answered < 3200 else 1, answers=3400)
    alone = run.waits[-160:]
    assert sum(wait > 0 for wait in run.waits[3232:]) <= 8
    assert max(run.waits) <= 5 * MS
    assert alone == [0.0] * 160


@pytest.mark.parametrize("load", [0.05, 0.4, 0.8])
def test_strangers_do_not_pay_for_hoped_for_company(load: float) -> None:
    """Under independent arrivals, where waiting cannot pay, requests take as long as if nobody ever waited."""
    rate = load * 32 / (36 * MS)
    run, eager = (simulate(Adaptive(32, delay), rate=rate, answers=8000) for delay in (5 * MS, 0.0))
    assert max(eager.waits) == 0.0
    assert run.p50 <= 1.02 * eager.p50
    assert run.p99 <= 1.02 * eager.p99
