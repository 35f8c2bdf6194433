"""From interleaved rounds to figures. Pure.

What shares a machine with others is slow at one moment and fast at the next, so two contenders are only compared
within one round, where they ran one right after the other; over the rounds the median counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Shot:
    """One contender in one round. cpu_ms: CPU time a request of what is measured; nan if nothing is asked."""

    rate: float
    p50_ms: float
    p99_ms: float
    failed: int
    load_busy: float
    server_busy: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Rounds:
    """All rounds of one contender, in order."""

    shots: Sequence[Shot]

    def median(self, figure: Callable[[Shot], float]) -> float:
        return median(figure(shot) for shot in self.shots)

    def against(self, other: Rounds, compare: Callable[[Shot, Shot], float]) -> float:
        """The median of what `compare` says of the two contenders in each round."""
        return median(compare(own, its) for own, its in zip(self.shots, other.shots, strict=True))

    @property
    def failed(self) -> int:
        """Requests without a 200, over all rounds."""
        return sum(shot.failed for shot in self.shots)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was found, and what it should be. at_least: whether `aim` is a lower bound."""

    name: str
    value: float
    aim: float
    at_least: bool

    @property
    def reached(self) -> bool:
        return self.value >= self.aim if self.at_least else self.value <= self.aim

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "reached" if self.reached else "MISSED"
        return f"{self.name}: {self.value:.3f} (aim {sign} {self.aim:g}): {verdict}"


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: every other one backwards, so that nobody always goes first."""
    return list(names) if number % 2 == 0 else list(reversed(names))
