"""Promises of the account of bytes that are held."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.limits import Buffered, Limits


@given(st.lists(st.integers(0, 40)))
def test_no_more_is_held_than_there_is_room_for(sizes: list[int]) -> None:
    """Bodies in memory never add up to more than `limits.buffered`, and all of it can be given back."""
    buffered = Buffered(100)
    taken: list[int] = []
    for size in sizes:
        fits = sum(taken) + size <= 100
        assert buffered.take(size) is fits
        if fits:
            taken.append(size)
        assert buffered.held == sum(taken)
        assert repr(buffered) == f"<Buffered {sum(taken)}/100>"
    for size in taken:
        buffered.give(size)
    assert buffered.held == 0


def test_nobody_gives_back_what_was_not_taken() -> None:
    """An accounting bug of ours stops a test, not a production process by and by."""
    buffered = Buffered(10)
    assert buffered.take(3)
    with pytest.raises(AssertionError):
        buffered.give(4)


def test_every_limit_explains_itself() -> None:
    """docs/config.md has a sentence for each limit."""
    for field in dataclasses.fields(Limits):
        assert field.metadata["doc"].endswith("."), field.name
        assert field.metadata["per_route"] is False, field.name
