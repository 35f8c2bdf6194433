"""What docs/limits.md says does not go through, and what its sender gets instead. Every line there names a test."""

from __future__ import annotations

import re

import pytest

from proxy.terms import Reason
from tests.e2e.calls import answer as answer_of
from tests.e2e.calls import call, data
from tests.e2e.stage import Act, played, reply
from tests.parts.forebay import Running, forebay
from tests.parts.forebay_process import ROOT
from tests.parts.model_backend import ModelServer
from tests.parts.raw_backend import Peer, Received

HOST = b"Host: forebay.test\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def answering(raw: bytes) -> Act:
    def act(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(raw)

    return act


REFUSED = {
    "a target outside ASCII": (b"GET /caf\xc3\xa9 HTTP/1.1\r\n" + HOST, 400),
    "a target that is an address": (b"GET http://elsewhere/ HTTP/1.1\r\n" + HOST, 400),
    "CONNECT": (b"CONNECT elsewhere:443 HTTP/1.1\r\n" + HOST, 400),
    "a method that the parser does not know": (b"FETCH / HTTP/1.1\r\n" + HOST, 400),
    "a method in lower case": (b"get / HTTP/1.1\r\n" + HOST, 400),
    "a field name that is no token": (b"GET / HTTP/1.1\r\n" + HOST + b"X(1): a\r\n", 400),
    "a field name outside ASCII": (b"GET / HTTP/1.1\r\n" + HOST + b"X-\xc3\xa9: a\r\n", 400),
    "a control character in a value": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: a\x01b\r\n", 400),
    "a folded field": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: a\r\n b\r\n", 400),
    "lines that end in LF alone": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "chunks and a length": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        400,
    ),
    "another coding than chunks": (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n", 501),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\n" + CHUNKED, 400),
    "HTTP/2 without asking": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 400),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_read_without_guessing_is_refused(case: str) -> None:
    """Its sender gets a plain error and the end of the connection; the backend never hears of it."""
    head, status = REFUSED[case]
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(head + b"\r\n")
        answer = await wire.answer()
        assert (answer.status, answer.get(b"connection")) == (status, b"close")
        assert answer.get(b"content-type") == b"text/plain; charset=utf-8"
        assert await wire.rest() == b""
        assert scene.stage.heads == []
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_decisions_total", decision="rejected", reason="bad_request") == 1


ANSWERS = {
    "chunks and a length": b"200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "two lengths": b"200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "another coding than chunks": b"200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "a field name that is no token": b"200 OK\r\nX(1): a\r\nContent-Length: 1\r\n\r\na",
    "a status of four digits": b"1000 OK\r\nContent-Length: 1\r\n\r\na",
    "a protocol switch": b"101 Switching Protocols\r\nUpgrade: other\r\n\r\n",
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_an_answer_that_cannot_be_read_without_guessing_is_a_502(case: str) -> None:
    """A client never gets a guess at what the backend meant, and nobody uses that connection again."""
    async with played(answering(b"HTTP/1.1 " + ANSWERS[case]), reply) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await wire.answer()).status == 502
        await scene.backend.until_gone(scene.stage.peers[0].number)
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await wire.answer()).status == 200


async def test_trailers_and_the_cut_of_chunks_do_not_go_through() -> None:
    """A chunked body arrives byte for byte; its trailers, its chunks' extensions and where it was cut are lost."""
    body = CHUNKED + b"Trailer: X-T\r\n\r\n1;e=f\r\na\r\n2\r\nbc\r\n0\r\nX-T: t\r\n\r\n"
    async with played(answering(b"HTTP/1.1 200 OK\r\n" + body)) as scene:
        wire = await scene.connect()
        await wire.send(b"POST / HTTP/1.1\r\n" + HOST + body)
        answer = await wire.answer()
        assert (answer.get(b"trailer"), answer.body) == (None, b"abc")
        assert await wire.rest() == b""  # no bytes of trailers, and the end: see test_trailers_reach_no_other_request
        (request,) = scene.backend.requests
        assert request.body == b"abc"
        assert request.values(b"trailer") == request.values(b"x-t") == []
        assert request.values(b"content-length") == [b"3"]  # it had come whole, so its length was known


async def test_white_space_around_values_does_not_go_through() -> None:
    """A value arrives without the white space around it; a folded one of an answer arrives in one line."""
    raw = b"HTTP/1.1 200 OK\r\nX-A:   a\tb  \r\nX-F: c\r\n d\r\nContent-Length: 0\r\n\r\n"
    async with played(answering(raw)) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"X-A:  a\tb  \r\n\r\n")
        answer = await wire.answer()
        assert scene.stage.heads[0].values(b"x-a") == [answer.get(b"x-a")] == [b"a\tb"]
        assert answer.get(b"x-f") == b"c d"


async def test_the_backend_sees_its_own_host() -> None:
    """`Host` names the backend, whatever the client called Forebay."""
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.answer()
        assert scene.stage.heads[0].values(b"host") == [f"127.0.0.1:{scene.backend.port}".encode()]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/v1/chat/completions", "/generate", "/predict"])
async def test_what_a_backend_does_not_say_it_speaks_passes_through(running: Running, path: str) -> None:
    """A path alone is no proof: the request reaches the backend every time, and nothing is said of a response cache."""
    for _ in range(2):
        async with running.session.post(f"{running.url}{path}", json={"inputs": [1]}) as answer:
            assert answer.status == 200
            assert "Cache-Status" not in answer.headers
    scrape = await running.scrape()
    assert scrape.total("forebay_decisions_total", decision="bypass", reason="unrecognised") == 2


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"Inference-Header-Content-Length": "1000"}, {}),
        ({"Inference-Header-Content-Length": "0"}, {}),
        ({"Content-Encoding": "identity"}, {}),
        ({}, {"parameters": {"binary_data_output": 1}}),
    ],
    ids=["a head beyond the body", "no head", "a content coding", "no truth value"],
)
async def test_bodies_that_do_not_add_up_pass_through(
    running: Running, backend: ModelServer, fields: dict[str, str], change: dict[str, object]
) -> None:
    """A call that could be read in two ways is the backend's alone, every time."""
    for _ in range(2):
        status, body, headers = await running.infer("double", call(1) | change, headers=fields)
        assert (status, data(body)) == (200, answer_of(1))
        detail = re.fullmatch(r"Forebay; fwd=bypass; detail=(\w+)", headers["Cache-Status"])
        assert detail is not None
        assert Reason(detail[1])
    assert len(backend.requests) == 2


async def test_the_first_call_of_a_model_passes_through(backend: ModelServer) -> None:
    """Nobody waits while Forebay asks the backend what a model is: until it knows, calls go through as they are."""
    async with forebay(backend.url) as running:
        status, body, headers = await running.infer("double", call(1))
        assert (status, data(body)) == (200, answer_of(1))
        assert headers["Cache-Status"] == "Forebay; fwd=bypass; detail=model_unknown"
        await running.knows("double")
        _, _, headers = await running.infer("double", call(1))
        assert headers["Cache-Status"] == "Forebay; fwd=miss; stored; detail=first_seen"


async def test_a_callers_deadline_is_not_kept(running: Running, backend: ModelServer) -> None:
    """`X-Request-Timeout-Ms` reaches the backend and ends no wait in Forebay."""
    headers = {"X-Request-Timeout-Ms": "1", "Forebay-Cache": "off"}
    status, body, _ = await running.infer("double", call(1), headers=headers)
    assert (status, data(body)) == (200, answer_of(1))
    assert backend.headers[-1]["X-Request-Timeout-Ms"] == "1"


async def test_an_http_1_0_client_is_answered_in_http_1_1() -> None:
    """The answer to an old client says HTTP/1.1, has no chunks, and ends with its connection."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    async with played(answering(raw)) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.0\r\n\r\n")
        assert await wire.rest() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\na"
        assert scene.stage.lines == [b"GET / HTTP/1.1"]


def test_every_line_names_a_test_that_exists() -> None:
    """Whoever doubts a line of docs/limits.md finds the test that shows it."""
    lines = [line for line in (ROOT / "docs/limits.md").read_text().splitlines() if line.startswith("|")]
    rows = [line for line in lines if not set(line) <= set("|-") and "| shown by" not in line]
    assert len(rows) > 15
    for row in rows:
        file, name = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", row)[-1]
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), row
