"""A rule that has learnt to expect company, as a closed loop of callers would teach it."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.batching.rule import NEVER, Adaptive


class Crowd:
    """A window as a rule sees it: sizes of the parts, the oldest of which came at `oldest`."""

    def __init__(self, *sizes: int, oldest: float = 0.0) -> None:
        self._sizes = sizes
        self.items = sum(sizes)
        self.oldest = oldest

    def sizes(self) -> Sequence[int]:
        return self._sizes


def accustom(rule: Adaptive, joiners: int, *, after: float, hold: float, size: int = 1) -> None:
    """Ten cycles before time 0, out of the blue: one comes first, and `joiners` of `size` items follow it soon."""
    for cycle in range(-10, 0):
        now = cycle * 5 * hold
        rule.arrived(1, now)
        rule.decide(now, Crowd(1), NEVER)
        for _ in range(joiners):
            rule.arrived(size, now + after)
        rule.end_moment()
        rule.answered(now + 2 * hold, 1, hold, representative=True)
