"""A model server that we wrote, for what a real one cannot do on demand: exact moments and faults.

It speaks Open Inference V2 JSON. Every row's answer is a function of that row and of the model's
weights, so a mix-up of rows, callers or generations shows in the numbers. Faults are ordered by the
rows themselves: a row that holds one of `Fault`'s numbers makes its whole request fail that way, as a
poisoned row does in a real batch. `gate` holds requests back until a test lets them go. A load of
the model (`POST /v2/repository/models/double/load`) puts other weights in place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from aiohttp import web


class Fault(IntEnum):
    """Row values with a meaning of their own."""

    REFUSE = 40000001  # 400, quoting the request's id as Triton does
    CRASH = 40000002  # 500
    OVERLOAD = 40000003  # 503 with Retry-After
    RESET = 40000004  # the connection dies without an answer
    HANG = 40000005  # no answer until the caller gives up
    MISCOUNT = 40000006  # 200 with a row too few, if it does not ride alone
    GARBAGE = 40000007  # 200 with a body that is not JSON


@dataclass(slots=True)
class ModelServer:
    """One model, `double`: FP32 or INT64 rows [n, width] in `x`, rows [n, width] of 2·x + weights in `y`."""

    max_batch_size: int = 32
    instances: int = 1
    weights: int = 1
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    pace: Callable[[], float] | None = None  # seconds that the next request takes
    status: int = 200  # of an answer
    padding: int = 0  # bytes of white space behind an answer
    ready: bool = True
    served: int = 0  # rows
    executed: int = 0  # requests
    version: str = "1"
    quotes: str | None = None  # the id that answers quote in place of the request's own
    port: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def batch_sizes(self) -> list[int]:
        return [request["inputs"][0]["shape"][0] for request in self.requests]

    async def has_received(self, count: int) -> None:
        """Wait until `count` inference requests have come in all."""
        async with asyncio.timeout(20), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    def reload(self, weights: int) -> None:
        """Other weights in place: nothing shows it but the counters, which start again."""
        self.weights = weights
        self.served = self.executed = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path == "/v2/health/ready":
            return web.Response(status=200 if self.ready else 503)
        if path == "/v2/repository/index":
            return web.json_response([{"name": "double", "version": self.version, "state": "READY"}])
        if path == "/v2/repository/models/double/load":
            self.reload(self.weights + 1)
            return web.json_response({})
        if path == "/v2/models/double":
            return web.json_response({"name": "double", "versions": [self.version], "platform": "test"})
        if path == "/v2/models/double/config":
            return web.json_response(
                {
                    "name": "double",
                    "max_batch_size": self.max_batch_size,
                    "input": [{"name": "x", "data_type": "TYPE_INT64", "dims": [-1]}],
                    "instance_group": [{"name": "double", "kind": "KIND_CPU", "count": self.instances}],
                }
            )
        if path == "/v2/models/double/stats":
            stat = {"name": "double", "version": self.version, "inference_count": self.served}
            stat |= {
                "execution_count": self.executed,
                "inference_stats": {"success": {"count": self.executed, "ns": 0}},
            }
            return web.json_response({"model_stats": [stat]})
        if path.startswith("/v2/models/double") and path.endswith("/infer"):
            return await self.infer(request)
        if path.startswith("/v2/models/"):
            return web.json_response({"error": "Request for unknown model"}, status=404)
        received = sum([len(piece) async for piece in request.content.iter_any()])
        return web.json_response({"echo": request.path_qs, "method": request.method, "received": received})

    async def infer(self, request: web.BaseRequest) -> web.StreamResponse:
        call = json.loads(await request.read())
        async with self.arrived:
            self.requests.append(call)
            self.headers.append(dict(request.headers))
            self.arrived.notify_all()
        await self.gate.wait()
        if self.pace is not None:
            await asyncio.sleep(self.pace())
        tensor = call["inputs"][0]
        rows, width = tensor["shape"][0], tensor["shape"][1]
        if rows > self.max_batch_size > 0:
            return self._error(call, 400, f"batch-size must be <= {self.max_batch_size}")
        data = tensor["data"]
        if data and isinstance(data[0], list):
            data = [value for row in data for value in row]
        for fault in Fault:
            if fault in data:
                if (answer := await self._fail(request, call, fault, rows)) is not None:
                    return answer
                rows -= 1
                break
        self.served += rows
        self.executed += 1
        values = [2 * value + self.weights for value in data[: rows * width]]
        body: dict[str, Any] = {"model_name": "double", "model_version": self.version}
        if "id" in call:
            body["id"] = call["id"] if self.quotes is None else self.quotes
        body["outputs"] = [{"name": "y", "datatype": tensor["datatype"], "shape": [rows, width], "data": values}]
        text = json.dumps(body) + " " * self.padding
        return web.Response(text=text, status=self.status, headers=self.answer_headers, content_type="application/json")

    async def _fail(
        self, request: web.BaseRequest, call: dict[str, Any], fault: Fault, rows: int
    ) -> web.StreamResponse | None:
        if fault is Fault.REFUSE:
            return self._error(call, 400, "poisoned row")
        if fault is Fault.CRASH:
            return self._error(call, 500, "the model raised")
        if fault is Fault.OVERLOAD:
            return web.json_response({"error": "busy"}, status=503, headers={"Retry-After": "7"})
        if fault is Fault.GARBAGE:
            self.executed += 1
            return web.Response(body=b"\x00not json", content_type="application/json")
        if fault is Fault.MISCOUNT and rows > 1:
            return None
        if fault is Fault.RESET:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        return self._error(call, 400, "a miscount that rode alone")

    @staticmethod
    def _error(call: dict[str, Any], status: int, text: str) -> web.Response:
        quoted = f"[request id: {call['id']}] " if "id" in call else ""
        return web.json_response({"error": quoted + text}, status=status)


@asynccontextmanager
async def model_server(**facts: Any) -> AsyncIterator[ModelServer]:
    """A `ModelServer` on a free port of loopback."""
    model = ModelServer(**facts)
    runner = web.ServerRunner(web.Server(model.handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.port = runner.addresses[0][1]
    try:
        yield model
    finally:
        model.gate.set()
        await runner.cleanup()
