"""Hostile bodies: random bytes, JSON that readers disagree about or choke on, and valid bodies with faults put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import strategies as st

from tests.protocols.json_texts import TEXTS

LEXEMES: Final = [
    b"NaN",
    b"-Infinity",
    b"1e999999999999",
    b"1e" + b"9" * 1000,
    b"1" * 5000,
    b"-0",
    b"01",
    b"1.",
    b"+1",
    b"True",
    b"18446744073709551616",
    b'{"a":{"b":[{"c":1,"d":2,"c":3}]}}',
    b'{"a":1,"\\u0061":2}',
    b'{"a":1,"a":1}',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'{"\\ud800":1}',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'"\x00"',
    b'"\\u0000"',
    b'"\\x"',
    b"[" * 600 + b"]" * 600,
    b'{"a":' * 70 + b"1" + b"}" * 70,
    b"[[],{}]",
    b"null",
    b'"poison"',
]
"""Values that may stand where a body has one of its own."""

MILD: Final = [
    b"1",
    b"1.0",
    b"-7",
    b'"x"',
    b'""',
    b'"\\u00e9"',
    b"true",
    b"null",
    b"[1]",
    b'["x"]',
    b"{}",
    b'{"y":2}',
    b"[]",
]
"""Values that most bodies may hold."""

WHOLE: Final = [
    *(b"", b" ", b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"null", b"{}", b"[]", b'""', b"{}{}", b"{} x", b"\x00"),
    *LEXEMES,
]
"""Bodies that are nothing else."""


LARGE: Final[dict[str, Callable[[int], bytes]]] = {
    "open brackets": lambda size: b"[" * size,
    "nested arrays": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "nested objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "nested both": lambda size: b'[{"a":' * (size // 8) + b"1" + b"}]" * (size // 8),
    "digits": lambda size: b"1" * size,
    "decimals": lambda size: b"-0." + b"9" * size,
    "exponent": lambda size: b"1e" + b"9" * size,
    "numbers": lambda size: b"[" + b"1," * (size // 2 - 1) + b"1]",
    "empty arrays": lambda size: b"[" + b"[]," * (size // 3 - 1) + b"[]]",
    "empty objects": lambda size: b"[" + b"{}," * (size // 3 - 1) + b"{}]",
    "small objects": lambda size: b"[" + b'{"a":{"b":1}},' * (size // 14 - 1) + b"{}]",
    "empty texts": lambda size: b'["' + b'","' * (size // 3 - 1) + b'"]',
    "members": lambda size: b"{" + b",".join([b'"%d":{}' % number for number in range(size // 12)]) + b"}",
    "one member": lambda size: b"{" + b",".join([b'"a":1'] * (size // 6)) + b"}",
    "escapes": lambda size: b'"' + b"\\u0061" * (size // 6) + b'"',
    "backslashes": lambda size: b'"' + b"\\\\" * (size // 2) + b'"',
    "backslashes without end": lambda size: b'"' + b"\\" * (size | 1),
    "text without end": lambda size: b'"' + b"a" * size,
    "data without end": lambda size: b'{"data":[' * (size // 9),
    "data in data": lambda size: b'{"data":[' * (size // 20) + b"1" + b"]}" * (size // 20),
    "space": lambda size: b" " * size + b"1",
    "space within": lambda size: b"[" + b" " * size + b"]",
    "not UTF-8": lambda size: b'"' + b"\xff" * size + b'"',
    "surrogates": lambda size: b'"' + b"\\ud800" * (size // 6) + b'"',
}
"""Values of about so many bytes that cost a careless reader much more than that."""


def bodies(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Bodies that are nobody's, or a valid one with faults."""
    return st.one_of(
        st.binary(max_size=60), TEXTS, st.sampled_from(WHOLE), mutated(valid), mutated(valid), mutated(valid)
    )


@st.composite
def mutated(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """A valid body, one to three times cut, flipped, swapped, doubled or sprinkled with something else."""
    body = draw(st.sampled_from(valid))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 12)))
        fault = draw(st.sampled_from([_cut, _flipped, _swapped, _doubled, _lost, _put, *[_member, _replaced] * 4]))
        value = draw(st.one_of(st.sampled_from(LEXEMES), st.sampled_from(MILD), st.sampled_from(MILD)))
        body = fault(body, start, end, value, draw(st.integers(0, 255)))
    return body


def planted(body: bytes, value: bytes) -> list[bytes]:
    """The body with the value in place of the first thing behind each colon, and as one more member."""
    found = [body[:at] + value + body[_end_of_value(body, at) :] for at in _after_colons(body)]
    return [*found, _member(body, 0, 0, value, 0)]


def _after_colons(body: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(body) if byte == ord(":")]


def _end_of_value(body: bytes, at: int) -> int:
    """Where the scalar at `at` ends, or the outermost bracket that opens there."""
    depth, quoted, escaped = 0, False, False
    for place in range(at, len(body)):
        byte = body[place : place + 1]
        if quoted:
            quoted, escaped = escaped or byte != b'"', byte == b"\\" and not escaped
        elif byte == b'"':
            quoted = True
        elif byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if depth <= 0:
                return place + (depth == 0)
        elif byte == b"," and depth == 0:
            return place
    return len(body)


def _cut(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    return body[:start]


def _flipped(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    return body[:start] + bytes([body[start] ^ (number or 1)]) + body[start + 1 :] if start < len(body) else body


def _swapped(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    return body[:start] + body[end : end + 8] + body[start:end] + body[end + 8 :]


def _doubled(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    return body[:end] + body[start:end] + body[end:]


def _lost(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    return body[:start] + body[end:]


def _replaced(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    """The value behind a colon, or a piece, is another."""
    colons = _after_colons(body)
    if not colons:
        return body[:start] + value + body[end:]
    at = colons[number % len(colons)]
    return body[:at] + value + body[_end_of_value(body, at) :]


def _put(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    return body[:start] + bytes([number]) + body[start:]


def _member(body: bytes, start: int, end: int, value: bytes, number: int) -> bytes:
    """One more member in an object, or one that it has already."""
    braces = [at + 1 for at, byte in enumerate(body) if byte == ord("{")]
    if not braces:
        return body + value
    at = braces[number % len(braces)]
    key = body[at : body.find(b":", at)] if number % 2 and b":" in body[at:] else b'"x"'
    rest = body[at:].lstrip()
    return body[:at] + key + b":" + value + (b"" if rest[:1] == b"}" else b",") + body[at:]
