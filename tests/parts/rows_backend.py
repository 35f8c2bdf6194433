"""A V1 predict server that we wrote: models whose rows are independent, and models of every kind whose rows are not.

A row is answered with a function of itself and, in some models, of what it came with, so that it shows whether it was
alone. Which model does what stands in `MODELS`. `gate` holds requests of several rows back until a test lets them go.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Rows = list[float]

MODELS: dict[str, Callable[[Rows], Any]] = {
    "independent": lambda rows: [row * row + 1 for row in rows],
    "rounding": lambda rows: [row * row + 1e-7 * len(rows) for row in rows],  # as arithmetic of another batch may
    "centred": lambda rows: [row - sum(rows) / len(rows) for row in rows],
    "numbered": lambda rows: [[row, place] for place, row in enumerate(rows)],
    "reversed": lambda rows: [row * row for row in reversed(rows)],
    "constant": lambda _: ["one", "two", "three"],
    "blind": lambda rows: ["same" for _ in rows],
    "alarm": lambda rows: [row < 0 for row in reversed(rows)],
    "hanging": lambda rows: [row * row for row in rows],
    "refusing": lambda rows: [row * row for row in rows],
    "overloaded": lambda rows: [row * row for row in rows],
    "expired": lambda rows: [row * row for row in rows],
}


@dataclass(slots=True)
class RowsServer:
    """calls: for each request that came, its model and its rows.

    version: what the server says of every model; None: nothing. replaced: models that do something else than `MODELS`.
    """

    calls: list[tuple[str, Rows]] = field(default_factory=list)
    version: str | None = "1"
    replaced: dict[str, Callable[[Rows], Any]] = field(default_factory=dict)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sizes(self, model: str) -> list[int]:
        """How many rows each request for a model had."""
        return [len(rows) for name, rows in self.calls if name == model]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        name, _, verb = request.path.removeprefix("/v1/models/").partition(":")
        if not request.path.startswith("/v1/models/") or name not in MODELS:
            return web.json_response({"error": f"Model {name} not found"}, status=404)
        if request.method == "GET":
            if self.version is None:
                return web.json_response({"name": name, "ready": True})
            fine = {"error_code": "OK", "error_message": ""}
            status = {"version": self.version, "state": "AVAILABLE", "status": fine}
            return web.json_response({"model_version_status": [status]})
        assert verb == "predict", verb
        body = json.loads(await request.read())
        rows: Rows = body.get("instances") or body["inputs"]
        async with self.arrived:
            self.calls.append((name, rows))
            self.arrived.notify_all()
        if len(rows) > 1:
            await self.gate.wait()
            if name == "hanging":
                await asyncio.Event().wait()
            if name == "refusing":
                return web.json_response({"error": "one at a time"}, status=400)
            if name == "overloaded":
                return web.json_response({"error": "too much"}, status=503)
            if name == "expired":
                return web.json_response({"error": "who are you?"}, status=401)
        return web.json_response(
            {"predictions" if "instances" in body else "outputs": (self.replaced.get(name) or MODELS[name])(rows)}
        )


@asynccontextmanager
async def rows_server() -> AsyncIterator[RowsServer]:
    """The server on a free port of 127.0.0.1."""
    model = RowsServer()
    runner = web.ServerRunner(web.Server(model.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.port = runner.addresses[0][1]
    try:
        yield model
    finally:
        model.gate.set()
        await runner.cleanup()
