"""The life of a request: recognised, parsed, looked up, coalesced, batched, answered.

`handle` and `_serve` are the whole of it; what follows them are the steps. Every request ends in exactly
one outcome, counted once, and whatever Forebay cannot or may not help goes to the backend untouched.

Invariants
    Up to the memory look-up nothing awaits but the client's own body.
    A caller gets the backend's answer to its own bytes, or one assembled from results of items whose
    proof equals that of its own items.
    A fault in a codec costs a line in the log, not a request: it counts as `codec_error` and passes through.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from aiohttp import web

from proxy import cache_status
from proxy.batching.batcher import QueueFull
from proxy.batching.settings import BatchMode
from proxy.caching.entry import Entry
from proxy.caching.fingerprint import Keys, Scope
from proxy.caching.look_ups import LookUp
from proxy.caching.policy import CacheMode, CacheUse, directives
from proxy.caching.single_flight import Flight, Flights, all_settled
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.dispatch import Done, Job, Refused
from proxy.filling import EXPECTED, EXPECTED_BY_ALL, Filler, Plan
from proxy.http import refusal
from proxy.http.body import Body, pass_body, read_body
from proxy.http.headers import get, to_backend
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply
from proxy.protocols.codec import Call, Codec, Endpoint, Part
from proxy.protocols.registry import CODECS
from proxy.protocols.v2_metadata import changes_models
from proxy.relay import Relay
from proxy.routing import Mode, Routes, RouteSettings
from proxy.telemetry.catalogue import ItemResult
from proxy.telemetry.metrics import Metrics, RouteMetrics
from proxy.terms import Failure, Fingerprint, Headers, Model, Outcome, Reason, Timeline
from proxy.upstream.connections import UpstreamError
from proxy.upstream.models import Models

log = logging.getLogger("forebay.pipeline")

MODELS_IN_USE: Final = 512  # plans that a route keeps; a scan of random names must not grow memory


@dataclass(slots=True, eq=False)
class Route:
    """A configured route with what is made for it once. `plans`: for each model in use, batched and not."""

    settings: RouteSettings
    metrics: RouteMetrics
    keys: Keys
    plans: dict[str, tuple[Plan, Plan]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Visit:
    """One request on its way through."""

    http: web.BaseRequest
    route: Route
    codec: Codec | None
    endpoint: Endpoint | None
    query: str
    timeline: Timeline
    outcome: Outcome = Outcome.UPSTREAM_ERROR  # until something better is known
    reason: Reason | None = None
    answering: bool = False  # the client has been sent something: too late for another answer


@dataclass(frozen=True, slots=True)
class Order:
    """A call that is understood, with all that answering it takes."""

    visit: Visit
    codec: Codec
    call: Call
    plan: Plan
    scope: Scope
    host: bytes

    def job(self, indexes: tuple[int, ...]) -> Job:
        """Some of its items, ready to be sent."""
        visit, call = self.visit, self.call
        return Job(
            codec=self.codec,
            part=Part(call, indexes),
            model=call.endpoint.model,
            route=visit.route.settings.id,
            target=visit.http.raw_path,
            own=to_backend(visit.http.raw_headers, host=self.host, identity=True),
            signature=visit.route.keys.signature(self.scope, call.shared),
            timeline=visit.timeline,
        )

    def whole(self) -> Job:
        return self.job(tuple(range(len(self.call.items))))


class Pipeline:
    """Answers requests. Everything it needs is handed to it."""

    def __init__(
        self,
        *,
        routes: Routes,
        route_parts: Mapping[str, Route],
        limits: Limits,
        models: Models,
        tiers: Tiers,
        uncacheable: Uncacheable,
        filler: Filler,
        relay: Relay,
        host: bytes,
        target: str,
        slots: int | None,
        metrics: Metrics,
        codecs: Sequence[Codec] = CODECS,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._routes = routes
        self._parts = route_parts
        self._limits = limits
        self._buffered = Buffered(limits.buffered)
        self._models = models
        self._tiers = tiers
        self._uncacheable = uncacheable
        self._filler = filler
        self.flights: Flights[Entry] = Flights()
        self._relay = relay
        self._host = host
        self._target = target
        self._slots = slots
        self._metrics = metrics
        self._codecs = codecs
        self._unix_time = unix_time
        self._began = unix_time()

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """One request to its answer, and to its outcome."""
        timeline = Timeline(head_parsed=time.monotonic())
        path, _, query = http.raw_path.partition("?")
        codec, endpoint = self._recognise(http.method, path)
        route = self._parts[self._routes.route_for(path, endpoint.model if endpoint else None).id]
        visit = Visit(http, route, codec, endpoint, query, timeline)
        route.metrics.begin()
        try:
            return await self._serve(visit)
        except (asyncio.CancelledError, ConnectionError):  # the client's: the backend's are UpstreamErrors
            visit.outcome = Outcome.CLIENT_GONE
            raise
        finally:
            timeline.answered = time.monotonic()
            model = endpoint.model if endpoint else None
            route.metrics.finish(visit.outcome, visit.reason, timeline, model=model)

    async def _serve(self, visit: Visit) -> web.StreamResponse:
        try:
            if visit.codec is None or visit.endpoint is None:
                return await self._pass(visit, Reason.UNRECOGNISED)
            if visit.route.settings.mode is Mode.OFF:
                return await self._pass(visit, Reason.OPTED_OUT)
            if not _readable(visit.http.raw_headers):
                return await self._pass(visit, Reason.UNPARSED)
            with await read_body(visit.http, self._limits, self._buffered) as body:
                visit.timeline.body_read = time.monotonic()
                if not body.complete:
                    return await self._pass(visit, Reason.TOO_LARGE, body)
                try:
                    return await self._understand(visit, visit.codec, visit.endpoint, body)
                except (*EXPECTED, ConnectionError):
                    raise
                except Exception:
                    log.exception("passed through after a fault of Forebay's own")
                    if visit.answering:
                        raise
                    return await self._pass(visit, Reason.CODEC_ERROR, body)
        except refusal.Refused as refused:
            visit.outcome, visit.reason = Outcome.REJECTED, refused.reason
            return await self._refuse(visit, refused.status, refused.message)
        except EXPECTED as error:
            return await self._fail(visit, error)

    async def _understand(self, visit: Visit, codec: Codec, endpoint: Endpoint, body: Body) -> web.StreamResponse:
        """What a codec makes of it, and what route and caller want of it."""
        model = self._models.get(endpoint.model)
        if model is None:
            return await self._pass(visit, Reason.MODEL_UNKNOWN, body)
        call = codec.parse(endpoint, body.data, model)
        if isinstance(call, Reason):
            return await self._pass(visit, call, body)
        settings, headers = visit.route.settings, visit.http.raw_headers
        wish = directives(headers)
        plan = self._plan(visit.route, model)[0 if wish.batch else 1]
        cached = settings.cache.mode is CacheMode.ON and wish.cache is not CacheUse.OFF
        if not cached and (plan.batch.mode is BatchMode.OFF or not call.joins):
            return await self._pass(visit, Reason.OPTED_OUT, body)
        scope = visit.route.keys.scope(
            route=settings.id,
            protocol=codec.name,
            endpoint_model=endpoint.model,
            version=endpoint.version,
            identity=plan.identity,
            query=visit.query.encode("utf-8", "surrogateescape"),
            headers=headers,
        )
        order = Order(visit, codec, call, plan, scope, self._host)
        if not cached:
            visit.outcome, visit.reason = Outcome.BYPASS, Reason.OPTED_OUT
            done = await self._filler.send(order.whole(), plan)
            return await self._say(order, done, cache_status.bypassed(Reason.OPTED_OUT))
        fingerprints = visit.route.keys.fingerprints(scope, call.shared, call.items)
        if wish.cache is CacheUse.REFRESH:
            return await self._unshared(order, fingerprints, Reason.REFRESH)
        return await self._cached(order, fingerprints)

    async def _cached(self, order: Order, fingerprints: Sequence[Fingerprint]) -> web.StreamResponse:
        """From the response cache what it holds, from flights what is under way, from the backend the rest."""
        now, counts = self._unix_time(), order.visit.route.metrics.items
        found = self._peek(fingerprints, now)
        missing = [place for place, entry in enumerate(found) if isinstance(entry, Reason)]
        counts[ItemResult.MEMORY_HIT].add(len(found) - len(missing))
        if missing and self._tiers.redis is not None:
            fetched = await self._tiers.fetch([fingerprints[place] for place in missing], now)
            for place, entry in zip(missing, fetched, strict=True):
                found[place] = _sooner(found[place], entry)
            still = [place for place in missing if isinstance(found[place], Reason)]
            counts[ItemResult.REDIS_HIT].add(len(missing) - len(still))
            missing = still
        if not missing:
            order.visit.timeline.cache_answered = time.monotonic()
            return await self._hit(order, fingerprints, cast(list[Entry], found), now)
        reason = next(entry for entry in found if isinstance(entry, Reason))
        if any(self._uncacheable.holds(fingerprints[place].address, now) for place in missing):
            counts[ItemResult.MISS].add(len(missing))
            return await self._unshared(order, fingerprints, Reason.NO_STORE)
        return await self._missed(order, fingerprints, found, missing, reason)

    async def _missed(
        self,
        order: Order,
        fingerprints: Sequence[Fingerprint],
        found: list[Entry | Reason],
        missing: Sequence[int],
        reason: Reason,
    ) -> web.StreamResponse:
        """Lead the flights that nobody has begun, follow those that somebody has, and answer when all have ended."""
        visit, counts = order.visit, order.visit.route.metrics.items
        visit.route.metrics.saved_upstream_seconds.add(sum([e.fill_cost for e in found if isinstance(e, Entry)]))
        flights: dict[int, Flight[Entry]] = {}
        led: list[int] = []
        for place in missing:
            flights[place], leading = self.flights.lead_or_follow(fingerprints[place])
            if leading:
                led.append(place)
        counts[ItemResult.MISS].add(len(led))
        counts[ItemResult.COALESCED].add(len(missing) - len(led))
        if not led:
            visit.outcome = Outcome.COALESCED
            await self._follow(visit, flights.values())
            status = cache_status.missed(reason, partial=len(missing) < len(found), collapsed=True, stored=False)
            return await self._gathered(order, found, flights, reason, status)

        visit.outcome, visit.reason = Outcome.MISS, reason
        fill = self._filler.start(order.job(tuple(led)), [flights[place] for place in led], order.plan)
        await all_settled(flights.values())
        status = cache_status.missed(reason, partial=len(missing) < len(found), collapsed=False, stored=fill.stored)
        if fill.done is not None and fill.done.exchange is not None:
            return await self._say(order, fill.done, status)
        if fill.done is not None and fill.done.results is not None and not fill.stored:
            for place, entry in zip(led, self._filler.unstored(fill.done), strict=True):
                found[place] = entry
                del flights[place]
        return await self._gathered(order, found, flights, reason, status)

    @staticmethod
    async def _follow(visit: Visit, flights: Iterable[Flight[Entry]]) -> None:
        """Wait for what others compute, and say in the timeline when that was."""
        visit.timeline.enqueued = time.monotonic()
        await all_settled(flights)
        visit.timeline.upstream_end = time.monotonic()
        visit.route.metrics.coalesce_wait.observe(visit.timeline.upstream_end - visit.timeline.enqueued)

    async def _gathered(
        self,
        order: Order,
        found: list[Entry | Reason],
        flights: Mapping[int, Flight[Entry]],
        reason: Reason,
        status: bytes,
    ) -> web.StreamResponse:
        """Put in place what settled flights brought; where one brought only its leader's trouble, ask alone, once."""
        for place, flight in flights.items():
            if flight.error is not None and not isinstance(flight.error, EXPECTED_BY_ALL):
                return await self._by_itself(order, reason)
            found[place] = flight.result()
        return await self._assembled(order, cast(list[Entry], found), status)

    async def _by_itself(self, order: Order, reason: Reason) -> web.StreamResponse:
        """Ask with the caller's own bytes, whatever others have asked and the response cache holds; keep nothing."""
        order.visit.outcome, order.visit.reason = Outcome.MISS, reason
        status = cache_status.missed(reason, partial=False, collapsed=False, stored=False)
        return await self._say(order, await self._filler.alone(order.whole()), status)

    async def _unshared(self, order: Order, fingerprints: Sequence[Fingerprint], reason: Reason) -> web.StreamResponse:
        """Ask the backend whatever the response cache holds, in a flight of nobody; keep what may be kept."""
        visit = order.visit
        visit.outcome, visit.reason = Outcome.MISS, reason
        done = await self._filler.send(order.whole(), order.plan)
        stored = self._filler.store(done, fingerprints, order.plan, visit.route.settings.id)
        status = cache_status.missed(reason, partial=False, collapsed=False, stored=stored)
        return await self._say(order, done, status)

    async def _hit(
        self, order: Order, fingerprints: Sequence[Fingerprint], entries: Sequence[Entry], now: float
    ) -> web.StreamResponse:
        body = order.codec.answer(order.call, [entry.body for entry in entries])
        if body is None:
            return await self._unshared(order, fingerprints, Reason.MISFIT)
        visit = order.visit
        visit.outcome = Outcome.HIT
        visit.route.metrics.saved_upstream_seconds.add(sum([entry.fill_cost for entry in entries]))
        ttl = min([entry.fresh_until for entry in entries]) - now
        age = cache_status.age(min([entry.created for entry in entries]), now)
        added = ((cache_status.CACHE_STATUS, cache_status.hit(ttl)), (cache_status.AGE, age))
        return await self._reply(visit, Reply(200, entries[0].headers + added, body))

    async def _assembled(self, order: Order, entries: Sequence[Entry], status: bytes) -> web.StreamResponse:
        """An answer made of items from here and there."""
        body = order.codec.answer(order.call, [entry.body for entry in entries])
        if body is None:
            return await self._by_itself(order, Reason.MISFIT)
        headers = (*entries[0].headers, (cache_status.CACHE_STATUS, status))
        if (oldest := min(entry.created for entry in entries)) < self._unix_time() - 1:
            headers += ((cache_status.AGE, cache_status.age(oldest, self._unix_time())),)
        return await self._reply(order.visit, Reply(200, headers, body))

    async def _say(self, order: Order, done: Done, status: bytes) -> web.StreamResponse:
        """Give the caller the backend's own answer, or its part of a joined one."""
        exchange = done.exchange
        if exchange is None:
            assert done.results is not None, "a joined answer splits or its members are replayed"
            return await self._assembled(order, self._filler.unstored(done), status)
        if exchange.status >= 500:
            order.visit.outcome = Outcome.UPSTREAM_ERROR
        headers = (*exchange.headers, (cache_status.CACHE_STATUS, status))
        return await self._reply(order.visit, Reply(exchange.status, headers, exchange.body, exchange.reason))

    async def _pass(self, visit: Visit, reason: Reason, body: Body | None = None) -> web.StreamResponse:
        """Let it through as it is."""
        visit.outcome, visit.reason = Outcome.BYPASS, reason
        visit.timeline.dispatched = time.monotonic()
        known = visit.codec is not None
        added = ((cache_status.CACHE_STATUS, cache_status.bypassed(reason)),) if known else ()
        http = visit.http
        touched = changes_models(http.method, http.raw_path.partition("?")[0])
        try:
            with body or pass_body(http, self._limits) as passing:
                reply, ended = await self._relay.forward(http, passing, visit.timeline, retriable=known, added=added)
        finally:
            if touched is not None:
                self._models.changed(touched)
        if ended is not None:
            visit.outcome = ended
        return reply

    async def _fail(self, visit: Visit, error: BaseException) -> web.StreamResponse:
        """The backend gave no answer, or Forebay cannot take the call: said in the protocol's own shape."""
        if isinstance(error, QueueFull):
            visit.outcome, visit.reason = Outcome.REJECTED, Reason.QUEUE_FULL
            return await self._refuse(visit, 503, str(error), retry_after=b"%d" % math.ceil(error.retry_after))
        if isinstance(error, Refused):
            visit.outcome = Outcome.UPSTREAM_ERROR if error.reason is None else Outcome.REJECTED
            visit.reason = error.reason or visit.reason
            return await self._refuse(visit, error.status, error.message, retry_after=error.retry_after)
        if isinstance(error, UpstreamError):
            late = error.failure is Failure.TIMEOUT
            visit.outcome = Outcome.TIMEOUT if late else Outcome.UPSTREAM_ERROR
            return await self._refuse(visit, 504 if late else 502, error.message)
        visit.outcome = Outcome.UPSTREAM_ERROR
        return await self._refuse(visit, 503, "Forebay is shutting down", retry_after=b"1")

    async def _refuse(
        self, visit: Visit, status: int, message: str, *, retry_after: bytes | None = None
    ) -> web.StreamResponse:
        """An answer of Forebay's own."""
        headers: Headers = ((b"Retry-After", retry_after),) if retry_after is not None else ()
        if visit.codec is None:
            headers += ((b"Content-Type", b"text/plain; charset=utf-8"),)
            return await self._reply(visit, Reply(status, headers, f"{message}\n".encode()))
        headers += ((b"Content-Type", visit.codec.content_type),)
        return await self._reply(visit, Reply(status, headers, visit.codec.error(status, message)))

    @staticmethod
    async def _reply(visit: Visit, reply: Reply) -> Reply:
        visit.answering = True
        await reply.prepare(visit.http)
        return reply

    def _recognise(self, method: str, path: str) -> tuple[Codec | None, Endpoint | None]:
        for codec in self._codecs:
            if (endpoint := codec.recognise(method, path)) is not None:
                return codec, endpoint
        return None, None

    def _peek(self, fingerprints: Sequence[Fingerprint], now: float) -> list[Entry | Reason]:
        started = time.perf_counter()
        found = [self._tiers.peek(fingerprint, now) for fingerprint in fingerprints]
        each = (time.perf_counter() - started) / len(found)
        observe = self._metrics.memory_lookups
        for entry in found:
            observe[LookUp.MISS if isinstance(entry, Reason) else LookUp.HIT].observe(each)
        return found

    def _plan(self, route: Route, model: Model) -> tuple[Plan, Plan]:
        """How this route treats this model: batched, and as its callers may ask, not batched."""
        plans = route.plans.get(model.name)
        if plans is None or plans[0].model is not model:
            settings = route.settings
            identity = model.identity
            if settings.model.revision:
                identity = identity._replace(revision=settings.model.revision, known=True)
            elif not identity.generation:
                identity = identity._replace(generation=self._began)
            plan = Plan(settings.cache, settings.batch, model, identity, self._slots or model.instances)
            plans = plan, replace(plan, batch=replace(settings.batch, mode=BatchMode.OFF))
            if len(route.plans) >= MODELS_IN_USE:
                route.plans.clear()
            route.plans[model.name] = plans
            if model.listed:
                self._metrics.models.listed(model.name)
                self._metrics.slots(self._target, model.name, plan.slots)
        return plans

    def __repr__(self) -> str:
        return f"<Pipeline {self.flights!r}, {self._tiers!r}, {self._filler!r}>"


def _readable(headers: Headers) -> bool:
    """May the body be read as it came? Not with a content coding, nor with tensors behind its JSON."""
    return get(headers, b"content-encoding") is None and get(headers, b"inference-header-content-length") is None


def _sooner(memory: Entry | Reason, redis: Entry | Reason) -> Entry | Reason:
    """What Redis said; but that an item had expired in memory, or was evicted, says more than that Redis has none."""
    if redis is Reason.FIRST_SEEN and memory in (Reason.EXPIRED, Reason.EVICTED):
        return memory
    return redis
