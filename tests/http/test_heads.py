"""Promises about what is taken for a request, on real sockets."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest
from aiohttp import web

from proxy.http.limits import Limits
from proxy.http.reply import Reply
from proxy.settings import Bytes
from proxy.terms import Reason
from tests.http.conftest import Serve
from tests.http.wire import until

SECRET = b"Bearer-s3cr3t"


class Seen:
    """A handler that remembers the targets it was asked for, and reads each body to its end."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.headers: list[tuple[tuple[bytes, bytes], ...]] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.targets.append(request.raw_path)
        self.headers.append(request.raw_headers)
        body = b""
        while piece := await request.content.readany():
            body += piece
        return Reply(200, (), body)


def head(target: bytes, size: int) -> bytes:
    """A request of exactly `size` bytes."""
    start = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nX-Fill: "
    return start + b"f" * (size - len(start) - 4) + b"\r\n\r\n"


REFUSED = {
    "absolute form": (b"GET http://other.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no slash": (b"GET evil HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT": (b"CONNECT other.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT with a path": (b"CONNECT /x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "asterisk for GET": (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SECRET + b"\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "folded field": (b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n", 400),
    "length and chunks": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunks and length": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 400),
    "a list of lengths": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\nhi", 400),
    "a signed length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\nhi", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a coding beside chunks": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    "an unknown coding": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "two codings": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_two_readers_could_read_differently_is_refused(
    serve: Serve, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """A doubtful head gets a plain error and the end of its connection; what follows it is never read as a request,
    and nothing of it is logged.
    """
    request, status = REFUSED[case]
    seen = Seen()
    served = await serve(seen)
    wire = await served.connect()
    await wire.send(request + b"GET /smuggled HTTP/1.1\r\nHost: x\r\nAuthorization: " + SECRET + b"\r\n\r\n")
    answer = await wire.answer()
    assert answer.status == status
    assert answer.get(b"connection") == b"close"
    assert answer.get(b"content-type") == b"text/plain; charset=utf-8"
    assert await wire.rest() == b""
    assert seen.targets == []
    assert served.refused == [Reason.BAD_REQUEST]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/2.0\r\nHost: x", 505),
        (b"GET /", 505),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
    ],
)
async def test_what_its_version_does_not_have_is_refused(serve: Serve, request_head: bytes, status: int) -> None:
    """HTTP/0.9, a fictitious HTTP/2.0 and chunks in HTTP/1.0 reach nobody, also when nothing follows them."""
    seen = Seen()
    wire = await (await serve(seen)).connect()
    await wire.send(request_head + b"\r\n\r\n")
    assert (await wire.answer()).status == status
    assert await wire.rest() == b""
    assert seen.targets == []


@pytest.mark.parametrize(
    "target", [b"/", b"//double//slash", b"/a%2Fb?x=%20&x=2", b"/v2/models/m:predict", b"/[", b"/a/../b"]
)
async def test_a_target_arrives_as_it_was_written(serve: Serve, target: bytes) -> None:
    """Whatever begins with a slash reaches the handler byte for byte."""
    seen = Seen()
    wire = await (await serve(seen)).connect()
    await wire.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.answer()).status == 200
    assert seen.targets == [target.decode()]


async def test_a_head_within_its_limit_may_have_any_shape(serve: Serve) -> None:
    """Hundreds of fields, or one very long one, are the backend's to judge as long as the whole head fits."""
    seen = Seen()
    wire = await (await serve(seen)).connect()
    many = b"".join(b"X-%d: v\r\n" % n for n in range(2000))
    await wire.send(b"GET /many HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n")
    assert (await wire.answer()).status == 200
    await wire.send(b"GET /long HTTP/1.1\r\nHost: x\r\nX: " + b"v" * 60_000 + b"\r\n\r\n")
    assert (await wire.answer()).status == 200
    await wire.send(b"GET /" + b"t" * 60_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.answer()).status == 200
    assert [len(headers) for headers in seen.headers] == [2001, 2, 1]


async def test_options_may_ask_about_the_server_as_a_whole(serve: Serve) -> None:
    """`OPTIONS *` goes through."""
    seen = Seen()
    wire = await (await serve(seen)).connect()
    await wire.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.answer()).status == 200
    assert seen.targets == ["*"]


@pytest.mark.parametrize("size", [2048, 64 * 1024])
async def test_a_head_may_use_its_whole_limit_and_not_a_byte_more(
    serve: Serve, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Request line and fields together count; one byte above `limits.head` gets 431, and none of it is logged."""
    seen = Seen()
    served = await serve(seen, Limits(head=Bytes(size)))
    wire = await served.connect()
    await wire.send(head(b"/fits", size))
    assert (await wire.answer()).status == 200
    await wire.send(head(b"/" + SECRET, size + 1))
    answer = await wire.answer()
    assert (answer.status, answer.get(b"connection")) == (431, b"close")
    assert await wire.rest() == b""
    assert seen.targets == ["/fits"]
    assert served.refused == [Reason.HEAD_TOO_LARGE]
    assert caplog.text == ""


async def test_how_the_bytes_are_cut_changes_nothing(serve: Serve) -> None:
    """The same bytes mean the same requests, in whatever segments the network hands them over."""
    random = Random(20261130)
    script = (
        head(b"/full", 1024)
        + b"POST /sized HTTP/1.1\r\nHost: x\r\nContent-Length: 2500\r\n\r\n"
        + b"s" * 2500
        + b"GET /empty HTTP/1.1\r\nHost: x\r\n\r\n"
        + head(b"/full-again", 1024)
        + b"POST /chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-Trailer: t\r\n\r\n"
    )
    served = await serve(Seen(), Limits(head=Bytes(1024)))
    for _ in range(60):
        wire = await served.connect()
        await until(lambda: len(served.server.connections) == 1)
        (line,) = served.server.connections
        cuts = sorted(random.sample(range(1, len(script)), random.choice((1, 3, 20, 400))))
        for start, end in pairwise((0, *cuts, len(script))):
            line.data_received(script[start:end])  # what the transport does with a segment
            if random.random() < 0.5:
                await asyncio.sleep(0)
        bodies = [(await wire.answer()).body for _ in range(5)]
        assert bodies == [b"", b"s" * 2500, b"", b"", b"hello!"]
        assert await wire.rest() == b""
        wire.close()
        await until(lambda: not served.server.connections)
    assert served.refused == []


async def test_a_refusal_is_said_and_counted_once(serve: Serve) -> None:
    """However much nonsense comes in one go, it is one refused request."""
    served = await serve(Seen(), Limits(head=Bytes(1024)))
    wire = await served.connect()
    await wire.send(b"nonsense\r\n\r\n" * 1000)
    assert (await wire.answer()).status == 400
    assert await wire.rest() == b""
    assert served.refused == [Reason.BAD_REQUEST]


async def test_a_head_that_comes_in_pieces_is_bounded_as_a_whole(serve: Serve) -> None:
    """A client cannot make us keep an endless head by sending it slowly, in however many fields."""
    seen = Seen()
    served = await serve(seen, Limits(head=Bytes(4096)))
    wire = await served.connect()
    await wire.send(b"GET /endless HTTP/1.1\r\nHost: x\r\n")
    refused = asyncio.ensure_future(wire.answer())
    sent = 0
    while not refused.done():
        await wire.send(b"a:b\r\n")
        sent += 5
        await asyncio.sleep(0)
        assert sent < 1_000_000
    assert (await refused).status == 431
    assert seen.targets == []


async def test_a_long_head_before_a_long_body_in_one_go_is_measured_alone(serve: Serve) -> None:
    """What follows a head in the same segment does not count towards its limit."""
    seen = Seen()
    wire = await (await serve(seen, Limits(head=Bytes(1024)))).connect()
    body = b"b" * 200_000
    await wire.send(b"POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await wire.answer()).body == body
    await wire.send(head(b"/one", 1000) + head(b"/two", 1000) + head(b"/three", 1000))
    assert [(await wire.answer()).status for _ in range(3)] == [200, 200, 200]
    assert seen.targets == ["/up", "/one", "/two", "/three"]


@pytest.mark.parametrize("endless", [b"X-Trailer: v\r\n", b""], ids=["trailers", "chunk extension"])
async def test_what_surrounds_chunks_is_bounded(serve: Serve, endless: bytes) -> None:
    """Endless trailers or chunk extensions end the request; they do not gather in memory."""
    seen = Seen()
    served = await serve(seen, Limits(head=Bytes(4096)))
    wire = await served.connect()
    await wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0")
    await wire.send(b"\r\n" if endless else b";")
    refused = asyncio.ensure_future(wire.answer())
    sent = 0
    while not refused.done():
        await wire.send(endless or b"e" * 10)
        sent += 10
        await asyncio.sleep(0)
        assert sent < 1_000_000
    assert (await refused).status == 431


async def test_trailers_never_become_fields_of_another_request(serve: Serve) -> None:
    """A caller cannot hand `Authorization` to whoever uses the connection next: it ends after a chunked request."""
    seen = Seen()
    wire = await (await serve(seen)).connect()
    await wire.send(
        b"POST /mine HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nhi\r\n0\r\nAuthorization: " + SECRET + b"\r\n\r\n"
        b"GET /yours HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    answer = await wire.answer()
    assert (answer.status, answer.body, answer.get(b"connection")) == (200, b"hi", b"close")
    assert await wire.rest() == b""
    assert seen.targets == ["/mine"]


async def test_a_broken_chunk_ends_the_request_that_it_belongs_to(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that waits for the rest of a body hears at once that it will not come; the client gets 400."""
    seen = Seen()
    served = await serve(seen)
    wire = await served.connect()
    await wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
    await until(lambda: bool(seen.targets))
    await wire.send(b"nonsense " + SECRET + b"\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.get(b"connection")) == (400, b"close")
    assert await wire.rest() == b""
    assert caplog.text == ""


async def test_a_request_before_garbage_still_gets_its_answer_first(serve: Serve) -> None:
    """What is owed is paid, in order, before the connection ends over something else."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        begun.set()
        await go_on.wait()
        return Reply(200, (), b"first")

    wire = await (await serve(handler)).connect()
    await wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await begun.wait()
    await wire.send(b"garbage\r\n\r\n")
    go_on.set()
    assert (await wire.answer()).body == b"first"
    assert (await wire.answer()).status == 400
    assert await wire.rest() == b""


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_an_upgrade_ends_the_connection_after_its_answer(serve: Serve, protocol: bytes) -> None:
    """Bytes behind a request for another protocol are read neither as requests nor as errors."""
    seen = Seen()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        begun.set()
        await go_on.wait()
        return await seen(request)

    served = await serve(handler)
    wire = await served.connect()
    head = b"GET /%b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n" % (protocol, protocol)
    await wire.send(head + b"GET /behind HTTP/1.1\r\nHost: x\r\n\r\n")
    await begun.wait()
    if protocol == b"websocket":
        await wire.send(b"\x81\x85 not HTTP")
        for _ in range(20):  # a few turns in which it is read
            await asyncio.sleep(0)
    go_on.set()
    answer = await wire.answer()
    assert (answer.status, answer.get(b"connection")) == (200, b"close")
    assert await wire.rest() == b""
    assert seen.targets == ["/" + protocol.decode()]
    assert served.refused == []
