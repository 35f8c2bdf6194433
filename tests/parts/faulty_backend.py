"""A backend that we wrote, which speaks every protocol just enough to be found, and then does what a test orders.

`fault` is what becomes of requests for inference; questions are always answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from aiohttp import web


class Fault(Enum):
    """What becomes of a request for inference."""

    REFUSE = "refuse"  # 400 with a body of the backend's own
    OVERLOAD = "overload"  # 503 with Retry-After and a body of the backend's own
    RESET = "reset"  # the connection dies without an answer
    HANG = "hang"  # no answer


REFUSAL: Final = b'{"what": "the backend wrote, in its own words"}'

_QUESTIONS: Final[dict[str, Any]] = {
    "/v2": {"name": "faulty", "version": "1"},
    "/v2/health/ready": {},
    "/v2/models/m": {"name": "m", "versions": ["1"]},
    "/v2/models/m/config": {"name": "m", "max_batch_size": 8, "input": [{"name": "x", "dims": [1]}]},
    "/v1/models/m": {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]},
    "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "faulty"}]},
}


@dataclass(slots=True)
class FaultyServer:
    """waiting: requests for inference that have come."""

    fault: Fault = Fault.REFUSE
    waiting: int = 0
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def has_received(self, count: int) -> None:
        """Wait until so many requests for inference have come."""
        async with asyncio.timeout(20), self.arrived:
            await self.arrived.wait_for(lambda: self.waiting >= count)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            found = _QUESTIONS.get(request.path)
            return web.json_response(found, status=404 if found is None else 200)
        await request.read()
        async with self.arrived:
            self.waiting += 1
            self.arrived.notify_all()
        if self.fault is Fault.HANG:
            await asyncio.Event().wait()
        if self.fault is Fault.RESET:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        status, more = (400, {}) if self.fault is Fault.REFUSE else (503, {"Retry-After": "7"})
        return web.Response(status=status, body=REFUSAL, content_type="application/json", headers=more)


@asynccontextmanager
async def faulty_server() -> AsyncIterator[FaultyServer]:
    """The server on a free port of 127.0.0.1."""
    server = FaultyServer()
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


def v2(value: int) -> bytes:
    """A V2 call of one row."""
    return json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}]}).encode()
