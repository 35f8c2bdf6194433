"""JSON bodies as pieces of their own text: the members of an object, the elements of a list, canonical spellings.

For protocols whose items are JSON values of any kind: 64-bit integers, float lexemes and NaN survive, since no number
is ever read. `spans` does the same for bodies that are a small frame around large tensors.

Invariants
    `document` accepts what `spans.read` accepts: JSON, NaN and the infinities, in UTF-8, no key twice in any object,
    no lone surrogate; but of any length and deeper, within BRACKETS where objects are nested. Every other function here
    takes texts that came out of it.
    Work grows with the length of the text, whatever is in it; what would hold the event loop is refused.
    What comes out is copied and pins no body.

Knows nothing of what members mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final

import msgspec

from proxy.protocols.spans import HOLE, SPACE, Refusal, compact, is_utf8, read

RELATIVE: Final = 1e-3
ABSOLUTE: Final = 1e-5
"""By how much two numbers may differ that batches of different size have computed (`alike`)."""

BRACKETS: Final = 32768
"""Lists and objects that a text of nested objects may hold: about 20 ms of the event loop."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ANY: Final = msgspec.json.Decoder(msgspec.Raw).decode

_KEY: Final = re.compile(rb'[{,][ \t\r\n]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_STRING_OR_SPACE: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")|[ \t\r\n]++', re.DOTALL)
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_FEW: Final = 8  # objects in a text, and levels, up to which each is taken out by itself
_ROOM: Final = 50  # levels
_NAME: Final = itemgetter(0)


def document(text: bytes) -> bytes | Refusal:
    """The text, known to be one JSON value that means the same to every reader; or why it is not.

    A copy without white space where the text holds what msgspec does not read.
    """
    if HOLE in text or not is_utf8(text):
        return Refusal.MALFORMED
    try:
        _ANY(text)
        text = text.strip(SPACE)
        return text if _no_key_twice(text) else Refusal.DUPLICATE_KEY
    except _TooMuch:
        return Refusal.MALFORMED
    except (msgspec.DecodeError, RecursionError):
        pass
    value = read(text)
    return value if isinstance(value, Refusal) else compact(value)


def members(text: bytes) -> dict[str, bytes] | None:
    """Each member of an object with the text of its value, in the text's order; None if it is no object."""
    if text[:1] != b"{":
        return None
    try:
        return {name: bytes(value) for name, value in _OBJECT(text).items()}
    except (msgspec.DecodeError, RecursionError):  # NaN, say
        value = read(text)
        return {name: compact(one) for name, one in value.items()} if isinstance(value, dict) else None


def elements(text: bytes) -> list[bytes] | None:
    """The text of each element of a list; None if it is no list."""
    if text[:1] != b"[":
        return None
    try:
        return [bytes(value) for value in _LIST(text)]
    except (msgspec.DecodeError, RecursionError):
        value = read(text)
        return [compact(one) for one in value] if isinstance(value, list) else None


def canonical(text: bytes) -> bytes:
    """The value without white space, with sorted keys and strings in one spelling: one text for equal values.

    Numbers are compared as text: `1` is not `1.0`.
    """
    if b"{" in text:
        if _is_mostly_numbers(text) and (found := members(text)) is not None:
            each = ((name, found[name]) for name in sorted(found))
            return spelled({name: _respelled(value) if b"{" in value else canonical(value) for name, value in each})
        return _respelled(text)
    if b"\\" in text:
        return _respelled(text)
    if b'"' not in text:
        return b"".join(text.split())
    return text if text[:1] == b'"' else _STRING_OR_SPACE.sub(rb"\1", text)


def _respelled(text: bytes) -> bytes:
    """What `canonical` gives, all at once: dear where there are many numbers, cheap where there are many objects."""
    value = json.loads(
        text.decode(),
        object_pairs_hook=_in_order,
        parse_int=msgspec.Raw,
        parse_float=msgspec.Raw,
        parse_constant=msgspec.Raw,
    )
    return msgspec.json.encode(value)


def _in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(sorted(pairs, key=_NAME))


def spelled(found: dict[str, bytes]) -> bytes:
    """The object of these members, values as they are."""
    return b"{" + b",".join([msgspec.json.encode(name) + b":" + value for name, value in found.items()]) + b"}"


def tagged(pieces: Iterable[bytes]) -> bytes:
    """The pieces as one text from which no other pieces come: each with its length before it."""
    return b"".join([b"%d:" % len(piece) + piece for piece in pieces])


def text_of(value: bytes | None) -> str | None:
    """The text that a string's lexeme stands for; None for everything else."""
    return str(msgspec.json.decode(value)) if value is not None and value[:1] == b'"' else None


def whole_number(value: bytes | None) -> int | None:
    """A whole number that is written as one; None for everything else."""
    if value is None or len(value) > 19 or not value.removeprefix(b"-").isdigit():
        return None
    return int(value)


def alike(one: bytes, other: bytes) -> bool:
    """Do two texts say the same, numbers compared within RELATIVE and ABSOLUTE if either is no whole number?"""
    try:
        return _alike(json.loads(one), json.loads(other))
    except (ValueError, OverflowError, RecursionError):
        return False


def _alike(one: Any, other: Any) -> bool:
    if {type(one), type(other)} in ({float}, {float, int}):
        near = math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        return near or (math.isnan(one) and math.isnan(other))
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[name]) for name, value in one.items())
    return bool(one == other)


class _TooMuch(Exception):
    """More is nested in it than is read here."""


class _Twice(Exception):
    """A key stands twice in an object."""


def _no_key_twice(text: bytes) -> bool:
    """Are the keys of every object in a JSON text distinct? Raises _TooMuch and RecursionError.

    msgspec keeps the last of two equal keys and says nothing: what it found and the punctuation must add up to the
    text. That is fast where there are few objects and many numbers; else `json` reads all of it, and shows every pair.
    """
    if b"{" not in text:
        return True
    if _is_mostly_numbers(text) and (distinct := _few_distinct(text)) is not None:
        return distinct
    if _brackets(text) > BRACKETS and _brackets(_STRING.sub(b"", text)) > BRACKETS:
        raise _TooMuch
    within = f"{'[' * _ROOM}{text.decode()}{']' * _ROOM}"  # whoever reads it again may have less room on the stack
    try:
        json.loads(within, object_pairs_hook=_distinct, parse_int=len, parse_float=len)
    except _Twice:
        return False
    return True


def _few_distinct(text: bytes) -> bool | None:
    """The same for a text of few objects; None if they lie too deep to be taken out one by one."""
    waiting = [(text, 0)]
    while waiting:
        piece, depth = waiting.pop()
        if b"{" not in piece or piece[:1] == b'"':
            continue
        if depth == _FEW:
            return None
        if piece[:1] == b"{":
            found = _OBJECT(piece)
            if not _adds_up(piece, found):
                return False
            inner: Iterable[msgspec.Raw] = found.values()
        else:
            inner = _LIST(piece)
        waiting += [(held, depth + 1) for value in inner if b"{" in (held := bytes(value))]
    return True


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _is_mostly_numbers(text: bytes) -> bool:
    """Is it quicker to take the few objects of this text out one by one than to read every number of it?"""
    return text.count(b"{") <= _FEW and text.count(b",") * 32 > len(text)


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _Twice


def _adds_up(text: bytes, found: dict[str, msgspec.Raw]) -> bool:
    """Is each member that the object's text holds among those that were found?"""
    if not found:
        return True
    at = 0
    for value in found.values():
        key = _KEY.match(text, at)
        if key is None or not text.startswith(bytes(value), key.end()):
            return False
        space = _SPACE.match(text, key.end() + len(bytes(value)))
        assert space is not None
        at = space.end()
    return at == len(text) - 1
