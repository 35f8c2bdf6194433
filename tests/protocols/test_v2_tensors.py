"""Promises of tensor data: a tensor is taken as what it says it is, or not at all, and keeps its lexemes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.v2_tensors import DATATYPES, array, flatten, rows
from tests.protocols.json_texts import (
    BAD_STRINGS,
    FLOATS,
    INTEGERS,
    NEARLY,
    NUMBERS,
    SPACES,
    STRINGS,
    TOKENS,
    damaged,
    examples,
)
from tests.protocols.slow_json import Lexed, Malformed, Pairs, slow_read

SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
BOUNDS = {
    f"{sign}INT{bits}": (-(2 ** (bits - 1)) if not sign else 0, 2 ** (bits - (not sign)) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
LEXEMES = {
    "BOOL": st.sampled_from([b"true", b"false"]),
    "BYTES": STRINGS,
    "FP32": NUMBERS,
    "FP64": NUMBERS,
    **{
        kind: st.one_of(st.integers(*bounds), st.sampled_from(bounds)).map(lambda n: b"%d" % n)
        for kind, bounds in BOUNDS.items()
    },
}
ANY_LEXEME = st.one_of(
    *LEXEMES.values(), INTEGERS, FLOATS, TOKENS, NEARLY, BAD_STRINGS, st.sampled_from([b"null", b"{}", b"[]", b"1e400"])
)


def is_element(lexeme: Lexed, datatype: str) -> bool:
    """May this lexeme stand for one element?"""
    if not isinstance(lexeme, str):
        return False
    if datatype == "BOOL":
        return lexeme in ("true", "false")
    if datatype == "BYTES":
        return lexeme[0] == '"'
    if lexeme[0] not in "-0123456789NI":
        return False
    if datatype in BOUNDS:
        low, high = BOUNDS[datatype]
        return lexeme.lstrip("-").isdigit() and low <= int(lexeme) <= high
    return lexeme[-1] in "yN" or math.isfinite(float(lexeme))


def elements(value: Lexed, shape: tuple[int, ...]) -> Iterator[Lexed]:
    """The elements of an array nested exactly as `shape` says; raises Malformed if it is not."""
    if not shape:
        yield value
        return
    if not isinstance(value, list) or isinstance(value, Pairs) or len(value) != shape[0]:
        raise Malformed
    for inner in value:
        yield from elements(inner, shape[1:])


def expected(text: bytes, datatype: str, shape: tuple[int, ...]) -> tuple[bytes, bool] | None:
    """What the slow reader makes of tensor data."""
    for nested in (False, True)[: len(shape)]:
        try:
            found = list(elements(slow_read(text)[0], shape if nested else (math.prod(shape),)))
        except Malformed:
            continue
        if all(is_element(one, datatype) for one in found):
            return ",".join(str(one) for one in found).encode(), nested
    return None


@st.composite
def arrays(draw: st.DrawFn, lexemes: st.SearchStrategy[bytes], shape: tuple[int, ...]) -> bytes:
    """An array nested as `shape` says, white space anywhere."""

    def level(inner: tuple[int, ...]) -> bytes:
        if not inner:
            return draw(SPACES) + draw(lexemes) + draw(SPACES)
        return draw(SPACES) + b"[" + b",".join(level(inner[1:]) for _ in range(inner[0])) + b"]" + draw(SPACES)

    return level(shape).strip()


@st.composite
def tensors(draw: st.DrawFn) -> tuple[bytes, str, tuple[int, ...]]:
    """Data, datatype and shape that may agree or not."""
    datatype, shape = draw(st.sampled_from(sorted(DATATYPES))), draw(SHAPES)
    form = draw(st.sampled_from([shape, (math.prod(shape),), shape[::-1], shape[1:]]))
    lexemes = draw(st.sampled_from([LEXEMES[datatype], LEXEMES[datatype], ANY_LEXEME]))
    text = draw(arrays(lexemes, form))
    return (draw(damaged(st.just(text))) if draw(st.integers(0, 3)) == 0 else text), datatype, shape


@examples(500)
@given(tensors())
def test_tensor_data_is_taken_exactly_as_the_slow_reader_takes_it(tensor: tuple[bytes, str, tuple[int, ...]]) -> None:
    """Too few elements, the wrong kind, a nest of another shape, a lexeme out of bounds: none of it gets through."""
    text, datatype, shape = tensor
    if (
        text[:1] == b"[" and text[-1:] == b"]" and text.isascii()
    ):  # all that `cut` ever hands over; UTF-8 is looked at apart
        assert flatten(text, datatype, shape) == expected(text, datatype, shape)


@examples(100)
@given(st.data(), st.sampled_from(sorted(DATATYPES)), SHAPES, st.booleans())
def test_rows_put_together_are_the_tensor(
    data: st.DataObject, datatype: str, shape: tuple[int, ...], nested: bool
) -> None:
    """Taking a tensor apart and putting it together loses no lexeme and keeps its form."""
    text = data.draw(arrays(LEXEMES[datatype], shape if nested else (math.prod(shape),)))
    flat = flatten(text, datatype, shape)
    assert flat is not None and flat[1] == (nested and len(shape) > 1)
    each = rows(flat[0], datatype, shape)
    assert len(each) == shape[0]
    assert slow_read(array(each, datatype, shape[1:], nested=flat[1])) == slow_read(text)
    for row in each:
        one = array([row], datatype, shape[1:], nested=flat[1])
        alone = flatten(one, datatype, (1, *shape[1:]))
        assert alone is not None and alone[0] == row


@pytest.mark.parametrize(
    ("text", "datatype", "shape"),
    [
        (b"[[1]2,[3]]", "FP32", (2, 1)),  # brackets and commas are right; the elements are not where they belong
        (b'["a""b",]', "BYTES", (2,)),
        (b'[s,"a"]', "BYTES", (2,)),
        (b'["a"s]', "BYTES", (1,)),
        (b"[1NaN]", "FP32", (1,)),
        (b"[NaN5]", "FP32", (1,)),
        (b"[-NaN]", "FP32", (1,)),
        (b"[NaN]", "INT32", (1,)),
        (b"[Infinity]", "BOOL", (1,)),
        (b"[NaNNaN]", "FP32", (1,)),
        (b"[1.0]", "INT8", (1,)),
        (b"[18446744073709551616]", "UINT64", (1,)),
        (b"[[1],[18446744073709551616]]", "UINT64", (2, 1)),
        (b"[" + b"9" * 5000 + b"]", "INT64", (1,)),
        (b"[1]", "FP32", (10**17, 10**17)),
        (b"[[1]]", "FP32", (10**17, 10**17)),
        (b'["a"]', "BYTES", (10**17, 10**17)),
        (b"[" * 100_000 + b"]" * 100_000, "FP32", (1,) * 16),
        (b"[]", "FP32", (1,)),
        (b"[]", "BYTES", (1,)),
    ],
)
def test_what_looks_almost_right_is_refused(text: bytes, datatype: str, shape: tuple[int, ...]) -> None:
    """Data that some reader would put together otherwise is the backend's to judge."""
    assert flatten(text, datatype, shape) is None


def test_the_whole_range_of_64_bits_is_kept_to_the_digit() -> None:
    """No integer passes through a float."""
    for text, datatype in (
        (b"[-9223372036854775808,9223372036854775807]", "INT64"),
        (b"[0,18446744073709551615]", "UINT64"),
    ):
        assert flatten(text, datatype, (2,)) == (text[1:-1], False)
        assert flatten(text.replace(b",", b"],[").join([b"[", b"]"]), datatype, (2, 1)) == (text[1:-1], True)


def test_datatypes_that_json_does_not_carry_are_unknown() -> None:
    """FP16 and BF16 travel as binary alone."""
    assert not DATATYPES & {"FP16", "BF16"}
