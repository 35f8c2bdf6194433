"""Promises of the TEI codec: each caller gets what the server would have answered it alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import Call, Endpoint, Message, Part
from proxy.protocols.tei import TEI, TEICall
from proxy.terms import Exchange, Identity, Model, Reason, Rows
from tests.parts.tei_backend import LABELS, TEIServer
from tests.protocols.json_texts import TEXTS, damaged, examples

CODEC = TEI()
ITEMS = Model("", Rows.ITEMS, 32, 1, Identity((), 0.0, "", known=True))
WHOLE = replace(ITEMS, rows=Rows.WHOLE)

KINDS = {
    "/embed": "embedding",
    "/embed_all": "embedding",
    "/embed_sparse": "splade",
    "/predict": "classifier",
    "/tokenize": "embedding",
    "/decode": "embedding",
    "/rerank": "reranker",
}


def parsed(path: str, body: bytes, model: Model = ITEMS) -> TEICall:
    call = CODEC.parse(Endpoint(None, operation=path), Message(body), model)
    assert isinstance(call, TEICall), (call, body)
    return call


def whole(call: Call) -> Part:
    return Part(call, tuple(range(len(call.items))))


def split(answer: bytes, *parts: Part, joined: bool = True) -> list[list[bytes]]:
    results = CODEC.split(Message(answer), parts, "ours" if joined else None)
    assert results is not None, answer
    return results


def answered(call: Call, results: Sequence[bytes]) -> bytes:
    message = CODEC.answer(call, results)
    assert message is not None, results
    assert message.fields == ()
    return message.body


# --- whose request it is


@pytest.mark.parametrize(
    "path",
    [*KINDS, "/similarity", "/vertex", "/invocations", "/"],
)
def test_every_endpoint_that_infers_is_recognised(path: str) -> None:
    """What asks the model something is known by its path, and says that the path names no model."""
    assert CODEC.recognise("POST", path) == Endpoint(None, None, path)
    assert CODEC.model_in(Message(b'{"inputs":"a"}')) == ""


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/embed"),
        ("GET", "/"),
        ("post", "/embed"),
        ("POST", "/embed/"),
        ("POST", "/Embed"),
        ("POST", "/embed?x=1"),
        ("POST", "/x/embed"),
        ("POST", "/embeddings"),
        ("POST", "/v1/embeddings"),
        ("POST", "/info"),
        ("POST", ""),
    ],
)
def test_other_paths_are_left_alone(method: str, path: str) -> None:
    """What is not TEI's, or another codec's, goes through as it came."""
    assert CODEC.recognise(method, path) is None


# --- what is read, and what is left to the server


@pytest.mark.parametrize(
    ("path", "body", "items"),
    [
        ("/embed", '{"inputs":"a"}', ['"a"']),
        ("/embed", '{"inputs":["a"]}', ['"a"']),
        ("/embed", '{"inputs":["a","b"]}', ['"a"', '"b"']),
        ("/embed", '{"inputs":""}', ['""']),
        ("/embed", '{"inputs":[1,2]}', ["[1,2]"]),
        ("/embed", '{"inputs":[[1, 2],"a",[4294967295]]}', ["[1,2]", '"a"', "[4294967295]"]),
        ("/embed_all", '{"inputs":[[0]]}', ["[0]"]),
        ("/embed_sparse", '{ "inputs" : [ "a" , "b" ] }', ['"a"', '"b"']),
        ("/predict", '{"inputs":"a"}', ['["a"]']),
        ("/predict", '{"inputs":["a"]}', ['["a"]']),
        ("/predict", '{"inputs":["a","b"]}', ['["a","b"]']),
        ("/predict", '{"inputs":[["a"]]}', ['["a"]']),
        ("/predict", '{"inputs":[["a"],["b","c"]]}', ['["a"]', '["b","c"]']),
        ("/tokenize", '{"inputs":"a"}', ['"a"']),
        ("/tokenize", '{"inputs":["a","a"]}', ['"a"', '"a"']),
        ("/decode", '{"ids":[1,2]}', ["[1,2]"]),
        ("/decode", '{"ids":[[1,2],[3]]}', ["[1,2]", "[3]"]),
    ],
)
def test_items_are_found_in_every_form_that_tei_reads(path: str, body: str, items: list[str]) -> None:
    """A text, a pair or a list of token ids is the same item whether it stands alone or in a list."""
    call = parsed(path, body.encode())
    assert call.joins
    assert call.items == tuple(item.encode() for item in items)
    assert call.shared == parsed(path, body.replace(" ", "").encode()).shared


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/embed", "", Reason.UNPARSED),
        ("/embed", "[]", Reason.UNPARSED),
        ("/embed", '"inputs"', Reason.UNPARSED),
        ("/embed", "{}", Reason.UNPARSED),
        ("/embed", '{"inputs":"a"', Reason.UNPARSED),
        ("/embed", '{"inputs":"a"}{}', Reason.UNPARSED),
        ("/embed", '{"inputs":"\\ud800"}', Reason.UNPARSED),
        ("/embed", '{"inputs":' + "[" * 100_000, Reason.UNPARSED),
        ("/embed", '{"inputs":[]}', Reason.UNPARSED),
        ("/embed", '{"inputs":null}', Reason.UNPARSED),
        ("/embed", '{"inputs":1}', Reason.UNPARSED),
        ("/embed", '{"inputs":{"a":"b"}}', Reason.UNPARSED),
        ("/embed", '{"inputs":["a",null]}', Reason.UNPARSED),
        ("/embed", '{"inputs":["a",1]}', Reason.UNPARSED),
        ("/embed", '{"inputs":[1,"a"]}', Reason.UNPARSED),
        ("/embed", '{"inputs":["a",[]]}', Reason.UNPARSED),
        ("/embed", '{"inputs":["a",["b"]]}', Reason.UNPARSED),
        ("/embed", '{"inputs":[1.0]}', Reason.UNPARSED),
        ("/embed", '{"inputs":[-1]}', Reason.UNPARSED),
        ("/embed", '{"inputs":[1e1]}', Reason.UNPARSED),
        ("/embed", '{"inputs":[[1,"2"]]}', Reason.UNPARSED),
        ("/embed", '{"input":"a"}', Reason.UNPARSED),
        ("/embed", '{"texts":["a"]}', Reason.UNPARSED),
        ("/predict", '{"inputs":[]}', Reason.UNPARSED),
        ("/predict", '{"inputs":[[]]}', Reason.UNPARSED),
        ("/predict", '{"inputs":["a","b","c"]}', Reason.UNPARSED),
        ("/predict", '{"inputs":[["a","b","c"]]}', Reason.UNPARSED),
        ("/predict", '{"inputs":["a",["b"]]}', Reason.UNPARSED),
        ("/predict", '{"inputs":[["a"],"b"]}', Reason.UNPARSED),
        ("/predict", '{"inputs":[["a"],[["b"]]]}', Reason.UNPARSED),
        ("/predict", '{"inputs":[1,2]}', Reason.UNPARSED),
        ("/tokenize", '{"inputs":[1,2]}', Reason.UNPARSED),
        ("/decode", '{"ids":["a"]}', Reason.UNPARSED),
        ("/decode", '{"ids":"a"}', Reason.UNPARSED),
        ("/decode", '{"ids":[]}', Reason.UNPARSED),
        ("/decode", '{"ids":[[1],2]}', Reason.UNPARSED),
        ("/rerank", '{"query":"q","texts":[]}', Reason.UNPARSED),
        ("/rerank", '{"query":"q","texts":"a"}', Reason.UNPARSED),
        ("/rerank", '{"query":"q","texts":["a",1]}', Reason.UNPARSED),
        ("/embed", '{"inputs":"a","inputs":"b"}', Reason.DUPLICATE_KEY),
        ("/embed", '{"inputs":"a","\\u0069nputs":"b"}', Reason.DUPLICATE_KEY),
        ("/embed", '{"inputs":"a","x":{"y":1,"y":1}}', Reason.DUPLICATE_KEY),
        ("/embed", json.dumps({"inputs": ["a"] * 33}), Reason.OVER_LIMIT),
        ("/embed_all", json.dumps({"inputs": [[1]] * 33}), Reason.OVER_LIMIT),
        ("/predict", json.dumps({"inputs": [["a", "b"]] * 33}), Reason.OVER_LIMIT),
        ("/decode", json.dumps({"ids": [[1]] * 33}), Reason.OVER_LIMIT),
        ("/rerank", json.dumps({"query": "q", "texts": ["a"] * 33}), Reason.OVER_LIMIT),
    ],
)
def test_what_would_have_to_be_guessed_is_left_to_the_server(path: str, body: str, reason: Reason) -> None:
    """A body that TEI refuses, or reads in a way of its own, goes through untouched, with the reason said."""
    assert CODEC.parse(Endpoint(None, operation=path), Message(body.encode()), ITEMS) is reason


def test_as_many_items_as_the_server_takes_are_read() -> None:
    """The limit is the server's own, itself included."""
    assert len(parsed("/embed", json.dumps({"inputs": ["a"] * 32}).encode()).items) == 32


@pytest.mark.parametrize("path", ["/similarity", "/vertex", "/invocations", "/"])
def test_a_call_that_is_one_question_stays_whole(path: str) -> None:
    """What compares texts with each other, or means what the model makes of it, is never joined nor taken apart."""
    bodies = [b'{"inputs":["a","b"],"x":1}', b' {"x":1, "inputs":["a", "b"]}']
    calls = [parsed(path, body) for body in bodies]
    assert [(call.joins, len(call.items)) for call in calls] == [(False, 1), (False, 1)]
    assert len({(call.shared, call.items) for call in calls}) == 1
    assert parsed(path, b'{"inputs":["b","a"],"x":1}').items != calls[0].items
    answer = b' [0.5,\t{"any":null}]\n'
    assert answered(calls[0], split(answer, whole(calls[0]), joined=False)[0]) == answer


@pytest.mark.parametrize("path", list(KINDS))
def test_a_route_may_say_that_nothing_is_an_item(path: str) -> None:
    """Where rows are not items a call is one item, whatever the endpoint."""
    call = parsed(path, b'{"inputs":["a","b"],"query":"q","texts":["t"],"ids":[[1],[2]]}', WHOLE)
    assert not call.joins
    assert len(call.items) == 1
    assert CODEC.parse(Endpoint(None, operation=path), Message(b"[1]"), WHOLE) is Reason.UNPARSED


@pytest.mark.parametrize(
    ("path", "rows"),
    [*((path, Rows.ITEMS) for path in KINDS if path != "/rerank"), ("/rerank", Rows.WHOLE), ("/", Rows.WHOLE)],
)
def test_ranks_are_items_only_where_a_route_says_so(path: str, rows: Rows) -> None:
    """A model may rank texts against each other: nothing but the route can say that it scores them one by one."""
    assert CODEC.rows_of(Endpoint(None, operation=path), ITEMS) is rows
    assert CODEC.rows_of(Endpoint(None, operation=path), WHOLE) is Rows.WHOLE


# --- what calls share


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"truncate":true', '"truncate":false'),
        ('"truncate":true', '"truncate":1'),
        ('"truncate":null', '"x":0'),
        ('"dimensions":1', '"dimensions":1.0'),
        ('"prompt_name":"1"', '"prompt_name":1'),
        ('"prompt_name":"query"', '"prompt_name":"passage"'),
        ('"a":"b","c":"d"', '"a":"b,c:d"'),
        ('"a":[1,2]', '"a":[12]'),
        ('"a":{"b":1}', '"a":{"b":{}}'),
        ('"unknown":1', '"unknown":2'),
        ('"a1":2', '"a":12'),
    ],
)
def test_calls_that_ask_for_something_else_never_meet(one: str, other: str) -> None:
    """Every member beside the items keeps calls apart, be it known or not, and so does its type."""
    shared = [parsed("/embed", f'{{"inputs":"a",{said}}}'.encode()).shared for said in (one, other, '"normalize":true')]
    assert len(set(shared)) == 3


def test_how_a_body_is_written_does_not_keep_calls_apart() -> None:
    """Order, white space and escapes in texts show in no key: what means the same is asked once."""
    one = parsed("/embed", b'{"inputs":["\\u0061\\u00e9\\n\\/"],"truncate":true,"x":{"a":1,"b":2}}')
    other = parsed("/embed", '{ "x": {"b":2,"a":1},"truncate":true,\n"inputs": "aé\\u000a/"}'.encode())
    assert (one.shared, one.items) == (other.shared, other.items)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.data())
@examples(200)
def test_a_text_has_one_spelling(text: str, data: st.DataObject) -> None:
    """However a text is escaped, it is one item; and the item means that text."""
    escaped = "".join(
        f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 and data.draw(st.booleans()) else json.dumps(letter)[1:-1]
        for letter in text
    )
    bodies = [json.dumps({"inputs": text}), json.dumps({"inputs": [text]}, ensure_ascii=False)]
    spelt = {parsed("/embed", body.encode()).items for body in (*bodies, f'{{"inputs":"{escaped}"}}')}
    assert [json.loads(item) for (item,) in spelt] == [text]


# --- joined, split, answered

TEXT_INPUTS = st.text(st.sampled_from('abcé"\\ \n'), max_size=3)
ID_INPUTS = st.lists(st.integers(0, 99), min_size=1, max_size=3)
SEQUENCES = st.lists(TEXT_INPUTS, min_size=1, max_size=2)


def one_or_many(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return items | st.lists(items, min_size=1, max_size=4)


FORMS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    **{
        path: one_or_many(TEXT_INPUTS | ID_INPUTS).map(lambda inputs: {"inputs": inputs})
        for path in ("/embed", "/embed_all", "/embed_sparse")
    },
    "/predict": (TEXT_INPUTS | one_or_many(SEQUENCES)).map(lambda inputs: {"inputs": inputs}),
    "/tokenize": one_or_many(TEXT_INPUTS).map(lambda inputs: {"inputs": inputs}),
    "/decode": one_or_many(ID_INPUTS).map(lambda ids: {"ids": ids}),
    "/rerank": st.lists(TEXT_INPUTS, min_size=1, max_size=4).map(lambda texts: {"query": "q", "texts": texts}),
}
BESIDE = st.fixed_dictionaries(
    {},
    optional={
        "truncate": st.none() | st.booleans(),
        "prompt_name": st.sampled_from(["query", "passage"]),
        "return_text": st.booleans(),
        "unknown": st.sampled_from([1, 1.0, "1", {"a": [None]}]),
    },
)


def written(call: dict[str, Any], data: st.DataObject) -> bytes:
    """A call in a style of its own."""
    members = data.draw(st.permutations(list(call.items())))
    indent, ascii_only = data.draw(st.sampled_from([None, 1])), data.draw(st.booleans())
    return json.dumps(dict(members), indent=indent, ensure_ascii=ascii_only).encode()


@given(st.sampled_from(list(KINDS)), st.data())
@examples(200)
def test_each_caller_gets_what_it_would_have_got_alone(path: str, data: st.DataObject) -> None:
    """Calls that share a request, in whatever parts, get the bytes that the server answers each of them alone."""
    server = TEIServer(kind=KINDS[path])
    beside = data.draw(BESIDE)
    bodies = [written(form | beside, data) for form in data.draw(st.lists(FORMS[path], min_size=1, max_size=4))]
    calls = [parsed(path, body) for body in bodies]
    assert len({call.shared for call in calls}) == 1
    results: list[dict[int, bytes]] = [{} for _ in calls]
    early = [[data.draw(st.booleans()) for _ in call.items] for call in calls]
    for turn in (True, False):
        parts = [
            Part(call, tuple(at for at, first in enumerate(when) if first is turn))
            for call, when in zip(calls, early, strict=True)
        ]
        numbers = [at for at, part in enumerate(parts) if part.indexes]
        if not numbers:
            continue
        joined = CODEC.join([parts[at] for at in numbers], "ours", [0.0] * len(numbers))
        assert (joined.fields, joined.path) == ((), None)
        status, body, _ = server.compute(path, joined.body)
        assert status == 200, (joined.body, body)
        found = split(body, *[parts[at] for at in numbers])
        for at, each in zip(numbers, found, strict=True):
            results[at] |= dict(zip(parts[at].indexes, each, strict=True))
    for call, body, found_ in zip(calls, bodies, results, strict=True):
        assert answered(call, [found_[at] for at in range(len(call.items))]) == server.compute(path, body).body


@given(st.sampled_from(list(KINDS)), st.data())
@examples(200)
def test_what_a_call_got_alone_answers_others(path: str, data: st.DataObject) -> None:
    """The results out of an answer to a caller's own bytes make up the same answer, and others about the same items."""
    server = TEIServer(kind=KINDS[path])
    beside = data.draw(BESIDE)
    first = data.draw(FORMS[path])
    body = written(first | beside, data)
    call = parsed(path, body)
    alone = server.compute(path, body).body
    (results,) = split(alone, whole(call), joined=False)
    assert answered(call, results) == alone
    again = data.draw(st.lists(st.integers(0, len(results) - 1), min_size=1, max_size=6))
    member = next(name for name in first if name != "query")
    asked = [json.loads(call.items[at]) for at in again]
    other = written(first | {member: asked} | beside, data)
    assert answered(parsed(path, other), [results[at] for at in again]) == server.compute(path, other).body


def test_a_joined_body_says_what_its_members_said() -> None:
    """Members that nobody knows travel in the joined body, values as they were written."""
    bodies = [
        b'{"x":{"b": 1.50,"a":"\\u0061"},"inputs":"one","truncate":null}',
        b'{"inputs":["two",[3]],"truncate":null,',
    ]
    bodies[1] += b'"x":{"a":"\\u0061","b":1.50}}'
    calls = [parsed("/embed", body) for body in bodies]
    joined = CODEC.join([whole(calls[0]), Part(calls[1], (1,))], "ours", [0.0, 0.0])
    assert joined.body == b'{"inputs":["one",[3]],"x":{"b": 1.50,"a":"\\u0061"},"truncate":null}'


# --- what is not believed

EMBED = parsed("/embed", b'{"inputs":["a","b"]}')
PREDICT = parsed("/predict", b'{"inputs":[["a"],["b"]]}')
RANKED = parsed("/rerank", b'{"query":"q","texts":["a","b"]}')


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (EMBED, "[[1,2],[3,4],[5,6]]"),
        (EMBED, "[[1,2]]"),
        (EMBED, "[1,2]"),
        (EMBED, "[[1,2],[3]]"),
        (EMBED, "[[1,2],[3,null]]"),
        (EMBED, "[[1,2],[3,NaN]]"),
        (EMBED, '[[1,2],["3","4"]]'),
        (EMBED, "[[1,2],[[3],[4]]]"),
        (EMBED, "[[1,2],null]"),
        (EMBED, '{"embeddings":[[1,2],[3,4]]}'),
        (EMBED, "[[1,2],[3,4]]]"),
        (EMBED, "[[1,2],[3,4]"),
        (EMBED, ""),
        (parsed("/embed_all", b'{"inputs":["a","b"]}'), "[[[1,2]],[[3]]]"),
        (parsed("/embed_all", b'{"inputs":["a","b"]}'), "[[1,2],[3,4]]"),
        (parsed("/embed_sparse", b'{"inputs":["a","b"]}'), '[[{"index":1,"value":0.5}],[{"index":1,"value":null}]]'),
        (parsed("/embed_sparse", b'{"inputs":["a","b"]}'), "[[1],[2]]"),
        (parsed("/tokenize", b'{"inputs":["a","b"]}'), '[["a"],["b"]]'),
        (parsed("/decode", b'{"ids":[[1],[2]]}'), '["a",null]'),
        (PREDICT, '[{"score":1,"label":"x"},{"score":0,"label":"y"}]'),
        (PREDICT, '[[{"score":1,"label":"x"}],[{"score":0,"label":"y"}]]'),
        (PREDICT, '[[{"score":1,"label":"x"}],[{"score":null,"label":"x"}]]'),
        (PREDICT, '[[{"score":1,"label":"x"}],[{"label":"x"}]]'),
        (RANKED, '[{"index":0,"score":1}]'),
        (RANKED, '[{"index":0,"score":1},{"index":0,"score":0.5}]'),
        (RANKED, '[{"index":0,"score":1},{"index":2,"score":0.5}]'),
        (RANKED, '[{"index":0,"score":0.5},{"index":1,"score":1}]'),
        (RANKED, '[{"index":0,"score":1},{"index":1,"score":1}]'),
        (RANKED, '[{"index":1,"score":1,"rank":1},{"index":0,"score":1,"rank":2}]'),
        (RANKED, '[{"index":1,"score":1,"text":"a"},{"index":0,"score":1,"text":"b"}]'),
        (RANKED, '[{"index":1,"score":null},{"index":0,"score":1}]'),
        (RANKED, "[]"),
        (RANKED, "{}"),
    ],
)
def test_an_answer_that_does_not_add_up_is_nobodys(call: TEICall, answer: str) -> None:
    """A count, an index, a length or an order that is not as it should be: nothing of the answer is used or kept."""
    for request_id in ("ours", None):
        assert CODEC.split(Message(answer.encode()), [whole(call)], request_id) is None


def test_an_answer_in_another_style_is_read() -> None:
    """A server that writes white space is understood as well, and each result stays as it was written."""
    answer = b"\n[\n [ 1.50, 2 ],\t[3,4e0]\n]\r\n"
    assert split(answer, whole(EMBED)) == [[b"[ 1.50, 2 ]", b"[3,4e0]"]]
    answer = b' [ {"index" : 1, "score": 2.50} , {"score":1,"index":0}]\n'
    assert split(answer, whole(RANKED)) == [[b'{"score":1}', b'{"score":2.50}']]


def test_only_a_bare_question_is_answered_bare() -> None:
    """`/predict` answers one text without a list around it; the joined request always has one."""
    call = parsed("/predict", b'{"inputs":"a"}')
    bare, listed = b'[{"score":1.0,"label":"x"}]', b'[[{"score":1.0,"label":"x"}]]'
    assert split(bare, whole(call), joined=False) == split(listed, whole(call)) == [[bare]]
    assert CODEC.split(Message(listed), [whole(call)], None) is None
    assert CODEC.split(Message(bare), [whole(call)], "ours") is None
    assert answered(call, [bare]) == bare
    assert answered(parsed("/predict", b'{"inputs":[["a"]]}'), [bare]) == listed


@pytest.mark.parametrize(
    ("call", "results"),
    [
        (EMBED, ["[1,2]"]),
        (EMBED, ["[1,2]", "[3,4]", "[5,6]"]),
        (EMBED, ["[1,2]", "[3]"]),
        (EMBED, ["[1,2]", ""]),
        (EMBED, ["[1,2]", "["]),
        (EMBED, ["[1,2]", "1,2"]),
        (parsed("/embed_all", b'{"inputs":["a","b"]}'), ["[[1,2]]", "[[3]]"]),
        (parsed("/decode", b'{"ids":[[1],[2]]}'), ['"a"', '"']),
        (PREDICT, ['[{"score":1,"label":"x"}]', '[{"score":1,"label":"y"}]']),
        (PREDICT, ['[{"score":1,"label":"x"}]', "[x]"]),
        (PREDICT, ["[x]", "[x]"]),
        (RANKED, ['{"score":1}', '{"score":1,"text":"b"}']),
        (RANKED, ['{"score":1}', '{"score":"1"}']),
        (RANKED, ['{"score":1}', '{"index":1,"score":1}']),
        (RANKED, ['{"score":1}', ""]),
    ],
)
def test_results_that_do_not_fit_make_no_answer(call: TEICall, results: list[str]) -> None:
    """Results of different lengths, labels or kinds, as two models give them, are never put into one answer."""
    assert CODEC.answer(call, [result.encode() for result in results]) is None


def test_ranks_stand_as_the_server_puts_them() -> None:
    """The highest score comes first; of equal ones, zeros of either sign too, the later text."""
    call = parsed("/rerank", b'{"query":"q","texts":["a","b","c","d"]}')
    answer = answered(call, [b'{"score":0.0}', b'{"score":1e-7}', b'{"score":-0.0}', b'{"score":0.25}'])
    assert answer == (
        b'[{"index":3,"score":0.25},{"index":1,"score":1e-7},{"index":2,"score":-0.0},{"index":0,"score":0.0}]'
    )
    (results,) = split(answer, whole(call))
    assert answered(call, results) == answer


def test_numbers_within_what_batches_differ_by_are_alike() -> None:
    """Where rows are tried out, embeddings may differ by rounding and by nothing else."""
    assert CODEC.alike(b"[0.1,2.0]", b"[0.100001,2.0]")
    assert not CODEC.alike(b"[0.1,2.0]", b"[0.2,2.0]")
    assert not CODEC.alike(b'[{"score":0.5,"label":"x"}]', b'[{"score":0.5,"label":"y"}]')


# --- whatever comes

BODIES = st.one_of(
    TEXTS,
    st.sampled_from(list(FORMS)).flatmap(lambda path: FORMS[path]).map(lambda form: json.dumps(form).encode()),
    st.sampled_from(
        [b"[[1,2],[3,4]]", b'[{"index":0,"text":"a","score":1}]', b'[[{"score":1,"label":"x"}]]', b'["a"]']
    ),
)


@given(st.sampled_from([*KINDS, "/"]), BODIES | damaged(BODIES), st.sampled_from([ITEMS, WHOLE]))
@examples(200)
def test_no_body_is_too_odd_to_be_looked_at(path: str, body: bytes, model: Model) -> None:
    """Any bytes are read or left alone: as a call, as an answer, as a kept result."""
    call = CODEC.parse(Endpoint(None, operation=path), Message(body), model)
    assert isinstance(call, TEICall | Reason)
    asked = call if isinstance(call, TEICall) else EMBED
    for answering in (asked, PREDICT, RANKED):
        for request_id in ("ours", None):
            results = CODEC.split(Message(body), [whole(answering)], request_id)
            if results is not None:
                assert CODEC.answer(answering, results[0]) is not None
        CODEC.answer(answering, [body] * len(answering.items))


# --- what the server says of itself

TGI = {
    "model_id": "m",
    "model_sha": "0" * 40,
    "model_dtype": "float16",
    "model_pipeline_tag": "text-generation",
    "max_concurrent_requests": 128,
    "max_input_tokens": 4095,
    "max_total_tokens": 4096,
    "max_client_batch_size": 4,
    "router": "text-generation-router",
    "version": "3.3.4",
}
SHA = "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"


def exchange(body: object, status: int = 200) -> Exchange:
    said = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Exchange(status, b"", (), said)


@pytest.mark.parametrize("kind", ["embedding", "splade", "classifier", "reranker"])
def test_a_tei_is_found_by_what_it_says_of_itself(kind: str) -> None:
    """`/info` names the server, its version and the model."""
    found = CODEC.found({"/info": exchange(TEIServer(kind=kind).info())})
    assert found == ("text-embeddings-inference 1.8.2", ("BAAI/bge-small-en-v1.5",))
    assert CODEC.probes == ("/info",)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        exchange(TEIServer().info(), 404),
        exchange(TGI),
        exchange(TGI | {"model_type": "text-generation"}),
        exchange(TEIServer().info() | {"max_client_batch_size": None}),
        exchange(TEIServer().info() | {"max_client_batch_size": 0}),
        exchange(TEIServer().info() | {"max_client_batch_size": True}),
        exchange(TEIServer().info() | {"model_id": None}),
        exchange([]),
        exchange(b"ok"),
        exchange(b"\xff"),
        exchange(b'{"model_id":"\xff"}'),
        exchange(b"[" * 100_000),
    ],
)
def test_what_is_no_tei_is_not_taken_for_one(answer: Exchange | None) -> None:
    """Another server at `/info`, TGI above all, is not spoken to as a TEI."""
    assert CODEC.found({"/info": answer}) is None
    if answer is not None:
        assert CODEC.facts("", [answer, None]) is None


def test_the_server_says_how_much_it_takes() -> None:
    """Texts are items by the protocol's meaning, as many as the server takes from one client at a time."""
    assert CODEC.questions("") == ("/info", "/metrics")
    facts = CODEC.facts("", [exchange(TEIServer(max_client_batch_size=7).info()), None])
    assert facts is not None
    assert (facts.rows, facts.max_batch_size, facts.instances) == (Rows.ITEMS, 7, 1)


def test_a_server_that_shows_nothing_is_taken_as_it_comes() -> None:
    """Behind an API key `/info` says nothing: a batch is then what a TEI takes by default, its weights are unknown."""
    facts = CODEC.facts("", [None, None])
    assert facts is not None
    assert (facts.rows, facts.max_batch_size) == (Rows.ITEMS, 32)
    assert (facts.versions, facts.state, facts.counters, facts.listed) == ((), None, None, False)


@pytest.mark.parametrize(
    ("sha", "versions"), [(SHA, (SHA,)), (None, ()), ("main", ()), ("refs/pr/2", ()), (SHA[:7], ()), (1, ())]
)
def test_only_a_commit_names_the_weights(sha: object, versions: tuple[str, ...]) -> None:
    """A branch says nothing of what it pointed at when the server started."""
    facts = CODEC.facts("", [exchange(TEIServer().info() | {"model_sha": sha}), None])
    assert facts is not None
    assert facts.versions == versions


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"max_concurrent_requests": 9}, True),
        ({"uptime": 9.5}, True),
        ({"model_id": "another"}, False),
        ({"model_sha": "refs/pr/2"}, False),
        ({"model_dtype": "float32"}, False),
        ({"model_type": {"embedding": {"pooling": "mean"}}}, False),
        ({"auto_truncate": True}, False),
        ({"version": "1.9.0"}, False),
    ],
)
def test_a_server_that_says_otherwise_is_another(change: dict[str, object], same: bool) -> None:
    """What shapes answers is watched; what may change while the server runs is not."""
    info = TEIServer().info()
    facts = [CODEC.facts("", [exchange(said), None]) for said in (info, dict(reversed((info | change).items())))]
    assert facts[0] is not None
    assert facts[1] is not None
    assert (facts[0].state == facts[1].state) is same


def test_the_order_of_labels_does_not_make_a_server_another() -> None:
    """A TEI writes its labels in an order of its own at every start."""
    info = TEIServer(kind="classifier").info()
    labels = info["model_type"]["classifier"]
    turned = {name: dict(reversed(each.items())) for name, each in labels.items()}
    facts = [CODEC.facts("", [exchange(said), None]) for said in (info, info | {"model_type": {"classifier": turned}})]
    assert facts[0] is not None
    assert len(turned["id2label"]) == len(LABELS)
    assert facts[0] == facts[1]


def test_a_restart_shows_in_what_the_server_counts() -> None:
    """Requests are counted from the start on; a server that has had none shows nothing, which is a count as well."""
    server = TEIServer()

    def counters(metrics: object, status: int = 200) -> object:
        facts = CODEC.facts("", [exchange(server.info()), exchange(metrics, status)])
        assert facts is not None
        assert facts.answered is None  # tokenizing is not counted
        return facts.counters

    assert counters(server.metrics().encode()) == {}
    server.counted = 12
    assert counters(server.metrics().encode()) == {'te_request_count{method="single"}': 12}
    assert counters(b'te_request_count{method="batch"} 3\nte_request_count{method="single"} 4') == {
        'te_request_count{method="batch"}': 3,
        'te_request_count{method="single"}': 4,
    }
    assert counters(b"te_queue_size 0\n") == {}
    assert counters(b"python_gc_objects_collected_total 5\n") is None
    assert counters(server.metrics().encode(), 404) is None


# --- errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "Empty"),
        (413, "Validation"),
        (422, "Tokenizer"),
        (424, "Backend"),
        (429, "Overloaded"),
        (500, "Backend"),
        (502, "Backend"),
        (503, "Unhealthy"),
        (504, "Backend"),
    ],
)
def test_errors_look_like_the_servers_own(status: int, kind: str) -> None:
    """A client that reads TEI's errors reads Forebay's."""
    assert json.loads(CODEC.error(status, 'no "answer"')) == {"error": 'no "answer"', "error_type": kind}
