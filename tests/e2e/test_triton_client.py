"""Promises to whoever asks a real Triton with its own Python client in the client's default mode: binary tensors.

Every call of the client gives through Forebay what it gives without, the first time and when it is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import os
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import tritonclient.http as triton_client
import tritonclient.http.aio as triton_client_aio
from numpy.typing import NDArray
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, shared_memory

from tests.parts import triton_model
from tests.parts.forebay import Running, forebay
from tests.parts.triton import ECHO, ENSEMBLE, MIXED, ROWS, SEQUENCE, SLOW, WHOLE, ServedModel, Triton

CALLERS = 16
SPARE = ServedModel("spare", "rows", ROWS.inputs, ROWS.outputs)  # loaded and unloaded
MODELS = (ECHO, ENSEMBLE, MIXED, ROWS, SEQUENCE, SLOW, SPARE, WHOLE)
NUMBERS = itertools.count(1)  # rows that nobody has asked for yet

Array = NDArray[Any]
R = TypeVar("R")


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    with Triton(*MODELS) as started:
        yield started


class Threads:
    """The client is synchronous: each caller is a thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    async def __call__(self, work: Callable[..., R], *args: Any) -> R:
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args))


@pytest.fixture(scope="module")
def threads() -> Iterator[Threads]:
    with ThreadPoolExecutor(CALLERS) as pool:
        yield Threads(pool)


@pytest.fixture
async def running(triton: Triton) -> AsyncIterator[Running]:
    """A Forebay which knows every model."""
    async with forebay(triton.url) as sidecar:
        for model in MODELS:
            await sidecar.knows(model.name)
        yield sidecar


class Refusal(NamedTuple):
    """An error, as the client shows it."""

    status: str | None
    text: str | None


Ask = Callable[[Any], Any]
"""What a program does with its client."""


def client(url: str) -> Any:
    return triton_client.InferenceServerClient(url.removeprefix("http://"), concurrency=2)


def asked(url: str, ask: Ask) -> Any:
    """What a program gets to see."""
    with contextlib.closing(client(url)) as connected:
        try:
            return seen(ask(connected))
        except InferenceServerException as error:
            return Refusal(error.status(), error.message())


def seen(result: Any) -> Any:
    """A result as plain values: its JSON, and each output's elements, type and shape."""
    if not isinstance(result, (triton_client.InferResult, triton_client_aio.InferResult)):
        return result
    response = result.get_response()
    arrays = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
    return response, {name: (str(a.dtype), a.shape, values(a)) for name, a in arrays.items()}


def values(array: Array) -> Any:
    return array.tolist() if array.size < 4096 else array.tobytes()


def tensor(name: str, array: Array, *, binary: bool = True, datatype: str = "") -> Any:
    made = triton_client.InferInput(name, array.shape, datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def wanted(name: str, *, binary: bool = True, class_count: int = 0) -> Any:
    return triton_client.InferRequestedOutput(name, binary_data=binary, class_count=class_count)


def new_rows(count: int, width: int = 3) -> Array:
    """Rows whose answers are in no cache."""
    first = [next(NUMBERS) for _ in range(count)]
    return np.array([[number + 0.25, -number, 1 / number, *range(width)][:width] for number in first], np.float32)


def mixed(count: int, binary: Sequence[bool] = (True, True, True)) -> list[Any]:
    numbers = [next(NUMBERS) for _ in range(count)]
    arrays: tuple[Array, ...] = (
        np.array([[n, -n, 0.5] for n in numbers], np.float32),
        np.array([[2**62 + n, -(2**62) - n] for n in numbers], np.int64),
        np.array([[f'é "{n}" \\ \u2028\n'.encode()] for n in numbers], object),
    )
    return [tensor(name, array, binary=one) for name, array, one in zip("ABC", arrays, binary, strict=True)]


def on_rows(count: int = 2, **more: Any) -> Ask:
    """One call of the simplest model."""
    inputs = [tensor("X", new_rows(count))]
    return lambda client: client.infer("rows", inputs, **more)


def on(model: str, inputs: list[Any], **more: Any) -> Ask:
    return lambda client: client.infer(model, inputs, **more)


def later(count: int = 2, **more: Any) -> Ask:
    """As `on_rows`, started first and waited for afterwards."""
    inputs = [tensor("X", new_rows(count))]
    return lambda client: client.async_infer("rows", inputs, **more).get_result()


def by_hand(encoding: str) -> Ask:
    """A body that the client makes and reads, and that the program itself sends."""
    body, length = triton_client.InferenceServerClient.generate_request_body([tensor("X", new_rows(2))])
    fields = {"Inference-Header-Content-Length": str(length), "Content-Type": "application/octet-stream"}
    if encoding:
        body, fields = zlib.compress(body), fields | {"Content-Encoding": encoding, "Accept-Encoding": encoding}

    def ask(client: Any) -> Any:
        # The client's own address is the only thing that it is asked for.
        host = f"{client._client_stub.host}:{client._client_stub.port}"
        request = urllib.request.Request(f"http://{host}/v2/models/rows/infer", body, fields)
        with contextlib.closing(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)) as answer:
            return client.parse_response_body(
                answer.read(),
                header_length=int(answer.headers["Inference-Header-Content-Length"]),
                content_encoding=answer.headers.get("Content-Encoding"),
            )

    return ask


def signed_on() -> Ask:
    """A call with credentials, which a plugin of the client adds."""
    inputs = [tensor("X", new_rows(2))]

    def ask(connected: Any) -> Any:
        connected.register_plugin(BasicAuth("user", "password"))
        assert connected.plugin() is not None
        try:
            return connected.infer("rows", inputs)
        finally:
            connected.unregister_plugin()

    return ask


REPEATED: dict[str, Callable[[], Ask]] = {
    "nothing special": on_rows,
    "one row": partial(on_rows, 1),
    "thirty-two rows": partial(on_rows, 32),
    "an id": partial(on_rows, request_id='née "7"'),
    "a version": partial(on_rows, model_version="1"),
    "headers": partial(on_rows, headers={"X-Experiment": "b"}),
    "query": partial(on_rows, query_params={"verbose": [1, 2]}),
    "priority": partial(on_rows, priority=1),
    "timeout": partial(on_rows, timeout=10_000_000),
    "parameters": partial(on_rows, parameters={"temperature": 0.5, "k": "x"}),
    "credentials": signed_on,
    "gzip there": partial(on_rows, request_compression_algorithm="gzip"),
    "deflate there": partial(on_rows, request_compression_algorithm="deflate"),
    "gzip back": partial(on_rows, response_compression_algorithm="gzip"),
    "deflate back": partial(on_rows, response_compression_algorithm="deflate"),
    "gzip both ways": partial(
        on_rows, request_compression_algorithm="gzip", response_compression_algorithm="gzip", request_id="z"
    ),
    "an output, binary": partial(on_rows, outputs=[wanted("Y")]),
    "an output, JSON": partial(on_rows, outputs=[wanted("Y", binary=False)]),
    "classes, binary": partial(on_rows, outputs=[wanted("Y", class_count=2)]),
    "classes, JSON": partial(on_rows, outputs=[wanted("Y", class_count=2, binary=False)]),
    "JSON there, binary back": lambda: on("rows", [tensor("X", new_rows(2), binary=False)]),
    "JSON both ways": lambda: on("rows", [tensor("X", new_rows(2), binary=False)], outputs=[wanted("Y", binary=False)]),
    "later": later,
    "later, with an id and gzip": partial(later, request_id="a", request_compression_algorithm="gzip"),
    "by hand": partial(by_hand, ""),
    "by hand, deflate": partial(by_hand, "deflate"),
    "three inputs, four outputs": lambda: on("mixed", mixed(3), request_id="m"),
    "inputs and outputs of both forms": lambda: on(
        "mixed", mixed(3, (True, False, True)), outputs=[wanted("V"), wanted("U", binary=False), wanted("T")]
    ),
    "text in JSON, numbers in binary": lambda: on(
        "mixed", mixed(2, (False, True, False)), outputs=[wanted("S", binary=False), wanted("U")]
    ),
    "a call that is one item": lambda: on("whole", [tensor("X", new_rows(2))], request_id="w"),
    "an ensemble": lambda: on("ensemble", [tensor("X", new_rows(2))], request_id="e"),
    "three MiB": lambda: on("rows", [tensor("X", new_rows(3, 2**18))]),
}


@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED.keys())
async def test_a_call_gives_the_same_first_and_repeated(
    running: Running, triton: Triton, threads: Threads, make: Callable[[], Ask]
) -> None:
    """Every option and every form: what the program sees is what Triton itself would have shown it."""
    ask = make()
    direct = await threads(asked, triton.url, ask)
    assert not isinstance(direct, Refusal)
    for _ in range(3):
        assert await threads(asked, running.url, ask) == direct
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 1
    assert scrape.total("forebay_requests_total", outcome="hit") == 2


SIZES = (8, 16, 32, 64)
ECHOED: list[tuple[str, Array]] = [
    ("BOOL", np.array([[True, False], [False, False]])),
    *((f"INT{bits}", np.array([[-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], [0, 7]], f"int{bits}")) for bits in SIZES),
    *((f"UINT{bits}", np.array([[0, 2**bits - 1], [1, 7]], f"uint{bits}")) for bits in SIZES),
    ("FP16", np.array([[0.1, -65504.0], [6e-8, -0.0]], np.float16)),
    ("FP32", np.array([[0.1, -3.4028235e38], [1e-45, float("inf")]], np.float32)),
    ("FP64", np.array([[0.1, 1.7976931348623157e308], [5e-324, 1 / 3]], np.float64)),
    ("STRING", np.array([[b"", b"\xff\x00"], ["ü€😀".encode(), b'"\\/\t' * 100]], object)),
]  # fmt: skip


@pytest.mark.parametrize(("datatype", "array"), ECHOED, ids=[datatype for datatype, _ in ECHOED])
async def test_every_datatype_comes_back_to_the_byte(
    running: Running, triton: Triton, threads: Threads, datatype: str, array: Array
) -> None:
    """Rows of any type are kept one by one, and each is found again by itself."""
    whole = on("echo", [tensor(f"I_{datatype}", array)], outputs=[wanted(f"O_{datatype}")])
    direct = await threads(asked, triton.url, whole)
    assert direct[1][f"O_{datatype}"][2] == array.tolist()
    assert await threads(asked, running.url, whole) == direct
    for rows in (array[:1], array[1:], array[::-1], array):
        part = on("echo", [tensor(f"I_{datatype}", rows)], outputs=[wanted(f"O_{datatype}")])
        assert await threads(asked, running.url, part) == await threads(asked, triton.url, part)
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 1
    assert scrape.total("forebay_requests_total", outcome="hit") == 4


FIELDS = ("Content-Type", "Content-Length", "Inference-Header-Content-Length")


@pytest.mark.parametrize("wish", [{"binary_data_output": True}, {}], ids=["binary", "JSON"])
async def test_body_and_fields_are_those_of_triton_to_the_byte(
    running: Running, triton: Triton, wish: dict[str, Any]
) -> None:
    """Type, lengths and body of an answer from the response cache, whole or of rows, and those of a direct one."""

    def request(rows: Array) -> tuple[bytes, dict[str, str]]:
        there = {"name": "X", "shape": rows.shape, "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}
        head = json.dumps({"id": "x", "inputs": [there], "parameters": wish}).encode()
        return head + rows.tobytes(), {FIELDS[2]: str(len(head))}

    rows = new_rows(3)
    seen_by = []
    for part in (rows, rows, rows[::-1], rows[1:2]):
        body, fields = request(part)
        direct = await asyncio.to_thread(triton.request, "POST", "/v2/models/rows/infer", body, fields)
        async with running.session.post(f"{running.url}/v2/models/rows/infer", data=body, headers=fields) as through:
            assert (through.status, await through.read()) == (direct.status, direct.body)
            for name in FIELDS:
                assert through.headers.get(name) == direct.headers.get(name.lower())
            seen_by.append(through.headers["Cache-Status"].partition(";")[2].strip().partition(";")[0])
    assert seen_by == ["fwd=miss", "hit", "hit", "hit"]


async def test_a_call_whose_rows_are_known_in_part_asks_for_the_rest(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """Rows that others have asked for come from the response cache, the new ones from Triton, in the caller's order."""
    known, fresh = new_rows(2), new_rows(1)
    await threads(asked, running.url, on("rows", [tensor("X", known)]))
    ask = on("rows", [tensor("X", np.concatenate([known[1:], fresh, known[:1]]))], request_id="p")
    assert await threads(asked, running.url, ask) == await threads(asked, triton.url, ask)
    assert (await running.scrape()).total("forebay_cache_items_total", result="memory_hit") == 2


async def test_binary_and_json_callers_never_share_an_answer(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """The same rows asked for in four forms are four things: each caller reads the form that it asked for."""
    rows = new_rows(2)
    asks = [
        on("rows", [tensor("X", rows, binary=there)], outputs=[wanted("Y", binary=back)])
        for there, back in itertools.product((True, False), repeat=2)
    ]
    for _ in range(2):
        for ask in asks:
            assert await threads(asked, running.url, ask) == await threads(asked, triton.url, ask)
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 4
    assert scrape.total("forebay_requests_total", outcome="hit") == 4


@pytest.mark.parametrize("back", [True, False])
async def test_joined_callers_each_get_their_own(running: Running, threads: Threads, back: bool) -> None:
    """Many threads at once: few requests reach Triton, and each thread reads its own rows and its own id."""
    rows = [new_rows(1 + number % 3) for number in range(CALLERS)]
    answers = await asyncio.gather(
        *(
            threads(
                asked,
                running.url,
                on("slow", [tensor("X", rows[n])], request_id=f"caller {n}", outputs=[wanted("Y", binary=back)]),
            )
            for n in range(CALLERS)
        )
    )
    for number, (response, arrays) in enumerate(answers):
        assert response["id"] == f"caller {number}"
        expected = triton_model.rows({"X": rows[number]}, SLOW.weight)["Y"]
        assert arrays["Y"] == ("float32", expected.shape, expected.tolist())
    scrape = await running.scrape()
    assert scrape.total("forebay_batch_items_count") < CALLERS / 2
    assert scrape.total("forebay_batch_items_sum") == sum(map(len, rows))
    assert scrape.total("forebay_batch_splits_total") == 0


async def test_callers_of_the_same_rows_share_one_computation(running: Running, threads: Threads) -> None:
    """Many threads ask for the same: one upstream request, and each reads its own id."""
    inputs = [tensor("X", new_rows(2))]
    answers = await asyncio.gather(
        *(threads(asked, running.url, on("slow", inputs, request_id=f"{n}")) for n in range(CALLERS))
    )
    assert [response.pop("id") for response, _ in answers] == [f"{n}" for n in range(CALLERS)]
    assert all(answer == answers[0] for answer in answers)
    assert (await running.scrape()).total("forebay_batch_items_sum") == 2


async def test_callers_of_the_asynchronous_client(running: Running, triton: Triton) -> None:
    """The client for event loops, many calls on one connection pool: each reads its own, first and repeated."""
    rows = [new_rows(1 + number % 3) for number in range(CALLERS)]

    async def ask(connected: Any, number: int) -> Any:
        inputs = [tensor("X", rows[number])]
        packed = "gzip" if number % 2 else None
        return seen(await connected.infer("slow", inputs, request_id=f"{number}", request_compression_algorithm=packed))

    async with triton_client_aio.InferenceServerClient(triton.url.removeprefix("http://")) as connected:
        direct = [await ask(connected, number) for number in range(4)]
        ready, config = await connected.is_server_ready(), await connected.get_model_config("slow")
    async with triton_client_aio.InferenceServerClient(running.url.removeprefix("http://")) as connected:
        for _ in range(2):
            answers = await asyncio.gather(*(ask(connected, number) for number in range(CALLERS)))
            assert answers[:4] == direct
            for number, (response, arrays) in enumerate(answers):
                expected = triton_model.rows({"X": rows[number]}, SLOW.weight)["Y"]
                assert (response["id"], arrays["Y"][2]) == (f"{number}", expected.tolist())
        assert (await connected.is_server_ready(), await connected.get_model_config("slow")) == (ready, config)
        with pytest.raises(InferenceServerException, match="unknown model"):
            await connected.infer("unknown", [tensor("X", rows[0])])
    scrape = await running.scrape()
    assert scrape.total("forebay_batch_items_count") < CALLERS
    assert scrape.total("forebay_requests_total", outcome="hit") == CALLERS


# What passes through.


@pytest.mark.parametrize(("width", "reason"), [(2**18, ""), (2**19, "too_large")], ids=["3 MiB", "6 MiB"])
async def test_bodies_larger_than_one_read(
    running: Running, triton: Triton, threads: Threads, width: int, reason: str
) -> None:
    """Several MiB there and back come through whole, understood or not."""
    ask = on("rows", [tensor("X", new_rows(3, width))], request_id="big")
    assert await threads(asked, running.url, ask) == await threads(asked, triton.url, ask)
    bypassed = (await running.scrape()).total("forebay_requests_total", outcome="bypass")
    assert bypassed == bool(reason)
    if reason:
        assert (await running.scrape()).total("forebay_decisions_total", reason=reason) == 1


async def test_a_sequence_passes_through(running: Running, triton: Triton, threads: Threads) -> None:
    """Calls of a sequence depend on those before them: each reaches the backend, none is stored or joined."""
    inputs = [tensor("X", new_rows(1))]
    places = [
        {"sequence_start": first, "sequence_end": last}
        for first, last in ((True, False), (False, False), (False, True))
    ]

    def ask(connected: Any) -> Any:
        said = [seen(connected.infer("sequence", inputs, sequence_id="s", **place)) for place in places]
        return said + [
            seen(connected.async_infer("sequence", inputs, sequence_id=7, **place).get_result()) for place in places
        ]

    direct = await threads(asked, triton.url, ask)
    assert len(direct) == 6
    assert await threads(asked, running.url, ask) == direct
    scrape = await running.scrape()
    assert scrape.total("forebay_decisions_total", reason="stateful") == 6
    assert scrape.total("forebay_cache_items_total") == 0


async def test_shared_memory_passes_through(running: Running, triton: Triton, threads: Threads) -> None:
    """Tensors that lie in memory are read and written there: registered, used, listed and given up as without us."""
    rows = new_rows(2)
    size = rows.nbytes
    keys = [f"/forebay_{os.getpid()}_{way}" for way in ("there", "back")]
    regions = [shared_memory.create_shared_memory_region(key[1:], key, size) for key in keys]

    def ask(connected: Any) -> Any:
        shared_memory.set_shared_memory_region(regions[0], [rows])
        shared_memory.set_shared_memory_region(regions[1], [np.zeros_like(rows)])
        for key in keys:
            connected.register_system_shared_memory(key[1:], key, size)
        try:
            listed = sorted(connected.get_system_shared_memory_status(), key=str)
            there = triton_client.InferInput("X", rows.shape, "FP32")
            there.set_shared_memory(keys[0][1:], size)
            back = wanted("Y")
            back.set_shared_memory(keys[1][1:], size)
            response = connected.infer("rows", [there], outputs=[back]).get_response()
        finally:
            connected.unregister_system_shared_memory(keys[0][1:])
            connected.unregister_system_shared_memory()
        found = shared_memory.get_contents_as_numpy(regions[1], np.float32, list(rows.shape))
        return listed, response, found.tolist(), connected.get_system_shared_memory_status()

    try:
        direct = await threads(asked, triton.url, ask)
        assert direct[2] == triton_model.rows({"X": rows}, ROWS.weight)["Y"].tolist()
        for _ in range(2):
            assert await threads(asked, running.url, ask) == direct
    finally:
        for region in regions:
            shared_memory.destroy_shared_memory_region(region)
    assert (await running.scrape()).total("forebay_decisions_total", reason="stateful") == 2


REFUSED: dict[str, Callable[[], Ask]] = {
    "a dimension too many": lambda: on("rows", [tensor("X", np.zeros((1, 2, 2), np.float32))], request_id="r"),
    "too many rows": lambda: on("rows", [tensor("X", np.zeros((33, 2), np.float32))], request_id="r"),
    "no rows": lambda: on("rows", [tensor("X", np.zeros((0, 2), np.float32))], request_id="r"),
    "another datatype": lambda: on("rows", [tensor("X", np.zeros((1, 2), np.int32))], request_id="r"),
    "no such input": lambda: on("rows", [tensor("Z", np.zeros((1, 2), np.float32))], request_id="r"),
    "inputs are missing": lambda: on("mixed", mixed(1)[:2], request_id="r"),
    "no such output": partial(on_rows, outputs=[wanted("Q")], request_id="r"),
    "FP16 in JSON": lambda: on(
        "echo", [tensor("I_FP16", np.zeros((1, 1), np.float16))], outputs=[wanted("O_FP16", binary=False)]
    ),
    "no sequence id": lambda: on("sequence", [tensor("X", new_rows(1))], request_id="r"),
    "no such model": lambda: on("unknown", [tensor("X", new_rows(1))], request_id="r"),
    "no such version": partial(on_rows, model_version="9"),
    "later": lambda: lambda client: client.async_infer("unknown", [tensor("X", new_rows(1))]).get_result(),
    "a parameter of the client's own": partial(on_rows, parameters={"binary_data_output": False}),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
async def test_a_refusal_is_tritons_own(
    running: Running, triton: Triton, threads: Threads, make: Callable[[], Ask]
) -> None:
    """The exception's status and text are those of a direct call, however often it is asked."""
    ask = make()
    direct = await threads(asked, triton.url, ask)
    assert isinstance(direct, Refusal)
    for _ in range(2):
        assert await threads(asked, running.url, ask) == direct


async def test_callers_that_are_refused_together_each_read_their_own_id(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """Bad calls of many threads at once, joined or not, among good ones: every text quotes the thread's own request."""
    bad, good = [tensor("X", np.zeros((1, 2), np.int32))], [tensor("X", new_rows(1, 2)) for _ in range(CALLERS)]
    direct = await threads(asked, triton.url, on("slow", bad, request_id="n1"))
    assert "n1" in direct.text
    answers = await asyncio.gather(
        *(
            threads(asked, running.url, on("slow", bad if n % 3 else [good[n]], request_id=f"n{n}"))
            for n in range(CALLERS)
        )
    )
    for number, answer in enumerate(answers):
        if number % 3:
            assert answer == Refusal(direct.status, direct.text.replace("n1", f"n{number}"))
        else:
            assert answer[0]["id"] == f"n{number}"


def came_and_went(connected: Any) -> Any:
    """A model unloaded, asked while it is away, loaded and asked again."""
    inputs = [tensor("X", np.ones((1, 2), np.float32))]
    said: list[Any] = [connected.unload_model("spare", unload_dependents=True)]
    given_up = time.monotonic() + 30
    while connected.is_model_ready("spare"):  # Triton unloads after it has answered
        assert time.monotonic() < given_up
    try:
        connected.infer("spare", inputs)
    except InferenceServerException as error:
        said.append((error.status(), error.message()))
    said.append(connected.load_model("spare"))
    return [*said, connected.is_model_ready("spare"), seen(connected.infer("spare", inputs))]


QUESTIONS: dict[str, list[Ask]] = {
    "is_server_live": [lambda c: c.is_server_live(headers={"X-A": "b"}, query_params={"q": "1"})],
    "is_server_ready": [lambda c: c.is_server_ready()],
    "is_model_ready": [lambda c: [c.is_model_ready("rows"), c.is_model_ready("rows", "1"), c.is_model_ready("none")]],
    "get_server_metadata": [lambda c: c.get_server_metadata()],
    "get_model_metadata": [lambda c: c.get_model_metadata("mixed", "1"), lambda c: c.get_model_metadata("none")],
    "get_model_config": [lambda c: c.get_model_config("mixed"), lambda c: c.get_model_config("none", "1")],
    "get_model_repository_index": [lambda c: sorted(c.get_model_repository_index(), key=str)],
    "load_model": [lambda c: c.load_model("none"), lambda c: c.load_model("rows", config="{")],
    "unload_model": [lambda c: c.unload_model("none")],
    "get_inference_statistics": [lambda c: c.get_inference_statistics("mixed", "1")],
    "update_trace_settings": [
        lambda c: c.update_trace_settings(settings={"trace_level": ["OFF"], "trace_rate": 1000}),
        lambda c: c.update_trace_settings("rows", {"trace_count": 5}),
        lambda c: c.update_trace_settings(settings={"none": 1}),
    ],
    "get_trace_settings": [lambda c: c.get_trace_settings(), lambda c: c.get_trace_settings("rows")],
    "update_log_settings": [
        lambda c: c.update_log_settings({"log_verbose_level": 0}),
        lambda c: c.update_log_settings({"none": True}),
    ],
    "get_log_settings": [lambda c: c.get_log_settings()],
    "get_system_shared_memory_status": [lambda c: c.get_system_shared_memory_status("none")],
    "register_system_shared_memory": [lambda c: c.register_system_shared_memory("none", "/forebay_none", 8)],
    "unregister_system_shared_memory": [lambda c: c.unregister_system_shared_memory("none")],
    "get_cuda_shared_memory_status": [lambda c: c.get_cuda_shared_memory_status()],
    "register_cuda_shared_memory": [lambda c: c.register_cuda_shared_memory("none", b"aGFuZGxl", 0, 8)],
    "unregister_cuda_shared_memory": [lambda c: c.unregister_cuda_shared_memory()],
}
ELSEWHERE = {"infer", "async_infer", "generate_request_body", "parse_response_body", "close"}
ELSEWHERE |= {"plugin", "register_plugin", "unregister_plugin"}


@pytest.mark.parametrize("asks", QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_every_other_call_is_answered_as_by_triton(
    running: Running, triton: Triton, threads: Threads, asks: list[Ask]
) -> None:
    """Health, metadata, repository, settings, memory: what Forebay has no part in is the same with and without it."""
    for ask in asks:
        direct = await threads(asked, triton.url, ask)
        for _ in range(2):
            assert await threads(asked, running.url, ask) == direct


async def test_a_model_that_came_and_went(running: Running, triton: Triton, threads: Threads) -> None:
    """A program that unloads and loads its model sees it go and come back."""
    assert await threads(asked, running.url, came_and_went) == await threads(asked, triton.url, came_and_went)


def test_no_call_of_the_client_is_left_out() -> None:
    """A client with a new call makes this fail until it is tried, too; the asynchronous one has no other."""
    for kind in (triton_client.InferenceServerClient, triton_client_aio.InferenceServerClient):
        calls = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        assert calls <= QUESTIONS.keys() | ELSEWHERE
    assert QUESTIONS.keys() <= calls
