"""The admin listener: metrics and health for machines, configuration for people, drain for both.

Reading is open: nothing it shows is secret. Changing something (`POST /drain`) needs the token where
one is configured; without a token it is allowed on a loopback bind only, and there not to a browser:
the Host must be a loopback name (against DNS rebinding) and the content type one that a page may not
send across origins without asking.

Knows nothing of how the data listener works: it is handed what it needs as callables.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Watched:
    """What the admin listener looks at and may set off.

    not_ready: why no traffic should come now, None if it should. in_flight: requests not answered yet.
    last_call: may a connection that is idle still bring a request that is answered?
    drain: begin to drain; may be called more than once.
    """

    metrics: Callable[[], Awaitable[bytes]]
    not_ready: Callable[[], str | None]
    draining: Callable[[], bool]
    in_flight: Callable[[], int]
    last_call: Callable[[], bool]
    drain: Callable[[], None]
    config: Callable[[], Mapping[str, Any]]


class Admin:
    """The handlers. `host` is the address it is bound to, `token` what a change must present."""

    def __init__(self, watched: Watched, *, host: str, token: str | None) -> None:
        self._watched = watched
        self._loopback = _is_loopback(host)
        self._token = token

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self.metrics),
                web.get("/livez", self.livez),
                web.get("/startupz", self.startupz),
                web.get("/readyz", self.readyz),
                web.get("/drained", self.drained),
                web.get("/config", self.config),
                web.post("/drain", self.drain),
            ]
        )
        return app

    async def metrics(self, _: web.Request) -> web.Response:
        body = await self._watched.metrics()
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})

    async def livez(self, _: web.Request) -> web.Response:
        """The loop turns. Never asks the backend: a restart of Forebay would not mend it."""
        return web.Response(text="ok\n")

    async def startupz(self, _: web.Request) -> web.Response:
        """Both listeners are up. Never waits for the backend: a native sidecar starts before it."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """Requests sent now would reach a backend that can answer them."""
        why_not = self._watched.not_ready()
        return web.Response(text="ready\n") if why_not is None else web.Response(status=503, text=f"{why_not}\n")

    async def drained(self, _: web.Request) -> web.Response:
        """Draining has begun, nothing is in flight any more, and nothing more can come."""
        if not self._watched.draining():
            return web.Response(status=503, text="not draining\n")
        if count := self._watched.in_flight():
            return web.Response(status=503, text=f"{count} in flight\n")
        if self._watched.last_call():
            return web.Response(status=503, text="idle connections may still bring a request\n")
        return web.Response(text="drained\n")

    async def config(self, _: web.Request) -> web.Response:
        """The settings in force, without secrets, and what was found out about the backend."""
        return web.json_response(self._watched.config(), dumps=lambda shown: json.dumps(shown, indent=2) + "\n")

    async def drain(self, request: web.Request) -> web.Response:
        """Begin what SIGTERM begins, without exiting."""
        if (refusal := self._may_change(request)) is not None:
            return web.Response(status=403, text=f"{refusal}\n")
        self._watched.drain()
        return web.Response(status=202, text="draining; /drained answers 200 when nothing is in flight\n")

    def _may_change(self, request: web.Request) -> str | None:
        """None if this request may change something, else what to do about it."""
        if self._token is not None:
            presented = request.headers.get("Authorization", "")
            if hmac.compare_digest(presented.encode("utf-8", "surrogateescape"), f"Bearer {self._token}".encode()):
                return None
            return "send `Authorization: Bearer <admin_token>`"
        if not self._loopback:
            return "changes are off on this address: set admin_token, or bind admin to loopback"
        if not _is_loopback(_hostname(request.host)):
            return "the Host must be a loopback address"
        if request.content_type != "application/json":
            return "send `Content-Type: application/json`"
        return None

    def __repr__(self) -> str:
        return f"<Admin {'loopback' if self._loopback else 'open'}, {'token' if self._token else 'no token'}>"


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
