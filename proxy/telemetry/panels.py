"""What the dashboard shows: its panels, their PromQL and what to do about what they show.

Expressions are made of the catalogue, so a metric or label that is not there cannot be asked for. They
hold three variables: `$route` and `$instance`, which match as regular expressions, and `$__rate_interval`.

Knows nothing of Grafana's JSON but its names of units: that is dashboard.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.telemetry import catalogue as c


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `says`: what it shows and what to do about it. `unit`: Grafana's name of the unit."""

    title: str
    says: str
    unit: str
    queries: tuple[Query, ...]
    width: int = 8
    stacked: bool = False
    most: float | None = None
    states: tuple[str, str] | None = None  # the words for 0 and 1: a lamp in place of a curve


def _series(metric: c.Metric, *where: str, part: str = "") -> str:
    names = {label.name for label in metric.labels}
    for matcher in where:
        assert matcher.partition("=")[0] in names, (metric.name, matcher)
    route = ('route=~"$route"',) if "route" in names else ()
    matchers = ",".join(('instance=~"$instance"', *route, *where))
    return f"{metric.name}{part}{{{matchers}}}"


def _sum(expr: str, by: str) -> str:
    return f"sum by ({by}) ({expr})" if by else f"sum({expr})"


def _rate(metric: c.Metric, by: str, *where: str, part: str = "") -> str:
    return _sum(f"rate({_series(metric, *where, part=part)}[$__rate_interval])", by)


def _quantile(q: float, metric: c.Metric, by: str = "") -> str:
    return f"histogram_quantile({q}, {_rate(metric, f'le, {by}' if by else 'le', part='_bucket')})"


def _quantiles(metric: c.Metric, by: str = "") -> tuple[Query, ...]:
    of = f" {{{{{by}}}}}" if by else ""
    return Query(_quantile(0.5, metric, by), f"p50{of}"), Query(_quantile(0.99, metric, by), f"p99{of}")


def _mean(metric: c.Metric, by: str) -> str:
    return f"{_rate(metric, by, part='_sum')} / {_rate(metric, by, part='_count')}"


_HITS: Final = f'result=~"{c.ItemResult.MEMORY_HIT.value}|{c.ItemResult.REDIS_HIT.value}"'

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "What callers get",
        (
            Panel(
                "Requests by outcome",
                "All requests: the outcomes add up. Growing upstream_error or timeout: look at the backend. rejected: "
                "look at “Why not a hit” for the reason. client_gone: callers give up, so their time-out is shorter "
                "than the backend needs.",
                "reqps",
                (Query(_rate(c.REQUESTS, "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Hit rate",
                "Items answered from the response cache by items looked up. Low although requests repeat: look at "
                "“Why not a hit” (evicted: raise cache.memory; expired: raise cache.ttl; first_seen: a header or "
                "parameter may differ in every request).",
                "percentunit",
                (
                    Query(
                        f"{_rate(c.ITEMS_LOOKED_UP, 'route', _HITS)} / {_rate(c.ITEMS_LOOKED_UP, 'route')}",
                        "{{route}}",
                    ),
                ),
                most=1,
            ),
            Panel(
                "Latency by outcome",
                "From head parsed to last write drained. A miss far above “Upstream time” waits in Forebay: look at "
                "“Queue wait by kind” and “Forebay's own time”.",
                "s",
                _quantiles(c.DURATION, "outcome"),
            ),
            Panel(
                "Why not a hit",
                "Decisions by reason, whatever the outcome came to be. unrecognised and unparsed: no codec reads "
                "these. queue_full: the backend is too slow for the load, or batch.max_queue too small. retry_budget: "
                "joined requests fail too often.",
                "reqps",
                (Query(_rate(c.DECIDED, "decision, reason"), "{{decision}} {{reason}}"),),
            ),
            Panel(
                "Upstream time saved",
                "Seconds of upstream time per second that hits did not take: 2 means that two more backends would be "
                "busy without the response cache.",
                "none",
                (Query(_rate(c.SAVED, "route"), "{{route}}"),),
            ),
            Panel(
                "Requests in progress",
                "Grows without end: the backend does not answer; set upstream.timeout, or look at “Upstream "
                "exchanges by outcome”.",
                "none",
                (Query(_sum(_series(c.ACTIVE), "route"), "{{route}}"),),
            ),
        ),
    ),
    (
        "Batching",
        (
            Panel(
                "Batch size",
                "Items in a dispatched batch. Mean near 1 under load: requests do not share a signature, or "
                "batch.max_delay is too short for them to meet. p99 at batch.max_size: raise it if the model allows.",
                "none",
                (
                    Query(_mean(c.BATCH_ITEMS, "route"), "mean {{route}}"),
                    Query(_quantile(0.99, c.BATCH_ITEMS, "route"), "p99 {{route}}"),
                ),
            ),
            Panel(
                "Queue wait by kind",
                "voluntary: waited for company while a slot was free, never above batch.max_delay; lower that if it "
                "costs more than it brings. slot: the backend was busy; add replicas or instances, not delay.",
                "s",
                _quantiles(c.QUEUE_WAIT, "kind"),
            ),
            Panel(
                "Why batches left",
                "delay: waits that ran out; mostly these, and small batches: lower batch.max_delay. full: raise "
                "batch.max_size if the model allows. ready and expected: as it should be.",
                "ops",
                (Query(_rate(c.DISPATCHES, "reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Queue depth",
                "Items that wait. Near batch.max_queue: requests will be rejected with 503; the backend is too slow "
                "for the load.",
                "none",
                (Query(_sum(_series(c.QUEUE_DEPTH), "route"), "{{route}}"),),
            ),
            Panel(
                "Oldest item waiting",
                "How long the item at the front has waited. Climbs in a straight line: the backend answers nothing.",
                "s",
                (
                    Query(
                        f"max by (route) ((time() - {_series(c.OLDEST)}) * ({_series(c.OLDEST)} > bool 0))", "{{route}}"
                    ),
                ),
            ),
            Panel(
                "Slots",
                "Upstream requests of joinable items that each model may have in flight, and how many exchanges of any "
                "kind were under way on average. Average at the slots: the backend is the limit; more slots help "
                "only if it computes several at once.",
                "none",
                (
                    Query(_sum(_series(c.SLOTS), "target, model"), "slots {{model}}"),
                    Query(_rate(c.EXCHANGES, "target", part="_sum"), "under way {{target}}"),
                ),
            ),
            Panel(
                "Batches taken apart",
                "Should be zero. not_split: the model's answers do not divide into rows, so set batch.mode off for "
                "it. refused: some caller's input fails and costs its batch a second try. timeout: joined requests "
                "take longer than upstream.timeout allows; lower batch.max_size.",
                "ops",
                (Query(_rate(c.SPLITS, "reason"), "{{reason}}"),),
            ),
            Panel(
                "Rows tried out",
                "Of models that do not say whether their rows are independent: eight that agreed, and calls ride "
                "together. differed, not_split, refused, timeout: they never do; if you know better, set rows: true.",
                "ops",
                (Query(_rate(c.PROOFS, "result"), "{{result}}"),),
            ),
        ),
    ),
    (
        "Upstream",
        (
            Panel(
                "Upstream time",
                "From asking for a connection to the last byte. Grows with “Batch size”: larger batches cost more than "
                "they bring; lower batch.max_size. Grows without: the backend is overloaded.",
                "s",
                _quantiles(c.EXCHANGES, "target"),
            ),
            Panel(
                "Upstream exchanges by outcome",
                "connect: no backend there. reset: it died or dropped the connection. truncated: it died within an "
                "answer. timeout: a configured upstream.timeout ran out. abandoned: the callers had left.",
                "ops",
                (Query(_rate(c.EXCHANGES, "outcome", part="_count"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "First byte and connection",
                "Time to the backend's first byte, and to get a connection. A wait for connections above a "
                "millisecond: the backend closes them (set upstream.keepalive below its own) or is slow to accept.",
                "s",
                (
                    Query(_quantile(0.99, c.TTFB), "p99 first byte"),
                    Query(_quantile(0.99, c.POOL_WAIT), "p99 connection"),
                ),
            ),
            Panel(
                "Upstream retries",
                "reused: the backend closed an idle connection as it was used again; set upstream.keepalive below "
                "the backend's own. connect: it is down or restarting.",
                "ops",
                (Query(_rate(c.RETRIES, "reason"), "{{reason}}"),),
            ),
        ),
    ),
    (
        "Response cache",
        (
            Panel(
                "Items by result",
                "Where items were found. redis_hit high, memory_hit low: raise cache.memory. coalesced: callers ask "
                "for the same new item at once, and it is computed once.",
                "ops",
                (Query(_rate(c.ITEMS_LOOKED_UP, "result"), "{{result}}"),),
                stacked=True,
            ),
            Panel(
                "Coalesce wait",
                "How long items waited for a computation that another call leads: near “Upstream time” plus queue "
                "wait, or less.",
                "s",
                _quantiles(c.COALESCE_WAIT),
            ),
            Panel(
                "Items stored",
                "no_store: the backend's answers may not be stored (Cache-Control, Set-Cookie, an error), so they "
                "can never be hits.",
                "ops",
                (Query(_rate(c.STORES, "result"), "{{result}}"),),
            ),
            Panel(
                "Memory held",
                "Flat at cache.memory is normal; with many evictions and a falling hit rate raise it.",
                "bytes",
                (Query(_sum(_series(c.CACHE_BYTES), "instance"), "{{instance}}"),),
            ),
            Panel(
                "Evictions and proof mismatches",
                "Entries given up for others, and entries of other items found at an item's address (each was a miss "
                "and harmed nobody; more than a few: somebody makes addresses collide).",
                "ops",
                (Query(_rate(c.EVICTIONS, ""), "evictions"), Query(_rate(c.MISMATCHES, ""), "mismatches")),
            ),
        ),
    ),
    (
        "Redis",
        (
            Panel(
                "Redis up",
                "down: requests go on without it, from memory and the backend. Look at Redis and the way to it; "
                "Forebay comes back by itself.",
                "none",
                (Query(_series(c.REDIS_UP), "{{instance}}"),),
                width=4,
                states=("down", "up"),
            ),
            Panel(
                "Look-ups by result",
                "timeout and error: Redis is slow or failing. skipped: it is known to be down and is not asked. "
                "corrupt: entries that are not what their address says; does something else write there?",
                "ops",
                (Query(_rate(c.LOOKUPS, "result", 'tier="redis"', part="_count"), "{{result}}"),),
                stacked=True,
            ),
            Panel(
                "Look-up time",
                "Every miss in memory waits for Redis, at most 100 ms. Near “Upstream time”: Redis brings nothing "
                "for this model; set redis none.",
                "s",
                _quantiles(c.LOOKUPS, "tier"),
                width=6,
            ),
            Panel(
                "Writes by result",
                "full: Redis is at its maxmemory and evicts nothing; set maxmemory-policy allkeys-lru. dropped: "
                "writes come faster than Redis takes them; answers are not held up by it.",
                "ops",
                (Query(_rate(c.REDIS_WRITES, "result"), "{{result}}"),),
                width=6,
            ),
        ),
    ),
    (
        "Forebay itself",
        (
            Panel(
                "Forebay's own time",
                "What Forebay itself adds to an answered request. Above a millisecond: look at event-loop lag and "
                "CPU; very large bodies take longer.",
                "s",
                _quantiles(c.PROXY_OVERHEAD),
            ),
            Panel(
                "Event-loop lag",
                "How late timers run. p99 near batch.max_delay: this process has no CPU left; give it a core, or "
                "run another replica.",
                "s",
                _quantiles(c.LOOP_LAG),
            ),
            Panel(
                "CPU and memory",
                "One process uses one core at most: at 1 it is the limit. Memory: cache.memory and bodies in "
                "flight come on top of a bare process.",
                "none",
                (
                    Query('rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval])', "cores"),
                    Query('process_resident_memory_bytes{instance=~"$instance"} / 2^30', "memory, GiB"),
                ),
                width=5,
            ),
            Panel(
                "Configuration in force",
                "Instances by configuration. More than one: a roll-out is under way, or some instance did not take it.",
                "none",
                (Query(f"count by (hash) ({_series(c.CONFIG)})", "{{hash}}"),),
                width=3,
            ),
        ),
    ),
)


def expressions(*, route: str = ".*", instance: str = ".*", rate_interval: str = "1m") -> list[tuple[str, str]]:
    """(panel title, expression) of every query, ready for Prometheus: variables filled in."""
    variables = {"$route": route, "$instance": instance, "$__rate_interval": rate_interval}
    filled = []
    for _, panels in ROWS:
        for panel in panels:
            for query in panel.queries:
                expr = query.expr
                for name, value in variables.items():
                    expr = expr.replace(name, value)
                filled.append((panel.title, expr))
    return filled
