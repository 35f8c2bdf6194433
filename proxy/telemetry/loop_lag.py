"""How late the event loop runs a timer: what a blocking callback costs every request beside it.

Each sample is a timer that is due `every` seconds after the one before it ran; its delay beyond that
goes to the histogram. A loop that stands still is seen when it moves on, as one long sample.

Knows nothing of what held the loop up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

EVERY: Final = 0.1
"""Seconds between samples: ten microseconds of work each, and a stall of 100 ms does not hide."""


class LoopLag:
    """Samples the loop it is started on until it is stopped.

    clock: not the loop's own, which uvloop reads once a turn and so does not see the turn under way.
    """

    def __init__(
        self, observe: Callable[[float], None], *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._observe = observe
        self._every = every
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        assert self._timer is None, "started twice"
        self._next(asyncio.get_running_loop())

    def stop(self) -> None:
        """End; no sample comes after it. More than once is the same as once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self._clock() + self._every
        self._timer = loop.call_later(self._every, self._sample, loop)

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        self._observe(max(0.0, self._clock() - self._due))  # a timer may be a rounding early
        self._next(loop)

    def __repr__(self) -> str:
        return f"<LoopLag every {self._every} s, {'stopped' if self._timer is None else 'sampling'}>"
