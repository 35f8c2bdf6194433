"""What was understood of a request, and a memory of it: the same bytes mean the same while the model is the same.

An answer from the response cache costs less than finding out what was asked; whoever asks again in the very same bytes
(method, target, fields, body) is not read again.

Invariants
    A reading is a function of the request's bytes, of the configuration and of the `Model` it was made with: it is
    given for equal bytes and that very `Model` only, never for a digest of them.
    Nothing in it belongs to one request, and nothing changes it.
    What is remembered is bounded, in number and in bytes, and only of requests that were answered from the response
    cache: what never repeats pushes nothing out.

Pure. Knows nothing of clients and of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from proxy.caching.policy import CacheUse
from proxy.filling import Plan
from proxy.protocols.asked import Asked
from proxy.protocols.codec import Call, Codec
from proxy.terms import Fingerprint, Headers, Model


class Reading(NamedTuple):
    """A call that is understood.

    route: the id of its route. asked: who knows its model. signature: of what it may ride with.
    cache: what becomes of it; fingerprints: of its items, () where that is `off`.
    trial: the same call read item by item, where its model's rows are still being proved; such a reading is not kept.
    """

    route: str
    codec: Codec
    asked: Asked
    call: Call
    plan: Plan
    signature: bytes
    cache: CacheUse
    fingerprints: Sequence[Fingerprint]
    trial: Call | None = None


_Bytes: TypeAlias = tuple[str, str, Headers, bytes]  # method, request target, fields, body

REMEMBERED: Final = 1024  # readings of a generation
REMEMBERED_BYTES: Final = 1024 * 1024  # of heads and bodies of a generation, or of what bodies mean where that is more
LARGEST: Final = 8192  # bytes of these; to compare more would cost what it saves


class Readings:
    """Two generations: what comes again stays, and the older is forgotten whole, so that no table is walked."""

    __slots__ = ("_bytes", "_old", "_young")

    def __init__(self) -> None:
        self._young: dict[_Bytes, Reading] = {}
        self._old: dict[_Bytes, Reading] = {}
        self._bytes = 0  # of the young ones

    def of(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        current: Callable[[Asked, str], Model | None],
    ) -> Reading | None:
        """What was understood of these very bytes with the model as it is now; None if that is not remembered.

        current: what is known now of a model of this name.
        """
        if len(body) > LARGEST:
            return None
        key = (method, target, headers, body)
        reading = self._young.get(key)
        if reading is None and (reading := self._old.get(key)) is not None:
            self.keep(method, target, headers, body, reading)
        if reading is None or current(reading.asked, reading.plan.model.name) is not reading.plan.model:
            return None
        return reading

    def keep(self, method: str, target: str, headers: Headers, body: bytes, reading: Reading) -> None:
        """Remember what was understood of these bytes, unless they are many or it may soon be understood otherwise."""
        call = reading.call
        meaning = len(call.shared) + sum(map(len, call.items))  # of a body that was compressed it may be all there is
        size = len(target) + max(len(body), meaning) + sum([len(name) + len(value) for name, value in headers])
        if size > LARGEST or reading.trial is not None:
            return
        if len(self._young) >= REMEMBERED or self._bytes + size > REMEMBERED_BYTES:
            self._young, self._old, self._bytes = {}, self._young, 0
        self._young[method, target, headers, body] = reading
        self._bytes += size

    def __repr__(self) -> str:
        return f"<Readings {len(self._young)} young, {len(self._old)} old>"
