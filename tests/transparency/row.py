"""The words of the table: what each side does, and what each side must have seen.

A `Row` is one promise. Its client and its backend follow a list of steps, bytes being a step that sends
them; where nothing is said, the client waits for one answer, the backend reads each request whole and
says `ok`, and both must have seen just that. Checks are data too: each says in words what it wants.

Knows nothing of any proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.transparency.seen import BackendSide, ClientSide, Message, Seen

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HOST = b"Host: front"


class Do(Enum):
    """Steps of either side, of the client (END, RESTART) and of the backend (the last three)."""

    CLOSE = "close"
    RESET = "reset"
    HALF_CLOSE = "half close"
    END = "wait for the end of the connection"
    RESTART = "the backend goes and comes back"
    WHOLE = "read the body of the request"
    GONE = "read until the other side is gone"
    CONTINUE = "say 100 Continue, if the request asks for it"


CLOSE, RESET, HALF_CLOSE, END, RESTART, WHOLE, GONE, CONTINUE = Do


@dataclass(frozen=True, slots=True)
class Answers:
    """The client waits until it has so many final answers in all."""

    count: int


@dataclass(frozen=True, slots=True)
class Heads:
    """The client waits until the backend has had so many heads in all."""

    count: int


@dataclass(frozen=True, slots=True)
class Interim:
    """The client waits for an interim answer."""


@dataclass(frozen=True, slots=True)
class Raw:
    """The client waits until these bytes have come."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Slowly:
    """Sent byte by byte, each in a segment of its own."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Let:
    """Whoever waits for this name goes on."""

    name: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the other side lets this name go."""

    name: str


@dataclass(frozen=True, slots=True)
class Hanging:
    """So many more clients ask for what the backend never answers, and have reached it."""

    count: int


ANSWER = Answers(1)
Step = bytes | Do | Answers | Heads | Interim | Raw | Slowly | Let | Wait | Hanging
Act = bytes | tuple[Step, ...]
"""What the backend does about one request whose head it has read; bytes alone: read the rest, and send them."""


@dataclass(frozen=True, slots=True)
class Check:
    """says: what must be so, in words."""

    says: str
    holds: Callable[[Seen], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """promise: what a user can rely on, and the row's name. backend: the n-th act for the n-th request, then the last.

    absent: there is no backend at all.
    """

    promise: str
    client: tuple[Step, ...]
    sees: tuple[Check, ...]
    backend: tuple[Act, ...] = (OK,)
    absent: bool = False

    def failures(self, seen: Seen) -> list[str]:
        """What is not as promised, in words."""
        broken = [check.says for check in self.sees if not check.holds(seen)]
        return broken + (seen.stuck if broken else [])


def row(
    promise: str,
    client: bytes | tuple[Step, ...],
    *sees: Check,
    backend: bytes | Sequence[Act] = OK,
    absent: bool = False,
) -> Row:
    """A row in short: bytes are one step, or one answer to every request; no check means that all goes through."""
    steps = (client,) if isinstance(client, bytes) else client
    if not isinstance(steps[-1], Answers | Raw | Interim | Heads) and steps[-1] is not END:
        steps = (*steps, ANSWER)
    acts = (backend,) if isinstance(backend, bytes) else tuple(backend)
    return Row(promise, steps, sees or THROUGH, acts, absent)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


def request(line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    """A request whose head has these lines, and a Host."""
    return b"\r\n".join((line, HOST, *fields, b"", body))


def get(target: bytes = b"/", *fields: bytes, method: bytes = b"GET") -> bytes:
    """A request without body."""
    return request(method + b" " + target + b" HTTP/1.1", *fields)


def post(body: bytes, *fields: bytes, target: bytes = b"/") -> bytes:
    """A request with a body of known length."""
    return request(b"POST " + target + b" HTTP/1.1", *fields, b"Content-Length: %d" % len(body), body=body)


def chunks(raw: bytes, *fields: bytes, target: bytes = b"/") -> bytes:
    """A chunked request; `raw` is its body as it goes on the wire."""
    return request(b"POST " + target + b" HTTP/1.1", *fields, b"Transfer-Encoding: chunked", body=raw)


def answer(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK", body: bytes = b"") -> bytes:
    """An answer whose head has these lines."""
    return b"\r\n".join((line, *fields, b"", body))


# ── checks of both sides ──────────────────────────────────────────────────────────────────────────────

Side = Callable[[Seen], ClientSide | BackendSide]
_FRAMING = {b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive"}


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].lower()


def _folded(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    return name.lower() + colon + value.rstrip(b" ")


class On:
    """Checks of one side: `client` or `backend`. `nth`: of which message."""

    def __init__(self, name: str, side: Side) -> None:
        self._name = name
        self._side = side

    def _check(self, says: str, holds: Callable[[Message], bool], nth: int = 0) -> Check:
        def of(seen: Seen) -> bool:
            messages = self._side(seen).messages
            return len(messages) > nth and holds(messages[nth])

        return Check(f"{self._name} sees {says}", of)

    def line(self, line: bytes, nth: int = 0) -> Check:
        return self._check(f"{line!r}", lambda message: message.line == line, nth)

    def spelt(self, *lines: bytes, nth: int = 0) -> Check:
        """These field lines letter by letter, in this order."""

        def holds(message: Message) -> bool:
            names = {_name(line) for line in lines}
            return [line for line in message.fields if _name(line) in names] == list(lines)

        return self._check(f"the lines {lines!r}", holds, nth)

    def has(self, *lines: bytes, nth: int = 0) -> Check:
        """These field lines in this order, whatever the case of their names."""

        def holds(message: Message) -> bool:
            names = {_name(line) for line in lines}
            return [_folded(line) for line in message.fields if _name(line) in names] == list(map(_folded, lines))

        return self._check(f"the fields {lines!r}", holds, nth)

    def only(self, *lines: bytes, nth: int = 0) -> Check:
        """These field lines and no others, but Host and what frames the message, whatever the case of their names."""

        def holds(message: Message) -> bool:
            rest = [_folded(line) for line in message.fields if _name(line) not in _FRAMING]
            return rest == list(map(_folded, lines))

        return self._check(f"no fields but {lines!r}", holds, nth)

    def lacks(self, *names: bytes, nth: int = 0) -> Check:
        return self._check(f"none of {names!r}", lambda message: not any(map(message.values, names)), nth)

    def value(self, name: bytes, *values: bytes, nth: int = 0) -> Check:
        """A field's value, whatever the spelling of its name; one of these."""
        return self._check(
            f"{name!r} with {values!r}", lambda m: [v for v in values if m.values(name) == [v]] != [], nth
        )

    def body(self, body: bytes, nth: int = 0) -> Check:
        shown = repr(body) if len(body) < 40 else f"{len(body)} bytes"
        return self._check(f"the whole body {shown}", lambda message: message.whole and message.body == body, nth)

    def part(self, body: bytes, nth: int = 0) -> Check:
        return self._check(f"{body!r} and that more was to come", lambda m: not m.whole and m.body == body, nth)


client = On("the client", lambda seen: seen.client)
backend = On("the backend", lambda seen: seen.backend)


# ── checks of one side ────────────────────────────────────────────────────────────────────────────────


def status(*codes: int | range) -> Check:
    """The final answers, in order: just these, each whole or not."""

    def holds(seen: Seen) -> bool:
        got = [message.status for message in seen.client.answers]
        wanted = [code if isinstance(code, range) else (code,) for code in codes]
        return len(got) == len(wanted) and all(one in other for one, other in zip(got, wanted, strict=True))

    return Check(f"the client gets {', '.join(map(str, codes)) or 'no answer'}", holds)


def asked(times: int) -> Check:
    """So many requests came to the backend whole; half of one counts for nothing."""
    return Check(
        f"the backend gets {times} whole requests", lambda s: sum(m.whole for m in s.backend.messages) == times
    )


def never(text: bytes) -> Check:
    """No request line of the backend holds this."""
    return Check(
        f"no request to the backend says {text!r}", lambda s: all(text not in m.line for m in s.backend.messages)
    )


def unsaid(text: bytes) -> Check:
    """Nothing that the client got holds this."""

    def holds(seen: Seen) -> bool:
        heads = [b"\n".join((m.line, *m.fields, m.body)) for m in seen.client.answers]
        return not any(text in head for head in (*heads, seen.client.behind))

    return Check(f"the client never sees {text!r}", holds)


def interim(*codes: int) -> Check:
    return Check(
        f"the client gets interim answers {codes}", lambda s: [m.status for m in s.client.interim] == list(codes)
    )


def ended(*how: str) -> Check:
    return Check(f"the connection is {' or '.join(how)}", lambda seen: seen.client.end in how)


def connections(most: int) -> Check:
    return Check(f"the backend sees {most} connections at most", lambda seen: seen.backend.connections <= most)


def either(*choices: tuple[Check, ...]) -> Check:
    """All checks of one of these."""
    says = " or else ".join(" and ".join(check.says for check in choice) for choice in choices)
    return Check(says, lambda seen: any(all(check.holds(seen) for check in choice) for choice in choices))


ERROR = range(500, 600)
REFUSAL = range(400, 600)
REFUSED = (status(REFUSAL), asked(0))
"""The client is told so, and the backend has nothing to answer."""

THROUGH = (status(200), client.body(b"ok"), asked(1))
TRUNCATED = Check(
    "the client can tell that the answer is not whole",
    lambda seen: (
        (
            len(seen.client.answers) == 1
            and (not seen.client.answers[0].whole or seen.client.answers[0].status >= 500)
            and seen.client.end != "open"
        )
        or (not seen.client.answers and seen.client.end != "open")
    ),
)
