"""Promises of JSON bodies in pieces: what is read is what the text says to every reader, lexeme by lexeme."""

from __future__ import annotations

import itertools
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.json_values import (
    ABSOLUTE,
    BRACKETS,
    RELATIVE,
    alike,
    canonical,
    document,
    elements,
    members,
    spelled,
    tagged,
    text_of,
    whole_number,
)
from proxy.protocols.spans import DEPTH, TOKENS, Refusal, compact, read
from tests.protocols.json_texts import NUMBERS, SCALARS, TEXTS, VALUES, damaged, examples
from tests.protocols.slow_json import Lexed, Malformed, Pairs, slow_read


def says(text: bytes) -> Lexed | Refusal:
    """What the slow reader makes of a text."""
    try:
        value, repeated = slow_read(text)
    except Malformed:
        return Refusal.MALFORMED
    return Refusal.DUPLICATE_KEY if repeated else value


def accepted(text: bytes) -> bytes:
    found = document(text)
    assert isinstance(found, bytes), (found, text)
    return found


def meaning(text: bytes) -> Any:
    """What a text says, numbers by their lexemes."""
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)


class _Number(str):
    """A lexeme, which equals no text."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and str.__eq__(self, other)


# --- what is a document


@examples(200)
@given(st.one_of(TEXTS, damaged(TEXTS)))
def test_a_text_is_taken_exactly_if_every_reader_reads_it_alike(text: bytes) -> None:
    """Whole or damaged: refused as the slow reader refuses it, and what is taken says what the text says."""
    found = document(text)
    expected = says(text)
    assert (found if isinstance(found, Refusal) else says(found)) == expected


@examples(200)
@given(st.one_of(TEXTS, damaged(TEXTS)))
def test_both_readers_of_json_take_the_same_texts(text: bytes) -> None:
    """What one codec refuses no other takes for another thing."""
    if b"\x00" in text:  # there `read` sees what was cut out of a larger text
        assert document(text) is Refusal.MALFORMED
        return
    found, value = document(text), read(text)
    if isinstance(value, Refusal):
        assert found is value
    else:
        assert isinstance(found, bytes)
        assert read(found) == value


@pytest.mark.parametrize("text", [b"\x00", b'{"a":\x00}', b"[\x00,NaN]", b'"\x00"', b"[1]\x00"])
def test_a_nul_byte_is_no_value(text: bytes) -> None:
    """The byte that stands for what was cut out means nothing in what a client sends."""
    assert document(text) is Refusal.MALFORMED


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"nul",
        b"[1,]",
        b"[1]2",
        b"01",
        b"1.",
        b"-",
        b'{"a":1,}',
        b'{"a":{"b":1}',
        b"\xef\xbb\xbf1",
        b'["\xff"]',
        b'{"a":"\xff"}',
        b'{"\xff":1}',
        b'["\xed\xa0\x80"]',
        b'["\xc0\x80"]',
        b'["\xf4\x90\x80\x80"]',
        b'["\t"]',
        b'["\\x"]',
        b'["\\u12"]',
        b'["\\ud800"]',
        b'["\\udc00"]',
        b'["\\ud83d\\ud83d"]',
        b'["\\udc00\\ud83d"]',
        b'{"\\ud800":1}',
        b'{"a":"\\ud83d\\n"}',
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    """Each way to be no JSON by a hair's breadth, and the slow reader agrees."""
    assert says(text) is Refusal.MALFORMED
    assert document(text) is Refusal.MALFORMED


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"\\u0061":1}',
        b'{"a":{},"a":{}}',
        b'{"a":1,"b":2,"a":1}',
        b'{"a":"}","a":"}"}',
        b'{"":0,"":0}',
        b'[0,{"x":[[{"a":1,"a":1}]]}]',
        b'{"a":NaN,"a":NaN}',
        b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":1}',
        b' {"a" : 1 , "a"\n: 1 } ',
    ],
)
def test_a_key_that_comes_twice_is_seen(text: bytes) -> None:
    """However it is spelled and however deep it stands: one reader takes the first, another the last."""
    assert says(text) is Refusal.DUPLICATE_KEY
    assert document(text) is Refusal.DUPLICATE_KEY


def test_a_long_text_is_no_reason_to_refuse() -> None:
    """Far more numbers than the strict reader takes, in one list and in many, beside text that is escaped."""
    rows = [[number / 7, number, -0.0, "\U0001f600"] for number in range(TOKENS)]
    text = json.dumps({"instances": rows, "more": {"x": list(range(TOKENS))}}).encode()
    assert b"\\ud83d\\ude00" in text
    assert accepted(text) == text
    found = members(text)
    assert found is not None
    assert elements(found["instances"]) == [json.dumps(row).encode() for row in rows]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 200_000,
        b"[" * 5000 + b'{"a":1}' + b"]" * 5000,
        b"[" + b",".join([b'{"a":1}'] * (BRACKETS + 1)) + b"]",
        b"[" + b",".join([b"NaN"] * (TOKENS + 1)) + b"]",
        b'{"a":{},"b":[' + b",".join([b"[" * 60 + b"]" * 60] * 8000) + b"]}",
    ],
    ids=["deep", "open", "depth", "wide", "tokens", "stairs"],
)
def test_what_would_take_long_is_refused(text: bytes) -> None:
    """Nesting and width cannot hold the event loop; nor do they raise."""
    began = time.process_time()
    assert document(text) is Refusal.MALFORMED
    assert time.process_time() - began < 1e-6 * len(text) + 0.05


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 500 + b'{"a":1}' + b"]" * 500,
        b"[" + b",".join([b'{"a":1}'] * (BRACKETS - 1)) + b"]",
        json.dumps({str(number): number for number in range(100_000)}).encode(),
        json.dumps({"a": "[{" * BRACKETS, "b": {}}).encode(),
        b"[" + b",".join([b'["{"]'] * 10_000) + b"]",
        b'{"a":' * 60 + b'"' + b"{" * 1_000_000 + b'"' + b"}" * 60,
        b"[" * 900 + b"]" * 900,
    ],
    ids=["deep", "wide", "flat", "text", "lists", "braces", "arrays"],
)
def test_much_is_taken_in_little_time(text: bytes) -> None:
    """What is only long, deep or wide is read as anything else, in time that grows with its length."""
    began = time.process_time()
    assert document(text) == text
    spelling = canonical(text)
    assert time.process_time() - began < 2e-6 * len(text) + 0.05
    assert json.loads(spelling) == json.loads(text)


def test_what_is_taken_has_one_spelling_with_less_room_on_the_stack() -> None:
    """A text that is just not too deep is spelled where the stack is deeper than where it was read."""

    def deeper(text: bytes, levels: int) -> bytes:
        return canonical(text) if levels == 0 else deeper(text, levels - 1)

    taken = 0
    for depth in range(1, 1200):
        text = b"[" * depth + b'{"a":1}' + b"]" * depth
        if document(text) is Refusal.MALFORMED:
            break
        assert deeper(text, 40) == text
        taken = depth
    assert DEPTH < taken < 1199


# --- pieces


@examples(200)
@given(TEXTS)
def test_pieces_are_the_texts_own(text: bytes) -> None:
    """Members and elements, and nothing else, come out in their order, each saying what it says in the text."""
    value = says(text)
    if isinstance(value, Refusal):
        return
    whole = accepted(text)
    named, listed = members(whole), elements(whole)
    assert (named is not None) == isinstance(value, Pairs)
    assert (listed is not None) == (isinstance(value, list) and not isinstance(value, Pairs))
    if named is not None:
        assert Pairs((name, slow_read(piece)[0]) for name, piece in named.items()) == value
        assert says(spelled(named)) == value
    if listed is not None:
        assert [slow_read(piece)[0] for piece in listed] == value


@pytest.mark.parametrize("text", [b"", b"1", b'"{"', b"{", b"{]", b'{"a":1', b"nul"])
def test_what_is_no_object_has_no_members(text: bytes) -> None:
    """Nor does what is no JSON at all."""
    assert members(text) is None


@pytest.mark.parametrize("text", [b"", b"1", b'"["', b"[", b"[1", b"[1,]", b"[1}", b"[1]2", b"[x]", b"{}"])
def test_what_is_no_list_has_no_elements(text: bytes) -> None:
    """Nor does what is no JSON at all: results that were kept are put together and read again."""
    assert elements(text) is None


# --- one spelling


@examples(200)
@given(st.one_of(TEXTS, st.lists(TEXTS, max_size=2).map(lambda texts: b"[" + b",".join(texts) + b"]")))
def test_one_spelling_for_one_value(text: bytes) -> None:
    """White space, the order of keys and the way text is escaped do not show; every number's lexeme does."""
    value = read(text)
    if not isinstance(value, Refusal):
        spelling = canonical(accepted(text))
        assert spelling == canonical(compact(value, in_order=False))
        assert meaning(spelling) == meaning(text)


@examples(200)
@given(TEXTS, TEXTS)
def test_two_values_have_two_spellings(one: bytes, other: bytes) -> None:
    """Texts that say different things never share an entry."""
    first, second = says(one), says(other)
    if isinstance(first, Refusal) or isinstance(second, Refusal):
        return
    same = canonical(accepted(one)) == canonical(accepted(other))
    assert same == (meaning(one) == meaning(other))


@pytest.mark.parametrize("texts", list(itertools.combinations([b"1", b"1.0", b'"1"', b"true", b"[1]", b"1e0"], 2)))
def test_types_and_lexemes_show(texts: tuple[bytes, bytes]) -> None:
    """`1`, `1.0`, `"1"` and `true` are four things."""
    assert canonical(texts[0]) != canonical(texts[1])


@examples(200)
@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_no_two_lists_of_pieces_are_one_text(some: list[bytes], others: list[bytes]) -> None:
    """Where one piece ends and the next begins is part of the text, whatever stands in them."""
    assert (tagged(some) == tagged(others)) == (some == others)
    assert tagged([*some, b":"]) != tagged([*some, b"", b":"])


# --- scalars


@examples(100)
@given(SCALARS)
def test_scalars_are_read_as_what_they_are(text: bytes) -> None:
    """A string's text and a whole number's value; nothing else passes for one of them."""
    value = json.loads(text)
    assert text_of(text) == (value if isinstance(value, str) else None)
    number = whole_number(text)
    assert number is None or (number == value and not isinstance(value, (bool, float)))
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        assert number == value


@pytest.mark.parametrize("text", [None, b"", b"-", b"1.0", b"1e3", b'"1"', b"true", b"[1]", b"--1", b"1" * 5000])
def test_what_is_no_whole_number(text: bytes | None) -> None:
    """Also one with so many digits that reading it would take long."""
    assert whole_number(text) is None


def test_a_missing_member_has_no_text() -> None:
    """Members are asked for without looking whether they are there."""
    assert text_of(None) is None


# --- what arithmetic may differ by


@examples(200)
@given(VALUES)
def test_everything_is_like_itself(text: bytes) -> None:
    """Whatever an answer holds, NaN too, and however it is laid out."""
    if isinstance(says(text), Refusal):
        return
    assert alike(text, text)
    assert alike(text, canonical(accepted(text)))


@examples(200)
@given(VALUES, VALUES)
def test_likeness_has_no_direction(one: bytes, other: bytes) -> None:
    """And it never raises."""
    assert alike(one, other) == alike(other, one)


@examples(200)
@given(NUMBERS, st.floats(-0.9, 0.9), st.floats(1.1, 1e3), st.booleans())
def test_how_far_numbers_may_differ(text: bytes, within: float, beyond: float, up: bool) -> None:
    """A fraction may differ by a thousandth of itself, or by a hundred-thousandth where it is next to nothing."""
    number = float(text)
    if not math.isfinite(number):
        return
    room = max(abs(number) * RELATIVE, ABSOLUTE)
    frame = b'{"predictions":[[1,"x",%s]]}'
    here = frame % repr(number).encode()
    assert alike(here, frame % repr(number + within * room).encode())
    assert not alike(here, frame % repr(number + (beyond if up else -beyond) * room).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"2"),
        (b"1000000", b"1000001"),
        (b"9007199254740993", b"9007199254740992"),
        (b"1", b'"1"'),
        (b"1", b"true"),
        (b"0", b"false"),
        (b"0.0", b"null"),
        (b"NaN", b"0.0"),
        (b"Infinity", b"-Infinity"),
        (b"[1,2]", b"[1,2,3]"),
        (b"[1,2]", b"[2,1]"),
        (b"[]", b"{}"),
        (b'{"a":1}', b'{"b":1}'),
        (b'{"a":1}', b'{"a":1,"b":1}'),
        (b'{"a":[1.0]}', b'{"a":[1.1]}'),
        (b'"a"', b'"b"'),
        (b"1" + b"0" * 400, b"1.5"),
        (b"1.5", b"1" + b"0" * 5000),
        (b"[", b"["),
        (b"\xff", b"\xff"),
        (b"[" * 100_000, b"[" * 100_000),
    ],
)
def test_what_is_not_alike(one: bytes, other: bytes) -> None:
    """Whole numbers, text, shapes and names must be equal; what cannot be read is like nothing."""
    assert not alike(one, other)
    assert not alike(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [(b"2", b"2.0"), (b"1e400", b"Infinity"), (b'{"a":1,"b":2}', b'{ "b" : 2 , "a" : 1 }')]
)
def test_what_is_alike(one: bytes, other: bytes) -> None:
    """A number is the same with or without its point, an object in any order."""
    assert alike(one, other)
    assert alike(other, one)
