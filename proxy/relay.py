"""Pass-through: a request goes to the backend and its answer comes back, as bytes, as they come.

Invariants
    The answer's head is sent when it comes; bodies stream both ways with back-pressure.
    A backend that dies within a body aborts the client's connection: a truncation never looks like an end.
    An answer that begins before the upload has ended is delivered, and the upload is stopped.

Knows nothing of caches and batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from aiohttp import web

from proxy.http import headers as fields
from proxy.http.reply import StreamReply
from proxy.terms import Headers, Outcome, Timeline
from proxy.upstream.connections import Connections, UpstreamError

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110, 9.2.2


class Relay:
    """Carries requests to the backend without looking into them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def forward(
        self,
        request: web.BaseRequest,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        retriable: bool,
        added: Headers = (),
        timeline: Timeline | None = None,
    ) -> tuple[web.StreamResponse, Outcome]:
        """Send it on and send the answer back; `added` fields join the answer's own.

        body: whole bytes, or what is still to come; None where the request has none.
        Raises UpstreamError while nothing has been sent to the client.
        """
