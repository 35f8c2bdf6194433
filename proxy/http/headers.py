"""Which header fields cross Forebay, in which direction.

Invariants
    Order, spelling and repetition of what crosses stay as the sender wrote them.
    What frames a message (`Content-Length`, `Transfer-Encoding`) is never copied towards the backend, and
    what belongs to one connection (`HOP_BY_HOP`, and whatever `Connection` lists) never crosses at all.

Pure. Knows nothing of what a field means to a protocol or to the response cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.terms import Headers

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Fields that speak of one connection only, in lower case."""

FRAMING: Final = frozenset({b"connection", b"content-length", b"keep-alive", b"transfer-encoding"})
"""Fields that whoever writes a message decides for itself, in lower case."""

_OF_THIS_HOP: Final = frozenset({b"h2c", b"h2", b"http", b"tls"})
_OURS: Final = b"forebay-"
_NOT_TO_BACKEND: Final = HOP_BY_HOP | FRAMING | {b"expect", b"host"}
_NOT_WITH_IDENTITY: Final = _NOT_TO_BACKEND | {b"accept-encoding"}


def to_backend(headers: Headers, *, host: bytes, identity: bool) -> Headers:
    """The fields of a request that the backend gets.

    host: the backend's own, in place of ours.
    identity: ask for an answer without content coding, whatever the caller would take.
    """
    dropped = _NOT_WITH_IDENTITY if identity else _NOT_TO_BACKEND
    if listed := _listed(headers):
        dropped |= listed
    kept = [field for field in headers if (name := field[0].lower()) not in dropped and not name.startswith(_OURS)]
    if identity:
        kept.append((b"Accept-Encoding", b"identity"))
    return ((b"Host", host), *kept)


def to_client(headers: Headers) -> Headers:
    """The fields of an answer that the client gets; `Content-Length` stays, a HEAD or a 304 needs it."""
    dropped = HOP_BY_HOP
    if listed := _listed(headers):
        dropped |= listed - {b"content-length"}
    return tuple([field for field in headers if field[0].lower() not in dropped])


def asked_protocols(headers: Headers) -> bytes:
    """What of `Upgrade` goes on to the backend: the protocols asked for, b"" if none of them can pass.

    Not HTTP/2 and TLS: they would change how this one connection is framed, which is ours to refuse (RFC 9110, 7.8).
    """
    tokens = [token.strip() for name, value in headers if name.lower() == b"upgrade" for token in value.split(b",")]
    return b", ".join([token for token in tokens if token and token.partition(b"/")[0].lower() not in _OF_THIS_HOP])


def switching(protocols: bytes) -> Headers:
    """The fields by which a request asks for one of `protocols`."""
    return ((b"Connection", b"Upgrade"), (b"Upgrade", protocols))


def switched(headers: Headers) -> Headers:
    """The fields of a 101 that the client gets, but `Connection: Upgrade`, which whoever writes it says itself."""
    dropped = (HOP_BY_HOP | FRAMING | _listed(headers)) - {b"upgrade"}
    return tuple([field for field in headers if field[0].lower() not in dropped])


def get(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a field, or None."""
    name = name.lower()
    size = len(name)
    for field, value in headers:
        if len(field) == size and field.lower() == name:
            return value
    return None


def _listed(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """What `Connection` names as this connection's own, in lower case."""
    values = [value for name, value in headers if len(name) == 10 and name.lower() == b"connection"]
    if not values:
        return frozenset()
    return frozenset(option.strip().lower() for value in values for option in value.split(b","))
