"""What a client may send, and how many bytes Forebay holds for all of them together."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.settings import Bytes, Seconds, setting

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class Limits:
    head: Bytes = setting(
        Bytes(64 * _KIB),
        "Largest head of a request: request line and fields together; a larger one gets 431.",
        minimum=1 * _KIB,
        per_route=False,
    )
    body: Bytes | None = setting(
        None,
        "Largest body of a request; a larger one gets 413. `none`: that is the backend's to say.",
        minimum=0,
        per_route=False,
    )
    parse: Bytes = setting(
        Bytes(4 * _MIB),
        "Largest body that is read into memory to be understood; a larger one streams through, counted `too_large`.",
        minimum=0,
        per_route=False,
    )
    buffered: Bytes = setting(
        Bytes(256 * _MIB),
        "Bytes of bodies held in memory over all requests; while there is no room, bodies stream through.",
        minimum=0,
        per_route=False,
    )
    read_timeout: Seconds = setting(
        Seconds(30.0),
        "How long nothing of a body may come before its request gets 408.",
        minimum=0.001,
        per_route=False,
    )
    connections: int = setting(
        10_000,
        "Client connections held at once; one more gets 503 and is closed.",
        minimum=1,
        per_route=False,
    )


class Buffered:
    """Bytes of request bodies held in memory, over all requests.

    Invariant: 0 ≤ held ≤ limit. Whoever takes, gives back exactly what it took, on every exit.
    """

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> bool:
        """Hold `size` more bytes; False, and nothing held, where they do not fit."""
        held = self.held + size
        if held > self.limit:
            return False
        self.held = held
        return True

    def give(self, size: int) -> None:
        """Hold `size` bytes fewer."""
        assert 0 <= size <= self.held, (size, self.held)
        self.held -= size

    def __repr__(self) -> str:
        return f"<Buffered {self.held}/{self.limit}>"
