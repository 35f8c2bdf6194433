"""docs/metrics.md, from the catalogue: `python -m proxy.telemetry.reference > docs/metrics.md`.

A test fails when the file is not what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from proxy.telemetry import catalogue as c

_HEAD = """\
# Metrics

Served at `/metrics` of the admin listener, for Prometheus. Written by `python -m proxy.telemetry.reference`.

A duration runs from its start event to its stop event on one monotonic clock. A counter counts its stop event. A gauge
is raised or set by its start event and lowered by its stop event. The events t0 to t10 are those of one request, in
their order: t0 head parsed, t1 body read, t2 cache answered, t3 enqueued, t4 dispatched, t5 connection held, t6 request
written, t7 upstream headers, t9 last upstream byte, t10 last write drained or client gone.

The sum of `forebay_requests_total` over `outcome` is the number of requests. The process's own metrics, `process_*`,
stand beside these.
"""


def text() -> str:
    """What docs/metrics.md holds."""
    return "\n".join((_HEAD, *_metrics(), *_labels(), *_decisions(), *_buckets()))


def _metrics() -> Iterator[str]:
    rows = (
        (
            f"`{metric.name}`",
            metric.kind.value,
            ", ".join(f"`{label.name}`" for label in metric.labels) or "–",
            metric.says,
            metric.start or "–",
            metric.stop or "–",
            metric.unit,
        )
        for metric in c.CATALOGUE
    )
    yield from _table(("name", "type", "labels", "what it says", "start event", "stop event", "unit"), rows)


def _labels() -> Iterator[str]:
    yield "## Label values\n"
    yield "Each set is closed. No label ever holds a path, a key or a user.\n"
    rows: dict[tuple[str, str], list[str]] = {}
    for metric in c.CATALOGUE:
        for label in metric.labels:
            values = label.source or ", ".join(f"`{value}`" for value in label.values)
            rows.setdefault((label.name, values), []).append(f"`{metric.name.removeprefix('forebay_')}`")
    many = 5
    yield from _table(
        ("label", "values", "of"),
        (
            (f"`{name}`", values, ", ".join(names) if len(names) < many else "wherever it stands")
            for (name, values), names in rows.items()
        ),
    )


def _decisions() -> Iterator[str]:
    yield "`reason` of `decisions_total` depends on `decision`:\n"
    yield from _table(
        ("decision", "reasons"),
        (
            (f"`{decision.value}`", ", ".join(f"`{reason.value}`" for reason in reasons))
            for decision, reasons in c.DECISIONS.items()
        ),
    )


def _buckets() -> Iterator[str]:
    yield "## Buckets\n"
    rows: dict[c.Buckets, list[str]] = {}
    for metric in c.CATALOGUE:
        if metric.buckets is not None:
            rows.setdefault(metric.buckets, []).append(f"`{metric.name.removeprefix('forebay_')}`")
    yield from _table(
        ("of", "upper bounds", "why these"),
        (
            (", ".join(names), ", ".join(f"{bound:g}" for bound in buckets.bounds), buckets.why)
            for buckets, names in rows.items()
        ),
    )


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(text())
