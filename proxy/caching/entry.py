"""What lies in the response cache for one item, and its form as bytes in a shared store.

Invariants
    `decode` raises on no bytes whatever and gives an entry only where the code over the address, the
    proof, every field, the headers and the body agrees: what was written for another fingerprint,
    under another key, in another schema, or cut short, is not there.
    It never unpacks more than `LARGEST_PACKED` bytes, and looks at nothing before that code agrees.
    What it gives is copied: an entry pins no read buffer.

Knows no clock, no store and no freshness rule. With the public default key the code shows accidents;
only a secret key shows forgeries.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from typing import Final, NamedTuple

import zstandard

from proxy.terms import Fingerprint, Headers

MAGIC: Final = b"FBAY"
SCHEMA: Final = 1
PACKED: Final = 0x01  # flag: the body is one zstd frame

SMALLEST_PACKED: Final = 1024  # below this, packing costs more than it saves
LARGEST_PACKED: Final = 64 * 1024 * 1024  # larger bodies are stored as they are, so unpacking is bounded
LEVEL: Final = 1  # an answer is written once and read often, on the loop that serves: speed before size

# magic, schema, flags, header block length, stored body length, body length, created, fresh until,
# stale until, fill cost; the code follows
_PREFIX: Final = struct.Struct("<4sBBIQQdddd")
_CODE_SIZE: Final = 16
_PAIR: Final = struct.Struct("<II")


class Entry(NamedTuple):
    """One item result.

    body: the backend's answer as if the item had been asked alone.
    headers: the few fields of the answer that are kept.
    created, fresh_until: Unix seconds.
    fill_cost: upstream seconds that this item cost, and that each hit saves.
    """

    body: bytes
    headers: Headers
    created: float
    fresh_until: float
    fill_cost: float


def encode(fingerprint: Fingerprint, entry: Entry, proof_key: bytes) -> bytes:
    """The entry as one string of bytes. proof_key: at most 64 bytes."""
    body, flags = entry.body, 0
    if SMALLEST_PACKED <= len(body) <= LARGEST_PACKED:
        packed = zstandard.ZstdCompressor(level=LEVEL).compress(body)
        if len(packed) < len(body):
            body, flags = packed, PACKED
    headers = b"".join(_PAIR.pack(len(name), len(value)) + name + value for name, value in entry.headers)
    prefix = _PREFIX.pack(
        MAGIC,
        SCHEMA,
        flags,
        len(headers),
        len(body),
        len(entry.body),
        entry.created,
        entry.fresh_until,
        entry.fresh_until,  # nothing may be served stale yet; the field keeps its place
        entry.fill_cost,
    )
    return b"".join((prefix, _code(fingerprint, prefix, headers, body, proof_key), headers, body))


def decode(fingerprint: Fingerprint, raw: bytes, proof_key: bytes) -> Entry | None:
    """The entry that was written for this very fingerprint under this key, or None."""
    start = _PREFIX.size + _CODE_SIZE
    if len(raw) < start:
        return None
    magic, schema, flags, headers_size, stored_size, size, created, fresh_until, _, fill_cost = _PREFIX.unpack_from(raw)
    if magic != MAGIC or schema != SCHEMA or len(raw) != start + headers_size + stored_size:
        return None
    headers, stored = raw[start : start + headers_size], raw[start + headers_size :]
    code = _code(fingerprint, raw[: _PREFIX.size], headers, stored, proof_key)
    if not hmac.compare_digest(code, raw[_PREFIX.size : start]):
        return None
    if not (math.isfinite(created) and math.isfinite(fresh_until) and math.isfinite(fill_cost)):
        return None
    fields = _fields(headers)
    body = _unpack(stored, size) if flags & PACKED else stored
    if fields is None or body is None or len(body) != size:
        return None
    return Entry(body, fields, created, fresh_until, fill_cost)


def _code(fingerprint: Fingerprint, prefix: bytes, headers: bytes, body: bytes, proof_key: bytes) -> bytes:
    """The code over everything; the prefix is of fixed size and holds the lengths of what follows it."""
    code = hashlib.blake2b(key=proof_key, digest_size=_CODE_SIZE, person=b"forebay entry")
    for part in (_PAIR.pack(len(fingerprint.address), len(fingerprint.proof)), *fingerprint, prefix, headers, body):
        code.update(part)
    return code.digest()


def _fields(block: bytes) -> Headers | None:
    fields: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(block):
        if at + _PAIR.size > len(block):
            return None
        name_size, value_size = _PAIR.unpack_from(block, at)
        middle = at + _PAIR.size + name_size
        end = middle + value_size
        if end > len(block):
            return None
        fields.append((block[at + _PAIR.size : middle], block[middle:end]))
        at = end
    return tuple(fields)


def _unpack(frame: bytes, size: int) -> bytes | None:
    """What the one frame holds; the size it announces is looked at before room is made for it."""
    try:
        if size > LARGEST_PACKED or zstandard.frame_content_size(frame) != size:
            return None
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
