"""What a request leaves behind is freed at once, so that the cycle collector need come only seldom."""

from __future__ import annotations

import asyncio
import gc

from tests.parts.forebay import forebay
from tests.parts.model_backend import model_server


def call(number: int) -> dict[str, object]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [number, 1]}]}


async def test_no_request_waits_for_the_collector_to_be_freed() -> None:
    """Bodies and answers are gone when their requests are, hit or miss, alone or joined: no load makes memory grow."""
    async with model_server() as model, forebay(model.url) as running:
        await running.infer("double", call(-1))
        await running.knows("double")

        async def traffic(first: int) -> None:
            for number in range(first, first + 5):
                await running.infer("double", call(number))
                await running.infer("double", call(number))
            await asyncio.gather(*(running.infer("double", call(first + 100 + place)) for place in range(8)))
            async with running.session.get(f"{running.url}/elsewhere") as answer:
                await answer.read()

        await traffic(0)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await traffic(1000)
            gc.collect()
            ours = {type(left) for left in gc.garbage if type(left).__module__.startswith("proxy.")}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert ours == set()
