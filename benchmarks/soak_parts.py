"""What soaks are made of besides traffic: a backend that is killed and comes back, a configuration, a free port.

Invariant: whatever is started here ends with its `with` block.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.parts.forebay_process import ROOT, environment
from tests.parts.redis import free_port

START_WITHIN = 20.0  # seconds

CONFIG = """\
upstream: {timeout: {first_byte: 3s}, keepalive: 1s}
cache: {memory: %s, finish_abandoned: 1s}
limits: {parse: 256KiB}
"""
"""Little memory, so that a short soak fills it too; a time limit, or what hangs would hang for ever; and connections
to the backend that go soon after the traffic."""


class BackendProcess:
    """`benchmarks.soak_backend` at one address for as long as this lives, however often it is killed.

    weights: those of the last start; a load of the model adds one, which whoever sends it says here too.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.weights = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Return once it listens, with weights that nobody has seen yet."""
        self.weights += 1
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.soak_backend", str(self.port), str(self.weights)),
            cwd=ROOT,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_WITHIN):
            if b"listening" not in await self._process.stdout.readline():
                raise RuntimeError("the backend did not start")

    async def kill(self) -> None:
        """As a crash does it."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    def __repr__(self) -> str:
        return f"<BackendProcess {'down' if self._process is None else 'up'} weights={self.weights}>"


@asynccontextmanager
async def backend_process() -> AsyncIterator[BackendProcess]:
    backend = BackendProcess()
    try:
        await backend.start()
        yield backend
    finally:
        await backend.kill()


def written(directory: Path, memory: str) -> Path:
    """The configuration of a soak, as a file."""
    path = directory / "forebay.yaml"
    path.write_text(CONFIG % memory)
    return path
