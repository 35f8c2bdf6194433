"""Pass-through: a request goes to the backend and its answer comes back, as bytes, as they come.

A request for another protocol (WebSocket, say) goes with what it asks for; if the backend agrees, both connections are
joined and pass each other's bytes until they end. If it does not, its answer is an answer as any other.

Invariants
    The answer's head is sent when it comes; bodies stream both ways with back-pressure.
    A backend that dies within a body ends the client's connection: a truncation never looks like an end.
    Nothing is added to an answer but what the caller of `forward` adds.

Knows nothing of caches, batches and protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from proxy.http import interim
from proxy.http.body import Body
from proxy.http.headers import switching, to_backend
from proxy.http.refusal import Refused
from proxy.http.reply import StreamReply
from proxy.http.tunnel import Tunnel
from proxy.http.upgrade import Switched, protocols
from proxy.terms import Failure, Headers, Outcome, Timeline
from proxy.upstream.connections import Answer, Connections, UpstreamError

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110, 9.2.2


CONTINUE_WITHIN: Final = 0.25
"""Seconds for a backend to say whether it wants a body that its client holds back (RFC 9110, 10.1.1): many never do."""


class _HeldBack:
    """A body that its client holds back until it is wanted: read when the backend says so, or has not spoken in time.

    A backend that refuses first spares it: the body is never read, and so its client never told to send it.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._wanted = asyncio.Event()

    def want(self) -> None:
        self._wanted.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONTINUE_WITHIN):
                await self._wanted.wait()
        async for piece in self._body:
            yield piece

    def __repr__(self) -> str:
        return f"<_HeldBack {self._body!r} {'wanted' if self._wanted.is_set() else 'not wanted yet'}>"


class Relay:
    """Carries requests to the backend without looking into them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def forward(
        self, request: web.BaseRequest, body: Body, timeline: Timeline, *, retriable: bool = False, added: Headers = ()
    ) -> tuple[web.StreamResponse, Outcome | None]:
        """Send it on and send the answer back, to its last byte; an outcome if it ended badly.

        retriable: the request may be computed twice. Idempotent methods may anyway.
        added: fields beside the answer's own.
        Raises UpstreamError, or the client's own `Refused` for its body, while nothing was sent to the client.
        """
        reply: StreamReply | None = None
        headers = to_backend(request.raw_headers, host=self._connections.host, identity=False)
        asked = protocols(request)
        if asked:
            headers += switching(asked)
        held_back = _HeldBack(body) if body.awaits_continue else None
        if held_back is not None:
            headers += ((b"Expect", b"100-continue"),)

        def tell(status: int, reason: bytes, fields: Headers) -> None:
            if status != 100:
                interim.say(request, status, reason, fields)
            elif held_back is not None:
                held_back.want()

        try:
            async with self._connections.open(
                request.method,
                request.raw_path,
                headers,
                body.data if body.complete else held_back or body,
                length=body.length,
                retriable=retriable or request.method in IDEMPOTENT,
                switch=bool(asked),
                interim=tell,
                timeline=timeline,
            ) as answer:
                if answer.status == 101:
                    return await self._join(request, answer)
                reply = StreamReply(answer.status, answer.headers + added, answer.reason)
                await reply.prepare(request)
                async for piece in answer.chunks():
                    await reply.write(piece)
        except (UpstreamError, Refused) as error:
            if reply is None:
                raise
            reply.abort()  # the backend, or the client's own upload, broke off when the answer had begun
            late = isinstance(error, UpstreamError) and error.failure is Failure.TIMEOUT
            return reply, Outcome.TIMEOUT if late else Outcome.TRUNCATED
        await reply.write_eof()
        return reply, Outcome.UPSTREAM_ERROR if reply.status >= 500 else None

    async def _join(self, request: web.BaseRequest, answer: Answer) -> tuple[web.StreamResponse, Outcome | None]:
        """Pass bytes both ways until both ways have ended; an outcome if one end broke off."""
        reply = Switched(answer.headers, answer.reason)
        backend = answer.take_over()
        await reply.prepare(request)
        client = reply.take_over(request)
        await Tunnel(client, backend).over()
        if client.vanished:
            return reply, Outcome.CLIENT_GONE
        return reply, Outcome.TRUNCATED if backend.vanished else None

    def __repr__(self) -> str:
        return f"<Relay to {self._connections!r}>"
