"""The words of Forebay, as types. Code, metrics, `Cache-Status` and docs use these and no others.

Everything here is passive: no behaviour beyond what a word means, no imports of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Headers = tuple[tuple[bytes, bytes], ...]
"""Header fields in wire order, names as their sender wrote them, repetitions kept."""


class Outcome(Enum):
    """What became of a request. Where several apply, the one that stands first here.

    The value is the `outcome` label of `forebay_requests_total`.
    """

    CLIENT_GONE = "client_gone"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    UPSTREAM_ERROR = "upstream_error"
    TRUNCATED = "truncated"
    BYPASS = "bypass"
    MISS = "miss"
    COALESCED = "coalesced"
    HIT = "hit"

    __hash__ = object.__hash__  # equality is identity; Enum's own is a Python function, and every request asks often


class Reason(Enum):
    """Why a request was bypassed, missed or rejected: the closed set beside `Outcome`."""

    # bypass: the response cache had no part in it
    UNRECOGNISED = "unrecognised"  # no codec knows this method and path
    UNPARSED = "unparsed"  # a codec knows the path but would have to guess at the body
    DUPLICATE_KEY = "duplicate_key"  # two equal keys in one JSON object: readers disagree on which counts
    TOO_LARGE = "too_large"  # body above `limits.parse`, or no room left in `limits.buffered`
    MODEL_UNKNOWN = "model_unknown"  # the backend has not said yet what this model is
    OVER_LIMIT = "over_limit"  # more items than the model takes, which is the backend's to refuse, or than 4096
    STATEFUL = "stateful"  # sequence, shared memory or decoupled: an answer depends on more than the call
    OPTED_OUT = "opted_out"  # by the route's configuration or the caller's `Forebay-Cache: off`
    NOT_DETERMINISTIC = "not_deterministic"  # sampled: asked again it would be answered otherwise
    STREAMED = "streamed"  # the answer comes in events: passed on as it comes
    CODEC_ERROR = "codec_error"  # a bug of ours, counted; the request went through untouched
    # miss: looked up, not answered from the response cache
    FIRST_SEEN = "first_seen"
    EXPIRED = "expired"
    EVICTED = "evicted"
    REFRESH = "refresh"  # the caller's `Forebay-Cache: refresh`
    REDIS_DOWN = "redis_down"  # not in memory, and Redis could not be asked
    NO_STORE = "no_store"  # known to be uncacheable: went straight to the backend
    MISFIT = "misfit"  # its items were found, but not all from answers of one form
    # rejected: never sent to the backend
    QUEUE_FULL = "queue_full"
    BAD_REQUEST = "bad_request"  # not HTTP we can frame without guessing
    HEAD_TOO_LARGE = "head_too_large"  # above `limits.head`
    BODY_TOO_LARGE = "body_too_large"  # above `limits.body`
    BODY_TIMEOUT = "body_timeout"  # nothing of the body came for `limits.read_timeout`

    __hash__ = object.__hash__  # equality is identity; Enum's own is a Python function, and every request asks often


class Rows(Enum):
    """Whether a call's rows, texts or instances are items: independent of each other, so that they may be joined."""

    ITEMS = "items"
    PROVE = "prove"  # nobody says so: it is tried out first
    WHOLE = "whole"  # the whole call is the item

    __hash__ = object.__hash__  # as Outcome's


class Failure(Enum):
    """How an upstream exchange failed; the `outcome` label of `forebay_upstream_duration_seconds`."""

    CONNECT = "connect"  # no connection: the backend saw nothing
    RESET = "reset"  # the connection died, or sent what is not HTTP, before a complete head
    TRUNCATED = "truncated"  # the head came, the body did not come whole
    TIMEOUT = "timeout"  # a configured timeout


class Identity(NamedTuple):
    """Which weights answer: part of every key, so that no answer outlives its model.

    versions: what the backend lists, () where it lists none.
    generation: Unix seconds at which this process last had reason to believe the weights changed; 0 if it had none.
    revision: what the operator configured, "" if nothing.
    known: False where the backend offers nothing to poll; lifetimes are short then.
    """

    versions: tuple[str, ...]
    generation: float
    revision: str
    known: bool


@dataclass(frozen=True, slots=True)
class Model:
    """What the backend itself says of a model.

    rows: whether the items of a call are independent, by the backend's own word or the protocol's meaning.
    max_batch_size: items the model takes in one request.
    instances: batches the backend computes at once; sets the slots.
    listed: False where the backend knows no such model (then it never labels a metric).
    """

    name: str
    rows: Rows
    max_batch_size: int
    instances: int
    identity: Identity
    listed: bool = True


class Fingerprint(NamedTuple):
    """An item's address in the response cache, and the proof that what lies there is its answer.

    address: 16 bytes, xxh3-128. proof: 16 bytes, keyed BLAKE2b of the same material.
    """

    address: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """A complete answer of the backend: `headers` as it wrote them, hop-by-hop fields taken out."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


@dataclass(slots=True)
class Timeline:
    """The named moments of one request, seconds on `time.monotonic()`; nan until they happen."""

    head_parsed: float = float("nan")  # t0
    body_read: float = float("nan")  # t1
    cache_answered: float = float("nan")  # t2
    enqueued: float = float("nan")  # t3
    dispatched: float = float("nan")  # t4
    connected: float = float("nan")  # t5
    request_written: float = float("nan")  # t6
    upstream_headers: float = float("nan")  # t7
    upstream_end: float = float("nan")  # t9
    answered: float = float("nan")  # t10: last write drained, or the client gone
