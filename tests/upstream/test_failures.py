"""Promises about exchanges that fail: each failure has its name, and a second try happens only where it is safe."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from aiohttp import ClientPayloadError

from proxy.settings import Seconds
from proxy.terms import Failure
from proxy.upstream import answer as answers
from proxy.upstream.connections import UpstreamError
from proxy.upstream.retry_budget import RetryBudget
from proxy.upstream.settings import Timeouts
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.connected import Seen, connected

SHORT = Seconds(0.02)


def echo(peer: Peer) -> None:
    while True:
        peer.answer(peer.request().body)


def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose connections never come about: its queue is full and nobody accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            waiting.append(client)
        try:
            yield port
        finally:
            for client in waiting:
                client.close()


async def test_a_dead_port_is_a_failure_to_connect() -> None:
    """An operator reads which target refused the connection."""
    port = dead_port()
    seen = Seen()
    async with connected(f"http://127.0.0.1:{port}", seen=seen) as connections:
        with pytest.raises(UpstreamError) as caught:
            await connections.exchange("POST", "/", (), b"x")
        assert (caught.value.failure, caught.value.sent) == (Failure.CONNECT, False)
        assert str(caught.value) == f"cannot connect to http://127.0.0.1:{port}: connection refused"
        assert repr(caught.value) == f"<UpstreamError connect: {caught.value}>"
        assert seen.outcomes == ["connect"]
        assert seen.retries == []


async def test_a_name_that_does_not_resolve_is_a_failure_to_connect() -> None:
    """An operator reads that the name is wrong, not that the network is."""
    async with connected("http://no-such-host.invalid:8000") as connections:
        with pytest.raises(UpstreamError) as caught:
            await connections.exchange("GET", "/", ())
        assert caught.value.failure is Failure.CONNECT
        assert str(caught.value) == "cannot connect to http://no-such-host.invalid:8000: its name does not resolve"


async def test_tls_to_a_plain_port_is_a_failure_to_connect() -> None:
    """`https://` before a backend that speaks plain HTTP is named as such."""

    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(f"https://127.0.0.1:{backend.port}") as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("GET", "/", ())
            assert caught.value.failure is Failure.CONNECT
            assert str(caught.value) == f"cannot connect to https://127.0.0.1:{backend.port}: no TLS came about with it"


async def test_a_connection_that_does_not_come_about_in_time_is_a_timeout() -> None:
    """A backend behind a black hole costs `timeout.connect`, no more, and no second try."""
    seen = Seen()
    with full_backlog() as port:
        async with connected(f"http://127.0.0.1:{port}", limits=Timeouts(connect=SHORT), seen=seen) as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("GET", "/", (), retriable=True)
            assert (caught.value.failure, caught.value.sent) == (Failure.TIMEOUT, False)
            assert str(caught.value) == f"cannot connect to http://127.0.0.1:{port}: no connection within 0.02 s"
            assert seen.retries == []


NO_HEAD = "closed the connection before a whole head of an answer"
NOT_HTTP = "sent what is not HTTP/1.1"


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"", NO_HEAD),
        (b"HTTP/1.1 20", NO_HEAD),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Half: ", NO_HEAD),
        (b"HTTP/1.1 100 Continue\r\n\r\n", NO_HEAD),
        (b"SSH-2.0-OpenSSH secret\r\n", NOT_HTTP),
        (b"\x15\x03\x01\0\2\2\x46", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nX: \0secret\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nLarge: " + b"secret" * 50_000 + b"\r\n\r\n", "sent a head above the limits"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: secret\r\n" * 2000 + b"\r\n", NOT_HTTP),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "sent a Transfer-Encoding that it was not asked for",
        ),
    ],
)
async def test_no_whole_head_is_a_reset(sent: bytes, cause: str, end: str) -> None:
    """A backend that dies before it answered, or answers no HTTP, is named, and what it sent is not quoted."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(sent)
        if cause is NO_HEAD:
            peer.wait("die")
            getattr(peer, end)()
        else:
            peer.until_gone()

    seen = Seen()
    with RawBackend(script) as backend:
        backend.let("die")
        async with connected(backend.url, seen=seen) as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("GET", "/", (), retriable=True)
            assert (caught.value.failure, caught.value.sent) == (Failure.RESET, True)
            assert str(caught.value) == f"{backend.url} {cause}"
            assert seen.outcomes == ["reset"]
            assert seen.retries == []
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle=0>"


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"Content-Length: 9\r\n\r\n", b"part"),
        (b"Content-Length: 9\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\npart\r\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"9\r\npart"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\npart\r\n0\r\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b""),
    ],
)
async def test_a_body_that_does_not_come_whole_is_truncated(head: bytes, part: bytes, end: str) -> None:
    """What came is handed over, and then an error: a truncation never looks like an end."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n", head, part)
        peer.wait("die")
        getattr(peer, end)()

    seen = Seen()
    with RawBackend(script) as backend:
        async with connected(backend.url, seen=seen) as connections:
            came = b""
            with pytest.raises(UpstreamError) as caught:
                async with connections.open("GET", "/", (), retriable=True) as answer:
                    assert answer.status == 200
                    backend.let("die")
                    async for chunk in answer.chunks():
                        came += chunk
            assert came == (b"part" if b"part" in part else b"")
            assert caught.value.failure is Failure.TRUNCATED
            assert str(caught.value) == f"the answer of {backend.url} broke off"
            assert seen.outcomes == ["truncated"]
            assert seen.retries == []


async def test_what_came_before_a_truncation_is_handed_over_by_a_late_reader_too() -> None:
    """The last events of a stream that died are not lost because nobody had asked for them yet."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
        peer.wait("die")
        peer.reset()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections, connections.open("GET", "/", ()) as answer:
            backend.let("die")
            assert answer._payload is not None
            with pytest.raises(ClientPayloadError):
                await answer._payload.wait_eof()
            chunks = answer.chunks()
            assert await anext(chunks) == b"part"
            with pytest.raises(UpstreamError):
                await anext(chunks)


async def test_a_malformed_chunk_is_a_truncation() -> None:
    """A body that stops being HTTP in its middle ends in an error, not in a caller who waits for ever."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
        peer.wait("go on")
        peer.send(b"secret\r\n")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections, connections.open("GET", "/", ()) as answer:
            chunks = answer.chunks()
            assert await anext(chunks) == b"part"
            backend.let("go on")
            with pytest.raises(UpstreamError) as caught:
                await anext(chunks)
            assert (caught.value.failure, str(caught.value)) == (
                Failure.TRUNCATED,
                f"the answer of {backend.url} broke off",
            )


async def test_a_reset_is_not_the_end_of_a_body_without_length() -> None:
    """Where only the end of the connection ends a body, a reset is a truncation and a close is an end."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\npart")
        peer.wait("die")
        (peer.close if peer.number == 0 else peer.reset)()

    with RawBackend(script) as backend:
        async with (
            connected(backend.url) as connections,
            connections.open("GET", "/", ()) as whole,
            connections.open("GET", "/", ()) as cut,
        ):
            chunks = whole.chunks(), cut.chunks()
            assert [await anext(chunks[0]), await anext(chunks[1])] == [b"part", b"part"]
            backend.let("die")
            assert [chunk async for chunk in chunks[0]] == []
            with pytest.raises(UpstreamError) as caught:
                await anext(chunks[1])
            assert caught.value.failure is Failure.TRUNCATED


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("stale", [1, 3])
async def test_a_reused_connection_that_died_is_replaced_once(end: str, stale: int) -> None:
    """A caller does not see that a kept connection was just being closed, however many of them there were."""

    def script(peer: Peer) -> None:
        if peer.number >= stale:
            echo(peer)
        peer.head()
        peer.wait("all")
        peer.answer()
        peer.request()
        getattr(peer, end)()

    seen = Seen()
    with RawBackend(script) as backend:
        async with connected(backend.url, seen=seen) as connections:
            first = [asyncio.create_task(connections.exchange("GET", "/", ())) for _ in range(stale)]
            await backend.until(lambda: len(backend.peers) == stale)
            backend.let("all")
            await asyncio.gather(*first)
            assert repr(connections) == f"<Connections {backend.url} busy=0 idle={stale}>"
            assert (await connections.exchange("POST", "/", (), b"second", retriable=True)).body == b"second"
            assert seen.retries == ["reused"]
            assert len(backend.peers) == stale + 1


@pytest.mark.parametrize(
    ("retriable", "sent", "budget"),
    [(False, b"", RetryBudget()), (True, b"HTTP/1.1 2", RetryBudget()), (True, b"", RetryBudget(share=0.0, minimum=0))],
    ids=["not_retriable", "a_byte_came", "no_budget"],
)
async def test_what_may_have_been_computed_is_not_sent_again(retriable: bool, sent: bytes, budget: RetryBudget) -> None:
    """No second try where the caller did not allow it, where the answer had begun, or where the budget is spent."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer()
        peer.request()
        peer.send(sent)
        peer.close()

    seen = Seen()
    with RawBackend(script, echo) as backend:
        async with connected(backend.url, seen=seen, budget=budget) as connections:
            await connections.exchange("POST", "/", (), b"first")
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("POST", "/", (), b"second", retriable=retriable)
            assert caught.value.failure is Failure.RESET
            assert seen.retries == []
            assert len(backend.peers) == 1


async def test_a_refused_connection_is_tried_once_more() -> None:
    """One refusal, at the moment a backend restarts, does not reach the caller; a second one does."""
    seen = Seen()
    port = dead_port()
    async with connected(f"http://127.0.0.1:{port}", seen=seen) as connections:
        tries: list[UpstreamError | None] = []
        connections.watch(tries.append)
        with pytest.raises(UpstreamError) as caught:
            await connections.exchange("POST", "/", (), b"x", retriable=True)
        assert caught.value.failure is Failure.CONNECT
        assert seen.retries == ["connect"]
        assert len(tries) == 2
        assert seen.outcomes == ["connect"]


async def test_a_body_that_was_begun_is_not_sent_again() -> None:
    """A streamed upload whose connection died is not sent a second time without its begin."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer()
        peer.head()
        peer.close()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"

    seen = Seen()
    with RawBackend(script, echo) as backend:
        async with connected(backend.url, seen=seen) as connections:
            await connections.exchange("POST", "/", (), b"first")
            with pytest.raises(UpstreamError) as caught:
                async with connections.open("POST", "/", (), body(), retriable=True):
                    pass
            assert caught.value.failure is Failure.RESET
            assert seen.retries == []


async def test_a_silent_backend_is_a_timeout_where_one_is_configured() -> None:
    """`timeout.first_byte` counts from the end of the request to the head of the answer."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.until_gone()

    seen = Seen()
    with RawBackend(script) as backend:
        async with connected(backend.url, limits=Timeouts(first_byte=SHORT), seen=seen) as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("POST", "/", (), b"x" * (2 << 20), retriable=True)
            assert caught.value.failure is Failure.TIMEOUT
            assert str(caught.value) == f"{backend.url} did not begin to answer within 0.02 s"
            assert seen.outcomes == ["timeout"]
            await backend.until_gone(0)


async def test_a_slow_upload_does_not_count_against_the_first_byte() -> None:
    """A client that takes long over its upload does not use up the backend's time to answer."""
    more = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"a"
        await more.wait()
        yield b"b"

    with RawBackend(echo) as backend:
        async with connected(backend.url, limits=Timeouts(first_byte=Seconds(0.25))) as connections:
            asyncio.get_running_loop().call_later(0.3, more.set)
            async with connections.open("POST", "/", (), body()) as answer:
                assert await answer.read() == b"ab"


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart"])
async def test_a_whole_exchange_ends_in_time_where_that_is_configured(sent: bytes) -> None:
    """`timeout.total` ends a wait for the head as well as a body that trickles."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(sent)
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url, limits=Timeouts(total=SHORT, idle=Seconds(60))) as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("GET", "/", ())
            assert caught.value.failure is Failure.TIMEOUT
            cause = f"the answer of {backend.url} did not end" if sent else f"{backend.url} gave no answer"
            assert str(caught.value) == f"{cause} within 0.02 s in all"
            await backend.until_gone(0)


async def test_silence_within_an_answer_is_a_timeout_where_one_is_configured() -> None:
    """`timeout.idle` ends an answer that stopped in its middle; the wait for its head is not silence."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.wait("late")
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url, limits=Timeouts(idle=SHORT)) as connections:
            asyncio.get_running_loop().call_later(0.05, backend.let, "late")
            async with connections.open("GET", "/", ()) as answer:
                chunks = answer.chunks()
                assert await anext(chunks) == b"part"
                with pytest.raises(UpstreamError) as caught:
                    await anext(chunks)
            assert caught.value.failure is Failure.TIMEOUT
            assert str(caught.value) == f"the answer of {backend.url} went silent for 0.02 s"


async def test_an_upload_that_is_not_taken_is_a_timeout_where_one_is_configured() -> None:
    """`timeout.idle` also ends an upload to a backend that has stopped reading."""

    def script(peer: Peer) -> None:
        peer.head()
        peer.wait("the end")

    with RawBackend(script) as backend:
        async with connected(backend.url, limits=Timeouts(idle=SHORT)) as connections:
            with pytest.raises(UpstreamError) as caught:
                await connections.exchange("POST", "/", (), b"x" * (32 << 20))
            assert caught.value.failure is Failure.TIMEOUT
            assert str(caught.value) == f"{backend.url} took nothing of the request for 0.02 s"


@pytest.mark.parametrize("when", ["connecting", "waiting", "uploading", "reading"])
async def test_a_caller_who_is_cancelled_closes_the_connection(when: str) -> None:
    """A caller who leaves stops the backend's work and leaves nothing behind on a connection."""

    def script(peer: Peer) -> None:
        if when == "uploading":
            peer.head()
            backend.let("there")
            peer.wait("look")
            peer.until_gone()
        peer.request()
        if when == "reading":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        backend.let("there")
        peer.until_gone()

    seen = Seen()
    with RawBackend(script, echo) as backend, full_backlog() as nowhere:
        url = f"http://127.0.0.1:{nowhere}" if when == "connecting" else backend.url
        body = b"x" * (32 << 20) if when == "uploading" else b"x"
        async with connected(url, seen=seen) as connections:
            task = asyncio.create_task(connections.exchange("POST", "/", (), body))
            if when == "connecting":
                await asyncio.sleep(0)
            else:
                await asyncio.to_thread(backend.event("there").wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            backend.let("look")
            if when != "connecting":
                await backend.until_gone(0)
            assert repr(connections) == f"<Connections {url} busy=0 idle=0>"
            assert seen.outcomes == ["abandoned"]


async def test_what_is_left_of_a_cancelled_request_is_not_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose caller has left stops in the middle; its rest occupies neither memory nor the backend."""
    size = 16 << 20

    def script(peer: Peer) -> None:
        peer.head()
        backend.let("there")
        peer.wait("look")
        peer.until_gone()

    monkeypatch.setattr(answers, "AT_ONCE", size)
    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            task = asyncio.create_task(connections.exchange("POST", "/", (), b"x" * size))
            await asyncio.to_thread(backend.event("there").wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            backend.let("look")
            await backend.until_gone(0)
            assert backend.peers[0].received < size


async def test_closing_everything_wakes_whoever_waits() -> None:
    """At the end of the process no caller hangs on an answer that nobody reads any more."""

    def script(peer: Peer) -> None:
        peer.request()
        if peer.number == 1:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        peer.until_gone()

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            waiting = asyncio.create_task(connections.exchange("GET", "/", ()))
            await backend.until(lambda: len(backend.requests) == 1)
            async with connections.open("GET", "/", ()) as answer:
                chunks = answer.chunks()
                assert await anext(chunks) == b"part"
                reading = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
                await connections.aclose()
                with pytest.raises(UpstreamError) as caught:
                    await reading
                assert caught.value.failure is Failure.TRUNCATED
            with pytest.raises(UpstreamError) as caught:
                await waiting
            assert caught.value.failure is Failure.RESET
    gc.collect()  # a connection that was forgotten would warn now
