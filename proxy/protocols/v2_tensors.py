"""The data of one Open Inference V2 tensor in JSON: checked as a whole, taken apart by rows, put together.

Invariants
    What `flatten` accepts is one JSON array, flat or nested exactly as the shape says, of as many elements
    as the shape says, each a lexeme that the datatype allows. Lexemes are kept as they were written.
    Everything runs at C speed: nothing here loops over elements in Python, except to nest three or
    more dimensions.

Knows nothing of the rest of the body. FP16 and BF16 are no JSON datatypes: Triton refuses them, so do we.
"""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec

from proxy.protocols.spans import SPACE, STRING

Shape = tuple[int, ...]

BYTES: Final = "BYTES"
DEPTH: Final = 16  # dimensions of a tensor


def _between(low: int, high: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=low, le=high)]


_ELEMENTS: Final[dict[str, Any]] = {
    "BOOL": bool,
    "INT8": _between(-(2**7), 2**7 - 1),
    "INT16": _between(-(2**15), 2**15 - 1),
    "INT32": _between(-(2**31), 2**31 - 1),
    "INT64": _between(-(2**63), 2**63 - 1),
    "UINT8": _between(0, 2**8 - 1),
    "UINT16": _between(0, 2**16 - 1),
    "UINT32": _between(0, 2**32 - 1),
    "UINT64": Annotated[int, msgspec.Meta(ge=0)],  # msgspec knows no bound above 2**63: see `_fits_64_bits`
    "FP32": float,
    "FP64": float,
}
_FLAT: Final = {
    datatype: msgspec.json.Decoder(types.GenericAlias(list, (kind,))).decode
    for datatype, kind in (_ELEMENTS | {"UINT64": _between(0, 2**63 - 1)}).items()
}
DATATYPES: Final = frozenset(_ELEMENTS) | {BYTES}

_STRING: Final = re.compile(STRING)
_NESTED: Final = re.compile(rb"\[[ \t\r\n]*+\[")
_BRACKETS_AND_COMMAS: Final = b"[],"
_ALL_BUT_BRACKETS_AND_COMMAS: Final = bytes(set(range(256)) - set(_BRACKETS_AND_COMMAS))


def flatten(value: bytes, datatype: str, shape: Shape) -> tuple[bytes, bool] | None:
    """The elements of the array `value` in row-major order, and whether they came nested.

    The elements are lexemes with a comma between. None if they, datatype and shape do not agree for certain.
    shape: at least one dimension, none of them zero.
    """
    if datatype == BYTES:
        return _flatten_strings(value, shape)
    try:
        elements = _FLAT[datatype](value)
    except msgspec.DecodeError:
        return _flatten_odd(value, datatype, shape)
    return (_compact(value)[1:-1], False) if len(elements) == math.prod(shape) else None


def _flatten_odd(value: bytes, datatype: str, shape: Shape) -> tuple[bytes, bool] | None:
    """What no plain decoder takes: nested numbers, NaN, the upper half of UINT64."""
    if (elements := _elements(value, datatype, 1)) is not None:
        return (_compact(value)[1:-1], False) if len(elements) == math.prod(shape) else None
    if len(shape) == 1 or _elements(value, datatype, len(shape)) is None:
        return None
    value = _compact(value)
    brackets = value.translate(None, _ALL_BUT_BRACKETS_AND_COMMAS)
    if value.count(b",") + 1 != math.prod(shape) or brackets != _nest(shape):
        return None
    return value.translate(None, b"[]"), True


def _flatten_strings(value: bytes, shape: Shape) -> tuple[bytes, bool] | None:
    lexemes = _STRING.findall(value)
    if len(lexemes) != math.prod(shape):
        return None
    nested = len(shape) > 1 and _NESTED.match(value) is not None
    # As many marks as strings, and every mark where a string belongs: then every mark is a string.
    marked = _STRING.sub(b"s", value).translate(None, SPACE)
    return (b",".join(lexemes), nested) if marked == _nest(shape if nested else (len(lexemes),), b"s") else None


def _compact(value: bytes) -> bytes:
    """Numbers or literals, known to be JSON, without the white space between them."""
    return b"".join(value.split())


def _elements(value: bytes, datatype: str, depth: int) -> list[Any] | None:
    """What msgspec reads in arrays of this depth; None where something else stands there."""
    decode = _decoder(datatype, depth)
    try:
        elements = decode(value)
    except msgspec.DecodeError:
        if b"N" not in value and b"I" not in value:
            return None
        # msgspec knows no NaN and no Infinity. With spaces around it `0` cannot melt into a neighbour;
        # and where the datatype has no such values, `0.0` is none of its lexemes.
        for token in (b"NaN", b"-Infinity", b"Infinity"):
            value = value.replace(token, b" 0.0 ")
        try:
            elements = decode(value)
        except msgspec.DecodeError:
            return None
    return elements if datatype != "UINT64" or _fits_64_bits(elements, depth) else None


@functools.cache
def _decoder(datatype: str, depth: int) -> Callable[[bytes], list[Any]]:
    kind = _ELEMENTS[datatype]
    for _ in range(depth):
        kind = types.GenericAlias(list, (kind,))
    return msgspec.json.Decoder(kind).decode


def _fits_64_bits(elements: Any, depth: int) -> bool:
    if depth > 1:
        return all(_fits_64_bits(inner, depth - 1) for inner in elements)
    return max(elements, default=0) < 2**64


def _nest(shape: Shape, element: bytes = b"") -> bytes:
    """The brackets and commas of a nested array of this shape."""
    for size in reversed(shape):
        element = b"[" + ((element + b",") * size)[:-1] + b"]"
    return element


def rows(text: bytes, datatype: str, shape: Shape) -> list[bytes]:
    """Each row of flat `text` of this shape, as flat text."""
    if shape[0] == 1:
        return [text]
    lexemes = _lexemes(text, datatype)
    width = len(lexemes) // shape[0]
    return lexemes if width == 1 else [b",".join(lexemes[at : at + width]) for at in range(0, len(lexemes), width)]


def array(flat_rows: Sequence[bytes], datatype: str, inner: Shape, *, nested: bool) -> bytes:
    """The array of these rows, each flat text of shape `inner`; as one flat list, or nested."""
    if nested and len(inner) > 1:
        flat_rows = [_nested(_lexemes(row, datatype), inner) for row in flat_rows]
    elif nested and inner:
        flat_rows = [b"[" + row + b"]" for row in flat_rows]
    return b"[" + b",".join(flat_rows) + b"]"


def _nested(lexemes: list[bytes], shape: Shape) -> bytes:
    for size in reversed(shape):
        lexemes = [b"[" + b",".join(lexemes[at : at + size]) + b"]" for at in range(0, len(lexemes), size)]
    (whole,) = lexemes
    return whole


def _lexemes(text: bytes, datatype: str) -> list[bytes]:
    return _STRING.findall(text) if datatype == BYTES else text.split(b",")
