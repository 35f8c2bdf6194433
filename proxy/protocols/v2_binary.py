"""Open Inference V2's binary tensors: a body is JSON, its *head*, and behind it the bytes of tensors, end to end.

Invariants
    How long the head is stands in one field of the message, and how long each tensor is in the head; the body is
    read only where all of that and the shapes add up to the byte.
    An item result with binary tensors is the length of its head in digits, the head, and the tensors' bytes. One
    without is JSON, which begins with no digit.
    Rows are cut and put together as bytes: no number is ever read but to compare results (`alike_bytes`).

Knows nothing of what a head says beside sizes; Triton's raw requests (a head of length 0) are not read.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Sequence
from typing import Final

from proxy.protocols.codec import Message
from proxy.protocols.json_values import ABSOLUTE, RELATIVE
from proxy.protocols.spans import HOLE, cut
from proxy.protocols.v2_tensors import BYTES, Shape
from proxy.terms import Headers

HEAD_LENGTH: Final = b"Inference-Header-Content-Length"
SIZE: Final = "binary_data_size"
STRINGS: Final = 65_536
"""Elements of BYTES that one tensor may have: to find where each ends takes about 8 ms of the event loop."""

WIDTHS: Final[dict[str, int]] = {
    "BOOL": 1,
    **{f"{sign}INT{bits}": bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes of one element of each datatype but BYTES, whose elements carry their own length."""

DATATYPES: Final = frozenset(WIDTHS) | {BYTES}

_FLOATS: Final = {"FP64": ("d", RELATIVE), "FP32": ("f", RELATIVE), "FP16": ("e", 2**-9), "BF16": ("f", 2**-6)}
"""How each kind of float is read, and by how much two may differ: two units in the last place of the short ones."""

_NAME: Final = HEAD_LENGTH.lower()
_NAME_LENGTH: Final = len(_NAME)
_LENGTH: Final = re.compile(rb"[1-9][0-9]{0,17}")
_SIZES: Final = re.compile(rb'("' + SIZE.encode() + rb'"[ \t\r\n]*+:[ \t\r\n]*+)([1-9][0-9]{0,17}+)')
_SEALED: Final = re.compile(rb"([1-9][0-9]{0,17}){")


def head_length(fields: Headers) -> int | None:
    """How many bytes of a body are its head; 0 where no field speaks of one; None if that is not for certain."""
    length = 0
    for name, value in fields:
        if len(name) == _NAME_LENGTH and name.lower() == _NAME:
            if length or _LENGTH.fullmatch(value) is None:
                return None
            length = int(value)
    return length


def cut_head(head: bytes) -> tuple[bytes, list[bytes]] | None:
    """As `spans.cut`, with the size of every binary tensor cut out, too."""
    if (found := cut(head)) is None:
        return None
    text, values = found[0], iter(found[1])
    pieces = _SIZES.split(text)
    all_values: list[bytes] = []
    for before, size in zip(pieces[0::3], pieces[2::3], strict=False):
        all_values += itertools.islice(values, before.count(HOLE))
        all_values.append(size)
    pieces[2::3] = [HOLE] * (len(pieces) // 3)
    return b"".join(pieces), [*all_values, *values]


def cut_rows(body: bytes, at: int, size: int, datatype: str, shape: Shape) -> list[bytes] | None:
    """Each row of the tensor whose bytes are the `size` from `at`; None if they are not of this datatype and shape.

    shape: at least one dimension, none of them zero.
    """
    if size > len(body) - at:
        return None
    if datatype == BYTES:
        return _cut_strings(body, at, at + size, shape)
    width = WIDTHS[datatype] * math.prod(shape[1:])
    if width * shape[0] != size:
        return None
    return [body[start : start + width] for start in range(at, at + size, width)]


def _cut_strings(body: bytes, at: int, end: int, shape: Shape) -> list[bytes] | None:
    strings = math.prod(shape[1:])
    if strings * shape[0] > min(STRINGS, (end - at) // 4):
        return None
    rows, length_at = [], struct.Struct("<I").unpack_from
    for _ in range(shape[0]):
        start = at
        for _ in range(strings):
            if at > end - 4:
                return None
            at += 4 + length_at(body, at)[0]
        rows.append(body[start:at])
    return rows if at == end else None


def untagged(text: bytes) -> list[bytes]:
    """The pieces that `json_values.tagged` made one text of."""
    pieces, at = [], 0
    while at < len(text):
        start = text.index(b":", at) + 1
        at = start + int(text[at : start - 1])
        pieces.append(text[start:at])
    return pieces


def sealed(head: bytes, blobs: Sequence[bytes]) -> bytes:
    """An item result."""
    return b"".join((b"%d" % len(head), head, *blobs))


def unsealed(result: bytes) -> tuple[bytes, int] | None:
    """The head of an item result, and where the tensors' bytes begin; None if it is no result of this form."""
    found = _SEALED.match(result)
    if found is None or len(result) < (end := found.end(1) + int(found[1])):
        return None
    return result[found.end(1) : end], end


def with_head(head: bytes, blobs: bytes) -> Message:
    """A body with binary tensors, and the field that it needs."""
    return Message(head + blobs, ((HEAD_LENGTH, b"%d" % len(head)),))


def alike_bytes(one: bytes, other: bytes, datatype: str) -> bool:
    """Do two tensors of a datatype hold the same, but for what arithmetic may differ by between two batches?"""
    if one == other or datatype not in _FLOATS or len(one) != len(other) or len(one) % WIDTHS[datatype]:
        return one == other
    form, relative = _FLOATS[datatype]
    if datatype == "BF16":
        one, other = _widened(one), _widened(other)
    layout = struct.Struct(f"<{len(one) // struct.calcsize('<' + form)}{form}")
    return all(
        math.isclose(a, b, rel_tol=relative, abs_tol=ABSOLUTE) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(layout.unpack(one), layout.unpack(other), strict=True)
    )


def _widened(halves: bytes) -> bytes:
    """BF16 as FP32, of which it is the upper half."""
    wide = bytearray(2 * len(halves))
    wide[2::4], wide[3::4] = halves[0::2], halves[1::2]
    return bytes(wide)
