"""What the batcher and those who use it hand each other: tickets in, batches and slots out.

Invariant
    A ticket's result belongs to its owner alone: whatever the owner does to it reaches nobody else.

Knows nothing of windows or of who decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from proxy.batching.rule import DispatchReason, Rule

P = TypeVar("P")
R = TypeVar("R")


class QueueFull(Exception):
    """The route's queue has no room for this call. retry_after: seconds until it should have."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class Withdrawn(Exception):
    """The result of a ticket that was withdrawn."""


class BatchAborted(Exception):
    """No result will come: the batcher was closed, or what should have made the result was cancelled or is broken."""


class BatchObserver(Protocol):
    """Who wants to know. Items are counted; times are seconds."""

    def queued(self, route: str, items: int) -> None:
        """A part began to wait."""

    def left(self, route: str, items: int) -> None:
        """Items wait no more: dispatched, withdrawn or failed."""

    def waited(self, route: str, voluntary: float, slot: float) -> None:
        """A part was dispatched. Both times together run from its enqueueing to its dispatch.

        voluntary: waited for company while a slot was free. slot: the rest, for the backend to have a slot free.
        """

    def dispatched(self, route: str, items: int, reason: DispatchReason) -> None:
        """A batch was given to `send`."""


class Unobserved:
    """A `BatchObserver` for nobody."""

    def queued(self, route: str, items: int) -> None: ...
    def left(self, route: str, items: int) -> None: ...
    def waited(self, route: str, voluntary: float, slot: float) -> None: ...
    def dispatched(self, route: str, items: int, reason: DispatchReason) -> None: ...


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """What `send` sends as one upstream request. items: of all parts together."""

    parts: tuple[P, ...]
    items: int
    reason: DispatchReason


class Slot:
    """The right of one batch to be at the backend."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[bool], None]) -> None:
        self._give_back: Callable[[bool], None] | None = give_back

    def release(self, ok: bool) -> None:
        """The upstream exchange ended. Only the first call counts.

        ok: it took the time that such a batch takes; False keeps a failure's time out of the record.
        """
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(ok)

    def __repr__(self) -> str:
        return f"<Slot {'released' if self._give_back is None else 'held'}>"


class Ticket(Generic[R]):
    """One part's place in a batch.

    result: its own result or error; belongs to whoever enqueued the part. Cancelling it withdraws the part.
    enqueued_at, dispatched_at: on the batcher's clock; dispatched_at is None while it waits.
    batch_items: items of the batch it travelled in, 0 before.
    """

    __slots__ = ("_withdraw", "batch_items", "dispatched_at", "enqueued_at", "lane", "result", "route", "rule", "size")

    def __init__(
        self,
        result: asyncio.Future[R],
        *,
        size: int,
        lane: Hashable,
        route: str,
        rule: Rule,
        now: float,
        withdraw: Callable[[Ticket[R]], bool],
    ) -> None:
        self.result = result
        self.size = size
        self.lane = lane
        self.route = route
        self.rule = rule
        self.enqueued_at = now
        self.dispatched_at: float | None = None
        self.batch_items = 0
        self._withdraw = withdraw

    def withdraw(self) -> bool:
        """Take the part out of its window; its result is then `Withdrawn`. False if it was not waiting any more."""
        return self._withdraw(self)

    def result_done(self, _: asyncio.Future[R]) -> None:
        """The result is done before the part was dispatched: its owner cancelled it."""
        self._withdraw(self)

    def settle(self, result: R | BaseException) -> None:
        """Give the result to whoever waits for it; the batcher's to call."""
        if self.result.done():  # cancelled by its owner
            return
        if not isinstance(result, BaseException):
            self.result.set_result(result)
            return
        if not isinstance(result, Exception) or isinstance(result, StopIteration):  # a future does not carry these
            cause, result = result, BatchAborted(f"the batch ended in {type(result).__name__}")
            result.__cause__ = cause
        self.result.set_exception(result)
        self.result.exception()  # its owner may have left: not "never retrieved"

    def __repr__(self) -> str:
        state = "settled" if self.result.done() else "waiting" if self.dispatched_at is None else "dispatched"
        return f"<Ticket {self.size} {state}>"
