"""An asyncio loop whose clock jumps to the next timer as soon as nothing else can happen. Nobody ever sleeps.

Invariants
    Time stands still while anything is ready to run, and moves to exactly the time of the next timer.
    A loop that waits for something that can never happen raises `Stuck` instead of hanging.
    What the loop's exception handler hears is an error of the test, unless the test asks for it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(BaseException):
    """Nothing is ready, no timer is set, and somebody still waits."""


class _JumpingSelector(selectors.DefaultSelector):
    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Stuck
        if not ready and timeout:
            self.loop.jump()
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Move the clock to the next timer; the loop has thrown the cancelled ones out of its front."""
        self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]  # typeshed hides asyncio's heap

    def turn(self) -> None:
        """Let everything run that can run now, and stop before time moves."""
        while self._ready:  # type: ignore[attr-defined]  # as in `jump`
            self.call_soon(self.stop)
            self.run_forever()

    def advance(self, seconds: float) -> None:
        """Let this much time pass, and everything happen that falls into it."""
        self.turn()
        self.call_later(seconds, self.stop)
        self.run_forever()
        self.turn()

    @property
    def timers(self) -> int:
        """Timers that are set."""
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]  # as in `jump`


def run(main: Coroutine[Any, Any, T], errors: Sequence[str] = ()) -> T:
    """Run a coroutine in virtual time. errors: what its loop must have to report; anything else is an error."""
    loop = VirtualTimeLoop()
    try:
        result = loop.run_until_complete(main)
        assert [context["message"] for context in loop.errors] == list(errors), loop.errors
        return result
    finally:
        loop.close()
