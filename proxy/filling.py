"""Fills: upstream computations on behalf of flights, each a task of its own.

Invariants
    A fill settles or fails every flight it was given, on every exit: nobody waits for a task that is gone.
    A fill whose callers have all left is withdrawn if it still waits in a window; once dispatched it has
    `finish_abandoned` left, so that a client that timed out and retries finds its answer.
    At most `ABANDONED` fills go on for nobody; beyond that the longest abandoned ends.
    What may not be stored is not shared either: the flight's followers try for themselves.

Knows nothing of clients' connections and of how answers are assembled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from proxy.batching.batcher import Batcher, QueueFull, Ticket
from proxy.batching.settings import BatchMode, BatchSettings
from proxy.caching import policy
from proxy.caching.entry import Entry
from proxy.caching.fingerprint import Tenant
from proxy.caching.policy import CacheSettings
from proxy.caching.single_flight import Fleet, Flight
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.dispatch import ASK_ALONE, FOR_EVERYBODY, AskAlone, Dispatcher, Done, Job, Refused, refused
from proxy.http.body import Body
from proxy.telemetry.catalogue import StoreResult
from proxy.terms import Fingerprint, Identity, Model, Reason, Rows
from proxy.upstream.connections import UpstreamError

log = logging.getLogger("forebay.fill")


ABANDONED: Final = 256


class Unshared(Exception):
    """The fill's answer belongs to its own caller alone: an error that may quote it, or what may not be stored."""


EXPECTED_BY_ALL: Final = (Refused, UpstreamError, QueueFull)
"""What a caller and all who follow it get alike; after any other error a follower tries for itself."""

EXPECTED: Final = (*EXPECTED_BY_ALL, Unshared)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a call is treated: its route's settings, and what is known of its model.

    alone: the settings under which no two parts share a batch. slots: batches of the model at the backend at once.
    tenant: whose answers are whose.
    rows: whether the items of its calls are independent, by the route's word or else the backend's.
    by_items, entire: the model as a codec is told of it, to read a call item by item or whole.
    """

    cache: CacheSettings
    batch: BatchSettings
    alone: BatchSettings
    tenant: Tenant
    model: Model
    identity: Identity
    slots: int
    rows: Rows
    by_items: Model
    entire: Model


class Entries(NamedTuple):
    """An answer, one entry per item. kept: all of them went into the response cache."""

    of_items: list[Entry]
    kept: bool


@dataclass(slots=True, eq=False)
class Fill:
    """One computation under way for the items that a call leads: `flights`, one for each index of the job's part.

    done: what came of it, also where it may not be shared. stored: the results went into the response cache.
    """

    job: Job
    flights: Sequence[Flight[Entry]]
    body: Body
    patience: float
    done: Done | None = None
    stored: bool = False
    ticket: Ticket[Done | AskAlone] | None = None
    task: asyncio.Task[None] | None = None
    grace: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Fill of {len(self.flights)} items, {'done' if self.done else 'under way'}>"


class Filler:
    """Starts fills and sends calls that need none."""

    def __init__(
        self,
        batcher: Batcher[Job, Done | AskAlone],
        dispatcher: Dispatcher,
        tiers: Tiers,
        uncacheable: Uncacheable,
        *,
        observe: Callable[[str, StoreResult, int], None],
        unix_time: Callable[[], float] = time.time,
        jitter: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),
    ) -> None:
        """observe: told of every answer by its route, whether it was stored, and its items."""
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._tiers = tiers
        self._uncacheable = uncacheable
        self._observe = observe
        self._unix_time = unix_time
        self._jitter = jitter
        self._fills: set[Fill] = set()
        self._for_nobody: dict[Fill, None] = {}  # the longest abandoned first

    async def send(self, job: Job, plan: Plan, fill: Fill | None = None) -> Done:
        """The answer to one part. Joinable items take a slot, in company or alone; what never joins takes none.

        Raises Refused, UpstreamError, QueueFull. Cancelled, it takes the part out of its window.
        """
        if not job.part.call.joins or plan.batch.mode is BatchMode.OFF:
            return await self._dispatcher.alone(job)
        if not self._dispatcher.joinable(job.signature):
            job = replace(job, singly=True)
        answer = await self._ride(job, plan, fill)
        if answer is ASK_ALONE:
            answer = await self._ride(replace(job, singly=True), plan, fill)
        assert isinstance(answer, Done), "what travels singly is never asked to"
        return answer

    async def _ride(self, job: Job, plan: Plan, fill: Fill | None) -> Done | AskAlone:
        """Wait for a slot, and for company where it may have some."""
        ticket = self._batcher.enqueue(
            job,
            size=job.size,
            lane=job.lane,
            signature=job.signature,
            settings=plan.alone if job.singly else plan.batch,
            max_size=plan.by_items.max_batch_size,
            slots=plan.slots,
            route=job.route,
        )
        job.timeline.enqueued = ticket.enqueued_at
        if fill is not None:
            fill.ticket = ticket
        return await ticket.result

    def start(self, job: Job, flights: Sequence[Flight[Entry]], plan: Plan, body: Body) -> Fill:
        """Begin to compute the items of `job` for the flights that lead them, one each, in order.

        body: the caller's own, which the fill may hold longer than the caller stays.
        """
        fill = Fill(job, flights, body, plan.cache.finish_abandoned)
        body.hold()

        async def run() -> None:
            fill.done = await self.send(job, plan, fill)
            entries = self.store(fill.done, [flight.fingerprint for flight in flights], plan, job.route)
            if entries is None:
                done = fill.done
                raise refused(done.status, done.headers) if done.status in FOR_EVERYBODY else Unshared
            fill.stored = entries.kept
            for flight, entry in zip(flights, entries.of_items, strict=True):
                flight.settle(entry)

        Fleet(flights, lambda: self._abandoned(fill))  # the flights hold it; the fill too would be a cycle
        fill.task = asyncio.create_task(run())
        fill.task.add_done_callback(lambda task: self._ended(fill, task))
        self._fills.add(fill)
        return fill

    def _ended(self, fill: Fill, task: asyncio.Task[None]) -> None:
        """Whatever the end was, nobody is left waiting. A callback, for a task may end before it began."""
        self._fills.discard(fill)
        self._for_nobody.pop(fill, None)
        fill.body.release()
        if fill.grace is not None:
            fill.grace.cancel()
        error = Unshared() if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, EXPECTED):
            log.error("a fill failed by a fault of Forebay's own", exc_info=error)
        for flight in fill.flights:
            flight.fail(error if isinstance(error, EXPECTED) else Unshared())

    def store(self, done: Done, fingerprints: Sequence[Fingerprint], plan: Plan, route: str) -> Entries | None:
        """Keep what of an answer may be kept; None: nothing, nor may it be shared, which is remembered of a 2xx."""
        now = self._unix_time()
        lifetime = policy.lifetime(
            done.status,
            done.headers,
            ttl=plan.cache.ttl,
            now=now,
            jitter=self._jitter(),
            identity_known=plan.identity.known,
            tenant=plan.tenant,
        )
        if isinstance(lifetime, Reason) or done.results is None:
            self._observe(route, StoreResult.NO_STORE, len(fingerprints))
            if 200 <= done.status < 300:
                for fingerprint in fingerprints:
                    self._uncacheable.add(fingerprint.address, now)
            return None
        headers, made = policy.kept_headers(done.headers), now - policy.age(done.headers)
        entries = [
            Entry(body=result, headers=headers, created=made, fresh_until=now + lifetime, fill_cost=done.seconds)
            for result in done.results
        ]
        kept = sum(self._tiers.store(*pair) for pair in zip(fingerprints, entries, strict=True))
        self._observe(route, StoreResult.STORED, kept)
        self._observe(route, StoreResult.NO_STORE, len(entries) - kept)
        return Entries(entries, kept == len(entries))

    def unstored(self, done: Done) -> list[Entry]:
        """The results of an answer that splits, as entries that were never stored."""
        assert done.results is not None
        now, headers = self._unix_time(), policy.kept_headers(done.headers)
        return [Entry(result, headers, created=now, fresh_until=now, fill_cost=done.seconds) for result in done.results]

    def _abandoned(self, fill: Fill) -> None:
        """Every caller has left; a fill that still waits in its window ends, another has some patience left."""
        assert fill.task is not None
        if fill.ticket is not None and fill.ticket.dispatched_at is None:
            fill.task.cancel()
            for flight in fill.flights:
                flight.drop()  # now, not when the task has ended: whoever asks next must lead anew
        elif fill.grace is None and not fill.task.done():
            fill.grace = asyncio.get_running_loop().call_later(fill.patience, self._give_up, fill)
            self._for_nobody[fill] = None
            if len(self._for_nobody) > ABANDONED:
                self._give_up(next(iter(self._for_nobody)))

    def _give_up(self, fill: Fill) -> None:
        """Its time is over, counted from when it was first abandoned; whoever waits again by now asks alone.

        Else one that hangs would hold its item, and a slot, for as long as anybody retries.
        """
        assert fill.task is not None
        self._for_nobody.pop(fill, None)
        fill.task.cancel()

    async def aclose(self) -> None:
        """End every fill; their flights fail."""
        tasks = [fill.task for fill in self._fills if fill.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<Filler {len(self._fills)} under way>"
