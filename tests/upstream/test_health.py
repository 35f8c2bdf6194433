"""Promises about readiness: it follows the backend, down at once and up with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.upstream.connections import Connections, UpstreamError
from proxy.upstream.health import EVERY, PATH, Health
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.answering import answering
from tests.upstream.clock import Clock
from tests.upstream.connected import connected


@asynccontextmanager
async def watched(connections: Connections, clock: Clock) -> AsyncIterator[Health]:
    health = Health(connections, sleep=clock.sleep)
    health.start()
    await clock.idle()
    try:
        yield health
    finally:
        await health.aclose()


@pytest.mark.parametrize("status", [200, 204, 404, 405, 501, 401, 403])
async def test_a_backend_that_answers_is_ready(status: int) -> None:
    """A backend without a readiness path, or one that hides it, is ready as long as it answers."""
    with answering() as table:
        table[PATH] = (status, b"")
        async with connected(table.backend.url) as connections, watched(connections, Clock()) as health:
            assert health.not_ready is None
            assert repr(health) == f"<Health {table.backend.url} ready>"


@pytest.mark.parametrize("status", [400, 500, 502, 503])
async def test_a_backend_that_says_so_is_not_ready(status: int) -> None:
    """Triton's 400 and everybody's 5xx keep traffic away until the backend says otherwise, within a poll."""
    clock = Clock()
    with answering() as table:
        table[PATH] = (status, b"")
        async with connected(table.backend.url) as connections, watched(connections, clock) as health:
            why = f"the backend answers {status} to {PATH}"
            assert health.not_ready == why
            assert repr(health) == f"<Health {table.backend.url} not ready: {why}>"
            assert health.reachable
            table[PATH] = (200, b"")
            await clock.tick()
            assert health.not_ready is None
            assert clock.slept == [EVERY, EVERY]


async def test_nothing_is_ready_before_it_was_asked() -> None:
    """Traffic waits until the backend has answered once."""
    async with connected("http://127.0.0.1:1") as connections:
        assert Health(connections).not_ready == "the backend has not been asked yet"


async def test_a_backend_that_is_gone_is_known_at_once_and_its_return_too() -> None:
    """A caller's failed connection makes Forebay unready without waiting for a poll; watchers learn of both turns."""
    clock = Clock()
    turns: list[bool] = []
    with answering() as table:
        table[PATH] = (200, b"")
        async with connected(table.backend.url) as connections, watched(connections, clock) as health:
            health.watch(turns.append)
            await connections.exchange("GET", "/", ())
            assert turns == []
            port = table.backend.port
            table.backend.__exit__(None, None, None)
            for _ in range(2):
                with pytest.raises(UpstreamError):
                    await connections.exchange("GET", "/", ())
            assert health.not_ready == f"cannot connect to http://127.0.0.1:{port}: connection refused"
            assert not health.reachable
            assert turns == [False]
            await clock.tick()
            assert turns == [False]
            with RawBackend(answer_all, port=port):
                await clock.tick()
                assert health.not_ready is None
                assert turns == [False, True]


def answer_all(peer: Peer) -> None:
    while True:
        peer.request()
        peer.answer()


async def test_an_answer_cut_off_says_nothing_of_the_way_to_the_backend() -> None:
    """A request that crashes on its own does not make the whole backend unready."""

    def script(peer: Peer) -> None:
        if peer.request().line.startswith(b"POST"):
            peer.reset()
        peer.answer()
        script(peer)

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections, watched(connections, Clock()) as health:
            with pytest.raises(UpstreamError):
                await connections.exchange("POST", "/", (), b"x")
            assert health.reachable
            assert health.not_ready is None


async def test_a_fault_of_forebay_s_own_does_not_freeze_readiness(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If asking itself is broken, that is said and logged, and asking goes on."""
    clock = Clock()
    with answering() as table:
        table[PATH] = (200, b"")
        async with connected(table.backend.url) as connections:
            with monkeypatch.context() as broken:
                broken.setattr(connections, "ask", lambda *_, **__: 1 / 0)
                async with watched(connections, clock) as health:
                    assert health.not_ready == "Forebay failed to ask the backend, see its log"
                    assert "ZeroDivisionError" in caplog.text
                    broken.undo()
                    await clock.tick()
                    assert health.not_ready is None
    await asyncio.sleep(0)
