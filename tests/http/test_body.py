"""Promises of reading a body under limits."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from aiohttp import web

from proxy.http.body import pass_body, read_body
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply, StreamReply
from proxy.settings import Bytes, Seconds
from tests.http.conftest import Serve
from tests.http.wire import until

POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def sized(body: bytes, extra: bytes = b"") -> bytes:
    return POST + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


class Reader:
    """A handler that reads bodies and answers with what it read; `bodies` shows how each came."""

    def __init__(self, limits: Limits, *, buffered: int | None = None, passing: bool = False) -> None:
        self.limits = limits
        self.buffered = Buffered(limits.buffered if buffered is None else buffered)
        self.passing = passing
        self.bodies: list[str] = []
        self.begun = asyncio.Event()
        self.most_held = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.begun.set()
        passing = self.passing
        body = pass_body(request, self.limits) if passing else await read_body(request, self.limits, self.buffered)
        with body:
            self.bodies.append(repr(body))
            self.most_held = max(self.most_held, self.buffered.held)
            data = b"".join([piece async for piece in body])
        assert self.buffered.held == 0
        return Reply(200, ((b"X-Absent", b"%d" % body.absent),), data)


async def test_a_small_body_is_read_whole(serve: Serve) -> None:
    """What is small enough to be understood is there as bytes, however it was framed."""
    reader = Reader(Limits())
    served = await serve(reader)
    for request in (sized(b"hello"), CHUNKED + chunked(b"he", b"llo", b"")):
        wire = await served.connect()
        await wire.send(request)
        assert (await wire.answer()).body == b"hello"
    assert reader.bodies == ["<Body whole data=5 length=5 held=5>"] * 2
    assert repr(reader.buffered) == f"<Buffered 0/{256 * 1024 * 1024}>"


async def test_no_body_is_not_an_empty_body(serve: Serve) -> None:
    """The backend can be told exactly what the client said."""
    for passing in (False, True):
        wire = await (await serve(Reader(Limits(), passing=passing))).connect()
        for request, absent in ((POST + b"\r\n", b"1"), (sized(b""), b"0"), (sized(b"x"), b"0")):
            await wire.send(request)
            assert (await wire.answer()).get(b"x-absent") == absent


async def test_a_compressed_body_is_left_alone(serve: Serve) -> None:
    """What the client compressed reaches the backend compressed."""
    packed = gzip.compress(b"text" * 100)
    wire = await (await serve(Reader(Limits()))).connect()
    await wire.send(sized(packed, b"Content-Encoding: gzip\r\n"))
    assert (await wire.answer()).body == packed


async def test_there_is_no_limit_of_one_mebibyte(serve: Serve) -> None:
    """A body of several megabytes is read whole where `limits.parse` allows it."""
    reader = Reader(Limits())
    body = bytes(range(256)) * 12_000
    wire = await (await serve(reader)).connect()
    await wire.send(sized(body))
    assert (await wire.answer()).body == body
    assert reader.bodies == [f"<Body whole data={len(body)} length={len(body)} held={len(body)}>"]


async def test_a_declared_length_above_parse_is_known_before_reading(serve: Serve) -> None:
    """A body too large to be understood streams through from its first byte; none of it is held."""
    reader = Reader(Limits(parse=Bytes(1000)))
    body = b"b" * 300_000
    wire = await (await serve(reader)).connect()
    await wire.send(sized(b"")[:-5] + b"%d\r\n\r\n" % len(body))
    await reader.begun.wait()
    await until(lambda: bool(reader.bodies))
    assert reader.bodies == ["<Body streaming data=0 length=300000 held=0>"]
    await wire.send(body)
    assert (await wire.answer()).body == body
    assert reader.most_held == 0


async def test_chunks_beyond_parse_stream_on_after_what_was_read(serve: Serve) -> None:
    """A body that turns out too large goes through whole and in order: its beginning, then the rest."""
    reader = Reader(Limits(parse=Bytes(1000)))
    wire = await (await serve(reader)).connect()
    await wire.send(CHUNKED + chunked(b"a" * 600))
    await until(lambda: bool(reader.buffered.held))
    await wire.send(chunked(b"b" * 600, b"c" * 600, b""))
    assert (await wire.answer()).body == b"a" * 600 + b"b" * 600 + b"c" * 600
    assert reader.bodies == ["<Body streaming data=600 length=None held=600>"]


async def test_a_small_body_above_parse_is_not_called_whole(serve: Serve) -> None:
    """`limits.parse` holds also for what came together with its head."""
    reader = Reader(Limits(parse=Bytes(3)))
    wire = await (await serve(reader)).connect()
    await wire.send(sized(b"four") + sized(b"tre"))
    assert [(await wire.answer()).body for _ in range(2)] == [b"four", b"tre"]
    assert reader.bodies == ["<Body streaming data=4 length=4 held=0>", "<Body whole data=3 length=3 held=3>"]


@pytest.mark.parametrize("together", [True, False])
async def test_bodies_stream_through_while_there_is_no_room(serve: Serve, together: bool) -> None:
    """A full `limits.buffered` never refuses or delays a body: it is only not understood."""
    reader = Reader(Limits(), buffered=5)
    wire = await (await serve(reader)).connect()
    request = sized(b"123456")
    await wire.send(request if together else request[:-4])
    if not together:
        await until(lambda: bool(reader.buffered.held))
        await wire.send(request[-4:])
    assert (await wire.answer()).body == b"123456"
    held = 0 if together else 2
    assert reader.bodies == [f"<Body streaming data={6 if together else 2} length=6 held={held}>"]


@pytest.mark.parametrize("passing", [False, True])
async def test_a_body_above_its_limit_gets_413(serve: Serve, passing: bool) -> None:
    """`limits.body` refuses what is declared too long before reading it, and chunks as soon as they are too many."""
    limits = Limits(body=Bytes(10))
    reader = Reader(limits, passing=passing)
    served = await serve(reader, limits)
    requests = (
        sized(b"12345678901"),
        sized(b"")[:-5] + b"11\r\n\r\n",
        CHUNKED + chunked(b"123456", b"78901", b""),
        CHUNKED + chunked(b"12345678901"),
    )
    for request in requests:
        wire = await served.connect()
        await wire.send(request)
        assert (await wire.answer()).status == 413
    wire = await served.connect()
    await wire.send(sized(b"1234567890"))
    assert (await wire.answer()).status == 200
    assert reader.buffered.held == 0


async def test_chunks_are_counted_over_the_whole_upload(serve: Serve) -> None:
    """`limits.body` is about the body, not about what of it came at once."""
    limits = Limits(body=Bytes(10))
    reader = Reader(limits)
    wire = await (await serve(reader, limits)).connect()
    await wire.send(CHUNKED + chunked(b"123456"))
    await until(lambda: reader.buffered.held == 6)
    await wire.send(chunked(b"78901"))
    assert (await wire.answer()).status == 413
    assert reader.buffered.held == 0


async def test_what_is_passed_on_or_let_go_is_no_longer_held(serve: Serve) -> None:
    """Room in `limits.buffered` is free again as soon as the bytes have left, or nobody wants them any more."""
    buffered = Buffered(1000)
    held: list[int] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        with await read_body(request, Limits(), buffered) as body:
            held.append(buffered.held)
            if request.raw_path == "/pass":
                assert await anext(body) == b"hello"
                held.append(buffered.held)
            assert body.complete
        held.append(buffered.held)
        body.release()
        return Reply(200, (), b"")

    wire = await (await serve(handler)).connect()
    for path in (b"/pass", b"/keep"):
        await wire.send(sized(b"hello").replace(b"/", path, 1))
        await wire.answer()
    assert held == [5, 0, 0, 5, 0]


async def test_an_upload_that_stops_gets_408(serve: Serve) -> None:
    """A client that sends nothing for `limits.read_timeout` is told so, and what it sent is no longer held."""
    for passing in (False, True):
        reader = Reader(Limits(read_timeout=Seconds(0.05)), passing=passing)
        wire = await (await serve(reader)).connect()
        await wire.send(sized(b"half")[:-2])
        answer = await wire.answer()
        assert (answer.status, answer.get(b"connection")) == (408, b"close")
        assert await wire.rest() == b""
        assert reader.buffered.held == 0


async def test_a_client_that_leaves_gives_its_room_back(serve: Serve) -> None:
    """Bytes of an upload that will never end are not held on to."""
    reader = Reader(Limits())
    wire = await (await serve(reader)).connect()
    await wire.send(sized(b"half")[:-2])
    await until(lambda: bool(reader.buffered.held))
    wire.close()
    await until(lambda: not reader.buffered.held)


@pytest.mark.parametrize("expect", [b"100-continue", b"100-Continue"])
async def test_a_client_that_asks_first_is_told_to_go_on(serve: Serve, expect: bytes) -> None:
    """`Expect: 100-continue` is answered when the body is wanted, once, and then by the real answer."""
    for passing in (False, True):
        wire = await (await serve(Reader(Limits(), passing=passing))).connect()
        for _ in range(2):
            await wire.send(POST + b"Expect: " + expect + b"\r\nContent-Length: 5\r\n\r\n")
            assert await wire.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await wire.send(b"hello")
            answer = await wire.answer()
            assert (answer.status, answer.body, answer.get(b"connection")) == (200, b"hello", None)


async def test_a_refused_upload_is_never_asked_for(serve: Serve) -> None:
    """A client that asks first and is too large hears 413 and no 100; nothing it sends then is read as a request."""
    limits = Limits(body=Bytes(4))
    wire = await (await serve(Reader(limits), limits)).connect()
    await wire.send(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.get(b"connection")) == (413, b"close")
    await wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await wire.rest() == b""


async def test_a_handler_that_wants_no_body_asks_for_none(serve: Serve) -> None:
    """An answer that does not depend on the body comes instead of a 100."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return Reply(401, (), b"no")

    wire = await (await serve(handler)).connect()
    await wire.send(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.get(b"connection")) == (401, b"close")


async def test_who_has_sent_its_body_already_needs_no_100(serve: Serve) -> None:
    """An HTTP/1.0 client, or one that did not wait, gets nothing but its answer."""
    reader = Reader(Limits())
    served = await serve(reader)
    for version, sent in ((b"1.1", b"hello"), (b"1.1", b"hel"), (b"1.0", b"")):
        wire = await served.connect()
        await wire.send(
            b"POST / HTTP/%b\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n" % version + sent
        )
        await reader.begun.wait()
        reader.begun.clear()
        await wire.send(b"hello"[len(sent) :])
        assert (await wire.answer()).status == 200


async def test_a_client_is_told_to_go_on_only_once(serve: Serve) -> None:
    """A read that is given up and begun again does not repeat the 100, which a client would take for an answer."""
    again = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        body = pass_body(request, Limits())
        first = asyncio.ensure_future(anext(body))
        await again.wait()
        first.cancel()
        await asyncio.wait([first])
        return Reply(200, (), await anext(body))

    wire = await (await serve(handler)).connect()
    await wire.send(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert await wire.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    again.set()
    for _ in range(20):  # a few turns in which it is read again
        await asyncio.sleep(0)
    await wire.send(b"hello")
    assert (await wire.answer()).body == b"hello"


async def test_no_100_comes_after_an_answer_has_begun(serve: Serve) -> None:
    """A client that is being answered is not told to go on in the middle of it."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ())
        await reply.prepare(request)
        async for piece in pass_body(request, Limits()):
            await reply.write(piece)
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert (await wire.head()).status == 200
    await wire.send(b"hello")
    assert [await wire.chunk() for _ in range(2)] == [b"hello", b""]
