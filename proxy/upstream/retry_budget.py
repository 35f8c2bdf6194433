"""How many tries beyond the first the backend is asked to bear: a share of recent requests.

Invariants
    Over any `WINDOW` seconds (to a tenth of it) no more is spent than `share` of the requests of that
    window plus `minimum`: retries can never multiply the load of a backend that is failing.
    What is not spent is not saved up beyond the window.

Pure: knows nothing of what a retry is for. The members of a joined request that are sent singly do not draw on
it: they cost the backend what they would have cost without Forebay (docs/decisions/joined-failures.md).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

WINDOW: Final = 10.0  # seconds
_PARTS: Final = 10


class RetryBudget:
    """Requests earn, retries spend. `now` is seconds on one monotonic clock."""

    def __init__(self, *, share: float = 0.2, minimum: int = 10) -> None:
        self._share = share
        self._minimum = minimum
        self._requests = 0
        self._spent = 0
        self._parts: deque[list[int]] = deque()  # [part of the window, requests in it, spent in it], oldest first

    def request(self, now: float) -> None:
        """A first try went out."""
        self._part(now)[1] += 1
        self._requests += 1

    def spend(self, now: float) -> bool:
        """May one more try go out? If so it is paid for."""
        part = self._part(now)
        if self._spent + 1 > self._minimum + self._share * self._requests:
            return False
        part[2] += 1
        self._spent += 1
        return True

    def _part(self, now: float) -> list[int]:
        number = math.floor(now * _PARTS / WINDOW)
        parts = self._parts
        while parts and parts[0][0] <= number - _PARTS:
            _, requests, spent = parts.popleft()
            self._requests -= requests
            self._spent -= spent
        if not parts or parts[-1][0] != number:
            parts.append([number, 0, 0])
        return parts[-1]

    def __repr__(self) -> str:
        allowed = math.floor(self._minimum + self._share * self._requests)
        return f"<RetryBudget {self._spent}/{allowed} spent>"
