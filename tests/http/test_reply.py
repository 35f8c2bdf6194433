"""Promises of answers: nothing invented, framed rightly, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from proxy.http.reply import Reply, StreamReply
from proxy.terms import Headers
from tests.http.conftest import Serve
from tests.http.wire import PATIENCE, until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_10 = b"GET / HTTP/1.0\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"

FIELDS: Headers = ((b"X-One", b"1"), (b"x-one", b"2"), (b"Etag", b'"\xc3\xa9"'))


def always(make: Callable[[], web.StreamResponse]) -> Callable[[web.BaseRequest], object]:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return make()

    return handler


async def test_an_answer_holds_what_was_given_and_its_length(serve: Serve) -> None:
    """No Server, no Date, no default Content-Type: the client sees the backend's fields, its order and spelling."""
    wire = await (await serve(always(lambda: Reply(200, FIELDS, b"body", b"Fine")))).connect()
    await wire.send(GET)
    expected = b'HTTP/1.1 200 Fine\r\nX-One: 1\r\nx-one: 2\r\nEtag: "\xc3\xa9"\r\nContent-Length: 4\r\n\r\nbody'
    assert await wire.read(len(expected)) == expected


async def test_an_answer_without_fields_is_still_an_answer(serve: Serve) -> None:
    """The smallest answer is well-formed; an unknown status has no made-up phrase."""
    wire = await (await serve(always(lambda: Reply(299, (), b"")))).connect()
    await wire.send(GET)
    expected = b"HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n"
    assert await wire.read(len(expected)) == expected


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 3_000_000])
async def test_an_answer_of_any_size_arrives_whole(serve: Serve, size: int) -> None:
    """Large and small bodies come through byte for byte, and the connection goes on."""
    body = bytes(range(256)) * (size // 256) + b"t" * (size % 256)
    wire = await (await serve(always(lambda: Reply(200, (), body)))).connect()
    for _ in range(2):
        await wire.send(GET)
        assert (await wire.answer()).body == body


async def test_framing_is_ours_whatever_was_given(serve: Serve) -> None:
    """A stored or forwarded field cannot contradict the framing of this very message."""
    lies: Headers = (
        (b"CONTENT-LENGTH", b"999"),
        (b"transfer-encoding", b"chunked"),
        (b"Connection", b"close"),
        (b"Keep-Alive", b"timeout=1"),
        (b"X", b"y"),
    )
    wire = await (await serve(always(lambda: Reply(200, lies, b"four")))).connect()
    for _ in range(2):
        await wire.send(GET)
        answer = await wire.answer()
        assert answer.headers == ((b"X", b"y"), (b"Content-Length", b"4"))
        assert answer.body == b"four"


@pytest.mark.parametrize("evil", [b"a\r\nX-Injected: 1", b"a\nb", b"a\rb", b"a\r\n\r\nHTTP/1.1 200 OK"])
async def test_no_field_can_end_a_head_early(serve: Serve, caplog: pytest.LogCaptureFixture, evil: bytes) -> None:
    """A line break in a value is our error, 500, never a second field or a second answer."""
    for make in (lambda: Reply(200, ((b"X", evil), (b"Y", b"z")), b""), lambda: StreamReply(200, ((b"X", evil),))):
        wire = await (await serve(always(make))).connect()
        await wire.send(GET)
        answer = await wire.answer()
        assert (answer.status, answer.get(b"x-injected"), answer.body) == (500, None, b"Internal error.\n")
    assert evil.decode() not in caplog.text


@pytest.mark.parametrize(
    ("request_head", "status", "given"),
    [(HEAD, 200, b"1234"), (HEAD, 200, None), (GET, 304, b"1234"), (GET, 304, None), (GET, 204, None)],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_has_no_body_keeps_its_length_field(
    serve: Serve, request_head: bytes, status: int, given: bytes | None, streamed: bool
) -> None:
    """HEAD, 204 and 304 end with their head; the backend's Content-Length stays, and none is made up."""
    fields: Headers = () if given is None else ((b"Content-Length", given),)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if not streamed:
            return Reply(status, fields, b"")
        reply = StreamReply(status, fields)
        await reply.prepare(request)
        await reply.write(b"never sent")
        return reply

    wire = await (await serve(handler)).connect()
    for _ in range(2):
        await wire.send(request_head)
        answer = await wire.answer(bodiless=True)
        assert answer.status == status
        assert answer.get(b"content-length") == given
        assert answer.get(b"transfer-encoding") is None


async def test_a_head_request_learns_the_length_of_a_whole_answer(serve: Serve) -> None:
    """HEAD of something that we hold whole tells its length and sends none of it."""
    wire = await (await serve(always(lambda: Reply(200, (), b"12345")))).connect()
    await wire.send(HEAD + GET)
    assert (await wire.answer(bodiless=True)).get(b"content-length") == b"5"
    assert (await wire.answer()).body == b"12345"


async def test_http_1_0_is_told_whether_the_connection_stays(serve: Serve) -> None:
    """An old client that asks for it keeps its connection; one that does not sees it end."""
    served = await serve(always(lambda: Reply(200, (), b"x")))
    wire = await served.connect()
    for _ in range(2):
        await wire.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await wire.answer()).get(b"connection") == b"keep-alive"
    await wire.send(GET_10)
    assert (await wire.answer()).get(b"connection") == b"close"
    assert await wire.rest() == b""


async def test_a_stream_sends_its_head_and_each_piece_at_once(serve: Serve) -> None:
    """A stream that is silent for minutes has shown its head; each event arrives without waiting for the next."""
    steps: asyncio.Queue[bytes] = asyncio.Queue()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ((b"Content-Type", b"text/event-stream"),))
        assert repr(reply) == "<StreamReply 200 not sent>"
        await reply.prepare(request)
        assert repr(reply) == "<StreamReply 200 sending>"
        while piece := await steps.get():
            await reply.write(piece)
        await reply.write(b"")
        await reply.write_eof()
        assert repr(reply) == "<StreamReply 200 sent>"
        return reply

    wire = await (await serve(handler)).connect()
    for _ in range(2):
        await wire.send(GET)
        head = await wire.head()
        assert head.headers == ((b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked"))
        for piece in (b"data: 1\n\n", b"data: 2\n\n"):
            steps.put_nowait(piece)
            assert await wire.chunk() == piece
        steps.put_nowait(b"")
        assert await wire.chunk() == b""


async def streamed(request: web.BaseRequest, headers: Headers, pieces: list[bytes]) -> StreamReply:
    reply = StreamReply(200, headers)
    await reply.prepare(request)
    for piece in pieces:
        await reply.write(piece)
    return reply


async def test_a_stream_of_known_length_keeps_it(serve: Serve) -> None:
    """A body whose length the backend told is framed by that length."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return await streamed(request, ((b"content-length", b"4"),), [b"ab", b"cd"])

    wire = await (await serve(handler)).connect()
    for _ in range(2):
        await wire.send(GET)
        answer = await wire.answer()
        assert (answer.headers, answer.body) == (((b"Content-Length", b"4"),), b"abcd")


async def test_a_stream_to_an_http_1_0_client_ends_with_its_connection(serve: Serve) -> None:
    """A client that knows no chunks gets the plain bytes and then the end."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return await streamed(request, (), [b"ab", b"cd"])

    wire = await (await serve(handler)).connect()
    await wire.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    answer = await wire.answer()
    assert (answer.headers, answer.body) == (((b"Connection", b"close"),), b"abcd")


async def test_a_truncated_body_of_known_length_is_seen_as_one(serve: Serve) -> None:
    """A backend that dies within its body ends the client's connection after what came of it, whoever notices."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = await streamed(request, ((b"Content-Length", b"9"),), [b"abc"])
        if request.raw_path == "/abort":
            reply.abort()
            assert reply.aborted
            assert repr(reply) == "<StreamReply 200 aborted>"
        return reply

    served = await serve(handler)
    for path in (b"/abort", b"/short"):
        wire = await served.connect()
        await wire.send(GET.replace(b"/", path, 1) + GET)
        await wire.head()
        assert await wire.rest() == b"abc"


async def test_truncated_chunks_are_seen_as_truncated(serve: Serve) -> None:
    """No last chunk is made up; everything that had come is delivered."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = await streamed(request, (), [b"abc", b"d" * 100_000])
        reply.abort()
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(GET)
    await wire.head()
    assert await wire.chunk() == b"abc"
    assert await wire.chunk() == b"d" * 100_000
    with pytest.raises(asyncio.IncompleteReadError):
        await wire.chunk()


async def test_a_truncated_close_delimited_body_resets_its_connection(serve: Serve) -> None:
    """Where only the end of the connection ends the body, a truncation is a reset, not an end."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = await streamed(request, (), [b"abc"])
        reply.abort()
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(GET_10)
    with pytest.raises(ConnectionResetError):
        await wire.rest()


@pytest.mark.parametrize("framing", [b"chunks", b"length", b"close"])
async def test_a_handler_that_breaks_within_its_answer_does_not_look_done(
    serve: Serve, caplog: pytest.LogCaptureFixture, framing: bytes
) -> None:
    """A bug of ours in the middle of a body is a broken connection for that client, and a trace in the log."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        await streamed(request, ((b"Content-Length", b"9"),) if framing == b"length" else (), [b"abc"])
        raise ValueError("bug")

    wire = await (await serve(handler)).connect()
    await wire.send(GET_10 if framing == b"close" else GET)
    with pytest.raises(ConnectionResetError):
        await wire.rest()
    assert "A handler failed" in caplog.text


async def test_what_is_aborted_does_not_cancel_its_own_handler(serve: Serve) -> None:
    """Whoever gives up an answer can still count it: no client has left."""
    finished = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = await streamed(request, (), [b"abc"])
        transport = request.transport
        assert transport is not None
        reply.abort()
        await until(transport.is_closing)
        await asyncio.sleep(0)  # the loss of the connection is told in the next turn
        finished.set()
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(GET_10)
    async with asyncio.timeout(PATIENCE):
        await finished.wait()


async def test_what_is_aborted_ends_at_once(serve: Serve) -> None:
    """The client learns of a truncation when it happens, not when the handler is done with it."""
    known = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = await streamed(request, (), [b"abc"])
        reply.abort()
        await known.wait()
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(GET)
    await wire.head()
    assert await wire.rest() == b"3\r\nabc\r\n"
    known.set()


@pytest.mark.parametrize("declared", [True, False])
async def test_a_client_that_does_not_read_stops_the_writer(serve: Serve, declared: bool) -> None:
    """An answer of any size to a client of any speed takes bounded memory, and arrives whole in the end."""
    piece, count = b"p" * 65536, 400
    written = 0
    stuck = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal written
        reply = StreamReply(200, ((b"Content-Length", b"%d" % (len(piece) * count)),) if declared else ())
        await reply.prepare(request)
        transport = request.transport
        assert transport is not None
        for _ in range(count):
            step = asyncio.ensure_future(reply.write(piece))
            await asyncio.sleep(0)
            if not step.done():
                assert transport.get_write_buffer_size() <= 3 * len(piece)
                stuck.set()
            await step
            written += 1
        return reply

    wire = await (await serve(handler)).connect(receive_buffer=65536)
    await wire.send(GET)
    await stuck.wait()
    assert written < count
    assert (await wire.answer()).body == piece * count


async def test_a_body_longer_than_declared_is_our_error(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes beyond the declared length are never sent: the client would read them as the next answer."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return await streamed(request, ((b"Content-Length", b"3"),), [b"abc", b"HTTP/1.1 200 OK\r\n\r\n"])

    wire = await (await serve(handler)).connect()
    await wire.send(GET)
    with pytest.raises(ConnectionResetError):
        await wire.rest()
    assert "A handler failed" in caplog.text


def test_interim_answers_are_nobodys_to_send() -> None:
    """1xx answers come from the connection alone."""
    for make in (lambda: Reply(103, (), b""), lambda: StreamReply(101, ())):
        with pytest.raises(AssertionError):
            make()


async def test_an_answer_tells_the_truth_about_itself(serve: Serve) -> None:
    """What a log or a debugger shows of an answer is so."""
    replies: list[Reply] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = Reply(404, (), b"gone")
        replies.append(reply)
        assert repr(reply) == "<Reply 404 4 bytes not sent>"
        assert reply.reason == "Not Found"
        await reply.prepare(request)
        await reply.prepare(request)
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(GET + GET_10)
    assert [(await wire.answer()).body for _ in range(2)] == [b"gone", b"gone"]
    assert await wire.rest() == b""
    assert [repr(reply) for reply in replies] == ["<Reply 404 4 bytes sent>"] * 2
