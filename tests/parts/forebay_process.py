"""Forebay as an operator runs it: `python -m proxy serve` in a process of its own, what it says, and how it ends.

Another process says nothing by itself but lines in its log; what it answers on its admin listener is asked for.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 20.0  # seconds until a wait is given up as a failure
_POLL = 0.01  # seconds between questions to the other process
_LISTENING = re.compile(r"listening on http://(\S+), admin on http://([^\s,]+)")


def environment(**more: str) -> dict[str, str]:
    """The variables of this process, without those that would configure a Forebay."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")} | more


class ForebayProcess:
    """lines: what it has logged so far. address, admin: HOST:PORT of its two listeners."""

    def __init__(self, process: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> None:
        self.lines: list[str] = []
        self.address = self.admin = ""
        self.session = session
        self._process = process
        self._said = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            async with self._said:
                self.lines.append(line.decode().rstrip("\n"))
                self._said.notify_all()
        async with self._said:
            self._said.notify_all()

    async def says(self, text: str) -> str:
        """The first line of its log that holds `text`, as soon as there is one."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        async with asyncio.timeout(PATIENCE), self._said:
            await self._said.wait_for(lambda: found() or self._process.stderr.at_eof())  # type: ignore[union-attr]  # a pipe
        line = found()
        assert line is not None, f"it never said {text!r}: {self.lines}"
        return line

    async def listens(self) -> None:
        listening = _LISTENING.search(await self.says("listening on"))
        assert listening is not None, self.lines
        self.address, self.admin = listening.groups()

    async def asked(self, path: str, *, method: str = "GET") -> tuple[int, str]:
        """What the admin listener answers."""
        headers = {"Content-Type": "application/json"}
        async with self.session.request(method, f"http://{self.admin}{path}", headers=headers) as answer:
            return answer.status, await answer.text()

    async def until(self, path: str, right: Callable[[int, str], bool]) -> None:
        """Ask the admin listener until its answer is as it should be."""
        async with asyncio.timeout(PATIENCE):
            while not right(*await self.asked(path)):  # noqa: ASYNC110  # another process has no event to wait for
                await asyncio.sleep(_POLL)

    async def ready(self) -> None:
        await self.until("/readyz", lambda status, _: status == 200)

    def signal(self, sign: signal.Signals) -> None:
        self._process.send_signal(sign)

    async def exit_code(self) -> int:
        """How it ended, when it has."""
        async with asyncio.timeout(PATIENCE):
            code = await self._process.wait()
            await self._reader
        return code

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def close(self) -> None:
        if self.running:
            self._process.kill()
        await self._process.wait()
        await self._reader

    def __repr__(self) -> str:
        return f"<ForebayProcess {self.pid} {'running' if self.running else f'ended with {self._process.returncode}'}>"


@asynccontextmanager
async def forebay_process(upstream: str, *arguments: str) -> AsyncIterator[ForebayProcess]:
    """Forebay before `upstream`, on free ports, listening."""
    free: Sequence[str] = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--upstream", upstream, *free, *arguments),
        cwd=ROOT,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        forebay = ForebayProcess(process, session)
        try:
            await forebay.listens()
            yield forebay
        finally:
            await forebay.close()
