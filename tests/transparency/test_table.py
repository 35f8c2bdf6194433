"""The promise "transparent", row by row: Forebay between a client and a backend of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from benchmarks.compare_proxies import escaped
from tests.parts.forebay import forebay
from tests.parts.forebay_process import ROOT
from tests.transparency.play import play, reserved
from tests.transparency.row import Row
from tests.transparency.table import LOST, TABLE

ROWS = [row for rows in TABLE.values() for row in rows]
PATIENCE = 10.0  # seconds until a wait of a row is given up


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """On the loop that Forebay runs on."""
    return {"uvloop": uvloop.new_event_loop}


async def failures(row: Row, *, patience: float = PATIENCE) -> list[str]:
    """Play it through a Forebay of its own."""
    with reserved() as port:
        async with forebay(f"http://127.0.0.1:{port}") as running:
            host, _, front = running.sidecar.data_address.rpartition(":")
            return row.failures(await play(row, port, (host, int(front)), patience=patience))


@pytest.mark.parametrize("row", [row for row in ROWS if row.promise not in LOST], ids=lambda row: row.promise)
async def test_row(row: Row) -> None:
    """What the name of the row promises holds, seen as bytes from both sides."""
    assert await failures(row) == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.promise in LOST], ids=lambda row: row.promise)
async def test_what_is_lost(row: Row) -> None:
    """What the table says that Forebay does not keep is not kept: whoever mends it moves the row."""
    assert await failures(row, patience=1.0)


def test_each_row_has_a_promise_of_its_own() -> None:
    """No two rows have one name: whoever reads of a failure finds the row."""
    promises = [row.promise for row in ROWS]
    assert sorted(promises) == sorted(set(promises))
    assert set(LOST) <= set(promises)


def test_the_published_table_is_this_one() -> None:
    """docs/transparency.md has a line for every row, and says of Forebay what the tests above hold it to."""
    lines = (ROOT / "docs/transparency.md").read_text().splitlines()
    for row in ROWS:
        mark = "**no**" if row.promise in LOST else "yes"
        assert any(line.startswith(f"| {escaped(row.promise)} | {mark} |") for line in lines), row.promise
