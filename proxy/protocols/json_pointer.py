"""JSON pointers (RFC 6901) on texts: find a value, cut it out, take it away, put one in.

Every text is one that `json_values.document` gave; what comes out is one, too, and keeps the order of members.

Invariants
    A pointer that leads nowhere gives None, never another place: names are compared as decoded text, and a list is
    counted into only by the digits that RFC 6901 allows.
    `cut` joined again is the value that it was given.

Knows nothing of what a pointer is for.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from proxy.protocols.json_values import elements, members, spelled

Pointer: TypeAlias = tuple[str, ...]
"""The names that lead to a value, from the outside in; () is the whole body."""

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_TILDE: Final = re.compile(r"~(?![01])")


def pointer(text: str) -> Pointer:
    """Read what is written `/a/b`. ValueError says what is wrong and what to write instead."""
    if not text:
        return ()
    if not text.startswith("/"):
        meant = "/" + text.lstrip("$#./").replace(".", "/")
        raise ValueError(f"{text!r} is no JSON pointer, which begins with /: write {meant!r}")
    if _TILDE.search(text):
        raise ValueError(f"{text!r} is no JSON pointer: in a name ~ is written ~0, and / is written ~1")
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in text[1:].split("/"))


def counts(path: Pointer) -> bool:
    """Might it count into a list, rather than name a member of an object?"""
    return any(name == "-" or _INDEX.fullmatch(name) for name in path)


def within(inner: Pointer, outer: Pointer) -> bool:
    """Does the one lead to the other's value, or into it?"""
    return inner[: len(outer)] == outer


def cut(text: bytes, path: Pointer) -> tuple[bytes, bytes, bytes] | None:
    """What stands before the value at `path`, the value itself, and what stands behind it."""
    before, after = b"", b""
    for name in path:
        if (found := members(text)) is not None:
            if name not in found:
                return None
            pieces, at = [_member(*one) for one in found.items()], list(found).index(name)
            start, value, end = b"{", found[name], b"}"
            own = _member(name, b"")
        elif (listed := elements(text)) is not None:
            if _INDEX.fullmatch(name) is None or int(name) >= len(listed):
                return None
            pieces, at = listed, int(name)
            start, value, end = b"[", listed[at], b"]"
            own = b""
        else:
            return None
        before += b"".join([start, *[piece + b"," for piece in pieces[:at]], own])
        after = b"".join([*[b"," + piece for piece in pieces[at + 1 :]], end, after])
        text = value
    return before, text, after


def without(text: bytes, path: Pointer) -> bytes | None:
    """The object without the member at `path`, and without an object that held nothing else on the way to it.

    None if there is no such member; lists are not counted into, for what comes behind would change its place.
    """
    found = members(text)
    if found is None or path[0] not in found:
        return None
    left = without(found[path[0]], path[1:]) if len(path) > 1 else b"{}"
    if left is None:
        return None
    if left == b"{}":
        del found[path[0]]
    else:
        found[path[0]] = left
    return spelled(found)


def placed(text: bytes, path: Pointer, value: bytes) -> bytes | None:
    """The object with a new member at `path`; objects on the way are made. None if it has no room for that."""
    found = members(text)
    if found is None:
        return None
    name, inner = path[0], path[1:]
    if inner:
        made = placed(found.get(name, b"{}"), inner, value)
        if made is None:
            return None
        found[name] = made
    elif name in found:
        return None
    else:
        found[name] = value
    return spelled(found)


def _member(name: str, value: bytes) -> bytes:
    return msgspec.json.encode(name) + b":" + value
