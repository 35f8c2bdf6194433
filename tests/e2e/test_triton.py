"""Promises to whoever puts Forebay before a real Triton and asks it with Triton's own Python client, in JSON mode."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import tritonclient.http as triton_client
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from proxy.upstream.models import EVERY
from tests.parts import triton_model
from tests.parts.forebay import Running, forebay
from tests.parts.triton import CONSTANT, ECHO, ENSEMBLE, GRID, MIXED, ROWS, SEQUENCE, SLOW, WHOLE, Triton

CALLERS = 24
RELOADED = replace(ROWS, name="reloaded")
MODELS = (CONSTANT, ECHO, ENSEMBLE, GRID, MIXED, RELOADED, ROWS, SEQUENCE, SLOW, WHOLE)
NUMBERS = itertools.count(1)  # rows that nobody has asked for yet

Arrays = Mapping[str, NDArray[Any]]
R = TypeVar("R")


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    with Triton(*MODELS) as started:
        yield started


class Threads:
    """The client is synchronous: each caller is a thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    async def __call__(self, work: Callable[..., R], *args: Any, **more: Any) -> R:
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **more))


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

    status: str
    text: str


def request_inputs(arrays: Arrays) -> list[Any]:
    inputs = []
    for name, array in arrays.items():
        tensor = triton_client.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=False)
        inputs.append(tensor)
    return inputs


def infer(url: str, model: str, arrays: Arrays, *outputs: str, **more: Any) -> Any:
    """The whole answer of one call, or how it was refused. Without outputs all of them are asked for, in JSON."""
    requested = [triton_client.InferRequestedOutput(name, binary_data=False) for name in outputs or OUTPUTS[model]]
    with contextlib.closing(triton_client.InferenceServerClient(url.removeprefix("http://"))) as client:
        try:
            return client.infer(model, request_inputs(arrays), outputs=requested, **more).get_response()
        except InferenceServerException as error:
            return Refusal(error.status(), error.message())


OUTPUTS = {model.name: [name for name, _, _ in model.outputs] for model in MODELS if model is not ECHO}


def new_rows(count: int, width: int = 3) -> NDArray[Any]:
    """Rows whose answers are in no cache."""
    first = [next(NUMBERS) for _ in range(count)]
    return np.array([[number + 0.25, -number, 1 / number, *range(width)][:width] for number in first], np.float32)


def rows_of(answer: Mapping[str, Any], name: str = "Y") -> NDArray[Any]:
    (output,) = [output for output in answer["outputs"] if output["name"] == name]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def mixed(*numbers: int) -> Arrays:
    return {
        "A": np.array([[n, -n, 0.5] for n in numbers], np.float32),
        "B": np.array([[2**62 + n, -(2**62) - n] for n in numbers], np.int64),
        "C": np.array([[f'é "{n}" \\ \u2028\n'.encode()] for n in numbers], object),
    }


SIZES = (8, 16, 32, 64)
ECHOED: list[tuple[str, NDArray[Any]]] = [
    ("BOOL", np.array([[True, False], [False, False]])),
    *((f"INT{bits}", np.array([[-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], [0, 7]], f"int{bits}")) for bits in SIZES),
    *((f"UINT{bits}", np.array([[0, 2**bits - 1], [1, 7]], f"uint{bits}")) for bits in SIZES),
    ("FP32", np.array([[0.1, -3.4028235e38], [1e-45, -0.0]], np.float32)),
    ("FP64", np.array([[0.1, 1.7976931348623157e308], [5e-324, 1 / 3]], np.float64)),
    ("STRING", np.array([[b"", b"a"], ["ü€😀".encode(), b'"\\/\t']], object)),
]  # fmt: skip


@pytest.mark.parametrize(("datatype", "array"), ECHOED, ids=[datatype for datatype, _ in ECHOED])
async def test_every_datatype_of_json_comes_back_as_from_triton(
    running: Running, triton: Triton, threads: Threads, datatype: str, array: NDArray[Any]
) -> None:
    """Booleans, integers to their last bit, floats to their last digit and text: first, repeated and row by row."""
    asked, output = {f"I_{datatype}": array}, f"O_{datatype}"
    direct = await threads(infer, triton.url, "echo", asked, output)
    assert direct["outputs"][0]["shape"] == [2, 2]
    for _ in range(2):
        assert await threads(infer, running.url, "echo", asked, output) == direct
    for row in (0, 1):
        one = {f"I_{datatype}": array[row : row + 1]}
        direct = await threads(infer, triton.url, "echo", one, output)
        assert await threads(infer, running.url, "echo", one, output) == direct
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", model="echo", outcome="miss") == 1
    assert scrape.total("forebay_requests_total", model="echo", outcome="hit") == 3


async def test_several_inputs_and_outputs_of_different_types(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """Rows of a call with three inputs and four outputs are cached and put together like those of a simple one."""
    for numbers in ((1, 2), (2, 3, 1), (3,), tuple(range(4, 30)), (29, 1, 30)):
        asked = mixed(*numbers)
        direct = await threads(infer, triton.url, "mixed", asked, request_id="r")
        through = await threads(infer, running.url, "mixed", asked, request_id="r")
        assert through == direct
    direct = await threads(infer, triton.url, "mixed", mixed(1), "U", "S")
    through = await threads(infer, running.url, "mixed", mixed(1), "U", "S")
    assert through == direct
    assert [output["name"] for output in through["outputs"]] == [output["name"] for output in direct["outputs"]]
    scrape = await running.scrape()
    assert scrape.total("forebay_cache_items_total", result="memory_hit") == 5
    assert scrape.total("forebay_cache_items_total", result="miss") == 31


@pytest.mark.parametrize("model", ["rows", "grid", "whole", "ensemble", "constant", "slow"])
@pytest.mark.parametrize("count", [1, 2, 32])
async def test_an_answer_is_the_same_first_and_repeated(
    running: Running, triton: Triton, threads: Threads, model: str, count: int
) -> None:
    """Whatever the model's config says of its rows: each caller reads what Triton says, and its own id."""
    asked = {"X": new_rows(count)}
    if model == "grid":
        asked = {"X": np.stack([asked["X"], asked["X"] * 2], axis=1)}
    direct = await threads(infer, triton.url, model, asked)
    for name in ("first", "second", ""):
        through = await threads(infer, running.url, model, asked, request_id=name)
        assert through == direct | ({"id": name} if name else {})
    scrape = await running.scrape()
    hits = 0 if model == "constant" and count > 1 else 2
    assert scrape.total("forebay_requests_total", model=model, outcome="hit") == hits


async def test_what_the_client_says_beside_its_rows(running: Running, triton: Triton, threads: Threads) -> None:
    """Deadlines and priorities do not change an answer and share it; the model's own parameters, a version do not."""
    asked = {"X": new_rows(2)}
    answers = []
    for said, outcome in (
        ({"timeout": 10_000_000}, "miss"),
        ({"timeout": 20_000_000, "priority": 1}, "hit"),
        ({}, "hit"),
        ({"parameters": {"temperature": 1}}, "miss"),
        ({"parameters": {"temperature": "1"}}, "miss"),
        ({"model_version": "1"}, "miss"),
        ({"headers": {"X-Experiment": "b"}}, "miss"),
        ({"query_params": {"verbose": 1}}, "miss"),
    ):
        before = (await running.scrape()).total("forebay_requests_total", outcome=outcome)
        answers.append(await threads(infer, running.url, "rows", asked, **said))
        assert (await running.scrape()).total("forebay_requests_total", outcome=outcome) == before + 1, said
        assert answers[-1] == await threads(infer, triton.url, "rows", asked, **said)


async def test_joined_callers_each_get_their_own(running: Running, triton: Triton, threads: Threads) -> None:
    """Two dozen threads at once: few requests reach Triton, and each thread reads its own rows and its own id."""
    asked = [new_rows(1 + number % 3) for number in range(CALLERS)]

    def caller(number: int) -> Any:
        return infer(running.url, "slow", {"X": asked[number]}, request_id=f"caller {number}")

    answers = await asyncio.gather(*(threads(caller, number) for number in range(CALLERS)))
    for number, answer in enumerate(answers):
        assert answer["id"] == f"caller {number}"
        expected = triton_model.rows({"X": asked[number]}, SLOW.weight)["Y"]
        np.testing.assert_array_equal(rows_of(answer), expected)
    direct = await threads(infer, triton.url, "slow", {"X": asked[0]}, request_id="caller 0")
    assert answers[0] == direct
    scrape = await running.scrape()
    assert scrape.total("forebay_batch_items_count") < CALLERS / 2
    assert scrape.total("forebay_batch_items_sum") == sum(map(len, asked))
    assert scrape.total("forebay_batch_splits_total") == 0


async def test_callers_of_the_same_rows_share_one_computation(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """Two dozen threads ask for the same: Triton computes it once."""
    asked = {"X": new_rows(2)}
    before = counted(triton, "slow")
    answers = await asyncio.gather(
        *(threads(infer, running.url, "slow", asked, request_id=f"{number}") for number in range(CALLERS))
    )
    assert counted(triton, "slow") == before + 2
    assert [answer.pop("id") for answer in answers] == [f"{number}" for number in range(CALLERS)]
    assert all(answer == answers[0] for answer in answers)


def counted(triton: Triton, model: str) -> int:
    """Rows that Triton has computed."""
    stats = json.loads(triton.request("GET", f"/v2/models/{model}/stats").body)
    return int(stats["model_stats"][0]["inference_count"])


async def test_a_model_without_batches_is_never_joined(running: Running, triton: Triton, threads: Threads) -> None:
    """`max_batch_size: 0`: every call travels by itself, several at once; only equal ones are shared."""
    asked = [new_rows(2) for _ in range(8)]
    answers = await asyncio.gather(*(threads(infer, running.url, "whole", {"X": rows}) for rows in asked))
    for rows, answer in zip(asked, answers, strict=True):
        np.testing.assert_array_equal(rows_of(answer), triton_model.rows({"X": rows}, WHOLE.weight)["Y"])
    part = await threads(infer, running.url, "whole", {"X": asked[0][:1]})
    np.testing.assert_array_equal(rows_of(part), rows_of(answers[0])[:1])
    scrape = await running.scrape()
    assert scrape.total("forebay_batch_items_count") == 0
    assert scrape.total("forebay_requests_total", model="whole", outcome="miss") == 9


async def test_a_sequence_passes_through(running: Running, threads: Threads) -> None:
    """Calls of a sequence depend on those before them: each reaches the backend, none is stored or joined."""
    asked = {"X": new_rows(1)}
    for start, end in ((True, False), (False, False), (False, True)):
        place = {"sequence_id": 7, "sequence_start": start, "sequence_end": end}
        answer = await threads(infer, running.url, "sequence", asked, **place)
        np.testing.assert_array_equal(rows_of(answer), triton_model.rows(dict(asked), SEQUENCE.weight)["Y"])
    scrape = await running.scrape()
    assert scrape.total("forebay_decisions_total", reason="stateful") == 3
    assert scrape.total("forebay_cache_items_total") == 0


ERRORS: list[tuple[str, Arrays]] = [
    ("rows", {"X": np.zeros((1, 2, 2), np.float32)}),  # a dimension too many
    ("rows", {"X": np.zeros((33, 2), np.float32)}),  # above max_batch_size
    ("rows", {"X": np.zeros((1, 2), np.int32)}),  # another datatype
    ("rows", {"Z": np.zeros((1, 2), np.float32)}),  # no such input
    ("mixed", {"A": np.zeros((1, 2), np.float32)}),  # inputs are missing
    ("mixed", {**mixed(1), "B": np.zeros((1, 3), np.int64)}),  # a wrong shape beside right ones
    ("sequence", {"X": np.zeros((1, 2), np.float32)}),  # no sequence id
    ("unknown", {"X": np.zeros((1, 2), np.float32)}),
]


@pytest.mark.parametrize(("model", "asked"), ERRORS, ids=[f"{model}-{'+'.join(asked)}" for model, asked in ERRORS])
async def test_a_refusal_is_tritons_own(
    running: Running, triton: Triton, threads: Threads, model: str, asked: Arrays
) -> None:
    """Status and text are those of a direct call, with the caller's own request id, however often it is asked."""
    for name in ("one", "two"):
        direct = await threads(infer, triton.url, model, asked, "Y", request_id=name)
        through = await threads(infer, running.url, model, asked, "Y", request_id=name)
        assert isinstance(direct, Refusal)
        assert through == direct


async def test_callers_that_are_refused_together_each_read_their_own_id(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """Bad calls of many threads at once, joined or not, among good ones: every text quotes the thread's own request."""
    bad = {"X": np.zeros((1, 2), np.int32)}

    def caller(url: str, number: int) -> Any:
        return infer(url, "slow", bad if number % 3 else {"X": new_rows(1, width=2)}, request_id=f"n{number}")

    answers = await asyncio.gather(*(threads(caller, running.url, number) for number in range(CALLERS)))
    direct = await threads(caller, triton.url, 1)
    assert "n1" in direct.text
    for number, answer in enumerate(answers):
        if number % 3:
            assert answer == Refusal(direct.status, direct.text.replace("n1", f"n{number}"))
        else:
            assert answer["id"] == f"n{number}"


BODIES = {
    "nothing": b"",
    "no JSON": b'{"inputs":',
    "no object": b"[1]",
    "no inputs": b'{"id":"x"}',
    "empty inputs": b'{"inputs":[]}',
    "no shape": b'{"inputs":[{"name":"X","datatype":"FP32","data":[1]}]}',
    "too little data": b'{"id":"mine","inputs":[{"name":"X","shape":[1,3],"datatype":"FP32","data":[1,2]}]}',
    "too much data": b'{"id":"mine","inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1,2]}]}',
    "text for a number": b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":["a"]}]}',
    "a shape below zero": b'{"inputs":[{"name":"X","shape":[-1,1],"datatype":"FP32","data":[1]}]}',
    "no such datatype": b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP99","data":[1]}]}',
    "no such output": b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}],"outputs":[{"name":"Q"}]}',
    "a key twice": b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1],"data":[2]}]}',
    "not finite": b'{"inputs":[{"name":"X","shape":[1,3],"datatype":"FP32","data":[NaN,Infinity,-Infinity]}]}',
    "a broken letter": b'{"id":"\xff","inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_an_odd_body_is_tritons_to_judge(running: Running, triton: Triton, body: bytes) -> None:
    """Malformed or strange: status, type and text are those of a direct call, the first time and the second."""
    direct = await asyncio.to_thread(triton.infer, "rows", body)
    for _ in range(2):
        async with running.session.post(f"{running.url}/v2/models/rows/infer", data=body) as through:
            assert (through.status, await through.read()) == (direct.status, direct.body)
            assert through.headers.get("Content-Type") == direct.headers.get("content-type")


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "live": lambda client: client.is_server_live(),
    "ready": lambda client: client.is_server_ready(),
    "model ready": lambda client: client.is_model_ready("rows"),
    "model version ready": lambda client: client.is_model_ready("rows", "1"),
    "unknown model ready": lambda client: client.is_model_ready("unknown"),
    "server metadata": lambda client: client.get_server_metadata(),
    "model metadata": lambda client: client.get_model_metadata("mixed"),
    "unknown model metadata": lambda client: client.get_model_metadata("unknown"),
    "config": lambda client: client.get_model_config("mixed", "1"),
    "index": lambda client: sorted(client.get_model_repository_index(), key=str),
    "statistics": lambda client: client.get_inference_statistics("grid"),
    "shared memory": lambda client: client.get_system_shared_memory_status(),
    "trace settings": lambda client: client.get_trace_settings(),
    "log settings": lambda client: client.get_log_settings(),
    "a load of what is not there": lambda client: client.load_model("unknown"),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_other_questions_of_the_client_are_answered_as_by_triton(
    running: Running, triton: Triton, threads: Threads, question: Callable[[Any], Any]
) -> None:
    """Health, metadata, config, statistics, repository: what Forebay has no part in is the same with and without it."""

    def ask(url: str) -> Any:
        with contextlib.closing(triton_client.InferenceServerClient(url.removeprefix("http://"))) as client:
            try:
                return question(client)
            except InferenceServerException as error:
                return Refusal(error.status(), error.message())

    direct = await threads(ask, triton.url)
    assert await threads(ask, running.url) == direct
    assert direct is not None


# Other weights.

ASKED: Arrays = {"X": np.array([[1, 2]], np.float32)}


def by_weight(weight: float) -> NDArray[Any]:
    return triton_model.rows(dict(ASKED), weight)["Y"]


async def hit(running: Running, threads: Threads, weight: float, model: str = "reloaded") -> None:
    """The answer of these weights is in the response cache."""
    hits = (await running.scrape()).total("forebay_requests_total", outcome="hit")
    for _ in range(2):
        answer = await threads(infer, running.url, model, ASKED)
        np.testing.assert_array_equal(rows_of(answer), by_weight(weight))
    assert (await running.scrape()).total("forebay_requests_total", outcome="hit") > hits


async def test_a_reload_in_place_shows_within_the_poll_and_a_second(
    running: Running, triton: Triton, threads: Threads
) -> None:
    """Loaded behind Forebay's back, same version, other weights: the new answer comes within the poll and a second."""
    for old, new in ((RELOADED.weight, 5.0), (5.0, RELOADED.weight)):
        await hit(running, threads, old)
        await asyncio.to_thread(triton.reload, "reloaded", weight=new)
        async with asyncio.timeout(EVERY + 1):
            while True:
                answer = await threads(infer, running.url, "reloaded", ASKED)
                if (rows_of(answer) != by_weight(old)).all():
                    break
        await hit(running, threads, new)


async def test_a_load_through_forebay_shows_at_once(running: Running, triton: Triton, threads: Threads) -> None:
    """Whoever loads a model by way of Forebay never reads an old answer after that call has returned."""

    def load() -> None:
        with contextlib.closing(triton_client.InferenceServerClient(running.url.removeprefix("http://"))) as client:
            client.load_model("reloaded")

    for old, new in ((RELOADED.weight, 7.0), (7.0, RELOADED.weight)):
        await hit(running, threads, old)
        triton.weigh("reloaded", new)
        await threads(load)
        answer = await threads(infer, running.url, "reloaded", ASKED)
        np.testing.assert_array_equal(rows_of(answer), by_weight(new))
        await running.knows("reloaded")


async def test_a_triton_that_came_back_answers_for_itself(threads: Threads) -> None:
    """Stopped and started again on its port with other weights: from then on nobody reads what it said before."""
    with Triton(ROWS) as triton:
        async with forebay(triton.url) as running:
            await running.knows("rows")
            await hit(running, threads, ROWS.weight, "rows")
            await asyncio.to_thread(triton.stop)
            triton.weigh("rows", 9.0)
            await running.until(lambda: running.sidecar.not_ready() is not None)
            refused = await threads(infer, running.url, "rows", {"X": new_rows(1)})
            assert refused.status == "502"
            await asyncio.to_thread(triton.start)
            answer = await threads(infer, running.url, "rows", ASKED)
            np.testing.assert_array_equal(rows_of(answer), by_weight(9.0))
            await running.until(lambda: running.sidecar.not_ready() is None)
            await running.knows("rows")
            await hit(running, threads, 9.0, "rows")
