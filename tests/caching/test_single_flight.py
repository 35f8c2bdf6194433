"""Promises of flights: whoever asks for the same meanwhile gets the same, and nobody's leaving hurts another."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.caching.single_flight import Caller, Fleet, Flight, FlightLost, Flights, all_settled
from proxy.terms import Fingerprint


def named(number: int, proof: int = 0) -> Fingerprint:
    return Fingerprint(number.to_bytes(16, "big"), proof.to_bytes(16, "big"))


async def everybody_waits() -> None:
    """Let every task run up to where it can go no further by itself."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
async def no_complaints() -> AsyncIterator[None]:
    """Whatever happened in a test, the event loop has nothing to say of errors that nobody looked at."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await everybody_waits()
    gc.collect()
    assert complaints == []


async def test_a_follower_gets_what_the_leader_gets() -> None:
    """Two callers who ask for the same at the same time cause one computation."""
    flights: Flights[str] = Flights()
    flight, leads = flights.lead_or_follow(named(1))
    same, also_leads = flights.lead_or_follow(named(1))
    assert (leads, also_leads, same is flight) == (True, False, True)
    waits = [asyncio.create_task(flight.wait()), asyncio.create_task(same.wait())]
    await everybody_waits()
    assert repr(flights) == "<Flights 1 under way, 2 waiting, 0 mismatches>"
    flight.settle("answer")
    assert await asyncio.gather(*waits) == ["answer", "answer"]
    assert repr(flights) == "<Flights 0 under way, 0 waiting, 0 mismatches>"


async def test_a_settled_flight_is_not_joined() -> None:
    """Who asks after the answer came starts anew: a flight is no cache."""
    flights: Flights[str] = Flights()
    for end in ("settle", "fail", "drop"):
        flight, leads = flights.lead_or_follow(named(1))
        assert leads
        if end == "settle":
            flight.settle("answer")
        elif end == "fail":
            flight.fail(ValueError("no answer"))
        else:
            flight.drop()
        assert flight.settled
        assert len(flights) == 0


async def test_who_looks_late_still_finds_the_answer() -> None:
    """A caller who was told to follow and waits only after the flight has settled gets its result at once."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    flight.settle("answer")
    async with asyncio.timeout(5):
        assert await flight.wait() == "answer"


async def test_a_flight_settles_once() -> None:
    """A second result, or an error after the result, changes nothing for anybody."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    flight.settle("first")
    again, _ = flights.lead_or_follow(named(1))
    flight.settle("second")
    flight.fail(ValueError())
    flight.drop()
    assert await flight.wait() == "first"
    assert len(flights) == 1
    assert not again.settled


async def test_the_same_address_with_another_proof_flies_alone() -> None:
    """After a hash collision both callers get their own answers, and an operator sees that it happened."""
    flights: Flights[str] = Flights()
    mine, _ = flights.lead_or_follow(named(1, proof=1))
    theirs, leads = flights.lead_or_follow(named(1, proof=2))
    third, third_leads = flights.lead_or_follow(named(1, proof=2))
    assert leads
    assert third_leads
    assert third is not theirs
    assert flights.mismatches == 2
    theirs.settle("theirs")
    assert flights.lead_or_follow(named(1, proof=1)) == (mine, False)
    mine.settle("mine")
    third.settle("theirs too")
    assert [await flight.wait() for flight in (mine, theirs, third)] == ["mine", "theirs", "theirs too"]
    assert len(flights) == 0


@pytest.mark.parametrize("leaver", [0, 1, 2])
async def test_one_caller_who_leaves_hurts_nobody_else(leaver: int) -> None:
    """When the leader or a follower disconnects or times out, all others still get the answer."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    told: list[str] = []
    Fleet([flight], lambda: told.append("abandoned"))
    waits = [asyncio.create_task(flight.wait()) for _ in range(3)]
    await everybody_waits()
    waits[leaver].cancel()
    await everybody_waits()
    assert waits[leaver].cancelled()
    assert flight.waiters == 2
    flight.settle("answer")
    others = [wait for wait in waits if wait is not waits[leaver]]
    assert await asyncio.gather(*others) == ["answer", "answer"]
    assert told == []


async def test_a_caller_who_leaves_in_the_moment_of_the_answer_is_cancelled_and_nobody_is_told() -> None:
    """A cancellation that meets the result is still a cancellation, and abandons nothing."""
    flights: Flights[str] = Flights()
    for cancel_first in (True, False):
        flight, _ = flights.lead_or_follow(named(1))
        told: list[str] = []
        Fleet([flight], lambda told=told: told.append("abandoned"))  # type: ignore[misc]  # mypy infers no defaults
        wait = asyncio.create_task(flight.wait())
        await everybody_waits()
        if cancel_first:
            wait.cancel()
        flight.settle("answer")
        if not cancel_first:
            wait.cancel()
        await everybody_waits()
        assert wait.cancelled()
        assert told == []


async def test_the_owner_hears_once_that_the_last_caller_has_left() -> None:
    """A computation that nobody waits for any more can be withdrawn."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    told: list[int] = []
    fleet = Fleet([flight], lambda: told.append(flight.waiters))
    waits = [asyncio.create_task(flight.wait()) for _ in range(2)]
    await everybody_waits()
    assert repr(fleet) == "<Fleet of 1 flights, 2 waiting>"
    waits[0].cancel()
    await everybody_waits()
    assert told == []
    waits[1].cancel()
    await everybody_waits()
    assert told == [0]
    assert repr(fleet) == "<Fleet of 1 flights, 0 waiting>"


async def test_an_owner_may_give_up_as_soon_as_nobody_waits() -> None:
    """The next caller leads anew instead of joining what was withdrawn."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    Fleet([flight], flight.drop)
    wait = asyncio.create_task(flight.wait())
    await everybody_waits()
    wait.cancel()
    await everybody_waits()
    assert flights.lead_or_follow(named(1))[1]


async def test_a_client_that_timed_out_and_retries_coalesces_with_its_first_try() -> None:
    """A flight that goes on although nobody waits can be joined again, and be abandoned again."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    told: list[str] = []
    Fleet([flight], lambda: told.append("abandoned"))
    for tries in (1, 2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await flights.lead_or_follow(named(1))[0].wait()
        assert told == ["abandoned"] * tries
    retry, leads = flights.lead_or_follow(named(1))
    assert (retry, leads) == (flight, False)
    wait = asyncio.create_task(retry.wait())
    await everybody_waits()
    flight.settle("answer")
    assert await wait == "answer"
    assert len(told) == 2


async def test_a_fill_is_abandoned_when_the_last_caller_of_any_of_its_items_has_left() -> None:
    """A call of three items whose second a stranger waits for goes on for the stranger when its caller leaves."""
    flights: Flights[str] = Flights()
    led = [flights.lead_or_follow(named(number))[0] for number in range(3)]
    told: list[str] = []
    fleet = Fleet(led, lambda: told.append("abandoned"))
    caller = asyncio.create_task(all_settled(led))
    stranger = asyncio.create_task(flights.lead_or_follow(named(1))[0].wait())
    await everybody_waits()
    assert [flight.waiters for flight in led] == [1, 2, 1]
    assert repr(fleet) == "<Fleet of 3 flights, 4 waiting>"
    caller.cancel()
    await everybody_waits()
    assert told == []
    stranger.cancel()
    await everybody_waits()
    assert told == ["abandoned"]


async def test_callers_of_items_that_are_answered_already_do_not_count() -> None:
    """Once a stranger's item is answered, the rest of the call is abandoned with its own caller."""
    flights: Flights[str] = Flights()
    led = [flights.lead_or_follow(named(number))[0] for number in range(2)]
    told: list[str] = []
    Fleet(led, lambda: told.append("abandoned"))
    caller = asyncio.create_task(all_settled(led))
    stranger = asyncio.create_task(led[0].wait())
    await everybody_waits()
    led[0].settle("answer")
    caller.cancel()
    await everybody_waits()
    assert told == ["abandoned"]
    assert await stranger == "answer"


async def test_a_caller_waits_for_all_its_items_at_once() -> None:
    """A call has its answer when its last item has one, in whatever order they come, an item asked twice included."""
    flights: Flights[str] = Flights()
    asked = [flights.lead_or_follow(named(number))[0] for number in (0, 1, 0, 2)]
    wait = asyncio.create_task(all_settled(asked))
    await everybody_waits()
    for flight in (asked[3], asked[0]):
        flight.settle("answer")
        await everybody_waits()
        assert not wait.done()
    asked[1].fail(ValueError("no answer"))
    await wait
    assert [str(flight.error) if flight.error else flight.result() for flight in asked] == [
        "answer",
        "no answer",
        "answer",
        "answer",
    ]
    await all_settled(asked)


async def test_every_caller_gets_the_error_and_its_own_traceback_only() -> None:
    """A thousand followers of a failed computation do not make its error grow a thousand times."""

    async def depth() -> int:
        try:
            await flight.wait()
        except ValueError as error:
            trace, frames = error.__traceback__, 0
            while trace is not None:
                trace, frames = trace.tb_next, frames + 1
            return frames
        raise AssertionError("no error came")

    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    waits = [asyncio.create_task(depth()) for _ in range(20)]
    await everybody_waits()
    flight.fail(ValueError("no answer"))
    async with asyncio.timeout(5):
        assert len(set(await asyncio.gather(*waits))) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
async def test_a_fill_that_was_cancelled_does_not_cancel_its_callers(error: BaseException) -> None:
    """Callers of a computation that was ended from outside get an error they can answer with."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    wait = asyncio.create_task(flight.wait())
    await everybody_waits()
    flight.fail(error)
    with pytest.raises(FlightLost, match=type(error).__name__):
        await wait
    assert len(flights) == 0


async def test_an_error_that_nobody_waits_for_makes_no_noise() -> None:
    """A failed computation whose callers have left writes nothing about exceptions never retrieved."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(named(1))
    wait = asyncio.create_task(flight.wait())
    await everybody_waits()
    wait.cancel()
    await everybody_waits()
    flight.fail(ValueError("no answer"))
    assert repr(flight) == "<Flight 00000000 failed: ValueError('no answer'), 0 waiting>"
    del flight  # the fixture looks for complaints


async def test_reprs_tell_the_truth() -> None:
    """What a debugger shows of a flight is its state."""
    flights: Flights[str] = Flights()
    flight, _ = flights.lead_or_follow(Fingerprint(b"\xab\xcd" * 8, b""))
    unshared, _ = flights.lead_or_follow(Fingerprint(b"\xab\xcd" * 8, b"other"))
    wait = asyncio.create_task(flight.wait())
    await everybody_waits()
    assert repr(flight) == "<Flight abcdabcd under way, 1 waiting>"
    assert repr(unshared) == "<Flight abcdabcd unshared, under way, 0 waiting>"
    assert repr(Caller(2)) == "<Caller waiting for 2 flights>"
    flight.settle("answer")
    await wait
    assert repr(flight) == "<Flight abcdabcd settled, 0 waiting>"


@dataclass(eq=False)
class ModelFlight:
    """What should be so of a flight. outcome: None while it is under way."""

    flight: Flight[str]
    shared: bool
    fleet: ModelFleet
    outcome: str | None = None


@dataclass(eq=False)
class ModelFleet:
    """What should be so of a fleet. heard: how often its owner was really told."""

    flights: list[ModelFlight] = field(default_factory=list)
    told: int = 0
    heard: int = 0


@dataclass(eq=False)
class ModelCaller:
    """A caller and what it should be waiting for."""

    flights: list[ModelFlight]
    task: asyncio.Task[list[str]]
    gone: bool = False

    @property
    def waits(self) -> bool:
        return not self.gone and any(flight.outcome is None for flight in self.flights)


class FlightMachine(RuleBasedStateMachine):
    """Under any order of calls, leavers, results and errors, callers get their own answer, owners the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self.flights: Flights[str] = Flights()
        self.table: dict[int, tuple[int, ModelFlight]] = {}  # the model: number -> proof, flight
        self.all: list[ModelFlight] = []
        self.callers: list[ModelCaller] = []
        self.answers = (f"answer {number}" for number in itertools.count())
        self.mismatches = 0

    def run(self) -> None:
        self.loop.run_until_complete(everybody_waits())

    @staticmethod
    async def call(flights: list[Flight[str]]) -> list[str]:
        await all_settled(flights)
        return [repr(flight.error) if flight.error else flight.result() for flight in flights]

    @rule(asked=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 1])), min_size=1, max_size=4))
    def somebody_calls(self, asked: list[tuple[int, int]]) -> None:
        fleet = ModelFleet()
        mine = []
        for number, proof in asked:
            flight, leads = self.flights.lead_or_follow(named(number, proof))
            there = self.table.get(number)
            if there is not None and there[0] == proof:
                assert not leads
                assert flight is there[1].flight
                mine.append(there[1])
                continue
            assert leads
            led = ModelFlight(flight, shared=there is None, fleet=fleet)
            if there is None:
                self.table[number] = (proof, led)
            else:
                self.mismatches += 1
            fleet.flights.append(led)
            mine.append(led)
        self.all += fleet.flights

        def hear() -> None:
            fleet.heard += 1

        Fleet([led.flight for led in fleet.flights], hear)
        task = self.loop.create_task(self.call([flight.flight for flight in mine]))
        self.callers.append(ModelCaller(mine, task))
        self.run()

    def seats(self, fleet: ModelFleet) -> int:
        return sum(
            1
            for caller in self.callers
            if caller.waits
            for flight in fleet.flights
            if flight.outcome is None and flight in caller.flights
        )

    def leave(self, caller: ModelCaller) -> None:
        left = {flight.fleet for flight in caller.flights if flight.outcome is None}
        caller.gone = True
        for fleet in left:
            fleet.told += self.seats(fleet) == 0

    def end(self, flight: ModelFlight, how: str) -> None:
        flight.outcome = next(self.answers)
        if how == "settle":
            flight.flight.settle(flight.outcome)
        elif how == "fail":
            error = ValueError(flight.outcome)
            flight.outcome = repr(error)
            flight.flight.fail(error)
        else:
            flight.flight.drop()
            flight.outcome = repr(FlightLost("given up"))
        self.table = {number: there for number, there in self.table.items() if there[1] is not flight}

    def under_way(self) -> list[ModelFlight]:
        return [flight for flight in self.all if flight.outcome is None]

    def waiting(self) -> list[ModelCaller]:
        return [caller for caller in self.callers if caller.waits]

    ends = st.sampled_from(["settle", "fail", "drop"])

    @precondition(lambda self: self.under_way())
    @rule(data=st.data(), how=ends)
    def a_flight_ends(self, data: st.DataObject, how: str) -> None:
        self.end(data.draw(st.sampled_from(self.under_way())), how)
        self.run()

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def a_caller_leaves(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.waiting()))
        caller.task.cancel()
        self.leave(caller)
        self.run()

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), how=ends)
    def a_caller_leaves_in_the_moment_its_flights_end(self, data: st.DataObject, how: str) -> None:
        caller = data.draw(st.sampled_from(self.waiting()))
        ending = data.draw(st.lists(st.sampled_from(caller.flights), unique=True))
        caller.task.cancel()
        for flight in ending:
            if flight.outcome is None:
                self.end(flight, how)
        self.leave(caller)
        self.run()

    @invariant()
    def everybody_has_what_is_theirs(self) -> None:
        for caller in self.callers:
            assert caller.task.done() == (not caller.waits)
            if caller.gone:
                assert caller.task.cancelled()
            elif not caller.waits:
                assert caller.task.result() == [flight.outcome for flight in caller.flights]

    @invariant()
    def everything_is_counted_right(self) -> None:
        waiting = 0
        for flight in self.all:
            callers = sum(flight in caller.flights for caller in self.waiting()) if flight.outcome is None else 0
            assert flight.flight.waiters == callers
            assert flight.fleet.heard == flight.fleet.told
            waiting += callers if flight.shared else 0
        assert repr(self.flights) == (
            f"<Flights {len(self.table)} under way, {waiting} waiting, {self.mismatches} mismatches>"
        )

    def teardown(self) -> None:
        for flight in self.under_way():
            self.end(flight, "fail")
        self.run()
        self.everybody_has_what_is_theirs()
        assert len(self.flights) == 0
        self.loop.close()
        assert self.complaints == []


TestFlights = FlightMachine.TestCase
