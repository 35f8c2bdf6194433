"""Promises of what is stored, for how long, and of the words by which a caller steers it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.caching.fingerprint import DEFAULT_PROOF_KEY, Tenant, TenantKind
from proxy.caching.policy import (
    JITTER,
    TTL_WITHOUT_IDENTITY,
    CacheSettings,
    CacheUse,
    Directives,
    directives,
    kept_headers,
    lifetime,
)
from proxy.terms import Headers, Reason

NOW = 1_700_000_000.0
MIDNIGHT = b"Tue, 14 Nov 2023 22:13:20 GMT"  # NOW, as HTTP writes it
TTL = 3600.0
ANYBODY = Tenant(TenantKind.NONE)


def stored_for(
    *fields: tuple[bytes, bytes],
    status: int = 200,
    ttl: float = TTL,
    jitter: float = 0.0,
    identity_known: bool = True,
    tenant: Tenant = ANYBODY,
) -> float | Reason:
    return lifetime(status, fields, ttl=ttl, now=NOW, jitter=jitter, identity_known=identity_known, tenant=tenant)


@pytest.mark.parametrize("status", [200, 201, 203, 204])
def test_a_whole_success_is_stored_for_the_configured_time(status: int) -> None:
    """What the backend answers well, and says nothing else about, is answered again for `ttl`."""
    assert stored_for((b"Content-Type", b"application/json"), status=status) == TTL


@pytest.mark.parametrize("status", [100, 199, 202, 206, 226, 300, 304, 400, 404, 429, 500, 503])
def test_errors_and_parts_are_not_stored(status: int) -> None:
    """Nobody gets yesterday's error, or a part of an answer for the whole."""
    assert stored_for(status=status) is Reason.NO_STORE


@pytest.mark.parametrize(
    "field",
    [
        (b"Set-Cookie", b"session=1"),
        (b"set-cookie", b""),
        (b"Content-Encoding", b"gzip"),
        (b"content-encoding", b"identity, br"),
        (b"Cache-Control", b"no-store"),
        (b"Cache-Control", b"max-age=60, NO-STORE"),
        (b"cache-control", b"private"),
        (b"Cache-Control", b'private="x-user"'),
        (b"Cache-Control", b"no-cache"),
        (b"Cache-Control", b"max-age=0"),
        (b"Cache-Control", b"max-age=-1"),
        (b"Cache-Control", b"max-age=soon"),
        (b"Cache-Control", b"max-age"),
        (b"Cache-Control", b"s-maxage=0, max-age=60"),
        (b"Cache-Control", b'extension="unended, no-store'),
        (b"Expires", b"0"),
        (b"Expires", b"Mon, 13 Nov 2023 22:13:20 GMT"),
        (b"Age", b"3600"),
        (b"Vary", b"*"),
        (b"Vary", b"Accept, *"),
        (b"Vary", b"User-Agent"),
        (b"Vary", b"X-Request-Id"),
        (b"Vary", b"Cookie"),
        (b"vary", b"Accept, authorization"),
    ],
)
def test_what_the_backend_keeps_to_itself_is_not_stored(field: tuple[bytes, bytes]) -> None:
    """Cookies, packed bodies, forbidden, stale or otherwise varying answers reach their own caller only."""
    assert stored_for(field) is Reason.NO_STORE


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        ((b"Cache-Control", b"max-age=60"), 60),
        ((b"Cache-Control", b'Max-Age="60"'), 60),
        ((b"Cache-Control", b"public, max-age = 60 , must-revalidate"), 60),
        ((b"Cache-Control", b"max-age=60, s-maxage=120"), 120),
        ((b"Cache-Control", b"max-age=60, max-age=30"), 30),
        ((b"Cache-Control", b"max-age=30, max-age=60"), 30),
        ((b"Cache-Control", b"max-age=999999"), TTL),
        ((b"Cache-Control", b'extension="no-store, max-age=5"'), TTL),
        ((b"Expires", b"Tue, 14 Nov 2023 22:14:20 GMT"), 60),
        ((b"Age", b"600"), TTL - 600),
        ((b"Age", b"a while"), TTL),
        ((b"Content-Encoding", b"identity"), TTL),
        ((b"Vary", b"Accept-Encoding, Accept, X-Variant"), TTL),
        ((b"Vary", b""), TTL),
    ],
)
def test_what_the_backend_allows_is_used(field: tuple[bytes, bytes], seconds: float) -> None:
    """The backend's own lifetime shortens ours, and a `Vary` on what is in the key costs nothing."""
    assert stored_for(field) == seconds


def test_fields_are_read_together() -> None:
    """A cache on the backend's side, two Cache-Control fields, a clock that differs from ours: all are counted."""
    assert stored_for((b"Cache-Control", b"max-age=60"), (b"Age", b"45")) == 15
    assert stored_for((b"Cache-Control", b"max-age=60"), (b"Cache-Control", b"no-store")) is Reason.NO_STORE
    assert stored_for((b"Cache-Control", b"max-age=60"), (b"Expires", b"0")) == 60
    skewed = (b"Date", b"Tue, 14 Nov 2023 20:00:00 GMT"), (b"Expires", b"Tue, 14 Nov 2023 20:00:30 GMT")
    assert stored_for(*skewed) == 30
    assert stored_for((b"Date", b"?"), (b"Expires", b"Tue, 14 Nov 2023 22:14:20 GMT")) == 60
    assert stored_for((b"Date", MIDNIGHT), (b"Expires", MIDNIGHT)) is Reason.NO_STORE


@pytest.mark.parametrize("name", [b"Cookie", b"Authorization"])
def test_a_vary_on_a_credential_is_fine_where_the_credential_is_in_the_key(name: bytes) -> None:
    """Frameworks that add `Vary: Cookie` cost no hits as long as credentials tell tenants apart."""
    vary = (b"Vary", name)
    assert stored_for(vary, tenant=Tenant(TenantKind.CREDENTIALS)) == TTL
    assert stored_for(vary, tenant=Tenant.parse("header:X-Team")) is Reason.NO_STORE
    assert stored_for(vary, tenant=Tenant.parse(f"header:{name.decode()}")) == TTL


def test_a_route_without_lifetime_stores_nothing() -> None:
    """`ttl: 0s` is a way to store nothing."""
    assert stored_for(ttl=0.0) is Reason.NO_STORE


def test_jitter_spreads_lifetimes_but_never_past_what_the_backend_allows() -> None:
    """Answers that were stored together do not all expire together, and none is served after its `max-age`."""
    assert stored_for(jitter=1.0) == pytest.approx(TTL * 1.1)
    assert stored_for(jitter=-1.0) == pytest.approx(TTL * 0.9)
    assert stored_for((b"Cache-Control", b"max-age=100"), jitter=1.0) == 100
    assert stored_for((b"Cache-Control", b"max-age=100"), jitter=-1.0) == pytest.approx(90)


def test_a_model_that_nobody_can_identify_is_not_trusted_for_long() -> None:
    """Where nothing says that weights changed, an answer outlives them by a minute at most."""
    assert stored_for(identity_known=False, jitter=1.0) == TTL_WITHOUT_IDENTITY
    assert stored_for(identity_known=False, ttl=5.0) == 5.0


names = st.sampled_from([b"cache-control", b"Vary", b"Expires", b"Age", b"Date", b"Content-Encoding", b"X-Any"])
values = st.binary(max_size=12) | st.sampled_from([
    b"max-age=60", b"s-maxage=10", b"no-store", b"private", b"*", b"Accept", b"gzip", b"30", MIDNIGHT,
    b"Fri, 31 Dec 9999 23:59:59 -2359", b"Fri, 31 Feb 0000 99:99:99 GMT", b"1 Jan 1 00:00:00 +2359",
])  # fmt: skip


@given(
    fields=st.lists(st.tuples(names, values), max_size=5).map(tuple),
    ttl=st.floats(0, 1e9),
    jitter=st.floats(-1, 1),
    known=st.booleans(),
)
def test_no_field_of_a_backend_raises_or_prolongs(fields: Headers, ttl: float, jitter: float, known: bool) -> None:
    """Whatever a backend writes, an answer is stored for a positive time within `ttl` and its jitter, or not."""
    got = lifetime(200, fields, ttl=ttl, now=NOW, jitter=jitter, identity_known=known)
    if got is not Reason.NO_STORE:
        assert isinstance(got, float)
        assert 0 < got <= ttl * (1 + JITTER)
        assert not math.isnan(got)
        assert not any(value == b"no-store" for name, value in fields if name == b"cache-control")


def test_kept_headers_describe_the_body_and_nobody() -> None:
    """A hit never carries another caller's request id, cookie, limits, date or CORS fields."""
    answer = (
        (b"Date", MIDNIGHT),
        (b"content-type", b"application/json"),
        (b"X-Request-Id", b"theirs"),
        (b"Access-Control-Allow-Origin", b"https://theirs"),
        (b"X-RateLimit-Remaining", b"3"),
        (b"Content-Length", b"10"),
        (b"Content-Language", b"de"),
        (b"ETag", b'"1"'),
        (b"Server", b"x"),
    )
    assert kept_headers(answer) == ((b"content-type", b"application/json"), (b"Content-Language", b"de"))


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ((), Directives(CacheUse.ON, True)),
        (((b"Forebay-Cache", b"off"),), Directives(CacheUse.OFF, True)),
        (((b"forebay-cache", b" Refresh "),), Directives(CacheUse.REFRESH, True)),
        (((b"FOREBAY-BATCH", b"OFF"),), Directives(CacheUse.ON, False)),
        (((b"Forebay-Cache", b"refresh, off"),), Directives(CacheUse.OFF, True)),
        (((b"Forebay-Cache", b"off"), (b"Forebay-Cache", b"refresh")), Directives(CacheUse.OFF, True)),
        (((b"Forebay-Cache", b"refresh"), (b"Forebay-Batch", b"off")), Directives(CacheUse.REFRESH, False)),
        (((b"Forebay-Cache", b"offside"), (b"Forebay-Batch", b"no")), Directives(CacheUse.ON, True)),
        (((b"Forebay-Cache", b""), (b"Cache-Control", b"no-cache")), Directives(CacheUse.ON, True)),
        (((b"Forebay-Catch", b"off"), (b"X-Forebay-Cache", b"off")), Directives(CacheUse.ON, True)),
    ],
)
def test_a_caller_steers_by_words_that_are_known(fields: Headers, asked: Directives) -> None:
    """`Forebay-Cache: off | refresh` and `Forebay-Batch: off` do what they say, anything else nothing."""
    assert directives(((b"Host", b"a"), (b"Content-Type", b"text/plain"), *fields)) == asked


def test_a_wrong_tenant_is_refused_when_the_config_is_read() -> None:
    """A typing error in `cache.tenant` never becomes a rule that nobody meant."""
    with pytest.raises(ValueError, match="is no tenant"):
        CacheSettings(tenant="credential")


def test_the_proof_key_is_public_until_one_is_configured_and_never_shown() -> None:
    """Replicas share by default; a secret of any length works, and no log shows it."""
    assert CacheSettings().key == DEFAULT_PROOF_KEY
    short, long = CacheSettings(proof_key="s3cret"), CacheSettings(proof_key="s3cret" * 100)
    assert len({short.key, long.key, DEFAULT_PROOF_KEY}) == 3
    assert len(short.key) == len(long.key) == 32
    assert "s3cret" not in repr(short)
    assert "proof_key='(secret)'" in repr(short)
    assert "proof_key=None" in repr(CacheSettings())
