"""Carries out what the lanes decide: parts come in as tickets, batches go to `send`, every ticket gets its own result.

Invariants
    Every ticket is settled: with its own result, with an error, or with `Withdrawn`. Nothing hangs.
    What one caller does to its ticket, cancelling the result included, changes nothing for the others; a batch
    that has been sent is given up when the result of every part of it was cancelled.
    One timer a lane, none a request; one decision a lane and turn of the loop, so that parts which come in the same
    turn leave together for nothing.
    A send is a task that the batcher owns; `aclose` waits for it.
    A bug in deciding fails the parts that wait in that lane, and the lane starts anew.

Knows nothing of protocols, bodies or connections: `send` does.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Generic

from proxy.batching.backlog import Backlog
from proxy.batching.rule import NEVER, Adaptive, Fixed, Rule
from proxy.batching.settings import BatchMode, BatchSettings
from proxy.batching.slots import Held, Lane
from proxy.batching.ticket import (
    Batch,
    BatchAborted,
    BatchObserver,
    P,
    QueueFull,
    R,
    Slot,
    Ticket,
    Unobserved,
    Withdrawn,
)

__all__ = ["Batch", "BatchAborted", "BatchObserver", "Batcher", "QueueFull", "Slot", "Ticket", "Withdrawn"]

RECORDS = 1024
"""Signatures whose record is kept, about 4 KB each; the one that was longest without a window goes first."""


class _Run(Generic[P, R]):
    """A lane at work: the pure lane, what waits in it, and its timer."""

    __slots__ = ("asked", "broken", "key", "lane", "timer", "waiting", "wake")

    def __init__(self, key: Hashable, lane: Lane[Ticket[R]]) -> None:
        self.key = key
        self.lane = lane
        self.waiting: dict[Ticket[R], P] = {}
        self.asked = False  # a decision is due in this turn of the loop
        self.broken = False  # given up; another run may have the lane
        self.timer: asyncio.Handle | None = None
        self.wake = NEVER


class Batcher(Generic[P, R]):
    """Made inside a running loop.

    send: sends one batch and gives one result or exception per part, in order; what it raises goes to every part.
    now: a monotonic clock in seconds. Not uvloop's own, which counts whole milliseconds.
    """

    def __init__(
        self,
        *,
        send: Callable[[Batch[P], Slot], Awaitable[Sequence[R | BaseException]]],
        observe: BatchObserver | None = None,
        now: Callable[[], float] = time.monotonic,
        records: int = RECORDS,
    ) -> None:
        self._send = send
        self._observe = observe or Unobserved()
        self._now = now
        self._records = records
        self._loop = asyncio.get_running_loop()
        self._runs: dict[Hashable, _Run[P, R]] = {}  # none that is vacant
        self._rules: OrderedDict[tuple[Hashable, ...], Rule] = OrderedDict()
        self._backlogs: dict[str, Backlog] = {}  # of routes in which something waits
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = self._closed = False

    def enqueue(
        self,
        part: P,
        *,
        size: int,
        lane: Hashable,
        signature: bytes,
        settings: BatchSettings,
        max_size: int,
        slots: int,
        route: str,
    ) -> Ticket[R]:
        """Let a part of `size` items wait for a batch of its signature, or raise `QueueFull`.

        max_size: what the model takes; the settings' own applies too. slots: batches that the lane computes at once.
        settings.mode is not `off`: what never joins takes no slot and does not come here.
        """
        if self._closed:
            raise BatchAborted("the batcher is closed")
        now = self._now()
        backlog = self._backlogs.get(route) or Backlog(now)
        if not backlog.takes(size, settings.max_queue):
            raise QueueFull(backlog.retry_after(now))
        run = self._runs.get(lane)
        if run is None:
            run = self._runs[lane] = _Run(lane, Lane(slots, now))
            run.lane.draining = self._draining
        elif run.lane.slots.limit != slots:
            run.lane.slots.resize(slots, now)
        self._ask(run)
        rule = self._rule(run, (lane, route, signature, settings, max_size), settings, max_size)
        ticket: Ticket[R] = Ticket(
            self._loop.create_future(), size=size, lane=lane, route=route, rule=rule, now=now, withdraw=self._withdraw
        )
        run.lane.add(ticket, size, rule, now)
        run.waiting[ticket] = part
        ticket.result.add_done_callback(ticket.result_done)
        backlog.entered(size)
        self._backlogs[route] = backlog
        self._observe.queued(route, size)
        return ticket

    def drain(self) -> None:
        """From now on nobody waits by choice."""
        self._draining = True
        for run in self._runs.values():
            run.lane.draining = True
            self._ask(run)

    async def aclose(self) -> None:
        """Refuse what comes and wait until all that waits is answered; cancelled, what is left fails at once."""
        self._closed = True
        self.drain()
        try:
            while self._anything_out():
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            for run in list(self._runs.values()):
                self._give_up(run, BatchAborted("the batcher was closed"))
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def oldest(self) -> dict[str, float]:
        """When the oldest part that still waits was enqueued, for each route in which one does."""
        oldest: dict[str, float] = {}
        for run in self._runs.values():
            for ticket in run.waiting:
                oldest[ticket.route] = min(ticket.enqueued_at, oldest.get(ticket.route, NEVER))
        return oldest

    def _rule(self, run: _Run[P, R], key: tuple[Hashable, ...], settings: BatchSettings, max_size: int) -> Rule:
        """The record of a signature, from the table or new."""
        rule = self._rules.get(key)
        if rule is None:
            most = min(settings.max_size, max_size)
            if settings.mode is BatchMode.FIXED:
                rule = Fixed(most, settings.max_delay, settings.preferred_sizes)
            else:
                assert settings.mode is BatchMode.ADAPTIVE, settings.mode
                rule = Adaptive(most, settings.max_delay)
            self._rules[key] = rule
            if len(self._rules) > self._records:
                self._rules.popitem(last=False)
        elif not run.lane.has_window(rule):
            self._rules.move_to_end(key)
        return rule

    def _ask(self, run: _Run[P, R]) -> None:
        """Decide once all that comes in this turn of the loop has come."""
        if not run.asked:
            run.asked = True
            self._loop.call_soon(self._asked, run)

    def _asked(self, run: _Run[P, R]) -> None:
        run.asked = False
        if not run.broken:
            self._decide(run, self._now())

    def _woken(self, run: _Run[P, R]) -> None:
        """Loops round timers to their own resolution: where it is early, the decision asks for another one."""
        run.timer = None
        self._decide(run, self._now())

    def _decide(self, run: _Run[P, R], now: float) -> None:
        try:
            while isinstance(effect := run.lane.decide(now), Held):
                self._dispatch(run, effect, now)
        except Exception as error:  # noqa: BLE001 - whatever the bug is, nobody may hang for it
            self._restart(run, error)
            return
        if effect.time != run.wake or run.timer is None:
            self._stop_timer(run)
            run.wake = effect.time
            if run.wake != NEVER:
                run.timer = self._loop.call_later(run.wake - now, self._woken, run)
        if run.lane.vacant and self._runs.get(run.key) is run:
            del self._runs[run.key]

    def _dispatch(self, run: _Run[P, R], held: Held[Ticket[R]], now: float) -> None:
        dispatch = held.dispatch
        tickets = dispatch.parts
        batch = Batch(tuple([run.waiting[ticket] for ticket in tickets]), dispatch.items, dispatch.reason)
        slot = Slot(partial(self._release, run, held))
        task = self._loop.create_task(self._carry(batch, tickets, slot))
        self._tasks.add(task)

        def over(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            slot.release(ok=False)  # no effect after `_carry`; but a task that is cancelled early never runs

        def left(result: asyncio.Future[R]) -> None:
            if result.cancelled() and all(ticket.result.cancelled() for ticket in tickets):
                task.cancel()

        task.add_done_callback(over)

        route = tickets[0].route  # a record, and so a window, is one route's
        for ticket, voluntary in zip(tickets, dispatch.voluntary, strict=True):
            del run.waiting[ticket]
            ticket.result.remove_done_callback(ticket.result_done)
            ticket.result.add_done_callback(left)
            ticket.dispatched_at = now
            ticket.batch_items = dispatch.items
            self._observe.waited(route, voluntary, now - ticket.enqueued_at - voluntary)
        self._backlogs[route].dispatched(dispatch.items, now)
        self._left(route, dispatch.items)
        self._observe.dispatched(route, dispatch.items, dispatch.reason)

    async def _carry(self, batch: Batch[P], tickets: tuple[Ticket[R], ...], slot: Slot) -> None:
        try:
            results = _complete(await self._send(batch, slot), len(tickets))
        except (Exception, asyncio.CancelledError) as error:
            slot.release(ok=False)
            for ticket in tickets:
                ticket.settle(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            slot.release(ok=not any(isinstance(result, BaseException) for result in results))
            for ticket, result in zip(tickets, results, strict=True):
                ticket.settle(result)

    def _release(self, run: _Run[P, R], held: Held[Ticket[R]], ok: bool) -> None:
        if run.broken:
            return
        try:
            run.lane.answered(held, self._now(), ok=ok)
        except Exception as error:  # noqa: BLE001 - as in `_decide`; `send` has nothing to do with it
            self._restart(run, error)
        else:
            self._ask(run)

    def _withdraw(self, ticket: Ticket[R]) -> bool:
        run = self._runs.get(ticket.lane)
        if run is None or ticket not in run.waiting:
            return False
        try:
            run.lane.withdraw(ticket, ticket.rule)
        except Exception as error:  # noqa: BLE001 - as in `_decide`
            self._restart(run, error)
            return True
        del run.waiting[ticket]
        ticket.settle(Withdrawn())
        self._backlogs[ticket.route].withdrawn(ticket.size)
        self._left(ticket.route, ticket.size)
        self._ask(run)
        return True

    def _left(self, route: str, items: int) -> None:
        if not self._backlogs[route].items:
            del self._backlogs[route]
        self._observe.left(route, items)

    def _anything_out(self) -> bool:
        """Send what may leave, and say whether there is something to wait for."""
        for run in list(self._runs.values()):
            self._decide(run, self._now())
        return bool(self._tasks)

    def _restart(self, run: _Run[P, R], bug: Exception) -> None:
        """A lane's state can no longer be trusted: the next part finds a new one."""
        for key in [key for key in self._rules if key[0] == run.key]:
            del self._rules[key]
        failure = BatchAborted("a bug in batching ended the wait")
        failure.__cause__ = bug
        self._give_up(run, failure)
        self._loop.call_exception_handler({"message": f"batching started anew for {run.key}", "exception": bug})

    def _give_up(self, run: _Run[P, R], failure: BatchAborted) -> None:
        """Fail all that waits in a lane, everybody before anything is counted. It decides no more."""
        run.broken = True
        self._stop_timer(run)
        del self._runs[run.key]
        waiting, run.waiting = run.waiting, {}
        for ticket in waiting:
            ticket.settle(failure)
        for ticket in waiting:
            self._backlogs[ticket.route].withdrawn(ticket.size)
            self._left(ticket.route, ticket.size)

    def _stop_timer(self, run: _Run[P, R]) -> None:
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None

    def __repr__(self) -> str:
        waiting = sum(len(run.waiting) for run in self._runs.values())
        state = " closed" if self._closed else " draining" if self._draining else ""
        return f"<Batcher {waiting} waiting, {len(self._tasks)} out, {len(self._runs)} lanes{state}>"


def _complete(results: Sequence[R | BaseException], parts: int) -> Sequence[R | BaseException]:
    if len(results) != parts:
        raise BatchAborted(f"{len(results)} results for {parts} parts")
    return results
