"""Undoing the content coding of a request body, so that it can be read. What the backend gets is the body as it came.

Invariants
    What comes out is at most as long as the caller allows, however small the body is.
    A body that is not exactly one coded stream, to its last byte, is not undone.

Pure. Knows nothing of what is in a body.
"""

from __future__ import annotations

import zlib
from typing import Final

from proxy.terms import Headers

_WINDOWS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # RFC 9110, 8.4.1: deflate is zlib's format

_NAME: Final = b"content-encoding"
_LENGTH: Final = len(_NAME)  # few names are as long: every request comes by here


def undone(body: bytes, headers: Headers, largest: int) -> bytes | None:
    """The body without its `Content-Encoding`; None if that cannot be undone for certain, in `largest` bytes."""
    codings = [value.strip().lower() for name, value in headers if len(name) == _LENGTH and name.lower() == _NAME]
    if not codings:
        return body
    windows = _WINDOWS.get(codings[0])
    if windows is None or len(codings) > 1:
        return None
    stream = zlib.decompressobj(windows)
    try:
        text = stream.decompress(body, largest)
    except zlib.error:
        return None
    return text if stream.eof and not stream.unused_data else None
