"""Open Inference Protocol V2 in JSON: Triton, KServe, MLServer, OpenVINO. Rows of dimension 0 are items.

Invariants
    An item is the row's lexemes in every input, in the inputs' order; `shared` is the canonical text of
    all the rest. A body is accepted only if it means the same to every reader: see `spans`.
    A body that names `timeout` or `priority` is joined under the least of them, and only if every
    member names one: nobody is timed out or put back who did not ask for it.
    Rows are stored one by one only from an answer in which nothing but tensor data can differ by row.

Knows nothing of binary tensors (another codec's), nor of header fields.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from proxy.protocols.codec import Call, Endpoint, Part
from proxy.protocols.spans import cut, decoded, is_utf8
from proxy.protocols.v2_answer import AnswerFrame, answer_frame, filled, with_rows
from proxy.protocols.v2_metadata import segment
from proxy.protocols.v2_request import DATA, NESTED, PARAMETERS, ROWS, RequestFrame, request_frame
from proxy.protocols.v2_tensors import BYTES, array, flatten, rows
from proxy.terms import Model, Reason

_PATH: Final = re.compile(r"/v2/models/([^/?#]+)(?:/versions/([^/?#]+))?/infer")
_LONGEST_PATH: Final = 1024  # what is remembered of paths must be bounded in bytes, too
_BETWEEN_INPUTS: Final = b"\n"  # in an item: no lexeme holds one
_MARK: Final = re.compile(rb"([\x00-\x02])")


@dataclass(frozen=True, slots=True)
class V2Call(Call):
    """frame: what the body says beside its data. id: the lexeme of the caller's `id`, None without one."""

    frame: RequestFrame
    id: bytes | None


class V2:
    """The codec. It holds no state."""

    name = "v2"
    content_type = b"application/json"

    def __repr__(self) -> str:
        return "<V2>"

    def recognise(self, method: str, path: str) -> Endpoint | None:
        """A model has one spelling: what decodes to the same name in another one is not recognised."""
        return _endpoint(path) if method == "POST" and len(path) <= _LONGEST_PATH else None

    def parse(self, endpoint: Endpoint, body: bytes, model: Model) -> Call | Reason:
        if (found := cut(body)) is None:
            return Reason.UNPARSED
        text, values = found
        frame = request_frame(text)
        if isinstance(frame, Reason):
            return frame
        by_rows = model.rows and model.max_batch_size > 0
        if len(values) != frame.holes or (by_rows and not frame.rows):
            return Reason.UNPARSED
        if by_rows and frame.rows > model.max_batch_size:
            return Reason.OVER_LIMIT
        columns, forms = [], []
        for _, datatype, shape, hole in frame.tensors:
            flat = flatten(values[hole], datatype, shape)
            if flat is None or (datatype == BYTES and not is_utf8(values[hole])):
                return Reason.UNPARSED
            columns.append(rows(flat[0], datatype, shape) if by_rows else [flat[0]])
            forms.append(flat[1])
        items = tuple(columns[0]) if len(columns) == 1 else tuple(map(_BETWEEN_INPUTS.join, zip(*columns, strict=True)))
        shared = frame.by_rows if by_rows else frame.entire
        if True in forms:
            shared = _with_forms(shared, forms)
        id_ = frame.id_text if frame.id_hole is None else values[frame.id_hole]
        company = b"%d" % frame.timeout if frame.timeout else b""
        return V2Call(endpoint, body, shared, items, by_rows, company, frame, None if id_ == b'""' else id_)

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> bytes:
        calls = [_own(part.call) for part in parts]
        first = calls[0]
        items = [call.items[index] for call, part in zip(calls, parts, strict=True) for index in part.indexes]
        columns = list(zip(*(item.split(_BETWEEN_INPUTS) for item in items), strict=True))
        members, parameters = first.shared.split(PARAMETERS)
        pieces = [b'{"id":', msgspec.json.encode(request_id), b","]
        inputs = iter(zip(first.frame.tensors, columns, strict=True))
        for piece in _MARK.split(members):
            if piece in (DATA, NESTED):
                tensor, column = next(inputs)
                flat = column if first.joins else rows(column[0], tensor.datatype, tensor.shape)
                pieces.append(array(flat, tensor.datatype, tensor.shape[1:], nested=piece == NESTED))
            else:
                pieces.append(b"%d" % len(items) if piece == ROWS else piece)
        parameters = b",".join([text for text in (parameters, *_deadlines(calls, waited)) if text])
        if parameters:
            pieces += [b',"parameters":{', parameters, b"}"]
        return b"".join((*pieces, b"}"))

    def split(self, body: bytes, sizes: Sequence[int], request_id: str | None) -> list[list[bytes]] | None:
        found = _answered(body)
        if found is None:
            return None
        frame, values = found
        if request_id is not None and decoded(frame.id_of(values)) != request_id:
            return None
        data, total = frame.data_of(values), sum(sizes)
        if frame.outputs is None or any(tensor.shape[0] != total for tensor in frame.outputs):
            # Whatever it holds, it answers a single item; more than one it does not split among.
            return [[filled(frame.verbatim, data)]] if total == 1 else None
        columns = []
        for tensor, value in zip(frame.outputs, data, strict=True):
            if (flat := flatten(value, tensor.datatype, tensor.shape)) is None:
                return None
            inner = tensor.shape[1:]
            each = rows(flat[0], tensor.datatype, tensor.shape)
            columns.append([array([row], tensor.datatype, inner, nested=flat[1]) for row in each])
        template = with_rows(frame.by_rows, 1)
        results = iter([filled(template, row) for row in zip(*columns, strict=True)])
        return [list(itertools.islice(results, size)) for size in sizes]

    def answer(self, call: Call, results: Sequence[bytes]) -> bytes | None:
        if len(results) != len(call.items):
            return None
        text = results[0] if len(results) == 1 else _merged(results)
        if text is None or text[:1] != b"{":
            return None
        id_ = _own(call).id
        return text if id_ is None else b'{"id":' + id_ + (b"," if text != b"{}" else b"") + text[1:]

    def error(self, status: int, message: str) -> bytes:
        return msgspec.json.encode({"error": message})


def _own(call: Call) -> V2Call:
    assert isinstance(call, V2Call), call
    return call


@functools.lru_cache(maxsize=1024)
def _endpoint(path: str) -> Endpoint | None:
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    model, version = _name(found[1]), _name(found[2] or "1")
    return Endpoint(model, version if found[2] else None) if model is not None and version is not None else None


def _name(spelled: str) -> str | None:
    """The name that a path segment spells, if it spells it in the one way that we take."""
    try:
        name = unquote_to_bytes(spelled).decode()
    except UnicodeDecodeError:
        return None
    return name if name.isprintable() and name not in (".", "..") and segment(name) == spelled else None


def _answered(body: bytes) -> tuple[AnswerFrame, list[bytes]] | None:
    """An answer's frame and what was cut out of it."""
    if (found := cut(body)) is None:
        return None
    text, values = found
    frame = answer_frame(text)
    return (frame, values) if frame is not None and len(values) == frame.holes else None


def _with_forms(shared: bytes, nested: Sequence[bool]) -> bytes:
    first, *rest = shared.split(DATA)
    marks = [NESTED if one else DATA for one in nested]
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


def _merged(results: Sequence[bytes]) -> bytes | None:
    """One answer of many rows from answers of one row, without id; None unless they differ in data alone."""
    cuts = [found for result in results if (found := cut(result)) is not None]
    if len(cuts) < len(results) or len({text for text, _ in cuts}) != 1:
        return None
    frame = answer_frame(cuts[0][0])
    # An item result has no id, and as many values as its frame has places for them.
    if frame is None or frame.outputs is None or frame.id_hole is not None or frame.id_text is not None:
        return None
    if any(len(values) != frame.holes for _, values in cuts):
        return None
    data = []
    for tensor, column in zip(frame.outputs, zip(*(values for _, values in cuts), strict=True), strict=True):
        if tensor.shape[0] != 1 or len({value[:2] == b"[[" for value in column}) != 1:
            return None
        data.append(b"[" + b",".join([value[1:-1] for value in column]) + b"]")
    return filled(with_rows(frame.by_rows, len(results)), data)
