"""Promises of a request for another protocol, to whoever sends it: once it is agreed, the connection as bytes."""

from __future__ import annotations

import asyncio

import pytest

from proxy.http.headers import switching
from proxy.http.tunnel import End, Tunnel
from proxy.terms import Failure
from proxy.upstream.connections import UpstreamError
from tests.http.test_tunnel import owned
from tests.http.wire import until
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.connected import Seen, connected

ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\nX-A: b\r\n\r\n"


async def test_a_connection_that_is_taken_over_late_has_lost_nothing() -> None:
    """Bytes and an end of writing that come before anybody takes the connection over are there when somebody does."""
    heard: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(ACCEPTED + b"first")
        peer.wait("more")
        peer.send(b" and last")
        peer.half_close()
        said = peer.read(4)
        peer._backend.note(lambda: heard.append(said))
        peer.close()

    with RawBackend(script) as backend:
        seen = Seen()
        async with (
            connected(backend.url, seen=seen) as connections,
            connections.open("GET", "/", switching(b"chat"), switch=True) as answer,
        ):
            assert (answer.status, answer.headers) == (101, ((b"Upgrade", b"chat"), (b"X-A", b"b")))
            ended = asyncio.Event()
            link, told = answer._lent.link, answer._lent.link.eof_received

            def eof_received() -> bool:
                ended.set()
                return told()

            link.eof_received = eof_received  # type: ignore[method-assign]  # its moment is what is waited for
            backend.let("more")
            await ended.wait()
            wire, owner = await owned()
            over = asyncio.create_task(Tunnel(End(owner.transport, owner), answer.take_over()).over())
            assert await wire.rest() == b"first and last"
            await wire.send(b"late")
            await backend.until(lambda: heard == [b"late"])
            wire.close()
            await over
        assert seen.outcomes == ["answered"]


async def test_a_connection_that_is_gone_cannot_be_taken_over() -> None:
    """A backend that agrees and breaks off is one that broke off, not one that said nothing."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(ACCEPTED)
        peer.wait("go")
        peer.reset()

    with RawBackend(script) as backend:
        async with (
            connected(backend.url) as connections,
            connections.open("GET", "/", switching(b"chat"), switch=True) as answer,
        ):
            backend.let("go")
            await until(lambda: answer._lent.link.transport is None)
            with pytest.raises(UpstreamError) as caught:
                answer.take_over()
            assert caught.value.failure is Failure.TRUNCATED
