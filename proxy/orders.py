"""A request on its way through, and a call that is understood: what the steps of the pipeline hand each other.

Knows nothing of caches, flights and of who decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from aiohttp import web

from proxy import cache_status
from proxy.caching.fingerprint import Keys
from proxy.caching.policy import CacheUse
from proxy.dispatch import Job
from proxy.filling import Plan
from proxy.http.body import Body
from proxy.http.reply import Reply, StreamReply
from proxy.protocols.asked import Asked, asked
from proxy.protocols.codec import Call, Codec, Endpoint, Part
from proxy.readings import Reading
from proxy.routing import RouteSettings
from proxy.telemetry.metrics import RouteMetrics
from proxy.terms import Outcome, Reason, Timeline
from proxy.upstream.connections import Answer, UpstreamError


@dataclass(slots=True, eq=False)
class Route:
    """A configured route with what is made for it once.

    codecs: that may know its requests. trusted: its settings name them, so that they need not be found at the backend.
    plans: for each model in use, batched and not. warned: that answers of unknown weights are kept but shortly.
    """

    settings: RouteSettings
    metrics: RouteMetrics
    keys: Keys
    codecs: Sequence[Codec]
    trusted: bool
    plans: dict[tuple[str, str, str], tuple[Plan, Plan]] = field(default_factory=dict)
    warned: bool = False

    def asked(self, codec: Codec) -> Asked:
        """Who is asked about the models of this codec's calls here."""
        return asked(codec, self.settings.prefix)

    def recognise(self, method: str, path: str, speaks: Callable[[Codec], bool]) -> tuple[Codec, Endpoint] | None:
        """Which codec knows such a request, and what its path names."""
        path = self.settings.spelled(path)
        for codec in self.codecs:
            if (endpoint := codec.recognise(method, path)) is not None and (self.trusted or speaks(codec)):
                return codec, endpoint
        return None


@dataclass(slots=True, eq=False)
class Visit:
    """One request on its way through.

    model: that it asks for, as far as it is known. settled: False while the route hangs on a model that its body names.
    begun: it is counted as active on its route.
    """

    http: web.BaseRequest
    path: str
    query: str
    timeline: Timeline
    route: Route
    codec: Codec | None = None
    endpoint: Endpoint | None = None
    model: str | None = None
    settled: bool = True
    begun: bool = False
    outcome: Outcome = Outcome.UPSTREAM_ERROR  # until something better is known
    reason: Reason | None = None
    answering: bool = False  # the client has been sent something: too late for another answer
    streamed: StreamReply | None = None  # an answer too large to be held, sent as it came

    async def reply(self, reply: Reply) -> Reply:
        """Send the whole answer."""
        self.answering = True
        await reply.prepare(self.http)
        return reply


@dataclass(slots=True, eq=False)
class Order:
    """A call that is understood, with all that answering it takes. Nothing of it changes."""

    visit: Visit
    reading: Reading
    call: Call
    plan: Plan
    cache: CacheUse
    host: bytes
    body: Body
    read_anew: bool

    def job(self, indexes: tuple[int, ...]) -> Job:
        """Some of its items, ready to be sent."""
        visit, call = self.visit, self.call
        return Job(
            codec=self.reading.codec,
            part=Part(call, indexes),
            asked=self.reading.asked.name,
            model=self.plan.model.name,
            route=visit.route.settings.id,
            target=visit.http.raw_path,
            body=self.body.data,
            fields=visit.http.raw_headers,
            host=self.host,
            signature=self.reading.signature,
            timeline=visit.timeline,
            stream=self.stream,
        )

    def trial(self, call: Call) -> Job:
        """The same request read item by item, to be sent once more in company. It holds nothing of the visit."""
        job = self.job(tuple(range(len(call.items))))
        return replace(job, part=Part(call, job.part.indexes), timeline=Timeline(), stream=_nowhere)

    async def stream(self, answer: Answer, begun: Sequence[bytes]) -> None:
        """Send an answer that is too large to be held: what came of it, then the rest as it comes."""
        visit = self.visit
        if visit.reason is None:  # a follower's own try
            visit.outcome, visit.reason = Outcome.MISS, Reason.NO_STORE
        status = cache_status.missed(visit.reason, partial=False, collapsed=False, stored=False)
        if visit.reason is Reason.OPTED_OUT:
            status = cache_status.bypassed(visit.reason)
        visit.answering = True
        visit.streamed = StreamReply(
            answer.status, (*answer.headers, (cache_status.CACHE_STATUS, status)), answer.reason
        )
        try:
            await visit.streamed.prepare(visit.http)
            for piece in begun:
                await visit.streamed.write(piece)
            async for piece in answer.chunks():
                await visit.streamed.write(piece)
            await visit.streamed.write_eof()
        except UpstreamError:
            visit.streamed.abort()
            raise
        except ConnectionError:
            return  # the client has gone, and nobody else wants it

    def whole(self) -> Job:
        return self.job(tuple(range(len(self.call.items))))


async def _nowhere(answer: Answer, begun: Sequence[bytes]) -> None:
    raise AssertionError("what no caller waits for is streamed to nobody")
