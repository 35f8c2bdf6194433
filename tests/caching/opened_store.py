"""A started store with what its tests need: a witness, a hand on its waits, entries and fingerprints."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.caching import look_ups, redis_store
from proxy.caching.entry import Entry, encode
from proxy.caching.look_ups import LookUp
from proxy.caching.redis_store import NAMESPACE, RedisStore
from proxy.caching.writes import Store
from proxy.terms import Fingerprint, Reason

PROOF_KEY = b"a key of the tests"
DOWN = Reason.REDIS_DOWN
PATIENCE = 20.0  # seconds after which a test that waits for an event has failed
NOW = time.time()


def fingerprint(number: int) -> Fingerprint:
    return Fingerprint(number.to_bytes(16), (number + 1).to_bytes(16))


def key(number: int) -> bytes:
    return NAMESPACE + fingerprint(number).address.hex().encode()


def entry(text: str, *, lives: float = 3600.0) -> Entry:
    return Entry(text.encode(), ((b"Content-Type", b"application/json"),), NOW, NOW + lives, 0.125)


def value(number: int, text: str) -> bytes:
    return encode(fingerprint(number), entry(text), PROOF_KEY)


def be_patient(monkeypatch: pytest.MonkeyPatch, seconds: float = PATIENCE / 2) -> None:
    """For tests that are not about time: a machine that is busy must not look like a hung Redis."""
    monkeypatch.setattr(redis_store, "REPLY_WITHIN", seconds)
    monkeypatch.setattr(look_ups, "ANSWER_WITHIN", seconds + 1.0)


class Seen:
    """What the store told, and a way to wait until it has told enough."""

    def __init__(self) -> None:
        self.lookups: Counter[LookUp] = Counter()
        self.stores: Counter[Store] = Counter()
        self.ups: list[bool] = []
        self._news = asyncio.Event()

    def lookup(self, seconds: float, result: LookUp) -> None:
        assert seconds >= 0
        self.lookups[result] += 1
        self._news.set()

    def store(self, result: Store) -> None:
        self.stores[result] += 1
        self._news.set()

    def up(self, up: bool) -> None:
        self.ups.append(up)
        self._news.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not enough():
                self._news.clear()
                await self._news.wait()


class Pauses:
    """The waits between probes: they end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._gates: list[asyncio.Future[None]] = []
        self._news = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        gate = asyncio.get_running_loop().create_future()
        self.asked.append(seconds)
        self._gates.append(gate)
        self._news.set()
        await gate

    async def begun(self, count: int) -> None:
        """Wait until so many waits have begun in all."""
        async with asyncio.timeout(PATIENCE):
            while len(self.asked) < count:
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        """Let the wait that is under way, or the next one to begin, be over."""
        async with asyncio.timeout(PATIENCE):
            while all(gate.done() for gate in self._gates):
                self._news.clear()
                await self._news.wait()
        for gate in self._gates:
            if not gate.done():
                gate.set_result(None)


class Opened:
    """A started store with its witness and its clock."""

    def __init__(self, url: str, **options: Any) -> None:
        self.seen, self.pauses = Seen(), Pauses()
        self.store = RedisStore(url, proof_key=PROOF_KEY, observe=self.seen, pause=self.pauses, **options)

    async def get(self, *numbers: int) -> list[Entry | Reason]:
        return await self.store.get_many([fingerprint(number) for number in numbers])

    async def put(self, number: int, stored: Entry) -> None:
        """Return when it is known what became of it."""
        before = self.seen.stores.total()
        self.store.put(fingerprint(number), stored)
        await self.seen.until(lambda: self.seen.stores.total() > before)

    async def fall(self) -> None:
        await self.seen.until(lambda: self.seen.ups[-1] is False)

    async def rise(self) -> None:
        """Probe until the store is up."""
        async with asyncio.timeout(PATIENCE):
            while not self.store.up:
                await self.pauses.end()
                probes = len(self.pauses.asked)
                await self.pauses.begun(probes + 1)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Opened]:
    it = Opened(url, **options)
    await it.store.start()
    try:
        yield it
    finally:
        await it.store.close()
