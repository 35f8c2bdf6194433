"""Promises of the shared tier, each on a real Valkey and on a real Redis."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from proxy.caching.entry import Entry, encode
from proxy.caching.look_ups import LookUp
from proxy.caching.redis_store import MOST_KEYS, WATCH_EVERY, RedisStore
from proxy.caching.writes import Store
from proxy.terms import Fingerprint, Reason
from tests.caching.opened_store import DOWN, PROOF_KEY, Opened, be_patient, entry, fingerprint, key, opened
from tests.parts.availability import missing
from tests.parts.redis import KINDS, RedisServer, free_port, running

PROMISED = 0.100  # seconds that a look-up takes at most


@pytest.fixture
def in_time() -> None:
    """What a test asks for that is about the promised 100 ms themselves."""


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "in_time" not in request.fixturenames:
        be_patient(monkeypatch)


@pytest.fixture(scope="module", params=KINDS)
def shared_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running(request.param) as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """An empty server that the test leaves running."""
    shared_server.command("FLUSHALL")
    shared_server.command("CONFIG", "RESETSTAT")
    return shared_server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """For tests that start, kill and stop a server of their own."""
    return str(request.param)


def calls(server: RedisServer, command: str) -> int:
    """How often the server ran this command."""
    return int(server.command("INFO", "commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def connections(server: RedisServer) -> int:
    """How many connections were made to it in all, this one included."""
    return int(server.command("INFO", "stats")["total_connections_received"])


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl") or missing("openssl", "apt-get install openssl")
    certificate, secret = directory / "server.pem", directory / "server.key"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(secret), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, secret


# What a working server gives


async def test_what_one_replica_stores_another_finds(server: RedisServer) -> None:
    """Body, header fields, times and cost come back as they were stored, large or small."""
    large = "a text that repeats itself, " * 10_000
    async with opened(server.url) as one, opened(server.url) as other:
        stored = entry("small"), entry(large)
        await one.put(1, stored[0])
        await one.put(2, stored[1])
        assert await other.get(1, 3, 2) == [stored[0], Reason.FIRST_SEEN, stored[1]]
        assert one.seen.stores == {Store.STORED: 2}
        assert other.seen.lookups == {LookUp.HIT: 2, LookUp.MISS: 1}
        assert one.seen.ups == other.seen.ups == [True]


async def test_look_ups_of_one_turn_of_the_loop_are_one_command(server: RedisServer) -> None:
    """64 callers that ask at once cost Redis one MGET, and each gets its own answer."""
    async with opened(server.url) as it:
        for number in range(0, 64, 2):
            it.store.put(fingerprint(number), entry(f"answer {number}"))
        await it.seen.until(lambda: it.seen.stores.total() == 32)
        server.command("CONFIG", "RESETSTAT")
        answers = await asyncio.gather(*(it.get(number) for number in range(64)))
        assert calls(server, "mget") == 1
        for number, (answer,) in enumerate(answers):
            found = answer.body if isinstance(answer, Entry) else answer
            assert found == (Reason.FIRST_SEEN if number % 2 else f"answer {number}".encode())


async def test_a_call_with_very_many_items_is_split(server: RedisServer) -> None:
    """No single command grows without bound, and the answers keep the caller's order."""
    count = 2 * MOST_KEYS + 1
    async with opened(server.url) as it:
        for number in range(0, count, 2):
            it.store.put(fingerprint(number), entry(f"answer {number}"))
        await it.seen.until(lambda: it.seen.stores.total() == MOST_KEYS + 1)
        server.command("CONFIG", "RESETSTAT")
        answers = await it.get(*range(count))
        assert calls(server, "mget") == 3
        bodies = [answer.body if isinstance(answer, Entry) else None for answer in answers]
        assert bodies == [None if number % 2 else f"answer {number}".encode() for number in range(count)]


async def test_redis_forgets_an_entry_when_it_is_no_longer_fresh(server: RedisServer) -> None:
    """A shared Redis is not filled with what nobody may use; what has expired is not even sent."""
    async with opened(server.url) as it:
        await it.put(1, entry("lives")._replace(fresh_until=time.time() + 60.0))
        assert 50_000 < server.command("PTTL", key(1)) <= 60_000
        await it.put(2, entry("forever", lives=float("inf")))
        assert server.command("PTTL", key(2)) > 0
        await it.put(3, entry("over", lives=0.0))
        assert it.seen.stores == {Store.STORED: 2, Store.DROPPED: 1}
        assert calls(server, "set") == 2


async def test_a_caller_that_is_cancelled_costs_no_connection_and_nobody_else(server: RedisServer) -> None:
    """Callers that leave in the middle of a look-up harm neither their neighbours nor the connection."""
    async with opened(server.url) as it:
        await it.put(1, entry("mine"))
        before = connections(server)
        for turns in range(12):  # each stage of a look-up is one of these turns of the loop
            callers = [asyncio.create_task(it.get(1)) for _ in range(4)]
            for _ in range(turns):
                await asyncio.sleep(0)
            callers[0].cancel()
            callers[3].cancel()
            for answer in await asyncio.gather(*callers[1:3]):
                assert isinstance(answer[0], Entry)
            await asyncio.gather(*callers, return_exceptions=True)
        assert connections(server) == before + 1 + 2  # ours just now, and one for each of the two lanes
        assert it.seen.ups == [True]


async def test_a_user_who_may_only_read_and_write_our_keys_is_enough(kind: str) -> None:
    """Redis can be locked down to MGET and SET on Forebay's own keys."""
    with running(kind, login="forebay:s3cr3t@") as server:
        server.command("ACL", "SETUSER", "forebay", "on", ">s3cr3t", "~forebay:1:*", "-@all", "+mget", "+set")
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            assert [type(answer) for answer in await it.get(1)] == [Entry]


async def test_a_unix_socket_will_do(kind: str) -> None:
    """A Redis in the same pod needs no port; the database and the password are taken from the URL too."""
    with running(kind, "--requirepass", "s3cr3t", scheme="unix", query="?db=3&password=s3cr3t") as server:
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            assert [type(answer) for answer in await it.get(1)] == [Entry]
            assert "db3" in server.command("INFO", "keyspace")


async def test_tls_is_spoken_and_a_stranger_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """rediss:// talks to a server whose certificate a trusted authority signed, and to no other."""
    certificate, secret = await asyncio.to_thread(self_signed, tmp_path)
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(secret), "--tls-auth-clients", "no")
    with running("redis", *files, scheme="rediss", query=f"?ssl_ca_certs={certificate}") as server:
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            assert [type(answer) for answer in await it.get(1)] == [Entry]
        async with opened(server.url.partition("?")[0]) as it:
            assert not it.store.up
            assert "certificate verify failed" in caplog.text


# What lies in Redis is not believed


async def test_another_items_entry_is_a_miss(server: RedisServer) -> None:
    """Entries that somebody swapped in Redis reach nobody: the code covers the address and the proof."""
    async with opened(server.url) as it:
        await it.put(1, entry("one"))
        await it.put(2, entry("two"))
        one, two = server.command("GET", key(1)), server.command("GET", key(2))
        server.command("MSET", key(1), two, key(2), one)
        assert await it.get(1, 2) == [Reason.FIRST_SEEN, Reason.FIRST_SEEN]
        collided = Fingerprint(fingerprint(1).address, b"another proof !!")
        server.command("SET", key(1), one)
        assert await it.store.get_many([collided]) == [Reason.FIRST_SEEN]
        assert it.seen.lookups == {LookUp.CORRUPT: 3}
        assert [type(answer) for answer in await it.get(1)] == [Entry]


async def test_what_was_damaged_or_written_by_others_is_a_miss(server: RedisServer) -> None:
    """Cut, changed, forged and foreign values are counted as corrupt, and storing mends them."""
    async with opened(server.url) as it:
        await it.put(1, entry("mine"))
        good = server.command("GET", key(1))
        changed = good[:-1] + bytes([good[-1] ^ 1])
        forged = encode(fingerprint(1), entry("mine"), b"another key")
        foreign = (b"", b"OK", b"\x80\x04pickle", good[:-1], good + b"x", changed, forged)
        for bad in foreign:
            server.command("SET", key(1), bad)
            assert await it.get(1) == [Reason.FIRST_SEEN]
        assert it.seen.lookups == {LookUp.CORRUPT: len(foreign)}
        await it.put(1, entry("mine"))
        assert [type(answer) for answer in await it.get(1)] == [Entry]
        assert it.seen.ups == [True]


async def test_a_key_of_another_type_is_a_miss_and_is_overwritten(server: RedisServer) -> None:
    """A list where an entry should be neither breaks a look-up nor stays."""
    async with opened(server.url) as it:
        server.command("RPUSH", key(1), "a", "b")
        await it.put(2, entry("two"))
        answers = await it.get(1, 2)
        assert answers[0] is Reason.FIRST_SEEN
        assert isinstance(answers[1], Entry)
        await it.put(1, entry("one"))
        assert [type(answer) for answer in await it.get(1)] == [Entry]
        assert it.seen.ups == [True]


async def test_a_flushed_redis_is_only_empty(server: RedisServer) -> None:
    """FLUSHALL in the middle of work costs misses and nothing else."""
    async with opened(server.url) as it:
        await it.put(1, entry("mine"))
        server.command("FLUSHALL")
        assert await it.get(1) == [Reason.FIRST_SEEN]
        await it.put(1, entry("again"))
        assert [type(answer) for answer in await it.get(1)] == [Entry]
        assert it.seen.ups == [True]


# A Redis that refuses


async def test_a_full_redis_still_answers_look_ups(kind: str) -> None:
    """At maxmemory without eviction, writes fail and are counted; what is there is still found."""
    with running(kind) as server:
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            server.command("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
            await it.put(2, entry("no room"))
            assert it.seen.stores == {Store.STORED: 1, Store.FULL: 1}
            first, second = await it.get(1, 2)
            assert isinstance(first, Entry)
            assert second is Reason.FIRST_SEEN
            server.command("CONFIG", "SET", "maxmemory", "0")
            await it.put(2, entry("room again"))
            assert it.seen.stores[Store.STORED] == 2
            assert it.seen.ups == [True]


async def test_a_read_only_replica_still_answers_look_ups(kind: str) -> None:
    """After a fail-over the old master refuses writes: they are counted, and the connection is made anew once."""
    with running(kind) as server:
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            server.command("REPLICAOF", "127.0.0.1", "1")
            before = connections(server)
            for _ in range(3):
                await it.put(2, entry("refused"))
            assert connections(server) == before + 1 + 1  # ours just now, and the writer's new one
            assert it.seen.stores == {Store.STORED: 1, Store.ERROR: 3}
            assert [type(answer) for answer in await it.get(1)] == [Entry]
            assert it.seen.ups == [True]


async def test_a_wrong_password_is_said_once_and_never_shown(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who mistypes the password finds the reason in one log line, without the password."""
    with running(kind, "--requirepass", "s3cr3t", login=":wr0ng@") as server:
        async with opened(server.url) as it:
            assert not it.store.up
            assert await it.get(1) == [DOWN]
            assert "wr0ng" not in repr(it.store)
        async with opened(server.url.replace(":wr0ng@", "")) as it:
            assert not it.store.up
        async with opened(server.url.replace("wr0ng", "s3cr3t")) as it:
            await it.put(1, entry("mine"))
            assert [type(answer) for answer in await it.get(1)] == [Entry]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2
    assert "AuthenticationError: " in lines[0]
    assert "AuthenticationError: Authentication required" in lines[1]
    assert "wr0ng" not in caplog.text
    assert "s3cr3t" not in caplog.text


async def test_a_cluster_node_stays_down_and_says_why(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Redis Cluster is not spoken yet: it is named in the log once, and no request suffers from it."""
    with running(kind, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        async with opened(server.url) as it:
            await it.pauses.end()
            await it.pauses.end()
            assert await it.get(1) == [DOWN]
            assert it.seen.ups == [False]
            assert caplog.text.count("is down") == 1
            assert "ClusterCrossSlotError" in caplog.text or "ClusterDownError" in caplog.text


# A Redis that is gone


async def test_a_redis_that_comes_later_is_found(kind: str) -> None:
    """Forebay starts without its Redis, answers look-ups at once, and uses it from when it is there."""
    with RedisServer(kind).reserve() as server:
        async with opened(server.url) as it:
            assert not it.store.up
            assert await it.get(1, 2) == [DOWN, DOWN]
            it.store.put(fingerprint(1), entry("dropped"))
            assert it.seen.lookups == {LookUp.SKIPPED: 2}
            assert it.seen.stores == {Store.DROPPED: 1}
            server.start()
            await it.rise()
            await it.put(1, entry("mine"))
            assert [type(answer) for answer in await it.get(1)] == [Entry]
            assert it.seen.ups == [False, True]


@pytest.mark.usefixtures("in_time")
async def test_a_redis_killed_under_load_fails_no_look_up(kind: str) -> None:
    """64 callers see entries, then REDIS_DOWN, then entries again, and never an exception or a long wait."""
    with running(kind) as server:
        async with opened(server.url) as it:
            await it.put(0, entry("answer 0"))
            longest, found, stop = 0.0, 0, False

            async def caller() -> None:
                nonlocal longest, found
                while not stop:
                    began = time.monotonic()
                    (answer,) = await it.get(0)
                    longest = max(longest, time.monotonic() - began)
                    assert answer in (DOWN, Reason.FIRST_SEEN) or isinstance(answer, Entry)
                    found += isinstance(answer, Entry)
                    it.store.put(fingerprint(found), entry("more"))
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as callers:
                for _ in range(64):
                    callers.create_task(caller())
                await it.seen.until(lambda: it.seen.lookups[LookUp.HIT] > 500)
                server.kill()
                await it.seen.until(lambda: it.seen.lookups[LookUp.SKIPPED] > 500)
                assert it.seen.lookups[LookUp.TIMEOUT] == 0  # a dead connection tells at once
                server.start()
                await it.rise()
                before = found
                it.store.put(fingerprint(0), entry("answer 0"))
                await it.seen.until(lambda: found > before + 500)
                stop = True
            assert it.seen.ups == [True, False, True]
            assert longest < 2 * PROMISED


async def test_a_redis_that_was_restarted_while_nobody_asked_is_not_a_failure(kind: str) -> None:
    """A connection that died while idle is replaced before it is used, and nobody is told that Redis is down."""
    with running(kind) as server:
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            assert [type(answer) for answer in await it.get(1)] == [Entry]
            server.kill()
            server.start()
            assert await it.get(1) == [Reason.FIRST_SEEN]
            await it.put(1, entry("mine"))
            assert it.seen.stores == {Store.STORED: 2}
            assert it.seen.ups == [True]


@pytest.mark.usefixtures("in_time")
async def test_a_hung_redis_costs_latency_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Look-ups under way when Redis hangs wait at most 100 ms, later ones not at all, until it goes on."""
    caplog.set_level(logging.INFO)
    with running(kind) as server:
        async with opened(server.url) as it:
            await it.put(1, entry("mine"))
            server.hang()
            began = time.monotonic()
            under_way = [asyncio.create_task(it.get(1)) for _ in range(8)]
            await asyncio.sleep(0)
            under_way += [asyncio.create_task(it.get(number)) for number in range(8)]
            assert await asyncio.gather(*under_way) == [[DOWN]] * 16
            assert time.monotonic() - began < 2 * PROMISED
            for _ in range(100):
                later = it.store.get_many([fingerprint(1)])
                assert isinstance(later, asyncio.Future)
                assert later.done()
            assert it.seen.lookups == {LookUp.TIMEOUT: 16, LookUp.SKIPPED: 100}
            await it.pauses.end()
            probes = len(it.pauses.asked)
            while len(it.pauses.asked) == probes:  # the probe hangs too: for its 80 ms, and for nobody
                assert await it.get(1) == [DOWN]
                await asyncio.sleep(0)
            server.go_on()
            await it.rise()
            assert [type(answer) for answer in await it.get(1)] == [Entry]
            assert it.seen.ups == [True, False, True]
            assert it.pauses.asked[1:3] == [0.25, 0.5]
        lines = [record.getMessage() for record in caplog.records if record.name == "forebay.redis"]
        where = f"redis: {server.url}"
        assert lines == [
            f"{where} is up",
            f"{where} is down, work goes on without it: no answer in time",
            f"{where} is up",
        ]


@pytest.mark.usefixtures("in_time")
async def test_a_redis_that_hangs_while_nobody_asks_is_noticed(kind: str) -> None:
    """The metric tells the truth of an idle Forebay, and the first caller does not pay for finding out."""
    with running(kind) as server:
        async with opened(server.url) as it:
            server.hang()
            await it.pauses.end()
            await it.fall()
            assert it.pauses.asked[0] == WATCH_EVERY
            assert it.seen.lookups == {}
            server.go_on()


@pytest.mark.usefixtures("in_time")
async def test_a_hung_redis_does_not_hold_up_a_stop(kind: str) -> None:
    """Stopping writes what is queued if Redis takes it, and ends soon if it does not."""
    with running(kind) as server:
        async with opened(server.url) as it:
            for number in range(100):
                it.store.put(fingerprint(number), entry("kept"))
            await it.store.close()
            assert it.seen.stores == {Store.STORED: 100}
            assert await it.get(1) == [DOWN]
            it.store.put(fingerprint(1), entry("too late"))
            assert it.seen.stores[Store.DROPPED] == 1
        async with opened(server.url) as it:
            server.hang()
            it.store.put(fingerprint(1), entry("lost"))
            waiting = asyncio.create_task(it.get(1))
            await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await it.store.close()
            assert await waiting == [DOWN]
            assert it.seen.stores.total() == 1
            assert it.seen.stores[Store.STORED] == 0


@pytest.mark.usefixtures("in_time")
async def test_a_loop_that_stood_still_does_not_take_redis_down(server: RedisServer) -> None:
    """When our own process was busy for long, the answer that lies in the socket still counts."""
    async with opened(server.url) as it:
        await it.put(1, entry("mine"))
        await it.get(1)
        answer = asyncio.create_task(it.get(1))
        for _ in range(4):  # the command is on its way after these turns of the loop
            await asyncio.sleep(0)
        time.sleep(2 * PROMISED)  # noqa: ASYNC251 - this is the fault: a loop that does not turn
        assert [type(found) for found in await answer] == [Entry]
        assert it.seen.ups == [True]


@pytest.mark.usefixtures("in_time")
def test_the_loop_that_serves_keeps_these_promises_too(kind: str) -> None:
    """Forebay runs on uvloop: storing, hanging and coming back work there as well."""

    async def story() -> None:
        with running(kind) as server:
            async with opened(server.url) as it:
                await it.put(1, entry("mine"))
                assert [type(answer) for answer in await it.get(1)] == [Entry]
                server.hang()
                began = time.monotonic()
                assert await it.get(1) == [DOWN]
                assert PROMISED / 2 < time.monotonic() - began < 2 * PROMISED
                server.go_on()
                await it.rise()
                assert [type(answer) for answer in await it.get(1)] == [Entry]
                server.kill()
                assert await it.get(1) == [DOWN]
                assert it.seen.ups == [True, False, True, False]

    uvloop.run(story())


async def test_repr_tells_the_truth(server: RedisServer) -> None:
    """A debugger shows where Redis is, whether it is up, and what waits; never a password."""
    it = Opened(server.url.replace("redis://", "redis://me:s3cr3t@"))
    where = f"redis://127.0.0.1:{server.port}/0"
    idle = "<LookUps 0 waiting, 0 keys to ask for>, <Writes 0 waiting, 0/16777216 bytes>"
    assert repr(it.store) == f"<RedisStore {where} down, {idle}>"
    async with opened(server.url) as it:
        waiting = asyncio.ensure_future(it.store.get_many([fingerprint(1), fingerprint(2)]))
        assert repr(it.store) == (
            f"<RedisStore {where} up, <LookUps 1 waiting, 2 keys to ask for>, <Writes 0 waiting, 0/16777216 bytes>>"
        )
        await waiting
        assert repr(it.store) == f"<RedisStore {where} up, {idle}>"


def test_a_wrong_address_is_refused_before_anything_is_started() -> None:
    """Who mistypes the address reads so at once."""
    with pytest.raises(ValueError, match=r"^redis: 'http' is not a scheme of Redis: write redis://"):
        RedisStore("http://cache", proof_key=PROOF_KEY)
