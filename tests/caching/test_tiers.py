"""Promises of the two tiers together, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from proxy.caching.entry import Entry
from proxy.caching.memory_store import MemoryStore
from proxy.caching.redis_store import RedisStore
from proxy.caching.tiers import Tiers
from proxy.terms import Fingerprint, Reason
from tests.parts.redis import KINDS, RedisServer, free_port, running

ROOM = 1024 * 1024
NOW = 1_700_000_000.0  # what the tiers call now; Redis itself keeps entries by its own clock
A, B, C = (Fingerprint(bytes([number] * 16), bytes([number + 128] * 16)) for number in range(3))


def entry(text: str, *, created: float = NOW, lives: float = 60.0) -> Entry:
    return Entry(text.encode(), ((b"Content-Type", b"text/plain"),), created, created + lives, 0.5)


@pytest.fixture(scope="module", params=KINDS)
def shared_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running(request.param) as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.command("FLUSHALL")
    return shared_server


@asynccontextmanager
async def tiers(url: str) -> AsyncIterator[Tiers]:
    """Leaving it waits until everything is written."""
    redis = RedisStore(url, proof_key=b"a key of the tests", wall=lambda: NOW)
    await redis.start()
    try:
        yield Tiers(MemoryStore(ROOM), redis)
    finally:
        await redis.close()


async def test_what_one_replica_stored_is_in_the_other_ones_memory_after_one_look_up(server: RedisServer) -> None:
    """The second look-up on any replica does not go to Redis at all."""
    async with tiers(server.url) as one:
        one.store(A, entry("a"))
        assert one.peek(A, NOW) == entry("a")
    async with tiers(server.url) as other:
        assert other.peek(A, NOW) is Reason.FIRST_SEEN
        assert await other.fetch([B, A], NOW) == [Reason.FIRST_SEEN, entry("a")]
        assert other.peek(A, NOW) == entry("a")
        assert other.peek(B, NOW) is Reason.FIRST_SEEN


async def test_an_entry_that_redis_still_holds_is_not_used_once_it_is_stale(server: RedisServer) -> None:
    """Clocks differ and Redis forgets late: what counts is the entry's own time, and the miss says why."""
    async with tiers(server.url) as one:
        one.store(A, entry("a", lives=60.0))
        one.store(B, entry("b", lives=61.0))
    async with tiers(server.url) as other:
        assert await other.fetch([A, B], NOW + 60.0) == [Reason.EXPIRED, entry("b", lives=61.0)]
        assert other.peek(A, NOW) is Reason.FIRST_SEEN  # it is not kept either


async def test_an_older_entry_of_redis_does_not_displace_a_newer_one_in_memory(server: RedisServer) -> None:
    """An answer that was refreshed during a look-up is what that look-up gives, and it stays."""
    older, newer = entry("older"), entry("newer", created=NOW + 1.0)
    async with tiers(server.url) as one:
        one.store(A, older)
    async with tiers(server.url) as other:
        other.memory.put(A, newer)
        assert await other.fetch([A], NOW + 2.0) == [newer]
        assert other.peek(A, NOW + 2.0) == newer
    async with tiers(server.url) as third:
        third.memory.put(A, entry("oldest", created=NOW - 1.0))
        assert await third.fetch([A], NOW) == [older]
        assert third.peek(A, NOW) == older


async def test_without_a_redis_that_answers_memory_goes_on() -> None:
    """A Redis that is down is told apart from a Redis that holds nothing, and memory serves as before."""
    async with tiers(f"redis://127.0.0.1:{free_port()}") as it:
        it.store(A, entry("a"))
        assert it.peek(A, NOW) == entry("a")
        assert await it.fetch([B, C], NOW) == [Reason.REDIS_DOWN, Reason.REDIS_DOWN]


async def test_no_redis_is_a_configuration_and_not_a_fault() -> None:
    """Without a Redis a miss is a miss."""
    it = Tiers(MemoryStore(ROOM))
    it.store(A, entry("a"))
    assert it.peek(A, NOW) == entry("a")
    assert it.peek(A, NOW + 60.0) is Reason.EXPIRED
    assert await it.fetch([B, C], NOW) == [Reason.FIRST_SEEN, Reason.FIRST_SEEN]


def test_repr_tells_the_truth() -> None:
    """A debugger shows both tiers."""
    memory = MemoryStore(ROOM)
    assert repr(Tiers(memory)) == f"<Tiers {memory!r}, no Redis>"
    redis = RedisStore("redis://cache", proof_key=b"key")
    assert repr(Tiers(memory, redis)) == f"<Tiers {memory!r}, {redis!r}>"
