"""Promises of the admin listener, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from proxy.admin import Admin, Watched

JSON = {"Content-Type": "application/json"}


@dataclass
class World:
    """What an admin listener looks at, set by hand."""

    not_ready: str | None = None
    in_flight: int = 0
    last_call: bool = False
    drains: list[None] = field(default_factory=list)

    async def metrics(self) -> bytes:
        return b"# HELP x y\n"

    def watched(self) -> Watched:
        return Watched(
            metrics=self.metrics,
            not_ready=lambda: self.not_ready,
            draining=lambda: bool(self.drains),
            last_call=lambda: self.last_call,
            in_flight=lambda: self.in_flight,
            drain=lambda: self.drains.append(None),
            config=lambda: {"listen": "127.0.0.1:8080"},
        )


@asynccontextmanager
async def admin(
    world: World, *, host: str = "127.0.0.1", token: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    runner = web.AppRunner(Admin(world.watched(), host=host, token=token).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
        yield session
    await runner.cleanup()


async def ask(session: aiohttp.ClientSession, method: str, path: str, **how: object) -> tuple[int, str]:
    async with session.request(method, path, **how) as answer:  # type: ignore[arg-type]  # passed through
        return answer.status, await answer.text()


async def test_readiness_says_why_not() -> None:
    """An SRE who asks why no traffic comes reads the reason in the answer."""
    world = World(not_ready="the backend does not answer")
    async with admin(world) as session:
        assert await ask(session, "GET", "/readyz") == (503, "the backend does not answer\n")
        world.not_ready = None
        assert await ask(session, "GET", "/readyz") == (200, "ready\n")


async def test_liveness_and_startup_do_not_follow_the_backend() -> None:
    """A dead backend never gets Forebay restarted, and a sidecar may start before its backend."""
    async with admin(World(not_ready="the backend does not answer")) as session:
        assert (await ask(session, "GET", "/livez"))[0] == 200
        assert (await ask(session, "GET", "/startupz"))[0] == 200


async def test_drained_waits_for_what_is_in_flight() -> None:
    """`/drained` is 503 until draining has begun, the last request is answered and none can follow, then 200."""
    world = World(in_flight=2)
    async with admin(world) as session:
        assert await ask(session, "GET", "/drained") == (503, "not draining\n")
        assert (await ask(session, "POST", "/drain", headers=JSON))[0] == 202
        assert await ask(session, "GET", "/drained") == (503, "2 in flight\n")
        world.in_flight, world.last_call = 0, True
        assert await ask(session, "GET", "/drained") == (503, "idle connections may still bring a request\n")
        world.last_call = False
        assert (await ask(session, "GET", "/drained"))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        JSON | {"Host": "evil.example:9901"},
        JSON | {"Host": ""},
        JSON | {"Host": "["},
    ],
)
async def test_a_web_page_cannot_drain(headers: dict[str, str]) -> None:
    """A form post across origins and a rebound DNS name are refused on loopback."""
    world = World()
    async with admin(world) as session:
        assert (await ask(session, "POST", "/drain", headers=headers))[0] == 403
    assert not world.drains


@pytest.mark.parametrize("name", ["localhost:1", "127.0.0.1", "[::1]:9901", "[::1]"])
async def test_loopback_names_may_drain(name: str) -> None:
    """A preStop hook in the same pod reaches `/drain` by any loopback name."""
    world = World()
    async with admin(world) as session:
        assert (await ask(session, "POST", "/drain", headers=JSON | {"Host": name}))[0] == 202
    assert world.drains


async def test_other_addresses_need_the_token() -> None:
    """Off loopback nothing changes without a token, and only the right one counts."""
    world = World()
    async with admin(world, host="0.0.0.0") as session:
        status, text = await ask(session, "POST", "/drain", headers=JSON)
        assert status == 403
        assert "admin_token" in text
    async with admin(world, host="0.0.0.0", token="s3cret") as session:
        assert (await ask(session, "POST", "/drain", headers=JSON | {"Authorization": "Bearer wrong"}))[0] == 403
        assert (await ask(session, "POST", "/drain", headers=JSON | {"Authorization": "Bearer s3cret"}))[0] == 202
    assert len(world.drains) == 1


async def test_metrics_and_config_are_served() -> None:
    """Prometheus gets its text format, a person gets readable JSON."""
    async with admin(World()) as session:
        async with session.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert await answer.read() == b"# HELP x y\n"
        assert (await ask(session, "GET", "/config"))[1] == '{\n  "listen": "127.0.0.1:8080"\n}\n'
