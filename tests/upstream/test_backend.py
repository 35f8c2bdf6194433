"""Promises about `protocol: auto`: what a backend is found to be, it has said itself, and it is found out again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from proxy.protocols.codec import Codec, Found
from proxy.protocols.v2 import V2
from proxy.terms import Exchange
from proxy.upstream.backend import AT_FIRST, EVERY, Backend
from proxy.upstream.connections import Connections, UpstreamError
from proxy.upstream.health import Health
from proxy.upstream.settings import UpstreamSettings
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.answering import answering
from tests.upstream.clock import Clock
from tests.upstream.connected import connected
from tests.upstream.silent_codec import Silent


class Info(Silent):
    """Spoken by who says its kind at /info."""

    name = protocol = "info"
    probes: ClassVar[tuple[str, ...]] = ("/info",)

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        assert answers.keys() == set(self.probes)
        answer = answers["/info"]
        said = json.loads(answer.body) if answer is not None else {}
        return Found(said["kind"], tuple(said.get("models", ()))) if said.get("protocol") == self.protocol else None


class Both(Info):
    """Needs a second path to be there."""

    name = protocol = "both"
    probes = ("/info", "/more")

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        found = super().found(answers)
        return found if answers["/more"] is not None else None


INFO, BOTH, V2_CODEC = Info(), Both(), V2()
HELLO = (200, b'{"protocol": "info", "kind": "hello 1.0", "models": ["m"]}')


@asynccontextmanager
async def asking(
    connections: Connections, clock: Clock, codecs: Sequence[Codec] = (INFO,)
) -> AsyncIterator[tuple[Backend, Health]]:
    """A backend that was asked once, polled on the test's own clock; readiness is asked only where the test says so."""
    health = Health(connections)
    backend = Backend(connections, health, codecs, sleep=clock.sleep)
    backend.start()
    await clock.idle()
    try:
        yield backend, health
    finally:
        await backend.aclose()


async def test_a_backend_is_asked_at_once_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Soon after the start `auto` knows the protocol, the log says it in one line, and so does /config."""
    caplog.set_level("INFO")
    with answering() as table:
        table["/info"] = HELLO
        async with connected(table.backend.url) as connections:
            health = Health(connections)
            backend = Backend(connections, health, [INFO, Silent()])
            assert (backend.asked, backend.speaks(INFO), backend.speaks(Silent())) == (False, False, True)
            assert repr(backend) == "<Backend unknown, not asked yet>"
            await backend.poll()
            assert (backend.asked, backend.speaks(INFO)) == (True, True)
            assert repr(backend) == "<Backend info>"
            await backend.poll()
            assert caplog.messages == ["the backend is hello 1.0 (m), which speaks info"]
            assert backend.report() == {
                "asked": True,
                "asks_for_credentials": False,
                "found": [{"codec": "info", "protocol": "info", "server": "hello 1.0", "models": ["m"]}],
            }


async def test_another_backend_in_place_is_told() -> None:
    """Who must know that other weights may answer is told when a finding changes, and only then."""
    told = []
    with answering() as table:
        async with connected(table.backend.url) as connections:
            backend = Backend(connections, Health(connections), [INFO], changed=lambda: told.append(backend.describe()))
            for models in (["a", "b"], ["a", "b"], ["b", "a"], ["b", "c"], ["b", "c"]):
                table["/info"] = (200, json.dumps({"protocol": "info", "kind": "hello", "models": models}).encode())
                await backend.poll()
            assert told == ["the backend is hello (b, a), which speaks info"]
            del table["/info"]
            await backend.poll()
            assert len(told) == 2


async def test_each_path_is_asked_once_a_poll() -> None:
    """Protocols that look at the same path cost the backend one question in ten seconds, not one each."""
    clock = Clock()
    with answering() as table:
        table["/info"] = HELLO
        async with connected(table.backend.url) as connections, asking(connections, clock, [INFO, BOTH]):
            await clock.tick()
            assert table.asked == {"/info": 2, "/more": 2}
            assert clock.slept == [EVERY, EVERY]


@pytest.mark.parametrize("status", [204, 302, 400, 401, 403, 404, 405, 501])
async def test_a_refusal_says_that_the_protocol_is_not_spoken(status: int) -> None:
    """A backend that has no such path, or has it no more, is not taken for one that has."""
    clock = Clock()
    with answering() as table:
        table["/info"] = (status, b"")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (backend, _):
            assert (backend.asked, backend.speaks(INFO)) == (True, False)
            table["/info"] = HELLO
            await clock.tick()
            assert backend.speaks(INFO)
            table["/info"] = (status, b"")
            await clock.tick()
            assert not backend.speaks(INFO)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_a_busy_backend_stays_what_it_was(status: int) -> None:
    """An overload changes nothing of what is known; a backend that cannot answer yet is asked every second."""
    clock = Clock()
    with answering() as table:
        table["/info"] = (status, b"")
        async with connected(table.backend.url) as connections, asking(connections, clock) as (backend, _):
            assert not backend.asked
            table["/info"] = HELLO
            await clock.tick()
            assert backend.speaks(INFO)
            table["/info"] = (status, b"")
            await clock.tick()
            assert (backend.asked, backend.speaks(INFO)) == (True, True)
            assert clock.slept == [AT_FIRST, EVERY, EVERY]


async def test_half_an_answer_decides_nothing() -> None:
    """Where a protocol looks at two paths and one cannot be read now, it is neither found nor lost."""
    clock = Clock()
    with answering() as table:
        table["/info"] = (200, b'{"protocol": "both", "kind": "b"}')
        table["/more"] = (503, b"")
        async with connected(table.backend.url) as connections, asking(connections, clock, [BOTH]) as (backend, _):
            assert (backend.asked, backend.speaks(BOTH)) == (True, False)
            table["/more"] = (200, b"")
            await clock.tick()
            assert backend.speaks(BOTH)
            table["/more"] = (503, b"")
            await clock.tick()
            assert backend.speaks(BOTH)
            table["/more"] = (404, b"")
            await clock.tick()
            assert not backend.speaks(BOTH)


async def test_a_path_that_is_proof_needs_no_finding() -> None:
    """Open Inference models are asked about by name: a server that hides /v2 is served all the same."""
    with answering() as table:
        async with (
            connected(table.backend.url) as connections,
            asking(connections, Clock(), [V2_CODEC]) as (backend, _),
        ):
            assert backend.speaks(V2_CODEC)
            assert not backend.found


async def test_another_backend_in_its_place_is_found_out() -> None:
    """From its coming back on it is what it says now; what it was before does not count any more."""
    clock = Clock()
    with answering() as table:
        table["/info"] = HELLO
        async with connected(table.backend.url) as connections, asking(connections, clock) as (backend, health):
            port = table.backend.port
            table.backend.__exit__(None, None, None)
            with pytest.raises(UpstreamError):
                await connections.exchange("GET", "/", ())
            await clock.tick()
            assert backend.speaks(INFO)  # gone: nothing is sent to it
            del table["/info"]
            table.backend = RawBackend(table._script, port=port)
            with table.backend:
                await health.poll()
                assert (backend.asked, backend.speaks(INFO)) == (False, False)
                await asyncio.gather(*backend._tasks)
                assert (backend.asked, backend.speaks(INFO)) == (True, False)
                assert clock.slept == [EVERY, EVERY]


async def test_what_was_asked_before_it_came_back_is_not_believed() -> None:
    """An answer of the old backend that is still on its way does not speak for the new one."""

    def script(peer: Peer) -> None:
        peer.request()
        backend.let("asked")
        peer.wait("replaced")
        peer.answer(HELLO[1])
        while True:
            peer.request()
            peer.answer(b"{}")

    with RawBackend(script) as backend:
        async with connected(backend.url) as connections:
            health = Health(connections)
            found = Backend(connections, health, [INFO])
            poll = asyncio.create_task(found.poll())
            await asyncio.to_thread(backend.event("asked").wait)
            found._comebacks += 1
            backend.let("replaced")
            await poll
            assert (found.asked, found.speaks(INFO)) == (True, False)


async def test_every_change_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The log tells what Forebay takes the backend for, whenever that changes, and nothing when it does not."""
    caplog.set_level("INFO")
    clock = Clock()
    with answering() as table:
        async with connected(table.backend.url) as connections, asking(connections, clock, [INFO, BOTH]):
            many = {"protocol": "info", "kind": "hello 2", "models": ["a", "b", "c", "d", "e"]}
            for answer in ((404, b""), HELLO, HELLO, (200, json.dumps(many).encode()), (404, b"")):
                table["/info"] = answer
                await clock.tick()
    assert caplog.messages == [
        "the backend names no protocol that Forebay knows",
        "the backend is hello 1.0 (m), which speaks info",
        "the backend is hello 2 (a, b, c and 2 more), which speaks info",
        "the backend names no protocol that Forebay knows",
    ]


async def test_protocols_of_one_server_stand_together() -> None:
    """A server that speaks two protocols is named once."""

    class Again(Info):
        name, protocol = "again", "again"

        def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
            return Found("hello 1.0", ("m",))

    with answering() as table:
        table["/info"] = HELLO
        async with (
            connected(table.backend.url) as connections,
            asking(connections, Clock(), [INFO, Again()]) as (backend, _),
        ):
            assert backend.describe() == "the backend is hello 1.0 (m), which speaks info and again"


async def test_a_backend_that_asks_for_credentials_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Who runs a backend behind a key reads which setting is missing; the key given, it is found what it is."""
    caplog.set_level("INFO")

    def script(peer: Peer) -> None:
        while True:
            fields = dict(peer.request().fields)
            if fields.get(b"Authorization") == b"Bearer right":
                peer.answer(HELLO[1])
            else:
                peer.answer(b"", status=b"401 Unauthorized")

    with RawBackend(script) as backend:
        for authorization in (None, "Bearer wrong", "Bearer right"):
            settings = UpstreamSettings(targets=(backend.url,), authorization=authorization)
            connections = Connections(settings)
            async with asking(connections, Clock()) as (found, _):
                assert found.speaks(INFO) == (authorization == "Bearer right")
                assert found.report()["asks_for_credentials"] != found.speaks(INFO)
            await connections.aclose()
    assert caplog.messages == [
        "the backend asks for credentials: set upstream.authorization",
        "the backend asks for credentials: it refuses those of upstream.authorization",
        "the backend is hello 1.0 (m), which speaks info",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert "right" not in repr(settings)


@pytest.mark.parametrize("text", ["", " Bearer x", "Bearer x\r\nHost: y", "Bearer ü", "Bearer x\n"])
def test_credentials_that_are_no_header_are_a_mistake_of_the_configuration(text: str) -> None:
    """What cannot be sent is refused at the start, and not quoted: it is a secret."""
    with pytest.raises(ValueError, match="authorization must be one line of printable ASCII") as refused:
        UpstreamSettings(authorization=text)
    assert not text.strip() or text.strip() not in str(refused.value)


async def test_a_fault_of_forebay_s_own_does_not_end_the_polls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If asking itself is broken, that is logged, and the backend is found out once it is not."""
    clock = Clock()
    with answering() as table:
        table["/info"] = HELLO
        async with asyncio.timeout(20), connected(table.backend.url) as connections:
            with monkeypatch.context() as broken:
                broken.setattr(connections, "ask", lambda *_, **__: 1 / 0)
                async with asking(connections, clock) as (backend, _):
                    assert "ZeroDivisionError" in caplog.text
                    backend._reachable(True)
                    await asyncio.wait(backend._tasks)
                    await asyncio.sleep(0)
                    assert caplog.text.count("ZeroDivisionError") == 2
                    broken.undo()
                    await clock.tick()
                    assert backend.speaks(INFO)


async def test_a_backend_that_is_gone_is_asked_one_question_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody is there, looking for what it speaks uses up no retries that callers may need."""
    clock = Clock()
    with answering() as table:
        async with (
            connected(table.backend.url) as connections,
            asking(connections, clock, [INFO, BOTH]) as (backend, health),
        ):
            table.backend.__exit__(None, None, None)
            asked: list[str] = []
            ask = connections.ask

            async def seen(path: str, *, within: float) -> Exchange:
                asked.append(path)
                return await ask(path, within=within)

            monkeypatch.setattr(connections, "ask", seen)
            await clock.tick()
            assert asked == ["/info"]
            assert (health.reachable, backend.asked) == (False, True)


async def test_without_anything_to_find_out_nothing_is_asked() -> None:
    """A Forebay whose routes all say their protocol sends no questions about it."""
    with answering() as table:
        async with connected(table.backend.url) as connections:
            backend = Backend(connections, Health(connections), [Silent()])
            backend.start()
            await backend.poll()
            backend._reachable(True)
            assert (backend.asked, backend._tasks) == (True, set())
            await backend.aclose()
            assert not table.asked
