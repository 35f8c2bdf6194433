"""A request that Forebay itself turns down, and the plain answer it gets where nobody gives it a better one."""

from __future__ import annotations

from typing import Final

from proxy.http.reply import Reply, encode_head
from proxy.terms import Headers, Reason

_PLAIN: Final[Headers] = ((b"Content-Type", b"text/plain; charset=utf-8"),)


class Refused(Exception):
    """Turned down before the backend saw it: with which status, counted as what, and what the client is told.

    Raised while a body is read. A handler may give it its protocol's own shape; left alone, the connection
    answers in plain text. The message never quotes the request: it may end up in a log.
    """

    def __init__(self, status: int, reason: Reason, message: str) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message

    def reply(self) -> Reply:
        """The refusal as an answer to a request."""
        return plain(self.status, self.message)

    def encode(self) -> bytes:
        """The refusal as the last bytes of a connection, where there is no request to answer."""
        body = self.message.encode() + b"\n"
        framing = b"Content-Length: %d\r\nConnection: close\r\n" % len(body)
        return encode_head(self.status, None, _PLAIN, framing) + body


def plain(status: int, message: str) -> Reply:
    """A short answer of our own, as text."""
    return Reply(status, _PLAIN, message.encode() + b"\n")
