"""Mixed traffic: what callers of every kind do to a Forebay for hours, and whether each got its own answer.

An answer is *right*, or *explained* (an error that a fault of the time accounts for: a row that breaks its batch, a
backend that was just killed), or *wrong*: another's rows, id or bytes, weights of another time, or an error that
nothing accounts for. Load is bounded: so many callers, each with pauses, `rate` requests a second in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from benchmarks.soak_backend import content, digest, events
from tests.e2e.calls import WIDTH, call, rows
from tests.parts.model_backend import Fault

CALLERS: Final = 24
CROWD: Final = 100
PATIENCE: Final = 30.0  # seconds after which a request without an end counts as wrong
LARGE: Final = 6 * 1024 * 1024
SHARED: Final = frozenset({502, 503, 504})  # what a whole batch or flight suffers from one row of it
OWN: Final = {Fault.REFUSE: {400}, Fault.CRASH: {500}, Fault.MISCOUNT: {200, 400}, Fault.GARBAGE: {200, 502}}
BROKEN: Final[Mapping[str, AbstractSet[int | None]]] = {
    "hang": {504},
    "status": {500, 501, 502, 503, 504},
    "garbage": {502},
    "reset": {502},
    "half": {None},
}
JSON: Final = {"Content-Type": "application/json"}


class Traffic:
    """least, newest: weights that an answer to a call that begins now may have been made with.

    kills: how often the backend was killed; a request that saw one may have suffered from it.
    """

    def __init__(self, url: str, *, rate: float, seed: int) -> None:
        self.url = url
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)
        self.chance = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.least = self.newest = 1
        self.kills = 0
        self.down = False
        self._pause = CALLERS / rate
        self._session: aiohttp.ClientSession | None = None
        self._over = asyncio.Event()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def run(self, seconds: float, *, crowds: int = 0) -> None:
        """Let the callers go about it for so long; when it returns, none is there any more. crowds: before that."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            for _ in range(crowds):
                await self.crowd()
            callers = [asyncio.create_task(self._caller()) for _ in range(CALLERS)]
            try:
                await asyncio.wait(callers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
                self._over.set()
                await asyncio.gather(*callers)
            finally:
                for task in callers:
                    task.cancel()
                await asyncio.wait(callers)

    async def _caller(self) -> None:
        kinds, weights = zip(*KINDS, strict=True)
        while not self._over.is_set():
            await asyncio.sleep(self.chance.expovariate(1 / self._pause))
            kind = self.chance.choices(kinds, weights)[0]
            try:
                async with asyncio.timeout(PATIENCE):
                    await kind(self)
            except TimeoutError:
                self.wrong.append(f"{kind.__name__}: no end within {PATIENCE} s")

    def judge(self, what: str, right: bool, kills: int, detail: object) -> None:
        """Count an answer. kills: as it was when the request was sent."""
        if right:
            self.seen[f"{what}: right"] += 1
        elif self._killed_since(kills):
            self.seen[f"{what}: explained by a killed backend"] += 1
        else:
            self.wrong.append(f"{what}: {detail}"[:500])

    def _killed_since(self, kills: int) -> bool:
        return self.down or kills != self.kills

    async def _fetch(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int | None, bytes]:
        """Status and body; no status where the answer broke off."""
        try:
            async with self.session.request(method, self.url + path, data=body, headers=headers) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientError as error:
            return None, repr(error).encode()

    # ── calls that are understood ─────────────────────────────────────────────────────────────────

    def _some_rows(self) -> list[int]:
        """Mostly things that others ask for too; now and then a fault."""
        chance = self.chance
        numbers = [
            chance.choice((chance.randrange(30), chance.randrange(10**6)))
            for _ in range(chance.choice((1, 1, 1, 2, 7)))
        ]
        if chance.random() < 0.02:
            numbers[chance.randrange(len(numbers))] = chance.choice(tuple(Fault))
        return numbers

    async def infer(self) -> None:
        """A call; one in eight callers loses patience and leaves."""
        if self.chance.random() > 0.12:
            await self._infer(self._some_rows())
            return
        asking = asyncio.create_task(self._infer(self._some_rows()))
        await asyncio.wait([asking], timeout=self.chance.random() * 0.02)
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.result()
        self.seen["left"] += 1

    async def burst(self) -> None:
        """The same new thing, asked for by several at once."""
        numbers = [self.chance.randrange(10**9)]
        await asyncio.gather(*(self._infer(numbers) for _ in range(5)))

    async def crowd(self) -> None:
        """Many different things at once."""
        await asyncio.gather(*(self._infer([self.chance.randrange(10**9)]) for _ in range(CROWD)))

    async def padded(self) -> None:
        """A call too large to be parsed, which passes through."""
        await self._infer(self._some_rows(), padding=300_000)

    async def _infer(self, numbers: list[int], padding: int = 0) -> None:
        name = f"{self.chance.random()}"
        headers = JSON | (
            {"Forebay-Cache": self.chance.choice(("off", "refresh"))} if self.chance.random() < 0.1 else {}
        )
        body = json.dumps(call(*numbers, id=name)).encode() + b" " * padding
        kills, least = self.kills, self.least
        status, got = await self._fetch("POST", "/v2/models/double/infer", body, headers)
        own = next((Fault(number) for number in numbers if number in set(Fault)), None)
        if status in SHARED and not self._killed_since(kills):
            self.seen[f"infer: {status}, shared with a fault"] += 1
        elif own is not None:
            self.judge("infer with a fault", status in OWN.get(own, set()), kills, (numbers, status, got[:200]))
        else:
            right = status == 200 and self._is_own(json.loads(got), numbers, name, least)
            self.judge("infer", right, kills, (numbers, name, status, got[:300], least, self.newest))

    def _is_own(self, body: Any, numbers: Sequence[int], name: str, least: int) -> bool:
        (output,) = body["outputs"]
        given = rows(*numbers)
        weights = {value - 2 * row for value, row in zip(output["data"], given, strict=True)}
        return (
            body["id"] == name
            and output["shape"] == [len(numbers), WIDTH]
            and weights <= set(range(least, self.newest + 1))
        )

    # ── what passes through ───────────────────────────────────────────────────────────────────────

    async def get(self) -> None:
        target = f"/any/{self.chance.random()}?x=%2F{self.chance.random()}"
        kills = self.kills
        status, got = await self._fetch("GET", target)
        self.judge("get", status == 200 and json.loads(got)["method"] == "GET", kills, (target, status, got))

    async def upload(self) -> None:
        """With a length or in chunks, small or large."""
        size = self.chance.randrange(LARGE) if self.chance.random() < 0.1 else self.chance.randrange(300_000)
        body = self.chance.randbytes(size)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, size, 50_000):
                yield body[start : start + 50_000]

        kills = self.kills
        sent = pieces() if self.chance.random() < 0.5 else io.BytesIO(body)
        status, got = await self._fetch("POST", "/soak/digest", sent)
        self.judge("upload", got == digest(body).encode(), kills, (size, status, got[:200]))

    async def large(self) -> None:
        """A body that streams through."""
        seed, size, kills = str(self.chance.random()), self.chance.randrange(LARGE // 2), self.kills
        status, got = await self._fetch("GET", f"/soak/bytes/{seed}/{size}")
        self.judge("large", got == content(seed, size), kills, (size, status, len(got), got[:200]))

    async def stream(self) -> None:
        """Events until the last, or until the caller has had enough."""
        seed, count, kills = str(self.chance.random()), self.chance.randrange(60), self.kills
        patience = self.chance.random() if self.chance.random() < 0.3 else PATIENCE
        try:
            async with asyncio.timeout(patience):
                status, got = await self._fetch("GET", f"/soak/events/{seed}/{count}")
        except TimeoutError:
            self.seen["stream: left"] += 1
            return
        self.judge("stream", got == b"".join(events(seed, count)), kills, (count, status, got[-200:]))

    async def broken(self) -> None:
        """A backend that fails in the middle: an error, never a whole answer."""
        how, kills = self.chance.choice(tuple(BROKEN)), self.kills
        status, got = await self._fetch("GET", f"/soak/broken/{how}")
        self.judge(f"broken {how}", status in BROKEN[how], kills, (status, got[:200]))

    # ── clients without manners ───────────────────────────────────────────────────────────────────

    async def rude(self) -> None:
        """Half a request, or half the patience, and then the end or a reset of the connection."""
        upload = b"POST /soak/digest HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"u" * 30_000
        sent = self.chance.choice(
            (
                b"",
                b"GET / HT",
                b"\x16\x03\x01 no HTTP \r\n\r\n",
                upload,
                b"GET /soak/events/x/500 HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET /soak/bytes/x/3000000 HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET /soak/broken/hang HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET /any HTTP/1.1\r\nHost: x\r\n\r\n" * 5,
            )
        )
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(sent)
            await writer.drain()
            if self.chance.random() < 0.5:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.chance.random() * 0.3):
                        await reader.read(10_000)
            if self.chance.random() < 0.5:
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        except ConnectionError:
            pass  # it was refused before it was rude
        finally:
            writer.close()
        self.seen["rude"] += 1


KINDS: Final[Sequence[tuple[Callable[[Traffic], Awaitable[None]], float]]] = (
    (Traffic.infer, 60),
    (Traffic.burst, 3),
    (Traffic.padded, 1),
    (Traffic.get, 10),
    (Traffic.upload, 5),
    (Traffic.large, 2),
    (Traffic.stream, 6),
    (Traffic.broken, 3),
    (Traffic.rude, 10),
)
