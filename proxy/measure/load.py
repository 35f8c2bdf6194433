"""A closed loop of callers: each sends its next request when it has its answer.

Load goes to loopback only, is bounded by the requests it is given and by `limit` seconds, and ends by
itself. Latency runs from just before a request is handed to the client library to its last byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import aiohttp

from proxy.measure.report import Measured


async def closed_loop(
    url: str,
    bodies: Iterator[bytes],
    *,
    callers: int,
    limit: float,
    measured: Measured,
    check: Callable[[bytes], bool] | None = None,
) -> int:
    """Let `callers` callers share `bodies` until they or `limit` seconds are used up.

    measured: filled as answers come, so that it can be shown live. check: whether an answer is right.
    Returns how many requests were sent. An answer that is not 2xx, or fails `check`, counts as failed.
    """
    assert urlsplit(url).hostname in {"127.0.0.1", "::1", "localhost"}, "load goes to loopback only"
    started = time.perf_counter()
    sent = 0

    async def caller(session: aiohttp.ClientSession) -> None:
        nonlocal sent
        for body in bodies:
            begun = time.perf_counter()
            if begun - started > limit:
                return
            sent += 1
            try:
                async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                    content = await answer.read()
                right = answer.status < 300 and (check is None or check(content))
            except aiohttp.ClientError:
                right = False
            now = time.perf_counter()
            if right:
                measured.latencies.append(now - begun)
            else:
                measured.failed += 1
            measured.seconds = now - started

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(caller(session) for _ in range(callers)))
    return sent
