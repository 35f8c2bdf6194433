"""Promises to callers of OpenAI embeddings: whoever rides along, each gets the backend's own numbers for its texts."""

from __future__ import annotations

import base64
import itertools
import json
import random
from array import array
from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import ANY_NUMBER, Call, Endpoint, Facts, Found, Message, Part
from proxy.protocols.openai import MODELS
from proxy.protocols.openai_embeddings import ESTIMATED, OpenAIEmbeddings, shared_out
from proxy.terms import Exchange, Identity, Model, Reason, Rows
from tests.protocols.json_texts import TEXTS, damaged, examples

CODEC: Final = OpenAIEmbeddings()
HERE: Final = Endpoint(None)
NUMBERS: Final = st.sampled_from(["0.1", "-0.0", "1.50", "1e-400", "-2.5e+10", "3", "9007199254740993"])


def model(rows: Rows = Rows.ITEMS, limit: int = ANY_NUMBER) -> Model:
    return Model("m", rows, limit, 1, Identity((), 0.0, "", known=False))


def parsed(body: object, **more: Any) -> Call:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    call = CODEC.parse(HERE, Message(text), model(**more))
    assert isinstance(call, Call), (call, text)
    return call


def refused(body: object, **more: Any) -> Reason:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    reason = CODEC.parse(HERE, Message(text), model(**more))
    assert isinstance(reason, Reason), (reason, text)
    return reason


def whole(call: Call) -> list[Part]:
    return [Part(call, tuple(range(len(call.items))))]


class Backend:
    """Answers as a server does: an embedding depends on its input alone, `usage` counts all of them.

    form: whose answers these look like. numbers: the lexemes that it makes embeddings of.
    """

    def __init__(self, form: str = "vllm", numbers: Sequence[str] = ("0.5", "0.25")) -> None:
        self._form = form
        self._numbers = numbers
        self._count = 0

    def __repr__(self) -> str:
        return f"Backend({self._form!r}, {self._numbers!r})"

    def __call__(self, body: bytes) -> bytes:
        asked = json.loads(body)
        inputs = asked["input"]
        if isinstance(inputs, str) or isinstance(inputs[0], int):
            inputs = [inputs]
        in_base64 = asked.get("encoding_format") == "base64"
        data = [self._element(one, place, in_base64=in_base64) for place, one in enumerate(inputs)]
        tokens = sum(map(self.tokens, inputs))
        self._count += 1
        name = json.dumps(asked.get("model", "default"))
        usage = f'"prompt_tokens":{tokens},"total_tokens":{tokens}'
        if self._form == "vllm":
            random.Random(self._count).shuffle(data)  # its order is nobody's promise: `index` says what is what
            usage += ',"completion_tokens":0,"prompt_tokens_details":null'
            frame = (
                f'{{"id": "embd-{self._count}", "object": "list", "created": {self._count}, "model": {name}, '
                f'"data": [{", ".join(data)}], "usage": {{{usage}}}}}'
            )
        elif self._form == "llama.cpp":
            frame = f'{{"model":{name},"object":"list","usage":{{{usage}}},"data":[{",".join(data)}]}}'
        else:
            frame = f'{{"object":"list","data":[{",".join(data)}],"model":{name},"usage":{{{usage}}}}}'
        return frame.encode()

    @staticmethod
    def tokens(one: str | list[int]) -> int:
        return len(one) if isinstance(one, list) else 2 + one.count(" ") + one.count("a")

    def _element(self, one: str | list[int], place: int, *, in_base64: bool) -> str:
        chance = random.Random(repr(one))
        numbers = chance.choices(self._numbers, k=3)
        embedding = f"[{','.join(numbers)}]"
        more = ""
        if in_base64:
            embedding = json.dumps(base64.b64encode(array("f", map(float, numbers)).tobytes()).decode())
            more = ',"encoding_format":"base64"' if self._form == "llama.cpp" else ""
        return f'{{"embedding":{embedding},"index":{place},"object":"embedding"{more}}}'


DATA: Final = b'[{"index":0,"embedding":[1]},{"index":1,"embedding":[2]}]'
USAGE: Final = b'{"prompt_tokens":4,"total_tokens":4}'


def framed(*, data: bytes = DATA, usage: bytes = USAGE, more: bytes = b"") -> bytes:
    return b'{"object":"list","data":%s,"model":"m","usage":%s%s}' % (data, usage, more)


BACKENDS: Final = st.builds(
    Backend, st.sampled_from(["vllm", "llama.cpp", "tei"]), st.lists(NUMBERS, min_size=1, max_size=4)
)
INPUT_TEXTS: Final = st.text(st.sampled_from('a b"\\é😀\u2028\n[1],{'), min_size=1, max_size=12)
INPUT_IDS: Final = st.lists(st.integers(0, 2**31), min_size=1, max_size=5)
SHARED: Final = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "n", 'q"uote']),
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.sampled_from([2, 2.0, "2", None, True]),
        "user": st.sampled_from(["a", "b"]),
        "truncate_prompt_tokens": st.just(-1),
        "x": st.just({"y": [1, {"z": "w"}]}),
    },
)
INPUTS: Final = st.one_of(st.lists(INPUT_TEXTS, min_size=1, max_size=4), st.lists(INPUT_IDS, min_size=1, max_size=4))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A caller's body, its `input` bare where it may be, escaped as its language does, keys in any order."""
    asked: Any = draw(INPUTS)
    if len(asked) == 1 and draw(st.booleans()):
        asked = asked[0]
    members = list((draw(SHARED) | {"input": asked}).items())
    draw(st.randoms()).shuffle(members)
    ascii_only, spaced = draw(st.booleans()), draw(st.booleans())
    return json.dumps(dict(members), ensure_ascii=ascii_only, indent=1 if spaced else None).encode()


def meaning(answer: bytes) -> Any:
    """An answer as a client reads it, numbers as they were written, what a backend makes up left out."""
    read = json.loads(answer, parse_float=str, parse_int=str)
    read["data"].sort(key=lambda element: int(element["index"]))
    return {name: value for name, value in read.items() if name not in ("id", "created")}


@st.composite
def company(draw: st.DrawFn) -> list[Part]:
    """Parts of calls that may ride together."""
    shared = draw(SHARED)
    inputs = draw(st.sampled_from([INPUT_TEXTS, INPUT_IDS]))
    parts = []
    for asked in draw(st.lists(st.lists(inputs, min_size=1, max_size=4), min_size=1, max_size=4)):
        call = parsed({**shared, "input": asked})
        indexes = draw(st.sets(st.integers(0, len(asked) - 1), min_size=1))
        parts.append(Part(call, tuple(sorted(indexes))))
    return parts


def alone(call: Call, index: int) -> Part:
    """One item as a call of its own."""
    return Part(Call(shared=call.shared, items=(call.items[index],), joins=True), (0,))


@given(parts=company(), backend=BACKENDS)
@examples(200)
def test_whoever_rides_along_each_gets_its_own_embeddings(parts: list[Part], backend: Backend) -> None:
    """Every text of a joined request is answered as if it had been asked alone, but for a guess at its tokens."""
    joined = CODEC.join(parts, "id", [0.0] * len(parts))
    assert (joined.path, joined.fields) == (None, ())
    answer = backend(joined.body)
    results = CODEC.split(Message(answer), parts, "id")
    assert results is not None
    assert [len(each) for each in results] == [len(part.indexes) for part in parts]
    counted = 0
    for part, each in zip(parts, results, strict=True):
        for index, result in zip(part.indexes, each, strict=True):
            single = alone(part.call, index)
            got = CODEC.answer(single.call, [result])
            assert got is not None
            expected = meaning(backend(CODEC.join([single], "id", [0.0]).body))
            assert meaning(got.body) | {"usage": None} == expected | {"usage": None}
            assert got.fields == (ESTIMATED if sum(map(len, results)) > 1 else ())
            usage = json.loads(got.body)["usage"]
            assert usage["prompt_tokens"] == usage["total_tokens"]
            counted += usage["total_tokens"]
    assert counted == json.loads(answer)["usage"]["total_tokens"]


@given(body=bodies(), backend=BACKENDS)
@examples(200)
def test_a_call_answered_alone_comes_back_from_its_items(body: bytes, backend: Backend) -> None:
    """What was answered alone and is put together again says what the backend said, its exact token counts included."""
    call = parsed(body)
    answer = backend(body)
    results = CODEC.split(Message(answer), whole(call), None)
    assert results is not None
    got = CODEC.answer(call, results[0])
    assert got is not None
    assert got.fields == ()
    assert meaning(got.body) == meaning(answer)
    if len(call.items) == 1:
        assert got.body == answer
    else:
        assert [element["index"] for element in json.loads(got.body)["data"]] == list(range(len(call.items)))
        assert list(json.loads(got.body)) == list(json.loads(answer))


@given(answers=st.lists(st.lists(INPUT_TEXTS, min_size=1, max_size=3), min_size=1, max_size=4), chance=st.randoms())
@examples(200)
def test_token_counts_are_called_exact_only_where_they_are(answers: list[list[str]], chance: random.Random) -> None:
    """Whatever answers a call's texts come from, its `usage` is what the backend would say, or says `estimated`."""
    backend = Backend()
    known: dict[str, bytes] = {}
    for texts in answers:
        call = parsed({"input": texts})
        results = CODEC.split(Message(backend(json.dumps({"input": texts}).encode())), whole(call), None)
        assert results is not None
        known |= dict(zip(texts, results[0], strict=True))
    texts = chance.choices(list(known), k=chance.randint(1, len(known) + 1))
    got = CODEC.answer(parsed({"input": texts}), [known[text] for text in texts])
    assert got is not None
    tokens = json.loads(got.body)["usage"]["total_tokens"]
    assert got.fields == ESTIMATED or tokens == sum(map(backend.tokens, texts))


def test_a_guess_at_tokens_says_so() -> None:
    """A text answered in company and then asked for alone, or with others, carries `Forebay-Usage: estimated`."""
    backend, together = Backend(), {"input": ["a", "b b b", "c"]}
    call = parsed(together)
    (results,) = CODEC.split(Message(backend(json.dumps(together).encode())), whole(call), None) or [[]]
    exact = CODEC.answer(parsed({"input": ["c", "a", "b b b"]}), [results[2], results[0], results[1]])
    assert exact is not None
    assert exact.fields == ()
    for some in ([0], [0, 1], [0, 1, 1], [0, 1, 2, 2]):
        got = CODEC.answer(parsed({"input": ["a"] * len(some)}), [results[place] for place in some])
        assert got is not None
        assert got.fields == ((b"Forebay-Usage", b"estimated"),)


def test_shares_of_two_answers_are_a_guess() -> None:
    """Texts of two answers, or of one that was counted anew, make no exact sum, however well they seem to fit."""

    def shares(texts: list[str], tokens: int) -> list[bytes]:
        call = parsed({"input": texts})
        usage = b'{"prompt_tokens":%d}' % tokens
        (found,) = CODEC.split(Message(framed(usage=usage)), whole(call), None) or [[]]
        return found

    call = parsed({"input": ["a", "b"]})
    one = shares(["a", "b"], 4)
    for other, fields in ((one, ()), (shares(["c", "b"], 4), ESTIMATED), (shares(["a", "b"], 5), ESTIMATED)):
        got = CODEC.answer(call, [one[0], other[1]])
        assert got is not None
        assert got.fields == fields


@given(total=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 10**4), min_size=1, max_size=40))
@examples(200)
def test_tokens_are_shared_out_by_size(total: int, sizes: list[int]) -> None:
    """No token is lost or made up; each share is rounded, up where most is lost by rounding down."""
    shares, whole = shared_out(total, sizes), sum(sizes)
    assert sum(shares) == total
    lost = [total * size % whole for size in sizes]
    up = [share - total * size // whole for share, size in zip(shares, sizes, strict=True)]
    assert set(up) <= {0, 1}
    for (one, one_up), (other, other_up) in itertools.combinations(zip(lost, up, strict=True), 2):
        assert (one >= other or one_up <= other_up) and (one <= other or one_up >= other_up)


def test_a_longer_text_is_taken_for_more_tokens() -> None:
    """Of tokens that the backend only counted together a text gets its part by bytes, a list of ids by their number."""
    texts = parsed({"input": ["a" * 30, "é" * 5]})
    ids = parsed({"input": [[100000, 100001, 100002], [7]]})
    for call, tokens, expected in ((texts, 40, [30, 10]), (ids, 40, [30, 10])):
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        data = [{"index": place, "embedding": [0.5], "object": "embedding"} for place in (1, 0)]
        answer = {"object": "list", "data": data, "model": "m", "usage": usage}
        results = CODEC.split(Message(json.dumps(answer).encode()), whole(call), None)
        assert results is not None
        got = [CODEC.answer(alone(call, place).call, [result]) for place, result in enumerate(results[0])]
        assert [json.loads(one.body)["usage"]["prompt_tokens"] for one in got if one] == expected


SAME: Final = [
    (b'{"input":"a","model":"m"}', b'{ "model" : "m", "input" : [ "a" ] }'),
    ('{"input":"é/\\n"}'.encode(), b'{"input":"\\u00e9\\/\\u000a"}'),
    (b'{"input":[1,2]}', b'{"input":[[1, 2]]}'),
    (b'{"input":"a","x":{"b":1,"a":2}}', b'{"x":{"a":2,"b":1},"input":"a"}'),
]
DIFFERENT: Final = [
    (b'{"input":"[1]"}', b'{"input":[1]}'),
    (b'{"input":"1"}', b'{"input":[1]}'),
    (b'{"input":"a"}', b'{"input":"A"}'),
    (b'{"input":"a"}', b'{"input":"a "}'),
    (b'{"input":[12]}', b'{"input":[1,2]}'),
    *[
        (b'{"input":"a"%s}' % one, b'{"input":"a"%s}' % other)
        for one, other in itertools.combinations(
            [
                b"",
                b',"dimensions":1',
                b',"dimensions":1.0',
                b',"dimensions":"1"',
                b',"dimensions":true',
                b',"dimensions":null',
                b',"encoding_format":"float"',
                b',"encoding_format":"base64"',
                b',"user":"a"',
                b',"user":"b"',
                b',"model":"m"',
                b',"unknown":[1,2]',
                b',"unknown":[2,1]',
                b',"stream":true',
            ],
            2,
        )
    ],
]


def key(body: bytes, rows: Rows = Rows.ITEMS) -> tuple[bytes, tuple[bytes, ...]]:
    call = parsed(body, rows=rows)
    return call.shared, call.items


@pytest.mark.parametrize(("one", "other"), SAME)
def test_how_a_body_is_written_does_not_show(one: bytes, other: bytes) -> None:
    """White space, order, escapes, and a list around a single input make no other question."""
    assert key(one) == key(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_may_change_an_answer_shows(one: bytes, other: bytes) -> None:
    """Texts and token ids never meet, and every other member of the body counts, with the type of its value."""
    assert key(one) != key(other)
    assert key(one, Rows.WHOLE) != key(other, Rows.WHOLE)


@given(one=bodies(), other=bodies())
@examples(200)
def test_equal_keys_mean_equal_questions(one: bytes, other: bytes) -> None:
    """Two calls with equal keys ask the same: no caller gets another's answer."""

    def question(body: bytes) -> tuple[Any, list[Any]]:
        said = json.loads(body)
        asked = said.pop("input")
        listed = [asked] if isinstance(asked, str) or isinstance(asked[0], int) else asked
        return json.dumps(said, sort_keys=True), listed

    assert (key(one) == key(other)) == (question(one) == question(other))
    assert key(one) != key(one, Rows.WHOLE)


UNPARSED: Final = [
    b"",
    b"[]",
    b'"a"',
    b"{}",
    b'{"model":"m"}',
    b'{"input":""}',
    b'{"input":[]}',
    b'{"input":["a",""]}',
    b'{"input":[[]]}',
    b'{"input":[[1],[]]}',
    b'{"input":["a",[1]]}',
    b'{"input":["a",1]}',
    b'{"input":[1,"a"]}',
    b'{"input":[1,[1]]}',
    b'{"input":[1.0]}',
    b'{"input":[-1]}',
    b'{"input":[true]}',
    b'{"input":[[["a"]]]}',
    b'{"input":[null]}',
    b'{"input":[[true]]}',
    b'{"input":[[1],["a"]]}',
    b'{"input":[[1.5]]}',
    b'{"input":null}',
    b'{"input":7}',
    b'{"input":{"a":1}}',
    b'{"input":[{"text":"a"}]}',
    b'{"input":"a"',
    b'{"input":"a"} x',
    b'{"input":"\xff"}',
    b'{"input":"\\ud800"}',
]


@pytest.mark.parametrize("body", UNPARSED)
def test_what_is_not_certain_is_left_to_the_backend(body: bytes) -> None:
    """An empty text or list, a mixture, an image, a broken body: all that is the backend's to answer or refuse."""
    assert refused(body) is Reason.UNPARSED
    assert refused(body, rows=Rows.WHOLE) is Reason.UNPARSED


def test_a_key_twice_is_left_to_the_backend() -> None:
    """Readers disagree on which of two equal keys counts."""
    assert refused(b'{"input":"a","model":"m","mod\\u0065l":"n"}') is Reason.DUPLICATE_KEY


def test_more_texts_than_the_backend_takes_are_its_to_refuse() -> None:
    """A call within the limit is read, one above it passes through."""
    assert len(parsed({"input": ["a", "b"]}, limit=2).items) == 2
    assert refused({"input": ["a", "b", "c"]}, limit=2) is Reason.OVER_LIMIT


def test_a_whole_call_is_one_item() -> None:
    """Where rows are no items the call is never joined, and its answer comes back byte for byte."""
    body = b'{"input":["a","b"],"model":"m"}'
    call = parsed(body, rows=Rows.WHOLE)
    assert (call.joins, len(call.items)) == (False, 1)
    answer = Backend()(body)
    results = CODEC.split(Message(answer), whole(call), None)
    assert results == [[answer]]
    assert CODEC.answer(call, results[0]) == Message(answer)


def test_a_joined_request_says_nothing_that_its_callers_did_not() -> None:
    """No default is filled in: an absent `encoding_format` stays absent."""
    calls = [parsed(b'{"model":"m","input":"a"}'), parsed(b'{"input":["b","c"],"model":"m"}')]
    parts = [Part(calls[0], (0,)), Part(calls[1], (1,))]
    assert CODEC.join(parts, "id", [0.0, 0.0]).body == b'{"model":"m","input":["a","c"]}'
    (bare,) = whole(parsed(b'{"input":[5,6]}'))
    assert CODEC.join([bare, bare], "id", [0.0, 0.0]).body == b'{"input":[[5,6],[5,6]]}'


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"<html>",
        framed()[:-1],
        framed(data=b'[{"index":0,"embedding":[1]}]'),
        framed(data=DATA[:-1] + b',{"index":2,"embedding":[3]}]'),
        framed(data=DATA[:-1] + b',{"index":2}]'),
        framed(data=b'[{"index":0,"embedding":[1]},{"index":0,"embedding":[2]}]'),
        framed(data=b'[{"index":1,"embedding":[1]},{"index":2,"embedding":[2]}]'),
        framed(data=b'[{"index":0,"embedding":[1]},{"embedding":[2]}]'),
        framed(data=b'[{"index":0,"embedding":[1]},{"index":1.0,"embedding":[2]}]'),
        framed(data=b'[{"index":0,"embedding":[1]},{"index":"1","embedding":[2]}]'),
        framed(data=b'[{"index":0,"embedding":[1]},{"index":1}]'),
        framed(data=b"[[1],[2]]"),
        framed(data=b"null"),
        framed(usage=b'{"prompt_tokens":4,"total_tokens":4,"cost":0.5}'),
        framed(usage=b'{"prompt_tokens":4,"prompt_tokens_details":{"cached_tokens":1}}'),
        framed(usage=b'{"prompt_tokens":"4"}'),
        framed(usage=b"[4]"),
        framed(more=b',"texts":["a","b"]'),
        framed(more=b',"meta":{"of":0}'),
        framed(more=b',"model":"n"'),
        b'{"error":{"message":"no"}}',
    ],
)
def test_an_answer_that_does_not_add_up_is_not_split(answer: bytes) -> None:
    """A count, an index or a member whose meaning for one text is not known: the callers are then asked for singly."""
    call = parsed({"input": ["a", "b"]})
    assert CODEC.split(Message(answer), whole(call), None) is None
    assert CODEC.split(Message(answer), [alone(call, 0), alone(call, 1)], "id") is None


def test_one_text_is_answered_byte_for_byte() -> None:
    """Of an answer to one text nothing has to be understood but that it is one: every byte comes back."""
    call = parsed({"input": "a"})
    element = b'{"embedding" : [1.50, NaN] , "index" : 0, "x": {}}'
    answer = framed(data=b"[%s]" % element.replace(b", NaN", b""), usage=b'{"cost": 0.5}', more=b', "meta":{"y":[]}')
    results = CODEC.split(Message(answer), whole(call), None)
    assert results == [[answer]]
    assert CODEC.answer(call, results[0]) == Message(answer)
    with_nan = CODEC.split(Message(framed(data=b"[%s]" % element)), whole(call), None)
    assert with_nan is not None
    assert b'"embedding":[1.50,NaN]' in with_nan[0][0]
    assert CODEC.split(Message(b'{"error":{"message":"no"}}'), whole(call), None) is None
    assert CODEC.split(Message(framed()), whole(call), None) is None


def test_what_the_backend_says_beside_is_kept() -> None:
    """Unknown members of an embedding stay with it; of the frame's one stands for all; nulls stay."""
    call = parsed({"input": ["a", "b"]})
    data = b'[{"index":1,"embedding":"AA==","note":"b"},{"index":0,"embedding":"AQ==","note":{"of":"a"}}]'
    usage = b'{"prompt_tokens":5,"total_tokens":5,"completion_tokens":0,"prompt_tokens_details":null}'
    answer = framed(data=data, usage=usage, more=b',"id":"embd-1","created":7,"tier":null')
    results = CODEC.split(Message(answer), whole(call), None)
    assert results is not None
    got = CODEC.answer(call, results[0])
    assert got is not None
    assert meaning(got.body) == meaning(answer)
    assert [json.loads(got.body)[name] for name in ("id", "created", "tier")] == ["embd-1", 7, None]
    again = CODEC.answer(parsed({"input": ["b"]}), [results[0][1]])
    assert again is not None
    assert json.loads(again.body)["data"] == [{"index": 0, "embedding": "AA==", "note": "b"}]


def test_answers_without_usage_are_exact() -> None:
    """Where a backend counts nothing, nothing is guessed."""
    call = parsed({"input": ["a", "b"]})
    for usage in (b"{}", b"null"):
        results = CODEC.split(Message(framed(usage=usage)), whole(call), None)
        assert results is not None
        assert CODEC.answer(alone(call, 1).call, [results[0][1]]) == Message(
            framed(data=b'[{"index":0,"embedding":[2]}]', usage=usage)
        )


def test_results_that_do_not_fit_together_are_refused() -> None:
    """An answer is never put together from two models, two forms, or from what is no result at all."""

    def result(**more: bytes) -> bytes:
        (found,) = CODEC.split(Message(framed(**({"data": b'[{"index":0,"embedding":[1]}]'} | more))), one, None) or [
            []
        ]
        return found[0]

    one = whole(parsed({"input": "a"}))
    call = parsed({"input": ["a", "b"]})
    good = result()
    assert CODEC.answer(call, [good, good]) is not None
    assert CODEC.answer(call, [result(more=b',"id":"1"'), result(more=b',"id":"2"')]) is not None
    assert CODEC.answer(call, [result(more=b',"meta":{"v":1}'), result(more=b',"meta":{"v":1}')]) is not None
    for other in (
        good.replace(b'"model":"m"', b'"model":"n"'),
        good.replace(b'"object":"list"', b'"object":"embedding"'),
        good.replace(b'"model":"m",', b""),
        result(more=b',"id":"1"'),
        result(usage=b'{"prompt_tokens":4}'),
        result(usage=b'{"prompt_tokens":4,"total_tokens":null}'),
        result(usage=b'{"prompt_tokens":4,"total_tokens":0.5}'),
        framed(),
        b"",
        b"x",
        b"{",
        b"abc 0 2 {}",
        good[:-1],
    ):
        assert CODEC.answer(call, [good, other]) is None
        assert CODEC.answer(call, [other, good]) is None
    for value in (b'{"v":2}', b"[1]"):
        assert CODEC.answer(call, [result(more=b',"meta":{"v":1}'), result(more=b',"meta":' + value)]) is None
    assert CODEC.answer(call, [good]) is None
    assert CODEC.answer(call, [good] * 3) is None
    assert CODEC.answer(parsed({"input": "a"}), [b""]) is None


def answered(body: bytes) -> bytes:
    return Backend()(body)


ANYTHING: Final = st.one_of(st.binary(max_size=60), TEXTS, damaged(bodies()), damaged(bodies().map(answered)))


@given(text=ANYTHING, other=ANYTHING)
@examples(200)
def test_nothing_that_comes_breaks_it(text: bytes, other: bytes) -> None:
    """Whatever a caller or a backend sends is read or refused, and never an exception."""
    CODEC.parse(HERE, Message(text), model())
    CODEC.model_in(Message(text))
    for call in (parsed({"input": "a"}), parsed({"input": ["a", "b"]})):
        for results in CODEC.split(Message(text), whole(call), None) or ():
            CODEC.answer(call, results)
        CODEC.answer(call, [text, other][: len(call.items)])
    CODEC.alike(text, other)
    exchange = Exchange(200, b"OK", (), text)
    CODEC.found({MODELS: exchange, "/info": exchange})
    CODEC.facts("m", (exchange, None))
    CODEC.facts("m", (None, exchange))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/openai/v1/embeddings", "/a/b%20c/v1/embeddings"])
def test_embeddings_are_recognised_under_any_prefix(path: str) -> None:
    """`POST …/v1/embeddings` is one, whatever stands before."""
    assert CODEC.recognise("POST", path) == Endpoint(None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/embeddings"),
        ("POST", "/v1/embeddings/"),
        ("POST", "/v1/embeddings/x"),
        ("POST", "/v1/embedding"),
        ("POST", "/embeddings"),
        ("POST", "/xv1/embeddings"),
        ("POST", "/v1/chat/completions"),
    ],
)
def test_nothing_else_is(method: str, path: str) -> None:
    """What only looks like it passes through."""
    assert CODEC.recognise(method, path) is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"m","input":"a"}', "m"),
        (b'{"input":"a","model":"\\u00e9"}', "é"),
        (b'{"model":"m","x":NaN}', "m"),
        (b'{"input":"a"}', ""),
        (b'{"model":null}', ""),
        (b'{"model":7}', ""),
        (b'{"model":["m"]}', ""),
        (b'["model"]', ""),
        (b"", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b'{"model":"m","x":' + b"[" * 100_000, ""),
    ],
)
def test_a_body_names_its_model(body: bytes, name: str) -> None:
    """The model is the body's `model`, where that is a text."""
    assert CODEC.model_in(Message(body)) == name


def test_an_error_reads_as_the_openai_api_writes_it() -> None:
    """Clients find message, type, param and code where they look for them."""
    assert json.loads(CODEC.error(503, 'wait "a" bit')) == {
        "error": {"message": 'wait "a" bit', "type": "server_error", "param": None, "code": 503}
    }
    assert json.loads(CODEC.error(413, "no"))["error"]["type"] == "invalid_request_error"


def listing(*models: dict[str, Any]) -> Exchange:
    return Exchange(200, b"OK", (), json.dumps({"object": "list", "data": list(models)}).encode())


VLLM: Final = {"id": "e5", "object": "model", "owned_by": "vllm", "root": "intfloat/e5", "max_model_len": 512}
LLAMA: Final = {"id": "tiny", "object": "model", "created": 1, "owned_by": "llamacpp", "meta": {"n_embd": 32}}
TEI: Final = {
    "model_id": "bge",
    "model_sha": "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
    "model_type": {"embedding": {"pooling": "cls"}},
    "max_client_batch_size": 8,
    "version": "1.8.0",
}


def tei() -> Exchange:
    return Exchange(200, b"OK", (), json.dumps(TEI).encode())


def test_a_backend_says_that_it_speaks_it() -> None:
    """`protocol: auto` knows vLLM, llama.cpp and their like by their list of models, and TEI by its own word."""
    assert CODEC.found({MODELS: listing(VLLM, VLLM | {"id": "lora"})}) == Found("vllm", ("e5", "lora"))
    assert CODEC.found({MODELS: listing(LLAMA), "/info": None}) == Found("llamacpp", ("tiny",))
    assert CODEC.found({MODELS: listing({"id": "x"})}) == Found("OpenAI API", ("x",))
    assert CODEC.found({MODELS: None, "/info": tei()}) == Found("text-embeddings-inference 1.8.0", ("bge",))
    kserve = Exchange(200, b"OK", (), b'{"models":["m"]}')
    other = Exchange(200, b"OK", (), b'{"data":[{"type":"model","id":"m"}],"has_more":false}')
    for nothing in (
        None,
        kserve,
        other,
        listing(VLLM, {"name": "m"}),
        Exchange(200, b"OK", (), b"<html>"),
        Exchange(404, b"", (), listing(VLLM).body),
    ):
        assert CODEC.found({MODELS: nothing, "/info": None}) is None
        assert CODEC.found({MODELS: nothing, "/info": listing(VLLM)}) is None


def test_what_a_list_says_of_a_model() -> None:
    """A listed model has no limit of its own, and no sign of its weights but what cannot change while it is loaded."""
    facts = CODEC.facts("e5", (listing(VLLM | {"created": 1, "permission": [{"id": "modelperm-1"}]}), None))
    again = CODEC.facts("e5", (listing(VLLM | {"created": 2, "permission": [{"id": "modelperm-2"}]}), None))
    other = CODEC.facts("e5", (listing(VLLM | {"root": "elsewhere"}), None))
    assert facts == again
    assert facts is not None
    assert other is not None
    assert (facts.rows, facts.max_batch_size, facts.versions, facts.counters) == (Rows.ITEMS, ANY_NUMBER, (), None)
    assert facts.state != other.state


def test_a_model_that_is_not_listed_is_read_item_by_item_all_the_same() -> None:
    """llama.cpp answers under any name: such a name is no model that it lists, yet its texts are items."""
    assert CODEC.facts("text-embedding-3-small", (listing(LLAMA), None)) is None
    assert CODEC.rows_of(HERE, model(Rows.WHOLE)) is Rows.ITEMS


def test_tei_says_how_many_texts_it_takes() -> None:
    """Behind TEI's OpenAI endpoint its own limit holds, and its commit names the weights, whatever a body names."""
    facts = CODEC.facts("anything", (None, tei()))
    assert facts is not None
    assert (facts.rows, facts.max_batch_size, facts.versions) == (Rows.ITEMS, 8, (TEI["model_sha"],))


def test_a_backend_that_lists_nothing_may_have_any_model() -> None:
    """Without a list there is nothing to go by: texts are items, and nothing names the weights."""
    assert CODEC.facts("m", (None, None)) == Facts(Rows.ITEMS, ANY_NUMBER, listed=False)


def test_two_batches_may_differ_by_arithmetic() -> None:
    """Embeddings of batches of other sizes are alike within a tolerance, in either format; others are not."""

    def result(*numbers: float, in_base64: bool = False, more: str = "") -> bytes:
        packed = base64.b64encode(array("f", numbers).tobytes()).decode()
        embedding = json.dumps(packed if in_base64 else numbers)
        return framed(data=f'[{{"index":0,"embedding":{embedding}{more}}}]'.encode())

    for in_base64 in (False, True):
        one = result(0.5, -0.25, 1e-7, in_base64=in_base64)
        near = result(0.50001, -0.2500001, -1e-7, in_base64=in_base64)
        far = result(0.5, -0.26, 1e-7, in_base64=in_base64)
        assert CODEC.alike(one, near)
        assert CODEC.alike(one.replace(USAGE, b'{"prompt_tokens":9}'), b"f00 0 2 " + near)
        assert not CODEC.alike(one, far)
        assert not CODEC.alike(one, near.replace(b'"model":"m"', b'"model":"n"'))
    assert not CODEC.alike(result(0.5), result(0.5, in_base64=True))
    assert not CODEC.alike(result(0.5), result(0.5, 0.5))
    assert not CODEC.alike(framed(), framed(data=DATA.replace(b"[2]", b"[3]")))
    assert not CODEC.alike(
        framed(data=b'[{"index":0,"embedding":"AAAA"}]'), framed(data=b'[{"index":0,"embedding":"AA"}]')
    )
    assert repr(CODEC) == "<codec openai_embeddings>"
