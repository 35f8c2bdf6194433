"""`python -m benchmarks.soak [--minutes 60]`: Forebay for an hour under everything at once, and nothing grows.

Forebay runs as it is installed, in a process of its own, before a model server in another. Callers of every kind
(soak_traffic.py) keep it busy at a bounded rate; meanwhile the model is reloaded, the backend is killed and comes
back, and so does Redis. It passes if every answer was its caller's own, what the process holds is flat (vitals.py
says what that is), no error was logged, and SIGTERM ends it with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.report import machine
from benchmarks.soak_parts import BackendProcess, backend_process, written
from benchmarks.soak_traffic import Traffic
from benchmarks.vitals import Finding, Sample, at_idle_level, look, table, verdict
from tests.parts.forebay_process import ForebayProcess, forebay_process
from tests.parts.redis import RedisServer

OUT = Path("out/soak.json")
IDLE_LOOKS = 5
BACK_WITHIN = 60.0  # seconds until sockets and tasks must be back at their idle level
NOTICED_WITHIN = 5.0  # seconds until a restart of the backend is noticed: two polls of its models
RIGHT_FOR_EACH = 10  # right answers to one that suffered from another's fault; below it only faults were tried


@dataclass
class Report:
    """What a soak has come to."""

    seconds: float
    rate: float
    before: list[Sample] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    after: list[Sample] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    code: int | None = None

    @property
    def findings(self) -> list[Finding]:
        return verdict(self.samples, self.before, self.after)

    @property
    def failures(self) -> list[str]:
        """Why it did not pass; empty if it did."""
        right = sum(count for what, count in self.seen.items() if what.endswith(": right"))
        shared = sum(count for what, count in self.seen.items() if what.endswith("shared with a fault"))
        return [
            *(f"wrong answer: {each}" for each in self.wrong),
            *(f"logged: {each}" for each in self.errors),
            *(f"not flat: {each.what}: {each.value:g} above {each.limit:g}" for each in self.findings if not each.flat),
            *([] if self.code == 0 else [f"exit code {self.code} on SIGTERM"]),
            *([] if right > shared * RIGHT_FOR_EACH else [f"{right} right answers, {shared} that shared a fault"]),
        ]

    def __str__(self) -> str:
        lines = [table(self.samples, self.before, self.after), ""]
        lines += [
            f"{'flat' if f.flat else 'NOT FLAT'}: {f.what}: {f.value:g}, limit {f.limit:g}" for f in self.findings
        ]
        lines += ["", *(f"{count:8} {what}" for what, count in sorted(self.seen.items()))]
        collections = self.samples[-1].full_collections - self.samples[0].full_collections
        lines += ["", f"{self.seconds:g} s at {self.rate:g} requests/s asked for; {collections} full collections"]
        return "\n".join((*lines, *self.failures, "FAILED" if self.failures else "passed"))

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"findings": [asdict(each) for each in self.findings], "failures": self.failures}


class Chaos:
    """What happens to the backend and to Redis meanwhile, one thing at a time."""

    def __init__(self, traffic: Traffic, backend: BackendProcess, redis: RedisServer | None, interval: float) -> None:
        self.traffic, self.backend, self.redis, self.interval = traffic, backend, redis, interval

    async def run(self) -> None:
        happenings = [self.reload, self.restart, self.reload, *([self.lose_redis] if self.redis is not None else [])]
        while True:
            for happening in happenings:
                await asyncio.sleep(self.interval * (0.5 + self.traffic.chance.random()))
                await happening()
                self.traffic.seen[happening.__name__] += 1

    async def reload(self) -> None:
        """Other weights, by a call that passes through Forebay: older answers are wrong once it is answered."""
        self.traffic.newest = self.backend.weights + 1
        async with self.traffic.session.post(f"{self.traffic.url}/v2/repository/models/double/load") as answer:
            if answer.status != 200:
                self.traffic.wrong.append(f"a load of the model is answered {answer.status}")
        self.backend.weights += 1
        self.traffic.least = self.backend.weights

    async def restart(self) -> None:
        """A crash, other weights, and nobody tells Forebay."""
        self.traffic.down = True
        self.traffic.kills += 1
        await self.backend.kill()
        await asyncio.sleep(self.traffic.chance.random())
        self.traffic.newest = self.backend.weights + 1
        await self.backend.start()
        self.traffic.kills += 1
        self.traffic.down = False
        await asyncio.sleep(NOTICED_WITHIN)
        self.traffic.least = self.backend.weights

    async def lose_redis(self) -> None:
        assert self.redis is not None
        await asyncio.to_thread(self.redis.kill)
        await asyncio.sleep(self.traffic.chance.random() * 2)
        await asyncio.to_thread(self.redis.start)


async def _look(process: ForebayProcess, began: float) -> Sample:
    """One look, on a connection that is not kept: it would be one of the sockets that are counted."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(f"http://{process.admin}/config") as answer,
    ):
        report = json.loads(await answer.read())["process"]
    await asyncio.sleep(0.05)
    return look(process.pid, report, time.monotonic() - began)


async def soak(
    seconds: float,
    *,
    rate: float = 100.0,
    seed: int = 1,
    redis: RedisServer | None = None,
    told: Callable[[Sample, Traffic], None] = lambda *_: None,
) -> Report:
    """One soak of so many seconds. told: of each look at Forebay."""
    report = Report(seconds, rate)
    with tempfile.TemporaryDirectory(prefix="forebay-soak-") as directory:
        config = written(Path(directory), memory="4MiB" if seconds >= 600 else "1MiB")
        flags = () if redis is None else ("--redis", redis.url)
        async with (
            backend_process() as backend,
            forebay_process(backend.url, "--config", str(config), *flags) as process,
        ):
            await process.ready()
            warm_up = Traffic(process.url, rate=rate, seed=seed)
            await warm_up.run(1.0, crowds=10)  # every connection that is opened when it is needed is open then
            report.wrong += warm_up.wrong
            await asyncio.sleep(3)  # until nothing of that is left: see soak_parts.CONFIG
            for _ in range(IDLE_LOOKS):
                report.before.append(await _look(process, 0.0))
                await asyncio.sleep(0.5)
            traffic = Traffic(process.url, rate=rate, seed=seed + 1)
            chaos = asyncio.create_task(Chaos(traffic, backend, redis, min(15.0, max(2.0, seconds / 24))).run())
            began = time.monotonic()

            async def looks() -> None:
                while True:
                    report.samples.append(await _look(process, began))
                    told(report.samples[-1], traffic)
                    await asyncio.sleep(1.0)

            looking = asyncio.create_task(looks())
            try:
                await traffic.run(seconds)
            finally:
                for task in (chaos, looking):
                    task.cancel()
                ended = await asyncio.gather(chaos, looking, return_exceptions=True)
            report.wrong += [f"broke off: {end!r}" for end in ended if not isinstance(end, asyncio.CancelledError)]
            report.wrong += traffic.wrong
            report.seen = dict(traffic.seen)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACK_WITHIN):
                    while not at_idle_level(report.before, report.after):
                        report.after.append(await _look(process, began))
                        await asyncio.sleep(0.5)
            process.signal(signal.SIGTERM)
            report.code = await process.exit_code()
            report.errors = [line for line in process.lines if " ERROR " in line or "Traceback" in line]
    return report


def redis_server() -> RedisServer | None:
    """Valkey from PyPI or Debian's Redis; None where neither is installed."""
    for kind in ("valkey", "redis"):
        with contextlib.suppress(pytest.skip.Exception, pytest.fail.Exception):
            return RedisServer(kind)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second, about (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-redis", action="store_true", help="memory alone")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the JSON goes ({OUT})")
    wanted = parser.parse_args()

    def told(sample: Sample, traffic: Traffic) -> None:
        print(
            f"\r\x1b[K{sample.at:6.0f} s: {sample.memory / 2**20:.1f} MiB, {sample.sockets} sockets, "
            f"{sample.tasks} tasks, {sum(traffic.seen.values())} requests, {len(traffic.wrong)} wrong",
            end="",
            file=sys.stderr,
            flush=True,
        )

    about = {"machine": machine(), "command": " ".join(["python -m benchmarks.soak", *sys.argv[1:]])}
    with contextlib.ExitStack() as stack:
        redis = None if wanted.no_redis else redis_server()
        if redis is None and not wanted.no_redis:
            print("*** no Redis here: memory alone ***", file=sys.stderr)
        if redis is not None:
            stack.enter_context(redis).start()
        report = asyncio.run(soak(wanted.minutes * 60, rate=wanted.rate, seed=wanted.seed, redis=redis, told=told))
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(report)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(about | report.document(), indent=1))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
