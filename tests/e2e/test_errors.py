"""docs/errors.md, row by row: what went wrong, and what its caller sees, in every protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.parts.faulty_backend import REFUSAL, Fault, FaultyServer, faulty_server, v2
from tests.parts.forebay import Running, forebay

DOCUMENT: Final = Path(__file__).parents[2] / "docs/errors.md"


@dataclass(frozen=True)
class Spoken:
    """A protocol. body: a call that differs for every number. shape: an error body, given status and message.

    queues: its calls take a slot and may ride together.
    """

    name: str
    path: str
    body: Callable[[int], bytes]
    shape: Callable[[int, str], Any]
    queues: bool


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


def _openai(status: int, message: str) -> Any:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _tei(status: int, message: str) -> Any:
    return {"error": message, "error_type": {413: "Validation", 503: "Unhealthy"}.get(status, "Backend")}


def _tgi(status: int, message: str) -> Any:
    return {"error": message, "error_type": {413: "validation", 503: "overloaded"}.get(status, "generation")}


CHAT: Final = [{"role": "user", "content": "hello"}]
SPOKEN: Final = (
    Spoken("Open Inference V2", "/v2/models/m/infer", v2, lambda _, text: {"error": text}, queues=True),
    Spoken("V1 predict", "/v1/models/m:predict", lambda n: _json(instances=[n]), lambda _, text: {"error": text}, True),
    Spoken("OpenAI embeddings", "/v1/embeddings", lambda n: _json(model="m", input=f"{n}"), _openai, queues=True),
    Spoken(
        "OpenAI chat",
        "/v1/chat/completions",
        lambda n: _json(model="m", messages=CHAT, temperature=0, seed=n),
        _openai,
        queues=False,
    ),
    Spoken("TEI", "/embed", lambda n: _json(inputs=f"{n}"), _tei, queues=True),
    Spoken("TGI", "/generate", lambda n: _json(inputs=f"{n}", parameters={}), _tgi, queues=False),
    Spoken("JSON map", "/mapped", lambda n: _json(items=[n]), lambda _, text: {"detail": text}, queues=True),
)
QUEUING: Final = [one for one in SPOKEN if one.queues]

ROUTES: Final = """\
rows: true
routes:
- {id: tei, match: {path: /embed}, protocol: tei}
- {id: tgi, match: {path: /generate}, protocol: tgi}
- {id: openai, match: {path: /v1/*}, protocol: auto}
- {id: map, match: {path: /mapped}, protocol: json_map, json_map: {items: /items, results: /results}}
"""


@asynccontextmanager
async def started(backend: FaultyServer, tmp_path: Path, more: str = "") -> AsyncIterator[Running]:
    """A Forebay that has learnt what the backend speaks."""
    config = tmp_path / "forebay.yaml"
    config.write_text(ROUTES + more)
    async with forebay(backend.url, config=config) as running:
        for codec in ("v2", "v1", "openai_embeddings", "openai_generation"):
            await running.knows("m", codec)
        for codec in ("tei", "tgi", "json_map"):
            await running.until(partial(_known, running, codec))
        yield running


def _known(running: Running, codec: str) -> bool:
    (one,) = (one for one in running.sidecar.pipeline.codecs if one.name == codec)
    return running.sidecar.models.get(one, "") is not None


@pytest.fixture
async def backend() -> AsyncIterator[FaultyServer]:
    async with faulty_server() as server:
        yield server


async def ask(running: Running, spoken: Spoken, number: int = 1) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and fields of a call's answer."""
    headers = {"Content-Type": "application/json"}
    async with running.session.post(running.url + spoken.path, data=spoken.body(number), headers=headers) as answer:
        return answer.status, await answer.read(), dict(answer.headers)


def said(spoken: Spoken, status: int, body: bytes) -> str:
    """The message of an error body in the protocol's own shape."""
    found = json.loads(body)
    text = found.get("detail") or (found["error"]["message"] if isinstance(found["error"], dict) else found["error"])
    assert found == spoken.shape(status, text)
    return str(text)


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda one: one.name)
async def test_the_backend_s_own_refusal(backend: FaultyServer, tmp_path: Path, spoken: Spoken) -> None:
    """Its status and its body, byte for byte, each time anew."""
    async with started(backend, tmp_path) as running:
        for count in (1, 2):
            status, body, _ = await ask(running, spoken)
            assert (status, body) == (400, REFUSAL)
            assert backend.waiting == count


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda one: one.name)
async def test_no_backend(backend: FaultyServer, tmp_path: Path, spoken: Spoken) -> None:
    """502 at once, and which address could not be reached."""
    async with started(backend, tmp_path) as running:
        backend.fault = Fault.RESET
        status, body, _ = await ask(running, spoken)
        assert status == 502
        assert said(spoken, status, body) == f"{backend.url} closed the connection before a whole head of an answer"


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda one: one.name)
async def test_no_answer_in_time(backend: FaultyServer, tmp_path: Path, spoken: Spoken) -> None:
    """504 where `upstream.timeout` has an end."""
    async with started(backend, tmp_path, "upstream: {timeout: {first_byte: 50ms}}\n") as running:
        backend.fault = Fault.HANG
        status, body, _ = await ask(running, spoken)
        assert status == 504
        assert said(spoken, status, body) == f"{backend.url} did not begin to answer within 0.05 s"


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda one: one.name)
async def test_a_body_above_the_limit(backend: FaultyServer, tmp_path: Path, spoken: Spoken) -> None:
    """413 before the backend hears of it."""
    async with started(backend, tmp_path, "limits: {body: 8B}\n") as running:
        status, body, _ = await ask(running, spoken)
        assert status == 413
        assert said(spoken, status, body) == "The request body is larger than 8 bytes."
        assert backend.waiting == 0


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda one: one.name)
async def test_an_overloaded_backend(backend: FaultyServer, tmp_path: Path, spoken: Spoken) -> None:
    """Who asked alone gets the backend's own words; who shared the request gets the status and when to come again."""
    async with started(backend, tmp_path, "batch: {mode: fixed, max_delay: 1s, max_size: 2}\n") as running:
        backend.fault = Fault.OVERLOAD
        answers = await asyncio.gather(*(ask(running, spoken, at if spoken.queues else 1) for at in (1, 2)))
        assert backend.waiting == 1
        assert [(status, fields["Retry-After"]) for status, _, fields in answers] == [(503, "7"), (503, "7")]
        shared = [body for _, body, _ in answers if body != REFUSAL]
        assert len(shared) == (2 if spoken.queues else 1)
        assert {said(spoken, 503, body) for body in shared} == {"the backend answered 503 to a shared request"}


@pytest.mark.parametrize("spoken", QUEUING, ids=lambda one: one.name)
async def test_a_full_queue(backend: FaultyServer, tmp_path: Path, spoken: Spoken) -> None:
    """503 at once, and when to come again."""
    async with started(backend, tmp_path, "batch: {max_queue: 1, max_size: 2}\n") as running:
        backend.fault = Fault.HANG
        first = asyncio.create_task(ask(running, spoken, 1))
        await backend.has_received(1)
        second = asyncio.create_task(ask(running, spoken, 2))
        await running.until(lambda: running.sidecar._batcher.oldest() != {})
        status, body, fields = await ask(running, spoken, 3)
        assert (status, int(fields["Retry-After"]) >= 1) == (503, True)
        assert said(spoken, status, body).startswith("the queue is full")
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


def test_every_protocol_is_in_the_document() -> None:
    """docs/errors.md shows the shape of every protocol as it is, for a 502."""
    text = DOCUMENT.read_text()
    for spoken in SPOKEN:
        assert f"| {spoken.name} | `{json.dumps(spoken.shape(502, 'MESSAGE'), separators=(',', ':'))}` |" in text
