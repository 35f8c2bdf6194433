"""Promises that only time and numbers show: nothing grows, and no end loses a request. Short forms of `make soak`."""

from __future__ import annotations

import os

from benchmarks.sigterm import rounds
from benchmarks.soak import soak
from tests.parts.redis import running

SECONDS = 120.0 if os.environ.get("CI") else 20.0  # two minutes where nobody waits for it
RATE = 80.0
SIGTERMS = 6


async def test_nothing_grows_and_nobody_gets_what_is_not_his() -> None:
    """Under mixed traffic, cancels, faults, reloads and restarts, memory, sockets and tasks are flat."""
    with running("valkey") as redis:
        report = await soak(SECONDS, rate=RATE, redis=redis)
    assert report.failures == [], str(report)
    assert {"reload", "restart", "lose_redis", "left", "rude"} <= set(report.seen), report.seen


async def test_no_sigterm_under_load_loses_an_accepted_request() -> None:
    """Whatever was sent before its client could know of the end is answered, and Forebay exits with 0."""
    done = await rounds(SIGTERMS)
    assert all(each.passed for each in done), done
    assert sum(each.after for each in done) > SIGTERMS, "nobody sent anything after the signal: nothing was tried"
