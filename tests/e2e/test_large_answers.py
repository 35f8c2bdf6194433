"""Promises about answers that are too large to be held: nobody notices but the memory, which does not grow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.e2e.calls import answer, call, data
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import ModelServer

SMALL = "limits: {parse: 4KiB}\n"


@pytest.fixture
async def small(backend: ModelServer, tmp_path: Path):  # type: ignore[no-untyped-def]  # a generator of `Running`
    """A Forebay that holds no more than 4 KiB of an answer, before a backend that answers more."""
    config = tmp_path / "forebay.yaml"
    config.write_text(SMALL)
    backend.padding = 300_000
    async with forebay(backend.url, config=config) as running:
        await running.knows("double")
        yield running


async def test_a_large_answer_is_streamed_to_its_caller(small: Running, backend: ModelServer) -> None:
    """The backend's own bytes reach the caller, whole; the response cache keeps nothing of them, and says so."""
    for _ in range(2):
        status, body, headers = await small.infer("double", call(1, 2, id="mine"))
        assert (status, body["id"], data(body)) == (200, "mine", answer(1, 2))
        assert int(headers["Content-Length"]) > 300_000
        assert "stored" not in headers["Cache-Status"]
    assert len(backend.requests) == 2
    scrape = await small.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 2
    assert scrape.total("forebay_cache_stores_total", result="no_store") >= 1


async def test_those_who_followed_a_large_answer_get_their_own(small: Running, backend: ModelServer) -> None:
    """What was streamed to one caller cannot be shared; the others ask for themselves."""
    backend.gate.clear()
    asking = [asyncio.create_task(small.infer("double", call(7, id=name))) for name in "abc"]
    await small.coalescing(3)
    backend.gate.set()
    answers = [await one for one in asking]
    assert [(status, body["id"], data(body)) for status, body, _ in answers] == [
        (200, name, answer(7)) for name in "abc"
    ]
    assert len(backend.requests) == 3


async def test_a_caller_that_opted_out_gets_a_large_answer_too(small: Running, backend: ModelServer) -> None:
    """Without the response cache it is the same stream."""
    status, body, headers = await small.infer("double", call(3), headers={"Forebay-Cache": "off"})
    assert (status, data(body)) == (200, answer(3))
    assert headers["Cache-Status"] == "Forebay; fwd=bypass; detail=opted_out"


async def test_a_joined_answer_may_be_as_large_as_its_members_alone(small: Running, backend: ModelServer) -> None:
    """Each member may have `limits.parse` of a joined answer; above that each is asked for alone."""
    backend.gate.clear()
    first = asyncio.create_task(small.infer("double", call(100)))
    await backend.has_received(1)
    others = [asyncio.create_task(small.infer("double", call(number))) for number in (1, 2)]
    await small.queued(2)
    backend.gate.set()
    await first
    assert [data((await one)[1]) for one in others] == [answer(1), answer(2)]
    assert backend.batch_sizes == [1, 2, 1, 1]


async def test_a_status_that_is_not_200_stays_what_it_is(running: Running, backend: ModelServer) -> None:
    """A 203 is passed on as 203, every time, for it is not what the response cache could say later."""
    backend.status = 203
    for _ in range(2):
        status, body, _ = await running.infer("double", call(1))
        assert (status, data(body)) == (203, answer(1))
    assert len(backend.requests) == 2


async def test_a_caller_that_reads_slowly_holds_no_slot(small: Running, backend: ModelServer) -> None:
    """While one caller takes its time over a large answer, the model's only slot serves the others."""
    backend.padding = 40_000_000
    host, port = small.sidecar.data_address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    body = json.dumps(call(1)).encode()
    writer.write(
        b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
    backend.padding = 0
    status, other, _ = await small.infer("double", call(2))
    assert (status, data(other)) == (200, answer(2))
    writer.close()
