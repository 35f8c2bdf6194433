"""Which route, which protocol and which model a request belongs to, as whoever sends it sees it."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.protocols.codec import Call
from proxy.understanding import _form
from tests.parts.embeddings_backend import EmbeddingsServer, embeddings_server, vector
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import model_server

EMBEDDINGS = "/v1/embeddings"


@pytest.fixture
async def backend() -> AsyncIterator[EmbeddingsServer]:
    async with embeddings_server() as server:
        yield server


async def ask(running: Running, path: str, body: dict[str, Any] | bytes, **fields: str) -> tuple[int, Any, str]:
    """Status, body and Cache-Status of a request; "" where it carries none."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in fields.items()}
    async with running.session.post(running.url + path, data=data, headers=headers) as answer:
        return answer.status, await answer.json(), answer.headers.get("Cache-Status", "")


async def embed(running: Running, text: str, model: str = "small", path: str = EMBEDDINGS, **fields: str) -> str:
    """The Cache-Status of an embedding that is checked to be the right one."""
    status, body, said = await ask(running, path, {"model": model, "input": text}, **fields)
    assert status == 200, body
    assert [one["embedding"] for one in body["data"]] == [vector(path, model, text)]
    return said


async def counted(running: Running, route: str) -> dict[str, float]:
    """Requests of a route by their outcome, those that came about."""
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_active", route=route) == 0
    outcomes = ("bypass", "miss", "hit")
    found = {one: scrape.total("forebay_requests_total", route=route, outcome=one) for one in outcomes}
    return {outcome: count for outcome, count in found.items() if count}


async def test_the_model_in_a_body_chooses_the_route(backend: EmbeddingsServer, tmp_path: Path) -> None:
    """A route for one model takes its calls alone, first and repeated, and each is counted once, where it belongs."""
    config = tmp_path / "forebay.yaml"
    config.write_text(
        "routes: [{id: large, match: {model: lar*}, cache: {ttl: 30s}}, {id: off, match: {model: x}, mode: off}]"
    )
    async with forebay(backend.url, config=config) as running:
        await running.knows("large", "openai_embeddings")
        await running.knows("small", "openai_embeddings")
        for _ in range(2):
            await embed(running, "text", "large")
        await embed(running, "text", "small")
        assert "opted_out" in await embed(running, "text", "x")
        assert await counted(running, "large") == {"miss": 1, "hit": 1}
        assert await counted(running, "default") == {"miss": 1}
        assert await counted(running, "off") == {"bypass": 1}
        assert len(backend.calls) == 3


async def test_a_body_that_is_not_read_has_the_route_of_those_that_name_no_model(
    backend: EmbeddingsServer, tmp_path: Path
) -> None:
    """A request too large to be read is nobody's in particular, and is counted once."""
    config = tmp_path / "forebay.yaml"
    config.write_text("limits: {parse: 1KiB}\nroutes: [{id: large, match: {model: large}}]")
    async with forebay(backend.url, config=config) as running:
        await running.knows("large", "openai_embeddings")
        assert "too_large" in await embed(running, "x" * 2048, "large")
        assert await counted(running, "default") == {"bypass": 1}
        assert await counted(running, "large") == {}


async def test_a_body_that_never_came_counts_where_no_model_is_named(backend: EmbeddingsServer, tmp_path: Path) -> None:
    """Uploads that are refused, or whose clients leave, are not laid to the account of a model that nobody named."""
    config = tmp_path / "forebay.yaml"
    config.write_text("limits: {body: 1KiB}\nroutes: [{id: large, match: {model: large}}]")
    async with forebay(backend.url, config=config) as running:
        await running.knows("large", "openai_embeddings")
        url = running.url + EMBEDDINGS
        async with running.session.post(url, json={"model": "small", "input": "x" * 2048}) as answer:
            assert answer.status == 413
        host, _, port = running.sidecar.data_address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        await running.until(lambda: running.sidecar.metrics.route("large").active.value == 1)
        writer.transport.abort()
        await running.until(lambda: running.sidecar.in_flight == 0)
        scrape = await running.scrape()
        for route, count in (("default", 1), ("large", 0)):
            for outcome in ("rejected", "client_gone"):
                assert scrape.total("forebay_requests_total", route=route, outcome=outcome) == count
            assert scrape.total("forebay_requests_active", route=route) == 0


async def test_a_prefix_and_an_alias_lead_to_a_protocol(backend: EmbeddingsServer, tmp_path: Path) -> None:
    """Gateways' own paths are understood where a route says what they are; the backend gets them as they came."""
    azure = "/openai/deployments/mine/embeddings"
    config = tmp_path / "forebay.yaml"
    config.write_text(
        "routes:\n"
        "- {id: azure, match: {path: /openai/deployments/*/embeddings}, protocol: openai, alias: /v1/embeddings}\n"
        "- {id: behind, match: {path: /tei/*}, protocol: tei, prefix: /tei}\n"
    )
    async with forebay(backend.url, config=config) as running:
        await running.knows("small", "openai_embeddings")
        other = azure.replace("mine", "other")
        assert [(await embed(running, "text", path=path)).split("; ")[1] for path in (azure, azure, other)] == [
            "fwd=miss",
            "hit",
            "fwd=miss",
        ]
        assert await counted(running, "azure") == {"miss": 2, "hit": 1}
        assert [path for path, _ in backend.calls] == [azure, other]
        await running.found("tei")
        _, _, said = await ask(running, "/tei/embeddings", {"input": "x"})
        assert said == "", "no path of TEI's"


async def test_a_gateway_s_prefix_needs_no_configuration(backend: EmbeddingsServer) -> None:
    """Embeddings are known under any prefix, and one prefix is not another."""
    async with forebay(backend.url) as running:
        await running.knows("small", "openai_embeddings")
        said = [await embed(running, "text", path=path + EMBEDDINGS) for path in ("/a", "/a", "/b")]
        assert [one.split("; ")[1] for one in said] == ["fwd=miss", "hit", "fwd=miss"]


@pytest.mark.parametrize(("coding", "coded"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_coded_body_is_read(backend: EmbeddingsServer, coding: str, coded: Any) -> None:
    """Who compresses a request gets hits too, and the backend gets the body as it came."""
    async with forebay(backend.url) as running:
        await running.knows("small", "openai_embeddings")
        body = coded(json.dumps({"model": "small", "input": "text"}).encode())
        for expected in ("fwd=miss", "hit"):
            status, answer, said = await ask(running, EMBEDDINGS, body, Content_Encoding=coding)
            assert (status, said.split("; ")[1]) == (200, expected)
            assert answer["data"][0]["embedding"] == vector(EMBEDDINGS, "small", "text")
        assert len(backend.calls) == 1


async def test_joined_bodies_are_not_coded(backend: EmbeddingsServer) -> None:
    """Calls that came compressed ride together in a body that says what it is."""
    async with forebay(backend.url, batch__max_delay="1s", batch__mode="fixed", batch__max_size="4") as running:
        await running.knows("small", "openai_embeddings")
        bodies = [gzip.compress(json.dumps({"model": "small", "input": f"text {at}"}).encode()) for at in range(4)]
        answers = await asyncio.gather(*(ask(running, EMBEDDINGS, body, Content_Encoding="gzip") for body in bodies))
        vectors = [answer["data"][0]["embedding"] for _, answer, _ in answers]
        assert vectors == [vector(EMBEDDINGS, "small", f"text {at}") for at in range(4)]
        assert [len(body["input"]) for _, body in backend.calls] == [4]


async def test_what_a_coded_body_holds_counts_as_held(backend: EmbeddingsServer) -> None:
    """Small bodies that unpack to much pass through when `limits.buffered` has no room for what is in them."""
    async with forebay(backend.url, limits__buffered="8KiB") as running:
        await running.knows("small", "openai_embeddings")
        for size, expected in ((4000, "Forebay; fwd=miss"), (9000, "Forebay; fwd=bypass; detail=too_large")):
            body = gzip.compress(json.dumps({"model": "small", "input": "x" * size}).encode())
            status, _, said = await ask(running, EMBEDDINGS, body, Content_Encoding="gzip")
            assert status == 200
            assert said.startswith(expected)
        assert running.sidecar.pipeline._buffered.held == 0


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "deflate"])
async def test_a_coding_that_cannot_be_undone_goes_through(backend: EmbeddingsServer, coding: str) -> None:
    """What Forebay cannot unpack for certain is the backend's to judge."""
    async with forebay(backend.url) as running:
        await running.knows("small", "openai_embeddings")
        url = running.url + EMBEDDINGS
        async with running.session.post(url, data=b"not coded", headers={"Content-Encoding": coding}) as answer:
            assert (answer.status, answer.headers["Cache-Status"]) == (415, "Forebay; fwd=bypass; detail=unparsed")


async def test_a_backend_that_does_not_say_so_speaks_nothing(backend: EmbeddingsServer, tmp_path: Path) -> None:
    """A path alone is no proof for protocols with common paths: such a request goes through, and its path is listed."""
    async with embeddings_server(lists=False) as silent, forebay(silent.url) as running:
        await running.until(lambda: running.sidecar.backend.asked)
        for _ in range(2):
            assert await embed(running, "text") == ""
        async with running.session.get(f"{running.admin}/config") as answer:
            shown = await answer.json()
        assert shown["unmatched"] == [{"path": EMBEDDINGS, "count": 2}]
        assert shown["routes"] == {"default": ["v2", "v1"]}
    config = tmp_path / "forebay.yaml"
    config.write_text("protocol: openai")
    async with embeddings_server(lists=False) as silent, forebay(silent.url, config=config) as running:
        await running.knows("small", "openai_embeddings")
        assert [(await embed(running, "text")).split("; ")[1] for _ in range(2)] == ["fwd=miss", "hit"]


def test_a_whole_call_is_never_an_item() -> None:
    """Whatever a codec makes of a body, what is kept of the whole is not read as one of its items, or the reverse."""
    whole, item = (Call(shared=b"same", items=(b"same",), joins=joins) for joins in (False, True))
    assert _form(whole) != _form(item)


async def test_a_call_of_very_many_items_goes_through(backend: EmbeddingsServer) -> None:
    """A caller with thousands of texts is answered by the backend, and nobody else waits while they are looked up."""
    async with forebay(backend.url) as running:
        await running.knows("small", "openai_embeddings")
        for count, expected in ((4096, "Forebay; fwd=miss"), (4097, "Forebay; fwd=bypass; detail=over_limit")):
            texts = [f"{number}" for number in range(count)]
            status, body, said = await ask(running, EMBEDDINGS, {"model": "small", "input": texts})
            assert (status, len(body["data"])) == (200, count)
            assert said.startswith(expected)


async def test_what_is_sampled_is_never_kept_unless_the_route_says_so(
    backend: EmbeddingsServer, tmp_path: Path
) -> None:
    """Who asks for a sample gets a new one each time; with `cache.sampled` everybody gets the same."""
    body = {"model": "small", "prompt": "text", "temperature": 1}
    async with forebay(backend.url) as running:
        await running.knows("small", "openai_generation")
        texts = []
        for _ in range(2):
            _, answer, said = await ask(running, "/v1/completions", body)
            assert said == "Forebay; fwd=bypass; detail=not_deterministic"
            texts.append(answer["choices"][0]["text"])
        assert texts == ["1", "2"]
    async with forebay(backend.url, cache__sampled="true") as running:
        await running.knows("small", "openai_generation")
        answers = [await ask(running, "/v1/completions", body) for _ in range(2)]
        assert [answer["choices"][0]["text"] for _, answer, _ in answers] == ["3", "3"]
        assert answers[1][2].startswith("Forebay; hit")


async def test_a_model_in_the_path_counts_where_the_route_reads_it_so(tmp_path: Path) -> None:
    """A request that one route would have by its body's model, and the next has by its path, asks for the path's."""
    config = tmp_path / "forebay.yaml"
    config.write_text(
        "routes:\n"
        "- {id: first, match: {path: /v2/models/double/infer, model: x*}, protocol: openai, alias: /v1/embeddings}\n"
        "- {id: second, match: {path: /v2/models/double/infer}, protocol: v2}\n"
    )
    tensor = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}
    async with model_server() as server, forebay(server.url, config=config) as running:
        await running.knows("double")
        said = [(await running.infer("double", {"inputs": [tensor]}))[2]["Cache-Status"] for _ in range(2)]
        assert [one.split("; ")[1] for one in said] == ["fwd=miss", "hit"]
        assert (await running.scrape()).total("forebay_requests_total", route="second", model="double") == 2


async def test_a_load_through_a_prefix_is_noticed(tmp_path: Path) -> None:
    """No answer of other weights is used once a load has passed through, by whatever path it came."""
    config = tmp_path / "forebay.yaml"
    config.write_text("routes: [{id: behind, match: {path: /triton/*, model: double}, prefix: /triton}]")
    tensor = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}
    async with model_server() as server, forebay(server.url, config=config) as running:
        await running.knows("double")
        for expected in ("fwd=miss", "hit"):
            said = (await running.infer("double", {"inputs": [tensor]}))[2]["Cache-Status"]
            assert said.split("; ")[1] == expected
        async with running.session.post(f"{running.url}/triton/v2/repository/models/double/load") as answer:
            assert answer.status == 200
        assert "hit" not in (await running.infer("double", {"inputs": [tensor]}))[2]["Cache-Status"]


async def test_a_model_behind_a_prefix_is_asked_about_there(tmp_path: Path) -> None:
    """Two servers behind one gateway have models of one name: what one says is not believed of the other."""
    config = tmp_path / "forebay.yaml"
    config.write_text("routes: [{id: other, match: {path: /other/*}, prefix: /other}]")
    sizes: list[tuple[str, int]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        prefix, _, path = request.path.rpartition("/v2/")
        if request.method == "POST":
            call = json.loads(await request.read())
            (tensor,) = call["inputs"]
            sizes.append((prefix, len(tensor["data"])))
            mean = sum(tensor["data"]) / len(tensor["data"]) if prefix else 0
            output = tensor | {"name": "y", "data": [value - mean for value in tensor["data"]]}
            return web.json_response({"model_name": "m", "model_version": "1", "outputs": [output]} | _id(call))
        said: dict[str, Any] = {
            "models/m": {"name": "m", "versions": ["1"]},
            "models/m/config": {"max_batch_size": 0 if prefix else 8, "input": [{"name": "x", "dims": [1]}]},
        }
        return web.json_response(said.get(path, {}), status=200 if path in said else 404)

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with forebay(f"http://127.0.0.1:{runner.addresses[0][1]}", config=config) as running:

            async def infer(prefix: str, value: float) -> float:
                tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
                url = f"{running.url}{prefix}/v2/models/m/infer"
                async with running.session.post(url, json={"inputs": [tensor]}) as answer:
                    (found,) = (await answer.json())["outputs"][0]["data"]
                    return float(found)

            await running.knows("m")
            await infer("/other", 0.5)
            await running.until(lambda: "v2 behind /other" in {one["codec"] for one in running.sidecar.models.report()})
            assert await asyncio.gather(*(infer("/other", float(at)) for at in range(8))) == [0.0] * 8
            assert await asyncio.gather(*(infer("", float(at)) for at in range(8))) == [float(at) for at in range(8)]
    finally:
        await runner.cleanup()
    assert {size for prefix, size in sizes if prefix} == {1}


def _id(call: dict[str, Any]) -> dict[str, str]:
    return {"id": call["id"]} if "id" in call else {}
