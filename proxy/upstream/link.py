"""One connection to the backend, and the judgement whether it may carry another exchange.

Invariants
    Bytes that come while no exchange is under way are nobody's answer: they close the connection.
    `is_connected`, which the pool asks before it hands a connection out, is False as soon as anything
    waits on an idle connection, be it read already or still in the kernel: bytes, an end, an error.
    `settle` is True only if request and answer both went through to their end and nothing came behind.
    A connection that failed while a body was coming fails the body: no truncation looks like an end.

What aiohttp's own handler does instead, each with a test: parses stray bytes as the answer to the next
request; takes a reset for the end of a body without length; lets a reader of a malformed body wait for
ever; forgets half a head that came behind an answer; on close, goes on sending to a peer that does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable
from typing import Final

from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader

from proxy.http.tunnel import End

LINE: Final = 64 * 1024
FIELD: Final = 256 * 1024
FIELDS: Final = 1024
"""What the head of an answer may hold: bytes of its first line, bytes of a field, fields."""

READ_AHEAD: Final = 256 * 1024
"""Bytes of an answer that are read before its reader wants them; twice as many at the most."""

_WAITING: Final = select.POLLIN | getattr(select, "POLLRDHUP", 0)  # POLLHUP and POLLERR are always reported
_PROBE: Final = b"HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n"


class Link(ResponseHandler):
    """A connection: `begin`, write, `head`, read, `settle`; then again, or `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.exchanges = 0
        self.silent = True  # no byte of the present answer has come
        self._busy = False
        self._headed = False  # the final head was taken: whatever follows the body is too much
        self._spoilt = False
        self._poll: select.poll | None = None
        self._spare = -1  # a second descriptor of the socket, while `hold` is in force

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), _WAITING)

    def begin(self, *, bodiless: bool) -> None:
        """From here on, what comes is the answer to the request about to be written (without body, to a HEAD)."""
        assert not self._busy
        self.exchanges += 1
        self.silent = True
        self._busy = True
        self._headed = False
        self.set_response_params(
            skip_payload=bodiless,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_AHEAD,
            max_line_size=LINE,
            max_field_size=FIELD,
            max_headers=FIELDS,
        )

    async def head(self, interim: Callable[[RawResponseMessage], None]) -> tuple[RawResponseMessage, StreamReader]:
        """The final head of the answer; interim ones (100 Continue, 103 Early Hints) are told to `interim`."""
        while True:
            message, payload = await self.read()
            if message.code >= 200 or message.code == 101:
                self._headed = True
                return message, payload
            interim(message)

    def taken_over(self) -> End:
        """After a 101: the connection as bytes, what came behind the head first. ConnectionResetError if it is gone."""
        tail, self._tail = self._tail, b""
        return End(self.transport, self, early=tail)

    def write(self, *pieces: bytes | bytearray | memoryview) -> None:
        """Hand bytes to the transport; ConnectionResetError if there is none any more."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("connection lost")
        self.transport.writelines(pieces)

    async def drain(self) -> None:
        """Wait until the transport wants more bytes, and let an answer that came meanwhile be read first.

        Two turns of the loop read what the kernel holds. Without them a body that never waits would be
        sent on for long after it was refused.
        """
        await self._drain_helper()
        if not self._headed and self.waiting():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def hold(self) -> None:
        """For this exchange, keep what the kernel holds readable when a write fails.

        A backend that refuses an upload and closes resets what is written after that. The loop closes
        the socket then, though the refusal may still lie in it, unread.
        """
        transport = self.transport
        if transport is not None and transport.get_extra_info("sslcontext") is None:  # TLS could not be read past it
            self._spare = os.dup(transport.get_extra_info("socket").fileno())

    def fail(self, error: BaseException) -> None:
        """Whoever reads head or body of the present answer gets `error`."""
        self.set_exception(error)
        self._fail_body(error)

    def waiting(self) -> bool:
        """Does anything wait in the kernel to be read: bytes, an end, an error?"""
        return self._poll is not None and bool(self._poll.poll(0))

    def is_connected(self) -> bool:
        """May be handed out by the pool."""
        return super().is_connected() and not self._spoilt and not self.waiting()

    def settle(self) -> bool:
        """The exchange is over: is the connection as good as new?"""
        self._busy = False
        self._let_go()
        transport = self.transport
        if transport is None or transport.is_closing() or self._spoilt or self.should_close:
            return False
        if transport.get_write_buffer_size():
            return False  # the answer came before the request was out
        # Half a head behind the answer hides inside the parser. A parser that stands between two
        # messages reads exactly one out of the probe; any other does not.
        assert self._parser is not None
        try:
            messages, _, _ = self._parser.feed_data(_PROBE)
        except Exception:  # noqa: BLE001 - any fault of the parser says the same: not between two messages
            return False
        self._parser = None
        return len(messages) == 1 and messages[0][0].code == 299

    def close(self) -> None:
        """Close, without first sending what is still in the buffer: nobody wants it any more."""
        self._fail_body(ClientPayloadError("closed"))
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    def data_received(self, data: bytes) -> None:
        if data:  # none: the reader of a body made room for what the parser holds
            if not self._busy:
                self._spoil()
                return
            self.silent = False
        # Head and rest apart: whatever is wrong behind a whole answer must not take the answer with it.
        if not self._headed and not self._buffer and (end := data.find(b"\r\n\r\n") + 4) > 3:
            super().data_received(data[:end])
            data = data[end:]
        super().data_received(data)
        if self._exception is not None:
            self._fail_body(ClientPayloadError("malformed"))
        if self._headed and self._buffer:
            self._buffer.clear()
            self._spoil()

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp never keeps a connection open
        """An end of writing that comes with a 101 leaves the way to the backend open."""
        super().eof_received()
        return self._upgraded and self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None:
            self._read_rest()
            self._fail_body(ClientPayloadError("connection lost"))
        self._let_go()
        super().connection_lost(exc)

    def _read_rest(self) -> None:
        with contextlib.suppress(OSError):  # the reset itself, or nothing there
            while self._spare >= 0 and (data := os.read(self._spare, READ_AHEAD)):
                self.data_received(data)

    def _let_go(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _fail_body(self, error: BaseException) -> None:
        if self._payload is not None and not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(error)

    def _spoil(self) -> None:
        self._spoilt = True
        if self.transport is not None:
            self.transport.close()

    def __repr__(self) -> str:
        closed = self.transport is None or self.transport.is_closing()
        state = "closed" if closed else "busy" if self._busy else "idle"
        return f"<Link {state} exchanges={self.exchanges}>"
