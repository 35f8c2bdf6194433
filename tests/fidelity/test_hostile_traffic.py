"""Fuzz from end to end: whatever comes in and whatever the backend says to it, a caller gets what it would get direct.

The backend answers by a function of the exact bytes and of a header that tells it to misbehave, so that what a caller
gets of another's, of a joined request's, or of an earlier moment's shows.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dispatch import FOR_EVERYBODY
from tests.fidelity.forms import (
    ESTIMATED,
    LIST_ROUTE,
    OPAQUE_ROUTE,
    RERANK_ROUTE,
    SINGLE_ROUTE,
    V1_ROUTE,
    without_usage,
)
from tests.fidelity.hostile import LARGE, bodies, planted
from tests.fidelity.lexed import HEAD_LENGTH, read
from tests.fidelity.speaking import CASE, MODELS, SAY, SAYINGS, Speaking, answer, speaking
from tests.fidelity.stage import JSON, Answer, Asked, Stage, staged
from tests.fidelity.targets import TARGETS, Target
from tests.parts.forebay import Running
from tests.protocols.json_texts import examples

EXAMPLES = 25  # a path; about nine requests each
CASES = itertools.count(1)
ROUTES = V1_ROUTE + RERANK_ROUTE + LIST_ROUTE + SINGLE_ROUTE + OPAQUE_ROUTE

KEPT = frozenset({"", "plain text", "no results", "other JSON", "a result too many", "deep"})
"""Sayings after which an answer is 200 and can be read, whatever it means."""


MANY = ("numbers", "empty arrays", "empty objects", "small objects", "empty texts", "members", "one member")
"""Large values that the backend of this test takes long to answer."""


@dataclass(frozen=True)
class Scene:
    """Forebay before a backend, and what that speaks."""

    stage: Stage
    backend: Speaking
    targets: list[Target]


KINDS = {
    "openai": ["v2", "v1", "openai_embeddings", "openai_generation", "json_map"],
    "tgi": ["tgi"],
    "tei": ["tei"],
}


@pytest.fixture(scope="module", params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    kind, servers = request.param, list[Speaking]()
    config = tmp_path_factory.mktemp("hostile") / "forebay.yaml"
    config.write_text(f"batch: {{mode: fixed, max_delay: 2ms}}\nroutes:{ROUTES}")

    @asynccontextmanager
    async def backend() -> AsyncIterator[str]:
        async with speaking(kind) as server:
            servers.append(server)
            yield server.url

    async def ready(running: Running) -> None:
        if kind != "openai":
            return await running.knows("", kind)
        for model, codec in (("m", "v2"), ("m", "v1"), *((name, "openai_embeddings") for name in MODELS)):
            await running.knows(model, codec)
        return await running.knows(MODELS[0], "openai_generation")

    with staged(backend, ready, config) as stage:
        yield Scene(stage, servers[0], [target for target in TARGETS if target.codec.name in KINDS[kind]])


BOMB = gzip.compress(bytes(5 * 2**20))
LENGTHS = ["0", "1", "-1", "5", "40", "99999", "9" * 30, "0x5", "5, 5", "", "٣"]


@st.composite
def heads(draw: st.DrawFn, body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Fields that say how to read a body, often wrongly, and the body as it is sent with them."""
    odd = draw(st.integers(0, 9))
    kind = ("Content-Type", "application/json")
    if odd == 0:
        return (kind, ("Content-Encoding", "gzip")), draw(st.sampled_from([gzip.compress(body, mtime=0), body, BOMB]))
    if odd == 1:
        coded = gzip.compress(body, mtime=0)
        return (kind, ("Content-Encoding", "gzip")), draw(st.sampled_from([coded[:-4], coded + b"x", coded + coded]))
    if odd == 2:
        return (kind, ("Content-Encoding", "deflate")), draw(st.sampled_from([zlib.compress(body), body, b""]))
    if odd == 3:
        return (kind, ("Content-Encoding", draw(st.sampled_from(["br", "identity", "gzip, gzip", "GZIP "])))), body
    if odd == 4:
        return (kind, (HEAD_LENGTH, draw(st.sampled_from(LENGTHS)))), body
    if odd == 5:
        return (kind, (HEAD_LENGTH, str(len(body))), (HEAD_LENGTH.lower(), "1")), body
    if odd == 6:
        return (
            ("Content-Type", draw(st.sampled_from(["text/plain", "", "application/json; charset=utf-16", "*"]))),
        ), body
    return (kind,), body


@st.composite
def calls(draw: st.DrawFn, targets: list[Target]) -> tuple[str, list[Asked]]:
    """What the backend is told to do, and a few calls to one of its paths, at least one of them sound."""
    target = draw(st.sampled_from(targets))
    saying = draw(st.one_of(st.just(""), st.just(""), st.sampled_from([*SAYINGS])))
    found = [target.valid[draw(st.integers(0, len(target.valid) - 1))]]
    found += draw(st.lists(st.one_of(bodies(target.valid), st.sampled_from(target.valid)), min_size=1, max_size=3))
    own = tuple((name.decode(), value.decode()) for name, value in target.fields)
    said = ((SAY, saying),) if saying else ()
    sent = [(*draw(heads(body)),) for body in found]
    return saying, [Asked(target.path, body, (*fields, *own, *said)) for fields, body in sent]


def judge(asked: Asked, direct: Answer, answer: Answer) -> None:
    """Fail unless this is what the backend itself said to these bytes, or what is said where it said nothing whole."""
    about = (asked, direct, answer)
    if not direct.status:
        assert answer.status in (0, 502), about
        return
    assert answer.status == direct.status, about
    if direct.status in FOR_EVERYBODY and b"to a shared request" in answer.body:
        return
    assert answer.fields.get("Content-Type") == direct.fields.get("Content-Type"), about
    if direct.status != 200:
        assert answer.body == direct.body, about
        return
    expected, found = read(direct.body, direct.fields), read(answer.body, answer.fields)
    if ESTIMATED in answer.fields:
        expected, found = without_usage(expected), without_usage(found)
    assert found == expected, about


async def ask(scene: Scene, saying: str, asked: list[Asked]) -> None:
    """Everything at once, then one by one again; what is not to be kept must reach the backend each time."""
    stage, case = scene.stage, str(next(CASES))
    mine = [Asked(one.path, one.body, (*one.fields, (CASE, case))) for one in asked]
    direct = await asyncio.gather(*map(stage.direct, asked))
    answers = await asyncio.gather(*map(stage.through, mine))
    for one, expected, found in zip(asked, direct, answers, strict=True):
        judge(one, expected, found)
    for one, expected in zip(mine, direct, strict=True):
        before = scene.backend.asked[case]
        judge(one, expected, await stage.through(one))
        unreadable = saying not in KEPT and one.path != "/opaque"
        if expected.status != 200 or unreadable:
            assert scene.backend.asked[case] > before, (one, expected)


def test_whatever_comes_the_caller_gets_what_it_would_get_direct(scene: Scene) -> None:
    """Hostile requests, lying heads and faulty answers: never an error of Forebay's own making, never a stale one."""

    @examples(EXAMPLES * len(scene.targets))
    @given(calls(scene.targets))
    def few_calls(said: tuple[str, list[Asked]]) -> None:
        scene.stage.run(ask(scene, *said))

    few_calls()
    scrape = scene.stage.run(scene.stage.running.scrape())
    assert scrape.total("forebay_decisions_total", reason="codec_error") == 0
    assert scrape.total("forebay_requests_total", outcome="hit") > 3, "nothing was kept, so nothing was tried"


@pytest.mark.parametrize("saying", SAYINGS)
def test_what_the_backend_says_is_passed_on_and_kept_only_if_it_answers(scene: Scene, saying: str) -> None:
    """Each faulty answer to sound requests, at each path: said as it is, and asked for again the next time."""
    for target in scene.targets:
        fields = (*JSON.items(), *((name.decode(), value.decode()) for name, value in target.fields), (SAY, saying))
        sent = [Asked(target.path, body, fields) for body in target.valid]
        for one in sent:
            scene.stage.run(ask(scene, saying, [one]))
        scene.stage.run(ask(scene, saying, sent))


@pytest.mark.parametrize("name", LARGE)
def test_large_hostile_bodies_go_where_they_would_go(scene: Scene, name: str) -> None:
    """What is deep, wide or long beyond reason gets the backend's own word, twice."""
    value = LARGE[name](2**14 if name in MANY else 2**19)
    target = scene.targets[sum(name.encode()) % len(scene.targets)]
    fields = tuple((name.decode(), value.decode()) for name, value in target.fields)
    sent = [Asked(target.path, body, fields) for body in (value, *planted(target.valid[0], value)[:2])]
    scene.stage.run(ask(scene, "", sent))


def test_the_backend_of_this_test_reads_strictly() -> None:
    """It tells apart what differs by a lexeme, and refuses what is not the same to every reader."""
    path = "/v1/models/m:predict"
    texts = [b'{"instances":[1]}', b'{"instances":[1.0]}', b'{"instances":["1"]}', b'{"instances":[1],"x":0}']
    said = [answer(path, text) for text in texts]
    assert [one.status for one in said] == [200] * 4
    assert len({one.body for one in said}) == 4
    for text in (
        b'{"instances":[1],"instances":[1]}',
        b'{"instances":["\xff"]}',
        b'{"instances":[1]',
        b'{"instances":[]}',
    ):
        assert answer(path, text).status == 400
