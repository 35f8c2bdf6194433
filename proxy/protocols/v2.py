"""Open Inference Protocol V2: Triton, KServe, MLServer, OpenVINO. Rows of dimension 0 are items.

Invariants
    An item is the row's lexemes, or its bytes, in every input, in the inputs' order; `shared` is the canonical text
    of all the rest: which inputs are binary and how the answer is wanted, too. A body is accepted only if it means
    the same to every reader: see `spans`.
    A body that names `timeout` or `priority` is joined under the least of them, and only if every
    member names one: nobody is timed out or put back who did not ask for it.

Knows nothing of header fields but the one that says where a body's JSON ends (`v2_binary`).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.protocols import v2_metadata
from proxy.protocols.codec import Call, Codec, Endpoint, Facts, Found, Joined, Message, Part
from proxy.protocols.json_values import tagged
from proxy.protocols.spans import is_utf8
from proxy.protocols.v2_binary import untagged, with_head
from proxy.protocols.v2_columns import columns_of, cut_body
from proxy.protocols.v2_metadata import named
from proxy.protocols.v2_request import BINARY, DATA, NESTED, PARAMETERS, ROWS, RequestFrame, Tensor, request_frame
from proxy.protocols.v2_results import alike, merged, opened, results_of
from proxy.protocols.v2_tensors import array, rows
from proxy.terms import Exchange, Model, Reason, Rows

_PATH: Final = re.compile(r"/v2/models/([^/?#]+)(?:/versions/([^/?#]+))?/infer")
_LONGEST_PATH: Final = 1024  # what is remembered of paths must be bounded in bytes, too
_BETWEEN_INPUTS: Final = b"\n"  # in an item without binary tensors: no lexeme holds one
_MARK: Final = re.compile(rb"([\x00-\x02\x04])")


@dataclass(frozen=True, slots=True, kw_only=True)
class V2Call(Call):
    """frame: what the body says beside its data. id: the lexeme of the caller's `id`, None without one."""

    frame: RequestFrame
    id: bytes | None


class V2(Codec):
    """The codec. It holds no state."""

    name = "v2"
    protocol = "v2"
    paths = ("/v2/models/{model}/infer",)
    probes = (v2_metadata.SERVER,)
    path_is_proof = True
    listings = (("POST", "/v2/repository/index"), ("GET", "/v2/models"))  # Triton and MLServer; KServe

    def recognise(self, method: str, path: str) -> Endpoint | None:
        """A model has one spelling: what decodes to the same name in another one is not recognised."""
        return _endpoint(path) if method == "POST" and len(path) <= _LONGEST_PATH else None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        if (found := cut_body(message)) is None:
            return Reason.UNPARSED
        text, values, at = found
        frame = request_frame(text)
        if isinstance(frame, Reason):
            return frame
        by_rows = model.rows is Rows.ITEMS
        if len(values) != frame.holes or (by_rows and not frame.rows):
            return Reason.UNPARSED
        if by_rows and frame.rows > model.max_batch_size:
            return Reason.OVER_LIMIT
        columns = columns_of(frame.tensors, values, message.body, at, by_rows=by_rows)
        if columns is None or (frame.strings and not all(is_utf8(values[hole]) for hole in frame.strings)):
            return Reason.UNPARSED
        shared = frame.by_rows if by_rows else frame.entire
        if True in columns.nested:
            shared = _with_forms(shared, frame.tensors, columns.nested)
        id_ = frame.id_text if frame.id_hole is None else values[frame.id_hole]
        company = b"%d" % frame.timeout if frame.timeout else b""
        return V2Call(
            shared=shared,
            items=_items(columns.rows, frame),
            joins=by_rows,
            company=company,
            frame=frame,
            id=None if id_ == b'""' else id_,
        )

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> Joined:
        calls = [_own(part.call) for part in parts]
        first = calls[0]
        items = [call.items[index] for call, part in zip(calls, parts, strict=True) for index in part.indexes]
        members, parameters = first.shared.split(PARAMETERS)
        pieces, blobs = [b'{"id":', msgspec.json.encode(request_id), b","], []
        inputs = iter(zip(first.frame.tensors, _columns(items, first.frame), strict=True))
        for piece in _MARK.split(members):
            if piece == BINARY:
                blobs.append(b"".join(next(inputs)[1]))
                pieces.append(b"%d" % len(blobs[-1]))
            elif piece in (DATA, NESTED):
                tensor, column = next(inputs)
                flat = column if first.joins else rows(column[0], tensor.datatype, tensor.shape)
                pieces.append(array(flat, tensor.datatype, tensor.shape[1:], nested=piece == NESTED))
            else:
                pieces.append(b"%d" % len(items) if piece == ROWS else piece)
        parameters = b",".join([text for text in (parameters, *_deadlines(calls, waited)) if text])
        if parameters:
            pieces += [b',"parameters":{', parameters, b"}"]
        head = b"".join((*pieces, b"}"))
        return Joined(*with_head(head, b"".join(blobs))) if blobs else Joined(head)

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        sizes = [len(part.indexes) for part in parts]
        if (found := results_of(answer, sum(sizes), request_id)) is None:
            return None
        results = iter(found)
        return [list(itertools.islice(results, size)) for size in sizes]

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != len(call.items):
            return None
        found = opened(results[0]) if len(results) == 1 else merged(results)
        if found is None:
            return None
        head, blobs = found
        if (id_ := _own(call).id) is not None:
            head = b'{"id":' + id_ + (b"," if head != b"{}" else b"") + head[1:]
        return Message(head) if blobs is None else with_head(head, blobs)

    def error(self, status: int, message: str) -> bytes:
        return msgspec.json.encode({"error": message})

    def alike(self, one: bytes, other: bytes) -> bool:
        return alike(one, other)

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        answer = answers.get(v2_metadata.SERVER)
        server = None if answer is None else v2_metadata.server(answer.body)
        return None if server is None else Found(server)

    def listed(self, answer: Exchange) -> tuple[str, ...]:
        return v2_metadata.listed(answer.body)

    def questions(self, model: str) -> tuple[str, ...]:
        return v2_metadata.metadata_path(model), v2_metadata.config_path(model), v2_metadata.stats_path(model)

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        metadata, config, stats = [None if answer is None else answer.body for answer in answers]
        return None if metadata is None else v2_metadata.facts(metadata, config, stats)

    def changes(self, method: str, path: str) -> bool:
        return v2_metadata.changes_models(method, path)


def _own(call: Call) -> V2Call:
    assert isinstance(call, V2Call), call
    return call


@functools.lru_cache(maxsize=1024)
def _endpoint(path: str) -> Endpoint | None:
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    model, version = named(found[1]), named(found[2] or "1")
    return Endpoint(model, version if found[2] else None) if model is not None and version is not None else None


def _items(columns: list[list[bytes]], frame: RequestFrame) -> tuple[bytes, ...]:
    """One item of each row's piece of every input; of a single input, the pieces themselves."""
    if len(columns) == 1:
        return tuple(columns[0])
    together = tagged if frame.binary else _BETWEEN_INPUTS.join
    return tuple(map(together, zip(*columns, strict=True)))


def _columns(items: list[bytes], frame: RequestFrame) -> list[tuple[bytes, ...]]:
    """The columns that `_items` made items of."""
    if len(frame.tensors) == 1:
        return [tuple(items)]
    pieces = [untagged(item) if frame.binary else item.split(_BETWEEN_INPUTS) for item in items]
    return list(zip(*pieces, strict=True))


def _with_forms(shared: bytes, tensors: Sequence[Tensor], nested: Sequence[bool]) -> bytes:
    first, *rest = shared.split(DATA)
    marks = [NESTED if one else DATA for tensor, one in zip(tensors, nested, strict=True) if not tensor.binary]
    return first + b"".join([mark + piece for mark, piece in zip(marks, rest, strict=True)])


def _deadlines(calls: Sequence[V2Call], waited: Sequence[float]) -> list[bytes]:
    """`timeout` and `priority` of a joined body: the least of its members', or none unless all name one.

    To take the least of some would time out, or put back, members that never asked for it; without one
    the others are at worst answered when they no longer hope for it.
    """
    members = []
    if all(call.frame.timeout for call in calls):
        left = min(call.frame.timeout - int(since * 1e6) for call, since in zip(calls, waited, strict=True))
        members.append(b'"timeout":%d' % max(1, left))
    if all(call.frame.priority for call in calls):
        members.append(b'"priority":%d' % min(call.frame.priority for call in calls))
    return members
