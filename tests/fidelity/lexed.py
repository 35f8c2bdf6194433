"""Bodies read strictly, for comparison: JSON as values whose numbers are lexemes, binary answers as head and bytes.

Shares nothing with what is tested: Python's own `json` reads here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

HEAD_LENGTH = "Inference-Header-Content-Length"


class Number(NamedTuple):
    """A number as it is written: 1, 1.0 and 1e0 are three."""

    lexeme: str


class Twice(ValueError):
    """A key stands twice in one object."""


def lexed(text: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError, `Twice` for a repeated key, or RecursionError."""
    return json.loads(
        text.decode(), parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=_members
    )


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Twice([name for name, _ in pairs])
    return found


def read(body: bytes, fields: Mapping[str, str]) -> Any:
    """What a message says: its JSON, with the bytes behind it where there are any; the body itself if it is neither."""
    length = fields.get(HEAD_LENGTH)
    try:
        if length is not None:
            return lexed(body[: int(length)]), body[int(length) :]
        return lexed(body)
    except (ValueError, RecursionError):
        return body


def written(value: Any, chance: random.Random, *, odd: bool = True) -> bytes:
    """The value as one of its many texts: white space, order of keys and escapes as `chance` has them.

    odd: letters that need no escape may have one.
    """
    plain = chance.random() < 0.3

    def space() -> str:
        return "" if plain else chance.choice(("", "", "", " ", "\n", "\t \r\n"))

    def string(text: str) -> str:
        if plain or not odd or chance.random() < 0.5:
            return json.dumps(text, ensure_ascii=chance.random() < 0.5)
        return '"' + "".join(map(character, text)) + '"'

    def character(one: str) -> str:
        if one == "/" and chance.random() < 0.5:
            return "\\/"
        return f"\\u{ord(one):04X}" if ord(one) < 0x10000 and chance.random() < 0.3 else json.dumps(one)[1:-1]

    def text(one: Any) -> str:
        if isinstance(one, Number):
            return one.lexeme
        if isinstance(one, str):
            return string(one)
        if isinstance(one, list):
            return "[" + space() + ",".join([space() + text(inner) + space() for inner in one]) + "]"
        if isinstance(one, dict):
            names = list(one)
            if not plain:
                chance.shuffle(names)
            pairs = [space() + string(name) + space() + ":" + space() + text(one[name]) + space() for name in names]
            return "{" + space() + ",".join(pairs) + "}"
        return json.dumps(one)

    return (space() + text(value) + space()).encode()
