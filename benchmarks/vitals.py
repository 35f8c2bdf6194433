"""What a process holds, looked at once a second, and whether that is flat. Pure but for `look`, which reads /proc.

The run is cut into fifths. The first is warm-up: tables fill, allocators find their size. What the process holds is
*flat* if the median of the last fifth is not above that of the second by more than `MEMORY` or `COUNTS` allows, and,
for what must go with the traffic, if it is back at its idle level after the traffic has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_MIB = 1024 * 1024
_FIFTHS = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """at: seconds since the traffic began. memory: resident bytes. tasks, connections: as /config reports them."""

    at: float
    memory: int
    files: int
    sockets: int
    threads: int
    tasks: int
    connections: int
    full_collections: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """Growth that is no leak: a share of what was there, or `least` where that is more."""

    share: float
    least: float

    def of(self, before: float) -> float:
        return max(before * self.share, self.least)


MEMORY = Allowance(0.05, 4 * _MIB)  # large bodies that happen to be held at the same time
COUNTS = Allowance(0.5, 16)  # callers that happen to be there at the same time


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict: `value` must not be above `limit`."""

    what: str
    value: float
    limit: float

    @property
    def flat(self) -> bool:
        return self.value <= self.limit


def look(pid: int, process: Mapping[str, Any], at: float) -> Sample:
    """What the process holds now. process: that part of its /config."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = sockets = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            is_socket = str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:  # closed since
            continue
        files += 1
        sockets += is_socket
    return Sample(
        at=at,
        memory=int(status["VmRSS"].split()[0]) * 1024,
        files=files,
        sockets=sockets,
        threads=int(status["Threads"]),
        tasks=process["tasks"],
        connections=process["connections"],
        full_collections=process["full_collections"],
    )


def fifth(samples: Sequence[Sample], number: int) -> Sequence[Sample]:
    """The samples of one fifth of the run, counted from 0."""
    return samples[len(samples) * number // _FIFTHS : len(samples) * (number + 1) // _FIFTHS]


def middle(samples: Sequence[Sample], what: str) -> float:
    return float(median(getattr(sample, what) for sample in samples))


def _own(sample: Sample, what: str) -> float:
    """What the process holds of it by itself: a client's connection is a socket and a task, as many as clients like."""
    return float(getattr(sample, what)) - (sample.connections if what in ("sockets", "tasks") else 0)


def verdict(samples: Sequence[Sample], before: Sequence[Sample], after: Sequence[Sample]) -> list[Finding]:
    """Is it flat? samples: under traffic; before, after: without any."""
    findings = []
    for what, allowed in (("memory", MEMORY), ("sockets", COUNTS), ("tasks", COUNTS), ("threads", COUNTS)):
        early, late = (median(_own(sample, what) for sample in fifth(samples, number)) for number in (1, 4))
        findings.append(
            Finding(f"{what} under traffic, last fifth against the second", late, early + allowed.of(early))
        )
    for what in ("sockets", "files", "tasks", "connections"):
        idle = max(getattr(sample, what) for sample in before)
        findings.append(Finding(f"{what} after the traffic, against before", getattr(after[-1], what), idle))
    return findings


def at_idle_level(before: Sequence[Sample], after: Sequence[Sample]) -> bool:
    """Have the last three looks seen no more than there was before the traffic?"""
    return len(after) > 2 and all(
        max(getattr(sample, what) for sample in after[-3:]) <= max(getattr(sample, what) for sample in before)
        for what in ("sockets", "files", "tasks", "connections")
    )


def table(samples: Sequence[Sample], before: Sequence[Sample], after: Sequence[Sample]) -> str:
    """Medians of each fifth, as Markdown."""
    lines = [
        "| | memory MiB | sockets | files | connections | tasks | threads |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    parts = [("idle before", before), *((f"fifth {n + 1}", fifth(samples, n)) for n in range(_FIFTHS))]
    for name, part in (*parts, ("idle after", after[-3:])):
        counts = (middle(part, what) for what in ("sockets", "files", "connections", "tasks", "threads"))
        lines.append(f"| {name} | {middle(part, 'memory') / _MIB:.1f} | {' | '.join(f'{n:g}' for n in counts)} |")
    return "\n".join(lines)
