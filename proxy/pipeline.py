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
from proxy.caching.fingerprint import Keys, Tenant
from proxy.caching.look_ups import LookUp
from proxy.caching.policy import CacheMode, CacheUse, directives
from proxy.caching.single_flight import Flight, Flights, all_settled
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.dispatch import FOR_EVERYBODY, Done, Job, Refused
from proxy.filling import EXPECTED, EXPECTED_BY_ALL, Filler, Plan
from proxy.http import refusal
from proxy.http.body import Body, body_at_hand, pass_body, read_body
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply, StreamReply
from proxy.protocols.codec import Call, Codec, Endpoint, Part
from proxy.protocols.registry import CODECS
from proxy.protocols.v2_metadata import changes_models
from proxy.readings import Reading, Readings
from proxy.relay import Relay
from proxy.routing import Mode, Routes, RouteSettings
from proxy.telemetry.catalogue import ItemResult
from proxy.telemetry.metrics import Metrics, RouteMetrics
from proxy.terms import Failure, Fingerprint, Headers, Model, Outcome, Reason, Timeline
from proxy.upstream.connections import Answer, UpstreamError
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
    streamed: StreamReply | None = None  # an answer too large to be held, sent as it came


@dataclass(slots=True, eq=False)
class Order:
    """A call that is understood, with all that answering it takes. Nothing of it changes."""

    visit: Visit
    reading: Reading
    call: Call
    plan: Plan
    cache: CacheUse
    host: bytes
    body: Body
    read_anew: bool

    def job(self, indexes: tuple[int, ...]) -> Job:
        """Some of its items, ready to be sent."""
        visit, call = self.visit, self.call
        return Job(
            codec=self.reading.codec,
            part=Part(call, indexes),
            model=call.endpoint.model,
            route=visit.route.settings.id,
            target=visit.http.raw_path,
            fields=visit.http.raw_headers,
            host=self.host,
            signature=visit.route.keys.signature(
                self.reading.scope, b"%d:" % len(call.company) + call.company + call.shared
            ),
            timeline=visit.timeline,
            stream=self.stream,
        )

    async def stream(self, answer: Answer, begun: Sequence[bytes]) -> None:
        """Send an answer that is too large to be held: what came of it, then the rest as it comes."""
        visit = self.visit
        if visit.reason is None:  # a follower's own try
            visit.outcome, visit.reason = Outcome.MISS, Reason.NO_STORE
        status = cache_status.missed(visit.reason, partial=False, collapsed=False, stored=False)
        if visit.reason is Reason.OPTED_OUT:
            status = cache_status.bypassed(visit.reason)
        visit.answering = True
        visit.streamed = StreamReply(
            answer.status, (*answer.headers, (cache_status.CACHE_STATUS, status)), answer.reason
        )
        try:
            await visit.streamed.prepare(visit.http)
            for piece in begun:
                await visit.streamed.write(piece)
            async for piece in answer.chunks():
                await visit.streamed.write(piece)
            await visit.streamed.write_eof()
        except UpstreamError:
            visit.streamed.abort()
            raise
        except ConnectionError:
            return  # the client has gone, and nobody else wants it

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
        buffered: Buffered,
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
        self._buffered = buffered
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
        self._readings = Readings()
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
            http, limits, buffered = visit.http, self._limits, self._buffered
            with body_at_hand(http, limits, buffered) or await read_body(http, limits, buffered) as body:
                visit.timeline.body_read = time.monotonic()
                if not body.complete:
                    return await self._pass(visit, Reason.TOO_LARGE, body)
                return await self._call(visit, visit.codec, visit.endpoint, body)
        except refusal.Refused as refused:
            visit.outcome, visit.reason = Outcome.REJECTED, refused.reason
            return await self._refuse(visit, refused.status, refused.message)
        except EXPECTED as error:
            return await self._fail(visit, error)

    async def _call(self, visit: Visit, codec: Codec, endpoint: Endpoint, body: Body) -> web.StreamResponse:
        """A call that is all here: understood, then answered as its route and its caller want it."""
        try:
            order = self._order(visit, codec, endpoint, body)
            if isinstance(order, Reason):
                return await self._pass(visit, order, body)
            if order.cache is CacheUse.ON:
                return await self._cached(order)
            if order.cache is CacheUse.REFRESH:
                return await self._unshared(order, Reason.REFRESH)
            visit.outcome, visit.reason = Outcome.BYPASS, Reason.OPTED_OUT
            done = await self._filler.send(order.whole(), order.plan)
            return await self._say(order, done, cache_status.bypassed(Reason.OPTED_OUT))
        except (*EXPECTED, ConnectionError) as error:
            if visit.streamed is None or isinstance(error, ConnectionError):
                raise
            late = isinstance(error, UpstreamError) and error.failure is Failure.TIMEOUT
            visit.outcome = Outcome.TIMEOUT if late else Outcome.TRUNCATED
            return visit.streamed
        except Exception:
            log.exception("passed through after a fault of Forebay's own")
            if visit.answering:
                raise
            return await self._pass(visit, Reason.CODEC_ERROR, body)

    def _order(self, visit: Visit, codec: Codec, endpoint: Endpoint, body: Body) -> Order | Reason:
        """What the caller wants, remembered or read; a `Reason` to let it through as it is."""
        model = self._models.get(endpoint.model)
        if model is None:
            return Reason.MODEL_UNKNOWN
        http = visit.http
        reading = self._readings.of(http.method, http.raw_path, http.raw_headers, body.data, model)
        if reading is not None:
            return Order(visit, reading, reading.call, reading.plan, reading.cache, self._host, body, read_anew=False)
        understood = self._understand(visit, codec, endpoint, body, model)
        if isinstance(understood, Reason):
            return understood
        return Order(
            visit, understood, understood.call, understood.plan, understood.cache, self._host, body, read_anew=True
        )

    def _understand(self, visit: Visit, codec: Codec, endpoint: Endpoint, body: Body, model: Model) -> Reading | Reason:
        """What a codec makes of it, and what route and caller want of it; a `Reason` to let it through as it is."""
        call = codec.parse(endpoint, body.data, model)
        if isinstance(call, Reason):
            return call
        settings, headers = visit.route.settings, visit.http.raw_headers
        wish = directives(headers)
        plan = self._plan(visit.route, model)[0 if wish.batch else 1]
        cached = settings.cache.mode is CacheMode.ON and wish.cache is not CacheUse.OFF
        if not cached and (plan.batch.mode is BatchMode.OFF or not call.joins or not wish.batch):
            return Reason.OPTED_OUT
        scope = visit.route.keys.scope(
            route=settings.id,
            protocol=codec.name,
            endpoint_model=endpoint.model,
            version=endpoint.version,
            identity=plan.identity,
            query=visit.query.encode("utf-8", "surrogateescape"),
            headers=headers,
        )
        if not cached:
            return Reading(codec, call, plan, scope, CacheUse.OFF, ())
        fingerprints = visit.route.keys.fingerprints(scope, call.shared, call.items)
        return Reading(codec, call, plan, scope, wish.cache, fingerprints)

    async def _cached(self, order: Order) -> web.StreamResponse:
        """From the response cache what it holds, from flights what is under way, from the backend the rest."""
        fingerprints = order.reading.fingerprints
        now, counts = self._unix_time(), order.visit.route.metrics.items
        found = self._peek(fingerprints, now)
        missing = [place for place, entry in enumerate(found) if isinstance(entry, Reason)]
        in_memory = len(found) - len(missing)
        if missing and self._tiers.redis is not None:
            fetched = await self._tiers.fetch([fingerprints[place] for place in missing], now)
            for place, entry in zip(missing, fetched, strict=True):
                found[place] = self._sooner(fingerprints[place], found[place], entry, now)
            missing = [place for place in missing if isinstance(found[place], Reason)]
        if not missing:
            order.visit.timeline.cache_answered = time.monotonic()
            if (reply := self._hit(order, cast(list[Entry], found), now)) is None:
                counts[ItemResult.MISS].add(len(found))
                return await self._unshared(order, Reason.MISFIT)
            counts[ItemResult.MEMORY_HIT].add(in_memory)
            counts[ItemResult.REDIS_HIT].add(len(found) - in_memory)
            if order.read_anew:
                http = order.visit.http
                self._readings.keep(http.method, http.raw_path, http.raw_headers, order.call.body, order.reading)
            return await self._reply(order.visit, reply)
        reason = next(entry for entry in found if isinstance(entry, Reason))
        if any(self._uncacheable.holds(fingerprints[place].address, now) for place in missing):
            reason = Reason.NO_STORE
        if reason is Reason.NO_STORE or order.call.company:
            counts[ItemResult.MISS].add(len(found))
            return await self._unshared(order, reason)
        counts[ItemResult.MEMORY_HIT].add(in_memory)
        counts[ItemResult.REDIS_HIT].add(len(found) - len(missing) - in_memory)
        return await self._missed(order, found, missing, reason)

    async def _missed(
        self,
        order: Order,
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
            flights[place], new = self.flights.lead_or_follow(order.reading.fingerprints[place])
            if new:
                led.append(place)
        counts[ItemResult.MISS].add(len(led))
        counts[ItemResult.COALESCED].add(len(missing) - len(led))
        if not led:
            visit.outcome = Outcome.COALESCED
            visit.timeline.enqueued = time.monotonic()
            await self._follow(visit, flights.values())
            status = cache_status.missed(reason, partial=len(missing) < len(found), collapsed=True, stored=False)
            return await self._gathered(order, found, flights, reason, status)

        visit.outcome, visit.reason = Outcome.MISS, reason
        leading = [flights[place] for place in led]
        try:
            fill = self._filler.start(order.job(tuple(led)), leading, order.plan, order.body)
        except BaseException:
            for flight in leading:  # nobody else will settle them, and whoever asks next must lead anew
                flight.drop()
            raise
        if len(led) < len(missing):
            await self._follow(visit, flights.values())
        else:
            await all_settled(leading)
        status = cache_status.missed(reason, partial=len(missing) < len(found), collapsed=False, stored=fill.stored)
        if fill.done is not None and (fill.done.exchange is not None or visit.streamed is not None):
            return await self._say(order, fill.done, status)
        if fill.done is not None and fill.done.results is not None and flights[led[0]].error is not None:
            own = dict(zip(leading, self._filler.unstored(fill.done), strict=True))
            for place in [place for place, flight in flights.items() if flight in own]:
                found[place] = own[flights.pop(place)]
        return await self._gathered(order, found, flights, reason, status)

    @staticmethod
    async def _follow(visit: Visit, flights: Iterable[Flight[Entry]]) -> None:
        """Wait for what others compute, perhaps beside what this call leads, and say in the timeline until when."""
        since = time.monotonic()
        try:
            await all_settled(flights)
        finally:
            visit.timeline.upstream_end = time.monotonic()
            visit.route.metrics.coalesce_wait.observe(visit.timeline.upstream_end - since)

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
        """Ask with the caller's own bytes, once, whatever others have asked and the cache holds; keep nothing."""
        order.visit.outcome, order.visit.reason = Outcome.MISS, reason
        status = cache_status.missed(reason, partial=False, collapsed=False, stored=False)
        return await self._say(order, await self._filler.send(replace(order.whole(), singly=True), order.plan), status)

    async def _unshared(self, order: Order, reason: Reason) -> web.StreamResponse:
        """Ask the backend whatever the response cache holds, in a flight of nobody; keep what may be kept."""
        visit = order.visit
        visit.outcome, visit.reason = Outcome.MISS, reason
        done = await self._filler.send(order.whole(), order.plan)
        entries = self._filler.store(done, order.reading.fingerprints, order.plan, visit.route.settings.id)
        stored = entries is not None and entries.kept
        status = cache_status.missed(reason, partial=False, collapsed=False, stored=stored)
        return await self._say(order, done, status)

    @staticmethod
    def _hit(order: Order, entries: Sequence[Entry], now: float) -> Reply | None:
        """The answer where every item is in the response cache; None if they do not fit together."""
        body = order.reading.codec.answer(order.call, [entry.body for entry in entries])
        if body is None:
            return None
        visit = order.visit
        visit.outcome = Outcome.HIT
        visit.route.metrics.saved_upstream_seconds.add(sum([entry.fill_cost for entry in entries]))
        ttl = min([entry.fresh_until for entry in entries]) - now
        age = cache_status.age(min([entry.created for entry in entries]), now)
        added = ((cache_status.CACHE_STATUS, cache_status.hit(ttl)), (cache_status.AGE, age))
        return Reply(200, entries[0].headers + added, body)

    async def _assembled(self, order: Order, entries: Sequence[Entry], status: bytes) -> web.StreamResponse:
        """An answer made of items from here and there."""
        body = order.reading.codec.answer(order.call, [entry.body for entry in entries])
        if body is None:
            return await self._by_itself(order, Reason.MISFIT)
        headers = (*entries[0].headers, (cache_status.CACHE_STATUS, status))
        if (oldest := min(entry.created for entry in entries)) < self._unix_time() - 1:
            headers += ((cache_status.AGE, cache_status.age(oldest, self._unix_time())),)
        return await self._reply(order.visit, Reply(200, headers, body))

    async def _say(self, order: Order, done: Done, status: bytes) -> web.StreamResponse:
        """Give the caller the backend's own answer, or its part of a joined one."""
        if order.visit.streamed is not None:
            return order.visit.streamed
        exchange = done.exchange
        if exchange is None:
            assert done.results is not None, "a joined answer splits or its members are replayed"
            return await self._assembled(order, self._filler.unstored(done), status)
        if exchange.status >= 500 or exchange.status in FOR_EVERYBODY:
            order.visit.outcome = Outcome.UPSTREAM_ERROR
        headers = (*exchange.headers, (cache_status.CACHE_STATUS, status))
        return await self._reply(order.visit, Reply(exchange.status, headers, exchange.body, exchange.reason))

    async def _pass(self, visit: Visit, reason: Reason, body: Body | None = None) -> web.StreamResponse:
        """Let it through as it is."""
        visit.reason, visit.answering = reason, True
        visit.timeline.dispatched = time.monotonic()
        known = visit.codec is not None
        added = ((cache_status.CACHE_STATUS, cache_status.bypassed(reason)),) if known else ()
        http = visit.http
        touched = changes_models(http.method, http.raw_path.partition("?")[0])
        refused = False
        try:
            with body or pass_body(http, self._limits) as passing:
                reply, ended = await self._relay.forward(http, passing, visit.timeline, retriable=known, added=added)
            refused = 400 <= reply.status < 500
        finally:
            if touched is not None and not refused:  # whatever else became of it, models may have changed
                self._models.changed(touched)
        visit.outcome = ended or Outcome.BYPASS
        return reply

    async def _fail(self, visit: Visit, error: BaseException) -> web.StreamResponse:
        """The backend gave no answer, or Forebay cannot take the call: said in the protocol's own shape."""
        if isinstance(error, QueueFull):
            visit.outcome, visit.reason = Outcome.REJECTED, Reason.QUEUE_FULL
            return await self._refuse(visit, 503, str(error), retry_after=b"%d" % math.ceil(error.retry_after))
        if isinstance(error, Refused):
            visit.outcome = Outcome.UPSTREAM_ERROR
            return await self._refuse(visit, error.status, error.message, retry_after=error.retry_after)
        if isinstance(error, UpstreamError):
            late = error.failure is Failure.TIMEOUT
            visit.outcome = Outcome.TIMEOUT if late else Outcome.UPSTREAM_ERROR
            return await self._refuse(visit, 504 if late else 502, error.message)
        raise error  # a flight's own word between callers, which none of them should see

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

    def _sooner(
        self, fingerprint: Fingerprint, memory: Entry | Reason, redis: Entry | Reason, now: float
    ) -> Entry | Reason:
        """What Redis said of an item that memory lacked, unless memory holds it by now or knows better why not."""
        if isinstance(redis, Entry):
            return redis
        if isinstance(came := self._tiers.peek(fingerprint, now), Entry):  # another's fill ended meanwhile
            return came
        if redis is Reason.FIRST_SEEN and memory in (Reason.EXPIRED, Reason.EVICTED):
            return memory
        return redis

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
            alone = replace(settings.batch, max_size=1, preferred_sizes=())
            plan = Plan(
                cache=settings.cache,
                batch=settings.batch,
                alone=alone,
                tenant=Tenant.parse(settings.cache.tenant),
                model=model,
                identity=identity,
                slots=self._slots or model.instances,
            )
            plans = plan, plan if settings.batch.mode is BatchMode.OFF else replace(plan, batch=alone)
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
    for name, _ in headers:  # noqa: SIM110 - every request comes by here, and a generator takes twice as long
        if len(name) in _LENGTHS and name.lower() in _UNREADABLE:
            return False
    return True


_UNREADABLE: Final = frozenset({b"content-encoding", b"inference-header-content-length"})
_LENGTHS: Final = frozenset(map(len, _UNREADABLE))  # few other names are as long
