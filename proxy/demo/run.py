"""`forebay demo`: a real model server, Forebay in front of it, the same traffic both ways, and the difference.

The traffic is synthetic and says so: sentences that every machine has, asked for with the repetition and
locality of published look-up traces. Nothing outside loopback is touched, and everything started here ends here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from proxy.demo.encoder_server import MODEL
from proxy.demo.screen import Screen, Way
from proxy.demo.texts import sentences
from proxy.measure.load import closed_loop
from proxy.measure.report import Measured
from proxy.measure.scrape import Scrape
from proxy.measure.workload import Lookups, repetition

START_LIMIT = 30.0  # seconds for a part to come up


class PartFailed(Exception):
    """A part of the demo did not come up; the message says which, and what it last said."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked for. direct_seconds: how long the backend alone is asked; Forebay then gets the same requests."""

    callers: int = 32
    texts: int = 2000
    direct_seconds: float = 12.0


async def run(*, redis: str | None, stay: bool, traffic: Traffic = Traffic()) -> int:
    """Run the demo; 0 if every request was answered."""
    print("Forebay demo: a sentence encoder (numpy, one thread), asked directly and through Forebay.")
    async with contextlib.AsyncExitStack() as parts:
        backend = await parts.enter_async_context(_part("the encoder", ["-m", "proxy.demo.encoder_server"]))
        upstream = (await asyncio.wait_for(_line(backend), START_LIMIT)).strip()
        data, admin = f"127.0.0.1:{_free_port(8080)}", f"127.0.0.1:{_free_port(9901)}"
        command = ["-m", "proxy", "serve", "--upstream", upstream, "--listen", data, "--admin", admin]
        forebay = await parts.enter_async_context(_part("Forebay", [*command, *(["--redis", redis] if redis else [])]))
        await _until_ready(admin, forebay)
        ways = await _compare(upstream, f"http://{data}", f"http://{admin}", traffic)
        if stay:
            print(_paste_these(data, admin))
            with contextlib.suppress(asyncio.CancelledError):
                await forebay.wait()
        return 0 if all(way.measured.failed == 0 for way in ways) else 1


async def _compare(upstream: str, forebay: str, admin: str, traffic: Traffic) -> Sequence[Way]:
    texts = sentences(traffic.texts)
    asked: list[int] = []

    def bodies() -> Iterator[bytes]:
        for index in Lookups(len(texts)):
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
    if not sys.stdout.isatty():
        print(screen.summary())
    faster = direct.measured.seconds / through.measured.seconds if through.measured.seconds else 0.0
    print(
        f"\nThe same {sent:,} requests took {direct.measured.seconds:.1f} s directly and "
        f"{through.measured.seconds:.1f} s through Forebay: {faster:.1f} times as fast.\n"
        f"Traffic: {traffic.callers} callers in a closed loop, one of {len(texts):,} sentences a request, "
        f"{repetition(asked[:sent]):.0%} of the requests repeat an earlier one (Zipf 0.8, 35 % among the last 64).\n"
        "Your own rate and repetition will differ, and so will the gain."
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


@contextlib.asynccontextmanager
async def _part(name: str, arguments: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program of ours, ended with the context: asked first, then made to."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()
        if process.returncode not in {0, -15}:
            print(f"{name} ended with exit code {process.returncode}", file=sys.stderr)


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise PartFailed("the encoder did not start; what it said stands above")
    return line.decode()


async def _until_ready(admin: str, forebay: asyncio.subprocess.Process) -> None:
    """Poll /readyz, as an orchestrator does."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_LIMIT):
        while forebay.returncode is None:
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
Both stay up until Ctrl-C. Twice the same, and the second comes from the response cache (see Cache-Status):

  curl -si http://{data}/v2/models/{MODEL}/infer -d '{body}' | head -c 400

metrics  http://{admin}/metrics
health   http://{admin}/readyz
config   http://{admin}/config
"""
