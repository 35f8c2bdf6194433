"""One process: the data listener, the admin listener, what lies behind them, and how it ends.

Order of the end, on SIGTERM: readiness fails and nothing new is accepted; whatever was accepted is
answered, uploads in progress too, within `drain_timeout`; then what lies behind is closed; the admin
listener closes last, so that whoever watches sees the end. `POST /drain` does the first two and stays up.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import uvloop
from aiohttp import web

from proxy import __version__
from proxy.admin import Admin, Watched
from proxy.answers import Answers
from proxy.batching.batcher import Batcher
from proxy.caching.fingerprint import Keys, Tenant
from proxy.caching.memory_store import MemoryStore
from proxy.caching.redis_store import RedisStore
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.config import CannotStart, Settings, as_dict
from proxy.config_rules import host_port
from proxy.dispatch import AskAlone, Dispatcher, Done, Job, Room
from proxy.filling import Filler
from proxy.http.limits import Buffered
from proxy.http.server import HttpServer
from proxy.orders import Route
from proxy.pipeline import Pipeline
from proxy.proofs import Proofs
from proxy.protocols.registry import CODECS, codecs
from proxy.readings import Readings
from proxy.relay import Relay
from proxy.routing import AUTO, Mode, RouteSettings
from proxy.telemetry.loop_lag import LoopLag
from proxy.telemetry.metrics import Metrics
from proxy.terms import Outcome, Reason, Timeline
from proxy.understanding import Understanding
from proxy.upstream.backend import Backend
from proxy.upstream.connections import Connections
from proxy.upstream.health import Health
from proxy.upstream.models import Models
from proxy.upstream.unmatched import Unmatched

log = logging.getLogger("forebay")


class Sidecar:
    """Forebay as configured. Between `start` and `aclose` it serves; `drain` may come in between.

    unix_time: the clock by which entries are made and expire.
    """

    def __init__(self, settings: Settings, *, unix_time: Callable[[], float] = time.time) -> None:
        self.settings = settings
        shown = json.dumps(as_dict(settings), sort_keys=True)
        table = settings.table()
        self.metrics = Metrics(
            [route.id for route in table], config_hash=hashlib.sha256(shown.encode()).hexdigest()[:12]
        )
        self.connections = Connections(settings.upstream, self.metrics.upstream)
        self.metrics.upstream.target(self.connections.target)
        self.health = Health(self.connections)
        self.models = Models(self.connections, self.health)
        self.backend = Backend(self.connections, self.health, CODECS, changed=self.models.changed)
        self.unmatched = Unmatched()
        memory = MemoryStore(min(settings.cache.memory, _quarter_of_the_cgroup()))
        self.redis = (
            None
            if settings.redis is None
            else RedisStore(settings.redis, proof_key=settings.cache.key, observe=self.metrics.redis, wall=unix_time)
        )
        self.tiers = Tiers(memory, self.redis)
        buffered = Buffered(settings.limits.buffered)
        room = Room(settings.limits.parse, buffered)
        dispatcher = Dispatcher(self.connections, self.metrics.batches, time.monotonic, room, self.models.answered)
        self._batcher: Batcher[Job, Done | AskAlone] = Batcher(send=dispatcher.send, observe=self.metrics.batches)
        self.metrics.watch_queue(self._batcher.oldest)
        uncacheable = Uncacheable()
        self._filler = Filler(
            self._batcher,
            dispatcher,
            self.tiers,
            uncacheable,
            observe=lambda route, result, items: self.metrics.route(route).stores[result].add(items),
            unix_time=unix_time,
        )
        self.proofs = Proofs(dispatcher, lambda route, result: self.metrics.route(route).proofs[result].inc())
        readings = Readings()
        answers = Answers(
            tiers=self.tiers,
            uncacheable=uncacheable,
            filler=self._filler,
            readings=readings,
            proofs=self.proofs,
            metrics=self.metrics,
            unix_time=unix_time,
        )
        self.parts = parts = {route.id: self._route(route) for route in table}
        self.understanding = Understanding(
            routes=table,
            route_parts=parts,
            known=self.models.get,
            speaks=self.backend.speaks,
            readings=readings,
            proofs=self.proofs,
            host=self.connections.host,
            target=self.connections.target,
            slots=settings.upstream.slots,
            largest=settings.limits.parse,
            metrics=self.metrics,
            began=unix_time(),
        )
        self.pipeline = Pipeline(
            understanding=self.understanding,
            answers=answers,
            relay=Relay(self.connections),
            limits=settings.limits,
            buffered=buffered,
            codecs=tuple(dict.fromkeys(codec for route in parts.values() for codec in route.codecs)),
            changed=self.models.changed,
            unmatched=self.unmatched,
        )
        self.metrics.watch_memory(memory, lambda: answers.flights.mismatches)
        self._server = HttpServer(self.pipeline.handle, settings.limits, refused=self._refused)
        self._lag = LoopLag(self.metrics.loop_lag.observe)
        self._admin: web.AppRunner | None = None
        self._draining: asyncio.Task[bool] | None = None
        self.data_address = self.admin_address = ""

    def _route(self, route: RouteSettings) -> Route:
        """A route with what is made for it once."""
        return Route(
            settings=route,
            metrics=self.metrics.route(route.id),
            keys=Keys(self.settings.cache.key, Tenant.parse(route.cache.tenant)),
            codecs=codecs(route.protocol, route.json_map),
            trusted=route.protocol != AUTO,
        )

    async def start(self) -> None:
        """Open both listeners. Raises CannotStart where an address cannot be had."""
        self._lag.start()
        if self.redis is not None:
            if alone := [route.id for route in self.settings.table().reached() if not route.model.revision]:
                log.warning(
                    "redis: what these routes store is read by this process alone, for they have no model.revision: %s",
                    ", ".join(alone),
                )
            await self.redis.start()
        host, port = host_port(self.settings.admin)
        watched = Watched(
            metrics=self.metrics.scrape,
            not_ready=self.not_ready,
            draining=lambda: self._draining is not None,
            in_flight=lambda: self.in_flight,
            last_call=lambda: self._server.last_call,
            drain=self.drain,
            config=self.report,
        )
        admin = Admin(watched, host=host, token=self.settings.admin_token)
        self._admin = web.AppRunner(admin.application(), access_log=None, shutdown_timeout=1.0)
        await self._admin.setup()
        try:
            await web.TCPSite(self._admin, host, port).start()
        except OSError as error:
            raise CannotStart(_cannot_listen("admin", self.settings.admin, error)) from error
        self.admin_address = _written(self._admin.addresses[0])
        try:
            address = await self._server.listen(*host_port(self.settings.listen))
        except OSError as error:
            raise CannotStart(_cannot_listen("listen", self.settings.listen, error)) from error
        self.data_address = _written(address)
        self.health.start()
        self.models.start()
        self.backend.start()

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and are not answered yet."""
        return self._server.in_flight

    def not_ready(self) -> str | None:
        """Why no traffic should come now; None if it should."""
        return "draining" if self._draining is not None else self.health.not_ready

    def drain(self) -> None:
        """Begin to drain, once or often."""
        if self._draining is None:
            log.info("draining: %d requests in flight", self._server.in_flight)
            self._batcher.drain()
            self._draining = asyncio.create_task(self._server.drain(self.settings.drain_timeout))

    async def drained(self) -> bool:
        """Wait for the end of what `drain` began, if need be once more; False if that was not enough.

        Once more: a `POST /drain` long before SIGTERM must leave SIGTERM its own `drain_timeout`.
        """
        assert self._draining is not None
        return await self._draining or await self._server.drain(self.settings.drain_timeout)

    async def aclose(self) -> None:
        """Let go of everything, the admin listener last."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait([self._draining])
        await self._server.close()
        await self._filler.aclose()
        await self._batcher.aclose()
        await self.proofs.aclose()
        await self.models.aclose()
        await self.backend.aclose()
        await self.health.aclose()
        if self.redis is not None:
            await self.redis.close()
        await self.connections.aclose()
        self._lag.stop()
        if self._admin is not None:
            await self._admin.cleanup()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def report(self) -> Mapping[str, Any]:
        """What /config shows."""
        return {
            "version": __version__,
            "settings": as_dict(self.settings),
            "upstream": {"target": self.connections.target, "not_ready": self.health.not_ready},
            "backend": self.backend.report(),
            "models": self.models.report(),
            "routes": {name: self._live(route) for name, route in self.parts.items()},
            "row_proofs": self.proofs.report(),
            "unmatched": self.unmatched.report(),
            "process": {
                "connections": len(self._server.connections),
                "in_flight": self.in_flight,
                "flights": len(self.pipeline.answers.flights),
                "tasks": len(asyncio.all_tasks()),
                "full_collections": gc.get_stats()[2]["collections"],
            },
        }

    def _live(self, route: Route) -> list[str]:
        """The codecs that may take a request of this route now."""
        if route.settings.mode is Mode.OFF:
            return []
        return [codec.name for codec in route.codecs if route.trusted or self.backend.speaks(codec)]

    def _refused(self, reason: Reason) -> None:
        """A request that was turned down before it had a route counts for the one that takes all."""
        metrics = self.metrics.route(self.settings.default_route.id)
        metrics.begin()
        metrics.finish(Outcome.REJECTED, reason, Timeline(answered=time.monotonic()))

    def __repr__(self) -> str:
        state = "draining" if self._draining is not None else "serving"
        return f"<Sidecar {state} on {self.data_address} for {self.connections.target}>"


FORCED: Final = 1  # exit code when `drain_timeout` was not enough


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):  # before anybody can read that it listens
        loop.add_signal_handler(sign, asked.set)
    async with Sidecar(settings) as sidecar:
        _spare_the_collector()
        log.info(
            "Forebay %s: listening on http://%s, admin on http://%s, before %s",
            __version__,
            sidecar.data_address,
            sidecar.admin_address,
            sidecar.connections.target,
        )
        await asked.wait()
        for sign in (signal.SIGTERM, signal.SIGINT):  # a second one does what it does to any process
            loop.remove_signal_handler(sign)
        sidecar.drain()
        if await sidecar.drained():
            log.info("drained: every accepted request was answered")
            return 0
        log.error("drain_timeout of %g s was not enough: requests were cut off", settings.drain_timeout)
        return FORCED


def _spare_the_collector() -> None:
    """Let the cycle collector pass over what start-up made, come a seventh as often, and look at little at a time.

    Nearly all that a request leaves behind is freed by its reference count; at Python's default of 700 objects
    the collector took a twentieth of a hot joined call all the same, for 32 of them are alive at once.

    While the collector runs nothing else does. What stays, the response cache above all, is looked at when 300,000
    objects have come to stay, for that takes 150 ms of a core over 128 MiB of the smallest entries. The younger
    generations take 3 ms at most; with ten times as many objects in the second, as is Python's default, 23 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 2, 20)


def run(settings: Settings) -> int:
    """`forebay serve`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings))


def _quarter_of_the_cgroup() -> int:
    """What the response cache may take at most where the process has a memory limit, in bytes."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return sys.maxsize
    return int(limit) // 4 if limit.isdigit() else sys.maxsize


def _cannot_listen(what: str, address: str, error: OSError) -> str:
    # asyncio's own text repeats the address; a name that does not resolve has no errno of the system
    why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or error
    return f"{what}: cannot listen on {address}: {why}; choose another with --{what} HOST:PORT"


def _written(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
