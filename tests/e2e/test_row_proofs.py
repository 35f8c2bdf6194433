"""Rows that nobody declares: tried out beside the callers' own answers, joined only when proved."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy import proofs
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import model_server
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
    await ask_in_pairs(running, model, 3)
    assert await shadows(running, result) == (2 if result == "refused" else 1)
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
    """Two shadows that are not answered in time disprove the rows, one does not; and no caller waits for them."""
    monkeypatch.setattr(proofs, "SHORTEST", 0.02)
    await running.knows("hanging", "v1")
    await ask_in_pairs(running, "hanging", 1)
    assert await shadows(running, "timeout") == 1
    assert running.sidecar.proofs.report()["disproved"] == []
    await ask_in_pairs(running, "hanging", 3)
    assert await shadows(running, "timeout") == 2
    assert backend.sizes("hanging") == [1, 1, 2, 1, 1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("model", ["overloaded", "expired"])
async def test_what_is_no_word_about_rows_proves_nothing(running: Running, backend: RowsServer, model: str) -> None:
    """After a 503 to a shadow, or a 401, another one is tried, and rarer and rarer: trouble gets no worse by it."""
    await running.knows(model, "v1")
    await ask_in_pairs(running, model, 31)
    assert [at for at, size in enumerate(backend.sizes(model)) if size > 1] == [2, 5, 10, 19, 36]
    assert await shadows(running, "no_verdict") == 5
    assert running.sidecar.proofs.report() == {"open": 1, "proved": 0, "disproved": []}


async def test_equal_rows_prove_nothing(running: Running, backend: RowsServer) -> None:
    """A model that is asked the same again and again gets no shadow: any model answers that alike."""
    await running.knows("independent", "v1")
    row = next(NUMBERS)
    for _ in range(4):
        await predict(running, "independent", row, **{"Forebay-Cache": "refresh"})
    await settled(running)
    assert backend.sizes("independent") == [1, 1, 1, 1]


async def test_equal_results_prove_nothing(running: Running, backend: RowsServer) -> None:
    """A model that nearly always says the same is joined on no such word: what it says else shows what it does."""
    for model in ("blind", "alarm"):
        await running.knows(model, "v1")
        await ask_in_pairs(running, model, 2 * proofs.AGREEING)
        assert backend.sizes(model).count(2) == proofs.AGREEING
    assert running.sidecar.proofs.report() == {"open": 2, "proved": 0, "disproved": []}
    assert (await predict(running, "alarm", -1))[0] == [True]
    await settled(running)
    assert running.sidecar.proofs.report() == {"open": 1, "proved": 0, "disproved": ["v1 alarm: differed"]}


@pytest.mark.parametrize("rows", [[0] * 32, [0]], ids=["as many as a batch holds", "equal ones, again and again"])
async def test_what_waits_for_a_shadow_gives_way(running: Running, rows: list[int]) -> None:
    """Calls that no shadow can be made of do not keep those that come after them from proving the rows."""
    await running.knows("independent", "v1")
    for _ in range(32 // len(rows)):
        await predict(running, "independent", *rows, **{"Forebay-Cache": "refresh"})
    await ask_in_pairs(running, "independent", proofs.AGREEING)
    assert running.sidecar.proofs.report()["proved"] == 1


async def test_what_waits_is_bounded_in_bytes_over_all_callers(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls that wait longest for company make room, whatever of a call is large: head, body or meaning."""
    monkeypatch.setattr(proofs, "HELD", 20_000)
    await running.knows("independent", "v1")
    url, large = f"{running.url}/v1/models/independent:predict", "x" * 4000
    for caller in range(12):
        body = json.dumps({"instances": [caller], "pad": large if caller % 3 == 0 else ""}).encode()
        fields = {"Authorization": f"{caller}", "X-Pad": large if caller % 3 == 1 else ""}
        if caller % 3 == 2:
            body = gzip.compress(json.dumps({"instances": [caller], "pad": large}).encode())
            fields["Content-Encoding"] = "gzip"
        async with running.session.post(url, data=body, headers=fields) as answer:
            assert answer.status == 200
        jobs = [sample.job for proof in running.sidecar.proofs._open.values() for sample in proof.waiting]
        heads = [len(b"".join(itertools.chain.from_iterable(job.fields))) for job in jobs]
        assert 0 < sum(heads) + sum(len(job.body) + len(job.part.call.shared) for job in jobs) <= 20_000
    await ask_in_pairs(running, "independent", proofs.AGREEING)
    assert running.sidecar.proofs.report()["proved"] == 1


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


async def test_a_disproof_holds_for_what_was_proved_before(
    running: Running, backend: RowsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One caller's shadow that differs ends joining for all, for calls that are remembered byte by byte, too."""
    await running.knows("independent", "v1")
    await ask_in_pairs(running, "independent", proofs.AGREEING)
    row = next(NUMBERS)
    said = [(await predict(running, "independent", row))[1].split("; ")[1] for _ in range(3)]
    assert said == ["fwd=miss", "hit", "hit"]
    monkeypatch.setitem(MODELS, "independent", MODELS["centred"])
    for _ in range(2):
        await predict(running, "independent", next(NUMBERS), Authorization="another")
    await settled(running)
    assert running.sidecar.proofs.report() == {"open": 0, "proved": 0, "disproved": ["v1 independent: differed"]}
    answer, status = await predict(running, "independent", row)
    assert (answer, status.split("; ")[1]) == ([0], "fwd=miss"), "what was answered in company is not used any more"


async def test_a_shadow_holds_no_more_rows_than_the_model_takes(tmp_path: Path) -> None:
    """Where the backend names a limit below `batch.max_size`, a shadow above it would be refused and prove nothing."""
    config = tmp_path / "forebay.yaml"
    config.write_text("routes: [{id: tried, match: {path: /v2/*}, rows: prove}]")
    async with model_server(max_batch_size=2) as backend, forebay(backend.url, config=config) as running:
        await running.knows("double")
        for _ in range(proofs.AGREEING):
            tensors = [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [next(NUMBERS)]} for _ in range(6)]
            await asyncio.gather(*(running.infer("double", {"inputs": [tensor]}) for tensor in tensors))
            await settled(running)
        assert running.sidecar.proofs.report() == {"open": 0, "proved": 1, "disproved": []}
        assert max(backend.batch_sizes) == 2


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


async def test_a_proof_of_weights_that_nobody_names_holds_for_a_minute(
    running: Running, backend: RowsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing would show another model, one shadow a minute does, and then nothing is joined any more."""
    now = 0.0
    monkeypatch.setattr(running.sidecar.proofs, "_now", lambda: now)
    backend.version = None
    await running.knows("independent", "v1")

    async def joined() -> bool:
        before = len(backend.calls)
        rows = [next(NUMBERS) for _ in range(6)]
        answers = await asyncio.gather(*(predict(running, "independent", row) for row in rows))
        await settled(running)
        does = backend.replaced.get("independent", MODELS["independent"])
        assert [answer for answer, _ in answers] == [does([row]) for row in rows]
        return max(len(found) for _, found in backend.calls[before:]) > 1

    await ask_in_pairs(running, "independent", proofs.AGREEING)
    assert await joined()
    now = proofs.RENEWED + 1
    await ask_in_pairs(running, "independent", 1)
    assert await shadows(running, "agreed") == proofs.AGREEING + 1
    assert await joined()

    backend.replaced["independent"] = MODELS["centred"]
    now = 2 * proofs.RENEWED + 2
    for _ in range(2):
        assert (await predict(running, "independent", next(NUMBERS)))[0] == [0.0]
        await settled(running)
    assert await shadows(running, "differed") == 1
    assert not await joined()
