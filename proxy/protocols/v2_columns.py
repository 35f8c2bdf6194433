"""The data of all tensors of an Open Inference V2 body, JSON and binary ones alike: checked, and cut into rows.

Invariants
    What comes out adds up: every tensor is of its datatype and shape, and no byte of the body is left over.
    A row is flat lexemes with a comma between, or bytes; it is a copy.

Knows nothing of requests and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from proxy.protocols.codec import Message
from proxy.protocols.spans import cut
from proxy.protocols.v2_binary import cut_head, cut_rows, head_length
from proxy.protocols.v2_request import Tensor
from proxy.protocols.v2_tensors import flatten, rows

JSON_ALONE: Final = 0


def cut_body(message: Message) -> tuple[bytes, list[bytes], int] | None:
    """The frame of a body, what was cut out of it, and where its binary tensors begin, `JSON_ALONE` without any.

    None if it has no frame.
    """
    length = head_length(message.fields)
    if length == JSON_ALONE:
        found = cut(message.body)
        return None if found is None else (*found, JSON_ALONE)
    if length is None or length > len(message.body):
        return None
    found = cut_head(message.body[:length])
    return None if found is None else (*found, length)


class Columns(NamedTuple):
    """rows: of each tensor. nested: whether each came nested; False for what is binary."""

    rows: list[list[bytes]]
    nested: list[bool]


def columns_of(
    tensors: Sequence[Tensor], values: Sequence[bytes], body: bytes, at: int, *, by_rows: bool
) -> Columns | None:
    """The rows of each tensor, a single one of all its data unless `by_rows`; None if anything does not add up.

    values: what was cut out of the frame. at: where the binary tensors begin in `body`.
    """
    columns, forms = [], []
    for _, datatype, shape, hole, binary in tensors:
        if binary:
            size = int(values[hole])
            cut_out = cut_rows(body, at, size, datatype, shape if by_rows else (1, *shape))
            if cut_out is None:
                return None
            columns.append(cut_out)
            forms.append(False)
            at += size
        else:
            flat = flatten(values[hole], datatype, shape)
            if flat is None:
                return None
            columns.append(rows(flat[0], datatype, shape) if by_rows else [flat[0]])
            forms.append(flat[1])
    return Columns(columns, forms) if at in (JSON_ALONE, len(body)) else None
