"""Promises of a client connection: order, early answers, leavers, idle time, and how many there may be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import cast

import pytest
from aiohttp import web
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE

from proxy.http import line, peer
from proxy.http.body import pass_body
from proxy.http.connection import Connection
from proxy.http.limits import Limits
from proxy.http.refusal import Refused
from proxy.http.reply import Reply, StreamReply
from proxy.terms import Reason
from tests.http.conftest import Serve, Served
from tests.http.wire import PATIENCE, until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def get(path: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n"


def connections(served: Served) -> list[Connection]:
    return cast("list[Connection]", served.server.connections)


class Waiting:
    """A handler that waits to be told to answer, and shows whether its client left."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.begun.append(request.raw_path)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return Reply(200, (), request.raw_path.encode())


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(serve: Serve) -> None:
    """The n-th answer on a connection belongs to the n-th request, however fast they were sent."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    paths = [b"/%d" % n for n in range(100)]
    await wire.send(b"".join(map(get, paths)))
    await until(lambda: bool(handler.begun))
    assert handler.begun == ["/0"]
    assert served.server.in_flight == 1
    handler.go_on.set()
    assert [(await wire.answer()).body for _ in paths] == paths
    assert served.server.in_flight == 0


async def test_a_slow_handler_holds_back_who_pipelines(serve: Serve) -> None:
    """A client cannot make us queue requests without end behind one that is in progress."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    sender = asyncio.ensure_future(wire.send(get(b"/p") * 2_000))
    await until(lambda: bool(connections(served)) and connections(served)[0]._buffer_paused)
    assert len(connections(served)[0]._messages) <= MAX_MSG_QUEUE_SIZE
    handler.go_on.set()
    for _ in range(2_000):
        assert (await wire.answer()).body == b"/p"
    await sender


async def test_who_asks_and_does_not_read_is_not_answered_without_end(serve: Serve) -> None:
    """Answers that a client does not take stop us from answering its next requests: they do not pile up."""
    answered = 0

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal answered
        answered += 1
        return Reply(200, (), b"x" * 10_000)

    served = await serve(handler)
    wire = await served.connect(receive_buffer=65536)
    sender = asyncio.ensure_future(wire.send(GET * 20_000))
    await until(lambda: bool(connections(served)) and connections(served)[0]._paused)
    before = answered
    for _ in range(100):
        await asyncio.sleep(0)
    assert answered == before
    transport = connections(served)[0].transport
    assert transport is not None
    assert transport.get_write_buffer_size() <= 64 * 1024 + 11_000
    wire.reset()
    with contextlib.suppress(ConnectionError):
        await sender


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_early_answer_ends_its_upload(serve: Serve, streamed: bool) -> None:
    """An answer given before the upload ended arrives; the rest of the upload is dropped, never kept in memory
    and never read as a request.
    """
    seen: list[web.BaseRequest] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        if not streamed:
            return Reply(403, (), b"no")
        reply = StreamReply(403, ())
        await reply.prepare(request)
        await reply.write(b"no")
        return reply

    served = await serve(handler)
    wire = await served.connect()
    size = 20_000_000
    await wire.send(UPLOAD % size)
    answer = await wire.answer()
    assert (answer.status, answer.body, answer.get(b"connection")) == (403, b"no", b"close")
    body = get(b"/smuggled") * (size // len(get(b"/smuggled")))
    await wire.send(body)
    await wire.send(get(b"/next"))
    assert await wire.rest() == b""
    assert len(seen) == 1
    assert seen[0].content.read_nowait() == b""


async def test_an_early_answer_to_an_upload_under_way_bounds_what_is_kept(serve: Serve) -> None:
    """While a handler does not read, the client is held back; when it answers, the client can go on and be dropped."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    size = 20_000_000
    sender = asyncio.ensure_future(wire.send(UPLOAD % size + b"u" * size))
    await until(lambda: bool(connections(served)) and connections(served)[0]._reading_paused)
    assert connections(served)[0]._upload.total_bytes <= 512 * 1024
    assert not sender.done()
    handler.go_on.set()
    answer = await wire.answer()
    assert (answer.status, answer.get(b"connection")) == (200, b"close")
    await sender
    assert repr(connections(served)[0]) == "<Connection lingering queued=0>"
    wire.close()
    await until(lambda: not connections(served))


async def test_a_stream_may_begin_before_its_upload_has_ended(serve: Serve) -> None:
    """A backend that answers while it reads (an echo, a transcription) works both ways at once."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ())
        await reply.prepare(request)
        async for piece in pass_body(request, Limits()):
            await reply.write(piece.upper())
        return reply

    wire = await (await serve(handler)).connect()
    await wire.send(UPLOAD % 6)
    assert (await wire.head()).get(b"connection") == b"close"
    for piece in (b"abc", b"def"):
        await wire.send(piece)
        assert await wire.chunk() == piece.upper()
    assert await wire.chunk() == b""


@pytest.mark.parametrize("leave", ["close", "reset", "end_writing"])
async def test_a_client_that_leaves_cancels_its_handler(serve: Serve, leave: str) -> None:
    """Nobody computes for a caller that is gone."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    await until(lambda: bool(handler.begun))
    getattr(wire, leave)()
    async with asyncio.timeout(PATIENCE):
        await handler.left.wait()
    await until(lambda: not connections(served))
    assert served.server.in_flight == 0


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_a_client_that_leaves_while_its_upload_is_held_back_is_noticed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    """A transport that does not read sees no end; we look for it."""
    monkeypatch.setattr(line, "LOOK_AFTER", 0.02)
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    await wire.send(UPLOAD % 10_000_000 + b"u" * 700_000)
    await until(lambda: bool(connections(served)) and connections(served)[0]._reading_paused)
    getattr(wire, leave)()
    async with asyncio.timeout(PATIENCE):
        await handler.left.wait()


async def test_a_client_that_is_held_back_and_stays_is_left_alone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking whether a client is still there disturbs no upload."""
    monkeypatch.setattr(line, "LOOK_AFTER", 0.001)
    looks = 0
    look = peer.has_left

    def counted(sock: socket.socket) -> bool:
        nonlocal looks
        looks += 1
        return look(sock)

    monkeypatch.setattr(peer, "has_left", counted)
    go_on = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        await go_on.wait()
        size = 0
        async for piece in pass_body(request, Limits()):
            size += len(piece)
        return Reply(200, (), b"%d" % size)

    wire = await (await serve(handler)).connect()
    sender = asyncio.ensure_future(wire.send(UPLOAD % 5_000_000 + b"u" * 5_000_000))
    await until(lambda: looks >= 3)
    go_on.set()
    assert (await wire.answer()).body == b"5000000"
    await sender


async def test_a_client_that_leaves_while_it_does_not_read_is_noticed(serve: Serve) -> None:
    """A writer that waits for a client which is gone does not wait for ever."""
    left = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ())
        await reply.prepare(request)
        try:
            while True:
                await reply.write(b"x" * 65536)
        finally:
            left.set()

    served = await serve(handler)
    wire = await served.connect(receive_buffer=65536)
    await wire.send(GET)
    await until(lambda: bool(connections(served)) and connections(served)[0]._paused)
    wire.reset()
    async with asyncio.timeout(PATIENCE):
        await left.wait()
    await until(lambda: not connections(served))


async def test_an_idle_connection_ends_after_its_time(serve: Serve) -> None:
    """A connection on which nothing is asked is closed after `keepalive`, also if nothing ever was."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return Reply(200, (), b"")

    served = await serve(handler, keepalive=0.05)
    silent, used = await served.connect(), await served.connect()
    await used.send(GET)
    assert (await used.answer()).get(b"connection") is None
    assert await silent.rest() == await used.rest() == b""


async def test_each_answer_renews_the_idle_time(serve: Serve) -> None:
    """A connection in use is never closed for its age: its time counts from its last answer."""
    clock: list[float] = []
    loop = asyncio.get_running_loop()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return Reply(200, (), b"")

    served = await serve(handler)
    wire = await served.connect()
    for _ in range(3):
        await wire.send(GET)
        await wire.answer()
        await until(lambda: connections(served)[0]._waiter is not None)
        clock.append(connections(served)[0]._next_keepalive_close_time)
        await until(lambda: loop.time() + 75.0 > clock[-1])
    assert clock[0] < clock[1] < clock[2]
    assert clock[2] - loop.time() == pytest.approx(75.0, abs=1.0)


async def test_a_request_in_progress_is_not_idle(serve: Serve) -> None:
    """A handler may take longer than `keepalive`."""
    late = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        asyncio.get_running_loop().call_later(0.1, late.set)
        await late.wait()
        return Reply(200, (), b"late")

    wire = await (await serve(handler, keepalive=0.02)).connect()
    await wire.send(GET)
    assert (await wire.answer()).body == b"late"


async def test_one_connection_too_many_is_told_so(serve: Serve) -> None:
    """Above `limits.connections` a client gets 503 and the end, at once; when one leaves, the next is welcome."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return Reply(200, (), b"in")

    served = await serve(handler, Limits(connections=2))
    first, second = await served.connect(), await served.connect()
    for wire in (first, second):
        await wire.send(GET)
        assert (await wire.answer()).body == b"in"
    third = await served.connect()
    await third.send(GET)
    answer = await third.answer()
    assert (answer.status, answer.get(b"connection")) == (503, b"close")
    assert await third.rest() == b""
    third.close()
    first.close()
    await until(lambda: len(connections(served)) == 1)
    fourth = await served.connect()
    await fourth.send(GET)
    assert (await fourth.answer()).body == b"in"
    assert served.server.turned_away == 1
    assert served.refused == []


@pytest.mark.parametrize("refused", [True, False])
async def test_an_error_for_a_client_that_has_left_is_nobodys_concern(
    serve: Serve, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    """A client that leaves at the very moment of its answer or its error leaves no trace in the log."""
    tasks: list[asyncio.Task[None]] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        tasks.append(request.task)
        assert request.transport is not None
        request.transport.close()
        if refused:
            raise Refused(413, Reason.BODY_TOO_LARGE, "too large")
        return Reply(200, (), b"")

    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    assert await wire.rest() == b""
    await until(tasks[0].done)
    assert tasks[0].cancelled() or tasks[0].exception() is None
    assert caplog.text == ""


async def test_a_handler_that_breaks_costs_one_caller_a_500(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """A bug of ours is one plain 500 and one trace without anything the client sent; the connection goes on."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if request.raw_path.startswith("/cancelled"):
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        if request.raw_path.startswith("/none"):
            return cast(web.StreamResponse, None)
        raise ValueError("bug")

    wire = await (await serve(handler)).connect()
    for path in (b"/raise", b"/cancelled", b"/none"):
        await wire.send(get(path + b"?token=s3cr3t").replace(b"Host: x", b"Host: x\r\nAuthorization: s3cr3t"))
        answer = await wire.answer()
        assert (answer.status, answer.body) == (500, b"Internal error.\n")
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3
    assert "s3cr3t" not in caplog.text


async def test_plain_aiohttp_answers_work_too(serve: Serve) -> None:
    """A handler may return any aiohttp response; how long its connection lives is still ours to say."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="plain")

    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    assert (await wire.answer()).body == b"plain"
    await wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    answer = await wire.answer()
    assert (answer.body, answer.get(b"connection")) == (b"plain", b"close")
    assert await wire.rest() == b""


async def test_a_connection_tells_the_truth_about_itself(serve: Serve) -> None:
    """What a log or a debugger shows of a connection and its server is so."""
    handler = Waiting()
    served = await serve(handler)
    assert repr(served.server) == "<HttpServer serving connections=0 in_flight=0>"
    wire = await served.connect()
    await until(lambda: bool(connections(served)) and connections(served)[0]._waiter is not None)
    line = connections(served)[0]
    assert repr(line) == "<Connection waiting queued=0>"
    await wire.send(GET * 3)
    await until(lambda: bool(handler.begun))
    assert repr(line) == "<Connection answering queued=2>"
    assert repr(served.server) == "<HttpServer serving connections=1 in_flight=1>"
    wire.close()
    await until(lambda: not connections(served))
    assert repr(line) == "<Connection closed queued=0>"
