"""Promises about `Expect: 100-continue`: whether a body is wanted is the backend's to say."""

from __future__ import annotations

import asyncio

import pytest

from proxy import relay
from proxy.http.body import Body
from tests.e2e.stage import played
from tests.parts.raw_backend import Peer, Received

HEAD = b"POST /up HTTP/1.1\r\nHost: front\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the backend as long as a test may take."""
    monkeypatch.setattr(relay, "CONTINUE_WITHIN", 60.0)


@pytest.mark.usefixtures("patient")
async def test_a_client_is_told_to_go_on_when_the_backend_says_so() -> None:
    """Nothing is said in the backend's name: the client hears 100 Continue after the backend has said it, and once."""

    def ask(peer: Peer, head: Received) -> None:
        peer.wait("wanted")
        peer.send(CONTINUE)
        peer.answer(peer.whole(head).body)

    async with played(ask) as scene:
        wire = await scene.connect()
        await wire.send(HEAD)
        await scene.stage.asked(1)
        assert scene.stage.heads[0].values(b"expect") == [b"100-continue"]
        first = asyncio.ensure_future(wire.head())
        await scene.running.scrape()  # Forebay has had its turns
        assert not first.done()
        scene.backend.let("wanted")
        assert (await first).status == 100
        await wire.send(b"abc")
        assert (await wire.answer()).body == b"abc"


@pytest.mark.usefixtures("patient")
async def test_a_refused_upload_is_never_sent() -> None:
    """A backend that refuses at once gets its refusal to a client that has sent nothing of its body."""

    def refuse(peer: Peer, head: Received) -> None:
        peer.answer(b"no", status=b"401 Unauthorized")
        peer.until_gone()

    async with played(refuse) as scene:
        wire = await scene.connect()
        await wire.send(HEAD)
        answer = await wire.answer()
        assert (answer.status, answer.body, answer.get(b"connection")) == (401, b"no", b"close")
        assert await wire.rest() == b""
        assert scene.stage.peers[0].received == 0


@pytest.mark.usefixtures("patient")
async def test_a_body_that_came_at_once_waits_for_nobody() -> None:
    """A client that does not hold its body back needs no permission, and the backend is not asked for one."""

    def take(peer: Peer, head: Received) -> None:
        peer.answer(peer.whole(head).body)

    async with played(take) as scene:
        wire = await scene.connect()
        await wire.send(HEAD + b"abc")
        assert (await wire.answer()).body == b"abc"
        assert scene.stage.heads[0].values(b"expect") == []


def test_a_held_back_body_says_so() -> None:
    """The state of a body that waits can be read."""
    body = relay._HeldBack(Body(b"", None, 3))
    assert repr(body) == "<_HeldBack <Body whole data=0 length=3 held=0> not wanted yet>"
    body.want()
    assert repr(body).endswith(" wanted>")
