"""Promises of the batcher, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from proxy.batching.batcher import Batch, BatchAborted, Batcher, QueueFull, Slot, Ticket, Withdrawn
from proxy.batching.rule import Adaptive, DispatchReason
from proxy.batching.settings import BatchMode, BatchSettings
from proxy.settings import Seconds
from tests.batching.bench import FIXED, Bench, answer_to, turns
from tests.batching.virtual_time import VirtualTimeLoop, run

Scenario = Callable[[Bench], Awaitable[None]]


def on_a_bench(scenario: Scenario) -> Callable[[], None]:
    """Run a scenario in virtual time and close the batcher after it."""

    def test() -> None:
        async def main() -> None:
            bench = Bench()
            await scenario(bench)
            await bench.close()

        run(main())

    test.__doc__ = scenario.__doc__
    return test


@on_a_bench
async def test_a_lone_request_waits_for_nobody(bench: Bench) -> None:
    """Who is alone leaves in the same instant."""
    ticket = bench.enqueue(1, size=3)
    await turns()
    assert bench.parts == [(1,)]
    assert (ticket.enqueued_at, ticket.dispatched_at, ticket.batch_items) == (0.0, 0.0, 3)
    assert bench.observed.waits == [("route", 0.0, 0.0)]
    assert bench.observed.batches == [("route", 3, DispatchReason.READY)]
    bench.sent[0].answer()
    assert await ticket.result == answer_to(1)


@on_a_bench
async def test_what_comes_in_one_turn_of_the_loop_leaves_together(bench: Bench) -> None:
    """Requests that were read at the same moment share a batch although nobody waited."""
    tickets = [bench.enqueue(part) for part in range(5)]
    await turns()
    assert bench.parts == [(0, 1, 2, 3, 4)]
    bench.sent[0].answer()
    assert await asyncio.gather(*(ticket.result for ticket in tickets)) == [answer_to(part) for part in range(5)]


@on_a_bench
async def test_signatures_and_routes_never_share_a_batch(bench: Bench) -> None:
    """Nobody travels with a request that differs in what both must share."""
    bench.enqueue(1, slots=4)
    bench.enqueue(2, slots=4, signature=b"other")
    bench.enqueue(3, slots=4, route="other")
    bench.enqueue(4, slots=4, settings=BatchSettings(max_size=7))
    bench.enqueue(5, slots=4)
    await turns()
    assert sorted(bench.parts) == [(1, 5), (2,), (3,), (4,)]


@on_a_bench
async def test_lanes_do_not_wait_for_each_other(bench: Bench) -> None:
    """A busy model does not hold up another."""
    bench.enqueue(1, lane="slow")
    bench.enqueue(2, lane="quick")
    await turns()
    assert sorted(bench.parts) == [(1,), (2,)]


@on_a_bench
async def test_a_freed_slot_is_used_before_the_answers_are_told(bench: Bench) -> None:
    """The backend does not idle while an answer is taken apart: the slot is given back first."""
    first = bench.enqueue(1)
    await turns()
    second = bench.enqueue(2)
    await turns()
    assert bench.parts == [(1,)]
    bench.sent[0].slot.release(True)
    await turns()
    assert bench.parts == [(1,), (2,)]
    assert not first.result.done()
    assert repr(bench.sent[0].slot) == "<Slot released>"
    assert repr(bench.sent[1].slot) == "<Slot held>"
    bench.sent[0].slot.release(True)  # only the first time counts: still one slot
    bench.sent[0].answer()
    third = bench.enqueue(3)
    await turns()
    assert await first.result == answer_to(1)
    assert second.dispatched_at is not None
    assert third.dispatched_at is None


@on_a_bench
async def test_the_two_kinds_of_waiting_are_told_apart(bench: Bench) -> None:
    """Waiting for company and waiting for the backend are different metrics, and together the whole wait."""
    bench.enqueue(1, settings=FIXED)
    await asyncio.sleep(0.003)
    bench.enqueue(2, signature=b"lone")  # takes the slot at 3 ms
    await asyncio.sleep(0.010)
    bench.sent[0].answer()
    await turns()
    assert bench.parts == [(2,), (1,)]
    (_, lone_voluntary, lone_slot), (_, voluntary, slot) = bench.observed.waits
    assert (lone_voluntary, lone_slot) == (0.0, 0.0)
    assert voluntary == pytest.approx(0.003)
    assert slot == pytest.approx(0.010)


@on_a_bench
async def test_a_wait_ends_on_time(bench: Bench) -> None:
    """`max_delay` is kept, by one decision and one timer for all that wait."""
    loop = bench.loop
    assert isinstance(loop, VirtualTimeLoop)
    for part in range(20):
        bench.enqueue(part, settings=FIXED)
    assert len(loop._ready) == 1  # type: ignore[attr-defined]  # typeshed hides asyncio's queue
    await turns()
    assert loop.timers == 1
    await asyncio.sleep(0.004999)
    assert bench.parts == []
    await asyncio.sleep(0.000002)
    assert bench.parts == [tuple(range(20))]
    assert bench.observed.batches == [("route", 20, DispatchReason.DELAY)]
    assert loop.timers == 0


@on_a_bench
async def test_callers_that_come_back_together_are_gathered(bench: Bench) -> None:
    """Two steady callers that return half a millisecond apart soon share every batch."""
    for cycle in range(16):
        await asyncio.sleep(0.001)
        bench.enqueue(2 * cycle)
        await asyncio.sleep(0.0005)
        bench.enqueue(2 * cycle + 1)
        await asyncio.sleep(0.020)
        for _ in range(2):
            for sent in bench.sent:
                if not sent.end.done():
                    sent.answer()
            await turns()
    assert bench.parts[0] == (0,)
    assert bench.parts[-1] == (30, 31)
    assert bench.observed.batches[-1] == ("route", 2, DispatchReason.EXPECTED)
    route, voluntary, slot = bench.observed.waits[-2]
    assert route == "route"
    assert voluntary == pytest.approx(0.0005)
    assert slot == pytest.approx(0.0, abs=1e-9)


@on_a_bench
async def test_the_model_s_own_limit_caps_a_batch(bench: Bench) -> None:
    """The backend is never sent more items in a joined request than it takes."""
    for part in range(5):
        bench.enqueue(part, max_size=2, slots=4)
    await turns()
    assert bench.parts == [(0, 1), (2, 3), (4,)]


@on_a_bench
async def test_a_full_queue_refuses_before_the_wait(bench: Bench) -> None:
    """Who cannot be served in time is told at once, and when to come back; the others are not disturbed."""
    settings = BatchSettings(max_queue=4)
    bench.enqueue(0, settings=settings)
    await turns()
    bench.enqueue(1, size=9, settings=settings)  # larger than the queue: enters the empty one
    with pytest.raises(QueueFull, match="try again in 1 s") as refused:
        bench.enqueue(2, settings=settings)
    assert refused.value.retry_after == 1.0
    bench.enqueue(3, settings=settings, route="other")  # a queue of its own
    await asyncio.sleep(7)
    with pytest.raises(QueueFull) as refused:
        bench.enqueue(4, settings=settings)
    assert refused.value.retry_after == pytest.approx(7)
    assert bench.observed.waiting == {"route": 9, "other": 1}
    bench.sent[0].answer()
    await turns()
    bench.enqueue(5, settings=settings)


@on_a_bench
async def test_one_failure_is_everybody_s_in_the_batch_and_nobody_else_s(bench: Bench) -> None:
    """What `send` raises reaches each member; the next batch is not touched."""
    tickets = [bench.enqueue(part) for part in range(2)]
    await turns()
    later = bench.enqueue(2)
    bench.sent[0].end.set_exception(ConnectionError("gone"))
    for ticket in tickets:
        with pytest.raises(ConnectionError, match="gone"):
            await ticket.result
    await turns()
    bench.sent[1].answer()
    assert await later.result == answer_to(2)


@on_a_bench
async def test_each_part_gets_its_own_result_or_error(bench: Bench) -> None:
    """One bad request in a batch harms one caller."""
    good, bad = bench.enqueue(0), bench.enqueue(1)
    await turns()
    bench.sent[0].end.set_result([answer_to(0), ValueError("bad")])
    assert await good.result == answer_to(0)
    with pytest.raises(ValueError, match="bad"):
        await bad.result


@on_a_bench
async def test_the_time_of_a_failure_is_not_taken_for_the_model_s(bench: Bench) -> None:
    """Answers that were errors do not teach how long a batch takes, however they are told."""
    for outcome in ([ValueError()], ConnectionError(), [answer_to(0)]):
        ticket = bench.enqueue(0)
        await turns()
        await asyncio.sleep(0.5)
        assert ticket.rule.forecast(1) == 0.0
        if isinstance(outcome, ConnectionError):
            bench.sent[-1].end.set_exception(outcome)
        else:
            bench.sent[-1].end.set_result(outcome)
        await turns()
    assert ticket.rule.forecast(1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        ([], BatchAborted, "0 results for 2 parts"),
        (["one"], BatchAborted, "1 results for 2 parts"),
        (["one", "two", "three"], BatchAborted, "3 results for 2 parts"),
        (None, TypeError, "len"),
        ([StopIteration(), StopIteration()], BatchAborted, "StopIteration"),
        ([asyncio.CancelledError(), asyncio.CancelledError()], BatchAborted, "CancelledError"),
        (asyncio.CancelledError(), BatchAborted, "CancelledError"),
    ],
    ids=repr,
)
def test_a_send_that_goes_wrong_is_an_error_and_never_a_hung_caller(
    outcome: Any, error: type[Exception], message: str
) -> None:
    """Whatever `send` gives back, every caller gets an end, and nobody's result is cancelled for it."""

    async def main() -> None:
        bench = Bench()
        tickets = [bench.enqueue(part) for part in range(2)]
        await turns()
        if isinstance(outcome, BaseException):
            bench.sent[0].end.cancel()
        else:
            bench.sent[0].end.set_result(outcome)
        for ticket in tickets:
            with pytest.raises(error, match=message):
                await ticket.result
        await bench.batcher.aclose()

    run(main())


def test_a_send_that_cannot_even_be_called_is_an_error_to_its_members() -> None:
    """A wrong wiring shows as an error, not as silence."""

    async def main() -> None:
        def send(batch: Batch[int], slot: Slot) -> Awaitable[Sequence[str]]:
            raise LookupError(batch.parts)

        batcher: Batcher[int, str] = Batcher(send=send)
        ticket = batcher.enqueue(
            1, size=1, lane=0, signature=b"", settings=BatchSettings(), max_size=8, slots=1, route="route"
        )
        with pytest.raises(LookupError):
            await ticket.result
        await batcher.aclose()

    run(main())


@on_a_bench
async def test_a_caller_that_leaves_is_taken_out(bench: Bench) -> None:
    """No work is done for who has gone, the queue has room again, and whoever waits for the result hears of it."""
    bench.enqueue(0)
    await turns()
    gone, stays = bench.enqueue(1), bench.enqueue(2)
    assert gone.withdraw()
    assert not gone.withdraw()
    with pytest.raises(Withdrawn):
        await gone.result
    bench.sent[0].answer()
    await turns()
    assert bench.parts == [(0,), (2,)]
    assert not stays.withdraw()
    assert bench.observed.waiting == {"route": 0}


@on_a_bench
async def test_a_batch_whose_callers_have_all_left_is_given_up(bench: Bench) -> None:
    """The backend is not kept busy for nobody; one caller that stays keeps its batch alive."""
    tickets = [bench.enqueue(part) for part in range(3)]
    await turns()
    for ticket in tickets[:2]:
        ticket.result.cancel()
    await turns()
    assert not bench.sent[0].end.cancelled()
    tickets[2].result.cancel()
    await turns()
    assert bench.sent[0].end.cancelled()
    bench.enqueue(9)
    await turns()
    assert bench.parts == [(0, 1, 2), (9,)]  # and its slot is free again


@on_a_bench
async def test_cancelling_a_result_withdraws_its_part_and_no_other(bench: Bench) -> None:
    """A caller's disconnect, at any time, is nobody else's business."""
    bench.enqueue(0)
    await turns()
    early, late, stays = (bench.enqueue(part) for part in (1, 2, 3))
    early.result.cancel()
    await turns()
    assert bench.observed.waiting == {"route": 2}
    bench.sent[0].answer()
    await turns()
    assert bench.parts == [(0,), (2, 3)]
    late.result.cancel()
    bench.sent[1].answer()
    assert await stays.result == answer_to(3)


@on_a_bench
async def test_when_everybody_has_left_nothing_stays(bench: Bench) -> None:
    """Neither a timer nor a lane outlives the last caller."""
    loop = bench.loop
    assert isinstance(loop, VirtualTimeLoop)
    ticket = bench.enqueue(1, settings=FIXED)
    await turns()
    assert (repr(bench.batcher), loop.timers) == ("<Batcher 1 waiting, 0 out, 1 lanes>", 1)
    assert ticket.withdraw()
    await turns()
    assert (repr(bench.batcher), loop.timers) == ("<Batcher 0 waiting, 0 out, 0 lanes>", 0)
    assert bench.sent == []


@on_a_bench
async def test_a_failing_send_whose_callers_left_is_not_reported_as_a_bug(bench: Bench) -> None:
    """An error that nobody waits for any more makes no noise in the log; the bench checks the loop's."""
    bench.enqueue(1)
    await turns()
    bench.sent[0].end.set_exception(ConnectionError("gone"))
    await turns()
    bench.sent.clear()
    gc.collect()


@on_a_bench
async def test_who_waited_longest_is_known(bench: Bench) -> None:
    """The age of a route's queue can be watched."""
    bench.enqueue(0)
    await asyncio.sleep(1)
    bench.enqueue(1)
    await asyncio.sleep(1)
    bench.enqueue(2)
    bench.enqueue(3, route="other", signature=b"other")
    assert bench.batcher.oldest() == {"route": 1.0, "other": 2.0}


@on_a_bench
async def test_draining_lets_nobody_wait_by_choice(bench: Bench) -> None:
    """A shutdown does not sit out delays, and what still comes is served."""
    bench.enqueue(1, settings=FIXED)
    await turns()
    bench.batcher.drain()
    await turns()
    assert bench.parts == [(1,)]
    bench.sent[0].answer()
    await turns()
    bench.enqueue(2, settings=FIXED)
    await turns()
    assert bench.observed.batches == [("route", 1, DispatchReason.DRAIN)] * 2
    assert repr(bench.batcher) == "<Batcher 0 waiting, 1 out, 1 lanes draining>"


def test_closing_waits_for_every_answer() -> None:
    """On a shutdown every accepted request gets its answer, those that still wait for a slot too; new ones are told."""

    async def main() -> None:
        bench = Bench()
        tickets = [bench.enqueue(part, signature=bytes([part])) for part in range(3)]
        closing = asyncio.ensure_future(bench.batcher.aclose())
        for number in range(3):
            await turns()
            assert not closing.done()
            bench.sent[number].answer()
        await closing
        assert [await ticket.result for ticket in tickets] == [answer_to(part) for part in range(3)]
        with pytest.raises(BatchAborted, match="closed"):
            bench.enqueue(9)
        await bench.batcher.aclose()  # again: nothing to do

    run(main())


def test_closing_that_takes_too_long_fails_what_is_left() -> None:
    """A hung backend cannot hold up a shutdown, and its callers hear of it."""

    async def main() -> None:
        bench = Bench()
        out = bench.enqueue(1)
        await turns()
        waiting = bench.enqueue(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bench.batcher.aclose(), 25)
        for ticket in (out, waiting):
            with pytest.raises(BatchAborted):
                await ticket.result
        assert bench.parts == [(1,)]
        assert repr(bench.batcher) == "<Batcher 0 waiting, 0 out, 0 lanes closed>"
        assert bench.observed.waiting == {"route": 0}

    run(main())


@contextmanager
def bug_in(method: str) -> Iterator[None]:
    """The adaptive rule has a bug for a while."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adaptive, method, fails)
        yield


@pytest.mark.parametrize("method", ["decide", "end_moment", "forecast", "answered"])
def test_a_bug_of_ours_fails_who_waits_and_the_lane_starts_anew(method: str) -> None:
    """A mistake in batching costs an error, never a hung request, and the next request is served."""

    async def main() -> None:
        bench = Bench()
        out = bench.enqueue(0)
        await turns()
        waiting = [bench.enqueue(part) for part in (1, 2)]
        with bug_in(method):
            bench.sent[0].answer()
            for ticket in waiting:
                with pytest.raises(BatchAborted, match="bug"):
                    await ticket.result
        assert await out.result == answer_to(0)
        assert bench.observed.waiting == {"route": 0}
        after = bench.enqueue(3)
        await turns()
        bench.sent[-1].answer()
        assert await after.result == answer_to(3)
        assert after.rule is not out.rule
        await bench.close()

    run(main(), errors=["batching started anew for model"])


def test_a_bug_in_taking_a_leaver_out_hangs_nobody() -> None:
    """Others in the lane of a caller that left hear of the mistake; what is at the backend is answered."""

    async def main() -> None:
        bench = Bench()
        out = bench.enqueue(0)
        await turns()
        gone, other = bench.enqueue(1, slots=2), bench.enqueue(2, slots=2, signature=b"other")
        with bug_in("end_moment"):
            assert gone.withdraw()
        for ticket in (gone, other):
            with pytest.raises(BatchAborted, match="bug"):
                await ticket.result
        bench.sent[0].answer()
        assert await out.result == answer_to(0)
        await bench.close()

    run(main(), errors=["batching started anew for model"])


def test_what_was_out_before_a_bug_does_not_disturb_what_came_after() -> None:
    """A lane that was given up can do no harm to the one in its place."""

    async def main() -> None:
        bench = Bench()
        for part in range(2):
            bench.enqueue(part, slots=2, signature=bytes([part]))
        await turns()
        with bug_in("answered"):
            bench.sent[0].answer()
            await turns()
            bench.enqueue(2)
            await turns()
            waits = bench.enqueue(3)
            bench.sent[1].answer()
            await turns()
            assert bench.parts == [(0,), (1,), (2,)]
        bench.sent[2].answer()
        await turns()
        bench.sent[3].answer()
        assert await waits.result == answer_to(3)
        await bench.close()

    run(main(), errors=["batching started anew for model"])


def test_a_setting_that_never_joins_does_not_come_here() -> None:
    """`mode: off` takes no slot."""

    async def main() -> None:
        bench = Bench()
        with pytest.raises(AssertionError):
            bench.enqueue(1, settings=BatchSettings(mode=BatchMode.OFF))
        await bench.batcher.aclose()

    run(main())


def test_records_are_bounded_and_the_latest_are_kept() -> None:
    """Signatures that come and go, a token each, say, do not fill the memory, nor push out those in use."""

    async def main() -> None:
        bench = Bench(records=3)

        async def one(signature: bytes) -> object:
            ticket = bench.enqueue(0, signature=signature)
            await turns()
            bench.sent[-1].answer()
            await turns()
            return ticket.rule

        first = await one(b"a")
        for signature in (b"b", b"c"):
            await one(signature)
        assert await one(b"a") is first
        for signature in (b"d", b"e"):
            await one(signature)
        assert await one(b"a") is first
        for signature in (b"f", b"g", b"h"):
            await one(signature)
        assert await one(b"a") is not first
        await bench.batcher.aclose()

    run(main())


def test_a_changed_number_of_slots_counts_at_once() -> None:
    """A model that is reloaded with more instances is given more batches."""

    async def main() -> None:
        bench = Bench()
        bench.enqueue(1)
        await turns()
        bench.enqueue(2, slots=2)
        await turns()
        assert bench.parts == [(1,), (2,)]
        await bench.close()

    run(main())


def test_a_ticket_says_where_it_is() -> None:
    """A ticket's repr tells the truth."""

    async def main() -> None:
        bench = Bench()
        ticket: Ticket[str] = bench.enqueue(1, size=3)
        assert repr(ticket) == "<Ticket 3 waiting>"
        await turns()
        assert repr(ticket) == "<Ticket 3 dispatched>"
        bench.sent[0].answer()
        await ticket.result
        assert repr(ticket) == "<Ticket 3 settled>"
        await bench.batcher.aclose()

    run(main())


@pytest.mark.parametrize("delay", [0.0003, 0.00125, 0.0044])
@pytest.mark.parametrize("run_real", [asyncio.run, uvloop.run])
def test_real_loops_do_not_cut_a_wait_short(run_real: Callable[[Any], float], delay: float) -> None:
    """Loops count in milliseconds, and some come early; a wait lasts as long as was decided all the same."""

    async def main() -> float:
        async def send(batch: Batch[int], slot: Slot) -> Sequence[float]:
            return [time.monotonic()] * len(batch.parts)

        batcher: Batcher[int, float] = Batcher(send=send)
        ticket = batcher.enqueue(
            1,
            size=1,
            lane=0,
            signature=b"",
            settings=BatchSettings(mode=BatchMode.FIXED, max_delay=Seconds(delay)),
            max_size=8,
            slots=1,
            route="route",
        )
        waited = await ticket.result - ticket.enqueued_at
        await batcher.aclose()
        return waited

    assert run_real(main()) >= delay
