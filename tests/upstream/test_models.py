"""Promises about models: what the backend says of them is known soon, and no answer outlives its weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from proxy.terms import Identity, Model
from proxy.upstream.connections import Connections, UpstreamError
from proxy.upstream.health import Health
from proxy.upstream.models import COUNTS_WITHIN, EVERY, KEPT, PAUSE, UNLISTED, UNLISTED_FOR, Models
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.answering import Table, answering
from tests.upstream.clock import Clock
from tests.upstream.connected import connected


def describe(
    table: Table, name: str, *, versions: tuple[str, ...] = ("1",), count: int = 5, answered: int = 0, **config: Any
) -> None:
    """Let the backend list a model, as Triton does. answered: calls that it counts."""
    path = f"/v2/models/{name}"
    config = {"name": name, "max_batch_size": 8, "input": [{"name": "x"}]} | config
    counters = {"name": name, "inference_count": count, "inference_stats": {"success": {"count": answered}}}
    stats = {"model_stats": [counters | {"version": version} for version in versions]}
    table[path] = (200, json.dumps({"name": name, "versions": versions}).encode())
    table[f"{path}/config"] = (200, json.dumps(config).encode())
    table[f"{path}/stats"] = (200, json.dumps(stats).encode())


@asynccontextmanager
async def asking(connections: Connections, clock: Clock) -> AsyncIterator[tuple[Models, Health]]:
    """Models polled on the test's own clock; readiness is asked only where the test says so."""
    health = Health(connections)
    models = Models(connections, health, unix_time=clock.now, now=clock.now, sleep=clock.sleep)
    models.start()
    await clock.idle()
    try:
        yield models, health
    finally:
        await models.aclose()


@contextmanager
def triton() -> Iterator[Table]:
    with answering() as table:
        describe(table, "m")
        yield table


async def settled(models: Models) -> None:
    """Until nothing is being asked."""
    while models._tasks:
        await asyncio.wait(models._tasks)


async def known(models: Models, name: str = "m") -> Model:
    """What is known of a model once it was asked."""
    assert models.get(name) is None
    await settled(models)
    model = models.get(name)
    assert model is not None
    return model


async def test_a_model_is_asked_for_on_first_sight() -> None:
    """The first call of a model does not wait; the next ones know its batch limit, its slots and its identity."""
    clock = Clock()
    with triton() as table:
        describe(table, "m", instance_group=[{"count": 3}])
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            assert repr(models) == "<Models 0/0 known, 0 unlisted, 0 being asked>"
            model = await known(models)
            assert model == Model(
                "m", rows=True, max_batch_size=8, instances=3, identity=Identity(("1",), 0.0, "", True)
            )
            assert repr(models) == "<Models 1/1 known, 0 unlisted, 0 being asked>"


async def test_a_model_that_stays_the_same_keeps_its_generation() -> None:
    """Polls alone, growing counters and another order of keys in the config let cached answers live."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = await known(models)
            describe(table, "m", count=9)
            config = json.loads(table["/v2/models/m/config"][1])
            table["/v2/models/m/config"] = (200, json.dumps(dict(reversed(config.items()))).encode())
            await clock.tick()
            assert table.asked["/v2/models/m/stats"] == 2
            assert models.get("m") is model
            assert clock.slept == [EVERY, EVERY]


@pytest.mark.parametrize(
    "change",
    [
        {"count": 4},
        {"versions": ("1", "2")},
        {"versions": ("2",)},
        {"versions": ()},
        {"max_batch_size": 4},
        {"parameters": {"a": "b"}},
    ],
)
async def test_a_sign_of_other_weights_starts_a_generation(change: dict[str, Any]) -> None:
    """After a reload, a new version or another config no answer of before is used, from the next poll on."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            describe(table, "m", **change)
            await clock.tick()
            after = models.get("m")
            assert after is not None
            assert after.identity.generation == 1002.0 > before.identity.generation
            await clock.tick()
            assert models.get("m") is after


async def test_counters_that_are_gone_start_a_generation() -> None:
    """A backend that keeps no counters any more is not the one that kept them."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            del table["/v2/models/m/stats"]
            await clock.tick()
            after = models.get("m")
            assert after is not None
            assert after.identity.generation > before.identity.generation


@pytest.mark.parametrize("status", [500, 503, 429, 302])
@pytest.mark.parametrize("path", ["", "/config", "/stats"])
async def test_a_busy_backend_is_not_a_new_one(status: int, path: str) -> None:
    """A question that gets no real answer leaves what is known as it is."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = await known(models)
            table[f"/v2/models/m{path}"] = (status, b"")
            await clock.tick()
            assert models.get("m") is model


@pytest.mark.parametrize(
    ("missing", "versions", "identity_known", "rows"),
    [
        (("/config",), ("1",), True, False),
        (("/stats",), ("1",), True, True),
        (("/config", "/stats"), ("1",), True, False),
        (("/config", "/stats"), (), False, False),
        (("/stats",), (), False, True),
    ],
)
async def test_what_a_backend_does_not_say_is_not_guessed(
    missing: tuple[str, ...], versions: tuple[str, ...], identity_known: bool, rows: bool
) -> None:
    """Without a config calls never join; without versions and counters nothing identifies the weights."""
    with triton() as table:
        describe(table, "m", versions=versions)
        for path in missing:
            del table[f"/v2/models/m{path}"]
        async with connected(table.backend.url) as connections, asking(connections, Clock()) as (models, _):
            model = await known(models)
            assert (model.rows, model.max_batch_size) == (rows, 8 if rows else 0)
            assert model.identity.known is identity_known
            assert model.listed


async def test_a_backend_that_came_back_starts_a_generation() -> None:
    """A model is unknown from a failed connection on; once the backend is back it is another one, whatever it says."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, health):
            before = await known(models)
            port = table.backend.port
            table.backend.__exit__(None, None, None)
            with pytest.raises(UpstreamError):
                await connections.exchange("GET", "/", ())
            assert models.get("m") is None
            await clock.tick()
            assert models.get("m") is None
            table.backend = RawBackend(table._script, port=port)
            with table.backend:
                await health.poll()
                await settled(models)
                after = models.get("m")
                assert after is not None
                assert after.identity == before.identity._replace(generation=clock.time)
                assert clock.time > before.identity.generation


@pytest.mark.parametrize("name", ["m", "*"])
async def test_a_load_that_passes_through_starts_a_generation(name: str) -> None:
    """Whoever loads a model through Forebay gets no answer of the old weights after it, with no poll to wait for."""
    clock = Clock()
    with triton() as table:
        describe(table, "other")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before, other = await known(models), await known(models, "other")
            models.changed(name)
            assert models.get("m") is None
            await settled(models)
            after = models.get("m")
            assert after is not None
            assert after.identity.generation > other.identity.generation == before.identity.generation == 0
            assert (models.get("other") is other) == (name == "m")


async def test_calls_that_the_counters_do_not_show_start_a_generation() -> None:
    """A reload before the next poll is seen though the counters are as high as at the last one: calls are missing."""
    clock = Clock()
    with triton() as table:
        describe(table, "m", answered=3)
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            models.answered("m", clock.time + 1)
            await clock.tick()
            assert models.get("m") is before
            await clock.tick()
            after = models.get("m")
            assert after is not None
            assert after.identity.generation > before.identity.generation
            assert clock.slept == [EVERY, COUNTS_WITHIN, EVERY]


async def test_a_backend_may_count_a_call_after_it_has_answered_it() -> None:
    """Counters that are a moment late are asked for once more, and nothing is taken for a reload."""
    clock = Clock()
    with triton() as table:
        describe(table, "m", answered=3)
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            models.answered("m", clock.time + 1)
            await clock.tick()
            describe(table, "m", answered=4)
            await clock.tick()
            assert models.get("m") is before
            models.answered("m", clock.time - 1)  # begun before the counters were read: they may show it already
            models.answered("never heard of", clock.time + 1)
            await clock.tick()
            assert models.get("m") is before
            assert clock.slept == [EVERY, COUNTS_WITHIN, EVERY, EVERY]


async def test_a_model_that_was_forgotten_is_not_new() -> None:
    """What nobody asked about for long was not watched: learnt again, its answers of before are not used."""
    clock = Clock()
    with triton() as table:
        names = [f"model-{number}" for number in range(KEPT)]
        for name in names:
            describe(table, name)
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            assert (await known(models)).identity.generation == 0
            for name in names:
                assert (await known(models, name)).identity.generation == 0
            assert (await known(models)).identity.generation > 0


async def test_what_was_asked_before_a_load_is_not_believed_after_it() -> None:
    """An answer about the old weights that is still on its way cannot vouch for the new ones."""
    clock = Clock()

    def script(peer: Peer) -> None:
        peer.request()
        backend.let("asked")
        peer.wait("loaded")
        peer.answer(b'{"versions": ["old"]}')
        while True:
            peer.request()
            peer.answer(b'{"versions": ["new"]}')

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections, asking(connections, clock) as (models, _):
            assert models.get("m") is None
            await asyncio.to_thread(backend.event("asked").wait)
            models.changed("m")
            backend.let("loaded")
            await settled(models)
            model = models.get("m")
            assert model is not None
            assert model.identity.versions == ("new",)


async def test_a_question_that_fails_while_the_backend_changes_is_asked_again() -> None:
    """A backend that restarts under a question is asked again at once, not when the next caller comes."""

    def script(peer: Peer) -> None:
        peer.request()
        if peer.number == 0:
            backend.let("asked")
            peer.wait("restart")
            peer.reset()
            return
        while True:
            peer.answer(b'{"versions": ["1"]}')
            peer.request()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections, asking(connections, Clock()) as (models, _):
            assert models.get("m") is None
            await asyncio.to_thread(backend.event("asked").wait)
            models.changed("*")
            backend.let("restart")
            await settled(models)
            assert repr(models) == "<Models 1/1 known, 0 unlisted, 0 being asked>"


async def test_generations_increase_even_if_the_clock_does_not() -> None:
    """Two reloads within one reading of the clock, or a clock set back, are still two generations."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            generations = [(await known(models)).identity.generation]
            for time in (1000.0, 900.0, 1000.0, 1001.0):
                clock.time = time
                models.changed("m")
                generations.append((await known(models)).identity.generation)
            assert sorted(set(generations)) == generations
            assert generations[-1] == 1001.0


async def test_a_name_that_the_backend_does_not_list_is_asked_for_rarely() -> None:
    """A wrong name costs the backend one question in ten seconds, labels no metric, and may come to exist."""
    clock = Clock()
    with triton() as table:
        table["/v2/models/odd"] = (400, b"")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = await known(models, "odd")
            assert model == Model("odd", False, 0, 1, Identity((), 0.0, "", False), listed=False)
            assert repr(models) == "<Models 0/0 known, 1 unlisted, 0 being asked>"
            clock.time += UNLISTED_FOR - 0.1
            assert models.get("odd") is model
            await settled(models)
            assert table.asked["/v2/models/odd"] == 1
            clock.time += 0.1
            assert models.get("odd") is model
            await settled(models)
            assert models.get("odd") is model
            assert table.asked == {"/v2/models/odd": 2}
            describe(table, "odd")
            clock.time += UNLISTED_FOR
            assert models.get("odd") is model
            await settled(models)
            now_listed = models.get("odd")
            assert now_listed is not None
            assert now_listed.listed
            assert now_listed.identity.generation > model.identity.generation
            assert repr(models) == "<Models 1/1 known, 0 unlisted, 0 being asked>"


async def test_a_model_that_is_unloaded_is_not_listed_any_more() -> None:
    """A model that is gone loses its generation; loaded again it gets a new one."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            table["/v2/models/m"] = (400, b"")
            await clock.tick()
            gone = models.get("m")
            assert gone is not None
            assert not gone.listed
            assert gone.identity.generation > before.identity.generation
            describe(table, "m")
            models.changed("m")
            again = await known(models)
            assert again.identity.generation > gone.identity.generation


async def test_a_scan_of_random_names_is_bounded() -> None:
    """A thousand unknown names push out no model in use, are not all remembered, and are asked for few at a time."""
    clock = Clock()
    most = 0
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = await known(models)
            for number in range(1000):
                models.get(f"scan{number}")
                most = max(most, len(models._asking))
                if number % 20 > 15:
                    await settled(models)
            await settled(models)
            assert most == 8
            assert len(models._unlisted) == UNLISTED
            assert models.get("m") is model


async def test_models_in_use_are_bounded_and_the_one_unused_for_longest_goes() -> None:
    """A backend with hundreds of models is not asked about all of them for ever."""
    clock = Clock()
    with triton() as table:
        for number in range(KEPT):
            describe(table, f"m{number}")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = await known(models)
            for number in range(KEPT):
                assert models.get("m") is model
                await known(models, f"m{number}")
            assert models.get("m") is model
            assert repr(models) == f"<Models {KEPT}/{KEPT} known, 0 unlisted, 0 being asked>"
            assert models.get("m0") is None
            table.asked.clear()
            await settled(models)
            await clock.tick()
            assert len([path for path in table.asked if path.endswith("/stats")]) == KEPT


async def test_a_backend_that_is_down_is_not_asked_for_every_call() -> None:
    """While no question gets through, a flood of calls does not become a flood of questions."""
    clock = Clock()
    with triton() as table:
        table["/v2/models/m"] = (503, b"")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            for _ in range(20):
                assert models.get("m") is None
                await settled(models)
            assert table.asked["/v2/models/m"] == 1
            describe(table, "m")
            clock.time += PAUSE
            await known(models)


async def test_questions_carry_nobody_s_credentials() -> None:
    """Forebay asks in its own name, never with a caller's rights."""
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, Clock()) as (models, _):
            secret = ((b"Authorization", b"Bearer secret"), (b"Cookie", b"a=b"))
            await connections.exchange("POST", "/v2/models/m/infer", secret, b"{}")
            await known(models)
            questions = [request for request in table.backend.requests if b"/infer" not in request.line]
            assert len(questions) == 3
            for question in questions:
                assert {name for name, _ in question.fields} == {b"Host", b"Accept", b"User-Agent"}


async def test_a_fault_of_forebay_s_own_does_not_end_the_polls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If asking itself is broken, that is logged, and reloads are seen again once it is not."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            describe(table, "m", count=1)
            with monkeypatch.context() as broken:
                broken.setattr(connections, "ask", lambda *_, **__: 1 / 0)
                await clock.tick()
                assert "ZeroDivisionError" in caplog.text
                assert models.get("new") is None
                await settled(models)
                await asyncio.sleep(0)
            await clock.tick()
            after = models.get("m")
            assert after is not None
            assert after.identity.generation > before.identity.generation
