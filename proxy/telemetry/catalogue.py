"""Every metric of Forebay, once: what it says, between which events, with which labels and buckets.

Metrics, docs/metrics.md and the dashboard's test read this table; nothing else names a metric's labels.
A help text is made of the metric's events, so that no metric can say more than its events do.

Label values are closed sets, but for `route` and `target` (what the configuration names), `model` (what
the backend itself lists, at most 50) and `hash`: never a path, a key or a user.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from proxy.batching.rule import DispatchReason
from proxy.caching.look_ups import LookUp
from proxy.caching.writes import Store
from proxy.terms import Failure, Outcome, Reason


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class ItemResult(Enum):
    """What the look-up of one item came to. Hit rate: both hits by all four."""

    MEMORY_HIT = "memory_hit"
    REDIS_HIT = "redis_hit"
    COALESCED = "coalesced"  # joined a flight that another call leads
    MISS = "miss"

    __hash__ = object.__hash__  # equality is identity; Enum's own is a Python function, and every request asks often


class StoreResult(Enum):
    """What became of one item's result when it could have been stored."""

    STORED = "stored"
    NO_STORE = "no_store"  # the answer may not be stored, or does not split into items


class Tier(Enum):
    """Where the response cache keeps entries."""

    MEMORY = "memory"
    REDIS = "redis"


class WaitKind(Enum):
    """Why an item waited in its window."""

    VOLUNTARY = "voluntary"  # a slot was free: bounded by `max_delay`
    SLOT = "slot"  # the backend was busy


class SplitReason(Enum):
    """Why a joined request was taken apart."""

    NOT_SPLIT = "not_split"  # its answer could not be divided among its members
    REFUSED = "refused"  # the backend refused it with a status that may be one member's fault
    TIMEOUT = "timeout"  # it ran into a configured timeout: its members fail, later ones ride alone


class ProofResult(Enum):
    """What came of a shadow: calls that were answered alone, sent once more together."""

    AGREED = "agreed"  # every row was answered as it was alone
    DIFFERED = "differed"  # a row was answered otherwise
    NOT_SPLIT = "not_split"  # an answer did not hold one result for each row
    REFUSED = "refused"  # the backend refused together what it had answered alone
    TIMEOUT = "timeout"  # it took ten times as long as the calls alone, together, and a second at least
    NO_VERDICT = "no_verdict"  # the backend was in trouble

    __hash__ = object.__hash__  # equality is identity


class RetryReason(Enum):
    """Why an exchange was tried again."""

    CONNECT = "connect"  # no connection came about
    REUSED = "reused"  # a reused connection died before the first byte of an answer


ANSWERED: Final = "answered"
ABANDONED: Final = "abandoned"
"""Upstream outcomes beside `Failure`: the answer came whole, whatever its status; the caller left before it had."""

EXCHANGE_OUTCOMES: Final = (ANSWERED, ABANDONED, *(failure.value for failure in Failure))

NO_MODEL: Final = ""
"""The `model` of a request that names none. To Prometheus an empty label is no label."""

OTHER_MODEL: Final = "other"
"""The `model` of all that the backend does not list, and of those listed after the fiftieth."""

DECISIONS: Final[dict[Outcome, tuple[Reason, ...]]] = {
    Outcome.BYPASS: (
        Reason.UNRECOGNISED,
        Reason.UNPARSED,
        Reason.DUPLICATE_KEY,
        Reason.TOO_LARGE,
        Reason.MODEL_UNKNOWN,
        Reason.OVER_LIMIT,
        Reason.STATEFUL,
        Reason.OPTED_OUT,
        Reason.NOT_DETERMINISTIC,
        Reason.STREAMED,
        Reason.CODEC_ERROR,
    ),
    Outcome.MISS: (
        Reason.FIRST_SEEN,
        Reason.EXPIRED,
        Reason.EVICTED,
        Reason.REFRESH,
        Reason.REDIS_DOWN,
        Reason.NO_STORE,
        Reason.MISFIT,
    ),
    Outcome.REJECTED: (
        Reason.QUEUE_FULL,
        Reason.BAD_REQUEST,
        Reason.HEAD_TOO_LARGE,
        Reason.BODY_TOO_LARGE,
        Reason.BODY_TIMEOUT,
    ),
}
"""Which reasons each decision can have. Every reason stands under one decision."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Upper bounds of a histogram, and why these."""

    bounds: tuple[float, ...]
    why: str


REQUEST: Final = Buckets(
    (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    "from a memory hit (a tenth of a millisecond) to a long generation (minutes), in steps of 2 to 3",
)
EXCHANGE: Final = Buckets(
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    "from the smallest model on this host to a long generation, in steps of 2 to 3",
)
WAIT: Final = Buckets(
    (0.0, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    "0 counts those that did not wait at all; fine up to and just above the default `max_delay` of 5 ms, then coarse",
)
LOOKUP: Final = Buckets(
    (2e-06, 5e-06, 1e-05, 2.5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25),
    "memory answers in microseconds, Redis in a fraction of a millisecond; nobody waits for Redis longer than 100 ms",
)
OVERHEAD: Final = Buckets(
    (0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.1, 1),
    "fine around the aim of half a millisecond a call; above 10 ms something is wrong, and it does not matter how much",
)
LAG: Final = Buckets(
    (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
    "timers are exact to a millisecond; a lag as long as `max_delay` spoils batching, one of 100 ms health checks",
)
ITEMS: Final = Buckets(
    (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256),
    "powers of two and their halfway marks: usual values of `max_size` are bounds, so full batches can be told apart",
)


@dataclass(frozen=True, slots=True)
class Label:
    """A label and all its values; `values` is empty where `source` says what they are."""

    name: str
    values: tuple[str, ...] = ()
    source: str = ""


def _closed(name: str, words: type[Enum]) -> Label:
    return Label(name, tuple(word.value for word in words))


ROUTE: Final = Label("route", source="the ids of the configured routes")
MODEL: Final = Label("model", source="the first 50 models that the backend lists, then `other`; empty without a model")
TARGET: Final = Label("target", source="the configured upstream targets")
TIER: Final = _closed("tier", Tier)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    says: what it is, as the first sentence of its help.
    start, stop: the events between which it measures; for a counter `stop` is what is counted, for a
        gauge what raises and what lowers it. "" where there is none.
    buckets: of a histogram, None for the rest.
    """

    name: str
    kind: Kind
    says: str
    start: str
    stop: str
    unit: str
    labels: tuple[Label, ...] = ()
    buckets: Buckets | None = None

    @property
    def help(self) -> str:
        """The HELP line: what it says, and its events."""
        if self.kind is Kind.COUNTER:
            return f"{self.says}. Counted: {self.stop}."
        if self.kind is Kind.GAUGE:
            return f"{self.says}. Set by: {self.start}{f'; lowered by: {self.stop}' if self.stop else ''}."
        return f"{self.says}. {f'From: {self.start}; to: ' if self.start else 'At: '}{self.stop}."


def _counter(name: str, says: str, counted: str, *labels: Label, unit: str) -> Metric:
    return Metric(name, Kind.COUNTER, says, "", counted, unit, labels)


def _gauge(name: str, says: str, start: str, stop: str, *labels: Label, unit: str) -> Metric:
    return Metric(name, Kind.GAUGE, says, start, stop, unit, labels)


def _seconds(name: str, says: str, start: str, stop: str, buckets: Buckets, *labels: Label) -> Metric:
    return Metric(name, Kind.HISTOGRAM, says, start, stop, "seconds", labels, buckets)


# The events of a request, on one monotonic clock; terms.Timeline holds their times.
T0: Final = "head parsed (t0)"
T1: Final = "body read (t1)"
T3: Final = "enqueued (t3)"
T4: Final = "dispatched (t4)"
T5: Final = "connection held (t5)"
T7: Final = "upstream headers (t7)"
T9: Final = "last upstream byte (t9)"
T10: Final = "last write drained or client gone (t10)"

REQUESTS: Final = _counter(
    "forebay_requests_total",
    "Requests by what became of them; the sum over outcomes is all requests",
    T10,
    ROUTE,
    MODEL,
    _closed("outcome", Outcome),
    unit="requests",
)
DURATION: Final = _seconds(
    "forebay_request_duration_seconds",
    "Time a request took, as seen from Forebay; a head that was never parsed has no duration",
    T0,
    T10,
    REQUEST,
    ROUTE,
    _closed("outcome", Outcome),
)
ACTIVE: Final = _gauge(
    "forebay_requests_active",
    "Requests in progress",
    T0,
    T10,
    ROUTE,
    unit="requests",
)
DECIDED: Final = _counter(
    "forebay_decisions_total",
    "Requests that were not answered whole from the response cache, by why; whatever their outcome",
    T10,
    ROUTE,
    Label("decision", tuple(outcome.value for outcome in DECISIONS)),
    _closed("reason", Reason),
    unit="requests",
)
ITEMS_LOOKED_UP: Final = _counter(
    "forebay_cache_items_total",
    "Items looked up, by result; hit rate is both hits by all",
    "the item's look-up came to its result (t2)",
    ROUTE,
    _closed("result", ItemResult),
    unit="items",
)
LOOKUPS: Final = _seconds(
    "forebay_cache_lookup_duration_seconds",
    "Time one tier of the response cache took to answer for an item",
    "item asked for",
    "result known or waiting given up",
    LOOKUP,
    TIER,
    _closed("result", LookUp),
)
STORES: Final = _counter(
    "forebay_cache_stores_total",
    "Computed items by whether they could be stored",
    "an item's fill ended with an answer",
    ROUTE,
    _closed("result", StoreResult),
    unit="items",
)
SAVED: Final = _counter(
    "forebay_cache_saved_upstream_seconds_total",
    "Upstream time that hits did not take: what the same item took when it was computed",
    "an item answered from the response cache, with its fill cost",
    ROUTE,
    unit="seconds",
)
CACHE_BYTES: Final = _gauge(
    "forebay_cache_bytes",
    "Bytes of entries, keys and overhead held in this process",
    "entry stored",
    "entry evicted, expired or replaced",
    Label("tier", (Tier.MEMORY.value,)),
    unit="bytes",
)
EVICTIONS: Final = _counter(
    "forebay_cache_evictions_total",
    "Entries that memory gave up for others",
    "entry evicted to make room",
    unit="entries",
)
MISMATCHES: Final = _counter(
    "forebay_cache_proof_mismatches_total",
    "Entries and flights found at an item's address that are another item's, treated as misses",
    "the proof of an entry in memory, or of a flight, differs from the item's",
    unit="entries",
)
REDIS_WRITES: Final = _counter(
    "forebay_redis_writes_total",
    "Entries on their way to Redis, by what became of them",
    "Redis acknowledged or refused the entry, or it was given up",
    _closed("result", Store),
    unit="entries",
)
REDIS_UP: Final = _gauge(
    "forebay_redis_up",
    "1 while Redis answers, 0 while it is not asked; absent without Redis",
    "a connection or a background probe succeeds",
    "a command or a probe fails",
    unit="0 or 1",
)
COALESCE_WAIT: Final = _seconds(
    "forebay_coalesce_wait_seconds",
    "Time a call waited for flights that other calls lead, once a call",
    "flights joined",
    "the last of them settled or failed, or the caller left",
    REQUEST,
    ROUTE,
)
QUEUE_DEPTH: Final = _gauge(
    "forebay_queue_depth", "Items waiting in windows", T3, "dispatched (t4) or withdrawn", ROUTE, unit="items"
)
OLDEST: Final = _gauge(
    "forebay_queue_oldest_enqueue_timestamp_seconds",
    "When the item that has waited longest in a window came, in Unix time; 0 while none waits",
    T3,
    "dispatched (t4) or withdrawn",
    ROUTE,
    unit="seconds",
)
QUEUE_WAIT: Final = _seconds(
    "forebay_queue_wait_seconds",
    "Time a part of a call waited in its window: voluntary while a slot was free, slot while none was",
    T3,
    T4,
    WAIT,
    ROUTE,
    _closed("kind", WaitKind),
)
BATCH_ITEMS: Final = Metric(
    "forebay_batch_items", Kind.HISTOGRAM, "Items in a dispatched batch", "", T4, "items", (ROUTE,), ITEMS
)
DISPATCHES: Final = _counter(
    "forebay_batch_dispatches_total",
    "Batches by why they left",
    T4,
    ROUTE,
    _closed("reason", DispatchReason),
    unit="batches",
)
SPLITS: Final = _counter(
    "forebay_batch_splits_total",
    "Joined requests that were taken apart",
    "the exchange of the joined request ended without an answer for each member",
    ROUTE,
    _closed("reason", SplitReason),
    unit="joined requests",
)
PROOFS: Final = _counter(
    "forebay_row_proofs_total",
    "Shadows that tried out whether the rows of a model may be joined, by what came of them",
    "the shadow ended, or ran out of time",
    ROUTE,
    _closed("result", ProofResult),
    unit="shadows",
)
EXCHANGES: Final = _seconds(
    "forebay_upstream_duration_seconds",
    "Time of one upstream exchange, by how it ended; answered whatever the status",
    "exchange begun, before it has a connection",
    "last upstream byte (t9), failure or abandoned; a second try included",
    EXCHANGE,
    TARGET,
    Label("outcome", EXCHANGE_OUTCOMES),
)
TTFB: Final = _seconds("forebay_upstream_ttfb_seconds", "Time until the backend began to answer", T5, T7, EXCHANGE)
POOL_WAIT: Final = _seconds(
    "forebay_upstream_pool_wait_seconds",
    "Time until a connection to the backend was held, new or kept",
    "connection asked for",
    T5,
    WAIT,
)
RETRIES: Final = _counter(
    "forebay_upstream_retries_total",
    "Exchanges tried again",
    "second try begun",
    _closed("reason", RetryReason),
    unit="exchanges",
)
PROXY_OVERHEAD: Final = _seconds(
    "forebay_proxy_overhead_seconds",
    "Time of an answered request that was spent neither reading its body nor waiting for window, flight or backend",
    f"{T1}, or {T0} without a body",
    f"{T10}, less {T3} to {T9}",
    OVERHEAD,
    ROUTE,
)
SLOTS: Final = _gauge(
    "forebay_slots",
    "Upstream requests of joinable items that a model may have in flight",
    "the model's configuration became known",
    "",
    TARGET,
    MODEL,
    unit="slots",
)
LOOP_LAG: Final = _seconds(
    "forebay_event_loop_lag_seconds",
    "How late the event loop ran a timer: what every request waits on top, ten samples a second",
    "timer due",
    "timer run",
    LAG,
)
CONFIG: Final = _gauge(
    "forebay_config_info",
    "1, labelled with the hash of the configuration in force",
    "configuration applied",
    "",
    Label("hash", source="the configuration in force"),
    unit="1",
)

CATALOGUE: Final[tuple[Metric, ...]] = (
    REQUESTS,
    DURATION,
    ACTIVE,
    DECIDED,
    PROXY_OVERHEAD,
    ITEMS_LOOKED_UP,
    LOOKUPS,
    STORES,
    SAVED,
    CACHE_BYTES,
    EVICTIONS,
    MISMATCHES,
    COALESCE_WAIT,
    REDIS_UP,
    REDIS_WRITES,
    QUEUE_DEPTH,
    OLDEST,
    QUEUE_WAIT,
    BATCH_ITEMS,
    DISPATCHES,
    SPLITS,
    PROOFS,
    SLOTS,
    EXCHANGES,
    TTFB,
    POOL_WAIT,
    RETRIES,
    LOOP_LAG,
    CONFIG,
)
"""In the order of docs/metrics.md."""
