"""Promises of the V1 codec: each caller gets what the backend would have answered it alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import ANY_NUMBER, Call, Endpoint, Found, Message, Part
from proxy.protocols.json_values import document
from proxy.protocols.spans import Refusal
from proxy.protocols.v1 import V1, V1Call
from proxy.terms import Exchange, Identity, Model, Reason, Rows
from tests.protocols.json_texts import SPACES, TEXTS, damaged, examples
from tests.protocols.slow_json import Lexed, Pairs, slow_read

CODEC = V1()
HERE = Endpoint("m", None, "predict")
NOBODY = Identity((), 0.0, "", known=False)
BY_ITEMS = Model("m", Rows.ITEMS, ANY_NUMBER, 1, NOBODY)
UNPROVED = replace(BY_ITEMS, rows=Rows.PROVE)
WHOLE = replace(BY_ITEMS, rows=Rows.WHOLE)
OPERATIONS = {
    "predict": ("instances", "predictions"),
    "classify": ("examples", "results"),
    "regress": ("examples", "results"),
}


def parsed(body: bytes, model: Model = BY_ITEMS, endpoint: Endpoint = HERE) -> V1Call:
    call = CODEC.parse(endpoint, Message(body), model)
    assert isinstance(call, V1Call), (call, body)
    return call


def instances(*texts: str, more: str = "") -> bytes:
    return ('{"instances":[' + ",".join(texts) + "]" + more + "}").encode()


def part(call: Call, *indexes: int) -> Part:
    return Part(call, indexes or tuple(range(len(call.items))))


def meaning(body: bytes) -> Lexed:
    value, repeated = slow_read(body)
    assert not repeated
    return value


# --- whose request it is


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/models/m:predict", Endpoint("m", None, "predict")),
        ("/v1/models/m/versions/3:predict", Endpoint("m", "versions/3", "predict")),
        ("/v1/models/m/labels/canary:predict", Endpoint("m/labels/canary", "labels/canary", "predict")),
        ("/v1/models/m:classify", Endpoint("m", None, "classify")),
        ("/v1/models/m/versions/3:regress", Endpoint("m", "versions/3", "regress")),
        ("/v1/models/a.b-c_d~1:predict", Endpoint("a.b-c_d~1", None, "predict")),
        ("/v1/models/llama:7b:predict", Endpoint("llama:7b", None, "predict")),
        ("/v1/models/predict:predict", Endpoint("predict", None, "predict")),
        ("/v1/models/%C3%BC%20x/labels/v%201:classify", Endpoint("ü x/labels/v 1", "labels/v 1", "classify")),
    ],
)
def test_a_model_is_recognised_by_its_path(path: str, endpoint: Endpoint) -> None:
    """Model, version or label and what is asked of it come out of the path, decoded."""
    assert CODEC.recognise("POST", path) == endpoint


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models/m:predict"),
        ("post", "/v1/models/m:predict"),
        ("POST", "/v1/models/m:predict/"),
        ("POST", "/v1/models/m"),
        ("POST", "/v1/models/:predict"),
        ("POST", "/v1/models/m:explain"),
        ("POST", "/v1/models/m:Predict"),
        ("POST", "/V1/models/m:predict"),
        ("POST", "/v1/models/m/versions/:predict"),
        ("POST", "/v1/models/m/versions/1/labels/x:predict"),
        ("POST", "/v1/models/m/revisions/1:predict"),
        ("POST", "/v1/models/a/b:predict"),
        ("POST", "/v1/models/..:predict"),
        ("POST", "/v1/models/%2e%2e:predict"),
        ("POST", "/v1/models/%6d:predict"),  # another spelling of m
        ("POST", "/v1/models/a%3Ab:predict"),
        ("POST", "/v1/models/a%2fb:predict"),
        ("POST", "/v1/models/a%2Fb:predict"),
        ("POST", "/v1/models/m%2Flabels%2Fx:predict"),  # a label that is none
        ("POST", "/v1/models/ü:predict"),
        ("POST", "/v1/models/%FC:predict"),
        ("POST", "/v1/models/a%00b:predict"),
        ("POST", "/v1/models/m/labels/%FC:predict"),
        ("POST", "/v1/models/m:predict?x=1"),
        ("POST", "/x/v1/models/m:predict"),
        ("POST", "/v1/models/m:predict\n"),
        ("POST", "/v1/models/" + "x" * 2000 + ":predict"),
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
        (b"[1]", Reason.UNPARSED),
        (b"{}", Reason.UNPARSED),
        (b'{"signature_name":"x"}', Reason.UNPARSED),
        (b'{"instances":[]}', Reason.UNPARSED),
        (b'{"instances":{}}', Reason.UNPARSED),
        (b'{"instances":{"a":[1]}}', Reason.UNPARSED),
        (b'{"instances":1}', Reason.UNPARSED),
        (b'{"instances":"[1]"}', Reason.UNPARSED),
        (b'{"instances":null}', Reason.UNPARSED),
        (b'{"instances":[1],"inputs":[1]}', Reason.UNPARSED),
        (b'{"instances":[],"inputs":[1]}', Reason.UNPARSED),
        (b'{"instances":[1],"inputs":null}', Reason.UNPARSED),
        (b'{"Instances":[1]}', Reason.UNPARSED),
        (b'{"instances":[1]', Reason.UNPARSED),
        (b'{"instances":[1]}{}', Reason.UNPARSED),
        (b'{"instances":[1]}\x00', Reason.UNPARSED),
        (b'{"instances":[\x00]}', Reason.UNPARSED),
        (b'{"instances":[01]}', Reason.UNPARSED),
        (b'{"instances":["\xff"]}', Reason.UNPARSED),
        (b'{"instances":["\\ud800"]}', Reason.UNPARSED),
        (b"\xef\xbb\xbf" + instances("1"), Reason.UNPARSED),
        (b'{"instances":' + b"[" * 5000 + b"]" * 5000 + b"}", Reason.UNPARSED),
        (b'{"instances":[1],"instances":[1]}', Reason.DUPLICATE_KEY),
        (b'{"instances":[1],"inst\\u0061nces":[2]}', Reason.DUPLICATE_KEY),
        (b'{"instances":[{"a":1,"a":2}]}', Reason.DUPLICATE_KEY),
        (b'{"instances":[1],"x":{"a":1,"a":1}}', Reason.DUPLICATE_KEY),
        (b'{"instances":[1],"stream":true}', Reason.STREAMED),
    ],
)
def test_what_could_be_read_in_two_ways_is_the_backends(body: bytes, reason: Reason) -> None:
    """Forebay answers nothing that it would have to guess at."""
    for model in (BY_ITEMS, UNPROVED, WHOLE):
        assert CODEC.parse(HERE, Message(body), model) is reason


@pytest.mark.parametrize("operation", ["classify", "regress"])
def test_examples_are_what_the_other_operations_ask_for(operation: str) -> None:
    """Neither instances nor columns are read there; a context belongs to every example."""
    endpoint = Endpoint("m", None, operation)
    for body in (instances("1"), b'{"inputs":[1]}', b'{"examples":[]}', b'{"context":{}}'):
        assert CODEC.parse(endpoint, Message(body), BY_ITEMS) is Reason.UNPARSED
    one = parsed(b'{"context":{"c":1},"examples":[{"a":1},{"a":2}]}', endpoint=endpoint)
    other = parsed(b'{"context":{"c":2},"examples":[{"a":1},{"a":2}]}', endpoint=endpoint)
    assert one.items == other.items == (b'{"a":1}', b'{"a":2}')
    assert one.shared != other.shared
    assert json.loads(CODEC.join([part(one, 1), part(one, 0)], "r", [0, 0]).body) == {
        "context": {"c": 1},
        "examples": [{"a": 2}, {"a": 1}],
    }


def test_more_instances_than_the_model_takes() -> None:
    """The backend's to refuse, where an operator named a limit."""
    few = replace(BY_ITEMS, max_batch_size=2)
    assert isinstance(CODEC.parse(HERE, Message(instances("1", "2")), few), Call)
    assert CODEC.parse(HERE, Message(instances("1", "2", "3")), few) is Reason.OVER_LIMIT


def test_instances_are_items() -> None:
    """Each with its lexemes, without white space."""
    call = parsed(b'{ "instances" : [ [ 1.50, -0.0 ], [ 1e5 , NaN ] ] }')
    assert call.joins
    assert call.items == (b"[1.50,-0.0]", b"[1e5,NaN]")
    call = parsed(b'{ "instances" : [ { "b": [ 9007199254740993, -1 ],\n"a" : "x y" } ] }')
    assert call.items == (b'{"b":[9007199254740993,-1],"a":"x y"}',)


@pytest.mark.parametrize("model", [UNPROVED, WHOLE])
def test_without_proof_a_call_is_one_item(model: Model) -> None:
    """It is never joined, and its key is none that an instance could have."""
    call = parsed(instances("1", "2"), model)
    assert not call.joins
    assert call.items == (b"[1,2]",)
    assert call.shared != parsed(instances("[1,2]")).shared


def test_columns_are_one_item() -> None:
    """How many rows they hold, and in which dimension, only the model knows."""
    for value in (b"[1,2]", b'{"a":[1,2],"b":[[1],[2]]}', b"3", b"[]", b'"x"'):
        call = parsed(b'{"inputs": ' + value + b"}")
        assert not call.joins
        assert call.items == (value,)
    assert parsed(b'{"inputs":[1,2]}').shared != parsed(instances("1", "2"), WHOLE).shared


# --- who rides with whom


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (instances("1"), instances("2", "3")),
        (instances("[1,2]"), instances("[-3,4]")),
        (instances("[0.5,2]"), instances("[3,1e-9]")),
        (instances('"a"'), instances('"b [1] , \\" c"')),
        (instances('"a"'), instances('"{"')),
        (instances('["a",1]'), instances('["[{",2]')),
        (instances('{"a":1,"b":"x"}'), instances('{ "a" : 7 , "b" : "" }')),
        (instances('{"b64":"eA=="}'), instances('{"b64":"eHh4"}')),
        (instances("true"), instances("false")),
        (instances("1", more=',"x":{"a":1,"b":[ 2 ]}'), instances("2", more=', "x" : {"b":[2],"a":1}')),
        (instances("1", more=',"x":1,"y":2'), b'{"y":2,"instances":[2],"x":1}'),
        (instances("NaN"), instances("1.5")),
        (instances("[true,1e5]"), instances("[false,-Infinity]")),
    ],
)
def test_instances_of_one_form_ride_together(one: bytes, other: bytes) -> None:
    """Whatever they hold, and however their bodies are laid out."""
    assert parsed(one).shared == parsed(other).shared


FORMS = (
    "1", "1.5", "9007199254740993", "true", "null", '"a"', "[1]", "[1,2]", "[[1]]", "[[1,2]]", "[[1],[2]]", "[]",
    "[[]]", "[1.5]", "[1,1.5,2]", '["a"]', '["a",1]', '[1,"a"]', "[true]", "[null]", "[1,null]", "[1.5,null]",
    "[[],[1]]", "[[1],[]]", "[18446744073709551615]", "[-9223372036854775808]", "{}", '{"a":1}', '{"b":1}', '{"a":1.5}',
    '{"a":"x"}', '{"a":[1]}', '{"a":[1,2]}', '{"a":1,"b":1}', '{"b":1,"a":1}', '[{"a":1}]', '[{"a":1},{"a":1}]',
    '[{"a":1.5}]', '{"a":{"a":1}}', '{"a":{"b":1}}',
)  # fmt: skip


def test_no_instance_changes_how_another_is_read() -> None:
    """Two shapes in one batch are refused, and an integer beside a fraction becomes one: they never meet."""
    for one, other in itertools.combinations(FORMS, 2):
        assert parsed(instances(one)).shared != parsed(instances(other)).shared, (one, other)
        mixed = parsed(instances(one, other))
        assert not mixed.joins, (one, other)
        assert mixed.items == (f"[{one},{other}]".encode(),)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *itertools.combinations(
            [
                instances("1"),
                instances("1", more=',"signature_name":"a"'),
                instances("1", more=',"signature_name":"b"'),
                instances("1", more=',"signature_name":null'),
                instances("1", more=',"x":1'),
                instances("1", more=',"x":1.0'),
                instances("1", more=',"x":"1"'),
                instances("1", more=',"x":true'),
                instances("1", more=',"x":[1]'),
                instances("1", more=',"x":1,"y":1'),
                instances("1", more=',"stream":false'),
                instances("1", more=',"predictions":[1]'),
            ],
            2,
        )
    ],
)
def test_every_other_field_counts(one: bytes, other: bytes) -> None:
    """Also those that nobody knows: a server may read them."""
    for model in (BY_ITEMS, WHOLE):
        assert parsed(one, model).shared != parsed(other, model).shared


def test_the_order_of_features_shows() -> None:
    """A model that makes a table of its instances takes the order of its columns from the first one."""
    one, other = parsed(instances('{"a":1,"b":2}')), parsed(instances('{"b":2,"a":1}'))
    assert (one.shared, one.items) != (other.shared, other.items)
    assert parsed(b'{"inputs":{"a":[1],"b":[2]}}').items != parsed(b'{"inputs":{"b":[2],"a":[1]}}').items


# --- answers


def test_a_joined_answer_is_split_between_its_callers() -> None:
    """Each gets its own results, in its own order, without white space."""
    one, other = parsed(instances("1", "2", "3")), parsed(instances("4"))
    parts = [part(one, 0, 2), part(other)]
    assert json.loads(CODEC.join(parts, "r", [0, 0]).body) == {"instances": [1, 3, 4]}
    answer = Message(b'{ "predictions" : [ [ 1.50 ],\n{"a" : NaN}, "x y" ] }')
    results = CODEC.split(answer, parts, "r")
    assert results is not None
    assert [len(own) for own in results] == [2, 1]
    assert CODEC.answer(other, results[1]) == Message(b'{"predictions":["x y"]}')
    second = CODEC.split(Message(b'{"predictions": [[ 2, null ]]}'), [part(one, 1)], "s")
    assert second is not None
    (first, third), (missing,) = results[0], second[0]
    assert CODEC.answer(one, [first, missing, third]) == Message(b'{"predictions":[[1.50],[2,null],{"a":NaN}]}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"OK",
        b"[1,2]",
        b"{}",
        b'{"predictions":[1]}',
        b'{"predictions":[1,2,3]}',
        b'{"predictions":[[1,2]]}',
        b'{"predictions":{"a":1,"b":2}}',
        b'{"predictions":"12"}',
        b'{"predictions":[1,2],"model":"m"}',
        b'{"results":[1,2]}',
        b'{"outputs":[1,2]}',
        b'{"predictions":[1,2]',
        b'{"predictions":[1,2],"predictions":[1,2]}',
        b'{"predictions":[1,"\xff"]}',
        b'{"error":"x"}',
        b'{"error":"x","predictions":[1,2]}',
    ],
)
def test_what_does_not_add_up_is_not_split(body: bytes) -> None:
    """A constant list, a field of unknown meaning, a broken text: nobody gets a share of it."""
    call = parsed(instances("1", "2"))
    assert CODEC.split(Message(body), [part(call)], None) is None
    assert CODEC.split(Message(body), [part(call, 0), part(parsed(instances("3")))], "r") is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"predictions":[1,2,3]}',
        b'{ "predictions" : [ 1 ],\n "model_version" : "3" }',
        b'{"predictions":{"a":1}}',
        b'{"predictions":[]}',
        b'{"anything":[NaN]}',
        b"{}",
    ],
)
def test_an_answer_to_one_item_comes_back_as_it_was(body: bytes) -> None:
    """Whatever it holds: there is nobody to confuse its parts with. It does not mix with others."""
    for call in (parsed(instances("1")), parsed(instances("1", "2"), WHOLE), parsed(b'{"inputs":[1]}')):
        results = CODEC.split(Message(body), [part(call)], None)
        assert results is not None
        assert CODEC.answer(call, results[0]) == Message(body)
    one = CODEC.split(Message(body), [part(parsed(instances("1")))], None)
    other = CODEC.split(Message(b'{"predictions":[2]}'), [part(parsed(instances("2")))], None)
    assert one is not None
    assert other is not None
    assert CODEC.answer(parsed(instances("1", "2")), [one[0][0], other[0][0]]) is None


@pytest.mark.parametrize("body", [b"", b"1", b"[1]", b"text", b'{"a":1', b'{"error":"no"}', b'{"a":1,"a":2}'])
def test_what_cannot_be_read_is_not_kept(body: bytes) -> None:
    """Nor is an error in disguise: its caller gets it as it came, and nobody else does."""
    for call in (parsed(instances("1")), parsed(instances("1", "2"), WHOLE), parsed(b'{"inputs":[1]}')):
        assert CODEC.split(Message(body), [part(call)], None) is None


@pytest.mark.parametrize(
    "results", [[], [b"11"], [b"11", b"12", b"13"], [b"11", b""], [b"11", b"1"], [b"11", b"x2"], [b"11", b"1]["],
                [b"11", b"12,3"], [b"11", b"*{}"], [b"*{}", b"*{}"], [b"11", b"1nul"]]
)  # fmt: skip
def test_results_that_do_not_fit_are_no_answer(results: list[bytes]) -> None:
    """Too few, too many, of two kinds, or not what was stored."""
    assert CODEC.answer(parsed(instances("1", "2")), results) is None


@pytest.mark.parametrize("result", [b"", b"11", b"*", b"*[1]", b"x{}"])
def test_a_whole_call_has_a_whole_answer(result: bytes) -> None:
    """A result of one instance never stands for all of them."""
    assert CODEC.answer(parsed(instances("1", "2"), WHOLE), [result]) is None


def test_the_order_of_results_is_the_callers() -> None:
    """Also where a result comes twice."""
    call = parsed(instances("1", "2", "1"))
    assert CODEC.answer(call, [b"1[1]", b"1[2]", b"1[1]"]) == Message(b'{"predictions":[[1],[2],[1]]}')


def test_likeness_of_results() -> None:
    """Arithmetic may differ in the last digits, and only there."""
    assert CODEC.alike(b"1[1.0000001,2]", b"1[1.0,2]")
    assert not CODEC.alike(b"1[1.1,2]", b"1[1.0,2]")
    assert not CODEC.alike(b"1{}", b"*{}")
    assert not CODEC.alike(b'1"a"', b'1"b"')
    assert CODEC.alike(b'*{"predictions":[1.0]}', b'*{"predictions": [1.0]}')
    assert not CODEC.alike(b"", b"1")


def test_an_error_reads_as_the_servers_own() -> None:
    """TensorFlow Serving and KServe name it `error`."""
    assert json.loads(CODEC.error(503, 'too "many"')) == {"error": 'too "many"'}


# --- generated calls, direct and through the codec


def answered(body: bytes, operation: str) -> bytes:
    """What a server says whose model tells of each instance what it was, in its order, and what came with it."""
    read = meaning(body)
    assert isinstance(read, Pairs)
    items, results = OPERATIONS[operation]
    came_with = repr(in_order(Pairs(pair for pair in read if pair[0] != items)))
    said = [json.dumps([repr(one), came_with]) for one in dict(read)[items]]
    return ('{\n "' + results + '": [ ' + " ,\n".join(said) + " ]\n}").encode()


def in_order(value: Lexed) -> Lexed:
    """The value with the keys of its objects sorted."""
    if isinstance(value, Pairs):
        return Pairs(sorted((key, in_order(inner)) for key, inner in value))
    return [in_order(inner) for inner in value if not isinstance(inner, tuple)] if isinstance(value, list) else value


SHARED = [b"1", b"1.0", b'"1"', b"null", b"[ 1, {} ]", b'{"a":1,"b":"{"}', b'{ "b" :"{" , "a": 1}', b'{"a":1,"a":2}']


@st.composite
def bodies(draw: st.DrawFn, name: str) -> bytes:
    """Instances of a few forms, mostly one, among other members anywhere."""
    pool = draw(
        st.sampled_from(
            [
                [b"1", b"-2", b"9", b" 7 "],
                [b"0.5", b"-0.0", b"1e5", b"NaN"],
                [b"[1, 2]", b"[3,4]", b"[ -5 ,6]"],
                [b'"a"', b'"[\\u0061"', b'"\xc3\xa9 ,"'],
                [b'{"a": 1, "b":"x"}', b'{"a":2 ,"b":"]"}', b'{"a":3,"b":""}'],
                [b"1", b'"a"', b"[1]", b"null", b"{}"],
            ]
        )
    )
    listed = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=6))
    space = draw(SPACES)
    members = [b'"' + name.encode() + b'"' + space + b":" + space + b"[" + (space + b",").join(listed) + b"]"]
    members += [
        b'"%s":%s' % (key, draw(st.sampled_from(SHARED)))
        for key in draw(st.lists(st.sampled_from([b"signature_name", b"x", b"\\u0079"]), unique=True, max_size=2))
    ]
    return b"{" + space + b",".join(draw(st.permutations(members))) + space + b"}"


@examples(200)
@given(st.data(), st.sampled_from(sorted(OPERATIONS)))
def test_a_call_is_answered_as_if_it_came_alone(data: st.DataObject, operation: str) -> None:
    """Cached by item, joined with strangers and put together again, an answer is what the backend said directly."""
    endpoint = Endpoint("m", None, operation)
    calls = []
    for body in data.draw(st.lists(bodies(OPERATIONS[operation][0]), min_size=1, max_size=4)):
        call = CODEC.parse(endpoint, Message(body), BY_ITEMS)
        if isinstance(call, Reason):
            assert isinstance(document(body), Refusal), body
            continue
        assert isinstance(call, V1Call)
        calls.append((call, body))
    entries: dict[tuple[bytes, bytes], bytes] = {}
    for _, together in itertools.groupby(sorted(calls, key=lambda one: one[0].shared), key=lambda one: one[0].shared):
        riders = list(together)
        if not riders[0][0].joins:
            for call, body in riders:
                results = CODEC.split(Message(answered(body, operation)), [part(call)], None)
                assert results is not None
                entries[call.shared, call.items[0]] = results[0][0]
            continue
        parts = []
        for call, _ in riders:
            missing = data.draw(st.lists(st.sampled_from(range(len(call.items))), min_size=1, unique=True).map(sorted))
            parts.append(Part(call, tuple(missing)))
        fill(parts, operation, entries)
        for call, _ in riders:
            left = [at for at, item in enumerate(call.items) if (call.shared, item) not in entries]
            if left:
                fill([Part(call, tuple(left))], operation, entries)
    for call, body in calls:
        answer = CODEC.answer(call, [entries[call.shared, item] for item in call.items])
        assert answer is not None
        assert meaning(answer.body) == meaning(answered(body, operation))


def fill(parts: Sequence[Part], operation: str, entries: dict[tuple[bytes, bytes], bytes]) -> None:
    joined = CODEC.join(parts, "r", [0.0] * len(parts))
    results = CODEC.split(Message(answered(joined.body, operation)), parts, "r")
    assert results is not None
    for one, own in zip(parts, results, strict=True):
        for index, result in zip(one.indexes, own, strict=True):
            entries[one.call.shared, one.call.items[index]] = result


@examples(200)
@given(st.one_of(damaged(bodies("instances")), TEXTS), st.sampled_from([BY_ITEMS, WHOLE]))
def test_hostile_bodies_are_refused_or_mean_what_they_say(body: bytes, model: Model) -> None:
    """No body raises; one that is taken is one that the slow reader reads, with its instances in their order."""
    call = CODEC.parse(HERE, Message(body), model)
    if isinstance(call, Reason):
        return
    read = meaning(body)
    assert isinstance(read, Pairs)
    named = dict(read)
    asked = named.get("instances", named.get("inputs"))
    said = [slow_read(item)[0] for item in call.items]
    assert said == (asked if call.joins else [asked])


@examples(200)
@given(st.one_of(TEXTS, damaged(st.just(b'{"predictions": [1.5, {"a": "x"}]}'))))
def test_hostile_answers_are_split_for_certain_or_not_at_all(body: bytes) -> None:
    """No answer raises; what is split is what the slow reader reads, result by result."""
    two = parsed(instances("1", "2"))
    results = CODEC.split(Message(body), [part(two, 0), part(two, 1)], "r")
    if results is None:
        return
    read = meaning(body)
    assert isinstance(read, Pairs)
    assert [name for name, _ in read] == ["predictions"]
    assert [slow_read(result[1:])[0] for own in results for result in own] == read[0][1]


# --- what the backend says of its models


def said(body: bytes) -> list[Exchange | None]:
    return [Exchange(200, b"OK", (), body)]


def statuses(*pairs: tuple[str, str], **more: object) -> bytes:
    listed = [{"version": version, "state": state, "status": {"error_code": "OK"} | more} for version, state in pairs]
    return json.dumps({"model_version_status": listed}, indent=1).encode()


def test_a_model_is_asked_for_by_its_name() -> None:
    """In the one spelling that is recognised."""
    assert CODEC.questions("m") == ("/v1/models/m",)
    assert CODEC.questions("ü x:1") == ("/v1/models/%C3%BC%20x:1",)


def test_a_label_is_asked_about_on_its_own() -> None:
    """It may point to another version any moment, and only its own status says to which."""
    endpoint = CODEC.recognise("POST", "/v1/models/%C3%BC/labels/a%20b:predict")
    assert endpoint is not None
    assert endpoint.model is not None
    assert CODEC.questions(endpoint.model) == ("/v1/models/%C3%BC/labels/a%20b",)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"models":["a","b"]}', Found("V1 API", ("a", "b"))),
        (b'{"models":[]}', Found("V1 API")),
        (b'{"models":[{"name":"a"}]}', None),
        (b'{"models":["a"],"object":"list","data":[]}', None),
        (b'{"object":"list","data":[{"id":"a"}]}', None),
        (b'{"models":"a"}', None),
        (b'{ "error": "Missing model name in request." }', None),
        (b"OK", None),
        (None, None),
    ],
)
def test_who_lists_models_as_kserve_does_is_found(body: bytes | None, found: Found | None) -> None:
    """Others list theirs in the same place in other forms; where none are listed, a request's path is proof enough."""
    (path,) = CODEC.probes
    assert CODEC.found({path: None if body is None else Exchange(200, b"OK", (), body)}) == found
    assert CODEC.path_is_proof


def test_versions_that_serve_name_the_weights() -> None:
    """Those that load or leave do not answer yet or any more; a change of any of them is a reason to doubt."""
    facts = CODEC.facts("m", said(statuses(("2", "AVAILABLE"), ("1", "UNLOADING"), ("3", "LOADING"))))
    assert facts is not None
    assert facts.versions == ("2",)
    assert (facts.rows, facts.max_batch_size, facts.instances) == (Rows.PROVE, ANY_NUMBER, 1)
    assert facts == CODEC.facts("m", said(statuses(("1", "UNLOADING"), ("3", "LOADING"), ("2", "AVAILABLE"), at="now")))
    later = CODEC.facts("m", said(statuses(("2", "AVAILABLE"), ("1", "END"), ("3", "LOADING"))))
    assert later is not None
    assert later.state != facts.state


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"m","ready":true}',
        b'{"name":"m","ready":"True"}',
        b"",
        b"OK",
        b"[]",
        b'{"model_version_status":null}',
        b'{"model_version_status":1}',
        b'{"model_version_status":"x"}',
        b'{"model_version_status":[1,{},{"version":1,"state":"AVAILABLE"},{"version":"1"}]}',
        statuses(("1", "LOADING")),
    ],
)
def test_where_no_version_serves_nothing_names_the_weights(body: bytes) -> None:
    """KServe says no more than that a model is ready: what it answers is kept but shortly, and rows must be proved."""
    facts = CODEC.facts("m", said(body))
    assert facts is not None
    assert (facts.versions, facts.counters, facts.rows) == ((), None, Rows.PROVE)


def test_a_model_that_is_not_there() -> None:
    """The backend lists no such model."""
    assert CODEC.facts("m", [None]) is None


@pytest.mark.parametrize(
    ("method", "path", "changes"),
    [
        ("POST", "/v1/config/reload", True),
        ("GET", "/v1/config/reload", False),
        ("POST", "/v1/models/m:predict", False),
    ],
)
def test_a_reload_is_seen(method: str, path: str, changes: bool) -> None:
    """OpenVINO Model Server reads its models anew when it is told to."""
    assert CODEC.changes(method, path) is changes
