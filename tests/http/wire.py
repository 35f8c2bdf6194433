"""A client that speaks bytes, so that a test decides what is on the wire, and sees what comes back."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE = 10.0
"""Seconds after which a test that waits for bytes has failed."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # the state that is waited for sets no event
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came: `headers` in wire order; `body` without its framing."""

    status: int
    reason: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def get(self, name: bytes) -> bytes | None:
        return next((value for field, value in self.headers if field.lower() == name.lower()), None)


class Wire:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int], *, receive_buffer: int | None = None) -> Wire:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError:
            sock.close()
            raise
        return cls(*await asyncio.open_connection(sock=sock, limit=2**16))

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            self.writer.write(data)
            await self.writer.drain()

    async def head(self) -> Answer:
        """The head of an answer, as soon as it is there."""
        async with asyncio.timeout(PATIENCE):
            lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        version, status, reason = lines[0].split(b" ", 2)
        assert version == b"HTTP/1.1", lines[0]
        fields = tuple((name, value) for name, value in (line.split(b": ", 1) for line in lines[1:]))
        return Answer(int(status), reason, fields, b"")

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """A whole answer, by the framing that it declares."""
        head = await self.head()
        async with asyncio.timeout(PATIENCE):
            if bodiless:
                body = b""
            elif (length := head.get(b"content-length")) is not None:
                body = await self.reader.readexactly(int(length))
            elif head.get(b"transfer-encoding") == b"chunked":
                pieces = []
                while piece := await self.chunk():
                    pieces.append(piece)
                body = b"".join(pieces)
            else:
                body = await self.reader.read()
        return Answer(head.status, head.reason, head.headers, body)

    async def chunk(self) -> bytes:
        """The next chunk; b"" is the last one. Raises IncompleteReadError where the body breaks off."""
        async with asyncio.timeout(PATIENCE):
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection. Raises ConnectionResetError where it was reset."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    def end_writing(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Leave as a killed process with unread bytes does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
