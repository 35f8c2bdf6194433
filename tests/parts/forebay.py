"""Forebay itself, whole, in the test's own event loop and on real sockets, and what a test asks of it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
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

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for what Forebay's own tasks bring about, turn by turn of the loop; no guess at how long it takes."""
        async with asyncio.timeout(20):
            while not happened():  # noqa: ASYNC110  # state of the program under test has no event to wait for
                await asyncio.sleep(0.001)

    async def knows(self, model: str, codec: str = "v2") -> None:
        """The backend has said what `model` is, to this codec: from then on its calls are understood."""
        await self.found(codec)
        (one,) = (one for one in self.sidecar.pipeline.codecs if one.name == codec)
        await self.until(lambda: self.sidecar.models.get(one, model) is not None)

    async def found(self, codec: str = "v2") -> None:
        """The backend has said that it speaks this codec's protocol, or need not say it."""
        (one,) = (one for one in self.sidecar.pipeline.codecs if one.name == codec)
        trusted = any(route.trusted and one in route.codecs for route in self.sidecar.parts.values())
        await self.until(lambda: trusted or self.sidecar.backend.speaks(one))

    async def queued(self, items: int) -> None:
        """So many items wait for a batch."""
        await self.until(lambda: self.sidecar.metrics.route("default").queue_depth.value == items)

    async def coalescing(self, callers: int) -> None:
        """So many callers wait for flights, leaders included."""
        flights = self.sidecar.pipeline.answers.flights
        await self.until(lambda: flights.waiting == callers)

    async def infer(
        self, model: str, call: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """One V2 call through Forebay: status, the body (read, where it is JSON), headers."""
        async with self.session.post(f"{self.url}/v2/models/{model}/infer", json=call, headers=headers) as answer:
            body = await answer.read()
            return answer.status, json.loads(body) if body[:1] == b"{" else body, answer.headers


class _Faults(logging.Handler):
    """What was logged as an error while it listens: an exception of Forebay's own, also one that it made good."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@contextmanager
def _without_faults(*, faulty: bool) -> Iterator[None]:
    faults = _Faults()
    logging.getLogger().addHandler(faults)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(faults)
    assert faulty == bool(faults.found), "\n".join(faults.found) or "nothing was logged of a fault that was put in"


@asynccontextmanager
async def forebay(
    upstream: str,
    *,
    config: Path | None = None,
    unix_time: Callable[[], float] = time.time,
    faulty: bool = False,
    **flags: str,
) -> AsyncIterator[Running]:
    """Forebay before `upstream` on free ports; `flags` by dotted name with `__` for the dot.

    faulty: the test puts in a fault, which Forebay must log as an error; else nothing may be.
    """
    said = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load(config, {}, {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "upstream": upstream} | said)
    with _without_faults(faulty=faulty):
        async with (
            Sidecar(settings, unix_time=unix_time) as sidecar,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            yield Running(sidecar, session)
