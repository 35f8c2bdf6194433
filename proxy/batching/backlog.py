"""The bounded queue of one route: whether a call may still enter, and when one that may not should return.

It lives while something waits, so its record of how fast items leave is of the present crowd only.

Invariant
    At most `max_queue` items wait, or those of a single call that is larger by itself.

Knows no clock and nothing of windows.
"""

from __future__ import annotations

from collections import deque

SHORTEST, LONGEST = 1.0, 60.0
"""Bounds of `retry_after` in seconds. `Retry-After` is written in whole seconds, and zero would mean at once; beyond a
minute a forecast from the last few batches is worth nothing, and nobody waits that long."""

_REMEMBERED = 32  # batches


class Backlog:
    __slots__ = ("_left", "items")

    def __init__(self, now: float) -> None:
        self.items = 0
        self._left: deque[tuple[float, int]] = deque([(now, 0)], maxlen=_REMEMBERED + 1)  # when, how many items

    def takes(self, items: int, max_queue: int) -> bool:
        """May a call of `items` items enter? Into an empty queue any may, or it never could."""
        return not self.items or self.items + items <= max_queue

    def entered(self, items: int) -> None:
        self.items += items

    def dispatched(self, items: int, now: float) -> None:
        self.items -= items
        self._left.append((now, items))

    def withdrawn(self, items: int) -> None:
        self.items -= items

    def retry_after(self, now: float) -> float:
        """Seconds until what waits now will have left, at the rate of the last batches.

        While nothing has left yet, as long again as the crowd has been waiting.
        """
        since = self._left[0][0]
        left = sum(items for _, items in self._left) - self._left[0][1]
        seconds = (now - since) * self.items / left if left else now - since
        return min(max(seconds, SHORTEST), LONGEST)

    def __repr__(self) -> str:
        return f"<Backlog {self.items}>"
