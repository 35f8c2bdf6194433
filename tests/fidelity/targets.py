"""What hostile bodies are thrown at: every codec and each of its operations, with bodies that it takes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.protocols.codec import Codec, Endpoint, Message
from proxy.protocols.json_map import JsonMap, JsonMapSettings
from proxy.protocols.openai_embeddings import OpenAIEmbeddings
from proxy.protocols.openai_generation import OpenAIGeneration
from proxy.protocols.tei import TEI
from proxy.protocols.tgi import TGI
from proxy.protocols.v1 import V1
from proxy.protocols.v2 import V2
from proxy.terms import Headers
from tests.fidelity.lexed import HEAD_LENGTH, Number, lexed

LISTS: Final = JsonMapSettings(items="/data/rows", results="/out/scores")
SINGLES: Final = JsonMapSettings(
    items="/texts",
    results="/labels",
    batch_path="/label_batch",
    item="/text",
    result="/label",
    shared=("/scale", "/x/y"),
)


def _as_is(body: Any) -> Any:
    return body


def _texts(body: Any) -> Any:
    """One item alone is a list of it."""
    if not isinstance(body, dict):
        return body
    given = body.get("input", body.get("inputs"))
    ids = isinstance(given, list) and all(isinstance(one, Number) for one in given)
    return body | {"input": [given] if ids or isinstance(given, str) else given, "inputs": None}


def _frame(body: Any) -> Any:
    """Without what is for one caller alone."""
    left = {name: value for name, value in body.items() if name not in ("id", "parameters")}
    parameters = body.get("parameters", {})
    left["parameters"] = {name: value for name, value in parameters.items() if name not in ("timeout", "priority")}
    return left


@dataclass(frozen=True)
class Target:
    """path: where a request goes. meaning: what of a body, as `lexed` has it, two calls with one key must share.

    misread: answers of which more was made once than they say.
    """

    codec: Codec
    path: str
    valid: tuple[bytes, ...]
    fields: Headers = ()
    meaning: Callable[[Any], Any] = _as_is
    name: str = ""
    misread: tuple[bytes, ...] = ()

    @property
    def endpoint(self) -> Endpoint:
        found = self.codec.recognise("POST", self.path)
        assert found is not None, self
        return found

    def message(self, body: bytes) -> Message:
        """With binary tensors the head may have any length: what stands behind it keeps its own."""
        return Message(body, ((self.fields[0][0], b"%d" % self.head(body)),) if self.fields else ())

    def head(self, body: bytes) -> int:
        """Where the JSON of a body ends."""
        behind = len(self.valid[0]) - int(self.fields[0][1]) if self.fields else 0
        return max(1, len(body) - behind)

    def meant(self, body: bytes) -> Any:
        """Raises ValueError for what means different things to different readers."""
        if self.fields:
            length = self.head(body)
            return self.meaning(lexed(body[:length])), body[length:]
        return body if self.name == "opaque" else self.meaning(lexed(body))

    def __repr__(self) -> str:
        return self.name or f"{self.codec.name} {self.path}"


def _binary(head: bytes, blobs: bytes) -> tuple[bytes, Headers]:
    return head + blobs, ((HEAD_LENGTH.encode(), b"%d" % len(head)),)


_HEAD = (
    b'{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}},'
    b'{"name":"y","datatype":"BYTES","shape":[2,1],"parameters":{"binary_data_size":11}}],'
    b'"outputs":[{"name":"z","parameters":{"binary_data":true}}]}'
)
BINARY, BINARY_FIELDS = _binary(_HEAD, struct.pack("<4f", 1, 2, 3, 4) + b"\x02\x00\x00\x00ab\x01\x00\x00\x00c")

TARGETS: Final[Sequence[Target]] = (
    Target(
        V2(),
        "/v2/models/m/infer",
        (
            b'{"inputs":[{"name":"x","datatype":"INT64","shape":[2,2],"data":[1,2,-3,9223372036854775807]}]}',
            b'{"id":"a","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[[1e-7,1.0]]},'
            b'{"name":"y","datatype":"BYTES","shape":[1,1],"data":["\\u00e9]\\\\"]}],"outputs":[{"name":"z"}],'
            b'"parameters":{"timeout":5000,"k":[1,{"a":null}]},"unknown":{"a":[1],"ids":"b"}}',
        ),
        meaning=_frame,
        misread=(
            b'{"error":"busy"}',
            b"{}",
            b'{"model_name":"m","outputs":[{"name":"y","datatype":"UINT64","shape":[2,1],"data":[1- 2]}]}',
            b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[2,1],"data":[nan,1]}]}',
        ),
    ),
    Target(V2(), "/v2/models/m/infer", (BINARY,), BINARY_FIELDS, _frame, "v2 binary"),
    Target(
        V1(),
        "/v1/models/m:predict",
        (
            b'{"instances":[1,2,3]}',
            b'{"signature_name":"s","instances":[{"a":1.0,"b":"x"},{"a":2.5,"b":"\\u00e9"}],"x":{"y":[1,1.0]}}',
            b'{"inputs":{"a":[[1]],"b":"x"},"signature_name":"s"}',
        ),
    ),
    Target(V1(), "/v1/models/m/versions/3:classify", (b'{"context":{"a":1},"examples":[{"x":[1]},{"x":[2]}]}',)),
    Target(
        OpenAIEmbeddings(),
        "/v1/embeddings",
        (
            b'{"model":"small","input":["a","b\\u00e9"],"dimensions":3,"user":"u"}',
            b'{"input":"text","model":"small","encoding_format":"base64"}',
            b'{"model":"large","input":[1,2,3]}',
            b'{"model":"large","input":[[1,2],[3]],"x":{"y":[1.0]}}',
        ),
        meaning=_texts,
        misread=(b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":"\xc1ADK"}],"model":"small"}',),
    ),
    Target(
        OpenAIGeneration(),
        "/v1/chat/completions",
        (
            b'{"model":"small","temperature":0,"messages":[{"role":"user","content":"hi"}],"max_tokens":5}',
            b'{"messages":[{"content":[{"type":"text","text":"x"}],"role":"user"}],"temperature":0.0,"tools":[],"x":1}',
        ),
    ),
    Target(
        OpenAIGeneration(), "/v1/completions", (b'{"model":"small","prompt":["a"],"temperature":0,"max_tokens":1}',)
    ),
    Target(
        TGI(),
        "/generate",
        (
            b'{"inputs":"hi","parameters":{"max_new_tokens":5,"details":true,"stop":["x"]}}',
            b'{"parameters":{},"inputs":"\\u00e9","stream":false,"x":[1.0]}',
        ),
    ),
    Target(
        TEI(),
        "/embed",
        (b'{"inputs":["a","\\u00e9"],"truncate":true,"x":1.0}', b'{"inputs":"a"}', b'{"inputs":[1,2]}'),
        meaning=_texts,
    ),
    Target(TEI(), "/", (b'{"inputs":"hi","parameters":{"x":[1.0]}}', b'{"inputs":"\\u00e9"}'), misread=(b"garbage",)),
    Target(
        TEI(),
        "/rerank",
        (b'{"query":"q","texts":["a","b"],"return_text":true}',),
        misread=(b'[{"index": 0, "score": 59.0}, {"index":-0,"index": 1, "score": 9.25}]',),
    ),
    Target(
        JsonMap(LISTS),
        "/score",
        (b'{"data":{"rows":[1,{"a":2.0},"x"],"more":[]},"y":null}', b'{"data":{"rows":[[1]]}}'),
        name="json map of lists",
    ),
    Target(
        JsonMap(SINGLES),
        "/label",
        (b'{"text":"a","scale":1.0,"x":{"y":[1]}}', b'{"text":{"a":[1]}}'),
        name="json map of singles",
    ),
    Target(JsonMap(JsonMapSettings()), "/opaque", (b"\x00\xff", b'{"a":1}'), name="opaque"),
)
