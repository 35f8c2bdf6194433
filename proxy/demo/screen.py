"""What a person sees of the demo while it runs: a table that refreshes, or a line a second without a terminal.

One row a figure and one column a way, so that it fits any terminal of some 50 columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from proxy.measure.report import Measured

NOTHING: Final = "-"


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
    return NOTHING if math.isnan(value) else f"{value:{form}}{unit}"


FIGURES: Final = ("requests", "requests/s", "hit rate", "mean batch", "queue wait", "p50", "p99", "failed")


def cells(way: Way) -> tuple[str, ...]:
    """One way as text, in the order of `FIGURES`."""
    measured = way.measured
    return (
        f"{len(measured.latencies):,}",
        _number(measured.throughput or math.nan, ",.0f"),
        _number(way.hit_rate, ".1%"),
        _number(way.batch_size, ".1f", " texts"),
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
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(self._table(None), console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(None), refresh=True)
            self._live.stop()
        elif kind is None:
            print(self.summary(), flush=True)

    def show(self, way: Way) -> None:
        """Show the latest figures; `way` is the one that is being measured."""
        if self._live is not None:
            self._live.update(self._table(way), refresh=True)
        else:
            said = zip(FIGURES, cells(way), strict=True)
            print(f"{way.name}:", ", ".join(f"{name} {cell}" for name, cell in said if cell != NOTHING), flush=True)

    def _table(self, now: Way | None) -> Table:
        table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
        if now is not None:
            table.caption = f"{now.name}: {now.measured.seconds:.0f} s so far"
        table.add_column("")
        for way in self._ways:
            table.add_column(way.name, justify="right", style="bold" if way is now else "", no_wrap=True)
        for row in zip(FIGURES, *map(cells, self._ways), strict=True):
            table.add_row(*row)
        return table

    def summary(self) -> str:
        """The table as plain text."""
        rows = [("", *(way.name for way in self._ways)), *zip(FIGURES, *map(cells, self._ways), strict=True)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
        )

    def __repr__(self) -> str:
        return f"<Screen {'live' if self._live is not None else 'plain'}, {len(self._ways)} ways>"
