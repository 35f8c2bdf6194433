"""Text Generation Inference: `/generate`, `/generate_stream` and `/`. The whole call is one item and never joins.

As with OpenAI generation, what is saved is the repetition: a greedy call is answered from the response cache and
coalesces with its like.

Invariants
    Greedy is a call whose `parameters` are there and hold nothing by which TGI draws: not `do_sample` alone does it,
    but `temperature`, `top_k`, `top_p` and `typical_p` too, and so does a body without any `parameters` in TGI 1.4
    and 2. A `seed` makes no drawn answer repeat for certain: it fixes the draw, but not the arithmetic before it,
    which is done in batches.
    A `length` stop is kept, asked for or not: the limit that a call does not name is the server's own, and `/info`,
    where it stands, is part of the model's state. Without `details` no answer would say how it ended.
    An answer from the cache is the stored one, byte for byte.
    Weights are named by the commit in `model_sha`. Where there is none (weights from a local folder) it is a count of
    requests that falls which tells that TGI has started anew: it reads its weights only then. An adapter's are named
    by nobody: it is a model that is not listed.

`/info` tells TGI from TEI, which has the same path: TGI has a router and limits of tokens, TEI a `model_type`.

Knows nothing of `/v1/chat/completions`, another codec's, nor of streams: a call for one passes through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from proxy.protocols.codec import ANY_NUMBER, Call, Codec, Endpoint, Facts, Found, Message, Part
from proxy.protocols.json_values import canonical, document, elements, members, spelled, text_of
from proxy.protocols.spans import SPACE, Refusal
from proxy.terms import Exchange, Model, Reason, Rows

INFO: Final = "/info"
METRICS: Final = "/metrics"

_GENERATE, _STREAM, _EITHER = "generate", "generate_stream", "either"
_OPERATIONS: Final = {"/generate": _GENERATE, "/generate_stream": _STREAM, "/": _EITHER}

_ROUTER: Final = "text-generation-router"
_LIMIT: Final = "max_total_tokens"

_COUNTED: Final = re.compile(rb"^(tgi_request_(?:count|success)) ([0-9]{1,18})\r?$", re.MULTILINE)

_ABSENT: Final = b"null"
_DRAWN: Final = ("do_sample", "temperature", "top_k", "top_p", "typical_p", "watermark")
"""Parameters by which an answer is drawn, or may be (`watermark`), unless they are null or false."""
_FETCHED: Final = re.compile(r"!\[\]\(https?:")
"""In a prompt: an image that TGI fetches for models that see, and that may be another tomorrow."""
_ENDS: Final = frozenset({"length", "eos_token", "stop_sequence"})

_ERROR_TYPES: Final = {
    400: "validation",
    413: "validation",
    422: "validation",
    424: "generation",
    429: "overloaded",
    500: "incomplete_generation",
    503: "overloaded",
}
_ANY_ERROR: Final = "generation"
"""TGI's word for what failed, by status. 400, 413, 503 are not among its own: they have the nearest ones."""


class _Adapter(msgspec.Struct):
    adapter_id: str | None = None


class _Named(msgspec.Struct):
    parameters: _Adapter | None = None


_NAMED: Final = msgspec.json.Decoder(_Named, strict=True).decode


class TGI(Codec):
    """The codec. It holds no state."""

    name = "tgi"
    protocol = "tgi"
    paths = ("/generate",)
    probes = (INFO,)

    def recognise(self, method: str, path: str) -> Endpoint | None:
        operation = _OPERATIONS.get(path) if method == "POST" else None
        return Endpoint(None, operation=operation) if operation else None

    def model_in(self, message: Message) -> str:
        """The adapter; TGI serves one model beside."""
        try:
            named = _NAMED(message.body).parameters
        except (msgspec.DecodeError, RecursionError):
            return ""
        return (named.adapter_id or "") if named else ""

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        if endpoint.operation == _STREAM:
            return Reason.STREAMED
        text = document(message.body)
        if isinstance(text, Refusal):
            return text.reason
        item = canonical(text)
        body = members(item)
        if body is None or (prompt := text_of(body.get("inputs"))) is None:
            return Reason.UNPARSED
        streams, parameters = body.get("stream", b"false"), members(body.get("parameters", b"{}"))
        if parameters is None or streams not in (b"true", b"false"):
            return Reason.UNPARSED
        if streams == b"true":
            return Reason.STREAMED
        greedy = "parameters" in body and _is_greedy(parameters) and _FETCHED.search(prompt) is None
        return Call(shared=b"", items=(item,), joins=False, deterministic=greedy)

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        return [[answer.body]] if _is_whole(answer.body) else None

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != 1:
            return None
        text = results[0].strip(SPACE)
        return Message(results[0]) if text[:1] + text[-1:] in (b"{}", b"[]") else None

    def error(self, status: int, message: str) -> bytes:
        return msgspec.json.encode({"error": message, "error_type": _ERROR_TYPES.get(status, _ANY_ERROR)})

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        info = _info(answers.get(INFO))
        if info is None:
            return None
        version = text_of(info.get("version"))
        return Found(f"TGI {version}" if version else "TGI", (text_of(info["model_id"]) or "",))

    def questions(self, model: str) -> tuple[str, ...]:
        return INFO, METRICS

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        info = _info(answers[0])
        if info is None:
            return None
        state, sha = canonical(spelled(info)), text_of(info.get("model_sha"))
        if model:
            return Facts(Rows.WHOLE, ANY_NUMBER, state=state, listed=False)
        if sha:
            return Facts(Rows.WHOLE, ANY_NUMBER, versions=(sha,), state=state)
        counters = _counters(answers[1])
        answered = counters.get("tgi_request_success") if counters else None
        return Facts(Rows.WHOLE, ANY_NUMBER, state=state, counters=counters, answered=answered)


def _is_greedy(parameters: Mapping[str, bytes]) -> bool:
    drawn = any(parameters.get(name, _ABSENT) not in (_ABSENT, b"false") for name in _DRAWN)
    return not drawn and parameters.get("best_of", _ABSENT) in (_ABSENT, b"1")


def _is_whole(body: bytes) -> bool:
    """Is it an answer to one prompt, alone as `/generate` gives it or in a list as `/` does?"""
    text = document(body)
    if isinstance(text, Refusal):
        return False
    listed = elements(text)
    answer = members(text if listed is None else listed[0] if len(listed) == 1 else b"")
    if answer is None or "error" in answer or text_of(answer.get("generated_text")) is None:
        return False
    details = answer.get("details", _ABSENT)
    return details == _ABSENT or text_of((members(details) or {}).get("finish_reason")) in _ENDS


def _info(answer: Exchange | None) -> dict[str, bytes] | None:
    """What TGI says of itself; None if it is not TGI that says it, or if nobody says anything."""
    text = document(answer.body) if answer is not None and answer.status == 200 else Refusal.MALFORMED
    info = None if isinstance(text, Refusal) else members(text)
    if info is None or text_of(info.get("model_id")) is None or _LIMIT not in info or "model_type" in info:
        return None
    return info if (text_of(info.get("router")) or _ROUTER).startswith(_ROUTER) else None


def _counters(metrics: Exchange | None) -> dict[str, int] | None:
    """Requests by what became of them; None where none are counted, as before the first one."""
    if metrics is None or metrics.status != 200:
        return None
    return {name.decode(): int(count) for name, count in _COUNTED.findall(metrics.body)} or None
