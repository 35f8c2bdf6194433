"""Valid V2 calls for a real Triton: every datatype, JSON and binary tensors side by side, and what else may be said."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tests.fidelity.lexed import HEAD_LENGTH, Number, written
from tests.fidelity.stage import JSON, Asked
from tests.fidelity.values import SEEDS, STRINGS, VALUES, choices

_FLOATS = ["0", "1", "-1.5", "1.0", "0.1", "1e-7", "16777217", "-0.0", "2.5e3"]
LEXEMES: Final[dict[str, Sequence[str]]] = {
    **{f"INT{bits}": ["0", "-1", "7", str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)] for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": ["0", "1", "7", str(2**bits - 1)] for bits in (8, 16, 32, 64)},
    "FP16": _FLOATS[:5],
    "FP32": [*_FLOATS, "3.4028234e38"],
    "FP64": [*_FLOATS, "9007199254740993", "1e-300"],
}
PACKED: Final = {"FP16": "<e", "FP32": "<f", "FP64": "<d"}


def _elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BOOL":
        return st.booleans()
    return STRINGS if datatype == "BYTES" else st.sampled_from(LEXEMES[datatype]).map(Number)


def packed(datatype: str, values: Sequence[Any]) -> bytes:
    """A tensor's elements as bytes."""
    if datatype == "BOOL":
        return bytes(values)
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in values)
    if datatype in PACKED:
        return b"".join(struct.pack(PACKED[datatype], float(number.lexeme)) for number in values)
    width, signed = int(datatype.removeprefix("U")[3:]) // 8, not datatype.startswith("U")
    return b"".join(int(number.lexeme).to_bytes(width, "little", signed=signed) for number in values)


@dataclass(frozen=True)
class Input:
    """What all calls of a family say of one tensor."""

    name: str
    datatype: str
    width: int
    nested: bool
    binary: bool

    def text(self, rows: Sequence[Sequence[Any]]) -> tuple[dict[str, Any], bytes]:
        """Its member of `inputs`, and its bytes behind the head."""
        said: dict[str, Any] = {"name": self.name, "datatype": self.datatype}
        said["shape"] = [Number(str(len(rows))), Number(str(self.width))]
        flat = [value for row in rows for value in row]
        if self.binary:
            data = packed(self.datatype, flat)
            return said | {"parameters": {"binary_data_size": Number(str(len(data)))}}, data
        return said | {"data": [list(row) for row in rows] if self.nested else flat}, b""


@st.composite
def echoed(draw: st.DrawFn, *, binary: bool) -> list[Asked]:
    datatypes = ["BOOL", "BYTES", "FP16", *LEXEMES] if binary else ["BOOL", "BYTES", *sorted(set(LEXEMES) - {"FP16"})]
    kinds = draw(st.lists(st.sampled_from(datatypes), min_size=1, max_size=3, unique=True))
    inputs = [
        Input(
            f"I_{'STRING' if kind == 'BYTES' else kind}",
            kind,
            draw(st.integers(1, 3)),
            draw(st.booleans()),
            binary and (kind == "FP16" or draw(st.booleans())),
        )
        for kind in kinds
    ]
    beside: dict[str, Any] = {"unknown": draw(VALUES)} if draw(st.booleans()) else {}
    parameters: dict[str, Any] = draw(st.dictionaries(st.sampled_from(["a", "é"]), st.sampled_from(["1", True, 2])))
    parameters = {name: Number("2") if value == 2 else value for name, value in parameters.items()}
    must = "FP16" in kinds  # Triton writes no FP16 in JSON
    if binary and (must or draw(st.booleans())):
        parameters["binary_data_output"] = True
    elif draw(st.booleans()):
        wanted = {"binary_data": draw(st.booleans())} if binary else {}
        beside["outputs"] = [{"name": "O" + one.name[1:], "parameters": wanted} for one in reversed(inputs)]
    if parameters:
        beside["parameters"] = parameters
    rows = st.tuples(*[st.lists(_elements(one.datatype), min_size=one.width, max_size=one.width) for one in inputs])
    return draw(
        _called("/v2/models/echo/infer", inputs, beside, draw(st.lists(rows, min_size=2, max_size=4, unique_by=repr)))
    )


@st.composite
def _called(draw: st.DrawFn, path: str, inputs: Sequence[Input], beside: dict[str, Any], pool: Any) -> list[Asked]:
    found, seed = [], draw(SEEDS)
    hidden = any(f"'{name}'" in repr(beside.get("unknown")) for name in ("id", "data"))  # read in their own places only
    for number, chosen in enumerate(draw(choices(len(pool)))):
        tensors = [one.text([pool[at][place] for at in chosen]) for place, one in enumerate(inputs)]
        body = beside | {"inputs": [said for said, _ in tensors]}
        if draw(st.booleans()):
            body["id"] = draw(st.sampled_from(["7", "é\n", 'q"', "a b"]))
        binary = any(one.binary for one in inputs)
        odd = draw(st.integers(0, 7)) == 0  # data or a size whose name is written with escapes is not read
        head, blobs = written(body, random.Random(seed + number), odd=odd), b"".join(data for _, data in tensors)
        fields: tuple[tuple[str, str], ...] = tuple(JSON.items())
        if binary:
            fields = (("Content-Type", "application/octet-stream"), (HEAD_LENGTH, str(len(head))))
        found.append(Asked(path, head + blobs, fields, hit=None if odd or hidden else True))
    return found


@st.composite
def mixed(draw: st.DrawFn) -> list[Asked]:
    """Several inputs that a model makes other outputs of; some calls ask for some of these."""
    inputs = [
        Input("A", "FP32", draw(st.integers(1, 3)), nested=False, binary=False),
        Input("B", "INT64", 2, nested=draw(st.booleans()), binary=False),
        Input("C", "BYTES", 1, nested=False, binary=False),
    ]
    chosen = draw(st.lists(st.sampled_from("STUV"), unique=True, max_size=3))
    rows = st.tuples(*[st.lists(_elements(one.datatype), min_size=one.width, max_size=one.width) for one in inputs])
    beside: dict[str, Any] = {"outputs": [{"name": name} for name in chosen]} if chosen else {}
    pool = draw(st.lists(rows, min_size=2, max_size=4, unique_by=repr))
    return draw(_called("/v2/models/mixed/infer", draw(st.permutations(inputs)), beside, pool))


@st.composite
def undeclared(draw: st.DrawFn) -> list[Asked]:
    """A model without a batch dimension, of which the route says that its rows are items."""
    one = Input("X", "FP32", draw(st.integers(1, 3)), draw(st.booleans()), draw(st.booleans()))
    rows = st.tuples(st.lists(_elements("FP32"), min_size=one.width, max_size=one.width))
    return draw(
        _called("/v2/models/whole/infer", [one], {}, draw(st.lists(rows, min_size=2, max_size=3, unique_by=repr)))
    )
