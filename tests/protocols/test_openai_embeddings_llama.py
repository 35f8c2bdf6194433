"""Promises of the OpenAI embeddings codec against a real llama.cpp: what it reads and writes is what that means."""

from __future__ import annotations

import base64
import json
import random
import urllib.request
from array import array
from collections.abc import Iterator
from typing import Any, Final

import pytest

from proxy.protocols.codec import ANY_NUMBER, Call, Endpoint, Found, Message, Part
from proxy.protocols.openai import MODELS
from proxy.protocols.openai_embeddings import PATH, OpenAIEmbeddings
from proxy.terms import Exchange, Identity, Model, Rows
from tests.parts.llama import MODEL, WIDTH, Llama

CODEC: Final = OpenAIEmbeddings()
TOLERANCE: Final = 1e-6
"""By how much a number may differ between a text that rode alone and one that did not: at most 1.8e-7 was seen."""


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    with Llama(embeddings=True) as started:
        yield started


def asked(llama: Llama, body: bytes) -> bytes:
    request = urllib.request.Request(llama.url + PATH, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return bytes(answer.read())


def parsed(body: dict[str, Any]) -> Call:
    model = Model(MODEL, Rows.ITEMS, ANY_NUMBER, 1, Identity((), 0.0, "", known=False))
    call = CODEC.parse(Endpoint(None), Message(json.dumps(body).encode()), model)
    assert isinstance(call, Call)
    return call


def numbers(answer: bytes) -> list[list[float]]:
    """The embeddings of an answer, whatever their form."""
    found = [element["embedding"] for element in json.loads(answer)["data"]]
    return [array("f", base64.b64decode(one)).tolist() if isinstance(one, str) else one for one in found]


@pytest.mark.parametrize("more", [{}, {"encoding_format": "base64"}, {"encoding_format": "float", "model": "other"}])
@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_joined_and_single_answers_agree(llama: Llama, kind: str, more: dict[str, Any]) -> None:
    """Whoever rides along, a caller's numbers are those of its own text, within 1e-6, in an answer of the same form."""
    chance = random.Random(repr((kind, more)))
    farthest, tokens, guessed = 0.0, 0, 0
    for size in (2, 5, 16):
        texts = ["".join(chance.choices("abcdef ghi é", k=chance.randint(1, 60))) for _ in range(size)]
        ids = [[chance.randint(3, 300) for _ in range(chance.randint(1, 60))] for _ in range(size)]
        inputs: list[Any] = [*texts] if kind == "texts" else [*ids]
        calls = [parsed(more | {"input": inputs[: size // 2]}), parsed(more | {"input": inputs[size // 2 :]})]
        parts = [Part(call, tuple(range(len(call.items)))) for call in calls]
        results = CODEC.split(Message(asked(llama, CODEC.join(parts, "id", [0.0, 0.0]).body)), parts, "id")
        assert results is not None
        for one, result in zip(inputs, [result for each in results for result in each], strict=True):
            single = asked(llama, json.dumps(more | {"input": one}).encode())
            got = CODEC.answer(parsed(more | {"input": one}), [result])
            assert got is not None
            expected, answered = json.loads(single), json.loads(got.body)
            tokens += expected.pop("usage")["total_tokens"]
            guessed += answered.pop("usage")["total_tokens"]
            ((wanted,), (found,)) = numbers(single), numbers(got.body)
            assert len(wanted) == len(found) == WIDTH
            farthest = max(farthest, *(abs(a - b) for a, b in zip(wanted, found, strict=True)))
            del expected["data"][0]["embedding"], answered["data"][0]["embedding"]
            assert answered == expected
    assert farthest <= TOLERANCE
    assert guessed == tokens


def test_an_answer_comes_back_as_it_was(llama: Llama) -> None:
    """A call of several texts, kept text by text and put together again, is the very bytes that llama.cpp sent."""
    for more in ({}, {"encoding_format": "base64"}):
        body = more | {"input": ["a", "b c", "é"], "model": MODEL}
        call, answer = parsed(body), asked(llama, json.dumps(body).encode())
        results = CODEC.split(Message(answer), [Part(call, (0, 1, 2))], None)
        assert results is not None
        assert CODEC.answer(call, results[0]) == Message(answer)


def test_llama_cpp_says_what_it_is(llama: Llama) -> None:
    """Its list of models is understood, and says the same of the model whenever it is asked."""

    def listing() -> Exchange:
        with urllib.request.urlopen(llama.url + MODELS, timeout=20) as answer:
            return Exchange(answer.status, b"OK", (), answer.read())

    assert CODEC.found({MODELS: listing(), "/info": None}) == Found("llamacpp", (MODEL,))
    facts = CODEC.facts(MODEL, (listing(), None))
    assert facts is not None
    assert facts.state is not None
    assert json.loads(facts.state)["meta"]["n_embd"] == WIDTH
    assert facts == CODEC.facts(MODEL, (listing(), None))
