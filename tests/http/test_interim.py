"""Promises about interim answers: before the answer, to who can read them, and never without end."""

from __future__ import annotations

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol

from proxy.http.interim import say
from proxy.http.reply import Reply
from tests.http.conftest import Serve

HINT = ((b"Link", b"</a>"),)
GET = b"GET / HTTP/1.%d\r\nHost: x\r\n\r\n"


async def test_an_interim_answer_comes_before_the_answer_and_not_after(serve: Serve) -> None:
    """Hints reach the client until its answer begins; what comes later is dropped, and the connection goes on."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        say(request, 103, b"Early Hints", HINT)
        reply = Reply(200, (), b"ok")
        await reply.prepare(request)
        say(request, 103, b"Early Hints", HINT)
        return reply

    wire = await (await serve(handler)).connect()
    for _ in range(2):
        await wire.send(GET % 1)
        hint = await wire.head()
        assert (hint.status, hint.reason, hint.headers) == (103, b"Early Hints", HINT)
        assert (await wire.answer()).body == b"ok"


async def test_an_old_client_is_told_its_answer_alone(serve: Serve) -> None:
    """HTTP/1.0 knows no interim answers, and would take one for the answer."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        say(request, 103, b"Early Hints", HINT)
        return Reply(200, (), b"ok")

    wire = await (await serve(handler)).connect()
    await wire.send(GET % 0)
    assert (await wire.answer()).status == 200


async def test_a_client_that_takes_nothing_gets_no_more_hints(serve: Serve) -> None:
    """A backend of endless hints cannot fill our memory through a client that does not read."""
    sizes: list[int] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        assert isinstance(request.protocol, BaseProtocol)
        for _ in range(1000):
            say(request, 103, b"Early Hints", ((b"Link", b"a" * 30_000),))
        sizes.append(transport.get_write_buffer_size())
        return Reply(200, (), b"ok")

    wire = await (await serve(handler)).connect(receive_buffer=65536)
    await wire.send(GET % 1)
    while (await wire.head()).status == 103:
        pass
    assert sizes[0] < 200_000
