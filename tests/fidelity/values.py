"""Hypothesis strategies for JSON values as `lexed` has them: all lexemes, text that needs escapes, nesting."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fidelity.lexed import Number

INTEGERS = st.sampled_from(
    ["0", "-0", "1", "-1", "7", "255", "9007199254740993", str(2**63 - 1), str(-(2**63)), str(2**64 - 1), "1" * 40]
).map(Number)
FLOATS = st.sampled_from(
    ["0.0", "-0.0", "1.0", "1.50", "0.1", "1e-7", "1E5", "-2.5e+10", "1e0", "123456789.123456789", "1e-400", "1e400"]
).map(Number)
NUMBERS = st.one_of(INTEGERS, FLOATS)
_CHARACTERS = [
    "a",
    "b",
    "data",
    "id",
    '"',
    "\\",
    "/",
    "\n",
    "\x00",
    "\x7f",
    "é",
    "😀",
    "\u2028",
    " ",
    "]",
    "{",
    ",",
    ":",
]
STRINGS = st.lists(st.sampled_from(_CHARACTERS), max_size=5).map("".join)
TEXTS = st.lists(st.sampled_from(_CHARACTERS), min_size=1, max_size=5).map("".join)
NAMES = st.sampled_from(["a", "b", "data", "id", "", "é", 'q"', "\n", "x/y", "~", "None"])
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from([True, False, None]))
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
UNKNOWN = st.dictionaries(st.sampled_from(["user", "x", "ünknown", "a b", "\n"]), VALUES, max_size=2)
"""Members that no protocol knows."""
SEEDS = st.integers(0, 2**32)


@st.composite
def choices(draw: st.DrawFn, items: int, most: int = 3) -> list[list[int]]:
    """Which items each call is about: what is drawn, then each of them, then all of them."""
    place = st.integers(0, items - 1)
    found = draw(st.lists(st.lists(place, min_size=1, max_size=most), min_size=1, max_size=2))
    each = [[at] for at in draw(st.permutations(range(items)))]
    return [*found, *each, *([draw(st.permutations(range(items)))] if most > 1 else [])]
