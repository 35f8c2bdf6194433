"""Single requests that ride together at another path, and routes that have nothing to do with each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from tests.parts.forebay import Running, forebay

CONFIG = """\
batch: {mode: fixed, max_delay: 100ms, max_size: 2}
routes:
- id: single
  match: {path: /predict}
  protocol: json_map
  rows: true
  json_map: {item: /x, result: /y, batch_path: /predict_batch, items: /xs, results: /ys}
- {id: slow, match: {path: /slow}, protocol: json_map, rows: true, json_map: {items: /xs, results: /ys}}
- {id: quick, match: {path: /quick}, protocol: json_map, rows: true, json_map: {items: /xs, results: /ys}}
"""


@dataclass
class Server:
    """A server with a path for one and a path for many. targets: of the requests that came, in order."""

    batches: bool = True
    targets: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(status=404)
        self.targets.append(request.path_qs)
        body = json.loads(await request.read())
        if request.path == "/slow":
            self.arrived.set()
            await asyncio.Event().wait()
        if request.path == "/predict":
            return web.json_response({"y": 2 * body["x"]})
        if request.path == "/predict_batch" and not self.batches:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"ys": [2 * x for x in body["xs"]]})


@asynccontextmanager
async def started(server: Server, tmp_path: Path) -> AsyncIterator[Running]:
    config = tmp_path / "forebay.yaml"
    config.write_text(CONFIG)
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with forebay(f"http://127.0.0.1:{runner.addresses[0][1]}", config=config) as running:
            yield running
    finally:
        await runner.cleanup()


async def double(running: Running, x: int, target: str = "/predict") -> int:
    async with running.session.post(running.url + target, json={"x": x}) as answer:
        assert answer.status == 200
        return int((await answer.json())["y"])


async def ask(running: Running, path: str, *xs: int) -> list[int]:
    async with running.session.post(running.url + path, json={"xs": xs}) as answer:
        assert answer.status == 200
        return list((await answer.json())["ys"])


async def test_a_batch_has_the_query_of_its_members(tmp_path: Path) -> None:
    """What stands behind a path's question mark goes along to the path that takes many, and strangers' never mix."""
    server = Server()
    async with started(server, tmp_path) as running:
        asked = (double(running, x, f"/predict?key={key}") for key, x in ((1, 1), (2, 2), (1, 3), (2, 4)))
        assert await asyncio.gather(*asked) == [2, 4, 6, 8]
    assert sorted(server.targets) == ["/predict_batch?key=1", "/predict_batch?key=2"]


async def test_a_batch_path_that_is_not_served_is_given_up(tmp_path: Path) -> None:
    """A mistyped `batch_path` costs three requests, not one for every batch; and every caller has its answer."""
    server = Server(batches=False)
    async with started(server, tmp_path) as running:
        for pair in range(5):
            first = 2 * pair
            answers = list(await asyncio.gather(double(running, first), double(running, first + 1)))
            assert answers == [2 * first, 2 * first + 2]
    assert server.targets.count("/predict_batch") == 3
    assert server.targets.count("/predict") == 10


@pytest.mark.parametrize("target", ["/quick", "/predict"])
async def test_a_path_does_not_wait_for_another(tmp_path: Path, target: str) -> None:
    """Servers without models' names have as many queues as routes: one path that hangs holds up no other."""
    server = Server()
    async with started(server, tmp_path) as running:
        hanging = [asyncio.create_task(ask(running, "/slow", x)) for x in (1, 2)]
        await asyncio.wait_for(server.arrived.wait(), 20)
        async with asyncio.timeout(5):  # one row alone: a full batch may go out behind one that is under way
            assert (await double(running, 3) if target == "/predict" else await ask(running, "/quick", 3)) in (6, [6])
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
