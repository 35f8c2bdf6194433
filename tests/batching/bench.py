"""A batcher on a bench: parts are numbers, sends wait until the test ends them, everything observed is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.batching.batcher import Batch, Batcher, Slot, Ticket
from proxy.batching.rule import DispatchReason
from proxy.batching.settings import BatchMode, BatchSettings

FIXED = BatchSettings(mode=BatchMode.FIXED)


@dataclass
class Observed:
    """Every observation."""

    waiting: Counter[str] = field(default_factory=Counter)
    waits: list[tuple[str, float, float]] = field(default_factory=list)
    batches: list[tuple[str, int, DispatchReason]] = field(default_factory=list)

    def queued(self, route: str, items: int) -> None:
        self.waiting[route] += items

    def left(self, route: str, items: int) -> None:
        self.waiting[route] -= items
        assert self.waiting[route] >= 0

    def waited(self, route: str, voluntary: float, slot: float) -> None:
        self.waits.append((route, voluntary, slot))

    def dispatched(self, route: str, items: int, reason: DispatchReason) -> None:
        self.batches.append((route, items, reason))


@dataclass(eq=False)
class Sent:
    """A batch at the backend. `end` is the test's to settle; a part's own answer is `answer_to` it."""

    batch: Batch[int]
    slot: Slot
    end: asyncio.Future[Sequence[str | BaseException]]

    def answer(self) -> None:
        self.end.set_result([answer_to(part) for part in self.batch.parts])


def answer_to(part: int) -> str:
    return f"answer {part}"


class Bench:
    def __init__(self, records: int = 1024) -> None:
        self.loop = asyncio.get_running_loop()
        self.observed = Observed()
        self.sent: list[Sent] = []  # in order; ended ones too
        self.patient = True  # False: sends no longer wait for the test to end them
        self.batcher: Batcher[int, str] = Batcher(
            send=self._send, observe=self.observed, now=self.loop.time, records=records
        )

    async def _send(self, batch: Batch[int], slot: Slot) -> Sequence[str | BaseException]:
        sent = Sent(batch, slot, self.loop.create_future())
        self.sent.append(sent)
        if not self.patient:
            sent.answer()
        return await sent.end

    def enqueue(
        self,
        part: int,
        *,
        size: int = 1,
        lane: str = "model",
        signature: bytes = b"",
        settings: BatchSettings = BatchSettings(),  # noqa: B008 - immutable
        max_size: int = 1000,
        slots: int = 1,
        route: str = "route",
    ) -> Ticket[str]:
        return self.batcher.enqueue(
            part,
            size=size,
            lane=lane,
            signature=signature,
            settings=settings,
            max_size=max_size,
            slots=slots,
            route=route,
        )

    async def close(self) -> None:
        """Answer all that is out or still comes out, and close the batcher."""
        self.patient = False
        for sent in self.sent:
            if not sent.end.done():
                sent.answer()
        await self.batcher.aclose()
        assert repr(self.batcher) == "<Batcher 0 waiting, 0 out, 0 lanes closed>"
        assert not any(self.observed.waiting.values())

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """The parts of each batch sent."""
        return [sent.batch.parts for sent in self.sent]


async def turns(count: int = 5) -> None:
    """Let everything happen that can happen now: a decision, a task's start, a future's waiter take one turn each."""
    for _ in range(count):
        await asyncio.sleep(0)
