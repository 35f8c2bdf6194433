"""From a call that is understood to its answer: the response cache, flights, the backend.

Invariants
    A caller gets the backend's answer to its own bytes, or one assembled from results of items whose
    proof equals that of its own items.
    Whoever leads a flight starts its fill or drops it before anything else happens.
    Up to the memory look-up nothing awaits.

Knows nothing of how a call was recognised and of what happens to a request that is no call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from aiohttp import web

from proxy import cache_status
from proxy.caching.entry import Entry
from proxy.caching.look_ups import LookUp
from proxy.caching.single_flight import Flight, Flights, all_settled
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.dispatch import FOR_EVERYBODY, Done
from proxy.filling import EXPECTED_BY_ALL, Filler
from proxy.http.reply import Reply
from proxy.orders import Order, Visit
from proxy.proofs import Proofs, kind
from proxy.readings import Readings
from proxy.telemetry.catalogue import ItemResult
from proxy.telemetry.metrics import Metrics
from proxy.terms import Fingerprint, Outcome, Reason


class Answers:
    """Answers orders.

    readings: told of what was answered from memory, for it may be asked again. proofs: told of what may prove rows.
    """

    def __init__(
        self,
        *,
        tiers: Tiers,
        uncacheable: Uncacheable,
        filler: Filler,
        readings: Readings,
        proofs: Proofs,
        metrics: Metrics,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._tiers = tiers
        self._uncacheable = uncacheable
        self._filler = filler
        self._readings = readings
        self._proofs = proofs
        self._metrics = metrics
        self._unix_time = unix_time
        self.flights: Flights[Entry] = Flights()

    async def past_cache(self, order: Order) -> web.StreamResponse:
        """Without the response cache: its caller or its route wants no part in it."""
        order.visit.outcome, order.visit.reason = Outcome.BYPASS, Reason.OPTED_OUT
        done = await self._filler.send(order.whole(), order.plan)
        return await self.say(order, done, cache_status.bypassed(Reason.OPTED_OUT))

    async def from_cache(self, order: Order) -> web.StreamResponse:
        """From the response cache what it holds, from flights what is under way, from the backend the rest."""
        fingerprints = order.reading.fingerprints
        now, counts = self._unix_time(), order.visit.route.metrics.items
        found = self._peek(fingerprints, now)
        missing = [place for place, entry in enumerate(found) if isinstance(entry, Reason)]
        in_memory = len(found) - len(missing)
        if missing and self._tiers.redis is not None:
            fetched = await self._tiers.fetch([fingerprints[place] for place in missing], now)
            for place, entry in zip(missing, fetched, strict=True):
                found[place] = self._sooner(fingerprints[place], found[place], entry, now)
            missing = [place for place in missing if isinstance(found[place], Reason)]
        if not missing:
            order.visit.timeline.cache_answered = time.monotonic()
            if (reply := self._hit(order, cast(list[Entry], found), now)) is None:
                counts[ItemResult.MISS].add(len(found))
                return await self.anew(order, Reason.MISFIT)
            counts[ItemResult.MEMORY_HIT].add(in_memory)
            counts[ItemResult.REDIS_HIT].add(len(found) - in_memory)
            if order.read_anew:
                http = order.visit.http
                self._readings.keep(http.method, http.raw_path, http.raw_headers, order.body.data, order.reading)
            return await order.visit.reply(reply)
        reason = next(entry for entry in found if isinstance(entry, Reason))
        if any(self._uncacheable.holds(fingerprints[place].address, now) for place in missing):
            reason = Reason.NO_STORE
        if reason is Reason.NO_STORE or order.call.company:
            counts[ItemResult.MISS].add(len(found))
            return await self.anew(order, reason)
        counts[ItemResult.MEMORY_HIT].add(in_memory)
        counts[ItemResult.REDIS_HIT].add(len(found) - len(missing) - in_memory)
        return await self._missed(order, found, missing, reason)

    async def _missed(
        self,
        order: Order,
        found: list[Entry | Reason],
        missing: Sequence[int],
        reason: Reason,
    ) -> web.StreamResponse:
        """Lead the flights that nobody has begun, follow those that somebody has, and answer when all have ended."""
        visit, counts = order.visit, order.visit.route.metrics.items
        visit.route.metrics.saved_upstream_seconds.add(sum([e.fill_cost for e in found if isinstance(e, Entry)]))
        flights: dict[int, Flight[Entry]] = {}
        led: list[int] = []
        for place in missing:
            flights[place], new = self.flights.lead_or_follow(order.reading.fingerprints[place])
            if new:
                led.append(place)
        counts[ItemResult.MISS].add(len(led))
        counts[ItemResult.COALESCED].add(len(missing) - len(led))
        if not led:
            visit.outcome = Outcome.COALESCED
            visit.timeline.enqueued = time.monotonic()
            await self._follow(visit, flights.values())
            status = cache_status.missed(reason, partial=len(missing) < len(found), collapsed=True, stored=False)
            return await self._gathered(order, found, flights, reason, status)

        visit.outcome, visit.reason = Outcome.MISS, reason
        leading = [flights[place] for place in led]
        try:
            fill = self._filler.start(order.job(tuple(led)), leading, order.plan, order.body)
        except BaseException:
            for flight in leading:  # nobody else will settle them, and whoever asks next must lead anew
                flight.drop()
            raise
        if len(led) < len(missing):
            await self._follow(visit, flights.values())
        else:
            await all_settled(leading)
        status = cache_status.missed(reason, partial=len(missing) < len(found), collapsed=False, stored=fill.stored)
        if fill.done is not None and (fill.done.exchange is not None or visit.streamed is not None):
            return await self.say(order, fill.done, status)
        if fill.done is not None and fill.done.results is not None and flights[led[0]].error is not None:
            own = dict(zip(leading, self._filler.unstored(fill.done), strict=True))
            for place in [place for place, flight in flights.items() if flight in own]:
                found[place] = own[flights.pop(place)]
        return await self._gathered(order, found, flights, reason, status)

    @staticmethod
    async def _follow(visit: Visit, flights: Iterable[Flight[Entry]]) -> None:
        """Wait for what others compute, perhaps beside what this call leads, and say in the timeline until when."""
        since = time.monotonic()
        try:
            await all_settled(flights)
        finally:
            visit.timeline.upstream_end = time.monotonic()
            visit.route.metrics.coalesce_wait.observe(visit.timeline.upstream_end - since)

    async def _gathered(
        self,
        order: Order,
        found: list[Entry | Reason],
        flights: Mapping[int, Flight[Entry]],
        reason: Reason,
        status: bytes,
    ) -> web.StreamResponse:
        """Put in place what settled flights brought; where one brought only its leader's trouble, ask alone, once."""
        for place, flight in flights.items():
            if flight.error is not None and not isinstance(flight.error, EXPECTED_BY_ALL):
                return await self._by_itself(order, reason)
            found[place] = flight.result()
        return await self._assembled(order, cast(list[Entry], found), status)

    async def _by_itself(self, order: Order, reason: Reason) -> web.StreamResponse:
        """Ask with the caller's own bytes, once, whatever others have asked and the cache holds; keep nothing."""
        order.visit.outcome, order.visit.reason = Outcome.MISS, reason
        status = cache_status.missed(reason, partial=False, collapsed=False, stored=False)
        return await self.say(order, await self._filler.send(replace(order.whole(), singly=True), order.plan), status)

    async def anew(self, order: Order, reason: Reason) -> web.StreamResponse:
        """Ask the backend whatever the response cache holds, in a flight of nobody; keep what may be kept."""
        visit = order.visit
        visit.outcome, visit.reason = Outcome.MISS, reason
        done = await self._filler.send(order.whole(), order.plan)
        entries = self._filler.store(done, order.reading.fingerprints, order.plan, visit.route.settings.id)
        stored = entries is not None and entries.kept
        status = cache_status.missed(reason, partial=False, collapsed=False, stored=stored)
        return await self.say(order, done, status)

    @staticmethod
    def _hit(order: Order, entries: Sequence[Entry], now: float) -> Reply | None:
        """The answer where every item is in the response cache; None if they do not fit together."""
        made = order.reading.codec.answer(order.call, [entry.body for entry in entries])
        if made is None:
            return None
        visit = order.visit
        visit.outcome = Outcome.HIT
        visit.route.metrics.saved_upstream_seconds.add(sum([entry.fill_cost for entry in entries]))
        ttl = min([entry.fresh_until for entry in entries]) - now
        age = cache_status.age(min([entry.created for entry in entries]), now)
        added = ((cache_status.CACHE_STATUS, cache_status.hit(ttl)), (cache_status.AGE, age))
        return Reply(200, entries[0].headers + made.fields + added, made.body)

    async def _assembled(self, order: Order, entries: Sequence[Entry], status: bytes) -> web.StreamResponse:
        """An answer made of items from here and there."""
        made = order.reading.codec.answer(order.call, [entry.body for entry in entries])
        if made is None:
            return await self._by_itself(order, Reason.MISFIT)
        headers = (*entries[0].headers, *made.fields, (cache_status.CACHE_STATUS, status))
        if (oldest := min(entry.created for entry in entries)) < self._unix_time() - 1:
            headers += ((cache_status.AGE, cache_status.age(oldest, self._unix_time())),)
        return await order.visit.reply(Reply(200, headers, made.body))

    async def say(self, order: Order, done: Done, status: bytes) -> web.StreamResponse:
        """Give the caller the backend's own answer, or its part of a joined one."""
        if order.visit.streamed is not None:
            return order.visit.streamed
        exchange = done.exchange
        if exchange is not None and (trial := order.reading.trial) is not None:
            plan, seconds = order.plan, done.seconds * len(order.call.items)
            of = kind(order.reading.codec, plan, order.visit.path, trial)
            most = min(plan.batch.max_size, plan.by_items.max_batch_size)
            self._proofs.answered(order.trial(trial), of, exchange, seconds, most=most)
        if exchange is None:
            assert done.results is not None, "a joined answer splits or its members are replayed"
            return await self._assembled(order, self._filler.unstored(done), status)
        if exchange.status >= 500 or exchange.status in FOR_EVERYBODY:
            order.visit.outcome = Outcome.UPSTREAM_ERROR
        headers = (*exchange.headers, (cache_status.CACHE_STATUS, status))
        return await order.visit.reply(Reply(exchange.status, headers, exchange.body, exchange.reason))

    def _peek(self, fingerprints: Sequence[Fingerprint], now: float) -> list[Entry | Reason]:
        started = time.perf_counter()
        found = [self._tiers.peek(fingerprint, now) for fingerprint in fingerprints]
        each = (time.perf_counter() - started) / len(found)
        observe = self._metrics.memory_lookups
        for entry in found:
            observe[LookUp.MISS if isinstance(entry, Reason) else LookUp.HIT].observe(each)
        return found

    def _sooner(
        self, fingerprint: Fingerprint, memory: Entry | Reason, redis: Entry | Reason, now: float
    ) -> Entry | Reason:
        """What Redis said of an item that memory lacked, unless memory holds it by now or knows better why not."""
        if isinstance(redis, Entry):
            return redis
        if isinstance(came := self._tiers.peek(fingerprint, now), Entry):  # another's fill ended meanwhile
            return came
        if redis is Reason.FIRST_SEEN and memory in (Reason.EXPIRED, Reason.EVICTED):
            return memory
        return redis

    def __repr__(self) -> str:
        return f"<Answers {self.flights!r}, {self._tiers!r}, {self._filler!r}>"
