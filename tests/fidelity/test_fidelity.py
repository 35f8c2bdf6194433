"""Fidelity, for every protocol: whatever is asked, and in whatever company, the answer is the backend's own.

Numbers are compared as lexemes, tensors as bytes. What the backends here answer about an item is a function of that
item, so nothing of it may differ: the tolerance is none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import example, given

from tests.fidelity.forms import ESTIMATED, FORMS, Form, without_usage
from tests.fidelity.lexed import read
from tests.fidelity.stage import Answer, Asked, Stage, staged
from tests.parts.forebay import Running
from tests.parts.triton import Triton
from tests.protocols.json_texts import examples

HANDFULS = 60  # of three to seven calls, each asked once directly and twice or more through Forebay
TOGETHER = "batch: {mode: fixed, max_delay: 2ms}\n"  # what is asked at once rides together, on a quiet machine too


@pytest.fixture(scope="module", params=FORMS, ids=repr)
def form(request: pytest.FixtureRequest) -> Form:
    found = request.param
    assert isinstance(found, Form)
    return found


@pytest.fixture(scope="module")
def stage(form: Form, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    config = tmp_path_factory.mktemp("fidelity") / "forebay.yaml"
    config.write_text(TOGETHER + (f"routes:{form.routes}" if form.routes else ""))
    backend = form.backend
    if backend is None:
        triton: Triton = request.getfixturevalue("triton")

        @asynccontextmanager
        async def real() -> AsyncIterator[str]:
            yield triton.url

        backend = real

    async def ready(running: Running) -> None:
        for model in form.models if form.codec != "json_map" else ():
            await running.knows(model, form.codec)

    with staged(backend, ready, config) as found:
        yield found


def same(direct: Answer, answer: Answer, asked: Asked) -> None:
    """Fail unless the one says what the other says."""
    assert answer.status == direct.status, (asked, direct, answer)
    assert answer.fields.get("Content-Type") == direct.fields.get("Content-Type"), (asked, direct, answer)
    expected, found = read(direct.body, direct.fields), read(answer.body, answer.fields)
    if ESTIMATED in answer.fields:
        expected, found = without_usage(expected), without_usage(found)
    assert found == expected, (asked, direct, answer)


async def compare(stage: Stage, calls: list[Asked], seen: Counter[str]) -> None:
    """The first call alone, then all of them at once, then all of them again."""
    direct = await asyncio.gather(*map(stage.direct, calls))
    healthy = all(answer.status == 200 for answer in direct)  # who followed one in trouble asks for itself, unkept
    same(direct[0], await stage.through(calls[0]), calls[0])
    for again in (False, True):
        answers = await asyncio.gather(*map(stage.through, calls))
        for asked, expected, answer in zip(calls, direct, answers, strict=True):
            same(expected, answer, asked)
            seen["answers"] += expected.status == 200
            seen["hits"] += answer.cache.startswith("Forebay; hit")
            seen["partly"] += "fwd=partial" in answer.cache
            if again and healthy and asked.hit is not None:
                assert answer.cache.startswith("Forebay; hit") == asked.hit, (asked, answer)


def test_answers_are_the_backends_own(form: Form, stage: Stage) -> None:
    """Alone and joined, first and repeated, whole and partly known: values, lexemes, ids, order, status and type."""
    seen: Counter[str] = Counter()

    def handful(calls: list[Asked]) -> None:
        stage.run(compare(stage, calls, seen))

    for found in form.found:
        handful = example(found)(handful)
    examples(HANDFULS)(given(form.calls)(handful))()

    scrape = stage.run(stage.running.scrape())
    assert seen["answers"] > HANDFULS, seen
    assert seen["hits"] > HANDFULS / 6, seen
    assert (seen["partly"] > 0) == (form.joins and form.partly), seen
    joined = scrape.total("forebay_batch_items_sum") - scrape.total("forebay_batch_items_count")
    assert (joined > HANDFULS / 10) == form.joins, joined
    assert scrape.total("forebay_decisions_total", reason="codec_error") == 0
