"""Answers as the backend meant them: nothing invented, and framed by us.

Invariants
    Nothing is added to the given fields but the framing of this message: `Content-Length` or
    `Transfer-Encoding`, and `Connection` where it must be said. No `Server`, no `Date`, no `Content-Type`.
    What must not have a body (HEAD, 204, 304) has none, and keeps the backend's `Content-Length`.
    No field can end the head early, whoever supplied it: a CR or LF in one is an error, not a second answer.
    A body that ends before its declared length ends the connection: a truncation never looks like an end.

Knows nothing of caches, routes or protocols. Where an answer goes is aiohttp's business (`request.writer`).
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Final, Protocol, cast

from aiohttp import ClientConnectionResetError, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11, StreamWriter

from proxy.http.headers import FRAMING
from proxy.http.headers import get as first_value
from proxy.terms import Headers

_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS: Final = frozenset({204, 304})
_ONE_BUFFER: Final = 64 * 1024
"""Up to here copying a body behind its head is cheaper than a second write."""


class ClientConnection(Protocol):
    """What an answer that cannot be finished asks of the connection it is on."""

    def cut_off(self, *, reset: bool) -> None: ...


@lru_cache(maxsize=256)
def _status_line(status: int, reason: bytes | None) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"") if reason is None else reason)


def encode_head(status: int, reason: bytes | None, headers: Headers, framing: bytes) -> bytes:
    """A whole head. `framing` holds complete lines; framing fields among `headers` are left out.

    reason: None is the usual phrase of the status.
    """
    fields = [field for field in headers if field[0].lower() not in FRAMING]
    lines = b"\r\n".join(map(b": ".join, fields))
    breaks = len(fields) - 1 if fields else 0
    if lines.count(b"\n") != breaks or lines.count(b"\r") != breaks:
        raise ValueError("a header field of an answer holds a line break")
    return b"".join((_status_line(status, reason), lines, b"\r\n" if fields else b"", framing, b"\r\n"))


def _connection(request: web.BaseRequest, keep_alive: bool) -> bytes:
    """What must be said of the connection: only what the client would not assume."""
    if not keep_alive:
        return b"Connection: close\r\n"
    return b"" if request.version >= HttpVersion11 else b"Connection: keep-alive\r\n"


class Reply(web.StreamResponse):
    """A whole answer; head and body leave in one buffer.

    headers: fields as the client shall see them; framing fields among them are replaced by our own.
    body: not sent where none may be; then `Content-Length` is the given one, else that of `body`.
    """

    def __init__(self, status: int, headers: Headers, body: bytes, reason: bytes | None = None) -> None:
        # the mapping and header tables of the base class are never asked for, and cost a tenth of a hit
        assert status >= 200, "interim answers are the connection's own"
        self._status = status
        self._phrase = reason
        self._fields = headers
        self.body = body

    @property
    def reason(self) -> str:
        return (_PHRASES.get(self._status, b"") if self._phrase is None else self._phrase).decode("latin-1")

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send all of it, once; returns when the client has taken enough of it."""
        if self._eof_sent:
            return None
        if self._keep_alive is None:
            self._keep_alive = request.keep_alive
        body = self.body
        if request.method == "HEAD" or self._status in _BODILESS:
            given = first_value(self._fields, b"content-length")
            if given is None and body:
                given = b"%d" % len(body)
            framing = b"" if given is None else b"Content-Length: %b\r\n" % given
            body = b""
        else:
            framing = b"Content-Length: %d\r\n" % len(body)
        head = encode_head(self._status, self._phrase, self._fields, framing + _connection(request, self._keep_alive))
        writer = cast(StreamWriter, request.writer)
        transport = writer.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has left")
        self._eof_sent = True
        if len(body) <= _ONE_BUFFER:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        writer.output_size += len(head) + len(body)
        if cast(BaseProtocol, request.protocol).writing_paused:
            await writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """The answer is whole as soon as it is prepared."""
        assert self._eof_sent, "prepare() sends a Reply"
        assert not data, "a Reply holds its whole body"

    def __repr__(self) -> str:
        return f"<Reply {self._status} {len(self.body)} bytes {'sent' if self._eof_sent else 'not sent'}>"


class StreamReply(web.StreamResponse):
    """An answer whose head leaves when it is known, and whose body leaves as it comes.

    `prepare` sends the head, `write` sends a piece and waits while the client does not read, `write_eof` ends
    the body, `abort` gives it up. A body with a declared length that ends short is given up as well.
    """

    def __init__(self, status: int, headers: Headers, reason: bytes | None = None) -> None:
        assert status >= 200, "interim answers are the connection's own"
        super().__init__(status=status)
        self._phrase = reason
        self._fields = headers
        self._left: int | None = None  # bytes still owed to a declared length
        self._until_close = False
        self._aborted = False

    @property
    def reason(self) -> str:
        return (_PHRASES.get(self._status, b"") if self._phrase is None else self._phrase).decode("latin-1")

    @property
    def aborted(self) -> bool:
        """Was the client's connection cut off because the body could not be finished?"""
        return self._aborted

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the head now: the first byte of the body may be minutes away."""
        if self._req is not None or self._eof_sent:
            return self._payload_writer
        self._req = request
        self._payload_writer = writer = request.writer
        keep_alive = request.keep_alive if self._keep_alive is None else self._keep_alive
        length = first_value(self._fields, b"content-length")
        framing = b"" if length is None else b"Content-Length: %b\r\n" % length
        self._must_be_empty_body = request.method == "HEAD" or self._status in _BODILESS
        if self._must_be_empty_body:
            self._left = 0
        elif length is not None:
            self._left = int(length)
        elif request.version >= HttpVersion11:
            self._chunked = True
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            self._until_close = True
            keep_alive = False
        self._keep_alive = keep_alive
        await writer.write(
            encode_head(self._status, self._phrase, self._fields, framing + _connection(request, keep_alive))
        )
        return writer

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body, and wait while the client does not take it."""
        writer = self._payload_writer
        assert writer is not None, "prepare() comes first"
        size = len(data)
        if not size or self._must_be_empty_body:
            return
        if self._chunked:
            await writer.write(b"".join((b"%x\r\n" % size, data, b"\r\n")))
        else:
            if self._left is not None:
                assert size <= self._left, "more body than its declared length"
                self._left -= size
            await writer.write(data)

    async def write_eof(self, data: bytes = b"") -> None:
        """End the body; one that is shorter than declared is given up instead."""
        if self._eof_sent or self._aborted:
            return
        if data:
            await self.write(data)
        writer = self._payload_writer
        assert writer is not None, "prepare() comes first"
        if self._left:
            self.abort()
            return
        if self._chunked:
            await writer.write(b"0\r\n\r\n")
        self._eof_sent = True
        await writer.drain()

    def abort(self) -> None:
        """Give up a body that cannot be finished: what was written still goes out, then the connection ends.

        Where only the end of the connection would tell the end of the body, it is reset.
        """
        if self._eof_sent or self._aborted:
            return
        self._aborted = True
        self._keep_alive = False
        assert self._req is not None, "prepare() comes first"
        cast(ClientConnection, self._req.protocol).cut_off(reset=self._until_close)

    def __repr__(self) -> str:
        if self._aborted:
            state = "aborted"
        elif self._eof_sent:
            state = "sent"
        else:
            state = "sending" if self._payload_writer is not None else "not sent"
        return f"<StreamReply {self._status} {state}>"
