"""Promises to whoever generates text through Forebay: with the openai SDK, and with huggingface_hub's client.

Behind Forebay stand a real llama.cpp server, and a backend after TGI's published OpenAPI.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import openai
import pytest
from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.parts.forebay import Running, forebay
from tests.parts.llama import MODEL, Llama
from tests.parts.tgi_backend import DEATH, OVERLOAD, TGIServer, tgi_server

CALLERS = 12
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUMBERS = itertools.count(1)  # prompts that nobody has sent yet

R = TypeVar("R")


class Answer(NamedTuple):
    """What a caller reads. cached: Forebay's `Cache-Status`, "" from the backend itself."""

    status: int
    body: bytes
    content_type: str
    cached: str

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def read(self) -> tuple[int, bytes, str]:
        return self[:3]


async def post(running: Running, url: str, path: str, body: object) -> Answer:
    """POST to Forebay or to the backend, whichever `url` is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json"}
    async with running.session.post(url + path, data=data, headers=fields) as answer:
        said = answer.headers
        return Answer(answer.status, await answer.read(), said["Content-Type"], said.get("Cache-Status", ""))


def new_prompt() -> str:
    return f"tell me of number {next(NUMBERS)}"


# --- the openai SDK and llama.cpp


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    with Llama() as started:
        yield started


@pytest.fixture
async def before_llama(llama: Llama) -> AsyncIterator[Running]:
    async with forebay(llama.url) as running:
        await running.knows(MODEL, "openai_generation")
        yield running


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="nobody", max_retries=0)


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    """A body for six tokens; random weights would end a sentence anywhere."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "messages": messages, "max_tokens": 6, "ignore_eos": True} | more


def completion(prompt: object, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 6, "ignore_eos": True} | more


def arguments(body: dict[str, Any]) -> dict[str, Any]:
    """The SDK's arguments for a body: what OpenAI does not have goes beside them."""
    return {name: value for name, value in body.items() if name != "ignore_eos"} | {"extra_body": {"ignore_eos": True}}


def lasting(answer: Any) -> Any:
    """An answer or event without what is new each time llama.cpp computes it."""
    new = {"id", "created", "timings", "usage"}
    return {name: value for name, value in answer.items() if name not in new}


async def test_a_greedy_chat_is_computed_once(before_llama: Running, llama: Llama) -> None:
    """The SDK's second equal chat is answered from the response cache, with the first answer to the last field."""
    asked = arguments(chat(new_prompt(), temperature=0))
    async with sdk(llama.url) as direct, sdk(before_llama.url) as through:
        expected: ChatCompletion = await direct.chat.completions.create(**asked)
        first: ChatCompletion = await through.chat.completions.create(**asked)
        again: ChatCompletion = await through.chat.completions.create(**asked)
    assert first.choices == expected.choices
    assert first.id != expected.id
    assert again == first
    scrape = await before_llama.scrape()
    assert scrape.total("forebay_requests_total", model=MODEL, outcome="miss") == 1
    assert scrape.total("forebay_requests_total", model=MODEL, outcome="hit") == 1


@pytest.mark.parametrize("prompts", ["one prompt", ["two", "prompts"]], ids=str)
async def test_greedy_completions_come_back_byte_for_byte(
    before_llama: Running, llama: Llama, prompts: str | list[str]
) -> None:
    """Equal bodies, however they are spelled, get the bytes of one answer; another body gets its own."""
    asked = completion(prompts, temperature=0.0)
    direct = await post(before_llama, llama.url, COMPLETIONS, asked)
    first = await post(before_llama, before_llama.url, COMPLETIONS, asked)
    spelled = json.dumps(dict(reversed(asked.items())), indent=2).encode()
    again = await post(before_llama, before_llama.url, COMPLETIONS, spelled)
    other = await post(before_llama, before_llama.url, COMPLETIONS, asked | {"max_tokens": 5})
    assert lasting(first.value) == lasting(direct.value)
    assert again.read == first.read
    assert first.content_type == direct.content_type
    assert again.cached.startswith("Forebay; hit")
    assert other.value["id"] != first.value["id"]
    assert other.value["choices"][0]["text"] != first.value["choices"][0]["text"]


async def test_equal_chats_at_the_same_time_are_one_computation(before_llama: Running) -> None:
    """Callers that ask the same at once get one answer, id and all; a neighbour who asks otherwise gets another."""
    same, other = chat(new_prompt(), temperature=0), chat(new_prompt(), temperature=0)
    answers = await asyncio.gather(
        *(post(before_llama, before_llama.url, CHAT, same) for _ in range(CALLERS)),
        post(before_llama, before_llama.url, CHAT, other),
    )
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers[:-1]}) == 1
    assert answers[-1].value["id"] != answers[0].value["id"]
    scrape = await before_llama.scrape()
    assert scrape.total("forebay_requests_total", model=MODEL, outcome="miss") == 2
    shared = [scrape.total("forebay_requests_total", model=MODEL, outcome=name) for name in ("coalesced", "hit")]
    assert sum(shared) == CALLERS - 1


@pytest.mark.parametrize(
    "drawn",
    [{"temperature": 1}, {"temperature": 1, "seed": 7}, {}, {"temperature": 0, "samplers": ["top_k"]}, {"top_p": 0.5}],
    ids=str,
)
async def test_a_drawn_answer_is_never_given_twice(before_llama: Running, drawn: dict[str, Any]) -> None:
    """Calls that draw are computed each time, at once or one after the other, a `seed` notwithstanding."""
    asked = chat(new_prompt(), **drawn)
    answers = await asyncio.gather(*(post(before_llama, before_llama.url, CHAT, asked) for _ in range(3)))
    answers.append(await post(before_llama, before_llama.url, CHAT, asked))
    assert len({answer.value["id"] for answer in answers}) == 4
    assert {answer.cached for answer in answers} == {"Forebay; fwd=bypass; detail=not_deterministic"}


async def test_an_answer_that_ran_out_of_room_is_not_kept(before_llama: Running) -> None:
    """A `length` stop that the caller did not ask for is the server's limit, and is asked for anew."""
    asked = completion(new_prompt(), temperature=0)
    del asked["max_tokens"]
    answers = [await post(before_llama, before_llama.url, COMPLETIONS, asked) for _ in range(2)]
    assert [answer.value["choices"][0]["finish_reason"] for answer in answers] == ["length", "length"]
    assert answers[0].value["id"] != answers[1].value["id"]
    assert not any("hit" in answer.cached for answer in answers)


async def test_a_stream_passes_through_event_for_event(before_llama: Running, llama: Llama) -> None:
    """The SDK reads the same events, one by one, as from llama.cpp itself; nothing of a stream is kept."""
    asked = chat(new_prompt(), temperature=0, stream=True, stream_options={"include_usage": True})

    async def events(url: str) -> list[ChatCompletionChunk]:
        async with sdk(url) as client:
            return [event async for event in await client.chat.completions.create(**arguments(asked))]

    direct = await events(llama.url)
    assert len(direct) > 2
    for _ in range(2):
        assert [lasting(event.to_dict()) for event in await events(before_llama.url)] == [
            lasting(event.to_dict()) for event in direct
        ]
    raw = await post(before_llama, before_llama.url, CHAT, asked)
    assert raw.cached == "Forebay; fwd=bypass; detail=streamed"
    assert raw.content_type == "text/event-stream"
    assert raw.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": MODEL, "temperature": 0}),
        (CHAT, {"model": MODEL, "messages": "hi", "temperature": 0}),
        (CHAT, chat("hi", temperature="cold")),
        (CHAT, chat("hi", temperature=0, stream="yes")),
        (CHAT, chat("hi", temperature=0, tools=7)),
        (COMPLETIONS, {"model": MODEL, "prompt": {}, "temperature": 0}),
        (COMPLETIONS, completion("x " * 400, temperature=0)),
        (CHAT, b"{"),
        (CHAT, b'{"model":"tiny","messages":[],"messages":7}'),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_errors_are_llamas_own(before_llama: Running, llama: Llama, path: str, body: object) -> None:
    """What llama.cpp refuses is refused in its own words, each time anew."""
    direct = await post(before_llama, llama.url, path, body)
    assert direct.status >= 400
    for _ in range(2):
        answer = await post(before_llama, before_llama.url, path, body)
        assert answer.read == direct.read
        assert "hit" not in answer.cached


# --- huggingface_hub's client and TGI


@pytest.fixture
async def tgi() -> AsyncIterator[TGIServer]:
    async with tgi_server() as server:
        yield server


@pytest.fixture
async def before_tgi(tgi: TGIServer) -> AsyncIterator[Running]:
    async with forebay(tgi.url) as running:
        await running.knows("", "tgi")
        yield running


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`text_generation` of huggingface_hub's client, which waits in a thread; offline it would refuse loopback too."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    async def in_a_thread(url: str, prompt: str, **more: Any) -> Any:
        def work() -> Any:
            with InferenceClient(model=url, token="nobody") as client:
                found = client.text_generation(prompt, **more)
                return list(found) if more.get("stream") else found

        async with asyncio.timeout(20):
            return await asyncio.to_thread(work)

    return in_a_thread


@pytest.mark.parametrize(
    "parameters", [{}, {"max_new_tokens": 3}, {"details": True, "decoder_input_details": True}], ids=str
)
async def test_a_greedy_generation_is_computed_once(
    before_tgi: Running, tgi: TGIServer, ask: Callable[..., Any], parameters: dict[str, Any]
) -> None:
    """The client's second equal call is answered from the response cache, details and all, as TGI answered once."""
    prompt = new_prompt()
    direct = await ask(tgi.url, prompt, **parameters)
    for _ in range(3):
        assert await ask(before_tgi.url, prompt, **parameters) == direct
    assert len(tgi.generated) == 2
    assert await ask(before_tgi.url, prompt + "!", **parameters) != direct
    scrape = await before_tgi.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 2
    assert scrape.total("forebay_requests_total", outcome="hit") == 2


@pytest.mark.parametrize("path", ["/", "/generate"])
async def test_equal_generations_at_the_same_time_are_one(before_tgi: Running, tgi: TGIServer, path: str) -> None:
    """Callers that ask the same while TGI is at work wait for that one answer, byte for byte."""
    tgi.gate.clear()
    asked = {"inputs": new_prompt(), "parameters": {"max_new_tokens": 4}}
    callers = [asyncio.create_task(post(before_tgi, before_tgi.url, path, asked)) for _ in range(CALLERS)]
    await before_tgi.coalescing(CALLERS)
    tgi.gate.set()
    answers = await asyncio.gather(*callers)
    assert len(tgi.generated) == 1
    assert {answer.read for answer in answers} == {(await post(before_tgi, tgi.url, path, asked)).read}
    assert isinstance(answers[0].value, list) is (path == "/")
    scrape = await before_tgi.scrape()
    assert scrape.total("forebay_requests_total", outcome="coalesced") == CALLERS - 1


@pytest.mark.parametrize(
    "body",
    [
        {"parameters": {"do_sample": True}},
        {"parameters": {"do_sample": True, "seed": 7}},
        {"parameters": {"temperature": 0.5}},
        {"parameters": {"top_p": 0.9, "do_sample": False}},
        {},
    ],
    ids=str,
)
async def test_a_drawn_generation_is_never_given_twice(
    before_tgi: Running, tgi: TGIServer, body: dict[str, Any]
) -> None:
    """Calls for which TGI draws are computed each time: with a seed too, and where no parameters are given at all."""
    asked = {"inputs": new_prompt()} | body
    answers = [await post(before_tgi, before_tgi.url, "/generate", asked) for _ in range(3)]
    assert len(tgi.generated) == 3
    assert len({answer.body for answer in answers}) == 3
    assert {answer.cached for answer in answers} == {"Forebay; fwd=bypass; detail=not_deterministic"}


async def test_the_clients_sampling_reaches_tgi_each_time(
    before_tgi: Running, tgi: TGIServer, ask: Callable[..., Any]
) -> None:
    """What the client draws it gets anew."""
    prompt = new_prompt()
    answers = [await ask(before_tgi.url, prompt, do_sample=True, temperature=0.7) for _ in range(2)]
    assert answers[0] != answers[1]
    assert len(tgi.generated) == 2


@pytest.mark.parametrize(("path", "more"), [("/generate_stream", {}), ("/", {"stream": True})])
async def test_a_stream_of_tgi_passes_through_untouched(
    before_tgi: Running, tgi: TGIServer, path: str, more: dict[str, Any]
) -> None:
    """The bytes of a stream are TGI's own, errors in it included, and nothing of it is kept."""
    asked = {"inputs": new_prompt(), "parameters": {"max_new_tokens": 4}} | more
    for body in (asked, asked | {"inputs": OVERLOAD}):
        direct = await post(before_tgi, tgi.url, path, body)
        assert direct.content_type == "text/event-stream"
        for _ in range(2):
            answer = await post(before_tgi, before_tgi.url, path, body)
            assert answer.read == direct.read
            assert answer.cached == "Forebay; fwd=bypass; detail=streamed"
    assert len(tgi.generated) == 6


async def test_the_client_reads_a_stream(before_tgi: Running, tgi: TGIServer, ask: Callable[..., Any]) -> None:
    """The client's stream through Forebay has the events that it has from TGI."""
    prompt = new_prompt()
    direct = await ask(tgi.url, prompt, stream=True, details=True)
    assert len(direct) > 1
    assert await ask(before_tgi.url, prompt, stream=True, details=True) == direct


@pytest.mark.parametrize(
    "refused",
    [
        ("", {}, ValidationError),
        ("hello", {"temperature": 0.0}, ValidationError),
        ("hello", {"best_of": 2}, ValidationError),
        ("hello", {"max_new_tokens": 4000}, ValidationError),
        (OVERLOAD, {}, OverloadedError),
    ],
    ids=str,
)
async def test_errors_are_tgis_own(
    before_tgi: Running, tgi: TGIServer, ask: Callable[..., Any], refused: tuple[str, dict[str, Any], type[Exception]]
) -> None:
    """What TGI refuses the client raises with TGI's words, each time anew."""
    prompt, parameters, error = refused
    with pytest.raises(error) as direct:
        await ask(tgi.url, prompt, **parameters)
    for _ in range(2):
        with pytest.raises(error) as through:
            await ask(before_tgi.url, prompt, **parameters)
        assert str(through.value) == str(direct.value)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"inputs":7}', b'{"inputs":"a","inputs":"b"}', b'{"inputs":"a","parameters":null}']
)
async def test_bodies_that_nobody_understands_are_tgis_to_judge(
    before_tgi: Running, tgi: TGIServer, body: bytes
) -> None:
    """A body that is no TGI body gets what TGI says to it, in text or JSON as that is."""
    for path in ("/", "/generate"):
        direct = await post(before_tgi, tgi.url, path, body)
        answer = await post(before_tgi, before_tgi.url, path, body)
        assert answer.status == direct.status
        assert answer.content_type == direct.content_type
        assert "fwd=bypass" in answer.cached
        if direct.status != 200:
            assert answer.body == direct.body


async def test_an_error_of_forebays_own_is_one_of_tgis(
    before_tgi: Running, tgi: TGIServer, ask: Callable[..., Any]
) -> None:
    """Where TGI gives no answer at all, the client raises an error that it knows."""
    answer = await post(before_tgi, before_tgi.url, "/generate", {"inputs": DEATH, "parameters": {}})
    assert (answer.status, answer.content_type) == (502, "application/json")
    assert answer.value["error_type"] == "generation"
    with pytest.raises(GenerationError):
        await ask(before_tgi.url, DEATH)


async def test_no_answer_outlives_its_weights(before_tgi: Running, tgi: TGIServer) -> None:
    """When `/info` names another commit, what was kept is not used any more."""
    asked = {"inputs": new_prompt(), "parameters": {}}
    ask_again = partial(post, before_tgi, before_tgi.url, "/generate", asked)
    assert "fwd=miss" in (await ask_again()).cached
    assert "hit" in (await ask_again()).cached
    tgi.sha = tgi.sha[::-1] if tgi.sha else None
    await before_tgi.sidecar.models.poll()
    assert "fwd=miss" in (await ask_again()).cached
    assert len(tgi.generated) == 2


async def test_answers_of_an_adapter_live_shortly(tgi: TGIServer) -> None:
    """Nobody names an adapter's weights: its answers are gone after a minute, those of the model are not."""
    now = [1_800_000_000.0]
    async with forebay(tgi.url, unix_time=lambda: now[0]) as running:
        for adapter, later in (("", "hit"), ("team/lora", "fwd=stale")):
            await running.knows(adapter, "tgi")
            parameters = {"adapter_id": adapter} if adapter else {}
            asked = {"inputs": new_prompt(), "parameters": parameters}
            ask_again = partial(post, running, running.url, "/generate", asked)
            assert "fwd=miss" in (await ask_again()).cached
            assert "hit" in (await ask_again()).cached
            now[0] += 70
            assert later in (await ask_again()).cached
