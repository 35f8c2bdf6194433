"""The sampler of event-loop lag, on an event loop whose clock is ours."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

import pytest

from proxy.telemetry.loop_lag import LoopLag


class Hours:
    """A clock that stands still until it is moved. behind: seconds that the sampler's clock lacks of the loop's."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.behind = 0.0

    def loop(self) -> float:
        return self.now

    def sampler(self) -> float:
        return self.now - self.behind


class VirtualTime(selectors.DefaultSelector):
    """Waits for nothing: where a loop would sleep, time has passed."""

    def __init__(self, hours: Hours) -> None:
        super().__init__()
        self._hours = hours

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            self._hours.now += timeout
        return super().select(0)


def run(story: Callable[[Hours, LoopLag], Any], every: float = 0.1) -> list[float]:
    """What a sampler observed while `story`, a coroutine function, ran in virtual time."""
    hours, seen = Hours(), list[float]()
    loop = asyncio.SelectorEventLoop(VirtualTime(hours))
    loop.time = hours.loop  # type: ignore[method-assign]  # the loop's documented clock, replaced for this one loop
    try:
        loop.run_until_complete(story(hours, LoopLag(seen.append, every=every, clock=hours.sampler)))
    finally:
        loop.close()
    return seen


def test_an_idle_loop_has_no_lag() -> None:
    """A loop that has time runs its timers when they are due: ten samples a second of zero."""

    async def story(_: Hours, lag: LoopLag) -> None:
        lag.start()
        await asyncio.sleep(1.05)
        lag.stop()

    assert run(story) == pytest.approx([0.0] * 10, abs=1e-6)


def test_a_callback_that_blocks_shows_as_lag() -> None:
    """Work that holds the loop for 80 ms past a timer's due time is seen as 80 ms, once."""

    async def story(hours: Hours, lag: LoopLag) -> None:
        lag.start()
        await asyncio.sleep(0.15)
        hours.now += 0.13  # busy from 0.15 to 0.28; the sample was due at 0.2
        await asyncio.sleep(0.11)
        lag.stop()

    assert run(story) == pytest.approx([0.0, 0.08, 0.0], abs=1e-6)


def test_nothing_is_sampled_after_stop() -> None:
    """A stopped sampler leaves no timer behind, may be stopped again, and may start anew."""

    async def story(_: Hours, lag: LoopLag) -> None:
        assert repr(lag) == "<LoopLag every 0.1 s, stopped>"
        lag.start()
        assert repr(lag) == "<LoopLag every 0.1 s, sampling>"
        await asyncio.sleep(0.15)
        lag.stop()
        lag.stop()
        await asyncio.sleep(1)
        lag.start()
        await asyncio.sleep(0.15)
        lag.stop()

    assert run(story) == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_timer_that_runs_early_is_no_negative_lag() -> None:
    """Loops that round their timers to milliseconds may be early; that is no lag, and not lost either."""

    async def story(hours: Hours, lag: LoopLag) -> None:
        lag.start()
        hours.behind = 0.0004  # so its timer will run this early
        await asyncio.sleep(0.1005)
        lag.stop()

    assert run(story) == [0.0]
