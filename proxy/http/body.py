"""Reading a request's body under limits: all of it where it is small enough, else its beginning and the rest.

Invariants
    What a `Body` holds of `limits.buffered` it gives back exactly once: when it is released, when its bytes
    are passed on, or when reading fails.
    `100 Continue` is said at most once, only to a client that asked, only when its body is wanted and no answer
    has begun.
    A client that sends nothing for `limits.read_timeout` is refused; the wait for a slow backend does not count.

Knows nothing of what a body means.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from aiohttp import web
from aiohttp.http import HttpVersion11

from proxy.http.limits import Buffered, Limits
from proxy.http.refusal import Refused
from proxy.terms import Reason

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Upload:
    """The bytes of a body that are still to come, each piece as it arrives; b"" from `read` is the end."""

    __slots__ = ("_before", "_limits", "_request", "_wants_continue", "total")

    def __init__(self, request: web.BaseRequest, limits: Limits) -> None:
        self._request = request
        self._limits = limits
        self._before = b""
        self._wants_continue = (
            request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue"
        )
        self.total = 0

    @property
    def awaits_continue(self) -> bool:
        """Does the client hold its body back until it is told to go on, or has lost patience?"""
        return self._wants_continue and not self._request.content.total_bytes

    def put_back(self, piece: bytes) -> None:
        """The next `read` returns this."""
        assert not self._before
        self._before = piece

    async def read(self) -> bytes:
        """The next piece. Raises `Refused` for a body that is too large, too slow or not HTTP."""
        if self._before:
            piece, self._before = self._before, b""
            return piece
        if self._wants_continue:
            self._wants_continue = False
            self._say_continue()
        try:
            async with asyncio.timeout(self._limits.read_timeout):
                piece = await self._request.content.readany()
        except TimeoutError:
            raise Refused(408, Reason.BODY_TIMEOUT, "The rest of the request body did not come in time.") from None
        self.total += len(piece)
        if self._limits.body is not None and self.total > self._limits.body:
            raise _too_large(self._limits.body)
        return piece

    def _say_continue(self) -> None:
        request = self._request
        transport = request.transport
        if transport is not None and not request.writer.output_size and not request.content.total_bytes:
            transport.write(_CONTINUE)


class Body:
    """A request's body: `data` is the whole where `rest` is None, else what was read of it so far.

    length: its declared or known length; None for chunks that have not all come.
    absent: the request has no body at all, which is not the same as an empty one.

    Iterating passes it on, pieces in order; what was held is given back as it leaves. A `with` block gives back
    whatever is left.
    """

    __slots__ = ("_buffered", "_held", "_holders", "absent", "data", "length", "rest")

    def __init__(
        self,
        data: bytes,
        rest: Upload | None,
        length: int | None,
        *,
        absent: bool = False,
        held: int = 0,
        buffered: Buffered | None = None,
    ) -> None:
        self.absent = absent
        self.data = data
        self.rest = rest
        self.length = length
        self._held = held
        self._holders = 1
        self._buffered = buffered

    @property
    def complete(self) -> bool:
        """Is `data` the whole body?"""
        return self.rest is None

    @property
    def awaits_continue(self) -> bool:
        """Does nothing of it come before the client is told to go on?"""
        return self.rest is not None and not self.data and self.rest.awaits_continue

    def hold(self) -> None:
        """One more needs the bytes: another `release` is due."""
        self._holders += 1

    def hold_more(self, size: int) -> bool:
        """Hold `size` bytes that were made of it as long as its own; False, and nothing more held, without room."""
        if self._buffered is None or not self._buffered.take(size):
            return False
        self._held += size
        return True

    def release(self) -> None:
        """Give back what is held of `limits.buffered`, if nobody else needs it; more often is the same as once."""
        self._holders -= 1
        if self._holders <= 0 and self._buffered is not None:
            self._buffered.give(self._held)
            self._buffered = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self.data:
            data, self.data = self.data, b""
            self.release()
            return data
        if self.rest is not None and (piece := await self.rest.read()):
            return piece
        raise StopAsyncIteration

    def __repr__(self) -> str:
        state = "whole" if self.rest is None else "streaming"
        held = 0 if self._buffered is None else self._held
        return f"<Body {state} data={len(self.data)} length={self.length} held={held}>"


def pass_body(request: web.BaseRequest, limits: Limits) -> Body:
    """A body that nobody needs to understand: nothing of it is read ahead. Raises `Refused` (413)."""
    content = request.content
    if content.is_eof():
        data = _arrived(request, limits)
        return Body(data, None, len(data), absent=_absent(request, data))
    length = request.content_length
    if length is not None and limits.body is not None and length > limits.body:
        raise _too_large(limits.body)
    return Body(b"", Upload(request, limits), length)


def body_at_hand(request: web.BaseRequest, limits: Limits, buffered: Buffered) -> Body | None:
    """What `read_body` would give, where all of it came with the head: the common case, and nothing to wait for."""
    if not request.content.is_eof():
        return None
    data = _arrived(request, limits)
    size = len(data)
    if size > limits.parse or not buffered.take(size):
        return Body(data, Upload(request, limits), size)
    return Body(data, None, size, absent=_absent(request, data), held=size, buffered=buffered)


async def read_body(request: web.BaseRequest, limits: Limits, buffered: Buffered) -> Body:
    """A body to be understood: whole up to `limits.parse` and while `buffered` has room, else to be passed on.

    Raises `Refused`: 413 above `limits.body`, 408 when nothing comes, 400 when it is not HTTP.
    """
    if (at_hand := body_at_hand(request, limits, buffered)) is not None:
        return at_hand
    body = pass_body(request, limits)
    upload = body.rest
    assert upload is not None
    if body.length is not None and body.length > limits.parse:
        return body
    pieces: list[bytes] = []
    held = 0
    try:
        while piece := await upload.read():
            if held + len(piece) > limits.parse or not buffered.take(len(piece)):
                upload.put_back(piece)
                return Body(b"".join(pieces), upload, body.length, held=held, buffered=buffered)
            held += len(piece)
            pieces.append(piece)
    except BaseException:
        buffered.give(held)
        raise
    return Body(b"".join(pieces), None, held, held=held, buffered=buffered)


def _arrived(request: web.BaseRequest, limits: Limits) -> bytes:
    """A body of which every byte is here already."""
    data = request.content.read_nowait()
    if limits.body is not None and len(data) > limits.body:
        raise _too_large(limits.body)
    return data


def _absent(request: web.BaseRequest, data: bytes) -> bool:
    """Does the head promise no body, not even an empty one?"""
    return not data and "Content-Length" not in request.headers and "Transfer-Encoding" not in request.headers


def _too_large(limit: int) -> Refused:
    return Refused(413, Reason.BODY_TOO_LARGE, f"The request body is larger than {limit} bytes.")
