"""Two connections that pass each other's bytes, once their ends speak something that is not HTTP.

Invariants
    Bytes pass in order, unread and complete. Each way at most one read is held beyond what a transport takes before it
    asks for a pause; then the sender is held back.
    Who ends writing ends it at the other end too, behind the bytes before it; the way back stays open.
    Who resets, or is found to be gone, has the other end reset, behind the bytes before it: a break never looks like
    an end. One that is held back or has ended writing is looked after, for a transport that reads nothing sees nothing.
    Neither connection outlives the other by more than it takes to hand over what is on its way.

Knows nothing of what is spoken, of HTTP, and of which end is the backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final, cast

from proxy.http import peer

LOOK_AFTER: Final = 1.0
"""Seconds between two looks at a peer that is not being read."""

LINGER: Final = 5.0
"""Seconds in which a peer whose other end has gone may take nothing of what is left for it."""

_STEP: Final = 0.05  # seconds between two looks at what such a peer has taken
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, no time


class End(asyncio.Protocol):
    """One of the two connections. Made, it holds its transport back until a `Tunnel` joins it to another.

    owner: the protocol that had the connection before; it is told of the loss.
    early: what came behind the last message of HTTP.
    Raises ConnectionResetError where the connection is gone.
    """

    def __init__(self, transport: asyncio.Transport | None, owner: asyncio.BaseProtocol, *, early: bytes = b"") -> None:
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is gone")
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.vanished = False
        self.full = False  # its transport takes no more for now
        self._loop = loop
        self._transport = transport
        self._owner = owner
        self._other = self
        self._early = early
        self._ended = False  # its peer writes no more
        self._held = True  # its transport is not read
        self._shut = False  # we write no more
        self._leaving = False  # the other end has gone
        self._timer: asyncio.TimerHandle | None = None
        transport.pause_reading()
        transport.set_protocol(self)
        peer.probe(transport.get_extra_info("socket"))

    # ── what the tunnel asks ──────────────────────────────────────────────────────────────────────

    def join(self, other: End) -> None:
        self._other = other

    def begin(self) -> None:
        """Pass on what came early, then whatever comes."""
        other = self._other
        if self._early:
            other.write(self._early)
            self._early = b""
        if other.full:  # with that alone
            self._watch()
        else:
            self.release()

    def drop(self) -> None:
        """Close it now, whatever is in progress."""
        self._transport.abort()

    # ── what the other end asks ───────────────────────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_writing(self) -> None:
        """The other end's peer writes no more: nor do we. TLS has no end of one way alone: there it is of both."""
        if self._shut or self._transport.is_closing():
            return
        self._shut = True
        if self._ended or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.write_eof()

    def hold(self) -> None:
        """The other end takes no more for now."""
        if not self._held:
            self._held = True
            if self._readable:
                self._transport.pause_reading()
            self._watch()

    def release(self) -> None:
        if self._held:
            self._held = False
            if self._readable:
                self._transport.resume_reading()

    def leave(self, *, reset: bool) -> None:
        """The other end has gone: hand over what is on its way, then go too."""
        if self.gone.done() or self._leaving:
            return
        self._leaving = True
        if self._timer is not None:
            self._timer.cancel()
        if not reset:
            self.end_writing()
        self.release()  # to see it end; what it still says, nobody hears
        self._part(reset, self._untaken(), LINGER)

    def _part(self, reset: bool, untaken_before: int, patience: float) -> None:
        if self.gone.done():
            return
        untaken = self._untaken()
        if untaken < untaken_before:
            patience = LINGER
        if (untaken and patience > 0) or not (reset or patience <= 0):
            self._timer = self._loop.call_later(_STEP, self._part, reset, untaken, patience - _STEP)
            return
        if reset or untaken:
            with contextlib.suppress(OSError):  # a socket that is gone already needs no reset
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    # ── what the transport says ───────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if not self._leaving:
            self._other.write(data)

    def pause_writing(self) -> None:
        self.full = True
        self._other.hold()

    def resume_writing(self) -> None:
        self.full = False
        self._other.release()

    def eof_received(self) -> bool:
        """True keeps the way back open."""
        self._ended = True
        self._other.end_writing()
        if self._shut or not self._transport.can_write_eof():
            return False
        self._watch()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.vanished = self.vanished or (exc is not None and not self._leaving)
        if not self.gone.done():
            self.gone.set_result(None)
        cast(asyncio.Protocol, self._owner).connection_lost(exc)
        if self._other is not self:
            self._other.leave(reset=self.vanished)

    # ── who is not read ───────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        if self._timer is None and not self._leaving:
            self._timer = self._loop.call_later(LOOK_AFTER, self._look)

    def _look(self) -> None:
        self._timer = None
        if peer.is_gone(self._socket):
            self.vanished = True
            self._transport.abort()
        elif self._held or self._ended:
            self._watch()

    @property
    def _readable(self) -> bool:
        return not self._ended and not self._transport.is_closing()

    @property
    def _socket(self) -> socket.socket:
        return cast(socket.socket, self._transport.get_extra_info("socket"))

    def _untaken(self) -> int:
        return self._transport.get_write_buffer_size() + peer.unacknowledged(self._socket)

    def __repr__(self) -> str:
        words = [
            "gone" if self.gone.done() else "leaving" if self._leaving else "open",
            *(["ended"] if self._ended else []),
            *(["held"] if self._held else []),
            f"unsent={self._transport.get_write_buffer_size()}",
        ]
        return f"<End {' '.join(words)}>"


class Tunnel:
    """Joins two ends; they pass each other's bytes until both are gone."""

    def __init__(self, client: End, backend: End) -> None:
        self._ends = (client, backend)
        client.join(backend)
        backend.join(client)
        client.begin()
        backend.begin()

    async def over(self) -> None:
        """Wait for the end of both. Who is cancelled meanwhile closes them."""
        try:
            for end in self._ends:
                await asyncio.shield(end.gone)
        finally:
            for end in self._ends:
                if not end.gone.done():
                    end.drop()

    def __repr__(self) -> str:
        client, backend = self._ends
        return f"<Tunnel client={client!r} backend={backend!r}>"
