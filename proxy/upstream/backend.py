"""What the backend is: which protocols it speaks, by its own answers. This is what `protocol: auto` goes by.

Every path that a codec probes is asked at start, every `EVERY` seconds, and at once when the backend came back: another
one may have taken its place.

Invariants
    Until the backend has answered, and from its coming back until it has answered again, it speaks nothing that has
    to be found out: such requests pass through.
    A question that gets no real answer (a time-out, 5xx) changes nothing; a refusal is an answer: nothing is there.
    Questions carry nobody's credentials but those of `upstream.authorization`.

Knows nothing of models, routes and what follows from a finding.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from proxy.protocols.codec import Codec, Found
from proxy.terms import Exchange
from proxy.upstream.connections import Connections
from proxy.upstream.errors import UpstreamError
from proxy.upstream.health import Health

log = logging.getLogger("forebay.backend")

EVERY: Final = 10.0  # seconds between polls
AT_FIRST: Final = 1.0  # seconds between polls of a backend that has not answered yet
WITHIN: Final = 2.0  # seconds that the backend may take over one question
_SHOWN: Final = 3  # models of a protocol that the log names
_LONGEST: Final = 40  # characters of a name that are shown

_LOCKED: Final = frozenset({401, 403})
_NO_NEWS: Final = frozenset({408, 425, 429, *range(500, 600)}) - {501}
"""Statuses of a backend that cannot say now. Any other but 200 says that it has no such path."""


class Backend:
    """One backend. Polls run between `start` and `aclose`; everything else answers at once.

    asked: has it answered since it came up, so that what it does not speak is known?
    found: what it speaks, by the codecs' names.
    asks_for_credentials: did it refuse to answer without others than it was shown?
    """

    def __init__(
        self,
        connections: Connections,
        health: Health,
        codecs: Sequence[Codec],
        *,
        changed: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """changed: told when it turns out to be another one than it was."""
        self._connections = connections
        self._health = health
        self._codecs = tuple(codec for codec in codecs if codec.probes)
        self._changed = changed
        self._sleep = sleep
        self.asked = not self._codecs
        self.found: Mapping[str, Found] = {}
        self.asks_for_credentials = False
        self._said = ""  # the last line in the log
        self._comebacks = 0  # what was asked before one is not believed after it
        self._poller: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # polls beside the regular ones
        health.watch(self._reachable)

    def speaks(self, codec: Codec) -> bool:
        """May a request that looks like this codec's be taken for one?"""
        return codec.path_is_proof or not codec.probes or codec.name in self.found

    def start(self) -> None:
        assert self._poller is None
        if self._codecs:
            self._poller = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Ask no more."""
        tasks = [*self._tasks, *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def poll(self) -> None:
        """Ask once what it is."""
        if not self._codecs:
            return
        first, *others = dict.fromkeys(path for codec in self._codecs for path in codec.probes)
        while True:
            comebacks = self._comebacks
            answers = {first: await self._question(first)}
            if not self._health.reachable:
                return  # one question is enough to find nobody there
            answers |= zip(others, await asyncio.gather(*map(self._question, others)), strict=True)
            if comebacks == self._comebacks:
                break
        self._learnt({path: answer for path, answer in answers.items() if answer is not None})

    def report(self) -> dict[str, Any]:
        """What /config shows."""
        return {
            "asked": self.asked,
            "asks_for_credentials": self.asks_for_credentials,
            "found": [
                {"codec": codec.name, "protocol": codec.protocol, "server": found.server, "models": list(found.models)}
                for codec in self._codecs
                if (found := self.found.get(codec.name)) is not None
            ],
        }

    def describe(self) -> str:
        """What it is, in one line."""
        if self.asks_for_credentials:
            shown = self._connections.shows_credentials
            why = "it refuses those of upstream.authorization" if shown else "set upstream.authorization"
            locked = f"the backend asks for credentials: {why}"
        else:
            locked = ""
        if not self.found:
            return locked or "the backend names no protocol that Forebay knows"
        servers: dict[Found, list[str]] = {}
        for codec in self._codecs:
            if (found := self.found.get(codec.name)) is not None:
                servers.setdefault(found, []).append(codec.protocol)
        parts = [
            f"{_named(found)}, which speaks {' and '.join(dict.fromkeys(names))}" for found, names in servers.items()
        ]
        return f"the backend is {'; '.join(parts)}" + (f"; {locked}" if locked else "")

    async def _question(self, path: str) -> Exchange | None:
        """None where it cannot say now."""
        try:
            answer = await self._connections.ask(path, within=WITHIN)
        except UpstreamError:
            return None
        return None if answer.status in _NO_NEWS else answer

    def _learnt(self, answers: Mapping[str, Exchange]) -> None:
        """answers: of those paths that got one."""
        if not answers:
            return
        found = dict(self.found)
        for codec in self._codecs:
            if not all(path in answers for path in codec.probes):
                continue
            said = {path: answers[path] if answers[path].status == 200 else None for path in codec.probes}
            found.pop(codec.name, None)
            if (one := codec.found(said)) is not None:
                found[codec.name] = one
        if self.asked and _said(found) != _said(self.found):
            self._changed()
        self.found, self.asked = found, True
        self.asks_for_credentials = any(answer.status in _LOCKED for answer in answers.values())
        line = self.describe()
        if line != self._said:
            self._said = line
            log.log(logging.WARNING if self.asks_for_credentials else logging.INFO, "%s", line)

    def _reachable(self, reachable: bool) -> None:
        """The backend is gone, or another one may have taken its place."""
        if reachable and self._codecs:
            self.found, self.asked = {}, False
            self._comebacks += 1
            task = asyncio.create_task(self.poll())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:  # a fault of ours must not end the polls
                log.exception("the backend could not be asked what it is")
            await self._sleep(EVERY if self.asked else AT_FIRST)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the backend could not be asked what it is", exc_info=error)

    def __repr__(self) -> str:
        return f"<Backend {', '.join(self.found) or 'unknown'}{'' if self.asked else ', not asked yet'}>"


def shown(name: str) -> str:
    """A name that the backend gave, as a log or a terminal may show it."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _said(found: Mapping[str, Found]) -> dict[str, tuple[str, frozenset[str]]]:
    """What was found, in no order: a list of models has none that anybody promises."""
    return {name: (one.server, frozenset(one.models)) for name, one in found.items()}


def _named(found: Found) -> str:
    """The server and its models in a few words."""
    models = ", ".join(map(shown, found.models[:_SHOWN]))
    more = len(found.models) - _SHOWN
    if more > 0:
        models += f" and {more} more"
    return f"{shown(found.server)} ({models})" if models else shown(found.server)
