"""What is kept of an Open Inference V2 answer: a result for each item, and one answer made of many of them.

Invariants
    A result reads as the backend's answer to that item alone, in the backend's own order of keys and lexemes, without
    an `id`: JSON, or a head with binary tensors behind it (`v2_binary.sealed`).
    Rows are taken only from an answer in which nothing but tensor data can differ by row, and put together only from
    results that differ in nothing else.

Knows nothing of requests but how many items were asked about.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from proxy.protocols import json_values
from proxy.protocols.codec import Message
from proxy.protocols.spans import Refusal, cut, decoded
from proxy.protocols.v2_answer import AnswerFrame, answer_frame, filled, with_rows
from proxy.protocols.v2_binary import alike_bytes, cut_head, sealed, unsealed
from proxy.protocols.v2_columns import JSON_ALONE, columns_of, cut_body
from proxy.protocols.v2_tensors import array

Opened = tuple[bytes, bytes | None]
"""A result taken apart: its JSON, and the bytes of its tensors; None where the answer had no place for any."""


def opened(result: bytes) -> Opened | None:
    """None: no result that `results_of` gave."""
    if result[:1] == b"{":
        return result, None
    found = unsealed(result)
    return None if found is None else (found[0], result[found[1] :])


def results_of(answer: Message, total: int, request_id: str | None) -> list[bytes] | None:
    """The result of each of `total` items of one answer; None if that is not for certain.

    request_id: what the answer must quote, if anything.
    """
    if (found := cut_body(answer)) is None:
        return None
    text, values, at = found
    frame = answer_frame(text)
    if frame is None or len(values) != frame.holes:
        return None
    if request_id is not None and decoded(frame.id_of(values)) != request_id:
        return None
    if frame.outputs is None or any(tensor.shape[0] != total for tensor in frame.outputs):
        # Whatever it holds, it answers a single item; more than one it does not split among.
        head = answer.body if at == JSON_ALONE else answer.body[:at]
        if total != 1 or isinstance(json_values.document(head), Refusal):
            return None
        whole = filled(frame.verbatim, frame.data_of(values))
        return [whole if at == JSON_ALONE else sealed(whole, [answer.body[at:]])]
    columns = columns_of(frame.outputs, values, answer.body, at, by_rows=True)
    if columns is None:
        return None
    data, blobs = [], []
    for (_, datatype, shape, _, binary), rows, nested in zip(frame.outputs, *columns, strict=True):
        if binary:
            blobs.append(rows)
            data.append([b"%d" % len(row) for row in rows])
        else:
            inner = shape[1:]
            data.append([array([row], datatype, inner, nested=nested) for row in rows])
    template = with_rows(frame.by_rows, 1)
    heads = [filled(template, row) for row in zip(*data, strict=True)]
    if at == JSON_ALONE:
        return heads
    behind = zip(*blobs, strict=True) if blobs else itertools.repeat((), total)
    return [sealed(head, row) for head, row in zip(heads, behind, strict=True)]


def merged(results: Sequence[bytes]) -> Opened | None:
    """One answer of many rows from results of one row; None unless they differ in data alone."""
    return _merged_json(results) if results[0][:1] == b"{" else _merged_binary(results)


def _merged_json(results: Sequence[bytes]) -> Opened | None:
    cuts = [found for result in results if (found := cut(result)) is not None]
    frame = _frame_of_all(cuts) if len(cuts) == len(results) else None
    if frame is None or frame.outputs is None:
        return None
    data = []
    for column in zip(*(values for _, values in cuts), strict=True):
        if len({value[:2] == b"[[" for value in column}) != 1:
            return None
        data.append(b"[" + b",".join([value[1:-1] for value in column]) + b"]")
    return filled(with_rows(frame.by_rows, len(results)), data), None


def _merged_binary(results: Sequence[bytes]) -> Opened | None:
    parted = [one for result in results if (one := unsealed(result)) is not None]
    distinct = {head for head, _ in parted}  # rows of one size have one head
    cuts = {head: found for head in distinct if (found := cut_head(head)) is not None}
    if len(parted) < len(results) or len(cuts) < len(distinct):
        return None
    frame = _frame_of_all(list(cuts.values()))
    if frame is None or frame.outputs is None:
        return None
    each = []
    for result, (head, at) in zip(results, parted, strict=True):
        if (columns := columns_of(frame.outputs, cuts[head][1], result, at, by_rows=True)) is None:
            return None
        each.append(columns)
    forms = each[0].nested
    if any(columns.nested != forms for columns in each):
        return None
    data, blobs = [], []
    for tensor, nested, *column in zip(frame.outputs, forms, *(columns.rows for columns in each), strict=True):
        rows = [row for (row,) in column]
        if tensor.binary:
            blobs += rows
            data.append(b"%d" % sum(map(len, rows)))
        else:
            data.append(array(rows, tensor.datatype, tensor.shape[1:], nested=nested))
    return filled(with_rows(frame.by_rows, len(results)), data), b"".join(blobs)


def _frame_of_all(cuts: Sequence[tuple[bytes, list[bytes]]]) -> AnswerFrame | None:
    """The one frame that results of one row share; None if they are anything else."""
    if len({text for text, _ in cuts}) != 1:
        return None
    frame = answer_frame(cuts[0][0])
    # A result has no id, and as many values as its frame has places for them.
    if frame is None or frame.outputs is None or frame.id_hole is not None or frame.id_text is not None:
        return None
    if any(len(values) != frame.holes for _, values in cuts) or any(tensor.shape[0] != 1 for tensor in frame.outputs):
        return None
    return frame


def alike(one: bytes, other: bytes) -> bool:
    """Do two results say the same, but for what arithmetic may differ by between two batches?"""
    first, second = opened(one), opened(other)
    if first is None or second is None:
        return False
    (head, blobs), (other_head, other_blobs) = first, second
    if not json_values.alike(head, other_head):
        return False
    if blobs is None or other_blobs is None:
        return blobs is other_blobs
    at = 0
    for datatype, size in _sizes(head):
        if not alike_bytes(blobs[at : at + size], other_blobs[at : at + size], datatype):
            return False
        at += size
    return blobs[at:] == other_blobs[at:]


def _sizes(head: bytes) -> list[tuple[str, int]]:
    """Datatype and size of each binary tensor; none where a head says more than tensors."""
    if (found := cut_head(head)) is None:
        return []
    text, values = found
    frame = answer_frame(text)
    if frame is None or frame.outputs is None or len(values) != frame.holes:
        return []
    tensors = zip(frame.outputs, frame.data_of(values), strict=True)
    return [(tensor.datatype, int(size)) for tensor, size in tensors if tensor.binary]
