"""A client's request for another protocol: recognised, answered with the backend's own 101, and taken over as bytes.

What a client sends behind such a request belongs to the other protocol. `Connection` keeps it, up to a read buffer,
until the connection is taken over here or the request is answered in HTTP after all.
"""

from __future__ import annotations

from typing import Final, Protocol, cast

from aiohttp import ClientConnectionResetError, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, StreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from proxy.http.headers import asked_protocols
from proxy.http.reply import encode_head
from proxy.http.tunnel import End
from proxy.terms import Headers

_END: Final = b"\r\n\r\n"


class Switchable(Protocol):
    """What taking over asks of the connection that a request came on."""

    @property
    def switchable(self) -> bool: ...

    def taken_over(self) -> End: ...


class HeadEnds:
    """Where heads end in what comes, however it is cut into pieces.

    Empty lines are all it looks for: one that ends no head divides what is parsed where nobody minds.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = b""  # the last bytes of a head that has begun

    def first(self, data: bytes) -> int:
        """How many bytes of `data` there are up to the first end, which is then behind us; 0 if there is none."""
        end = (self._before + data).find(_END) + len(_END) - len(self._before)
        if end + len(self._before) < len(_END):
            return 0
        self._before = b""
        return end

    def passed(self, data: bytes) -> None:
        """These were parsed, and ended no head."""
        self._before = data[-3:] if len(data) >= 3 else (self._before + data)[-3:]


def may_switch(message: RawRequestMessage, payload: StreamReader) -> bool:
    """Does this head ask for a protocol that can pass? Not with a body, of which nobody knows whose it would be."""
    return (
        message.upgrade
        and message.method == "GET"
        and payload is EMPTY_PAYLOAD
        and message.version == HttpVersion11
        and bool(asked_protocols(message.raw_headers))
    )


def protocols(request: web.BaseRequest) -> bytes:
    """What the client asks to speak instead of HTTP, as the backend shall be asked; b"" for an ordinary request."""
    if not request._message.upgrade:  # noqa: SLF001  # `request.message` warns
        return b""
    connection = cast(Switchable, request.protocol)
    return asked_protocols(request.raw_headers) if connection.switchable else b""


class Switched(web.StreamResponse):
    """The backend's 101, after which the connection is the other protocol's: `prepare`, then `take_over`."""

    def __init__(self, headers: Headers, reason: bytes) -> None:
        super().__init__(status=101)
        self._fields = headers
        self._phrase = reason
        self._keep_alive = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        if self._eof_sent:
            return None
        self._eof_sent = True
        writer = cast(StreamWriter, request.writer)
        transport = writer.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has left")
        head = encode_head(101, self._phrase, self._fields, b"Connection: Upgrade\r\n")
        transport.write(head)
        writer.output_size += len(head)
        return None

    def take_over(self, request: web.BaseRequest) -> End:
        """The client's connection as bytes. Raises ConnectionResetError where it has left."""
        assert self._eof_sent, "prepare() sends the 101"
        return cast(Switchable, request.protocol).taken_over()

    def __repr__(self) -> str:
        return f"<Switched {'sent' if self._eof_sent else 'not sent'}>"
