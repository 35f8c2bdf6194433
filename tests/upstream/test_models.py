"""Promises about models: what the backend says of them is known soon, and no answer outlives its weights."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from proxy.protocols.codec import ANY_NUMBER, Codec, Facts
from proxy.protocols.v2 import V2
from proxy.terms import Exchange, Identity, Model, Rows
from proxy.upstream.connections import Connections, UpstreamError
from proxy.upstream.health import Health
from proxy.upstream.models import COUNTS_WITHIN, EVERY, KEPT, LONGEST, PAUSE, UNLISTED, UNLISTED_FOR, Models
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.answering import Table, answering
from tests.upstream.clock import Clock
from tests.upstream.connected import connected
from tests.upstream.silent_codec import Silent

CODEC = V2()


class Catalogue(Silent):
    """A codec of a server with one list, by name, of how many items its models take.

    It answers for other names, too, and takes any number then. That the list has other names shows that it was loaded.
    """

    name = protocol = "catalogue"

    def questions(self, model: str) -> tuple[str, ...]:
        return ("/catalogue",)

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        if answers[0] is None:
            return None
        listed = json.loads(answers[0].body)
        return Facts(
            Rows.ITEMS, listed.get(model, ANY_NUMBER), state=json.dumps([*listed]).encode(), listed=model in listed
        )


SILENT, CATALOGUE = Silent(), Catalogue()


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


async def known(models: Models, name: str = "m", codec: Codec = CODEC) -> Model:
    """What is known of a model once it was asked."""
    assert models.get(codec, name) is None
    await settled(models)
    model = models.get(codec, name)
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
                "m", rows=Rows.ITEMS, max_batch_size=8, instances=3, identity=Identity(("1",), 0.0, "", True)
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
            assert models.get(CODEC, "m") is model
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
            after = models.get(CODEC, "m")
            assert after is not None
            assert after.identity.generation == 1002.0 > before.identity.generation
            await clock.tick()
            assert models.get(CODEC, "m") is after


async def test_counters_that_are_gone_start_a_generation() -> None:
    """A backend that keeps no counters any more is not the one that kept them."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            del table["/v2/models/m/stats"]
            await clock.tick()
            after = models.get(CODEC, "m")
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
            assert models.get(CODEC, "m") is model


@pytest.mark.parametrize(
    ("missing", "versions", "identity_known", "rows"),
    [
        (("/config",), ("1",), True, Rows.PROVE),
        (("/stats",), ("1",), True, Rows.ITEMS),
        (("/config", "/stats"), ("1",), True, Rows.PROVE),
        (("/config", "/stats"), (), False, Rows.PROVE),
        (("/stats",), (), False, Rows.ITEMS),
    ],
)
async def test_what_a_backend_does_not_say_is_not_guessed(
    missing: tuple[str, ...], versions: tuple[str, ...], identity_known: bool, rows: Rows
) -> None:
    """Without a config rows must be proved; without versions and counters nothing identifies the weights."""
    with triton() as table:
        describe(table, "m", versions=versions)
        for path in missing:
            del table[f"/v2/models/m{path}"]
        async with connected(table.backend.url) as connections, asking(connections, Clock()) as (models, _):
            model = await known(models)
            assert (model.rows, model.max_batch_size) == (rows, 8 if rows is Rows.ITEMS else ANY_NUMBER)
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
            assert models.get(CODEC, "m") is None
            await clock.tick()
            assert models.get(CODEC, "m") is None
            table.backend = RawBackend(table._script, port=port)
            with table.backend:
                await health.poll()
                await settled(models)
                after = models.get(CODEC, "m")
                assert after is not None
                assert after.identity == before.identity._replace(generation=clock.time)
                assert clock.time > before.identity.generation


async def test_a_load_that_passes_through_starts_a_generation() -> None:
    """Whoever loads a model through Forebay gets no answer of the old weights after it, with no poll to wait for."""
    clock = Clock()
    with triton() as table:
        describe(table, "ensemble")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = [await known(models), await known(models, "ensemble")]
            models.changed()
            assert [models.get(CODEC, "m"), models.get(CODEC, "ensemble")] == [None, None]
            await settled(models)
            for model in before:
                after = models.get(CODEC, model.name)
                assert after is not None
                assert after.identity.generation > model.identity.generation == 0


async def test_calls_that_the_counters_do_not_show_start_a_generation() -> None:
    """A reload before the next poll is seen though the counters are as high as at the last one: calls are missing."""
    clock = Clock()
    with triton() as table:
        describe(table, "m", answered=3)
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = await known(models)
            models.answered("v2", "m", clock.time + 1)
            await clock.tick()
            assert models.get(CODEC, "m") is before
            await clock.tick()
            after = models.get(CODEC, "m")
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
            models.answered("v2", "m", clock.time + 1)
            await clock.tick()
            describe(table, "m", answered=4)
            await clock.tick()
            assert models.get(CODEC, "m") is before
            models.answered("v2", "m", clock.time - 1)  # begun before the counters were read: they may show it already
            models.answered("v2", "never heard of", clock.time + 1)
            await clock.tick()
            assert models.get(CODEC, "m") is before
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
            assert models.get(CODEC, "m") is None
            await asyncio.to_thread(backend.event("asked").wait)
            models.changed()
            backend.let("loaded")
            await settled(models)
            model = models.get(CODEC, "m")
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
            assert models.get(CODEC, "m") is None
            await asyncio.to_thread(backend.event("asked").wait)
            models.changed()
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
                models.changed()
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
            assert model == Model("odd", Rows.WHOLE, ANY_NUMBER, 1, Identity((), 0.0, "", False), listed=False)
            assert repr(models) == "<Models 0/0 known, 1 unlisted, 0 being asked>"
            clock.time += UNLISTED_FOR - 0.1
            assert models.get(CODEC, "odd") is model
            await settled(models)
            assert table.asked["/v2/models/odd"] == 1
            clock.time += 0.1
            assert models.get(CODEC, "odd") is model
            await settled(models)
            assert models.get(CODEC, "odd") is model
            assert table.asked == {"/v2/models/odd": 2}
            describe(table, "odd")
            clock.time += UNLISTED_FOR
            assert models.get(CODEC, "odd") is model
            await settled(models)
            now_listed = models.get(CODEC, "odd")
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
            gone = models.get(CODEC, "m")
            assert gone is not None
            assert not gone.listed
            assert gone.identity.generation > before.identity.generation
            describe(table, "m")
            models.changed()
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
                models.get(CODEC, f"scan{number}")
                most = max(most, len(models._asking))
                if number % 20 > 15:
                    await settled(models)
            await settled(models)
            assert most == 8
            assert len(models._unlisted) == UNLISTED
            assert models.get(CODEC, "m") is model


@pytest.mark.parametrize("codec", [CODEC, SILENT])
async def test_a_scan_pushes_out_no_name_in_use_that_is_not_listed(codec: Codec) -> None:
    """A server that answers to names which it does not list, or lists none, keeps what was stored of those in use."""
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, Clock()) as (models, _):
            models.get(codec, "mine")
            await settled(models)
            model = models.get(codec, "mine")
            assert model is not None
            for number in range(2 * UNLISTED):
                models.get(codec, f"scan{number}")
                await settled(models)
                assert models.get(codec, "mine") is model


async def test_models_in_use_are_bounded_and_the_one_unused_for_longest_goes() -> None:
    """A backend with hundreds of models is not asked about all of them for ever."""
    clock = Clock()
    with triton() as table:
        for number in range(KEPT):
            describe(table, f"m{number}")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = await known(models)
            for number in range(KEPT):
                assert models.get(CODEC, "m") is model
                await known(models, f"m{number}")
            assert models.get(CODEC, "m") is model
            assert repr(models) == f"<Models {KEPT}/{KEPT} known, 0 unlisted, 0 being asked>"
            assert models.get(CODEC, "m0") is None
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
                assert models.get(CODEC, "m") is None
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
                assert models.get(CODEC, "new") is None
                await settled(models)
                await asyncio.sleep(0)
            await clock.tick()
            after = models.get(CODEC, "m")
            assert after is not None
            assert after.identity.generation > before.identity.generation


async def test_a_server_that_has_nothing_to_say_is_not_asked() -> None:
    """Calls of such a protocol need not wait for anything; the names in them label no metric."""
    clock = Clock()
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            model = models.get(SILENT, "m")
            assert model == Model("m", Rows.WHOLE, ANY_NUMBER, 1, Identity((), 0.0, "", False), listed=False)
            assert models.get(SILENT, "m") is model
            await clock.tick()
            assert not table.asked
            for number in range(1000):
                models.get(SILENT, f"scan{number}")
            assert len(models._unasked) == UNLISTED
            assert models.get(SILENT, "m") == model


async def test_codecs_of_one_name_may_differ() -> None:
    """Two routes that describe two servers' bodies each have what they describe."""

    class Other(Silent):
        def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
            return Facts(Rows.PROVE, 4)

    async with connected("http://127.0.0.1:1") as connections:
        models, other = Models(connections, Health(connections)), Other()
        found = [models.get(codec, "") for codec in (SILENT, other, SILENT)]
        assert [model and model.rows for model in found] == [Rows.WHOLE, Rows.PROVE, Rows.WHOLE]


async def test_a_server_that_has_nothing_to_say_may_have_been_replaced() -> None:
    """Though nothing is asked, no answer from before a restart or a load is used after it."""
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, Clock()) as (models, _):
            models.changed()  # before anything was known
            generations = []
            doubts: list[Callable[[], None]] = [
                models.changed,
                functools.partial(models._reachable, False),
                functools.partial(models._reachable, True),
            ]
            for doubt in (None, *doubts):
                if doubt is not None:
                    doubt()
                model = models.get(SILENT, "m")
                assert model is not None
                generations.append(model.identity.generation)
            assert generations[0] == 0
            assert sorted(set(generations)) == generations
            await settled(models)


async def test_codecs_know_a_model_each_for_itself() -> None:
    """One server may speak two protocols: each has its own facts, and each sees the calls that went by it."""
    clock = Clock()
    with triton() as table:
        describe(table, "m", answered=3)
        table["/catalogue"] = (200, b'{"m": 5}')
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            one, other = await known(models), await known(models, "m", CATALOGUE)
            assert (one.max_batch_size, other.max_batch_size) == (8, 5)
            models.answered("catalogue", "m", clock.time + 1)
            await clock.tick()
            assert clock.slept == [EVERY, EVERY]
            assert models.get(CODEC, "m") is one
            assert models.report() == [
                {
                    "model": "m",
                    "codec": "catalogue",
                    "rows": "items",
                    "max_batch_size": 5,
                    "instances": 1,
                    "identity_known": False,
                    "versions": [],
                },
                {
                    "model": "m",
                    "codec": "v2",
                    "rows": "items",
                    "max_batch_size": 8,
                    "instances": 1,
                    "identity_known": True,
                    "versions": ["1"],
                },
            ]


async def test_a_list_of_all_models_is_asked_for_once_a_poll() -> None:
    """A server with fifty adapters is not asked fifty times for the list that holds them all."""
    clock = Clock()
    with triton() as table:
        table["/catalogue"] = (200, b'{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}')
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            before = {name: await known(models, name, CATALOGUE) for name in "abcdef"}
            table.asked.clear()
            await clock.tick()
            assert table.asked == {"/catalogue": 1}
            table["/catalogue"] = (200, b'{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 7}')
            await clock.tick()
            assert table.asked == {"/catalogue": 2}
            for name, model in before.items():
                after = models.get(CATALOGUE, name)
                assert after is not None
                assert (after.identity.generation > model.identity.generation) == (name == "f")
                assert after.max_batch_size == (7 if name == "f" else model.max_batch_size)


async def test_a_name_that_is_not_listed_may_be_answered_for() -> None:
    """A server that takes any name has its items joined; such names push out no model in use and label no metric."""
    clock = Clock()
    with triton() as table:
        table["/catalogue"] = (200, b'{"m": 5}')
        async with connected(table.backend.url) as connections, asking(connections, clock) as (models, _):
            listed = await known(models, "m", CATALOGUE)
            for number in range(KEPT + 1):
                model = await known(models, f"any{number}", CATALOGUE)
                assert (model.rows, model.max_batch_size, model.listed) == (Rows.ITEMS, ANY_NUMBER, False)
            assert models.get(CATALOGUE, "m") is listed
            clock.time += UNLISTED_FOR
            assert models.get(CATALOGUE, model.name) is model
            await settled(models)
            assert models.get(CATALOGUE, model.name) is model
            table["/catalogue"] = (200, b'{"m": 5, "n": 6}')
            clock.time += UNLISTED_FOR
            assert models.get(CATALOGUE, model.name) is model
            await settled(models)
            after = models.get(CATALOGUE, model.name)
            assert after is not None
            assert after.identity.generation > model.identity.generation
            del table["/catalogue"]
            clock.time += UNLISTED_FOR
            models.get(CATALOGUE, model.name)
            await settled(models)
            gone = models.get(CATALOGUE, model.name)
            assert gone is not None
            assert (gone.rows, gone.identity.generation > after.identity.generation) == (Rows.WHOLE, True)


async def test_a_name_of_a_megabyte_is_not_remembered() -> None:
    """Who writes a book where a model's name belongs costs no memory and asks the backend nothing."""
    with triton() as table:
        async with connected(table.backend.url) as connections, asking(connections, Clock()) as (models, _):
            for codec in (CODEC, SILENT):
                assert models.get(codec, "m" * (LONGEST + 1)) is None
            await settled(models)
            assert not table.asked
            assert not models._unasked


async def test_who_can_wait_is_told_at_once() -> None:
    """`forebay check` learns of many models in one go: those that are listed, those that are not, and no answer."""
    with triton() as table:
        table["/v2/models/busy"] = (503, b"")
        async with connected(table.backend.url) as connections:
            models = Models(connections, Health(connections))
            listed, unlisted, busy, unasked = await models.learn(
                [(CODEC, "m"), (CODEC, "n"), (CODEC, "busy"), (SILENT, "m")]
            )
            assert listed is not None
            assert unlisted is not None
            assert (listed.rows, listed.listed, unlisted.listed) == (Rows.ITEMS, True, False)
            assert busy is None
            assert unasked is models.get(SILENT, "m")
            assert models.get(CODEC, "m") is listed
