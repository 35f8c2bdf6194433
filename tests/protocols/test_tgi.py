"""Promises of the TGI codec: greedy calls are answered again, byte for byte; drawn and streamed ones never are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import ANY_NUMBER, Call, Endpoint, Facts, Found, Message, Part
from proxy.protocols.tgi import INFO, METRICS, TGI
from proxy.terms import Exchange, Identity, Model, Reason, Rows
from tests.protocols.json_texts import SPACES, TEXTS, damaged, examples
from tests.protocols.slow_json import Lexed, Pairs, slow_read

CODEC = TGI()
GENERATE, STREAM, EITHER = [Endpoint(None, operation=name) for name in ("generate", "generate_stream", "either")]
MODEL = Model("", Rows.WHOLE, 1, 1, Identity(("sha",), 0.0, "", known=True))
SHA = "e985a63cdc139290c5f700ff1929f0b5942cced2"

INFO_BODY: dict[str, Any] = {
    "model_id": "bigscience/bloom-560m",
    "model_sha": SHA,
    "model_pipeline_tag": "text-generation",
    "max_concurrent_requests": 128,
    "max_best_of": 2,
    "max_stop_sequences": 4,
    "max_input_tokens": 1024,
    "max_total_tokens": 2048,
    "validation_workers": 2,
    "max_client_batch_size": 4,
    "router": "text-generation-router",
    "version": "2.4.1-dev0",
    "sha": None,
    "docker_label": None,
}
TEI_INFO: dict[str, Any] = {
    "model_id": "BAAI/bge-small-en-v1.5",
    "model_sha": SHA,
    "model_dtype": "float16",
    "model_type": {"embedding": {"pooling": "cls"}},
    "max_concurrent_requests": 512,
    "max_input_length": 512,
    "max_batch_tokens": 16384,
    "max_client_batch_size": 32,
    "auto_truncate": False,
    "tokenization_workers": 2,
    "version": "1.7.0",
}


def text(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def parse(body: object, endpoint: Endpoint = GENERATE) -> Call | Reason:
    return CODEC.parse(endpoint, Message(text(body)), MODEL)


def called(body: object, endpoint: Endpoint = GENERATE) -> Call:
    call = parse(body, endpoint)
    assert isinstance(call, Call), (call, body)
    return call


def asked(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "My name is", "parameters": parameters}


def kept(body: object) -> bytes | None:
    """What is kept of an answer: its one result, or None."""
    split = CODEC.split(Message(text(body)), [Part(called(asked()), (0,))], None)
    if split is None:
        return None
    ((result,),) = split
    return result


def said(body: object, status: int = 200) -> Exchange:
    return Exchange(status, b"", (), text(body))


def facts(info: object, metrics: Exchange | None = None, model: str = "") -> Facts | None:
    return CODEC.facts(model, [said(info), metrics])


# --- whose request it is


def test_exactly_tgis_own_paths_are_known() -> None:
    """`/generate`, `/generate_stream` and `/` are TGI's, as POST and in no other spelling."""
    assert CODEC.recognise("POST", "/generate") == GENERATE
    assert CODEC.recognise("POST", "/generate_stream") == STREAM
    assert CODEC.recognise("POST", "/") == EITHER
    assert CODEC.recognise("GET", "/generate") is None
    for path in ("", "/generate/", "//generate", "/v1/generate", "/v2/models/m/generate", "/generate_", "/Generate"):
        assert CODEC.recognise("POST", path) is None


# --- what repeats


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"do_sample": False},
        {"do_sample": None, "temperature": None, "top_k": None, "top_p": None, "typical_p": None, "seed": None},
        {"max_new_tokens": 20, "stop": ["."], "repetition_penalty": 1.1, "frequency_penalty": 0.1},
        {"details": True, "decoder_input_details": True, "top_n_tokens": 3},
        {"best_of": 1, "watermark": False, "return_full_text": False, "truncate": 10},
        {"seed": 7},
        {"grammar": {"type": "regex", "value": "[a-z]+"}},
        {"nobody_knows_this": 1},
    ],
    ids=str,
)
def test_a_call_that_says_nothing_of_drawing_is_greedy(parameters: dict[str, Any]) -> None:
    """Lengths, penalties, details and grammars leave a call one that repeats, at both paths."""
    assert called(asked(**parameters)).deterministic
    assert called(asked(**parameters) | {"stream": False}, EITHER).deterministic


@pytest.mark.parametrize(
    "parameters",
    [
        {"do_sample": True},
        {"do_sample": True, "seed": 7},
        {"do_sample": 1},
        {"temperature": 0.5},
        {"temperature": 1.0},
        {"temperature": 0},
        {"temperature": 0.01, "seed": 7},
        {"top_k": 10},
        {"top_p": 0.95},
        {"typical_p": 0.95},
        {"watermark": True},
        {"best_of": 2},
    ],
    ids=str,
)
def test_a_call_that_draws_does_not_repeat(parameters: dict[str, Any]) -> None:
    """TGI draws as soon as any parameter of drawing is there, `do_sample` or not; a `seed` is no promise."""
    assert not called(asked(**parameters)).deterministic
    assert not called(asked(**({"do_sample": False} | parameters)), EITHER).deterministic


def test_without_parameters_a_call_may_draw() -> None:
    """TGI 1.4 and 2 draw where a body has no `parameters` at all: such a call is not taken for one that repeats."""
    assert not called({"inputs": "My name is"}).deterministic
    assert called({"inputs": "My name is", "parameters": {}}).deterministic


def test_an_image_that_lies_elsewhere_does_not_repeat() -> None:
    """TGI fetches images that a prompt names, and they may be others tomorrow; those in the prompt stay the same."""
    assert not called({"inputs": "![](https://example.org/now.png) What is it?", "parameters": {}}).deterministic
    assert not called(b'{"inputs":"\\u0021[](http:\\/\\/example.org/now.png)","parameters":{}}').deterministic
    assert called({"inputs": "![](data:image/png;base64,AAAA) What is it?", "parameters": {}}).deterministic
    assert called({"inputs": "[a link](https://example.org)", "parameters": {}}).deterministic


# --- what is not read


def test_streams_pass_through() -> None:
    """A call for a stream goes through as it is, by its path or by its own word."""
    assert parse(asked(), STREAM) is Reason.STREAMED
    assert parse(b"what", STREAM) is Reason.STREAMED
    assert parse(asked() | {"stream": True}, EITHER) is Reason.STREAMED
    assert parse(asked() | {"stream": True}) is Reason.STREAMED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"inputs":"a"',
        b'{"inputs":"\xff"}',
        {},
        {"inputs": None},
        {"inputs": ["a", "b"], "parameters": {}},
        {"inputs": {"text": "a"}},
        {"inputs": "a", "parameters": None},
        {"inputs": "a", "parameters": []},
        {"inputs": "a", "parameters": "{}"},
        {"inputs": "a", "stream": None},
        {"inputs": "a", "stream": "true"},
        {"inputs": "a", "stream": 1},
    ],
    ids=str,
)
def test_a_body_that_would_have_to_be_guessed_at_passes_through(body: object) -> None:
    """What is no TGI body, or could be taken in two ways, is the backend's to judge."""
    assert parse(body) is Reason.UNPARSED
    assert parse(body, EITHER) is Reason.UNPARSED


def test_a_key_that_comes_twice_passes_through() -> None:
    """Readers disagree on which of two equal keys counts: such a body is never given another one's answer."""
    assert parse(b'{"inputs":"a","inputs":"b","parameters":{}}') is Reason.DUPLICATE_KEY
    assert parse(b'{"inputs":"a","parameters":{"do_sample":true,"do_s\\u0061mple":false}}') is Reason.DUPLICATE_KEY


@given(damaged(TEXTS))
@examples(200)
def test_no_body_makes_the_codec_fail(body: bytes) -> None:
    """Whatever bytes come, they are a call or pass through, are kept or not, and are TGI's word or nobody's."""
    for asks in (body, b'{"inputs":"a","parameters":' + body + b"}", b'{"inputs":' + body + b',"parameters":{}}'):
        assert isinstance(parse(asks), Call | Reason)
        assert isinstance(CODEC.model_in(Message(asks)), str)
    for answered in (body, b"[" + body + b"]", b'{"generated_text":"a","details":' + body + b"}"):
        assert kept(answered) in (None, answered)
    for info in (body, b'{"model_id":"m","max_total_tokens":1,"router":' + body + b"}"):
        assert isinstance(CODEC.found({INFO: said(info)}), Found | None)
        assert isinstance(facts(info, said(body)), Facts | None)


# --- what is the same call


def meaning(value: Lexed) -> object:
    """A value in which the order of keys does not count, but lexemes do."""
    if isinstance(value, Pairs):
        return {key: meaning(inner) for key, inner in value}
    if isinstance(value, list):
        return [meaning(inner) for inner in value if not isinstance(inner, tuple)]
    return value


@given(TEXTS, TEXTS, SPACES, st.booleans())
@examples(200)
def test_two_calls_are_one_exactly_if_they_mean_the_same(one: bytes, other: bytes, gap: bytes, turned: bool) -> None:
    """White space and the order of keys do not show; every other difference makes another call."""

    def body(extra: bytes, gap: bytes, *, turned: bool) -> bytes:
        pieces = [b'"inputs":' + gap + b'"a"', b'"parameters":{"x":' + gap + extra + b"}"]
        return b"{" + (b"," + gap).join(reversed(pieces) if turned else pieces) + gap + b"}"

    first, second = parse(body(one, b"", turned=False)), parse(body(one, gap, turned=turned))
    if isinstance(first, Reason):
        assert first is second
        return
    assert isinstance(second, Call)
    assert (first.shared, first.items) == (second.shared, second.items)
    assert not first.joins
    third = parse(body(other, gap, turned=turned))
    if isinstance(third, Call):
        (mine, _), (others, _) = slow_read(one), slow_read(other)
        assert ((first.shared, first.items) == (third.shared, third.items)) == (meaning(mine) == meaning(others))


# --- which answers are kept


@pytest.mark.parametrize(
    "body",
    [
        {"generated_text": " Olivier"},
        [{"generated_text": " Olivier"}],
        {"generated_text": ""},
        {"generated_text": "a", "details": None},
        {"generated_text": "a", "details": {"finish_reason": "length", "generated_tokens": 20, "seed": None}},
        [{"generated_text": "a", "details": {"finish_reason": "eos_token"}}],
        b' {"generated_text" : "a",\t"details":{"finish_reason":"stop_sequence","tokens":[{"logprob":-0.0}]}}\r\n',
    ],
    ids=str,
)
def test_a_whole_answer_is_kept_byte_for_byte(body: object) -> None:
    """An answer is kept as it came, from either path; a `length` stop is one, as TGI's limit is part of the model."""
    result = kept(body)
    assert result == text(body)
    assert CODEC.answer(called(asked()), [result]) == Message(text(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"data:{}\n\n",
        {},
        [],
        7,
        {"error": "Model is overloaded", "error_type": "overloaded"},
        {"generated_text": "a", "error": "Incomplete generation"},
        {"generated_text": None},
        {"generated_text": 7},
        {"generated_text": "a", "details": {}},
        {"generated_text": "a", "details": 7},
        {"generated_text": "a", "details": {"finish_reason": "abort"}},
        {"generated_text": "a", "details": {"finish_reason": None}},
        [{"generated_text": "a"}, {"generated_text": "b"}],
        [[{"generated_text": "a"}]],
        b'{"generated_text":"a"',
        b'{"generated_text":"a","generated_text":"b"}',
    ],
    ids=str,
)
def test_what_is_no_whole_answer_is_not_kept(body: object) -> None:
    """Failed, unfinished or unreadable answers reach their caller and nobody else."""
    assert kept(body) is None


@pytest.mark.parametrize("results", [[], [b""], [b'"a"'], [b'{"generated_text":'], [b"{]"], [b"{}", b"{}"]])
def test_a_result_that_is_none_answers_nobody(results: list[bytes]) -> None:
    """What is not one whole stored answer is asked again instead."""
    assert CODEC.answer(called(asked()), results) is None


# --- errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (422, "validation"),
        (424, "generation"),
        (429, "overloaded"),
        (500, "incomplete_generation"),
        (413, "validation"),
        (502, "generation"),
        (503, "overloaded"),
        (504, "generation"),
    ],
)
def test_errors_read_as_tgi_writes_them(status: int, kind: str) -> None:
    """An error of Forebay's own has TGI's members, with its word for what failed."""
    assert json.loads(CODEC.error(status, 'a "quote"')) == {"error": 'a "quote"', "error_type": kind}


# --- what a backend is, and which weights answer


def test_tgi_is_told_from_tei_and_from_anything_else() -> None:
    """`/info` finds TGI, old and new; TEI, which has the same path, and whatever else answers there are not it."""
    assert CODEC.probes == (INFO,)
    assert CODEC.found({INFO: said(INFO_BODY)}) == Found("TGI 2.4.1-dev0", ("bigscience/bloom-560m",))
    before_routers = {name: value for name, value in INFO_BODY.items() if name != "router"}
    assert CODEC.found({INFO: said(before_routers)}) is not None
    assert CODEC.found({INFO: said(TEI_INFO)}) is None
    assert CODEC.found({INFO: said(INFO_BODY | {"router": "text-embeddings-router"})}) is None
    assert CODEC.found({INFO: said(INFO_BODY | {"model_type": {"reranker": {}}})}) is None
    assert CODEC.found({INFO: said(INFO_BODY, 503)}) is None
    for other in (None, said(b"hello"), said([]), said({}), said({"version": "1.0"}), said({"model_id": "m"})):
        assert CODEC.found({INFO: other}) is None
        assert CODEC.facts("", [other, None]) is None


def test_the_commit_names_the_weights() -> None:
    """`model_sha` is part of every key: an answer does not outlive its weights. Nothing is ever joined."""
    found = facts(INFO_BODY, said(b"tgi_request_count 3\n"))
    assert found is not None
    assert (found.rows, found.max_batch_size, found.versions) == (Rows.WHOLE, ANY_NUMBER, (SHA,))
    assert found.counters is None  # several replicas behind one address agree on the commit, but not on counts


def test_another_configuration_is_another_model() -> None:
    """Whatever changes in `/info`, a token limit say, is a reason to forget answers; the order of its keys is none."""
    found, turned = facts(INFO_BODY), facts(dict(reversed(INFO_BODY.items())))
    limited = facts(INFO_BODY | {"max_total_tokens": 512})
    assert found is not None
    assert turned is not None
    assert limited is not None
    assert found.state == turned.state
    assert found.state != limited.state


def test_weights_without_a_commit_are_watched_by_counting() -> None:
    """Where the weights are a local folder's, a count of requests that falls shows that TGI was started anew."""
    local = INFO_BODY | {"model_sha": None}
    metrics = b"""# HELP tgi_request_count Total number of requests
# TYPE tgi_request_count counter
tgi_request_count 12

# TYPE tgi_request_success counter
tgi_request_success 10
tgi_request_duration_count 99
other_tgi_request_count 99
tgi_request_failure{err="validation"} 2
"""
    found = facts(local, said(metrics))
    assert found is not None
    assert found.versions == ()
    assert found.counters == {"tgi_request_count": 12, "tgi_request_success": 10}
    assert found.answered == 10
    for nothing in (None, said(b""), said(b"nothing here 1\n"), said(metrics, 404)):
        unknown = facts(local, nothing)
        assert unknown is not None
        assert unknown.counters is None
        assert unknown.answered is None
    assert CODEC.questions("") == (INFO, METRICS)


def test_an_adapter_is_a_model_that_is_not_listed() -> None:
    """Nobody names an adapter's weights: its answers live as shortly as those of any model without identity."""
    assert CODEC.model_in(Message(text(asked(adapter_id="team/lora")))) == "team/lora"
    others: tuple[object, ...] = (asked(), asked(adapter_id=None), asked(adapter_id=7), {"inputs": "a"}, [], b"", b"{")
    for body in others:
        assert CODEC.model_in(Message(text(body))) == ""
    adapter = facts(INFO_BODY, model="team/lora")
    assert adapter is not None
    assert not adapter.listed
    assert (adapter.versions, adapter.counters) == ((), None)
