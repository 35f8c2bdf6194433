"""Who passes what on: the table of tests/transparency before Forebay, nginx and HAProxy, as Markdown.

    python -m benchmarks.compare_proxies [file to write]

What each did instead of what a row promises is told below the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks import proxies
from proxy import __version__
from tests.transparency.play import play, reserved
from tests.transparency.row import Row
from tests.transparency.table import LOST, TABLE

PATIENCE = 2.0
"""Seconds that a client waits before a row has failed."""

Failures = dict[str, list[str]]
"""By promise: what was not as promised."""


async def played(rows: list[Row], front: proxies.Address, backend: int) -> Failures:
    """Each row through one proxy that runs all the time."""
    failures: Failures = {}
    for row in rows:
        try:
            seen = await play(row, backend, front, patience=PATIENCE)
            failures[row.promise] = row.failures(seen)
        except (OSError, AssertionError) as error:
            failures[row.promise] = [repr(error)]
    return failures


def compared(rows: list[Row]) -> dict[str, Failures]:
    """The failures of every proxy that is here, by its name and version."""
    starts = {"forebay": proxies.forebay, "nginx": proxies.nginx, "haproxy": proxies.haproxy}
    done: dict[str, Failures] = {}
    for name, start in starts.items():
        version = __version__ if name == "forebay" else proxies.version(name)
        if version is None:
            package = "nginx-light" if name == "nginx" else name
            print(f"{name} is not installed and left out: on Debian, `apt-get install {package}`", file=sys.stderr)
            continue
        with reserved() as backend, start(backend) as front:
            done[f"{name} {version}"] = uvloop.run(played(rows, front, backend))
    return done


def summary(done: dict[str, Failures]) -> Iterator[str]:
    """How many rows of each group every proxy keeps."""
    yield f"| | rows | {' | '.join(done)} |"
    yield "|---|" + "---:|" * (len(done) + 1)
    for group, rows in TABLE.items():
        kept = [sum(not failures[row.promise] for row in rows) for failures in done.values()]
        yield f"| {group} | {len(rows)} | {' | '.join(map(str, kept))} |"
    kept = [sum(not broken for broken in failures.values()) for failures in done.values()]
    total = sum(map(len, TABLE.values()))
    yield f"| **all** | **{total}** | {' | '.join(f'**{count}**' for count in kept)} |"


def details(done: dict[str, Failures]) -> Iterator[str]:
    """Row by row, who keeps it; then what was otherwise."""
    yield "\n## What Forebay loses\n"
    for promise, instead in LOST.items():
        keepers = [name for name, failures in done.items() if not failures[promise]]
        yield f"- {escaped(promise)}: {instead}. Kept by {' and '.join(keepers) or 'none of them'}."
    for group, rows in TABLE.items():
        yield f"\n## {group}\n"
        yield f"| | {' | '.join(done)} |"
        yield "|---" * (len(done) + 1) + "|"
        for row in rows:
            marks = ["**no**" if failures[row.promise] else "yes" for failures in done.values()]
            yield f"| {escaped(row.promise)} | {' | '.join(marks)} |"
    for name, failures in done.items():
        yield f"\n## What was otherwise before {name}\n"
        for promise, what in failures.items():
            if what:
                yield f"- {escaped(promise)}. Not so: {escaped('; '.join(map(short, what)))}."


def short(text: str) -> str:
    """Without the bulk of long bytes."""
    return text if len(text) <= 160 else f"{text[:150]} ..."


def escaped(text: str) -> str:
    """As it stands, in Markdown."""
    for sign in "\\|`*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text


HEAD = """\
# Who passes what on

Written by `make compare-proxies`, not by hand. Each line is a row of `tests/transparency/`: raw bytes from a client,
raw bytes from a backend, and what each of them must have seen. The suite holds Forebay to it; here the same rows are
played through nginx and HAProxy, each on loopback, configured to be as transparent as its options let it be
(`benchmarks/proxies.py`), and through `forebay serve` with its defaults. The rows are what Forebay promises, so
they are no judgement of what else the others are good at; where RFC 9112 leaves a choice, a row takes either.
"""


def main() -> int:
    """Play, print how many, and write the rest to a file if one is named."""
    done = compared([row for rows in TABLE.values() for row in rows])
    counts = "\n".join(summary(done))
    print(counts)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(f"{HEAD}\n{counts}\n" + "\n".join(details(done)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
