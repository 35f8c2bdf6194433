"""The promise that a connection which has ended is gone, and does not wait for the cycle collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from aiohttp import web

from proxy.http.body import read_body
from proxy.http.connection import Connection
from proxy.http.limits import Buffered, Limits
from proxy.http.reply import Reply
from tests.http.conftest import Serve
from tests.http.test_connection import GET, UPLOAD, connections, get
from tests.http.wire import until


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    if request.path == "/wait":
        await asyncio.Event().wait()
    with await read_body(request, Limits(), Buffered(10_000_000)) as body:
        return Reply(200, (), body.data)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()  # what other tests left
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", False),
        (GET, True),
        (UPLOAD % 2 + b"hi", True),
        (UPLOAD % 20 + b"half", False),
        (get(b"/wait") + UPLOAD % 2 + b"hi", False),
        (GET[:10], False),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), True),
        (b"\x00\r\n\r\n", True),
    ],
    ids=["nothing", "get", "upload", "half an upload", "pipelined", "half a head", "last", "no request"],
)
@pytest.mark.usefixtures("no_collector")
async def test_a_connection_that_ended_is_freed_at_once(serve: Serve, sent: bytes, answered: bool) -> None:
    """Clients that come and go leave no memory behind until a collection that comes rarely, and takes long."""
    served = await serve(echo)
    wire = await served.connect()
    await wire.send(sent)
    if answered:
        await wire.answer()
    await until(lambda: bool(connections(served)))
    if len(sent) > 10 and not answered:
        await until(lambda: served.server.in_flight == 1)
    wire.close()
    await until(lambda: not connections(served))
    for _ in range(5):  # transports are let go of in the turn after
        await asyncio.sleep(0)
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Connection)]
