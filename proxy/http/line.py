"""aiohttp's server protocol with two manners that it lacks: it notices who leaves, and it ends politely.

Invariants
    A client that leaves is noticed also while it is held back, when a transport reads nothing and so sees no end. (One
    that leaves with more unsent than its and our kernel hold is noticed when reading goes on.)
    The last answer arrives: a socket that is closed while bytes wait in it is reset, and a reset can overtake the
    answer. So writing ends first, what still comes is dropped, and the socket goes when the client has let go.

Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any, Final

from aiohttp.web_protocol import RequestHandler

from proxy.http import peer

LINGER: Final = 5.0
"""Seconds for a client to take the last answer and let go."""

STALLS: Final = 12
"""How many times `LINGER` a client may take nothing of what is left of its last answer."""

LOOK_AFTER: Final = 1.0
"""Seconds between two looks at whether a client that is held back is still there."""

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, no time


class Line(RequestHandler):
    """A connection as such. `_deaf`: whatever still comes is dropped."""

    __slots__ = ("_cut", "_deaf", "_held_back", "_lingering")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deaf = False
        self._cut = False
        self._held_back: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        for timer in (self._held_back, self._lingering):
            if timer is not None:
                timer.cancel()
        self._held_back = self._lingering = None
        if self._cut:
            self._task_handler = None  # its own handler ended it: no client has left
        super().connection_lost(exc)

    def _pause_transport_reading(self) -> None:
        super()._pause_transport_reading()
        if self._held_back is None:
            self._held_back = self._loop.call_later(LOOK_AFTER, self._look)

    def _resume_transport_reading(self) -> None:
        super()._resume_transport_reading()
        if self._held_back is not None:
            self._held_back.cancel()
            self._held_back = None

    def _look(self) -> None:
        """A transport that does not read does not notice that its client left."""
        self._held_back = None
        transport = self.transport
        if transport is None:
            return
        if peer.has_left(transport.get_extra_info("socket")):
            transport.abort()
        else:
            self._held_back = self._loop.call_later(LOOK_AFTER, self._look)

    def drop(self) -> None:
        """End now, whatever is in progress."""
        if self.transport is not None:
            self.transport.abort()

    def cut_off(self, *, reset: bool) -> None:
        """End an answer that cannot be finished. What was written still goes out, unless `reset`."""
        self._cut = self._deaf = True
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if reset:
            with contextlib.suppress(OSError):  # a socket that is gone already needs no reset
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        else:
            self._hang_up(linger=True)

    def _hang_up(self, *, linger: bool) -> None:
        """End writing, drop what still comes, and close when the client has let go or `LINGER` is over.

        linger: False where nothing can be on its way any more; then it closes when the last byte is written.
        """
        self._deaf = True
        transport = self.transport
        if transport is None or transport.is_closing() or self._lingering is not None:
            return
        if linger:
            transport.write_eof()
            self._resume_transport_reading()
        else:
            transport.close()
        self._lingering = self._loop.call_later(LINGER, self._let_go, self._untaken(), 0)

    def _let_go(self, untaken_before: int, stalls: int) -> None:
        """A client that reads slowly gets all; one that has all, or does not read, has had its time."""
        if self.transport is None:
            return
        untaken = self._untaken()
        stalls = 0 if untaken < untaken_before else stalls + 1
        if untaken and stalls < STALLS:
            self._lingering = self._loop.call_later(LINGER, self._let_go, untaken, stalls)
        else:
            self.transport.abort()

    def _untaken(self) -> int:
        """Bytes of answers that have not reached the client, in our buffer and in the kernel's."""
        transport = self.transport
        assert transport is not None
        return transport.get_write_buffer_size() + peer.unacknowledged(transport.get_extra_info("socket"))
