"""The table of metrics is whole, closed, and what the documents say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.telemetry import catalogue as c
from proxy.telemetry import reference
from proxy.terms import Outcome, Reason
from proxy.upstream import connections, errors

ROOT = Path(__file__).parents[2]


def test_the_document_is_the_catalogue() -> None:
    """docs/metrics.md never drifts: `python -m proxy.telemetry.reference > docs/metrics.md` mends it."""
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == reference.text()


@pytest.mark.parametrize("metric", c.CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_names_things(metric: c.Metric) -> None:
    """Counters end in _total, durations in their unit, and a help text names the events."""
    assert re.fullmatch(r"forebay(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is c.Kind.COUNTER)
    if metric.unit in {"seconds", "bytes"}:
        assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}")
    assert (metric.buckets is not None) == (metric.kind is c.Kind.HISTOGRAM)
    assert metric.start in metric.help
    assert metric.stop in metric.help
    assert metric.start or metric.stop


@pytest.mark.parametrize("metric", c.CATALOGUE, ids=lambda metric: metric.name)
def test_every_label_is_closed(metric: c.Metric) -> None:
    """No label can grow with traffic: its values are listed, or come from the configuration or the backend."""
    names = [label.name for label in metric.labels]
    assert len(set(names)) == len(names)
    for label in metric.labels:
        assert bool(label.values) != bool(label.source), label
        assert len(set(label.values)) == len(label.values)
    assert {label.name for label in metric.labels if label.source} <= {"route", "target", "model", "hash"}


def test_every_metric_stands_once() -> None:
    """One name, one meaning."""
    names = [metric.name for metric in c.CATALOGUE]
    assert len(set(names)) == len(names)
    defined = [metric for metric in vars(c).values() if isinstance(metric, c.Metric)]
    assert sorted(metric.name for metric in defined) == sorted(names)


def test_every_reason_has_one_decision() -> None:
    """Whatever a request was bypassed, missed or rejected for, it is counted under one decision."""
    reasons = [reason for reasons in c.DECISIONS.values() for reason in reasons]
    assert sorted(reason.value for reason in reasons) == sorted(reason.value for reason in Reason)
    assert set(c.DECISIONS) == {Outcome.BYPASS, Outcome.MISS, Outcome.REJECTED}


def test_the_words_of_higher_layers_are_the_catalogues() -> None:
    """What the upstream reports is in the closed sets, so no report of its can fail to be counted."""
    assert {connections.ANSWERED, connections.ABANDONED} <= set(c.EXCHANGE_OUTCOMES)
    assert {retry.value for retry in errors.Retry} == {reason.value for reason in c.RetryReason}


def test_buckets_say_why() -> None:
    """Each set of bounds has its reason, and one that the text format keeps apart."""
    for metric in c.CATALOGUE:
        if metric.buckets is not None:
            assert len(metric.buckets.why) > 40
            assert list(metric.buckets.bounds) == sorted(set(metric.buckets.bounds))
