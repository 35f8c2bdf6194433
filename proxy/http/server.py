"""The listening side: accepts, counts what is in flight, and drains.

Knows nothing of heads and bodies: `connection.py` reads and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from proxy.http.backlog import take_all
from proxy.http.connection import Connection, Handler
from proxy.http.limits import Limits
from proxy.terms import Reason

LAST_CALL: Final = 1.0
"""Seconds from the beginning of a drain in which an idle connection may still bring a request."""


class HttpServer(web.Server):
    """Makes connections.

    After `drain` has begun nobody is let in, every accepted request still gets its answer, and each connection ends
    after it. Accepted is also what comes in the last call on a connection that was idle or new: its client sent it
    without knowing that the connection was about to end, and may not send it twice. A connection counts until its
    task has ended, not only its socket.

    handler: answers one request. It is cancelled when its client leaves.
    keepalive: seconds an idle connection is kept; longer than clients' pools keep theirs.
    refused: told of each request that no handler saw, and why.

    Above `limits.connections` a new connection gets 503 and is closed: left in the backlog, its client would wait
    for an unknown time without being told.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        *,
        keepalive: float = 75.0,
        refused: Callable[[Reason], None] = lambda _: None,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._handler = handler
        self._limits = limits
        self._keepalive = keepalive
        self._listeners: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self.refused = refused
        self.draining = False
        self.past_last_call = False  # idle connections end: they were left time for a request on its way
        self.in_flight = 0
        self.turned_away = 0

    def __call__(self) -> Connection:
        return Connection(self, self._handler, self._limits, self._keepalive)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept connections; returns the address it got (`port` 0 asks for any)."""
        listener = await self._loop.create_server(self, host, port, backlog=1024)
        self._listeners.append(listener)
        address: tuple[str, int] = listener.sockets[0].getsockname()[:2]
        return address

    @property
    def crowded(self) -> bool:
        """Are there more connections than there may be?"""
        return len(self._connections) > self._limits.connections

    @property
    def last_call(self) -> bool:
        """Does it drain, and may an idle connection still bring a request?"""
        return self.draining and not self.past_last_call and bool(self._connections)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109  # its end is an answer here, not an exception
        """Accept nothing more, let every accepted request get its answer, and end each connection after it.

        True when all have ended; False when `timeout` seconds were not enough.
        """
        self.draining = True
        waiting = [sock for listener in self._listeners for sock in take_all(listener)]
        self._stop_listening()
        try:
            async with asyncio.timeout(timeout):
                for sock in waiting:
                    await self._loop.connect_accepted_socket(self, sock)
                if not self.past_last_call:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._empty.wait(), min(LAST_CALL, timeout / 2))
                self.past_last_call = True
                for connection in self.connections:
                    cast(Connection, connection).finish()
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def close(self) -> None:
        """End everything now; handlers that still run are cancelled."""
        self.draining = self.past_last_call = True
        self._stop_listening()
        for connection in self.connections:
            cast(Connection, connection).drop()
        await self._empty.wait()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._empty.clear()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        life = cast(Connection, handler).life
        assert life is not None
        life.add_done_callback(lambda _: self._forget(handler))

    def _forget(self, handler: RequestHandler) -> None:
        self._connections.pop(handler, None)
        cast(Connection, handler).over()
        if not self._connections:
            self._empty.set()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "serving"
        return f"<HttpServer {state} connections={len(self._connections)} in_flight={self.in_flight}>"
