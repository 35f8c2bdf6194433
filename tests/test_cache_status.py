"""Promises of what an answer says about the response cache."""

from __future__ import annotations

import pytest

from proxy import cache_status
from proxy.terms import Reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (cache_status.hit(59.9), b"Forebay; hit; ttl=59"),
        (
            cache_status.missed(Reason.FIRST_SEEN, partial=False, collapsed=False, stored=True),
            b"Forebay; fwd=miss; stored; detail=first_seen",
        ),
        (
            cache_status.missed(Reason.EXPIRED, partial=False, collapsed=False, stored=False),
            b"Forebay; fwd=stale; detail=expired",
        ),
        (
            cache_status.missed(Reason.FIRST_SEEN, partial=True, collapsed=False, stored=True),
            b"Forebay; fwd=partial; stored; detail=first_seen",
        ),
        (
            cache_status.missed(Reason.FIRST_SEEN, partial=False, collapsed=True, stored=False),
            b"Forebay; fwd=miss; collapsed; detail=first_seen",
        ),
        (
            cache_status.missed(Reason.REFRESH, partial=False, collapsed=False, stored=True),
            b"Forebay; fwd=request; stored; detail=refresh",
        ),
        (cache_status.bypassed(Reason.OPTED_OUT), b"Forebay; fwd=bypass; detail=opted_out"),
    ],
)
def test_cache_status_says_what_happened_in_rfc_9211_words(value: bytes, expected: bytes) -> None:
    """A reader of RFC 9211 can tell from one field whether, and why, the backend was asked."""
    assert value == expected


def test_age_is_whole_seconds_and_never_negative() -> None:
    """A clock that was set back never makes an answer look younger than new."""
    assert cache_status.age(created=10.0, now=12.9) == b"2"
    assert cache_status.age(created=12.9, now=10.0) == b"0"
