"""Forebay between bytes that a test writes on either side: raw sockets before it, a raw backend behind it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.http.wire import Wire
from tests.parts.forebay import Running, forebay
from tests.parts.raw_backend import Peer, RawBackend, Received

Act = Callable[[Peer, Received], None]
"""What the backend does about one request of a client, whose head it has read."""


def reply(peer: Peer, head: Received) -> None:
    """Read all of it, and answer with a number that no other answer has."""
    request = peer.whole(head)
    peer.answer(b"%d bytes on %d" % (len(request.body), peer.number))


class Stage:
    """A backend that deals with the n-th request of a client by the n-th act, and with all that follow by the last.

    heads, peers: of the clients' requests, in order; Forebay's own questions get a 404 and are left out.
    """

    def __init__(self, *acts: Act) -> None:
        self.heads: list[Received] = []
        self.peers: list[Peer] = []
        self._acts = acts
        self._lock = threading.Lock()
        self.backend = RawBackend(self._script)

    def _script(self, peer: Peer) -> None:
        while True:
            head = peer.head()
            if head.values(b"user-agent") == [b"forebay"]:
                peer.answer(b"no such thing", status=b"404 Not Found")
                continue
            with self._lock:
                act = self._acts[min(len(self.heads), len(self._acts) - 1)]
                self.backend.note(lambda head=head: self._asked(peer, head))  # type: ignore[misc]  # bound at once
            act(peer, head)

    def _asked(self, peer: Peer, head: Received) -> None:
        self.heads.append(head)
        self.peers.append(peer)

    @property
    def lines(self) -> list[bytes]:
        """The first lines of the clients' requests."""
        return [head.line for head in self.heads]

    async def asked(self, times: int) -> None:
        """Wait until so many heads of clients' requests have come."""
        await self.backend.until(lambda: len(self.heads) >= times)


class Scene:
    """A stage and a Forebay before it."""

    def __init__(self, stage: Stage, running: Running) -> None:
        self.stage = stage
        self.backend = stage.backend
        self.running = running
        self.wires: list[Wire] = []

    async def connect(self, *, receive_buffer: int | None = None) -> Wire:
        """A client."""
        host, _, port = self.running.sidecar.data_address.rpartition(":")
        wire = await Wire.connect((host, int(port)), receive_buffer=receive_buffer)
        self.wires.append(wire)
        return wire


@asynccontextmanager
async def played(*acts: Act, config: Path | None = None) -> AsyncIterator[Scene]:
    stage = Stage(*acts)
    with stage.backend:
        async with forebay(stage.backend.url, config=config) as running:
            scene = Scene(stage, running)
            try:
                yield scene
            finally:
                for wire in scene.wires:
                    wire.close()
