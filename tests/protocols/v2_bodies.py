"""Open Inference V2 bodies for tests: hypothesis writes them in every style, and a slow backend answers them.

The backend shares nothing with the codec. Its outputs are functions of one row each, so that a row
that reached the wrong caller shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from proxy.terms import Identity, Model
from tests.protocols.json_texts import FLOATS, NUMBERS, SPACES, STRINGS
from tests.protocols.slow_json import Lexed, Pairs, slow_read

ROWS_MODEL = Model("m", rows=True, max_batch_size=32, instances=1, identity=Identity(("1",), 0.0, "", known=True))
WHOLE_MODEL = Model("m", rows=False, max_batch_size=0, instances=1, identity=Identity(("1",), 0.0, "", known=True))

ELEMENTS = {
    "FP32": NUMBERS,
    "FP64": FLOATS,
    "INT64": st.integers(-(2**63), 2**63 - 1).map(lambda number: b"%d" % number),
    "UINT64": st.integers(0, 2**64 - 1).map(lambda number: b"%d" % number),
    "INT8": st.integers(-128, 127).map(lambda number: b"%d" % number),
    "BOOL": st.sampled_from([b"true", b"false"]),
    "BYTES": STRINGS,
}


class TensorKind(NamedTuple):
    """What all rows of one input share."""

    name: str
    datatype: str
    inner: tuple[int, ...]
    nested: bool
    extra: bytes


@dataclass(frozen=True)
class Kind:
    """What calls share that may join. extra, parameters: members as JSON text."""

    tensors: tuple[TensorKind, ...]
    extra: tuple[bytes, ...] = ()
    parameters: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Asked:
    """One call as it was meant: rows[r][t] are the lexemes of row r in tensor t."""

    kind: Kind
    rows: tuple[tuple[tuple[bytes, ...], ...], ...]
    id: bytes | None = None
    deadlines: tuple[bytes, ...] = ()
    body: bytes = field(default=b"", compare=False)


KINDS = st.builds(
    Kind,
    st.lists(
        st.builds(
            TensorKind,
            st.sampled_from(["X", "Y", "Z", "ü", 'q"', "data"]),
            st.sampled_from(sorted(ELEMENTS)),
            st.lists(st.integers(1, 3), max_size=3).map(tuple),
            st.booleans(),
            st.sampled_from([b"", b'"parameters":{"k":1}', b'"unknown":[1,{"a":null}]']),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda tensor: tensor.name,
    ).map(tuple),
    st.lists(
        st.sampled_from([b'"outputs":[{"name":"O_X"}]', b'"unknown":1.0', b'"more":{"x":"\\u0061"}']), unique=True
    ).map(tuple),
    st.lists(st.sampled_from([b'"a":1', b'"b":"1"', b'"binary_data_output":false']), unique=True).map(tuple),
)
DEADLINES = st.lists(
    st.sampled_from([b'"timeout":5000', b'"timeout":70000', b'"priority":1', b'"priority":3']),
    max_size=2,
    unique_by=lambda text: text[:5],
).map(tuple)
IDS = st.one_of(st.none(), st.sampled_from([b'"7"', b'"a b"', b'"\\u0061\\n"', b'"\xc3\xa9"', b'""']))


def nest(lexemes: Sequence[bytes], shape: tuple[int, ...]) -> bytes:
    if not shape:
        return lexemes[0]
    width = len(lexemes) // shape[0]
    return b"[" + b",".join(nest(lexemes[at * width : (at + 1) * width], shape[1:]) for at in range(shape[0])) + b"]"


def tensor_text(
    name: bytes, datatype: str, rows: Sequence[Sequence[bytes]], inner: tuple[int, ...], nested: bool
) -> list[bytes]:
    """The members of one tensor."""
    lexemes = [lexeme for row in rows for lexeme in row]
    shape = (len(rows), *inner)
    data = nest(lexemes, shape) if nested else b"[" + b",".join(lexemes) + b"]"
    return [
        b'"name":' + name,
        b'"datatype":"%b"' % datatype.encode(),
        b'"shape":' + str(list(shape)).encode(),
        b'"data":' + data,
    ]


@st.composite
def asked(draw: st.DrawFn, kind: Kind, max_rows: int = 3) -> Asked:
    """A call of this kind, written with any order of keys and white space anywhere outside data."""
    count = draw(st.integers(1, max_rows))
    rows = tuple(
        tuple(
            tuple(draw(st.lists(ELEMENTS[t.datatype], min_size=math.prod(t.inner), max_size=math.prod(t.inner))))
            for t in kind.tensors
        )
        for _ in range(count)
    )
    id_, deadlines = draw(IDS), draw(DEADLINES)
    call = Asked(kind, rows, id_, deadlines)
    return Asked(kind, rows, id_, deadlines, body_text(call, draw))


def body_text(call: Asked, draw: st.DrawFn | None = None) -> bytes:
    """The body of a call, in a style that `draw` chooses."""

    def members(texts: list[bytes]) -> bytes:
        if draw is not None:
            texts = [draw(SPACES) + text + draw(SPACES) for text in draw(st.permutations(texts))]
        return b"{" + b",".join(texts) + b"}"

    inputs = [
        members(
            tensor_text(json.dumps(t.name).encode(), t.datatype, [row[at] for row in call.rows], t.inner, t.nested)
            + ([t.extra] if t.extra else [])
        )
        for at, t in enumerate(call.kind.tensors)
    ]
    top = [b'"inputs":[' + b" , ".join(inputs) + b"]", *call.kind.extra]
    parameters = [*call.kind.parameters, *call.deadlines]
    if parameters:
        top.append(b'"parameters" :' + members(parameters))
    if call.id is not None:
        top.append(b'"id": ' + call.id)
    return members(top)


def leaves(value: Lexed) -> Iterator[str]:
    if isinstance(value, list) and not isinstance(value, Pairs):
        for one in value:
            yield from leaves(one)
    else:
        assert isinstance(value, str)
        yield value


def backend(body: bytes, *, nested: bool = False) -> bytes:
    """Answer as a model would: each input's row backwards, and the length of the row's text."""
    value, repeated = slow_read(body)
    assert isinstance(value, Pairs) and not repeated
    asked_for = dict(value)
    inputs = asked_for["inputs"]
    assert isinstance(inputs, list)
    outputs: list[bytes] = []
    lengths: list[int] = []
    for one in inputs:
        assert isinstance(one, Pairs)
        tensor = dict(one)
        shape = tuple(int(str(size)) for size in tensor["shape"])
        lexemes = [leaf.encode() for leaf in leaves(tensor["data"])]
        assert len(lexemes) == math.prod(shape)
        width = len(lexemes) // shape[0]
        rows = [lexemes[at * width : (at + 1) * width] for at in range(shape[0])]
        lengths = lengths or [0] * shape[0]
        lengths = [length + sum(map(len, row)) for length, row in zip(lengths, rows, strict=True)]
        datatype = json.loads(str(tensor["datatype"]))
        members = tensor_text(
            b'"O_' + str(tensor["name"]).encode()[1:], datatype, [row[::-1] for row in rows], shape[1:], nested
        )
        outputs.append(b"{" + b",".join(members) + b"}")
    members = tensor_text(b'"N"', "INT64", [[b"%d" % length] for length in lengths], (1,), nested)
    outputs.append(b"{" + b", ".join(members) + b"}")
    id_ = str(asked_for.get("id", '""')).encode()
    head = [b'"id":' + id_] if id_ != b'""' else []
    return (
        b"{"
        + b",".join([*head, b'"model_name":"m"', b'"model_version":"1"', b'"outputs":[' + b",".join(outputs) + b"]"])
        + b"}"
    )
