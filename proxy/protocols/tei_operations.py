"""TEI's endpoints whose calls are made of items: how items stand in a body, and their results in an answer.

An answer is a list of one result per item, in the items' order; `/predict` leaves the list out around the result of an
item that was asked without one. Of `/rerank` it is a list of ranks, the highest score first; of equal scores the later
text first, as TEI 1.x puts them.

Invariants
    An answer is read only if it has one result for each item and all of them have one form: embeddings one length,
    predictions the same labels. What a result holds beside that is passed on as it is.
    Ranks are read only if they stand in TEI's order, hold each index once, and quote, if any text, their own.

Knows nothing of the members that items share.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from proxy.protocols.json_values import elements, members, spelled, text_of

_TOKEN_IDS: Final = re.compile(rb"\[(?:0|[1-9][0-9]{0,9})(?:,(?:0|[1-9][0-9]{0,9}))*+\]")
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError)


class Items(NamedTuple):
    """What a body asks about. bare: one item without a list around it."""

    items: tuple[bytes, ...]
    bare: bool = False


class Operation(ABC):
    """What an endpoint asks for. member: which one of a body holds the items."""

    member: str

    @abstractmethod
    def read(self, value: bytes) -> Items | None:
        """The items that the member's value holds; None unless TEI would read it in this one way."""

    @abstractmethod
    def results(self, body: bytes, items: Sequence[bytes], *, bare: bool) -> list[bytes] | None:
        """The result of each item, out of an answer about all of them, which is a `document`."""

    @abstractmethod
    def answer(self, results: Sequence[bytes], *, bare: bool) -> bytes | None:
        """The answer that holds these results; None if they cannot stand in one."""


class _Score(msgspec.Struct):
    score: float
    label: str


class _SparseValue(msgspec.Struct):
    index: int
    value: float


class _Token(msgspec.Struct):
    id: int
    text: str
    special: bool


class _Rank(msgspec.Struct, forbid_unknown_fields=True):
    """What a field that is not known says may be about more than its own text."""

    index: int
    score: float
    text: str | None = None


class _Scored(msgspec.Struct, forbid_unknown_fields=True):
    """A rank without its index."""

    score: float
    text: str | None = None


_LIST_OF_SCORES: Final = msgspec.json.Decoder(list[_Score])
_LIST_OF_RANKS: Final = msgspec.json.Decoder(list[_Rank])
_SCORED: Final = msgspec.json.Decoder(_Scored)


def _length(result: bytes) -> int:
    return result.count(b",")


def _inner_length(result: bytes) -> int:
    return result.count(b",", 0, result.find(b"]"))


def _labels(result: bytes) -> frozenset[str] | None:
    try:
        return frozenset([score.label for score in _LIST_OF_SCORES.decode(result)])
    except _UNREADABLE:
        return None


def _any(result: bytes) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class _Listed(Operation):
    """Answered by a list of results in the items' order.

    form: what all results of an answer must agree in; None for what is no result.
    brackets: the first and the last byte of a result. bare_answers: an item that was asked bare is answered bare.
    """

    member: str
    reader: Callable[[bytes], Items | None]
    decoder: msgspec.json.Decoder[list[Any]]
    form: Callable[[bytes], object] = _any
    brackets: tuple[bytes, bytes] = (b"[", b"]")
    bare_answers: bool = False

    def read(self, value: bytes) -> Items | None:
        return self.reader(value)

    def results(self, body: bytes, items: Sequence[bytes], *, bare: bool) -> list[bytes] | None:
        text = body
        if bare and self.bare_answers:
            text = b"[" + text + b"]"
        try:
            found = self.decoder.decode(text)
        except _UNREADABLE:
            return None
        results = elements(text) if len(found) == len(items) else None
        return results if results is not None and self._fit(results) else None

    def answer(self, results: Sequence[bytes], *, bare: bool) -> bytes | None:
        if not self._fit(results):
            return None
        return results[0] if bare and self.bare_answers else b"[" + b",".join(results) + b"]"

    def _fit(self, results: Sequence[bytes]) -> bool:
        if any(len(result) < 2 or (result[:1], result[-1:]) != self.brackets for result in results):
            return False
        forms = {self.form(result) for result in results}
        return len(forms) == 1 and None not in forms


class _Ranked(Operation):
    """A list of ranks, for a model that scores each pair of query and text by itself."""

    member = "texts"

    def read(self, value: bytes) -> Items | None:
        read = _texts(value)
        return None if read is None or read.bare else read

    def results(self, body: bytes, items: Sequence[bytes], *, bare: bool) -> list[bytes] | None:
        try:
            ranks = _LIST_OF_RANKS.decode(body)
        except _UNREADABLE:
            return None
        order = [(rank.score, rank.index) for rank in ranks]
        if order != sorted(order, reverse=True) or sorted(index for _, index in order) != list(range(len(items))):
            return None
        quoted = {rank.index: rank.text for rank in ranks}
        if any(text is not None and text != text_of(items[index]) for index, text in quoted.items()):
            return None
        results: dict[int, bytes] = {}
        for rank, one in zip(ranks, elements(body) or (), strict=True):
            said = members(one) or {}
            results[rank.index] = spelled({name: value for name, value in said.items() if name != "index"})
        return [results[index] for index in range(len(items))]

    def answer(self, results: Sequence[bytes], *, bare: bool) -> bytes | None:
        try:
            scored = [_SCORED.decode(result) for result in results]
        except _UNREADABLE:
            return None
        if len({one.text is None for one in scored}) != 1:
            return None
        order = sorted(range(len(results)), key=lambda index: (scored[index].score, index), reverse=True)
        return b"[" + b",".join([b'{"index":%d,' % index + results[index][1:] for index in order]) + b"]"


def _text(value: bytes) -> bytes | None:
    """A string in the one spelling that we use; None for everything else."""
    if value[:1] != b'"':
        return None
    return value if b"\\" not in value else msgspec.json.encode(msgspec.json.decode(value))


def _token_ids(value: bytes) -> bytes | None:
    tight = b"".join(value.split()) if value[:1] == b"[" else b""
    return tight if _TOKEN_IDS.fullmatch(tight) else None


def _text_or_ids(value: bytes) -> bytes | None:
    return _text(value) or _token_ids(value)


def _each(value: bytes, one: Callable[[bytes], bytes | None]) -> Items | None:
    """One item, or a list of them."""
    if (single := one(value)) is not None:
        return Items((single,), bare=True)
    items = [one(element) for element in elements(value) or ()]
    known = tuple([item for item in items if item is not None])
    return Items(known) if known and len(known) == len(items) else None


def _inputs(value: bytes) -> Items | None:
    return _each(value, _text_or_ids)


def _texts(value: bytes) -> Items | None:
    return _each(value, _text)


def _ids(value: bytes) -> Items | None:
    return _each(value, _token_ids)


def _sequence(value: bytes) -> bytes | None:
    """A text or a pair of texts, as the list of them."""
    texts = [_text(element) for element in elements(value) or ()]
    known = [text for text in texts if text is not None]
    return b"[" + b",".join(known) + b"]" if len(known) == len(texts) and len(known) in (1, 2) else None


def _sequences(value: bytes) -> Items | None:
    """`"a"` is a text, and so is `["a"]`; `["a","b"]` is a pair; only lists in a list are several."""
    if (text := _text(value)) is not None:
        return Items((b"[" + text + b"]",), bare=True)
    return _each(value, _sequence)


BY_ITEM: Final[Mapping[str, Operation]] = {
    "/embed": _Listed("inputs", _inputs, msgspec.json.Decoder(list[list[float]]), _length),
    "/embed_all": _Listed("inputs", _inputs, msgspec.json.Decoder(list[list[list[float]]]), _inner_length),
    "/embed_sparse": _Listed("inputs", _inputs, msgspec.json.Decoder(list[list[_SparseValue]])),
    "/predict": _Listed("inputs", _sequences, msgspec.json.Decoder(list[list[_Score]]), _labels, bare_answers=True),
    "/tokenize": _Listed("inputs", _texts, msgspec.json.Decoder(list[list[_Token]])),
    "/decode": _Listed("ids", _ids, msgspec.json.Decoder(list[str]), brackets=(b'"', b'"')),
    "/rerank": _Ranked(),
}
"""By the path of their endpoint, as TEI 1.x serves them."""
