"""`python -m benchmarks.soak_backend PORT WEIGHTS`: the model server of soaks, in a process that can be killed.

It is the one of the tests, a little slow, and beside the model it has what a model server has no use for: bodies
and streams that are a function of their path, so that a mix-up shows, and answers that break off.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator

from aiohttp import web

from tests.parts.model_backend import ModelServer

SLOWEST = 0.006  # seconds that an inference takes at most
_PIECE = 64 * 1024


def content(seed: str, size: int) -> bytes:
    """The body of `/soak/bytes/SEED/SIZE`."""
    block = hashlib.blake2b(seed.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def events(seed: str, count: int) -> Iterator[bytes]:
    """The events of `/soak/events/SEED/COUNT`."""
    for number in range(count):
        yield b"data: %b %d\n\n" % (seed.encode(), number)
    yield b"data: [DONE]\n\n"


def digest(body: bytes) -> str:
    """What `/soak/digest` says of a body."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


class SoakBackend(ModelServer):
    """The model `double`, and what lies under `/soak`."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if len(self.requests) > 1000:  # what tests look at afterwards would be all that grows here
            self.requests.clear()
            self.headers.clear()
        match request.path.strip("/").split("/"):
            case ["soak", "digest"]:
                hashed = hashlib.blake2b(digest_size=16)
                async for piece in request.content.iter_any():
                    hashed.update(piece)
                return web.Response(text=hashed.hexdigest())
            case ["soak", "bytes", seed, size]:
                return web.Response(body=content(seed, int(size)), content_type="application/octet-stream")
            case ["soak", "events", seed, count]:
                return await self._stream(request, seed, int(count))
            case ["soak", "broken", how]:
                return await self._broken(request, how)
        return await super().handle(request)

    async def _stream(self, request: web.BaseRequest, seed: str, count: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(seed, count):
            await response.write(event)
            await asyncio.sleep(random.random() * 0.02)
        await response.write_eof()
        return response

    async def _broken(self, request: web.BaseRequest, how: str) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        match how:
            case "hang":
                await asyncio.Event().wait()
            case "status":
                return web.Response(status=500 + random.randrange(5), text="broken")
            case "garbage":
                transport.write(b"\x00\x01 this is no HTTP\r\n\r\n")
            case "half":
                transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf")
                await asyncio.sleep(0.01)
        transport.abort()
        return web.Response()


async def main(port: int, weights: int) -> None:
    model = SoakBackend(weights=weights, pace=lambda: random.random() * SLOWEST)
    runner = web.ServerRunner(web.Server(model.handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    print(f"listening on http://127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
