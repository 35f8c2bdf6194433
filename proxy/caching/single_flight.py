"""Flights: one upstream computation of one fingerprint, whose result everybody who asks meanwhile shares.

The computation is a fill: a task of its own, which somebody else owns. A flight only holds what it gives.

Invariants
    A fingerprint has at most one flight that can be joined, and that one has not settled.
    A flight settles once, by `settle`, `fail` or `drop`, and leaves the table at that moment.
    A caller waits on a future that nobody else sees: its cancellation ends its own wait and no other.
    A follower's proof equals the leader's.

The owner's part: who was told to lead hands the flight to a fleet, and the fleet to a fill, before it
awaits anything, and settles, fails or drops the flight on every way out, the fill's cancellation included.

Knows nothing of tasks, windows, stores and errors' meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from proxy.terms import Fingerprint

R = TypeVar("R")


class FlightLost(Exception):
    """No result will come: who computed it gave up."""


class Caller:
    """One caller's wait, for one flight or for several at once."""

    __slots__ = ("_left", "_woken")

    def __init__(self, flights: int) -> None:
        self._left = flights
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(self) -> None:
        """One of the flights has settled."""
        self._left -= 1
        if self._left == 0 and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self) -> None:
        """Return when all have."""
        await self._woken

    def __repr__(self) -> str:
        return f"<Caller waiting for {self._left} flights>"


class Flight(Generic[R]):
    """What its callers wait for and its owner settles. Made by `Flights` only."""

    __slots__ = ("_callers", "_fleet", "_result", "_table", "_traceback", "error", "fingerprint", "settled")

    def __init__(self, fingerprint: Fingerprint, table: dict[bytes, Flight[R]] | None) -> None:
        """table: where it can be joined; None for an unshared one."""
        self.fingerprint = fingerprint
        self.settled = False
        self.error: Exception | None = None
        self._result: R | None = None
        self._callers: dict[Caller, None] = {}  # in the order in which they came, and are woken
        self._fleet: Fleet | None = None
        self._table = table
        if table is not None:
            table[fingerprint.address] = self

    @property
    def waiters(self) -> int:
        """Callers that wait for it now. None may wait before it settles, and more may come."""
        return len(self._callers)

    async def wait(self) -> R:
        """Its result, or its error raised."""
        await all_settled((self,))
        return self.result()

    def result(self) -> R:
        """The result of a settled flight, or its error raised."""
        assert self.settled
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)  # else each caller's frames would pile up on it
        return self._result  # type: ignore[return-value]  # R may itself allow None, so None cannot be told apart

    def settle(self, result: R) -> None:
        """Give every caller this result. Once settled, a flight stays as it is."""
        if not self.settled:
            self._result = result
            self._end()

    def fail(self, error: BaseException) -> None:
        """Give every caller this error. What would pass for a caller's own cancellation becomes `FlightLost`."""
        if not self.settled:
            self.error = error if isinstance(error, Exception) else FlightLost(repr(error))
            self._traceback = self.error.__traceback__
            self._end()

    def drop(self) -> None:
        """Give up: whoever waits gets `FlightLost`, whoever asks next leads anew."""
        self.fail(FlightLost("given up"))

    def board(self, caller: Caller) -> None:
        """Count a caller in, until the flight settles or the caller leaves."""
        assert not self.settled
        self._callers[caller] = None
        if self._fleet is not None:
            self._fleet.came(1)

    def leave(self, caller: Caller) -> None:
        """Count a caller out; nothing if the flight has settled."""
        if caller in self._callers:
            del self._callers[caller]
            if self._fleet is not None:
                self._fleet.left()

    def in_fleet(self, fleet: Fleet) -> None:
        """Report who comes and leaves to this fleet, and to no other."""
        assert self._fleet is None
        self._fleet = fleet
        fleet.came(self.waiters)

    def _end(self) -> None:
        self.settled = True
        if self._table is not None:
            del self._table[self.fingerprint.address]
        callers, self._callers = self._callers, {}
        fleet, self._fleet = self._fleet, None  # or flights, fleet and fill would hold each other
        if fleet is not None:
            fleet.arrived(len(callers))
        for caller in callers:
            caller.arrived()

    def __repr__(self) -> str:
        state = f"failed: {self.error!r}" if self.error else "settled" if self.settled else "under way"
        shared = "" if self._table is not None else "unshared, "
        return f"<Flight {self.fingerprint.address.hex()[:8]} {shared}{state}, {self.waiters} waiting>"


class Fleet:
    """The flights that one fill will settle.

    on_abandoned: called whenever the last caller of all of them leaves before its flight has settled, once
        each time, for a fill that nobody waits for can find new callers. It must not raise. It may settle
        or drop the flights; else they can be joined as before.
    """

    __slots__ = ("_on_abandoned", "flights", "waiters")

    def __init__(self, flights: Iterable[Flight[R]], on_abandoned: Callable[[], None]) -> None:
        self.waiters = 0  # seats taken in flights that have not settled: a caller of three has three
        self.flights = 0
        self._on_abandoned = on_abandoned
        for flight in flights:
            self.flights += 1
            flight.in_fleet(self)

    def came(self, callers: int) -> None:
        """So many more wait."""
        self.waiters += callers

    def left(self) -> None:
        """One that waited has left without a result."""
        self.waiters -= 1
        if self.waiters == 0:
            self._on_abandoned()

    def arrived(self, callers: int) -> None:
        """So many have what they waited for."""
        self.waiters -= callers

    def __repr__(self) -> str:
        return f"<Fleet of {self.flights} flights, {self.waiters} waiting>"


class Flights(Generic[R]):
    """The flights that can be joined."""

    def __init__(self) -> None:
        self.mismatches = 0  # flights that turned out to be another item's under the same address
        self._table: dict[bytes, Flight[R]] = {}

    def lead_or_follow(self, fingerprint: Fingerprint) -> tuple[Flight[R], bool]:
        """The flight of this fingerprint, and True if the caller leads it: it must see to it that it settles.

        Under the address of somebody else's flight the caller leads one that nobody can join.
        """
        flight = self._table.get(fingerprint.address)
        if flight is None:
            return Flight(fingerprint, self._table), True
        if flight.fingerprint.proof != fingerprint.proof:
            self.mismatches += 1
            return Flight(fingerprint, None), True
        return flight, False

    @property
    def waiting(self) -> int:
        """Seats taken in flights that can be joined: a caller of three flights has three."""
        return sum(flight.waiters for flight in self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"<Flights {len(self)} under way, {self.waiting} waiting, {self.mismatches} mismatches>"


async def all_settled(flights: Iterable[Flight[R]]) -> None:
    """Return when each of them has settled; raises nothing but the caller's own cancellation.

    The caller is counted in all of them from the first moment, and leaves all of them at once.
    """
    under_way = {flight: None for flight in flights if not flight.settled}
    if not under_way:
        return
    caller = Caller(len(under_way))
    for flight in under_way:
        flight.board(caller)
    try:
        await caller.wait()
    finally:
        for flight in under_way:
            flight.leave(caller)
