"""The frame of an Open Inference V2 request: everything in the body but `id` text and tensor data.

Where tensors are binary, that is the head, and the size of each was cut out in place of its data.

Invariants
    A `RequestFrame` is a function of the frame's bytes alone, so it is remembered by them; it holds no
    tensor data and nothing of one caller but what every request with this frame has in common.
    Two frames have equal `shared` text exactly if no field but `id`, `timeout` and `priority` can tell
    a backend that they differ, rows aside.

Knows nothing of models and limits, and nothing of what the data is.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.protocols.spans import HOLE, Hole, Refusal, Value, compact, decoded, read
from proxy.protocols.v2_binary import DATATYPES as BINARY_DATATYPES
from proxy.protocols.v2_binary import SIZE
from proxy.protocols.v2_tensors import BYTES, DATATYPES, DEPTH, Shape
from proxy.terms import Reason

ROWS: Final = b"\x00"  # in `shared`: the number of rows goes here
DATA: Final = b"\x01"  # in `shared`: a tensor's data goes here, flat
NESTED: Final = b"\x02"  # as DATA, nested
BINARY: Final = b"\x04"  # in `shared`: the size of a tensor's bytes goes here, and its bytes behind the head
PARAMETERS: Final = b"\x03"  # in `shared`: ends the top-level members; the request's own parameters follow

DEADLINES: Final = ("timeout", "priority")  # what of `parameters` cannot change an answer

_REMEMBERED: Final = 1024  # frames
_LONGEST_REMEMBERED: Final = 8192  # bytes of one frame
_SIZE: Final = re.compile(rb"[1-9][0-9]{0,17}")  # of one dimension; 0 is the backend's to judge
_COUNT: Final = re.compile(rb"0|[1-9][0-9]{0,17}")


class Tensor(NamedTuple):
    """One input: its data, or the size of its bytes if it is binary, is the value cut out of hole `hole`."""

    name: str
    datatype: str
    shape: Shape
    hole: int
    binary: bool


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """What a body says beside its data.

    tensors: in the body's order. binary: is any of them? strings: the holes of those that are BYTES in JSON.
    holes: how many values must have been cut out.
    rows: dimension 0 of every input; 0 where they differ.
    by_rows, entire: the canonical text for a call whose rows are items, and for one that is one item.
    id_hole, id_text: where the caller's `id` was cut out, or its lexeme if it was not; None without either.
    timeout: microseconds, 0 if the caller named none. priority: 0 if the caller named none.
    """

    tensors: tuple[Tensor, ...]
    binary: bool
    strings: tuple[int, ...]
    holes: int
    rows: int
    by_rows: bytes
    entire: bytes
    id_hole: int | None
    id_text: bytes | None
    timeout: int
    priority: int


def request_frame(text: bytes) -> RequestFrame | Reason:
    """Read a frame, or remember it; a `Reason` if it is not one that we understand in full."""
    return _remembered(text) if len(text) <= _LONGEST_REMEMBERED else _read(text)


def _read(text: bytes) -> RequestFrame | Reason:
    body = read(text)
    if isinstance(body, Refusal):
        return body.reason
    if not isinstance(body, dict):
        return Reason.UNPARSED
    inputs, parameters = body.pop("inputs", None), body.pop("parameters", {})
    if not isinstance(inputs, list) or not inputs or not isinstance(parameters, dict):
        return Reason.UNPARSED
    if (reason := _refusal([body, parameters, *inputs])) is not None:
        return reason
    tensors = [tensor(one) for one in inputs]
    deadlines = [_deadline(parameters.pop(name, b"0")) for name in DEADLINES]
    id_ = body.pop("id", None)
    if None in tensors or None in deadlines or not (isinstance(id_, Hole | None) or decoded(id_) is not None):
        return Reason.UNPARSED
    known = [one for one in tensors if one is not None]
    holes = len(known) + isinstance(id_, Hole)
    if holes != text.count(HOLE) or len({one.name for one in known}) < len(known):
        return Reason.UNPARSED
    sizes = {one.shape[0] for one in known}
    timeout, priority = (deadline or 0 for deadline in deadlines)
    return RequestFrame(
        tensors=tuple(known),
        binary=any(one.binary for one in known),
        strings=tuple(one.hole for one in known if one.datatype == BYTES and not one.binary),
        holes=holes,
        rows=sizes.pop() if len(sizes) == 1 else 0,
        by_rows=_canonical(body, inputs, known, parameters, by_rows=True),
        entire=_canonical(body, inputs, known, parameters, by_rows=False),
        id_hole=id_.number if isinstance(id_, Hole) else None,
        id_text=id_ if isinstance(id_, bytes) else None,
        timeout=timeout,
        priority=priority,
    )


_remembered = functools.lru_cache(maxsize=_REMEMBERED)(_read)


def tensor(value: Value) -> Tensor | None:
    """An input or output whose data or size was cut out; None if it is not one that we understand."""
    if not isinstance(value, dict):
        return None
    name, datatype, shape = decoded(value.get("name")), decoded(value.get("datatype")), value.get("shape")
    data, size = value.get("data"), size_of(value)
    if name is None or datatype is None or datatype not in (DATATYPES if size is None else BINARY_DATATYPES):
        return None
    hole = data if size is None else size
    if not isinstance(hole, Hole) or None not in (data, size):
        return None
    if not isinstance(shape, list) or not 0 < len(shape) <= DEPTH:
        return None
    sizes = [int(size) for size in shape if isinstance(size, bytes) and _SIZE.fullmatch(size)]
    return Tensor(name, datatype, tuple(sizes), hole.number, size is not None) if len(sizes) == len(shape) else None


def size_of(tensor: dict[str, Value]) -> Value | None:
    """What a tensor says of the size of its bytes; None where it says nothing."""
    parameters = tensor.get("parameters")
    return parameters.get(SIZE) if isinstance(parameters, dict) else None


def _deadline(value: Value) -> int | None:
    return int(value) if isinstance(value, bytes) and _COUNT.fullmatch(value) else None


def _refusal(objects: list[Value]) -> Reason | None:
    """Why an answer would depend on more than this body, or what it says of its own form be unclear.

    Looked for everywhere, not only where Triton reads them: there is nothing to gain from being exact.
    """
    waiting = list(objects)
    reason = None
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name.startswith(("sequence_", "shared_memory_")):
                    return Reason.STATEFUL
                if name.startswith("binary_data") and not (isinstance(inner, Hole) or inner in (b"true", b"false")):
                    reason = Reason.UNPARSED
                waiting.append(inner)
    return reason


def marked(tensor: dict[str, Value], binary: bool) -> dict[str, Value]:
    """The member of a tensor that tells of its data, with a mark in its place."""
    parameters = tensor.get("parameters")
    if not binary or not isinstance(parameters, dict):
        return {"data": DATA}
    return {"parameters": parameters | {SIZE: BINARY}}


def _canonical(
    body: dict[str, Value], inputs: list[Value], tensors: list[Tensor], parameters: dict[str, Value], *, by_rows: bool
) -> bytes:
    blank: list[Value] = []
    for value, one in zip(inputs, tensors, strict=True):
        assert isinstance(value, dict)
        sizes: list[Value] = [str(size).encode() for size in one.shape]
        if by_rows:
            sizes[0] = ROWS
        blank.append(value | {"shape": sizes} | marked(value, one.binary))
    members = compact(body | {"inputs": blank}, in_order=False)
    return members[1:-1] + PARAMETERS + compact(parameters, in_order=False)[1:-1]
