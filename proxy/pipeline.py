"""The life of a call: recognised, parsed, looked up, coalesced, batched, answered.

`handle` is the whole of it. Every branch ends in exactly one outcome, counted once, and every request
that Forebay cannot or may not help goes to the backend untouched.

Invariants
    Up to the memory look-up nothing awaits but the client's own body.
    A caller gets either the backend's answer to its own bytes or an answer assembled from results of
    items whose proof equals its own.
    A fault in a codec costs a look at the log, not a request: it counts as `codec_error` and passes through.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from proxy import cache_status
from proxy.batching.batcher import QueueFull
from proxy.batching.settings import BatchMode
from proxy.caching.entry import Entry
from proxy.caching.fingerprint import Keys, Scope
from proxy.caching.policy import CacheMode, CacheUse, Directives, directives
from proxy.caching.single_flight import Flights
from proxy.caching.tiers import Tiers
from proxy.caching.uncacheable import Uncacheable
from proxy.dispatch import Done, Job, Refused
from proxy.filling import EXPECTED, Fill, Filler
from proxy.http import headers as fields
from proxy.http.reply import Reply
from proxy.protocols.codec import Call, Codec, Endpoint, Part
from proxy.relay import Relay
from proxy.routing import Mode, Routes, RouteSettings
from proxy.terms import Failure, Fingerprint, Headers, Model, Outcome, Reason
from proxy.upstream.connections import UpstreamError

log = logging.getLogger("forebay.pipeline")
