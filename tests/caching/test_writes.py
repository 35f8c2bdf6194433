"""Promises of the queue of writes: bounded, and every entry counted once."""

from __future__ import annotations

import asyncio
from collections import Counter

from proxy.caching.entry import Entry
from proxy.caching.writes import LARGEST, OVERHEAD, Store, Write, Writes
from proxy.terms import Fingerprint


class Counted:
    def __init__(self) -> None:
        self.results: Counter[Store] = Counter()

    def store(self, result: Store) -> None:
        self.results[result] += 1


def fingerprint(number: int) -> Fingerprint:
    return Fingerprint(number.to_bytes(16), bytes(16))


def entry(size: int) -> Entry:
    return Entry(bytes(size), ((b"content-type", b"text/plain"),), 0.0, 60.0, 0.0)


async def take(writes: Writes, most: int) -> list[Write]:
    return await asyncio.wait_for(writes.take(most), 10)


ONE = 100 + len(b"content-typetext/plain") + OVERHEAD  # what an entry of 100 bytes takes


async def test_what_finds_no_room_is_dropped_and_counted() -> None:
    """A store that writes slowly costs entries, never memory: bodies, headers and overhead all count."""
    counted = Counted()
    writes = Writes(counted, limit=3 * ONE)
    for number in range(5):
        writes.add(fingerprint(number), entry(100))
    assert counted.results == {Store.DROPPED: 2}
    taken = await take(writes, 10)
    assert [write.fingerprint for write in taken] == [fingerprint(0), fingerprint(1), fingerprint(2)]
    writes.add(fingerprint(5), entry(100))
    assert counted.results == {Store.DROPPED: 3}  # what is being written still takes its room
    writes.settle(taken, [Store.STORED, Store.FULL, Store.ERROR])
    assert counted.results == {Store.DROPPED: 3, Store.STORED: 1, Store.FULL: 1, Store.ERROR: 1}
    writes.add(fingerprint(6), entry(100))
    assert (await take(writes, 10))[0].fingerprint == fingerprint(6)


async def test_a_value_that_could_not_be_read_in_time_is_not_written() -> None:
    """One huge answer must not take the shared tier away from everybody at each look-up."""
    counted = Counted()
    writes = Writes(counted, limit=10 * LARGEST)
    writes.add(fingerprint(0), entry(LARGEST))
    assert counted.results == {Store.DROPPED: 1}


async def test_writes_leave_in_batches_of_bounded_length() -> None:
    """One batch never holds more than was asked for, and what is left leaves with the next."""
    writes = Writes(Counted(), limit=100 * ONE)
    for number in range(5):
        writes.add(fingerprint(number), entry(100))
    assert [len(await take(writes, 2)) for _ in range(3)] == [2, 2, 1]


async def test_waiting_for_the_end_ends_when_the_last_is_written_or_let_go() -> None:
    """A stop can wait for what is queued, and a failed store keeps nobody waiting."""
    counted = Counted()
    writes = Writes(counted, limit=100 * ONE)
    await asyncio.wait_for(writes.wait_until_empty(), 10)
    writes.add(fingerprint(0), entry(100))
    taken = await take(writes, 1)
    writes.add(fingerprint(1), entry(100))
    end = asyncio.create_task(writes.wait_until_empty())
    writes.drop_all()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not end.done()  # one is still on its way
    writes.settle(taken, [Store.ERROR])
    await asyncio.wait_for(end, 10)
    assert counted.results == {Store.DROPPED: 1, Store.ERROR: 1}


async def test_repr_tells_the_truth() -> None:
    """A debugger shows how many entries wait and how much of the room is taken."""
    writes = Writes(Counted(), limit=10 * ONE)
    writes.add(fingerprint(0), entry(100))
    writes.add(fingerprint(1), entry(100))
    taken = await take(writes, 1)
    assert repr(writes) == f"<Writes 1 waiting, {2 * ONE}/{10 * ONE} bytes>"
    writes.settle(taken, [Store.STORED])
    assert repr(writes) == f"<Writes 1 waiting, {ONE}/{10 * ONE} bytes>"
