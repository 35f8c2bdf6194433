"""Time that stands still until a test lets it go on."""

from __future__ import annotations

import asyncio


class Clock:
    """`sleep` for a poller, `now` for whoever counts seconds. Starts at 1000."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []
        self._asleep = asyncio.Event()
        self._wake = asyncio.Event()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep.set()
        await self._wake.wait()
        self._wake.clear()
        self.time += seconds

    async def idle(self) -> None:
        """Until the poller has done its round and sleeps."""
        await self._asleep.wait()

    async def tick(self) -> None:
        """One round of the poller: it wakes, works and sleeps again."""
        await self.idle()
        self._asleep.clear()
        self._wake.set()
        await self.idle()
