"""What a wire protocol must be able to do for the rest of Forebay. One file per protocol implements it.

Invariants of every codec
    Pure: bytes in, bytes out; no clock, no I/O, and no exception for any input (a bug that raises all
    the same is caught by the pipeline, counted as `codec_error`, and the request passes through).
    Whatever it would have to guess at, it refuses: `parse` gives a `Reason`, `split` and `answer` None.
    What is kept beyond the call is copied: nothing pins a whole body.

Knows nothing of tenants, headers, caches, windows or sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from proxy.terms import Model, Reason


class Endpoint(NamedTuple):
    """What a recognised method and path name. version is None where the path names none."""

    model: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that a codec understood. Codecs subclass it with what they need to answer.

    body: the client's own bytes.
    shared: canonical bytes of everything in the body that all its items share and that can change an
        answer (type-tagged, length-prefixed; white space and key order do not show). Part of every
        item's key and of the signature.
    items: canonical bytes of each item, in the caller's order; with `shared` the item's whole meaning.
    joins: False where the single item is the whole call: it is never joined and takes no slot.
    company: what calls must share beside `shared` to ride together, though it changes no answer: a deadline, say,
        which one caller's trouble must not become another's. A call that names any follows no flight and leads none.
    """

    endpoint: Endpoint
    body: bytes
    shared: bytes
    items: tuple[bytes, ...]
    joins: bool
    company: bytes


class Part(NamedTuple):
    """The items of one call that travel in one upstream request: indexes into `call.items`, ascending."""

    call: Call
    indexes: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Does the part hold every item of its call?"""
        return len(self.indexes) == len(self.call.items)


class Codec(Protocol):
    """An *item result* is the backend's answer as if that item had been asked alone, caller's `id` left out."""

    name: str
    content_type: bytes

    def recognise(self, method: str, path: str) -> Endpoint | None:
        """Whose request this is, from the method and the path without query; None: not this protocol's."""

    def parse(self, endpoint: Endpoint, body: bytes, model: Model) -> Call | Reason:
        """Read a body. A `Reason` sends the request through untouched."""

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> bytes:
        """One upstream body for parts whose `shared` bytes are equal.

        request_id: Forebay's own `id`, which the answer must quote.
        waited: seconds each part has waited since its call came, for deadlines written in the body.
        """

    def split(self, body: bytes, sizes: Sequence[int], request_id: str | None) -> list[list[bytes]] | None:
        """Item results of each part of a 2xx answer, or None if it does not split for certain.

        sizes: items of each part, in the order in which they were joined; [1] with a call that does not
            join gives the whole answer as one result.
        request_id: the `id` that the answer must quote; None where it is the caller's and need not be looked at.
        """

    def answer(self, call: Call, results: Sequence[bytes]) -> bytes | None:
        """The body that answers `call` from one result per item; None if they do not fit together."""

    def error(self, status: int, message: str) -> bytes:
        """An error body in the protocol's own shape."""
