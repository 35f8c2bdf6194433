"""Promises of the Open Inference V2 codec: each caller gets what the backend would have answered it alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import Call, Endpoint, Message, Part
from proxy.protocols.registry import CODECS
from proxy.protocols.v2 import V2, V2Call
from proxy.terms import Model, Reason, Rows
from tests.protocols.json_texts import damaged, examples
from tests.protocols.slow_json import Lexed, Malformed, Pairs, slow_read
from tests.protocols.v2_bodies import KINDS, ROWS_MODEL, WHOLE_MODEL, Asked, asked, backend, body_text

CODEC = V2()
HERE = Endpoint("m", None)
X = b'{"name":"X","shape":[2,2],"datatype":"FP32","data":[1,2.0,-0.0,4e0]}'


def one_input(**members: str) -> bytes:
    """A request with one input of two rows, some of its members replaced; "" leaves one out."""
    tensor = {"name": '"X"', "shape": "[2,2]", "datatype": '"FP32"', "data": "[1,2,3,4]"} | members
    return ('{"inputs":[{' + ",".join(f'"{key}":{value}' for key, value in tensor.items() if value) + "}]}").encode()


def with_top(member: bytes) -> bytes:
    return b"{" + member + b',"inputs":[' + X + b"]}"


def parse(body: bytes, model: Model = ROWS_MODEL) -> Call | Reason:
    return CODEC.parse(HERE, Message(body), model)


def parsed(body: bytes, model: Model = ROWS_MODEL) -> V2Call:
    call = parse(body, model)
    assert isinstance(call, V2Call), (call, body)
    return call


def whole(call: Call) -> Part:
    return Part(call, tuple(range(len(call.items))))


def joined_body(parts: Sequence[Part], waited: Sequence[float] | None = None, request_id: str = "r") -> bytes:
    """The body of a joined request, which has no other fields and no other path than every V2 request."""
    joined = CODEC.join(parts, request_id, waited or [0.0] * len(parts))
    assert joined.fields == () and joined.path is None
    return joined.body


def parts_of(sizes: Sequence[int]) -> list[Part]:
    """Parts of calls with so many rows each."""
    return [whole(parsed(one_input(shape=f"[{size},1]", data=str([1] * size)))) for size in sizes]


def tried(body: bytes, sizes: Sequence[int], request_id: str | None = None) -> list[list[bytes]] | None:
    return CODEC.split(Message(body), parts_of(sizes), request_id)


def split(body: bytes, sizes: Sequence[int], request_id: str | None = None) -> list[list[bytes]]:
    results = tried(body, sizes, request_id)
    assert results is not None, body
    return results


def answer(call: Call, results: Sequence[bytes]) -> bytes | None:
    message = CODEC.answer(call, results)
    assert message is None or message.fields == ()
    return message and message.body


def unordered(value: Lexed) -> object:
    """A value in which the order of keys does not count, but lexemes do."""
    if isinstance(value, Pairs):
        return {key: unordered(inner) for key, inner in value}
    if isinstance(value, list):
        return [unordered(inner) for inner in value if not isinstance(inner, tuple)]
    return value


def meaning(body: bytes) -> object:
    value, repeated = slow_read(body)
    assert not repeated
    return unordered(value)


def without(meant: object, *keys: str) -> object:
    assert isinstance(meant, dict)
    return {key: value for key, value in meant.items() if key not in keys}


# --- whose request it is


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v2/models/rows/infer", Endpoint("rows", None)),
        ("/v2/models/rows/versions/3/infer", Endpoint("rows", "3")),
        ("/v2/models/a.b-c_d~1/infer", Endpoint("a.b-c_d~1", None)),
        ("/v2/models/llama:7b@x/infer", Endpoint("llama:7b@x", None)),
        ("/v2/models/a%20b/infer", Endpoint("a b", None)),
        ("/v2/models/%C3%BC/versions/v%2F1/infer", Endpoint("ü", "v/1")),
    ],
)
def test_a_model_is_recognised_by_its_path(path: str, endpoint: Endpoint) -> None:
    """Model and version come out of the path, decoded."""
    assert CODECS[0].recognise("POST", path) == endpoint


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/rows/infer"),
        ("post", "/v2/models/rows/infer"),
        ("POST", "/v2/models/rows/infer/"),
        ("POST", "/v2/models//infer"),
        ("POST", "/v2/models/rows/versions//infer"),
        ("POST", "/v2/models/rows/versions/1/x/infer"),
        ("POST", "/v2/models/a/b/infer"),
        ("POST", "/v2/models/./infer"),
        ("POST", "/v2/models/../infer"),
        ("POST", "/v2/models/%2e%2e/infer"),
        ("POST", "/v2/models/%72ows/infer"),  # another spelling of rows: Triton knows no such model
        ("POST", "/v2/models/a%3Ab/infer"),
        ("POST", "/v2/models/a%2fb/infer"),
        ("POST", "/v2/models/ü/infer"),
        ("POST", "/v2/models/%FC/infer"),
        ("POST", "/v2/models/a%00b/infer"),
        ("POST", "/v2/models/a%/infer"),
        ("POST", "/v2/models/rows/infer?x=1"),
        ("POST", "/x/v2/models/rows/infer"),
        ("POST", "/v2/models/rows/generate"),
        ("POST", "/v2/models/rows/infer\n"),
        ("POST", "/v2/models/" + "x" * 2000 + "/infer"),
    ],
)
def test_an_odd_spelling_is_nobodys(method: str, path: str) -> None:
    """Two spellings never count as one model, so none is answered for the other."""
    assert CODEC.recognise(method, path) is None


# --- what is read, and what is left to the backend


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", Reason.UNPARSED),
        (b"[]", Reason.UNPARSED),
        (b"{}", Reason.UNPARSED),
        (b'{"inputs":[]}', Reason.UNPARSED),
        (b'{"inputs":{}}', Reason.UNPARSED),
        (b'{"inputs":[1]}', Reason.UNPARSED),
        (b"\xef\xbb\xbf" + one_input(), Reason.UNPARSED),
        (one_input() + b"\x00", Reason.UNPARSED),
        (one_input()[:-1], Reason.UNPARSED),
        (one_input() + b"{}", Reason.UNPARSED),
        (one_input(name=""), Reason.UNPARSED),
        (one_input(name="1"), Reason.UNPARSED),
        (one_input(datatype='"FP16"'), Reason.UNPARSED),
        (one_input(datatype='"fp32"'), Reason.UNPARSED),
        (one_input(datatype="null"), Reason.UNPARSED),
        (one_input(data=""), Reason.UNPARSED),
        (one_input(data="1"), Reason.UNPARSED),
        (one_input(data="{}"), Reason.UNPARSED),
        (one_input(data="[1,2,3]"), Reason.UNPARSED),
        (one_input(data="[[1,2,3],[4]]"), Reason.UNPARSED),
        (one_input(data="[1,2,3,true]"), Reason.UNPARSED),
        (one_input(data='[1,2,3,{"a":[1]}]'), Reason.UNPARSED),
        (one_input(datatype='"INT8"', data="[1,2,3,128]"), Reason.UNPARSED),
        (one_input(datatype='"INT64"', data="[1,2,3,4.0]"), Reason.UNPARSED),
        (one_input(datatype='"BYTES"', data='["a","b","c","\\ud800"]'), Reason.UNPARSED),
        (one_input(datatype='"BYTES"', data='["a","b","c","@"]').replace(b"@", b"\xff"), Reason.UNPARSED),
        (one_input(shape="[]", data="[1]"), Reason.UNPARSED),
        (one_input(shape="[0,2]", data="[]"), Reason.UNPARSED),
        (one_input(shape="[2,0]", data="[]"), Reason.UNPARSED),
        (one_input(shape="[2,-2]"), Reason.UNPARSED),
        (one_input(shape="[2.0,2]"), Reason.UNPARSED),
        (one_input(shape="4"), Reason.UNPARSED),
        (one_input(shape="[[2,2]]"), Reason.UNPARSED),
        (one_input(shape="[2," + "1," * 16 + "2]"), Reason.UNPARSED),
        (one_input(shape="[33,1]", data=str([1] * 33)), Reason.OVER_LIMIT),
        (b'{"inputs":[' + X + b"," + X + b"]}", Reason.UNPARSED),
        (b'{"inputs":[' + X + b"," + X.replace(b'"X"', b'"Z"').replace(b"[2,2]", b"[4,1]") + b"]}", Reason.UNPARSED),
        (with_top(b'"id":7'), Reason.UNPARSED),
        (with_top(b'"id":null'), Reason.UNPARSED),
        (with_top(b'"id":[1]'), Reason.UNPARSED),
        (with_top(b'"id":\x00'), Reason.UNPARSED),
        (with_top(b'"parameters":{"id":"x"}'), Reason.UNPARSED),
        (with_top(b'"unknown":{"data":[1]}'), Reason.UNPARSED),
        (with_top(b'"parameters":null'), Reason.UNPARSED),
        (with_top(b'"parameters":{"timeout":-1}'), Reason.UNPARSED),
        (with_top(b'"parameters":{"timeout":"5"}'), Reason.UNPARSED),
        (with_top(b'"parameters":{"priority":1.5}'), Reason.UNPARSED),
        (with_top(b'"parameters":{"binary_data_output":1}'), Reason.UNPARSED),
        (with_top(b'"outputs":[{"name":"Y","parameters":{"binary_data":"true"}}]'), Reason.UNPARSED),
        (one_input(parameters='{"binary_data_size":16}', data=""), Reason.UNPARSED),
        (with_top(b'"parameters":{"sequence_id":1}'), Reason.STATEFUL),
        (with_top(b'"parameters":{"sequence_id":"a","sequence_start":true}'), Reason.STATEFUL),
        (one_input(parameters='{"shared_memory_region":"r"}'), Reason.STATEFUL),
        (with_top(b'"outputs":[{"name":"Y","parameters":{"shared_memory_region":"r"}}]'), Reason.STATEFUL),
        (with_top(b'"id":"a","id":"b"'), Reason.DUPLICATE_KEY),
        (with_top(b'"inputs":[]'), Reason.DUPLICATE_KEY),
        (with_top(b'"a":1,"\\u0061":1'), Reason.DUPLICATE_KEY),
        (with_top(b'"parameters":{"a":1,"a":1}'), Reason.DUPLICATE_KEY),
        (b'{"inputs":[' + X.replace(b'"data"', b'"d\\u0061ta":[9,9,9,9],"data"') + b"]}", Reason.DUPLICATE_KEY),
        (b'{"inputs":[' + X.replace(b'"data"', b'"shape":[4,1],"data"') + b"]}", Reason.DUPLICATE_KEY),
    ],
)
def test_what_would_have_to_be_guessed_is_left_to_the_backend(body: bytes, reason: Reason) -> None:
    """A body that readers may understand differently goes through untouched, with the reason said."""
    assert parse(body) is reason
    if reason is not Reason.OVER_LIMIT and b"[4,1]" not in body:
        assert parse(body, WHOLE_MODEL) is reason


@examples(100)
@given(st.data())
def test_no_damage_to_a_body_goes_unseen(data: st.DataObject) -> None:
    """A body is understood only if the slow reader understands it too, and then as the same thing."""
    call = data.draw(KINDS.flatmap(asked))
    body = data.draw(damaged(st.just(call.body)))
    for model in (ROWS_MODEL, WHOLE_MODEL):
        found = parse(body, model)
        if isinstance(found, Reason):
            continue
        try:
            value, repeated = slow_read(body)
        except Malformed:
            pytest.fail(f"understood {body!r}")
        assert not repeated
        assert without(meaning(joined_body([whole(found)])), "id", "parameters") == without(
            unordered(value), "id", "parameters"
        )


@examples(60)
@given(st.binary(max_size=60))
def test_no_bytes_raise(body: bytes) -> None:
    """Whatever comes in, the codec answers."""
    assert isinstance(parse(body), (Reason, Call))
    tried(body, [1])
    tried(body, [1, 2], "r")
    answer(parsed(one_input()), [body, body])


# --- keys


@examples(60)
@given(KINDS.flatmap(asked))
def test_keys_show_neither_space_order_id_nor_deadline(call: Asked) -> None:
    """Two callers that ask the same thing in another style share what is known."""
    plain = body_text(replace(call, id=None, deadlines=()))
    for model in (ROWS_MODEL, WHOLE_MODEL):
        styled, bare = parsed(call.body, model), parsed(plain, model)
        assert (styled.shared, styled.items, styled.joins) == (bare.shared, bare.items, bare.joins)


@examples(100)
@given(KINDS.flatmap(lambda kind: st.tuples(asked(kind), st.one_of(asked(kind), KINDS.flatmap(asked)))))
def test_keys_are_equal_only_for_equal_questions(calls: tuple[Asked, Asked]) -> None:
    """No two rows have one key unless every lexeme and every other field are the same."""
    one, other = calls
    first, second = parsed(one.body), parsed(other.body)
    same_kind = _flat(one) == _flat(other)
    assert (first.shared == second.shared) == same_kind
    for (row, item), (other_row, other_item) in itertools.product(
        zip(one.rows, first.items, strict=True), zip(other.rows, second.items, strict=True)
    ):
        if same_kind:
            assert (item == other_item) == (row == other_row)
    entire, entire_other = parsed(one.body, WHOLE_MODEL), parsed(other.body, WHOLE_MODEL)
    same_call = same_kind and one.rows == other.rows
    assert ((entire.shared, entire.items) == (entire_other.shared, entire_other.items)) == same_call
    assert first.shared not in (entire.shared, entire_other.shared)


def _flat(call: Asked) -> object:
    """What rows of a call share: one dimension has one form, and the order of members says nothing."""
    kind = call.kind
    tensors = tuple(tensor._replace(nested=tensor.nested and bool(tensor.inner)) for tensor in kind.tensors)
    return tensors, frozenset(kind.extra), frozenset(kind.parameters)


@pytest.mark.parametrize(
    "other",
    [
        one_input(data="[1.0,2,3,4]"),
        one_input(data="[[1,2],[3,4]]"),
        one_input(datatype='"FP64"'),
        one_input(datatype='"INT32"'),
        one_input(shape="[2,2,1]"),
        one_input(shape="[2,1,2]"),
        one_input(name='"Y"'),
        one_input(name='"\\u0058"'),
        one_input(parameters="{}"),
        one_input(unknown="1"),
        with_top(b'"unknown":1').replace(b"2.0,-0.0,4e0", b"2,3,4"),
        with_top(b'"unknown":"1"').replace(b"2.0,-0.0,4e0", b"2,3,4"),
        with_top(b'"outputs":[]').replace(b"2.0,-0.0,4e0", b"2,3,4"),
        with_top(b'"parameters":{"p":1}').replace(b"2.0,-0.0,4e0", b"2,3,4"),
        with_top(b'"parameters":{"p":1.0}').replace(b"2.0,-0.0,4e0", b"2,3,4"),
        with_top(b'"parameters":{"p":{"timeout":1}}').replace(b"2.0,-0.0,4e0", b"2,3,4"),
    ],
)
def test_whatever_may_change_an_answer_changes_the_key(other: bytes) -> None:
    """Every field counts, known or not, and so does how a number is spelled."""
    one, two = parsed(one_input()), parsed(other)
    assert (one.shared, one.items[0]) != (two.shared, two.items[0])


def test_a_call_of_a_model_without_independent_rows_is_one_item() -> None:
    """What may not be split is kept whole, and never joined."""
    call = parsed(one_input(), WHOLE_MODEL)
    assert (len(call.items), call.joins) == (1, False)
    for model in (replace(ROWS_MODEL, rows=Rows.WHOLE), replace(ROWS_MODEL, rows=Rows.PROVE)):
        assert parse(one_input(), model) == call
    uneven = b'{"inputs":[' + X + b"," + X.replace(b'"X"', b'"Z"').replace(b"[2,2]", b"[4,1]") + b"]}"
    assert len(parsed(uneven, WHOLE_MODEL).items) == 1


# --- joining and taking apart


@examples(100)
@given(st.data(), st.booleans())
def test_each_caller_gets_what_the_backend_would_have_answered_it_alone(data: st.DataObject, nested: bool) -> None:
    """Whatever rides together, every row's answer is the one of that row, and every call gets its own."""
    kind = data.draw(KINDS)
    asked_for = data.draw(st.lists(asked(kind), min_size=1, max_size=4))
    calls = [parsed(call.body) for call in asked_for]
    parts = [
        Part(call, tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(call.items))), min_size=1)))))
        for call in calls
    ]
    sizes = [len(part.indexes) for part in parts]
    joined = joined_body(parts, request_id="forebay-1")
    together = split(backend(joined, nested=nested), sizes, "forebay-1")
    assert [len(results) for results in together] == sizes
    for call, part, results, original in zip(calls, parts, together, asked_for, strict=True):
        alone_body = backend(original.body, nested=nested)
        (alone,) = split(alone_body, [len(call.items)])
        assert results == [alone[index] for index in part.indexes]
        for index, result in zip(part.indexes, results, strict=True):
            row = replace(original, rows=(original.rows[index],), id=None)
            assert meaning(result) == meaning(backend(body_text(row), nested=nested))
        got = answer(call, alone)
        assert got is not None
        assert meaning(got) == meaning(alone_body)


@examples(60)
@given(KINDS.flatmap(asked), st.booleans())
def test_a_whole_call_joined_alone_asks_what_its_caller_asked(call: Asked, by_rows: bool) -> None:
    """Nothing is lost, added or respelled on the way through the codec but the id."""
    found = parsed(call.body, ROWS_MODEL if by_rows else WHOLE_MODEL)
    joined = meaning(joined_body([whole(found)], request_id="forebay-1"))
    assert isinstance(joined, dict)
    assert joined["id"] == '"forebay-1"'
    assert without(joined, "id") == without(meaning(call.body), "id")


def test_a_joined_body_holds_the_rows_of_all_in_order() -> None:
    """One body, one id, and every part's rows one after the other."""
    calls = [parsed(one_input(data=f"[{n},{n},{n + 1},{n + 1}]")) for n in (10, 20)]
    joined = joined_body([Part(calls[0], (1,)), Part(calls[1], (0, 1))])
    assert json.loads(joined) == {
        "id": "r",
        "inputs": [{"name": "X", "shape": [3, 2], "datatype": "FP32", "data": [11, 11, 20, 20, 21, 21]}],
    }


@pytest.mark.parametrize(
    ("own", "waited", "joined"),
    [
        ([{}, {}], [0.0, 0.0], {}),
        ([{"timeout": 9000}], [0.002], {"timeout": 7000}),
        ([{"timeout": 9000}, {"timeout": 5000}], [0.008, 0.001], {"timeout": 1000}),
        ([{"timeout": 9000}, {"timeout": 5000}], [5.0, 0.0], {"timeout": 1}),
        ([{"timeout": 9000}, {}], [0.0, 0.0], {}),  # whoever set none is not timed out for another
        ([{"timeout": 9000}, {"timeout": 0}], [0.0, 0.0], {}),  # 0 is Triton's word for none
        ([{"priority": 3}, {"priority": 1}], [0.0, 0.0], {"priority": 1}),
        ([{"priority": 3}, {}], [0.0, 0.0], {}),
        ([{"priority": 3, "timeout": 5, "p": "x"}, {"p": "x", "timeout": 7}], [0.0, 0.0], {"p": "x", "timeout": 5}),
    ],
)
def test_a_joined_body_hurries_only_if_all_its_members_do(
    own: list[dict[str, object]], waited: list[float], joined: dict[str, object]
) -> None:
    """The least time left counts, less what was spent waiting; nobody gets a deadline that it did not set."""
    calls = [parsed(with_top(b'"parameters":' + json.dumps(parameters).encode())) for parameters in own]
    body = json.loads(joined_body([whole(call) for call in calls], waited))
    assert body.get("parameters", {}) == joined


ANSWER = (
    b'{"id":"r","model_name":"m","model_version":"1",'
    b'"outputs":[{"name":"Y","datatype":"FP32","shape":[2,2],"data":[1.0,NaN,3,-0.0]}]}'
)


def test_a_rows_result_reads_as_if_it_had_been_asked_alone() -> None:
    """Lexemes and the backend's order of keys stay, and the id of the batch does not."""
    assert split(ANSWER, [1, 1], "r") == [
        [
            b'{"model_name":"m","model_version":"1","outputs":[{"name":"Y","datatype":"FP32","shape":[1,2],"data":[1.0,NaN]}]}'
        ],
        [
            b'{"model_name":"m","model_version":"1","outputs":[{"name":"Y","datatype":"FP32","shape":[1,2],"data":[3,-0.0]}]}'
        ],
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"id":"r",', b""),
        (b'"id":"r"', b'"id":"s"'),
        (b'"id":"r"', b'"id":7'),
        (b"[2,2]", b"[1,4]"),
        (b"[2,2]", b"[4,1]"),
        (b"[2,2]", b"[2,2,2]"),
        (b"[2,2]", b"[]"),
        (b"[2,2]", b"[2,0]"),
        (b"-0.0]", b"-0.0,1]"),
        (b"-0.0]", b"true]"),
        (b"-0.0]", b'"1"]'),
        (b",-0.0]", b"]"),
        (b'"FP32"', b'"FP16"'),
        (b'"name":"Y",', b""),
        (b'"name":"Y"', b'"name":"Y","parameters":{"p":1}'),
        (b'"name":"Y"', b'"name":"Y","unknown":1'),
        (b'"outputs":[', b'"parameters":{"p":1},"outputs":['),
        (b'"outputs":[', b'"unknown":1,"outputs":['),
        (b'"outputs":[', b'"outputs":[{"name":"Z","datatype":"INT8","shape":[1,1],"data":[1]},'),
        (b'"outputs":[', b'"outputs":[{"name":"Y","datatype":"INT8","shape":[2,1],"data":[1,2]},'),
        (
            b'"outputs":[',
            b'"outputs":[{"name":"Z","datatype":"INT8","shape":[2,1],"parameters":{"binary_data_size":2}},',
        ),
        (b'{"name":"Y","datatype":"FP32","shape":[2,2],"data":[1.0,NaN,3,-0.0]}', b""),
        (b'"id":"r"', b'"id":"r","model_name":"x"'),
        (b'"shape":[2,2]', b'"shape":[2,2],"sh\\u0061pe":[2,2]'),
        (b"}]}", b"}]}x"),
        (b"}]}", b"}]"),
    ],
)
def test_an_answer_that_may_differ_by_row_in_more_than_data_does_not_split(old: bytes, new: bytes) -> None:
    """Rows are never handed out from an answer that does not say for certain which row is whose."""
    assert old in ANSWER
    assert tried(ANSWER.replace(old, new), [1, 1], "r") is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"model_name":"m","outputs":[]}',
        b'{"model_name":"m","outputs":[{"name":"Y","datatype":"FP32","shape":[],"data":[1]}]}',
        b'{"model_name":"m","outputs":[{"name":"Y","datatype":"FP32","shape":[3,1],"data":[1,2,3]}]}',
        b'{"model_name":"m","parameters":{"sequence_id":0},"outputs":[{"name":"Y","datatype":"FP32","shape":[1],"data":[1]}]}',
        b'{"model_name":"m","unknown":{"data":[[1],[2,3]],"id":"x"},"outputs":[]}',
    ],
)
def test_a_single_item_keeps_whatever_it_was_answered(body: bytes) -> None:
    """A model that answers in another shape than by rows is still remembered, for one item at a time."""
    (results,) = split(body, [1])
    assert results == [body]
    with_id = body.replace(b"{", b'{"id":"theirs",', 1).replace(b",}", b"}")
    assert split(with_id, [1]) == [[body]]
    assert answer(parsed(one_input(shape="[1,4]")), results) == body
    assert answer(parsed(one_input()), results * 2) is None


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"error":"out of memory"}',
        b'{"error":"out of memory","outputs":[]}',
        b'{"outputs":{}}',
        b'{"outputs":[{"name":"Y","datatype":"UINT64","shape":[2,1],"data":[1- 2]}]}',
        b'{"outputs":[{"name":"Y","datatype":"FP32","shape":[2,1],"data":[nan,1]}]}',
    ],
)
def test_what_is_no_answer_is_kept_for_nobody(body: bytes) -> None:
    """Some gateways say their errors with status 200; and what cannot be read is no answer at all."""
    assert tried(body, [1]) is None


def test_text_that_is_not_utf_8_reaches_the_caller_as_it_came() -> None:
    """Triton writes BYTES into JSON as they are; a row of them is still that row."""
    body = b'{"outputs":[{"name":"Y","datatype":"BYTES","shape":[2,1],"data":["\xff\xfe","\xed\xa0\x80]"]}]}'
    (results,) = split(body, [2])
    assert [result.count(b"\xff\xfe") for result in results] == [1, 0]
    assert answer(parsed(one_input()), results) == body


# --- answers


@pytest.mark.parametrize(
    ("member", "id_"),
    [
        (b'"id":"7",', b'"7"'),
        (b'"id":"\\u0061\\n",', b'"\\u0061\\n"'),
        (b'"id":"",', None),
        (b"", None),
    ],
)
def test_an_answer_carries_its_callers_own_id(member: bytes, id_: bytes | None) -> None:
    """Each caller sees the id that it sent, as it spelled it, first as Triton does; without one it gets none."""
    call = parsed(b"{" + member + b'"inputs":[' + X + b"]}")
    (results,) = split(ANSWER, [2])
    expected = ANSWER.replace(b'"id":"r",', b'"id":' + id_ + b"," if id_ else b"")
    assert answer(call, results) == expected
    single = parsed(b"{" + member + b'"inputs":[' + X.replace(b"[2,2]", b"[1,4]") + b"]}")
    assert answer(single, results[:1]) == (b'{"id":' + id_ + b"," + results[0][1:] if id_ else results[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"m"', b'"other"'),
        (b'"model_version":"1"', b'"model_version":"2"'),
        (b'"FP32"', b'"FP64"'),
        (b'"Y"', b'"Z"'),
        (b"[1,2]", b"[1,2,1]"),
        (b"[1,2]", b"[2,1]"),
        (b'"name":"Y"', b'"name":"Y","p":1'),
        (b'"model_name"', b'"id":"x","model_name"'),
        (b"[3,-0.0]", b"[[3,-0.0]]"),
        (b"{", b"["),
        (b"}]}", b"}]"),
        (b"[3,-0.0]", b"\x00"),
    ],
)
def test_results_of_two_forms_make_no_answer(old: bytes, new: bytes) -> None:
    """What was remembered from another version or form of the model is not mixed in."""
    call = parsed(one_input())
    ((first, second),) = split(ANSWER, [2])
    assert old in second
    assert answer(call, [first, second.replace(old, new, 1)]) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"model_name"', b'"id":"x","model_name"'),
        (b'"model_name"', b'"id":"\xc3\xa9","model_name"'),
        (b'"model_name"', b'"parameters":{"p":1},"model_name"'),
        (b"[1,2]", b"[]"),
        (b'"data":[', b'"data":\x00,"more":['),
    ],
)
def test_what_is_no_rows_result_is_not_merged(old: bytes, new: bytes) -> None:
    """Rows are put together only from results that a joined answer could have given."""
    call = parsed(one_input())
    ((first, second),) = split(ANSWER, [2])
    assert old in first
    assert answer(call, [result.replace(old, new, 1) for result in (first, second)]) is None


def test_as_many_results_as_items() -> None:
    """A missing row is never papered over."""
    call = parsed(one_input())
    ((first, second),) = split(ANSWER, [2])
    assert answer(call, [first, second]) is not None
    assert answer(call, [first]) is None
    assert answer(call, [first, second, first]) is None


def test_an_error_has_tritons_shape() -> None:
    """Clients of the protocol understand Forebay's own errors."""
    assert json.loads(CODEC.error(503, 'no "slot"')) == {"error": 'no "slot"'}


def test_a_body_of_a_megabyte_and_many_shapes_are_read_without_growing_memory() -> None:
    """What is remembered is bounded: frames, never data."""
    from proxy.protocols import v2_request  # noqa: PLC0415 - looks inside

    for number in range(1500):
        parsed(with_top(b'"unknown":%d' % number))
    assert v2_request._remembered.cache_info().currsize == v2_request._REMEMBERED
    before = v2_request._remembered.cache_info().misses
    parsed(with_top(b'"unknown":"' + b"x" * 100_000 + b'"'))
    parsed(one_input(shape="[1,400000]", data=str([1.5] * 400_000)))
    assert v2_request._remembered.cache_info().misses <= before + 1
    assert repr(CODEC) == "<codec v2>"
