"""Promises of the end of listening: whoever got in is served, and nobody gets in to be thrown out."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import sys
import threading
from typing import cast

import pytest

from proxy.http.backlog import take_all

ROUNDS = 20
CLIENTS = 3


class Greeter(asyncio.Protocol):
    """Answers whatever comes and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"hello")
        self.transport.close()


class Clients:
    """Threads that connect and ask, again and again, until they are refused. answers: what each request got."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.answers: list[bytes] = []
        self.ends: list[str] = []
        self._address = address
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while True:
            try:
                with socket.create_connection(self._address, timeout=10) as sock:
                    sock.sendall(b"hi")
                    try:
                        self.answers.append(sock.recv(100))
                    except OSError as error:
                        self.answers.append(repr(error).encode())
            except OSError as error:
                self.ends.append(type(error).__name__)
                return

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()


async def test_whoever_could_connect_is_answered() -> None:
    """A client gets in and is served, or is refused: never in between, at whatever moment listening ends."""
    loop = asyncio.get_running_loop()
    answered = 0
    for _ in range(ROUNDS):
        listener = await loop.create_server(Greeter, "127.0.0.1", 0)
        clients = Clients(listener.sockets[0].getsockname())
        while len(clients.answers) < 20:  # noqa: ASYNC110  # threads set no event of the loop's
            await asyncio.sleep(0.001)
        taken = take_all(listener)
        listener.close()
        for sock in taken:
            await loop.connect_accepted_socket(Greeter, sock)
        await asyncio.to_thread(clients.wait)
        assert set(clients.answers) == {b"hello"}
        assert clients.ends == ["ConnectionRefusedError"] * CLIENTS
        answered += len(clients.answers)
    assert answered >= ROUNDS * 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs a filter in the kernel")
async def test_nobody_gets_in_between_the_last_look_and_the_end() -> None:
    """From the moment in which the last connections are taken, the kernel makes no more, which closing would reset."""
    listener = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    assert take_all(listener) == []
    with socket.socket() as late:
        late.setblocking(False)
        late.connect_ex(address)
        poll = select.poll()
        poll.register(late, select.POLLOUT)
        assert poll.poll(50) == []
        listener.close()
        assert await asyncio.to_thread(poll.poll, 5000)  # it has tried again
        assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
