"""A backend that speaks as Text Generation Inference does, from its published OpenAPI (2.4): TGI needs a GPU image.

It has no model. What it "generates" greedily is a function of the prompt, and what it draws is new each time, so that
an answer that was given away twice shows. `gate` holds generations back until a test lets them go. It refuses what TGI
refuses, in TGI's words, and so far as its router's source says when it draws, it draws.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

SHA: Final = "e985a63cdc139290c5f700ff1929f0b5942cced2"
MOST_TOKENS: Final = 64  # of prompt and answer together; a word is one
DEFAULT_TOKENS: Final = 100
OVERLOAD: Final = "too many at once"
"""A prompt for which it says that it is overloaded."""
DEATH: Final = "the end"
"""A prompt at which the connection dies without an answer."""

_WORDS: Final = ("sky", "sea", "sun", "sand", "wind", "wave", "rock", "rain")
_DRAWS: Final = ("temperature", "top_k", "top_p", "typical_p")


class _Refused(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(slots=True)
class TGIServer:
    """One model. generated: the bodies of the calls that it has begun to generate for, in order."""

    sha: str | None = SHA
    generated: list[dict[str, Any]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    succeeded: int = 0
    port: int = 0
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    _draws: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def has_begun(self, count: int) -> None:
        """Wait until it has begun to generate for so many calls in all."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(lambda: len(self.generated) >= count)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = (request.method, request.path)
        if asked == ("GET", "/info"):
            return web.json_response(self._info())
        if asked == ("GET", "/metrics"):
            counts = f"tgi_request_count {len(self.generated)}\ntgi_request_success {self.succeeded}\n"
            return web.Response(text=counts if self.generated else "")
        if asked == ("GET", "/health"):
            return web.Response()
        if request.method != "POST" or request.path not in ("/", "/generate", "/generate_stream"):
            return web.Response(status=404)
        try:
            body = json.loads(await request.read())
        except ValueError as error:
            return web.Response(status=400, text=f"Failed to parse the request body as JSON: {error}")
        if not isinstance(body, dict) or not isinstance(body.get("inputs"), str):
            return web.Response(status=422, text="Failed to deserialize the JSON body into the target type")
        streams = request.path == "/generate_stream" or (request.path == "/" and body.get("stream") is True)
        if body["inputs"] == DEATH:
            assert request.transport is not None
            request.transport.abort()
        try:
            tokens, details = await self._generate(body)
        except _Refused as refused:
            if streams:
                return await self._events(request, [{"error": str(refused), "error_type": refused.kind}])
            return web.json_response({"error": str(refused), "error_type": refused.kind}, status=refused.status)
        self.succeeded += 1
        if streams:
            return await self._events(request, _streamed(tokens, details))
        parameters = body.get("parameters") or {}
        whole: dict[str, Any] = {"generated_text": "".join(tokens)}
        if parameters.get("return_full_text"):
            whole["generated_text"] = body["inputs"] + whole["generated_text"]
        if parameters.get("details"):
            whole["details"] = details | {"prefill": [], "tokens": [_token(token) for token in tokens]}
        measured = {"x-compute-type": "cpu", "x-total-time": str(self.succeeded), "x-inference-time": "1"}
        return web.json_response([whole] if request.path == "/" else whole, headers=measured)

    async def _generate(self, body: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        """The tokens of an answer, and how it came to its end. Raises _Refused."""
        prompt, parameters = body["inputs"], body.get("parameters")
        drawn = _is_drawn(parameters)
        most = _checked(prompt, parameters or {}, drawn=drawn)
        async with self._arrived:
            self.generated.append(body)
            self._arrived.notify_all()
        await self.gate.wait()
        if prompt == OVERLOAD:
            raise _Refused(429, "overloaded", "Model is overloaded")
        start = sum(prompt.encode()) + (31 * next(self._draws) + 7 if drawn else 0)
        length = min(most, 3 + start % 5)
        tokens = [f" {_WORDS[(start * step + step) % len(_WORDS)]}{start % 1000}" for step in range(1, length + 1)]
        end = "length" if length == most else "eos_token"
        seed = (parameters or {}).get("seed") if drawn else None
        return tokens, {"finish_reason": end, "generated_tokens": length, "seed": seed}

    def _info(self) -> dict[str, Any]:
        return {
            "model_id": "bigscience/bloom-560m",
            "model_sha": self.sha,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": 128,
            "max_best_of": 2,
            "max_stop_sequences": 4,
            "max_input_tokens": MOST_TOKENS - 1,
            "max_total_tokens": MOST_TOKENS,
            "validation_workers": 2,
            "max_client_batch_size": 4,
            "router": "text-generation-router",
            "version": "2.4.1",
            "sha": None,
            "docker_label": None,
        }

    @staticmethod
    async def _events(request: web.BaseRequest, events: list[dict[str, Any]]) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await stream.prepare(request)
        for event in events:
            await stream.write(b"data:" + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
        await stream.write_eof()
        return stream


def _is_drawn(parameters: dict[str, Any] | None) -> bool:
    if parameters is None:
        return True
    return parameters.get("do_sample") is True or any(parameters.get(name) is not None for name in _DRAWS)


def _checked(prompt: str, parameters: dict[str, Any], *, drawn: bool) -> int:
    """The most tokens that may be generated. Raises _Refused."""
    most = parameters.get("max_new_tokens") or min(DEFAULT_TOKENS, MOST_TOKENS - len(prompt.split()))
    wrong = None
    if not prompt:
        wrong = "`inputs` cannot be empty"
    elif (parameters.get("temperature") or 1) <= 0 or parameters.get("temperature") == 0:
        wrong = "`temperature` must be strictly positive"
    elif (parameters.get("best_of") or 1) > 1 and not drawn:
        wrong = "you must use sampling when `best_of` is > 1"
    elif len(prompt.split()) + most > MOST_TOKENS:
        wrong = (
            f"`inputs` tokens + `max_new_tokens` must be <= {MOST_TOKENS}. "
            f"Given: {len(prompt.split())} `inputs` tokens and {most} `max_new_tokens`"
        )
    if wrong:
        raise _Refused(422, "validation", f"Input validation error: {wrong}")
    return int(most)


def _token(text: str) -> dict[str, Any]:
    return {"id": sum(text.encode()), "text": text, "logprob": -0.5, "special": False}


def _streamed(tokens: list[str], details: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"index": place, "token": _token(token), "generated_text": None, "details": None}
        for place, token in enumerate(tokens, start=1)
    ]
    events[-1] |= {"generated_text": "".join(tokens), "details": details | {"input_length": 1}}
    return events


@asynccontextmanager
async def tgi_server(**facts: Any) -> AsyncIterator[TGIServer]:
    """A `TGIServer` on a free port of loopback."""
    server = TGIServer(**facts)
    runner = web.ServerRunner(web.Server(server.handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        server.gate.set()
        await runner.cleanup()
