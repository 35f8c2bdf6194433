"""Promises of the header policy."""

from __future__ import annotations

import pytest

from proxy.http import headers as fields
from proxy.terms import Headers

REQUEST: Headers = (
    (b"Host", b"public.example"),
    (b"accept", b"a"),
    (b"Accept", b"b"),
    (b"Content-Length", b"12"),
    (b"Expect", b"100-continue"),
    (b"X-Request-Id", b"7"),
    (b"Connection", b"keep-alive, X-Hop"),
    (b"x-hop", b"1"),
    (b"Forebay-Cache", b"off"),
    (b"forebay-batch", b"off"),
    (b"Accept-Encoding", b"gzip"),
    (b"TE", b"trailers"),
    (b"Upgrade", b"h2c"),
    (b"Authorization", b"Bearer x"),
)


def test_a_request_crosses_with_its_end_to_end_fields_in_order() -> None:
    """The backend sees every field that was meant for it, repeated ones too, as the caller wrote them."""
    assert fields.to_backend(REQUEST, host=b"127.0.0.1:8000", identity=False) == (
        (b"Host", b"127.0.0.1:8000"),
        (b"accept", b"a"),
        (b"Accept", b"b"),
        (b"X-Request-Id", b"7"),
        (b"Accept-Encoding", b"gzip"),
        (b"Authorization", b"Bearer x"),
    )


def test_a_recognised_call_asks_for_no_content_coding() -> None:
    """An answer that several callers may get is one that all of them can read."""
    crossed = fields.to_backend(REQUEST, host=b"b", identity=True)
    assert [value for name, value in crossed if name.lower() == b"accept-encoding"] == [b"identity"]


@pytest.mark.parametrize("name", sorted(fields.HOP_BY_HOP))
def test_what_speaks_of_one_connection_never_crosses(name: bytes) -> None:
    """One connection's framing and options never reach the other, in any spelling."""
    for spelled in (name, name.title(), name.upper()):
        message: Headers = ((b"X-Kept", b"1"), (spelled, b"v"))
        assert fields.to_client(message) == ((b"X-Kept", b"1"),)
        assert fields.to_backend(message, host=b"b", identity=False) == ((b"Host", b"b"), (b"X-Kept", b"1"))


def test_an_answer_keeps_its_length_whatever_connection_lists() -> None:
    """A HEAD or a 304 still tells how long the body would be."""
    answer: Headers = (
        (b"Content-Length", b"5"),
        (b"Connection", b"close, x-private, content-length"),
        (b"X-Private", b"1"),
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    )
    assert fields.to_client(answer) == ((b"Content-Length", b"5"), (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2"))


def test_connection_may_be_repeated_and_untidy() -> None:
    """A field that `Connection` lists is dropped wherever and however it is listed."""
    message: Headers = ((b"connection", b" close ,, X-A"), (b"CONNECTION", b"x-b"), (b"X-a", b"1"), (b"X-B", b"2"))
    assert fields.to_client(message) == ()


def test_a_value_is_found_under_any_spelling() -> None:
    """Reading a field does not depend on who spelled it."""
    message: Headers = ((b"X-One", b"1"), (b"x-one", b"2"))
    assert fields.get(message, b"X-ONE") == b"1"
    assert fields.get(message, b"x-two") is None
