"""The table of what Forebay speaks: for every protocol and every form of it, valid requests and who answers them.

Each strategy gives a handful of calls that may meet: they share what stands beside the items, and take their items from
a few, so that a call is wholly known, partly known or new by what was asked before it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tests.fidelity.lexed import Number, written
from tests.fidelity.speaking import MODELS, POISON, speaking
from tests.fidelity.stage import JSON, Asked
from tests.fidelity.v2_calls import echoed, mixed, undeclared
from tests.fidelity.values import FLOATS, NUMBERS, SCALARS, SEEDS, STRINGS, TEXTS, UNKNOWN, VALUES, choices
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
    found: handfuls to ask first.
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


def asked(path: str, body: Any, seed: int, *, hit: bool | None = True) -> Asked:
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
    hit = None if "extra" in beside else True
    return [
        asked(path, together(path, [pool[at] for at in places], beside), seed + number, hit=hit)
        for number, places in enumerate(draw(choices(len(pool), most)))
    ]


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
    st.sampled_from(
        [
            FLOATS,
            STRINGS,
            FLOATS,
            STRINGS,
            NUMBERS,
            VALUES,
            st.fixed_dictionaries({"a": NUMBERS, "é": st.lists(STRINGS)}),
        ]
    ),
    _WIDE,
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
        hit = greedy if not greedy or "max_tokens" in body else None  # it may have ended for length, unasked
        found.append(asked(path, body, seed + number, hit=hit))
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

# --- The table

V1_ROUTE: Final = "\n  - {id: v1, match: {path: /v1/*}, rows: true}\n"
WHOLE_ROUTE: Final = "\n  - {id: whole, match: {path: /v2/models/whole/*}, rows: true}\n"
RERANK_ROUTE: Final = "\n  - {id: rerank, match: {path: /rerank}, rows: true}\n"

PARTLY: Final = [
    Asked("/v1/models/m:predict", b'{"instances":[%b]}' % items) for items in (b"1.5", b"2.5", b"1.5,2.5,3.5", b"3.5")
]
"""Calls that join and of which one is partly known: what is drawn may mix forms of instances all too often."""

FORMS: Final = (
    Form("v2 json", st.one_of(echoed(binary=False), mixed()), "v2", models=("echo", "mixed")),
    Form("v2 binary", echoed(binary=True), "v2", models=("echo",)),
    Form("v2 undeclared", undeclared(), "v2", models=("whole",), routes=WHOLE_ROUTE),
    Form("v1", V1, "v1", lambda: _speaking("v1"), ("m",), V1_ROUTE, found=(PARTLY,)),
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
