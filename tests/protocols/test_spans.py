"""Promises of the span reader: exact about lexemes, and never fooled into reading what others read otherwise."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.spans import DEPTH, HOLE, TOKENS, Hole, Refusal, Value, compact, cut, decoded, read
from tests.protocols.json_texts import SCALARS, STRINGS, TEXTS, VALUES, damaged, examples
from tests.protocols.slow_json import Lexed, Malformed, Pairs, depth_of, slow_read


def expected(text: bytes) -> Lexed | Refusal:
    try:
        value, repeated = slow_read(text)
    except Malformed:
        return Refusal.MALFORMED
    return Refusal.DUPLICATE_KEY if repeated else value


def as_lexed(value: Value | Refusal) -> Lexed | Refusal:
    """What `read` gave, as the slow reader would say it."""
    if isinstance(value, Refusal):
        return value
    if isinstance(value, dict):
        members = Pairs()
        for key, inner in value.items():
            lexed = as_lexed(inner)
            assert not isinstance(lexed, Refusal)
            members.append((key, lexed))
        return members
    if isinstance(value, list):
        found = [as_lexed(inner) for inner in value]
        return [one for one in found if not isinstance(one, Refusal)]
    assert isinstance(value, bytes), value
    return value.decode()


def with_values(value: Value, values: list[bytes]) -> Value:
    """`value` with each hole filled by what `read` makes of the value that was cut out of it."""
    if isinstance(value, Hole):
        inner = read(values[value.number])
        assert not isinstance(inner, Refusal)
        return inner
    if isinstance(value, list):
        return [with_values(one, values) for one in value]
    if isinstance(value, dict):
        return {key: with_values(one, values) for key, one in value.items()}
    return value


@examples(100)
@given(TEXTS)
def test_reading_keeps_every_lexeme_and_sees_every_repeated_key(text: bytes) -> None:
    """64-bit integers, -0.0, NaN and escapes come out as they were written, and no repeated key goes unseen."""
    assert as_lexed(read(text)) == expected(text)


@examples(300)
@given(damaged(TEXTS))
def test_damaged_text_is_read_as_the_slow_reader_reads_it(text: bytes) -> None:
    """What a careful reader refuses is refused: truncated, invalid UTF-8, lone surrogates, bare control bytes."""
    if HOLE not in text:
        assert as_lexed(read(text)) == expected(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"[1,]",
        b"[,1]",
        b"[1 1]",
        b"[1",
        b"1]",
        b"[1}",
        b'{"a":1,}',
        b'{,"a":1}',
        b'{"a"}',
        b'{"a",1}',
        b'{"a" 1}',
        b'{"a":}',
        b"{1:1}",
        b"{NaN:1}",
        b'{"a":1]',
        b'{"a":1:2}',
        b"1 2",
        b'"a""b"',
        b"truefalse",
        b"True",
        b"01",
        b"-",
        b"1.",
        b".5",
        b"+1",
        b"1e",
        b"-NaN",
        b"1\x0b",
        b"\xef\xbb\xbf1",
        b'"\\ud800"',
        b'"\\udbff\\n"',
        b'"\\udc00"',
        b'"\\udfff\\ud83d"',
        b'"\\ud83d\\ud83d"',
        b'"\\u12"',
        b'"\\x"',
        b'"\t"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"a',
        b'"\\"',
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    """Each way to be no JSON by a hair's breadth, and the slow reader agrees."""
    assert expected(text) is Refusal.MALFORMED
    assert read(text) is Refusal.MALFORMED


@pytest.mark.parametrize(
    "text",
    [b'{"a":1,"\\u0061":1}', b'[{"b":{"a":1,"a":1}}]', b'{"":1,"":2}', b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":1}'],
)
def test_a_key_that_comes_twice_is_seen_however_it_is_spelled(text: bytes) -> None:
    """Triton takes the first, Python the last: neither is taken here."""
    assert expected(text) is Refusal.DUPLICATE_KEY
    assert read(text) is Refusal.DUPLICATE_KEY


@examples(300)
@given(st.one_of(TEXTS, damaged(TEXTS)))
def test_cutting_never_changes_what_a_text_means(text: bytes) -> None:
    """If the frame and every value can be read, putting them together is what the whole text says."""
    found = cut(text)
    if found is None:
        return
    frame, values = found
    value = read(frame)
    if (
        isinstance(value, Refusal)
        or frame.count(HOLE) != len(values)
        or any(isinstance(read(v), Refusal) for v in values)
    ):
        return
    assert as_lexed(with_values(value, values)) == expected(text)


@examples(100)
@given(STRINGS, st.lists(STRINGS, max_size=3), st.lists(st.integers(), min_size=1, max_size=3), SCALARS)
def test_data_and_id_are_cut_out_wherever_they_stand(
    id_: bytes, strings: list[bytes], numbers: list[int], other: bytes
) -> None:
    """The values that change from call to call leave a frame behind that does not."""

    def text(id_: bytes, data: list[bytes]) -> bytes:
        more = b'"more":[{"data":%b},{"data" :%b, "k":%b},{"data":\t%b}]' % (data[0], data[1], other, data[2])
        return b'{"id" : %b, "x":[%b], %b}' % (id_, other, more)

    data = [b"[" + b" , ".join(strings) + b"]", repr([numbers, numbers]).encode(), b"[ [\n [1], [2] ] ]"]
    plain = re.fullmatch(rb'"[ !#-\[\]-~]*"', id_) is not None  # any other stays in the frame, to be looked at closely
    found, another = cut(text(id_, data)), cut(text(b'"another"' if plain else id_, [b"[1]", b"[[2]]", b"[]"]))
    assert found is not None and another is not None
    assert found[1] == ([id_] if plain else []) + data
    assert found[0] == another[0]


def test_a_body_that_brings_its_own_holes_is_seen_through() -> None:
    """A byte that no JSON may hold cannot pass for a value that was cut out."""
    found = cut(b'{"id":\x00,"data":[1]}')
    assert found is not None and found[0].count(HOLE) != len(found[1])


@pytest.mark.parametrize("text", [b'"\x00"', b'{"\x00":1}', b"[1\x002]", b"\x00\x00"])
def test_a_hole_stands_only_where_a_value_may(text: bytes) -> None:
    """A hole inside a string, a key or a number is refused."""
    assert read(text) is Refusal.MALFORMED


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_nesting_is_read_to_a_bound_and_refused_beyond(opening: bytes, closing: bytes) -> None:
    """A depth bomb costs nothing: no recursion, one refusal."""
    levels = opening.count(b"[") + opening.count(b"{")
    fits = DEPTH // levels
    text = opening * fits + b"1" + closing * fits
    assert depth_of(slow_read(text)[0]) == DEPTH
    assert as_lexed(read(text)) == expected(text)
    assert read(opening * (fits + 1) + b"1" + closing * (fits + 1)) is Refusal.MALFORMED
    assert read(opening * 100_000) is Refusal.MALFORMED


def test_a_text_of_too_many_tokens_is_refused_soon() -> None:
    """The event loop is not held up by a long text that is not tensor data."""
    assert read(b"[" + b"1," * (TOKENS // 2 - 2) + b"1]") != Refusal.MALFORMED
    assert read(b"[" + b"1," * 1_000_000 + b"1]") is Refusal.MALFORMED


@pytest.mark.parametrize(
    "hostile",
    [
        b'"data":[' * 100_000,
        b'"data":[[' * 100_000,
        b'"data":["' * 100_000,
        b'"id":"' * 100_000,
        b'"id":"' + b"\\" * 600_000,
        b'"data"' + b" " * 600_000,
        b'"data":[' + b"] " * 300_000,
        b'"data":[' + b"]," * 300_000,
        b'"data":[["' + b'\\"' * 300_000,
        b'{"data":[[[1] ]]}' * 30_000,
    ],
)
def test_no_text_takes_longer_than_its_length_deserves(hostile: bytes) -> None:
    """Megabytes made to send a pattern back and forth are cut, or given up, in a blink."""
    before = time.process_time()
    cut(hostile)
    assert time.process_time() - before < 2.0  # a quadratic cut takes minutes


@examples(100)
@given(VALUES)
def test_canonical_text_shows_neither_space_nor_order_of_keys(text: bytes) -> None:
    """Two bodies that differ in white space and order of keys have one canonical text."""
    value = read(text)
    if isinstance(value, Refusal):
        return
    canonical = compact(value, in_order=False)
    again = read(canonical)
    assert not isinstance(again, Refusal)
    assert compact(again, in_order=False) == canonical
    assert compact(_shuffled(value), in_order=False) == canonical
    in_order = read(compact(value))
    assert as_lexed(in_order) == as_lexed(value)


def _shuffled(value: Value) -> Value:
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(value)}
    return [_shuffled(one) for one in value] if isinstance(value, list) else value


@examples(100)
@given(VALUES, VALUES)
def test_canonical_texts_are_equal_only_for_equal_values(one: bytes, other: bytes) -> None:
    """`1`, `1.0`, `"1"` and `-0.0` stay apart, and so does everything else that may be read differently."""
    first, second = read(one), read(other)
    if isinstance(first, Refusal) or isinstance(second, Refusal):
        return
    same = compact(first, in_order=False) == compact(second, in_order=False)
    assert same == (first == second)


def test_spellings_of_one_number_stay_apart() -> None:
    """A key says which spelling it stands for."""
    texts = [b"1", b"1.0", b'"1"', b"-0.0", b"0.0", b"-0", b"0", b"1e0", b"true", b'"true"', b"[1]", b'"\\u0031"']
    assert len({compact(value) for text in texts if not isinstance(value := read(text), Refusal)}) == len(texts)


def test_decoding_takes_strings_alone() -> None:
    """A number is not the text that looks like it."""
    assert decoded(b'"a\\u00e9\\n"') == "aé\n"
    assert decoded(b"1") is None
    assert decoded(None) is None
    assert decoded([]) is None
