"""When a waiting batch may leave although it is not full: the two rules, as pure objects.

A rule is asked only at a window of fewer than `max_size` items that meets a free slot; full windows and
busy backends are the window's business. It keeps the record of one signature and outlives its windows.

Invariants
    `Adaptive` never waits beyond `max_delay` after the ready moment, nor at all without recent company.
    `Fixed` never waits beyond `max_delay` after the oldest item's arrival.
    Nothing is tried out: who would have joined is counted whether anybody waited or not.

Knows no clock and no unit of time: whatever unit `now`, `max_delay` and `step` share. Knows nothing of parts, slots
or of other signatures. docs/decisions/batching-rule.md says why the rule is what it is.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import Enum
from itertools import accumulate
from typing import NamedTuple, Protocol

NEVER = math.inf

STEP = 0.00025
"""The shortest wait worth considering, in seconds; each further one is twice as long."""

_LENGTHS = 9  # waits of 1, 2, 4 … 256 steps
_MOMENTS = 8  # how many ready moments "lately" means
_WEIGHT = 16  # an average moves this part of the way to each new value
_MARGIN = 1.5  # a wait must bring this much more than it costs
_FADE = 0.98  # what a batch's weight in the fit becomes with the next batch
_SETTLED = 8  # weight from which the fit may call a batch a straggler


class DispatchReason(Enum):
    """Why a batch left; the `reason` label of `forebay_batch_dispatches_total`."""

    FULL = "full"  # `max_size` or a preferred size is reached, or the next part would not fit
    READY = "ready"  # a slot was free and no wait would have paid
    EXPECTED = "expected"  # a wait ended early: as many came as ever came lately
    DELAY = "delay"  # a wait ran out
    DRAIN = "drain"  # Forebay is draining: nobody waits by choice


class Leave(NamedTuple):
    """Let the oldest parts leave, `items` items at most."""

    items: int
    reason: DispatchReason


class WakeAt(NamedTuple):
    """Ask again at this time, if no arrival and no answer asks sooner."""

    time: float


class Waiting(Protocol):
    """What a rule may know of the window that asks."""

    @property
    def items(self) -> int: ...

    @property
    def oldest(self) -> float:
        """When the oldest part came."""

    def sizes(self) -> Iterable[int]:
        """Items of each part, oldest first."""


class Rule(Protocol):
    max_size: int

    def arrived(self, items: int, now: float) -> None:
        """A part came, whether or not it can leave."""

    def decide(self, now: float, waiting: Waiting, next_answer: float) -> Leave | WakeAt:
        """A slot is free and 0 < items < `max_size`: go, or until when to wait.

        next_answer: when the next slot is forecast to come free; `NEVER` if none is taken.
        """

    def end_moment(self) -> None:
        """What was waiting has left or was withdrawn."""

    def forecast(self, items: int) -> float:
        """How long a batch will hold its slot; 0 while nothing is known."""

    def answered(self, now: float, items: int, held: float, *, representative: bool) -> None:
        """A batch gave back its slot after `held`.

        representative: `held` is the backend's time for these items, not that of a failure or of a batch ahead.
        """


class Adaptive:
    """Wait only where the record of recent ready moments says that waiting pays.

    A *ready moment* is a free slot that meets a window for the first time since its last batch left.
    """

    __slots__ = ("_answered", "_boards", "_hold", "_lengths", "_moment", "_target", "_until", "max_delay", "max_size")

    def __init__(self, max_size: int, max_delay: float, step: float = STEP) -> None:
        assert max_size >= 1, max_size
        assert max_delay >= 0, max_delay
        self.max_size = max_size
        self.max_delay = max_delay
        shorter = (step * 2**i for i in range(_LENGTHS))
        self._lengths = [*(length for length in shorter if length < max_delay * 0.99), max_delay]
        self._boards = _Board(self._lengths), _Board(self._lengths)  # out of the blue, after an answer
        self._hold = HoldFit()
        self._moment: _Moment | None = None  # the last one, until it is scored
        self._until: float | None = None  # None: no ready moment since the last batch left
        self._target = 0
        self._answered = -math.inf

    def arrived(self, items: int, now: float) -> None:
        moment = self._moment
        if items >= self.max_size:  # a part that fills a batch by itself joins nobody
            return
        if moment is not None and now - moment.at <= self.max_delay:
            moment.joined(items, now)

    def decide(self, now: float, waiting: Waiting, next_answer: float) -> Leave | WakeAt:
        items = waiting.items
        if self._until is None:
            self._until = self._open_moment(now, items, next_answer)
            if self._until == now:
                return Leave(items, DispatchReason.READY)
        if items >= self._target:
            return Leave(items, DispatchReason.EXPECTED)
        if now >= self._until:
            return Leave(items, DispatchReason.DELAY)
        return WakeAt(self._until)

    def end_moment(self) -> None:
        self._until = None

    def forecast(self, items: int) -> float:
        return self._hold.of(items)

    def answered(self, now: float, items: int, held: float, *, representative: bool) -> None:
        self._answered = now
        if representative:
            self._hold.add(items, held)

    def _open_moment(self, now: float, items: int, next_answer: float) -> float:
        """A ready moment: until when a wait pays best, `now` if none does."""
        self._score(now)
        board = self._boards[now - self._answered <= self.max_delay]
        self._moment = _Moment(now, items, board)
        # A joiner whose next chance is a slot about to come free saves only the time until then.
        saved = min(self._hold.fixed, next_answer - now)
        room = self.max_size - items
        until, best = now, 0.0
        self._target = self.max_size
        for length, mean, lasting, most in zip(self._lengths, board.joiners, board.lasting, board.most, strict=True):
            joiners = min(mean, most, room)
            gain = saved * joiners - _MARGIN * (items + joiners) * lasting
            if gain > best:
                best, until = gain, now + length
                self._target = min(self.max_size, items + max(1, most))
        return until

    def _score(self, now: float) -> None:
        """Note what each wait at the last moment would have brought, and how long it would have lasted."""
        moment, self._moment = self._moment, None
        if moment is not None:
            seen = bisect_right(self._lengths, now - moment.at)  # a longer wait was not seen to its end
            moment.board.note(moment, self._lengths[:seen], room=self.max_size - moment.items)

    def __repr__(self) -> str:
        waits = "" if self._until is None else f" until={self._until} target={self._target}"
        return f"<Adaptive {self.max_size} within {self.max_delay} {self._hold}{waits}>"


class _Moment:
    """A ready moment and who came after it. Offsets rise, totals are the items that came by then."""

    __slots__ = ("at", "board", "items", "offsets", "totals")

    def __init__(self, at: float, items: int, board: _Board) -> None:
        self.at = at
        self.items = items
        self.board = board
        self.offsets: list[float] = []
        self.totals = [0]

    def joined(self, items: int, now: float) -> None:
        self.offsets.append(now - self.at)
        self.totals.append(self.totals[-1] + items)

    def within(self, length: float) -> int:
        """Items that came at most `length` after the moment."""
        return self.totals[bisect_right(self.offsets, length)]

    def reached(self, items: int) -> float:
        """The offset at which that many had come; `NEVER` if they did not."""
        index = bisect_left(self.totals, items, 1) - 1
        return self.offsets[index] if index < len(self.offsets) else NEVER


class _Board:
    """What each wait would have brought lately, for ready moments of one kind."""

    __slots__ = ("_last", "_turn", "joiners", "lasting", "most")

    def __init__(self, lengths: list[float]) -> None:
        self.joiners = [0.0] * len(lengths)  # mean number of joiners
        self.lasting = list(lengths)  # mean time the wait would have lasted
        self.most = [0] * len(lengths)  # most joiners at one of the last moments
        self._last = [[0] * _MOMENTS for _ in lengths]
        self._turn = 0

    def note(self, moment: _Moment, lengths: list[float], room: int) -> None:
        for i, length in enumerate(lengths):
            joiners = moment.within(length)
            lasted = min(length, moment.reached(min(room, max(1, self.most[i]))))
            self.joiners[i] += (joiners - self.joiners[i]) / _WEIGHT
            self.lasting[i] += (lasted - self.lasting[i]) / _WEIGHT
            last = self._last[i]
            last[self._turn] = joiners
            self.most[i] = max(last)
        self._turn = (self._turn + 1) % _MOMENTS


class HoldFit:
    """How long a batch of n items holds its slot, fitted as `fixed + each · n`; old batches fade.

    `fixed` is what a batch costs whatever its size, the round trip included.
    """

    __slots__ = ("_weight", "_x", "_xx", "_xy", "_y", "each", "fixed")

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.fixed = self.each = 0.0

    def of(self, items: int) -> float:
        return self.fixed + self.each * items

    def add(self, items: int, held: float) -> None:
        if self._weight > _SETTLED:
            held = min(held, 2 * self.of(items))  # a straggler says little about its size
        self._weight = self._weight * _FADE + 1
        self._x = self._x * _FADE + items
        self._y = self._y * _FADE + held
        self._xx = self._xx * _FADE + items * items
        self._xy = self._xy * _FADE + items * held
        mean_items, mean_held = self._x / self._weight, self._y / self._weight
        covariance = self._xy / self._weight - mean_items * mean_held
        variance = self._xx / self._weight - mean_items * mean_items + 0.25  # sizes that hardly differ tell no slope
        self.each = max(0.0, covariance / variance)
        self.fixed = mean_held - self.each * mean_items
        if self.fixed < 0:
            self.fixed, self.each = 0.0, mean_held / mean_items

    def __repr__(self) -> str:
        return f"hold={self.fixed:.6g}+{self.each:.6g}n"


class Fixed:
    """Triton's rule: a preferred size, or the oldest item `max_delay` old. A lone item waits that long."""

    __slots__ = ("_preferred", "max_delay", "max_size")

    def __init__(self, max_size: int, max_delay: float, preferred: Iterable[int] = ()) -> None:
        assert max_size >= 1, max_size
        assert max_delay >= 0, max_delay
        self.max_size = max_size
        self.max_delay = max_delay
        self._preferred = frozenset(preferred)

    def arrived(self, items: int, now: float) -> None:
        pass

    def decide(self, now: float, waiting: Waiting, next_answer: float) -> Leave | WakeAt:
        if self._preferred:
            fitting = [total for total in accumulate(waiting.sizes()) if total in self._preferred]
            if fitting:
                return Leave(fitting[-1], DispatchReason.FULL)
        due = waiting.oldest + self.max_delay
        if now < due:
            return WakeAt(due)
        return Leave(waiting.items, DispatchReason.DELAY if self.max_delay else DispatchReason.READY)

    def end_moment(self) -> None:
        pass

    def forecast(self, items: int) -> float:
        return 0.0

    def answered(self, now: float, items: int, held: float, *, representative: bool) -> None:
        pass

    def __repr__(self) -> str:
        preferred = f" preferred={sorted(self._preferred)}" if self._preferred else ""
        return f"<Fixed {self.max_size} within {self.max_delay}{preferred}>"
