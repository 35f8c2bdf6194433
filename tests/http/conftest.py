"""Real servers on loopback, on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import uvloop

from proxy.http.connection import Handler
from proxy.http.limits import Limits
from proxy.http.server import HttpServer
from proxy.terms import Reason
from tests.http.wire import Wire


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test here runs once on each loop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass(slots=True)
class Served:
    """A running server, where it listens, and what it refused before a handler saw it."""

    server: HttpServer
    address: tuple[str, int]
    refused: list[Reason]
    wires: list[Wire]

    async def connect(self, *, receive_buffer: int | None = None) -> Wire:
        wire = await Wire.connect(self.address, receive_buffer=receive_buffer)
        self.wires.append(wire)
        return wire


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    started: list[Served] = []

    async def start(handler: Handler, limits: Limits | None = None, *, keepalive: float = 75.0) -> Served:
        refused: list[Reason] = []
        server = HttpServer(handler, limits or Limits(), keepalive=keepalive, refused=refused.append)
        served = Served(server, await server.listen("127.0.0.1", 0), refused, [])
        started.append(served)
        return served

    yield start
    for served in started:
        await served.server.close()
        for wire in served.wires:
            wire.close()
