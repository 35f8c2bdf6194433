"""The batcher under any order of calls, leavers, answers, failures and time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.batching.batcher import BatchAborted, QueueFull, Ticket, Withdrawn
from proxy.batching.settings import BatchMode, BatchSettings
from proxy.settings import Seconds
from tests.batching.bench import Bench, Sent, answer_to
from tests.batching.virtual_time import VirtualTimeLoop

SETTINGS = {
    "adaptive": BatchSettings(max_size=4, max_queue=12),
    "fixed": BatchSettings(mode=BatchMode.FIXED, max_size=4, max_queue=12, max_delay=Seconds(0.010)),
}


CALLS = st.tuples(
    st.sampled_from([1, 1, 1, 2, 3, 4, 6, 20]),  # items
    st.sampled_from(["near", "far"]),  # lane
    st.sampled_from([b"x", b"y"]),  # signature
    st.sampled_from(sorted(SETTINGS)),  # route
)


@dataclass(eq=False)
class Caller:
    """What the model knows of one part. due: what its ticket's result must be, once it is known."""

    part: int
    size: int
    lane: str
    signature: bytes
    route: str
    ticket: Ticket[str]
    due: str | type[BaseException] | None = None


class BatcherMachine(RuleBasedStateMachine):
    """Each caller gets its own answer or its own error, exactly once, and nobody's leaving changes another's."""

    @initialize(slots=st.integers(1, 2))
    def begin(self, slots: int) -> None:
        self.loop = VirtualTimeLoop()
        self.slots = slots
        self.bench = self.loop.run_until_complete(self.make())
        self.numbers = itertools.count()
        self.callers: dict[int, Caller] = {}
        self.out: list[Sent] = []  # at the backend
        self.seen = 0
        self.holding: set[Sent] = set()  # of those at the backend, who has not given back the slot

    async def make(self) -> Bench:
        return Bench()

    def waiting(self) -> list[Caller]:
        return [
            caller for caller in self.callers.values() if caller.ticket.dispatched_at is None and caller.due is None
        ]

    def settle(self) -> None:
        """Let all happen that happens now, and look at each batch that was sent."""
        self.loop.turn()
        for sent in self.bench.sent[self.seen :]:
            self.seen += 1
            self.out.append(sent)
            self.holding.add(sent)
            members = [self.callers[part] for part in sent.batch.parts]
            assert len({(caller.lane, caller.signature, caller.route) for caller in members}) == 1
            assert list(sent.batch.parts) == sorted(sent.batch.parts)
            assert sent.batch.items == sum(caller.size for caller in members)
            assert sent.batch.items <= 4 or len(members) == 1
            for caller in members:
                assert caller.ticket.batch_items == sent.batch.items
                assert caller.due in {None, asyncio.CancelledError}  # left in the very turn in which it was sent
        for sent in list(self.out):  # whose callers have all left is given up
            if all(self.callers[part].due is asyncio.CancelledError for part in sent.batch.parts):
                assert sent.end.cancelled()
                self.out.remove(sent)
                self.holding.discard(sent)

    @rule(calls=st.lists(CALLS, min_size=1, max_size=5), data=st.data())
    def call(self, calls: list[tuple[int, str, bytes, str]], data: st.DataObject) -> None:
        """Several calls in one turn of the loop, and perhaps one of them leaves in the same turn."""
        leaver, withdraws = data.draw(st.integers(0, 9)), data.draw(st.booleans())

        async def turn() -> None:
            for size, lane, signature, route in calls:
                self.enqueue(size, lane, signature, route)
            waiting = self.waiting()
            if leaver < len(waiting):
                self.leave(waiting[leaver], withdraws=withdraws)

        self.loop.run_until_complete(turn())

    def leave(self, caller: Caller, *, withdraws: bool) -> None:
        if withdraws:
            assert caller.ticket.withdraw()
            caller.due = Withdrawn
        else:
            assert caller.ticket.result.cancel()
            caller.due = asyncio.CancelledError

    def enqueue(self, size: int, lane: str, signature: bytes, route: str) -> None:
        part = next(self.numbers)
        queue = sum(caller.size for caller in self.waiting() if caller.route == route)
        try:
            ticket = self.bench.enqueue(
                part, size=size, lane=lane, signature=signature, settings=SETTINGS[route], slots=self.slots, route=route
            )
        except QueueFull as refused:
            assert queue + size > 12
            assert queue > 0
            assert 1 <= refused.retry_after <= 60
        else:
            assert queue == 0 or queue + size <= 12
            self.callers[part] = Caller(part, size, lane, signature, route, ticket)

    @rule(seconds=st.sampled_from([0.0003, 0.001, 0.004, 0.020]))
    def time_passes(self, seconds: float) -> None:
        self.settle()
        self.loop.advance(seconds)
        self.settle()

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        caller = self.callers[data.draw(st.sampled_from(sorted(self.callers)))]
        was_waiting = caller in self.waiting()
        assert caller.ticket.withdraw() == was_waiting
        if was_waiting:
            caller.due = Withdrawn

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        caller = self.callers[data.draw(st.sampled_from(sorted(self.callers)))]
        if caller.ticket.result.cancel():
            assert caller.due is None
            caller.due = asyncio.CancelledError
            self.settle()

    def finish(self, data: st.DataObject) -> Sent:
        sent = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.holding.discard(sent)
        return sent

    def expect(self, sent: Sent, due: type[BaseException]) -> None:
        for part in sent.batch.parts:
            if self.callers[part].due is None:
                self.callers[part].due = due

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        sent = self.finish(data)
        results: list[str | BaseException] = []
        for part in sent.batch.parts:
            bad = data.draw(st.booleans())
            results.append(LookupError(part) if bad else answer_to(part))
            if self.callers[part].due is None:
                self.callers[part].due = LookupError if bad else answer_to(part)
        sent.end.set_result(results)
        self.settle()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        sent = self.finish(data)
        self.expect(sent, ConnectionError)
        sent.end.set_exception(ConnectionError())
        self.settle()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def answer_nonsense(self, data: st.DataObject) -> None:
        sent = self.finish(data)
        self.expect(sent, BatchAborted)
        sent.end.set_result([answer_to(0)] * (len(sent.batch.parts) + 1))
        self.settle()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def break_the_send(self, data: st.DataObject) -> None:
        sent = self.finish(data)
        self.expect(sent, BatchAborted)
        sent.end.cancel()
        self.settle()

    @precondition(lambda self: self.out)
    @rule(data=st.data(), ok=st.booleans())
    def give_the_slot_back_early(self, data: st.DataObject, ok: bool) -> None:
        sent = data.draw(st.sampled_from(self.out))
        sent.slot.release(ok)
        self.holding.discard(sent)
        self.settle()

    @rule()
    def drain(self) -> None:
        self.bench.batcher.drain()
        self.settle()

    @invariant()
    def everybody_has_what_is_due(self) -> None:
        if not hasattr(self, "callers"):
            return
        self.settle()
        for caller in self.callers.values():
            result = caller.ticket.result
            if caller.due is None:
                assert not result.done()
            elif isinstance(caller.due, str):
                assert result.result() == caller.due
            elif caller.due is asyncio.CancelledError:
                assert result.cancelled()
            else:
                assert isinstance(result.exception(), caller.due)
        waiting = self.waiting()
        expected = Counter[str]()
        for caller in waiting:
            expected[caller.route] += caller.size
        assert +self.bench.observed.waiting == expected
        assert set(self.bench.batcher.oldest()) == set(expected)
        dispatched = [c for c in self.callers.values() if c.ticket.dispatched_at is not None]
        assert len(self.bench.observed.waits) == len(dispatched)
        lanes = {caller.lane for caller in waiting} | {self.lane_of(sent) for sent in self.holding}
        assert repr(self.bench.batcher).startswith(
            f"<Batcher {len(waiting)} waiting, {len(self.out)} out, {len(lanes)} lanes"
        )
        for lane in lanes:
            assert sum(self.lane_of(sent) == lane for sent in self.holding) <= 2 * self.slots
        assert self.loop.timers <= len(lanes)
        for _, voluntary, slot in self.bench.observed.waits:
            assert -1e-9 <= voluntary <= 0.010 + 1e-9
            assert slot >= -1e-9
        assert not self.loop.errors

    def lane_of(self, sent: Sent) -> str:
        return self.callers[sent.batch.parts[0]].lane

    def teardown(self) -> None:
        """Closing gives everybody an end."""
        if not hasattr(self, "loop"):
            return
        self.loop.run_until_complete(self.bench.close())
        for caller in self.callers.values():
            assert caller.ticket.result.done()
        assert self.loop.timers == 0
        assert not self.loop.errors
        self.loop.close()


BatcherMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestBatcher = BatcherMachine.TestCase
