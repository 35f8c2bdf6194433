"""Client connections: what is taken for a request, and answering one after the other.

Invariants
    Requests of a connection are answered one at a time, in the order in which they came.
    What is not surely the beginning of a request is never read as one: after a refusal, a chunked body (its
    trailers would become fields of the next head), an upgrade, or an answer given before its upload ended, the
    connection ends.
    What comes behind a request for another protocol is kept, up to a read buffer, until the connection is taken over
    (`upgrade.py`) or the request is answered in HTTP.
    At most `limits.head` bytes pass without a head, or a byte of a body, coming of them; so heads, trailers and
    chunk extensions are bounded.
    A client that leaves cancels its handler.
    Nothing that a client sent is ever written to a log.

Replaces `start` and `data_received` of aiohttp's `RequestHandler` (pinned; tests/http hold each reach), keeps its
parser, flow control and keep-alive timer. Knows nothing of what an answer is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http import StreamWriter
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from proxy.http import peer
from proxy.http.heads import refusal
from proxy.http.limits import Limits
from proxy.http.line import Line
from proxy.http.refusal import Refused, plain
from proxy.http.tunnel import End
from proxy.http.upgrade import HeadEnds, may_switch
from proxy.terms import Reason

if TYPE_CHECKING:
    from proxy.http.server import HttpServer

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_LOG: Final = logging.getLogger("forebay.http")

_HEAD_END: Final = b"\r\n\r\n"
_READ_BUFFER: Final = 64 * 1024
"""Of a body, up to twice this waits for its handler; then the client is held back."""


class Request(web.BaseRequest):
    """aiohttp's request, except that the connection decides whether it outlives the answer."""

    _protocol: Connection

    @property
    def keep_alive(self) -> bool:
        return self._protocol.outlives(self)


class Connection(Line):
    """Made by an `HttpServer`, one for each accepted socket."""

    __slots__ = ("_fruitless", "_handler", "_head_ends", "_limits", "_server", "_taken", "_upload", "life")

    def __init__(self, server: HttpServer, handler: Handler, limits: Limits, keepalive: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=keepalive,
            access_log=None,
            max_line_size=limits.head,
            max_field_size=limits.head,
            max_headers=limits.head,  # the bytes are what is bounded
            read_bufsize=_READ_BUFFER,
            auto_decompress=False,
        )
        self._server = server
        self._handler = handler
        self._limits = limits
        self._upload: StreamReader = EMPTY_PAYLOAD  # the body of the last head parsed
        self._fruitless = 0  # bytes since the last head or byte of a body
        self._head_ends = HeadEnds()
        self._taken: End | None = None
        self.life: asyncio.Task[None] | None = None  # a connection is over when this is, not when its socket is

    # ── the life of a connection ──────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.life = self._task_handler
        if self._server.crowded:
            self._server.turned_away += 1
            self._say_last(Refused(503, Reason.QUEUE_FULL, "Too many connections."))

    async def start(self) -> None:
        """Answer what comes, one after the other; the task of this connection."""
        loop = self._loop
        try:
            while not self._force_close:
                if not self._messages:
                    if self._server.past_last_call and self._quiet:
                        break
                    self._waiter = loop.create_future()
                    try:
                        await self._waiter
                    finally:
                        self._waiter = None
                message, payload = self._messages.popleft()
                if isinstance(message, Refused):
                    if self.transport is not None:
                        self.transport.write(message.encode())
                    break
                if not await self._answer(cast(RawRequestMessage, message), payload):
                    break
                self._next_keepalive_close_time = close_time = loop.time() + self._keepalive_timeout
                if self._keepalive_handle is None:
                    self._keepalive_handle = loop.call_at(close_time, self._process_keepalive)
        except BaseException:
            self.force_close()
            raise
        self._hang_up(linger=not (self._server.draining and self._upload.is_eof()))

    async def _answer(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        """One request, from its head to the end of its answer. True if another may follow on this connection."""
        parser, server = self._parser, self._server
        assert parser is not None
        assert self.life is not None
        parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        request = Request(message, payload, self, StreamWriter(self, self._loop), self.life, self._loop)
        self._current_request = request
        server.in_flight += 1
        try:
            response = await self._respond(request)
        finally:
            server.in_flight -= 1
            self._current_request = None
            request._task = None  # type: ignore[assignment]  # noqa: SLF001  # a cycle that would keep both alive
        return response is not None and bool(response.keep_alive)

    async def _respond(self, request: Request) -> web.StreamResponse | None:
        """Let the handler answer, and send that; a plain error where it raises instead. None: nothing was finished."""
        try:
            response = await self._handler(request)
            if not response._eof_sent:  # noqa: SLF001  # a whole answer is sent already: the common case
                await response.prepare(request)
                await response.write_eof()
        except Refused as refused:
            error = refused.reply()
        except asyncio.CancelledError:
            assert self.life is not None
            if self.life.cancelling():
                raise
            _LOG.exception("A handler waited for something that was cancelled")
            error = plain(500, "Internal error.")
        except Exception as failure:  # noqa: BLE001  # whatever breaks, its client is told and no other is hurt
            gone = self.transport is None or self.transport.is_closing()
            if gone and isinstance(failure, ConnectionError):
                return None  # it left while its answer was written
            _LOG.exception("A handler failed")
            error = plain(500, "Internal error.")
        else:
            return response
        if request.writer.output_size:  # half an answer must not look whole
            self.cut_off(reset=True)
            return None
        with contextlib.suppress(ConnectionError):  # it may leave even now
            await error.prepare(request)
        return error

    def outlives(self, request: Request) -> bool:
        """May another request follow on this connection, as things stand now?"""
        message = request._message  # noqa: SLF001  # `request.message` warns
        return not (message.should_close or message.chunked or message.upgrade or self._server.draining) and (
            request.content.is_eof()
        )

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._force_close:
            if self.switchable:
                super().data_received(data)  # kept, and the client held back when it is enough
            return
        limit = self._limits.head
        while self._upload.is_eof() and self._fruitless + len(data) > limit:
            # a head is due, and no more is fed to it than it may have
            room = limit - self._fruitless
            if not room:
                self._refuse(Refused(431, Reason.HEAD_TOO_LARGE, "The head of the request is too large."))
                return
            self._feed(data[:room])
            data = data[room:]
            if self._deaf:
                self.data_received(data)
                return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Parse, and queue the requests whose heads are whole.

        Where a head may ask for another protocol it is parsed up to its very end: the parser tells what came behind it
        of WebSocket alone, and loses it of any other.
        """
        while (self._fruitless or data.startswith(b"GET ")) and self._upload.is_eof() and not self._messages:
            end = self._head_ends.first(data)
            if not end:
                break
            self._parse(data[:end], to_its_end=True)
            data = data[end:]
            if self._deaf:
                self.data_received(data)
            if self._deaf or not data:
                return
        self._parse(data)

    def _parse(self, data: bytes, *, to_its_end: bool = False) -> None:
        assert self._parser is not None
        body_before = self._upload.total_bytes
        between = self._upload.is_eof() and not self._fruitless
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except LineTooLong:
            self._refuse(Refused(431, Reason.HEAD_TOO_LARGE, "The head of the request is too large."))
            return
        except (HttpProcessingError, ValueError):
            if between and 4 <= (end := data.find(_HEAD_END) + len(_HEAD_END)) < len(data):
                self._parse_apart(data, end)
                return
            self._refuse(Refused(400, Reason.BAD_REQUEST, "This is not a request that can be read without guessing."))
            return
        if not messages:
            fruitful = self._upload.total_bytes != body_before
            self._fruitless = 0 if fruitful else self._fruitless + len(data)
            self._head_ends.passed(data)
            if self._fruitless > self._limits.head:
                self._refuse(Refused(431, Reason.HEAD_TOO_LARGE, "The trailers of the request are too large."))
            return
        self._fruitless = 0
        self._queue(messages)
        if messages[-1][0].upgrade and not self._deaf:
            if (upgraded or to_its_end) and may_switch(*messages[-1]):
                self._upgraded, self._message_tail = True, tail
                self._deaf = True
            elif upgraded:
                self._deaf = True  # it may go on in another protocol, which nobody here speaks

    def _parse_apart(self, data: bytes, end: int) -> None:
        """Parse once more, head by head: the parser gives none of the requests before the one that broke it."""
        self._parser = self._new_parser()
        start = 0
        while start < len(data):
            self._parse(data[start:end])
            start, end = end, len(data)
            if self._deaf:
                break
            if not self._upload.is_eof():
                head = cast(RawRequestMessage, self._messages[-1][0])
                end = start + int(head.headers.get("Content-Length", end))
            elif (found := data.find(_HEAD_END, start)) >= 0:
                end = found + len(_HEAD_END)

    def _new_parser(self) -> HttpRequestParser:
        """As the base class makes it."""
        return HttpRequestParser(
            self,
            self._loop,
            _READ_BUFFER,
            max_line_size=self._limits.head,
            max_field_size=self._limits.head,
            max_headers=self._limits.head,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=self._max_msg_queue_size,
        )

    def _queue(self, messages: Sequence[tuple[RawRequestMessage, StreamReader]]) -> None:
        for message, payload in messages:
            refused = refusal(message)
            if refused is not None:
                self._refuse(refused)
                return
            self._upload = payload
            self._messages.append((message, payload))
        self._wake()
        if not self._buffer_paused and len(self._messages) >= self._max_msg_queue_size:
            self._pause_reading_for_buffer()

    def _refuse(self, refused: Refused) -> None:
        """Read nothing more. A request whose body is broken hears of it; else `refused` is the last answer."""
        self._deaf = True
        if self._upload.is_eof():
            self._server.refused(refused.reason)
            self._say_last(refused)
        else:
            self._upload.set_exception(refused)

    def _say_last(self, refused: Refused) -> None:
        """After the answers that are owed, `refused`, and the end."""
        self._deaf = True
        self._messages.append((cast(Any, refused), EMPTY_PAYLOAD))
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ── another protocol ──────────────────────────────────────────────────────────────────────────

    @property
    def switchable(self) -> bool:
        """Has the last request asked for another protocol, and is everything kept that came behind it?"""
        return self._upgraded

    def taken_over(self) -> End:
        """The connection as bytes. Who leaves it is from here on the tunnel's matter: its handler is not cancelled."""
        self._resume_transport_reading()
        self._taken = End(self.transport, self, early=bytes(self._message_tail))
        self._message_tail = b""
        self._cut = True
        return self._taken

    def _hang_up(self, *, linger: bool) -> None:
        self._upgraded, self._message_tail = False, b""  # answered in HTTP: what came behind means nothing
        super()._hang_up(linger=linger)

    def drop(self) -> None:
        if self._taken is not None and self.life is not None:
            self.life.cancel()  # with it goes the other end
        super().drop()

    # ── flow control ──────────────────────────────────────────────────────────────────────────────

    def resume_reading(self, resume_parser: bool = True) -> None:
        if not self._reading_paused and self._upload.is_eof():
            return  # nothing is held back: the common case, once per body
        super().resume_reading(resume_parser)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> bool:
        """Is no request here: none in progress, and none on its way?"""
        return self._waiter is not None and not self._waiter.done() and self._quiet

    @property
    def _quiet(self) -> bool:
        """Is nothing of a next request here, not even in the kernel?"""
        transport = self.transport
        return transport is None or not (self._fruitless or peer.has_unread(transport.get_extra_info("socket")))

    def over(self) -> None:
        """Its task has ended: let go of what refers to it, or it would wait for the cycle collector, parser and all."""
        self.life = None
        self._upload = EMPTY_PAYLOAD
        self._messages.clear()

    def finish(self) -> None:
        """The last call is over: an idle connection goes now, any other after the answers it owes."""
        if self.idle:
            self.force_close()
        elif self._lingering is not None and self._upload.is_eof() and self.transport is not None:
            self.transport.close()

    def __repr__(self) -> str:
        if self.transport is None:
            state = "closed"
        elif self._taken is not None:
            state = "taken over"
        elif self._current_request is not None:
            state = "answering"
        elif self._lingering is not None:
            state = "lingering"
        else:
            state = "waiting"
        return f"<Connection {state} queued={len(self._messages)}>"
