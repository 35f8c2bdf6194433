"""Promises of the memory tier: its bound, what it evicts, and that it never gives one item's entry to another."""

from __future__ import annotations

import gc
import os
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.caching.entry import Entry
from proxy.caching.memory_store import ENTRY_BYTES, GHOST_BYTES, HEADERS_SHARED, LARGEST_SHARED, MemoryStore
from proxy.terms import Fingerprint, Headers, Reason

JSON: Headers = ((b"Content-Type", b"application/json"),)


def named(number: int, proof: int = 0) -> Fingerprint:
    return Fingerprint(number.to_bytes(16, "big"), proof.to_bytes(16, "big"))


def entry(size: int = 100, fresh_until: float = 1000.0, headers: Headers = JSON) -> Entry:
    return Entry(b"x" * size, headers, 0.0, fresh_until, 0.1)


def room_for(entries: int, size: int = 100) -> MemoryStore:
    """A store for about so many entries of this size; exactly so many where they are too few for ghosts."""
    return MemoryStore(entries * (ENTRY_BYTES + size))


def test_what_was_put_is_got() -> None:
    """A fresh entry is a hit, an item that was never put is `first_seen`."""
    store = MemoryStore(10_000)
    kept = entry()
    store.put(named(1), kept)
    assert store.get(named(1), 0.0) == kept
    assert store.get(named(2), 0.0) is Reason.FIRST_SEEN


def test_an_entry_is_fresh_until_its_time_and_not_at_it() -> None:
    """An expired entry is never served, gives back its room at once, and is then like one never seen."""
    store = MemoryStore(10_000)
    store.put(named(1), entry(fresh_until=10.0))
    assert isinstance(store.get(named(1), 9.999), Entry)
    assert store.get(named(1), 10.0) is Reason.EXPIRED
    assert store.bytes == len(store) == 0
    assert store.get(named(1), 10.0) is Reason.FIRST_SEEN


def test_another_items_entry_under_the_same_address_is_a_miss_and_counted() -> None:
    """A hash collision costs a computation, never a wrong answer, and it shows."""
    store = MemoryStore(10_000)
    mine, theirs = entry(size=1), entry(size=2)
    store.put(named(1, proof=1), mine)
    assert store.get(named(1, proof=2), 0.0) is Reason.FIRST_SEEN
    assert store.mismatches == 1
    assert store.get(named(1, proof=1), 0.0) == mine
    store.put(named(1, proof=2), theirs)
    assert store.get(named(1, proof=2), 0.0) == theirs
    assert store.get(named(1, proof=1), 0.0) is Reason.FIRST_SEEN
    assert len(store) == 1


def test_what_is_asked_for_survives_a_flood_of_what_is_not() -> None:
    """A job that reads through ten thousand texts once does not push out those that users ask for."""
    store = room_for(50)
    for number in range(20):
        store.put(named(number), entry())
    for flood in range(1000, 11_000):
        for number in range(20):
            assert isinstance(store.get(named(number), 0.0), Entry)
        store.put(named(flood), entry())


def test_one_hit_protects_once() -> None:
    """What was asked for once, long ago, makes room in the end."""
    store = room_for(3)
    for number in (1, 2, 3):
        store.put(named(number), entry())
    store.get(named(1), 0.0)
    evicted = []
    for number in (4, 5, 6, 7):
        store.get(named(number - 1), 0.0)
        before = set(store._nodes)
        store.put(named(number), entry())
        evicted += [int.from_bytes(address, "big") for address in before - set(store._nodes)]
    assert evicted == [2, 1, 3, 4]


def test_the_hand_goes_on_where_it_stopped() -> None:
    """What a hit has just saved is not the next to go: the hand comes by it again only after all the others."""
    store = room_for(4)
    for number in (1, 2, 3, 4):
        store.put(named(number), entry())
    store.get(named(1), 0.0)
    for number in (5, 6, 7):
        store.put(named(number), entry())
    assert [number for number in range(1, 8) if isinstance(store.get(named(number), 0.0), Entry)] == [1, 5, 6, 7]


def test_an_evicted_entry_says_so_until_it_comes_back() -> None:
    """`evicted` in `Cache-Status` tells an operator that more memory would have made a hit."""
    store = MemoryStore(100_000)
    for number in range(200):
        store.put(named(number), entry())
    assert store.evictions == 200 - len(store)
    assert len(store) > 100
    last = store.evictions - 1
    assert store.get(named(last), 0.0) is Reason.EVICTED
    store.put(named(last), entry())
    store.discard(named(last).address)
    assert store.get(named(last), 0.0) is Reason.FIRST_SEEN


def test_an_entry_that_does_not_fit_pushes_nothing_out() -> None:
    """One huge answer does not empty the response cache, and replaces what it was to replace by nothing."""
    store = MemoryStore(10_000)
    store.put(named(1), entry())
    store.put(named(2), entry(size=10_001))
    assert isinstance(store.get(named(1), 0.0), Entry)
    assert store.get(named(2), 0.0) is Reason.FIRST_SEEN
    store.put(named(1), entry(size=10_001))
    assert store.get(named(1), 0.0) is Reason.FIRST_SEEN
    assert (store.bytes, store.evictions) == (0, 0)


def test_a_store_without_room_keeps_nothing() -> None:
    """`cache.memory: 0B` turns the memory tier off."""
    store = MemoryStore(0)
    store.put(named(1), entry(size=0, headers=()))
    assert store.get(named(1), 0.0) is Reason.FIRST_SEEN
    assert store.bytes == 0


def test_equal_headers_are_held_once_and_strange_ones_are_counted() -> None:
    """A backend that answers with ever new fields cannot make the store grow past its bound."""
    store = MemoryStore(10_000_000)
    store.put(named(0), entry(headers=((b"Content-Type", b"text/plain"),)))
    alike = bytes(bytearray(b"text/plain"))
    store.put(named(1), entry(headers=((b"Content-Type", alike),)))
    got = [store.get(named(number), 0.0) for number in (0, 1)]
    assert isinstance(got[0], Entry)
    assert isinstance(got[1], Entry)
    assert got[0].headers is got[1].headers
    long = ((b"Content-Type", b"x" * LARGEST_SHARED),)
    before = store.bytes
    store.put(named(2), entry(headers=long))
    assert store.bytes - before > ENTRY_BYTES + 100 + LARGEST_SHARED
    for number in range(HEADERS_SHARED + 10):
        before = store.bytes
        strange = ((b"Content-Type", b"text/%d" % number),)
        store.put(named(10 + number), entry(headers=strange))
        got_strange = store.get(named(10 + number), 0.0)
        assert isinstance(got_strange, Entry)
        assert got_strange.headers == strange
    assert store.bytes - before > ENTRY_BYTES + 100 + len(b"Content-Type")


@pytest.mark.parametrize("size", [60, 1000])
def test_the_bound_is_what_the_process_really_grows_by(size: int) -> None:
    """An operator who grants 4 MiB loses 4 MiB, overhead included, and not one and a half times as much."""
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        store = MemoryStore(4 * 1024 * 1024)
        number = 0
        while store.evictions < 2 * len(store) + 1:
            for _ in range(100):
                number += 1
                fields = ((b"Content-Type", bytes(bytearray(b"application/json"))),)
                made = Entry(os.urandom(size), fields, number + 0.25, number + 0.5, number / 8)
                store.put(Fingerprint(os.urandom(16), os.urandom(16)), made)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert store.limit * 0.95 < store.bytes <= store.limit
    assert 0.9 < grown / store.bytes < 1.1


def test_the_repr_tells_the_truth() -> None:
    """What a debugger shows is what the store holds."""
    store = room_for(2)
    for number in range(3):
        store.put(named(number), entry())
    store.get(named(2, proof=9), 0.0)
    assert (
        repr(store)
        == f"<MemoryStore 2 entries, {2 * ENTRY_BYTES + 200} of {store.limit} bytes, 1 evicted, 1 mismatches>"
    )


@dataclass
class Kept:
    """An entry in the model's queue."""

    fingerprint: Fingerprint
    entry: Entry
    marked: bool = False


class StoreMachine(RuleBasedStateMachine):
    """Whatever is put, got, discarded and expires, the store does what SIEVE on a plain list does."""

    LIMIT = 9000  # room for about four entries, and for two ghosts

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(self.LIMIT)
        self.ghosts_each = self.LIMIT // 32 // GHOST_BYTES // 2
        self.room = self.LIMIT - 2 * self.ghosts_each * GHOST_BYTES
        self.now = 0.0
        self.queue: list[Kept] = []  # the model: oldest first
        self.hand: Kept | None = None
        self.young_ghosts: list[bytes] = []
        self.old_ghosts: list[bytes] = []
        self.evictions = self.mismatches = 0

    def size(self, kept: Kept) -> int:
        return ENTRY_BYTES + len(kept.entry.body)

    def find(self, address: bytes) -> Kept | None:
        return next((kept for kept in self.queue if kept.fingerprint.address == address), None)

    def take_out(self, kept: Kept) -> None:
        at = self.queue.index(kept)
        if self.hand is kept:
            self.hand = self.queue[at + 1] if at + 1 < len(self.queue) else None
        del self.queue[at]

    def evict(self) -> None:
        at = self.queue.index(self.hand) if self.hand else 0
        while self.queue[at].marked:
            self.queue[at].marked = False
            at = (at + 1) % len(self.queue)
        victim = self.hand = self.queue[at]
        self.take_out(victim)
        self.evictions += 1
        if len(self.young_ghosts) >= self.ghosts_each:
            self.young_ghosts, self.old_ghosts = [], self.young_ghosts
        self.young_ghosts.append(victim.fingerprint.address)

    numbers = st.integers(0, 9)
    proofs = st.sampled_from([0, 0, 0, 1])

    @rule(
        number=numbers,
        proof=proofs,
        size=st.sampled_from([1500, 1500, 1600, 0, 2500, 20_000]),
        life=st.sampled_from([1000, 1000, 3]),
    )
    def put(self, number: int, proof: int, size: int, life: int) -> None:
        kept = Kept(named(number, proof), entry(size, fresh_until=self.now + life))
        self.store.put(kept.fingerprint, kept.entry)
        if there := self.find(kept.fingerprint.address):
            self.take_out(there)
        if self.size(kept) > self.room:
            return
        while sum(map(self.size, self.queue)) + self.size(kept) > self.room:
            self.evict()
        for ghosts in (self.young_ghosts, self.old_ghosts):
            if kept.fingerprint.address in ghosts:
                ghosts.remove(kept.fingerprint.address)
        self.queue.append(kept)

    @rule(number=numbers, proof=proofs)
    def get(self, number: int, proof: int) -> None:
        fingerprint = named(number, proof)
        got = self.store.get(fingerprint, self.now)
        there = self.find(fingerprint.address)
        if there is None:
            ghost = fingerprint.address in self.young_ghosts + self.old_ghosts
            assert got is (Reason.EVICTED if ghost else Reason.FIRST_SEEN)
        elif there.fingerprint != fingerprint:
            self.mismatches += 1
            assert got is Reason.FIRST_SEEN
        elif self.now >= there.entry.fresh_until:
            self.take_out(there)
            assert got is Reason.EXPIRED
        else:
            there.marked = True
            assert got == there.entry

    @rule(number=st.integers(0, 2))
    def discard(self, number: int) -> None:
        self.store.discard(named(number).address)
        if there := self.find(named(number).address):
            self.take_out(there)

    @rule(seconds=st.integers(1, 2))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def it_counts_right(self) -> None:
        held = sum(map(self.size, self.queue))
        ghosts = len(self.young_ghosts) + len(self.old_ghosts)
        assert self.store.bytes == held + ghosts * GHOST_BYTES <= self.LIMIT
        assert repr(self.store) == (
            f"<MemoryStore {len(self.queue)} entries, {self.store.bytes} of {self.LIMIT} bytes, "
            f"{self.evictions} evicted, {self.mismatches} mismatches>"
        )


TestStore = StoreMachine.TestCase
