"""The promise of the dashboard: whoever imports it sees curves for a whole Forebay under traffic, not empty panels."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.e2e.calls import call
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import Fault, ModelServer, model_server
from tests.parts.redis import running as redis_server
from tests.telemetry.dashboard_check import check_dashboard

CALLERS = 24
PATIENCE = 60.0  # seconds after which traffic ends in any case
LATE = 0.05  # seconds after which an impatient caller leaves

# Little memory and short lives, so that Redis is asked and flights are joined again and again; a short queue, so that
# it is full now and then.
CONFIG = "cache: {memory: 16KiB, ttl: 1s}\nbatch: {max_size: 4, max_queue: 12}\n"


async def caller(running: Running, chance: random.Random) -> None:
    """Ask for something known, something new, something bad or something unrecognised; sometimes leave."""
    while True:
        kind = chance.random()
        if kind < 0.1:
            async with running.session.get(f"{running.url}/v2") as answer:
                await answer.read()
            continue
        rows = [chance.randrange(8) if kind < 0.5 else chance.randrange(400) for _ in range(chance.choice((1, 1, 3)))]
        if kind > 0.98:
            rows = [chance.choice((Fault.REFUSE, Fault.CRASH, Fault.OVERLOAD, Fault.RESET))]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE if kind > 0.9 else None):
                await running.infer("double", call(*rows))


@contextlib.asynccontextmanager
async def traffic(running: Running) -> AsyncIterator[None]:
    """Traffic of all kinds while the block lasts."""
    chance = random.Random(1)
    callers = [asyncio.create_task(caller(running, chance)) for _ in range(CALLERS)]
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    finally:
        for task in callers:
            task.cancel()
        ended = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


async def test_every_panel_has_something_to_draw(tmp_path: Path) -> None:
    """Debian's Prometheus scrapes a Forebay under traffic of all kinds, and no expression of the dashboard is empty."""
    config = tmp_path / "forebay.yaml"
    config.write_text(CONFIG)
    with redis_server("valkey") as redis:
        async with (
            model_server(pace=lambda: 0.01) as backend,
            forebay(backend.url, config=config, redis=redis.url) as running,
        ):
            await running.knows("double")
            async with traffic(running):
                await check_dashboard(f"{running.admin}/metrics", tmp_path)
            scrape = await running.scrape()
            for outcome in ("hit", "miss", "coalesced", "bypass", "rejected", "upstream_error", "client_gone"):
                assert scrape.total("forebay_requests_total", outcome=outcome) > 0, outcome
            for result in ("memory_hit", "redis_hit", "miss", "coalesced"):
                assert scrape.total("forebay_cache_items_total", result=result) > 0, result
            assert scrape.mean("forebay_batch_items") > 1


async def test_the_oldest_waiting_item_is_seen(running: Running, backend: ModelServer) -> None:
    """While something waits for the backend, the metrics say how much and since when; afterwards that nothing does."""
    backend.gate.clear()
    began = time.time()
    first = asyncio.create_task(running.infer("double", call(1)))
    await backend.has_received(1)
    second = asyncio.create_task(running.infer("double", call(2, 3)))
    await running.queued(2)
    scrape = await running.scrape()
    assert scrape.total("forebay_queue_depth", route="default") == 2
    assert began <= scrape.total("forebay_queue_oldest_enqueue_timestamp_seconds", route="default") <= time.time()
    backend.gate.set()
    await asyncio.gather(first, second)
    scrape = await running.scrape()
    assert scrape.total("forebay_queue_depth") == scrape.total("forebay_queue_oldest_enqueue_timestamp_seconds") == 0
