"""Which items are known to have answers that may not be stored.

For a while identical requests for them go straight to the backend: behind a flight they would wait for
an answer that they may not share.

Invariants
    At most `most` addresses are held, each for `lifetime` seconds from its last `add`; the longest held goes first.

Knows no clock and no proofs: after a collision an item goes unshared for a while, which is slower, never wrong.
"""

from __future__ import annotations


class Uncacheable:
    """Addresses with the time at which each is forgotten."""

    def __init__(self, *, most: int = 4096, lifetime: float = 60.0) -> None:
        assert most > 0
        self._most = most
        self._lifetime = lifetime
        self._until: dict[bytes, float] = {}

    def add(self, address: bytes, now: float) -> None:
        """Remember that the answer of this item could not be stored just now."""
        self._until.pop(address, None)
        if len(self._until) >= self._most:
            del self._until[next(iter(self._until))]
        self._until[address] = now + self._lifetime

    def holds(self, address: bytes, now: float) -> bool:
        """Is it known, and not too long ago, that this item's answer may not be stored?"""
        until = self._until.get(address)
        if until is None:
            return False
        if now < until:
            return True
        del self._until[address]
        return False

    def __len__(self) -> int:
        return len(self._until)

    def __repr__(self) -> str:
        return f"<Uncacheable {len(self)} of {self._most} addresses, {self._lifetime:g} s each>"
