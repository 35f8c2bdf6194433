"""Promises about pooled connections: what a backend sends unasked is never anybody's answer."""

from __future__ import annotations

import asyncio

import pytest

from proxy.terms import Failure
from proxy.upstream.connections import UpstreamError
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.connected import Seen, connected

STRAY = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 5\r\nConnection: close\r\n\r\nstray"


def echo(peer: Peer) -> None:
    """Answers every request with its own body."""
    while True:
        peer.answer(peer.request().body)


async def test_a_connection_is_used_again() -> None:
    """A second request does not pay for another connection."""
    with RawBackend(echo) as backend:
        async with connected(backend.url) as connections:
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=0>"
            for body in (b"one", b"two", b""):
                assert (await connections.exchange("POST", "/", (), body)).body == body
            assert len(backend.peers) == 1
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=1>"


@pytest.mark.parametrize(
    "stray",
    [
        STRAY,
        STRAY[:20],
        b"\0",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
@pytest.mark.parametrize("read", [True, False], ids=["read", "in_the_kernel"])
async def test_bytes_on_an_idle_connection_are_nobody_s_answer(stray: bytes, read: bool) -> None:
    """A 408 that a backend sends to an idle connection reaches no caller, be it read already or still in the kernel."""
    with RawBackend(echo) as backend:
        async with connected(backend.url) as connections:
            await connections.exchange("POST", "/", (), b"first")
            backend.peers[0].send(stray)  # delivered when this returns; the loop has not looked yet
            if read:
                await backend.until_gone(0)
            answer = await connections.exchange("POST", "/", (), b"second")
            assert (answer.status, answer.body) == (200, b"second")
            assert len(backend.peers) == 2
            await backend.until_gone(0)


@pytest.mark.parametrize("end", ["close", "reset", "half_close"])
@pytest.mark.parametrize("read", [True, False], ids=["read", "in_the_kernel"])
async def test_a_connection_that_the_backend_closed_while_idle_is_not_used(end: str, read: bool) -> None:
    """A request that may not be repeated does not fail because the backend closed an idle connection."""

    def once(peer: Peer) -> None:
        peer.answer(peer.request().body)
        backend.let("answered")

    with RawBackend(once, echo) as backend:
        async with connected(backend.url) as connections:
            await connections.exchange("POST", "/", (), b"first")
            await asyncio.to_thread(backend.event("answered").wait)
            getattr(backend.peers[0], end)()
            if read:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert (await connections.exchange("POST", "/", (), b"second")).body == b"second"
            assert len(backend.peers) == 2


@pytest.mark.parametrize(
    "extra", [STRAY, STRAY[:20], b"H", b"\0", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"0\r\n\r\n"]
)
@pytest.mark.parametrize(
    "head", [b"Content-Length: 4\r\n\r\nwell", b"Transfer-Encoding: chunked\r\n\r\n4\r\nwell\r\n0\r\n\r\n"]
)
async def test_bytes_behind_an_answer_end_the_connection(extra: bytes, head: bytes) -> None:
    """What a backend sends behind an answer, in one piece with it, is not the begin of the next answer."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n", head, extra)
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            assert (await connections.exchange("POST", "/", (), b"x")).body == b"well"
            assert (await connections.exchange("POST", "/", (), b"second")).body == b"second"
            assert len(backend.peers) == 2
            await backend.until_gone(0)


async def test_answers_that_nobody_asked_for_are_not_collected() -> None:
    """A backend that goes on answering is cut off at once, even while its first answer waits to be read."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(b"well")
        peer.wait("more")
        peer.send(STRAY)
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("GET", "/", ()) as answer:
                backend.let("more")
                await backend.until_gone(0)
                assert await answer.read() == b"well"
            assert (await connections.exchange("POST", "/", (), b"second")).body == b"second"


async def test_a_body_behind_the_answer_to_a_head_request_ends_the_connection() -> None:
    """A backend that answers HEAD with a body cannot shift the answers of later callers."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            answer = await connections.exchange("HEAD", "/", ())
            assert (answer.status, answer.body) == (200, b"")
            assert (b"Content-Length", b"44") in answer.headers
            assert (await connections.exchange("POST", "/", (), b"second")).body == b"second"
            await backend.until_gone(0)


async def test_an_answer_without_body_leaves_the_connection_usable() -> None:
    """HEAD, 204 and 304 cost no connection each."""

    def script(peer: Peer) -> None:
        for status in (b"200 OK", b"204 No Content", b"304 Not Modified", b"200 OK"):
            peer.request()
            length = (
                b""
                if status.startswith(b"204")
                else b"Content-Length: %d\r\n" % (0 if len(backend.requests) == 4 else 9)
            )
            peer.send(b"HTTP/1.1 ", status, b"\r\n", length, b"\r\n")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            for method, status in (("HEAD", 200), ("GET", 204), ("GET", 304), ("GET", 200)):
                answer = await connections.exchange(method, "/", ())
                assert (answer.status, answer.body) == (status, b"")
            assert len(backend.peers) == 1


async def test_interim_answers_are_passed_over() -> None:
    """103 Early Hints and an unasked 100 Continue are not taken for the answer."""

    def script(peer: Peer) -> None:
        while True:
            body = peer.request().body
            peer.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
            peer.answer(body)

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            for body in (b"one", b"two"):
                assert (await connections.exchange("POST", "/", (), body)).body == body
            assert len(backend.peers) == 1


async def test_an_answer_that_ends_the_connection_is_believed() -> None:
    """`Connection: close`, HTTP/1.0 and a body without length end the connection, not the next request."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(
            [
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nend",
                b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nend",
                b"HTTP/1.1 200 OK\r\n\r\nend",
            ][peer.number]
        )
        if peer.number == 2:
            peer.close()
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            for count in (1, 2, 3):
                assert (await connections.exchange("POST", "/", (), b"x")).body == b"end"
                assert len(backend.peers) == count


async def test_an_answer_that_was_not_read_to_its_end_ends_the_connection() -> None:
    """A caller who leaves in the middle of an answer leaves nothing of it to the next caller."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        seen = Seen()
        async with connected(backend.url, seen=seen) as connections:
            async with connections.open("GET", "/", ()) as answer:
                assert repr(answer) == "<Answer 200 open on <Lent <Link busy exchanges=1> reused=False>>"
            await backend.until_gone(0)
            assert (await connections.exchange("POST", "/", (), b"second")).body == b"second"
            assert seen.outcomes == ["abandoned", "answered"]


async def test_an_answer_that_came_whole_need_not_be_read() -> None:
    """A caller who has no use for a body that is there already does not cost a connection."""
    with RawBackend(echo) as backend:
        seen = Seen()
        async with connected(backend.url, seen=seen) as connections:
            async with connections.open("POST", "/", (), b"") as answer:
                assert answer.status == 200
            assert (await connections.exchange("POST", "/", (), b"second")).body == b"second"
            assert len(backend.peers) == 1
            assert seen.outcomes == ["answered", "answered"]


async def test_an_idle_connection_is_dropped_in_time() -> None:
    """A connection idle for longer than `keepalive` is not used: the backend may be closing it this moment."""
    with RawBackend(echo) as backend:
        async with connected(backend.url, keepalive=0.0) as connections:
            for body in (b"one", b"two"):
                assert (await connections.exchange("POST", "/", (), body)).body == body
            assert len(backend.peers) == 2


async def test_a_protocol_switch_nobody_asked_for_is_an_error() -> None:
    """A 101 out of the blue is not relayed as if a caller had asked for it."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\nhello")
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("GET", "/", (), retriable=True)
            assert caught.value.failure is Failure.RESET
            assert caught.value.message == f"{backend.url} switched protocols without being asked to"
            await backend.until_gone(0)
