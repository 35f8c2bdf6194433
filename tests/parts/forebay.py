"""Forebay itself, whole, in the test's own event loop and on real sockets, and what a test asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from proxy.config import load
from proxy.measure.scrape import Scrape
from proxy.sidecar import Sidecar


class Running:
    """A Forebay that serves: `url` and `admin`, a client session, and its own metrics read back."""

    def __init__(self, sidecar: Sidecar, session: aiohttp.ClientSession) -> None:
        self.sidecar = sidecar
        self.session = session
        self.url = f"http://{sidecar.data_address}"
        self.admin = f"http://{sidecar.admin_address}"

    async def scrape(self) -> Scrape:
        async with self.session.get(f"{self.admin}/metrics") as answer:
            return Scrape(await answer.text())

    async def knows(self, model: str) -> None:
        """Wait until the backend has said what `model` is: from then on its calls are understood."""
        while self.sidecar.models.get(model) is None:
            await asyncio.sleep(0.002)  # a poll of another task's progress, no guess at how long it takes

    async def infer(
        self, model: str, call: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """One V2 call through Forebay: status, the body as JSON, headers."""
        async with self.session.post(f"{self.url}/v2/models/{model}/infer", json=call, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None), answer.headers


@asynccontextmanager
async def forebay(upstream: str, *, config: Path | None = None, **flags: str) -> AsyncIterator[Running]:
    """Forebay before `upstream` on free ports; `flags` by dotted name with `__` for the dot."""
    said = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load(config, {}, {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "upstream": upstream} | said)
    async with (
        Sidecar(settings) as sidecar,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Running(sidecar, session)
