"""Entries in a Redis that replicas share, asked in a way that no request can suffer from.

Invariants
    `get_many` never raises, and answers within `ANSWER_WITHIN`, come what may; while Redis is
    down it answers at once. The first failure takes Redis down, for all look-ups under way too; only a
    probe in the background, which asks what a look-up asks, brings it up again.
    Callers wait on futures of ours: the tasks here own the connections, so a caller that is cancelled
    cancels no command and costs no connection.
    What Redis says is never trusted: a value counts only if its code fits the fingerprint asked for.
    Writes are behind and bounded in bytes; what finds no room is dropped and counted.
    No password in a log line, a `repr` or an error.

Knows no freshness (`tiers.py` does) and no tenant. Redis Cluster and Sentinel are not spoken yet: a
cluster node refuses the probe, so it stays down and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from hiredis import pack_command
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, OutOfMemoryError, ReadOnlyError, ResponseError

from proxy.caching.breaker import Breaker
from proxy.caching.entry import Entry, decode, encode
from proxy.caching.look_ups import OVERSLEPT, LookUp, LookUpObserver, LookUps
from proxy.caching.redis_address import RedisAddress
from proxy.caching.writes import Store, StoreObserver, Write, Writes
from proxy.terms import Fingerprint, Reason

__all__ = ["LookUp", "RedisObserver", "RedisStore", "Store"]

log = logging.getLogger("forebay.redis")

NAMESPACE: Final = b"forebay:1:"

# For one MGET, and for a probe. Sooner than callers give up, so that a hung Redis is down before they do.
REPLY_WITHIN: Final = 0.080
WRITE_WITHIN: Final = 1.0  # nobody waits for a write, and a slow network is no reason to take look-ups away

LANES: Final = 2  # connections for look-ups
MOST_KEYS: Final = 128  # in one MGET
MOST_WRITES: Final = 64  # SETs sent in one go
TURN: Final = 64 * 1024  # bytes that are encoded or decoded before the loop gets a turn
LONGEST: Final = 365 * 86400.0  # seconds that anything lives

WATCH_EVERY: Final = 2.0  # seconds between probes while up, so that an idle Forebay tells the truth
PROBE: Final = (b"MGET", NAMESPACE + b"probe:a", NAMESPACE + b"probe:b")  # two cluster slots, so a cluster refuses


class RedisObserver(LookUpObserver, StoreObserver, Protocol):
    """Whom the store tells what happened. Must not raise."""

    def up(self, up: bool) -> None:
        """Redis came up or went down."""


class Silent:
    """An observer that looks away."""

    def lookup(self, seconds: float, result: LookUp) -> None: ...

    def store(self, result: Store) -> None: ...

    def up(self, up: bool) -> None: ...


class _Link(Protocol):
    """What is used of a connection of redis-py, which types little of it."""

    ssl_context: Any
    is_connected: bool

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_packed_command(self, command: Sequence[bytes], check_health: bool) -> None: ...
    async def read_response(self) -> object: ...


class RedisStore:
    """The shared tier of the response cache.

    url: see `RedisAddress`. proof_key: the key of the code in each entry, at most 64 bytes.
    queue_bytes: the most that entries waiting to be written may hold.
    pause, wall: how it waits between probes, and the clock of lifetimes in Unix seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        proof_key: bytes,
        observe: RedisObserver | None = None,
        queue_bytes: int = 16 * 1024 * 1024,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        assert len(proof_key) <= 64
        self.address = RedisAddress.parse(url)
        self._proof_key = proof_key
        self._observe: RedisObserver = observe or Silent()
        self._pause = pause
        self._wall = wall
        self._breaker = Breaker()
        self._told: bool | None = None
        self._decided = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._look_ups = LookUps(self._observe)
        self._most_keys = MOST_KEYS
        self._writes = Writes(self._observe, limit=queue_bytes)

    @property
    def up(self) -> bool:
        return self._breaker.up

    async def start(self) -> None:
        """Find out whether Redis is there, for at most REPLY_WITHIN; it may well come later."""
        assert self._supervisor is None, "started twice"
        self._supervisor = asyncio.create_task(self._supervise(), name="redis")
        await self._decided.wait()

    async def close(self) -> None:
        """Write what is queued, for at most WRITE_WITHIN, and let go of every connection."""
        if self._supervisor is None:
            return
        if self.up:
            try:
                async with asyncio.timeout(WRITE_WITHIN):
                    await self._writes.wait_until_empty()
            except TimeoutError:
                pass  # what is left is counted as dropped below
        self._supervisor.cancel()
        await asyncio.gather(self._supervisor, *self._tasks, return_exceptions=True)
        self._supervisor = None
        self._breaker.up = False
        self._let_go(LookUp.ERROR)

    def get_many(self, fingerprints: Sequence[Fingerprint]) -> Awaitable[list[Entry | Reason]]:
        """What Redis holds: an entry, FIRST_SEEN, or REDIS_DOWN where it could not be asked.

        All look-ups of one turn of the event loop travel together.
        """
        if not self._breaker.up or not fingerprints:
            return self._look_ups.skip(fingerprints)
        return self._look_ups.ask(fingerprints)

    def put(self, fingerprint: Fingerprint, entry: Entry) -> None:
        """Write the entry behind, if Redis is up and there is room."""
        if self._breaker.up:
            self._writes.add(fingerprint, entry)
        else:
            self._writes.drop()

    async def _supervise(self) -> None:
        """Probe until Redis answers, serve until something fails, and again."""
        while True:
            link = self._new_link()
            try:
                if self.address.scheme == "rediss":  # reading the system's certificates takes tens of milliseconds
                    await asyncio.to_thread(link.ssl_context.get)
                await self._probe(link)
            except Exception as failure:  # noqa: BLE001 - whatever it is, requests go on without Redis
                self._fall(failure)
            else:
                self._rise()
                await self._serve(link)
            finally:
                await _hang_up(link)
            await self._pause(self._breaker.wait)

    async def _serve(self, probed: _Link) -> None:
        """Everything that runs while Redis is up; over with the first failure of any of it."""
        lanes = [(self._look_up, self._new_link(probed)) for _ in range(LANES)]
        self._tasks = [
            asyncio.create_task(self._tend(work, link))
            for work, link in ((self._watch, probed), (self._write_behind, self._new_link(probed)), *lanes)
        ]
        try:  # not a TaskGroup: before Python 3.13 it forgets a cancellation that comes while it deals with a failure
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tend(self, work: Callable[[_Link], Awaitable[None]], link: _Link) -> None:
        try:
            await work(link)
        except Exception as failure:  # noqa: BLE001 - whatever it is, requests go on without Redis
            if self._breaker.up:
                self._fall(failure)
        finally:
            await _hang_up(link)

    async def _watch(self, link: _Link) -> None:
        """Without traffic, too, `up` is true only of a Redis that answers."""
        while True:
            await self._pause(WATCH_EVERY)
            await self._probe(link)

    async def _probe(self, link: _Link) -> None:
        """Ask what a look-up asks: a server may answer PING and yet refuse every MGET."""
        await self._mget(link, PROBE)

    async def _look_up(self, link: _Link) -> None:
        while True:
            keys = await self._look_ups.take(self._most_keys)
            try:
                values = await self._mget(link, (b"MGET", *(_name(key.fingerprint) for key in keys)))
            except TimeoutError:
                self._most_keys = max(1, self._most_keys // 2)  # the values may just be too large for so many
                raise
            self._most_keys = min(MOST_KEYS, self._most_keys + 1)
            done = 0
            for key, value in zip(keys, values, strict=True):
                found = decode(key.fingerprint, value, self._proof_key) if isinstance(value, bytes) else None
                result = LookUp.HIT if found else LookUp.MISS if value is None else LookUp.CORRUPT
                self._look_ups.answer(key, result, found)
                done += len(found.body) if found else 0
                if done > TURN:
                    done = 0
                    await asyncio.sleep(0)

    async def _mget(self, link: _Link, command: Sequence[bytes]) -> list[object]:
        (reply,) = await self._exchange(link, [command], REPLY_WITHIN)
        if isinstance(reply, ResponseError):
            raise reply
        if not isinstance(reply, list) or len(reply) != len(command) - 1:
            raise InvalidResponse("an MGET was not answered with one value a key")
        return reply

    async def _write_behind(self, link: _Link) -> None:
        rebuilt = -math.inf
        while True:
            writes = await self._writes.take(MOST_WRITES)
            results = [Store.ERROR] * len(writes)
            try:
                replies = await self._write(link, writes)
                results = [_stored(reply) for reply in replies]
            finally:
                self._writes.settle(writes, results)
            read_only = any(isinstance(reply, ReadOnlyError) for reply in replies)
            if read_only and time.monotonic() - rebuilt > WATCH_EVERY:  # its name may lead to the new master by now
                rebuilt = time.monotonic()
                await _hang_up(link)

    async def _write(self, link: _Link, writes: Sequence[Write]) -> list[object]:
        """One reply an entry; DROPPED for one that is no longer fresh."""
        now = self._wall()
        commands: list[tuple[bytes, ...]] = []
        fresh: list[bool] = []
        done = 0
        for write in writes:
            lifetime = math.floor(min(write.entry.fresh_until - now, LONGEST) * 1000)
            fresh.append(lifetime > 0)
            if lifetime > 0:
                value = encode(write.fingerprint, write.entry, self._proof_key)
                commands.append((b"SET", _name(write.fingerprint), value, b"PX", b"%d" % lifetime))
            done += write.size
            if done > TURN:
                done = 0
                await asyncio.sleep(0)
        replies = iter(await self._exchange(link, commands, WRITE_WITHIN))
        return [next(replies) if is_fresh else Store.DROPPED for is_fresh in fresh]

    async def _exchange(self, link: _Link, commands: Sequence[Sequence[bytes]], seconds: float) -> list[object]:
        """One reply a command, a refusal as the error it is; any other failure is raised, time-out included."""
        loop = asyncio.get_running_loop()
        due = time.monotonic() + seconds
        async with asyncio.timeout(None) as limit:

            def expire() -> None:
                overslept = time.monotonic() - due > OVERSLEPT  # then the reply may be here, unread
                limit.reschedule(loop.time() + (OVERSLEPT if overslept else 0))

            timer = loop.call_later(seconds, expire)
            try:
                if link.is_connected and await link.can_read():  # it was closed, or says what nobody asked for
                    await link.disconnect(nowait=True)
                await link.connect()
                await link.send_packed_command([_packed(command) for command in commands], False)
                return [await _reply(link) for _ in commands]
            finally:
                timer.cancel()

    def _rise(self) -> None:
        self._breaker.rise(time.monotonic())
        self._tell(None)

    def _fall(self, failure: Exception) -> None:
        self._breaker.fall(time.monotonic())
        timed_out = isinstance(failure, TimeoutError)
        self._let_go(LookUp.TIMEOUT if timed_out else LookUp.ERROR)
        self._tell("no answer in time" if timed_out else f"{type(failure).__name__}: {failure}")

    def _tell(self, reason: str | None) -> None:
        """Once a change; `reason` says why it is down."""
        self._decided.set()
        up = reason is None
        if up is self._told:
            return
        self._told = up
        self._observe.up(up)
        if reason is None:
            log.info("redis: %s is up", self.address)
        else:
            log.warning("redis: %s is down, work goes on without it: %s", self.address, self.address.censor(reason))

    def _let_go(self, result: LookUp) -> None:
        """Nobody waits for Redis any longer, and nothing waits to be written."""
        self._look_ups.give_up(result)
        self._writes.drop_all()

    def _new_link(self, like: _Link | None = None) -> _Link:
        """A connection that is not open yet. like: one whose TLS context it shares."""
        address = self.address
        where = {"path": address.path} if address.scheme == "unix" else {"host": address.host, "port": address.port}
        kinds = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}
        connection: Any = kinds[address.scheme](
            **where,
            **address.tls,
            db=address.database,
            username=address.username,
            password=address.password,
            protocol=2,  # RESP3 hands out dead connections for push messages
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,  # `_exchange` bounds the whole, connecting included
            socket_connect_timeout=None,
            driver_info=None,  # no CLIENT SETINFO: a user may be allowed MGET and SET alone
        )
        if like is not None and address.scheme == "rediss":
            connection.ssl_context = like.ssl_context
        return cast(_Link, connection)

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<RedisStore {self.address} {state}, {self._look_ups}, {self._writes}>"


def _name(fingerprint: Fingerprint) -> bytes:
    return NAMESPACE + fingerprint.address.hex().encode()


def _stored(reply: object) -> Store:
    if isinstance(reply, Store):
        return reply
    if isinstance(reply, OutOfMemoryError):
        return Store.FULL
    if isinstance(reply, ResponseError):
        return Store.ERROR
    if reply != b"OK":
        raise InvalidResponse("a SET was not answered with OK")
    return Store.STORED


def _packed(command: Sequence[bytes]) -> bytes:
    return cast(bytes, pack_command(tuple(command)))  # type: ignore[arg-type]  # its stub knows commands of one word


async def _reply(link: _Link) -> object:
    try:
        return await link.read_response()
    except ResponseError as refusal:
        return refusal


async def _hang_up(link: _Link) -> None:
    with suppress(Exception):  # it is given up anyway
        await link.disconnect(nowait=True)
