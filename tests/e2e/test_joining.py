"""Promises about requests that Forebay makes of several calls: who may share one, and what its answer must be like."""

from __future__ import annotations

import asyncio

from tests.e2e.calls import answer, call, data
from tests.e2e.test_failures import join
from tests.parts.forebay import Running
from tests.parts.model_backend import Fault, ModelServer


async def test_members_share_what_their_batch_cost(running: Running, backend: ModelServer) -> None:
    """Each joined row is kept with its share of the upstream time, and each caller's time in Forebay is known."""
    await join(running, backend, call(1), call(2), call(3))
    assert backend.batch_sizes == [1, 3]
    scrape = await running.scrape()
    assert scrape.total("forebay_proxy_overhead_seconds_count") == 4
    assert 0 < scrape.mean("forebay_proxy_overhead_seconds") < 1
    for number in (1, 2, 3):
        before = (await running.scrape()).total("forebay_cache_saved_upstream_seconds_total")
        _, body, headers = await running.infer("double", call(number))
        assert data(body) == answer(number)
        assert headers["Cache-Status"].startswith("Forebay; hit")
        saved = (await running.scrape()).total("forebay_cache_saved_upstream_seconds_total") - before
        assert 0 < saved <= scrape.total("forebay_upstream_duration_seconds_sum") / 3


async def test_an_answer_that_quotes_another_request_is_nobodys(running: Running, backend: ModelServer) -> None:
    """A joined answer must quote the id of the joined request; else the members are asked one by one."""
    backend.quotes = "somebody else's"
    said = await join(running, backend, call(1), call(2))
    assert [data(body) for _, body, _ in said] == [answer(1), answer(2)]
    assert backend.batch_sizes == [1, 2, 1, 1]
    assert (await running.scrape()).total("forebay_batch_splits_total", reason="not_split") == 1


async def test_an_encoded_answer_is_not_read(running: Running, backend: ModelServer) -> None:
    """A backend that encodes although it was asked not to: each caller gets its own answer, as it is."""
    backend.answer_headers = {"Content-Encoding": "x-own"}
    said = await join(running, backend, call(1, id="a"), call(2, id="b"))
    assert [(body["id"], data(body)) for _, body, _ in said] == [("a", answer(1)), ("b", answer(2))]
    assert [headers["Content-Encoding"] for _, _, headers in said] == ["x-own", "x-own"]
    assert backend.batch_sizes == [1, 2, 1, 1]
    assert len(running.sidecar.tiers.memory) == 0


async def test_one_answer_that_splits_forgives_those_that_did_not(running: Running, backend: ModelServer) -> None:
    """Only three in a row that do not split end joining: one good one shows that it works."""
    for turn in range(4):
        await join(running, backend, call(10 + turn), call(Fault.MISCOUNT, id=f"{turn}"))
        backend.requests.clear()
        await join(running, backend, call(20 + turn), call(30 + turn))
        assert backend.batch_sizes == [1, 2]


async def test_a_call_as_large_as_the_model_takes_is_answered_among_others(
    running: Running, backend: ModelServer
) -> None:
    """Many rows in one call, alone or among others: each caller gets all of its own rows back in order."""
    large = tuple(range(1000, 1032))
    said = await asyncio.gather(
        running.infer("double", call(*large, id="large")), *(running.infer("double", call(n)) for n in range(40))
    )
    assert (said[0][1]["id"], data(said[0][1])) == ("large", answer(*large))
    assert [data(body) for _, body, _ in said[1:]] == [answer(n) for n in range(40)]
    assert max(backend.batch_sizes) <= 32
