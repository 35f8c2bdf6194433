"""What either side of a proxy saw of a row, as bytes and as the messages that a strict reader finds in them.

Pure. A message that has not come whole says so: nothing here takes a truncation for an end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: .*)?")


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer. line, fields: the lines of its head as they stood on the wire."""

    line: bytes
    fields: tuple[bytes, ...]
    body: bytes
    whole: bool

    def values(self, name: bytes) -> list[bytes]:
        """The values of a field, in wire order."""
        pairs = (line.partition(b":") for line in self.fields)
        return [value.strip(b" \t") for field, _, value in pairs if field.strip().lower() == name.lower()]

    @property
    def status(self) -> int:
        """Of an answer; 0 where its first line is none that a reader may take."""
        found = _STATUS.fullmatch(self.line)
        return int(found[1]) if found else 0


@dataclass(slots=True)
class ClientSide:
    """What came back. end: `open`, `closed` or `reset`. interim: the 1xx answers, behind: bytes behind the last one."""

    answers: list[Message] = field(default_factory=list)
    interim: list[Message] = field(default_factory=list)
    behind: bytes = b""
    end: str = "open"

    @property
    def messages(self) -> list[Message]:
        return self.answers


@dataclass(slots=True)
class BackendSide:
    """What was asked of the backend, in the order of heads. connections: how many brought a head, or half of one."""

    messages: list[Message] = field(default_factory=list)
    connections: int = 0


@dataclass(slots=True)
class Seen:
    """Both sides of one row. stuck: what the client waited for in vain."""

    client: ClientSide
    backend: BackendSide
    stuck: list[str] = field(default_factory=list)


def head(raw: bytes) -> tuple[bytes, tuple[bytes, ...], bytes] | None:
    """First line, field lines and the rest; None while the head is not whole."""
    text, end, rest = raw.partition(b"\r\n\r\n")
    if not end:
        return None
    first, *fields = text.split(b"\r\n")
    return first, tuple(fields), rest


def answers(raw: bytes, methods: Sequence[bytes], end: str) -> ClientSide:
    """Read what a client got, by the framing that each answer declares. methods: of its requests, in order."""
    seen = ClientSide(end=end)
    while raw and (parts := head(raw)) is not None:
        first, fields, rest = parts
        message = Message(first, fields, b"", whole=True)
        if 100 <= message.status < 200 and message.status != 101:
            seen.interim.append(message)
            raw = rest
            continue
        method = methods[len(seen.answers)] if len(seen.answers) < len(methods) else b"GET"
        body, whole, raw = _body(message, rest, bodiless=method == b"HEAD", end=end)
        seen.answers.append(Message(first, fields, body, whole))
        if not whole:
            return seen
    seen.behind = raw
    return seen


def _body(message: Message, rest: bytes, *, bodiless: bool, end: str) -> tuple[bytes, bool, bytes]:
    """The body, whether it is whole, and what stands behind it."""
    if bodiless or message.status in (204, 304):
        return b"", True, rest
    if message.values(b"transfer-encoding"):
        return chunked(rest)
    if lengths := message.values(b"content-length"):
        if len(lengths) > 1 or not lengths[0].isdigit():
            return b"", False, rest
        size = int(lengths[0])
        return rest[:size], len(rest) >= size, rest[size:]
    return rest, end == "closed", b""


def chunked(raw: bytes) -> tuple[bytes, bool, bytes]:
    """The bytes of a chunked body, whether it ended, and what stands behind it."""
    body = b""
    while True:
        line, end, raw = raw.partition(b"\r\n")
        if not end or not re.fullmatch(rb"[0-9a-fA-F]+([ \t]*;.*)?", line):
            return body, False, b""
        size = int(line.partition(b";")[0], 16)
        if not size:
            break
        body, rest, raw = body + raw[:size], raw[size : size + 2], raw[size + 2 :]
        if rest != b"\r\n":
            return body, False, b""
    while True:  # trailers
        line, end, raw = raw.partition(b"\r\n")
        if not end:
            return body, False, b""
        if not line:
            return body, True, raw
