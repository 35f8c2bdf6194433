"""Hugging Face text-embeddings-inference (TEI): texts to embed, classify, tokenize; token ids to decode; texts to rank.

Nothing names a model: a TEI serves one. Each text, pair of texts or list of token ids is an item. A `/rerank` call is
one item unless its route says that the model scores its pairs of query and text one by one (`rows: true`, or `prove`).
Always one item are `/similarity`, whose sentences are measured against one of them, and the paths where what is asked
for depends on the model (`/`, `/invocations`, `/vertex`).

Invariants
    An item is a text in one spelling, or what it is made of: a text alone and in a list has one result.
    An item's result is the backend's own text for it. An embedding that holds what is no number is no item's result.
    Every member of a body but its items is shared, whatever it means, and travels in joined bodies.

Knows nothing of `/v1/embeddings`, which TEI serves as well (another codec's).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.protocols import tei_info
from proxy.protocols.codec import Call, Codec, Endpoint, Facts, Found, Joined, Message, Part
from proxy.protocols.json_values import alike, canonical, document, members, spelled, tagged
from proxy.protocols.spans import Refusal
from proxy.protocols.tei_operations import BY_ITEM, Operation
from proxy.terms import Exchange, Model, Reason, Rows

_WHOLE: Final = frozenset({"/similarity", "/vertex", "/invocations", "/"})
_RERANK: Final = "/rerank"

_ERROR_TYPES: Final = {
    400: "Empty",
    413: "Validation",
    422: "Tokenizer",
    424: "Backend",
    429: "Overloaded",
    503: "Unhealthy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TEICall(Call):
    """operation: None for a call that is its own single item. rest: the members beside the items, in the body's order.

    bare: it asked for one item without a list around it.
    """

    operation: Operation | None = None
    rest: tuple[tuple[str, bytes], ...] = ()
    bare: bool = False


class TEI(Codec):
    """The codec. It holds no state."""

    name = "tei"
    protocol = "tei"
    paths = ("/embed", "/embed_all", "/embed_sparse", "/predict", "/tokenize", "/decode", "/rerank")
    probes = (tei_info.INFO,)

    def recognise(self, method: str, path: str) -> Endpoint | None:
        known = method == "POST" and (path in BY_ITEM or path in _WHOLE)
        return Endpoint(None, operation=path) if known else None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        text = document(message.body)
        if isinstance(text, Refusal):
            return text.reason
        rest = members(text)
        if rest is None:
            return Reason.UNPARSED
        operation = BY_ITEM.get(endpoint.operation) if model.rows is Rows.ITEMS else None
        if operation is None:
            return TEICall(shared=b"", items=(canonical(text),), joins=False)
        read = operation.read(rest.pop(operation.member, b""))
        if read is None:
            return Reason.UNPARSED
        if len(read.items) > model.max_batch_size:
            return Reason.OVER_LIMIT
        others = [piece for name in sorted(rest) for piece in (name.encode(), canonical(rest[name]))]
        return TEICall(
            shared=tagged((endpoint.operation.encode(), *others)),
            items=read.items,
            joins=True,
            operation=operation,
            rest=tuple(rest.items()),
            bare=read.bare,
        )

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> Joined:
        first = _own(parts[0].call)
        assert first.operation is not None, first
        items = b",".join([part.call.items[index] for part in parts for index in part.indexes])
        return Joined(spelled({first.operation.member: b"[" + items + b"]", **dict(first.rest)}))

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        first = _own(parts[0].call)
        text = document(answer.body)
        if isinstance(text, Refusal):
            return None
        if first.operation is None:
            return None if "error" in (members(text) or ()) else [[bytes(answer.body)]]
        items = [part.call.items[index] for part in parts for index in part.indexes]
        results = first.operation.results(text, items, bare=first.bare and request_id is None)
        if results is None:
            return None
        each = iter(results)
        return [list(itertools.islice(each, len(part.indexes))) for part in parts]

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != len(call.items):
            return None
        call = _own(call)
        if call.operation is None:
            return Message(results[0])
        body = call.operation.answer(results, bare=call.bare)
        return None if body is None else Message(body)

    def error(self, status: int, message: str) -> bytes:
        return msgspec.json.encode({"error": message, "error_type": _ERROR_TYPES.get(status, "Backend")})

    def alike(self, one: bytes, other: bytes) -> bool:
        return alike(one, other)

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        return tei_info.found(answers.get(tei_info.INFO))

    def questions(self, model: str) -> tuple[str, ...]:
        return tei_info.INFO, tei_info.METRICS

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        info, metrics = answers
        return tei_info.facts(info, metrics)

    def rows_of(self, endpoint: Endpoint, model: Model) -> Rows:
        return model.rows if endpoint.operation in BY_ITEM and endpoint.operation != _RERANK else Rows.WHOLE


def _own(call: Call) -> TEICall:
    assert isinstance(call, TEICall), call
    return call
