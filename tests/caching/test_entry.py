"""Promises of an entry's form in a shared store: what comes back was put there for this very item, or nothing does."""

from __future__ import annotations

import hashlib
import math
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from proxy.caching import entry as form
from proxy.caching.entry import Entry, decode, encode
from proxy.terms import Fingerprint

KEY = b"a key of the test"
MINE = Fingerprint(b"a" * 16, b"p" * 16)
JSON = Entry(b"[0.25, 0.5]" * 200, ((b"Content-Type", b"application/json"),), 1000.5, 4600.5, 0.0125)

seconds = st.floats(min_value=0, max_value=1e12, allow_nan=False)
entries = st.builds(
    Entry,
    body=st.one_of(st.binary(max_size=2000), st.binary(max_size=8).map(lambda piece: piece * 500)),
    headers=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=4).map(tuple),
    created=seconds,
    fresh_until=seconds,
    fill_cost=seconds,
)
fingerprints = st.builds(Fingerprint, st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))


def forge(
    *,
    magic: bytes = form.MAGIC,
    schema: int = form.SCHEMA,
    flags: int = form.PACKED,
    stored: bytes = b"",
    size: int = 0,
    headers: bytes = b"",
    at: float = 1.0,
) -> bytes:
    """What a writer who knows the key, but not our rules, could store."""
    prefix = form._PREFIX.pack(magic, schema, flags, len(headers), len(stored), size, at, 2.0, 2.0, 0.0)
    return prefix + form._code(MINE, prefix, headers, stored, KEY) + headers + stored


@given(fingerprint=fingerprints, entry=entries, key=st.binary(min_size=1, max_size=64))
def test_what_was_stored_comes_back_whole(fingerprint: Fingerprint, entry: Entry, key: bytes) -> None:
    """A hit from Redis has the body, the fields and the times that were stored."""
    assert decode(fingerprint, encode(fingerprint, entry, key), key) == entry


@given(raw=st.binary(max_size=400), tail=st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes, tail: bytes) -> None:
    """Whatever lies in Redis under our name is a miss, not an error."""
    assert decode(MINE, raw, KEY) is None
    assert decode(MINE, form.MAGIC + bytes([form.SCHEMA]) + tail, KEY) is None


@given(data=st.data())
def test_one_changed_byte_is_a_miss(data: st.DataObject) -> None:
    """An entry that was damaged, lengthened or cut anywhere is not served."""
    raw = encode(MINE, JSON, KEY)
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    assert decode(MINE, flipped, KEY) is None
    assert decode(MINE, raw[:at], KEY) is None
    assert decode(MINE, raw + b"\0", KEY) is None


def test_an_entry_answers_only_its_own_item() -> None:
    """An entry that lies under another item's address, or is another item's under the same one, is a miss."""
    raw = encode(MINE, JSON, KEY)
    assert decode(Fingerprint(b"b" * 16, MINE.proof), raw, KEY) is None
    assert decode(Fingerprint(MINE.address, b"q" * 16), raw, KEY) is None
    assert decode(Fingerprint(MINE.address + b"p", MINE.proof[1:]), raw, KEY) is None


def test_an_entry_of_another_release_is_a_miss() -> None:
    """While replicas of two releases share a Redis, neither reads what it would have to guess at."""
    assert decode(MINE, forge(flags=0), KEY) == Entry(b"", (), 1.0, 2.0, 0.0)
    assert decode(MINE, forge(flags=0, schema=form.SCHEMA + 1), KEY) is None
    assert decode(MINE, forge(flags=0, magic=b"ELSE"), KEY) is None


def test_an_entry_made_under_another_key_is_a_miss() -> None:
    """With a secret proof key nobody else can put answers into a shared Redis."""
    assert decode(MINE, encode(MINE, JSON, b"somebody else's"), KEY) is None


def test_a_body_is_packed_where_that_saves_room() -> None:
    """Long answers that repeat themselves take less of Redis; short or dense ones are left alone."""
    assert len(encode(MINE, JSON, KEY)) < len(JSON.body) // 2
    overhead = len(encode(MINE, JSON._replace(body=b""), KEY))
    short = b"0" * (form.SMALLEST_PACKED - 1)
    assert len(encode(MINE, JSON._replace(body=short), KEY)) == overhead + len(short)
    dense = hashlib.shake_256(b"no pattern in it").digest(4000)
    assert len(encode(MINE, JSON._replace(body=dense), KEY)) == overhead + len(dense)


def test_a_body_above_the_bound_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be unpacked again is never packed, however large an answer is."""
    monkeypatch.setattr(form, "LARGEST_PACKED", 2000)
    raw = encode(MINE, JSON, KEY)
    assert len(raw) > len(JSON.body)
    assert decode(MINE, raw, KEY) == JSON


def test_a_bomb_is_not_unpacked() -> None:
    """A few forged kilobytes in Redis cannot make Forebay's memory grow."""
    bomb = zstandard.ZstdCompressor().compress(bytes(form.LARGEST_PACKED + 1))
    nameless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(form.LARGEST_PACKED // 2))
    forged = [
        forge(stored=bomb, size=form.LARGEST_PACKED + 1),
        forge(stored=bomb, size=100),
        forge(stored=nameless, size=form.LARGEST_PACKED // 2),
    ]
    tracemalloc.start()
    try:
        assert [decode(MINE, raw, KEY) for raw in forged] == [None] * 3
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def test_what_a_writer_with_the_key_gets_wrong_is_a_miss() -> None:
    """Another program that shares the Redis and the key can do no worse than a miss."""
    frame = zstandard.ZstdCompressor().compress(b"body")
    assert decode(MINE, forge(stored=frame, size=4), KEY) == Entry(b"body", (), 1.0, 2.0, 0.0)
    assert decode(MINE, forge(stored=frame[:-1], size=4), KEY) is None
    assert decode(MINE, forge(stored=frame + b"more", size=4), KEY) is None
    assert decode(MINE, forge(stored=b"no frame", size=4), KEY) is None
    assert decode(MINE, forge(flags=0, stored=b"body", size=5), KEY) is None
    for headers in (b"\1", b"\1\0\0\0\1\0\0\0n", b"\xff\xff\xff\xff\0\0\0\0n"):
        assert decode(MINE, forge(flags=0, headers=headers), KEY) is None
    for at in (math.nan, math.inf, -math.inf):
        assert decode(MINE, forge(flags=0, at=at), KEY) is None


def test_the_form_does_not_change_by_accident() -> None:
    """Replicas of two releases that share a Redis read each other's entries; a new form needs a new schema number."""
    small = Entry(b"body", ((b"Content-Type", b"text/plain"),), 1.0, 2.0, 0.5)
    assert (
        encode(MINE, small, KEY).hex()
        == (
            "46424159"  # FBAY
            "0100"  # schema, flags
            "1e000000"
            "0400000000000000"
            "0400000000000000"  # length of the headers, the stored body, the body
            "000000000000f03f"
            "0000000000000040"
            "0000000000000040"
            "000000000000e03f"  # created, fresh, stale, cost
            "8b4dfd053be5463073b56b91bbd30f8b"  # code
            "0c000000"
            "0a000000"
        )
        + b"Content-Typetext/plainbody".hex()
    )
