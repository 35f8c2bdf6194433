"""Connections under test, and what they tell of themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from proxy.settings import Seconds
from proxy.upstream.connections import Connections
from proxy.upstream.retry_budget import RetryBudget
from proxy.upstream.settings import Timeouts, UpstreamSettings


@dataclass(slots=True)
class Seen:
    """An observer that keeps everything."""

    exchanges: list[tuple[str, float, str]] = field(default_factory=list)
    ttfbs: list[float] = field(default_factory=list)
    pool_waits: list[float] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)

    def exchange(self, target: str, seconds: float, outcome: str) -> None:
        self.exchanges.append((target, seconds, outcome))

    def ttfb(self, seconds: float) -> None:
        self.ttfbs.append(seconds)

    def pool_wait(self, seconds: float) -> None:
        self.pool_waits.append(seconds)

    def retry(self, reason: str) -> None:
        self.retries.append(reason)

    @property
    def outcomes(self) -> list[str]:
        return [outcome for _, _, outcome in self.exchanges]


@asynccontextmanager
async def connected(
    url: str,
    *,
    limits: Timeouts | None = None,
    keepalive: float = 60.0,
    seen: Seen | None = None,
    budget: RetryBudget | None = None,
) -> AsyncIterator[Connections]:
    """Connections to one backend, closed where the block ends."""
    settings = UpstreamSettings(targets=(url,), timeout=limits or Timeouts(), keepalive=Seconds(keepalive))
    connections = Connections(settings, seen, budget)
    try:
        yield connections
    finally:
        await connections.aclose()
