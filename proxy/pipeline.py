"""The life of a request: recognised, parsed, answered (`answers.py`), or passed through.

`handle`, `_serve` and `_call` are the whole of it; what follows them are the steps. Every request ends in exactly
one outcome, counted once, and whatever Forebay cannot or may not help goes to the backend untouched.

Invariants
    Up to the memory look-up nothing awaits but the client's own body.
    A fault in a codec costs a line in the log, not a request: it counts as `codec_error` and passes through.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from proxy import cache_status
from proxy.answers import Answers
from proxy.batching.batcher import QueueFull
from proxy.batching.settings import BatchMode
from proxy.caching.fingerprint import Tenant
from proxy.caching.policy import TTL_WITHOUT_IDENTITY, CacheMode, CacheUse, directives
from proxy.dispatch import Refused
from proxy.filling import EXPECTED, Plan
from proxy.http import refusal
from proxy.http.body import Body, body_at_hand, pass_body, read_body
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply
from proxy.orders import Order, Route, Visit
from proxy.protocols.codec import Codec, Endpoint
from proxy.protocols.registry import CODECS
from proxy.protocols.v2_metadata import changes_models
from proxy.readings import Reading, Readings
from proxy.relay import Relay
from proxy.routing import Mode, Routes
from proxy.telemetry.metrics import Metrics
from proxy.terms import Failure, Headers, Model, Outcome, Reason, Timeline
from proxy.upstream.connections import UpstreamError
from proxy.upstream.models import Models

log = logging.getLogger("forebay.pipeline")

MODELS_IN_USE: Final = 512  # plans that a route keeps; a scan of random names must not grow memory


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
        readings: Readings,
        answers: Answers,
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
        self._readings = readings
        self.answers = answers
        self._relay = relay
        self._host = host
        self._target = target
        self._slots = slots
        self._metrics = metrics
        self._codecs = codecs
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
                return await self.answers.from_cache(order)
            if order.cache is CacheUse.REFRESH:
                return await self.answers.anew(order, Reason.REFRESH)
            return await self.answers.past_cache(order)
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
            return await visit.reply(Reply(status, headers, f"{message}\n".encode()))
        headers += ((b"Content-Type", visit.codec.content_type),)
        return await visit.reply(Reply(status, headers, visit.codec.error(status, message)))

    def _recognise(self, method: str, path: str) -> tuple[Codec | None, Endpoint | None]:
        for codec in self._codecs:
            if (endpoint := codec.recognise(method, path)) is not None:
                return codec, endpoint
        return None, None

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
            if not identity.known and settings.cache.mode is CacheMode.ON and not route.warned:
                route.warned = True  # once: a scan of random names must not fill the log
                log.warning(
                    "model %r, route %s: nothing the backend says would show other weights, so answers are kept "
                    "%g s at most; with model.revision configured, cache.ttl holds",
                    model.name,
                    settings.id,
                    TTL_WITHOUT_IDENTITY,
                )
            if model.listed:
                self._metrics.models.listed(model.name)
                self._metrics.slots(self._target, model.name, plan.slots)
        return plans

    def __repr__(self) -> str:
        return f"<Pipeline {self._routes!r}, {self.answers!r}>"


def _readable(headers: Headers) -> bool:
    """May the body be read as it came? Not with a content coding, nor with tensors behind its JSON."""
    for name, _ in headers:  # noqa: SIM110 - every request comes by here, and a generator takes twice as long
        if len(name) in _LENGTHS and name.lower() in _UNREADABLE:
            return False
    return True


_UNREADABLE: Final = frozenset({b"content-encoding", b"inference-header-content-length"})
_LENGTHS: Final = frozenset(map(len, _UNREADABLE))  # few other names are as long
