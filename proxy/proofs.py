"""Are rows items where nobody says so? It is tried out on calls as they come, beside their own answers.

A model's rows are proved signature by signature. Every caller gets the answer to its own bytes, asked for alone; calls
that have been answered are sent once more, together, as a *shadow* that no caller waits for, and each row of it is
compared with what its caller got. `AGREEING` shadows in which every row agrees prove the rows: from then on they are
items. One that differs or does not split proves that they are not, as do two that are refused or hang, and nothing of
that kind is tried or joined again while the model is the same. So do `AGREEING` answers to single calls in a row that
do not split; fewer may be errors that a server says with status 200.

Invariants
    No caller waits for a shadow or gets anything of it.
    A shadow holds at least two calls, and two rows that differ: equal rows prove nothing.
    A shadow in which all results are equal may disprove rows, but proves none: nobody could tell whose is whose.
    At most one shadow of a signature is under way, and `SHADOWS` in all; what waits for one is bounded in bytes, and
    gives way to what comes later, so that nothing that waits in vain ends the proof.
    Where nothing would show other weights, a proof holds for a minute; then one more shadow that agrees renews it.
    A backend that is in trouble (no connection, 429, 502, 503, 504), or whose refusal speaks of the caller or of the
    moment (`NO_WORD`), proves nothing either way, and gets fewer and fewer shadows: one for 2, 4, 8 … calls.

Knows nothing of routes, caches and clients.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

from proxy.dispatch import FOR_EVERYBODY, Dispatcher, Job
from proxy.filling import Plan
from proxy.protocols.codec import Call, Codec, Message
from proxy.telemetry.catalogue import ProofResult
from proxy.terms import Exchange, Failure, Identity
from proxy.upstream.connections import UpstreamError

log = logging.getLogger("forebay.proofs")

AGREEING: Final = 8  # shadows that must agree
SHADOWS: Final = 4  # under way at once
SHORTEST: Final = 1.0  # seconds that a shadow may take at least
LONGEST: Final = 30.0  # seconds that a shadow may take at most
PATIENCE: Final = 10  # times as long as the calls in it took alone, together
HELD: Final = 16 * 2**20  # bytes of calls and answers that wait, over all signatures
NO_WORD: Final = FOR_EVERYBODY | {401, 403, 407, 408, 425}  # statuses that say nothing of rows: credentials expire
MOST_UNSAID: Final = 10  # after so many shadows without a verdict their share of all requests falls no more
RENEWED: Final = 60.0  # seconds for which a proof holds where nothing would show other weights
KEPT: Final = 1024  # signatures, and kinds of calls, of which the state is kept; the longest unused goes first


class State(Enum):
    """How far the rows of a signature are proved."""

    OPEN = "open"
    PROVED = "proved"
    DISPROVED = "disproved"


class Kind(NamedTuple):
    """What a disproof holds for, whoever asks: calls of one form to one model at one path.

    form: a digest of what the calls share, which may be large.
    """

    protocol: str
    model: str
    path: str
    identity: Identity
    form: bytes


class Sample(NamedTuple):
    """A call that was answered alone. results: one for each of its rows. seconds: that its answer took."""

    job: Job
    results: Sequence[bytes]
    seconds: float

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        job, call = self.job, self.job.part.call
        head = len(job.target) + sum([len(name) + len(value) for name, value in job.fields])
        meaning = 2 * len(call.shared) + sum(map(len, call.items))  # a codec keeps what it has to join with, too
        return head + len(job.body) + meaning + sum(map(len, self.results))


@dataclass(slots=True, eq=False)
class Proof:
    """Of one signature: how many shadows agreed, what waits for the next, and whether one is under way.

    alike: shadows that agreed, but all of whose results were equal.
    unsaid: shadows without a verdict since the last one with a verdict. since: calls since the last shadow.
    unsplit: answers to single calls, since the last one that split, that did not.
    strikes: shadows that were refused or not answered in time.
    """

    kind: Kind
    agreed: int = 0
    alike: int = 0
    unsaid: int = 0
    since: int = 0
    unsplit: int = 0
    strikes: int = 0
    waiting: list[Sample] = field(default_factory=list)
    out: bool = False

    def __repr__(self) -> str:
        out = ", a shadow out" if self.out else ""
        return f"<Proof {self.agreed}/{AGREEING}, {len(self.waiting)} calls waiting{out}>"


class Proofs:
    """Says how far rows are proved and carries the proof on. Usable inside a running loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        observe: Callable[[str, ProofResult], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """observe: told of each shadow's result, by route."""
        self._dispatcher = dispatcher
        self._observe = observe
        self._now = now
        self._open: OrderedDict[bytes, Proof] = OrderedDict()
        self._proved: OrderedDict[bytes, tuple[Kind, float]] = OrderedDict()  # and until when
        self._disproved: OrderedDict[Kind, str] = OrderedDict()
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def state(self, signature: bytes, kind: Kind) -> State:
        """How far the rows of calls of this signature are proved."""
        if kind in self._disproved:
            self._disproved.move_to_end(kind)
            return State.DISPROVED
        if signature in self._proved:
            self._proved.move_to_end(signature)
            if self._now() < self._proved[signature][1]:
                return State.PROVED
        return State.OPEN

    def answered(self, job: Job, kind: Kind, exchange: Exchange, seconds: float, *, most: int) -> None:
        """A call was answered alone; its rows may prove something. most: rows that a shadow may hold."""
        if self.state(job.signature, kind) is not State.OPEN or exchange.status != 200:
            return
        split = job.codec.split(Message(exchange.body, exchange.headers), [job.part], None)
        if (proof := self._open.get(job.signature)) is None:
            renewed = job.signature in self._proved
            proof = self._open[job.signature] = Proof(kind, agreed=AGREEING - 1 if renewed else 0)
        self._open.move_to_end(job.signature)
        if split is None:
            proof.unsplit += 1
            if proof.unsplit >= AGREEING:
                self._disprove(job, kind, ProofResult.NOT_SPLIT)
        else:
            proof.unsplit = 0
            proof.since += 1
            self._wait(proof, Sample(job, split[0], seconds), most)
        self._bound()
        tells = _tells(proof.waiting) and (proof.alike < AGREEING or _tells_apart(proof.waiting))
        due = proof.since >= 2 ** min(proof.unsaid, MOST_UNSAID)
        if tells and due and not proof.out and len(self._tasks) < SHADOWS:
            samples, proof.waiting = proof.waiting, []
            proof.out, proof.since = True, 0
            task = asyncio.create_task(self._shadow(proof, kind, samples))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wait(self, proof: Proof, sample: Sample, most: int) -> None:
        """Let a call wait for the next shadow; what came before it, of this signature or longest ago, makes room."""
        if sample.job.size > most or sample.size > HELD:
            return
        proof.waiting.append(sample)
        self._held += sample.size
        while sum(held.job.size for held in proof.waiting) > most:
            self._held -= proof.waiting.pop(0).size
        for other in self._open.values():  # the longest unused first; this one is the last
            if self._held <= HELD:
                break
            while other.waiting and self._held > HELD:
                self._held -= other.waiting.pop(0).size

    async def _shadow(self, proof: Proof, kind: Kind, samples: list[Sample]) -> None:
        """Send what was answered singly once more, together and the last call first, and compare."""
        samples = samples[-1:] + samples[:-1]  # so that nobody always stands where it stood alone
        first = samples[0].job
        result = ProofResult.NO_VERDICT
        try:
            result = await self._verdict(samples)
        except Exception:  # a fault of ours proves nothing, and nobody waits for it
            log.exception("a shadow failed by a fault of Forebay's own")
        finally:
            proof.out = False
            self._held -= sum(sample.size for sample in samples)
        self._observe(first.route, result)
        proof.unsaid = proof.unsaid + 1 if result is ProofResult.NO_VERDICT else 0
        if result is ProofResult.AGREED and not _tells_apart(samples):
            proof.alike += 1
        elif result is ProofResult.AGREED:
            proof.agreed += 1
            if proof.agreed >= AGREEING and kind not in self._disproved:
                self._prove(first, kind)
        elif result in _STRIKES and proof.strikes == 0:
            proof.strikes, proof.unsaid = 1, proof.unsaid + 1
        elif result is not ProofResult.NO_VERDICT:
            self._disprove(first, kind, result)

    async def _verdict(self, samples: Sequence[Sample]) -> ProofResult:
        within = min(LONGEST, max(SHORTEST, PATIENCE * sum(sample.seconds for sample in samples)))
        try:
            async with asyncio.timeout(within):
                status, split = await self._dispatcher.shadow([sample.job for sample in samples])
        except TimeoutError:
            return ProofResult.TIMEOUT
        except UpstreamError as error:
            return ProofResult.TIMEOUT if error.failure is Failure.TIMEOUT else ProofResult.NO_VERDICT
        if status in NO_WORD:
            return ProofResult.NO_VERDICT
        if split is None:
            return ProofResult.NOT_SPLIT if status == 200 else ProofResult.REFUSED
        alike = samples[0].job.codec.alike
        pairs = (
            (alone, together)
            for sample, joined in zip(samples, split, strict=True)
            for alone, together in zip(sample.results, joined, strict=True)
        )
        return ProofResult.AGREED if all(alike(*pair) for pair in pairs) else ProofResult.DIFFERED

    def _prove(self, job: Job, kind: Kind) -> None:
        self._forget(job.signature)
        known = job.signature in self._proved
        self._proved[job.signature] = kind, math.inf if kind.identity.known else self._now() + RENEWED
        self._bound()
        if known:
            return
        log.info(
            "model %r, route %s: rows agreed in %d shadows, so calls of signature %s are joined",
            job.model,
            job.route,
            AGREEING,
            job.signature.hex()[:12],
        )

    def _disprove(self, job: Job, kind: Kind, why: ProofResult) -> None:
        for signature in [signature for signature, proof in self._open.items() if proof.kind == kind]:
            self._forget(signature)
        for signature in [signature for signature, of in self._proved.items() if of[0] == kind]:
            del self._proved[signature]
        self._disproved[kind] = why.value
        self._bound()
        log.warning(
            "model %r, route %s: %s; such calls are answered whole and never joined", job.model, job.route, _WHY[why]
        )

    def _forget(self, signature: bytes) -> None:
        if (proof := self._open.pop(signature, None)) is not None:
            self._held -= sum(sample.size for sample in proof.waiting)
            proof.waiting.clear()

    def _bound(self) -> None:
        while len(self._open) > KEPT:
            self._forget(next(iter(self._open)))
        for table in (self._proved, self._disproved):
            while len(table) > KEPT:
                table.popitem(last=False)

    def report(self) -> dict[str, object]:
        """What /config shows."""
        disproved = [f"{kind.protocol} {kind.model or kind.path}: {why}" for kind, why in self._disproved.items()]
        return {"open": len(self._open), "proved": len(self._proved), "disproved": disproved[-32:]}

    @property
    def under_way(self) -> int:
        """Shadows that were sent and are not judged yet."""
        return len(self._tasks)

    async def aclose(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<Proofs {len(self._open)} open, {len(self._proved)} proved, {len(self._disproved)} disproved>"


def kind(codec: Codec, plan: Plan, path: str, call: Call) -> Kind:
    """What a disproof of this call's rows holds for. path: as the request has it, for not every model has a name."""
    return Kind(codec.name, plan.model.name, path, plan.identity, blake2b(call.shared, digest_size=16).digest())


def _tells(samples: Sequence[Sample]) -> bool:
    """Would these calls, joined, show anything at all?"""
    return len(samples) > 1 and len({item for sample in samples for item in sample.job.part.call.items}) > 1


def _tells_apart(samples: Sequence[Sample]) -> bool:
    """Would it show, if these calls were answered with each other's results?"""
    return len({result for sample in samples for result in sample.results}) > 1


_STRIKES: Final = (ProofResult.REFUSED, ProofResult.TIMEOUT)
"""What may have been the moment's fault: twice of a signature it is the rows'."""

_WHY: Final = {
    ProofResult.DIFFERED: "rows were answered otherwise in company than alone",
    ProofResult.NOT_SPLIT: "its answers do not hold one result for each row",
    ProofResult.REFUSED: "the backend refused calls joined that it had answered alone",
    ProofResult.TIMEOUT: "the backend did not answer joined calls in time",
}
