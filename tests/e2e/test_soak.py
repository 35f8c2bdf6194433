"""Promises that only time and numbers show: nothing grows, and no end loses a request. Short forms of `make soak`."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.sigterm import rounds
from benchmarks.soak import soak
from tests.parts.redis import running
from tests.parts.soak_beside import RATE, SOAK

SECONDS = 20.0  # on a developer's machine
SIGTERMS = 6


async def test_nothing_grows_and_nobody_gets_what_is_not_his(pytestconfig: pytest.Config) -> None:
    """Under mixed traffic, cancels, faults, reloads and restarts, memory, sockets and tasks are flat."""
    beside = pytestconfig.stash.get(SOAK, None)  # where CI is set: two minutes that began with the tests
    if beside is None:
        with running("valkey") as redis:
            report = await soak(SECONDS, rate=RATE, redis=redis)
        failures, seen, text = report.failures, report.seen, str(report)
    else:
        await asyncio.to_thread(beside.process.wait, 240)
        text = beside.log.read_text(errors="replace")
        assert beside.report.exists(), text
        found = json.loads(beside.report.read_text())
        failures, seen = found["failures"], found["seen"]
    assert failures == [], text
    assert {"reload", "restart", "lose_redis", "left", "rude"} <= set(seen), seen


async def test_no_sigterm_under_load_loses_an_accepted_request() -> None:
    """Whatever was sent before its client could know of the end is answered, and Forebay exits with 0."""
    done = await rounds(SIGTERMS)
    assert all(each.passed for each in done), done
    assert sum(each.after for each in done) > SIGTERMS, "nobody sent anything after the signal: nothing was tried"
