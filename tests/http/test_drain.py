"""Promises of draining: every accepted request gets its answer, and then it is over."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from aiohttp import web

from proxy.http import line, server
from proxy.http.body import read_body
from proxy.http.connection import Connection
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply, StreamReply
from tests.http.conftest import Serve, Served
from tests.http.test_connection import GET, UPLOAD, Waiting, connections, get
from tests.http.wire import PATIENCE, Wire, until


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    with await read_body(request, Limits(), Buffered(10_000_000)) as body:
        return Reply(200, (), body.data)


async def test_an_upload_in_progress_finishes(serve: Serve) -> None:
    """A request that was being sent when draining began is read to its end and answered, with `Connection: close`."""
    served = await serve(echo)
    wire = await served.connect()
    await wire.send(UPLOAD % 6 + b"abc")
    await until(lambda: served.server.in_flight == 1)
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.draining)
    await wire.send(b"def")
    answer = await wire.answer()
    assert (answer.status, answer.body, answer.get(b"connection")) == (200, b"abcdef", b"close")
    assert await wire.rest() == b""
    assert await drained is True
    assert repr(served.server) == "<HttpServer draining connections=0 in_flight=0>"


async def test_a_head_in_progress_finishes(serve: Serve) -> None:
    """Even a request of which only half a head had come is answered."""
    served = await serve(echo)
    wire = await served.connect()
    request = UPLOAD % 2 + b"hi"
    await wire.send(request[:20])
    await until(lambda: bool(connections(served)) and connections(served)[0]._fruitless == 20)
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.draining)
    await wire.send(request[20:])
    assert (await wire.answer()).body == b"hi"
    assert await drained is True


async def test_a_request_that_the_kernel_already_has_is_answered(serve: Serve) -> None:
    """What a client had sent before draining began is not lost, even if nobody had read a byte of it."""
    served = await serve(echo)
    wire = await served.connect()
    await wire.send(GET)
    await wire.answer()
    await until(lambda: connections(served)[0]._waiter is not None)
    os.write(wire.writer.get_extra_info("socket").fileno(), UPLOAD % 2 + b"hi")  # and the loop has not turned
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    answer = await wire.answer()
    assert (answer.body, answer.get(b"connection")) == (b"hi", b"close")
    assert await drained is True


async def test_an_idle_connection_may_bring_a_last_request(serve: Serve) -> None:
    """Whoever sends on a connection that it keeps, not knowing of the end, is answered, and told of it then."""
    served = await serve(echo)
    kept, fresh = await served.connect(), await served.connect()
    await kept.send(GET)
    assert (await kept.answer()).get(b"connection") is None
    await until(lambda: len(connections(served)) == 2 and all(line.idle for line in connections(served)))
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.last_call)
    for wire in (kept, fresh):
        await wire.send(UPLOAD % 2 + b"hi")
        answer = await wire.answer()
        assert (answer.body, answer.get(b"connection")) == (b"hi", b"close")
    assert await drained is True
    assert not served.server.last_call


async def test_an_answer_that_promised_more_is_followed_by_a_last_call(serve: Serve) -> None:
    """A client that was told before the drain that its connection stays may use it once more."""
    go_on = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ())
        await reply.prepare(request)
        await go_on.wait()
        return reply

    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    assert (await wire.head()).get(b"connection") is None
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.last_call)
    go_on.set()
    assert await wire.chunk() == b""
    await wire.send(GET)
    assert (await wire.answer()).get(b"connection") == b"close"
    assert await drained is True


async def test_a_connection_that_nobody_has_taken_yet_is_answered(serve: Serve) -> None:
    """A client whose connection the kernel made, and whose request waits in it, is not reset by the end."""
    served = await serve(echo)
    with socket.create_connection(served.address) as first, socket.create_connection(served.address) as second:
        for sock in (first, second):
            sock.sendall(UPLOAD % 2 + b"hi")  # and the loop has not turned since
            sock.setblocking(False)
        assert not connections(served)
        drained = asyncio.ensure_future(served.server.drain(PATIENCE))
        for sock in (first, second):
            answer = b""
            while piece := await asyncio.get_running_loop().sock_recv(sock, 4096):
                answer += piece
            assert b"Connection: close" in answer
            assert answer.endswith(b"\r\n\r\nhi")
        assert await drained is True


async def test_idle_connections_go_after_the_last_call(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of idle connections delays the end by the last call and no longer, or by half of a shorter timeout."""
    served = await serve(echo)
    wire = await served.connect()
    assert await served.server.drain(0.02) is True
    assert await wire.rest() == b""
    monkeypatch.setattr(server, "LAST_CALL", 0.02)
    served = await serve(echo)
    served = await serve(echo)
    idle = [await served.connect() for _ in range(3)]
    for wire in idle[1:]:
        await wire.send(GET)
        await wire.answer()
    await until(lambda: len(connections(served)) == 3 and all(line._waiter is not None for line in connections(served)))
    assert await served.server.drain(PATIENCE) is True
    assert [await wire.rest() for wire in idle] == [b"", b"", b""]


async def test_pipelined_requests_that_came_are_answered(serve: Serve) -> None:
    """The first answer after draining began says that the connection ends; a client must not be told twice."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    await wire.send(get(b"/1") + get(b"/2"))
    await until(lambda: bool(handler.begun))
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.draining)
    handler.go_on.set()
    answer = await wire.answer()
    assert (answer.body, answer.get(b"connection")) == (b"/1", b"close")
    assert await wire.rest() == b""
    assert await drained is True


async def test_a_stream_under_way_finishes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose head promised to keep the connection is sent to its end, then the connection goes."""
    monkeypatch.setattr(server, "LAST_CALL", 0.01)
    go_on = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ())
        await reply.prepare(request)
        await go_on.wait()
        await reply.write(b"end")
        return reply

    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    assert (await wire.head()).get(b"connection") is None
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.past_last_call)
    go_on.set()
    assert [await wire.chunk() for _ in range(2)] == [b"end", b""]
    assert await wire.rest() == b""
    assert await drained is True


async def test_nobody_new_is_let_in(serve: Serve) -> None:
    """While draining, new connections are refused by the kernel, so that a balancer goes elsewhere."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    await until(lambda: bool(handler.begun))
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.draining)
    with pytest.raises(ConnectionRefusedError):
        await Wire.connect(served.address)
    handler.go_on.set()
    assert await drained is True


async def test_draining_gives_up_in_time_and_closing_ends_the_rest(serve: Serve) -> None:
    """A handler that never ends delays the end by the timeout and no longer; then it is cancelled."""
    handler = Waiting()
    served = await serve(handler)
    wire = await served.connect()
    await wire.send(GET)
    await until(lambda: bool(handler.begun))
    assert await served.server.drain(0.02) is False
    assert not handler.left.is_set()
    await served.server.close()
    assert handler.left.is_set()
    assert connections(served) == []


async def test_an_early_answer_outlasts_the_drain(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is still sending when it is refused can read why: its connection is not reset under it."""
    monkeypatch.setattr(line, "LINGER", PATIENCE)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return Reply(403, (), b"no")

    served = await serve(handler)
    wire = await served.connect()
    await wire.send(UPLOAD % 1_000_000 + b"u" * 1000)
    drained = asyncio.ensure_future(served.server.drain(PATIENCE))
    await until(lambda: served.server.draining)
    await wire.send(b"u" * 900_000)
    assert (await wire.answer()).body == b"no"
    wire.close()
    assert await drained is True


async def test_a_connection_that_only_lingers_does_not_delay_the_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has its last answer and does not let go is not waited for."""
    monkeypatch.setattr(line, "LINGER", 10 * PATIENCE)
    served = await serve(echo)
    wire = await served.connect()
    await wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await wire.answer()
    await until(lambda: repr(connections(served)[0]) == "<Connection lingering queued=0>")
    assert await served.server.drain(PATIENCE) is True


async def test_a_client_that_does_not_let_go_is_let_go(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that we ended does not stay open for as long as its client likes."""
    monkeypatch.setattr(line, "LINGER", 0.02)
    served = await serve(echo)
    wire = await served.connect()
    await wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await wire.answer()).get(b"connection") == b"close"
    await until(lambda: not connections(served))


class Long:
    """A handler with an answer longer than all buffers; `written` once the last of it is in one of them."""

    piece = b"x" * 60_000
    count = 100

    def __init__(self) -> None:
        self.written = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        reply = StreamReply(200, ((b"Content-Length", b"%d" % (len(self.piece) * self.count)),))
        await reply.prepare(request)
        for _ in range(self.count):
            await reply.write(self.piece)
        await reply.write_eof()
        self.written.set()
        return reply


async def last_bytes(served: Served, handler: Long) -> tuple[Wire, Connection, int]:
    """A client that has read until the whole answer was written, its connection, and how much that was."""
    wire = await served.connect(receive_buffer=65536)
    await wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await wire.head()
    got = 0
    while not handler.written.is_set():
        got += len(await wire.read(10_000))
        await asyncio.sleep(0)
    (ending,) = connections(served)
    await until(lambda: ending._lingering is not None)
    return wire, ending, got


async def test_a_slow_reader_gets_its_last_answer_whole(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending a connection cuts nothing off for a client that reads slowly."""
    monkeypatch.setattr(line, "LINGER", 0.01)
    monkeypatch.setattr(line, "STALLS", 3)
    handler = Long()
    wire, ending, got = await last_bytes(await serve(handler), handler)
    for _ in range(6):
        timer = ending._lingering
        got += len(await wire.read(200_000))
        await until(lambda timer=timer: ending._lingering is not timer)  # type: ignore[misc]  # a bound loop variable
        assert ending.transport is not None
    got += len(await wire.rest())
    assert got == Long.count * len(Long.piece)


async def test_a_client_that_takes_nothing_has_had_its_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last answer that nobody reads does not keep its connection for ever."""
    monkeypatch.setattr(line, "LINGER", 0.01)
    monkeypatch.setattr(line, "STALLS", 3)
    handler = Long()
    served = await serve(handler)
    _, ending, _ = await last_bytes(served, handler)
    assert ending.transport is not None
    await until(lambda: not connections(served))
