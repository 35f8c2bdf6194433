"""The promise "transparent": what Forebay does not understand goes through, bytes on either side of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from proxy.terms import Outcome
from tests.e2e.calls import answer as answer_of
from tests.e2e.calls import call, data
from tests.e2e.stage import Act, played, reply
from tests.http.wire import Wire, until
from tests.parts.forebay import forebay
from tests.parts.model_backend import model_server
from tests.parts.raw_backend import Peer, Received

HOST = b"Host: forebay.test\r\n"
MIB = 2**20


def answering(raw: bytes) -> Act:
    """Read the request and answer with these very bytes."""

    def act(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(raw)

    return act


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"])
@pytest.mark.parametrize("body", [b"", b"payload"])
async def test_every_method_goes_through(method: bytes, body: bytes) -> None:
    """The backend gets the client's method and body, the client its answer, on a connection that both keep."""
    async with played(reply) as scene:
        wire = await scene.connect()
        framing = b"Content-Length: %d\r\n" % len(body) if body else b""
        for _ in range(2):
            await wire.send(method + b" /thing HTTP/1.1\r\n" + HOST + framing + b"\r\n" + body)
            answer = await wire.answer(bodiless=method == b"HEAD")
            assert answer.status == 200
            said = b"%d bytes on %d" % (len(body), scene.stage.peers[-1].number)
            assert answer.body == (b"" if method == b"HEAD" else said)
            assert answer.headers == ((b"Content-Length", b"%d" % len(said)),)
        assert scene.stage.lines == [method + b" /thing HTTP/1.1"] * 2
        assert [request.body for request in scene.backend.requests] == [body] * 2


TARGETS = [
    b"/",
    b"//double//slash",
    b"/bare?",
    b"/a#fragment?x",
    b"/a%2Fb/../c/./d",
    b"/q?a=b&a=b&&=&x",
    b"/q?x=%20+%zz%",
    b"/q?a=1?b=2",
    b"/caf%C3%A9/%e2%82%ac",
    b"/v1/models/m:predict;v=1,2@3",
    b"/v2/models/m%2Fn/infer",
    b"/[1]|{2}^`\"<>\\~'()*!$",
    b"/" + b"long" * 4000,
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:24].decode())
async def test_the_target_goes_through_byte_for_byte(target: bytes) -> None:
    """No path or query is decoded, encoded, sorted, shortened or completed on its way."""
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await wire.answer()).status == 200
        assert scene.stage.lines == [b"GET " + target + b" HTTP/1.1"]


async def test_fields_go_through_both_ways() -> None:
    """Repeated fields, their order, their spelling, empty and latin-1 values reach the other side; nothing is added."""
    sent = [
        (b"x-Trace", b"1"),
        (b"X-TRACE", b"2"),
        (b"x-trace", b"1"),
        (b"Cookie", b"a=1"),
        (b"Cookie", b"b=2"),
        (b"X-Empty", b""),
        (b"X-Latin", b"caf\xe9"),
        (b"X-Utf8", "naïve".encode()),
        (b"Cache-Control", b"no-cache"),
        (b"Accept-Encoding", b"gzip, br"),
    ]
    answered = [
        (b"Set-Cookie", b"a=1"),
        (b"SET-COOKIE", b"b=2"),
        (b"x-request-ID", b"7"),
        (b"Server", b"backend/1"),
        (b"X-Latin", b"caf\xe9"),
        (b"X-Empty", b""),
        (b"Content-Encoding", b"gzip"),
        (b"Date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
        (b"Content-Length", b"3"),
    ]
    raw = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % field for field in answered) + b"\r\n\x1f\x8bz"
    async with played(answering(raw)) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"%b: %b\r\n" % field for field in sent) + b"\r\n")
        answer = await wire.answer()
        (head,) = scene.stage.heads
        assert head.fields == [(b"Host", scene.backend.url.encode()[7:]), *sent]
        assert list(answer.headers) == answered
        assert answer.body == b"\x1f\x8bz"


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        (b"201 Created", 201, b"Created"),
        (b"207 Multi-Status", 207, b"Multi-Status"),
        (b"404 No Such Model Here", 404, b"No Such Model Here"),
        (b"418 I'm a caf\xe9", 418, b"I'm a caf\xe9"),
        (b"299 Odd", 299, b"Odd"),
        (b"404 ", 404, b""),
        (b"500 Internal Server Error", 500, b"Internal Server Error"),
        (b"599 Whatever", 599, b"Whatever"),
        (b"999 Beyond", 999, b"Beyond"),
        (b"301 Moved", 301, b"Moved"),
    ],
)
async def test_status_and_reason_are_the_backends(line: bytes, status: int, reason: bytes) -> None:
    """No status turns into another, no redirect is followed, no error page is put in place of the backend's."""
    raw = b"HTTP/1.1 " + line + b"\r\nLocation: /elsewhere\r\nContent-Length: 4\r\n\r\nbody"
    async with played(answering(raw)) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        answer = await wire.answer()
        assert (answer.status, answer.reason, answer.body) == (status, reason, b"body")
        assert answer.headers == ((b"Location", b"/elsewhere"), (b"Content-Length", b"4"))
        assert len(scene.stage.heads) == 1


@pytest.mark.parametrize(
    ("request_line", "raw", "fields"),
    [
        (b"HEAD /", b"200 OK\r\nContent-Length: 12345\r\n\r\n", ((b"Content-Length", b"12345"),)),
        (b"HEAD /", b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ()),
        (b"GET /", b"204 No Content\r\nX-A: b\r\n\r\n", ((b"X-A", b"b"),)),
        (
            b"GET /",
            b"304 Not Modified\r\nETag: e\r\nContent-Length: 9\r\n\r\n",
            ((b"ETag", b"e"), (b"Content-Length", b"9")),
        ),
    ],
)
async def test_an_answer_without_body_has_none_and_the_connection_goes_on(
    request_line: bytes, raw: bytes, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    """HEAD, 204 and 304 keep their fields, have no body, and the next answer is read from the right place."""
    async with played(answering(b"HTTP/1.1 " + raw), reply) as scene:
        wire = await scene.connect()
        await wire.send(request_line + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await wire.answer(bodiless=True)).headers == fields
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await wire.answer()).body == b"0 bytes on %d" % scene.stage.peers[1].number


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n", b""], ids=["chunked", "until close"])
async def test_events_come_as_the_backend_sends_them(framing: bytes) -> None:
    """Each event of a stream is with the client before the backend sends the next; so is the head, before any."""
    events = [b"data: %d\n\n" % number for number in range(5)]

    def stream(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n")
        for number, event in enumerate(events):
            peer.wait(f"event {number}")
            peer.send(b"%x\r\n%b\r\n" % (len(event), event) if framing else event)
        peer.wait("end")
        peer.send(b"0\r\n\r\n" if framing else b"")
        if not framing:
            peer.close()

    async with played(stream) as scene:
        wire = await scene.connect()
        await wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}")
        head = await wire.head()
        assert head.headers == ((b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked"))
        for number, event in enumerate(events):
            scene.backend.let(f"event {number}")
            assert await wire.chunk() == event
        scene.backend.let("end")
        assert await wire.chunk() == b""


async def test_no_request_waits_for_another() -> None:
    """Two hundred clients reach the backend at once: nothing in Forebay queues what passes through."""
    count = 200

    def hold(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.wait("all are there")
        peer.answer(head.line)

    async with played(hold) as scene:
        wires = [await scene.connect() for _ in range(count)]
        for number, wire in enumerate(wires):
            await wire.send(b"GET /%d HTTP/1.1\r\n" % number + HOST + b"\r\n")
        await scene.stage.asked(count)
        scene.backend.let("all are there")
        for number, wire in enumerate(wires):
            assert (await wire.answer()).body == b"GET /%d HTTP/1.1" % number


async def test_an_upload_arrives_as_it_is_sent() -> None:
    """A chunked upload reaches the backend piece by piece, before its end exists; a sized one keeps its length."""
    seen: list[bytes] = []

    def listen(peer: Peer, head: Received) -> None:
        for size in peer.chunks() if head.values(b"transfer-encoding") else (5, 5, 5):
            piece = peer.read(size)
            scene.backend.note(lambda piece=piece: seen.append(piece))  # type: ignore[misc]  # bound at once
        peer.answer(b"heard")

    async with played(listen) as scene:
        for framing, form in ((b"Transfer-Encoding: chunked\r\n", b"5\r\n%b\r\n"), (b"Content-Length: 15\r\n", b"%b")):
            wire = await scene.connect()
            await wire.send(b"POST /up HTTP/1.1\r\n" + HOST + framing + b"\r\n")
            for number, piece in enumerate([b"one..", b"two..", b"three"], start=1):
                await wire.send(form % piece)
                await scene.backend.until(lambda number=number: len(seen) == number)  # type: ignore[misc]  # bound at once
            if framing.startswith(b"T"):
                await wire.send(b"0\r\n\r\n")
            assert (await wire.answer()).body == b"heard"
            assert seen == [b"one..", b"two..", b"three"]
            seen.clear()
        assert [head.values(b"content-length") for head in scene.stage.heads] == [[], [b"15"]]


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(
    "framing", [b"Content-Length: 10\r\n\r\nhalf.", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhalf.\r\n"]
)
async def test_a_truncated_answer_is_seen_as_truncated(framing: bytes, end: str) -> None:
    """A backend that dies within a body leaves the client with what came and a broken end, never a whole one."""

    def die(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(b"HTTP/1.1 200 OK\r\n" + framing)
        peer.wait("die")
        peer.close() if end == "close" else peer.reset()

    async with played(die) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await wire.head()).status == 200
        beginning = b"5\r\nhalf.\r\n" if b"chunked" in framing else b"half."
        assert await wire.read(len(beginning)) == beginning
        scene.backend.let("die")
        assert await wire.rest() == b""
        await scene.running.until(lambda: scene.running.sidecar.in_flight == 0)
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_requests_total", outcome="truncated") == 1


async def test_an_answer_that_only_its_connection_ends_is_reset_when_it_is_truncated() -> None:
    """Where no length and no last chunk tells an HTTP/1.0 client the end, a truncation is a reset."""

    def die(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf.\r\n")
        peer.wait("die")
        peer.reset()

    async with played(die) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.0\r\n\r\n")
        await wire.head()
        assert await wire.read(5) == b"half."
        scene.backend.let("die")
        with pytest.raises(ConnectionResetError):
            await wire.rest()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("end", ["close", "reset", "nonsense"])
async def test_a_backend_that_dies_before_its_head_is_a_502(method: bytes, end: str) -> None:
    """The client reads in plain text which backend gave no answer; its own connection goes on."""

    def die(peer: Peer, head: Received) -> None:
        peer.whole(head)
        if end == "nonsense":
            peer.send(b"\x16\x03\x01 secret\r\n\r\n")
        peer.reset() if end == "reset" else peer.close()

    async with played(die) as scene:
        wire = await scene.connect()
        for _ in range(2):
            await wire.send(method + b" / HTTP/1.1\r\n" + HOST + b"\r\n")
            answer = await wire.answer()
            assert answer.status == 502
            assert answer.get(b"content-type") == b"text/plain; charset=utf-8"
            assert answer.body.startswith(scene.backend.url.encode())
            assert b"secret" not in answer.body
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_requests_total", outcome="upstream_error") == 2


@pytest.mark.parametrize("known", [False, True], ids=["passed through", "recognised"])
async def test_a_stray_answer_reaches_nobody(known: bool) -> None:
    """What a backend sends on an idle pooled connection (the 408 of an idle time-out, say) is nobody's answer."""
    stray = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 6\r\nConnection: close\r\n\r\nstray!"
    target = b"/v2/models/double/infer" if known else b"/any"
    body = json.dumps(call(1)).encode()
    request = b"POST " + target + b" HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with played(reply) as scene:
        first, second = await scene.connect(), await scene.connect()
        await first.send(request)
        mine = (await first.answer()).body
        used = scene.stage.peers[0]
        pool = scene.running.sidecar.connections
        await until(lambda: " busy=0 " in repr(pool))
        used.send(stray)
        await second.send(request.replace(b"[1, 1]", b"[2, 4]"))
        answer = await second.answer()
        assert answer.status == 200
        assert answer.body != mine
        assert answer.body == b"%d bytes on %d" % (len(body), scene.stage.peers[1].number)
        await scene.backend.until_gone(used.number)


async def test_trailers_reach_no_other_request() -> None:
    """A caller cannot hand `Authorization` to whoever uses either connection next."""
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(
            b"POST /mine HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n"
            b"3\r\nabc\r\n0\r\nAuthorization: Bearer stolen\r\n\r\n"
            b"GET /yours HTTP/1.1\r\n" + HOST + b"\r\n"
        )  # fmt: skip
        answer = await wire.answer()
        assert (answer.status, answer.get(b"connection")) == (200, b"close")
        assert await wire.rest() == b""
        other = await scene.connect()
        await other.send(b"GET /yours HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await other.answer()).status == 200
        assert scene.stage.lines == [b"POST /mine HTTP/1.1", b"GET /yours HTTP/1.1"]
        assert not any(b"stolen" in head.head for head in scene.stage.heads)
        assert [request.body for request in scene.backend.requests] == [b"abc", b""]


@pytest.mark.parametrize("end", ["stays", "closes", "resets"])
async def test_a_refusal_of_an_upload_under_way_reaches_its_client(end: str) -> None:
    """A backend that answers 413 to the begin of an upload is heard; the rest of the upload goes nowhere."""

    def refuse(peer: Peer, head: Received) -> None:
        peer.read(1024)
        peer.answer(b"too much", status=b"413 Content Too Large")
        if end == "closes":
            peer.close()
        elif end == "resets":
            peer.wait("client has it")
            peer.reset()
        else:
            peer.until_gone()

    async with played(refuse, reply) as scene:
        wire = await scene.connect()
        await wire.send(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 4096)
        answer = await wire.answer()
        assert (answer.status, answer.body, answer.get(b"connection")) == (413, b"too much", b"close")
        scene.backend.let("client has it")
        wire.close()
        other = await scene.connect()
        await other.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await other.answer()).body == b"0 bytes on %d" % scene.stage.peers[1].number
        assert scene.stage.peers[1] is not scene.stage.peers[0]


@pytest.mark.parametrize("uploading", [False, True])
async def test_a_client_that_leaves_is_noticed(uploading: bool) -> None:
    """The backend sees its connection close as soon as nobody waits for the answer, during an upload too."""

    def never(peer: Peer, head: Received) -> None:
        peer.until_gone()

    async with played(never) as scene:
        wire = await scene.connect()
        body = b"Content-Length: 10\r\n\r\nhalf." if uploading else b"\r\n"
        await wire.send(b"POST /generate HTTP/1.1\r\n" + HOST + body)
        await scene.stage.asked(1)
        wire.close()
        await scene.backend.until_gone(scene.stage.peers[0].number)
        await scene.running.until(lambda: scene.running.sidecar.in_flight == 0)
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_requests_total", outcome=Outcome.CLIENT_GONE.value) == 1


async def test_a_client_that_leaves_a_stream_is_noticed() -> None:
    """A model does not go on generating for a client that closed its event stream."""

    def stream(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        peer.until_gone()

    async with played(stream) as scene:
        wire = await scene.connect()
        await wire.send(b"GET /events HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.head()
        assert await wire.chunk() == b"one"
        wire.reset()
        await scene.backend.until_gone(scene.stage.peers[0].number)


def dies_when_reused(peer: Peer, head: Received) -> None:
    peer.close()


KNOWN = b"POST /v2/models/double/infer HTTP/1.1"


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"PUT / HTTP/1.1", b"DELETE / HTTP/1.1", KNOWN])
async def test_what_may_be_repeated_survives_a_dying_connection(line: bytes) -> None:
    """A client does not see that a pooled connection was just being closed, if its request may be made twice."""
    async with played(reply, dies_when_reused, reply) as scene:
        wire = await scene.connect()
        body = json.dumps(call(1)).encode() if line == KNOWN else b""
        for _ in range(2):
            await wire.send(
                line + b"\r\n" + HOST + b"Forebay-Cache: off\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            answer = await wire.answer()
            assert answer.status == 200
        assert answer.body == b"%d bytes on %d" % (len(body), scene.stage.peers[2].number)
        assert scene.stage.lines == [line] * 3
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_upstream_retries_total", reason="reused") == 1


@pytest.mark.parametrize("method", [b"POST", b"PATCH"])
async def test_what_no_codec_knows_is_never_made_twice(method: bytes) -> None:
    """A POST whose meaning Forebay does not know reaches the backend once: the client hears 502 and decides."""
    async with played(reply, dies_when_reused, reply) as scene:
        wire = await scene.connect()
        line = method + b" /v1/orders HTTP/1.1"
        await wire.send(line + b"\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}")
        assert (await wire.answer()).status == 200
        await wire.send(line + b"\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}")
        assert (await wire.answer()).status == 502
        assert scene.stage.lines == [line] * 2
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_upstream_retries_total") == 0


async def test_accept_encoding_is_the_callers_unless_its_answer_may_be_shared() -> None:
    """What passes through may come compressed; the answer to a recognised call is one that every caller can read."""
    async with model_server() as model, forebay(model.url) as running:
        await running.knows("double")
        await running.infer("double", call(1), headers={"Accept-Encoding": "gzip, br"})
        assert model.headers[0]["Accept-Encoding"] == "identity"
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"Accept-Encoding: gzip, br\r\n\r\n")
        await wire.answer()
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.answer()
        assert [head.values(b"accept-encoding") for head in scene.stage.heads] == [[b"gzip, br"], []]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_above_parse_streams_through(chunked: bool, tmp_path: Path) -> None:
    """A recognised call too large to be parsed reaches the backend while it is still being sent, and says so."""
    config = tmp_path / "forebay.yaml"
    config.write_text("limits: {parse: 4KiB}\n")

    def listen(peer: Peer, head: Received) -> None:
        half = peer.read(5000)
        scene.backend.note(lambda: seen.append(half))
        peer.read(5000)
        peer.answer(b"{}")

    seen: list[bytes] = []
    async with played(listen, config=config) as scene:
        wire = await scene.connect()
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 10000"
        await wire.send(KNOWN + b"\r\n" + HOST + framing + b"\r\n\r\n")
        for _ in range(2):  # the second half leaves the client when the backend has the first
            await wire.send(b"1388\r\n" + b"a" * 5000 + b"\r\n" if chunked else b"a" * 5000)
            await scene.backend.until(lambda: len(seen) == 1)
        if chunked:
            await wire.send(b"0\r\n\r\n")
        answer = await wire.answer()
        assert (answer.status, answer.body) == (200, b"{}")
        assert answer.get(b"cache-status") == b"Forebay; fwd=bypass; detail=too_large"
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_decisions_total", decision="bypass", reason="too_large") == 1


async def test_a_full_buffer_delays_and_refuses_nobody(tmp_path: Path) -> None:
    """When uploads under way fill `limits.buffered`, another call is not parsed but passed through, and later it is."""
    config = tmp_path / "forebay.yaml"
    config.write_text("limits: {buffered: 64KiB}\n")

    def request(row: int, size: int) -> bytes:
        body = json.dumps(call(row)).encode().ljust(size)
        return KNOWN + b"\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size + body

    async with model_server() as model, forebay(model.url, config=config) as running:
        await running.knows("double")
        host, _, port = running.sidecar.data_address.rpartition(":")
        slow, quick = await Wire.connect((host, int(port))), await Wire.connect((host, int(port)))
        held = running.sidecar.pipeline._buffered
        long = request(1, 50_000)
        await slow.send(long[:-10_000])
        await running.until(lambda: held.held > 30_000)
        statuses = []
        for _ in range(2):
            await quick.send(request(2, 40_000))
            answer = await quick.answer()
            assert data(json.loads(answer.body)) == answer_of(2)
            statuses.append(answer.get(b"cache-status"))
            if len(statuses) == 1:
                await slow.send(long[-10_000:])
                last = await slow.answer()
                assert data(json.loads(last.body)) == answer_of(1)
                assert last.get(b"cache-status") == b"Forebay; fwd=miss; stored; detail=first_seen"
        assert statuses == [
            b"Forebay; fwd=bypass; detail=too_large",
            b"Forebay; fwd=miss; stored; detail=first_seen",
        ]
        assert held.held == 0
        slow.close()
        quick.close()


async def test_an_answer_may_run_beside_its_upload() -> None:
    """A backend that transforms a stream (a transcription) is heard while it is still being told."""

    def echo(peer: Peer, head: Received) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n")
        for _ in range(3):
            peer.send(peer.read(5).upper())

    async with played(echo) as scene:
        wire = await scene.connect()
        await wire.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 15\r\n\r\n")
        assert (await wire.head()).status == 200
        for piece in (b"one..", b"two..", b"three"):
            await wire.send(piece)
            assert await wire.read(5) == piece.upper()


async def test_a_slow_client_holds_its_backend_back() -> None:
    """A client that does not read stops the backend, not Forebay's memory, and gets everything when it reads."""
    size, piece = 64 * MIB, b"\xa5" * (256 * 1024)
    sent = 0

    def pour(peer: Peer, head: Received) -> None:
        nonlocal sent
        peer.whole(head)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            peer.send(piece)
            sent += len(piece)

    async with played(pour) as scene:
        wire = await scene.connect(receive_buffer=64 * 1024)
        await wire.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.head()
        before = -1
        while sent != before:  # until it has come to a stand
            before = sent
            await asyncio.to_thread(scene.backend.event("nothing").wait, 0.05)
        assert sent < size / 2
        assert await wire.read(size) == b"\xa5" * size
