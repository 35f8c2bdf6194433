"""One request written on one connection, and its answer: head first, then the body as it comes.

Invariants
    `headers` are the backend's own end-to-end fields, in its order and spelling.
    Everything that came of a body before it broke off is handed over before the error is raised.
    `close` ends the upload and gives the connection back if both ways went through, else closes it.
    A 101 is an answer only to a request that asked for another protocol; then the connection is its caller's as bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp.client_exceptions import ClientError
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from proxy.http.headers import switched, to_client
from proxy.http.tunnel import End
from proxy.terms import Failure, Headers, Timeline
from proxy.upstream.errors import Retry, UpstreamError, not_http
from proxy.upstream.pool import Lent
from proxy.upstream.settings import Timeouts
from proxy.upstream.upload import BodyFailed, Stalled, Upload, pieces

Body = bytes | AsyncIterable[bytes | memoryview] | None

Interim = Callable[[int, bytes, Headers], None]
"""Told status, reason and end-to-end fields of an interim answer, which may be any 1xx but 101."""

AT_ONCE: Final = 1024 * 1024
"""Bytes of a whole body that are handed to the transport in one go; a larger one goes by pieces."""

EARLY: Final = 0.002
"""Seconds by which a timer may fire before its time: uvloop counts in milliseconds."""


@dataclass(slots=True, eq=False)
class Sent:
    """What one exchange sends. deadline: when it must be over, on the loop's clock.

    switch: the head asks for another protocol.
    interim: told of each interim answer.
    consumed: the reading of a body that is read as it comes was begun.
    """

    method: str
    head: bytes
    body: Body
    length: int | None
    limits: Timeouts
    deadline: float | None
    timeline: Timeline
    switch: bool = False
    interim: Interim | None = None
    consumed: bool = False

    def least(self, seconds: float | None) -> float | None:
        """The shorter of a step's limit and what is left of the whole; None is no limit."""
        if self.deadline is None:
            return seconds
        left = max(self.deadline - asyncio.get_running_loop().time(), 0.0)
        return left if seconds is None else min(seconds, left)

    @property
    def late(self) -> bool:
        return self.deadline is not None and asyncio.get_running_loop().time() >= self.deadline - EARLY


def _reason(message: RawResponseMessage) -> bytes:
    return message.reason.encode("utf-8", "surrogateescape")


class Answer:
    """`status`, `reason` and `headers` are there once `begin` has returned."""

    status = 0
    reason = b""
    headers: Headers = ()

    def __init__(self, target: str, lent: Lent, sent: Sent) -> None:
        self._target = target
        self._lent = lent
        self._sent = sent
        self._upload: Upload | None = None
        self._payload: StreamReader | None = None

    @property
    def ended(self) -> bool:
        """Was the whole answer handed over?"""
        return self._payload is not None and self._payload.at_eof() and self._payload.exception() is None

    async def begin(self) -> None:
        """Write the request and wait for the head of its answer. Raises UpstreamError."""
        sent, link = self._sent, self._lent.link
        link.begin(bodiless=sent.method == "HEAD")
        try:
            async with asyncio.timeout(sent.least(None)) as patience:
                self._write(patience)
                message, payload = await link.head(self._interim)
        except BodyFailed as error:
            raise error.cause from None
        except (ClientError, HttpProcessingError, OSError, Stalled) as error:
            raise self._no_head(error, expired=patience.expired()) from error
        timeline = sent.timeline
        timeline.upstream_headers = time.monotonic()
        if message.code == 101 and not (sent.switch and message.upgrade):
            raise UpstreamError(Failure.RESET, f"{self._target} switched protocols without being asked to")
        coding = message.headers.get("Transfer-Encoding")
        if coding is not None and coding.lower() != "chunked":  # the body would go on coded, and no field would say so
            raise UpstreamError(Failure.RESET, f"{self._target} sent a Transfer-Encoding that it was not asked for")
        self._payload = payload
        payload.on_eof(lambda: setattr(timeline, "upstream_end", time.monotonic()))
        self.status = message.code
        self.reason = _reason(message)
        self.headers = (switched if message.code == 101 else to_client)(message.raw_headers)
        if self._upload is not None and message.code >= 300:
            await self._upload.stop()

    def _interim(self, message: RawResponseMessage) -> None:
        if self._sent.interim is not None:
            self._sent.interim(message.code, _reason(message), to_client(message.raw_headers))

    def _write(self, patience: asyncio.Timeout) -> None:
        """Write head and body; a long body, or one that is read as it comes, goes on in a task of its own."""
        sent, link = self._sent, self._lent.link

        def written() -> None:
            sent.timeline.request_written = time.monotonic()
            if sent.limits.first_byte is not None and self._payload is None:
                wait = sent.least(sent.limits.first_byte)
                assert wait is not None
                patience.reschedule(asyncio.get_running_loop().time() + wait)

        body = sent.body
        if isinstance(body, bytes) and len(body) > AT_ONCE:
            body = pieces(body)
        elif body is None or isinstance(body, bytes):
            link.write(sent.head, body or b"")
            written()
            return
        else:
            sent.consumed = True
        link.write(sent.head)
        self._upload = Upload(link, body, sent.length, idle=sent.limits.idle, on_done=written)

    def _no_head(self, error: Exception, *, expired: bool) -> UpstreamError:
        link, limits = self._lent.link, self._sent.limits
        if expired:
            if self._sent.late:
                return UpstreamError(Failure.TIMEOUT, f"{self._target} gave no answer within {limits.total:g} s in all")
            message = f"{self._target} did not begin to answer within {limits.first_byte:g} s"
            return UpstreamError(Failure.TIMEOUT, message)
        if isinstance(error, Stalled):
            return UpstreamError(Failure.TIMEOUT, f"{self._target} took nothing of the request for {limits.idle:g} s")
        if isinstance(error, HttpProcessingError):
            return not_http(self._target, error)
        retry = Retry.REUSED if self._lent.reused and link.silent else None
        return UpstreamError(
            Failure.RESET, f"{self._target} closed the connection before a whole head of an answer", retry=retry
        )

    def take_over(self) -> End:
        """After a 101: the connection as bytes. Raises UpstreamError where it is gone already."""
        assert self.status == 101, self
        try:
            return self._lent.link.taken_over()
        except ConnectionResetError as error:
            message = f"{self._target} closed the connection as soon as it had switched protocols"
            raise UpstreamError(Failure.TRUNCATED, message) from error

    async def read(self) -> bytes:
        """The rest of the body. Raises UpstreamError if it does not come whole."""
        parts = []
        while part := await self._next():
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, to its end. Raises UpstreamError if it does not come whole."""
        while part := await self._next():
            yield part

    async def _next(self) -> bytes:
        payload, sent = self._payload, self._sent
        assert payload is not None
        if payload is EMPTY_PAYLOAD:
            return b""
        if payload.exception() is not None and payload._buffer:  # noqa: SLF001 - readany would throw away what came before the error
            return payload._read_nowait(-1)  # noqa: SLF001 - as above
        wait = sent.least(sent.limits.idle)
        try:
            if wait is None:
                return await payload.readany()
            async with asyncio.timeout(wait):
                return await payload.readany()
        except BodyFailed as error:
            raise error.cause from None
        except TimeoutError:
            what = f"did not end within {sent.limits.total:g} s in all" if sent.late else f"went silent for {wait:g} s"
            raise UpstreamError(Failure.TIMEOUT, f"the answer of {self._target} {what}") from None
        except Stalled as error:
            message = f"{self._target} took nothing of the request for {sent.limits.idle:g} s"
            raise UpstreamError(Failure.TIMEOUT, message) from error
        except (ClientError, HttpProcessingError, RuntimeError) as error:
            raise UpstreamError(Failure.TRUNCATED, f"the answer of {self._target} broke off") from error

    async def close(self) -> None:
        """Let go of the connection, whatever state it is in."""
        whole = self.ended
        try:
            if self._upload is not None:
                await self._upload.stop()
                whole = whole and self._upload.done
        except BaseException:
            whole = False
            raise
        finally:
            if self.status == 101:
                self._sent.timeline.upstream_end = time.monotonic()
            if whole:
                self._lent.give_back()
            else:
                self._lent.drop()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "waiting" if self._payload is None else "open"
        return f"<Answer {self.status} {state} on {self._lent!r}>"
