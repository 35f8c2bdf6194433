"""What a wire protocol must be able to do for the rest of Forebay. One file per protocol implements it.

Invariants of every codec
    Pure: bytes in, bytes out; no clock, no I/O, and no exception for any input (a bug that raises all
    the same is caught by the pipeline, counted as `codec_error`, and the request passes through).
    Whatever it would have to guess at, it refuses: `parse` gives a `Reason`, `split` and `answer` None.
    What is kept beyond the call is copied: nothing pins a whole body.

Knows nothing of tenants, caches, windows or sockets, and of header fields only those that say how to read a body.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from proxy.terms import Exchange, Headers, Model, Reason, Rows

ANY_NUMBER: Final = sys.maxsize
"""`Facts.max_batch_size` where a backend names no limit."""


class Endpoint(NamedTuple):
    """What a recognised method and path name.

    model: None where the path names none; then the body may (`Codec.model_in`).
    version: None where the path names none.
    operation: which of a codec's several endpoints it is; part of every key, as the path is.
    """

    model: str | None
    version: str | None = None
    operation: str = ""


class Message(NamedTuple):
    """A body, with the header fields that say how it is to be read.

    Of a request or an answer that came: all its fields. Of one that a codec made: only those that it must have
    beside the ones that every such message has.
    """

    body: bytes
    fields: Headers = ()


class Joined(NamedTuple):
    """One upstream request for many. path: where it goes, if not where its members would have gone."""

    body: bytes
    fields: Headers = ()
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that a codec understood. Codecs subclass it with what they need to answer.

    shared: canonical bytes of everything in the body that all its items share and that can change an
        answer (type-tagged, length-prefixed; white space and key order do not show). Part of every
        item's key and of the signature.
    items: canonical bytes of each item, in the caller's order; with `shared` the item's whole meaning.
    joins: False where the single item is the whole call: it is never joined and takes no slot.
    company: what calls must share beside `shared` to ride together, though it changes no answer: a deadline, say,
        which one caller's trouble must not become another's. A call that names any follows no flight and leads none.
    deterministic: False where asked again it would be answered otherwise: sampled generation.
    """

    shared: bytes
    items: tuple[bytes, ...]
    joins: bool
    company: bytes = b""
    deterministic: bool = True


class Part(NamedTuple):
    """The items of one call that travel in one upstream request: indexes into `call.items`, ascending."""

    call: Call
    indexes: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Does the part hold every item of its call?"""
        return len(self.indexes) == len(self.call.items)


class Found(NamedTuple):
    """A backend that speaks a protocol: how it names itself, in a few words, and the models that it lists."""

    server: str
    models: tuple[str, ...] = ()


class Facts(NamedTuple):
    """What a backend says of one model.

    rows: whether the items of a call are independent of each other.
    max_batch_size: items that it takes in one request; `ANY_NUMBER` where it names no limit.
    instances: batches that it computes at once.
    versions: what it lists of them, or anything else that names the weights; () where nothing does.
    state: JSON in which any change is a reason to believe that other weights answer.
    counters: counts that only fall when the model was loaded anew; None where it keeps none.
    answered: how many calls it counts as answered since it was loaded; None where nothing tells.
    listed: False where it does not list the model and answers for it all the same, as it would to any other name.
    """

    rows: Rows
    max_batch_size: int
    instances: int = 1
    versions: tuple[str, ...] = ()
    state: bytes | None = None
    counters: Mapping[str, int] | None = None
    answered: int | None = None
    listed: bool = True


class Codec(ABC):
    """An *item result* is the backend's answer as if that item had been asked alone, caller's `id` left out.

    In what form it is kept between `split` and `answer` is the codec's own affair.
    """

    name: ClassVar[str]
    """In keys, messages and /config."""
    protocol: ClassVar[str]
    """What a route says to have it: `protocol: v2`. Several codecs may serve one protocol."""
    content_type: ClassVar[bytes] = b"application/json"
    """Of `error` bodies."""
    probes: ClassVar[tuple[str, ...]] = ()
    """Paths to GET in order to find out whether a backend speaks it. () where nothing would tell."""
    path_is_proof: ClassVar[bool] = False
    """Is a request's path proof enough, whatever the probes say? So it is where each model is asked about by name."""
    listings: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Methods and paths, any of which may list the models, for who surveys a backend. () where `found` names them."""

    paths: ClassVar[tuple[str, ...]] = ()
    """Requests that it knows, by path, with `{model}` for a model's name: what a survey of a backend shows."""

    @abstractmethod
    def recognise(self, method: str, path: str) -> Endpoint | None:
        """Whose request this is, from the method and the path without query; None: not this protocol's."""

    def model_in(self, message: Message) -> str:
        """The model that a body names, where its path names none; "" if it names none. Quick: `parse` is careful."""
        return ""

    @abstractmethod
    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        """Read a request, content codings undone. A `Reason` sends it through untouched.

        model.rows: `Rows.ITEMS` to read it item by item, `Rows.WHOLE` for a call whose single item is all of it.
        """

    @abstractmethod
    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        """Item results of each part of a 200 answer, in the order in which they were joined; None if not for certain.

        None also where the answer may not be kept or shared, whatever its status says: a content filter, say.
        request_id: as given to `join`. None for the answer to a caller's own bytes: `parts` is that whole call alone.
        """

    @abstractmethod
    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        """What answers `call`, from one result per item; None if they do not fit together."""

    @abstractmethod
    def error(self, status: int, message: str) -> bytes:
        """An error body in the protocol's own shape."""

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> Joined:
        """One upstream request for parts of calls that join and whose `shared` bytes are equal.

        request_id: Forebay's own, which the answer must quote where the protocol has such a thing.
        waited: seconds each part has waited since its call came, for deadlines written in the body.
        """
        raise NotImplementedError(f"{self.name} never joins")

    def alike(self, one: bytes, other: bytes) -> bool:
        """Do two results of an item say the same, but for what arithmetic may differ by between two batches?"""
        return one == other

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        """What the answers to `probes` say; None: this backend does not speak it. None as an answer: there was none."""
        return None

    def listed(self, answer: Exchange) -> tuple[str, ...]:
        """The models that an answer to one of `listings` names; () where it names none."""
        return ()

    def questions(self, model: str) -> tuple[str, ...]:
        """Paths to GET in order to learn the facts about a model; the first one says whether it is listed at all."""
        return ()

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        """What the answers to `questions` say; None where the backend lists no such model. None: nothing there."""
        return Facts(Rows.WHOLE, ANY_NUMBER)

    def rows_of(self, endpoint: Endpoint, model: Model) -> Rows:
        """Whether the items of calls to this endpoint are independent, where its other endpoints are not the same."""
        return model.rows

    def changes(self, method: str, path: str) -> bool:
        """May other weights answer when this request has succeeded? A load, an unload, an adapter."""
        return False

    def __repr__(self) -> str:
        return f"<codec {self.name}>"
