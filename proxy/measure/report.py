"""What a load run measured, as numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `ordered` (ascending) do not exceed; nan of nothing."""
    if not ordered:
        return float("nan")
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


@dataclass(slots=True)
class Measured:
    """Latencies of the answered requests in seconds, in order of their end, and how long the run took."""

    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0

    @property
    def throughput(self) -> float:
        """Answered requests a second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def latency(self, share: float) -> float:
        return quantile(sorted(self.latencies), share)

    def __repr__(self) -> str:
        return (
            f"<Measured {len(self.latencies)} answers in {self.seconds:.2f} s, {self.failed} failed, "
            f"p50 {self.latency(0.5) * 1e3:.2f} ms, p99 {self.latency(0.99) * 1e3:.2f} ms>"
        )
