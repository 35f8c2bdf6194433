"""What the backend says of its models, and which weights answer now.

Every model in use is asked for its versions, its config and its counters every `EVERY` seconds. A new
generation starts where there is reason to believe that its weights changed: versions or config differ,
a counter fell or is gone, or counts fewer calls than the backend has answered to Forebay alone, the backend
came back after a connection to it had failed, or a call that loads or unloads models passed through.

Invariants
    Generations strictly increase, from 0, that of a model of which nothing was known before. What was learnt
    before a reason to doubt is not used after it: from then on the model is unknown (None) until it was asked
    again.
    A question that gets no real answer (a time-out, 5xx) changes nothing: a busy backend is not a new one.
    At most `KEPT` models are asked regularly. A name that the backend refuses is asked again after
    `UNLISTED_FOR` seconds at the earliest, and few names are asked at a time: a scan of random names
    neither costs memory nor pushes out the models in use nor floods the backend.

What it does not know: a reload between two polls after which others than Forebay made every counter pass
its old value again; and the route's configured revision (`Identity.revision` stays empty).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Final

from proxy.protocols import v2_metadata
from proxy.terms import Identity, Model
from proxy.upstream.connections import Connections
from proxy.upstream.errors import UpstreamError
from proxy.upstream.health import Health

log = logging.getLogger("forebay.models")

EVERY: Final = 2.0  # seconds between polls of a model in use
WITHIN: Final = 2.0  # seconds that the backend may take over one question
KEPT: Final = 64  # models that are polled; the one unused for longest is forgotten
UNLISTED: Final = 256  # names that are remembered as not listed
UNLISTED_FOR: Final = 10.0  # seconds
PAUSE: Final = 0.25  # seconds without first questions after one that got no real answer
COUNTS_WITHIN: Final = 0.05  # seconds; a backend may answer a call a little before it counts it
_POLLS: Final = 4  # models that one poll asks about at the same time
_ASKING: Final = 8  # names that are being asked about when first questions must wait

_REFUSALS: Final = frozenset({*range(400, 500), 501}) - {408, 425, 429}
"""Statuses by which a backend says that it has no such thing (Triton: 400 for a model it does not know)."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one round of questions found out about a listed model; None where the backend has no such thing.

    served: calls that Forebay knows to have been begun and answered between the round before and this one.
    """

    versions: tuple[str, ...]
    config: bytes | None
    counters: dict[str, int] | None
    served: int = 0

    def doubts(self, before: _Facts) -> str | None:
        """Why other weights may answer now than `before`; None if nothing says so."""
        if self.versions != before.versions:
            return "its versions changed"
        if not _same(self.config, before.config):
            return "its config changed"
        counters = self.counters or {}
        if any(counters.get(name, -1) < count for name, count in (before.counters or {}).items()):
            return "its counters started again"
        if self.misses_calls(before):
            return "it counts fewer calls than it has answered"
        return None

    def misses_calls(self, before: _Facts) -> bool:
        """Were calls since `before` answered that its counters do not show?

        Else a reload would be hidden from a poll by as few calls as the model had answered before the last one.
        """
        counted, were = v2_metadata.answered(self.counters), v2_metadata.answered(before.counters)
        return counted is not None and were is not None and counted < were + self.served


@dataclass(slots=True, eq=False)
class _Record:
    """A listed model in use. `facts` and `model` are None while it must be asked again.

    since: when `facts` came, on `now`. served: calls begun after that, and answered.
    """

    facts: _Facts | None = None
    model: Model | None = None
    since: float = math.inf
    served: int = 0


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
        self._records: OrderedDict[str, _Record] = OrderedDict()  # the least recently used first
        self._unlisted: OrderedDict[str, tuple[float, Model]] = OrderedDict()  # name -> when to ask again, what to say
        self._asking: set[str] = set()
        self._paused_until = -math.inf
        self._generation = 0.0
        self._doubted = False  # something was loaded or forgotten: a name that is not known may have been
        self._doubts = 0  # reasons to doubt so far: what was asked before one is not believed after it
        self._poller: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # questions beside the polls
        health.watch(self._reachable)

    def get(self, name: str) -> Model | None:
        """What is known of a model; None where it has to be asked first, which begins now."""
        record = self._records.get(name)
        if record is not None:
            self._records.move_to_end(name)
            if record.model is None:
                self._seek(name)
            return record.model
        again, model = self._unlisted.get(name, (-math.inf, None))
        if self._now() >= again:
            self._seek(name)
        return model

    def answered(self, name: str, began: float) -> None:
        """The backend has answered, with a success, a call of this model that Forebay sent at `began`, on `now`."""
        record = self._records.get(name)
        if record is not None and began > record.since:
            record.served += 1

    def changed(self, name: str) -> None:
        """A call that loads or unloads this model has passed through; `*`: any model."""
        self._doubted = True
        if name == "*":
            self._doubt(self._records)
            self._unlisted.clear()
            self._spawn(self.poll())
            return
        self._doubt([name])
        self._unlisted.pop(name, None)
        if name in self._records:
            self._seek(name)

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
        few = asyncio.Semaphore(_POLLS)

        async def one(name: str) -> None:
            async with few:
                if name not in self._asking:
                    self._asking.add(name)
                    await self._ask(name)

        await asyncio.gather(*(one(name) for name in list(self._records)))

    async def _run(self) -> None:
        while True:
            await self._sleep(EVERY)
            try:
                await self.poll()
            except Exception:  # a fault of ours must not end the polls: no reload would be seen any more
                log.exception("the models could not be asked")

    def _seek(self, name: str) -> None:
        """Begin to ask about a name that a caller used, unless enough is being asked already."""
        if name not in self._asking and len(self._asking) < _ASKING and self._now() >= self._paused_until:
            self._asking.add(name)
            self._spawn(self._ask(name))

    async def _ask(self, name: str) -> None:
        """One round of questions about one model; `name` is in `_asking` until it is over."""
        in_use = name in self._records
        try:
            facts = await self._answers(name)
        except (_NoNews, UpstreamError):
            self._paused_until = self._now() + PAUSE
            return
        finally:
            self._asking.discard(name)
        if in_use and name not in self._records:
            return  # forgotten meanwhile
        if facts is None:
            self._refused(name)
        else:
            self._learnt(name, facts)

    async def _answers(self, name: str) -> _Facts | None:
        """What the questions find out, asked again if a reason to doubt came up meanwhile."""
        while True:
            doubts = self._doubts
            try:
                facts = await self._questions(name)
            except (_NoNews, UpstreamError):
                if doubts == self._doubts:
                    raise
            else:
                if doubts == self._doubts:
                    return facts

    async def _questions(self, name: str) -> _Facts | None:
        """None where the backend does not list the model. Raises UpstreamError, _NoNews."""
        record = self._records.get(name) or _Record()
        before, served = record.facts, record.served
        metadata = await self._question(v2_metadata.metadata_path(name))
        if metadata is None:
            return None
        config = await self._question(v2_metadata.config_path(name))
        counters = v2_metadata.counters(await self._question(v2_metadata.stats_path(name)))
        facts = _Facts(v2_metadata.versions(metadata), config, counters, served)
        if before is not None and facts.misses_calls(before):
            await self._sleep(COUNTS_WITHIN)
            counters = v2_metadata.counters(await self._question(v2_metadata.stats_path(name)))
            facts = replace(facts, counters=counters)
        return facts

    async def _question(self, path: str) -> bytes | None:
        """The body of a 200; None where the backend has nothing there."""
        answer = await self._connections.ask(path, within=WITHIN)
        if answer.status == 200:
            return answer.body
        if answer.status in _REFUSALS:
            return None
        raise _NoNews

    def _learnt(self, name: str, facts: _Facts) -> None:
        new = self._is_new(name)
        self._unlisted.pop(name, None)
        record = self._records.setdefault(name, _Record())
        before, record.facts = record.facts, facts
        record.since, record.served = self._now(), 0
        if before is not None and record.model is not None:
            if (why := facts.doubts(before)) is None:
                return
            log.info("model %r: %s, its cached answers are not used any more", name, why)
        record.model = _model(name, facts, 0.0 if new else self._next_generation())
        while len(self._records) > KEPT:
            self._records.popitem(last=False)
            self._doubted = True

    def _refused(self, name: str) -> None:
        new = self._is_new(name)
        self._records.pop(name, None)
        _, model = self._unlisted.pop(name, (0.0, None))
        if model is None:
            facts = _Facts((), None, None)
            model = _model(name, facts, 0.0 if new else self._next_generation(), listed=False)
        self._unlisted[name] = (self._now() + UNLISTED_FOR, model)
        while len(self._unlisted) > UNLISTED:
            self._unlisted.popitem(last=False)
            self._doubted = True

    def _is_new(self, name: str) -> bool:
        """Was this name surely not known before?"""
        return not (self._doubted or name in self._records or name in self._unlisted)

    def _next_generation(self) -> float:
        self._generation = max(self._unix_time(), math.nextafter(self._generation, math.inf))
        return self._generation

    def _reachable(self, reachable: bool) -> None:
        """The backend is gone, or another one may have taken its place."""
        self._doubt(self._records)
        self._doubted = self._doubted or bool(self._unlisted)
        self._unlisted.clear()
        if reachable:
            self._paused_until = -math.inf
            self._spawn(self.poll())

    def _doubt(self, names: Iterable[str]) -> None:
        self._doubts += 1
        for name in names:
            if (record := self._records.get(name)) is not None:
                record.facts = record.model = None

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the models could not be asked", exc_info=error)

    def __repr__(self) -> str:
        known = sum(record.model is not None for record in self._records.values())
        asked = len(self._asking)
        return f"<Models {known}/{len(self._records)} known, {len(self._unlisted)} unlisted, {asked} being asked>"


def _model(name: str, facts: _Facts, generation: float, *, listed: bool = True) -> Model:
    said = v2_metadata.model_facts(facts.config)
    known = bool(facts.versions) or facts.counters is not None
    identity = Identity(facts.versions, generation, "", known)
    return Model(name, said.rows, said.max_batch_size, said.instances, identity, listed)


def _same(one: bytes | None, other: bytes | None) -> bool:
    """Do two configs say the same? The order of keys is no one's promise."""
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False
