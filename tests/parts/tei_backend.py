"""A text-embeddings-inference that we wrote, after TEI 1.x's published interface, for moments and faults on demand.

What it answers about an item is a function of the item, of what the call asks beside it and of the weights, so that a
mix-up of items, callers or parameters shows in the numbers. It reads bodies as strictly as TEI does and writes its
errors as TEI does: of its own in JSON, of the web framework in plain text. A text longer than `LONGEST` makes its whole
request fail, unless the call says `truncate`; so does the text `POISON`. `gate` holds requests back until a test lets
them go.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiohttp import web

LONGEST = 24
POISON = "poison"
LABELS = ("joy", "anger", "fear")


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "application/json"


class _Refused(Exception):
    def __init__(self, status: int, error: str, error_type: str) -> None:
        super().__init__(error)
        self.answer = Answer(status, _compact({"error": error, "error_type": error_type}))


class _Malformed(Exception):
    """The web framework refuses the body."""

    def __init__(self, why: str, status: int = 422) -> None:
        super().__init__(why)
        text = f"Failed to deserialize the JSON body into the target type: {why}"
        self.answer = Answer(status, text.encode(), "text/plain")


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(slots=True)
class TEIServer:
    """One model. kind: `embedding`, `splade`, `classifier` or `reranker`."""

    kind: str = "embedding"
    weights: int = 1
    model_id: str = "BAAI/bge-small-en-v1.5"
    model_sha: str | None = None
    max_client_batch_size: int = 32
    requests: list[tuple[str, Any]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    counted: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def batch_sizes(self) -> list[int]:
        """Of every request, how many items it was about; one where they came without a list."""
        return [_size(path, body) for path, body in self.requests]

    async def has_received(self, count: int) -> None:
        """Wait until `count` inference requests have come in all."""
        async with asyncio.timeout(20), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    def restart(self, weights: int) -> None:
        """Other weights, read at a start: nothing shows it but the counts, which start again."""
        self.weights = weights
        self.counted = 0

    def info(self) -> dict[str, Any]:
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        if self.kind == "classifier":
            labels = {
                "id2label": {str(at): label for at, label in enumerate(LABELS)},
                "label2id": {label: at for at, label in enumerate(LABELS)},
            }
        pooling = {"embedding": {"pooling": "splade" if self.kind == "splade" else "cls"}}
        return {
            "model_id": self.model_id,
            "model_sha": self.model_sha,
            "model_dtype": "float16",
            "model_type": {self.kind: labels} if self.kind in ("classifier", "reranker") else pooling,
            "max_concurrent_requests": 512,
            "max_input_length": LONGEST,
            "max_batch_tokens": 16384,
            "max_batch_requests": None,
            "max_client_batch_size": self.max_client_batch_size,
            "auto_truncate": False,
            "tokenization_workers": 8,
            "version": "1.8.2",
            "sha": "f0c1e14dbeb0c5a1bd7e4ec6bc3c51b0b4a3b2c1",
            "docker_label": "sha-f0c1e14",
        }

    def metrics(self) -> str:
        """Nothing before the first request."""
        if not self.counted:
            return ""
        return (
            f'# TYPE te_request_count counter\nte_request_count{{method="single"}} {self.counted}\n\n'
            "# TYPE te_queue_size gauge\nte_queue_size 0\n"
        )

    def compute(self, path: str, body: bytes) -> Answer:
        """The answer to a request, as a function of nothing else."""
        try:
            return Answer(200, _compact(self._endpoint(path)(_call(body))))
        except (_Refused, _Malformed) as refused:
            return refused.answer

    def _endpoint(self, path: str) -> Callable[[dict[str, Any]], Any]:
        if path == "/":
            path = {"embedding": "/embed", "splade": "/embed_sparse", "classifier": "/predict"}.get(
                self.kind, "/rerank"
            )
        return {
            "/embed": lambda call: self._embedded(call, self._vector),
            "/embed_all": lambda call: self._embedded(call, self._vectors),
            "/embed_sparse": lambda call: self._embedded(call, self._sparse),
            "/predict": self._predict,
            "/rerank": self._rerank,
            "/similarity": self._similarity,
            "/tokenize": self._tokenize,
            "/decode": self._decode,
        }[path]

    def _embedded(self, call: dict[str, Any], one: Callable[[Any, dict[str, Any]], Any]) -> Any:
        if self.kind not in ("embedding", "splade"):
            raise _Refused(424, "Inference error: model is not an embedding model", "Backend")
        inputs = _field(call, "inputs")
        if not _is_input(inputs):
            if not isinstance(inputs, list) or not all(map(_is_input, inputs)):
                raise _Malformed("inputs: data did not match any variant of untagged enum Input")
            return [one(item, call) for item in self._few(inputs)]
        return [one(inputs, call)]

    def _predict(self, call: dict[str, Any]) -> Any:
        if self.kind == "embedding":
            raise _Refused(424, "Inference error: model is not a classifier model", "Backend")
        inputs = _field(call, "inputs")
        if isinstance(inputs, str):
            return self._scores([inputs], call)
        if _is_sequence(inputs):
            return self._scores(inputs, call)
        if not isinstance(inputs, list) or not inputs or not all(map(_is_sequence, inputs)):
            raise _Malformed("inputs: invalid length")
        return [self._scores(item, call) for item in self._few(inputs)]

    def _rerank(self, call: dict[str, Any]) -> Any:
        query, texts = _field(call, "query"), _field(call, "texts")
        if not isinstance(query, str) or not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
            raise _Malformed("texts: invalid type")
        if not texts:
            raise _Refused(400, "`texts` cannot be empty", "Empty")
        if self.kind != "reranker":
            raise _Refused(424, "Inference error: model is not a re-ranker model", "Backend")
        ranks = [
            {"index": at}
            | ({"text": text} if call.get("return_text") else {})
            | {"score": self._numbers("score", [query, text], call)[0] % 4 / 4}  # few values: many are equal
            for at, text in enumerate(self._few(texts, "texts"))
        ]
        ranks.sort(key=lambda rank: rank["score"])
        ranks.reverse()
        return ranks

    def _similarity(self, call: dict[str, Any]) -> Any:
        inputs = _field(call, "inputs")
        if not isinstance(inputs, dict) or "source_sentence" not in inputs or "sentences" not in inputs:
            raise _Malformed("inputs: invalid type")
        source, sentences = inputs["source_sentence"], inputs["sentences"]
        return [self._numbers("near", [source, sentence], call)[0] / 65536 for sentence in self._few(sentences)]

    def _tokenize(self, call: dict[str, Any]) -> Any:
        inputs = _field(call, "inputs")
        texts = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _Malformed("inputs: data did not match any variant of untagged enum TokenizeInput")
        return [
            [{"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None}]
            * call.get("add_special_tokens", 1)
            + [
                {"id": ord(letter), "text": letter, "special": False, "start": at, "stop": at + 1}
                for at, letter in enumerate(text)
            ]
            for text in self._few(texts)
        ]

    def _decode(self, call: dict[str, Any]) -> Any:
        ids = _field(call, "ids")
        lists = [ids] if _is_ids(ids) else ids
        if not isinstance(lists, list) or not all(map(_is_ids, lists)):
            raise _Malformed("ids: data did not match any variant of untagged enum InputIds")
        return ["".join(map(chr, one)) for one in self._few(lists, "ids")]

    def _few(self, items: list[Any], name: str = "inputs") -> list[Any]:
        if not items:
            raise _Refused(400, f"`{name}` cannot be empty", "Empty")
        if len(items) > self.max_client_batch_size:
            what = f"batch size {len(items)} > maximum allowed batch size {self.max_client_batch_size}"
            raise _Refused(413, what, "Validation")
        return items

    def _numbers(self, kind: str, item: Any, call: dict[str, Any]) -> list[int]:
        """Eight 16-bit numbers that depend on everything that an answer may depend on."""
        for text in item if isinstance(item, list) else [item]:
            if text == POISON:
                raise _Refused(422, "Tokenizer error: poisoned text", "Tokenizer")
            if isinstance(text, str) and len(text) > LONGEST and not call.get("truncate"):
                what = f"Input validation error: `inputs` must have less than {LONGEST} tokens. Given: {len(text)}"
                raise _Refused(413, what, "Validation")
        beside = {name: value for name, value in call.items() if name not in ("inputs", "texts", "return_text")}
        text = json.dumps([kind, self.weights, item, beside], sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()
        return [int.from_bytes(digest[at : at + 2], "big") for at in range(0, 16, 2)]

    def _vector(self, item: Any, call: dict[str, Any]) -> list[float]:
        return [number / 4096 - 8 for number in self._numbers("vector", item, call)][: call.get("dimensions", 4)]

    def _vectors(self, item: Any, call: dict[str, Any]) -> list[list[float]]:
        numbers = self._numbers("vectors", item, call)
        return [[number / 64, at] for at, number in enumerate(numbers[: 1 + len(item) % 4])]

    def _sparse(self, item: Any, call: dict[str, Any]) -> list[dict[str, Any]]:
        if self.kind != "splade":
            raise _Refused(424, "Inference error: model is not an embedding model with Splade pooling", "Backend")
        numbers = self._numbers("sparse", item, call)
        return [{"index": number, "value": number / 64} for number in sorted(set(numbers[: len(item) % 5]))]

    def _scores(self, item: list[str], call: dict[str, Any]) -> list[dict[str, Any]]:
        labels = LABELS if self.kind == "classifier" else ("LABEL_0",)
        numbers = self._numbers("scores", item, call)
        scores = [{"score": number / 65536, "label": label} for number, label in zip(numbers, labels, strict=False)]
        scores.sort(key=lambda score: score["score"])  # type: ignore[arg-type,return-value]  # it is a float there
        scores.reverse()
        return scores

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            if request.path == "/info":
                return web.json_response(self.info())
            if request.path == "/metrics":
                return web.Response(text=self.metrics())
            return web.Response(status=200 if request.path in ("/health", "/ping", "/") else 404)
        body = await request.read()
        if request.content_type != "application/json":
            return web.Response(status=415, text="Expected request with `Content-Type: application/json`")
        async with self.arrived:
            self.requests.append((request.path, _read(body)))
            self.arrived.notify_all()
        await self.gate.wait()
        self.counted += 1
        answer = self.compute(request.path, body)
        metadata = {"x-compute-type": "cpu", "x-compute-characters": str(len(body)), "x-total-time": str(self.counted)}
        return web.Response(body=answer.body, status=answer.status, content_type=answer.content_type, headers=metadata)


def _read(body: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def _call(body: bytes) -> dict[str, Any]:
    call = _read(body)
    if call is None:
        raise _Malformed("not JSON", 400)
    if not isinstance(call, dict):
        raise _Malformed("invalid type")
    return call


def _field(call: dict[str, Any], name: str) -> Any:
    if name not in call:
        raise _Malformed(f"missing field `{name}`")
    return call[name]


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**32 for number in value)


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or _is_ids(value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(isinstance(text, str) for text in value)


def _size(path: str, body: dict[str, Any]) -> int:
    items = body.get("inputs", body.get("texts", body.get("ids")))
    if not isinstance(items, list) or (path == "/predict" and _is_sequence(items)) or _is_ids(items):
        return 1
    return len(items)


@asynccontextmanager
async def tei_server(**facts: Any) -> AsyncIterator[TEIServer]:
    """A `TEIServer` on a free port of loopback."""
    model = TEIServer(**facts)
    runner = web.ServerRunner(web.Server(model.handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.port = runner.addresses[0][1]
    try:
        yield model
    finally:
        model.gate.set()
        await runner.cleanup()
