"""Promises about text-embeddings-inference behind Forebay, held with Hugging Face's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.parts.forebay import Running, forebay
from tests.parts.tei_backend import LONGEST, POISON, TEIServer, tei_server

Said = tuple[int, bytes, str]
"""Status, body and Cache-Status."""
SHA = "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"


@asynccontextmanager
async def served(config: Path | None = None, **facts: Any) -> AsyncIterator[tuple[Running, TEIServer]]:
    """Forebay, which was told nothing but an address, before a TEI that it has found out."""
    async with tei_server(**facts) as server, forebay(server.url, config=config) as running:
        await running.knows("", "tei")
        yield running, server


async def post(running: Running, path: str, call: Any) -> Said:
    async with running.session.post(running.url + path, json=call) as answer:
        return answer.status, await answer.read(), answer.headers["Cache-Status"]


async def together(running: Running, server: TEIServer, path: str, calls: Sequence[Any], items: int) -> list[Said]:
    """Send calls while another keeps the server busy, so that they are joined as soon as it is free.

    items: different ones in all.
    """
    before = len(server.requests)
    server.gate.clear()
    busy = asyncio.create_task(post(running, path, {"inputs": "busy", "query": "busy", "texts": ["busy"]}))
    await server.has_received(before + 1)
    tasks = [asyncio.create_task(post(running, path, call)) for call in calls]
    await running.queued(items)
    server.gate.set()
    await busy
    return list(await asyncio.gather(*tasks))


CLIENT_CALLS: list[tuple[str, str, Callable[[InferenceClient], Any]]] = [
    ("embedding", "/embed", lambda client: client.feature_extraction("Good morning").tolist()),
    ("embedding", "/embed", lambda client: client.feature_extraction(["a", "é\n"]).tolist()),
    ("embedding", "/embed", lambda client: client.feature_extraction("a", normalize=True, dimensions=2).tolist()),
    ("embedding", "/embed", lambda client: client.feature_extraction("a", prompt_name="query", truncate=True).tolist()),
    ("embedding", "/", lambda client: client.feature_extraction(["a", "b"]).tolist()),
    ("embedding", "/similarity", lambda client: client.sentence_similarity("a", ["b", "c"])),
    ("classifier", "/predict", lambda client: client.text_classification("I like you.")),
    ("classifier", "/", lambda client: client.text_classification("I like you.")),
]


@pytest.mark.parametrize(("kind", "path", "call"), CLIENT_CALLS)
async def test_the_hub_client_gets_what_it_gets_without_forebay(
    kind: str, path: str, call: Callable[[InferenceClient], Any]
) -> None:
    """Each answer is the server's own, and the second time it is answered without asking the server."""
    async with served(kind=kind) as (running, server):
        direct = await asyncio.to_thread(call, InferenceClient(server.url + path))
        asked = len(server.requests)
        for _ in range(2):
            assert await asyncio.to_thread(call, InferenceClient(running.url + path)) == direct
        assert len(server.requests) == asked + 1


async def test_the_hub_client_gets_the_servers_errors() -> None:
    """What the server refuses, it refuses in its own words, each time anew."""
    async with served() as (running, server):
        for text in ("x" * (LONGEST + 1), POISON):
            errors = []
            for url in (server.url, running.url, running.url):
                with pytest.raises(HfHubHTTPError) as raised:
                    await asyncio.to_thread(InferenceClient(url + "/embed").feature_extraction, text)
                errors.append((raised.value.response.status_code, raised.value.response.content))
            assert len(set(errors)) == 1
        assert len(server.requests) == 6


async def test_the_server_is_found_out_by_itself() -> None:
    """Without a word of configuration Forebay says what the backend is, and what it said of its model."""
    async with served(max_client_batch_size=9, model_sha=SHA) as (running, server):
        async with running.session.get(f"{running.admin}/config") as answer:
            text = await answer.text()
        name = "text-embeddings-inference 1.8.2"
        found = {"codec": "tei", "protocol": "tei", "server": name, "models": [server.model_id]}
        assert found in running.sidecar.backend.report()["found"]
        assert name in text
        (model,) = (one for one in running.sidecar.models.report() if one["codec"] == "tei")
        assert model["rows"] == "items"
        assert model["max_batch_size"] == 9
        assert model["versions"] == [SHA]


@pytest.mark.parametrize(
    ("kind", "path", "calls", "items"),
    [
        ("embedding", "/embed", [{"inputs": "a"}, {"inputs": ["b", "a", "c"]}, {"inputs": [7, 8]}], 4),
        ("embedding", "/embed_all", [{"inputs": "a"}, {"inputs": ["bb", "ccc"]}], 3),
        ("splade", "/embed_sparse", [{"inputs": "a"}, {"inputs": ["bb", "ccc"]}], 3),
        ("classifier", "/predict", [{"inputs": "a"}, {"inputs": ["b", "c"]}, {"inputs": [["a"], ["b", "d"]]}], 3),
        ("embedding", "/tokenize", [{"inputs": "a b"}, {"inputs": ["c", "dd"]}], 3),
    ],
)
async def test_calls_that_come_together_are_one_to_the_server(
    kind: str, path: str, calls: list[dict[str, Any]], items: int
) -> None:
    """Texts of several callers ride in one request, each text once, and everybody gets its own answer."""
    async with served(kind=kind) as (running, server):
        expected = [(200, server.compute(path, json.dumps(call).encode()).body) for call in calls]
        said = await together(running, server, path, calls, items)
        assert [(status, body) for status, body, _ in said] == expected
        assert server.batch_sizes == [1, items]
        again = [await post(running, path, call) for call in calls]
        assert [(status, body) for status, body, _ in again] == expected
        assert all(cache.startswith("Forebay; hit") for _, _, cache in again)
        assert len(server.requests) == 2


async def test_only_new_texts_reach_the_server() -> None:
    """Of a call of which some texts are known, the others are asked for; the answer is the server's for all of them."""
    async with served() as (running, server):
        await post(running, "/embed", {"inputs": ["a", "b"], "truncate": True})
        call = {"inputs": ["c", "b", "d", "a"], "truncate": True}
        _, body, _ = await post(running, "/embed", call)
        assert body == server.compute("/embed", json.dumps(call).encode()).body
        assert server.requests[1] == ("/embed", {"inputs": ["c", "d"], "truncate": True})


async def test_calls_that_ask_for_something_else_do_not_meet() -> None:
    """A prompt, a length, a field that nobody knows: each caller gets the answer to its own question."""
    async with served() as (running, server):
        asked: list[dict[str, Any]] = [
            {"prompt_name": "query"},
            {"prompt_name": "passage"},
            {"dimensions": 2},
            {"x": 1},
            {"x": 1.0},
            {},
        ]
        calls = [{"inputs": "a"} | beside for beside in asked]
        for said in (
            await together(running, server, "/embed", calls, len(calls)),
            [await post(running, "/embed", call) for call in calls],
        ):
            for call, (status, body, _) in zip(calls, said, strict=True):
                assert (status, body) == (200, server.compute("/embed", json.dumps(call).encode()).body)
        assert server.batch_sizes == [1] * 7


@pytest.mark.parametrize("text", ["x" * (LONGEST + 1), POISON])
async def test_a_text_that_the_server_refuses_harms_one_caller(text: str) -> None:
    """It fails the request that it rides in: its caller gets the server's refusal, the others their embeddings."""
    async with served() as (running, server):
        calls = [{"inputs": "a"}, {"inputs": ["b", text]}, {"inputs": "c"}]
        said = await together(running, server, "/embed", calls, 4)
        for call, (status, body, _) in zip(calls, said, strict=True):
            assert (status, body) == server.compute("/embed", json.dumps(call).encode())[:2]
        assert [status == 200 for status, _, _ in said] == [True, False, True]
        assert server.batch_sizes == [1, 4, 1, 2, 1]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", b'{"query":"a","texts":[]}'),
        ("/embed", b'{"inputs":[1.5]}'),
        ("/embed", b'{"input":"a"}'),
        ("/embed", b'{"inputs":"a"'),
        ("/embed", b"[]"),
        ("/embed", json.dumps({"inputs": ["a"] * 33}).encode()),
        ("/predict", b'{"inputs":"a"}'),
        ("/predict", b'{"inputs":["a","b","c"]}'),
        ("/rerank", b'{"query":"a","texts":["b"]}'),
        ("/rerank", b'{"query":"a"}'),
        ("/decode", b'{"ids":["a"]}'),
    ],
)
async def test_what_the_server_refuses_it_refuses_itself(path: str, body: bytes) -> None:
    """Status, body and kind of body are the server's, whether Forebay can read the call or not."""
    async with served() as (running, server):
        for headers in ({"Content-Type": "application/json"}, {"Content-Type": "text/plain"}):
            said = []
            for url in (server.url, running.url, running.url):
                async with running.session.post(url + path, data=body, headers=headers) as answer:
                    said.append((answer.status, await answer.read(), answer.content_type))
            assert len(set(said)) == 1
            assert said[0][0] >= 400
        assert [asked for asked, _ in server.requests] == [path] * 3  # a Content-Type that is wrong is not even read


async def test_the_content_type_that_the_server_wants_is_not_forgotten() -> None:
    """A call that the server refuses for its Content-Type is refused also where its texts are known."""
    async with served() as (running, _):
        assert (await post(running, "/embed", {"inputs": "a"}))[0] == 200
        async with running.session.post(f"{running.url}/embed", data=b'{"inputs":"a"}') as answer:
            assert answer.status == 415


@pytest.mark.parametrize("sha", [None, SHA])
async def test_a_server_that_was_restarted_is_asked_anew(sha: str | None) -> None:
    """Nothing that other weights have answered is given out, though the server calls its model by the same name."""
    async with served(model_sha=sha) as (running, server):
        (model,) = (one for one in running.sidecar.models.report() if one["codec"] == "tei")
        assert model["identity_known"]
        for weights in (1, 2):
            for _ in range(2):
                _, body, cache = await post(running, "/embed", {"inputs": "a"})
                assert body == server.compute("/embed", b'{"inputs":"a"}').body
            assert cache.startswith("Forebay; hit")
            await running.sidecar.models.poll()
            server.restart(weights + 1)
            await running.sidecar.models.poll()
        assert len(server.requests) == 2


async def test_a_rerank_call_is_whole_unless_its_route_says_otherwise() -> None:
    """Calls about the same texts are answered from one; texts of two calls never ride together."""
    async with served(kind="reranker") as (running, server):
        for texts in (["a", "b", "c"], ["a", "b"]):
            call = {"query": "q", "texts": texts, "return_text": True}
            for _ in range(2):
                _, body, cache = await post(running, "/rerank", call)
                assert body == server.compute("/rerank", json.dumps(call).encode()).body
            assert cache.startswith("Forebay; hit")
        assert server.batch_sizes == [3, 2]


async def test_pairs_of_query_and_text_are_joined_where_the_route_says_so(tmp_path: Path) -> None:
    """With `rows: true` texts of several calls about one query are scored in one request, each of them once."""
    config = tmp_path / "forebay.yaml"
    config.write_text("routes: [{id: rerank, match: {path: /rerank}, rows: 'true'}]")
    async with served(config, kind="reranker") as (running, server):
        calls = [{"query": "q", "texts": list(texts)} for texts in ("abc", "cbd", "eeaf")]
        server.gate.clear()
        busy = asyncio.create_task(post(running, "/rerank", {"query": "busy", "texts": ["a"]}))
        await server.has_received(1)
        tasks = [asyncio.create_task(post(running, "/rerank", call)) for call in calls]
        await running.until(lambda: running.sidecar.metrics.route("rerank").queue_depth.value == 6)
        server.gate.set()
        await busy
        for call, (status, body, _) in zip(calls, await asyncio.gather(*tasks), strict=True):
            assert (status, body) == (200, server.compute("/rerank", json.dumps(call).encode()).body)
        assert server.batch_sizes == [1, 6]
