"""The response cache in this process: bounded by bytes, eviction by SIEVE.

SIEVE: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is Simpler than LRU", NSDI 2024. A hit sets one mark and
moves nothing; a hand goes from the oldest entry to the newest, takes marks away and evicts the first
entry that bears none.

Invariants
    `bytes` never passes `limit`; it counts bodies, headers, keys, the tables and the memory of what was evicted.
    What `get` gives was put under this very fingerprint, proof included, and is fresh.
    A fingerprint has at most one entry; one that does not fit at all leaves the others alone.

Knows no clock, no tenant and no other tier.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from proxy.caching.entry import Entry
from proxy.terms import Fingerprint, Headers, Reason

# Measured with tracemalloc on CPython 3.11; a test holds them to what the process really grows by.
ENTRY_BYTES: Final = 520  # an entry without its body and headers: objects, address, proof, its share of the table
FIELD_BYTES: Final = 136  # a kept header field without its letters
GHOST_BYTES: Final = 130  # an address that was evicted

GHOST_SHARE: Final = 32  # one part in so many of the limit is kept for ghosts
HEADERS_SHARED: Final = 64  # different sets of kept headers that are held once for all entries, and not counted
LARGEST_SHARED: Final = 1024  # bytes of one such set


_Address: TypeAlias = bytes  # inside the class `bytes` is what the store holds


class _Node:
    """A place in the queue. newer, older: its neighbours; None at the ends."""

    __slots__ = ("address", "entry", "marked", "newer", "older", "proof", "size")

    def __init__(self, fingerprint: Fingerprint, entry: Entry, size: int) -> None:
        self.address, self.proof = fingerprint
        self.entry = entry
        self.size = size
        self.marked = False
        self.newer: _Node | None = None
        self.older: _Node | None = None


class MemoryStore:
    """Entries by fingerprint, in at most `limit` bytes; 0 keeps nothing."""

    def __init__(self, limit: int) -> None:
        assert limit >= 0
        self.limit = limit
        self.evictions = 0
        self.mismatches = 0  # look-ups that found another item's entry under their address
        self._nodes: dict[bytes, _Node] = {}
        self._newest: _Node | None = None
        self._oldest: _Node | None = None
        self._hand: _Node | None = None
        self._held = 0
        # Two generations of what was evicted: the older one is forgotten whole, so that no table is walked.
        self._ghosts: set[bytes] = set()
        self._old_ghosts: set[bytes] = set()
        self._half_of_ghosts = limit // GHOST_SHARE // GHOST_BYTES // 2
        self._room = limit - 2 * self._half_of_ghosts * GHOST_BYTES
        self._headers: dict[Headers, Headers] = {}

    @property
    def bytes(self) -> int:
        """What the store holds, overhead included."""
        return self._held + (len(self._ghosts) + len(self._old_ghosts)) * GHOST_BYTES

    def get(self, fingerprint: Fingerprint, now: float) -> Entry | Reason:
        """The fresh entry of this fingerprint, or why there is none. now: Unix seconds."""
        address, proof = fingerprint
        node = self._nodes.get(address)
        if node is None:
            evicted = address in self._ghosts or address in self._old_ghosts
            return Reason.EVICTED if evicted else Reason.FIRST_SEEN
        if node.proof != proof:
            self.mismatches += 1
            return Reason.FIRST_SEEN
        if now >= node.entry.fresh_until:
            self._remove(node)
            return Reason.EXPIRED
        node.marked = True
        return node.entry

    def put(self, fingerprint: Fingerprint, entry: Entry) -> bool:
        """Keep an entry, in place of whatever lies under its address; False if there is no room for it at all."""
        self.discard(fingerprint.address)
        size = ENTRY_BYTES + len(entry.body)
        headers = self._headers.get(entry.headers)
        if headers is not None:
            entry = entry._replace(headers=headers)
        else:
            size_of_headers = sum(FIELD_BYTES + len(name) + len(value) for name, value in entry.headers)
            if size_of_headers <= LARGEST_SHARED and len(self._headers) < HEADERS_SHARED:
                self._headers[entry.headers] = entry.headers
            else:
                size += size_of_headers
        if size > self._room:
            return False
        while self._held + size > self._room:
            self._evict()
        self._ghosts.discard(fingerprint.address)
        self._old_ghosts.discard(fingerprint.address)
        node = _Node(fingerprint, entry, size)
        node.older = self._newest
        if self._newest is None:
            self._oldest = node
        else:
            self._newest.newer = node
        self._newest = node
        self._nodes[node.address] = node
        self._held += size
        return True

    def discard(self, address: _Address) -> None:
        """Forget what lies under an address, if anything does."""
        node = self._nodes.get(address)
        if node is not None:
            self._remove(node)

    def _evict(self) -> None:
        node = self._hand or self._oldest
        assert node is not None  # an empty store has room for whatever may be kept
        while node.marked:
            node.marked = False
            node = node.newer or self._oldest
            assert node is not None
        self._hand = node
        self._remove(node)
        self.evictions += 1
        if self._half_of_ghosts:
            if len(self._ghosts) >= self._half_of_ghosts:
                self._ghosts, self._old_ghosts = set(), self._ghosts
            self._ghosts.add(node.address)

    def _remove(self, node: _Node) -> None:
        if self._hand is node:
            self._hand = node.newer
        if node.newer is None:
            self._newest = node.older
        else:
            node.newer.older = node.older
        if node.older is None:
            self._oldest = node.newer
        else:
            node.older.newer = node.newer
        del self._nodes[node.address]
        self._held -= node.size

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return (
            f"<MemoryStore {len(self)} entries, {self.bytes} of {self.limit} bytes, "
            f"{self.evictions} evicted, {self.mismatches} mismatches>"
        )
