"""A real Prometheus reads what Forebay writes, and the dashboard finds in it what it asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp import web

from proxy.batching.rule import DispatchReason
from proxy.caching.look_ups import LookUp
from proxy.caching.writes import Store
from proxy.telemetry import catalogue as c
from proxy.telemetry.metrics import Metrics
from proxy.terms import Outcome, Timeline
from tests.parts.prometheus import Prometheus, lint, prometheus
from tests.telemetry.dashboard_check import SCRAPES, nothing_to_draw


class Memory:
    """A memory store as far as metrics look at it."""

    bytes = 4096
    evictions = 3
    mismatches = 0


def traffic(metrics: Metrics) -> None:
    """Some of everything that can be counted, through the doors that the layers use."""
    metrics.models.listed("resnet")
    metrics.slots("http://backend:8000", "resnet", 2)
    route = metrics.route("default")
    times = Timeline(
        head_parsed=1.0, body_read=1.001, enqueued=1.002, dispatched=1.003, upstream_end=1.02, answered=1.021
    )
    for outcome in Outcome:
        for reason in c.DECISIONS.get(outcome, (None,)):
            route.begin()
            route.finish(outcome, reason, times, model="resnet")
    route.begin()  # one goes on
    for result in c.ItemResult:
        route.items[result].add(3)
    for stored in c.StoreResult:
        route.stores[stored].inc()
    route.saved_upstream_seconds.add(0.25)
    route.coalesce_wait.observe(0.01)
    metrics.batches.queued("default", 4)
    metrics.batches.left("default", 3)
    metrics.batches.waited("default", 0.0, 0.002)
    for why in DispatchReason:
        metrics.batches.dispatched("default", 3, why)
    for split in c.SplitReason:
        metrics.batches.split("default", split.value)
    for ended in c.EXCHANGE_OUTCOMES:
        metrics.upstream.exchange("http://backend:8000", 0.02, ended)
    metrics.upstream.ttfb(0.01)
    metrics.upstream.pool_wait(0.0001)
    for retry in c.RetryReason:
        metrics.upstream.retry(retry.value)
    metrics.redis.up(True)
    for found in LookUp:
        metrics.redis.lookup(0.0005, found)
    for written in Store:
        metrics.redis.store(written)
    for histogram in metrics.memory_lookups.values():
        histogram.observe(5e-6)
    metrics.loop_lag.observe(0.0004)


def everything() -> Metrics:
    metrics = Metrics(["default", 'a "quoted"\\ route'], config_hash="0123abcd")
    metrics.watch_memory(Memory())
    metrics.watch_queue(lambda: {"default": 0.0})
    return metrics


@asynccontextmanager
async def exporter(metrics: Metrics, before_each: Callable[[Metrics], None]) -> AsyncIterator[str]:
    """Serve the metrics at the address it gives. `before_each`: what happens between two scrapes."""

    async def handler(_: web.BaseRequest) -> web.Response:
        before_each(metrics)
        return web.Response(body=await metrics.scrape(), headers={"Content-Type": "text/plain; version=0.0.4"})

    server = web.ServerRunner(web.Server(handler))
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    try:
        host, port = server.addresses[0][:2]
        yield f"http://{host}:{port}/metrics"
    finally:
        await server.cleanup()


@dataclass(frozen=True, slots=True)
class Scraped:
    """One Prometheus with two exporters: one that has some of everything, one that has no Redis."""

    server: Prometheus
    busy: Metrics
    busy_url: str
    bare_url: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scraped]:
    directory = tmp_path_factory.mktemp("prometheus")
    busy, bare = everything(), Metrics(["default"], config_hash="0123abcd")
    async with (
        exporter(busy, traffic) as busy_url,
        exporter(bare, lambda _: None) as bare_url,
        prometheus(directory, [busy_url, bare_url]) as server,
    ):
        await server.scraped(SCRAPES)
        yield Scraped(server, busy, busy_url, bare_url)


@pytest.mark.asyncio(loop_scope="module")
async def test_every_panel_has_something_to_draw(scraped: Scraped) -> None:
    """Whoever imports the dashboard sees curves, not empty panels."""
    assert await nothing_to_draw(scraped.server, scraped.busy_url) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_an_empty_panel_is_noticed(scraped: Scraped) -> None:
    """The check above is able to fail: an exporter without Redis and traffic has nothing for many panels."""
    empty = await nothing_to_draw(scraped.server, scraped.bare_url)
    assert any("forebay_redis_up" in line for line in empty)
    assert any(line.startswith("Hit rate") for line in empty)
    assert not any("forebay_requests_total" in line for line in empty)


@pytest.mark.asyncio(loop_scope="module")
async def test_prometheus_counts_every_request_once(scraped: Scraped) -> None:
    """The outcomes add up to all requests, with one duration each, however they ended."""
    at = f'{{instance="{urlsplit(scraped.busy_url).netloc}"}}'
    both = f"sum(forebay_requests_total{at}) == sum(forebay_request_duration_seconds_count{at})"
    ((_, requests),) = await scraped.server.query(both)
    each_round = len(Outcome) - len(c.DECISIONS) + sum(map(len, c.DECISIONS.values()))
    assert requests >= SCRAPES * each_round
    assert requests % each_round == 0


async def test_promtool_has_no_complaint() -> None:
    """Names, types and helps are as Prometheus's own linter wants them."""
    metrics = everything()
    traffic(metrics)
    assert await lint(await metrics.scrape()) == ""


async def test_promtool_would_complain() -> None:
    """The linter is really asked."""
    assert "no help text" in await lint(b"# TYPE forebay_x counter\nforebay_x 1\n")
