"""Who is asked about a model: a codec, or a codec behind the prefix that a route's paths have.

A server behind `/a` may have another model of the same name than one behind `/b`: each is asked about at its own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.protocols.codec import Codec, Facts
from proxy.terms import Exchange


class Asked(Protocol):
    """What knows what to ask about a model, and what the answers mean. name: no two that ask differently have one."""

    @property
    def name(self) -> str: ...

    def questions(self, model: str) -> tuple[str, ...]:
        """As `Codec.questions`."""

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        """As `Codec.facts`."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A codec whose questions are asked behind a prefix."""

    codec: Codec
    prefix: str

    @property
    def name(self) -> str:
        return f"{self.codec.name} behind {self.prefix}"

    def questions(self, model: str) -> tuple[str, ...]:
        return tuple(self.prefix + path for path in self.codec.questions(model))

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        return self.codec.facts(model, answers)


def asked(codec: Codec, prefix: str) -> Asked:
    """Who is asked about the models of a route's requests. prefix: the route's, "" if it has none."""
    return Behind(codec, prefix) if prefix else codec
