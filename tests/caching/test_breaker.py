"""Promises of the breaker. Time is an argument, so nothing here sleeps."""

from __future__ import annotations

from proxy.caching.breaker import CALM, FIRST, LAST, Breaker


def test_one_failure_opens_it_and_one_probe_closes_it() -> None:
    """A fault costs latency once: after the first failure nobody asks until a probe has succeeded."""
    breaker = Breaker()
    assert not breaker.up  # nothing is known of a store that was never asked
    breaker.rise(1.0)
    assert breaker.up
    breaker.fall(2.0)
    assert not breaker.up


def test_probes_of_a_store_that_stays_away_become_rarer_up_to_a_limit() -> None:
    """A store that comes back is noticed within two seconds, and one that does not is left in peace."""
    breaker = Breaker()
    waits = []
    for second in range(6):
        breaker.fall(float(second))
        waits.append(breaker.wait)
    assert waits == [FIRST, 0.5, 1.0, LAST, LAST, LAST]


def test_a_store_that_answers_probes_and_then_fails_is_asked_less_and_less() -> None:
    """Coming up for a moment does not start the waits anew; being up for a while does."""
    breaker = Breaker()
    breaker.fall(0.0)
    breaker.rise(1.0)
    breaker.fall(1.0 + CALM - 0.001)
    assert breaker.wait == 2 * FIRST
    breaker.rise(100.0)
    breaker.fall(100.0 + CALM)
    assert breaker.wait == FIRST


def test_repr_tells_the_truth() -> None:
    """A debugger shows whether the store is asked, and when it is probed."""
    breaker = Breaker()
    breaker.rise(0.0)
    assert repr(breaker) == "<Breaker closed>"
    breaker.fall(0.1)
    breaker.fall(0.4)
    assert repr(breaker) == "<Breaker open, probes every 0.5 s>"
