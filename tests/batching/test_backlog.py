"""Promises of a route's bounded queue."""

from __future__ import annotations

import pytest

from proxy.batching.backlog import Backlog


def test_a_full_queue_takes_nobody_and_an_empty_one_anybody() -> None:
    """A call larger than the queue can be sent at all; it enters an empty queue."""
    backlog = Backlog(0.0)
    assert backlog.takes(2000, max_queue=8)
    backlog.entered(5)
    assert backlog.takes(3, max_queue=8)
    assert not backlog.takes(4, max_queue=8)
    backlog.withdrawn(1)
    assert backlog.takes(4, max_queue=8)


def test_a_refused_caller_is_told_how_long_the_queue_will_take() -> None:
    """The time told is what waits over how fast items left lately."""
    backlog = Backlog(0.0)
    backlog.entered(1000)
    for second in range(1, 11):
        backlog.dispatched(10, float(second))
    assert backlog.items == 900
    assert backlog.retry_after(10.0) == pytest.approx(60)  # 90 s: nobody is told more than a minute
    backlog.withdrawn(700)
    assert backlog.retry_after(10.0) == pytest.approx(20)  # 200 items at 10 a second
    assert backlog.retry_after(20.0) == pytest.approx(40)  # the backend has become silent


def test_only_the_last_batches_count() -> None:
    """A backend that has become fast is believed soon."""
    backlog = Backlog(0.0)
    backlog.entered(2000)
    for second in range(1, 11):
        backlog.dispatched(1, float(second))
    for n in range(1, 41):
        backlog.dispatched(10, 10 + n / 10)
    backlog.withdrawn(backlog.items - 500)
    assert backlog.retry_after(14.0) == pytest.approx(5)  # 500 items at 100 a second


def test_a_caller_is_never_told_less_than_a_second() -> None:
    """`Retry-After` counts whole seconds, and zero would bring everybody back at once."""
    backlog = Backlog(5.0)
    backlog.entered(8)
    assert backlog.retry_after(5.0) == 1.0
    backlog.dispatched(4, 5.01)
    assert backlog.retry_after(5.01) == 1.0


def test_while_nothing_leaves_the_time_told_grows() -> None:
    """A hung backend is not besieged."""
    backlog = Backlog(5.0)
    backlog.entered(8)
    assert [backlog.retry_after(now) for now in (5.5, 12.0, 500.0)] == [1.0, 7.0, 60.0]


def test_repr_tells_the_truth() -> None:
    """What a queue says of itself in a log is what waits in it."""
    backlog = Backlog(0.0)
    backlog.entered(3)
    assert repr(backlog) == "<Backlog 3>"
