"""Promises of the codec of OpenAI chat and completions: what repeats for certain is answered again, the rest is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.codec import Call, Endpoint, Message, Part
from proxy.protocols.openai_generation import GenerationCall, OpenAIGeneration
from proxy.terms import Exchange, Identity, Model, Reason, Rows
from tests.protocols.json_texts import SCALARS, SPACES, TEXTS, damaged, examples
from tests.protocols.slow_json import Lexed, Malformed, Pairs, slow_read

CODEC = OpenAIGeneration()
CHAT, COMPLETIONS = Endpoint(None, operation="chat"), Endpoint(None, operation="completions")
MODEL = Model("m", Rows.WHOLE, 1, 1, Identity((), 0.0, "", known=False))

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY: dict[str, Any] = {"model": "m", "messages": MESSAGES, "temperature": 0}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Once", "temperature": 0}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {}}}


def text(body: object) -> bytes:
    return json.dumps(body).encode()


def parse(body: object, endpoint: Endpoint = CHAT) -> GenerationCall | Reason:
    message = Message(body if isinstance(body, bytes) else text(body))
    found = CODEC.parse(endpoint, message, MODEL)
    assert isinstance(found, GenerationCall | Reason)
    return found


def called(body: object, endpoint: Endpoint = CHAT) -> GenerationCall:
    call = parse(body, endpoint)
    assert isinstance(call, GenerationCall), (call, body)
    return call


def answer(*ends: str | None, **members: Any) -> dict[str, Any]:
    """A chat answer with a choice for each way to end."""
    choices = [
        {"index": place, "message": {"role": "assistant", "content": "Because."}, "finish_reason": end}
        for place, end in enumerate(ends)
    ]
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices} | members


def kept(body: object, call: Call | None = None) -> bytes | None:
    """What is kept of an answer to `call`: its one result, or None."""
    call = call or called(GREEDY)
    answered = Message(body if isinstance(body, bytes) else text(body))
    split = CODEC.split(answered, [Part(call, (0,))], None)
    if split is None:
        return None
    ((result,),) = split
    return result


# --- whose request it is


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/openai/v1/chat/completions", "chat"),
        ("/a/b/v1/completions", "completions"),
    ],
)
def test_both_endpoints_are_known_under_any_prefix(path: str, operation: str) -> None:
    """Both endpoints are known wherever they are mounted, as POST."""
    assert CODEC.recognise("POST", path) == Endpoint(None, operation=operation)
    assert CODEC.recognise("GET", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1/chat/completions/chatcmpl-1",
        "/v1/completions?x=1",
        "/v1/responses",
        "/v1/embeddings",
        "/chat/completions",
        "/v1/chat/completionsx",
        "/xv1/completions",
        "v1/completions",
        "/v1/CHAT/completions",
    ],
)
def test_other_paths_are_left_alone(path: str) -> None:
    """A path that is not one of the two is nobody's generation."""
    assert CODEC.recognise("POST", path) is None


# --- what repeats


@pytest.mark.parametrize("zero", ["0", "0.0", "-0.0", "-0", "0.000", "0e5", "0.0E-3"])
def test_temperature_zero_in_any_spelling_is_greedy(zero: str) -> None:
    """`temperature` 0 makes a call one that repeats, however the zero is written."""
    assert called(text(GREEDY).replace(b'"temperature": 0', b'"temperature": ' + zero.encode())).deterministic


@pytest.mark.parametrize("other", ["1", "0.7", "1e-400", "0.00001", "null", '"0"', "false", "[0]", "-1", "NaN"])
def test_any_other_temperature_draws(other: str) -> None:
    """What is not zero for certain is a call that draws, a vanishing number and a text included."""
    assert not called(text(GREEDY).replace(b'"temperature": 0', b'"temperature": ' + other.encode())).deterministic


def test_without_a_temperature_a_call_draws() -> None:
    """No `temperature` means the server's default, which draws; a `seed` does not change that."""
    assert not called({"model": "m", "messages": MESSAGES}).deterministic
    assert not called({"model": "m", "messages": MESSAGES, "seed": 7}).deterministic
    assert not called(GREEDY | {"temperature": 0.5, "seed": 7}).deterministic


@pytest.mark.parametrize(
    "more",
    [
        {"n": 1},
        {"n": None},
        {"best_of": 1},
        {"top_p": 1},
        {"top_p": 1.0},
        {"seed": 7},
        {"top_k": 40},
        {"min_p": 0.1},
        {"stop": ["\n"]},
        {"max_tokens": 5},
        {"frequency_penalty": 0.5, "presence_penalty": 1, "repetition_penalty": 1.1},
        {"logprobs": True, "top_logprobs": 3},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {"type": "object"}, "chat_template_kwargs": {"enable_thinking": False}},
        {"tools": [FUNCTION], "tool_choice": "auto"},
        {"tools": None},
        {"tools": []},
        {"use_beam_search": False, "mirostat": 0, "xtc_probability": 0.0, "store": None},
        {"modalities": ["text"]},
        {"user": "someone", "metadata": {"team": "a"}},
        {"kv_transfer_params": None},
        {"nobody_knows_this": {"deep": [1]}},
    ],
    ids=str,
)
def test_what_changes_no_draw_leaves_a_greedy_call_greedy(more: dict[str, Any]) -> None:
    """Limits, penalties, formats, the caller's own tools and what nobody knows leave a greedy call one that repeats."""
    assert called(GREEDY | more).deterministic


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"best_of": 3},
        {"top_p": 0.9},
        {"top_p": 0},
        {"use_beam_search": True},
        {"do_sample": True},
        {"mirostat": 2},
        {"dynatemp_range": 0.5},
        {"xtc_probability": 0.5},
        {"adaptive_target": 0.5},
        {"samplers": ["top_k"]},
        {"samplers": []},
        {"preset": "creative"},
        {"custom_logit_processor": "code"},
        {"logits_processors": ["a.b"]},
        {"web_search_options": {}},
        {"plugins": [{"id": "web"}]},
        {"modalities": ["text", "audio"]},
    ],
    ids=str,
)
def test_what_may_draw_or_search_does_not_repeat(more: dict[str, Any]) -> None:
    """A member by which some engine draws or looks something up makes a call that may be answered otherwise."""
    assert not called(GREEDY | more).deterministic


def picture(url: object) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": url}
    return {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": [part]}]}


def test_an_image_in_the_body_repeats_and_one_elsewhere_does_not() -> None:
    """An image that lies elsewhere may be another one tomorrow; one in the body is the same for ever."""
    assert called(picture({"url": "data:image/png;base64,AAAA", "detail": "low"})).deterministic
    assert not called(picture({"url": "https://example.org/now.png"})).deterministic
    assert not called(picture("http://example.org/now.png")).deterministic
    assert not called(picture({"url": "file:///tmp/now.png"})).deterministic
    assert not called(picture(None)).deterministic  # vLLM: what it holds under the part's uuid
    assert not called(
        {"model": "m", "prompt": "![](https://example.org/now.png) What is it?", "temperature": 0}, COMPLETIONS
    ).deterministic


def test_a_text_about_urls_is_just_a_text() -> None:
    """A prompt that quotes JSON or Markdown with links is no image and repeats."""
    for quoted in (
        '{"url":"https://example.org"}',
        "[link](https://example.org)",
        "![logo](https://example.org/a.png)",
    ):
        assert called({"model": "m", "temperature": 0, "messages": [{"role": "user", "content": quoted}]}).deterministic


# --- what is not read


def test_streams_pass_through() -> None:
    """A call for a stream goes through as it is, at both endpoints and whatever else it says."""
    assert parse(GREEDY | {"stream": True}) is Reason.STREAMED
    assert parse(COMPLETION | {"stream": True, "temperature": 1}, COMPLETIONS) is Reason.STREAMED
    assert isinstance(parse(GREEDY | {"stream": False}), Call)
    assert isinstance(parse(GREEDY | {"stream": None}), Call)


@pytest.mark.parametrize(
    "member",
    [
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"session_params": {"id": "s"}},
        {"bootstrap_room": 7},
        {"store": True},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [FUNCTION, {"type": "mcp"}]},
        {"tools": [{"function": {}}]},
        {"tools": "all"},
    ],
    ids=str,
)
def test_calls_that_act_or_hang_on_what_an_engine_holds_pass_through(member: dict[str, Any]) -> None:
    """A call that does something, or whose answer hangs on blocks or sessions, goes through, drawn or not."""
    assert parse(GREEDY | member) is Reason.STATEFUL
    assert parse(GREEDY | member | {"temperature": 1}) is Reason.STATEFUL


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (b"", CHAT),
        (b"[]", CHAT),
        (b"null", CHAT),
        (b'{"messages":[]', CHAT),
        (b'\xff{"messages":[]}', CHAT),
        (text(COMPLETION), CHAT),
        (text(GREEDY), COMPLETIONS),
        (text(GREEDY | {"messages": "hello"}), CHAT),
        (text(GREEDY | {"model": 7}), CHAT),
        (text(GREEDY | {"stream": 1}), CHAT),
        (text(GREEDY | {"stream": "true"}), CHAT),
        (text(COMPLETION | {"prompt": None}), COMPLETIONS),
        (text(COMPLETION | {"prompt": {}}), COMPLETIONS),
    ],
)
def test_a_body_that_would_have_to_be_guessed_at_passes_through(body: bytes, endpoint: Endpoint) -> None:
    """What is no body of the endpoint, or could be taken in two ways, is the backend's to judge."""
    assert parse(body, endpoint) is Reason.UNPARSED


def test_a_key_that_comes_twice_passes_through() -> None:
    """Readers disagree on which of two equal keys counts: such a body is never given another one's answer."""
    assert parse(b'{"messages":[],"temperature":1,"temperature":0}') is Reason.DUPLICATE_KEY
    assert parse(b'{"messages":[{"role":"user","r\\u006fle":"x"}],"temperature":0}') is Reason.DUPLICATE_KEY


@given(damaged(TEXTS))
@examples(200)
def test_no_body_makes_the_codec_fail(body: bytes) -> None:
    """Whatever bytes come, they are a call or pass through, and as an answer they are kept or not."""
    assert isinstance(parse(body), GenerationCall | Reason)
    assert isinstance(parse(body, COMPLETIONS), GenerationCall | Reason)
    wrapped = b'{"model":"m","temperature":0,"messages":[' + body + b'],"tools":' + body + b"}"
    assert isinstance(parse(wrapped), GenerationCall | Reason)
    for answered in (body, b'{"object":"chat.completion","choices":' + body + b"}"):
        assert kept(answered) in (None, answered)


# --- what is the same call


def meaning(value: Lexed) -> object:
    """A value in which the order of keys does not count, but lexemes do."""
    if isinstance(value, Pairs):
        return {key: meaning(inner) for key, inner in value}
    if isinstance(value, list):
        return [meaning(inner) for inner in value if not isinstance(inner, tuple)]
    return value


def spelled(extra: bytes, gap: bytes, *, turned: bool) -> bytes:
    pieces = [b'"messages":[{"role":"user","content":"hi"}]', b'"temperature":0', b'"extra":' + gap + extra]
    return b"{" + gap + (b"," + gap).join(reversed(pieces) if turned else pieces) + gap + b"}"


@given(TEXTS, TEXTS, SPACES, SPACES, st.booleans())
@examples(200)
def test_two_calls_are_one_exactly_if_they_mean_the_same(
    one: bytes, other: bytes, gap: bytes, other_gap: bytes, turned: bool
) -> None:
    """White space and the order of keys do not show; every other difference makes another call."""
    first = parse(spelled(one, gap, turned=False))
    second = parse(spelled(one, other_gap, turned=turned))
    third = parse(spelled(other, gap, turned=turned))
    if isinstance(first, Reason):
        assert first is second
        return
    assert isinstance(second, Call)
    assert (first.shared, first.items) == (second.shared, second.items)
    assert len(first.items) == 1
    assert not first.joins
    if isinstance(third, Call):
        (mine, _), (others, _) = slow_read(one), slow_read(other)
        assert ((first.shared, first.items) == (third.shared, third.items)) == (meaning(mine) == meaning(others))


@given(SCALARS)
@examples(50)
def test_no_field_is_left_out_of_the_key(value: bytes) -> None:
    """Fields that nobody knows, and those that seem harmless, are part of what a call is."""
    fields = [b"", *(b',"%b":%b' % (name, value) for name in (b"user", b"seed", b"metadata", b"unheard_of"))]
    items = {called(b'{"messages":[],"temperature":0' + field + b"}").items for field in fields}
    assert len(items) == len(fields)


# --- which answers are kept


@pytest.mark.parametrize("end", ["stop", "tool_calls", "function_call", "eos_token", "stop_sequence"])
def test_an_answer_that_came_to_its_end_is_kept_byte_for_byte(end: str) -> None:
    """A whole answer is kept as it came: its white space, its order, its id, its usage."""
    body = b" " + text(answer(end, usage={"total_tokens": 3})).replace(b": ", b" :\t") + b"\r\n"
    call = called(GREEDY)
    result = kept(body, call)
    assert result == body
    assert CODEC.answer(call, [result]) == Message(body)


def test_a_completion_is_kept_as_well() -> None:
    """An answer of /v1/completions to several prompts is kept if every one of them ended."""
    choices = [{"index": place, "text": "upon", "finish_reason": "stop"} for place in range(3)]
    body = {"object": "text_completion", "choices": choices}
    call = called({"prompt": ["a", "b", "c"], "temperature": 0}, COMPLETIONS)
    assert kept(body, call) == text(body)
    choices[1]["finish_reason"] = "length"
    assert kept(body, call) is None


@pytest.mark.parametrize(
    ("limits", "asked_for"),
    [
        ({"max_tokens": 5}, True),
        ({"max_completion_tokens": 5}, True),
        ({"max_tokens": 0}, True),
        ({}, False),
        ({"max_tokens": None}, False),
        ({"max_tokens": -1}, False),
        ({"max_tokens": "5"}, False),
        ({"max_tokens": 5.0}, False),
    ],
    ids=str,
)
def test_an_answer_cut_off_is_kept_only_if_the_caller_asked_for_that(limits: dict[str, Any], asked_for: bool) -> None:
    """A `length` stop is an answer where the caller named the number of tokens, at either endpoint; else it is not."""
    for call in (called(GREEDY | limits), called(COMPLETION | limits, COMPLETIONS)):
        assert (kept(answer("length"), call) is not None) is asked_for


@pytest.mark.parametrize(
    "body",
    [
        answer("content_filter"),
        answer("stop", "content_filter"),
        answer(None),
        answer("abort"),
        answer("error"),
        answer(),
        answer("stop") | {"choices": None},
        answer("stop") | {"choices": [7]},
        answer("stop") | {"choices": [{"index": 0, "message": {}}]},
        answer("stop") | {"choices": [{"finish_reason": "stop", "error": {"code": 502}}]},
        answer("stop", error={"message": "overloaded"}),
        answer("stop", kv_transfer_params={"remote_block_ids": [1]}),
        answer("stop", object="chat.completion.chunk"),
        answer("stop", object="list"),
        answer("stop") | {"object": None},
        {"error": {"message": "no", "type": "server_error"}},
        {},
        [],
        b"",
        b"data: {}\n\ndata: [DONE]\n\n",
        text(answer("stop"))[:-1],
        text(answer("stop"))[:-1] + b',"object":"chat.completion"}',
        b"\xff" + text(answer("stop")),
    ],
    ids=str,
)
def test_what_is_no_whole_answer_is_not_kept(body: object) -> None:
    """Filtered, unfinished, failed or unreadable answers reach their caller and nobody else."""
    assert kept(body) is None


def test_nulls_beside_an_answer_do_no_harm() -> None:
    """An answer in which members are null, as vLLM writes many, is whole."""
    whole = answer("stop", error=None, kv_transfer_params=None, prompt_logprobs=None, service_tier=None)
    assert kept(whole) == text(whole)


@pytest.mark.parametrize("results", [[], [b""], [b"  "], [b"[]"], [b'{"id":'], [b"{}", b"{}"]])
def test_a_result_that_is_none_answers_nobody(results: list[bytes]) -> None:
    """What is not one whole stored answer is asked again instead."""
    assert CODEC.answer(called(GREEDY), results) is None


# --- what it says of backends


def test_errors_read_as_the_api_writes_them() -> None:
    """An error of Forebay's own is one that the SDK understands."""
    said = json.loads(CODEC.error(503, 'the "queue" is full'))
    assert said["error"]["message"] == 'the "queue" is full'
    assert said["error"]["code"] == 503


def test_a_call_is_one_item_whatever_the_backend() -> None:
    """Generation is never joined: a model that is listed says nothing of rows."""
    listed = Exchange(200, b"OK", (), b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}')
    facts = CODEC.facts("m", [listed])
    assert facts is not None
    assert facts.rows is Rows.WHOLE
    assert (facts.versions, facts.counters) == ((), None)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/load_lora_adapter",
        "/lora-adapters",
        "/models/load",
        "/models/unload",
        "/update_weights_from_disk",
        "/wake_up",
        "/prefix/v1/load_lora_adapter",
    ],
)
def test_calls_that_change_weights_are_noticed(path: str) -> None:
    """After an adapter was loaded, or weights were put in place, no older answer is used."""
    assert CODEC.changes("POST", path)
    assert not CODEC.changes("GET", path)


def test_other_calls_change_no_weights() -> None:
    """A call that generates or lists is no reason to forget answers."""
    for path in ("/v1/chat/completions", "/v1/models", "/tokenize", "/models/loaded", "/my-lora-adapters"):
        assert not CODEC.changes("POST", path)


@given(TEXTS)
@examples(100)
def test_a_body_that_is_refused_is_no_json_or_no_call(extra: bytes) -> None:
    """A body of the endpoint's form is refused only where its JSON cannot be trusted."""
    body = b'{"messages":[],"temperature":0,"extra":' + extra + b"}"
    found = parse(body)
    try:
        _, repeated = slow_read(body)
    except Malformed:
        assert found is Reason.UNPARSED
    else:
        assert (found is Reason.DUPLICATE_KEY) == repeated
