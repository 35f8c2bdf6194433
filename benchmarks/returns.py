"""How soon callers are back: from a batch's answer to the moment at which each next call waits for a batch.

`python -m benchmarks.returns FILE --upstream URL` is a Forebay that keeps these moments and writes what they say to
FILE when it ends. It shows where a crowd's time goes when the throughput is not the simulated one.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from benchmarks import load, processes
from proxy.config import load as load_settings
from proxy.sidecar import Sidecar
from tests.parts.triton import SLOW, Triton

SECONDS: Final = 3
PATH: Final = f"/v2/models/{SLOW.name}/infer"
ROW: Final = b'{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[@,1,2,3]}]}'
SETTLED: Final = 8  # batches at the beginning that are left out


def measured(crowds: Sequence[int]) -> dict[int, dict[str, float]]:
    """For each crowd a run of its own, in ms: when the first, the middle and the last call of a cycle is back."""
    own, other = processes.cores()
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with processes.pinned(other):
            triton = Triton(SLOW)
            triton.__enter__()
        try:
            for crowd in crowds:
                file = Path(folder) / f"{crowd}.json"
                arguments = ("-m", "benchmarks.returns", str(file), "--upstream", triton.url)
                with processes.started(*arguments, core=own) as forebay:
                    processes.knows(forebay, PATH, ROW.replace(b"@", b"-1"))
                    load.run(load.Load(forebay.url + PATH, ROW, crowd, SECONDS, varied=True), other)
                found[crowd] = json.loads(file.read_text())
        finally:
            triton.__exit__(None, None, None)
    return found


def summary(cycles: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of each cycle the delays, in seconds, at which its calls were back: medians in ms, and how many calls."""
    full = [cycle for cycle in cycles[SETTLED:] if cycle]
    if not full:
        return {"cycles": 0}
    return {
        "cycles": len(full),
        "calls": median(map(len, full)),
        "first ms": round(median(cycle[0] for cycle in full) * 1e3, 3),
        "middle ms": round(median(cycle[len(cycle) // 2] for cycle in full) * 1e3, 3),
        "last ms": round(median(cycle[-1] for cycle in full) * 1e3, 3),
    }


async def _serve(upstream: str) -> list[list[float]]:
    addresses = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    settings = load_settings(None, {}, addresses | {"upstream": upstream})
    cycles: list[list[float]] = [[]]
    answered = time.monotonic()

    def answer(*_: Any) -> None:
        nonlocal answered
        answered = time.monotonic()
        cycles.append([])

    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with Sidecar(settings) as sidecar:
        _also(sidecar.metrics.upstream, "exchange", answer)
        _also(sidecar.metrics.batches, "queued", lambda *_: cycles[-1].append(time.monotonic() - answered))
        print(f"listening on http://{sidecar.data_address}", flush=True)
        await asked.wait()
    return cycles


def _also(observer: object, name: str, record: Callable[..., None]) -> None:
    """Let `record` hear, too, what an observer is told."""
    told = getattr(observer, name)

    def both(*arguments: Any) -> None:
        record(*arguments)
        told(*arguments)

    setattr(observer, name, both)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(summary(uvloop.run(_serve(sys.argv[3])))))
