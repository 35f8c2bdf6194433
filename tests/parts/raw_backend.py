r"""A backend whose every byte a test writes, for what no real server does on demand.

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        peer.reset()

    with RawBackend(script) as backend: ...

Each connection runs a script in a thread of its own, the first connection the first script and so on,
the last script for all that follow. Threads, so that a test can act on a connection (`backend.peers[0]`)
while the loop under test stands still: what it sends then waits in the kernel, unread. A script that
returns leaves its connection open. Nothing sleeps: a script waits for the client or for `let`, a test
for `until`. A fault in a script is raised where the `with` ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PATIENCE = 20.0  # seconds until a wait is given up as a failure


class Gone(Exception):
    """The client closed the connection, or the test is over. Ends a script without being its fault."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came: the head's own bytes without the empty line, and the body without framing."""

    head: bytes
    body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, _, value in (f.partition(b": ") for f in self.head.split(b"\r\n")[1:])]

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field.lower() == name.lower()]


class Peer:
    """One connection, seen from the backend."""

    def __init__(self, backend: RawBackend, sock: socket.socket, number: int) -> None:
        self.number = number
        self.gone = False  # the client has closed
        self.received = 0  # bytes of bodies that `swallow` and `until_gone` read
        self._backend = backend
        self._socket = sock
        self._unread = b""

    def request(self) -> Received:
        """The next request, whole."""
        return self.whole(self.head())

    def whole(self, head: Received) -> Received:
        """The request that begins with `head`, whole."""
        if head.values(b"transfer-encoding"):
            body = b"".join(self.read(size) for size in self.chunks())
        else:
            body = self.read(int((head.values(b"content-length") or [b"0"])[0]))
        received = Received(head.head, body)
        self._backend.note(lambda: self._backend.requests.append(received))
        return received

    def head(self) -> Received:
        """The next head; its body stays unread."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        return Received(head, b"")

    def read(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._more()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def chunks(self) -> Iterator[int]:
        """The sizes of the chunks of a body; the bytes of each are the caller's to read."""
        while size := int(self._line(), 16):
            yield size
            self._line()
        self._line()

    def pieces(self, size: int) -> Iterator[bytes]:
        """So many bytes as they come, none of them kept."""
        while size:
            if not self._unread:
                self._more()
            piece, self._unread = self._unread[:size], self._unread[size:]
            size -= len(piece)
            yield piece

    def swallow(self, size: int) -> None:
        """Read so many bytes and keep none."""
        for piece in self.pieces(size):
            self.received += len(piece)

    def send(self, *pieces: bytes) -> None:
        try:
            self._socket.sendall(b"".join(pieces))
        except OSError:
            self._left()

    def answer(self, body: bytes = b"", *, status: bytes = b"200 OK", fields: bytes = b"") -> None:
        """A plain answer with a Content-Length. fields: whole lines, each with its line end."""
        self.send(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body))

    def close(self) -> None:
        """An orderly end (a FIN; a reset if there is anything unread, as with every server)."""
        self._socket.close()

    def half_close(self) -> None:
        """Send no more, read on."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def until_gone(self) -> None:
        """Wait until the client closes, without keeping what it still sends."""
        with contextlib.suppress(Gone):
            self.swallow(sys.maxsize)

    def wait(self, name: str) -> None:
        """Wait until the test says `let(name)`."""
        if not self._backend.event(name).wait(PATIENCE):
            raise AssertionError(f"nobody let {name!r}")

    def _line(self) -> bytes:
        while b"\r\n" not in self._unread:
            self._more()
        line, _, self._unread = self._unread.partition(b"\r\n")
        return line

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._left()
        self._unread += data

    def _left(self) -> None:
        def note() -> None:
            self.gone = True

        self._backend.note(note)
        raise Gone

    def shut(self) -> None:
        """Wake up whatever waits on the connection; the test is over."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __repr__(self) -> str:
        return f"<Peer {self.number} {'gone' if self.gone else 'open'}>"


Script = Callable[[Peer], None]


class RawBackend:
    """Listens on a free port of loopback, or on one that another has left.

    requests: those read whole, by all connections, in order.
    """

    def __init__(self, *scripts: Script, port: int = 0) -> None:
        self.requests: list[Received] = []
        self.peers: list[Peer] = []
        self._scripts = scripts
        self._faults: list[BaseException] = []
        self._changed = threading.Condition()
        self._events: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._over = False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def let(self, name: str) -> None:
        """Let every script that waits for `name` go on, now and later."""
        self.event(name).set()

    def event(self, name: str) -> threading.Event:
        with self._changed:
            event = self._events.setdefault(name, threading.Event())
            if self._over:
                event.set()
            return event

    def note(self, change: Callable[[], None]) -> None:
        """Change something that tests wait for."""
        with self._changed:
            change()
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, without holding up the loop, until something that scripts note has come true."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(condition, PATIENCE)

        assert await asyncio.to_thread(wait), f"never came true: {self!r}"

    async def until_gone(self, number: int) -> None:
        """Wait until the client has closed its connection `number`, and the script has seen it."""
        await self.until(lambda: len(self.peers) > number and self.peers[number].gone)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for event in list(self._events.values()):
            event.set()
        for peer in list(self.peers):
            peer.shut()
        for thread in list(self._threads):
            thread.join(PATIENCE)
            assert not thread.is_alive(), self
        if self._faults and error is None:
            raise self._faults[0]

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is sent arrives now, not after an ACK
            peer = Peer(self, sock, len(self.peers))
            self.note(functools.partial(self.peers.append, peer))
            if self._over:  # it came in the moment of the end, which may not have seen it
                peer.shut()
                return
            self._start(functools.partial(self._run, peer))

    def _run(self, peer: Peer) -> None:
        script = self._scripts[min(peer.number, len(self._scripts) - 1)]
        try:
            script(peer)
        except Gone:
            pass
        except BaseException as fault:  # noqa: BLE001 - raised again where the test ends
            if not self._over:
                self._faults.append(fault)

    def __repr__(self) -> str:
        return f"<RawBackend {self.url} requests={len(self.requests)} peers={self.peers}>"
