"""What a real Triton does, on which the codec relies; an upgrade that changes it is noticed here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proxy.protocols import v2_metadata
from proxy.protocols.codec import Call, Endpoint, Message, Part
from proxy.protocols.v2 import V2, V2Call
from proxy.terms import Identity, Model, Reason, Rows
from tests.parts import triton_model
from tests.parts.triton import DYNAMIC, ROWS, Triton, living

CODEC = V2()


def parse(name: str, body: bytes, asked: Model) -> Call | Reason:
    return CODEC.parse(Endpoint(name), Message(body), asked)


def split(body: bytes, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
    return CODEC.split(Message(body), parts, request_id)


def x(data: str, shape: str = "[1,1]", datatype: str = "FP32", top: str = "") -> bytes:
    return f'{{{top}"inputs":[{{"name":"X","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}'.encode()


def echoed(data: str, datatype: str, shape: str = "[1,1]") -> bytes:
    name = "STRING" if datatype == "BYTES" else datatype
    return x(data, shape, datatype).replace(b'"X"', b'"I_%b"' % name.encode())


def model(triton: Triton, name: str) -> Model:
    promised = v2_metadata.promised(triton.request("GET", v2_metadata.config_path(name)).body)
    return Model(name, *promised, identity=Identity(("1",), 0.0, "", known=True))


def ask(triton: Triton, body: bytes, name: str = "rows") -> dict[str, object]:
    answer = triton.infer(name, body)
    assert answer.status == 200, answer
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def data_of(answer: dict[str, object]) -> object:
    outputs = answer["outputs"]
    assert isinstance(outputs, list)
    return outputs[0]["data"]


def test_the_server_ends_with_its_block_and_leaves_nothing() -> None:
    """A test run leaves no process, no shared memory and no file behind; after a stop the same port serves again."""
    with Triton(ROWS) as triton:
        first = triton.pid
        assert repr(triton) == f"<Triton {triton.url} pid={first} models=rows>"
        triton.stop()
        assert repr(triton) == f"<Triton {triton.url} stopped models=rows>"
        triton.start()
        assert data_of(ask(triton, x("[1]"))) == [3.0]
        assert len(living(triton.pid)) == 2  # the server and the model's own process
        second, folder = triton.pid, triton._folder
    assert not folder.exists()
    assert not list(Path("/dev/shm").glob(f"{folder.name}*"))
    assert not living(first)
    assert not living(second)


def test_a_reload_in_place_changes_answers_and_starts_the_counters_anew(triton: Triton) -> None:
    """Metadata and config say nothing of a reload; a counter that falls is what gives it away, an ensemble's too."""
    paths = [v2_metadata.config_path("ensemble"), v2_metadata.metadata_path("rows")]
    try:
        for name in ("rows", "ensemble"):
            assert data_of(ask(triton, x("[1]"), name)) == [3.0]
        before = [json.loads(triton.request("GET", path).body) for path in paths]  # the order of a map may change
        counted = [
            v2_metadata.counters(triton.request("GET", v2_metadata.stats_path(m)).body) for m in ("rows", "ensemble")
        ]
        triton.reload("rows", weight=10)
        assert [json.loads(triton.request("GET", path).body) for path in paths] == before
        for name, old in zip(("rows", "ensemble"), counted, strict=True):
            new = v2_metadata.counters(triton.request("GET", v2_metadata.stats_path(name)).body)
            assert old is not None and new is not None
            assert any(new[key] < count for key, count in old.items())
            assert data_of(ask(triton, x("[1]"), name)) == [11.0]
    finally:
        triton.reload("rows", weight=ROWS.weight)


def test_facts_come_from_the_models_own_config(triton: Triton) -> None:
    """Each model's config says whether its rows are items, how many it takes, and what computes at once."""
    triton.add(replace(DYNAMIC, instances=2))
    try:
        found = {
            name: (m.rows, m.max_batch_size, m.instances) for name in triton.models() if (m := model(triton, name))
        }
        assert found == {
            "rows": (Rows.ITEMS, 32, 1),
            "mixed": (Rows.ITEMS, 32, 1),
            "echo": (Rows.ITEMS, 32, 1),
            "constant": (Rows.ITEMS, 32, 1),
            "dynamic": (Rows.ITEMS, 32, 2),
            "whole": (Rows.WHOLE, 0, 1),
            "sequence": (Rows.WHOLE, 32, 1),
            "ensemble": (Rows.WHOLE, 32, 1),
        }
        assert v2_metadata.versions(triton.request("GET", v2_metadata.metadata_path("rows")).body) == ("1",)
    finally:
        triton.remove("dynamic")
    assert v2_metadata.promised(triton.request("GET", v2_metadata.config_path("nosuch")).body) == v2_metadata.UNDECLARED
    assert v2_metadata.counters(triton.request("GET", v2_metadata.stats_path("nosuch")).body) is None


def test_the_model_under_test_computes_what_the_reference_says(triton: Triton) -> None:
    """The function that the tests expect answers from is the one that the server runs."""
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    expected = triton_model.rows({"X": rows}, ROWS.weight)["Y"]
    assert data_of(ask(triton, x("[1,2,3,4,5,6]", "[2,3]"))) == expected.ravel().tolist()


@pytest.mark.parametrize("data", ["[1,2,3,4]", "[[1,2],[3,4]]", "[ [1 , 2],\n [3, 4] ]", "[1.0,2e0,3,4]"])
def test_joined_callers_get_what_they_get_alone(triton: Triton, data: str) -> None:
    """Byte for byte, id included: what the codec makes of a joined answer is what Triton answers each caller."""
    bodies = [x(data.replace("4", last), "[2,2]", top=f'"id":"caller-{last}",') for last in ("4", "5", "6")]
    _compare(triton, bodies, "rows")


def test_joined_callers_of_many_tensors_get_what_they_get_alone(triton: Triton) -> None:
    """Several inputs and outputs, 64-bit integers, text and truth values find their ways back."""
    bodies = [
        b'{"outputs":[{"name":"U"},{"name":"T"},{"name":"V"}],"inputs":['
        b'{"name":"C","shape":[%(n)d,1],"datatype":"BYTES","data":[%(text)b]},'
        b'{"name":"A","shape":[%(n)d,3],"datatype":"FP32","data":[%(floats)b]},'
        b'{"name":"B","shape":[%(n)d,2],"datatype":"INT64","data":[%(ints)b]}]}'
        % {
            b"n": n,
            b"text": b",".join([b'"\\u00e9\\"]\\n\xf0\x9f\x98\x80%d"' % row for row in range(n)]),
            b"floats": b",".join([b"%d,-1.5,0" % row for row in range(n)]),
            b"ints": b",".join([b"-9223372036854775808,%d" % (2**63 - 1 - row) for row in range(n)]),
        }
        for n in (1, 3, 2)
    ]
    _compare(triton, bodies, "mixed")


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("BOOL", "[true,false]"),
        ("INT8", "[-128,127]"),
        ("INT16", "[-32768,32767]"),
        ("INT32", "[-2147483648,2147483647]"),
        ("INT64", "[-9223372036854775808,-0]"),
        ("UINT8", "[0,255]"),
        ("UINT16", "[0,65535]"),
        ("UINT32", "[0,4294967295]"),
        ("UINT64", "[0,18446744073709551615]"),
        ("FP32", "[NaN,-Infinity]"),
        ("FP64", "[0.1,-0.0]"),
        ("BYTES", '["","\\ud83d\\ude00\\u0000"]'),
    ],
)
def test_every_datatype_that_json_carries_is_joined(triton: Triton, datatype: str, data: str) -> None:
    """The ends of each datatype's range come back as Triton writes them."""
    _compare(
        triton, [echoed(data, datatype, "[2,1]"), echoed(data, datatype, "[1,2]").replace(b"[1,2]", b"[2,1]")], "echo"
    )


def _compare(triton: Triton, bodies: list[bytes], name: str) -> None:
    asked = model(triton, name)
    calls = [parse(name, body, asked) for body in bodies]
    parts = [Part(call, tuple(range(len(call.items)))) for call in calls if isinstance(call, V2Call)]
    assert len(parts) == len(bodies)
    joined = triton.infer(name, CODEC.join(parts, "forebay-7", [0.0] * len(parts)).body)
    results = split(joined.body, parts, "forebay-7")
    assert results is not None
    for body, part, own in zip(bodies, parts, results, strict=True):
        alone = triton.infer(name, body)
        assert alone.status == 200
        assert CODEC.answer(part.call, own) == Message(alone.body)
        assert split(alone.body, [part], None) == [own]


def test_a_model_that_does_not_answer_by_rows_is_found_out(triton: Triton) -> None:
    """A model may break its config's promise: then the answer does not split, and nobody gets a stranger's row."""
    asked = model(triton, "constant")
    call = parse("constant", x("[1,2]", "[2,1]"), asked)
    assert isinstance(call, V2Call)
    two, one = Part(call, (0, 1)), Part(call, (0,))
    answer = triton.infer("constant", CODEC.join([two], "r", [0.0]).body)
    assert split(answer.body, [two], "r") is None
    assert split(answer.body, [one], "r") == [[answer.body.replace(b'"id":"r",', b"")]]


def test_an_ensembles_answer_is_kept_whole(triton: Triton) -> None:
    """It carries parameters of its own, so it is never taken apart by rows."""
    answer = triton.infer("ensemble", x("[1,2]", "[2,1]")).body
    assert b'"parameters":{"sequence_id":0' in answer
    for by_rows, results in ((Rows.ITEMS, None), (Rows.WHOLE, [[answer]])):
        call = parse("ensemble", x("[1,2]", "[2,1]"), replace(model(triton, "rows"), rows=by_rows))
        assert isinstance(call, V2Call)
        assert split(answer, [Part(call, tuple(range(len(call.items))))], None) == results


def test_triton_says_the_id_first_and_leaves_an_empty_one_out(triton: Triton) -> None:
    """Where the codec puts an id is where Triton puts it."""
    assert triton.infer("rows", x("[1]", top='"id":"\\u0061b",')).body.startswith(b'{"id":"ab","model_name"')
    assert triton.infer("rows", x("[1]", top='"id":"",')).body.startswith(b'{"model_name"')


def test_triton_takes_the_first_of_two_equal_keys_and_says_nothing(triton: Triton) -> None:
    """Which is why a body with one is never read: msgspec and Python take the last."""
    twice = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","%b":[9],"data":[1]}]}'
    for key in (b"data", b"d\\u0061ta"):
        assert data_of(ask(triton, twice % key)) == [27.0]
        assert parse("rows", twice % key, model(triton, "rows")) is Reason.DUPLICATE_KEY


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (x("[[1,2,3],[4]]", "[2,2]"), 200),  # it looks at the order of elements alone
        (x("[1,[2,3],4]", "[2,2]"), 200),
        (x("[-NaN]"), 200),
        (b"\xef\xbb\xbf" + x("[1]"), 200),
        (x("[1]") + b"\x00", 200),
        (echoed("[300]", "INT8"), 200),  # it keeps the low byte
        (echoed('["@"]', "BYTES").replace(b"@", b"\xff"), 200),
        (x("[]", "[1,0]"), 200),
        (x("[1e400]"), 500),
        (x("[01]"), 500),
        (x("[true]"), 500),
        (echoed("[1.0]", "INT64"), 500),
        (echoed("[18446744073709551616]", "UINT64"), 500),
        (echoed("[1]", "BOOL"), 500),
        (echoed('["\\ud800"]', "BYTES"), 500),
        (echoed("[1.5]", "FP16"), 400),
        (x("[1]", "[2,1]"), 500),
        (x("[]", "[0,1]"), 400),
        (x("[1]", "[]"), 400),
        (x("[1]", "[1.0,1]"), 500),
        (x("[1]", top='"id":7,'), 500),
        (x("[1]", top='"parameters":{"timeout":"5"},'), 500),
    ],
)
def test_what_the_codec_leaves_alone_is_tritons_to_judge(triton: Triton, body: bytes, status: int) -> None:
    """Bodies that are refused here reach a backend that has an answer of its own to them, and errors in one shape."""
    name = "echo" if b'"I_' in body else "rows"
    answer = triton.infer(name, body)
    assert answer.status == status
    assert parse(name, body, model(triton, name)) is Reason.UNPARSED
    if status != 200:
        text = json.loads(answer.body)
        assert list(text) == ["error"]
        assert CODEC.error(status, text["error"]) == json.dumps(text, separators=(",", ":")).encode()


def test_triton_refuses_more_rows_than_the_model_takes(triton: Triton) -> None:
    """An oversized call is the backend's to refuse."""
    body = x(str([1] * 33), "[33,1]")
    assert triton.infer("rows", body).status == 400
    assert parse("rows", body, model(triton, "rows")) is Reason.OVER_LIMIT


def test_triton_knows_one_spelling_of_a_model(triton: Triton) -> None:
    """It decodes no percent signs, so a name in another spelling is another name."""
    for path, status in (
        ("/v2/models/%72ows/infer", 404),
        ("/v2/models/rows/infer/", 404),
        ("/v2/models/rows/infer", 200),
    ):
        assert triton.request("POST", path, x("[1]")).status == status
        assert (CODEC.recognise("POST", path) is not None) == (status == 200)


# --- binary tensors

LENGTH = "Inference-Header-Content-Length"
HALVES = np.array([[0.5, -2.0]], np.float16)
BYTES = {
    "BOOL": b"\x01\x00",
    **{f"{sign}INT{bits}": bytes(range(bits // 4)) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": HALVES.tobytes(),
    "FP32": np.array([np.nan, -0.0], np.float32).tobytes(),
    "FP64": np.array([0.1, -np.inf]).tobytes(),
    "STRING": b"\x03\x00\x00\x00\xff\x00a\x00\x00\x00\x00",
}


def binary_input(name: str, datatype: str, shape: str, blob: bytes) -> str:
    parameters = f'{{"binary_data_size":{len(blob)}}}'
    return f'{{"name":"{name}","shape":{shape},"datatype":"{datatype}","parameters":{parameters}}}'


def request(inputs: str, tail: bytes = b"", more: str = "", top: str = "") -> Message:
    head = f'{{{top}"inputs":[{inputs}]{more}}}'.encode()
    return Message(head + tail, ((LENGTH.encode(), b"%d" % len(head)),) if tail else ())


def send(triton: Triton, name: str, message: Message) -> Message:
    """What Triton answers, with the fields that say how to read it."""
    fields = {name.decode(): value.decode() for name, value in message.fields}
    answer = triton.request("POST", f"/v2/models/{name}/infer", message.body, fields)
    assert answer.status == 200, answer
    binary = answer.headers.get(LENGTH.lower())
    assert answer.headers["content-type"] == ("application/octet-stream" if binary else "application/json")
    return Message(answer.body, ((LENGTH.encode(), binary.encode()),) if binary else ())


def _compare_messages(triton: Triton, name: str, asked_for: list[Message]) -> None:
    """Calls sent singly and joined give the same results, and the same answers to the byte."""
    calls = [CODEC.parse(Endpoint(name), message, model(triton, name)) for message in asked_for]
    parts = [Part(call, tuple(range(len(call.items)))) for call in calls if isinstance(call, V2Call)]
    assert len(parts) == len(asked_for), calls
    joined = CODEC.join(parts, "forebay-7", [0.0] * len(parts))
    results = CODEC.split(send(triton, name, Message(joined.body, joined.fields)), parts, "forebay-7")
    assert results is not None
    for message, part, own in zip(asked_for, parts, results, strict=True):
        alone = send(triton, name, message)
        assert CODEC.answer(part.call, own) == alone
        assert CODEC.split(alone, [part], None) == [own]


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("wanted", [',"parameters":{"binary_data_output":true}', ""])
def test_every_datatype_is_joined_as_bytes(triton: Triton, kind: str, wanted: str) -> None:
    """Binary rows come back as Triton writes them, binary or in JSON, each to its caller."""
    if kind == "FP16" and not wanted:
        wanted = f',"outputs":[{{"name":"O_{kind}","parameters":{{"binary_data":true}}}}]'
    blob = BYTES[kind]
    if kind == "STRING":
        blob = blob if wanted else blob.replace(b"\xff\x00", b"[,")
    datatype = "BYTES" if kind == "STRING" else kind
    two = binary_input(f"I_{kind}", datatype, "[2,1]", blob)
    four = binary_input(f"I_{kind}", datatype, "[4,1]", blob * 2)
    asked_for = [request(two, blob, wanted, '"id":"a",'), request(four, blob * 2, wanted), request(two, blob, wanted)]
    _compare_messages(triton, "echo", asked_for)


def test_callers_of_both_forms_at_once_get_what_they_get_alone(triton: Triton) -> None:
    """Binary inputs beside JSON ones, binary outputs beside JSON ones: every tensor finds its way back."""
    asked_for = []
    for n in (1, 3, 2):
        texts = b"".join(b"\x02\x00\x00\x00%d\n" % row for row in range(n))
        floats = np.arange(3 * n, dtype=np.float32).tobytes()
        inputs = [
            binary_input("C", "BYTES", f"[{n},1]", texts),
            f'{{"name":"B","shape":[{n},2],"datatype":"INT64","data":{[2**62 + n] * 2 * n}}}',
            binary_input("A", "FP32", f"[{n},3]", floats),
        ]
        outputs = ',"outputs":[{"name":"U"},{"name":"T","parameters":{"binary_data":true}},{"name":"V"}]'
        outputs += ',"parameters":{"binary_data_output":false}'
        asked_for.append(request(",".join(inputs), texts + floats, outputs, f'"id":"{n}",'))
    _compare_messages(triton, "mixed", asked_for)


@pytest.mark.parametrize(
    "more",
    [
        ',"parameters":{"binary_data_output":true}',
        ',"outputs":[{"name":"Y","parameters":{"binary_data":true}}]',
        ',"outputs":[{"name":"Y","parameters":{"binary_data":true,"classification":2}}]',
        ',"outputs":[{"name":"Y","parameters":{"classification":1}}]',
        ',"outputs":[{"name":"Y","parameters":{"binary_data":false}}],"parameters":{"binary_data_output":true}',
    ],
)
def test_json_callers_get_the_form_that_they_ask_for(triton: Triton, more: str) -> None:
    """Binary answers to JSON bodies, and classes, are joined and taken apart like any other."""
    inputs = '{"name":"X","shape":[2,2],"datatype":"FP32","data":[1,2,3,%d]}'
    _compare_messages(triton, "rows", [request(inputs % n, more=more, top=f'"id":"{n}",') for n in (4, 5)])


def test_an_ensembles_binary_answer_is_kept_whole(triton: Triton) -> None:
    """It carries parameters of its own, so it is never taken apart by rows, and comes back as it came."""
    blob = np.ones((2, 1), np.float32).tobytes()
    message = request(binary_input("X", "FP32", "[2,1]", blob), blob, ',"parameters":{"binary_data_output":true}')
    alone = send(triton, "ensemble", message)
    call = CODEC.parse(Endpoint("ensemble"), message, model(triton, "ensemble"))
    assert isinstance(call, V2Call) and not call.joins
    results = CODEC.split(alone, [Part(call, (0,))], None)
    assert results is not None
    assert CODEC.answer(call, results[0]) == alone


@pytest.mark.parametrize(
    ("length", "size", "tail", "status"),
    [
        (None, 8, b"12345678", 500),  # no field: all of it should be JSON
        ("0", 8, b"12345678", 400),  # a raw request, all of it the tensor
        ("999", 8, b"12345678", 400),
        ("+{}", 8, b"12345678", 200),
        ("{}", 8, b"1234567", 400),
        ("{}", 8, b"123456789", 400),
        ("{}", 12, b"123456789012", 400),
        ("{}", 4, b"1234", 400),
    ],
)
def test_bytes_that_do_not_add_up_are_tritons_to_judge(
    triton: Triton, length: str | None, size: int, tail: bytes, status: int
) -> None:
    """What is refused here reaches a backend that has an answer of its own to it."""
    head = request(binary_input("X", "FP32", "[1,2]", b"x" * size)).body
    fields = {} if length is None else {LENGTH: length.format(len(head))}
    assert triton.request("POST", "/v2/models/rows/infer", head + tail, fields).status == status
    message = Message(head + tail, tuple((name.encode(), value.encode()) for name, value in fields.items()))
    assert CODEC.parse(Endpoint("rows"), message, model(triton, "rows")) is Reason.UNPARSED
