"""Open Inference V2 bodies for tests: hypothesis writes them in every style, and a slow backend answers them.

Tensors are JSON or binary, as their kind says; elements are lexemes, or bytes.

The backend shares nothing with the codec. Its outputs are functions of one row each, so that a row
that reached the wrong caller shows.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hypothesis import strategies as st

from proxy.protocols.codec import Message
from proxy.terms import Identity, Model, Rows
from tests.protocols.json_texts import FLOATS, NUMBERS, SPACES, STRINGS
from tests.protocols.slow_json import Lexed, Pairs, slow_read

ROWS_MODEL = Model("m", rows=Rows.ITEMS, max_batch_size=32, instances=1, identity=Identity(("1",), 0.0, "", known=True))
WHOLE_MODEL = Model("m", rows=Rows.WHOLE, max_batch_size=0, instances=1, identity=Identity(("1",), 0.0, "", known=True))

ELEMENTS = {
    "FP32": NUMBERS,
    "FP64": FLOATS,
    "INT64": st.integers(-(2**63), 2**63 - 1).map(lambda number: b"%d" % number),
    "UINT64": st.integers(0, 2**64 - 1).map(lambda number: b"%d" % number),
    "INT8": st.integers(-128, 127).map(lambda number: b"%d" % number),
    "BOOL": st.sampled_from([b"true", b"false"]),
    "BYTES": STRINGS,
}
WIDTHS = {
    "BOOL": 1,
    "INT8": 1,
    "UINT16": 2,
    "FP16": 2,
    "BF16": 2,
    "INT32": 4,
    "FP32": 4,
    "INT64": 8,
    "UINT64": 8,
    "FP64": 8,
}
BINARY_ELEMENTS = {
    **{datatype: st.binary(min_size=width, max_size=width) for datatype, width in WIDTHS.items()},
    "BYTES": st.one_of(st.binary(max_size=3), st.sampled_from([b"\xff" * 300, b"{}", b'"', b"\x00" * 4])).map(
        lambda text: struct.pack("<I", len(text)) + text
    ),
}
HEAD_LENGTH = b"Inference-Header-Content-Length"


class TensorKind(NamedTuple):
    """What all rows of one input share."""

    name: str
    datatype: str
    inner: tuple[int, ...]
    nested: bool
    extra: bytes
    binary: bool = False

    @property
    def element(self) -> st.SearchStrategy[bytes]:
        return (BINARY_ELEMENTS if self.binary else ELEMENTS)[self.datatype]


@dataclass(frozen=True)
class Kind:
    """What calls share that may join. extra, parameters: members as JSON text."""

    tensors: tuple[TensorKind, ...]
    extra: tuple[bytes, ...] = ()
    parameters: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Asked:
    """One call as it was meant: rows[r][t] are the elements of row r in tensor t.

    head: how many bytes of the body are JSON, where binary tensors follow; 0 where none do.
    """

    kind: Kind
    rows: tuple[tuple[tuple[bytes, ...], ...], ...]
    id: bytes | None = None
    deadlines: tuple[bytes, ...] = ()
    body: bytes = field(default=b"", compare=False)
    head: int = field(default=0, compare=False)

    @property
    def message(self) -> Message:
        fields = ((b"Content-Type", b"application/octet-stream"), (HEAD_LENGTH, b"%d" % self.head))
        return Message(self.body, fields if self.head else ())


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
            st.just(False),
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
BINARY_KINDS = st.builds(
    Kind,
    st.lists(
        st.one_of(
            st.builds(
                TensorKind,
                st.sampled_from(["X", "Y", "Z", "ü", 'q"', "data"]),
                st.sampled_from(sorted(BINARY_ELEMENTS)),
                st.lists(st.integers(1, 3), max_size=3).map(tuple),
                st.just(False),
                st.sampled_from([b"", b'"k":1', b'"k":"a\\"binary_data_size\\":7"']),
                st.just(True),
            ),
            st.builds(
                TensorKind,
                st.sampled_from(["A", "B"]),
                st.sampled_from(sorted(ELEMENTS)),
                st.lists(st.integers(1, 3), max_size=2).map(tuple),
                st.booleans(),
                st.sampled_from([b"", b'"parameters":{"k":1}']),
                st.just(False),
            ),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda tensor: tensor.name,
    ).map(tuple),
    st.lists(
        st.sampled_from([b'"outputs":[{"name":"O_X","parameters":{"binary_data":true}}]', b'"unknown":1.0']),
        unique=True,
    ).map(tuple),
    st.lists(st.sampled_from([b'"a":1', b'"b":"1"', b'"binary_data_output":true']), unique=True).map(tuple),
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


def tensor_text(  # noqa: PLR0917 - a tensor has as many members
    name: bytes,
    datatype: str,
    rows: Sequence[Sequence[bytes]],
    inner: tuple[int, ...],
    nested: bool,
    parameters: bytes | None = None,
) -> list[bytes]:
    """The members of one tensor. parameters: of a binary one, beside its size."""
    elements = [element for row in rows for element in row]
    shape = (len(rows), *inner)
    if parameters is not None:
        size = b'"binary_data_size":%d' % sum(map(len, elements))
        data = b'"parameters":{' + b" , ".join([parameters, size] if parameters else [size]) + b"}"
    else:
        data = b'"data":' + (nest(elements, shape) if nested else b"[" + b",".join(elements) + b"]")
    return [b'"name":' + name, b'"datatype":"%b"' % datatype.encode(), b'"shape":' + str(list(shape)).encode(), data]


@st.composite
def asked(draw: st.DrawFn, kind: Kind, max_rows: int = 3) -> Asked:
    """A call of this kind, written with any order of keys and white space anywhere outside data."""
    count = draw(st.integers(1, max_rows))
    rows = tuple(
        tuple(
            tuple(draw(st.lists(t.element, min_size=math.prod(t.inner), max_size=math.prod(t.inner))))
            for t in kind.tensors
        )
        for _ in range(count)
    )
    id_, deadlines = draw(IDS), draw(DEADLINES)
    return written(Asked(kind, rows, id_, deadlines), draw)


def written(call: Asked, draw: st.DrawFn | None = None) -> Asked:
    """The call with its body, in a style that `draw` chooses."""
    head = body_text(call, draw)
    blobs = [element for at, t in enumerate(call.kind.tensors) if t.binary for row in call.rows for element in row[at]]
    return replace(call, body=b"".join([head, *blobs]), head=len(head) if blobs else 0)


def body_text(call: Asked, draw: st.DrawFn | None = None) -> bytes:
    """The JSON of a call's body, in a style that `draw` chooses."""

    def members(texts: list[bytes]) -> bytes:
        if draw is not None:
            texts = [draw(SPACES) + text + draw(SPACES) for text in draw(st.permutations(texts))]
        return b"{" + b",".join(texts) + b"}"

    inputs = [
        members(
            tensor_text(
                json.dumps(t.name).encode(),
                t.datatype,
                [row[at] for row in call.rows],
                t.inner,
                t.nested,
                t.extra if t.binary else None,
            )
            + ([t.extra] if t.extra and not t.binary else [])
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


def elements(blob: bytes, datatype: str) -> list[bytes]:
    """The elements of a binary tensor."""
    if datatype != "BYTES":
        width = WIDTHS[datatype]
        return [blob[at : at + width] for at in range(0, len(blob), width)]
    found = []
    while blob:
        (length,) = struct.unpack("<I", blob[:4])
        found.append(blob[: 4 + length])
        blob = blob[4 + length :]
    return found


def backend(body: bytes, *, nested: bool = False) -> bytes:
    return answered(Message(body), nested=nested).body


def answered(message: Message, *, nested: bool = False) -> Message:
    """Answer as a model would: each input's row backwards, and the length of the row's text.

    What came binary goes back binary, and the lengths do so if they are asked for in that form.
    """
    head, blobs = apart(message)
    value, repeated = slow_read(head)
    assert isinstance(value, Pairs) and not repeated
    asked_for = dict(value)
    inputs, wishes = asked_for["inputs"], asked_for.get("parameters", Pairs())
    assert isinstance(inputs, list) and isinstance(wishes, Pairs)
    outputs: list[bytes] = []
    behind: list[bytes] = []
    lengths: list[int] = []
    for one in inputs:
        assert isinstance(one, Pairs)
        tensor = dict(one)
        shape = tuple(int(str(size)) for size in tensor["shape"])
        datatype = json.loads(str(tensor["datatype"]))
        size = size_of(tensor)
        if size is None:
            found = [leaf.encode() for leaf in leaves(tensor["data"])]
        else:
            found, blobs = elements(blobs[:size], datatype), blobs[size:]
        assert len(found) == math.prod(shape)
        width = len(found) // shape[0]
        rows = [found[at * width : (at + 1) * width][::-1] for at in range(shape[0])]
        lengths = lengths or [0] * shape[0]
        lengths = [length + sum(map(len, row)) for length, row in zip(lengths, rows, strict=True)]
        name = b'"O_' + str(tensor["name"]).encode()[1:]
        members = tensor_text(name, datatype, rows, shape[1:], nested, None if size is None else b"")
        outputs.append(b"{" + b",".join(members) + b"}")
        behind += [b"".join(row) for row in rows if size is not None]
    assert not blobs
    binary = dict(wishes).get("binary_data_output") == "true"
    counts = [[struct.pack("<q", length) if binary else b"%d" % length] for length in lengths]
    members = tensor_text(b'"N"', "INT64", counts, (1,), nested, b"" if binary else None)
    behind += [count for (count,) in counts if binary]
    outputs.append(b"{" + b", ".join(members) + b"}")
    id_ = str(asked_for.get("id", '""')).encode()
    top = [b'"id":' + id_] if id_ != b'""' else []
    top += [b'"model_name":"m"', b'"model_version":"1"', b'"outputs":[' + b",".join(outputs) + b"]"]
    text = b"{" + b",".join(top) + b"}"
    return Message(b"".join([text, *behind]), ((HEAD_LENGTH.lower(), b"%d" % len(text)),) if behind else ())


def apart(message: Message) -> tuple[bytes, bytes]:
    """The JSON of a body, and what is behind it."""
    lengths = [int(value) for name, value in message.fields if name.lower() == HEAD_LENGTH.lower()]
    length = lengths[0] if lengths else len(message.body)
    return message.body[:length], message.body[length:]


def size_of(tensor: dict[str, Lexed]) -> int | None:
    """How many bytes behind the JSON are a tensor's, if it is binary."""
    parameters = tensor.get("parameters")
    size = dict(parameters).get("binary_data_size") if isinstance(parameters, Pairs) else None
    return None if size is None else int(str(size))
