"""Promises about a Redis that replicas share: what one computed the other finds, and no request suffers from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import xxhash

from proxy.measure.scrape import Scrape
from tests.e2e.calls import answer, call, data
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import ModelServer
from tests.parts.redis import KINDS, RedisServer, running

REVISION = "routes: [{id: known, match: {path: '*'}, model: {revision: '%s'}}]\n"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str) -> Iterator[RedisServer]:
    """An empty server of the test's own, which it may kill, stop and fill."""
    with running(kind) as started:
        yield started


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration that says which weights these are, so that replicas share what they computed."""
    file = tmp_path / "forebay.yaml"
    file.write_text(REVISION % "1")
    return file


@asynccontextmanager
async def replica(backend: ModelServer, server: RedisServer, config: Path | None = None) -> AsyncIterator[Running]:
    """One more Forebay before the same backend, and with the same Redis."""
    async with forebay(backend.url, config=config, redis=server.url) as one:
        await one.knows("double")
        yield one


async def asked(one: Running, *numbers: int) -> str:
    """Ask for rows, be sure of the answer, and say what `Cache-Status` said."""
    async with asyncio.timeout(20):
        status, body, headers = await one.infer("double", call(*numbers))
    assert status == 200, body
    assert data(body) == answer(*numbers)
    return headers["Cache-Status"].removeprefix("Forebay; ")


async def written(one: Running, server: RedisServer, entries: int) -> None:
    """So many entries lie in Redis."""
    await one.until(lambda: server.command("DBSIZE") == entries)


async def up(one: Running, so: bool = True) -> None:
    """Forebay has noticed that Redis answers, or that it does not."""
    await one.until(lambda: one.sidecar.redis is not None and one.sidecar.redis.up is so)
    assert (await one.scrape()).total("forebay_redis_up") == int(so)


def looked_up(scrape: Scrape, result: str) -> int:
    return int(scrape.total("forebay_cache_lookup_duration_seconds_count", tier="redis", result=result))


async def test_a_replica_finds_what_another_computed(
    backend: ModelServer, server: RedisServer, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a configured model revision the second Forebay answers from Redis, with the age that the answer has."""
    async with replica(backend, server, config) as first, replica(backend, server, config) as second:
        assert await asked(first, 1, 2) == "fwd=miss; stored; detail=first_seen"
        await written(first, server, 2)
        backend.gate.clear()  # nothing below asks the backend
        assert (await asked(second, 2, 1)).startswith("hit; ttl=")
        assert (await asked(second, 1)).startswith("hit; ttl=")
        scrape = await second.scrape()
        assert looked_up(scrape, "hit") == 2
        assert scrape.total("forebay_cache_items_total", result="redis_hit") == 2
        assert scrape.total("forebay_cache_items_total", result="memory_hit") == 1  # it keeps what it found
        assert scrape.total("forebay_cache_saved_upstream_seconds_total") > 0
    assert backend.batch_sizes == [2]
    assert "no model.revision" not in caplog.text


async def test_only_what_nobody_has_travels(backend: ModelServer, server: RedisServer, config: Path) -> None:
    """Rows in memory, rows in Redis and new ones make one answer; the backend sees the new ones."""
    async with replica(backend, server, config) as first, replica(backend, server, config) as second:
        await asked(first, 1, 2, 3)
        await written(first, server, 3)
        await asked(second, 2)
        assert await asked(second, 5, 1, 4, 2, 5, 3) == "fwd=partial; stored; detail=first_seen"
        await written(second, server, 5)
        scrape = await second.scrape()
        counted = {
            result: scrape.total("forebay_cache_items_total", result=result)
            for result in ("memory_hit", "redis_hit", "miss", "coalesced")
        }
        assert counted == {"memory_hit": 1, "redis_hit": 3, "miss": 2, "coalesced": 1}
        assert (await asked(first, 4, 5)).startswith("hit")
    assert backend.batch_sizes == [3, 2]


async def test_entries_leave_redis_when_they_expire(backend: ModelServer, server: RedisServer, config: Path) -> None:
    """Redis itself forgets an answer at the end of its life, which is that of the answer in memory."""
    async with replica(backend, server, config) as one:
        await asked(one, 1)
        await written(one, server, 1)
        ttl = int((await asked(one, 1)).rpartition("=")[2])
        (key,) = server.command("KEYS", "*")
        assert (ttl - 2) * 1000 < server.command("PTTL", key) < (ttl + 2) * 1000
    assert key.startswith(b"forebay:")


async def test_a_miss_says_what_memory_knew(backend: ModelServer, server: RedisServer) -> None:
    """An answer that has expired here is called expired, whether Redis still has it or not."""
    later = 0.0
    async with forebay(backend.url, redis=server.url, unix_time=lambda: 1_900_000_000.0 + later) as one:
        await one.knows("double")
        await up(one)
        for forgotten in (False, True):
            await asked(one, 1)
            await written(one, server, 1)
            if forgotten:
                server.command("FLUSHALL")
            later += 4000.0
            assert await asked(one, 1) == "fwd=stale; stored; detail=expired"


async def test_without_a_revision_replicas_do_not_share(
    backend: ModelServer, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the operator's word that the weights are the same a process asks anew, and its log says why at once."""
    async with replica(backend, server) as first, replica(backend, server) as second:
        await asked(first, 1)
        await written(first, server, 1)
        assert await asked(second, 1) == "fwd=miss; stored; detail=first_seen"
        await written(second, server, 2)
    assert "read by this process alone, for they have no model.revision: default" in caplog.text


async def test_another_revision_is_another_model(
    backend: ModelServer, server: RedisServer, config: Path, tmp_path: Path
) -> None:
    """Whoever rolls out new weights changes the revision, and no replica is told what the old ones said."""
    newer = tmp_path / "newer.yaml"
    newer.write_text(REVISION % "2")
    async with replica(backend, server, config) as first, replica(backend, server, newer) as second:
        await asked(first, 1)
        await written(first, server, 1)
        assert await asked(second, 1) == "fwd=miss; stored; detail=first_seen"


async def test_a_reload_is_not_undone_by_redis(backend: ModelServer, server: RedisServer, config: Path) -> None:
    """What a replica saw reloaded it does not take from Redis any more, though the revision stayed the same."""
    async with replica(backend, server, config) as one:
        await asked(one, 1)
        await written(one, server, 1)
        backend.reload(weights=5)
        await one.sidecar.models.poll()
        _, body, headers = await one.infer("double", call(1))
        assert "hit" not in headers["Cache-Status"]
        assert data(body) == answer(1, weights=5)


async def test_a_collision_in_redis_is_a_miss(
    backend: ModelServer, server: RedisServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another item's entry under one's own address is never taken for the answer."""
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda _: bytes(16))
    async with replica(backend, server, config) as first, replica(backend, server, config) as second:
        await asked(first, 1)
        await written(first, server, 1)
        assert await asked(second, 2) == "fwd=miss; stored; detail=first_seen"
        assert looked_up(await second.scrape(), "corrupt") == 1


async def test_a_route_that_is_off_writes_nothing(backend: ModelServer, server: RedisServer, tmp_path: Path) -> None:
    """Neither `mode: off` nor `cache: {mode: off}` reads or writes in Redis."""
    file = tmp_path / "off.yaml"
    file.write_text("routes: [{id: off, match: {path: '*/versions/1/*'}, mode: off}]\ncache: {mode: off}\n")
    async with replica(backend, server, file) as one:
        for path in ("double", "double/versions/1"):
            status, body, _ = await one.infer(path, call(1))
            assert (status, data(body)) == (200, answer(1))
        assert looked_up(await one.scrape(), "miss") == 0
        assert server.command("DBSIZE") == 0


async def test_redis_may_come_later(backend: ModelServer, kind: str, config: Path) -> None:
    """Forebay starts and serves without its Redis, says so, and uses it from the moment that it is there."""
    with RedisServer(kind).reserve() as server:
        async with replica(backend, server, config) as one:
            await up(one, False)
            assert await asked(one, 1) == "fwd=miss; stored; detail=redis_down"
            assert (await asked(one, 1)).startswith("hit")
            scrape = await one.scrape()
            assert looked_up(scrape, "skipped") == 1
            assert scrape.total("forebay_redis_writes_total", result="dropped") == 1
            assert scrape.total("forebay_decisions_total", reason="redis_down") == 1
            server.start()
            await up(one)
            assert await asked(one, 2) == "fwd=miss; stored; detail=first_seen"
            await written(one, server, 1)


class Load:
    """Callers that never pause; each answer is looked at. `answers`: how many there were."""

    def __init__(self, one: Running, callers: int = 16) -> None:
        self.answers = 0
        self._one = one
        self._next = 1000
        self._callers = [asyncio.create_task(self._call()) for _ in range(callers)]

    async def _call(self) -> None:
        while True:
            self._next += 1
            await asked(self._one, self._next, self._next - 20, 7)
            self.answers += 1

    async def go_on(self, answers: int = 50) -> None:
        """So many more answers, without one that failed."""
        enough = self.answers + answers
        await self._one.until(lambda: self.answers >= enough or any(caller.done() for caller in self._callers))
        for caller in self._callers:
            if caller.done():
                caller.result()

    async def end(self) -> None:
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)


async def test_redis_killed_under_load_costs_no_request(
    backend: ModelServer, server: RedisServer, config: Path
) -> None:
    """Redis crashes, comes back empty and crashes again: every caller gets its answer all the while."""
    async with replica(backend, server, config) as one:
        await up(one)
        load = Load(one)
        await load.go_on()
        for _ in range(2):
            server.kill()
            await up(one, False)
            await load.go_on()
            server.start()
            await up(one)
            await load.go_on()
            await one.until(lambda: server.command("DBSIZE") > 0)
        await load.end()
        scrape = await one.scrape()
        assert scrape.total("forebay_requests_total", outcome="upstream_error") == 0
        assert looked_up(scrape, "skipped") > 0
        assert scrape.total("forebay_redis_writes_total", result="stored") > 0


async def test_redis_that_hangs_costs_each_look_up_under_way_100_ms_and_later_ones_nothing(
    backend: ModelServer, server: RedisServer, config: Path
) -> None:
    """Stopped, not dead: who asks at that moment waits a tenth of a second, who comes later not at all."""
    async with replica(backend, server, config) as one:
        await up(one)
        await asked(one, 1)
        await written(one, server, 1)
        server.hang()
        under_way = [asyncio.create_task(asked(one, number)) for number in range(10, 20)]
        for caller in under_way:
            assert await caller == "fwd=miss; stored; detail=redis_down"
        scrape = await one.scrape()
        assert scrape.total("forebay_redis_up") == 0
        of_redis = {"tier": "redis", "result": "timeout"}
        assert looked_up(scrape, "timeout") == 10
        assert scrape.total("forebay_cache_lookup_duration_seconds_bucket", le="0.15", **of_redis) == 10
        for number in range(20, 40):
            assert await asked(one, number) == "fwd=miss; stored; detail=redis_down"
        scrape = await one.scrape()
        assert looked_up(scrape, "timeout") == 10
        assert looked_up(scrape, "skipped") == 20
        assert scrape.total("forebay_cache_lookup_duration_seconds_sum", tier="redis", result="skipped") == 0
        server.go_on()
        await up(one)
        assert await asked(one, 50) == "fwd=miss; stored; detail=first_seen"


async def test_redis_that_hangs_under_load_costs_no_request(
    backend: ModelServer, server: RedisServer, config: Path
) -> None:
    """Stopped and let go again while callers never pause: every answer comes, and is right."""
    async with replica(backend, server, config) as one:
        await up(one)
        load = Load(one)
        await load.go_on()
        server.hang()
        await up(one, False)
        await load.go_on()
        server.go_on()
        await up(one)
        await load.go_on()
        await load.end()


async def test_a_full_redis_still_answers(backend: ModelServer, server: RedisServer, config: Path) -> None:
    """`maxmemory` reached and nothing may be evicted: writes are refused and counted, hits and requests go on."""
    async with replica(backend, server, config) as first, replica(backend, server, config) as second:
        await up(first)
        await asked(first, 1)
        await written(first, server, 1)
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.command("CONFIG", "SET", "maxmemory", "1")
        for number in (2, 3):
            assert await asked(first, number) == "fwd=miss; stored; detail=first_seen"
        await first.until(lambda: "<Writes 0 waiting, 0/" in repr(first.sidecar.redis))
        scrape = await first.scrape()
        assert scrape.total("forebay_redis_writes_total", result="full") == 2
        assert scrape.total("forebay_redis_up") == 1
        assert (await asked(first, 2, 3)).startswith("hit")
        assert (await asked(second, 1)).startswith("hit")
        server.command("CONFIG", "SET", "maxmemory", "0")
        await asked(first, 4)
        await written(first, server, 2)


async def test_a_caller_that_leaves_during_its_look_up_costs_no_connection(
    backend: ModelServer, server: RedisServer, config: Path
) -> None:
    """Cancelled while Redis is being asked: the others' look-ups are answered, on the connections that there were."""

    def connections() -> set[bytes]:
        """Those on which look-ups were sent, by their numbers."""
        clients = server.command("CLIENT", "LIST").splitlines()
        return {client.split()[0] for client in clients if b" cmd=mget " in client}

    async with replica(backend, server, config) as one, replica(backend, server, config) as other:
        await asked(other, *range(30))
        await written(other, server, 30)
        for first in range(0, 30, 3):
            await up(one)
            assert (await asked(one, first)).startswith("hit")
            before = connections()
            server.hang()
            leaver = asyncio.create_task(one.infer("double", call(first + 1)))
            await one.until(lambda: one.sidecar.in_flight == 1)
            stays = asyncio.create_task(asked(one, first + 2))
            await one.until(lambda: one.sidecar.in_flight == 2)
            leaver.cancel()
            await one.until(lambda: one.sidecar.in_flight == 1)
            server.go_on()
            said = await stays
            if one.sidecar.redis is not None and one.sidecar.redis.up:
                assert said.startswith("hit")
                assert before <= connections()
                return
        pytest.fail("this machine never did all that before Redis counted as down")
