"""JSON as spans of the original text, so that 64-bit integers, float lexemes and NaN survive.

A body of the protocols here is a little *frame* that hardly ever changes and a few big or changing
values. `cut` takes those out at C speed and leaves a HOLE in each place; `read` is the strict reader
for the frame, whose results its callers remember by the frame's bytes. So what is read once per shape
may be careful, and what is read once per request is `find` and msgspec.

Invariants
    `read` accepts exactly JSON (RFC 8259), NaN, Infinity and -Infinity, in UTF-8 without a byte order
    mark, with no lone surrogate, at most DEPTH deep and TOKENS long, and no key twice in one object,
    however the key is escaped. Everything else is refused: readers disagree on what it means.
    A HOLE is a byte that no JSON text may hold. If `read` accepts the frame, and each value is one
    JSON value, the text was JSON and means the frame with the values in its holes.
    Work grows with the length of the text, whatever is in it; nothing recurses on input.

Knows nothing of what keys mean: that a hole stands where it should is for the caller to check.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from proxy.terms import Reason

DEPTH: Final = 64
TOKENS: Final = 8192  # about 4 ms of the event loop
HOLE: Final = b"\x00"
SPACE: Final = b" \t\r\n"

STRING: Final = (
    rb'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?:[0-9a-cA-CeEfF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb'|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))*+"'
)
"""Pattern of one string lexeme, byte-wise: whether it is UTF-8 is looked at apart."""

_TOKEN: Final = re.compile(
    rb"[ \t\r\n]*+(?:([\[\]{}:,\x00])|(" + STRING + rb")"
    rb"|(-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+|-?Infinity|NaN|true|false|null))"
)
# An id with an escape or beyond ASCII stays in the frame, where `read` looks at it closely.
_CUT: Final = re.compile(rb'"(?:data"[ \t\r\n]*+:[ \t\r\n]*+\[|id"[ \t\r\n]*+:[ \t\r\n]*+("[ !#-\[\]-~]*+"))')
_OPENING: Final = re.compile(rb"(?:\[[ \t\r\n]*+)++")
# Up to the first `]` that another array of the same nest cannot follow.
_ARRAY: Final = re.compile(
    rb'\[(?:[^"\]{}]++|"(?:[^"\\]++|\\.)*+"|\](?=[ \t\r\n]*+(?:\]|,[ \t\r\n]*+\[)))*+\]', re.DOTALL
)


class Refusal(Enum):
    """Why `read` gave no value."""

    MALFORMED = "malformed"  # not JSON, or too deep or long to read here
    DUPLICATE_KEY = "duplicate_key"

    @property
    def reason(self) -> Reason:
        """What becomes of a request whose body is refused so."""
        return Reason.DUPLICATE_KEY if self is Refusal.DUPLICATE_KEY else Reason.UNPARSED


class Hole(NamedTuple):
    """Where the value with this number, from 0 in the order of the text, was cut out."""

    number: int


Value: TypeAlias = "dict[str, Value] | list[Value] | bytes | Hole"
"""A JSON value: objects keep their order; strings, numbers and literals are their lexemes."""


def cut(text: bytes) -> tuple[bytes, list[bytes]] | None:
    """The frame of `text` and what was cut out of it: every array under a key `data`, every string under `id`.

    None if an array has no end. Values are copies. An array may come out wrong where it is not a plain
    nest of numbers or strings: then it is no JSON array, or the frame is none.
    """
    pieces, values, at = [], [], 0
    while (found := _CUT.search(text, at)) is not None:
        start, end = found.span(1)
        if start < 0:
            start = found.end() - 1
            end = _array_end(text, start)
            if end < 0:
                return None
        pieces.append(text[at:start])
        values.append(text[start:end])
        at = end
    pieces.append(text[at:])
    return HOLE.join(pieces), values


def _array_end(text: bytes, start: int) -> int:
    """Where the array that begins at `start` ends; negative if nowhere."""
    end = text.find(b"]", start)
    if text.find(b'"', start, end) < 0:  # numbers: no bracket stands in a string
        if end < 0 or text.find(b"[", start + 1, end) < 0:
            return end + 1 or -1
        opening = _OPENING.match(text, start)
        assert opening is not None
        closing = b"]" * opening[0].count(b"[")
        next_key = text.find(b'"', end)  # without this bound a text of many arrays were searched whole for each
        end = text.find(closing, end, next_key if next_key >= 0 else len(text))
        if end >= 0:
            return end + len(closing)
    array = _ARRAY.match(text, start)
    return array.end() if array else -1


class _State(Enum):
    """What `read` waits for."""

    VALUE = "value"
    ELEMENT = "element, or the end of an empty array"
    MEMBER = "key, or the end of an empty object"
    KEY = "key"
    COLON = "colon"
    MORE_ELEMENTS = "comma, or the end of an array"
    MORE_MEMBERS = "comma, or the end of an object"
    END = "nothing"


_STARTS: Final = (b"{", b"[", b'"', b"0", HOLE)
_CLOSING: Final = (b"}", b"]")
_NEXT: Final[dict[tuple[_State, bytes], _State]] = {
    # Where a value begins the next state depends on the value; where it ends, on what holds it.
    **{(_State.VALUE, kind): _State.END for kind in _STARTS},
    **{(_State.ELEMENT, kind): _State.END for kind in (*_STARTS, b"]")},
    (_State.MEMBER, b'"'): _State.COLON,
    (_State.MEMBER, b"}"): _State.END,
    (_State.KEY, b'"'): _State.COLON,
    (_State.COLON, b":"): _State.VALUE,
    (_State.MORE_ELEMENTS, b","): _State.VALUE,
    (_State.MORE_ELEMENTS, b"]"): _State.END,
    (_State.MORE_MEMBERS, b","): _State.KEY,
    (_State.MORE_MEMBERS, b"}"): _State.END,
}
"""Which tokens may come, by their kind: a mark, a string `"`, a number or literal `0`. END: a value, or its end."""


def read(text: bytes) -> Value | Refusal:  # noqa: C901, PLR0912 - the one loop that drives the table above
    """The value that `text` holds, with a `Hole` for each HOLE."""
    if not is_utf8(text):
        return Refusal.MALFORMED
    root: list[Value] = []
    inside: dict[str, Value] | list[Value] = root
    parents: list[dict[str, Value] | list[Value]] = []  # an explicit stack: input must not recurse
    state, at, key, holes, duplicate = _State.VALUE, 0, "", 0, False
    for _ in range(TOKENS):
        found = _TOKEN.match(text, at)
        if found is None:
            return Refusal.MALFORMED
        at = found.end()
        mark, string, literal = found.groups()
        following = _NEXT.get((state, mark or (b'"' if string else b"0")))
        if following is None:
            return Refusal.MALFORMED
        if following is not _State.END:
            state = following
            if string:
                key = _decoded(string)
                duplicate = duplicate or key in inside
            continue
        if mark in _CLOSING:
            inside = parents.pop()
        else:
            value, state = _begun(mark, string or literal, holes)
            holes += mark == HOLE
            if isinstance(inside, dict):
                inside[key] = value
            else:
                inside.append(value)
            if isinstance(value, (dict, list)):
                if len(parents) == DEPTH:
                    return Refusal.MALFORMED
                parents.append(inside)
                inside = value
                continue
        if not parents:
            break
        state = _State.MORE_MEMBERS if isinstance(inside, dict) else _State.MORE_ELEMENTS
    if parents or not root or text[at:].strip(SPACE):
        return Refusal.MALFORMED
    return Refusal.DUPLICATE_KEY if duplicate else root[0]


def _begun(mark: bytes | None, lexeme: bytes | None, holes: int) -> tuple[Value, _State]:
    """The value that begins with this token, and what comes next if it is an object or array."""
    if mark == b"{":
        return {}, _State.MEMBER
    if mark == b"[":
        return [], _State.ELEMENT
    return lexeme or Hole(holes), _State.END


def is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(string: bytes) -> str:
    return string[1:-1].decode() if b"\\" not in string else str(msgspec.json.decode(string))


def decoded(value: Value | None) -> str | None:
    """The text that a string lexeme stands for; None for every other value."""
    return _decoded(value) if isinstance(value, bytes) and value[:1] == b'"' else None


def compact(value: Value, *, in_order: bool = True) -> bytes:
    """`value` as text without white space, lexemes as they were; keys sorted unless `in_order`.

    With sorted keys two values have one text exactly if they are equal, lexemes compared as text.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return b"[" + b",".join([compact(one, in_order=in_order) for one in value]) + b"]"
    assert isinstance(value, dict), value
    names = value if in_order else sorted(value)
    members = [msgspec.json.encode(name) + b":" + compact(value[name], in_order=in_order) for name in names]
    return b"{" + b",".join(members) + b"}"
