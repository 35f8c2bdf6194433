"""`forebay demo`: a real model server, Forebay in front of it, the same traffic both ways, and the difference.

The traffic is synthetic and says so: sentences that every machine has, asked for with the repetition and
locality of published look-up traces. Nothing outside loopback is touched, and everything started here ends here,
also on Ctrl-C, SIGTERM and when the terminal is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from proxy import __version__
from proxy.demo.encoder_server import MODEL
from proxy.demo.screen import Screen, Way
from proxy.demo.texts import sentences
from proxy.measure.load import closed_loop
from proxy.measure.report import Measured
from proxy.measure.scrape import Scrape
from proxy.measure.workload import Lookups, repetition

START_LIMIT: Final = 30.0  # seconds for a part to come up
END_LIMIT: Final = 10.0  # seconds for a part to end by itself
FAILED: Final = 1
INTERRUPTED: Final = 130  # as shells number Ctrl-C

_LEVEL = re.compile(rb"^[\d-]+ [\d:,]+ (\w+) ")  # how a line of Forebay's log begins


class PartFailed(Exception):
    """A part of the demo did not come up, or ended too soon; the message says which."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked for.

    direct_seconds: how long the backend alone is asked; Forebay then gets the same requests.
    requests: how many at the most; None: as many as `direct_seconds` allow.
    """

    callers: int = 32
    texts: int = 2000
    direct_seconds: float = 12.0
    requests: int | None = None


async def run(*, redis: str | None, stay: bool, traffic: Traffic = Traffic()) -> int:
    """Run the demo; the exit code: 0 if every request was answered, and nobody asked for an end before that."""
    loop, demo = asyncio.get_running_loop(), asyncio.create_task(_demo(redis, stay, traffic))
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(sign, _once(demo))
    try:
        return await demo
    except asyncio.CancelledError:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except PartFailed as failed:
        print(f"forebay demo: {failed}", file=sys.stderr)
        return FAILED


def _once(demo: asyncio.Task[int]) -> Callable[[], None]:
    """End the demo, once: a second Ctrl-C must not leave behind what the first is ending."""

    def end() -> None:
        if not demo.cancelling():
            demo.cancel()

    return end


async def _demo(redis: str | None, stay: bool, traffic: Traffic) -> int:
    print("A sentence encoder in numpy, asked directly and then through Forebay.", flush=True)
    texts = asyncio.create_task(asyncio.to_thread(sentences, traffic.texts))  # a second of reading, meanwhile
    async with contextlib.AsyncExitStack() as parts:
        backend = await parts.enter_async_context(_part("-m", "proxy.demo.encoder_server"))
        upstream = await backend.first_line()
        data, admin = f"127.0.0.1:{_free_port(8080)}", f"127.0.0.1:{_free_port(9901)}"
        command = ["-m", "proxy", "serve", "--upstream", upstream, "--listen", data, "--admin", admin]
        forebay = await parts.enter_async_context(_part(*command, *(["--redis", redis] if redis else [])))
        await _until_ready(admin, forebay)
        print(f"Forebay {__version__} is on http://{data}, the encoder on {upstream}.\n", flush=True)
        ways = await _compare(upstream, f"http://{data}", f"http://{admin}", await texts, traffic)
        if stay:
            print(_paste_these(data, admin), flush=True)
            with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how it ends
                code = await forebay.process.wait()
                raise PartFailed(f"Forebay ended by itself, with exit code {code}")
        return 0 if all(way.measured.failed == 0 for way in ways) else FAILED


async def _compare(upstream: str, forebay: str, admin: str, texts: Sequence[str], traffic: Traffic) -> Sequence[Way]:
    asked: list[int] = []

    def bodies() -> Iterator[bytes]:
        for index in itertools.islice(Lookups(len(texts)), traffic.requests):
            asked.append(index)
            yield _body(texts[index])

    direct, through = Way("direct", Measured()), Way("through Forebay", Measured())
    path = f"/v2/models/{MODEL}/infer"
    with Screen([direct, through]) as screen:
        async with _shown(screen, direct, None):
            await closed_loop(
                upstream + path,
                bodies(),
                callers=traffic.callers,
                limit=traffic.direct_seconds,
                measured=direct.measured,
            )
        sent = direct.measured.failed + len(direct.measured.latencies)
        again = iter([_body(texts[index]) for index in asked[:sent]])
        async with _shown(screen, through, admin):
            await closed_loop(
                forebay + path,
                again,
                callers=traffic.callers,
                limit=10 * traffic.direct_seconds,
                measured=through.measured,
            )
    faster = direct.measured.seconds / through.measured.seconds if through.measured.seconds else 0.0
    print(
        f"\nThe same {sent:,} requests took {direct.measured.seconds:.1f} s directly and "
        f"{through.measured.seconds:.1f} s through Forebay:\n{faster:.1f} times as fast.\n\n"
        f"Traffic: {traffic.callers} callers, each with its next request as soon as it has an answer,\n"
        f"for one of {len(texts):,} sentences; {repetition(asked[:sent]):.0%} repeat an earlier one "
        "(Zipf 0.8, 35% among\nthe last 64). Your own rate and repetition will differ, and so will the gain.",
        flush=True,
    )
    return direct, through


@contextlib.asynccontextmanager
async def _shown(screen: Screen, way: Way, admin: str | None) -> AsyncIterator[None]:
    """Show `way` once a second, and at the end."""
    async with aiohttp.ClientSession() as session:

        async def refresh() -> None:
            if admin is not None:
                async with session.get(f"{admin}/metrics") as answer:
                    _read(way, Scrape(await answer.text()))
            screen.show(way)

        async def every_second() -> None:
            while True:
                await asyncio.sleep(1)
                await refresh()

        shower = asyncio.create_task(every_second())
        try:
            yield
        finally:
            shower.cancel()
            await asyncio.gather(shower, return_exceptions=True)
            await refresh()


def _read(way: Way, scrape: Scrape) -> None:
    looked_up = scrape.total("forebay_cache_items_total")
    hits = sum(scrape.total("forebay_cache_items_total", result=result) for result in ("memory_hit", "redis_hit"))
    way.hit_rate = hits / looked_up if looked_up else float("nan")
    way.batch_size = scrape.mean("forebay_batch_items")
    waited = [scrape.mean("forebay_queue_wait_seconds", kind=kind) for kind in ("voluntary", "slot")]
    way.queue_wait = sum(waited)


def _body(text: str) -> bytes:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return msgspec.json.encode({"inputs": [tensor]})


class Part:
    """A Python program of ours. What it says on stderr is shown unless it is mere news."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        news = False
        async for line in self.process.stderr:
            if level := _LEVEL.match(line):
                news = level[1] == b"INFO"
            if not news:
                sys.stderr.write(line.decode(errors="replace"))

    async def first_line(self) -> str:
        """The first line on its stdout: it has come up."""
        assert self.process.stdout is not None
        async with asyncio.timeout(START_LIMIT):
            line = await self.process.stdout.readline()
        if not line:
            raise PartFailed("the encoder did not start; what it said stands above")
        return line.decode().strip()

    async def end(self) -> None:
        """Ask it to end, then make it."""
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), END_LIMIT)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        await self._listener

    def __repr__(self) -> str:
        code = self.process.returncode
        return f"<Part {self.process.pid} {'running' if code is None else f'ended with {code}'}>"


@contextlib.asynccontextmanager
async def _part(*arguments: str) -> AsyncIterator[Part]:
    """Run it until the context ends. In a session of its own: Ctrl-C is for the demo, which ends its parts in order."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )
    part = Part(process)
    try:
        yield part
    finally:
        await part.end()


async def _until_ready(admin: str, forebay: Part) -> None:
    """Poll /readyz, as an orchestrator does."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_LIMIT):
        while forebay.process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://{admin}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
    raise PartFailed("Forebay did not start; what it said stands above")


def _free_port(preferred: int) -> int:
    """`preferred` if nobody has it, else one that the system picks."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                number: int = probe.getsockname()[1]
                return number
    raise PartFailed("no free port on 127.0.0.1")


def _paste_these(data: str, admin: str) -> str:
    body = _body("Water finds its own level.").decode()
    return f"""
Both stay up until Ctrl-C. Paste this twice: the second answer comes from the response cache (see Cache-Status).

  curl -si http://{data}/v2/models/{MODEL}/infer -d '{body}' | head -c 400

metrics  curl -s http://{admin}/metrics | grep forebay_requests
health   curl -s http://{admin}/readyz
config   curl -s http://{admin}/config
"""
