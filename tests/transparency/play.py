"""Plays a row: a client and a backend of bytes, with whatever proxy stands between them.

The backend listens where the proxy was told it would. Each wait of the client has an end: a proxy that
leaves it waiting has failed the row, not the run.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, cast

from tests.parts.raw_backend import Peer, RawBackend, Received
from tests.transparency.row import (
    CLOSE,
    CONTINUE,
    END,
    GONE,
    HALF_CLOSE,
    RESET,
    RESTART,
    WHOLE,
    Act,
    Answers,
    Hanging,
    Heads,
    Interim,
    Let,
    Raw,
    Row,
    Slowly,
    Step,
    Wait,
)
from tests.transparency.seen import BackendSide, ClientSide, Message, Seen, answers

HANG: Final = b"/hang"
"""What is asked for here is never answered."""

_METHOD: Final = re.compile(rb"^([A-Z]+) \S* HTTP/1\.[01]\r$", re.MULTILINE)
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, no time

Address = tuple[str, int]


class Client(asyncio.Protocol):
    """One connection to the proxy: what was sent, what came, and how it ended."""

    def __init__(self) -> None:
        self.sent = b""
        self.raw = bytearray()
        self.end = "open"
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.raw += data
        self.changed.set()

    def eof_received(self) -> bool:
        self.end = "closed"
        self.changed.set()
        return True  # writing goes on, as with a client that has not read yet

    def connection_lost(self, exc: Exception | None) -> None:
        if self.end == "open":
            self.end = "reset" if exc is not None else "closed"
        self.changed.set()
        self.lost.set()

    def send(self, data: bytes) -> None:
        self.sent += data
        self.transport.write(data)

    @property
    def side(self) -> ClientSide:
        return answers(bytes(self.raw), _METHOD.findall(self.sent), self.end)

    async def until(self, happened: Callable[[], bool], *, within: float) -> bool:
        """Wait until something of what came is so, or nothing more can come."""
        try:
            async with asyncio.timeout(within):
                while not happened() and self.end == "open":
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return happened()

    async def leave(self) -> None:
        """Go, and be gone."""
        self.transport.abort()
        await self.lost.wait()


class Backend:
    """Plays the acts of a row, and notes what it was asked."""

    def __init__(self, row: Row, port: int) -> None:
        self.seen = BackendSide()
        self.hanging = 0
        self._row = row
        self._connections: set[int] = set()
        self._port = port
        self.raw = RawBackend(self._script, port=port)

    def again(self) -> None:
        """Listen once more, as the next incarnation."""
        self.raw = RawBackend(self._script, port=self._port)

    def _script(self, peer: Peer) -> None:
        while True:
            head = peer.head()
            if head.values(b"user-agent") == [b"forebay"]:  # a question of Forebay's own
                peer.answer(b"no such thing", status=b"404 Not Found")
                continue
            if HANG in head.line:
                self.raw.note(self._hangs)
                peer.until_gone()
                return
            number, act = self._asked(peer, head)
            if not self._play(peer, number, act):
                return

    def _hangs(self) -> None:
        self.hanging += 1

    def _asked(self, peer: Peer, head: Received) -> tuple[int, Act]:
        numbers: list[int] = []

        def note() -> None:
            line, *fields = head.head.split(b"\r\n")
            numbers.append(len(self.seen.messages))
            self.seen.messages.append(Message(line, tuple(fields), b"", whole=False))
            self._connections.add(peer.number)
            self.seen.connections = len(self._connections)

        self.raw.note(note)
        return numbers[0], self._row.backend[min(numbers[0], len(self._row.backend) - 1)]

    def _play(self, peer: Peer, number: int, act: Act) -> bool:  # noqa: PLR0912  # a branch a step
        """True if another request may follow on this connection."""
        for step in (WHOLE, act) if isinstance(act, bytes) else act:
            match step:
                case bytes():
                    peer.send(step)
                case Slowly(data):
                    for byte in data:
                        peer.send(bytes((byte,)))
                case Wait(name):
                    peer.wait(name)
                case Let(name):
                    self.raw.let(name)
                case _ if step is WHOLE:
                    if not self._read(peer, number):
                        return False
                case _ if step is CONTINUE:
                    if self.seen.messages[number].values(b"expect"):
                        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
                case _ if step is GONE:
                    peer.until_gone()
                case _ if step is HALF_CLOSE:
                    peer.half_close()
                case _ if step is CLOSE:
                    peer.close()
                    return False
                case _ if step is RESET:
                    peer.reset()
                    return False
                case _:
                    raise AssertionError(f"no step of a backend: {step!r}")
        return True

    def _read(self, peer: Peer, number: int) -> bool:
        """The body of a request; False where no strict reader would find its end."""
        message = self.seen.messages[number]
        lengths = message.values(b"content-length")
        try:
            if message.values(b"transfer-encoding"):
                body = b"".join(peer.read(size) for size in peer.chunks())
            else:
                body = peer.read(int(lengths[0])) if lengths else b""
        except ValueError:
            return False
        self.raw.note(lambda: self._whole(number, body))
        return True

    def _whole(self, number: int, body: bytes) -> None:
        was = self.seen.messages[number]
        self.seen.messages[number] = Message(was.line, was.fields, body, whole=True)


@contextmanager
def reserved() -> Iterator[int]:
    """A port for a backend that comes and goes, which meanwhile nobody else is given."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


async def play(row: Row, port: int, front: Address, *, patience: float = 10.0) -> Seen:
    """What both sides saw of a row, played through the proxy at `front`, whose backend is this port of loopback."""
    with ExitStack() as stack:
        backend = None if row.absent else Backend(row, port)
        if backend is not None:
            stack.enter_context(backend.raw)
        run = _Run(row, front, patience, backend, stack)
        try:
            await run.client_steps()
            side = run.clients[0].side
        finally:
            await run.leave()
    return Seen(side, BackendSide() if backend is None else backend.seen, run.stuck)


class _Run:
    """The client's part of a row."""

    def __init__(self, row: Row, front: Address, patience: float, backend: Backend | None, stack: ExitStack) -> None:
        self.clients: list[Client] = []
        self.stuck: list[str] = []
        self._row = row
        self._front = front
        self._patience = patience
        self._backend = backend
        self._stack = stack

    async def client_steps(self) -> None:
        client = await self._connect()
        for step in self._row.client:
            if not await self._step(client, step):
                self.stuck.append(f"waited in vain: {step!r}")
                return

    async def leave(self) -> None:
        for client in self.clients:
            await client.leave()

    async def _connect(self) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(Client, *self._front)
        self.clients.append(client)
        return client

    async def _step(self, client: Client, step: Step) -> bool:
        match step:
            case bytes():
                client.send(step)
            case Slowly(data):
                for byte in data:
                    client.send(bytes((byte,)))
                    await asyncio.sleep(0)
            case Answers(count):
                return await client.until(lambda: _whole(client.side, count), within=self._patience)
            case Interim():
                return await client.until(lambda: bool(client.side.interim), within=self._patience)
            case Raw(data):
                return await client.until(lambda: data in client.raw, within=self._patience)
            case Heads(count):
                return await self._asked(lambda seen: len(seen.messages) >= count)
            case Let(name):
                assert self._backend is not None
                self._backend.raw.let(name)
            case Wait(name):
                assert self._backend is not None
                return await asyncio.to_thread(self._backend.raw.event(name).wait, self._patience)
            case Hanging(count):
                await self._hang(count)
            case _:
                return await self._end(client, step)
        return True

    async def _end(self, client: Client, step: Step) -> bool:
        if step is END:
            return await client.until(lambda: client.end != "open", within=self._patience)
        if step is HALF_CLOSE:
            client.transport.write_eof()
        elif step is CLOSE:
            client.transport.close()
        elif step is RESET:
            client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.transport.abort()
        elif step is RESTART:
            assert self._backend is not None
            self._stack.close()
            self._backend.again()
            self._stack.enter_context(self._backend.raw)
        else:
            raise AssertionError(f"no step of a client: {step!r}")
        return True

    async def _asked(self, enough: Callable[[BackendSide], bool]) -> bool:
        assert self._backend is not None
        seen, raw = self._backend.seen, self._backend.raw

        def wait() -> bool:
            with raw._changed:
                return raw._changed.wait_for(lambda: enough(seen), self._patience)

        return await asyncio.to_thread(wait)

    async def _hang(self, count: int) -> None:
        backend = self._backend
        assert backend is not None
        for _ in range(count):
            (await self._connect()).send(b"GET " + HANG + b" HTTP/1.1\r\nHost: front\r\n\r\n")
        await self._asked(lambda _: backend.hanging >= count)


def _whole(side: ClientSide, count: int) -> bool:
    return len(side.answers) >= count and all(answer.whole for answer in side.answers[:count])
