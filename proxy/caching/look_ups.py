"""Look-ups in a shared store that are under way: gathered for those who ask it, answered once, and in time.

Invariants
    Every look-up is answered at most `ANSWER_WITHIN` seconds after it was made, whatever the store does;
    no answer is an exception.
    Keys are handed out once, in the order in which they came; a key whose caller has gone is not handed out.
    A caller that is cancelled takes only itself out.

Knows no store and no connection: `redis_store.py` takes keys, asks for them and answers them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from proxy.caching.entry import Entry
from proxy.terms import Fingerprint, Reason

ANSWER_WITHIN: Final = 0.100
OVERSLEPT: Final = 0.020  # a timer this late tells that our own loop stood still: the answer may be here, unread


class LookUp(StrEnum):
    """What became of one key; the `result` label of `forebay_cache_lookup_duration_seconds`."""

    HIT = "hit"
    MISS = "miss"
    CORRUPT = "corrupt"  # something lies there, and it is not this fingerprint's entry
    ERROR = "error"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"  # not asked: the store was down

    __hash__ = str.__hash__  # Enum's own is a Python function, and every look-up asks


class LookUpObserver(Protocol):
    def lookup(self, seconds: float, result: LookUp) -> None:
        """One key was looked up. Must not raise."""


class _Question:
    """One call: its keys may travel apart, and it is answered once."""

    __slots__ = ("answers", "asked", "fingerprints", "future", "missing")

    def __init__(self, fingerprints: Sequence[Fingerprint], future: asyncio.Future[list[Entry | Reason]]) -> None:
        self.fingerprints = fingerprints
        self.future = future
        self.answers: list[Entry | Reason] = [Reason.REDIS_DOWN] * len(fingerprints)
        self.missing = len(fingerprints)
        self.asked = time.monotonic()


class Key(NamedTuple):
    """One fingerprint of a call, to be asked for."""

    question: _Question
    place: int

    @property
    def fingerprint(self) -> Fingerprint:
        return self.question.fingerprints[self.place]


class LookUps:
    def __init__(self, observe: LookUpObserver) -> None:
        self._observe = observe
        self._waiting: deque[_Question] = deque()  # oldest first; what is answered leaves when it is at the front
        self._keys: asyncio.Queue[Key] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, fingerprints: Sequence[Fingerprint]) -> asyncio.Future[list[Entry | Reason]]:
        """An entry, FIRST_SEEN or REDIS_DOWN for each."""
        loop = asyncio.get_running_loop()
        question = _Question(fingerprints, loop.create_future())
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        self._waiting.append(question)
        if self._timer is None:
            self._wake_in(ANSWER_WITHIN, due=question.asked + ANSWER_WITHIN)
        for place in range(len(fingerprints)):
            self._keys.put_nowait(Key(question, place))
        return question.future

    def skip(self, fingerprints: Sequence[Fingerprint]) -> asyncio.Future[list[Entry | Reason]]:
        """The answer where nobody can be asked, at once."""
        question = _Question(fingerprints, asyncio.get_running_loop().create_future())
        for _ in fingerprints:
            self._observe.lookup(0.0, LookUp.SKIPPED)
        question.future.set_result(question.answers)
        return question.future

    async def take(self, most: int) -> list[Key]:
        """Wait for a key; with it come the others of this turn of the loop, and those that had to wait."""
        while True:
            keys = [await self._keys.get()]
            while len(keys) < most and not self._keys.empty():
                keys.append(self._keys.get_nowait())
            if wanted := [key for key in keys if not key.question.future.done()]:
                return wanted

    def answer(self, key: Key, result: LookUp, found: Entry | None) -> None:
        question = key.question
        if question.future.done():
            return
        self._observe.lookup(time.monotonic() - question.asked, result)
        question.answers[key.place] = Reason.FIRST_SEEN if found is None else found
        question.missing -= 1
        if question.missing == 0:
            question.future.set_result(question.answers)

    def give_up(self, result: LookUp) -> None:
        """The store failed: nobody waits for it any longer."""
        while not self._keys.empty():
            self._keys.get_nowait()
        while self._waiting:
            self._give_up(self._waiting.popleft(), result)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, question: _Question, result: LookUp) -> None:
        if question.future.done():
            return
        waited = time.monotonic() - question.asked
        for _ in range(question.missing):
            self._observe.lookup(waited, result)
        question.future.set_result(question.answers)

    def _wake_in(self, seconds: float, *, due: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake, due)

    def _wake(self, due: float) -> None:
        """One timer for all: the store answers, but not fast enough for all that is asked of it."""
        self._timer = None
        now = time.monotonic()
        if now - due > OVERSLEPT:
            self._wake_in(OVERSLEPT, due=math.inf)  # once: a loop that is always late must not wait for ever
            return
        while self._waiting:
            question = self._waiting[0]
            due = question.asked + ANSWER_WITHIN
            if due > now:
                self._wake_in(due - now, due=due)
                return
            self._waiting.popleft()
            self._give_up(question, LookUp.TIMEOUT)

    def __len__(self) -> int:
        """Calls that wait for their answer."""
        return sum(not question.future.done() for question in self._waiting)

    def __repr__(self) -> str:
        return f"<LookUps {len(self)} waiting, {self._keys.qsize()} keys to ask for>"
