"""Fuzz of every codec on its own: nothing raises, nothing takes long, and nothing is answered for anything else."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import Call, Facts, Found, Joined, Message, Part
from proxy.protocols.registry import CODECS
from proxy.terms import Exchange, Headers, Identity, Model, Reason, Rows
from proxy.understanding import MOST_ITEMS
from tests.fidelity.forms import ESTIMATED, without_usage
from tests.fidelity.hostile import LARGE, bodies, mutated, planted
from tests.fidelity.lexed import Twice, lexed
from tests.fidelity.speaking import answer as spoken
from tests.fidelity.targets import BINARY_FIELDS, TARGETS, Target
from tests.protocols.json_texts import examples

T = TypeVar("T")
BY_ITEMS = Model("m", Rows.ITEMS, MOST_ITEMS, 1, Identity(("1",), 0.0, "", known=True))
ENTIRE = Model("m", Rows.WHOLE, MOST_ITEMS, 1, Identity(("1",), 0.0, "", known=True))
BODIES = 60  # a target

SIZE = 2**18
SECONDS = 0.5  # of the processor, for one call of a codec about a body of SIZE bytes


@pytest.fixture(params=TARGETS, ids=repr)
def target(request: pytest.FixtureRequest) -> Target:
    found = request.param
    assert isinstance(found, Target)
    return found


def whole(call: Call) -> Part:
    return Part(call, tuple(range(len(call.items))))


def key(call: Call) -> tuple[bool, bytes, tuple[bytes, ...]]:
    return call.joins, call.shared, call.items


def parsed(target: Target, body: bytes, model: Model = BY_ITEMS) -> Call | Reason:
    call = target.codec.parse(target.endpoint, target.message(body), model)
    assert isinstance(call, Call | Reason), (body, call)
    assert isinstance(call, Reason) or call.items, body
    return call


def joined(target: Target, call: Call) -> Joined:
    return target.codec.join([whole(call)], "forebay-1", [0.0])


def plain(body: bytes) -> Any:
    """What a body says; its text without spaces where that is not the same to every reader."""
    try:
        return lexed(body)
    except Twice:
        return b"".join(body.split())
    except (ValueError, RecursionError):
        return body


def test_what_is_read_means_one_thing(target: Target) -> None:
    """What is taken reads the same to a strict reader; equal keys mean equal requests; joined alone it is itself."""
    known = [(key(call), target.meant(body)) for body in target.valid if isinstance(call := parsed(target, body), Call)]
    assert len(known) == len(target.valid)
    taken = 0

    @examples(BODIES)
    @given(bodies(target.valid))
    def body_is_read(body: bytes) -> None:
        nonlocal taken
        assert isinstance(target.codec.model_in(target.message(body)), str)
        for model in (BY_ITEMS, ENTIRE):
            call = parsed(target, body, model)
            if isinstance(call, Reason):
                continue
            taken += 1
            meant = target.meant(body)
            for other, meaning in known:
                assert other != key(call) or meaning == meant
            if call.joins:
                sent = joined(target, call)
                if sent.path is None:
                    again = target.codec.parse(target.endpoint, Message(sent.body, sent.fields), BY_ITEMS)
                    assert isinstance(again, Call), (body, sent)
                    assert key(again) == key(call)
                    assert sent.fields or target.meant(sent.body) == meant
                else:
                    assert lexed(sent.body)["texts"] == [meant["text"]]

    body_is_read()
    assert taken > 0, "hardly any hostile body was taken: faults are too heavy to show anything"


@pytest.mark.parametrize("target", [target for target in TARGETS if not target.fields], ids=repr)
def test_company_changes_no_answer(target: Target) -> None:
    """What a backend refuses alone is not answered when joined, and what it answers is answered the same.

    The backend here reads no binary tensors: Triton does, in `test_fidelity`.
    """

    @examples(BODIES)
    @given(bodies(target.valid))
    def body_is_answered(body: bytes) -> None:
        call = parsed(target, body)
        if isinstance(call, Reason):
            return
        direct = spoken(target.path, body)
        if call.joins:
            sent = joined(target, call)
            said = spoken(sent.path or target.path, sent.body)
            assert said.status == direct.status, (body, sent)
            judge(target, call, Message(said.body), "forebay-1", direct.body)
        if direct.status == 200 and "stream" not in direct.content_type:
            judge(target, call, Message(direct.body), None, direct.body)

    body_is_answered()


def judge(target: Target, call: Call, said: Message, request_id: str | None, direct: bytes) -> None:
    """Fail unless what is made of an answer, if anything is, is what was to be said."""
    results = target.codec.split(said, [whole(call)], request_id)
    if results is None:
        return
    assert [len(one) for one in results] == [len(call.items)]
    made = target.codec.answer(call, results[0])
    if made is None:
        return
    expected, found = plain(direct), plain(made.body)
    if dict(made.fields).get(ESTIMATED.encode()):
        expected, found = without_usage(expected), without_usage(found)
    if target.codec.name == "v2" and isinstance(found, dict):  # the caller's own id, whatever the answer quoted
        expected, found = ({name: value for name, value in one.items() if name != "id"} for one in (expected, found))
    if target.codec.name == "openai_embeddings" and found != expected:  # they stand in order, wherever they stood
        expected = expected | {"data": sorted(expected["data"], key=lambda one: int(one["index"].lexeme))}
    assert found == expected, (call, said)


def test_no_answer_is_misread(target: Target) -> None:
    """Whatever answers, a result is made only of what says the same again; and no stored result raises."""
    calls = [call for body in target.valid if isinstance(call := parsed(target, body), Call)]
    answers = [(call, spoken(target.path, body)) for call, body in zip(calls, target.valid, strict=True)]
    if target.fields:
        output = b'{"name":"z","datatype":"INT8","shape":[2,1],"parameters":{"binary_data_size":2}}'
        head = b'{"model_name":"m","outputs":[' + output + b"]}"
        fields: Headers = ((BINARY_FIELDS[0][0], b"%d" % len(head)),)
        right = [head + b"\x01\x02"]
    else:
        fields, right = (), [said.body for _, said in answers if said.status == 200]

    @examples(BODIES)
    @given(
        st.sampled_from(calls),
        bodies(right),
        st.sampled_from([None, "forebay-1"]),
        st.lists(mutated(right), max_size=3),
    )
    def answer_is_read(call: Call, body: bytes, request_id: str | None, results: list[bytes]) -> None:
        said = Message(body, fields)
        if target.fields:
            found = target.codec.split(said, [whole(call)], request_id)
            made = found and target.codec.answer(call, found[0])
            assert not made or made.body[-2:] == body[-2:] or not made.fields
        elif request_id is None:
            judge(target, call, said, None, body)
        else:
            target.codec.split(said, [whole(call)], request_id)
        made_up = [*results, body][: len(call.items)]
        made = target.codec.answer(call, made_up)
        assert made is None or isinstance(made, Message)
        assert isinstance(target.codec.alike(body, made_up[0]), bool)

    answer_is_read()
    for call in calls:
        for body in target.misread:
            for request_id in (None, "forebay-1"):
                found = target.codec.split(Message(body), [whole(call)], request_id)
                assert found is None, (call, body)
                target.codec.alike(body, body)


ABOUT = [
    b'{"name":"triton","version":"2.5","versions":["1"],"max_batch_size":8,"input":[{"name":"x","dims":[-1]}],'
    b'"instance_group":[{"count":2,"kind":"KIND_GPU","gpus":[0,1]}],"model_stats":[{"version":"1","inference_count":3,'
    b'"inference_stats":{"success":{"count":1}}}]}',
    b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"x","root":"y","max_model_len":5}]}',
    b'{"models":["m"],"model_version_status":[{"version":"1","state":"AVAILABLE"}]}',
    b'{"model_id":"m","model_sha":"5","max_total_tokens":6,"version":"2.4","router":"text-generation-router"}',
    b'{"model_id":"m","model_type":{"embedding":{"pooling":"cls"}},"max_client_batch_size":32,"version":"1.8"}',
    b'[{"name":"m","version":"1","state":"READY"}]',
    b'te_request_count{method="single"} 5\ntgi_request_success 7\ntgi_request_count 8\n',
]
EXCHANGES = st.one_of(
    st.none(),
    st.builds(
        lambda status, body: Exchange(status, b"", (), body),
        st.sampled_from([200, 200, 200, 204, 301, 404, 500]),
        bodies(ABOUT),
    ),
)


@pytest.mark.parametrize("codec", [*CODECS, TARGETS[-1].codec, TARGETS[-2].codec], ids=repr)
def test_whatever_a_backend_says_of_itself_does_no_harm(codec: Any) -> None:
    """Answers to probes, questions and listings may be anything at all: a fact is one or there is none."""

    @examples(BODIES)
    @given(st.lists(EXCHANGES, min_size=4, max_size=4), st.sampled_from(["m", "", "é/labels/x"]))
    def backend_is_asked(answers: list[Exchange | None], model: str) -> None:
        found = codec.found(dict(zip(codec.probes, answers, strict=False)))
        assert found is None or (isinstance(found, Found) and all(isinstance(name, str) for name in found.models))
        questions = codec.questions(model)
        assert all(path.startswith("/") and path.isascii() and path.isprintable() for path in questions)
        facts = codec.facts(model, answers[: len(questions)])
        assert facts is None or (isinstance(facts, Facts) and facts.max_batch_size >= 0 and facts.instances > 0)
        for answer in answers:
            assert answer is None or all(isinstance(name, str) for name in codec.listed(answer))

    backend_is_asked()


@examples(BODIES)
@given(
    st.sampled_from(["POST", "GET", "post", ""]),
    st.one_of(
        st.text(max_size=20).map("/".__add__),
        mutated([target.path.encode() for target in TARGETS]).map(lambda path: path.decode("utf-8", "surrogateescape")),
    ),
)
def test_whatever_the_path_it_is_somebodys_or_nobodys(method: str, path: str) -> None:
    """A method and a path that no client should send are not recognised, or recognised for good; nothing raises."""
    for target in TARGETS:
        found = target.codec.recognise(method, path)
        assert found is None or found.model is None or found.model.isprintable()
        assert isinstance(target.codec.changes(method, path), bool)


@pytest.mark.parametrize("name", LARGE)
def test_no_body_is_expensive(name: str) -> None:
    """A body that is written to be costly holds the event loop for no longer than a bounded time."""
    value = LARGE[name](SIZE)
    slowest = (0.0, "")
    for number, target in enumerate(TARGETS):
        places = planted(target.valid[0], value)
        for body in (value, places[number % len(places)]):
            timed: Sequence[tuple[str, Callable[[], object]]] = (
                ("parse", functools.partial(parsed, target, body, BY_ITEMS)),
                ("parse whole", functools.partial(parsed, target, body, ENTIRE)),
                ("model_in", functools.partial(target.codec.model_in, target.message(body))),
            )
            for what, work in timed:
                gc.disable()  # it would count what other tests have left
                began = time.process_time()
                work()
                slowest = max(slowest, (time.process_time() - began, f"{what} {target}"))
                gc.enable()
    assert slowest[0] < SECONDS, slowest
