"""The slots of one lane, and whose batch gets the next one. A *lane* is a model at a target.

Invariants
    At most `limit` batches are out, and one more per slot only for full batches (fewer after `limit` fell).
    A freed slot goes to the window whose oldest part came first among those that want it.
    Whoever gets a `Dispatch` holds a slot until `answered`, which is called exactly once for it.

A window that waits for company by choice holds no slot back from the others: an idle backend helps nobody. But no
full batch queues up while an older part of another signature waits, or that one would never see a free slot.

Knows nothing of clocks, sockets or of what a signature is: a window belongs to a rule, which keeps its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from proxy.batching.rule import NEVER, Rule, WakeAt
from proxy.batching.window import Dispatch, P, Window


class Slots:
    """How many batches are out, when the next is forecast to be answered, and for how long a slot was free."""

    __slots__ = ("_due", "_idle", "_idle_since", "limit", "out")

    def __init__(self, limit: int, now: float) -> None:
        assert limit >= 1, limit
        self.limit = limit
        self.out = 0
        self._due: list[float] = []
        self._idle = 0.0
        self._idle_since: float | None = now  # None: no slot is free

    @property
    def free(self) -> bool:
        return self.out < self.limit

    @property
    def room_for_full(self) -> bool:
        return self.out < 2 * self.limit

    def next_answer(self, now: float) -> float:
        """When the next slot is forecast to come free; forecasts that have passed say nothing."""
        return min((due for due in self._due if due > now), default=NEVER)

    def idle(self, now: float) -> float:
        """Time, all in all, during which a slot was free."""
        return self._idle if self._idle_since is None else self._idle + (now - self._idle_since)

    def take(self, now: float, due: float) -> None:
        self.out += 1
        self._due.append(due)
        self._note(now)

    def give_back(self, now: float) -> None:
        assert self.out > 0
        self.out -= 1
        self._due.remove(min(self._due))  # answers come in the order of their forecasts, near enough
        self._note(now)

    def resize(self, limit: int, now: float) -> None:
        assert limit >= 1, limit
        self.limit = limit
        self._note(now)

    def _note(self, now: float) -> None:
        if self.free and self._idle_since is None:
            self._idle_since = now
        elif not self.free and self._idle_since is not None:
            self._idle += now - self._idle_since
            self._idle_since = None

    def __repr__(self) -> str:
        return f"<Slots {self.out}/{self.limit}>"


@dataclass(frozen=True, slots=True)
class Held(Generic[P]):
    """A batch that holds a slot. alone: a slot was free when it left, so no batch was ahead of it."""

    dispatch: Dispatch[P]
    since: float
    alone: bool


class Lane(Generic[P]):
    """The windows that share the slots of one model at one target. Empty windows vanish."""

    __slots__ = ("_in_order", "_windows", "draining", "slots")

    def __init__(self, slots: int, now: float) -> None:
        self.slots = Slots(slots, now)
        self.draining = False  # True: nobody waits by choice any more
        self._windows: dict[Rule, Window[P]] = {}
        self._in_order = True  # are the windows in the order of their oldest parts?

    @property
    def vacant(self) -> bool:
        """Is nothing waiting and nothing out?"""
        return not self._windows and not self.slots.out

    def add(self, part: P, size: int, rule: Rule, now: float) -> None:
        """Let a part wait in the window of `rule`."""
        window = self._windows.get(rule)
        if window is None:
            window = self._windows[rule] = Window(rule, self.slots)
        window.add(part, size, now)

    def has_window(self, rule: Rule) -> bool:
        """Does anything wait under this rule?"""
        return rule in self._windows

    def withdraw(self, part: P, rule: Rule) -> bool:
        """Forget a caller that left; False if it was not waiting any more."""
        window = self._windows.get(rule)
        if window is None or not window.withdraw(part):
            return False
        self._settle(window)
        return True

    def decide(self, now: float) -> Held[P] | WakeAt:
        """What leaves now, having been given a slot, or when to ask again. Ask until there is nothing to send."""
        alone = self.slots.free
        wake = NEVER
        for window in self._by_age():
            effect = window.decide(now, draining=self.draining)
            if isinstance(effect, Dispatch):
                self._settle(window)
                self.slots.take(now, now + effect.rule.forecast(effect.items))
                return Held(effect, now, alone)
            if not alone:  # only the oldest may queue up
                break
            wake = min(wake, effect.time)
        return WakeAt(wake)

    def answered(self, held: Held[P], now: float, *, ok: bool) -> None:
        """A batch gives back its slot. not ok: it failed, and how long that took says nothing of the model."""
        self.slots.give_back(now)
        dispatch = held.dispatch
        dispatch.rule.answered(now, dispatch.items, now - held.since, representative=ok and held.alone)

    def windows(self) -> Iterator[Window[P]]:
        return iter(self._windows.values())

    def _by_age(self) -> Iterator[Window[P]]:
        if not self._in_order:
            self._windows = dict(sorted(self._windows.items(), key=lambda entry: entry[1].oldest))
            self._in_order = True
        return iter(self._windows.values())

    def _settle(self, window: Window[P]) -> None:
        """After parts left a window: it vanishes if it is empty, else its oldest part may be another."""
        if window:
            self._in_order = False
        else:
            del self._windows[window.rule]

    def __repr__(self) -> str:
        draining = " draining" if self.draining else ""
        return f"<Lane {self.slots} {list(self._windows.values())}{draining}>"
