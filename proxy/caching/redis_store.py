"""Entries in a Redis that replicas share, asked in a way that no request can suffer from.

Invariants
    `get_many` never raises, and answers within `ANSWER_WITHIN` seconds, come what may; while Redis is
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
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar, cast

from hiredis import pack_command
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, OutOfMemoryError, ReadOnlyError, ResponseError

from proxy.caching.breaker import Breaker
from proxy.caching.entry import Entry, decode, encode
from proxy.caching.redis_address import RedisAddress
from proxy.terms import Fingerprint, Reason

Taken = TypeVar("Taken")

log = logging.getLogger(__name__)

NAMESPACE: Final = b"forebay:1:"

ANSWER_WITHIN: Final = 0.100  # the longest that a look-up waits, in all
REPLY_WITHIN: Final = (
    0.080  # for one MGET, and for a probe: sooner, so that a hung Redis is down before callers give up
)
WRITE_WITHIN: Final = 1.0  # nobody waits for a write, and a slow network is no reason to take look-ups away
OVERSLEPT: Final = 0.020  # a timer this late says that our own loop stood still, not that Redis did

LANES: Final = 2  # connections for look-ups
MOST_KEYS: Final = 128  # in one MGET
WRITES_AT_ONCE: Final = 16  # few, because the loop encodes them in one go
LARGEST: Final = 4 * 1024 * 1024  # bytes of a body; a larger one could not be read within REPLY_WITHIN
OVERHEAD: Final = 256  # bytes that a queued write costs beside its body

WATCH_EVERY: Final = 2.0  # seconds between probes while up, so that an idle Forebay tells the truth
PROBE: Final = (b"MGET", NAMESPACE + b"probe:a", NAMESPACE + b"probe:b")  # two cluster slots, so a cluster refuses


class LookUp(StrEnum):
    """What became of one key; the `result` label of `forebay_cache_lookup_duration_seconds`."""

    HIT = "hit"
    MISS = "miss"
    CORRUPT = "corrupt"  # something lies there, and it is not this fingerprint's entry
    ERROR = "error"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"  # not asked: Redis was down


class Store(StrEnum):
    """What became of one entry to be written."""

    STORED = "stored"
    DROPPED = "dropped"  # Redis down, no room in the queue, too large, or no longer fresh
    ERROR = "error"
    FULL = "full"  # Redis is at its `maxmemory` and evicts nothing


class RedisObserver(Protocol):
    """Whom the store tells what happened. Must not raise."""

    def lookup(self, seconds: float, result: LookUp) -> None:
        """One key was looked up."""

    def store(self, result: Store) -> None:
        """One entry was written or not."""

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


class _Question:
    """One call of `get_many`: it may travel in several MGETs and is answered once."""

    __slots__ = ("answers", "asked", "fingerprints", "future", "missing")

    def __init__(self, fingerprints: Sequence[Fingerprint], future: asyncio.Future[list[Entry | Reason]]) -> None:
        self.fingerprints = fingerprints
        self.future = future
        self.answers: list[Entry | Reason] = [Reason.REDIS_DOWN] * len(fingerprints)
        self.missing = len(fingerprints)
        self.asked = time.monotonic()

    def answer(self, index: int, found: Entry | None) -> None:
        self.answers[index] = Reason.FIRST_SEEN if found is None else found
        self.missing -= 1
        if self.missing == 0:
            self.give_up()

    def give_up(self) -> None:
        """What is known by now is the answer."""
        if not self.future.done():
            self.future.set_result(self.answers)


class RedisStore:
    """The shared tier of the response cache.

    url: see `RedisAddress`. proof_key: the key of the code in each entry.
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
        self.address = RedisAddress.parse(url)
        self._proof_key = proof_key
        self._observe: RedisObserver = observe or Silent()
        self._queue_bytes = queue_bytes
        self._pause = pause
        self._wall = wall
        self._breaker = Breaker()
        self._told: bool | None = None
        self._decided = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._waiting: deque[_Question] = deque()  # oldest first; answered ones leave when they are at the front
        self._timer: asyncio.TimerHandle | None = None
        self._keys: asyncio.Queue[tuple[_Question, int]] = asyncio.Queue()  # nobody has asked Redis for these yet
        self._most_keys = MOST_KEYS
        self._writes: asyncio.Queue[tuple[Fingerprint, Entry, int]] = asyncio.Queue()
        self._write_bytes = 0  # of entries in `_writes` or on their way
        self._written = asyncio.Event()
        self._written.set()

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
                    await self._written.wait()
            except TimeoutError:
                pass  # what is left is counted as dropped below
        self._supervisor.cancel()
        await asyncio.wait((self._supervisor,))
        self._supervisor = None
        self._breaker.up = False
        self._let_go(LookUp.ERROR)

    def get_many(self, fingerprints: Sequence[Fingerprint]) -> Awaitable[list[Entry | Reason]]:
        """What Redis holds: an entry, FIRST_SEEN, or REDIS_DOWN where it could not be asked.

        All look-ups of one turn of the event loop travel together.
        """
        question = _Question(fingerprints, asyncio.get_running_loop().create_future())
        if not self._breaker.up or not fingerprints:
            for _ in fingerprints:
                self._observe.lookup(0.0, LookUp.SKIPPED)
            question.give_up()
            return question.future
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        self._waiting.append(question)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN, self._give_up_late_ones)
        for index in range(len(fingerprints)):
            self._keys.put_nowait((question, index))
        return question.future

    def put(self, fingerprint: Fingerprint, entry: Entry) -> None:
        """Write the entry behind, if Redis is up and there is room."""
        size = len(entry.body) + sum(len(name) + len(value) for name, value in entry.headers) + OVERHEAD
        if not self._breaker.up or size > LARGEST or self._write_bytes + size > self._queue_bytes:
            self._observe.store(Store.DROPPED)
            return
        self._write_bytes += size
        self._written.clear()
        self._writes.put_nowait((fingerprint, entry, size))

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
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tend(self._watch, probed))
                tasks.create_task(self._tend(self._write_behind, self._new_link(probed)))
                for _ in range(LANES):
                    tasks.create_task(self._tend(self._look_up, self._new_link(probed)))
        except* Exception:
            assert not self._breaker.up  # `_tend` has told of it

    async def _tend(self, work: Callable[[_Link], Awaitable[None]], link: _Link) -> None:
        try:
            await work(link)
        except Exception as failure:
            if self._breaker.up:  # at once: the group ends some turns of the loop later
                self._fall(failure)
            raise
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
            taken = await _take(self._keys, self._most_keys)
            asked = [(question, index) for question, index in taken if not question.future.done()]
            if not asked:
                continue
            fingerprints = [question.fingerprints[index] for question, index in asked]
            try:
                values = await self._mget(link, (b"MGET", *map(_key, fingerprints)))
            except TimeoutError:
                self._most_keys = max(1, self._most_keys // 2)  # the values may just be too large for so many
                raise
            self._most_keys = min(MOST_KEYS, self._most_keys + 1)
            now = time.monotonic()
            for (question, index), fingerprint, value in zip(asked, fingerprints, values, strict=True):
                found = decode(fingerprint, value, self._proof_key) if isinstance(value, bytes) else None
                result = LookUp.HIT if found else LookUp.MISS if value is None else LookUp.CORRUPT
                self._observe.lookup(now - question.asked, result)
                question.answer(index, found)

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
            writes = await _take(self._writes, WRITES_AT_ONCE)
            results = [Store.ERROR] * len(writes)
            try:
                replies = await self._write(link, writes)
                results = [_stored(reply) for reply in replies]
            finally:
                self._write_bytes -= sum(size for _, _, size in writes)
                for result in results:
                    self._observe.store(result)
                if not self._write_bytes:
                    self._written.set()
            read_only = any(isinstance(reply, ReadOnlyError) for reply in replies)
            if read_only and time.monotonic() - rebuilt > WATCH_EVERY:  # its name may lead to the new master by now
                rebuilt = time.monotonic()
                await _hang_up(link)

    async def _write(self, link: _Link, writes: Sequence[tuple[Fingerprint, Entry, int]]) -> list[object]:
        """One reply an entry; None for one that is no longer fresh."""
        now = self._wall()
        lifetimes = [math.floor((entry.fresh_until - now) * 1000) for _, entry, _ in writes]
        commands = [
            (b"SET", _key(fingerprint), encode(fingerprint, entry, self._proof_key), b"PX", b"%d" % lifetime)
            for (fingerprint, entry, _), lifetime in zip(writes, lifetimes, strict=True)
            if lifetime > 0
        ]
        replies = iter(await self._exchange(link, commands, WRITE_WITHIN))
        return [next(replies) if lifetime > 0 else None for lifetime in lifetimes]

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
                await link.send_packed_command([pack_command(tuple(command)) for command in commands], False)
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
        for question in self._waiting:
            self._give_up(question, result)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while not self._keys.empty():
            self._keys.get_nowait()
        while not self._writes.empty():
            self._write_bytes -= self._writes.get_nowait()[2]
            self._observe.store(Store.DROPPED)
        if not self._write_bytes:
            self._written.set()

    def _give_up(self, question: _Question, result: LookUp) -> None:
        if not question.future.done():
            waited = time.monotonic() - question.asked
            for _ in range(question.missing):
                self._observe.lookup(waited, result)
            question.give_up()

    def _give_up_late_ones(self) -> None:
        """A Redis that answers, but not fast enough for all that is asked: nobody waits longer for it."""
        self._timer = None
        now = time.monotonic()
        while self._waiting:
            left = self._waiting[0].asked + ANSWER_WITHIN - now
            if left > 0 and not self._waiting[0].future.done():
                self._timer = asyncio.get_running_loop().call_later(left, self._give_up_late_ones)
                return
            self._give_up(self._waiting.popleft(), LookUp.TIMEOUT)

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
        waiting = sum(not question.future.done() for question in self._waiting)
        state = "up" if self.up else "down"
        return f"<RedisStore {self.address} {state}, {waiting} waiting, {self._write_bytes} bytes to write>"


def _key(fingerprint: Fingerprint) -> bytes:
    return NAMESPACE + fingerprint.address.hex().encode()


def _stored(reply: object) -> Store:
    if reply is None:
        return Store.DROPPED
    if isinstance(reply, OutOfMemoryError):
        return Store.FULL
    if isinstance(reply, ResponseError):
        return Store.ERROR
    if reply != b"OK":
        raise InvalidResponse("a SET was not answered with OK")
    return Store.STORED


async def _take(queue: asyncio.Queue[Taken], most: int) -> list[Taken]:
    """Wait for one, then take what else is there."""
    taken = [await queue.get()]
    while len(taken) < most and not queue.empty():
        taken.append(queue.get_nowait())
    return taken


async def _reply(link: _Link) -> object:
    try:
        return await link.read_response()
    except ResponseError as refusal:
        return refusal


async def _hang_up(link: _Link) -> None:
    with suppress(Exception):  # it is given up anyway
        await link.disconnect(nowait=True)
