"""The response cache as its users see it: memory first, then the Redis that replicas share, if there is one.

Invariants
    What is given is fresh at the `now` that was asked with, whichever tier had it.
    What Redis had is in memory afterwards, unless memory came to hold a newer entry meanwhile: then that counts.
    What is stored goes to both tiers, and the answer waits for neither.
    A miss says why: REDIS_DOWN only where Redis could not be asked.

Knows no route, no tenant and no flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.caching.entry import Entry
from proxy.caching.memory_store import MemoryStore
from proxy.caching.redis_store import RedisStore
from proxy.terms import Fingerprint, Reason


class Tiers:
    """now, everywhere: Unix seconds."""

    def __init__(self, memory: MemoryStore, redis: RedisStore | None = None) -> None:
        self.memory = memory
        self.redis = redis

    def peek(self, fingerprint: Fingerprint, now: float) -> Entry | Reason:
        """What this process holds, or why it holds nothing."""
        return self.memory.get(fingerprint, now)

    async def fetch(self, fingerprints: Sequence[Fingerprint], now: float) -> list[Entry | Reason]:
        """What Redis holds, or why there is nothing; for what `peek` did not find.

        Raises nothing, and takes at most 100 ms (no time at all while Redis is down).
        """
        if self.redis is None:
            return [Reason.FIRST_SEEN] * len(fingerprints)
        answers = await self.redis.get_many(fingerprints)
        for place, (fingerprint, answer) in enumerate(zip(fingerprints, answers, strict=True)):
            if isinstance(answer, Reason):
                continue
            held = self.memory.get(fingerprint, now)
            if isinstance(held, Entry) and held.created >= answer.created:
                answers[place] = held
            elif now < answer.fresh_until:
                self.memory.put(fingerprint, answer)
            else:
                answers[place] = Reason.EXPIRED
        return answers

    def store(self, fingerprint: Fingerprint, entry: Entry) -> bool:
        """Keep an entry; False if no tier has room for it now."""
        kept = self.memory.put(fingerprint, entry)
        if self.redis is not None:
            self.redis.put(fingerprint, entry)
            kept = kept or self.redis.up
        return kept

    def __repr__(self) -> str:
        return f"<Tiers {self.memory}, {self.redis or 'no Redis'}>"
