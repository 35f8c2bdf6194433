"""Hypothesis strategies for JSON texts: every lexeme, white space anywhere, keys twice, faults."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st


def examples(count: int) -> settings:
    """How many examples a property is tried on; FOREBAY_EXAMPLES multiplies it for a longer search."""
    return settings(max_examples=count * int(os.environ.get("FOREBAY_EXAMPLES", "1")), deadline=None)


SPACES = st.sampled_from([b"", b"", b"", b" ", b"\n", b"\t \r\n"])
INTEGERS = st.sampled_from(
    [
        b"0",
        b"-0",
        b"1",
        b"-1",
        b"255",
        b"9007199254740993",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"18446744073709551615",
        b"18446744073709551616",
    ]
)
FLOATS = st.sampled_from([b"0.0", b"-0.0", b"1.0", b"1.50", b"1e5", b"1E-5", b"-2.5e+10", b"0.1", b"1e-400"])
TOKENS = st.sampled_from([b"NaN", b"Infinity", b"-Infinity"])
NUMBERS = st.one_of(INTEGERS, FLOATS, TOKENS)
NEARLY = st.sampled_from(
    [b"01", b"1.", b".5", b"+1", b"-", b"1e", b"0x1", b"inf", b"nan", b"-NaN", b"True", b"1 2", b""]
)
_CHARACTERS = st.sampled_from(
    [
        b"a",
        b"data",
        b"id",
        b"]",
        b"[",
        b"{",
        b"}",
        b",",
        b":",
        b" ",
        b"\\\\",
        b'\\"',
        b"\\/",
        b"\\u0061",
        b"\\n",
        b"\xc3\xa9",
        b"\\ud83d\\ude00",
        b"\xf0\x9f\x98\x80",
        b"\\u0000",
    ]
)
STRINGS = st.lists(_CHARACTERS, max_size=6).map(lambda pieces: b'"' + b"".join(pieces) + b'"')
BAD_STRINGS = st.sampled_from(
    [b'"\\ud800"', b'"\\ude00\\ud83d"', b'"\t"', b'"\\x"', b'"\xff"', b'"\xed\xa0\x80"', b'"\\u12"']
)
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from([b"true", b"false", b"null"]))
KEYS = st.sampled_from(
    [b'"a"', b'"\\u0061"', b'"b"', b'""', b'"data"', b'"d\\u0061ta"', b'"id"', b'"\\"data"', b'"a\\nb"']
)


def _array(elements: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    spaced = st.tuples(SPACES, elements, SPACES).map(b"".join)
    return st.one_of(
        st.lists(spaced, max_size=4).map(lambda found: b"[" + b",".join(found) + b"]"),
        st.tuples(st.just(b"["), SPACES, st.just(b"]")).map(b"".join),
    )


def _object(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    member = st.tuples(SPACES, KEYS, SPACES, st.just(b":"), SPACES, values, SPACES).map(b"".join)
    return st.lists(member, max_size=4).map(lambda found: b"{" + b",".join(found) + b"}")


VALUES = st.recursive(SCALARS, lambda inner: st.one_of(_array(inner), _object(inner)), max_leaves=12)
TEXTS = st.tuples(SPACES, VALUES, SPACES).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """A text with one to three faults: cut off, a piece lost, doubled, or put in that does not belong."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(len(text), at + 4)))
        piece = draw(
            st.one_of(
                st.just(b""),
                st.just(text[at:end] * 2),
                st.sampled_from(
                    [b'"', b"\\", b",", b":", b"[", b"]", b"{", b"}", b"\x00", b"\x01", b"\xff", b"0", b" ", b"-", b"e"]
                ),
                NEARLY,
                BAD_STRINGS,
            )
        )
        text = text[:at] + piece + text[end:] if draw(st.integers(0, 5)) else text[:at]
    return text
