"""The promise "transparent" for WebSocket and whatever else HTTP is left for: bytes on either side of Forebay."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from proxy.http import tunnel
from proxy.http.connection import Connection
from proxy.http.tunnel import End
from tests.e2e.stage import Act, Scene, Stage, played, reply
from tests.http.wire import PATIENCE, Answer, Wire, until
from tests.parts.forebay import forebay
from tests.parts.forebay_process import forebay_process
from tests.parts.raw_backend import Gone, Peer, Received

HOST = b"Host: forebay.test\r\n"
MIB = 2**20


def upgrade(protocol: bytes = b"websocket", *, fields: bytes = b"") -> bytes:
    return b"GET /ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n" + fields + b"\r\n"


ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def switching(then: Callable[[Peer], None], raw: bytes = ACCEPTED) -> Act:
    """Agree with these very bytes, then do what is to be done."""

    def act(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(raw)
        then(peer)

    return act


def echo(peer: Peer) -> None:
    """Send back what comes; at its end say so, and end."""
    try:
        for piece in peer.pieces(sys.maxsize):
            peer.send(piece)
    except Gone:
        with contextlib.suppress(OSError):  # the client may have gone altogether
            peer.send(b"that was all")
            peer.half_close()


def listen(peer: Peer) -> None:
    peer.until_gone()


async def opened(scene: Scene, head: bytes | None = None, *, receive_buffer: int | None = None) -> tuple[Wire, Answer]:
    """A client whose upgrade was agreed to."""
    wire = await scene.connect(receive_buffer=receive_buffer)
    await wire.send(head or upgrade())
    answer = await wire.head()
    assert answer.status == 101
    return wire, answer


def taken(scene: Scene) -> End | None:
    """The client's end of the one connection that is taken over; None where it is gone."""
    (connection,) = cast(list[Connection], scene.running.sidecar._server.connections)
    return connection._taken if connection.transport is not None else None


# ── what is asked, and what comes back ────────────────────────────────────────────────────────────────


async def test_both_heads_go_through() -> None:
    """The backend is asked for what the client asks for; its own 101 comes back, nothing invented, nothing lost."""
    asked = [
        (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        (b"Sec-WebSocket-Version", b"13"),
        (b"Sec-WebSocket-Protocol", b"v2.stream, v1.stream"),
        (b"Sec-WebSocket-Extensions", b"permessage-deflate; client_max_window_bits"),
        (b"Origin", b"http://elsewhere"),
        (b"Cookie", b"a=1"),
    ]
    answered = [
        (b"upgrade", b"WebSocket"),
        (b"sec-WebSocket-accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        (b"Sec-WebSocket-Protocol", b"v1.stream"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
    ]
    raw = b"HTTP/1.1 101 As You Like\r\n" + b"".join(b"%b: %b\r\n" % field for field in answered)
    async with played(switching(echo, raw + b"connection: Keep-Alive, upgrade\r\nKeep-Alive: 5\r\n\r\n")) as scene:
        wire = await scene.connect()
        await wire.send(
            b"GET /ws?a=%20b HTTP/1.1\r\n"
            + HOST
            + b"Connection: keep-alive, Upgrade, X-Hop\r\nX-Hop: 1\r\nUpgrade: websocket\r\n"
            + b"".join(b"%b: %b\r\n" % field for field in asked)
            + b"\r\n"
        )
        answer = await wire.head()
        assert (answer.status, answer.reason) == (101, b"As You Like")
        assert list(answer.headers) == [*answered, (b"Connection", b"Upgrade")]
        assert scene.stage.lines == [b"GET /ws?a=%20b HTTP/1.1"]
        (head,) = scene.stage.heads
        host = f"127.0.0.1:{scene.backend.port}".encode()
        switch = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        assert head.fields == [(b"Host", host), *asked, *switch]
        await wire.send(b"\x00\xffhello")
        assert await wire.read(7) == b"\x00\xffhello"


@pytest.mark.parametrize("protocol", [b"chat/2", b"WebSocket", b"websocket, chat", b"SPDY/3.1"])
async def test_any_protocol_passes(protocol: bytes) -> None:
    """Forebay need not know what is spoken after the upgrade."""
    async with played(switching(echo, ACCEPTED.replace(b"websocket", protocol))) as scene:
        wire, answer = await opened(scene, upgrade(protocol))
        assert scene.stage.heads[0].values(b"upgrade") == [protocol] == [answer.get(b"upgrade")]
        await wire.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await wire.read(18) == b"GET / HTTP/1.1\r\n\r\n"


IGNORED = {
    "HTTP/2": upgrade(b"h2c", fields=b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
    "TLS": upgrade(b"TLS/1.2"),
    "another HTTP": upgrade(b"HTTP/3.0"),
    "HTTP/1.0": upgrade().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "without Connection": b"GET /ws HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\n\r\n",
    "nothing": upgrade(b""),
    "another method": upgrade().replace(b"GET", b"OPTIONS"),
    "a body": upgrade(fields=b"Content-Length: 4\r\n") + b"body",
}


@pytest.mark.parametrize("case", IGNORED)
async def test_an_upgrade_that_is_not_the_backends_to_grant_is_ignored(case: str) -> None:
    """HTTP/2 and TLS concern this one connection only; they, and what is no proper upgrade, are plain requests."""
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(IGNORED[case])
        assert (await wire.answer()).status == 200
        (head,) = scene.stage.heads
        assert head.values(b"upgrade") == head.values(b"connection") == []


async def test_what_else_is_asked_for_passes() -> None:
    """Of several protocols those that a backend can grant reach it."""
    async with played(switching(echo)) as scene:
        await opened(scene, upgrade(b"h2c, websocket , TLS/1.0"))
        assert scene.stage.heads[0].values(b"upgrade") == [b"websocket"]


async def test_a_switch_to_nothing_is_a_502() -> None:
    """A 101 that does not say what it switches to is no answer that a client could go by."""
    async with played(switching(listen, b"HTTP/1.1 101 Switching Protocols\r\n\r\n")) as scene:
        wire = await scene.connect()
        await wire.send(upgrade())
        assert (await wire.answer()).status == 502
        assert await wire.rest() == b""
        await scene.backend.until_gone(scene.stage.peers[0].number)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 6\r\n\r\nforbid", b"Transfer-Encoding: chunked\r\n\r\n6\r\nforbid\r\n"]
)
async def test_a_refused_upgrade_is_an_answer_as_any_other(framing: bytes) -> None:
    """Status, fields and body of a refusal reach the client as they come; then its connection ends."""

    def refuse(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(b"HTTP/1.1 403 Not You\r\nWWW-Authenticate: Basic\r\n" + framing)
        peer.wait("head seen")
        peer.send(b"0\r\n\r\n" if b"chunked" in framing else b"")
        peer.until_gone()

    async with played(refuse) as scene:
        wire = await scene.connect()
        await wire.send(upgrade() + b"GET /early HTTP/1.1\r\n" + HOST + b"\r\n")
        answer = await wire.head()
        assert (answer.status, answer.reason, answer.get(b"connection")) == (403, b"Not You", b"close")
        assert answer.get(b"www-authenticate") == b"Basic"
        assert (await wire.chunk() if b"chunked" in framing else await wire.read(6)) == b"forbid"
        scene.backend.let("head seen")
        assert await wire.rest() == (b"0\r\n\r\n" if b"chunked" in framing else b"")
        assert len(scene.stage.heads) == 1  # what came early was for a protocol that nobody speaks
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_requests_total", outcome="bypass") == 1


async def test_a_refusal_reaches_a_client_that_goes_on_sending() -> None:
    """Megabytes sent too early are dropped, so that they do not keep the refusal from its client."""

    def refuse(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.wait("refuse")
        peer.answer(b"no", status=b"426 Upgrade Required")

    async with played(refuse) as scene:
        wire = await scene.connect()
        wire.writer.write(upgrade() + bytes(8 * MIB))
        await scene.stage.asked(1)
        scene.backend.let("refuse")
        answer = await wire.answer()
        assert (answer.status, answer.body) == (426, b"no")
        assert await wire.rest() == b""
        await until(lambda: not wire.writer.transport.get_write_buffer_size())
        (connection,) = scene.running.sidecar._server.connections
        assert not connection._message_tail


async def test_it_has_a_connection_of_its_own() -> None:
    """No kept connection is used for it, and none that was asked to switch is used again, agreed or not."""
    async with played(reply, switching(echo), reply, reply) as scene:
        wire = await scene.connect()
        await wire.send(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.answer()
        agreed, _ = await opened(scene)
        refused = await scene.connect()
        await refused.send(upgrade())
        assert (await refused.answer()).status == 200
        await wire.send(b"GET /2 HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.answer()
        first, second, third, fourth = (peer.number for peer in scene.stage.peers)
        assert len({first, second, third} | {second, third, fourth}) == 4 - (first == fourth)
        await scene.backend.until_gone(third)
        assert " busy=1 " in repr(scene.running.sidecar.connections)
        agreed.close()
        await scene.backend.until(lambda: scene.stage.peers[1].gone)
        await until(lambda: " busy=0 " in repr(scene.running.sidecar.connections))


async def test_no_backend_is_a_502() -> None:
    """Where no connection can be made, the client hears so in HTTP."""
    stage = Stage(reply)
    with stage.backend:
        url = stage.backend.url
    async with forebay(url) as running:
        host, _, port = running.sidecar.data_address.rpartition(":")
        wire = await Wire.connect((host, int(port)))
        await wire.send(upgrade())
        assert (await wire.answer()).status == 502
        wire.close()
        assert (await running.scrape()).total("forebay_requests_total", outcome="upstream_error") == 1


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", [b"websocket", b"chat"])
@pytest.mark.parametrize("cut", [None, 1, 2, 3, 4, 30])
async def test_what_a_client_sends_early_arrives(protocol: bytes, cut: int | None) -> None:
    """Bytes right behind the head, in whatever pieces, are the first that the backend reads after its 101."""
    early = b"\x81\x85\r\n\r\nGET /early HTTP/1.1\r\n\r\n\x00"
    async with played(switching(echo, ACCEPTED.replace(b"websocket", protocol))) as scene:
        wire = await scene.connect()
        sent = upgrade(protocol) + early
        if cut is None:
            await wire.send(sent)
        else:
            end = len(sent) - len(early)
            for piece in (sent[: end - cut], sent[end - cut : end + 5], sent[end + 5 :]):
                await wire.send(piece)
                for _ in range(5):  # so that it is a piece of its own
                    await asyncio.sleep(0)
        assert (await wire.head()).status == 101
        assert await wire.read(len(early)) == early
        assert len(scene.stage.heads) == 1


@pytest.mark.parametrize("protocol", [b"websocket", b"chat"])
async def test_what_is_sent_before_the_backend_agrees_is_held_not_lost(protocol: bytes) -> None:
    """A client that does not wait for the 101 is held back after a buffer; everything arrives once it comes."""

    def late(peer: Peer, head: Received) -> None:
        peer.wait("agree")
        switching(echo, ACCEPTED.replace(b"websocket", protocol))(peer, head)

    early = bytes(range(256)) * 4 * 4096
    async with played(late) as scene:
        wire = await scene.connect()
        wire.writer.write(upgrade(protocol) + early)
        await scene.stage.asked(1)
        server = scene.running.sidecar._server
        (connection,) = server.connections
        await until(lambda: connection._buffer_paused)
        assert len(connection._message_tail) < MIB // 2
        scene.backend.let("agree")
        assert (await wire.head()).status == 101
        assert await wire.read(len(early)) == early


async def test_an_upgrade_behind_other_requests_waits_for_its_turn() -> None:
    """Requests in front of it on the same connection are answered first, each to its own."""
    async with played(reply, switching(echo)) as scene:
        wire = await scene.connect()
        await wire.send(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n" + upgrade() + b"early")
        assert (await wire.answer()).status == 200
        assert (await wire.head()).status == 101
        assert await wire.read(5) == b"early"


async def test_where_early_bytes_cannot_be_told_it_is_a_plain_request() -> None:
    """Of a protocol that the parser does not know, behind another request in one segment: not passed, so not maimed."""
    async with played(reply) as scene:
        wire = await scene.connect()
        await wire.send(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n" + upgrade(b"chat") + b"early")
        for _ in range(2):
            assert (await wire.answer()).status == 200
        assert await wire.rest() == b""
        assert scene.stage.heads[1].values(b"upgrade") == []


async def test_what_the_backend_sends_with_its_101_arrives() -> None:
    """Bytes in the same segment as the 101 are the first that the client reads behind it, even if they are the last."""

    def end(peer: Peer) -> None:
        peer.half_close()
        assert peer.read(4) == b"late"
        peer.close()

    async with played(switching(end, ACCEPTED + b"\r\n\r\nfirst" * 1000)) as scene:
        wire, _ = await opened(scene)
        assert await wire.rest() == b"\r\n\r\nfirst" * 1000
        await wire.send(b"late")
        wire.close()
        await until(lambda: scene.running.sidecar.in_flight == 0)


async def test_a_backend_that_says_all_with_its_101_still_hears() -> None:
    """101, bytes and the end of writing may all be there before Forebay reads: the way to the backend stays open."""
    said = threading.Event()
    heard: list[bytes] = []

    def script(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.wait("agree")
        peer.send(ACCEPTED + b"all of it")
        peer.half_close()
        said.set()
        late = peer.read(4)
        peer._backend.note(lambda: heard.append(late))
        peer.close()

    async with played(script) as scene:
        wire = await scene.connect()
        await wire.send(upgrade())
        await scene.stage.asked(1)
        scene.backend.let("agree")
        assert said.wait(20)  # and the loop has not turned
        assert (await wire.head()).status == 101
        assert await wire.rest() == b"all of it"
        await wire.send(b"late")
        await scene.backend.until(lambda: heard == [b"late"])
        wire.close()
        await until(lambda: scene.running.sidecar.in_flight == 0)


async def test_much_goes_both_ways_at_once() -> None:
    """Tens of megabytes in each direction arrive byte for byte while both sides send."""
    blocks = [bytes([number]) * MIB for number in range(32)]
    sums: list[str] = []

    def both(peer: Peer) -> None:
        def send() -> None:
            peer.send(*blocks[::-1])

        sender = threading.Thread(target=send)
        sender.start()
        digest = hashlib.sha256()
        for piece in peer.pieces(len(blocks) * MIB):
            digest.update(piece)
        sums.append(digest.hexdigest())
        sender.join()
        peer.send(b"done")

    async with played(switching(both)) as scene:
        wire, _ = await opened(scene)

        async def send() -> None:
            for block in blocks:
                await wire.send(block)

        sending = asyncio.create_task(send())
        received = hashlib.sha256()
        for _ in blocks:
            received.update(await wire.read(MIB))
        await sending
        assert await wire.read(4) == b"done"
        assert received.hexdigest() == hashlib.sha256(b"".join(blocks[::-1])).hexdigest()
        assert sums == [hashlib.sha256(b"".join(blocks)).hexdigest()]


@pytest.mark.parametrize("slow", ["client", "backend"])
async def test_who_does_not_read_holds_the_other_back(slow: str) -> None:
    """Of what one side does not read, Forebay holds a small buffer; then the other side cannot send more."""

    def flood(peer: Peer) -> None:
        while True:
            peer.send(bytes(MIB))

    def sleep(peer: Peer) -> None:
        peer.wait("read")
        peer.until_gone()

    async with played(switching(flood if slow == "client" else sleep)) as scene:
        wire, _ = await opened(scene, receive_buffer=4096)
        await until(lambda: taken(scene) is not None)
        end = taken(scene)
        assert end is not None
        full = end if slow == "client" else end._other
        if slow == "client":
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        else:
            for _ in range(64):
                wire.writer.write(bytes(MIB))
        await until(lambda: full.full)
        assert 0 < full._transport.get_write_buffer_size() < MIB
        assert full._other._held
        scene.backend.let("read")
        wire.reset()
        await until(lambda: scene.running.sidecar.in_flight == 0)


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_client_that_ends_writing_still_hears() -> None:
    """The end of one way passes, behind the bytes before it; the other way goes on to its own end."""
    async with played(switching(echo)) as scene:
        wire, _ = await opened(scene)
        wire.writer.write(b"x" * MIB)
        wire.end_writing()
        assert await wire.rest() == b"x" * MIB + b"that was all"
        await until(lambda: scene.running.sidecar.in_flight == 0)
        assert (await scene.running.scrape()).total("forebay_requests_total", outcome="bypass") == 1


async def test_a_backend_that_ends_writing_still_hears() -> None:
    """A backend may say that it has said all, and go on listening."""
    heard: list[bytes] = []

    def end(peer: Peer) -> None:
        peer.send(b"all")
        peer.half_close()
        said = peer.read(MIB)
        peer._backend.note(lambda: heard.append(said))
        peer.close()

    async with played(switching(end)) as scene:
        wire, _ = await opened(scene)
        assert await wire.rest() == b"all"
        await wire.send(b"y" * MIB)
        wire.end_writing()
        await scene.backend.until(lambda: heard == [b"y" * MIB])
        await until(lambda: scene.running.sidecar.in_flight == 0)


def told(ends: list[str]) -> Callable[[Peer], None]:
    """Note whether the client's way ends or breaks."""

    def listening(peer: Peer) -> None:
        try:
            while peer._socket.recv(1 << 16):
                pass
            ends.append("end")
        except ConnectionResetError:
            ends.append("reset")
        peer.close()

    return listening


@pytest.mark.parametrize("end", ["end", "reset"])
async def test_a_client_that_leaves_ends_the_backends_connection_likewise(end: str) -> None:
    """A client's orderly end is one for the backend; if it breaks off, the backend sees a break."""
    ends: list[str] = []
    async with played(switching(told(ends))) as scene:
        wire, _ = await opened(scene)
        if end == "end":
            wire.close()
        else:
            wire.reset()
        await until(lambda: scene.running.sidecar.in_flight == 0)
        await until(lambda: bool(ends))
        assert ends == [end]
        outcome = "bypass" if end == "end" else "client_gone"
        assert (await scene.running.scrape()).total("forebay_requests_total", outcome=outcome) == 1


async def test_a_backend_that_breaks_off_ends_the_clients_connection_likewise() -> None:
    """What the backend sent arrives, then the client sees a break: it never looks like an end."""

    def vanish(peer: Peer) -> None:
        peer.send(b"half of")
        peer.wait("vanish")
        peer.reset()

    async with played(switching(vanish)) as scene:
        wire, _ = await opened(scene)
        assert await wire.read(7) == b"half of"
        scene.backend.let("vanish")
        with pytest.raises(ConnectionResetError):
            await wire.rest()
        await until(lambda: scene.running.sidecar.in_flight == 0)
        assert (await scene.running.scrape()).total("forebay_requests_total", outcome="truncated") == 1


async def test_a_client_that_is_held_back_is_missed_when_it_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while nothing of a client is read, because the backend reads nothing, its loss ends both connections."""
    monkeypatch.setattr(tunnel, "LOOK_AFTER", 0.01)

    def deaf(peer: Peer) -> None:
        peer.wait("over")
        with pytest.raises(ConnectionResetError):
            while peer._socket.recv(1 << 20):
                pass
        peer.close()

    async with played(switching(deaf)) as scene:
        wire, _ = await opened(scene)
        for _ in range(64):
            wire.writer.write(bytes(MIB))
        await until(lambda: "held" in repr(taken(scene)))
        wire.reset()
        await until(lambda: taken(scene) is None)
        monkeypatch.setattr(tunnel, "LINGER", 0.1)
        scene.backend.let("over")
        await until(lambda: scene.running.sidecar.in_flight == 0)


async def test_a_backend_that_takes_nothing_more_does_not_hold_on_to_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When a client has gone, a backend that does not read what is left gets `LINGER`, then its connection ends."""
    monkeypatch.setattr(tunnel, "LOOK_AFTER", 0.01)
    monkeypatch.setattr(tunnel, "LINGER", 0.1)

    def deaf(peer: Peer) -> None:
        peer.wait("never")

    async with played(switching(deaf)) as scene:
        wire, _ = await opened(scene)
        for _ in range(64):
            wire.writer.write(bytes(MIB))
        await until(lambda: "held" in repr(taken(scene)))
        wire.reset()
        await until(lambda: scene.running.sidecar.in_flight == 0)
        scene.backend.let("never")


async def test_a_client_that_leaves_before_the_101_is_noticed() -> None:
    """Nobody waits for a backend's word on behalf of a client that has gone."""

    def silent(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.until_gone()

    async with played(silent) as scene:
        wire = await scene.connect()
        await wire.send(upgrade() + b"early")
        await scene.stage.asked(1)
        wire.close()
        await scene.backend.until_gone(scene.stage.peers[0].number)
        await until(lambda: scene.running.sidecar.in_flight == 0)
        assert (await scene.running.scrape()).total("forebay_requests_total", outcome="client_gone") == 1


# ── what it counts as, and what does not end it ───────────────────────────────────────────────────────


async def test_it_is_one_request_from_its_head_to_its_end() -> None:
    """While it lasts it is active and in flight; ended, it is one `bypass{unrecognised}` of its whole duration."""
    async with played(switching(echo)) as scene:
        sidecar = scene.running.sidecar
        wire, _ = await opened(scene)
        began = time.monotonic()
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_requests_active") == sidecar.in_flight == 1
        assert scrape.total("forebay_requests_total") == 0
        (connection,) = sidecar._server.connections
        assert repr(connection) == "<Connection taken over queued=0>"
        lasted = time.monotonic() - began
        wire.end_writing()
        assert await wire.rest() == b"that was all"
        await until(lambda: sidecar.in_flight == 0)
        scrape = await scene.running.scrape()
        assert scrape.total("forebay_requests_active") == 0
        assert scrape.total("forebay_requests_total", outcome="bypass") == scrape.total("forebay_requests_total") == 1
        assert scrape.total("forebay_decisions_total", decision="bypass", reason="unrecognised") == 1
        assert scrape.total("forebay_upstream_duration_seconds_count", outcome="answered") == 1
        to_the_101 = sum(scrape.total(f"forebay_upstream_{step}_seconds_sum") for step in ("pool_wait", "ttfb"))
        assert scrape.total("forebay_upstream_duration_seconds_sum") - to_the_101 >= lasted
        assert scrape.total("forebay_request_duration_seconds_sum") >= lasted + to_the_101
        await until(lambda: not sidecar._server.connections)


async def test_limits_connections_counts_it(tmp_path: Path) -> None:
    """It is a client connection as any other, to its very end."""
    config = tmp_path / "forebay.yaml"
    config.write_text("limits: {connections: 1}\n")
    async with played(switching(echo), config=config) as scene:
        wire, _ = await opened(scene)
        other = await scene.connect()
        assert (await other.answer()).status == 503
        other.close()
        wire.end_writing()
        await wire.rest()
        await until(lambda: not scene.running.sidecar._server.connections)
        await opened(scene)


async def test_timeouts_of_answers_do_not_end_it(tmp_path: Path) -> None:
    """Once both sides have agreed, silence is no fault, however long: `upstream.timeout` is about answers."""
    config = tmp_path / "forebay.yaml"
    config.write_text("upstream: {timeout: {idle: 20ms, first_byte: 20ms, total: 20ms}}\n")

    def silent(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.until_gone()

    async with played(switching(echo), silent, config=config) as scene:
        wire, _ = await opened(scene)
        for _ in range(3):
            other = await scene.connect()
            await other.send(upgrade(b"slow"))
            assert (await other.answer()).status == 504
        await wire.send(b"still here")
        assert await wire.read(10) == b"still here"


# ── drain ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_drain_waits_for_its_end() -> None:
    """An upgraded connection is in flight: it goes on while Forebay drains, and draining ends when it does."""
    async with played(switching(echo)) as scene:
        sidecar = scene.running.sidecar
        wire, _ = await opened(scene)
        sidecar.drain()
        drained = asyncio.create_task(sidecar.drained())
        await until(lambda: sidecar._server.past_last_call)
        await wire.send(b"still here")
        assert await wire.read(10) == b"still here"
        assert not drained.done()
        wire.end_writing()
        assert await wire.rest() == b"that was all"
        assert await drained is True


async def test_it_is_closed_when_drain_timeout_is_over() -> None:
    """Forebay's own end closes both sides, whatever they were about to say."""
    ends: list[str] = []
    async with played(switching(told(ends))) as scene:
        wire, _ = await opened(scene)
        await scene.running.sidecar._server.close()
        assert await wire.rest() == b""
        await until(lambda: bool(ends))
        assert (await scene.running.scrape()).total("forebay_requests_total") == 1


async def test_a_backend_that_takes_nothing_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """When Forebay ends, it waits for nobody who does not read."""
    monkeypatch.setattr(tunnel, "LINGER", 3600.0)

    def deaf(peer: Peer) -> None:
        peer.wait("over")

    async with played(switching(deaf)) as scene:
        wire, _ = await opened(scene)
        wire.writer.write(bytes(64 * MIB))
        await until(lambda: "held" in repr(taken(scene)))
        async with asyncio.timeout(PATIENCE):
            await scene.running.sidecar._server.close()
        scene.backend.let("over")


# ── real WebSocket on both sides ──────────────────────────────────────────────────────────────────────


async def parrot(socket: ServerConnection) -> None:
    """Say everything back; on `close CODE REASON` close so."""
    while True:
        try:
            message = await socket.recv()
        except ConnectionClosed:
            return
        if isinstance(message, str) and message.startswith("close "):
            _, code, reason = message.split(" ", 2)
            await socket.close(int(code), reason)
        else:
            await socket.send(message)


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def guard(socket: ServerConnection, request: Request) -> Response | None:
    return socket.respond(403, "not for you\n") if request.path == "/forbidden" else None


def through(address: str, path: str = "/ws", **more: object) -> connect:
    return connect(f"ws://{address}{path}", max_size=None, **more)  # type: ignore[arg-type]  # options of websockets


async def test_real_websockets_talk_through_it() -> None:
    """Text, large binary frames, compression, subprotocols and pings work as they do without Forebay."""
    async with (
        serve(parrot, "127.0.0.1", 0, max_size=None, subprotocols=[Subprotocol("v2"), Subprotocol("v1")]) as server,
        forebay(url_of(server)) as running,
    ):
        address = running.sidecar.data_address
        async with through(address, subprotocols=[Subprotocol("v1")]) as client:
            assert client.subprotocol == "v1"
            for message in ("héllo", b"\x00" * 3 * MIB, "x" * MIB, b"", bytes(range(256)) * 17):
                await client.send(message)
                assert await client.recv() == message
            assert await (await client.ping()) >= 0
        async with through(address, subprotocols=[Subprotocol("v2")], compression=None) as client:
            await client.send(b"\x01" * 8 * MIB)
            assert await client.recv() == b"\x01" * 8 * MIB


async def closed_with(client: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed):
        await client.recv()
    assert client.close_code is not None
    assert client.close_reason is not None
    return client.close_code, client.close_reason


async def test_close_codes_pass_both_ways() -> None:
    """Who closes with a code and a reason is understood at the other end."""
    seen: list[tuple[int | None, str | None]] = []

    async def noting(socket: ServerConnection) -> None:
        await parrot(socket)
        await socket.wait_closed()
        seen.append((socket.close_code, socket.close_reason))

    async with serve(noting, "127.0.0.1", 0) as server, forebay(url_of(server)) as running:
        async with through(running.sidecar.data_address) as client:
            await client.send("close 4001 model unloaded")
            assert await closed_with(client) == (4001, "model unloaded")
        async with through(running.sidecar.data_address) as client:
            await client.close(4002, "enough")
        await until(lambda: len(seen) == 2)
        assert seen == [(4001, "model unloaded"), (4002, "enough")]
        await until(lambda: running.sidecar.in_flight == 0)
        assert (await running.scrape()).total("forebay_requests_total", outcome="bypass") == 2


async def test_a_refused_websocket_is_seen_as_refused() -> None:
    """A client library gets the backend's own status and body."""
    async with serve(parrot, "127.0.0.1", 0, process_request=guard) as server, forebay(url_of(server)) as running:
        with pytest.raises(InvalidStatus) as caught:
            async with through(running.sidecar.data_address, "/forbidden"):
                pass
        assert (caught.value.response.status_code, caught.value.response.body) == (403, b"not for you\n")


@pytest.mark.parametrize("ends", [True, False])
async def test_sigterm_waits_for_a_websocket(tmp_path: Path, ends: bool) -> None:
    """After SIGTERM a conversation goes on to its end; at `drain_timeout` the process cuts it off and says so."""
    config = tmp_path / "forebay.yaml"
    config.write_text(f"drain_timeout: {'20s' if ends else '100ms'}\n")
    async with (
        serve(parrot, "127.0.0.1", 0) as server,
        forebay_process(url_of(server), "--config", str(config)) as process,
        through(process.address) as client,
    ):
        await client.send("before")
        assert await client.recv() == "before"
        process.signal(signal.SIGTERM)
        await process.says("draining")
        if ends:
            await client.send("after")
            assert await client.recv() == "after"
            await client.close()
            assert await process.exit_code() == 0
        else:
            assert await closed_with(client) == (1006, "")
            assert await process.exit_code() == 1
