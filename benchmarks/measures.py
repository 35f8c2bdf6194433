"""What is measured, against what, and what it should come to.

Forebay, or whatever it is compared with, has one core; wrk has the other, and shares it with the backend behind
Forebay. So a backend that is asked directly has a core for itself, and Forebay's has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import load, processes
from benchmarks.bare import CALL
from benchmarks.processes import Running
from benchmarks.rounds import Figure, Rounds, Shot
from proxy.batching.rule import Adaptive
from proxy.measure.simulator import MS, Run, simulate
from tests.parts.triton import DYNAMIC, SLOW, Triton

ECHO: Final = "/v2/models/echo/infer"
ELSEWHERE: Final = "/predict"  # nothing that Forebay recognises
ROW: Final = b'{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[@,1,2,3]}]}'
CROWDS: Final = (31, 32, 40, 64)


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the table. pid: whose CPU time is counted, None: nobody's. seconds: of one round."""

    name: str
    load: load.Load
    pid: Running | None

    def shoot(self, core: int) -> Shot:
        """One round of it."""
        before = self.pid.cpu_seconds() if self.pid else float("nan")
        sample = load.run(self.load, core)
        cpu = (self.pid.cpu_seconds() if self.pid else float("nan")) - before
        return Shot(
            rate=sample.rate,
            p50_ms=sample.p50_ms,
            p99_ms=sample.p99_ms,
            failed=sample.failed,
            load_busy=sample.busy,
            server_busy=cpu / sample.seconds,
            cpu_ms=cpu / max(1, sample.answers) * 1e3,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that runs. watched: the Forebays whose own metrics prove something, by what they do."""

    contenders: Mapping[str, Contender]
    watched: Mapping[str, Running]


@contextmanager
def hits_and_passing(seconds: int) -> Iterator[Setting]:
    """(a) and (b): the bare server, directly, as backend, and as what a hit is compared with."""
    own, other = processes.cores()
    with ExitStack() as stack:
        near = stack.enter_context(processes.bare(own))
        backend = stack.enter_context(processes.bare(other))
        hit = stack.enter_context(processes.forebay(backend.url, own))
        passing = stack.enter_context(processes.forebay(backend.url, own))
        for forebay in (hit, passing):
            processes.knows(forebay, ECHO, CALL)

        def contender(name: str, server: Running, path: str, callers: int, *, ids: bool = False) -> Contender:
            body = b'{"id":"@",' + CALL[1:] if ids else CALL
            long = 1 if callers == 1 or ids else seconds
            return Contender(name, load.Load(server.url + path, body, callers, long, varied=ids), server)

        lines = [
            contender("hit/bare", near, ECHO, 32),
            contender("hit/forebay", hit, ECHO, 32),
            contender("hit, an id each/bare", near, ECHO, 32, ids=True),
            contender("hit, an id each/forebay", hit, ECHO, 32, ids=True),
            contender("pass/direct", near, ELSEWHERE, 32),
            contender("pass/forebay", passing, ELSEWHERE, 32),
            contender("pass alone/direct", near, ELSEWHERE, 1),
            contender("pass alone/forebay", passing, ELSEWHERE, 1),
        ]
        yield Setting({line.name: line for line in lines}, {"hit": hit})


@contextmanager
def batching(seconds: int) -> Iterator[Setting]:
    """(c): Triton's dynamic batcher, and Forebay before the same model without it."""
    own, other = processes.cores()
    with ExitStack() as stack:
        with processes.pinned(other):
            triton = stack.enter_context(Triton(SLOW, DYNAMIC))
        slow, dynamic = (f"/v2/models/{model.name}/infer" for model in (SLOW, DYNAMIC))
        crowd = stack.enter_context(processes.forebay(triton.url, own))
        lone = stack.enter_context(processes.forebay(triton.url, own))
        for number, forebay in enumerate((crowd, lone)):
            processes.knows(forebay, slow, ROW.replace(b"@", b"-%d" % (number + 1)))

        def contender(name: str, url: str, callers: int, long: int, server: Running | None = None) -> Contender:
            return Contender(name, load.Load(url, ROW, callers, long, varied=True), server)

        lines = [
            contender("batched 64/triton", triton.url + dynamic, 64, seconds),
            *(contender(f"batched {n}/forebay", crowd.url + slow, n, seconds, crowd) for n in CROWDS),
            contender("lone/direct", triton.url + slow, 1, max(1, seconds // 2)),
            contender("lone/forebay", lone.url + slow, 1, max(1, seconds // 2), lone),
            contender("lone/triton", triton.url + dynamic, 1, 1),
        ]
        yield Setting({line.name: line for line in lines}, {"lone": lone, "crowd": crowd})


def simulated() -> dict[int, Run]:
    """What the same crowds would get of the same model, were there nothing but the batching rule."""
    return {n: simulate(Adaptive(32, 5 * MS), callers=n, answers=8000) for n in CROWDS}


def proofs(watched: Mapping[str, Running]) -> dict[str, float]:
    """What Forebay's own metrics say of the run."""
    found: dict[str, float] = {}
    if "hit" in watched:
        scrape = watched["hit"].scrape()
        found["share of hits among requests for hits"] = scrape.total(
            "forebay_requests_total", outcome="hit"
        ) / scrape.total("forebay_requests_total")
    if "lone" in watched:
        scrape = watched["lone"].scrape()
        found["voluntary wait of a lone caller, s in all"] = scrape.total(
            "forebay_queue_wait_seconds_sum", kind="voluntary"
        )
        found["requests of the lone caller"] = scrape.total("forebay_queue_wait_seconds_count", kind="voluntary")
    if "crowd" in watched:
        scrape = watched["crowd"].scrape()
        found["mean items of a batch"] = scrape.mean("forebay_batch_items")
        found["hits among batched callers"] = scrape.total("forebay_requests_total", outcome="hit")
    return found


def figures(rounds: Mapping[str, Rounds], found: Mapping[str, float]) -> list[Figure]:
    """The first figures to reach, of what was measured."""
    wanted: list[Figure] = []

    def ratio(name: str, own: str, its: str, aim: float, *, p99: bool = False) -> None:
        if own in rounds and its in rounds:
            value = rounds[own].against(rounds[its], lambda a, b: a.p99_ms / b.p99_ms if p99 else a.rate / b.rate)
            wanted.append(Figure(name, value, aim, at_least=not p99))

    ratio("memory hit, throughput over the bare server's", "hit/forebay", "hit/bare", 0.75)
    ratio("64 callers batched, throughput over Triton's batcher", "batched 64/forebay", "batched 64/triton", 0.97)
    ratio("64 callers batched, p99 over Triton's batcher", "batched 64/forebay", "batched 64/triton", 1.05, p99=True)
    if "batched 32/forebay" in rounds:
        cpu = rounds["batched 32/forebay"].median(lambda shot: shot.cpu_ms)
        wanted.append(Figure("CPU time of a joined call at 32 callers, ms", cpu, 0.15, at_least=False))
    if "lone/forebay" in rounds:
        added = rounds["lone/forebay"].against(rounds["lone/direct"], lambda a, b: a.p50_ms - b.p50_ms)
        wanted.append(Figure("lone caller, p50 added to direct, ms", added, 0.5, at_least=False))
        waited = found["voluntary wait of a lone caller, s in all"]
        wanted.append(Figure("lone caller, voluntary wait in all, s", waited, 0.0, at_least=False))
    return wanted
