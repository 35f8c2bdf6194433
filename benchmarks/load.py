"""Load from wrk: one thread, so many connections, each sending its next request when it has its answer.

Loopback only, bounded by whole seconds. Latency is wrk's own: from a request written to its answer read.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

SCRIPT: Final = Path(__file__).with_name("load.lua")
SATURATED: Final = 0.9
"""Share of its core above which wrk, not what it loads, may be the bottleneck."""

_RESULT: Final = re.compile(r"^result (\{.*\})$", re.MULTILINE)


class NoWrk(Exception):
    """wrk is not installed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to send to `url`. varied: every `@` in the body becomes a number that no other request has."""

    url: str
    body: bytes
    callers: int
    seconds: int
    varied: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run of wrk saw. busy: wrk's own share of a core."""

    answers: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int
    busy: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


def program() -> str:
    """Where wrk is. Raises NoWrk."""
    found = shutil.which("wrk")
    if found is None:
        raise NoWrk("wrk is not installed: `apt-get install wrk` on Debian, `brew install wrk` on macOS")
    return found


def parse(output: str, busy_seconds: float) -> Sample:
    """What `load.lua` wrote at the end of wrk's output; busy_seconds: CPU time that wrk took."""
    found = _RESULT.search(output)
    if found is None:
        raise ValueError(f"wrk ended without a result:\n{output}")
    result = json.loads(found[1])
    return Sample(**result, busy=busy_seconds / result["seconds"])


_firsts = itertools.count(1, 1_000_000)  # numbers must differ over all runs, for all may ask one response cache


def run(load: Load, core: int) -> Sample:
    """Let wrk send `load` from this core."""
    parts = urlsplit(load.url)
    assert parts.hostname == "127.0.0.1", "load goes to loopback only"
    first = next(_firsts) if load.varied else 0
    command = [program(), "--threads=1", f"--connections={load.callers}", f"--duration={load.seconds}s"]
    command += ["--timeout=20s", f"--script={SCRIPT}", f"http://{parts.netloc}", "--"]
    command += [parts.path, load.body.decode(), str(first)]
    before = os.times()
    done = subprocess.run(
        ["taskset", "--cpu-list", str(core), *command],
        capture_output=True,
        text=True,
        timeout=load.seconds + 40,
        check=False,
    )
    after = os.times()
    if done.returncode:
        raise RuntimeError(f"wrk ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return parse(done.stdout, busy)
