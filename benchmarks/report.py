"""The table and the JSON of one run."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.load import SATURATED
from benchmarks.rounds import Figure, Rounds
from proxy.measure.simulator import Run

FAR: float = 0.05
"""From here on what was measured differs from what was simulated."""


def table(rounds: Mapping[str, Rounds], simulated: Mapping[int, Run]) -> str:
    """Medians over the rounds, as Markdown."""
    lines = [
        "| | requests/s | p50 ms | p99 ms | CPU of a request, ms | its core busy | wrk busy | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, of in rounds.items():
        cpu, busy, wrk = (of.median(attrgetter(figure)) for figure in ("cpu_ms", "server_busy", "load_busy"))
        notes = []
        if wrk > SATURATED:
            notes.append("wrk is the bottleneck: the server may be faster")
        if of.failed:
            notes.append(f"{of.failed} without a 200")
        if name.endswith("forebay") and name.startswith("batched"):
            run = simulated[int(name.split("/")[0].split()[1])]
            notes.append(f"simulated {run.rate:.0f}/s, {run.p50 * 1e3:.0f} / {run.p99 * 1e3:.0f} ms")
        lines.append(
            f"| {name} | {of.median(lambda shot: shot.rate):.0f} | {of.median(lambda shot: shot.p50_ms):.2f} "
            f"| {of.median(lambda shot: shot.p99_ms):.2f} | {_or_dash(cpu, '.3f')} | {_or_dash(busy, '.2f')} "
            f"| {wrk:.2f} | {'; '.join(notes)} |"
        )
    return "\n".join(lines)


def _or_dash(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def machine() -> dict[str, Any]:
    """Where it ran."""
    models = [line.partition(":")[2].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load average before": os.getloadavg(),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def document(
    about: Mapping[str, Any],
    *,
    rounds: Mapping[str, Rounds],
    simulated: Mapping[int, Run],
    found: Mapping[str, float],
    figures: Sequence[Figure],
    returns: Mapping[int, Mapping[str, float]],
) -> dict[str, Any]:
    """Everything, every round included."""
    return {
        **about,
        "rounds": {name: [asdict(shot) for shot in of.shots] for name, of in rounds.items()},
        "simulated": {n: {"rate": r.rate, "p50_ms": r.p50 * 1e3, "p99_ms": r.p99 * 1e3} for n, r in simulated.items()},
        "from Forebay's metrics": dict(found),
        "returns": dict(returns),
        "figures": [asdict(figure) | {"reached": figure.reached} for figure in figures],
    }
