"""What the backend says of its models, and which weights answer now.

A model is a codec and a name: the codec knows what to ask and what the answers mean. Every model in use is asked
about every `EVERY` seconds. A new generation starts where there is reason to believe that its weights changed:
versions or state differ, a counter fell or is gone, or counts fewer calls than the backend has answered to Forebay
alone, the backend came back after a connection to it had failed, or a call that changes models passed through.

Invariants
    Generations strictly increase, from 0, that of a model of which nothing was known before. What was learnt
    before a reason to doubt is not used after it: from then on the model is unknown (None) until it was asked
    again.
    A question that gets no real answer (a time-out, 5xx) changes nothing: a busy backend is not a new one.
    At most `KEPT` models are asked regularly. A name that the backend does not list is asked again after
    `UNLISTED_FOR` seconds at the earliest, and few names are asked at a time: a scan of random names
    neither costs memory nor pushes out the models in use nor floods the backend. A name longer than `LONGEST`
    characters, as a body may hold, stays unknown.
    Of a codec that asks nothing every model is known at once, as one that the backend does not list.

What it does not know: a reload between two polls after which others than Forebay made every counter pass
its old value again; and the route's configured revision (`Identity.revision` stays empty).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from proxy.protocols.asked import Asked
from proxy.protocols.codec import ANY_NUMBER, Facts
from proxy.terms import Exchange, Identity, Model, Rows
from proxy.upstream.connections import Connections
from proxy.upstream.doubts import misses_calls, reason_to_doubt
from proxy.upstream.errors import UpstreamError
from proxy.upstream.health import Health

log = logging.getLogger("forebay.models")

EVERY: Final = 2.0  # seconds between polls of a model in use
WITHIN: Final = 2.0  # seconds that the backend may take over one question
KEPT: Final = 64  # models that are polled; the one unused for longest is forgotten
UNLISTED: Final = 256  # names that are remembered as not listed
UNLISTED_FOR: Final = 10.0  # seconds
LONGEST: Final = 1024  # characters of a name
PAUSE: Final = 0.25  # seconds without first questions after one that got no real answer
COUNTS_WITHIN: Final = 0.05  # seconds; a backend may answer a call a little before it counts it
_POLLS: Final = 4  # models that one poll asks about at the same time
_ASKING: Final = 8  # names that are being asked about when first questions must wait

_REFUSALS: Final = frozenset({*range(400, 500), 501}) - {408, 425, 429}
"""Statuses by which a backend says that it has no such thing (Triton: 400 for a model it does not know)."""


Key = tuple[str, str]
"""A codec's name and a model's."""

_NOTHING: Final = Facts(Rows.WHOLE, ANY_NUMBER, listed=False)


@dataclass(slots=True, eq=False)
class _Record:
    """A listed model in use. `facts` and `model` are None while it must be asked again.

    since: when `facts` came, on `now`. served: calls begun after that, and answered.
    """

    codec: Asked
    facts: Facts | None = None
    model: Model | None = None
    since: float = math.inf
    served: int = 0


class _Unlisted(NamedTuple):
    """A name that the backend does not list; it may answer to it all the same. again: when to ask next, on `now`."""

    again: float
    facts: Facts
    model: Model


class _Round:
    """The questions of one poll: what the facts about many models are read from is asked once.

    Once more after a reason to doubt: `doubts` counts them.
    """

    def __init__(self, ask: Callable[[str], Coroutine[None, None, Exchange | None]]) -> None:
        self._ask = ask
        self._asked: dict[tuple[str, int], asyncio.Task[Exchange | None]] = {}

    async def answer(self, path: str, doubts: int) -> Exchange | None:
        """None where the backend has nothing there. Raises UpstreamError, _NoNews."""
        asked = self._asked.get((path, doubts))
        if asked is None:
            asked = self._asked[path, doubts] = asyncio.create_task(self._ask(path))
        return await asked


class _NoNews(Exception):
    """The backend was asked and said nothing about the model."""


class Models:
    """One backend's models. `get` never waits; polls run between `start` and `aclose`."""

    def __init__(
        self,
        connections: Connections,
        health: Health,
        *,
        unix_time: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._connections = connections
        self._unix_time = unix_time
        self._now = now
        self._sleep = sleep
        self._records: OrderedDict[Key, _Record] = OrderedDict()  # the least recently used first
        self._unlisted: OrderedDict[Key, _Unlisted] = OrderedDict()
        # Of codecs that ask nothing, of which several may have one name; all have one generation.
        self._unasked: OrderedDict[tuple[Asked, str], Model] = OrderedDict()
        self._unasked_generation = 0.0
        self._asking: set[Key] = set()
        self._paused_until = -math.inf
        self._generation = 0.0
        self._doubted = False  # something was loaded or forgotten: a name that is not known may have been
        self._doubts = 0  # reasons to doubt so far: what was asked before one is not believed after it
        self._poller: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[object]] = set()  # questions beside the polls
        health.watch(self._reachable)

    def get(self, codec: Asked, name: str) -> Model | None:
        """What is known of a model; None where it has to be asked first, which begins now."""
        key = (codec.name, name)
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
            if record.model is None:
                self._seek(codec, name)
            return record.model
        if (unasked := self._unasked.get((codec, name))) is not None:
            self._unasked.move_to_end((codec, name))
            return unasked
        if len(name) > LONGEST:
            return None
        unlisted = self._unlisted.get(key)
        if unlisted is not None:
            self._unlisted.move_to_end(key)
        if unlisted is None and not codec.questions(name):
            return self._without_asking(codec, name)
        if unlisted is None or self._now() >= unlisted.again:
            self._seek(codec, name)
        return unlisted and unlisted.model

    async def learn(self, wanted: Iterable[tuple[Asked, str]]) -> list[Model | None]:
        """What the backend says now of each; None where it cannot say. For who can wait."""
        few, asked = asyncio.Semaphore(_POLLS), _Round(self._question)

        async def one(codec: Asked, name: str) -> Model | None:
            async with few:
                key = (codec.name, name)
                if key in self._asking or not codec.questions(name):
                    return self.get(codec, name)
                self._asking.add(key)
                return await self._ask(codec, name, asked)

        return await asyncio.gather(*(one(codec, name) for codec, name in wanted))

    def answered(self, codec: str, name: str, began: float) -> None:
        """The backend has answered, with a success, a call of this model that Forebay sent at `began`, on `now`."""
        record = self._records.get((codec, name))
        if record is not None and began > record.since:
            record.served += 1

    def changed(self) -> None:
        """A call after which other weights may answer, of whatever model, has passed through."""
        self._doubted = True
        self._doubt()
        self._spawn(self.poll())

    def start(self) -> None:
        assert self._poller is None
        self._poller = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Ask no more."""
        tasks = [*self._tasks, *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def poll(self) -> None:
        """Ask once about every model in use."""
        await self.learn([(record.codec, name) for (_, name), record in self._records.items()])

    def report(self) -> list[dict[str, Any]]:
        """What /config shows: the models in use that are known."""
        return [
            {
                "model": name,
                "codec": codec,
                "rows": model.rows.value,
                "max_batch_size": "any" if model.max_batch_size == ANY_NUMBER else model.max_batch_size,
                "instances": model.instances,
                "identity_known": model.identity.known,
                "versions": list(model.identity.versions),
            }
            for (codec, name), record in self._records.items()
            if (model := record.model) is not None
        ]

    async def _run(self) -> None:
        while True:
            await self._sleep(EVERY)
            try:
                await self.poll()
            except Exception:  # a fault of ours must not end the polls: no reload would be seen any more
                log.exception("the models could not be asked")

    def _without_asking(self, codec: Asked, name: str) -> Model:
        facts = (codec.facts(name, ()) or _NOTHING)._replace(listed=False)
        model = _model(name, facts, self._unasked_generation)
        self._unasked[codec, name] = model
        while len(self._unasked) > UNLISTED:
            self._unasked.popitem(last=False)
        return model

    def _seek(self, codec: Asked, name: str) -> None:
        """Begin to ask about a name that a caller used, unless enough is being asked already."""
        key = (codec.name, name)
        if key not in self._asking and len(self._asking) < _ASKING and self._now() >= self._paused_until:
            self._asking.add(key)
            self._spawn(self._ask(codec, name, _Round(self._question)))

    async def _ask(self, codec: Asked, name: str, asked: _Round) -> Model | None:
        """Ask about one model; it is in `_asking` until that is over. None if there was no answer to be had."""
        key = (codec.name, name)
        in_use = key in self._records
        try:
            found = await self._answers(codec, name, asked)
        except (_NoNews, UpstreamError):
            self._paused_until = self._now() + PAUSE
            return None
        finally:
            self._asking.discard(key)
        if in_use and key not in self._records:
            return None  # forgotten meanwhile
        facts, served = found
        return self._learnt(codec, name, facts, served) if facts.listed else self._refused(key, facts)

    async def _answers(self, codec: Asked, name: str, asked: _Round) -> tuple[Facts, int]:
        """What the questions find out, asked again if a reason to doubt came up meanwhile."""
        while True:
            doubts = self._doubts
            try:
                found = await self._questions(codec, name, asked)
            except (_NoNews, UpstreamError):
                if doubts == self._doubts:
                    raise
            else:
                if doubts == self._doubts:
                    return found

    async def _questions(self, codec: Asked, name: str, asked: _Round) -> tuple[Facts, int]:
        """The facts, and how many calls were served before they were asked for. Raises UpstreamError, _NoNews."""
        record = self._records.get((codec.name, name)) or _Record(codec)
        before, served = record.facts, record.served
        facts = await self._facts(codec, name, asked)
        if before is not None and misses_calls(facts, before, served):
            await self._sleep(COUNTS_WITHIN)
            facts = await self._facts(codec, name, _Round(self._question))
        return facts, served

    async def _facts(self, codec: Asked, name: str, asked: _Round) -> Facts:
        """What the codec makes of the answers. A model that the first one does not list is asked about no further."""
        doubts, paths = self._doubts, codec.questions(name)
        answers: list[Exchange | None] = [None] * len(paths)
        facts: Facts | None = None
        for at, path in enumerate(paths):
            answers[at] = await asked.answer(path, doubts)
            if (facts := codec.facts(name, answers)) is None:
                break
        return facts or _NOTHING

    async def _question(self, path: str) -> Exchange | None:
        """The answer, if it is 200; None where the backend has nothing there. Raises UpstreamError, _NoNews."""
        answer = await self._connections.ask(path, within=WITHIN)
        if answer.status == 200:
            return answer
        if answer.status in _REFUSALS:
            return None
        raise _NoNews

    def _learnt(self, codec: Asked, name: str, facts: Facts, served: int) -> Model:
        key = (codec.name, name)
        new = self._is_new(key)
        self._unlisted.pop(key, None)
        record = self._records.setdefault(key, _Record(codec))
        before, record.facts = record.facts, facts
        record.since, record.served = self._now(), 0
        if before is not None and record.model is not None:
            if (why := reason_to_doubt(facts, before, served)) is None:
                return record.model
            log.info("model %r: %s, its cached answers are not used any more", name, why)
        record.model = _model(name, facts, 0.0 if new else self._next_generation())
        while len(self._records) > KEPT:
            self._records.popitem(last=False)
            self._doubted = True
        return record.model

    def _refused(self, key: Key, facts: Facts) -> Model:
        new = self._is_new(key)
        self._records.pop(key, None)
        before = self._unlisted.pop(key, None)
        if before is not None and reason_to_doubt(facts, before.facts, 0) is None:
            model = before.model
        else:
            model = _model(key[1], facts, 0.0 if new else self._next_generation())
        self._unlisted[key] = _Unlisted(self._now() + UNLISTED_FOR, facts, model)
        while len(self._unlisted) > UNLISTED:
            self._unlisted.popitem(last=False)
            self._doubted = True
        return model

    def _is_new(self, key: Key) -> bool:
        """Was this model surely not known before?"""
        return not (self._doubted or key in self._records or key in self._unlisted)

    def _next_generation(self) -> float:
        self._generation = max(self._unix_time(), math.nextafter(self._generation, math.inf))
        return self._generation

    def _reachable(self, reachable: bool) -> None:
        """The backend is gone, or another one may have taken its place."""
        self._doubted = self._doubted or bool(self._unlisted)
        self._doubt()
        if reachable:
            self._paused_until = -math.inf
            self._spawn(self.poll())

    def _doubt(self) -> None:
        """Nothing that is known of any model holds any more."""
        self._doubts += 1
        for record in self._records.values():
            record.facts = record.model = None
        self._unlisted.clear()
        if self._unasked:
            self._unasked.clear()
            self._unasked_generation = self._next_generation()

    def _spawn(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the models could not be asked", exc_info=error)

    def __repr__(self) -> str:
        known = sum(record.model is not None for record in self._records.values())
        asked = len(self._asking)
        return f"<Models {known}/{len(self._records)} known, {len(self._unlisted)} unlisted, {asked} being asked>"


def _model(name: str, facts: Facts, generation: float) -> Model:
    known = bool(facts.versions) or facts.counters is not None
    identity = Identity(facts.versions, generation, "", known)
    return Model(name, facts.rows, facts.max_batch_size, facts.instances, identity, facts.listed)
