"""The promise that bodies of any size go through in bounded memory: 1 GiB each way through a process of its own."""

from __future__ import annotations

import asyncio
import io
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stage import Act, Stage
from tests.parts.availability import missing
from tests.parts.forebay_process import ForebayProcess, forebay_process
from tests.parts.raw_backend import PATIENCE, Peer, Received

MIB = 2**20
GIB = 1024 * MIB
GROWTH = 32 * MIB
PERIOD = random.Random(1).randbytes(MIB - 3)  # odd, so that nothing lost, doubled or swapped falls into step
TWICE = PERIOD * 2


def pieces(left: int) -> Iterator[bytes]:
    """A body of `left` bytes, made as it is sent."""
    size = len(PERIOD)
    while left:
        yield PERIOD if left >= size else PERIOD[:left]
        left -= min(left, size)


class Expected:
    """Compares a body, piece by piece as it comes, with the one that was sent."""

    def __init__(self) -> None:
        self.came = 0

    def take(self, piece: bytes) -> None:
        at = self.came % len(PERIOD)
        for start in range(0, len(piece), len(PERIOD)):
            part = piece[start : start + len(PERIOD)]
            assert part == TWICE[at : at + len(part)], f"another byte than was sent, after {self.came}"
        self.came += len(piece)


LAST = b"0\r\n\r\n"


def framing(size: int, chunks: bool) -> bytes:
    return b"Transfer-Encoding: chunked\r\n" if chunks else b"Content-Length: %d\r\n" % size


def chunked(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def script(size: int) -> Act:
    """Take a body of `size` bytes, then send it back in the framing in which it came."""

    def act(peer: Peer, head: Received) -> None:
        body = Expected()
        chunks = bool(head.values(b"transfer-encoding"))
        for length in peer.chunks() if chunks else [size]:
            for piece in peer.pieces(length):
                body.take(piece)
        assert body.came == size
        peer.send(b"HTTP/1.1 200 OK\r\n", framing(size, chunks), b"\r\n")
        for piece in pieces(size):
            peer.send(chunked(piece) if chunks else piece)
        if chunks:
            peer.send(LAST)

    return act


def client(address: tuple[str, int], target: bytes, size: int, chunks: bool) -> None:
    """Send a body of `size` bytes and check that the same comes back."""
    body = Expected()
    with socket.create_connection(address, timeout=PATIENCE) as sock:
        sock.sendall(b"POST /" + target + b" HTTP/1.1\r\nHost: x\r\n" + framing(size, chunks) + b"\r\n")
        for piece in pieces(size):
            sock.sendall(chunked(piece) if chunks else piece)
        if chunks:
            sock.sendall(LAST)
        with io.BufferedReader(sock.makefile("rb", buffering=0), MIB) as stream:
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            while stream.readline() != b"\r\n":
                pass
            if not chunks:
                while piece := stream.read1(min(MIB, size - body.came)):
                    body.take(piece)
            while chunks and (length := int(stream.readline(), 16)):
                body.take(stream.read(length))
                assert stream.read(2) == b"\r\n"
            assert not chunks or stream.readline() == b"\r\n"
    assert body.came == size


def resident(forebay: ForebayProcess, what: str) -> int:
    """Bytes of the process in memory: now (VmRSS), or the most since `forget_peak` (VmHWM)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{forebay.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(forebay: ForebayProcess) -> None:
    clear_refs = Path(f"/proc/{forebay.pid}/clear_refs")
    if not clear_refs.exists():
        missing("Linux's /proc", "memory is measured there")
    clear_refs.write_text("5")


@pytest.mark.parametrize(
    ("target", "size", "chunks"),
    [
        ("any", GIB, False),
        ("any", GIB // 4, True),
        ("v2/models/double/infer", GIB // 4, False),
        ("v2/models/double/infer", GIB // 4, True),
    ],
)
async def test_large_bodies_go_through_in_bounded_memory(target: str, size: int, chunks: bool) -> None:
    """However large a body is, upload and answer arrive byte for byte, and the process grows by 32 MiB at the most.

    The second target is one whose body Forebay would like to parse.
    """
    stage = Stage(script(size))
    with stage.backend:
        async with forebay_process(stage.backend.url) as forebay:
            await forebay.ready()
            host, _, port = forebay.address.rpartition(":")
            forget_peak(forebay)
            before = resident(forebay, "VmRSS")
            await asyncio.to_thread(client, (host, int(port)), target.encode(), size, chunks)
            grown = resident(forebay, "VmHWM") - before
            assert grown <= GROWTH, f"{grown / MIB:.1f} MiB more for {size // MIB} MiB each way"
