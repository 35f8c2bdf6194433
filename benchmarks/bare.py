"""What Forebay's hits are measured against, and a backend: `python -m benchmarks.bare`.

aiohttp's low-level server on uvloop, which reads the body and answers the same bytes each time with a plain
`web.Response`. Beside that it says enough of a model `echo` for Forebay to recognise its calls.
Prints its address when it listens; ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

import uvloop
from aiohttp import web

WIDTH: Final = 16
CALL: Final = json.dumps(
    {"inputs": [{"name": "X", "shape": [1, WIDTH], "datatype": "FP32", "data": [i / 7 for i in range(WIDTH)]}]}
).encode()
ANSWER: Final = json.dumps(
    {
        "model_name": "echo",
        "model_version": "1",
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1, WIDTH], "data": [i / 3 for i in range(WIDTH)]}],
    },
    separators=(",", ":"),  # as Forebay writes it, so that both send the same bytes
).encode()
_SAYS: Final = {
    "/v2/health/ready": {},
    "/v2/models/echo": {"name": "echo", "versions": ["1"], "platform": "bare"},
    "/v2/models/echo/config": {
        "name": "echo",
        "max_batch_size": 32,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "instance_group": [{"name": "echo", "kind": "KIND_CPU", "count": 1}],
    },
    "/v2/models/echo/stats": {"model_stats": [{"name": "echo", "version": "1", "inference_count": 1}]},
}


async def handle(request: web.BaseRequest) -> web.StreamResponse:
    if request.method == "POST":
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")
    said = _SAYS.get(request.path)
    return web.Response(status=404) if said is None else web.json_response(said)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(web.Server(handle), "127.0.0.1", 0, backlog=1024)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
