"""Promises to whoever puts Forebay before a real KServe model server, asked in V1, in V2 and in V2 with binary tensors.

KServe says nothing of batches: whether rows are independent is proved, model by model, on the calls as they come.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

import pytest

from proxy import proofs
from tests.parts.forebay import Running, forebay
from tests.parts.kserve import JSON, KServe
from tests.parts.kserve_models import BAD, MODELS

NUMBERS = itertools.count(1)  # rows that nobody has asked for yet
HEAD_LENGTH = "Inference-Header-Content-Length"


class Said(NamedTuple):
    """What came of a request: what a client reads, and Forebay's word on how it came about."""

    status: int
    content_type: str
    head_length: str
    body: bytes
    cache: str = ""


class Asked(NamedTuple):
    path: str
    body: bytes
    headers: Mapping[str, str] = JSON


@pytest.fixture(scope="module")
def kserve() -> Iterator[KServe]:
    with KServe() as started:
        yield started


@pytest.fixture
async def running(kserve: KServe) -> AsyncIterator[Running]:
    """A Forebay which knows every model, in both versions of the protocol."""
    async with forebay(kserve.url) as sidecar:
        for model, codec in itertools.product(MODELS, ("v1", "v2")):
            await sidecar.knows(model, codec)
        yield sidecar


async def direct(kserve: KServe, asked: Asked) -> Said:
    answer = await asyncio.to_thread(kserve.request, "POST", asked.path, asked.body, asked.headers)
    return Said(
        answer.status,
        answer.headers.get("content-type", ""),
        answer.headers.get(HEAD_LENGTH.lower(), ""),
        answer.body,
    )


async def through(running: Running, asked: Asked, **more: str) -> Said:
    headers = {**asked.headers, **more}
    async with running.session.post(running.url + asked.path, data=asked.body, headers=headers) as answer:
        return Said(
            answer.status,
            answer.headers.get("Content-Type", ""),
            answer.headers.get(HEAD_LENGTH, ""),
            await answer.read(),
            answer.headers.get("Cache-Status", ""),
        )


def meaning(said: Said) -> object:
    """What a client reads: numbers as they are written, objects in any order, tensors to the byte."""
    at = int(said.head_length or len(said.body))
    head, tensors = said.body[:at], said.body[at:]
    try:
        read = json.loads(head, parse_int=str, parse_float=str)
    except ValueError:
        read = head
    return said.status, said.content_type, bool(said.head_length), read, tensors


def same(one: Said, other: Said) -> bool:
    return meaning(one) == meaning(other)


def v1(model: str, *instances: object, **more: object) -> Asked:
    return Asked(f"/v1/models/{model}:predict", json.dumps({"instances": instances} | more).encode())


def v2(model: str, *rows: float) -> Asked:
    tensor = {"name": "X", "shape": [len(rows), 1], "datatype": "FP32", "data": rows}
    return Asked(f"/v2/models/{model}/infer", json.dumps({"id": "mine", "inputs": [tensor]}).encode())


def binary(model: str, *rows: float) -> Asked:
    data = struct.pack(f"<{len(rows)}f", *rows)
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "X", "shape": [len(rows), 1], "datatype": "FP32", "parameters": parameters}
    head = json.dumps({"id": "mine", "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
    return Asked(f"/v2/models/{model}/infer", head + data, headers)


WAYS = {"v1": v1, "v2": v2, "binary": binary}


async def settled(running: Running) -> None:
    """No shadow is under way."""
    await running.until(lambda: not running.sidecar.proofs.under_way)


async def ask_in_pairs(running: Running, kserve: KServe, model: str, way: str, pairs: int) -> None:
    """So many times two calls of one row, each pair enough for a shadow, and each answered as it would be directly."""
    for _ in range(pairs):
        for _ in range(2):
            asked = WAYS[way](model, float(next(NUMBERS)))
            assert same(await through(running, asked), await direct(kserve, asked))
        await settled(running)


# --- as it would be directly


V1_CALLS = [
    v1("independent", 1),
    v1("independent", 1, 2, 1),
    v1("independent", 1.5, -0.25, 1e-7),
    v1("independent", 1, 2.5, "a", None, True, [1, [2]], {"b": 1, "a": 2}),
    v1("independent", 'é "€😀" \\ \n', ""),
    v1("independent", 9007199254740993, -(2**62)),
    v1("independent", {"b": [1, 2], "a": "x"}, {"b": [3, 4], "a": "y"}),
    v1("independent", 1, signature_name="serving_default", parameters={"x": [1]}),
    v1("centred", 1, 2, 6),
    v1("constant", 1),
    v1("constant", 1, 2),
    v1("constant", 1, 2, 3),
    v1("picky", 1, 2),
    v1("picky", 1, BAD, 2),
    v1("picky", None),
    v1("nobody", 1),
    v1("independent"),
    Asked("/v1/models/independent:predict", b'{ "instances" :\n[ [ 1.50 , -0.0 ] ] }'),
    Asked("/v1/models/independent:predict", b'{"instances":[1],"instances":[2]}'),
    Asked("/v1/models/independent:predict", b'{"instances":[NaN]}'),
    Asked("/v1/models/independent:predict", b'{"instances":[1'),
    Asked("/v1/models/independent:predict", b'{"inputs":[1]}'),
    Asked("/v1/models/independent:predict", b"[1]"),
    Asked("/v1/models/independent:predict", b'{"instances":{"a":[1]}}'),
    Asked("/v1/models/independent:explain", b'{"instances":[1]}'),
    Asked("/v1/models/independent/versions/1:predict", b'{"instances":[1]}'),
    Asked("/v1/models/independent/labels/x:predict", b'{"instances":[1]}'),
]


@pytest.mark.parametrize("asked", V1_CALLS, ids=lambda asked: f"{asked.path[11:]} {asked.body[:48].decode()}")
async def test_every_v1_call_is_answered_as_directly(running: Running, kserve: KServe, asked: Asked) -> None:
    """Whatever it holds and whatever becomes of it: first, repeated, and asked by several at once."""
    expected = await direct(kserve, asked)
    for _ in range(2):
        assert same(await through(running, asked), expected)
    for said in await asyncio.gather(*(through(running, asked) for _ in range(4))):
        assert same(said, expected)


@pytest.mark.parametrize("way", ["v2", "binary"])
@pytest.mark.parametrize("model", ["independent", "centred", "constant", "picky"])
async def test_every_v2_call_is_answered_as_directly(running: Running, kserve: KServe, way: str, model: str) -> None:
    """In JSON and with binary tensors, errors too."""
    for rows in ([1.0], [2.0, 3.5, 2.0], [1.0, float(BAD)]):
        asked = WAYS[way](model, *rows)
        expected = await direct(kserve, asked)
        for _ in range(2):
            assert same(await through(running, asked), expected)
        for said in await asyncio.gather(*(through(running, asked) for _ in range(4))):
            assert same(said, expected)


async def test_equal_calls_at_once_are_computed_once(running: Running) -> None:
    """And later ones come from the response cache, each with an answer of its own."""
    asked = v1("independent", next(NUMBERS), next(NUMBERS))
    said = await asyncio.gather(*(through(running, asked) for _ in range(8)))
    assert len({one.body for one in said}) == 1
    assert sum("fwd=miss" in one.cache and "collapsed" not in one.cache for one in said) == 1
    assert (await through(running, asked)).cache.startswith("Forebay; hit")


async def test_what_kserve_says_of_itself_is_found(running: Running) -> None:
    """Both versions of its protocol, and its models."""
    await running.until(lambda: running.sidecar.backend.asked)
    found = running.sidecar.backend.found
    assert found["v1"].models == tuple(MODELS)
    assert "kserve" in found["v2"].server


# --- who rides together


@pytest.mark.parametrize("way", sorted(WAYS))
async def test_independent_rows_are_joined_once_proved(running: Running, kserve: KServe, way: str) -> None:
    """After eight shadows that agree, calls that come together ride together and are answered as directly."""
    await ask_in_pairs(running, kserve, "independent", way, proofs.AGREEING)
    assert running.sidecar.proofs.report() == {"open": 0, "proved": 1, "disproved": []}

    for _ in range(20):
        calls = [WAYS[way]("independent", *(next(NUMBERS) + 0.5 for _ in range(count))) for count in (1, 2, 1, 3, 1, 1)]
        expected = [await direct(kserve, asked) for asked in calls]
        before = await running.scrape()
        said = await asyncio.gather(*(through(running, asked) for asked in calls))
        after = await running.scrape()
        assert all(map(same, said, expected))
        sent, items = (
            after.total(f"forebay_batch_items_{what}") - before.total(f"forebay_batch_items_{what}")
            for what in ("count", "sum")
        )
        assert items == 9
        for asked, answer in zip(calls, expected, strict=True):
            again = await through(running, asked)
            assert same(again, answer)
            assert again.cache.startswith("Forebay; hit")
        if sent < len(calls):
            return
    pytest.fail("no two calls rode together")


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize(("model", "why"), [("centred", "differed"), ("constant", "differed"), ("hanging", "timeout")])
async def test_rows_that_need_each_other_are_never_joined(
    running: Running, kserve: KServe, way: str, model: str, why: str
) -> None:
    """Nor those of a model that always says the same list, or never answers more than one: no caller notices."""
    await ask_in_pairs(running, kserve, model, way, 2)
    codec = "v1" if way == "v1" else "v2"
    assert running.sidecar.proofs.report()["disproved"] == [f"{codec} {model}: {why}"]

    calls = [WAYS[way](model, float(next(NUMBERS))) for _ in range(8)]
    said = await asyncio.gather(*(through(running, asked) for asked in calls))
    assert all([same(one, await direct(kserve, asked)) for one, asked in zip(said, calls, strict=True)])
    assert (await running.scrape()).total("forebay_batch_items_count") == 0


async def test_a_bad_instance_harms_its_caller_alone(running: Running, kserve: KServe) -> None:
    """KServe refuses a joined request that holds one: each caller hears of its own, as directly."""
    await ask_in_pairs(running, kserve, "picky", "v1", proofs.AGREEING)
    for _ in range(20):
        calls = [v1("picky", float(next(NUMBERS))) for _ in range(6)]
        calls.insert(3, v1("picky", float(BAD)))
        said = await asyncio.gather(*(through(running, asked) for asked in calls))
        expected = [await direct(kserve, asked) for asked in calls]
        assert [one.status for one in expected].count(400) == 1
        assert all(map(same, said, expected))
        if (await running.scrape()).total("forebay_batch_splits_total"):
            return
    pytest.fail("the bad instance never rode with others")


async def test_generated_calls_are_answered_as_directly(running: Running, kserve: KServe) -> None:
    """Hundreds of calls, many at once, rows that come again in other calls, proved meanwhile: no answer differs."""
    chance = random.Random(5)
    kinds: list[list[object]] = [
        [1, 2, 3, 9007199254740993, -7],
        [0.5, -0.0, 1e-9, 2.25],
        ["a", "", 'é "€" \\'],
        [[1, 2], [3, 4], [5, 6]],
        [[0.5, 1.5], [2.5, 1e22]],
        [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
        [{"b": "x", "a": 1}],
        [None, True, False],
    ]

    async def one() -> None:
        pool = chance.choice(kinds) if chance.random() < 0.9 else list(itertools.chain(*kinds))
        more = {"parameters": {"x": 1}} if chance.random() < 0.1 else {}
        asked = v1("independent", *(chance.choice(pool) for _ in range(chance.randint(1, 4))), **more)
        said = await through(running, asked)
        assert same(said, await direct(kserve, asked)), asked

    for _ in range(25 * int(os.environ.get("FOREBAY_EXAMPLES", "1"))):
        await asyncio.gather(*(one() for _ in range(8)))
    assert running.sidecar.proofs.report()["disproved"] == []
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="hit") > 0
