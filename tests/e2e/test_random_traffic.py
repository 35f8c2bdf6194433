"""The promise above all others: under random traffic and faults, each caller gets exactly its own answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.calls import WIDTH, call, rows
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import Fault, ModelServer, model_server

CALLERS = 48
REQUESTS = 2500  # a seed
SHARED = {Fault.OVERLOAD: 503, Fault.RESET: 502, Fault.HANG: 504}  # what a whole batch suffers from one row of it
OWN = {Fault.REFUSE: 400, Fault.CRASH: 500}
JOINING_GOES_ON = (Fault.REFUSE, Fault.CRASH, Fault.OVERLOAD, Fault.RESET)


@dataclass
class World:
    """What the callers share.

    left: requests still to be made. least_weights: older ones are wrong for a call that begins now.
    """

    chance: random.Random
    running: Running
    backend: ModelServer
    faults: Sequence[Fault]
    left: int = REQUESTS
    least_weights: int = 1
    seen: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1


def some_rows(chance: random.Random, faults: Sequence[Fault]) -> list[int]:
    """Mostly things that others ask for too; now and then a fault."""
    numbers = [
        chance.choice((chance.randrange(12), chance.randrange(10_000)))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 7)))
    ]
    if chance.random() < 0.03:
        numbers[chance.randrange(len(numbers))] = chance.choice(faults)
    return numbers


def judge(world: World, asked: tuple[list[int], str, int], status: int, body: Any) -> None:
    """Fail unless this is an answer that this very call (its rows, its id, the weights at its time) may get."""
    numbers, name, least = asked
    own = next((Fault(number) for number in numbers if number > 10_000), None)
    if status == 200 and own is Fault.GARBAGE:
        assert body == b"\x00not json"
        return
    if status == 200 and own is Fault.MISCOUNT:  # it rode alone: the backend's own answer to its own bytes
        assert body["id"] == name
        return
    if status == 200:
        assert own is None, (numbers, body)
        assert body["id"] == name
        values, given = body["outputs"][0]["data"], rows(*numbers)
        assert body["outputs"][0]["shape"] == [len(numbers), WIDTH]
        assert len(values) == len(given)
        assert {value - 2 * row for value, row in zip(values, given, strict=True)} <= set(
            range(least, world.backend.weights + 1)
        ), (numbers, values)
        world.count("answered")
        return
    world.count(str(status))
    if status in SHARED.values():
        return  # somebody in the batch, or the flight, was bad for all
    assert own is not None, (numbers, status, body)
    assert status == OWN.get(own, 400)
    assert name in body["error"], (name, body)


async def caller(world: World, number: int) -> None:
    """Ask, wait, look at the answer; sometimes lose patience and leave."""
    while world.left > 0:
        world.left -= 1
        numbers, name = some_rows(world.chance, world.faults), f"caller-{number}-{world.left}"
        headers = {"Forebay-Cache": "off"} if world.chance.random() < 0.1 else {}
        if world.chance.random() < 0.1:
            headers |= {"X-Tenant-Hint": world.chance.choice("ab")}
        least = world.least_weights
        asking = asyncio.create_task(world.running.infer("double", call(*numbers, id=name), headers=headers))
        if world.chance.random() < 0.15:
            done, _ = await asyncio.wait([asking], timeout=world.chance.random() * 0.02)
            if not done:
                asking.cancel()
                await asyncio.wait([asking])
                world.count("left")
                continue
        status, body, _ = await asking
        judge(world, (numbers, name, least), status, body)


async def reloader(world: World) -> None:
    """Put other weights in place a few times; once Forebay has passed that on, older answers are wrong."""
    for left in (2000, 1000, 300):
        await world.running.until(lambda: world.left < left)  # noqa: B023  # it is awaited within the turn
        async with world.running.session.post(f"{world.running.url}/v2/repository/models/double/load") as answer:
            assert answer.status == 200
        world.least_weights = world.backend.weights


@pytest.mark.parametrize(
    ("seed", "faults"), [(1, JOINING_GOES_ON), (2, JOINING_GOES_ON), (3, tuple(Fault)), (4, tuple(Fault))]
)
async def test_each_caller_gets_exactly_its_own_answer(seed: int, faults: Sequence[Fault], tmp_path: Path) -> None:
    """Whatever others ask, break, cancel or reload at the same time, no caller sees another's rows, id or error."""
    chance = random.Random(seed)
    config = tmp_path / "forebay.yaml"
    patience = "250ms" if Fault.HANG in faults else "none"
    config.write_text(f"upstream: {{timeout: {{first_byte: {patience}}}}}\ncache: {{finish_abandoned: 100ms}}\n")
    async with (
        model_server(pace=lambda: chance.random() * 0.006) as backend,
        forebay(backend.url, config=config) as running,
    ):
        await running.knows("double")
        world = World(chance, running, backend, faults)
        await asyncio.gather(reloader(world), *(caller(world, number) for number in range(CALLERS)))
        assert world.seen["answered"] > REQUESTS / 2, world.seen
        assert world.seen["left"] > 10, world.seen
        assert {"400", "500", "502", "503"} <= set(world.seen), world.seen
        assert ("504" in world.seen) == (Fault.HANG in faults), world.seen
        assert max(backend.batch_sizes) > 8, "nothing was joined, so nothing was tried"
        await running.until(lambda: running.sidecar.in_flight == 0)
        await running.until(lambda: len(running.sidecar.pipeline.answers.flights) == 0)
        scrape = await running.scrape()
        assert scrape.total("forebay_requests_active") == 0
        assert scrape.total("forebay_queue_depth") == 0
        assert scrape.total("forebay_requests_total") == scrape.total("forebay_request_duration_seconds_count")
        assert scrape.total("forebay_requests_total", outcome="hit") > 20
        assert scrape.total("forebay_requests_total", outcome="coalesced") > 0
        assert scrape.total("forebay_decisions_total", reason="codec_error") == 0
