"""When a soak calls a process flat. Nothing here runs one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from benchmarks.vitals import Sample, at_idle_level, look, table, verdict

IDLE = Sample(0.0, memory=50 * 2**20, files=20, sockets=10, threads=5, tasks=9, connections=0, full_collections=0)
BUSY = replace(IDLE, memory=60 * 2**20, files=40, sockets=30, tasks=29, connections=15)


def run(change: Callable[[int], dict[str, int]]) -> Sequence[Sample]:
    """A hundred looks at a process under traffic. change: what is different in the n-th."""
    return [replace(BUSY, at=float(n), **change(n)) for n in range(100)]


def not_flat(samples: Sequence[Sample], after: Sample = IDLE) -> list[str]:
    return [finding.what for finding in verdict(samples, [IDLE], [BUSY, after]) if not finding.flat]


def test_what_grows_in_the_warm_up_alone_is_flat() -> None:
    """Tables that fill and an allocator that finds its size are no leak."""
    assert not_flat(run(lambda n: {"memory": min(n, 20) * 3 * 2**20, "sockets": 30 + n % 7})) == []


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("memory", lambda n: {"memory": BUSY.memory + n * 2**17}),
        ("sockets", lambda n: {"sockets": 30 + n // 2}),
        ("tasks", lambda n: {"tasks": 29 + n // 2}),
        ("threads", lambda n: {"threads": 5 + n // 2}),
    ],
)
def test_what_grows_steadily_is_found(what: str, change: Callable[[int], dict[str, int]]) -> None:
    """A small leak for each request shows, whichever kind it is of."""
    assert not_flat(run(change)) == [f"{what} under traffic, last fifth against the second"]


@pytest.mark.parametrize("what", ["sockets", "files", "tasks", "connections"])
def test_what_outlives_the_traffic_is_found(what: str) -> None:
    """One socket or task too many when nobody is there any more is a leak."""
    left = replace(IDLE, **{what: getattr(IDLE, what) + 1})
    assert not_flat(run(lambda _: {}), left) == [f"{what} after the traffic, against before"]


def test_idle_is_what_three_looks_agree_on() -> None:
    """A single lucky look does not pass for an end."""
    assert not at_idle_level([IDLE], [IDLE, IDLE])
    assert not at_idle_level([IDLE], [IDLE, BUSY, IDLE, IDLE])
    assert at_idle_level([IDLE], [BUSY, IDLE, IDLE, IDLE])


def test_a_look_is_at_the_process_itself() -> None:
    """What is counted is what the system says of the process: a file and a socket more are seen."""
    report = {"tasks": 1, "connections": 2, "full_collections": 3}
    before = look(os.getpid(), report, 1.0)
    reader, writer = os.pipe()
    try:
        after = look(os.getpid(), report, 1.0)
    finally:
        os.close(reader)
        os.close(writer)
    assert (after.files, after.sockets) == (before.files + 2, before.sockets)
    assert before.memory > 2**20
    assert (before.tasks, before.connections, before.full_collections) == (1, 2, 3)


def test_the_table_shows_every_fifth() -> None:
    """A reader sees the course of it at a glance."""
    lines = table(run(lambda n: {"tasks": n}), [IDLE], [IDLE]).splitlines()
    assert [line.split("|")[6].strip() for line in lines[2:]] == ["9", "9.5", "29.5", "49.5", "69.5", "89.5", "9"]
