"""Starting what is measured, each process on the core it is given, and asking what it costs.

Invariant: whatever is started here ends with its `with` block.
"""

from __future__ import annotations

import http.client
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from proxy.measure.scrape import Scrape

START_WITHIN: Final = 20.0  # seconds
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ADDRESSES: Final = re.compile(r"listening on (http://\S+?)(?:, admin on (http://\S+?),.*)?$", re.MULTILINE)


def cores() -> tuple[int, int]:
    """The core for what is measured, and the one for load and backend."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RuntimeError("the benchmark wants two cores: one for what is measured, one for load and backend")
    return usable[0], usable[1]


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Whatever is started in this block stays on this core."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens. admin: Forebay's second listener."""

    url: str
    pid: int
    admin: str = ""

    def cpu_seconds(self) -> float:
        """CPU time that it has taken since it started."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def scrape(self) -> Scrape:
        """Forebay's own metrics, now."""
        return Scrape(ask("GET", f"{self.admin}/metrics")[2].decode())


def ask(method: str, url: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, fields in lower case, body."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)) as connection:
        connection.request(method, parts.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


@contextmanager
def started(*arguments: str, core: int) -> Iterator[Running]:
    """`python arguments` on this core, when it says where it listens."""
    with pinned(core):
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    try:
        url, admin = _listening(process)
        yield Running(url, process.pid, admin)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _listening(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    said, deadline = "", time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        if not select.select([process.stdout], [], [], 0.1)[0]:
            continue
        line = process.stdout.readline()
        said += line
        if found := _ADDRESSES.search(line):
            return found[1], found[2] or ""
        if not line:
            break
    raise RuntimeError(f"{process.args!r} did not start:\n{said}")


@contextmanager
def bare(core: int) -> Iterator[Running]:
    """The bare server."""
    with started("-m", "benchmarks.bare", core=core) as server:
        yield server


@contextmanager
def forebay(upstream: str, core: int, *, module: str = "proxy") -> Iterator[Running]:
    """`forebay serve` before `upstream`, as it is out of the box."""
    command = ("-m", module, "serve", "--upstream", upstream, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with started(*command, core=core) as server:
        yield server


def knows(server: Running, path: str, body: bytes) -> None:
    """Ask until Forebay has learnt from the backend what the model is."""
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        status, fields, answer = ask("POST", server.url + path, body)
        if status != 200:
            raise RuntimeError(f"{path} is answered {status}: {answer!r}")
        if "model_unknown" not in fields.get("cache-status", "model_unknown"):
            return
        time.sleep(0.05)
    raise RuntimeError(f"Forebay did not learn what {path} is")
