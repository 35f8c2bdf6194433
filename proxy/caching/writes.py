"""Entries on their way to a shared store, behind the answers that made them.

Invariants
    They never hold more than `limit` bytes, those being written included; what finds no room is dropped.
    Every entry that was added is counted once, by what became of it.

Knows no store and no connection: `redis_store.py` takes entries, writes them and says what came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from proxy.caching.entry import Entry
from proxy.terms import Fingerprint

LARGEST: Final = 4 * 1024 * 1024  # bytes; a larger value would take longer to look up than a look-up may wait
OVERHEAD: Final = 256  # bytes that an entry in the queue costs beside its body and headers


class Store(StrEnum):
    """What became of one entry to be written."""

    STORED = "stored"
    DROPPED = "dropped"  # the store was down, there was no room, it was too large, or no longer fresh
    ERROR = "error"
    FULL = "full"  # the store has no room and evicts nothing


class StoreObserver(Protocol):
    def store(self, result: Store) -> None:
        """One entry was written, or not. Must not raise."""


class Write(NamedTuple):
    fingerprint: Fingerprint
    entry: Entry
    size: int


class Writes:
    def __init__(self, observe: StoreObserver, *, limit: int) -> None:
        self._observe = observe
        self._limit = limit
        self._queue: asyncio.Queue[Write] = asyncio.Queue()
        self._bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def drop(self) -> None:
        """Count an entry that nobody can take."""
        self._observe.store(Store.DROPPED)

    def add(self, fingerprint: Fingerprint, entry: Entry) -> None:
        size = len(entry.body) + sum(len(name) + len(value) for name, value in entry.headers) + OVERHEAD
        if size > LARGEST or self._bytes + size > self._limit:
            self.drop()
            return
        self._bytes += size
        self._empty.clear()
        self._queue.put_nowait(Write(fingerprint, entry, size))

    async def take(self, most: int) -> list[Write]:
        """Wait for one, then take what else is there. Each must be `settle`d."""
        taken = [await self._queue.get()]
        while len(taken) < most and not self._queue.empty():
            taken.append(self._queue.get_nowait())
        return taken

    def settle(self, writes: Sequence[Write], results: Sequence[Store]) -> None:
        for write, result in zip(writes, results, strict=True):
            self._bytes -= write.size
            self._observe.store(result)
        if not self._bytes:
            self._empty.set()

    def drop_all(self) -> None:
        """The store failed: what waits is let go of."""
        waiting = []
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        self.settle(waiting, [Store.DROPPED] * len(waiting))

    async def wait_until_empty(self) -> None:
        await self._empty.wait()

    def __repr__(self) -> str:
        return f"<Writes {self._queue.qsize()} waiting, {self._bytes}/{self._limit} bytes>"
