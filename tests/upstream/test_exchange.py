"""Promises about one exchange: what the backend gets is what was sent, what comes back is what it wrote."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from proxy.terms import Exchange, Timeline
from proxy.upstream.connections import Connections
from proxy.upstream.settings import UpstreamSettings
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.connected import Seen, connected


def plain(peer: Peer) -> None:
    while True:
        peer.request()
        peer.answer(b"fine")


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "//",
        "//a//b",
        "/a%2Fb",
        "/%7euser",
        "/a?",
        "/?a=b&a=b",
        "/a?b=%20+c",
        "/a?b?c",
        "/;x=1",
        "/v1/%E2%82%AC",
        "/a\udcff",
        "*",
    ],
)
async def test_the_request_target_arrives_byte_for_byte(target: str) -> None:
    """No path or query is decoded, sorted, shortened or completed on its way."""
    with RawBackend(plain) as backend:
        async with connected(backend.url) as connections:
            await connections.exchange("GET", target, ())
            assert backend.requests[0].line == b"GET %b HTTP/1.1" % target.encode("utf-8", "surrogateescape")


async def test_fields_arrive_as_they_were_written_and_none_is_added() -> None:
    """Order, spelling and repetition of a caller's fields stay; nothing is sent in the caller's name."""
    headers = (
        (b"Host", b"model.example"),
        (b"X-foo", b"1"),
        (b"x-FOO", b"2"),
        (b"x-FOO", b"2"),
        (b"User-Agent", b"mine"),
        (b"Latin", b"caf\xe9"),
        (b"Empty", b""),
    )
    with RawBackend(plain) as backend:
        async with connected(backend.url) as connections:
            await connections.exchange("GET", "/", headers)
            assert tuple(backend.requests[0].fields) == headers


async def test_a_host_is_named_where_the_caller_s_fields_name_none() -> None:
    """Every request carries the Host that HTTP/1.1 demands."""
    with RawBackend(plain) as backend:
        async with connected(backend.url) as connections:
            await connections.exchange("GET", "/", ())
            assert backend.requests[0].fields == [(b"Host", connections.host)]
            assert connections.host == b"127.0.0.1:%d" % backend.port


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"12345", [b"5"]),
        ("POST", b"", [b"0"]),
        ("PUT", b"", [b"0"]),
        ("GET", b"", []),
        ("GET", b"1", [b"1"]),
        ("DELETE", b"", []),
    ],
)
async def test_a_body_is_framed_anew(method: str, body: bytes, length: list[bytes]) -> None:
    """What a caller's own connection said about lengths and chunks never frames ours."""
    lies = ((b"content-length", b"99"), (b"Transfer-Encoding", b"chunked"))
    with RawBackend(plain) as backend:
        async with connected(backend.url) as connections:
            await connections.exchange(method, "/", lies, body)
            received = backend.requests[0]
            assert received.body == body
            assert received.values(b"content-length") == length
            assert received.values(b"transfer-encoding") == []


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/a\r\nX: y", ()),
        ("/a b", ()),
        ("/\0", ()),
        ("/", ((b"X", b"1\r\nY: 2"),)),
        ("/", ((b"X", b"1\nY: 2"),)),
        ("/", ((b"X\r", b"1"),)),
        ("/", ((b"X", b"\0"),)),
    ],
)
async def test_a_line_break_cannot_make_two_requests_of_one(
    target: str, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    """A target or field with a line break in it is refused before anything is sent."""
    with RawBackend(plain) as backend:
        async with connected(backend.url) as connections:
            with pytest.raises(ValueError, match="line break"):
                await connections.exchange("GET", target, headers)
            assert backend.peers == []


async def test_an_answer_comes_back_as_the_backend_wrote_it() -> None:
    """Status, reason, order, spelling and repetition of fields and the body's bytes are the backend's own."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(
            b"HTTP/1.1 299 Caf\xc3\xa9 au lait\r\nx-B: 1\r\nX-a: 2\r\nx-b: 3\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"Content-Encoding: gzip\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive, x-secret\r\nX-Secret: hop\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nnot\r\n5;ext=1\r\n gzip\r\n0\r\nTrailer: x\r\n\r\n"
        )

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            assert await connections.exchange("POST", "/", (), b"x") == Exchange(
                299,
                b"Caf\xc3\xa9 au lait",
                (
                    (b"x-B", b"1"),
                    (b"X-a", b"2"),
                    (b"x-b", b"3"),
                    (b"Set-Cookie", b"a=1"),
                    (b"Set-Cookie", b"b=2"),
                    (b"Content-Encoding", b"gzip"),
                ),
                b"not gzip",
            )


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"303 See Other", b"307 Temporary", b"308 Permanent"])
async def test_redirects_and_cookies_are_the_caller_s(status: bytes) -> None:
    """A redirect is not followed and a cookie is not kept: both belong to whoever asked."""

    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.answer(status=status, fields=b"Location: /elsewhere\r\nSet-Cookie: a=1; Path=/\r\n")

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            assert (await connections.exchange("GET", "/", ())).status == int(status[:3])
            await connections.exchange("GET", "/", ())
            assert [received.line for received in backend.requests] == [b"GET / HTTP/1.1"] * 2
            assert backend.requests[1].values(b"cookie") == []


async def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar talks to its backend, whatever HTTP_PROXY says."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with RawBackend(plain) as backend:
        async with connected(backend.url) as connections:
            assert (await connections.exchange("GET", "/", ())).body == b"fine"


async def test_a_large_head_is_taken() -> None:
    """A field of 200 KiB and 500 fields are no error: backends put tokens and debug data there."""
    value = b"v" * (200 * 1024)
    fields = b"".join(b"X-%d: y\r\n" % number for number in range(500)) + b"Large: " + value + b"\r\n"

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(fields=fields)

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            answer = await connections.exchange("GET", "/", ())
            assert (b"Large", value) in answer.headers
            assert len(answer.headers) == 502


async def test_a_large_body_travels_whole_both_ways() -> None:
    """16 MiB in one request and in its answer arrive unchanged, and the connection stays usable."""
    body = bytes(range(256)) * (64 * 1024)

    def script(peer: Peer) -> None:
        while True:
            peer.answer(peer.request().body)

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            for _ in range(2):
                assert (await connections.exchange("POST", "/", (), body)).body == body
            assert backend.requests[1].values(b"content-length") == [b"%d" % len(body)]
            assert len(backend.peers) == 1


@pytest.mark.parametrize("body", [b"small", b"x" * (3 << 20)], ids=["small", "large"])
async def test_the_moments_of_an_exchange_are_recorded_in_order(body: bytes) -> None:
    """Whoever reads the timings sees connection, request, head and end of the answer where they happened."""
    timeline = Timeline()

    def script(peer: Peer) -> None:
        peer.request()
        peer.wait("head")
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        peer.wait("body")
        peer.send(b"body")

    seen = Seen()
    with RawBackend(script) as backend:
        async with connected(backend.url, seen=seen) as connections:
            assert math.isnan(timeline.connected)
            before = time.monotonic()
            backend.let("head")
            async with connections.open("POST", "/", (), body, timeline=timeline) as answer:
                assert timeline.connected <= timeline.request_written <= timeline.upstream_headers
                assert math.isnan(timeline.upstream_end)
                backend.let("body")
                assert await answer.read() == b"body"
                assert timeline.upstream_end >= timeline.upstream_headers
                await asyncio.sleep(0.01)  # a caller who takes its time does not make the exchange longer
            assert len(seen.exchanges) == len(seen.ttfbs) == len(seen.pool_waits) == 1
            target, seconds, outcome = seen.exchanges[0]
            assert (target, outcome) == (backend.url, "answered")
            assert timeline.upstream_end - timeline.connected <= seconds <= timeline.upstream_end - before
            assert seen.ttfbs[0] == timeline.upstream_headers - timeline.connected


async def test_questions_of_forebay_s_own_carry_nobody_s_credentials_and_are_not_counted() -> None:
    """What Forebay asks for itself is sent in its own name and does not distort the figures of callers."""
    seen = Seen()
    with RawBackend(plain) as backend:
        async with connected(backend.url, seen=seen) as connections:
            assert (await connections.ask("/v2", within=5.0)).body == b"fine"
            assert backend.requests[0].line == b"GET /v2 HTTP/1.1"
            assert [name for name, _ in backend.requests[0].fields] == [b"Host", b"Accept", b"User-Agent"]
            assert seen == Seen()


@pytest.mark.parametrize("targets", [(), ("http://127.0.0.1:1", "http://127.0.0.1:2")])
def test_there_is_exactly_one_target_for_now(targets: tuple[str, ...]) -> None:
    """Several targets are refused, not silently cut down to one."""
    with pytest.raises(ValueError, match="exactly one address"):
        Connections(UpstreamSettings(targets=targets))
