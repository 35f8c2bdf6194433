"""The live metrics: one object made at start, handed to every layer as its observer.

Invariants
    The sum over outcomes is the number of requests: `finish` is the only place that counts one, together
    with its duration, its decision and that it is no longer active.
    Whatever is counted for a route is a child made when the route became known. The one exception are a
    model's request counters, made on the route's first request for it; the `model` label takes 50 values.
    The loop's own thread counts and refreshes; any thread may render.

Knows nothing of how the layers work: they report through the small observers `redis`, `batches` and
`upstream`, and what only they can tell (bytes held, the oldest item) is asked for in `refresh`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from proxy.batching.rule import DispatchReason
from proxy.caching.look_ups import LookUp
from proxy.caching.writes import Store
from proxy.telemetry import catalogue as c
from proxy.telemetry.instruments import Counter, Family, Gauge, Histogram
from proxy.terms import Outcome, Reason, Timeline

MODELS: Final = 50
"""Models that get a `model` label of their own."""


class Families:
    """The catalogue, ready to be counted in."""

    def __init__(self) -> None:
        self._families = {metric.name: _family(metric) for metric in c.CATALOGUE}

    def counter(self, metric: c.Metric, *labels: str) -> Counter:
        child = self._families[metric.name].child(*labels)
        assert isinstance(child, Counter), metric.name
        return child

    def gauge(self, metric: c.Metric, *labels: str) -> Gauge:
        child = self._families[metric.name].child(*labels)
        assert isinstance(child, Gauge), metric.name
        return child

    def histogram(self, metric: c.Metric, *labels: str) -> Histogram:
        child = self._families[metric.name].child(*labels)
        assert isinstance(child, Histogram), metric.name
        return child

    def forget(self, metric: c.Metric) -> None:
        self._families[metric.name].forget()

    def text(self) -> str:
        return "".join([family.text() for family in self._families.values()])


def _family(metric: c.Metric) -> Family[Counter | Gauge | Histogram]:
    new: Callable[[], Counter | Gauge | Histogram]
    if metric.buckets is not None:
        bounds = metric.buckets.bounds
        new = lambda: Histogram(bounds)  # noqa: E731 - a named function would say no more
    else:
        new = Counter if metric.kind is c.Kind.COUNTER else Gauge
    return Family(metric.name, metric.kind.value, metric.help, [label.name for label in metric.labels], new)


class ModelLabels:
    """Which models have a label of their own: the first 50 that the backend lists, for good."""

    def __init__(self, limit: int = MODELS) -> None:
        self._limit = limit
        self._names: set[str] = set()

    def listed(self, name: str) -> None:
        """The backend itself lists this model."""
        if len(self._names) < self._limit:
            self._names.add(name)

    def label(self, name: str | None) -> str:
        """The label value for whatever a caller wrote as a model's name; None where it named none."""
        if name is None:
            return c.NO_MODEL
        return name if name in self._names else c.OTHER_MODEL

    def __repr__(self) -> str:
        return f"<ModelLabels {len(self._names)}/{self._limit}>"


class _Ending:
    """What `finish` needs for one outcome of a route. decisions: for each reason the outcome may come with."""

    __slots__ = ("decisions", "duration", "index")

    def __init__(self, index: int, duration: Histogram, decisions: dict[Reason | None, Counter]) -> None:
        self.index = index
        self.duration = duration
        self.decisions = decisions


class RouteMetrics:
    """One route's children. `begin` and `finish` bracket every request; the rest is counted by name."""

    def __init__(self, route: str, families: Families, models: ModelLabels) -> None:
        self._route = route
        self._families = families
        self._models = models
        self.active = families.gauge(c.ACTIVE, route)
        self.overhead = families.histogram(c.PROXY_OVERHEAD, route)
        self.items = {result: families.counter(c.ITEMS_LOOKED_UP, route, result.value) for result in c.ItemResult}
        self.stores = {result: families.counter(c.STORES, route, result.value) for result in c.StoreResult}
        self.saved_upstream_seconds = families.counter(c.SAVED, route)
        self.coalesce_wait = families.histogram(c.COALESCE_WAIT, route)
        self.queue_depth = families.gauge(c.QUEUE_DEPTH, route)
        self.oldest_enqueued = families.gauge(c.OLDEST, route)
        self.voluntary_wait = families.histogram(c.QUEUE_WAIT, route, c.WaitKind.VOLUNTARY.value)
        self.slot_wait = families.histogram(c.QUEUE_WAIT, route, c.WaitKind.SLOT.value)
        self.batch_items = families.histogram(c.BATCH_ITEMS, route)
        self.dispatches = {reason: families.counter(c.DISPATCHES, route, reason.value) for reason in DispatchReason}
        self.splits = {reason.value: families.counter(c.SPLITS, route, reason.value) for reason in c.SplitReason}
        self.proofs = {result: families.counter(c.PROOFS, route, result.value) for result in c.ProofResult}
        self._requests: dict[str, list[Counter]] = {}
        self._requests_of(c.NO_MODEL)
        decided: dict[Reason | None, Counter] = {
            reason: families.counter(c.DECIDED, route, decision.value, reason.value)
            for decision, reasons in c.DECISIONS.items()
            for reason in reasons
        }
        decided[None] = Counter()  # not exported: answered from the response cache, or ended before a decision
        self._endings: dict[Outcome, _Ending] = {}
        for index, outcome in enumerate(Outcome):
            own: tuple[Reason | None, ...] = c.DECISIONS.get(outcome, (None, *Reason))
            decisions = {reason: decided[reason] for reason in own}
            duration = families.histogram(c.DURATION, route, outcome.value)
            self._endings[outcome] = _Ending(index, duration, decisions)

    def begin(self) -> None:
        """A request came. Exactly one `finish` follows, here or, after `left`, on another route."""
        self.active.add(1)

    def left(self) -> None:
        """A request that had begun here belongs to another route, where it begins anew."""
        self.active.add(-1)

    def finish(self, outcome: Outcome, reason: Reason | None, timeline: Timeline, *, model: str | None = None) -> None:
        """A request ended: the one place where it is counted.

        reason: why it was bypassed, missed or rejected, whatever the outcome came to be; None if none of these.
        timeline: `answered` is set. A head that never parsed has no `head_parsed`, and then no duration.
        model: what the caller wrote; None where the request names no model.
        """
        label = self._models.label(model)
        counters = self._requests.get(label) or self._requests_of(label)
        ending = self._endings[outcome]
        counters[ending.index].inc()
        ending.duration.observe(timeline.answered - timeline.head_parsed)
        self.overhead.observe(own_seconds(outcome, timeline))
        self.active.add(-1)
        assert reason in ending.decisions, f"{outcome} cannot come with {reason}"
        ending.decisions[reason].inc()

    def _requests_of(self, label: str) -> list[Counter]:
        counters = [self._families.counter(c.REQUESTS, self._route, label, outcome.value) for outcome in Outcome]
        self._requests[label] = counters
        return counters

    def __repr__(self) -> str:
        return f"<RouteMetrics {self._route!r} active={self.active.value} models={len(self._requests)}>"


def own_seconds(outcome: Outcome, timeline: Timeline) -> float:
    """Time of an answered request that Forebay itself took; nan where the timeline does not tell.

    Its way begins when the body is read (a body that streams through never holds it up: then when the
    head is parsed), is interrupted from the moment it waits for window, flight or backend until the last
    upstream byte, and ends when the answer is written.
    """
    if outcome not in _ANSWERED:
        return math.nan
    left = timeline.dispatched if math.isnan(timeline.enqueued) else timeline.enqueued
    if math.isnan(left):
        if outcome is not Outcome.HIT:
            return math.nan
        begin = timeline.head_parsed if math.isnan(timeline.body_read) else timeline.body_read
        return timeline.answered - begin
    begin = timeline.body_read if timeline.body_read <= left else timeline.head_parsed
    return (left - begin) + (timeline.answered - timeline.upstream_end)


_ANSWERED: Final = (Outcome.HIT, Outcome.MISS, Outcome.COALESCED, Outcome.BYPASS)  # identity beats an Enum's hash


class RedisMetrics:
    """What the Redis store reports."""

    def __init__(self, families: Families) -> None:
        tier = c.Tier.REDIS.value
        self._lookups = {result: families.histogram(c.LOOKUPS, tier, result.value) for result in LookUp}
        self._writes = {result: families.counter(c.REDIS_WRITES, result.value) for result in Store}
        self._up = families.gauge(c.REDIS_UP)

    def lookup(self, seconds: float, result: LookUp) -> None:
        self._lookups[result].observe(seconds)

    def store(self, result: Store) -> None:
        self._writes[result].inc()

    def up(self, up: bool) -> None:
        self._up.set(int(up))

    def __repr__(self) -> str:
        return f"<RedisMetrics up={bool(self._up.value)}>"


class BatchMetrics:
    """What the batcher and the dispatcher report."""

    def __init__(self, route: Callable[[str], RouteMetrics]) -> None:
        self._route = route

    def queued(self, route: str, items: int) -> None:
        self._route(route).queue_depth.add(items)

    def left(self, route: str, items: int) -> None:
        self._route(route).queue_depth.add(-items)

    def waited(self, route: str, voluntary: float, slot: float) -> None:
        of = self._route(route)
        of.voluntary_wait.observe(voluntary)
        of.slot_wait.observe(slot)

    def dispatched(self, route: str, items: int, reason: DispatchReason) -> None:
        of = self._route(route)
        of.batch_items.observe(items)
        of.dispatches[reason].inc()

    def split(self, route: str, reason: str) -> None:
        self._route(route).splits[reason].inc()


class UpstreamMetrics:
    """What the connections to the backend report."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._targets: dict[str, dict[str, Histogram]] = {}
        self._ttfb = families.histogram(c.TTFB)
        self._pool_wait = families.histogram(c.POOL_WAIT)
        self._retries = {reason.value: families.counter(c.RETRIES, reason.value) for reason in c.RetryReason}

    def target(self, target: str) -> None:
        """A configured target: its children are made now."""
        self._targets[target] = {
            outcome: self._families.histogram(c.EXCHANGES, target, outcome) for outcome in c.EXCHANGE_OUTCOMES
        }

    def exchange(self, target: str, seconds: float, outcome: str) -> None:
        if target not in self._targets:
            self.target(target)
        self._targets[target][outcome].observe(seconds)

    def ttfb(self, seconds: float) -> None:
        self._ttfb.observe(seconds)

    def pool_wait(self, seconds: float) -> None:
        self._pool_wait.observe(seconds)

    def retry(self, reason: str) -> None:
        self._retries[reason].inc()

    def __repr__(self) -> str:
        return f"<UpstreamMetrics {len(self._targets)} targets>"


class MemoryFacts(Protocol):
    """What `Metrics` reads off the memory store."""

    @property
    def bytes(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def mismatches(self) -> int: ...


class Metrics:
    """Everything that is counted. `routes`: their ids; `config_hash`: of the configuration in force."""

    def __init__(
        self,
        routes: Iterable[str],
        *,
        config_hash: str,
        now: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._families = Families()
        self._now = now
        self._unix_time = unix_time
        self._memory: MemoryFacts | None = None
        self._flight_mismatches: Callable[[], int] = lambda: 0
        self._oldest: Callable[[], Mapping[str, float]] | None = None
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self.models = ModelLabels()
        self._routes = {route: RouteMetrics(route, self._families, self.models) for route in routes}
        self.batches = BatchMetrics(self.route)
        self.upstream = UpstreamMetrics(self._families)
        self.loop_lag = self._families.histogram(c.LOOP_LAG)
        memory, known = c.Tier.MEMORY.value, (LookUp.HIT, LookUp.MISS)
        self.memory_lookups = {result: self._families.histogram(c.LOOKUPS, memory, result.value) for result in known}
        self.configured(config_hash)

    def route(self, route: str) -> RouteMetrics:
        """A route's children; a route that a reload brought gets its own now."""
        if route not in self._routes:
            self._routes[route] = RouteMetrics(route, self._families, self.models)
        return self._routes[route]

    @cached_property
    def redis(self) -> RedisMetrics:
        """The Redis store's observer. Whoever has no Redis never asks for it, and sees no `forebay_redis_up 0`."""
        return RedisMetrics(self._families)

    def configured(self, config_hash: str) -> None:
        """Another configuration is in force."""
        self._families.forget(c.CONFIG)
        self._families.gauge(c.CONFIG, config_hash).set(1)

    def slots(self, target: str, model: str, slots: int) -> None:
        """How many joined requests a model takes at once; a model without a label of its own is left out."""
        if (label := self.models.label(model)) != c.OTHER_MODEL:
            self._families.gauge(c.SLOTS, target, label).set(slots)

    def watch_memory(self, memory: MemoryFacts, flight_mismatches: Callable[[], int] = lambda: 0) -> None:
        """Ask this store in every `refresh`, and how many flights turned out to be another item's."""
        self._memory = memory
        self._flight_mismatches = flight_mismatches

    def watch_queue(self, oldest: Callable[[], Mapping[str, float]]) -> None:
        """Ask in every `refresh` when, by `now`, the oldest item came of each route in which one waits."""
        self._oldest = oldest

    def refresh(self) -> None:
        """Ask for what only others can tell. On the loop's thread, for it reads what the loop changes."""
        if self._memory is not None:
            self._families.gauge(c.CACHE_BYTES, c.Tier.MEMORY.value).set(self._memory.bytes)
            self._families.counter(c.EVICTIONS).value = self._memory.evictions
            self._families.counter(c.MISMATCHES).value = self._memory.mismatches + self._flight_mismatches()
        if self._oldest is not None:
            came, began = self._oldest(), self._unix_time() - self._now()
            for name, route in self._routes.items():
                route.oldest_enqueued.set(began + came[name] if name in came else 0)

    def render(self) -> bytes:
        """The text format, version 0.0.4, of everything as it was last refreshed. Any thread may call it."""
        return self._families.text().encode() + generate_latest(self._process)

    async def scrape(self) -> bytes:
        """What a scrape gets: refreshed here, written in a thread so that requests go on meanwhile."""
        self.refresh()
        return await asyncio.to_thread(self.render)

    def __repr__(self) -> str:
        active = sum(route.active.value for route in self._routes.values())
        return f"<Metrics {len(self._routes)} routes, {active} active, {self.models!r}>"
