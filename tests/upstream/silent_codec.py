"""A codec for tests of what is asked of a backend: they need none of its other half."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.protocols.codec import Call, Codec, Endpoint, Message, Part
from proxy.terms import Model, Reason


class Silent(Codec):
    """A codec of a server that has nothing to say of its models."""

    name = protocol = "silent"

    def recognise(self, method: str, path: str) -> Endpoint | None:
        return None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        return Reason.UNPARSED

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        return None

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        return None

    def error(self, status: int, message: str) -> bytes:
        return b""
