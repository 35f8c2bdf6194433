"""The promise "transparent", row by row: Forebay between a client and a backend of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.parts.forebay import forebay
from tests.parts.raw_backend import RawBackend
from tests.transparency.play import play
from tests.transparency.row import Row
from tests.transparency.table import TABLE

ROWS = [row for rows in TABLE.values() for row in rows]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """On the loop that Forebay runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.promise)
async def test_row(row: Row) -> None:
    """What the name of the row promises holds, seen as bytes from both sides."""
    with RawBackend(lambda _: None) as free:
        port = free.port
    async with forebay(f"http://127.0.0.1:{port}") as running:
        host, _, front = running.sidecar.data_address.rpartition(":")
        seen = await play(row, port, (host, int(front)))
    assert row.failures(seen) == [], seen


def test_each_row_has_a_promise_of_its_own() -> None:
    """No two rows have one name: whoever reads of a failure finds the row."""
    promises = [row.promise for row in ROWS]
    assert sorted(promises) == sorted(set(promises))
