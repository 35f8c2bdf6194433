"""Promises of binary tensors: whatever form a call and its answer come in, each caller gets its own rows."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols import v2_binary
from proxy.protocols.codec import Call, Endpoint, Message, Part
from proxy.protocols.v2 import V2, V2Call
from proxy.terms import Model, Reason
from tests.protocols.json_texts import damaged, examples
from tests.protocols.slow_json import Malformed, Pairs, slow_read
from tests.protocols.test_v2 import unordered, without
from tests.protocols.v2_bodies import (
    BINARY_KINDS,
    HEAD_LENGTH,
    ROWS_MODEL,
    WHOLE_MODEL,
    Asked,
    answered,
    apart,
    asked,
    elements,
    size_of,
    written,
)

CODEC = V2()
HERE = Endpoint("m")


def message(head: bytes, tail: bytes = b"") -> Message:
    return Message(head + tail, ((HEAD_LENGTH, b"%d" % len(head)),))


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def strings(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def head(**members: str) -> bytes:
    """The head of a request with one input of two rows, some of its members replaced; "" leaves one out."""
    tensor = {"name": '"X"', "shape": "[2,2]", "datatype": '"FP32"', "parameters": '{"binary_data_size":16}'} | members
    return ('{"inputs":[{' + ",".join(f'"{key}":{value}' for key, value in tensor.items() if value) + "}]}").encode()


BLOB = floats(1, 2, 3, 4)
REQUEST = message(head(), BLOB)


def parse(request: Message, model: Model = ROWS_MODEL) -> Call | Reason:
    return CODEC.parse(HERE, request, model)


def parsed(request: Message, model: Model = ROWS_MODEL) -> V2Call:
    call = parse(request, model)
    assert isinstance(call, V2Call), (call, request)
    return call


def whole(call: Call) -> Part:
    return Part(call, tuple(range(len(call.items))))


def join(parts: Sequence[Part], request_id: str = "r") -> Message:
    joined = CODEC.join(parts, request_id, [0.0] * len(parts))
    assert joined.path is None
    return Message(joined.body, joined.fields)


def split(answer: Message, parts: Sequence[Part], request_id: str | None = None) -> list[list[bytes]]:
    results = CODEC.split(answer, parts, request_id)
    assert results is not None, answer
    return results


def meaning(found: Message) -> object:
    """What a body says, and the elements behind its JSON: order of keys and white space do not count."""
    text, blobs = apart(found)
    value, repeated = slow_read(text)
    assert not repeated and isinstance(value, Pairs)
    tensors = dict(value).get("inputs") or dict(value)["outputs"]
    assert isinstance(tensors, list)
    cut_out = []
    for one in tensors:
        assert isinstance(one, Pairs)
        tensor = dict(one)
        if (size := size_of(tensor)) is not None:
            cut_out.append(elements(blobs[:size], json.loads(str(tensor["datatype"]))))
            blobs = blobs[size:]
    assert not blobs
    return {"json": unordered(value), "blobs": cut_out}


def asks(found: Message) -> object:
    """The meaning of a request, `id` and deadlines left out."""
    meant = meaning(found)
    assert isinstance(meant, dict)
    text = meant["json"]
    assert isinstance(text, dict)
    wishes = without(text.get("parameters", {}), "timeout", "priority")
    return meant | {"json": without(text, "id", "parameters"), "wishes": wishes}


# --- joining and taking apart


@examples(60)
@given(st.data(), st.booleans())
def test_each_caller_gets_what_the_backend_would_have_answered_it_alone(data: st.DataObject, nested: bool) -> None:
    """Whatever rides together, every row's answer is the one of that row, in the form that was asked for."""
    kind = data.draw(BINARY_KINDS)
    asked_for = data.draw(st.lists(asked(kind), min_size=1, max_size=3))
    calls = [parsed(call.message) for call in asked_for]
    parts = [
        Part(call, tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(call.items))), min_size=1)))))
        for call in calls
    ]
    together = split(answered(join(parts, "forebay-1"), nested=nested), parts, "forebay-1")
    assert [len(results) for results in together] == [len(part.indexes) for part in parts]
    for call, part, results, original in zip(calls, parts, together, asked_for, strict=True):
        alone_answer = answered(original.message, nested=nested)
        (alone,) = split(alone_answer, [whole(call)])
        assert results == [alone[index] for index in part.indexes]
        answer = CODEC.answer(call, alone)
        assert answer is not None
        assert meaning(answer) == meaning(alone_answer)
        assert {name for name, _ in answer.fields} == {HEAD_LENGTH for _ in alone_answer.fields}
        for index, result in zip(part.indexes, results, strict=True):
            row = written(replace(original, rows=(original.rows[index],), id=None))
            lone = CODEC.answer(parsed(row.message), [result])
            assert lone is not None
            assert meaning(lone) == meaning(answered(row.message, nested=nested))


@examples(40)
@given(BINARY_KINDS.flatmap(asked), st.booleans())
def test_a_whole_call_joined_alone_asks_what_its_caller_asked(call: Asked, by_rows: bool) -> None:
    """Nothing is lost, added or respelled on the way through the codec but the id."""
    joined = join([whole(parsed(call.message, ROWS_MODEL if by_rows else WHOLE_MODEL))])
    assert asks(joined) == asks(call.message)
    assert b'"id":"r"' in apart(joined)[0]


def test_a_joined_body_holds_the_rows_of_all_in_order() -> None:
    """One head with the sizes of all, and every part's bytes one after the other."""
    calls = [parsed(message(head(), floats(n, n, n + 1, n + 1))) for n in (10, 20)]
    joined = join([Part(calls[0], (1,)), Part(calls[1], (0, 1))])
    text = b'{"id":"r","inputs":[{"datatype":"FP32","name":"X","parameters":{"binary_data_size":24},"shape":[3,2]}]}'
    assert joined == message(text, floats(11, 11, 20, 20, 21, 21))


# --- what is read, and what is left to the backend


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (message(head()), Reason.UNPARSED),
        (message(head(), BLOB[:-1]), Reason.UNPARSED),
        (message(head(), BLOB + b"x"), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":15}'), BLOB[:-1]), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":12}'), BLOB[:-4]), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":24}'), BLOB + BLOB[:8]), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":0}')), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":-16}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":16.0}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":016}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":"16"}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":true}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary\\u005fdata_size":16}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary\\u005fdata_size":16,"k\\"binary_data_size":16}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":16,"k":{"binary_data_size":16}}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":' + "9" * 40 + "}"), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":999999999999999999}'), BLOB), Reason.UNPARSED),
        (message(head(parameters='{"binary_data_size":16}', binary_data_size="16"), BLOB), Reason.UNPARSED),
        (message(head(parameters="", binary_data_size="16"), BLOB), Reason.UNPARSED),
        (message(head(data="[1,2,3,4]"), BLOB), Reason.UNPARSED),
        (message(head(data="null"), BLOB), Reason.UNPARSED),
        (message(head(datatype='"FP8"'), BLOB), Reason.UNPARSED),
        (message(head(datatype='"FP64"'), BLOB), Reason.UNPARSED),
        (message(head(datatype='"BYTES"', shape="[2,2]"), b"\x00" * 15 + b"\x01"), Reason.UNPARSED),
        (message(head(datatype='"BYTES"', shape="[2,1]"), strings(b"a", b"abcdefg")[:-1] + b"a"), None),
        (message(head(datatype='"BYTES"', shape="[2,1]"), strings(b"a", b"abcdefgh")[:16]), Reason.UNPARSED),
        (message(head(datatype='"BYTES"', shape="[3,1]"), strings(b"a", b"abcdefg")), Reason.UNPARSED),
        (message(head(datatype='"BYTES"', shape="[1,1]"), strings(b"a", b"abcdefg")), Reason.UNPARSED),
        (message(head(datatype='"BYTES"', shape="[2,1]"), b"\xff" * 16), Reason.UNPARSED),
        (message(head(shape="[2,0]"), BLOB), Reason.UNPARSED),
        (message(head(shape=f"[{10**17},{10**17}]"), BLOB), Reason.OVER_LIMIT),
        (message(head(shape="[33,1]", parameters='{"binary_data_size":132}'), b"x" * 132), Reason.OVER_LIMIT),
        (message(head(parameters='{"binary_data_size":16,"binary_data_size":16}'), BLOB), Reason.DUPLICATE_KEY),
        (message(head(parameters='{"binary_data_size":16,"binary\\u005fdata_size":4}'), BLOB), Reason.DUPLICATE_KEY),
        (message(head(parameters='{"shared_memory_region":"r"}')), Reason.STATEFUL),
        (message(head(parameters='{"binary_data_size":16,"shared_memory_region":"r"}'), BLOB), Reason.STATEFUL),
        (message(head()[:-1] + b',"parameters":{"sequence_id":1}}', BLOB), Reason.STATEFUL),
        (message(head()[:-1] + b',"parameters":{"binary_data_output":1}}', BLOB), Reason.UNPARSED),
        (message(b"\xef\xbb\xbf" + head(), BLOB), Reason.UNPARSED),
        (message(head()[:-1], b"}" + BLOB), Reason.UNPARSED),
        (message(head() + b" ", BLOB), None),
        (Message(BLOB), Reason.UNPARSED),
        (Message(head() + BLOB), Reason.UNPARSED),  # no field says that tensors follow
        (message(b"", BLOB), Reason.UNPARSED),  # Triton's raw request
    ],
)
def test_what_would_have_to_be_guessed_is_left_to_the_backend(request_: Message, reason: Reason | None) -> None:
    """A body whose sizes, shapes and bytes do not add up goes through untouched, with the reason said."""
    found = parse(request_)
    assert isinstance(found, Call) if reason is None else found is reason
    if reason is not Reason.OVER_LIMIT:
        assert isinstance(parse(request_, WHOLE_MODEL), Call) == (reason is None)


@pytest.mark.parametrize(
    ("fields", "understood"),
    [
        ([b"%d"], True),
        ([], False),
        ([b"0"], False),
        ([b"+%d"], False),
        ([b"-%d"], False),
        ([b"0%d"], False),
        ([b" %d"], False),
        ([b"%d;q=1"], False),
        ([b"%d0"], False),
        ([b"1"], False),
        ([b"%d", b"%d"], False),
        ([b"%d", b"1"], False),
        ([b""], False),
        ([b"abc"], False),
        (["\u0663".encode()], False),
        ([b"9" * 5000], False),
    ],
)
def test_the_length_of_a_head_must_be_said_once_and_plainly(fields: list[bytes], understood: bool) -> None:
    """Where servers could differ on where JSON ends, the request is the backend's to read."""
    values = [value.replace(b"%d", b"%d" % len(head())) for value in fields]
    for name in (HEAD_LENGTH, HEAD_LENGTH.lower(), HEAD_LENGTH.upper()):
        other = (b"Inference-Header-Content-Lengte", b"7")
        request = Message(head() + BLOB, (other, *((name, value) for value in values)))
        assert isinstance(parse(request), Call) == understood


@examples(100)
@given(st.data())
def test_no_damage_to_a_body_goes_unseen(data: st.DataObject) -> None:
    """A body is understood only if the slow reader understands it too, and then as the same thing."""
    call = data.draw(BINARY_KINDS.flatmap(asked))
    body = data.draw(damaged(st.just(call.body)))
    length = max(1, call.head + data.draw(st.sampled_from([0, 0, len(body) - len(call.body), 1, -1])))
    request = Message(body, ((HEAD_LENGTH, b"%d" % length),)) if call.head else Message(body)
    for model in (ROWS_MODEL, WHOLE_MODEL):
        found = parse(request, model)
        if isinstance(found, Reason):
            continue
        try:
            assert asks(join([whole(found)])) == asks(request)
        except Malformed:
            pytest.fail(f"understood {request!r}")


@examples(60)
@given(st.binary(max_size=60), st.integers(0, 70), st.sampled_from([b"", b"7{}", b'20{"outputs":[', b"9{"]))
def test_no_bytes_raise(body: bytes, length: int, start: bytes) -> None:
    """Whatever comes in, the codec answers."""
    hostile = Message(start + body, ((HEAD_LENGTH, b"%d" % length),))
    assert isinstance(parse(hostile), (Reason, Call))
    call = parsed(REQUEST)
    CODEC.split(hostile, [Part(call, (0,))], None)
    CODEC.split(hostile, [whole(call)], "r")
    CODEC.answer(call, [start + body, start + body])
    CODEC.answer(parsed(message(head(shape="[1,4]"), BLOB)), [start + body])
    assert isinstance(CODEC.alike(start + body, body), bool)


def test_so_many_strings_that_they_would_hold_up_others_are_left_alone() -> None:
    """A tensor of tiny strings is read up to a number, and passes through beyond."""
    for count, understood in ((v2_binary.STRINGS, True), (v2_binary.STRINGS + 1, False)):
        size = f'{{"binary_data_size":{count * 4}}}'
        request = message(head(datatype='"BYTES"', shape=f"[1,{count}]", parameters=size), b"\x00" * count * 4)
        assert isinstance(parse(request), Call) == understood


def test_no_row_is_cut_beyond_the_body() -> None:
    """However many bytes a head speaks of, nothing is made of those that never came."""
    for size, shape in ((8, (2,)), (4 * 10**6, (10**6,)), (4, (1,))):
        assert v2_binary.cut_rows(b"abcd", 1, size, "FP32", shape) is None
    assert v2_binary.cut_rows(b"abcde", 1, 4, "FP32", (1,)) == [b"bcde"]


# --- keys


@examples(40)
@given(BINARY_KINDS.flatmap(asked))
def test_keys_show_neither_space_order_id_nor_deadline(call: Asked) -> None:
    """Two callers that ask the same thing in another style share what is known."""
    plain = written(replace(call, id=None, deadlines=()))
    for model in (ROWS_MODEL, WHOLE_MODEL):
        styled, bare = parsed(call.message, model), parsed(plain.message, model)
        assert (styled.shared, styled.items, styled.joins) == (bare.shared, bare.items, bare.joins)


@examples(50)
@given(BINARY_KINDS.flatmap(lambda kind: st.tuples(asked(kind), asked(kind))))
def test_keys_are_equal_only_for_equal_rows(calls: tuple[Asked, Asked]) -> None:
    """No two rows have one key unless every element is the same, to the byte."""
    one, other = calls
    first, second = parsed(one.message), parsed(other.message)
    assert first.shared == second.shared
    for (row, item), (other_row, other_item) in itertools.product(
        zip(one.rows, first.items, strict=True), zip(other.rows, second.items, strict=True)
    ):
        assert (item == other_item) == (row == other_row)
    entire, entire_other = parsed(one.message, WHOLE_MODEL), parsed(other.message, WHOLE_MODEL)
    assert ((entire.shared, entire.items) == (entire_other.shared, entire_other.items)) == (one.rows == other.rows)


@pytest.mark.parametrize(
    "other",
    [
        Message(b'{"inputs":[{"name":"X","shape":[2,2],"datatype":"FP32","data":[1,2,3,4]}]}'),
        message(head(datatype='"INT32"'), BLOB),
        message(head(shape="[2,2,1]"), BLOB),
        message(head(shape="[2,1,2]"), BLOB),
        message(head(name='"Y"'), BLOB),
        message(head(parameters='{"binary_data_size":16,"k":1}'), BLOB),
        message(head(), floats(1, -0.0, 3, 4)),
        message(head()[:-1] + b',"parameters":{"binary_data_output":true}}', BLOB),
        message(head()[:-1] + b',"outputs":[{"name":"Y"}]}', BLOB),
        message(head()[:-1] + b',"outputs":[{"name":"Y","parameters":{"binary_data":true}}]}', BLOB),
        message(head()[:-1] + b',"outputs":[{"name":"Y","parameters":{"binary_data":false}}]}', BLOB),
        message(head()[:-1] + b',"outputs":[{"name":"Y","parameters":{"classification":1}}]}', BLOB),
    ],
)
def test_whatever_may_change_an_answer_or_its_form_changes_the_key(other: Message) -> None:
    """JSON and binary callers, and those who want one or the other, never share what is kept."""
    one, two = parsed(REQUEST), parsed(other)
    assert (one.shared, one.items[0]) != (two.shared, two.items[0])
    whole_one, whole_two = parsed(REQUEST, WHOLE_MODEL), parsed(other, WHOLE_MODEL)
    assert (whole_one.shared, whole_one.items) != (whole_two.shared, whole_two.items)


def test_a_field_that_says_what_is_so_anyway_changes_nothing() -> None:
    """A JSON body that says where its JSON ends, namely at its end, is that JSON body."""
    text = b'{"inputs":[{"name":"X","shape":[2,2],"datatype":"FP32","data":[1,2,3,4]}]}'
    assert parsed(message(text)) == parsed(Message(text))
    assert join([whole(parsed(message(text)))]).fields == ()


# --- answers

ANSWER_HEAD = (
    b'{"id":"r","model_name":"m","model_version":"1","outputs":[{"name":"Y","datatype":"BYTES","shape":[2,1],'
    b'"parameters":{"binary_data_size":12}},{"name":"Z","datatype":"FP16","shape":[2],"parameters":{"binary_data_size":4}},'
    b'{"name":"V","datatype":"INT8","shape":[2,1],"data":[[7],[8]]}]}'
)
ANSWER_BLOBS = strings(b"abc", b"d") + b"\x00\x3c\x00\x40"
ANSWER = message(ANSWER_HEAD, ANSWER_BLOBS)


def test_a_rows_result_reads_as_if_it_had_been_asked_alone() -> None:
    """The backend's order of keys stays, sizes are the row's own, and the id of the batch is gone."""
    ((first,), (second,)) = split(ANSWER, [Part(parsed(REQUEST), (0,)), Part(parsed(REQUEST), (1,))], "r")
    lone = parsed(message(head(shape="[1,4]"), BLOB))
    text = ANSWER_HEAD.replace(b'"id":"r",', b"").replace(b"[2", b"[1").replace(b":4}", b":2}")
    assert CODEC.answer(lone, [first]) == message(
        text.replace(b":12}", b":7}").replace(b"[[7],[8]]", b"[[7]]"), strings(b"abc") + b"\x00\x3c"
    )
    assert CODEC.answer(lone, [second]) == message(
        text.replace(b":12}", b":5}").replace(b"[[7],[8]]", b"[[8]]"), strings(b"d") + b"\x00\x40"
    )


@pytest.mark.parametrize(
    ("member", "id_"),
    [
        (b'"id":"7",', b'"id":"7",'),
        (b'"id":"\xc3\xa9\\u0061",', b'"id":"\xc3\xa9\\u0061",'),
        (b'"id":"",', b""),
        (b"", b""),
    ],
)
def test_an_answer_carries_its_callers_own_id(member: bytes, id_: bytes) -> None:
    """Each caller sees the id that it sent, and a length of the head that counts it."""
    call = parsed(message(b"{" + member + head()[1:], BLOB))
    (results,) = split(ANSWER, [whole(call)], "r")
    assert CODEC.answer(call, results) == message(ANSWER_HEAD.replace(b'"id":"r",', id_), ANSWER_BLOBS)


@pytest.mark.parametrize(
    "answer",
    [
        message(ANSWER_HEAD, ANSWER_BLOBS[:-1]),
        message(ANSWER_HEAD, ANSWER_BLOBS + b"\x00"),
        message(ANSWER_HEAD[:-1], ANSWER_BLOBS),
        Message(ANSWER_HEAD + ANSWER_BLOBS),
        Message(ANSWER.body, ANSWER.fields * 2),
        Message(ANSWER.body, ((HEAD_LENGTH, b"%d" % (len(ANSWER.body) + 1)),)),
        *(
            message(ANSWER_HEAD.replace(old, new), ANSWER_BLOBS)
            for old, new in [
                (b'"id":"r",', b""),
                (b'"id":"r"', b'"id":"s"'),
                (b":12}", b":11}"),
                (b":12}", b":13}"),
                (b":12}", b':"12"}'),
                (b":12}", b':12,"k":1}'),
                (b":4}", b":2}"),
                (b'"parameters":{"binary_data_size":4}', b'"data":[1,2]'),
                (b'"FP16"', b'"FP32"'),
                (b'"FP16","shape":[2]', b'"FP16","shape":[4]'),
                (b'"FP16","shape":[2]', b'"FP16","shape":[1,2]'),
                (b'"Z"', b'"Y"'),
                (b'"Z"', b'"Z","data":[1]'),
                (b'"outputs"', b'"unknown":1,"outputs"'),
                (b'"outputs"', b'"parameters":{"p":1},"outputs"'),
            ]
        ),
    ],
)
def test_an_answer_that_does_not_add_up_does_not_split(answer: Message) -> None:
    """Rows are never handed out from an answer that does not say for certain which bytes are whose."""
    assert CODEC.split(answer, [whole(parsed(REQUEST))], "r") is None


@pytest.mark.parametrize(
    ("text", "blobs"),
    [
        (b'{"model_name":"m","parameters":{"sequence_id":0},"outputs":[%b]}', BLOB),
        (b'{"outputs":[%b],"unknown":{"binary_data_size":3}}', BLOB + b"abc"),
        (b'{"outputs":[{"name":"E","datatype":"FP32","shape":[0],"parameters":{"binary_data_size":0}}]}', b""),
    ],
)
def test_a_single_item_keeps_whatever_it_was_answered(text: bytes, blobs: bytes) -> None:
    """A model that answers in another shape than by rows is still remembered, for one item at a time."""
    output = b'{"name":"Y","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}'
    answer = message(text.replace(b"%b", output), blobs)
    lone = parsed(message(head(shape="[1,4]"), BLOB))
    ((result,),) = split(answer, [whole(lone)])
    assert CODEC.answer(lone, [result]) == answer
    assert CODEC.split(answer, [whole(parsed(REQUEST))], None) is None
    assert CODEC.answer(parsed(REQUEST), [result, result]) is None
    beyond = Message(answer.body, ((HEAD_LENGTH, b"%d" % (len(answer.body) + 1)),))
    assert CODEC.split(beyond, [whole(lone)], None) is None


def test_results_of_two_forms_make_no_answer() -> None:
    """What was remembered of another model, version or form is not mixed in, nor what was cut short."""
    call = parsed(REQUEST)
    ((first, second),) = split(ANSWER, [whole(call)], "r")
    assert CODEC.answer(call, [first, second]) is not None
    assert CODEC.answer(call, [first]) is None
    text, at = v2_binary.unsealed(second) or (b"", 0)
    bad_heads = [
        text.replace(old, new)
        for old, new in [
            (b'"m"', b'"n"'),
            (b'"FP16"', b'"BF16"'),
            (b'"Z"', b'"W"'),
            (b":2}", b":3}"),
            (b":5}", b":6}"),
            (b"[[8]]", b"[8]"),
            (b"[[8]]", b"[[300]]"),
            (b'"model_name"', b'"id":"x","model_name"'),
            (b"[1]", b"[2]"),
            (b"}]}", b"}]"),
        ]
    ]
    assert text not in bad_heads
    bad = [v2_binary.sealed(one, [second[at:]]) for one in bad_heads]
    bad += [second[:-1], second + b"x", second[1:], b"0" + second, text, b"", second[: at - 1]]
    for result in bad:
        assert CODEC.answer(call, [first, result]) is None, result
        assert CODEC.answer(call, [result, first]) is None, result


def test_a_result_that_is_none_makes_no_answer() -> None:
    """A single result is looked at, too."""
    lone = parsed(message(head(shape="[1,4]"), BLOB))
    for result in (b"", b"7", b"12{}", b"0{}", b"-2{}", b"[]", b"\x00"):
        assert CODEC.answer(lone, [result]) is None


# --- what counts as equal when rows are tried out


def result(datatype: str, blob: bytes, text: str = "[1.0,NaN]") -> bytes:
    """A result with one binary tensor and one in JSON."""
    outputs = (
        f'{{"name":"Y","datatype":"{datatype}","shape":[1,1],"parameters":{{"binary_data_size":{len(blob)}}}}},'
        f'{{"name":"J","datatype":"FP32","shape":[1,2],"data":{text}}}'
    )
    return v2_binary.sealed(f'{{"model_name":"m","outputs":[{outputs}]}}'.encode(), [blob])


@pytest.mark.parametrize(
    ("datatype", "one", "other", "alike"),
    [
        ("FP32", floats(1.0), floats(1.0005), True),
        ("FP32", floats(1.0), floats(1.01), False),
        ("FP32", floats(1.0, 2.0), floats(1.0, -2.0), False),
        ("FP32", floats(float("nan")), b"\x01\x00\xc0\xff", True),
        ("FP32", floats(float("nan")), floats(0.0), False),
        ("FP32", floats(float("inf")), floats(3e38), False),
        ("FP32", floats(0.0), floats(-1e-6), True),
        ("FP32", floats(1.0), floats(1.0, 1.0), False),
        ("FP64", struct.pack("<d", 1.0), struct.pack("<d", 1.0005), True),
        ("FP64", struct.pack("<d", 1.0), struct.pack("<d", 1.01), False),
        ("FP16", b"\x00\x3c", b"\x01\x3c", True),
        ("FP16", b"\x00\x3c", b"\x04\x3c", False),
        ("BF16", b"\x80\x3f", b"\x81\x3f", True),
        ("BF16", b"\x80\x3f", b"\x84\x3f", False),
        ("BF16", b"\x80\x3f", b"\x80\x40", False),
        ("INT32", b"\x00\x00\x80\x3f", b"\x01\x00\x80\x3f", False),
        ("BOOL", b"\x01", b"\x00", False),
        ("BYTES", strings(b"a"), strings(b"b"), False),
        ("BYTES", strings(b"a"), strings(b"a"), True),
    ],
)
def test_floats_may_differ_by_what_arithmetic_does_and_nothing_else(
    datatype: str, one: bytes, other: bytes, alike: bool
) -> None:
    """Rows are taken to be independent where a batch gives the same numbers but for rounding."""
    assert CODEC.alike(result(datatype, one), result(datatype, other)) is alike
    assert CODEC.alike(result(datatype, other), result(datatype, one)) is alike
    assert v2_binary.alike_bytes(one, other, datatype) is alike


def test_results_in_other_forms_are_not_alike() -> None:
    """What is in JSON is compared, too, and so is the form."""
    one = result("FP32", floats(1.0))
    assert CODEC.alike(one, result("FP32", floats(1.0), "[1.0001,NaN]"))
    assert not CODEC.alike(one, result("FP32", floats(1.0), "[1.1,NaN]"))
    assert not CODEC.alike(one, result("INT32", floats(1.0)))
    assert not CODEC.alike(one, (v2_binary.unsealed(one) or (b"", 0))[0])
    assert not CODEC.alike(one, one + b"x")
    assert not CODEC.alike(one, b"garbage")
    sealed = [v2_binary.sealed(b'{"parameters":{"p":1},"outputs":[]}', [floats(value)]) for value in (1.0, 1.0005)]
    assert not CODEC.alike(*sealed)  # a head that says more than tensors: the bytes must be equal
