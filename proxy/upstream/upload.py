"""A request body on its way to the backend, beside the answer that may come before it has ended.

Invariants
    Never more is buffered than one piece and the transport's high-water mark.
    The declared length is kept to the byte: a body that is longer or ends early fails the exchange.
    A body that breaks off by itself (the caller left) raises its own exception where the answer is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Final

from aiohttp.client_exceptions import ClientError

from proxy.upstream.link import Link

PIECE: Final = 256 * 1024  # bytes of a whole body handed to the transport at once


class BodyFailed(Exception):
    """The body could not be read to its end; `cause` is what its reader raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("the request body broke off")
        self.cause = cause


class Stalled(Exception):
    """The backend took nothing of the body for the configured idle time."""


class Upload:
    """Sends one body in a task of its own. done: all of it was handed to the transport."""

    def __init__(
        self,
        link: Link,
        body: AsyncIterable[bytes | memoryview],
        length: int | None,
        *,
        idle: float | None,
        on_done: Callable[[], None],
    ) -> None:
        self.done = False
        self._link = link
        self._pieces = aiter(body)
        self._length = length
        self._idle = idle
        self._on_done = on_done
        link.hold()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it, finished or not; its body is read no further afterwards."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._send()
        except (BodyFailed, Stalled, ClientError, OSError) as error:
            self._link.fail(error)
        finally:
            self._on_done = _nothing  # it refers to the answer, which refers to this

    async def _send(self) -> None:
        link, left = self._link, self._length
        if left == 0:
            self._finish()
        while (piece := await self._piece()) is not None:
            if not (size := len(piece)):
                continue
            if left is None:
                link.write(b"%x\r\n" % size, piece, b"\r\n")
            else:
                left -= size
                if left < 0:
                    raise BodyFailed(ValueError("the request body is longer than was declared"))
                link.write(piece)
                if not left:
                    self._finish()  # at once: the answer may come before the body is asked for more
            await self._drain()
        if left is None:
            link.write(b"0\r\n\r\n")
            self._finish()
        elif left:
            raise BodyFailed(ValueError("the request body ended before its declared length"))

    async def _piece(self) -> bytes | memoryview | None:
        """The next piece of the body, None at its end. Raises BodyFailed."""
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            return None
        except Exception as error:  # raised again to whoever awaits the answer
            raise BodyFailed(error) from error

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._idle) as patience:
                await self._link.drain()
        except TimeoutError as error:
            raise Stalled if patience.expired() else error from None

    def _finish(self) -> None:
        self.done = True
        self._on_done()

    def __repr__(self) -> str:
        return f"<Upload {'done' if self.done else 'stopped' if self._task.done() else 'under way'}>"


def _nothing() -> None:
    pass


async def pieces(body: bytes) -> AsyncIterator[memoryview]:
    """A whole body in pieces, without a copy."""
    view = memoryview(body)
    for start in range(0, len(view), PIECE):
        yield view[start : start + PIECE]
