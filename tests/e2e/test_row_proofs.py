"""Rows that nobody declares: tried out beside the callers' own answers, joined only when proved."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy import proofs
from tests.parts.forebay import Running, forebay
from tests.parts.rows_backend import MODELS, RowsServer, rows_server

NUMBERS = itertools.count(1)  # no two rows are equal, so nothing is a hit by accident


@pytest.fixture
async def backend() -> AsyncIterator[RowsServer]:
    async with rows_server() as server:
        yield server


@pytest.fixture
async def running(backend: RowsServer) -> AsyncIterator[Running]:
    async with forebay(backend.url) as sidecar:
        yield sidecar


async def predict(running: Running, model: str, *rows: float, **headers: str) -> tuple[Any, str]:
    """What these rows are answered with, and the Cache-Status."""
    url = f"{running.url}/v1/models/{model}:predict"
    async with running.session.post(url, json={"instances": rows}, headers=headers) as answer:
        body = await answer.json()
        assert answer.status == 200, body
        return body["predictions"], answer.headers["Cache-Status"]


def expected(model: str, *rows: float) -> Any:
    return MODELS[model](list(rows))


async def shadows(running: Running, result: str) -> int:
    return int((await running.scrape()).total("forebay_row_proofs_total", route="default", result=result))


async def settled(running: Running) -> None:
    """No shadow is under way."""
    await running.until(lambda: not running.sidecar.proofs.under_way)


async def ask_in_pairs(running: Running, model: str, pairs: int) -> None:
    """So many times two calls of one row, each pair enough for a shadow."""
    for _ in range(pairs):
        for _ in range(2):
            row = next(NUMBERS)
            assert (await predict(running, model, row))[0] == expected(model, row)
        await settled(running)


async def test_independent_rows_are_joined_once_proved(running: Running, backend: RowsServer) -> None:
    """Eight shadows agree, and from then on calls that come together ride together, and rows are kept one by one."""
    await running.knows("independent", "v1")
    await ask_in_pairs(running, "independent", proofs.AGREEING - 1)
    assert running.sidecar.proofs.report()["proved"] == 0
    await ask_in_pairs(running, "independent", 1)
    assert await shadows(running, "agreed") == proofs.AGREEING
    assert running.sidecar.proofs.report() == {"open": 0, "proved": 1, "disproved": []}

    before = len(backend.calls)
    rows = [next(NUMBERS) for _ in range(8)]
    answers = await asyncio.gather(*(predict(running, "independent", row) for row in rows))
    assert [answer for answer, _ in answers] == [expected("independent", row) for row in rows]
    assert sum(len(found) for _, found in backend.calls[before:]) == len(rows)
    assert len(backend.calls) - before < len(rows), "some rode together"
    answer, status = await predict(running, "independent", *rows)
    assert answer == expected("independent", *rows)
    assert status.startswith("Forebay; hit")


async def test_arithmetic_of_another_batch_disproves_nothing(running: Running) -> None:
    """Numbers that differ within the stated tolerance agree."""
    await running.knows("rounding", "v1")
    for _ in range(2 * proofs.AGREEING):
        row = next(NUMBERS)
        (answer,), _ = await predict(running, "rounding", row)
        assert answer == pytest.approx(row * row, abs=1e-6)
        await settled(running)
    assert running.sidecar.proofs.report()["proved"] == 1


@pytest.mark.parametrize(
    ("model", "result"),
    [
        ("centred", "differed"),
        ("numbered", "differed"),
        ("reversed", "differed"),
        ("refusing", "refused"),
        ("constant", "not_split"),
    ],
)
async def test_rows_that_influence_each_other_are_never_joined(
    running: Running, backend: RowsServer, model: str, result: str
) -> None:
    """One shadow at most tells, and every caller keeps getting the answer to its own bytes."""
    await running.knows(model, "v1")
    await ask_in_pairs(running, model, 2)
    assert await shadows(running, result) == 1
    assert running.sidecar.proofs.report()["disproved"] == [f"v1 {model}: {result}"]

    before = len(backend.calls)
    rows = [next(NUMBERS) for _ in range(8)]
    answers = await asyncio.gather(*(predict(running, model, row) for row in rows))
    assert [answer for answer, _ in answers] == [expected(model, row) for row in rows]
    assert sorted(found for _, found in backend.calls[before:]) == [[row] for row in rows]
    assert (await predict(running, model, rows[0]))[1].startswith("Forebay; hit"), "whole calls are kept all the same"


async def test_a_model_that_hangs_when_joined_is_given_up(
    running: Running, backend: RowsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shadow that is not answered in time disproves the rows, and no caller waits for it."""
    monkeypatch.setattr(proofs, "SHORTEST", 0.02)
    await running.knows("hanging", "v1")
    await ask_in_pairs(running, "hanging", 1)
    assert await shadows(running, "timeout") == 1
    await ask_in_pairs(running, "hanging", 2)
    assert backend.sizes("hanging") == [1, 1, 2, 1, 1, 1, 1]


async def test_a_backend_in_trouble_proves_nothing(running: Running, backend: RowsServer) -> None:
    """A 503 to a shadow is no word about rows: another one is tried with the next calls."""
    await running.knows("overloaded", "v1")
    await ask_in_pairs(running, "overloaded", 3)
    assert await shadows(running, "no_verdict") == 3
    assert running.sidecar.proofs.report() == {"open": 1, "proved": 0, "disproved": []}


async def test_equal_rows_prove_nothing(running: Running, backend: RowsServer) -> None:
    """A model that is asked the same again and again gets no shadow: any model answers that alike."""
    await running.knows("independent", "v1")
    row = next(NUMBERS)
    for _ in range(4):
        await predict(running, "independent", row, **{"Forebay-Cache": "refresh"})
    await settled(running)
    assert backend.sizes("independent") == [1, 1, 1, 1]


async def test_callers_do_not_wait_for_a_shadow(running: Running, backend: RowsServer) -> None:
    """While a shadow is out every call is answered, and no second shadow starts."""
    await running.knows("independent", "v1")
    backend.gate.clear()
    for _ in range(6):
        row = next(NUMBERS)
        assert (await predict(running, "independent", row))[0] == expected("independent", row)
    async with asyncio.timeout(20), backend.arrived:
        await backend.arrived.wait_for(lambda: len(backend.calls) == 7)
    assert backend.sizes("independent").count(2) == 1
    assert running.sidecar.proofs.under_way == 1
    backend.gate.set()
    await settled(running)


async def test_other_weights_are_proved_anew(running: Running, backend: RowsServer) -> None:
    """What was proved of one version is not believed of the next."""
    await running.knows("independent", "v1")
    await ask_in_pairs(running, "independent", proofs.AGREEING)
    backend.version = "2"
    await running.sidecar.models.poll()
    row = next(NUMBERS)
    await predict(running, "independent", row)
    before = len(backend.calls)
    rows = [next(NUMBERS) for _ in range(4)]
    await asyncio.gather(*(predict(running, "independent", row) for row in rows))
    await settled(running)
    assert [found for _, found in backend.calls[before:] if len(found) == 1] != []
    assert running.sidecar.proofs.report()["open"] == 1


async def test_a_caller_who_wants_no_company_is_in_no_shadow(running: Running, backend: RowsServer) -> None:
    """With `Forebay-Batch: off` a call is never sent together with another's, not even to try."""
    await running.knows("independent", "v1")
    for _ in range(4):
        await predict(running, "independent", next(NUMBERS), **{"Forebay-Batch": "off"})
    await settled(running)
    assert backend.sizes("independent") == [1, 1, 1, 1]


async def test_a_call_that_is_one_item_is_in_no_shadow(running: Running, backend: RowsServer) -> None:
    """Columns are never joined with another call's, so nothing is tried out with them."""
    await running.knows("independent", "v1")
    for _ in range(4):
        url, column = f"{running.url}/v1/models/independent:predict", [next(NUMBERS)]
        async with running.session.post(url, json={"inputs": column}) as answer:
            assert (await answer.json())["outputs"] == expected("independent", *column)
    await settled(running)
    assert backend.sizes("independent") == [1, 1, 1, 1]


@pytest.mark.parametrize(("rows", "joined"), [("true", True), ("false", False)])
async def test_the_route_may_say_what_rows_are(backend: RowsServer, tmp_path: Path, rows: str, joined: bool) -> None:
    """With `rows: true` or `false` nothing is tried out."""
    config = tmp_path / "forebay.yaml"
    config.write_text(f"routes: [{{id: predict, match: {{path: /v1/*}}, rows: {rows}}}]")
    async with forebay(backend.url, config=config) as running:
        await running.knows("independent", "v1")
        numbers = [next(NUMBERS) for _ in range(8)]
        answers = await asyncio.gather(*(predict(running, "independent", row) for row in numbers))
        assert [answer for answer, _ in answers] == [expected("independent", row) for row in numbers]
        await settled(running)
        assert (max(backend.sizes("independent")) > 1) == joined
        assert sum(backend.sizes("independent")) == len(numbers)


async def test_without_a_cache_rows_are_proved_too(backend: RowsServer, tmp_path: Path) -> None:
    """A route that only batches finds out all the same."""
    async with forebay(backend.url, cache__mode="off") as running:
        await running.knows("independent", "v1")
        for _ in range(2 * proofs.AGREEING):
            url = f"{running.url}/v1/models/independent:predict"
            row = next(NUMBERS)
            async with running.session.post(url, json={"instances": [row]}) as answer:
                assert (await answer.json())["predictions"] == expected("independent", row)
            await settled(running)
        assert running.sidecar.proofs.report()["proved"] == 1


async def test_proofs_say_what_they_hold(running: Running) -> None:
    """The text of it counts what is open, proved and disproved."""
    await running.knows("independent", "v1")
    await running.knows("centred", "v1")
    await predict(running, "independent", next(NUMBERS))
    await ask_in_pairs(running, "centred", 1)
    assert repr(running.sidecar.proofs) == "<Proofs 1 open, 0 proved, 1 disproved>"
