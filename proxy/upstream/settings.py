"""What can be configured about the way to the backend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy.settings import Seconds, setting

_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each step of an exchange may take. None waits for ever: generation takes minutes."""

    connect: Seconds | None = setting(
        Seconds(1.0), "Longest wait for a new connection, name look-up and TLS included.", minimum=0.001
    )
    idle: Seconds | None = setting(
        None,
        "Longest silence inside a body: between two reads of an answer, or of an upload not taken.",
        minimum=0.001,
    )
    first_byte: Seconds | None = setting(
        None, "Longest wait from the end of the request to the head of the answer.", minimum=0.001
    )
    total: Seconds | None = setting(None, "Longest time of a whole exchange, retries included.", minimum=0.001)


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where the backend is and how it is talked to."""

    targets: tuple[str, ...] = setting((), "Where the backend is, as in `http://127.0.0.1:8000`; exactly one for now.")
    timeout: Timeouts = setting(Timeouts(), "How long each step may take.")
    keepalive: Seconds = setting(
        Seconds(4.0), "How long an idle connection is kept; keep it below the backend's own idle time-out.", minimum=0.0
    )
    slots: int | None = setting(
        None,
        "Upstream requests of joinable items at once, per target and model; auto asks the backend for its instances.",
        minimum=1,
    )
    authorization: str | None = setting(
        None, "A secret: what Forebay's own questions to the backend carry as `Authorization`, as in `Bearer KEY`."
    )

    def __post_init__(self) -> None:
        """A ValueError says what is wrong with `authorization`; it does not quote it."""
        if self.authorization is not None and not _VALUE.fullmatch(self.authorization):
            raise ValueError("authorization must be one line of printable ASCII, as in `Bearer KEY`")

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__slots__}
        shown |= {"authorization": self.authorization and "(secret)"}
        return f"UpstreamSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
