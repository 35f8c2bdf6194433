"""OpenAI chat and completions: vLLM, SGLang, TGI, llama.cpp, managed APIs. The whole call is one item and never joins.

Engines put calls together token by token; a call that was joined to others here would only wait for the longest of
them. What Forebay saves is the repetition: a call that decodes greedily is answered from the response cache and
coalesces with its like.

Invariants
    Greedy is what says so itself: `temperature` is 0, and nothing stands beside it by which some engine would draw
    all the same. A `seed` is no such word: engines compute calls in batches, and drawing magnifies what that changes.
    Nor is a call repeated that does something beside answering, or whose answer hangs on what is no part of it.
    An answer is kept only if every choice came to an end that the caller asked for. A `length` stop is one only where
    the caller named the number of tokens: the default is the server's own affair (16 tokens with OpenAI and vLLM, 100
    with TGI, until the context is full with llama.cpp), and an answer does not say which limit it met.
    An answer from the cache is the stored one, byte for byte: `id` and `created` name the computation that it comes
    from, and `usage` is what that one cost. Tool calls keep their ids, which mean something in their own conversation.

What is unknown in a body is part of its key, and taken to leave a greedy call greedy.

Knows nothing of streams: a call for one passes through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.protocols.codec import Call, Endpoint, Message, Part
from proxy.protocols.json_values import canonical, document, elements, members, text_of, whole_number
from proxy.protocols.openai import OpenAI
from proxy.protocols.spans import SPACE, Refusal
from proxy.terms import Model, Reason, Rows

_PATH: Final = re.compile(r"/(?:.*/)?v1/(?:(chat)/)?completions")

_ZERO: Final = re.compile(rb"-?0(?:\.0+)?(?:[eE][+-]?[0-9]+)?")
_ONE: Final = re.compile(rb"1(?:\.0+)?")
_ABSENT: Final = b"null"

_ONES: Final = ("n", "best_of", "top_p")
"""Members that must be 1 if they are there. `top_p`: TGI draws from what it leaves, whatever `temperature` says."""

_UNSETTLING: Final = (
    # llama.cpp: what draws although `temperature` is 0, or leaves that out of the chain (`samplers`)
    "adaptive_target",
    "dynatemp_range",
    "mirostat",
    "samplers",
    "xtc_probability",
    # vLLM, SGLang: another search, and code of the caller's
    "custom_logit_processor",
    "logits_processors",
    "use_beam_search",
    # text-generation-webui, Aphrodite, TabbyAPI: other names for the same; a preset sets any of them
    "do_sample",
    "dynamic_temperature",
    "dynatemp_max",
    "max_temp",
    "mirostat_mode",
    "penalty_alpha",
    "preset",
    "sampler_priority",
    # managed APIs: a search of the web
    "plugins",
    "web_search_options",
)
"""Members after which an answer may differ the next time."""

_TIED: Final = (
    # managed APIs: an audio that expires, a completion that is kept to be fetched later
    "audio",
    "store",
    # vLLM, SGLang: blocks that another engine holds for this call, a session
    "bootstrap_room",
    "kv_transfer_params",
    "session_params",
)
"""Members by which a call leaves something behind, or hangs on what the backend holds for it alone."""

_URL, _AT_HAND = b'url":', (b"{", b'"data:')
"""In canonical messages, where no quoted text matches: how something is brought in, and what is no place elsewhere."""
_IN_TEXT: Final = (b"![](http:", b"![](https:")
"""How TGI finds the images that it fetches: in the text."""

_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_OBJECTS: Final = ("chat.completion", "text_completion")  # TGI 1.4 says the second for both
_ENDS: Final = frozenset({"stop", "eos", "eos_token", "stop_sequence", "tool_calls", "function_call"})
"""Reasons of a choice's end by which it is whole."""
_SPOILT: Final = ("error", "kv_transfer_params")
"""Members of an answer, or of a choice, that say that something went wrong, or that the rest can be fetched once."""

_CHANGES: Final = re.compile(
    r"/(?:.*/)?(?:(?:un)?load_lora_adapter|lora-adapters|models/(?:un)?load|update_weights\w*|wake_up|collective_rpc)"
)


class _Streaming(msgspec.Struct):
    """The one member of a body that is looked at before the rest: most calls stream, and are not read for nothing."""

    stream: bool | None = None


_STREAMING: Final = msgspec.json.Decoder(_Streaming).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall(Call):
    """limited: did the caller name the most tokens that it wants?"""

    limited: bool


class OpenAIGeneration(OpenAI):
    """The codec. It holds no state."""

    name = "openai_generation"
    paths = ("/v1/chat/completions", "/v1/completions")
    rows = Rows.WHOLE

    def recognise(self, method: str, path: str) -> Endpoint | None:
        found = _PATH.fullmatch(path) if method == "POST" else None
        return Endpoint(None, operation="chat" if found[1] else "completions") if found else None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        if _streams(message.body):
            return Reason.STREAMED
        text = document(message.body)
        if isinstance(text, Refusal):
            return text.reason
        item = canonical(text)
        body = members(item)
        if body is None or not _is_understood(body, endpoint.operation):
            return Reason.UNPARSED
        if any(_is_on(body.get(name)) for name in _TIED) or not _are_the_callers(body.get("tools", _ABSENT)):
            return Reason.STATEFUL
        limits = [whole_number(body.get(name)) for name in _LIMITS]
        return GenerationCall(
            shared=b"",
            items=(item,),
            joins=False,
            deterministic=_is_deterministic(body),
            limited=any(limit is not None and limit >= 0 for limit in limits),  # -1: none, to llama.cpp
        )

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        call = parts[0].call
        assert isinstance(call, GenerationCall), call
        return [[answer.body]] if _is_whole(answer.body, limited=call.limited) else None

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != 1:
            return None
        text = results[0].strip(SPACE)
        return Message(results[0]) if text[:1] == b"{" and text[-1:] == b"}" else None

    def changes(self, method: str, path: str) -> bool:
        """Adapters that come and go (vLLM, SGLang, llama.cpp), and weights that are put in place under way."""
        return method == "POST" and _CHANGES.fullmatch(path) is not None


def _streams(body: bytes) -> bool:
    try:
        return _STREAMING(body).stream is True
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_understood(body: Mapping[str, bytes], operation: str) -> bool:
    """Is it a body of this endpoint, so far as it is looked at here? Others mean what their backend makes of them."""
    if operation == "chat":
        asked = body.get("messages", b"")[:1] == b"["
    else:
        asked = body.get("prompt", b"")[:1] in (b'"', b"[")
    named = body.get("model", _ABSENT)
    return asked and (named == _ABSENT or named[:1] == b'"') and body.get("stream", _ABSENT) in (_ABSENT, b"false")


def _is_deterministic(body: Mapping[str, bytes]) -> bool:
    """Will the same call be answered the same? Not where an image lies elsewhere: it may be another one tomorrow."""
    said = body.get("messages") or body.get("prompt", b"")
    return (
        _ZERO.fullmatch(body.get("temperature", b"")) is not None
        and all(body.get(name, _ABSENT) == _ABSENT or _ONE.fullmatch(body[name]) for name in _ONES)
        and not any(_is_on(body.get(name)) for name in _UNSETTLING)
        and body.get("modalities", _ABSENT) in (_ABSENT, b'["text"]')
        and all(piece.startswith(_AT_HAND) for piece in said.split(_URL)[1:])
        and not any(sign in said for sign in _IN_TEXT)
    )


def _is_on(value: bytes | None) -> bool:
    """Is something switched on by this value?"""
    return value is not None and value not in (b"null", b"false") and _ZERO.fullmatch(value) is None


def _are_the_callers(tools: bytes) -> bool:
    """Does the caller run all these tools itself? Others act, or look something up, while the backend answers."""
    if tools == _ABSENT:
        return True
    listed = elements(tools)
    return listed is not None and all((members(tool) or {}).get("type") == b'"function"' for tool in listed)


def _is_whole(body: bytes, *, limited: bool) -> bool:
    """Is it an answer, and is every choice of it as long as the caller wanted it?"""
    text = document(body)
    answer = None if isinstance(text, Refusal) else members(text)
    if answer is None or text_of(answer.get("object")) not in _OBJECTS:
        return False
    choices = [members(choice) or {} for choice in elements(answer.get("choices", b"")) or ()]
    if not choices or any(_is_on(one.get(name)) for one in (answer, *choices) for name in _SPOILT):
        return False
    ends = _ENDS | {"length"} if limited else _ENDS
    return all(text_of(choice.get("finish_reason")) in ends for choice in choices)
