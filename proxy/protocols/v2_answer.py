"""The frame of an Open Inference V2 answer: everything in the body but `id` text and tensor data.

Where tensors are binary, that is the head, and the size of each was cut out in place of its data.

Invariants
    An `AnswerFrame` is a function of the frame's bytes alone, so it is remembered by them.
    Its templates keep the backend's order of keys and its lexemes, and leave `id` out.
    `outputs` is None unless every field is known to be either the same for all rows, or a tensor with
    one row per item: then a row's answer is this frame with that row's data.

Knows nothing of requests: that the rows are as many as were sent is for the caller to check.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.protocols.spans import HOLE, Hole, Value, compact, decoded, read
from proxy.protocols.v2_binary import SIZE
from proxy.protocols.v2_request import DATA, ROWS, Tensor, size_of, tensor

_REMEMBERED: Final = 1024  # frames
_LONGEST_REMEMBERED: Final = 8192  # bytes of one frame
_SAME_FOR_ALL_ROWS: Final = frozenset({"model_name", "model_version", "outputs"})
_OF_AN_OUTPUT: Final = frozenset({"name", "datatype", "shape", "data"})

Template = tuple[bytes, ...]
"""The text between the data, or the size, of one tensor and the next."""


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """What an answer says beside its data.

    holes: how many values must have been cut out.
    id_hole, id_text: where `id` was cut out, or its lexeme if it was not; None without either.
    outputs: the tensors in the body's order; None if this answer cannot be taken apart by rows.
    verbatim: the answer as it came. by_rows: the same with ROWS for dimension 0; () without `outputs`.
    """

    holes: int
    id_hole: int | None
    id_text: bytes | None
    outputs: tuple[Tensor, ...] | None
    verbatim: Template
    by_rows: Template

    def id_of(self, values: Sequence[bytes]) -> bytes | None:
        """The lexeme of `id`, given what was cut out."""
        return self.id_text if self.id_hole is None else values[self.id_hole]

    def data_of(self, values: Sequence[bytes]) -> list[bytes]:
        """The values that belong into the templates, given what was cut out."""
        return [value for number, value in enumerate(values) if number != self.id_hole]


def answer_frame(text: bytes) -> AnswerFrame | None:
    """Read a frame, or remember it; None if it is no answer to an inference request, or its `id` is no string."""
    return _remembered(text) if len(text) <= _LONGEST_REMEMBERED else _read(text)


def filled(template: Template, data: Sequence[bytes]) -> bytes:
    """The template with each tensor's data, or its size, in its place."""
    if len(data) == 1:
        return template[0] + data[0] + template[1]
    return b"".join([piece for pair in zip(template, (*data, b""), strict=True) for piece in pair])


def with_rows(template: Template, rows: int) -> Template:
    """A `by_rows` template for this many rows."""
    return tuple([piece.replace(ROWS, b"%d" % rows) for piece in template])


def _read(text: bytes) -> AnswerFrame | None:
    body = read(text)
    if not isinstance(body, dict) or not isinstance(body.get("outputs"), list) or "error" in body:
        return None
    id_ = body.pop("id", None)
    if not isinstance(id_, Hole | None) and decoded(id_) is None:
        return None
    outputs = _outputs(body)
    if outputs is not None and text.count(HOLE) != len(outputs) + isinstance(id_, Hole):
        outputs = None
    return AnswerFrame(
        holes=text.count(HOLE),
        id_hole=id_.number if isinstance(id_, Hole) else None,
        id_text=id_ if isinstance(id_, bytes) else None,
        outputs=outputs,
        verbatim=tuple(compact(_marked(body, by_rows=False)).split(DATA)),
        by_rows=tuple(compact(_marked(body, by_rows=True)).split(DATA)) if outputs is not None else (),
    )


_remembered = functools.lru_cache(maxsize=_REMEMBERED)(_read)


def _outputs(body: dict[str, Value]) -> tuple[Tensor, ...] | None:
    listed = body.get("outputs")
    if not isinstance(listed, list) or not listed or not _only(body, _SAME_FOR_ALL_ROWS):
        return None
    known = [one for value in listed if _only(value, _OF_AN_OUTPUT) and (one := tensor(value)) is not None]
    return tuple(known) if len({one.name for one in known}) == len(listed) else None


def _only(value: Value, names: frozenset[str]) -> bool:
    """Has `value` no field but these? Parameters that say nothing do not count, nor does a size that was cut out."""
    return isinstance(value, dict) and all(
        name in names or (name == "parameters" and (inner in ({}, b"null") or _sized(value) == inner))
        for name, inner in value.items()
    )


def _sized(tensor: dict[str, Value]) -> Value | None:
    """The parameters of a tensor that says nothing in them but its size."""
    size = size_of(tensor)
    return {SIZE: size} if isinstance(size, Hole) else None


def _marked(value: Value, *, by_rows: bool) -> Value:
    """`value` with DATA for every hole, and ROWS for dimension 0 of every shape beside one.

    Recursion is bounded by what `read` accepts.
    """
    if isinstance(value, Hole):
        return DATA
    if isinstance(value, list):
        return [_marked(one, by_rows=by_rows) for one in value]
    if not isinstance(value, dict):
        return value
    marked = {name: _marked(inner, by_rows=by_rows) for name, inner in value.items()}
    shape = value.get("shape")
    if (
        by_rows
        and isinstance(shape, list)
        and any(isinstance(one, Hole) for one in (value.get("data"), size_of(value)))
    ):
        marked["shape"] = [ROWS, *shape[1:]]
    return marked
