"""Who passes what on: the table of tests/transparency before Forebay, nginx and HAProxy, as Markdown.

    python -m benchmarks.compare_proxies [text that a row's promise holds]

What each did instead of what a row promises is told below the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

import uvloop

from benchmarks import proxies
from proxy import __version__
from tests.transparency.play import play
from tests.transparency.row import Row
from tests.transparency.table import TABLE

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
        backend = proxies.free_port()
        before: AbstractContextManager[proxies.Address] = start(backend)
        with before as front:
            done[f"{name} {version}"] = uvloop.run(played(rows, front, backend))
    return done


def report(done: dict[str, Failures]) -> Iterator[str]:
    """The table, then what each did instead."""
    names = list(done)
    yield f"| | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for group, rows in TABLE.items():
        asked = [row.promise for row in rows if all(row.promise in failures for failures in done.values())]
        if not asked:
            continue
        kept = [sum(not failures[promise] for promise in asked) for failures in done.values()]
        yield f"| **{group}** | {' | '.join(f'**{count}** of {len(asked)}' for count in kept)} |"
        for promise in asked:
            marks = ["yes" if not failures[promise] else "**no**" for failures in done.values()]
            yield f"| {escaped(promise)} | {' | '.join(marks)} |"
    total = len(next(iter(done.values())))
    kept = [sum(not broken for broken in failures.values()) for failures in done.values()]
    yield f"| **all** | {' | '.join(f'**{count}** of {total}' for count in kept)} |"
    for name, failures in done.items():
        yield ""
        yield f"## What {name} does not keep"
        yield ""
        broken = {promise: what for promise, what in failures.items() if what}
        for promise, what in broken.items():
            yield f"- {escaped(promise)}. Not so: {escaped('; '.join(what))}."
        if not broken:
            yield "Nothing in the table."


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
    """Play, and print."""
    wanted = " ".join(sys.argv[1:])
    rows = [row for rows in TABLE.values() for row in rows if wanted in row.promise]
    if not rows:
        print(f"no row promises {wanted!r}", file=sys.stderr)
        return 2
    print(HEAD)
    print("\n".join(report(compared(rows))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
