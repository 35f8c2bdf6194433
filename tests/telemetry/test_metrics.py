"""What is counted, and that it is counted once, under labels that cannot grow."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from proxy.batching.batcher import BatchObserver
from proxy.batching.rule import DispatchReason
from proxy.caching.look_ups import LookUp
from proxy.caching.redis_store import RedisObserver
from proxy.caching.writes import Store
from proxy.telemetry import catalogue as c
from proxy.telemetry.metrics import MODELS, Metrics, ModelLabels, own_seconds
from proxy.terms import Failure, Outcome, Reason, Timeline
from proxy.upstream.connections import Observer as UpstreamObserver

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def made(*routes: str) -> Metrics:
    return Metrics(routes or ("default",), config_hash="0123abcd")


def read(metrics: Metrics) -> Series:
    """Every series of ours, as a scraper reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def of(series: Series, name: str, **labels: str) -> float:
    """The sum of all series of this name with these labels."""
    wanted = labels.items()
    return sum(value for (each, have), value in series.items() if each == name and wanted <= have)


def pairs() -> st.SearchStrategy[tuple[Outcome, Reason | None]]:
    """Every outcome with each reason that it may come with."""
    free = [(outcome, reason) for outcome in Outcome if outcome not in c.DECISIONS for reason in (None, *Reason)]
    bound = [(outcome, reason) for outcome, reasons in c.DECISIONS.items() for reason in reasons]
    return st.sampled_from(free + bound)


@given(
    ends=st.lists(st.tuples(pairs(), st.sampled_from(["a", "b"]), st.sampled_from([None, "listed", "made up"]))),
    going_on=st.integers(0, 3),
)
@settings(deadline=None, max_examples=40)  # each writes and reads some 1,000 lines
def test_outcomes_add_up_to_requests(
    ends: list[tuple[tuple[Outcome, Reason | None], str, str | None]], going_on: int
) -> None:
    """Whatever becomes of requests, each is counted once: outcome, duration, decision, and active no more."""
    metrics = made("a", "b")
    metrics.models.listed("listed")
    for _ in range(going_on):
        metrics.route("a").begin()
    for (outcome, reason), route, model in ends:
        metrics.route(route).begin()
        metrics.route(route).finish(outcome, reason, Timeline(head_parsed=1.0, answered=1.5), model=model)
    series = read(metrics)
    assert of(series, "forebay_requests_total") == len(ends)
    assert of(series, "forebay_request_duration_seconds_count") == len(ends)
    assert of(series, "forebay_request_duration_seconds_sum") == len(ends) * 0.5
    assert of(series, "forebay_decisions_total") == sum(reason is not None for (_, reason), *_ in ends)
    assert of(series, "forebay_requests_active") == going_on
    for outcome, count in Tally(outcome for (outcome, _), *_ in ends).items():
        assert of(series, "forebay_requests_total", outcome=outcome.value) == count
        assert of(series, "forebay_request_duration_seconds_count", outcome=outcome.value) == count
    for reason, count in Tally(reason for (_, reason), *_ in ends if reason).items():
        (decision,) = (decision for decision, reasons in c.DECISIONS.items() if reason in reasons)
        assert of(series, "forebay_decisions_total", decision=decision.value, reason=reason.value) == count
    for model, label in ((None, ""), ("listed", "listed"), ("made up", "other")):
        assert of(series, "forebay_requests_total", model=label) == sum(each == model for *_, each in ends)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Outcome.MISS, None), (Outcome.BYPASS, Reason.FIRST_SEEN), (Outcome.REJECTED, Reason.UNPARSED)],
)
def test_an_outcome_without_its_reason_is_a_fault(outcome: Outcome, reason: Reason | None) -> None:
    """A miss without a reason is counted, and fails in our own tests before anybody has to wonder about it."""
    metrics = made()
    metrics.route("default").begin()
    with pytest.raises(AssertionError, match="cannot come with"):
        metrics.route("default").finish(outcome, reason, Timeline(head_parsed=1.0, answered=1.5))
    series = read(metrics)
    assert of(series, "forebay_requests_total", outcome=outcome.value) == 1
    assert of(series, "forebay_requests_active") == 0


def test_a_head_that_never_parsed_is_a_request_without_duration() -> None:
    """A request that Forebay refuses unread is counted, and makes no duration up."""
    metrics = made()
    metrics.route("default").begin()
    metrics.route("default").finish(Outcome.REJECTED, Reason.HEAD_TOO_LARGE, Timeline(answered=1.5))
    series = read(metrics)
    assert of(series, "forebay_requests_total", outcome="rejected") == 1
    assert of(series, "forebay_request_duration_seconds_count") == 0
    assert of(series, "forebay_request_duration_seconds_sum") == 0


def test_the_model_label_cannot_grow() -> None:
    """Names that callers make up share one label, and so do the backend's own after the fiftieth."""
    metrics = made()
    for number in range(MODELS + 10):
        metrics.models.listed(f"model{number}")
    for number in range(1000):
        for model in (f"model{number}", f"made up {number}"):
            metrics.route("default").begin()
            metrics.route("default").finish(
                Outcome.HIT, None, Timeline(head_parsed=1.0, body_read=1.0, answered=1.5), model=model
            )
    models = {dict(labels)["model"] for name, labels in read(metrics) if name == "forebay_requests_total"}
    assert models == {"", "other", *(f"model{number}" for number in range(MODELS))}
    assert of(read(metrics), "forebay_requests_total", model="other") == 2000 - MODELS
    assert repr(metrics.models) == "<ModelLabels 50/50>"


def test_a_model_keeps_its_label() -> None:
    """A model that the backend lists again is no further one, and a name becomes a label once it is listed."""
    labels = ModelLabels(limit=2)
    assert labels.label("a") == "other"
    for name in ("a", "a", "b", "c"):
        labels.listed(name)
    assert [labels.label(name) for name in ("a", "b", "c", None)] == ["a", "b", "other", ""]


@pytest.mark.parametrize(
    ("outcome", "timeline", "own"),
    [
        (Outcome.HIT, Timeline(head_parsed=1.0, body_read=1.25, answered=1.5), 0.25),
        (Outcome.HIT, Timeline(head_parsed=1.0, answered=1.5), 0.5),
        (Outcome.MISS, Timeline(1.0, 1.25, enqueued=1.5, dispatched=2.0, upstream_end=4.0, answered=4.125), 0.375),
        (Outcome.BYPASS, Timeline(1.0, 1.25, dispatched=1.5, upstream_end=4.0, answered=4.125), 0.375),
        (Outcome.BYPASS, Timeline(1.0, 3.0, dispatched=1.5, upstream_end=4.0, answered=4.125), 0.625),
        (Outcome.BYPASS, Timeline(1.0, dispatched=1.5, upstream_end=4.0, answered=4.125), 0.625),
        (Outcome.COALESCED, Timeline(1.0, 1.25, enqueued=1.5, upstream_end=4.0, answered=4.125), 0.375),
        (Outcome.COALESCED, Timeline(1.0, 1.25, answered=4.125), math.nan),
        (Outcome.MISS, Timeline(1.0, 1.25, enqueued=1.5, answered=4.125), math.nan),
        (Outcome.TIMEOUT, Timeline(1.0, 1.25, enqueued=1.5, upstream_end=4.0, answered=4.125), math.nan),
        (Outcome.REJECTED, Timeline(1.0, 1.25, answered=1.5), math.nan),
    ],
)
def test_forebays_own_time_is_what_is_left(outcome: Outcome, timeline: Timeline, own: float) -> None:
    """Reading the body, waiting for company and for the backend are nobody's overhead; what is unknown is left out."""
    assert own_seconds(outcome, timeline) == pytest.approx(own, nan_ok=True)
    metrics = made()
    metrics.route("default").begin()
    reason = c.DECISIONS.get(outcome, (None,))[0]
    metrics.route("default").finish(outcome, reason, timeline)
    assert metrics.route("default").overhead.count == (not math.isnan(own))


def test_the_layers_observers_are_here() -> None:
    """Everything that Redis, batches and upstream report can be seen, under the label that was reported."""
    metrics = made("a")
    redis: RedisObserver = metrics.redis
    batches: BatchObserver = metrics.batches
    upstream: UpstreamObserver = metrics.upstream
    redis.up(True)
    for found in LookUp:
        redis.lookup(0.25, found)
    for written in Store:
        redis.store(written)
    batches.queued("a", 5)
    batches.left("a", 2)
    batches.waited("a", 0.25, 0.5)
    for why in DispatchReason:
        batches.dispatched("a", 3, why)
    metrics.batches.split("a", "not_split")
    for ended in (*(failure.value for failure in Failure), c.ANSWERED, c.ABANDONED):
        upstream.exchange("http://x", 0.25, ended)
    upstream.ttfb(0.25)
    upstream.pool_wait(0.5)
    upstream.retry("reused")

    series = read(metrics)
    assert of(series, "forebay_redis_up") == 1
    for found in LookUp:
        name = "forebay_cache_lookup_duration_seconds_count"
        assert of(series, name, tier="redis", result=found.value) == 1
    for written in Store:
        assert of(series, "forebay_redis_writes_total", result=written.value) == 1
    assert of(series, "forebay_queue_depth", route="a") == 3
    assert of(series, "forebay_queue_wait_seconds_sum", route="a", kind="voluntary") == 0.25
    assert of(series, "forebay_queue_wait_seconds_sum", route="a", kind="slot") == 0.5
    for why in DispatchReason:
        assert of(series, "forebay_batch_dispatches_total", route="a", reason=why.value) == 1
    assert of(series, "forebay_batch_items_sum", route="a") == 3 * len(DispatchReason)
    assert of(series, "forebay_batch_splits_total", route="a", reason="not_split") == 1
    for ended in c.EXCHANGE_OUTCOMES:
        assert of(series, "forebay_upstream_duration_seconds_sum", target="http://x", outcome=ended) == 0.25
    assert of(series, "forebay_upstream_ttfb_seconds_sum") == 0.25
    assert of(series, "forebay_upstream_pool_wait_seconds_sum") == 0.5
    assert of(series, "forebay_upstream_retries_total", reason="reused") == 1
    redis.up(False)
    assert of(read(metrics), "forebay_redis_up") == 0


def test_what_the_pipeline_counts_itself() -> None:
    """Items by result, stores, savings and waits stand under their route."""
    metrics = made("a", "b")
    route = metrics.route("a")
    for number, result in enumerate(c.ItemResult, 1):
        route.items[result].add(number)
    route.stores[c.StoreResult.STORED].inc()
    route.saved_upstream_seconds.add(1.5)
    route.coalesce_wait.observe(0.25)
    metrics.memory_lookups[LookUp.HIT].observe(0.5)
    series = read(metrics)
    for number, result in enumerate(c.ItemResult, 1):
        assert of(series, "forebay_cache_items_total", route="a", result=result.value) == number
    assert of(series, "forebay_cache_items_total", route="b") == 0
    assert of(series, "forebay_cache_stores_total", route="a", result="stored") == 1
    assert of(series, "forebay_cache_saved_upstream_seconds_total", route="a") == 1.5
    assert of(series, "forebay_coalesce_wait_seconds_sum", route="a") == 0.25
    assert of(series, "forebay_cache_lookup_duration_seconds_sum", tier="memory", result="hit") == 0.5


def test_children_are_there_before_anything_happens() -> None:
    """The first error of its kind is an increase from 0, not a series out of nowhere that no rate sees."""
    series = read(made("a"))
    for outcome in Outcome:
        key = ("forebay_requests_total", frozenset({"route": "a", "model": "", "outcome": outcome.value}.items()))
        assert series[key] == 0
    for decision, reasons in c.DECISIONS.items():
        for reason in reasons:
            labels = {"route": "a", "decision": decision.value, "reason": reason.value}
            assert series[("forebay_decisions_total", frozenset(labels.items()))] == 0


def test_without_redis_nothing_is_said_of_it() -> None:
    """Whoever has no Redis is not alarmed by a `forebay_redis_up 0`."""
    metrics = made()
    assert of(read(metrics), "forebay_redis_up") == 0
    assert not [name for name, labels in read(metrics) if name == "forebay_redis_up" or ("tier", "redis") in labels]
    assert repr(metrics.redis) == "<RedisMetrics up=False>"
    assert ("forebay_redis_up", frozenset()) in read(metrics)


@dataclass
class Memory:
    """A memory store as far as metrics look at it."""

    bytes: int
    evictions: int = 0
    mismatches: int = 0


def test_memory_is_asked_at_each_scrape() -> None:
    """Bytes, evictions and mismatches are those of the moment of the scrape."""
    metrics, memory = made(), Memory(bytes=100)
    metrics.watch_memory(memory)
    for held, evicted in ((100, 0), (50, 7), (60, 9)):
        memory.bytes, memory.evictions, memory.mismatches = held, evicted, 1
        metrics.refresh()
        series = read(metrics)
        assert of(series, "forebay_cache_bytes", tier="memory") == held
        assert of(series, "forebay_cache_evictions_total") == evicted
        assert of(series, "forebay_cache_proof_mismatches_total") == 1


def test_the_oldest_waiting_item_is_told_in_unix_time() -> None:
    """`time() - x` is how long it has waited; 0 says that nothing waits."""
    metrics = Metrics(["a", "b"], config_hash="x", now=lambda: 500.0, unix_time=lambda: 1_700_000_000.0)
    waiting = {"a": 497.5}
    metrics.watch_queue(lambda: waiting)
    metrics.refresh()
    name = "forebay_queue_oldest_enqueue_timestamp_seconds"
    assert of(read(metrics), name, route="a") == 1_699_999_997.5
    assert of(read(metrics), name, route="b") == 0
    waiting.clear()
    metrics.refresh()
    assert of(read(metrics), name, route="a") == 0


def test_slots_are_told_for_models_that_have_a_label() -> None:
    """Slots are what the model may have in flight now; models that share a label would hide each other."""
    metrics = made()
    metrics.models.listed("resnet")
    metrics.slots("http://x", "resnet", 4)
    metrics.slots("http://x", "resnet", 2)
    metrics.slots("http://x", "unheard of", 9)
    assert of(read(metrics), "forebay_slots") == of(read(metrics), "forebay_slots", model="resnet") == 2


def test_only_the_configuration_in_force_is_told() -> None:
    """After a reload one hash is left, so that a count by hash shows which instances took it."""
    metrics = made()
    metrics.configured("new")
    series = read(metrics)
    assert of(series, "forebay_config_info", hash="new") == of(series, "forebay_config_info") == 1


def test_a_route_that_a_reload_brings_is_counted() -> None:
    """A new route needs no restart to be seen, and comes with all its children."""
    metrics = made("a")
    metrics.batches.queued("b", 2)
    assert metrics.route("b") is metrics.route("b")
    assert of(read(metrics), "forebay_queue_depth", route="b") == 2
    assert repr(metrics) == "<Metrics 2 routes, 0 active, <ModelLabels 0/50>>"
    metrics.route("b").begin()
    assert repr(metrics.route("b")) == "<RouteMetrics 'b' active=1 models=1>"
    assert repr(metrics) == "<Metrics 2 routes, 1 active, <ModelLabels 0/50>>"
    assert repr(metrics.upstream) == "<UpstreamMetrics 0 targets>"
    metrics.upstream.target("http://x")
    assert repr(metrics.upstream) == "<UpstreamMetrics 1 targets>"


def test_the_process_is_told_of_too() -> None:
    """CPU, memory and open files stand beside ours, as an SRE expects of any exporter; nothing stands twice."""
    text = made().render().decode()
    names = [family.name for family in text_string_to_metric_families(text)]
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= set(names)
    assert len(set(names)) == len(names)
    assert "_created" not in text


class Watched(Metrics):
    """Tells in which thread it was rendered."""

    rendered_in = 0

    def render(self) -> bytes:
        self.rendered_in = threading.get_ident()
        return super().render()


async def test_a_scrape_is_written_beside_the_loop() -> None:
    """Sources are asked on the loop's thread, which changes them; the text is written in another."""
    metrics = Watched(["a"], config_hash="x")
    asked_in: list[int] = []

    def oldest() -> dict[str, float]:
        asked_in.append(threading.get_ident())
        return {}

    metrics.watch_queue(oldest)
    body = await metrics.scrape()
    assert asked_in == [threading.get_ident()]
    assert metrics.rendered_in not in (0, threading.get_ident())
    assert b'forebay_queue_oldest_enqueue_timestamp_seconds{route="a"} 0\n' in body


def test_twenty_routes_are_written_in_a_fraction_of_the_librarys_time() -> None:
    """A scrape holds the interpreter from the event loop for milliseconds, not for a tenth of a second."""
    metrics = made(*(f"route{number}" for number in range(20)))
    text = metrics.render().decode()
    assert len(text.splitlines()) > 5000

    class Parsed(Collector):
        """The same metrics in the library's own hands."""

        def __init__(self) -> None:
            self._families = list(text_string_to_metric_families(text))

        def collect(self) -> list[Metric]:
            return self._families

    library = CollectorRegistry()
    library.register(Parsed())
    theirs = least_seconds(lambda: generate_latest(library))
    assert least_seconds(metrics.render) < theirs / 4


def least_seconds(work: Callable[[], object]) -> float:
    """The least of five: what it takes when nobody disturbs."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
