"""Exchanges with the backend: one request out, its answer back, over pooled connections.

Invariants
    An answer belongs to the request that was written on its connection, or nobody gets it.
    A connection is reused only after a whole request and a whole answer (`link.py`).
    Tried again, at most once and within the retry budget, is only what the caller called retriable and
    only where the backend cannot have begun: no connection came about, or a reused one died before a
    byte of the answer. A body that is read as it comes is never sent twice.
    An answer that begins before the upload has ended is handed over at once. A refusal stops the
    upload; beside a success it goes on until the answer has ended. The connection is not reused.
    A request for another protocol has a connection of its own, which nobody had before or has after it.
    Every failure is an `UpstreamError` with a `Failure`; whoever is cancelled closes the connection.

Knows nothing of protocols, caches, callers and what the fields mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Protocol

from proxy.settings import Seconds
from proxy.terms import Exchange, Headers, Timeline
from proxy.upstream import request
from proxy.upstream.address import Address
from proxy.upstream.answer import Answer, Body, Interim, Sent
from proxy.upstream.errors import Retry, UpstreamError
from proxy.upstream.pool import Pool
from proxy.upstream.retry_budget import RetryBudget
from proxy.upstream.settings import Timeouts, UpstreamSettings

__all__ = ["Answer", "Connections", "Observer", "Retry", "Silent", "UpstreamError"]

ANSWERED: Final = "answered"
ABANDONED: Final = "abandoned"
"""Outcomes beside those of `Failure`: the answer came whole; the caller left before it had."""


class Observer(Protocol):
    """What is told of exchanges, in seconds.

    exchange: one asked for by a caller is over; from its begin, retries included, to the last byte.
    ttfb: from the connection held to the head of the answer. pool_wait: for a connection, new or kept.
    retry: one more try; connect or reused.
    """

    def exchange(self, target: str, seconds: float, outcome: str) -> None: ...
    def ttfb(self, seconds: float) -> None: ...
    def pool_wait(self, seconds: float) -> None: ...
    def retry(self, reason: str) -> None: ...


class Silent:
    """Observes nothing."""

    def exchange(self, target: str, seconds: float, outcome: str) -> None: ...
    def ttfb(self, seconds: float) -> None: ...
    def pool_wait(self, seconds: float) -> None: ...
    def retry(self, reason: str) -> None: ...


_OWN_FIELDS: Final = ((b"Accept", b"application/json"), (b"User-Agent", b"forebay"))


class Connections:
    """The way to one target. Usable from one event loop, the one of its first exchange."""

    def __init__(
        self, settings: UpstreamSettings, observe: Observer | None = None, budget: RetryBudget | None = None
    ) -> None:
        if len(settings.targets) != 1:
            raise ValueError(f"upstream.targets must hold exactly one address, not {len(settings.targets)}")
        self._address = Address.parse(settings.targets[0])
        self._settings = settings
        self._own_fields: Headers = _OWN_FIELDS
        if settings.authorization is not None:
            self._own_fields += ((b"Authorization", settings.authorization.encode()),)
        self._observe: Observer = Silent() if observe is None else observe
        self._watchers: list[Callable[[UpstreamError | None], None]] = []
        self._made: Pool | None = None
        self._unshared: Pool | None = None  # of requests for another protocol
        self.budget = RetryBudget() if budget is None else budget

    @property
    def target(self) -> str:
        """The target as it is named in messages and metrics."""
        return self._address.url

    @property
    def host(self) -> bytes:
        """What the backend expects in `Host`."""
        return self._address.host

    @property
    def shows_credentials(self) -> bool:
        """Do Forebay's own questions carry any?"""
        return self._settings.authorization is not None

    def watch(self, watcher: Callable[[UpstreamError | None], None]) -> None:
        """Call `watcher` with how each try went: None when a head came, else the error."""
        self._watchers.append(watcher)

    async def exchange(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes = b"",
        *,
        retriable: bool = False,
        timeline: Timeline | None = None,
    ) -> Exchange:
        """One request and its whole answer. Raises UpstreamError."""
        sent = self._sent(method, target, headers, body, timeline=timeline)
        return await self._whole(sent, retriable, self._observe)

    def open(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: Body = None,
        *,
        length: int | None = None,
        retriable: bool = False,
        switch: bool = False,
        interim: Interim | None = None,
        timeline: Timeline | None = None,
    ) -> AbstractAsyncContextManager[Answer]:
        """One request; entered when the head of its answer has come. To leave before its end closes the connection.

        target: path and query as they go on the wire. headers: end-to-end fields.
        length: bytes of a body that is read as it comes; None sends it in chunks.
        interim: told of each interim answer, before the final one.
        switch: the headers ask for another protocol. If the status is 101, `take_over` gives the connection as bytes.
        Entering raises UpstreamError, and whatever reading the body raises.
        """
        sent = self._sent(method, target, headers, body, length=length, switch=switch, timeline=timeline)
        sent.interim = interim
        return _Opened(self, sent, retriable, self._observe)

    async def ask(self, target: str, *, within: float, method: str = "GET") -> Exchange:
        """A question of Forebay's own: no caller's fields, not observed. Raises UpstreamError."""
        limits = Timeouts(connect=self._settings.timeout.connect, total=Seconds(within))
        sent = self._sent(method, target, self._own_fields, None, limits=limits)
        return await self._whole(sent, True, Silent())

    async def aclose(self) -> None:
        """Close every connection; exchanges under way fail."""
        for pool in (self._made, self._unshared):
            if pool is not None:
                await pool.aclose()

    def __repr__(self) -> str:
        pools = [pool for pool in (self._made, self._unshared) if pool is not None]
        busy, idle = sum(pool.busy for pool in pools), sum(pool.idle for pool in pools)
        return f"<Connections {self.target} busy={busy} idle={idle}>"

    def _sent(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: Body,
        *,
        length: int | None = None,
        switch: bool = False,
        limits: Timeouts | None = None,
        timeline: Timeline | None = None,
    ) -> Sent:
        limits = self._settings.timeout if limits is None else limits
        if body is None or isinstance(body, bytes):
            length = len(body or b"")
        head = request.head(method, target, headers, host=self.host, length=length)
        deadline = None if limits.total is None else asyncio.get_running_loop().time() + limits.total
        return Sent(method, head, body, length, limits, deadline, timeline or Timeline(), switch)

    async def _whole(self, sent: Sent, retriable: bool, observe: Observer) -> Exchange:
        async with _Opened(self, sent, retriable, observe) as answer:
            body = await answer.read()
        return Exchange(answer.status, answer.reason, answer.headers, body)

    async def begin(self, sent: Sent, retriable: bool, observe: Observer) -> Answer:
        """Send the request, once more if that is safe; the answer whose head came."""
        self.budget.request(time.monotonic())
        try:
            return await self._try(sent, observe, fresh=False)
        except UpstreamError as error:
            if not retriable or error.retry is None or sent.consumed or not self.budget.spend(time.monotonic()):
                raise
            observe.retry(error.retry.value)
        return await self._try(sent, observe, fresh=True)

    async def _try(self, sent: Sent, observe: Observer, *, fresh: bool) -> Answer:
        try:
            answer = await self._send(sent, observe, fresh)
        except UpstreamError as error:
            for watcher in self._watchers:
                watcher(error)
            raise
        for watcher in self._watchers:
            watcher(None)
        return answer

    def _pool(self, *, switch: bool) -> Pool:
        if switch:
            if self._unshared is None:
                self._unshared = Pool(self._address, keepalive=None)
            return self._unshared
        if self._made is None:
            self._made = Pool(self._address, keepalive=self._settings.keepalive)
        return self._made

    async def _send(self, sent: Sent, observe: Observer, fresh: bool) -> Answer:
        pool = self._pool(switch=sent.switch)
        started = time.monotonic()
        lent = await pool.take(within=sent.least(sent.limits.connect), fresh=fresh)
        sent.timeline.connected = connected = time.monotonic()
        observe.pool_wait(connected - started)
        answer = Answer(self.target, lent, sent)
        try:
            await answer.begin()
        except BaseException:
            await answer.close()
            raise
        observe.ttfb(sent.timeline.upstream_headers - connected)
        return answer


class _Opened(AbstractAsyncContextManager[Answer]):
    """The time from the begin of an exchange to the moment at which its caller has done with the answer."""

    __slots__ = ("_answer", "_connections", "_observe", "_retriable", "_sent", "_started")

    _answer: Answer

    def __init__(self, connections: Connections, sent: Sent, retriable: bool, observe: Observer) -> None:
        self._connections = connections
        self._sent = sent
        self._retriable = retriable
        self._observe = observe

    async def __aenter__(self) -> Answer:
        self._started = time.monotonic()
        try:
            self._answer = await self._connections.begin(self._sent, self._retriable, self._observe)
        except BaseException as error:
            self._over(error, ended=False)
            raise
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        ended = self._answer.ended
        try:
            await self._answer.close()
        finally:
            self._over(error, ended=ended)

    def _over(self, error: BaseException | None, *, ended: bool) -> None:
        at = time.monotonic()
        outcome = ABANDONED
        if isinstance(error, UpstreamError):
            outcome = error.failure.value
        elif ended:
            outcome = ANSWERED
            at = self._sent.timeline.upstream_end
        self._observe.exchange(self._connections.target, at - self._started, outcome)
