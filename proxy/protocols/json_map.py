"""Any JSON server, by configuration: JSON pointers say where a request holds its items and an answer its results.

Three forms, told apart by what is configured
    A list: a request holds a list of items, its answer a list of as many results.
    Single to batch: a request holds one item; many of them become one request to another path, which takes a list.
    Whole calls: nothing is said of bodies, so that the whole request is the item and no body is read.

Invariants
    An item result is a whole answer to a request with that item alone; so a joined answer's other fields reach every
    caller, and a proof that compares results compares those fields, too.
    A request or an answer that the map does not fit is not guessed at: the one passes through, the other is neither
    kept nor shared, for many a server says its errors with status 200.
    `shared` begins with the map itself: entries that another map has made are never read by this one.

Knows nothing of the server: that equal requests have equal answers is the word of whoever configures a map.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import msgspec

from proxy.protocols import json_values
from proxy.protocols.codec import ANY_NUMBER, Call, Codec, Endpoint, Facts, Joined, Message, Part
from proxy.protocols.json_pointer import counts, cut, placed, pointer, within, without
from proxy.protocols.json_values import canonical, document, elements, members, tagged
from proxy.protocols.spans import Refusal
from proxy.settings import setting
from proxy.terms import Exchange, Model, Reason, Rows

_PATH: Final = re.compile(r"/[!-~]*")
_NOT_IN_A_PATH: Final = re.compile(r"[?#%*]")


@dataclass(frozen=True, slots=True)
class JsonMapSettings:
    """Where items and results stand. To configure a map is to say that equal requests have equal answers."""

    items: str | None = setting(
        None,
        "JSON pointer to the list of items in a request, as `/inputs`; `''` where the body is the list. What stands "
        "beside it is shared by all of them. Left out: the whole request is the item, whatever it holds. Any map says "
        "that equal requests have equal answers.",
    )
    results: str | None = setting(
        None,
        "JSON pointer to the list of results in the answer, one for each item, in their order; `''` where the body is "
        "the list. What stands beside it must be the same for each item, alone or not.",
    )
    batch_path: str | None = setting(
        None,
        "Requests with a single item may ride together in a request to this path, as `/predict_batch`: `items` and "
        "`results` then say where the lists stand in that request and its answer.",
    )
    item: str = setting(
        "",
        "With `batch_path`: JSON pointer to the item in a single request, as `/text`; `''`: the body without what is "
        "`shared`.",
    )
    result: str = setting(
        "", "With `batch_path`: JSON pointer to the result in a single answer, as `/label`; `''`: the body."
    )
    shared: tuple[str, ...] = setting(
        (),
        "With `batch_path`: JSON pointers to what single requests must have in common to ride together, as "
        "`[/threshold]`; it goes to the same place in the request to `batch_path`. A request that holds anything else "
        "passes through.",
    )

    def __post_init__(self) -> None:
        """ValueError says what does not go together and what to write instead."""
        for text in (self.items, self.results, self.item, self.result, *self.shared):
            pointer(text or "")
        if (self.items is None) != (self.results is None):
            there, missing = ("items", "results") if self.results is None else ("results", "items")
            raise ValueError(f"`{there}` says nothing without `{missing}`: write both, or neither for whole calls")
        if self.batch_path is not None:
            self._check_single()
        elif self.item or self.result or self.shared:
            name = "item" if self.item else "result" if self.result else "shared"
            raise ValueError(
                f"`{name}` is about requests with a single item: write `batch_path`, the path that takes a list of them"
            )

    def _check_single(self) -> None:
        path = self.batch_path or ""
        if _PATH.fullmatch(path) is None or _NOT_IN_A_PATH.search(path):
            raise ValueError(f"`batch_path` {path!r} is no path: write it without a query, as in '/predict_batch'")
        if self.items is None or self.results is None:
            raise ValueError("`batch_path` needs `items` and `results`: where the lists stand in a request to it")
        for text in (self.items, self.results, self.item, self.result, *self.shared):
            if counts(pointer(text)):
                raise ValueError(
                    f"{text!r} counts into a list: with `batch_path` pointers name members of objects only"
                )
        if self.shared and not self.items:
            raise ValueError("`shared` has no place where `items` is '', a bare list: leave it out, or name `items`")
        taken = [(self.items, pointer(self.items))]
        for text in self.shared:
            place = pointer(text)
            if within(pointer(self.item), place):
                raise ValueError(f"`shared` {text!r} is or holds the `item`, which differs: leave it out")
            for other, its in taken:
                if within(place, its) or within(its, place):
                    raise ValueError(f"`shared` {text!r} and {other!r} take the same place in a batch: leave one out")
            taken.append((text, place))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonMapCall(Call):
    """before, after: what stands around the list of items in a request for several; empty where it never joins."""

    before: bytes = b""
    after: bytes = b""


class JsonMap(Codec):
    """The codec of one map. It holds no state."""

    name = "json_map"
    protocol = "json_map"

    def __init__(self, settings: JsonMapSettings) -> None:
        self._settings = settings
        self._map = repr(settings).encode()
        self._mapped = settings.items is not None
        self._batch_path = settings.batch_path
        self._items = pointer(settings.items or "")
        self._results = pointer(settings.results or "")
        self._item = pointer(settings.item)
        self._result = pointer(settings.result)
        self._shared = [pointer(text) for text in settings.shared]

    def recognise(self, method: str, path: str) -> Endpoint | None:
        """Every POST that its route gets, but for those that are batches already."""
        return Endpoint("") if method == "POST" and unquote(path) != self._batch_path else None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        if not self._mapped:
            if b'"stream"' in message.body and _streams(document(message.body)):
                return Reason.STREAMED
            return JsonMapCall(shared=tagged([self._map]), items=(message.body,), joins=False)
        text = document(message.body)
        if isinstance(text, Refusal):
            return text.reason
        body = canonical(text)
        if _streams(body):
            return Reason.STREAMED
        found = self._listed(body) if self._batch_path is None else self._single(body)
        if found is None:
            return Reason.UNPARSED
        if model.rows is Rows.WHOLE:
            return JsonMapCall(shared=tagged([self._map]), items=(body,), joins=False)
        before, items, after = found
        if len(items) > model.max_batch_size:
            return Reason.OVER_LIMIT
        shared = tagged([self._map, before, after])
        return JsonMapCall(shared=shared, items=tuple(items), joins=True, before=before, after=after)

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> Joined:
        first = _own(parts[0].call)
        items = [part.call.items[index] for part in parts for index in part.indexes]
        return Joined(first.before + b"[" + b",".join(items) + b"]" + first.after, path=self._batch_path)

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        if not self._mapped:
            return [[answer.body]]
        text = document(answer.body)
        if isinstance(text, Refusal):
            return None
        if request_id is None and (self._batch_path is not None or not parts[0].call.joins):
            expected = self._results if self._batch_path is None else self._result
            return None if cut(text, expected) is None else [[answer.body]]
        if (found := cut(text, self._results)) is None:
            return None
        before, value, after = found
        sizes = [len(part.indexes) for part in parts]
        listed = elements(value)
        if listed is None or len(listed) != sum(sizes):
            return None
        around = (before + b"[", b"]" + after) if self._batch_path is None else self._around(text)
        if around is None:
            return None
        results = iter([around[0] + result + around[1] for result in listed])
        return [list(itertools.islice(results, size)) for size in sizes]

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != len(call.items):
            return None
        if self._batch_path is not None or not call.joins:
            return Message(results[0])
        values: list[bytes] = []
        first = None
        for result in results:
            if (found := cut(result, self._results)) is None:
                return None
            before, value, after = found
            first = first or (before, after)
            listed = elements(value)
            if listed is None or len(listed) != 1 or not _same(first, (before, after)):
                return None
            values += listed
        return None if first is None else Message(first[0] + b"[" + b",".join(values) + b"]" + first[1])

    def error(self, status: int, message: str) -> bytes:
        """As FastAPI, and with it LitServe and most of Ray Serve, writes errors."""
        return msgspec.json.encode({"detail": message})

    def alike(self, one: bytes, other: bytes) -> bool:
        return one == other or json_values.alike(one, other)

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        """Nothing is asked: a server of which only the map is known is tried out before anything is joined."""
        return Facts(Rows.PROVE if self._mapped else Rows.WHOLE, ANY_NUMBER)

    def _listed(self, body: bytes) -> tuple[bytes, list[bytes], bytes] | None:
        """The items of a request, and what stands around them; None if the map does not fit."""
        if (found := cut(body, self._items)) is None:
            return None
        before, value, after = found
        return (before, items, after) if (items := elements(value)) else None

    def _single(self, body: bytes) -> tuple[bytes, list[bytes], bytes] | None:
        """The one item of a request, and what would stand around it in a batch; None if the map does not fit."""
        batch = placed(b"{}", self._items, b"[]") if self._items else b"[]"
        for path in self._shared:
            if (found := cut(body, path)) is not None and (left := without(body, path)) is not None:
                assert batch is not None, "no two of these places are in each other's way"
                batch, body = placed(batch, path, found[1]), left
        if (item := cut(body, self._item)) is None or (self._item and without(body, self._item) != b"{}"):
            return None
        assert batch is not None
        around = cut(batch, self._items)
        assert around is not None
        return around[0], [item[1]], around[2]

    def _around(self, text: bytes) -> tuple[bytes, bytes] | None:
        """What stands around a result in an answer to a single item, given the answer to a batch."""
        rest = without(text, self._results) if self._results else b"{}"
        if rest is None:
            return None
        if not self._result:
            return (b"", b"") if rest == b"{}" else None
        alone = placed(rest, self._result, b"0")
        found = None if alone is None else cut(alone, self._result)
        return None if found is None else (found[0], found[2])

    def __repr__(self) -> str:
        if not self._mapped:
            return "<codec json_map of whole calls>"
        said = self._settings
        if said.batch_path is None:
            return f"<codec json_map {said.items!r} to {said.results!r}>"
        return f"<codec json_map {said.item!r} to {said.result!r} by {said.batch_path}>"


def _own(call: Call) -> JsonMapCall:
    assert isinstance(call, JsonMapCall), call
    return call


def _same(one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> bool:
    """Does the same stand around two values, white space and the order of keys apart?"""
    return one == other or canonical(b"0".join(one)) == canonical(b"0".join(other))


def _streams(text: bytes | Refusal) -> bool:
    """Does a body ask for its answer in pieces?"""
    return isinstance(text, bytes) and b'"stream"' in text and (members(text) or {}).get("stream") == b"true"
