"""A backend that we wrote: every JSON protocol, each answer a function of what the request says and of nothing else.

It reads strictly. What it answers about an item hangs on each lexeme of the item and of everything beside it, and on
the path, but not on white space, escapes and the order of keys; so whatever a joined request or a key leaves out shows.
A text `POISON` anywhere makes the whole request fail; what it refuses it refuses with a digest of the exact bytes.

What real servers do about bytes that are no good is asked for by a header, `X-Say`, one of `SAYINGS`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiohttp import web

from tests.fidelity.lexed import Number, lexed

POISON: Final = "poison"
MODELS: Final = ("small", "large")
SAY: Final = "X-Say"
CASE: Final = "X-Case"


class Said(NamedTuple):
    """An answer. whole: False where the connection ends before the body does."""

    status: int
    body: bytes
    content_type: str = "application/json"
    whole: bool = True


class _Refused(Exception):
    """The request is not what this path takes."""


_LEXEMES: Final = ("1.0", "1e-7", "-0.0", "9007199254740993", "-9223372036854775808", "0.1", "1E+2", "NaN")


def _digest(*values: Any) -> bytes:
    """Of values as `lexed` gave them: tells 1 from 1.0 and from "1"; knows no order of keys."""
    return hashlib.sha256(repr([_sorted(value) for value in values]).encode()).digest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def _holds(value: Any, text: str) -> bool:
    if isinstance(value, dict):
        return any(_holds(one, text) for one in value.values())
    if isinstance(value, list):
        return any(_holds(one, text) for one in value)
    return bool(value == text)


def _holds_float(value: Any) -> bool:
    if isinstance(value, Number):
        return not value.lexeme.lstrip("-").isdigit()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds_float, inner))


def result(*values: Any) -> str:
    """What an item is answered with: JSON of one of several kinds, as a text."""
    digest = _digest(*values)
    number = _LEXEMES[digest[0] % len(_LEXEMES)]
    text = json.dumps(digest.hex()[:8] + 'é"\\\n', ensure_ascii=bool(digest[1] % 2))
    kinds = (number, text, f"[{digest[2]}, {number}]", f'{{"label": {text}, "score": [[{number}]]}}', "null")
    return f"[{kinds[digest[3] % len(kinds)]}, {int.from_bytes(digest[4:12], 'big')}]"


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refused
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _Refused
    return value


def _predict(path: str, body: Any) -> str:
    """V1: one float among the instances makes floats of all of them. `extra`: the answer holds more than results."""
    call = _object(body)
    taken, given = ("examples", "results") if path.endswith((":classify", ":regress")) else ("instances", "predictions")
    rest = {name: value for name, value in call.items() if name not in (taken, "inputs")}
    if (taken in call) == ("inputs" in call):
        raise _Refused
    if "inputs" in call:
        return f'{{"outputs": {result(path, call["inputs"], rest)}}}'
    floats = _holds_float(call[taken])
    each = ", ".join(result(path, one, floats, rest) for one in _list(call[taken]))
    extra = f', "digest": "{_digest(call[taken]).hex()}"' if "extra" in call else ""
    return f'{{"{given}": [{each}]{extra}}}'


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Number) and _is_id(one) for one in value)


def _is_id(number: Number) -> bool:
    return number.lexeme.isascii() and number.lexeme.isdigit()


def _embed(path: str, body: Any) -> str:
    """OpenAI: tokens are counted in a way that no share of bytes gives."""
    call = _object(body)
    given = call.get("input")
    items: list[Any] = [given] if isinstance(given, str) or _is_ids(given) else _list(given)
    texts = all(isinstance(one, str) and one != "" for one in items)
    if not texts and not all(map(_is_ids, items)):
        raise _Refused
    rest = {name: value for name, value in call.items() if name != "input"}
    data = []
    for place, one in enumerate(items):
        digest = _digest(path, one, rest)
        vector = "[" + ", ".join(_LEXEMES[byte % (len(_LEXEMES) - 1)] for byte in digest[:3]) + f", {digest[3]}]"
        if call.get("encoding_format") == "base64":
            vector = json.dumps(base64.b64encode(struct.pack("<4f", *digest[:4])).decode())
        data.append(f'{{"object": "embedding", "index": {place}, "embedding": {vector}}}')
    tokens = sum(len(one) + 2 for one in items)
    usage = f'{{"prompt_tokens": {tokens}, "total_tokens": {tokens}}}'
    model = json.dumps(call.get("model"))
    return f'{{"object": "list", "data": [{", ".join(data)}], "model": {model}, "usage": {usage}}}'


def _complete(path: str, body: Any) -> str:
    """OpenAI: chat and completions; one in four ends for length."""
    call = _object(body)
    chat = path.endswith("/chat/completions")
    _list(call.get("messages")) if chat else call["prompt"]
    digest = _digest(path, call)
    end = "length" if digest[5] % 4 == 0 else "stop"
    text = json.dumps(digest.hex()[:12] + " é\n", ensure_ascii=bool(digest[1] % 2))
    said = f'"message": {{"role": "assistant", "content": {text}}}' if chat else f'"text": {text}'
    kind = "chat.completion" if chat else "text_completion"
    return (
        f'{{"id": "cmpl-{digest.hex()[:6]}", "object": "{kind}", "created": {int.from_bytes(digest[:4], "big")}, '
        f'"model": {json.dumps(call.get("model"))}, "choices": [{{"index": 0, {said}, "logprobs": null, '
        f'"finish_reason": "{end}"}}], "usage": {{"total_tokens": {digest[0]}}}, "x": {_LEXEMES[digest[1] % 7]}}}'
    )


def _generate(path: str, body: Any) -> str:
    """TGI."""
    call = _object(body)
    if not isinstance(call.get("inputs"), str):
        raise _Refused
    digest = _digest(path, call)
    text = json.dumps(digest.hex()[:12] + " é\n", ensure_ascii=bool(digest[1] % 2))
    details = ""
    if (call.get("parameters") or {}).get("details"):
        end = ("length", "eos_token", "stop_sequence")[digest[2] % 3]
        details = f', "details": {{"finish_reason": "{end}", "logprob": {_LEXEMES[digest[3] % 7]}}}'
    answer = f'{{"generated_text": {text}{details}}}'
    return f"[{answer}]" if path == "/" else answer


def _score(path: str, body: Any) -> str:
    """A server of no protocol: rows inside something, results inside something else."""
    call = _object(body)
    rows = _list(_object(call.get("data")).get("rows"))
    rest = {**call, "data": {**call["data"], "rows": None}}
    each = ", ".join(result(path, row, rest) for row in rows)
    return f'{{"model": "m", "out": {{"version": 1.0, "scores": [ {each} ]}}}}'


def _label(path: str, body: Any) -> str:
    """A server of single requests, and of batches of them at another path."""
    call = _object(body)
    several = path == "/label_batch"
    if ("texts" if several else "text") not in call:
        raise _Refused
    rest = {name: value for name, value in call.items() if name not in ("text", "texts")}
    if not several:
        return f'{{"label": {result("label", call["text"], rest)}, "model": "m"}}'
    each = ", ".join(result("label", one, rest) for one in _list(call["texts"]))
    return f'{{"labels": [{each}], "model": "m"}}'


def _embed_texts(path: str, body: Any) -> str:
    """TEI, as far as hostile requests go."""
    call = _object(body)
    if path == "/rerank":
        rest = {name: value for name, value in call.items() if name != "texts"}
        scores = [(_digest(path, one, rest)[0], at) for at, one in enumerate(_list(call.get("texts")))]
        return json.dumps([{"index": at, "score": score / 4} for score, at in sorted(scores, reverse=True)])
    given = call.get("inputs")
    items = [given] if isinstance(given, str) or _is_ids(given) else _list(given)
    if not all(isinstance(one, str) or _is_ids(one) for one in items):
        raise _Refused
    rest = {name: value for name, value in call.items() if name != "inputs"}
    return json.dumps([[byte / 4 for byte in _digest(path, one, rest)[:3]] for one in items])


def _infer(path: str, body: Any) -> str:
    """V2 in JSON: each row is answered with a number that hangs on every one of its lexemes."""
    call = _object(body)
    tensors = [_object(one) for one in _list(call.get("inputs"))]
    rest = {name: value for name, value in call.items() if name not in ("id", "inputs")}
    if isinstance(parameters := call.get("parameters"), dict):  # these two change when, not what
        rest["parameters"] = {n: value for n, value in parameters.items() if n not in ("timeout", "priority")}
    frames, columns = [], []
    for one in tensors:
        shape = [int(size.lexeme) for size in _list(one.get("shape")) if isinstance(size, Number) and _is_id(size)]
        if len(shape) != len(one["shape"]) or "data" not in one:
            raise _Refused
        flat = _leaves(one["data"])
        total = 1
        for size in shape:
            total *= size
        if not total or total != len(flat):
            raise _Refused
        width = total // shape[0]
        columns.append([flat[at : at + width] for at in range(0, total, width)])
        frames.append({**one, "shape": shape[1:], "data": None})
    if len({len(column) for column in columns}) != 1:
        raise _Refused
    rows = [int.from_bytes(_digest(path, row, frames, rest)[:8], "big") for row in zip(*columns, strict=True)]
    named = f'"id": {json.dumps(call["id"])}, ' if call.get("id") else ""
    data = ", ".join(map(str, rows))
    output = f'{{"name": "y", "datatype": "UINT64", "shape": [{len(rows)}, 1], "data": [{data}]}}'
    return f'{{{named}"model_name": "m", "model_version": "1", "outputs": [{output}]}}'


def _leaves(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _leaves(one)] if isinstance(value, list) else [value]


def _speaker(path: str) -> Callable[[str, Any], str] | None:
    if path.startswith("/v2/") and path.endswith("/infer"):
        return _infer
    if path.startswith("/v1/models/"):
        return _predict
    if path.endswith("completions"):
        return _complete
    if path.endswith("/v1/embeddings"):
        return _embed
    return {
        "/generate": _generate,
        "/": _generate,
        "/score": _score,
        "/label": _label,
        "/label_batch": _label,
        "/embed": _embed_texts,
        "/rerank": _embed_texts,
    }.get(path)


def answer(path: str, body: bytes, content_encoding: str = "") -> Said:
    """The answer to a request, as a function of nothing else."""
    exact = hashlib.sha256(body).hexdigest()
    if path == "/opaque":
        return Said(200, exact.encode() + b"\x00\xff" + body[::-1], "application/octet-stream")
    speaker = _speaker(path)
    if speaker is None:
        return Said(404, f"no {path}".encode(), "text/plain")
    refusal = json.dumps({"error": f"refused {exact}"}).encode()
    try:
        call = lexed(zlib.decompress(body, 47) if content_encoding else body)
        if _holds(call, POISON):
            return Said(500, refusal)
        if isinstance(call, dict) and (call.get("stream") is True or path == "/generate_stream"):
            return Said(200, b"data: " + exact.encode() + b"\n\n", "text/event-stream")
        return Said(200, speaker(path, call).encode())
    except (ValueError, RecursionError, zlib.error, _Refused, KeyError, TypeError, AttributeError):
        return Said(400, refusal)


def _changed(said: Said, exact: str, **changes: Any) -> Said:
    return said._replace(**{"body": json.dumps({"error": f"as told {exact}"}).encode()} | changes)


TWICE: Final = b'"x": 1, "x": 2'

SAYINGS: Final[dict[str, Callable[[Said, str], Said]]] = {
    **{
        f"status {status}": lambda said, exact, status=status: _changed(said, exact, status=status)  # type: ignore[misc]  # bound at once
        for status in (201, 206, 400, 401, 404, 409, 413, 418, 422, 424, 429, 500, 501, 502, 503, 504, 507)
    },
    "right but 500": lambda said, _: said._replace(status=500),
    "right but 203": lambda said, _: said._replace(status=203),
    "truncated": lambda said, _: said._replace(whole=False),
    "half": lambda said, _: said._replace(body=said.body[: len(said.body) // 2]),
    "empty": lambda said, _: said._replace(body=b""),
    "garbage": lambda said, exact: said._replace(body=b"\x00\xff" + exact.encode()),
    "not UTF-8": lambda said, _: said._replace(body=said.body[:1] + b"\xff" + said.body[1:]),
    "twice": lambda said, _: said._replace(body=said.body + said.body),
    "a key twice": lambda said, _: said._replace(
        body=said.body[:1] + (TWICE + b", " if said.body[:1] == b"{" else b"{%b}, " % TWICE) + said.body[1:]
    ),
    "an error": _changed,
    "other JSON": lambda said, exact: said._replace(body=f'[["{exact}"]]'.encode()),
    "a result too many": lambda said, _: said._replace(body=said.body.replace(b": [", b": [7, ", 1)),
    "no results": lambda said, _: said._replace(body=b"{}"),
    "HTML": lambda said, exact: said._replace(body=f"<html>{exact}</html>".encode(), content_type="text/html"),
    "plain text": lambda said, _: said._replace(content_type="text/plain; charset=x"),
    "deep": lambda said, _: said._replace(body=b"[" * 20_000 + b"]" * 20_000),
}
"""What an answer may be turned into, given a digest of the request's exact bytes."""

READABLE: Final = frozenset({"", "plain text"})
"""Those of them that say what was asked for."""


@dataclass(slots=True)
class Speaking:
    """The server. asked: requests by their `X-Case`. kind: what it says it speaks, `openai`, `tgi` or `tei`."""

    kind: str = "openai"
    asked: Counter[str] = field(default_factory=Counter)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return self._about(request.path)
        body = await request.read()
        self.asked[request.headers.get(CASE, "")] += 1
        coding = request.headers.get("Content-Encoding", "")
        said = answer(request.path, body, coding)
        if (saying := request.headers.get(SAY)) is not None:
            exact = hashlib.sha256(f"{coding} {request.path} ".encode() + body).hexdigest()
            said = SAYINGS[saying](said, exact)
        if said.whole:
            return web.Response(status=said.status, body=said.body, headers={"Content-Type": said.content_type})
        response = web.StreamResponse(status=said.status, headers={"Content-Type": said.content_type})
        response.content_length = len(said.body) + 1
        await response.prepare(request)
        await response.write(said.body)
        assert request.transport is not None
        request.transport.close()
        return response

    def _about(self, path: str) -> web.Response:
        """What Forebay's questions about it are answered with."""
        if path == "/v1/models" and self.kind == "openai":
            data = [{"id": name, "object": "model", "owned_by": "tests"} for name in MODELS]
            return web.json_response({"object": "list", "data": data})
        if path == "/info" and self.kind == "tgi":
            return web.json_response(
                {"model_id": "m", "model_sha": "5" * 40, "max_total_tokens": 64, "version": "2.4.1"}
            )
        if path == "/info" and self.kind == "tei":
            kind = {"embedding": {"pooling": "cls"}}
            limits = {"max_client_batch_size": 32, "max_concurrent_requests": 8, "max_input_length": 64}
            limits |= {"max_batch_tokens": 64, "tokenization_workers": 1}
            said = {"model_id": "m", "model_sha": "5" * 40, "model_dtype": "float16", "model_type": kind}
            return web.json_response(said | limits | {"version": "1.8.2"})
        if path == "/v2/models/m":
            return web.json_response({"name": "m", "versions": ["1"], "platform": "tests"})
        if path == "/v2/models/m/config":
            inputs = [{"name": "x", "data_type": "TYPE_INT64", "dims": [-1]}]
            return web.json_response({"name": "m", "max_batch_size": 32, "input": inputs})
        if path == "/v1/models/m":
            status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
            return web.json_response({"model_version_status": [status]})
        return web.Response(status=404, text="Not Found")


@asynccontextmanager
async def speaking(kind: str) -> AsyncIterator[Speaking]:
    """The server on a free port of 127.0.0.1."""
    server = Speaking(kind)
    runner = web.ServerRunner(web.Server(server.handle, auto_decompress=False), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()
