"""What a request asks for: its route, its codec, its model, and the call that it is.

Invariants
    Nothing here awaits: what is not known of a backend yet is a `Reason` to let the request through.
    A request has one route from beginning to end; where that hangs on a model which only its body names, it has the
    first route that fits without, until the body is read.
    A call is read item by item only where its items are known to be independent: by the route's word, by the
    backend's, or because it was proved.

Knows nothing of answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from aiohttp import web

from proxy.batching.settings import BatchMode
from proxy.caching.fingerprint import Scope, Tenant
from proxy.caching.policy import TTL_WITHOUT_IDENTITY, CacheMode, CacheUse, directives
from proxy.filling import Plan
from proxy.http.body import Body
from proxy.http.coding import undone
from proxy.orders import Order, Route, Visit
from proxy.proofs import Proofs, State, kind
from proxy.protocols.asked import Asked
from proxy.protocols.codec import Call, Codec, Endpoint, Message
from proxy.readings import Reading, Readings
from proxy.routing import Mode, Named, Routes, RouteSettings, RowsAre, Unread
from proxy.telemetry.metrics import Metrics
from proxy.terms import Model, Reason, Rows, Timeline

log = logging.getLogger("forebay.pipeline")

MOST_ITEMS: Final = 4096
"""Items that a call may have: each takes some 20 µs of the event loop, and entries, flights and memory of its own."""

MODELS_IN_USE: Final = 512  # plans that a route keeps; a scan of random names must not grow memory


class Understanding:
    """Reads requests. Everything it needs is handed to it.

    known: what the backend has said of a codec's model; None while it must be asked, which begins then.
    speaks: was a codec's protocol found at the backend, where nothing else says that it is spoken there?
    largest: bytes of a body, content codings undone, that is read.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        route_parts: Mapping[str, Route],
        known: Callable[[Asked, str], Model | None],
        speaks: Callable[[Codec], bool],
        readings: Readings,
        proofs: Proofs,
        host: bytes,
        target: str,
        slots: int | None,
        largest: int,
        metrics: Metrics,
        began: float,
    ) -> None:
        self._routes = routes
        self._parts = route_parts
        self._default = route_parts[routes.default]
        self._default_alone = len(route_parts) == 1  # as it mostly is, and every request comes by here
        self._known = known
        self._speaks = speaks
        self._readings = readings
        self._proofs = proofs
        self._host = host
        self._target = target
        self._slots = slots
        self._largest = largest
        self._metrics = metrics
        self._began = began
        self._changing = tuple(
            dict.fromkeys((route.settings.prefix, codec) for route in route_parts.values() for codec in route.codecs)
        )

    def changes(self, method: str, path: str) -> bool:
        """May other weights answer when this request has succeeded, as any route's protocols know it?"""
        return any(codec.changes(method, path.removeprefix(prefix)) for prefix, codec in self._changing)

    def visit(self, http: web.BaseRequest, timeline: Timeline) -> Visit:
        """A request whose head is here, on its route."""
        path, _, query = http.raw_path.partition("?")
        visit = Visit(http, path, query, timeline, self._default)
        try:
            if self._default_alone:
                if (found := self._default.recognise(http.method, path, self._speaks)) is not None:
                    visit.codec, visit.endpoint = found
                    visit.model = visit.endpoint.model
                return visit
            self._settle(visit, Unread.UNREAD)
        except Exception:  # it passes through, on the route of whatever fits no other
            log.exception("not recognised by a fault of Forebay's own")
        return visit

    def order(self, visit: Visit, body: Body) -> Order | Reason:
        """What the caller wants, remembered or read; a `Reason` to let it through as it is."""
        http = visit.http
        reading = self._readings.of(http.method, http.raw_path, http.raw_headers, body.data, self._known)
        if (
            reading is not None
            and (not visit.settled or reading.codec is visit.codec)
            and (reading.plan.rows is not Rows.PROVE or self._holds(visit.path, reading))
        ):
            if not visit.settled:
                self._move(visit, self._parts[reading.route])
            visit.codec, visit.model = reading.codec, reading.plan.model.name
            return Order(visit, reading, reading.call, reading.plan, reading.cache, self._host, body, read_anew=False)
        understood = self._understand(visit, body)
        if isinstance(understood, Reason):
            return understood
        return Order(
            visit, understood, understood.call, understood.plan, understood.cache, self._host, body, read_anew=True
        )

    def _holds(self, path: str, reading: Reading) -> bool:
        """Are the rows that it was read by still proved?"""
        if not reading.call.joins:
            return True
        of = kind(reading.codec, reading.plan, path, reading.call)
        return self._proofs.state(reading.signature, of) is State.PROVED

    def unread(self, visit: Visit) -> None:
        """The body of a request could not be read: no model in it decides about its route."""
        if not visit.settled:
            self._settle(visit, "")

    def _settle(self, visit: Visit, in_body: Named) -> None:
        """Find route, codec and endpoint. in_body: the model that the body names."""
        method, path = visit.http.method, visit.path

        def named(settings: RouteSettings) -> Named:
            found = self._parts[settings.id].recognise(method, path, self._speaks)
            return None if found is None else found[1].model if found[1].model is not None else in_body

        settings, visit.settled = self._routes.route_for(path, named)
        route = self._parts[settings.id]
        visit.codec, visit.endpoint = route.recognise(method, path, self._speaks) or (None, None)
        visit.model = None if visit.endpoint is None else visit.endpoint.model
        self._move(visit, route)

    @staticmethod
    def _move(visit: Visit, route: Route) -> None:
        """Put a request on a route; where it is counted as active already, there too."""
        if visit.begun and route is not visit.route:
            visit.route.metrics.left()
            route.metrics.begin()
        visit.route = route

    def _understand(self, visit: Visit, body: Body) -> Reading | Reason:
        """What a codec makes of it, and what route and caller want of it."""
        headers = visit.http.raw_headers
        text = undone(body.data, headers, self._largest)
        if text is None:
            self.unread(visit)
            return Reason.UNPARSED
        if text is not body.data and not body.hold_more(len(text)):
            self.unread(visit)
            return Reason.TOO_LARGE
        message = Message(text, headers)
        codec, endpoint = visit.codec, visit.endpoint
        assert codec is not None, "only what a codec recognises is read"
        assert endpoint is not None, "only what a codec recognises is read"
        if endpoint.model is None:
            name = codec.model_in(message)
            if not visit.settled:
                self._settle(visit, name)
                codec, endpoint = visit.codec, visit.endpoint
                if codec is None or endpoint is None:
                    return Reason.UNRECOGNISED
            visit.model = name if endpoint.model is None else endpoint.model
        if visit.route.settings.mode is Mode.OFF:
            return Reason.OPTED_OUT
        assert visit.model is not None, "a path or a body has named it"
        model = self._known(visit.route.asked(codec), visit.model)
        if model is None:
            return Reason.MODEL_UNKNOWN
        return self._read(visit, codec, endpoint, message, model)

    def _read(self, visit: Visit, codec: Codec, endpoint: Endpoint, message: Message, model: Model) -> Reading | Reason:
        settings, asked = visit.route.settings, visit.route.asked(codec)
        wish = directives(message.fields)
        plan = self._plan(visit.route, codec, endpoint, model)[0 if wish.batch else 1]
        scope = visit.route.keys.scope(
            route=settings.id,
            protocol=codec.name,
            path=visit.path,
            identity=plan.identity,
            query=visit.query.encode("utf-8", "surrogateescape"),
            headers=message.fields,
        )
        call: Call | Reason
        trial: Call | None = None
        if plan.rows is Rows.ITEMS:
            call = codec.parse(endpoint, message, plan.by_items)
        else:
            call = codec.parse(endpoint, message, plan.entire)
            if plan.rows is Rows.PROVE and not isinstance(call, Reason) and wish.batch:
                by_items = codec.parse(endpoint, message, plan.by_items)
                if not isinstance(by_items, Reason) and by_items.joins:
                    of = kind(codec, plan, visit.path, by_items)
                    state = self._proofs.state(self._signature(visit, scope, by_items), of)
                    if state is State.PROVED:
                        call = by_items
                    elif state is State.OPEN:
                        trial = by_items
        if isinstance(call, Reason):
            return call
        cached = settings.cache.mode is CacheMode.ON and wish.cache is not CacheUse.OFF
        if not call.deterministic and not settings.cache.sampled:
            return Reason.NOT_DETERMINISTIC
        joined = call.joins and wish.batch and plan.batch.mode is not BatchMode.OFF
        if not cached and not joined and trial is None:
            return Reason.OPTED_OUT
        signature = self._signature(visit, scope, trial or call)
        if not cached:
            return Reading(settings.id, codec, asked, call, plan, signature, CacheUse.OFF, (), trial)
        fingerprints = visit.route.keys.fingerprints(scope, _form(call) + call.shared, call.items)
        return Reading(settings.id, codec, asked, call, plan, signature, wish.cache, fingerprints, trial)

    @staticmethod
    def _signature(visit: Visit, scope: Scope, call: Call) -> bytes:
        return visit.route.keys.signature(scope, b"%d:" % len(call.company) + call.company + call.shared)

    def _plan(self, route: Route, codec: Codec, endpoint: Endpoint, model: Model) -> tuple[Plan, Plan]:
        """How this route treats this model: batched, and as its callers may ask, not batched."""
        key = (codec.name, model.name, endpoint.operation)
        plans = route.plans.get(key)
        if plans is None or plans[0].model is not model:
            plans = self._planned(route, codec, endpoint, model)
            if len(route.plans) >= MODELS_IN_USE:
                route.plans.clear()
            route.plans[key] = plans
        return plans

    def _planned(self, route: Route, codec: Codec, endpoint: Endpoint, model: Model) -> tuple[Plan, Plan]:
        settings = route.settings
        identity = model.identity
        if settings.model.revision:
            identity = identity._replace(revision=settings.model.revision, known=True)
        elif not identity.generation:
            identity = identity._replace(generation=self._began)
        alone = replace(settings.batch, max_size=1, preferred_sizes=())
        most = min(model.max_batch_size or MOST_ITEMS, MOST_ITEMS)
        plan = Plan(
            cache=settings.cache,
            batch=settings.batch,
            alone=alone,
            tenant=Tenant.parse(settings.cache.tenant),
            model=model,
            identity=identity,
            slots=self._slots or model.instances,
            rows=rows_of(settings, codec, endpoint, model),
            by_items=replace(model, rows=Rows.ITEMS, max_batch_size=most),
            entire=replace(model, rows=Rows.WHOLE),
        )
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
        return plan, plan if settings.batch.mode is BatchMode.OFF else replace(plan, batch=alone)

    def __repr__(self) -> str:
        return f"<Understanding {self._routes!r}, {self._readings!r}, {self._proofs!r}>"


def rows_of(settings: RouteSettings, codec: Codec, endpoint: Endpoint, model: Model) -> Rows:
    """Whether the items of a route's calls are independent, by its own word or else the backend's or protocol's."""
    rows = codec.rows_of(endpoint, model) if settings.rows is RowsAre.AUTO else _SAID[settings.rows]
    if rows is Rows.PROVE and settings.batch.mode is BatchMode.OFF:
        return Rows.WHOLE  # nothing may ride together, not even to see whether it could
    return rows


def _form(call: Call) -> bytes:
    """A call that is one item has other results than an item that looks like it."""
    return b"i" if call.joins else b"w"


_SAID: Final = {RowsAre.ITEMS: Rows.ITEMS, RowsAre.PROVE: Rows.PROVE, RowsAre.WHOLE: Rows.WHOLE}
