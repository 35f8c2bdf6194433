"""What an answer says of the response cache: `Cache-Status` (RFC 9211) and `Age` (RFC 9111).

Pure: reasons and numbers in, header values out. Only answers to recognised calls carry them: what
Forebay does not understand goes through without a field of ours.
"""

from __future__ import annotations

import functools
from typing import Final

from proxy.terms import Reason

CACHE_STATUS: Final = b"Cache-Status"
AGE: Final = b"Age"

_FORWARDED: Final = {Reason.EXPIRED: b"stale", Reason.REFRESH: b"request"}  # every other miss is just a `miss`


def _forwarded(reason: Reason, *, why: bytes, collapsed: bool, stored: bool) -> bytes:
    parts = [b"Forebay; fwd=", why]
    if collapsed:
        parts.append(b"; collapsed")
    if stored:
        parts.append(b"; stored")
    parts += (b"; detail=", reason.value.encode())
    return b"".join(parts)


_TABLE: Final = {
    (reason, partial, collapsed, stored): _forwarded(
        reason,
        why=b"partial" if partial else _FORWARDED.get(reason, b"miss"),
        collapsed=collapsed,
        stored=stored,
    )
    for reason in Reason
    for partial in (False, True)
    for collapsed in (False, True)
    for stored in (False, True)
}
_BYPASSED: Final = {reason: _forwarded(reason, why=b"bypass", collapsed=False, stored=False) for reason in Reason}


def hit(ttl: float) -> bytes:
    """Every item came from the response cache; `ttl` is the least remaining freshness, in seconds."""
    return _hit(int(ttl))


@functools.lru_cache(maxsize=4096)  # of a few seconds' answers; writing it anew would take longer
def _hit(seconds: int) -> bytes:
    return b"Forebay; hit; ttl=%d" % seconds


def missed(reason: Reason, *, partial: bool, collapsed: bool, stored: bool) -> bytes:
    """At least one item was asked of the backend.

    partial: other items were hits. collapsed: another request's flight answered every missing item.
    stored: the answer went into the response cache.
    """
    return _TABLE[reason, partial, collapsed, stored]


def bypassed(reason: Reason) -> bytes:
    """The response cache had no part in it."""
    return _BYPASSED[reason]


def age(created: float, now: float) -> bytes:
    """The age of the oldest item, whole seconds; both arguments in Unix seconds."""
    return _whole(int(max(0.0, now - created)))


@functools.lru_cache(maxsize=4096)
def _whole(seconds: int) -> bytes:
    return b"%d" % seconds
