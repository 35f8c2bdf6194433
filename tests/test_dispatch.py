"""Promises of the dispatcher that take a minute: what joined requests do is tested end to end, in e2e/."""

from __future__ import annotations

from proxy.dispatch import STRIKES, UNJOINABLE_FOR, Dispatcher, Room
from proxy.http.limits import Buffered
from proxy.telemetry.metrics import Metrics
from proxy.upstream.connections import Connections
from proxy.upstream.settings import UpstreamSettings


async def test_a_signature_that_rode_alone_may_join_again_after_a_minute() -> None:
    """Joining that failed is tried again: a model that was mended is not asked call by call for ever."""
    now = 0.0
    metrics = Metrics(["default"], config_hash="")
    connections = Connections(UpstreamSettings(targets=("http://127.0.0.1:9",)), metrics.upstream)
    room = Room(1024, Buffered(1024))
    dispatcher = Dispatcher(connections, metrics.batches, lambda: now, room, lambda *_: None)
    for strike in range(1, STRIKES + 1):
        assert dispatcher.joinable(b"signature")
        dispatcher._part_ways(b"signature", 1)
        assert repr(dispatcher) == f"<Dispatcher {int(strike == STRIKES)} signatures apart>"
    now = UNJOINABLE_FOR - 0.1
    assert not dispatcher.joinable(b"signature")
    assert dispatcher.joinable(b"another")
    now = UNJOINABLE_FOR
    assert dispatcher.joinable(b"signature")
    assert repr(dispatcher) == "<Dispatcher 0 signatures apart>"
    dispatcher._part_ways(b"signature", 1)
    assert dispatcher.joinable(b"signature")
