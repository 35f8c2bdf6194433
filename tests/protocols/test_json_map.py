"""Promises of the JSON map: a server of any JSON shape is answered for as it would have answered itself."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import ANY_NUMBER, Call, Endpoint, Facts, Message, Part
from proxy.protocols.json_map import JsonMap, JsonMapSettings
from proxy.protocols.json_pointer import cut, placed, pointer, without
from proxy.terms import Identity, Model, Reason, Rows
from tests.protocols.json_texts import SCALARS, SPACES, TEXTS, damaged, examples
from tests.protocols.slow_json import Pairs, slow_read

ITEMS = Model("", Rows.ITEMS, ANY_NUMBER, 1, Identity((), 0.0, "", known=False))
WHOLE = Model("", Rows.WHOLE, ANY_NUMBER, 1, Identity((), 0.0, "", known=False))
HERE = Endpoint("")

LIST = JsonMap(JsonMapSettings(items="/inputs", results="/outputs"))
OPAQUE = JsonMap(JsonMapSettings())
TEXTS_TO_LABELS = JsonMap(
    JsonMapSettings(
        items="/inputs",
        results="/outputs",
        batch_path="/predict_batch",
        item="/text",
        result="/label",
        shared=("/threshold",),
    )
)
BODIES = JsonMap(
    JsonMapSettings(items="/inputs", results="/outputs", batch_path="/predict_batch", shared=("/threshold",))
)


def parsed(codec: JsonMap, body: bytes, model: Model = ITEMS) -> Call:
    call = codec.parse(HERE, Message(body), model)
    assert isinstance(call, Call), (call, body)
    return call


def whole(call: Call) -> Part:
    return Part(call, tuple(range(len(call.items))))


def own(codec: JsonMap, call: Call, answer: bytes) -> list[bytes] | None:
    """What the answer to a caller's own bytes splits into."""
    split = codec.split(Message(answer), [whole(call)], None)
    return None if split is None else split[0]


def said(codec: JsonMap, call: Call, results: Sequence[bytes]) -> bytes | None:
    answer = codec.answer(call, results)
    return None if answer is None else answer.body


def meaning(text: bytes) -> Any:
    """The value of a text: lexemes of numbers kept, the order of keys and the spelling of strings not."""
    value, repeated = slow_read(text)
    assert not repeated, text
    return _meant(value)


def _meant(value: Any) -> Any:
    if isinstance(value, Pairs):
        return {name: _meant(inner) for name, inner in value}
    if isinstance(value, list):
        return [_meant(inner) for inner in value]
    return json.dumps(json.loads(value)) if value[:1] == '"' else value


def spelled(value: Any) -> str:
    """A meaning as text, the same for every order of keys: a server knows no order either."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{spelled(value[name])}" for name in sorted(value)) + "}"
    return f"[{','.join(map(spelled, value))}]" if isinstance(value, list) else str(value)


NESTED = [
    b"[]",
    b"{}",
    b"[ 1 ,[2.0]]",
    b'["a", "]"]',
    b'{"b":1, "a":[-0.0]}',
    b'{"a":[-0.0],"b" : 1}',
    b'{"inputs":[3]}',
]
VALUES = SCALARS | st.sampled_from(NESTED)
NAMES = st.sampled_from(["a", "b", "", "id", "é", '"', "a\nb", "0"])


@st.composite
def written(draw: st.DrawFn, members: Mapping[str, bytes]) -> bytes:
    """An object of these members, in any order and with any white space."""
    order = draw(st.permutations(sorted(members))) if len(members) > 1 else [*members]
    before, after, ascii_only = draw(STYLES)
    pieces = [before + json.dumps(name, ensure_ascii=ascii_only).encode() + after + members[name] for name in order]
    return b"{" + b",".join(pieces) + before + b"}"


STYLES = st.sampled_from([(b"", b":", False), (b" ", b": ", True), (b"\n\t", b" :\r\n", False)])


@dataclass(frozen=True)
class Place:
    """Where something stands: the names that lead to it, digits after `#` count into a list."""

    steps: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"/{step.removeprefix('#').replace('~', '~0').replace('/', '~1')}" for step in self.steps)

    def of(self, value: Any) -> Any:
        for step in self.steps:
            value = value[int(step[1:])] if step[:1] == "#" else value[step]
        return value


@st.composite
def around(draw: st.DrawFn, place: Place, value: bytes, beside: Mapping[str, bytes]) -> bytes:
    """A text with `value` at the place and, at each step to it, other members or elements beside it."""
    for step in reversed(place.steps):
        if step[:1] == "#":
            value = b"[" + b",".join([*[b"1"] * int(step[1:]), value, b"0"]) + b"]"
        else:
            value = draw(written({**beside, step: value}))
    return value


PLACES = st.sampled_from(
    [Place(steps) for steps in ((), ("inputs",), ("x/y", "c~d"), ("data", "#1"), ("#0",), ("in", "0", "~1"), ("é",))]
)


# --- a list in, a list out


@dataclass(frozen=True)
class Listed:
    """Calls with equal fields beside their items. of: the items of each call; bodies: as each was written."""

    codec: JsonMap
    items: Place
    results: Place
    of: tuple[tuple[bytes, ...], ...]
    bodies: tuple[bytes, ...]

    def backend(self, body: bytes) -> bytes:
        """Each result tells its item and what stands beside the list; so does what stands beside the results."""
        value = meaning(body)
        listed = self.items.of(value)
        rest = spelled(_emptied(value, self.items.steps))
        results = ",".join(f'{{"saw":{spelled(item)},"beside":{rest}}}' for item in listed)
        text = f"[ {results}]"
        for step in reversed(self.results.steps):
            text = (
                f"[{', '.join(['7'] * int(step[1:]) + [text, '8'])}]"
                if step[:1] == "#"
                else f'{{"v": {rest}, {json.dumps(step)}: {text}, "z": 1.50}}'
            )
        return text.encode()


def _emptied(value: Any, steps: Sequence[str]) -> Any:
    if not steps:
        return []
    name, *inner = steps
    if name[:1] == "#":
        at = int(name[1:])
        return [_emptied(one, inner) if number == at else one for number, one in enumerate(value)]
    return {key: _emptied(one, inner) if key == name else one for key, one in value.items()}


@st.composite
def listed(draw: st.DrawFn) -> Listed:
    items, results = draw(PLACES), draw(PLACES)
    taken = {*items.steps}
    beside = draw(st.dictionaries(NAMES.filter(lambda name: name not in taken), VALUES, max_size=2))
    calls = draw(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=4))
    bodies = [draw(around(items, b"[" + b", ".join(one) + b"]", beside)) for one in calls]
    codec = JsonMap(JsonMapSettings(items=items.text, results=results.text))
    return Listed(codec, items, results, tuple(map(tuple, calls)), tuple(bodies))


@examples(200)
@given(st.data(), listed())
def test_joined_callers_get_what_each_would_have_got_alone(data: st.DataObject, asked: Listed) -> None:
    """Any items at any place, joined whole or in part: every caller reads the answer to its own request."""
    codec = asked.codec
    calls = [parsed(codec, body) for body in asked.bodies]
    assert len({call.shared for call in calls}) == 1
    parts = [
        Part(call, tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(call.items))), min_size=1)))))
        for call in calls
    ]
    joined = codec.join(parts, "forebay-1", [0.0] * len(parts))
    assert joined.path is None
    split = codec.split(Message(asked.backend(joined.body)), parts, "forebay-1")
    assert split is not None
    for call, part, body, results in zip(calls, parts, asked.bodies, split, strict=True):
        direct = asked.backend(body)
        alone = own(codec, call, direct)
        assert alone is not None
        here = dict(zip(part.indexes, results, strict=True))
        mixed = [here.get(index, result) for index, result in enumerate(alone)]
        answer = said(codec, call, mixed)
        assert answer is not None
        assert meaning(answer) == meaning(direct)
        assert all(codec.alike(alone[index], result) for index, result in here.items())


FEW = st.sampled_from([b"1", b"1.0", b'"1"', b"[1]", b'{"a":1,"b":[ ]}', b'{ "b":[],"a":1}'])


@examples(200)
@given(st.data(), PLACES)
def test_a_key_is_the_meaning(data: st.DataObject, place: Place) -> None:
    """Two requests share an entry exactly if they mean the same: order of keys and white space do not count."""
    codec = JsonMap(JsonMapSettings(items=place.text, results=""))
    keys = {}
    for _ in range(3):
        items = b"[" + b",".join(data.draw(st.lists(FEW, min_size=1, max_size=2))) + b"]"
        body = data.draw(around(place, items, data.draw(st.dictionaries(st.sampled_from("ab"), FEW, max_size=1))))
        call = parsed(codec, body)
        keys[body] = (call.shared, call.items)
    for one, other in itertools.combinations(keys, 2):
        assert (keys[one] == keys[other]) == (meaning(one) == meaning(other)), (one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"inputs":[1]}', b'{"inputs":[1.0]}'),
        (b'{"inputs":[1]}', b'{"inputs":["1"]}'),
        (b'{"inputs":[0]}', b'{"inputs":[-0]}'),
        (b'{"inputs":[[1],2]}', b'{"inputs":[[1,2]]}'),
        (b'{"inputs":[1],"k":1}', b'{"inputs":[1],"k":true}'),
        (b'{"inputs":[1],"k":null}', b'{"inputs":[1]}'),
        (b'{"inputs":[1],"k":{"inputs":[2]}}', b'{"inputs":[1],"k":{"inputs":[3]}}'),
        (b'{"inputs":["a b"]}', b'{"inputs":["ab"]}'),
        (b'{"inputs":[9007199254740993]}', b'{"inputs":[9007199254740992]}'),
    ],
)
def test_what_differs_is_asked_for_apart(one: bytes, other: bytes) -> None:
    """Types, signs and the last bit of a number, and any field beside the items: nobody gets the other's answer."""
    first, second = parsed(LIST, one), parsed(LIST, other)
    assert (first.shared, first.items) != (second.shared, second.items)


def test_an_answer_keeps_numbers_order_and_what_stands_beside() -> None:
    """Lexemes, the order of keys and every other field come back as the server wrote them."""
    answer = b' {"model":"m" , "outputs": [1.50, {"b":9223372036854775807,"a":-0.0}, NaN], "took":{"u":"ms"}}\n'
    call = parsed(LIST, b'{"inputs":["a","b","c"]}')
    results = own(LIST, call, answer)
    assert results is not None
    assert said(LIST, call, results) == (
        b'{"model":"m","outputs":[1.50,{"b":9223372036854775807,"a":-0.0},NaN],"took":{"u":"ms"}}'
    )
    assert said(LIST, parsed(LIST, b'{"inputs":["b"]}'), results[1:2]) == (
        b'{"model":"m","outputs":[{"b":9223372036854775807,"a":-0.0}],"took":{"u":"ms"}}'
    )


@pytest.mark.parametrize(
    "answer",
    [
        b'{"outputs":[1]}',
        b'{"outputs":[1,2,3]}',
        b'{"outputs":{"0":1,"1":2}}',
        b'{"outputs":"ab"}',
        b'{"output":[1,2]}',
        b'{"error":"no such model"}',
        b"[1,2]",
        b'{"outputs":[1,2],"outputs":[3,4]}',
        b'{"outputs":[1,2]',
        b"",
        b"<html>busy</html>",
        b'{"outputs":[1,"\xff"]}',
    ],
)
def test_an_answer_of_another_shape_is_shared_with_nobody(answer: bytes) -> None:
    """A count that is off, an error said with status 200, no JSON: never split, never kept."""
    call = parsed(LIST, b'{"inputs":["a","b"]}')
    assert own(LIST, call, answer) is None
    one, other = parsed(LIST, b'{"inputs":["a"]}'), parsed(LIST, b'{"inputs":["b"]}')
    assert LIST.split(Message(answer), [whole(one), whole(other)], "forebay-1") is None


def test_results_of_different_answers_make_one_only_where_all_else_is_equal() -> None:
    """A field that counts the request's items, or another model: rather asked anew than mixed."""
    two, three = parsed(LIST, b'{"inputs":["a","b"]}'), parsed(LIST, b'{"inputs":["c","d","e"]}')
    first = own(LIST, two, b'{"outputs":[1,2],"count":2}')
    second = own(LIST, three, b'{"outputs":[3,4,5],"count":3}')
    assert first is not None
    assert second is not None
    assert said(LIST, two, [first[0], second[0]]) is None
    assert said(LIST, two, [first[0], first[1]]) == b'{"outputs":[1,2],"count":2}'
    assert not LIST.alike(first[0], b'{"outputs":[1],"count":1}')


def test_white_space_and_the_order_of_keys_keep_no_results_apart() -> None:
    """What stands beside the results says the same, however it was written: one answer is made of both."""
    two = parsed(LIST, b'{"inputs":["a","b"]}')
    answer = said(LIST, two, [b'{"m":{"x":1,"y":[ 2]},"outputs":[3]}', b'{"outputs":[4],"m":{"y":[2], "x": 1}}'])
    assert answer == b'{"m":{"x":1,"y":[ 2]},"outputs":[3,4]}'
    assert said(LIST, two, [b'{"m":{"x":1},"outputs":[3]}', b'{"outputs":[4],"m":{"x":1.0}}']) is None


@pytest.mark.parametrize(
    "results",
    [[], [b'{"outputs":[1]}'], [b'{"outputs":[1]}'] * 3, [b'{"outputs":[1,2]}'] * 2, [b'{"outputs":[]}'] * 2,
     [b'{"outputs":1}'] * 2, [b"x", b"y"], [b"", b""], [b'{"outputs":[1]}', b"[1]"]],
)  # fmt: skip
def test_results_that_do_not_fit_give_no_answer(results: list[bytes]) -> None:
    """Too many, too few, or not what an answer splits into: no caller gets any of it."""
    assert LIST.answer(parsed(LIST, b'{"inputs":["a","b"]}'), results) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", Reason.UNPARSED),
        (b"{}", Reason.UNPARSED),
        (b"[1]", Reason.UNPARSED),
        (b'"inputs"', Reason.UNPARSED),
        (b'{"inputs":[]}', Reason.UNPARSED),
        (b'{"inputs":"text"}', Reason.UNPARSED),
        (b'{"inputs":{"0":1}}', Reason.UNPARSED),
        (b'{"input":[1]}', Reason.UNPARSED),
        (b'{"inputs":[1]} x', Reason.UNPARSED),
        (b'{"inputs":["\xff"]}', Reason.UNPARSED),
        (b'\xef\xbb\xbf{"inputs":[1]}', Reason.UNPARSED),
        (b"inputs=1&inputs=2", Reason.UNPARSED),
        (b'{"inputs":[1],"inputs":[2]}', Reason.DUPLICATE_KEY),
        (b'{"inputs":[1],"\\u0069nputs":[2]}', Reason.DUPLICATE_KEY),
        (b'{"inputs":[{"a":1,"a":2}]}', Reason.DUPLICATE_KEY),
        (b'{"inputs":[1],"stream":true}', Reason.STREAMED),
        (b'{"inputs":[1], "str\\u0065am" : true}', Reason.STREAMED),
        (b'{"inputs":[1,2,3]}', Reason.OVER_LIMIT),
    ],
)
def test_what_the_map_does_not_fit_passes_through(body: bytes, reason: Reason) -> None:
    """Nothing is guessed: the request goes to the server as it is, and Cache-Status says why."""
    two = Model("", Rows.ITEMS, 2, 1, ITEMS.identity)
    assert LIST.parse(HERE, Message(body), two) is reason
    if reason is not Reason.OVER_LIMIT:
        assert LIST.parse(HERE, Message(body), WHOLE) is reason


def test_rows_that_are_no_items_make_one_whole_call() -> None:
    """Never joined, and answered again with the very bytes of the server."""
    call = parsed(LIST, b'{"inputs":[1,2], "k":1}', WHOLE)
    assert not call.joins
    assert len(call.items) == 1
    answer = b' {"outputs": [3]}\n'
    results = own(LIST, call, answer)
    assert results == [answer]
    assert said(LIST, call, [answer]) == answer
    assert own(LIST, call, b'{"error":"busy"}') is None
    same = parsed(LIST, b'{"k":1,"inputs":[1,2]}', WHOLE)
    assert (same.shared, same.items) == (call.shared, call.items)
    assert call.shared != parsed(LIST, b'{"inputs":[1]}').shared


# --- single to batch

Tree = dict[str, Any]
"""An object whose values are texts or objects again."""


def put(tree: Tree, path: str, value: Any) -> None:
    """Put a value where a pointer leads to, making what leads there."""
    *way, last = path[1:].split("/")
    for name in way:
        tree = tree.setdefault(name, {})
    tree[last] = value


@st.composite
def grown(draw: st.DrawFn, tree: Tree | bytes) -> bytes:
    """A tree as text, in any order and with any white space."""
    if isinstance(tree, bytes):
        return tree
    return draw(written({name: draw(grown(inner)) for name, inner in tree.items()}))


def found_at(value: Any, path: str) -> Any:
    """The meaning at a pointer of member names; None if there is none."""
    for name in path.split("/")[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


@dataclass(frozen=True)
class Single:
    """Calls of one item each with equal shared fields. of: their items; bodies: as each was written."""

    settings: JsonMapSettings
    shared: Mapping[str, bytes]
    of: tuple[Tree | bytes, ...]
    bodies: tuple[bytes, ...]

    def alone(self, item: Tree | bytes) -> bytes:
        """What the server answers to a single request."""
        meant = meaning(item) if isinstance(item, bytes) else {name: meaning(value) for name, value in item.items()}
        return self._at(self.settings.result, self._result(meant, {n: meaning(v) for n, v in self.shared.items()}))

    def together(self, body: bytes) -> bytes:
        """What it answers to a batch: it looks for what is shared where a single request has it."""
        value = meaning(body)
        shared = {path: found for path in self.settings.shared if (found := found_at(value, path)) is not None}
        results = [self._result(item, shared) for item in found_at(value, self.settings.items or "")]
        return self._at(self.settings.results or "", f"[{', '.join(results)}]")

    @staticmethod
    def _result(item: Any, shared: Mapping[str, Any]) -> str:
        return f'{{"saw": {spelled(item)}, "with": {spelled(dict(shared))}}}'

    def _at(self, path: str, value: str) -> bytes:
        """A value at a pointer; where both answers are objects, both name the model, too."""
        names = path.split("/")[1:]
        for name in reversed(names):
            value = f"{{{json.dumps(name)}: {value}"
            value += ', "model": "m"}' if name == names[0] and self.settings.result and self.settings.results else "}"
        return value.encode()


SINGLE = [
    JsonMapSettings(items="/inputs", results="/outputs", batch_path="/b", shared=("/t", "/p/q")),
    JsonMapSettings(items="/in/list", results="/outputs", batch_path="/b", item="/text", result="/label"),
    JsonMapSettings(items="/inputs", results="", batch_path="/b", item="/x/text", shared=("/x/t", "/t")),
    JsonMapSettings(items="", results="", batch_path="/b"),
    JsonMapSettings(items="", results="/o/p", batch_path="/b", item="/text"),
    JsonMapSettings("/p/items", "/o", batch_path="/b", item="/doc", result="/d/e", shared=("/p/q", "/doc/t")),
]


@st.composite
def single(draw: st.DrawFn) -> Single:
    settings = draw(st.sampled_from(SINGLE))
    shared = {path: draw(VALUES) for path in settings.shared if draw(st.booleans())}
    holds_shared = any(path.startswith(f"{settings.item}/") for path in settings.shared)
    items: list[Tree | bytes] = []
    bodies = []
    for _ in range(draw(st.integers(1, 4))):
        members = st.dictionaries(st.sampled_from(["a", "text", "", "é", "q"]), VALUES, min_size=1, max_size=3)
        item: Tree | bytes = draw(members) if holds_shared else draw(VALUES)
        body: Tree | bytes = dict(item) if isinstance(item, dict) else item
        if settings.item:
            body, inner = {}, body
            put(body, settings.item, inner)
        for path, value in shared.items():
            assert isinstance(body, dict)
            put(body, path, value)
        items.append(item)
        bodies.append(draw(SPACES) + draw(grown(body)))
    return Single(settings, shared, tuple(items), tuple(bodies))


@examples(200)
@given(single())
def test_single_calls_ride_in_a_batch_of_the_servers_own(asked: Single) -> None:
    """Many single requests become one to the batch path; each caller reads what its own path answers."""
    codec = JsonMap(asked.settings)
    calls = [parsed(codec, body) for body in asked.bodies]
    assert len({call.shared for call in calls}) == 1
    parts = [whole(call) for call in calls]
    joined = codec.join(parts, "forebay-1", [0.0] * len(parts))
    assert joined.path == "/b"
    split = codec.split(Message(asked.together(joined.body)), parts, "forebay-1")
    assert split is not None
    for call, item, results in zip(calls, asked.of, split, strict=True):
        direct = asked.alone(item)
        assert own(codec, call, direct) == [direct]
        assert said(codec, call, [direct]) == direct
        answer = said(codec, call, results)
        assert answer is not None
        assert meaning(answer) == meaning(direct)
        assert codec.alike(direct, results[0])


@examples(200)
@given(single())
def test_a_single_key_is_the_meaning(asked: Single) -> None:
    """Two single requests share an entry exactly if they mean the same."""
    codec = JsonMap(asked.settings)
    keys = {body: (call.shared, call.items) for body in asked.bodies for call in [parsed(codec, body)]}
    for one, other in itertools.combinations(keys, 2):
        assert (keys[one] == keys[other]) == (meaning(one) == meaning(other)), (one, other)


def test_a_batch_holds_the_items_and_what_is_shared() -> None:
    """What the server gets is what its documentation says, with the shared fields in their place."""
    one, other = (parsed(TEXTS_TO_LABELS, b'{"threshold":0.50,"text":"%s"}' % text) for text in (b"a", b"b"))
    joined = TEXTS_TO_LABELS.join([whole(one), whole(other)], "forebay-1", [0.0, 0.0])
    assert (joined.body, joined.path) == (b'{"inputs":["a","b"],"threshold":0.50}', "/predict_batch")
    one, other = (parsed(BODIES, b'{"threshold":0.50,"text":"%s","lang":"en"}' % text) for text in (b"a", b"b"))
    joined = BODIES.join([whole(one), whole(other)], "forebay-1", [0.0, 0.0])
    assert joined.body == b'{"inputs":[{"lang":"en","text":"a"},{"lang":"en","text":"b"}],"threshold":0.50}'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"text":"a","threshold":0.5}', b'{"text":"a","threshold":0.6}'),
        (b'{"text":"a","threshold":1}', b'{"text":"a","threshold":1.0}'),
        (b'{"text":"a","threshold":null}', b'{"text":"a"}'),
    ],
)
def test_shared_fields_that_differ_never_ride_together(one: bytes, other: bytes) -> None:
    """Another threshold, another batch, and another entry."""
    for codec in (TEXTS_TO_LABELS, BODIES):
        assert parsed(codec, one).shared != parsed(codec, other).shared


@pytest.mark.parametrize(
    "body",
    [
        b'{"threshold":0.5}',
        b'{"text":"a","lang":"en"}',
        b'{"text":"a","threshold":0.5,"user":{}}',
        b'["a"]',
        b'"a"',
        b"{}",
        b"a",
    ],
)
def test_a_single_request_with_more_or_less_than_the_map_knows_passes_through(body: bytes) -> None:
    """A field of which nobody said where a batch has it is never lost on the way: the request is not touched."""
    assert TEXTS_TO_LABELS.parse(HERE, Message(body), ITEMS) is Reason.UNPARSED
    assert TEXTS_TO_LABELS.parse(HERE, Message(body), WHOLE) is Reason.UNPARSED


@pytest.mark.parametrize(
    ("codec", "answer"),
    [
        (TEXTS_TO_LABELS, b'{"outputs":[1]}'),
        (TEXTS_TO_LABELS, b'{"outputs":[1,2,3]}'),
        (TEXTS_TO_LABELS, b'{"outputs":[1,2],"label":0}'),
        (TEXTS_TO_LABELS, b'{"label":1}'),
        (TEXTS_TO_LABELS, b"[1,2]"),
        (BODIES, b'{"outputs":[1,2],"model":"m"}'),
        (BODIES, b'{"outputs":[1,2]'),
    ],
)
def test_a_batch_whose_answer_is_not_the_maps_is_no_answer(codec: JsonMap, answer: bytes) -> None:
    """A count that is off, or a field that has no place in a single answer: the members are asked singly."""
    parts = [whole(parsed(codec, body)) for body in (b'{"text":"a"}', b'{"text":"b"}')]
    assert codec.split(Message(answer), parts, "forebay-1") is None


def test_fields_beside_the_results_are_in_every_single_answer() -> None:
    """The model's name beside a batch's results stands in each answer; a count of the batch shows as a difference."""
    parts = [whole(parsed(TEXTS_TO_LABELS, b'{"text":"%s"}' % text)) for text in (b"a", b"b")]
    split = TEXTS_TO_LABELS.split(Message(b'{"model":"m","outputs":["x","y"]}'), parts, "forebay-1")
    assert split == [[b'{"model":"m","label":"x"}'], [b'{"model":"m","label":"y"}']]
    assert TEXTS_TO_LABELS.alike(b'{"label": "x", "model": "m"}', split[0][0])
    split = TEXTS_TO_LABELS.split(Message(b'{"outputs":["x","y"],"count":2}'), parts, "forebay-1")
    assert split is not None
    assert not TEXTS_TO_LABELS.alike(b'{"label":"x"}', split[0][0])


def test_a_single_answer_keeps_its_bytes() -> None:
    """What a caller's own request was answered is answered again to the byte, unless it lacks its result."""
    call = parsed(TEXTS_TO_LABELS, b'{"text":"a"}')
    answer = b' {"label" : "x", "took": 1.50}\n'
    assert own(TEXTS_TO_LABELS, call, answer) == [answer]
    assert said(TEXTS_TO_LABELS, call, [answer]) == answer
    for odd in (b'{"error":"busy"}', b"[]", b"", b'{"label":1,"label":2}', b"<html>"):
        assert own(TEXTS_TO_LABELS, call, odd) is None


def test_a_request_to_the_batch_path_itself_is_left_alone() -> None:
    """A route that is written too wide makes no batch of batches."""
    assert TEXTS_TO_LABELS.recognise("POST", "/predict") == Endpoint("")
    for path in ("/predict_batch", "/predict%5Fbatch", "/predict%5fbatch"):
        assert TEXTS_TO_LABELS.recognise("POST", path) is None
        assert LIST.recognise("POST", path) == Endpoint("")
    for method in ("GET", "PUT", "post", "HEAD", "DELETE"):
        assert TEXTS_TO_LABELS.recognise(method, "/predict") is None


# --- whole calls


@examples(200)
@given(st.binary(max_size=64) | TEXTS, st.binary(max_size=64))
def test_a_whole_call_is_its_bytes(body: bytes, answer: bytes) -> None:
    """Whatever request and answer hold, they are kept to the byte and never joined."""
    call = parsed(OPAQUE, body, WHOLE)
    assert (call.items, call.joins) == ((body,), False)
    assert own(OPAQUE, call, answer) == [answer]
    assert said(OPAQUE, call, [answer]) == answer
    assert OPAQUE.answer(call, []) is None
    assert OPAQUE.alike(answer, answer)


def test_a_stream_that_is_asked_for_is_not_held_back() -> None:
    """`stream: true` passes through, whatever else is in the body; a text that only speaks of it does not."""
    assert OPAQUE.parse(HERE, Message(b'{"prompt":"a", "stream" : true}'), WHOLE) is Reason.STREAMED
    others = (b'{"stream":false}', b'{"a":{"stream":true}}', b'["stream",true]', b'"stream" true', b'{"stream":true')
    for body in others:
        assert parsed(OPAQUE, body, WHOLE).items == (body,)


# --- any map

CODECS = [LIST, OPAQUE, TEXTS_TO_LABELS, BODIES, *map(JsonMap, SINGLE), JsonMap(JsonMapSettings("", "/0"))]
_BODIES = st.sampled_from(
    [
        b'{"inputs":[1,{"a":"]"}],"k":[]}',
        b'{"text":"a","threshold":1}',
        b"[1,[2]]",
        b'{"doc":{"t":1,"a":2},"p":{"q":0}}',
    ]
)
_ANSWERS = st.sampled_from([b'{"outputs":[1,2]}', b'[[1,2],"x"]', b'{"label":{}}', b'{"o":{"p":[1,null]}}'])


@examples(200)
@given(
    st.sampled_from(CODECS),
    damaged(_BODIES | TEXTS) | st.binary(max_size=40),
    damaged(_ANSWERS | TEXTS) | st.binary(max_size=40),
    st.sampled_from([ITEMS, WHOLE]),
)
def test_garbage_is_nobodys_answer(codec: JsonMap, body: bytes, answer: bytes, model: Model) -> None:
    """Whatever comes from either side, nothing fails; only JSON is mapped, and only what is JSON again goes out."""
    call = codec.parse(HERE, Message(body), model)
    if not isinstance(call, Call):
        return
    parts = [whole(call)]
    split = codec.split(Message(answer), parts, None)
    together = codec.split(Message(answer), parts, "forebay-1") if call.joins else None
    assert codec.answer(call, [answer] * len(call.items)) is None or codec.answer(call, [answer]) is not None
    if codec is OPAQUE:
        return
    for found in (split, together):
        if found is not None:
            meaning(answer)
            spoken = said(codec, call, found[0])
            assert spoken is not None
            meaning(spoken)
    if call.joins:
        meaning(codec.join(parts * 2, "forebay-1", [0.0, 0.0]).body)
    meaning(body)


@pytest.mark.parametrize("depth", [10, 1000, 200_000])
def test_depth_costs_nothing_but_a_refusal(depth: int) -> None:
    """A nest of any depth, on either side, is read or refused, never a failure."""
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")):
        nest = opening * depth + b"1" + closing * depth
        body = b'{"inputs":[' + nest + b"]}"
        call = LIST.parse(HERE, Message(body), ITEMS)
        assert isinstance(call, Call) or (call is Reason.UNPARSED and depth > 10)
        asked = parsed(LIST, b'{"inputs":[1]}')
        results = own(LIST, asked, b'{"outputs":[' + nest + b"]}")
        assert results is None or said(LIST, asked, results) == b'{"outputs":[' + nest + b"]}"


def test_no_map_reads_what_another_has_made() -> None:
    """Configured anew, a map finds nothing of the old one's under the same request."""
    lists = [JsonMapSettings("/a", results) for results in ("/b", "/c", "")]
    singles = [JsonMapSettings("/a", "/b", path, item) for path, item in (("/p", ""), ("/q", ""), ("/q", "/a"))]
    codecs = [JsonMap(settings) for settings in (*lists, *singles)]
    calls = [codec.parse(HERE, Message(b'{"a":[1]}'), model) for codec in codecs for model in (ITEMS, WHOLE)]
    found = [(call.shared, call.items) for call in calls if isinstance(call, Call)]
    assert len(found) == len(calls) == len(set(found))


def test_a_server_is_asked_nothing_and_tried_out_first() -> None:
    """Of a server that only a map describes nothing is known: rows are proved, whole calls are whole."""
    assert LIST.facts("", ()) == Facts(Rows.PROVE, ANY_NUMBER)
    assert OPAQUE.facts("", ()) == Facts(Rows.WHOLE, ANY_NUMBER)
    assert LIST.questions("") == LIST.probes == ()


def test_arithmetic_may_differ_a_little_between_batches() -> None:
    """Two results are alike within the tolerance of all JSON protocols, and never where words differ."""
    assert LIST.alike(b'{"outputs":[0.123456]}', b'{"outputs": [0.1234561]}')
    assert not LIST.alike(b'{"outputs":[0.12]}', b'{"outputs":[0.13]}')
    assert not LIST.alike(b'{"outputs":["a"]}', b'{"outputs":["b"]}')


def test_an_error_of_forebays_own_is_written_as_fastapi_writes_them() -> None:
    """`detail` says what happened."""
    assert json.loads(LIST.error(503, 'no "room"')) == {"detail": 'no "room"'}


def test_a_map_shows_what_it_says() -> None:
    """On /config and in logs one reads where items and results stand."""
    assert repr(LIST) == "<codec json_map '/inputs' to '/outputs'>"
    assert repr(TEXTS_TO_LABELS) == "<codec json_map '/text' to '/label' by /predict_batch>"
    assert repr(OPAQUE) == "<codec json_map of whole calls>"


# --- settings

BATCH = {"items": "/inputs", "results": "/outputs", "batch_path": "/b"}


@pytest.mark.parametrize(
    ("written_", "message"),
    [
        ({"items": "inputs", "results": "/o"}, "write '/inputs'"),
        ({"items": "$.data.inputs", "results": "/o"}, "write '/data/inputs'"),
        ({"items": "/a~b", "results": "/o"}, "~0"),
        ({"items": "/a"}, "`items` says nothing without `results`"),
        ({"results": "/a"}, "`results` says nothing without `items`"),
        ({"items": "/a", "results": "/b", "item": "/c"}, "write `batch_path`"),
        ({"items": "/a", "results": "/b", "result": "/c"}, "write `batch_path`"),
        ({"shared": ("/c",)}, "write `batch_path`"),
        ({"batch_path": "/b"}, "needs `items` and `results`"),
        (BATCH | {"batch_path": "b"}, "'/predict_batch'"),
        (BATCH | {"batch_path": ""}, "'/predict_batch'"),
        (BATCH | {"batch_path": "/b?x=1"}, "without a query"),
        (BATCH | {"batch_path": "/b c"}, "is no path"),
        (BATCH | {"batch_path": "/b*"}, "is no path"),
        (BATCH | {"items": "/in/0"}, "counts into a list"),
        (BATCH | {"item": "/0"}, "counts into a list"),
        (BATCH | {"shared": ("/a/-",)}, "counts into a list"),
        (BATCH | {"items": "", "shared": ("/a",)}, "has no place"),
        (BATCH | {"item": "/a", "shared": ("/a",)}, "is or holds the `item`"),
        (BATCH | {"item": "/a/b", "shared": ("/a",)}, "is or holds the `item`"),
        (BATCH | {"shared": ("",)}, "is or holds the `item`"),
        (BATCH | {"shared": ("/inputs/t",)}, "'/inputs/t' and '/inputs' take the same place"),
        (BATCH | {"items": "/in/list", "shared": ("/in",)}, "'/in' and '/in/list' take the same place"),
        (BATCH | {"shared": ("/t", "/t")}, "take the same place"),
        (BATCH | {"shared": ("/t", "/t/u")}, "take the same place"),
    ],
)
def test_a_map_that_cannot_work_is_refused(written_: dict[str, Any], message: str) -> None:
    """The message says what does not go together and what to write instead."""
    with pytest.raises(ValueError, match=re.escape(message)):
        JsonMapSettings(**written_)


@pytest.mark.parametrize(
    "settings", [JsonMapSettings(), JsonMapSettings("", ""), JsonMapSettings("/0/in", "/data/1"), *SINGLE], ids=repr
)
def test_a_map_that_can_work_is_taken(settings: JsonMapSettings) -> None:
    """Every form: whole calls, bare lists, lists in lists, single to batch."""
    assert JsonMap(settings).recognise("POST", "/any/path") == Endpoint("")


# --- pointers


@pytest.mark.parametrize(
    ("text", "value"),
    [  # the examples of RFC 6901, section 5
        ("", None),
        ("/foo", b'["bar","baz"]'),
        ("/foo/0", b'"bar"'),
        ("/", b"0"),
        ("/a~1b", b"1"),
        ("/c%d", b"2"),
        ("/e^f", b"3"),
        ("/g|h", b"4"),
        ("/i\\j", b"5"),
        ('/k"l', b"6"),
        ("/ ", b"7"),
        ("/m~0n", b"8"),
    ],
)
def test_a_pointer_finds_what_rfc_6901_says(text: str, value: bytes | None) -> None:
    """The standard's own examples, and what is cut out fits in again."""
    document = b'{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\\\j":5,"k\\"l":6," ":7,"m~n":8}'
    found = cut(document, pointer(text))
    assert found is not None
    assert found[1] == (document if value is None else value)
    assert b"".join(found) == document


@pytest.mark.parametrize(
    "text", ["/foo/2", "/foo/-", "/foo/00", "/foo/+1", "/foo/bar", "/bar", "/foo/0/x", "/~01", "/x/y"]
)
def test_a_pointer_that_leads_nowhere_finds_nothing(text: str) -> None:
    """Past the end, a leading zero, a name in a list, a member of a text."""
    assert cut(b'{"foo":["bar","baz"],"x":1}', pointer(text)) is None


def test_a_member_is_taken_away_and_put_in_where_it_was() -> None:
    """What held nothing else goes with it and is made again; what has no room stays as it is."""
    text = b'{"a":{"b":{"c":1}},"d":{"e":2,"f":3},"g":{}}'
    assert without(text, ("a", "b", "c")) == b'{"d":{"e":2,"f":3},"g":{}}'
    assert without(text, ("d", "e")) == b'{"a":{"b":{"c":1}},"d":{"f":3},"g":{}}'
    assert without(text, ("d", "x")) is None
    assert without(text, ("g", "x")) is None
    assert without(b"[1]", ("0",)) is None
    assert placed(b"{}", ("a", "b"), b"1") == b'{"a":{"b":1}}'
    assert placed(b'{"a":{"c":2}}', ("a", "b"), b"1") == b'{"a":{"c":2,"b":1}}'
    assert placed(b'{"a":{"b":2}}', ("a", "b"), b"1") is None
    assert placed(b'{"a":2}', ("a", "b"), b"1") is None
    assert placed(b"[]", ("a",), b"1") is None
