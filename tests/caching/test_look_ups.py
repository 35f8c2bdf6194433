"""Promises of look-ups under way: answered once, in time, and never with an exception."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from proxy.caching.entry import Entry
from proxy.caching.look_ups import Key, LookUp, LookUps
from proxy.terms import Fingerprint, Reason

PROMISED = 0.100  # seconds


class Counted:
    def __init__(self) -> None:
        self.results: Counter[LookUp] = Counter()
        self.seconds: list[float] = []

    def lookup(self, seconds: float, result: LookUp) -> None:
        self.results[result] += 1
        self.seconds.append(seconds)


def fingerprint(number: int) -> Fingerprint:
    return Fingerprint(number.to_bytes(16), bytes(16))


def entry(text: str) -> Entry:
    return Entry(text.encode(), (), 0.0, 60.0, 0.0)


async def take(look_ups: LookUps, most: int) -> list[Key]:
    return await asyncio.wait_for(look_ups.take(most), 10)


A, B, C = (fingerprint(number) for number in range(3))


async def test_look_ups_of_one_turn_of_the_loop_are_taken_together() -> None:
    """Callers that ask at the same time share one command, and each gets its own answers in its own order."""
    look_ups = LookUps(Counted())
    taking = asyncio.create_task(look_ups.take(10))
    await asyncio.sleep(0)
    first, second = look_ups.ask([A, B]), look_ups.ask([C])
    keys = await taking
    assert [key.fingerprint for key in keys] == [A, B, C]
    for key, found in reversed(list(zip(keys, (entry("a"), None, entry("c")), strict=True))):
        look_ups.answer(key, LookUp.HIT if found else LookUp.MISS, found)
    assert await first == [entry("a"), Reason.FIRST_SEEN]
    assert await second == [entry("c")]


async def test_a_call_with_many_keys_is_answered_when_the_last_is() -> None:
    """A call that is split over several commands waits for all of them and gets one answer."""
    look_ups = LookUps(Counted())
    answer = look_ups.ask([A, B, C])
    (one, two), (three,) = await take(look_ups, 2), await take(look_ups, 2)
    look_ups.answer(three, LookUp.HIT, entry("c"))
    look_ups.answer(one, LookUp.HIT, entry("a"))
    assert not answer.done()
    look_ups.answer(two, LookUp.MISS, None)
    assert await answer == [entry("a"), Reason.FIRST_SEEN, entry("c")]


async def test_a_caller_that_left_takes_only_itself_out() -> None:
    """A cancelled caller's keys are not asked for any more; those of its neighbours are."""
    counted = Counted()
    look_ups = LookUps(counted)
    gone, stays, leaves_later = look_ups.ask([A]), look_ups.ask([B]), look_ups.ask([C])
    gone.cancel()
    keys = await take(look_ups, 10)
    assert [key.fingerprint for key in keys] == [B, C]
    leaves_later.cancel()
    for key in keys:
        look_ups.answer(key, LookUp.HIT, entry("b"))
    assert await stays == [entry("b")]
    assert counted.results == {LookUp.HIT: 1}


async def test_a_failed_store_answers_everybody_with_what_is_known() -> None:
    """When the store fails, half an answer is better than none, and the rest is told apart from a miss."""
    counted = Counted()
    look_ups = LookUps(counted)
    half, whole = look_ups.ask([A, B]), look_ups.ask([C])
    keys = await take(look_ups, 2)
    look_ups.answer(keys[0], LookUp.HIT, entry("a"))
    look_ups.give_up(LookUp.ERROR)
    assert await half == [entry("a"), Reason.REDIS_DOWN]
    assert await whole == [Reason.REDIS_DOWN]
    look_ups.answer(keys[1], LookUp.HIT, entry("too late"))
    assert await half == [entry("a"), Reason.REDIS_DOWN]
    assert counted.results == {LookUp.HIT: 1, LookUp.ERROR: 2}
    fresh = look_ups.ask([B])
    assert [key.fingerprint for key in await take(look_ups, 10)] == [B]  # nothing of before is asked for
    look_ups.give_up(LookUp.ERROR)
    assert await fresh == [Reason.REDIS_DOWN]


async def test_while_the_store_is_down_the_answer_is_there_before_anybody_waits() -> None:
    """A store that is down costs a look-up no time at all."""
    counted = Counted()
    answer = LookUps(counted).skip([A, B])
    assert answer.done()
    assert answer.result() == [Reason.REDIS_DOWN, Reason.REDIS_DOWN]
    assert counted.results == {LookUp.SKIPPED: 2}
    assert counted.seconds == [0.0, 0.0]


async def test_nobody_waits_longer_than_promised_for_a_store_that_is_only_slow() -> None:
    """Each caller's 100 ms count from its own asking, whether its keys were taken or not."""
    counted = Counted()
    look_ups = LookUps(counted)
    began = time.monotonic()
    first = look_ups.ask([A, B])
    (taken,) = await take(look_ups, 1)
    look_ups.answer(taken, LookUp.HIT, entry("a"))
    answered, later = look_ups.ask([C]), look_ups.ask([C])
    look_ups._waiting[2].asked += 0.030  # as if it had asked so much later
    (_, key, _) = await take(look_ups, 3)
    look_ups.answer(key, LookUp.HIT, entry("c"))
    assert await answered == [entry("c")]
    async with asyncio.timeout(10):
        assert await first == [entry("a"), Reason.REDIS_DOWN]
        assert PROMISED <= time.monotonic() - began < 2 * PROMISED
        assert not later.done()
        assert await later == [Reason.REDIS_DOWN]
        assert PROMISED + 0.030 <= time.monotonic() - began < 2 * PROMISED + 0.030
        again = time.monotonic()
        assert await look_ups.ask([B]) == [Reason.REDIS_DOWN]
        assert PROMISED <= time.monotonic() - again < 2 * PROMISED
    assert counted.results == {LookUp.HIT: 2, LookUp.TIMEOUT: 3}


async def test_a_loop_that_stood_still_gives_the_answer_its_turn() -> None:
    """When our own process was busy for long, an answer that has come meanwhile still counts."""
    look_ups = LookUps(Counted())
    answer = look_ups.ask([A])
    (key,) = await take(look_ups, 1)
    look_ups._wake(due=time.monotonic() - 0.5)  # the timer comes this late
    assert not answer.done()
    look_ups.answer(key, LookUp.HIT, entry("a"))
    assert await answer == [entry("a")]
    look_ups.give_up(LookUp.ERROR)


async def test_a_loop_that_always_stands_still_does_not_keep_callers_for_ever() -> None:
    """A process that is busy all the time grants the store one turn, not one after the other."""
    look_ups = LookUps(Counted())
    answer = look_ups.ask([A])
    for _stall in range(2):
        assert not answer.done()
        time.sleep(2 * PROMISED)  # noqa: ASYNC251 - this is the fault: a loop that does not turn
        for _ in range(3):
            await asyncio.sleep(0)
    assert answer.done()
    assert answer.result() == [Reason.REDIS_DOWN]


async def test_repr_tells_the_truth() -> None:
    """A debugger shows how many calls wait and how many keys nobody has asked for yet."""
    look_ups = LookUps(Counted())
    look_ups.ask([A, B])
    left = look_ups.ask([C])
    await take(look_ups, 1)
    assert repr(look_ups) == "<LookUps 2 waiting, 2 keys to ask for>"
    left.cancel()
    assert repr(look_ups) == "<LookUps 1 waiting, 2 keys to ask for>"
    look_ups.give_up(LookUp.ERROR)
    assert repr(look_ups) == "<LookUps 0 waiting, 0 keys to ask for>"
