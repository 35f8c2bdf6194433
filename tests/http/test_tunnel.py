"""Promises of two joined connections: bytes, back-pressure and ends pass from one to the other, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest
from aiohttp import web

from proxy.http import peer, tunnel
from proxy.http.tunnel import End, Tunnel
from proxy.http.upgrade import HeadEnds, Switched, protocols
from tests.http.conftest import Serve
from tests.http.test_connection import connections
from tests.http.wire import PATIENCE, Wire, until

MIB = 2**20


class Owner(asyncio.Protocol):
    """Whoever had the connection before."""

    def __init__(self) -> None:
        self.lost: list[BaseException | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)


@dataclass(slots=True)
class Joined:
    """left, right: the peers of the two ends; owners in the same order."""

    left: Wire
    right: Wire
    ends: tuple[End, End]
    owners: tuple[Owner, Owner]
    over: asyncio.Task[None]


def unread(wire: Wire) -> int:
    """Bytes that its kernel holds for it."""
    sock = wire.writer.get_extra_info("socket")
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


async def owned(receive_buffer: int | None = None) -> tuple[Wire, Owner]:
    """A connection: its peer, and the protocol at our side of it."""
    loop = asyncio.get_running_loop()
    owner = Owner()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = await Wire.connect(listener.getsockname()[:2], receive_buffer=receive_buffer)
        sock, _ = listener.accept()
    sock.setblocking(False)
    await loop.connect_accepted_socket(lambda: owner, sock)
    return wire, owner


@asynccontextmanager
async def joined(
    early: tuple[bytes, bytes] = (b"", b""), *, receive_buffer: int | None = None
) -> AsyncIterator[Joined]:
    """receive_buffer: of the right peer, in bytes."""
    (left, one), (right, two) = await owned(), await owned(receive_buffer)
    ends = End(one.transport, one, early=early[0]), End(two.transport, two, early=early[1])
    over = asyncio.create_task(Tunnel(*ends).over())
    try:
        yield Joined(left, right, ends, (one, two), over)
    finally:
        over.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await over
        for wire in (left, right):
            wire.close()


async def test_bytes_pass_both_ways_behind_what_came_early() -> None:
    """What had come before the two were joined is passed first, then whatever comes."""
    async with joined((b"early left ", b"early right ")) as both:
        await both.left.send(b"from left")
        await both.right.send(b"from right")
        assert await both.right.read(20) == b"early left from left"
        assert await both.left.read(22) == b"early right from right"


async def test_each_way_ends_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One peer ends writing, and still reads to the other's end, however late; then both connections are over."""
    looks: list[bool] = []

    def look(sock: socket.socket) -> bool:
        looks.append(is_gone(sock))
        return looks[-1]

    is_gone = peer.is_gone
    monkeypatch.setattr(peer, "is_gone", look)
    monkeypatch.setattr(tunnel, "LOOK_AFTER", 0.001)
    async with joined() as both:
        await both.left.send(b"last")
        both.left.end_writing()
        assert await both.right.rest() == b"last"
        await until(lambda: len(looks) > 3)
        assert not any(looks)
        await both.right.send(b"x" * MIB)
        assert await both.left.read(MIB) == b"x" * MIB
        assert not both.over.done()
        assert repr(both.ends[0]) == "<End open ended unsent=0>"
        both.right.end_writing()
        assert await both.left.rest() == b""
        await both.over
        assert [owner.lost for owner in both.owners] == [[None], [None]]
        assert [end.vanished for end in both.ends] == [False, False]
        assert repr(both.ends[0]) == "<End gone ended unsent=0>"


async def test_a_reset_passes_behind_the_bytes_before_it() -> None:
    """A peer that breaks off makes the other's connection break, once that one has taken all that came before."""
    size = 48 * 1024
    async with joined(receive_buffer=4096) as both:
        both.right.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        await both.left.send(b"x" * size)
        await until(lambda: both.ends[1]._untaken() + unread(both.right) == size)
        assert both.ends[1]._untaken() > size // 2
        both.left.reset()
        await until(lambda: both.ends[0].vanished)
        both.right.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        assert await both.right.read(size) == b"x" * size
        with pytest.raises(ConnectionResetError):
            await both.right.rest()
        await both.over
        assert [end.vanished for end in both.ends] == [True, False]


async def test_who_takes_nothing_of_what_came_early_holds_the_other_back() -> None:
    """Where what came early fills the way already, nothing more is read until it has been taken."""
    async with joined((bytes(8 * MIB), b"")) as both:
        assert "held" in repr(both.ends[0])
        await both.left.send(b"then")
        assert await both.right.read(8 * MIB + 4) == bytes(8 * MIB) + b"then"
        assert "held" not in repr(both.ends[0])


async def test_who_does_not_read_holds_the_other_back() -> None:
    """Only a buffer of what a peer does not read is held; when it reads, all of it comes."""
    async with joined() as both:
        left, right = both.ends
        both.right.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        block = bytes(range(256)) * 4096
        for _ in range(32):
            both.left.writer.write(block)
        await until(lambda: "held" in repr(left))
        assert 0 < right._transport.get_write_buffer_size() < MIB
        assert right.full
        await both.right.send(b"the other way is open")
        assert await both.left.read(21) == b"the other way is open"
        both.right.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        for _ in range(32):
            assert await both.right.read(MIB) == block
        await both.left.send(b"on")
        assert await both.right.read(2) == b"on"


async def test_a_peer_that_is_held_back_or_has_ended_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is not being read tells nothing of its loss, so it is looked after."""
    monkeypatch.setattr(tunnel, "LOOK_AFTER", 0.01)
    async with joined() as both:
        both.left.end_writing()
        assert await both.right.rest() == b""
        both.left.reset()
        await until(lambda: both.ends[0].vanished)
        await both.over
    async with joined() as both:
        both.right.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        both.left.writer.write(b"x" * 32 * MIB)
        await until(lambda: "held" in repr(both.ends[0]))
        both.left.reset()
        await until(lambda: both.ends[0].vanished)
        both.right.close()
        await both.over


async def test_a_peer_that_takes_nothing_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the other end has gone, who does not take the rest within `LINGER` is reset."""
    monkeypatch.setattr(tunnel, "LINGER", 0.1)
    async with joined() as both:
        both.right.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        both.left.writer.write(b"x" * 32 * MIB)
        await until(lambda: "held" in repr(both.ends[0]))
        both.ends[0].drop()
        await both.over


async def test_a_peer_that_does_not_let_go_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the other end has gone in order, who has all and still does not end has had its time after `LINGER`."""
    monkeypatch.setattr(tunnel, "LINGER", 0.1)
    async with joined() as both:
        both.ends[0].drop()
        assert await both.right.rest() == b""
        await both.over


async def test_whoever_is_cancelled_closes_both() -> None:
    """A tunnel that nobody waits for any more leaves no connection behind."""
    async with joined() as both:
        await both.left.send(b"x")
        assert await both.right.read(1) == b"x"
        both.over.cancel()
        assert await both.left.rest() == await both.right.rest() == b""
        await until(lambda: all(end.gone.done() for end in both.ends))
        assert repr(Tunnel(*both.ends)).startswith("<Tunnel client=<End gone")


async def test_who_is_held_back_is_let_go_when_the_other_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client still sends to an end that has gone is dropped, so that it can end in order."""
    monkeypatch.setattr(tunnel, "LINGER", 3600.0)
    async with joined() as both:
        both.right.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        both.left.writer.write(b"x" * 32 * MIB)
        await until(lambda: "held" in repr(both.ends[0]))
        both.ends[1].drop()
        assert await both.left.rest() == b""
        both.left.close()
        async with asyncio.timeout(PATIENCE):
            await both.over


async def test_both_go_while_neither_takes_anything() -> None:
    """Whichever ways are full, the end of the tunnel is the end of both connections."""
    async with joined() as both:
        for wire in (both.left, both.right):
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
            wire.writer.write(b"x" * 32 * MIB)
        await until(lambda: all("held" in repr(end) for end in both.ends))
        both.over.cancel()
        await until(lambda: all(end.gone.done() for end in both.ends))


async def test_silent_peers_are_probed() -> None:
    """The kernel asks a peer that says nothing whether it is there, so that a lost machine ends the connection."""
    async with joined() as both:
        for end in both.ends:
            assert end._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert end._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_a_connection_that_is_gone_cannot_be_taken() -> None:
    """Whoever comes too late hears it at once, and waits for nothing."""
    wire, owner = await owned()
    owner.transport.abort()
    with pytest.raises(ConnectionResetError):
        End(owner.transport, owner)
    await until(lambda: bool(owner.lost))
    wire.close()


# ── a client's connection, taken over ─────────────────────────────────────────────────────────────────

EARLY = {"nothing": b"", "what looks like HTTP": b"\r\n\r\nGET /b HTTP/1.1\r\n\r\n", "much": bytes(range(256)) * 4096}
HEAD = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"


@pytest.mark.parametrize("protocol", [b"websocket", b"chat"])
@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)
async def test_a_client_is_taken_over_with_all_that_it_sent(serve: Serve, protocol: bytes, early: bytes) -> None:
    """What stands behind the head of an upgrade is neither HTTP nor lost; no keep-alive ends it."""
    right, owner = await owned()
    go_on, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        await go_on.wait()
        assert protocols(request) == protocol
        reply = Switched(((b"Upgrade", protocol),), b"Switching Protocols")
        assert repr(reply) == "<Switched not sent>"
        await reply.prepare(request)
        await Tunnel(reply.take_over(request), End(owner.transport, owner)).over()
        assert repr(reply) == "<Switched sent>"
        ended.set()
        return reply

    served = await serve(handler)
    wire = await served.connect()
    wire.writer.write(HEAD % protocol + early)
    await until(lambda: served.server.in_flight == 1)
    await until(lambda: not early or bool(connections(served)[0]._message_tail))
    go_on.set()
    answer = await wire.head()
    assert (answer.status, answer.reason) == (101, b"Switching Protocols")
    assert answer.headers == ((b"Upgrade", protocol), (b"Connection", b"Upgrade"))
    await wire.send(b"then")
    assert await right.read(len(early) + 4) == early + b"then"
    (connection,) = connections(served)
    assert repr(connection) == "<Connection taken over queued=0>"
    connection._next_keepalive_close_time = 0.0
    connection._process_keepalive()
    await wire.send(b"and on")
    assert await right.read(6) == b"and on"
    wire.reset()
    await ended.wait()
    with pytest.raises(ConnectionResetError):
        await right.rest()
    await until(lambda: not connections(served))
    right.close()


def test_ends_of_heads_are_found_however_they_are_cut() -> None:
    """Wherever a head is cut in two, its end is found where it is, and nothing is taken for one that is none."""
    head = b"GET / HTTP/1.1\r\nA: b\r\n\r\n"
    for cut in range(len(head)):
        ends = HeadEnds()
        assert ends.first(head[:cut]) == 0
        ends.passed(head[:cut])
        assert ends.first(head[cut:] + b"\r\n\r\nearly") == len(head) - cut
