"""Fills: upstream computations on behalf of flights, each a task of its own.

Invariants
    A fill settles or fails every flight it was given, on every exit: nobody waits for a task that is gone.
    A fill whose callers have all left is withdrawn if it still waits in a window; once dispatched it
    goes on for `finish_abandoned`, so that a client that timed out and retries finds its answer.
    What may not be stored is not shared either: the flight's followers try for themselves.

Knows nothing of clients' connections and of how answers are assembled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.batching.batcher import Batcher, QueueFull, Ticket
from proxy.batching.settings import BatchMode, BatchSettings
from proxy.caching import policy
from proxy.caching.entry import Entry
from proxy.caching.policy import CacheSettings
from proxy.caching.single_flight import Flight
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.dispatch import Dispatcher, Done, Job, Refused
from proxy.terms import Fingerprint, Model, Reason
from proxy.upstream.connections import UpstreamError


log = logging.getLogger("forebay.fill")


class Unshared(Exception):
    """The fill's answer belongs to its own caller alone: an error that may quote it, or what may not be stored."""


EXPECTED: Final = (Refused, UpstreamError, QueueFull, Unshared)


@dataclass(slots=True, eq=False)
class Fill:
    """One computation under way for the items that a call leads."""

    job: Job
    flights: Sequence[Flight[Entry]]
    done: Done | None = None
    error: BaseException | None = None
    stored: bool = False
    ticket: Ticket[Done] | None = None
    task: asyncio.Task[None] | None = None
    grace: asyncio.TimerHandle | None = None

    @property
    def abandoned(self) -> bool:
        return all(flight.waiters == 0 for flight in self.flights)

    def __repr__(self) -> str:
        state = "done" if self.done else f"failed {self.error!r}" if self.error else "under way"
        return f"<Fill of {len(self.flights)} items, {state}>"


class Filler:
    """Starts fills and sends calls that need none."""

    def __init__(
        self,
        batcher: Batcher[Job, Done],
        dispatcher: Dispatcher,
        tiers: Tiers,
        uncacheable: Uncacheable,
        *,
        unix_time: Callable[[], float] = time.time,
        jitter: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),
    ) -> None:
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._tiers = tiers
        self._uncacheable = uncacheable
        self._unix_time = unix_time
        self._jitter = jitter
        self._fills: set[Fill] = set()

    async def send(self, job: Job, batch: BatchSettings, model: Model, fill: Fill | None = None) -> Done:
        """The answer to one part: through a window where it may join, else straight to the backend.

        Raises Refused, UpstreamError, QueueFull. Cancelled, it takes the part out of its window.
        """
        call = job.part.call
        if not call.joins or batch.mode is BatchMode.OFF or not self._dispatcher.joinable(job.signature):
            return await self._dispatcher.alone(job)
        ticket = self._batcher.enqueue(
            job,
            size=len(job.part.indexes),
            lane=job.model,
            signature=job.signature,
            settings=batch,
            max_size=min(batch.max_size, model.max_batch_size),
            slots=model.instances,
            route=job.route,
        )
        if fill is not None:
            fill.ticket = ticket
        try:
            return await ticket.result
        except asyncio.CancelledError:
            ticket.withdraw()
            raise

    def start(
        self,
        job: Job,
        flights: Sequence[Flight[Entry]],
        fingerprints: Sequence[Fingerprint],
        *,
        cache: CacheSettings,
        batch: BatchSettings,
        model: Model,
    ) -> Fill:
        """Begin to compute the items of `job` for the flights that lead them, one each, in order."""
        fill = Fill(job, flights)

        async def run() -> None:
            fill.done = await self.send(job, batch, model, fill)
            entries = self.entries(fill.done, cache, model, fingerprints)
            if entries is None:
                raise Unshared
            fill.stored = True
            for flight, fingerprint, entry in zip(flights, fingerprints, entries, strict=True):
                self._tiers.store(fingerprint, entry)
                flight.settle(entry)

        fill.task = asyncio.create_task(run())
        fill.task.add_done_callback(lambda task: self._ended(fill, task))
        self._fills.add(fill)
        for flight in flights:
            flight.on_abandoned(lambda: self._abandoned(fill, cache.finish_abandoned))
        return fill

    def _ended(self, fill: Fill, task: asyncio.Task[None]) -> None:
        """Whatever the end was, nobody is left waiting. A callback, for a task may end before it began."""
        self._fills.discard(fill)
        if fill.grace is not None:
            fill.grace.cancel()
        error = Unshared() if task.cancelled() else task.exception()
        if error is None:
            return
        fill.error = error
        if not isinstance(error, EXPECTED):
            log.error("a fill failed by a fault of Forebay's own", exc_info=error)
        for flight in fill.flights:
            flight.fail(error if isinstance(error, EXPECTED) else Unshared())

    def entries(
        self, done: Done, cache: CacheSettings, model: Model, fingerprints: Sequence[Fingerprint]
    ) -> list[Entry] | None:
        """What of an answer may be kept, one entry per item; None: nothing, and that is remembered."""
        now = self._unix_time()
        lifetime = policy.lifetime(
            done.status,
            done.headers,
            ttl=cache.ttl,
            now=now,
            jitter=self._jitter(),
            identity_known=model.identity.known,
        )
        if isinstance(lifetime, Reason) or done.results is None:
            if 200 <= done.status < 300:
                for fingerprint in fingerprints:
                    self._uncacheable.add(fingerprint.address, now)
            return None
        headers = policy.kept_headers(done.headers)
        return [
            Entry(body=result, headers=headers, created=now, fresh_until=now + lifetime, fill_cost=done.seconds)
            for result in done.results
        ]

    def _abandoned(self, fill: Fill, patience: float) -> None:
        """Every caller of one of the fill's flights has left; if that goes for all of them, let the fill end."""
        assert fill.task is not None
        if not fill.abandoned or fill.task.done():
            return
        if fill.ticket is not None and fill.ticket.dispatched_at is None:
            fill.task.cancel()
        elif fill.grace is None:
            loop = asyncio.get_running_loop()
            fill.grace = loop.call_later(patience, self._give_up, fill)

    def _give_up(self, fill: Fill) -> None:
        fill.grace = None
        if fill.abandoned and fill.task is not None:
            fill.task.cancel()

    async def aclose(self) -> None:
        """End every fill; their flights fail."""
        tasks = [fill.task for fill in self._fills if fill.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<Filler {len(self._fills)} under way>"
