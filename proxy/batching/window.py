"""The open batch of one signature: which parts leave together, and when.

Invariants
    A part is waiting, dispatched or withdrawn: exactly one of the three.
    Parts leave in the order in which they came, each whole.
    A dispatched batch holds at most `max_size` items, or is a single part that exceeds it by itself.
    Without a free slot only a full batch leaves, and only while the lane's slots let one queue up.

Knows nothing of clocks, sockets or answers: `now` comes in, effects go out. When to go before the batch is full is the
rule's; whose turn it is among signatures is the lane's (`slots.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from proxy.batching.rule import NEVER, DispatchReason, Rule, WakeAt

P = TypeVar("P", bound=Hashable)


class SlotsView(Protocol):
    """What a window asks of its lane's slots."""

    @property
    def free(self) -> bool: ...

    @property
    def room_for_full(self) -> bool:
        """May a full batch queue up behind those that are out?"""

    def next_answer(self, now: float) -> float: ...

    def idle(self, now: float) -> float:
        """Time, all in all, during which a slot was free."""


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[P]):
    """Send these together, now.

    parts: oldest first. items: of all parts together.
    voluntary: for each part, the time it waited for company while a slot was free.
    rule: whose record the answer belongs to.
    """

    parts: tuple[P, ...]
    items: int
    reason: DispatchReason
    voluntary: tuple[float, ...]
    rule: Rule = field(compare=False, repr=False)


class _Place(NamedTuple):
    """A part's place in the window. idle: the slots' idle time when it came."""

    size: int
    came: float
    idle: float


class Window(Generic[P]):
    __slots__ = ("_chose_to_wait", "_places", "_slots", "items", "rule")

    def __init__(self, rule: Rule, slots: SlotsView) -> None:
        self.rule = rule
        self.items = 0
        self._slots = slots
        self._places: dict[P, _Place] = {}  # oldest first
        # The slots' idle time when this window last began to wait although a slot was free: what went before was
        # nobody's choice. Whoever is left behind by a batch came after that choice, so it begins anew.
        self._chose_to_wait: float | None = None

    @property
    def oldest(self) -> float:
        """When the oldest part came; there must be one."""
        return next(iter(self._places.values())).came

    def sizes(self) -> Iterator[int]:
        return (place.size for place in self._places.values())

    def add(self, part: P, size: int, now: float) -> None:
        """Let a part of `size` items wait. It must not be waiting already."""
        assert part not in self._places, part
        assert size >= 1, size
        self._places[part] = _Place(size, now, self._slots.idle(now))
        self.items += size
        self.rule.arrived(size, now)

    def withdraw(self, part: P) -> bool:
        """Forget a caller that left; False if it was not waiting any more."""
        place = self._places.pop(part, None)
        if place is None:
            return False
        self.items -= place.size
        if not self._places:
            self._begin_anew()
        return True

    def decide(self, now: float, *, draining: bool = False) -> Dispatch[P] | WakeAt:
        """The one decision: what leaves now, or when to ask again.

        Without a slot the window only fills: to seal a batch that cannot be sent would turn away the items that come
        before it can. A full batch cannot grow, so it loses nothing by queueing up.
        """
        if not self._places:
            return WakeAt(NEVER)
        slots = self._slots
        if self.items >= self.rule.max_size:
            if slots.free or slots.room_for_full:
                return self._take(self.rule.max_size, DispatchReason.FULL, now)
            return WakeAt(NEVER)
        if not slots.free:
            return WakeAt(NEVER)
        if draining:
            return self._take(self.items, DispatchReason.DRAIN, now)
        verdict = self.rule.decide(now, self, slots.next_answer(now))
        if isinstance(verdict, WakeAt):
            if self._chose_to_wait is None:
                self._chose_to_wait = slots.idle(now)
            return verdict
        return self._take(verdict.items, verdict.reason, now)

    def _take(self, most: int, reason: DispatchReason, now: float) -> Dispatch[P]:
        """The oldest parts that fit into `most` items; the oldest of all in any case."""
        idle = self._slots.idle(now)
        chosen = idle if self._chose_to_wait is None else self._chose_to_wait
        parts: list[P] = []
        voluntary: list[float] = []
        items = 0
        for part, place in self._places.items():
            if parts and items + place.size > most:
                break
            items += place.size
            parts.append(part)
            voluntary.append(idle - max(chosen, place.idle))
        for part in parts:
            del self._places[part]
        self.items -= items
        self._begin_anew()
        return Dispatch(tuple(parts), items, reason, tuple(voluntary), self.rule)

    def _begin_anew(self) -> None:
        self._chose_to_wait = None
        self.rule.end_moment()

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        oldest = f" oldest={self.oldest}" if self._places else ""
        return f"<Window {self.items}/{self.rule.max_size}{oldest}>"
