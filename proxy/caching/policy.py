"""What may be stored, for how long, and what of it is kept; and what a caller asks of the response cache.

Invariants
    An answer is stored only if it is whole, a success, nobody's own (no cookie, not private) and depends on
    nothing but what is in its key. An answer that is not understood is not stored.
    No lifetime passes what the backend allows, nor the configured one by more than its jitter.
    A word of a caller that Forebay does not know changes nothing.

Knows no clock and no body. Whether the body came whole, the codec and the upstream say.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple

from proxy.caching.fingerprint import DEFAULT_PROOF_KEY, Tenant, TenantKind
from proxy.settings import Bytes, Seconds, setting
from proxy.terms import Headers, Reason

JITTER: Final = 0.1  # of the lifetime, either way: what was stored together does not expire together
TTL_WITHOUT_IDENTITY: Final = 60.0  # seconds, where nothing says that a model has changed

NOT_WHOLE: Final = frozenset({202, 206, 226})
"""Successes whose body is not the answer: a promise of one, a part of one, a change to one."""

NOT_SHARED: Final = frozenset({b"no-store", b"no-cache", b"private"})
"""Words of Cache-Control that forbid a shared cache to answer without asking."""

KEPT: Final = frozenset({b"content-type", b"content-language"})
"""A stored or joined answer's headers belong to nobody in particular, so only what describes the body is kept."""

_DIRECTIVE: Final = re.compile(rb"""([^\s,;="]+)(?:\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,;"]*))?""")


class CacheMode(Enum):
    """What a route does with its response cache; off: no read, no write, no coalescing."""

    ON = "on"
    OFF = "off"


class CacheUse(Enum):
    """What one request does with it."""

    ON = "on"
    OFF = "off"  # not read, not written, not coalesced
    REFRESH = "refresh"  # not read, but written


class Directives(NamedTuple):
    """What a caller asks for. batch: may its items ride with others'."""

    cache: CacheUse
    batch: bool


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The response cache of a route."""

    mode: CacheMode = setting(CacheMode.ON, "Whether the response cache is used: `on` or `off`.")
    memory: Bytes = setting(
        Bytes(256 * 1024 * 1024),
        "Memory that entries may take in this process, keys and overhead included.",
        minimum=0,
        per_route=False,
    )
    ttl: Seconds = setting(
        Seconds(3600.0),
        "How long an answer is served from the response cache, ±10 %; the backend's `max-age` may shorten it.",
        minimum=0,
    )
    sampled: bool = setting(
        False,
        "`true`: sampled generation is kept and shared too, so that all who ask the same get the same sample.",
    )
    tenant: str = setting(
        "credentials",
        "Who shares answers: callers with equal `credentials`, with an equal header (`header:X-Team`), all (`none`).",
    )
    proof_key: str | None = setting(
        None,
        "A secret without which nobody can put entries into a shared Redis; equal on all replicas.",
        per_route=False,
    )
    finish_abandoned: Seconds = setting(
        Seconds(30.0),
        "How long a computation whose callers have all left may go on, so that a retry finds its answer.",
        minimum=0,
    )

    def __post_init__(self) -> None:
        """A ValueError says what is wrong with `tenant`."""
        Tenant.parse(self.tenant)

    @property
    def key(self) -> bytes:
        """The proof key as the 1 to 64 bytes that fingerprints and entries are made with."""
        if self.proof_key is None:
            return DEFAULT_PROOF_KEY
        return hashlib.blake2b(self.proof_key.encode(), digest_size=32, person=b"forebay key").digest()

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__slots__} | {"proof_key": self.proof_key and "(secret)"}
        return f"CacheSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_ORDINARY: Final = Directives(CacheUse.ON, batch=True)
_ANYBODY: Final = Tenant(TenantKind.NONE)


def directives(headers: Headers) -> Directives:
    """What `Forebay-Cache` and `Forebay-Batch` of a request say; the more cautious word wins."""
    cache: set[bytes] = set()
    batch: set[bytes] = set()
    for name, value in headers:
        if len(name) == 13:  # both names are: every request comes by here, and few other names are
            lower = name.lower()
            if lower == b"forebay-cache":
                cache.update(_words(value))
            elif lower == b"forebay-batch":
                batch.update(_words(value))
    if not cache and not batch:
        return _ORDINARY
    use = CacheUse.OFF if b"off" in cache else CacheUse.REFRESH if b"refresh" in cache else CacheUse.ON
    return Directives(use, batch=b"off" not in batch)


def lifetime(
    status: int,
    headers: Headers,
    *,
    ttl: float,
    now: float,
    jitter: float,
    identity_known: bool,
    tenant: Tenant = _ANYBODY,
) -> float | Reason:
    """Seconds for which a backend's answer may be served from the response cache, or `NO_STORE`.

    ttl: the configured lifetime. now: Unix seconds. jitter: -1 to 1, drawn anew for each answer.
    identity_known: the backend or the operator says when the model changes.
    tenant: the rule of the keys, for a `Vary` that names a credential.
    """
    fields: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(value)
    if not 200 <= status < 300 or status in NOT_WHOLE or b"set-cookie" in fields:
        return Reason.NO_STORE
    if any(coding not in (b"", b"identity") for coding in _list(fields, b"content-encoding")):
        return Reason.NO_STORE
    if not all(name == b"accept-encoding" or (name != b"*" and tenant.covers(name)) for name in _list(fields, b"vary")):
        return Reason.NO_STORE
    allowed = _allowed(fields, now)
    seconds = min(ttl, allowed) * (1.0 + JITTER * jitter)
    seconds = min(seconds, allowed) - age(headers)
    if not identity_known:
        seconds = min(seconds, TTL_WITHOUT_IDENTITY)
    return seconds if seconds > 0 else Reason.NO_STORE


def kept_headers(headers: Headers) -> Headers:
    """The fields of an answer that go with an entry: those that describe its body."""
    return tuple((name, value) for name, value in headers if name.lower() in KEPT)


def _allowed(fields: dict[bytes, list[bytes]], now: float) -> float:
    """Seconds that the backend allows from the answer's birth, infinite where it says nothing (RFC 9111, 4.2.1)."""
    said: dict[bytes, float] = {}
    for word, value in _DIRECTIVE.findall(b",".join(fields.get(b"cache-control", ()))):
        name = word.lower()
        if name in NOT_SHARED:
            return 0.0
        if name in (b"max-age", b"s-maxage"):
            seconds = _seconds(value.strip(b'"'))
            said[name] = min(said.get(name, seconds), seconds)
    if said:
        return said.get(b"s-maxage", said.get(b"max-age", 0.0))
    if expires := fields.get(b"expires"):
        dates = fields.get(b"date")
        born = _unix(dates[0]) if dates else now
        return max(0.0, min(map(_unix, expires)) - (born or now))
    return float("inf")


def age(headers: Headers) -> float:
    """Seconds since an answer was made, where a cache on the backend's side says so."""
    return max((_seconds(value) for name, value in headers if name.lower() == b"age"), default=0.0)


def _seconds(text: bytes) -> float:
    """A delta-seconds; what is none counts as none."""
    return float(text) if text.isdigit() and len(text) < 16 else 0.0


def _unix(text: bytes) -> float:
    """An HTTP date in Unix seconds; what is none is long past."""
    try:
        date = parsedate_to_datetime(text.decode("latin-1"))
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _list(fields: dict[bytes, list[bytes]], name: bytes) -> list[bytes]:
    return [word for value in fields.get(name, ()) for word in _words(value)]


def _words(value: bytes) -> list[bytes]:
    return [word.strip() for word in value.lower().split(b",") if word.strip()]
