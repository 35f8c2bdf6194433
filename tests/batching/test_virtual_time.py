"""The clock that the batching tests rely on."""

from __future__ import annotations

import asyncio

import pytest

from tests.batching.virtual_time import Stuck, VirtualTimeLoop, run


def test_time_jumps_to_exactly_the_next_timer() -> None:
    """An hour passes at once, and timers come in order and on time."""

    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []
        loop.call_at(0.1 + 0.2, lambda: seen.append(("first", loop.time())))
        await asyncio.sleep(3600)
        seen.append(("last", loop.time()))
        return seen

    assert run(main()) == [("first", 0.1 + 0.2), ("last", 3600.0)]


def test_a_wait_that_cannot_end_is_an_error() -> None:
    """A hung future fails its test at once."""
    with pytest.raises(Stuck):
        run(asyncio.Event().wait())


def test_the_loop_can_be_stepped() -> None:
    """A state machine decides how much time passes."""
    loop = VirtualTimeLoop()
    seen: list[float] = []
    loop.call_later(1.0, lambda: seen.append(loop.time()))
    loop.advance(0.5)
    assert (seen, loop.time(), loop.timers) == ([], 0.5, 1)
    loop.advance(0.5)
    assert (seen, loop.time(), loop.timers) == ([1.0], 1.0, 0)
    loop.close()
