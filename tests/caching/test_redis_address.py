"""Promises of the address of Redis: read right or refused in one line that helps and gives nothing away."""

from __future__ import annotations

import pytest

from proxy.caching.redis_address import RedisAddress


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://cache", RedisAddress("redis", "cache")),
        ("redis://cache:7000/3", RedisAddress("redis", "cache", 7000, database=3)),
        ("redis://[::1]:7000/", RedisAddress("redis", "::1", 7000)),
        ("redis://:p%40ss%2F@cache", RedisAddress("redis", "cache", password="p@ss/")),
        ("redis://me:secret@cache", RedisAddress("redis", "cache", username="me", password="secret")),
        ("rediss://cache?ssl_ca_certs=/ca.pem", RedisAddress("rediss", "cache", tls={"ssl_ca_certs": "/ca.pem"})),
        ("unix:///run/redis.sock", RedisAddress("unix", path="/run/redis.sock")),
        ("unix:///a%20b?db=2&password=x%26y", RedisAddress("unix", path="/a b", database=2, password="x&y")),
    ],
)
def test_an_address_is_read_in_full(url: str, address: RedisAddress) -> None:
    """Host, port, database, credentials and TLS files all come from one URL."""
    assert RedisAddress.parse(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:6379", "without a scheme: write redis://"),
        ("", "without a scheme: write redis://"),
        ("http://cache", "'http' is not a scheme of Redis: write redis://"),
        ("redis+cluster://cache", "redis+cluster:// is not supported yet: give the address of one server"),
        ("redis://", "names no host"),
        ("redis://:s3cr3t@", "names no host"),
        ("redis://cache:port", "port must be a number from 1 to 65535"),
        ("redis://cache:0", "port must be a number from 1 to 65535"),
        ("redis://cache:65536", "port must be a number from 1 to 65535"),
        ("redis://:s3cr3t/x@cache", "percent-encode / ? # @ : in a password"),
        ("redis://:s3cr3t?x=1@cache", "percent-encode / ? # @ : in a password"),
        ("redis://:s3cr3t#x@cache", "percent-encode / ? # @ : in a password"),
        ("redis://[::1", "cannot be read"),
        ("redis://cache/one", "database must be a number, as in /0"),
        ("redis://cache/²", "database must be a number, as in /0"),
        ("redis://cache?socket_timeout=5", "unknown option in a redis:// address (known: none)"),
        ("rediss://cache?ca=/ca.pem", "unknown option in a rediss:// address (known: ssl_ca_certs,"),
        ("rediss://cache?ssl_ca_certs", "cannot be read"),
        ("unix://run/redis.sock", "absolute path: write unix:///PATH"),
        ("unix://", "absolute path: write unix:///PATH"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(url: str, says: str) -> None:
    """Whoever mistypes the address reads what to write instead, and reads no password."""
    with pytest.raises(ValueError, match=r"^redis: ") as mistake:
        RedisAddress.parse(url)
    text = str(mistake.value)
    assert says in text
    assert "\n" not in text
    assert "s3cr3t" not in text
    assert mistake.value.__cause__ is None
    assert mistake.value.__suppress_context__ or mistake.value.__context__ is None


def test_no_password_is_shown() -> None:
    """Neither the repr nor the text of an address holds what it logs in with."""
    for url in ("redis://me:s3cr3t@[::1]:7/1", "rediss://:s3cr3t@cache", "unix:///r.sock?password=s3cr3t&db=4"):
        address = RedisAddress.parse(url)
        assert address.password == "s3cr3t"
        assert "s3cr3t" not in repr(address)
        assert "s3cr3t" not in str(address)
    assert str(RedisAddress.parse("redis://me:s3cr3t@[::1]:7/1")) == "redis://[::1]:7/1"
    assert str(RedisAddress.parse("unix:///r.sock?db=4")) == "unix:///r.sock?db=4"


def test_what_a_server_says_is_fit_for_a_log_line() -> None:
    """A server that echoes the password, or sends line breaks or novels, cannot spoil the log."""
    address = RedisAddress.parse("redis://:s3cr3t@cache")
    assert address.censor("unknown command 'AUTH' with args 's3cr3t'") == "unknown command 'AUTH' with args '***'"
    assert address.censor("a\nforged line\x1b[2J") == "'a\\nforged line\\x1b[2J'"
    assert len(address.censor("x" * 5000)) == 200
    assert RedisAddress.parse("redis://cache").censor("as it is") == "as it is"
