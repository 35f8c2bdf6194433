"""What a person sees of the demo while it runs: a table that refreshes, or a line a second without a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from proxy.measure.report import Measured


@dataclass(slots=True)
class Way:
    """One way that the traffic took, and what was measured on it.

    hit_rate, batch_size, queue_wait (seconds): from Forebay's own metrics; nan where there is no Forebay.
    """

    name: str
    measured: Measured
    hit_rate: float = math.nan
    batch_size: float = math.nan
    queue_wait: float = math.nan


def _number(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"


COLUMNS = ("way", "requests", "req/s", "hit rate", "mean batch", "queue wait", "p50", "p99", "failed")


def cells(way: Way) -> tuple[str, ...]:
    """One way as text, in the order of `COLUMNS`."""
    measured = way.measured
    return (
        way.name,
        f"{len(measured.latencies):,}",
        _number(measured.throughput or math.nan, ",.0f"),
        _number(way.hit_rate, ".1%"),
        _number(way.batch_size, ".1f"),
        _number(way.queue_wait * 1e3, ".1f", " ms"),
        _number(measured.latency(0.5) * 1e3, ".1f", " ms"),
        _number(measured.latency(0.99) * 1e3, ".1f", " ms"),
        str(measured.failed),
    )


class Screen:
    """Shows the ways while they are measured. A context: it leaves the terminal as it found it."""

    def __init__(self, ways: Sequence[Way], console: Console | None = None) -> None:
        self._ways = ways
        self._console = console or Console()
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table())
            self._live.stop()

    def show(self, way: Way) -> None:
        """Show the latest numbers; `way` is the one that is being measured."""
        if self._live is not None:
            self._live.update(self._table())
        else:
            said = zip(COLUMNS[1:], cells(way)[1:], strict=True)
            print(f"{way.name}:", ", ".join(f"{name} {cell}" for name, cell in said if cell != "–"), flush=True)

    def _table(self) -> Table:
        table = Table()
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "way" else "right")
        for way in self._ways:
            table.add_row(*cells(way))
        return table

    def summary(self) -> str:
        """The table as plain text."""
        rows = [COLUMNS, *(cells(way) for way in self._ways)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
