"""The table of what Forebay speaks: for every protocol and every form of it, valid requests and who answers them.

Each strategy gives a handful of calls that may meet: they share what stands beside the items, and take their items from
a few, so that a call is wholly known, partly known or new by what was asked before it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tests.fidelity.lexed import HEAD_LENGTH, Number, lexed, written
from tests.fidelity.speaking import MODELS, POISON, speaking
from tests.fidelity.stage import JSON, Asked
from tests.fidelity.values import NUMBERS, SCALARS, SEEDS, STRINGS, TEXTS, UNKNOWN, VALUES
from tests.parts.tei_backend import tei_server

Backend = Callable[[], AbstractAsyncContextManager[str]]
Calls = st.SearchStrategy[list[Asked]]
JSON_FIELDS: Final = tuple(JSON.items())
ESTIMATED: Final = "Forebay-Usage"


@dataclass(frozen=True)
class Form:
    """One row of the table.

    backend: None for the real Triton. codec, model: what Forebay must know before it is asked.
    routes: its configuration, if it needs any. joins, partly: calls of this form ride together, and are partly known.
    """

    name: str
    calls: Calls
    codec: str
    backend: Backend | None = None
    models: Sequence[str] = ("",)
    routes: str = ""
    joins: bool = True
    partly: bool = True
    found: tuple[list[Asked], ...] = ()

    def __repr__(self) -> str:
        return self.name


def asked(path: str, body: Any, seed: int, *, hit: bool = True) -> Asked:
    return Asked(path, written(body, random.Random(seed)), JSON_FIELDS, hit)


@st.composite
def families(
    draw: st.DrawFn,
    paths: Sequence[str],
    items: st.SearchStrategy[st.SearchStrategy[Any]],
    rest: st.SearchStrategy[dict[str, Any]],
    together: Callable[[str, list[Any], dict[str, Any]], Any],
    *,
    most: int = 3,
) -> list[Asked]:
    """Calls about the items of one pool. together: the body of such a call."""
    path, beside, kind = draw(st.sampled_from(paths)), draw(rest), draw(items)
    pool = draw(st.lists(kind, min_size=2, max_size=4, unique_by=repr))
    if draw(st.integers(0, 15)) == 0:
        pool.append(POISON)
    seed = draw(SEEDS)
    return [
        asked(path, together(path, [pool[at] for at in places], beside), seed + number, hit="extra" not in beside)
        for number, places in enumerate(draw(_choices(len(pool), most)))
    ]


@st.composite
def _choices(draw: st.DrawFn, items: int, most: int = 3) -> list[list[int]]:
    """Which items each call is about: what is drawn, then each of them, then all of them."""
    place = st.integers(0, items - 1)
    found = draw(st.lists(st.lists(place, min_size=1, max_size=most), min_size=1, max_size=2))
    each = [[at] for at in draw(st.permutations(range(items)))]
    return [*found, *each, *([draw(st.permutations(range(items)))] if most > 1 else [])]


@asynccontextmanager
async def _speaking(kind: str) -> AsyncIterator[str]:
    async with speaking(kind) as server:
        yield server.url


@asynccontextmanager
async def _tei(kind: str) -> AsyncIterator[str]:
    async with tei_server(kind=kind) as server:
        yield server.url


# --- V1


def _instances(path: str, items: list[Any], rest: dict[str, Any]) -> Any:
    return rest | {"instances" if path.endswith("predict") else "examples": items}


_WIDE = st.integers(1, 3).map(lambda width: st.lists(NUMBERS, min_size=width, max_size=width))
INSTANCES: Final = st.one_of(
    st.sampled_from([NUMBERS, STRINGS, VALUES, st.fixed_dictionaries({"a": NUMBERS, "é": st.lists(STRINGS)})]), _WIDE
)
V1_REST: Final = st.one_of(UNKNOWN, st.fixed_dictionaries({"signature_name": STRINGS}, optional={"extra": SCALARS}))
V1_PATHS: Final = ("/v1/models/m:predict", "/v1/models/m:classify", "/v1/models/m/versions/3:regress")


@st.composite
def _columns(draw: st.DrawFn) -> list[Asked]:
    """`inputs`: the whole call is the item."""
    bodies = draw(st.lists(st.fixed_dictionaries({"inputs": VALUES}), min_size=3, max_size=4))
    seed, rest = draw(SEEDS), draw(UNKNOWN)
    return [asked("/v1/models/m:predict", rest | body, seed + number) for number, body in enumerate(bodies)]


V1: Final = st.one_of(*[families(V1_PATHS, INSTANCES, V1_REST, _instances)] * 4, _columns())

# --- OpenAI

IDS: Final = st.lists(st.integers(0, 2**17).map(lambda number: Number(str(number))), min_size=1, max_size=4)
EMBEDDED: Final = st.sampled_from([TEXTS, TEXTS, IDS])
EMBEDDINGS_REST: Final = st.builds(
    lambda known, unknown: unknown | known,
    st.fixed_dictionaries(
        {"model": st.sampled_from(MODELS)},
        optional={"encoding_format": st.sampled_from(["float", "base64"]), "dimensions": NUMBERS, "user": STRINGS},
    ),
    UNKNOWN,
)


def _input(path: str, items: list[Any], rest: dict[str, Any]) -> Any:
    """One item alone now and then, in place of a list of one."""
    bare = len(items) == 1 and "user" in rest
    return rest | {"input": items[0] if bare else items}


EMBEDDINGS: Final = families(("/v1/embeddings",), EMBEDDED, EMBEDDINGS_REST, _input)

_MESSAGES = st.lists(
    st.builds(lambda text, more: more | {"role": "user", "content": text}, TEXTS, UNKNOWN), min_size=1, max_size=2
)


@st.composite
def _generated(draw: st.DrawFn) -> list[Asked]:
    """Greedy ones and drawn ones, with every end: only those that would be answered so again are kept."""
    found, seed = [], draw(SEEDS)
    for number in range(draw(st.integers(2, 4))):
        chat = draw(st.booleans())
        body = draw(UNKNOWN) | {"model": draw(st.sampled_from(MODELS))}
        body |= (
            {"messages": draw(_MESSAGES)} if chat else {"prompt": draw(st.one_of(TEXTS, st.lists(TEXTS, max_size=2)))}
        )
        temperature = draw(st.sampled_from([None, "0", "0.0", "0", "0e3", "1", "0.7"]))
        if temperature is not None:
            body["temperature"] = Number(temperature)
        if draw(st.booleans()):
            body["max_tokens"] = Number(str(draw(st.integers(1, 99))))
        if draw(st.integers(0, 9)) == 0:
            body["stream"] = draw(st.booleans())
        greedy = temperature is not None and float(temperature) == 0 and body.get("stream") is not True
        path = "/v1/chat/completions" if chat else "/v1/completions"
        found.append(asked(path, body, seed + number, hit=greedy and "max_tokens" in body))
    return found


@st.composite
def _tgi(draw: st.DrawFn) -> list[Asked]:
    found, seed = [], draw(SEEDS)
    for number in range(draw(st.integers(2, 4))):
        body = draw(UNKNOWN) | {"inputs": draw(TEXTS)}
        known = st.fixed_dictionaries(
            {}, optional={"details": st.booleans(), "max_new_tokens": NUMBERS, "stop": st.lists(TEXTS, max_size=2)}
        )
        parameters = draw(st.one_of(st.none(), known, known, known, known))
        if parameters is not None:
            body["parameters"] = parameters | draw(UNKNOWN)
        drawn = draw(st.sampled_from([{}, {}, {}, {}, {"do_sample": True}, {"temperature": Number("0.7")}]))
        if parameters is not None:
            body["parameters"] |= drawn
        path = draw(st.sampled_from(["/generate", "/generate", "/generate", "/", "/generate_stream"]))
        greedy = parameters is not None and not drawn and path != "/generate_stream"
        found.append(asked(path, body, seed + number, hit=greedy))
    return found


# --- TEI

LETTERS: Final = st.text('abé"\\ 😀\n', min_size=1, max_size=5)
TEI_IDS: Final = st.lists(st.integers(0, 999).map(lambda number: Number(str(number))), min_size=1, max_size=4)
TEI_REST: Final = st.builds(
    lambda known, unknown: known | unknown,
    st.fixed_dictionaries({}, optional={"truncate": st.booleans(), "normalize": st.booleans(), "prompt_name": TEXTS}),
    UNKNOWN,
)


def _inputs(path: str, items: list[Any], rest: dict[str, Any]) -> Any:
    bare = len(items) == 1 and "truncate" in rest
    return rest | {"ids" if path == "/decode" else "inputs": items[0] if bare else items}


TEI_EMBEDDING: Final = st.one_of(
    families(("/embed", "/embed_all"), st.sampled_from([LETTERS, TEI_IDS]), TEI_REST, _inputs),
    families(("/tokenize",), st.just(LETTERS), TEI_REST, _inputs),
    families(("/decode",), st.just(TEI_IDS), TEI_REST, _inputs),
    families(
        ("/similarity",),
        st.just(LETTERS),
        TEI_REST,
        lambda _, items, rest: rest | {"inputs": {"source_sentence": items[0], "sentences": items}},
    ),
)
TEI_CLASSIFIER: Final = families(
    ("/predict",),
    st.just(st.lists(LETTERS, min_size=1, max_size=2)),
    TEI_REST,
    lambda _, items, rest: rest | {"inputs": items},
)
TEI_RERANKER: Final = families(
    ("/rerank",),
    st.just(LETTERS),
    st.builds(lambda rest, query, text: rest | {"query": query, "return_text": text}, TEI_REST, LETTERS, st.booleans()),
    lambda _, items, rest: rest | {"texts": items},
)

# --- JSON map

LIST_ROUTE: Final = """
  - id: score
    match: {path: /score}
    protocol: json_map
    rows: true
    json_map: {items: /data/rows, results: /out/scores}
"""
SINGLE_ROUTE: Final = """
  - id: label
    match: {path: /label}
    protocol: json_map
    rows: true
    json_map:
      {items: /texts, results: /labels, batch_path: /label_batch, item: /text, result: /label, shared: [/scale, /x/y]}
"""
OPAQUE_ROUTE: Final = """
  - id: opaque
    match: {path: /opaque}
    protocol: json_map
"""
LISTS: Final = families(
    ("/score",), INSTANCES, UNKNOWN, lambda _, items, rest: rest | {"data": {"more": rest, "rows": items}}
)
SINGLES: Final = families(
    ("/label",),
    INSTANCES,
    st.fixed_dictionaries({}, optional={"scale": VALUES, "x": st.fixed_dictionaries({"y": VALUES})}),
    lambda _, items, rest: rest | {"text": items[0]},
    most=1,
)
OPAQUE: Final = st.lists(
    st.builds(
        lambda body, kind: Asked("/opaque", body, (("Content-Type", kind),)),
        st.one_of(st.binary(max_size=30), VALUES.map(lambda value: written(value, random.Random(1)))),
        st.sampled_from(["application/octet-stream", "text/plain", "application/json"]),
    ),
    min_size=2,
    max_size=4,
)

# --- V2, before a real Triton

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
def _echoed(draw: st.DrawFn, *, binary: bool) -> list[Asked]:
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
    for number, chosen in enumerate(draw(_choices(len(pool)))):
        tensors = [one.text([pool[at][place] for at in chosen]) for place, one in enumerate(inputs)]
        body = beside | {"inputs": [said for said, _ in tensors]}
        if draw(st.booleans()):
            body["id"] = draw(st.sampled_from(["7", "é\n", 'q"', "a b"]))
        binary = any(one.binary for one in inputs)
        odd = draw(st.integers(0, 7)) == 0  # data or a size whose name is written with escapes is not read
        head, blobs = written(body, random.Random(seed + number), odd=odd), b"".join(data for _, data in tensors)
        fields: tuple[tuple[str, str], ...] = JSON_FIELDS
        if binary:
            fields = (("Content-Type", "application/octet-stream"), (HEAD_LENGTH, str(len(head))))
        found.append(Asked(path, head + blobs, fields, hit=not odd and not hidden))
    return found


@st.composite
def _mixed(draw: st.DrawFn) -> list[Asked]:
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
def _undeclared(draw: st.DrawFn) -> list[Asked]:
    """A model without a batch dimension, of which the route says that its rows are items."""
    one = Input("X", "FP32", draw(st.integers(1, 3)), draw(st.booleans()), draw(st.booleans()))
    rows = st.tuples(st.lists(_elements("FP32"), min_size=one.width, max_size=one.width))
    return draw(
        _called("/v2/models/whole/infer", [one], {}, draw(st.lists(rows, min_size=2, max_size=3, unique_by=repr)))
    )


V1_ROUTE: Final = "\n  - {id: v1, match: {path: /v1/*}, rows: true}\n"
WHOLE_ROUTE: Final = "\n  - {id: whole, match: {path: /v2/models/whole/*}, rows: true}\n"
RERANK_ROUTE: Final = "\n  - {id: rerank, match: {path: /rerank}, rows: true}\n"

FORMS: Final = (
    Form("v2 json", st.one_of(_echoed(binary=False), _mixed()), "v2", models=("echo", "mixed")),
    Form("v2 binary", _echoed(binary=True), "v2", models=("echo",)),
    Form("v2 undeclared", _undeclared(), "v2", models=("whole",), routes=WHOLE_ROUTE),
    Form("v1", V1, "v1", lambda: _speaking("v1"), ("m",), V1_ROUTE),
    Form("openai embeddings", EMBEDDINGS, "openai_embeddings", lambda: _speaking("openai"), MODELS),
    Form("openai generation", _generated(), "openai_generation", lambda: _speaking("openai"), MODELS, joins=False),
    Form("tgi", _tgi(), "tgi", lambda: _speaking("tgi"), joins=False),
    Form("tei embedding", TEI_EMBEDDING, "tei", lambda: _tei("embedding")),
    Form("tei classifier", TEI_CLASSIFIER, "tei", lambda: _tei("classifier")),
    Form("tei reranker", TEI_RERANKER, "tei", lambda: _tei("reranker"), routes=RERANK_ROUTE),
    Form("json map of lists", LISTS, "json_map", lambda: _speaking(""), routes=LIST_ROUTE),
    Form("json map of singles", SINGLES, "json_map", lambda: _speaking(""), routes=SINGLE_ROUTE, partly=False),
    Form("json map of bytes", OPAQUE, "json_map", lambda: _speaking(""), routes=OPAQUE_ROUTE, joins=False),
)


def without_usage(said: Any) -> Any:
    """An answer without what its head calls estimated."""
    return {name: value for name, value in said.items() if name != "usage"} if isinstance(said, dict) else said


def is_json(body: bytes) -> bool:
    try:
        lexed(body)
    except (ValueError, RecursionError):
        return False
    return True
