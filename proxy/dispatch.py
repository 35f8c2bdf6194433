"""A batch's way: join, send, split; and its members one by one where that did not work.

What happens when, in this order
    1. A part that is its whole call and rides alone travels as the caller's own bytes and fields, and
       the backend's own answer goes back, whatever its status.
       An answer too large to be held is streamed to the caller, and shared with nobody.
    2. Several parts, or the missing items of a call, travel as one body that the codec joins. A 2xx
       answer that splits gives each part its item results.
    3. An answer that does not split: each member is sent singly with its own bytes. Three such answers,
       or three by which the backend serves no such thing (`NOT_SERVED`), make the signature unjoinable for a minute.
    4. A refusal that may be one member's fault (400, 413, 422, 500 and every other status but those
       below): the members singly. Nobody gets the joint text, which may quote another caller.
    5. 429, 502, 503, 504, and an exchange that failed: the same to every member, with no further try.
       A joined request that timed out makes its signature unjoinable for a minute.
To be sent singly is each member's own affair (`ASK_ALONE`): it waits for a slot like any call, and neither waits
for another member nor is cancelled with it. It costs what the caller would have cost without Forebay, once.
The slot is given back as soon as the batch's own exchange has ended.

Knows nothing of fingerprints, flights or clients' connections.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from proxy.batching.batcher import Batch, Slot
from proxy.caching.fingerprint import IGNORED
from proxy.http.headers import get, to_backend
from proxy.http.limits import Buffered
from proxy.protocols.codec import Codec, Joined, Message, Part
from proxy.terms import Exchange, Failure, Headers, Timeline
from proxy.upstream.connections import Answer, Connections, UpstreamError

log = logging.getLogger("forebay.dispatch")

FOR_EVERYBODY: Final = frozenset({429, 502, 503, 504})
"""Statuses that speak of the backend, not of a request: replaying members would only add load."""

NOT_SERVED: Final = frozenset({404, 405, 501})
"""Statuses by which a backend says that what was asked together is nothing that it serves: a wrong batch path, say."""

STRIKES: Final = 3
UNJOINABLE_FOR: Final = 60.0  # seconds
_SIGNATURES: Final = 1024  # signatures with strikes that are remembered; the oldest is forgotten


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The part of one call that goes to the backend, with everything that sending it takes.

    body, fields: the caller's, as they came. host: the backend's own.
    timeline: the request's own, on the dispatcher's clock.
    asked: who knows the model, by name (`protocols/asked.py`).
    singly: it travels as the caller's own bytes and never in company, whatever its part.
    stream: takes over an answer to the caller's own bytes that is too large to be held: what came of it, then the rest.
    """

    codec: Codec
    part: Part
    asked: str
    model: str
    route: str
    target: str
    body: bytes
    fields: Headers
    host: bytes
    signature: bytes
    timeline: Timeline
    stream: Callable[[Answer, Sequence[bytes]], Awaitable[None]]
    singly: bool = False

    @property
    def lane(self) -> tuple[str, str]:
        """What its slots are slots of: a model as one codec knows it, or a route where nothing has a name."""
        return self.asked, self.model or self.route

    @property
    def size(self) -> int:
        """Items that the backend is asked for."""
        return len(self.part.call.items) if self.singly else len(self.part.indexes)

    @property
    def own(self) -> Headers:
        """The caller's end-to-end fields. Made when they are needed: of a batch, only the first member's are."""
        return to_backend(self.fields, host=self.host, identity=True)

    def joined_target(self, joined: Joined) -> str:
        """Where a joined request goes: another path perhaps, with the query that all its members have."""
        if joined.path is None:
            return self.target
        _, mark, query = self.target.partition("?")
        return joined.path + mark + query

    @property
    def joined(self) -> Headers:
        """Fields for a joined request: none that the key ignores (a trace, say), for those are one caller's."""
        return tuple(
            h
            for h in self.own
            if (name := h[0].lower()) in _REQUIRED or (name not in IGNORED and name != b"content-encoding")
        )


_REQUIRED: Final = frozenset({b"host", b"accept-encoding"})


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a job.

    results: one per index of its part; None where the answer cannot be shared between callers.
    exchange: the backend's answer to the caller's own bytes; None where the part travelled joined, and where
        the answer was streamed: then there are no results either.
    status, headers: of the upstream answer. seconds: upstream time per item.
    """

    results: Sequence[bytes] | None
    exchange: Exchange | None
    status: int
    headers: Headers
    seconds: float


class AskAlone(Enum):
    """What a member of a joined request gets that has to be sent singly."""

    ASK_ALONE = 1


ASK_ALONE: Final = AskAlone.ASK_ALONE


class Refused(Exception):
    """The same answer for everybody in a batch: `status` in the protocol's shape, no further try."""

    def __init__(self, status: int, message: str, *, retry_after: bytes | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def refused(status: int, headers: Headers) -> Refused:
    """A refusal that speaks of the backend (`FOR_EVERYBODY`), as everybody who shares the exchange gets it."""
    retry_after = get(headers, b"retry-after")
    return Refused(status, f"the backend answered {status} to a shared request", retry_after=retry_after)


class Room:
    """How much of an answer is held to be read: `limits.parse` a call, while `limits.buffered` has room."""

    def __init__(self, largest: int, buffered: Buffered) -> None:
        self._largest = largest
        self._buffered = buffered

    async def read(self, answer: Answer, *, parts: int) -> tuple[list[bytes], bool]:
        """The body in pieces, and whether that is all of it. Raises UpstreamError."""
        pieces: list[bytes] = []
        held = 0
        try:
            async for piece in answer.chunks():
                pieces.append(piece)
                if held + len(piece) > self._largest * parts or not self._buffered.take(len(piece)):
                    return pieces, False
                held += len(piece)
            return pieces, True
        finally:
            self._buffered.give(held)

    def __repr__(self) -> str:
        return f"<Room for {self._largest} bytes of an answer, {self._buffered!r}>"


class Observer(Protocol):
    """What a dispatcher tells of itself; `reason` is not_split, refused or timeout."""

    def split(self, route: str, reason: str) -> None: ...


class Dispatcher:
    """Carries batches and single calls to the backend."""

    def __init__(
        self,
        connections: Connections,
        observe: Observer,
        now: Callable[[], float],
        room: Room,
        answered: Callable[[str, str, float], None],
    ) -> None:
        """room: for answers while they are read.

        answered: told of every success: who knows the model, its name, and when on `now` it was asked for.
        """
        self._connections = connections
        self._observe = observe
        self._now = now
        self._room = room
        self._answered = answered
        self._numbers = itertools.count(1)
        self._strikes: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # signature -> strikes, unjoinable until

    def joinable(self, signature: bytes) -> bool:
        """Whether calls of this signature may ride together now."""
        strikes, until = self._strikes.get(signature, (0, 0.0))
        if strikes >= STRIKES and self._now() >= until:
            del self._strikes[signature]
            return True
        return strikes < STRIKES

    async def send(self, batch: Batch[Job], slot: Slot) -> Sequence[Done | AskAlone | BaseException]:
        """One outcome per part of the batch, in its order. Raises nothing but cancellation."""
        jobs = batch.parts
        if len(jobs) > 1 or not (jobs[0].singly or jobs[0].part.whole):
            return await self._together(jobs, batch.items, slot)
        try:
            done = await self.alone(jobs[0], slot)
        except UpstreamError as error:
            slot.release(ok=False)
            return [error]
        slot.release(ok=done.status < 300)
        return [done]

    async def alone(self, job: Job, slot: Slot | None = None) -> Done:
        """The whole call with the caller's own bytes. Raises UpstreamError."""
        job.timeline.dispatched = started = self._now()
        call = job.part.call
        results: Sequence[bytes] | None = None
        exchange: Exchange | None = None
        async with self._connections.open(
            "POST", job.target, job.own, job.body, retriable=True, timeline=job.timeline
        ) as answer:
            pieces, whole = await self._room.read(answer, parts=1)
            if whole:
                exchange = Exchange(answer.status, answer.reason, answer.headers, b"".join(pieces))
            else:
                if slot is not None:  # the model is done with it; how fast the caller reads is its own affair
                    slot.release(ok=answer.status < 300)
                await job.stream(answer, pieces)
        if answer.status < 300:
            self._answered(job.asked, job.model, started)
        if exchange is not None and _splittable(exchange):
            asked = Part(call, tuple(range(len(call.items))))
            split = job.codec.split(Message(exchange.body, exchange.headers), [asked], None)
            if split is not None:
                results = [split[0][i] for i in job.part.indexes]
        return Done(results, exchange, answer.status, answer.headers, (self._now() - started) / len(call.items))

    async def _together(self, jobs: Sequence[Job], items: int, slot: Slot) -> Sequence[Done | AskAlone | BaseException]:
        first, started = jobs[0], self._now()
        for job in jobs:
            job.timeline.dispatched = started
        try:
            exchange, split = await self._joined(jobs, [started - job.timeline.head_parsed for job in jobs])
        except UpstreamError as error:
            slot.release(ok=False)
            if error.failure is Failure.TIMEOUT and len(jobs) > 1:
                self._observe.split(first.route, "timeout")
                self._part_ways(first.signature, STRIKES)
            return [error] * len(jobs)
        slot.release(ok=exchange.status < 300)
        ended = self._now()
        seconds = (ended - started) / items
        for job in jobs:
            job.timeline.upstream_end = ended

        if exchange.status in FOR_EVERYBODY:
            return [refused(exchange.status, exchange.headers)] * len(jobs)
        if split is not None:
            self._strikes.pop(first.signature, None)
            return [Done(results, None, exchange.status, exchange.headers, seconds) for results in split]
        if exchange.status < 300:
            self._observe.split(first.route, "not_split")
            self._part_ways(first.signature, 1)
        else:
            self._observe.split(first.route, "refused")
            if exchange.status in NOT_SERVED:
                self._part_ways(first.signature, 1)
        return [ASK_ALONE] * len(jobs)

    async def shadow(self, jobs: Sequence[Job]) -> tuple[int, list[list[bytes]] | None]:
        """Jobs that were answered alone, sent once more together: the status, and the results of each if it splits.

        It takes no slot and leaves no strike. Raises UpstreamError.
        """
        exchange, split = await self._joined(jobs, [0.0] * len(jobs))
        return exchange.status, split

    async def _joined(self, jobs: Sequence[Job], waited: Sequence[float]) -> tuple[Exchange, list[list[bytes]] | None]:
        """One request for all of them: its answer, and what that splits into, if it does. Raises UpstreamError."""
        first, parts = jobs[0], [job.part for job in jobs]
        request_id, started = f"forebay-{next(self._numbers)}", self._now()
        joined = first.codec.join(parts, request_id, waited)
        async with self._connections.open(
            "POST", first.joined_target(joined), first.joined + joined.fields, joined.body, retriable=True
        ) as answer:
            pieces, whole = await self._room.read(answer, parts=len(jobs))
        exchange = Exchange(answer.status, answer.reason, answer.headers, b"".join(pieces))
        if exchange.status < 300:
            self._answered(first.asked, first.model, started)
        if not whole or not _splittable(exchange):
            return exchange, None
        return exchange, first.codec.split(Message(exchange.body, exchange.headers), parts, request_id)

    def _part_ways(self, signature: bytes, strikes: int) -> None:
        """Count joined requests that went wrong by being joined; `STRIKES` of them end joining for a while."""
        count = self._strikes.pop(signature, (0, 0.0))[0] + strikes
        self._strikes[signature] = (count, self._now() + UNJOINABLE_FOR)
        if count >= STRIKES:
            log.warning("joining does not work for signature %s: it rides alone for a minute", signature.hex()[:12])
        if len(self._strikes) > _SIGNATURES:
            self._strikes.popitem(last=False)

    def __repr__(self) -> str:
        apart = sum(strikes >= STRIKES for strikes, _ in self._strikes.values())
        return f"<Dispatcher {apart} signatures apart>"


def _splittable(exchange: Exchange) -> bool:
    return exchange.status == 200 and get(exchange.headers, b"content-encoding") is None
