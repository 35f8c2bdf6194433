"""Counters, gauges and histograms that cost an event loop next to nothing, and their text format.

Invariants
    One thread changes an instrument, the event loop's; any thread may write it out, without a lock.
    To count is to change an attribute of a child made beforehand: no labels are looked at.
    The buckets, `+Inf` and `_count` of a histogram are written from one copy, so they always agree;
    its `_sum` may lack or lead by the one observation that is under way.
    What is negative or no number is never counted or observed: it is an interval whose end did not
    happen, and one nan would spoil a sum for good.

A child's lines differ only in their numbers, so the rest of them is made once, with the child, and
writing is one `%` each: a twentieth of the time that `prometheus_client.generate_latest` takes for the
same text, all of which would be spent holding the interpreter's lock against the event loop.
tests/telemetry/test_instruments.py holds the text against what prometheus_client itself writes.

Knows nothing of what is counted: that is catalogue.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar

_INF: Final = math.inf


class Instrument(Protocol):
    """What a family needs of its children."""

    def template(self, name: str, labels: str) -> str:
        """The child's lines with `%s` for each number; `labels` is `a="b",c="d"`, or empty."""

    def numbers(self) -> tuple[object, ...]:
        """What stands for the `%s`, now."""


class Counter:
    """Counts up. Whole numbers stay whole, however large."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self) -> None:
        self.value += 1

    def add(self, amount: float) -> None:
        """Count `amount` at once; what is not above 0 and finite counts nothing."""
        if 0 < amount < _INF:
            self.value += amount

    def template(self, name: str, labels: str) -> str:
        return f"{name}{_braces(labels)} %s\n"

    def numbers(self) -> tuple[object, ...]:
        return (number(self.value),)

    def __repr__(self) -> str:
        return f"<Counter {number(self.value)}>"


class Gauge:
    """What is, now."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float) -> None:
        """Raise it by `amount`, or lower it by a negative one."""
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value

    def template(self, name: str, labels: str) -> str:
        return f"{name}{_braces(labels)} %s\n"

    def numbers(self) -> tuple[object, ...]:
        return (number(self.value),)

    def __repr__(self) -> str:
        return f"<Gauge {number(self.value)}>"


class Histogram:
    """How many observations were at most each of `bounds`, and the sum of all."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        assert bounds, "without a bound it is a counter"
        assert bounds[0] >= 0, "Prometheus takes the sum for a counter"
        assert bounds[-1] < _INF, "+Inf is added here"
        self.bounds = tuple(bounds)
        self.sum: float = 0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        if value >= 0:  # False for nan
            self._counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self._counts)

    def template(self, name: str, labels: str) -> str:
        head = f"{name}_bucket{{{labels}{',' if labels else ''}le="
        buckets = "".join(f'{head}"{bound}"}} %s\n' for bound in (*map(number, map(float, self.bounds)), "+Inf"))
        return f"{buckets}{name}_count{_braces(labels)} %s\n{name}_sum{_braces(labels)} %s\n"

    def numbers(self) -> tuple[object, ...]:
        cumulative = tuple(accumulate(self._counts.copy()))
        return (*cumulative, cumulative[-1], number(self.sum))

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, sum {number(self.sum)}>"


Child = TypeVar("Child", bound=Instrument)


class Family(Generic[Child]):
    """Every child of one metric, by the values of its labels."""

    __slots__ = ("_children", "_head", "_labels", "_new", "name")

    def __init__(self, name: str, kind: str, doc: str, labels: Sequence[str], new: Callable[[], Child]) -> None:
        self.name = name
        self._labels = tuple(labels)
        self._new = new
        self._head = f"# HELP {name} {_escaped(doc)}\n# TYPE {name} {kind}\n"
        self._children: dict[tuple[str, ...], tuple[str, Child]] = {}

    def child(self, *values: str) -> Child:
        """The child with these label values, in the order of the labels; made the first time."""
        assert len(values) == len(self._labels), (self.name, values)
        if values not in self._children:
            pairs = zip(self._labels, values, strict=True)
            labels = ",".join(f'{label}="{_quoted(value)}"' for label, value in pairs)
            child = self._new()
            template = child.template(self.name, labels.replace("%", "%%"))
            self._children[values] = (template, child)
        return self._children[values][1]

    def forget(self) -> None:
        """Drop all children: what they said is no longer so."""
        self._children.clear()

    def text(self) -> str:
        """The family in the text format, version 0.0.4."""
        # list() of a dict's values is one step to other threads: a child made meanwhile comes next time
        lines = [template % child.numbers() for template, child in list(self._children.values())]
        return self._head + "".join(lines)

    def __repr__(self) -> str:
        return f"<Family {self.name} of {len(self._children)}>"


def number(value: float) -> str:
    """A number as the text format wants it: whole if it is an int, else the shortest that reads back the same."""
    if -_INF < value < _INF:
        return repr(value)
    return "+Inf" if value == _INF else "-Inf" if value == -_INF else "NaN"


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', r"\"")
