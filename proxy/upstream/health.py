"""Is the backend ready, and was it gone in between? Readiness follows the backend; liveness never does.

Two facts, kept apart
    reachable: connections come about. Every try of every exchange tells, so a backend that is gone is
        known at once, not at the next poll.
    ready: it is reachable, and at the last poll it did not say that it is not ready.

Knows nothing of models; whoever must know that a backend may have been replaced is told by `watch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from proxy.upstream.connections import Connections
from proxy.upstream.errors import UpstreamError

log = logging.getLogger("forebay.health")

PATH: Final = "/v2/health/ready"
EVERY: Final = 2.0  # seconds between polls
WITHIN: Final = 5.0  # seconds that a backend may take over its answer

_NOT_ASKED: Final = "the backend has not been asked yet"

_NOT_READY: Final = frozenset({400, 500, *range(502, 600)})
"""Statuses that say "not ready" (400 is Triton's). Any other answer but 2xx comes from a backend that has no
such path or does not show it to us, and that it answers is all we can know of it."""


class Health:
    """Polls in a task of its own between `start` and `aclose`."""

    def __init__(
        self,
        connections: Connections,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._connections = connections
        self._sleep = sleep
        self._why: str | None = _NOT_ASKED
        self._unreachable: str | None = None
        self._watchers: list[Callable[[bool], None]] = []
        self._task: asyncio.Task[None] | None = None
        connections.watch(self._tried)

    @property
    def not_ready(self) -> str | None:
        """Why no traffic should come now, in one line; None if it should."""
        return self._unreachable or self._why

    @property
    def reachable(self) -> bool:
        """False from a connection that failed to the next exchange that got a head."""
        return self._unreachable is None

    def watch(self, watcher: Callable[[bool], None]) -> None:
        """Call `watcher` with False when the backend is gone, with True when it came back after that."""
        self._watchers.append(watcher)

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def poll(self) -> None:
        """Ask once. Raises nothing but cancellation."""
        try:
            answer = await self._connections.ask(PATH, within=WITHIN)
        except UpstreamError as error:
            self._say(error.message)
        else:
            self._say(f"the backend answers {answer.status} to {PATH}" if answer.status in _NOT_READY else None)

    async def _run(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:  # a fault of ours must not freeze readiness at what it was
                log.exception("the readiness of the backend could not be asked")
                self._say("Forebay failed to ask the backend, see its log")
            await self._sleep(EVERY)

    def _say(self, why: str | None) -> None:
        if self._why is _NOT_ASKED or (why is None) != (self._why is None):
            if why is None:
                log.info("the backend is ready")
            else:
                log.warning("not ready: %s", why)
        self._why = why

    def _tried(self, error: UpstreamError | None) -> None:
        """How a try of any exchange went. One that was cut off tells nothing of whether connections come about."""
        if error is not None and error.sent:
            return
        if (error is None) == self.reachable:
            return
        self._unreachable = None if error is None else error.message
        for watcher in self._watchers:
            watcher(self.reachable)

    def __repr__(self) -> str:
        why = self.not_ready
        return f"<Health {self._connections.target} {'ready' if why is None else f'not ready: {why}'}>"
