"""How single values are written, in the file, in variables, in flags and on /config, and read back.

Invariants
    `read(kind, write(kind, value)) == value`.
    A value that is not plainly what its kind demands is refused with what to write instead: durations
    and sizes carry a unit, only `true` and `false` are booleans, `010` and `1:30` are no numbers.
    What a message quotes went through `quoted`, which shows no password.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from proxy.settings import Bytes, Seconds

DURATIONS: Final = {"d": "86400", "h": "3600", "m": "60", "s": "1", "ms": "0.001", "us": "0.000001"}
SIZES: Final = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,40})?")
_WITH_UNIT = re.compile(rf"({_DECIMAL.pattern}) ?([A-Za-zµμ]*)")
_LONGEST_QUOTE = 60


def read(kind: Any, text: str) -> Any:
    """The value that `text` writes. ValueError says what is wrong and what to write instead."""
    if kind is Seconds:
        return _duration(text)
    if kind is Bytes:
        return _size(text)
    if kind is int:
        return int(_number(_INTEGER, text, "a whole number"))
    if kind is float:
        return float(_number(_DECIMAL, text, "a number"))
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{quoted(text)} is no truth value: only true and false are")
        return text == "true"
    if kind is str:
        return text
    assert isinstance(kind, type) and issubclass(kind, Enum), kind
    words = [member.value for member in kind]
    if text not in words:
        guess = nearest(text.lower(), words)
        raise ValueError(f"{quoted(text)} is not one of {', '.join(words)}{guess and f'; did you mean {guess}?'}")
    return kind(text)


def write(kind: Any, value: Any) -> str:
    """The text that `read` would read as `value`."""
    if kind is Seconds:
        return _written_duration(value)
    if kind is Bytes:
        unit = next(unit for unit, size in SIZES.items() if value % size == 0 and (value or size == 1))
        return f"{value // SIZES[unit]}{unit}"
    if kind is float:
        return f"{Decimal(repr(value)):f}"
    if kind is bool:
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)


def named(kind: Any) -> str:
    """What a person writes for this kind, in a word or a choice of words."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"word, {' or '.join(member.value for member in kind)}"
    return {
        Seconds: "duration",
        Bytes: "size",
        int: "whole number",
        float: "number",
        bool: "true or false",
        str: "text",
    }[kind]


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, "" if none is near."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def masked(text: str) -> str:
    """A text without the credentials that a URL carries before its host or in its query."""
    text = re.sub(r"(?s)^((?:[A-Za-z0-9+.-]+://)?).*@", r"\1***@", text)
    return re.sub(r"(?i)([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&#]*", r"\1***", text)


def quoted(text: str) -> str:
    """A value as a message may show it: on one line, of bounded length, without credentials."""
    text = masked(text)
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…")


def secret(name: str) -> bool:
    """Is the value of a setting of this name nobody's business, on /config and in messages?"""
    return name.endswith(("key", "token", "password", "secret", "authorization"))


def _number(form: re.Pattern[str], text: str, what: str) -> str:
    if form.fullmatch(text) is None:
        raise ValueError(f"{quoted(text)} is not {what} in plain decimal digits")
    return text


def _duration(text: str) -> float:
    amount, unit = _parts(text, "duration", DURATIONS, "ms", "s")
    if amount < 0:
        raise ValueError(f"{quoted(text)} is negative: a duration is at least 0s")
    return float(amount * Decimal(DURATIONS[unit]))


def _size(text: str) -> int:
    amount, unit = _parts(text, "size", SIZES, "KiB", "MiB")
    size = amount * SIZES[unit]
    if amount < 0:
        raise ValueError(f"{quoted(text)} is negative: a size is at least 0B")
    if size != int(size):
        raise ValueError(f"{quoted(text)} is not a whole number of bytes")
    return int(size)


def _parts(text: str, what: str, units: Iterable[str], *examples: str) -> tuple[Decimal, str]:
    """Amount and unit, or what is wrong with them."""
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        raise ValueError(f"{quoted(text)} is not a {what}: write a number and a unit, as in 5{examples[0]}")
    amount, unit = found[1], found[2].replace("µ", "u").replace("μ", "u")
    if not unit:
        raise ValueError(f"{quoted(text)} has no unit: write {' or '.join(amount + example for example in examples)}")
    if unit not in units:
        guess = next((known for known in units if known.lower() in (unit.lower(), f"{unit[0]}ib".lower())), "")
        hint = f"; did you mean {amount}{guess}?" if guess else ""
        raise ValueError(f"{quoted(text)}: {unit!r} is not a unit of a {what}, these are: {', '.join(units)}{hint}")
    return Decimal(amount), unit


def _written_duration(seconds: float) -> str:
    exact = Decimal(repr(float(seconds)))
    if not exact:
        return "0s"
    whole = (unit for unit, size in DURATIONS.items() if exact % Decimal(size) == 0)
    large_enough = (unit for unit, size in DURATIONS.items() if Decimal(1) >= Decimal(size) <= exact)
    unit = next(whole, None) or next(large_enough, "us")
    return f"{(exact / Decimal(DURATIONS[unit])).normalize():f}{unit}"
