"""`python -m benchmarks.sigterm [--rounds 100]`: SIGTERM under load, over and over, and not one accepted request lost.

In each round Forebay starts, callers of many kinds keep it busy, and at a random moment it gets SIGTERM. *Accepted* is
a request that was written to a connection of which its client had no sign that it ends. It is *lost* unless a whole
answer comes back: an end or a reset of the connection instead of an answer is a loss, also on a kept connection that
was idle until then, and on one that had just been made. Not accepted are a connection that is refused, and a request
that was never sent because the connection had been closed before.

A round passes if nothing was lost, every answer is its caller's own, and Forebay exits with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.soak_backend import content, digest, events
from benchmarks.soak_parts import BackendProcess, backend_process
from tests.e2e.calls import answer, call, data
from tests.http.wire import Answer, Wire
from tests.parts.forebay_process import ForebayProcess, forebay_process

OUT = Path("out/sigterm.json")
KEPT, FRESH, STREAMS, UPLOADS = 12, 3, 2, 2  # callers
THINKS = 0.03  # seconds at most between an answer and the next request of a caller
ENDS_WITHIN = 20.0  # seconds


@dataclass
class Round:
    """What became of one SIGTERM. after: requests sent after it and answered. seconds: until Forebay had ended."""

    answered: int = 0
    after: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    code: int | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.lost and not self.wrong and self.code == 0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and whether an answer is its own. pause: for a body that is sent in two parts."""

    request: bytes
    right: Callable[[Answer], bool]
    rest: bytes = b""


def head(method: str, target: str, length: int | None = None) -> bytes:
    framing = "" if length is None else f"Content-Length: {length}\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: soak\r\n{framing}\r\n".encode()


def infer(chance: random.Random) -> Ask:
    number = chance.choice((chance.randrange(12), chance.randrange(10_000)))
    body = json.dumps(call(number, id=str(number))).encode()

    def right(got: Answer) -> bool:
        return got.status == 200 and data(json.loads(got.body)) == answer(number)

    return Ask(head("POST", "/v2/models/double/infer", len(body)) + body, right)


def pass_through(chance: random.Random) -> Ask:
    seed, size = str(chance.random()), chance.randrange(100_000)
    return Ask(head("GET", f"/soak/bytes/{seed}/{size}"), lambda got: got.body == content(seed, size))


def either(chance: random.Random) -> Ask:
    return infer(chance) if chance.random() < 0.8 else pass_through(chance)


def stream(chance: random.Random) -> Ask:
    seed, count = str(chance.random()), 30
    return Ask(head("GET", f"/soak/events/{seed}/{count}"), lambda got: got.body == b"".join(events(seed, count)))


def upload(chance: random.Random) -> Ask:
    body = chance.randbytes(chance.randrange(2, 300_000))
    cut = len(body) // 2
    return Ask(
        head("POST", "/soak/digest", len(body)) + body[:cut],
        lambda got: got.body == digest(body).encode(),
        rest=body[cut:],
    )


class Load:
    """Callers that go on until Forebay lets nobody in any more."""

    def __init__(self, address: str, chance: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.chance = chance
        self.round = Round()
        self.signalled = False

    async def caller(self, kind: Callable[[random.Random], Ask], *, keeps: bool) -> None:
        """Ask one thing after the other. keeps: on one connection for as long as it lasts."""
        wire: Wire | None = None
        try:
            while True:
                if wire is None:
                    try:
                        wire = await Wire.connect(self.address)
                    except ConnectionError:  # refused, or reset within the handshake: no request was sent
                        if self.signalled:
                            return
                        raise
                if not await self._one(wire, kind(self.chance)) or not keeps:
                    wire.close()
                    wire = None
                await asyncio.sleep(self.chance.random() * THINKS)
                if wire is not None and (wire.reader.at_eof() or wire.writer.is_closing()):
                    wire.close()  # it was closed while nothing was asked: a client sees that before it sends
                    wire = None
        finally:
            if wire is not None:
                wire.close()

    async def _one(self, wire: Wire, ask: Ask) -> bool:
        """Send a request and judge what comes. True if the connection may be used again."""
        after = self.signalled
        when = time.monotonic()
        try:
            await wire.send(ask.request)
            if ask.rest:
                await asyncio.sleep(self.chance.random() * 0.1)
                await wire.send(ask.rest)
            got = await wire.answer()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            line = ask.request.split(b"\r\n", 1)[0].decode()
            took = time.monotonic() - when
            self.round.lost.append(
                f"{line}: {error!r} after {took * 1e3:.1f} ms, {'after' if after else 'before'} SIGTERM"
            )
            return False
        if not ask.right(got):
            self.round.wrong.append(f"{ask.request[:60]!r}: {got.status} {got.body[:200]!r}")
        self.round.answered += 1
        self.round.after += after
        return got.get(b"connection") != b"close"

    async def run(self, process: ForebayProcess, seconds: float) -> Round:
        callers = [
            *(asyncio.create_task(self.caller(either, keeps=True)) for _ in range(KEPT)),
            *(asyncio.create_task(self.caller(either, keeps=False)) for _ in range(FRESH)),
            *(asyncio.create_task(self.caller(stream, keeps=True)) for _ in range(STREAMS)),
            *(asyncio.create_task(self.caller(upload, keeps=True)) for _ in range(UPLOADS)),
        ]
        try:
            await asyncio.sleep(seconds)
            began = time.monotonic()
            self.signalled = True
            process.signal(signal.SIGTERM)
            async with asyncio.timeout(ENDS_WITHIN):
                await asyncio.gather(*callers)
            self.round.code = await process.exit_code()
            self.round.seconds = time.monotonic() - began
        finally:
            for task in callers:
                task.cancel()
            await asyncio.wait(callers)
        return self.round


async def once(backend: BackendProcess, chance: random.Random) -> Round:
    """Start, load, SIGTERM, end."""
    async with forebay_process(backend.url) as process:
        await process.ready()
        return await Load(process.address, chance).run(process, 0.2 + chance.random() * 0.4)


async def rounds(count: int, *, seed: int = 1, told: Callable[[int, Round], None] = lambda *_: None) -> list[Round]:
    """So many, one after the other. told: of each when it is over."""
    chance = random.Random(seed)
    done: list[Round] = []
    async with backend_process() as backend:
        for number in range(count):
            done.append(await once(backend, chance))
            told(number, done[-1])
    return done


def summary(done: list[Round]) -> str:
    ends = sorted(each.seconds for each in done)
    kinds = Counter(line.partition(":")[2].partition(" after ")[0].strip() for each in done for line in each.lost)
    lines = [
        f"{len(done)} SIGTERMs under load: {sum(each.answered for each in done)} requests answered, "
        f"{sum(each.after for each in done)} of them sent after the signal",
        f"lost: {sum(len(each.lost) for each in done)}, wrong: {sum(len(each.wrong) for each in done)}, "
        f"exit codes: {dict(Counter(each.code for each in done))}",
        f"from the signal to the end: median {ends[len(ends) // 2]:.2f} s, longest {ends[-1]:.2f} s",
        *(f"  {kind}: {count}" for kind, count in kinds.items()),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sigterm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="how many SIGTERMs (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the JSON goes ({OUT})")
    wanted = parser.parse_args()

    def told(number: int, each: Round) -> None:
        for line in (*each.lost, *each.wrong):
            print(f"round {number + 1}: {line}", flush=True)
        print(f"\r\x1b[Kround {number + 1} of {wanted.rounds}", end="", file=sys.stderr, flush=True)

    done = asyncio.run(rounds(wanted.rounds, seed=wanted.seed, told=told))
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(summary(done))
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps([asdict(each) for each in done], indent=1))
    return 0 if all(each.passed for each in done) else 1


if __name__ == "__main__":
    sys.exit(main())
