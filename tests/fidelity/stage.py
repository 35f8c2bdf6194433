"""A backend and a Forebay before it, on an event loop of their own that runs only while somebody asks them something.

Hypothesis calls plain functions: `Stage.run` is how they ask. Both stay up from one example to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import aiohttp
import uvloop

from tests.parts.forebay import Running, forebay

T = TypeVar("T")
Fields = Mapping[str, str]
JSON: Fields = {"Content-Type": "application/json"}
PATIENCE = 60  # seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. hit: must it be a hit when it is asked again after a 200? None: it may."""

    path: str
    body: bytes
    fields: tuple[tuple[str, str], ...] = tuple(JSON.items())
    hit: bool | None = True


class Answer(NamedTuple):
    """status 0: none came, or the connection ended before it did."""

    status: int
    fields: Fields
    body: bytes

    @property
    def cache(self) -> str:
        return self.fields.get("Cache-Status", "")


class Stage:
    """upstream: where the backend is asked directly."""

    def __init__(self, runner: asyncio.Runner, running: Running, upstream: str, session: aiohttp.ClientSession) -> None:
        self._runner = runner
        self.running = running
        self._upstream = upstream
        self._session = session

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def patiently() -> T:
            async with asyncio.timeout(PATIENCE):
                return await work

        return self._runner.run(patiently())

    async def direct(self, asked: Asked) -> Answer:
        return await self._ask(self._upstream, asked)

    async def through(self, asked: Asked) -> Answer:
        return await self._ask(self.running.url, asked)

    async def _ask(self, url: str, asked: Asked) -> Answer:
        try:
            async with self._session.post(url + asked.path, data=asked.body, headers=list(asked.fields)) as answer:
                return Answer(answer.status, answer.headers, await answer.read())
        except aiohttp.ClientError:
            return Answer(0, {}, b"")


@contextmanager
def staged(
    backend: Callable[[], AbstractAsyncContextManager[str]], ready: Callable[[Running], Any], config: Path | None = None
) -> Iterator[Stage]:
    """backend: gives the address of a server that is up. ready: waits until Forebay knows what it must know of it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Stage]:
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            backend() as upstream,
            forebay(upstream, config=config) as running,
            aiohttp.ClientSession(connector=connector, headers={"Accept-Encoding": "identity"}) as session,
        ):
            await ready(running)
            yield Stage(runner, running, upstream, session)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        stage = runner.run(stack.enter_async_context(opened()))
        try:
            yield stage
        finally:
            runner.run(stack.aclose())
