"""The bytes of a request's head. Pure.

Written by ourselves, for aiohttp's own writer keeps one of two fields whose names differ only in case,
loses a bare `?`, and adds fields that the caller did not send.
"""

from __future__ import annotations

from typing import Final

from proxy.terms import Headers

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_LENGTH_EXPECTED: Final = frozenset({"POST", "PUT", "PATCH"})  # RFC 9110, 8.6: an empty body of theirs is stated


def head(method: str, target: str, headers: Headers, *, host: bytes, length: int | None) -> bytes:
    """Request line and fields as they go on the wire; `host` is used where `headers` have no Host.

    length: bytes of the body; None: sent in chunks. What `headers` say of framing is dropped: it
    belongs to another connection. ValueError where a line break in target or fields would make
    another message of it.
    """
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target.encode("utf-8", "surrogateescape"))]
    hosted = False
    for name, value in headers:
        lower = name.lower()
        if lower in _FRAMING:
            continue
        hosted = hosted or lower == b"host"
        lines.append(b"%b: %b" % (name, value))
    if not hosted:
        lines.insert(1, b"Host: " + host)
    if length is None:
        lines.append(b"Transfer-Encoding: chunked")
    elif length or method in _LENGTH_EXPECTED:
        lines.append(b"Content-Length: %d" % length)
    lines.append(b"\r\n")
    text = b"\r\n".join(lines)
    breaks = len(lines)
    if text.count(b"\n") != breaks or text.count(b"\r") != breaks or b"\0" in text or lines[0].count(b" ") != 2:
        raise ValueError("a request target or field holds a line break, a zero byte or a space where none may be")
    return text
