"""The life of a request: understood (`understanding.py`), answered (`answers.py`), or passed through.

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
from collections.abc import Callable, Sequence

from aiohttp import web

from proxy import cache_status
from proxy.answers import Answers
from proxy.batching.batcher import QueueFull
from proxy.caching.policy import CacheUse
from proxy.dispatch import Refused
from proxy.filling import EXPECTED
from proxy.http import refusal
from proxy.http.body import Body, body_at_hand, pass_body, read_body
from proxy.http.headers import get
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply
from proxy.orders import Visit
from proxy.protocols.codec import Codec
from proxy.relay import Relay
from proxy.routing import Mode
from proxy.terms import Failure, Headers, Outcome, Reason, Timeline
from proxy.understanding import Understanding
from proxy.upstream.connections import UpstreamError
from proxy.upstream.unmatched import Unmatched

log = logging.getLogger("forebay.pipeline")


class Pipeline:
    """Answers requests. Everything it needs is handed to it.

    codecs: every one that serves; changed: told when a request that may have changed models has passed through.
    """

    def __init__(
        self,
        *,
        understanding: Understanding,
        answers: Answers,
        relay: Relay,
        limits: Limits,
        buffered: Buffered,
        codecs: Sequence[Codec],
        changed: Callable[[], None],
        unmatched: Unmatched,
    ) -> None:
        self._understanding = understanding
        self.answers = answers
        self._relay = relay
        self._limits = limits
        self._buffered = buffered
        self.codecs = codecs
        self._changed = changed
        self._unmatched = unmatched

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """One request to its answer, and to its outcome."""
        timeline = Timeline(head_parsed=time.monotonic())
        visit = self._understanding.visit(http, timeline)
        visit.route.metrics.begin()
        visit.begun = True
        try:
            return await self._serve(visit)
        except (asyncio.CancelledError, ConnectionError):  # the client's: the backend's are UpstreamErrors
            visit.outcome = Outcome.CLIENT_GONE
            raise
        finally:
            timeline.answered = time.monotonic()
            visit.route.metrics.finish(visit.outcome, visit.reason, timeline, model=visit.model)

    async def _serve(self, visit: Visit) -> web.StreamResponse:
        try:
            if visit.codec is None:
                return await self._pass(visit, Reason.UNRECOGNISED)
            if visit.route.settings.mode is Mode.OFF and visit.settled:
                return await self._pass(visit, Reason.OPTED_OUT)
            http, limits, buffered = visit.http, self._limits, self._buffered
            try:
                body = body_at_hand(http, limits, buffered) or await read_body(http, limits, buffered)
            except BaseException:  # it is no model's, and counts where a body that is too large does
                self._understanding.unread(visit)
                raise
            with body:
                visit.timeline.body_read = time.monotonic()
                if not body.complete:
                    self._understanding.unread(visit)
                    return await self._pass(visit, Reason.TOO_LARGE, body)
                return await self._call(visit, body)
        except refusal.Refused as refused:
            visit.outcome, visit.reason = Outcome.REJECTED, refused.reason
            return await self._refuse(visit, refused.status, refused.message)
        except EXPECTED as error:
            return await self._fail(visit, error)

    async def _call(self, visit: Visit, body: Body) -> web.StreamResponse:
        """A call that is all here: understood, then answered as its route and its caller want it."""
        try:
            order = self._understanding.order(visit, body)
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

    async def _pass(self, visit: Visit, reason: Reason, body: Body | None = None) -> web.StreamResponse:
        """Let it through as it is."""
        visit.reason, visit.answering = reason, True
        visit.timeline.dispatched = time.monotonic()
        known = visit.codec is not None
        added = ((cache_status.CACHE_STATUS, cache_status.bypassed(reason)),) if known else ()
        http = visit.http
        touched = self._may_change_models(visit)
        refused = False
        try:
            with body or pass_body(http, self._limits) as passing:
                reply, ended = await self._relay.forward(http, passing, visit.timeline, retriable=known, added=added)
            refused = 400 <= reply.status < 500
        finally:
            if touched and not refused:  # whatever else became of it, models may have changed
                self._changed()
        if reason is Reason.UNRECOGNISED:
            self._unmatched.saw(http.method, visit.path, _kind_of(http.raw_headers), reply.status)
        visit.outcome = ended or Outcome.BYPASS
        return reply

    def _may_change_models(self, visit: Visit) -> bool:
        try:
            return self._understanding.changes(visit.http.method, visit.path)
        except Exception:
            log.exception("taken for a request that changes models, after a fault of Forebay's own")
            return True

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

    def __repr__(self) -> str:
        return f"<Pipeline {self._understanding!r}, {self.answers!r}>"


def _kind_of(headers: Headers) -> str:
    return (get(headers, b"content-type") or b"").decode("latin-1")
