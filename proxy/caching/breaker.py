"""Whether a shared store is asked at all, and when a probe may find out that it can be again.

Invariants
    The first failure opens it; only a probe closes it.
    Probes come at intervals that double from `FIRST` to `LAST`, and begin at `FIRST` again only after
    the store has been up for `CALM`: one that answers probes and then fails costs less and less.

Knows no clock, no socket and no probe: `now` comes in, seconds on one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 0.25
LAST = 2.0
CALM = 10.0


@dataclass(slots=True)
class Breaker:
    """up: look-ups may be sent. wait: seconds from the last failure to the next probe."""

    up: bool = False
    wait: float = 0.0
    _rose: float = 0.0

    def rise(self, now: float) -> None:
        """A probe succeeded."""
        self.up = True
        self._rose = now

    def fall(self, now: float) -> None:
        """A command failed, or a probe did."""
        calm = self.up and now - self._rose >= CALM
        self.wait = FIRST if calm else min(LAST, max(FIRST, self.wait * 2))
        self.up = False

    def __repr__(self) -> str:
        return "<Breaker closed>" if self.up else f"<Breaker open, probes every {self.wait:g} s>"
