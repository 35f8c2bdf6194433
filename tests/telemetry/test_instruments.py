"""What the instruments write is what prometheus_client would write for the same counts."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import prometheus_client
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from proxy.telemetry.instruments import Counter, Family, Gauge, Histogram, number

UNHURRIED = settings(deadline=None)  # a busy machine is no fault
AMOUNTS = st.floats(min_value=0, max_value=1e12, allow_nan=False)
TEXTS = st.text(st.sampled_from('\\"\n%s{}=,') | st.characters(codec="utf-8"), max_size=8)
BOUNDS = st.lists(st.floats(min_value=0, max_value=1e5), min_size=1, max_size=8, unique=True).map(sorted)


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Every sample as a scraper reads it."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def written(metric: prometheus_client.registry.Collector) -> str:
    """The library's own text."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(metric)
    return prometheus_client.generate_latest(registry).decode()


def theirs(metric: prometheus_client.registry.Collector) -> list[tuple[str, dict[str, str], float]]:
    """What a scraper reads of the library's text, without the `_created` series that ours leave out."""
    return [sample for sample in samples(written(metric)) if not sample[0].endswith("_created")]


@example(doc='\\ " \n', label='\\ " \n %s {a="b"}', amounts=[1.0])
@given(doc=TEXTS, label=TEXTS, amounts=st.lists(AMOUNTS))
@UNHURRIED
def test_a_counter_is_written_as_by_the_library(doc: str, label: str, amounts: Sequence[float]) -> None:
    """A scraper sees the same counter, whatever stands in its help and label."""
    ours = Family("forebay_x_total", "counter", doc, ("route", "other"), Counter)
    library = prometheus_client.Counter("forebay_x", doc, ("route", "other"), registry=None)
    for amount in amounts:
        ours.child(label, "%s").add(amount)
        library.labels(label, "%s").inc(amount)
        ours.child(label, "%s").inc()
        library.labels(label, "%s").inc()
    assert samples(ours.text()) == theirs(library)
    assert ours.text().startswith(written(library).partition("# TYPE")[0])


@given(label=TEXTS, bounds=BOUNDS, values=st.lists(AMOUNTS | st.sampled_from([0.0, 1.0])), edges=st.booleans())
@UNHURRIED
def test_a_histogram_is_written_as_by_the_library(
    label: str, bounds: list[float], values: list[float], edges: bool
) -> None:
    """A scraper sees the same buckets, count and sum, also for values that lie on a bound."""
    ours = Family("forebay_x_seconds", "histogram", "x", ("route",), lambda: Histogram(bounds))
    library = prometheus_client.Histogram("forebay_x_seconds", "x", ("route",), buckets=bounds, registry=None)
    child = ours.child(label)
    library.labels(label)
    for value in values + bounds * edges:
        child.observe(value)
        library.labels(label).observe(value)
    assert samples(ours.text()) == theirs(library)
    assert child.count == len(values) + len(bounds) * edges


@given(values=st.lists(st.floats(allow_nan=False)))
@UNHURRIED
def test_a_gauge_is_written_as_by_the_library(values: list[float]) -> None:
    """A scraper sees the same gauge, infinite ones included, without labels too."""
    ours = Family("forebay_x", "gauge", "x", (), Gauge)
    library = prometheus_client.Gauge("forebay_x", "x", registry=None)
    ours.child()
    for value in values:
        ours.child().set(value)
        library.set(value)
        assert samples(ours.text()) == theirs(library)
    ours.child().set(2.5)
    ours.child().add(-1)
    assert samples(ours.text()) == [("forebay_x", {}, 1.5)]


def test_numbers_are_written_in_prometheus_own_words() -> None:
    """Whole numbers stay exact beyond what a float holds; what is no number is spelt as Go spells it."""
    assert [number(value) for value in (2**53 + 1, 0.1, math.inf, -math.inf, math.nan)] == [
        "9007199254740993",
        "0.1",
        "+Inf",
        "-Inf",
        "NaN",
    ]


def test_an_interval_that_did_not_end_is_not_observed() -> None:
    """A moment that never happened (nan) or clocks that disagree spoil neither a sum nor a count."""
    histogram = Histogram((0.0, 1.0))
    for value in (math.nan, -0.001, 0.0, 0.5):
        histogram.observe(value)
    assert (histogram.count, histogram.sum) == (2, 0.5)


def test_a_counter_never_falls() -> None:
    """A forged fill cost from Redis cannot turn the savings back or make them endless."""
    counter = Counter()
    for amount in (1.5, -1.0, math.nan, math.inf):
        counter.add(amount)
    assert counter.value == 1.5


def test_the_same_labels_are_the_same_child() -> None:
    """A route that comes back after a reload goes on counting where it was; forgetting starts anew."""
    family = Family("forebay_x_total", "counter", "x", ("route",), Counter)
    family.child("a").inc()
    family.child("a").inc()
    assert family.child("a").value == 2
    assert repr(family) == "<Family forebay_x_total of 1>"
    family.forget()
    assert samples(family.text()) == []
    assert family.child("a").value == 0


def test_instruments_say_what_they_hold() -> None:
    """Whoever debugs sees counts, not object addresses."""
    counter, gauge, histogram = Counter(), Gauge(), Histogram((1.0,))
    counter.inc()
    gauge.set(-2.5)
    histogram.observe(0.5)
    histogram.observe(3.0)
    assert [repr(each) for each in (counter, gauge, histogram)] == [
        "<Counter 1>",
        "<Gauge -2.5>",
        "<Histogram of 2, sum 3.5>",
    ]


def test_a_child_made_during_a_scrape_comes_with_the_next() -> None:
    """A scrape in its thread does not stumble over the first request for a model meanwhile."""

    class Meddler(Counter):
        """Another child is made while this one is written."""

        __slots__ = ()

        def numbers(self) -> tuple[object, ...]:
            family.child("late")
            return super().numbers()

    new: Iterator[Counter] = iter((Meddler(), Counter()))
    family: Family[Counter] = Family("forebay_x_total", "counter", "x", ("model",), lambda: next(new))
    family.child("early")
    assert [labels["model"] for _, labels, _ in samples(family.text())] == ["early"]
    assert [labels["model"] for _, labels, _ in samples(family.text())] == ["early", "late"]


def test_buckets_and_count_agree_at_any_moment() -> None:
    """A histogram read amid observations never has a `+Inf` bucket that differs from its count."""
    histogram = Histogram((1, 2, 3))
    readings: list[tuple[object, ...]] = []
    scraper = threading.Thread(target=lambda: readings.extend(histogram.numbers() for _ in range(20_000)))
    with hasty_threads():
        scraper.start()
        while scraper.is_alive():
            histogram.observe(2.5)
        scraper.join()
    assert {
        (at_most_2, at_most_3 == infinite == count) for _, at_most_2, at_most_3, infinite, count, _ in readings
    } == {(0, True)}


@contextmanager
def hasty_threads() -> Iterator[None]:
    """Let threads take turns a thousand times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 1000)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def test_no_global_registry_is_touched() -> None:
    """Importing Forebay's telemetry registers nothing behind the back of whoever embeds it."""
    names: Iterable[str] = (family.name for family in prometheus_client.REGISTRY.collect())
    assert not [name for name in names if name.startswith("forebay")]
