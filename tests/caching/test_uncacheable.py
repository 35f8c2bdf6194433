"""Promises of the memory of uncacheable items: it helps for a while, forgets in time, and stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.caching.uncacheable import Uncacheable


def address(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_an_uncacheable_item_is_known_for_its_lifetime_and_then_tried_again() -> None:
    """Identical requests do not queue behind an answer they cannot share, and profit when that changes."""
    known = Uncacheable(lifetime=60.0)
    known.add(address(1), now=100.0)
    assert known.holds(address(1), now=159.9)
    assert not known.holds(address(2), now=159.9)
    assert not known.holds(address(1), now=160.0)
    assert len(known) == 0


def test_an_item_that_proves_uncacheable_again_is_remembered_anew() -> None:
    """The time counts from the last answer that could not be stored."""
    known = Uncacheable(most=2, lifetime=60.0)
    for number, now in [(1, 0.0), (2, 10.0), (1, 20.0), (3, 30.0)]:
        known.add(address(number), now)
    assert known.holds(address(1), now=79.0)
    assert not known.holds(address(2), now=31.0)
    assert known.holds(address(3), now=31.0)


@given(numbers=st.lists(st.integers(0, 9), max_size=40))
def test_memory_is_bounded_and_the_latest_stay(numbers: list[int]) -> None:
    """However many items prove uncacheable, the last few are known and the memory stays as it is."""
    known = Uncacheable(most=3, lifetime=1000.0)
    for now, number in enumerate(numbers):
        known.add(address(number), float(now))
    latest = list(dict.fromkeys(reversed(numbers)))[:3]
    assert {number for number in range(10) if known.holds(address(number), 40.0)} == set(latest)
    assert repr(known) == f"<Uncacheable {len(latest)} of 3 addresses, 1000 s each>"
