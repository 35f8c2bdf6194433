"""Promises about bodies that stream: as they come, both ways, in bounded memory, each ending told apart."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.terms import Failure, Timeline
from proxy.upstream import answer as answers
from proxy.upstream.connections import UpstreamError
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.connected import Seen, connected

MIB = 1 << 20


def echo(peer: Peer) -> None:
    while True:
        peer.answer(peer.request().body)


async def pieces(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield text


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_an_answer_is_handed_over_as_it_comes() -> None:
    """The head before the body, and each event of a stream when the backend sends it."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in (b"one", b"two"):
            peer.wait(event.decode())
            peer.send(b"%x\r\n%b\r\n" % (len(event), event))
        peer.wait("end")
        peer.send(b"0\r\n\r\n")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("GET", "/", ()) as answer:
                assert answer.status == 200
                chunks = answer.chunks()
                for event in ("one", "two"):
                    backend.let(event)
                    assert await anext(chunks) == event.encode()
                assert not answer.ended
                backend.let("end")
                assert [chunk async for chunk in chunks] == []
                assert answer.ended
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=1>"


async def test_an_upload_of_known_length_keeps_its_length() -> None:
    """A backend that wants a Content-Length gets the one that the client stated."""
    with RawBackend(echo) as backend:
        async with connected(backend.url) as connections:
            for _ in range(2):
                async with connections.open("POST", "/", (), pieces(b"ab", b"", b"cde"), length=5) as answer:
                    assert await answer.read() == b"abcde"
            assert backend.requests[0].values(b"content-length") == [b"5"]
            assert backend.requests[0].values(b"transfer-encoding") == []
            assert len(backend.peers) == 1


async def test_an_upload_of_unknown_length_is_chunked() -> None:
    """A body whose length nobody knows travels in chunks, and an empty piece does not end it early."""
    with RawBackend(echo) as backend:
        async with connected(backend.url) as connections:
            for _ in range(2):
                async with connections.open("POST", "/", (), pieces(b"ab", b"", b"cde")) as answer:
                    assert await answer.read() == b"abcde"
            assert backend.requests[0].values(b"transfer-encoding") == [b"chunked"]
            assert backend.requests[0].values(b"content-length") == []
            assert len(backend.peers) == 1


async def test_an_upload_arrives_as_it_is_made() -> None:
    """The backend sees the begin of an upload while its end does not exist yet."""
    more = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await more.wait()
        yield b"second"

    def script(peer: Peer) -> None:
        peer.head()
        peer.read(len(b"5\r\nfirst\r\n"))
        backend.let("arrived")
        peer.read(len(b"6\r\nsecond\r\n0\r\n\r\n"))
        peer.answer()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            task = asyncio.create_task(connections.open("POST", "/", (), body()).__aenter__())
            await asyncio.to_thread(backend.event("arrived").wait)
            assert not task.done()
            more.set()
            answer = await task
            assert answer.status == 200
            await answer.close()


@pytest.mark.parametrize(
    ("texts", "fault"), [((b"abc",), "ended before"), ((b"abc", b"defg"), "is longer"), ((b"abcde", b"f"), "is longer")]
)
async def test_an_upload_that_is_not_as_long_as_stated_fails(texts: tuple[bytes, ...], fault: str) -> None:
    """A body of another length than was declared is never completed, cut or run into the next request."""

    def script(peer: Peer) -> None:
        peer.head()
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            with pytest.raises(ValueError, match=fault):
                async with connections.open("POST", "/", (), pieces(*texts), length=5):
                    pass
            await backend.until_gone(0)
            assert backend.peers[0].received <= 5
            assert (await connections.exchange("POST", "/", (), b"next")).body == b"next"


async def test_an_upload_that_breaks_off_raises_its_own_error() -> None:
    """When the client leaves in the middle of its upload, the caller sees that, and the backend no end."""

    class ClientLeft(Exception):
        pass

    async def body() -> AsyncIterator[bytes]:
        yield b"part"
        raise ClientLeft

    def script(peer: Peer) -> None:
        peer.head()
        peer.until_gone()

    seen = Seen()
    with RawBackend(script, echo) as backend:
        async with connected(backend.url, seen=seen) as connections:
            with pytest.raises(ClientLeft):
                async with connections.open("POST", "/", (), body(), retriable=True):
                    pass
            await backend.until_gone(0)
            assert seen.outcomes == ["abandoned"]
            assert (await connections.exchange("POST", "/", (), b"next")).body == b"next"


@pytest.mark.parametrize("whole", [True, False], ids=["bytes", "stream"])
@pytest.mark.parametrize("end", ["stay", "half_close", "close"])
async def test_a_refusal_before_the_end_of_an_upload_reaches_the_caller(whole: bool, end: str) -> None:
    """A backend that answers 413 to the begin of an upload is heard, whatever it does to its connection then."""
    pulled = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        while True:
            pulled += 1
            yield b"x" * 65536

    def script(peer: Peer) -> None:
        peer.head()
        peer.answer(b"too large", status=b"413 Payload Too Large")
        if end != "stay":
            getattr(peer, end)()
        if end != "close":
            peer.wait("heard")  # reads nothing until then: the whole upload must not get through before its refusal
            peer.until_gone()

    timeline = Timeline()
    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            body = b"x" * (64 * MIB) if whole else endless()  # more than the kernel takes of it
            async with connections.open("POST", "/", (), body, timeline=timeline) as answer:
                assert answer.status == 413
                stopped_at = pulled
                assert await answer.read() == b"too large"
                await asyncio.sleep(0)
                assert pulled == stopped_at
            backend.let("heard")
            assert timeline.request_written != timeline.request_written  # nan: it never was
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=0>"
            assert (await connections.exchange("POST", "/", (), b"next")).body == b"next"


async def test_a_refusal_survives_the_reset_behind_it() -> None:
    """A refusal that lies unread when the next piece of the upload is reset still reaches the caller."""

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        yield b"x" * MIB
        backend.let("refuse")
        backend.event("refused").wait()  # the loop stands still: the refusal and the reset are in the kernel
        while True:
            yield b"x" * MIB

    def script(peer: Peer) -> None:
        peer.head()
        peer.wait("refuse")
        peer.answer(b"too large", status=b"413 Payload Too Large")
        peer.close()
        backend.let("refused")

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("POST", "/", (), body()) as answer:
                assert answer.status == 413
                assert await answer.read() == b"too large"
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=0>"


async def test_an_answer_may_run_beside_its_upload() -> None:
    """A backend that transforms a stream gets all of it: an early success does not cut the upload."""
    got = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await got.wait()
        yield b"second"

    def script(peer: Peer) -> None:
        peer.head()
        for text in (b"first", b"second"):
            peer.read(len(text))
            if text == b"first":
                peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            peer.send(b"%x\r\n%b\r\n" % (len(text), text.upper()))
        peer.send(b"0\r\n\r\n")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("POST", "/", (), body(), length=11) as answer:
                chunks = answer.chunks()
                assert await anext(chunks) == b"FIRST"
                got.set()
                assert b"".join([chunk async for chunk in chunks]) == b"SECOND"
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=1>"


async def test_a_success_that_ends_before_its_upload_ends_the_connection() -> None:
    """What is left of an upload is stopped with its answer and never precedes another request."""
    never = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"begin"
        await never.wait()

    def script(peer: Peer) -> None:
        peer.head()
        peer.answer(b"enough")
        peer.until_gone()

    with RawBackend(script, echo) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("POST", "/", (), body(), length=100) as answer:
                assert await answer.read() == b"enough"
            await backend.until_gone(0)
            assert (await connections.exchange("POST", "/", (), b"next")).body == b"next"


@pytest.mark.parametrize("at_once", [answers.AT_ONCE, 1 << 40], ids=["in_pieces", "at_once"])
async def test_an_answer_that_outruns_its_request_ends_the_connection(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a request whose answer has come already is not sent before another request."""

    def script(peer: Peer) -> None:
        peer.head()
        peer.answer(b"enough")
        peer.wait("the end")

    monkeypatch.setattr(answers, "AT_ONCE", at_once)
    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            assert (await connections.exchange("POST", "/", (), b"x" * (16 * MIB))).body == b"enough"
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=0>"


async def test_a_body_that_dies_under_an_upload_is_truncated() -> None:
    """An answer that breaks off while its upload still runs is an error for whoever reads it."""
    never = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"begin"
        await never.wait()

    def script(peer: Peer) -> None:
        peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        peer.wait("die")
        peer.reset()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("POST", "/", (), body()) as answer:
                chunks = answer.chunks()
                assert await anext(chunks) == b"part"
                backend.let("die")
                with pytest.raises(UpstreamError) as caught:
                    await anext(chunks)
            assert caught.value.failure is Failure.TRUNCATED


async def test_256_mib_each_way_do_not_grow_memory() -> None:
    """A large upload and a large answer pass through without being held: less than 32 MiB at any moment."""
    size, piece = 256 * MIB, b"\xa5" * (256 * 1024)
    before = most = resident()

    def script(peer: Peer) -> None:
        peer.head()
        peer.swallow(size)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            peer.send(piece)
        peer.until_gone()

    async def body() -> AsyncIterator[bytes]:
        nonlocal most
        for number in range(size // len(piece)):
            if number % 64 == 0:
                most = max(most, resident())
            yield piece

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            async with connections.open("POST", "/", (), body(), length=size) as answer:
                came = reads = 0
                async for chunk in answer.chunks():
                    came += len(chunk)
                    reads += 1
                    if reads % 64 == 0:
                        most = max(most, resident())
            assert came == size
            assert most - before < 32 * MIB
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=1>"


async def test_a_slow_reader_holds_the_backend_back() -> None:
    """A client that does not read stops the backend, not Forebay's memory: it can be at most some MiB ahead."""
    size, piece = 256 * MIB, b"\xa5" * (256 * 1024)
    sent = 0

    def script(peer: Peer) -> None:
        nonlocal sent
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            peer.send(piece)
            sent += len(piece)

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections, connections.open("GET", "/", ()) as answer:
            await anext(answer.chunks())
            before = -1
            while sent != before:  # until the backend has come to a stand
                before = sent
                await asyncio.to_thread(backend.event("nothing").wait, 0.05)
            assert sent < 32 * MIB
