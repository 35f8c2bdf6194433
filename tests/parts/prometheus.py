"""Debian's Prometheus, on a directory and a port of its own, scraping given addresses twice a second.

Its readiness and its scrapes are waited for by asking it: it is another process, and says nothing by itself.
The first scrape comes five seconds after the start, for so long Prometheus collects its targets; tests share one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.parts.availability import missing
from tests.parts.server_process import free_port

_POLL = 0.05  # seconds between questions to the other process
_STARTS = 3  # a port that was free may be taken by somebody else before Prometheus binds it


class Prometheus:
    """A running Prometheus. `query` gives label sets with values, `scraped` waits for data."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._process = process
        self._session = session

    async def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """The instant vector of `expr`, now. An expression that Prometheus does not understand fails."""
        async with self._session.get(f"{self.url}/api/v1/query", params={"query": expr}) as response:
            answer: dict[str, Any] = await response.json()
        assert answer["status"] == "success", f"{answer.get('error')}: {expr}"
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    async def scraped(self, times: int, *, within: float = 10.0) -> None:
        """Wait until every address was scraped `times` times with success."""
        deadline = time.monotonic() + within
        while True:
            seen = await self.query("sum_over_time(up[1m])")
            if seen and min(value for _, value in seen) >= times:
                return
            assert time.monotonic() < deadline, f"after {within} s: {seen or 'no scrape'}, {await self._trouble()}"
            await asyncio.sleep(_POLL)

    async def _trouble(self) -> list[str]:
        async with self._session.get(f"{self.url}/api/v1/targets") as response:
            answer = await response.json()
        return [target["lastError"] for target in answer["data"]["activeTargets"]]

    def __repr__(self) -> str:
        return f"<Prometheus {self.url} pid={self._process.pid}>"


@asynccontextmanager
async def prometheus(directory: Path, metrics_urls: Sequence[str]) -> AsyncIterator[Prometheus]:
    """Run Prometheus in `directory` on these metrics URLs until the block ends."""
    program = _program("prometheus")
    jobs = []
    for number, url in enumerate(metrics_urls):
        at = urlsplit(url)
        static = [{"targets": [at.netloc]}]
        jobs.append({"job_name": f"job{number}", "metrics_path": at.path or "/metrics", "static_configs": static})
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    config = directory / "prometheus.yml"
    config.write_text(json.dumps({"global": every, "scrape_configs": jobs}))  # JSON is YAML
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        for attempt in range(_STARTS):
            address = f"127.0.0.1:{free_port()}"
            process = await asyncio.create_subprocess_exec(
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / f'data{attempt}'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
                stderr=subprocess.PIPE,
            )
            try:
                if await _ready(f"http://{address}", process, session):
                    yield Prometheus(f"http://{address}", process, session)
                    return
            finally:
                if process.returncode is None:
                    process.kill()  # nothing of its data is wanted
                _, said = await process.communicate()
        raise AssertionError(f"Prometheus did not start: {said.decode()}")


async def _ready(url: str, process: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> bool:
    """Wait until it answers; False once it has ended."""
    while process.returncode is None:
        try:
            async with session.get(f"{url}/-/ready") as response:
                if response.status == 200:
                    return True
        except aiohttp.ClientConnectorError:
            pass  # not listening yet
        await asyncio.sleep(_POLL)
    return False


async def lint(exposition: bytes) -> str:
    """What `promtool check metrics` finds wrong with it; empty if nothing."""
    process = await asyncio.create_subprocess_exec(
        _program("promtool"),
        "check",
        "metrics",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await process.communicate(exposition)
    assert process.returncode is not None
    return said.decode() or f"exit {process.returncode}" * bool(process.returncode)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        missing(f"Debian's prometheus ({name})", "apt-get install prometheus")
    return path
