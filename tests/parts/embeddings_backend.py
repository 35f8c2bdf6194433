"""An OpenAI-compatible server that we wrote: embeddings and completions as functions of what is asked for.

Every path that ends in `/embeddings` or `/completions` is served, under any prefix, as gateways have them. What a text
is answered with depends on the text, on the model, and on the path, so that a mix-up of any of them shows.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODELS = ("small", "large")


@dataclass(slots=True)
class EmbeddingsServer:
    """calls: for each request for inference that came, its path and its body. lists: it says which models it has."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lists: bool = True
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            if request.path != "/v1/models" or not self.lists:
                return web.json_response({"detail": "Not Found"}, status=404)
            listed = [{"id": name, "object": "model", "owned_by": "tests"} for name in MODELS]
            return web.json_response({"object": "list", "data": listed})
        try:
            body = json.loads(_plain(await request.read(), request.headers.get("Content-Encoding")))
        except (ValueError, zlib.error) as error:
            return web.json_response({"detail": str(error)}, status=415)
        self.calls.append((request.path, body))
        if request.path.endswith("/embeddings"):
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            data = [
                {"object": "embedding", "index": at, "embedding": vector(request.path, body.get("model"), text)}
                for at, text in enumerate(texts)
            ]
            usage = {"prompt_tokens": sum(map(len, texts)), "total_tokens": sum(map(len, texts))}
            return web.json_response({"object": "list", "data": data, "model": body.get("model", ""), "usage": usage})
        choice = {"index": 0, "text": f"{len(self.calls)}", "finish_reason": "stop"}
        return web.json_response(
            {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"], "choices": [choice]}
        )


def _plain(body: bytes, coding: str | None) -> bytes:
    if coding is None:
        return body
    if coding not in ("gzip", "deflate"):
        raise ValueError(f"{coding} is not known")
    return zlib.decompress(body, 47)


def vector(path: str, model: str | None, text: str) -> list[float]:
    """What a text is answered with."""
    digest = hashlib.sha256(f"{path}\0{model}\0{text}".encode()).digest()
    return [byte / 256 for byte in digest[:4]]


@asynccontextmanager
async def embeddings_server(*, lists: bool = True) -> AsyncIterator[EmbeddingsServer]:
    """The server on a free port of 127.0.0.1."""
    server = EmbeddingsServer(lists=lists)
    runner = web.ServerRunner(web.Server(server.handle, auto_decompress=False), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()
