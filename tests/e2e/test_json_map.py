"""Promises to whoever describes a JSON server to Forebay: a real LitServe, and one as people write them at home."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from proxy.proofs import AGREEING
from tests.parts.forebay import Running, forebay
from tests.parts.litserve_backend import LitServe

TOGETHER = 4  # calls of one batch: it leaves when they are there, and not before
COUNTER = itertools.count(1)  # numbers that nobody has asked for yet

CONFIG = """
batch: {mode: fixed, max_size: 4, max_delay: 20s}
routes:
  - id: lists
    match: {path: /predict_batch}
    protocol: json_map
    rows: true
    json_map: {items: /inputs, results: /outputs}
  - id: singles
    match: {path: /predict}
    protocol: json_map
    rows: true
    json_map:
      batch_path: /predict_batch
      item: ITEM
      result: RESULT
      shared: [SHARED]
      items: /inputs
      results: /outputs
"""
LITSERVE = CONFIG.replace("ITEM", "/input").replace("RESULT", "/output").replace("SHARED", "/scale")
HOME = CONFIG.replace("ITEM", "/text").replace("RESULT", "/label").replace("SHARED", "/threshold")
PROVED = HOME.replace("rows: true", "rows: prove").replace(
    "{mode: fixed, max_size: 4, max_delay: 20s}", "{max_size: 4}"
)
LISTS = """
routes:
  - {id: ranks, match: {path: /ranks}, protocol: json_map, json_map: {items: /inputs, results: /outputs}}
  - {id: squares, match: {path: /squares}, protocol: json_map, json_map: {items: /inputs, results: /outputs}}
"""
OPAQUE = """
routes:
  - {id: opaque, match: {path: /turned}, protocol: json_map}
  - {id: ranks, match: {path: /ranks}, protocol: json_map, json_map: {items: /inputs, results: /outputs}}
"""


class Said(NamedTuple):
    """An answer as its caller reads it."""

    status: int
    content_type: str | None
    body: bytes
    cache_status: str


async def ask(
    session: aiohttp.ClientSession, url: str, path: str, body: bytes, content_type: str = "application/json"
) -> Said:
    async with session.post(f"{url}{path}", data=body, headers={"Content-Type": content_type}) as answer:
        body = await answer.read()
        kind = answer.headers.get("Content-Type")
        return Said(answer.status, kind, body, answer.headers.get("Cache-Status", ""))


def value_of(said: Said) -> tuple[int, str | None, Any]:
    """Status, type and value, numbers as they are written."""
    body: Any = said.body
    if body[:1] in (b"{", b"["):
        body = json.loads(body, parse_int=str, parse_float=str)
    return said.status, said.content_type, body


class Both:
    """A Forebay and the server behind it, asked alike."""

    def __init__(self, running: Running, direct: str) -> None:
        self.running = running
        self._direct = direct

    async def direct(self, path: str, body: bytes, content_type: str = "application/json") -> Said:
        return await ask(self.running.session, self._direct, path, body, content_type)

    async def through(self, path: str, body: bytes, content_type: str = "application/json") -> Said:
        return await ask(self.running.session, self.running.url, path, body, content_type)

    async def together(self, path: str, *bodies: bytes) -> list[Said]:
        """Through Forebay at the same time."""
        async with asyncio.timeout(20):
            return await asyncio.gather(*(self.through(path, body) for body in bodies))


@asynccontextmanager
async def before(url: str, tmp_path: Path, config: str) -> AsyncIterator[Both]:
    file = tmp_path / "forebay.yaml"
    file.write_text(config)
    async with forebay(url, config=file) as running:
        yield Both(running, url)


# --- LitServe


@pytest.fixture(scope="module")
def litserve() -> Iterator[LitServe]:
    with LitServe() as started:
        yield started


@pytest.fixture
async def lit(litserve: LitServe, tmp_path: Path) -> AsyncIterator[Both]:
    async with before(litserve.url, tmp_path, LITSERVE) as both:
        yield both


def new(count: int) -> list[int]:
    """Numbers whose squares are in no cache."""
    return [next(COUNTER) for _ in range(count)]


async def test_a_list_of_litserves_is_answered_as_by_itself(lit: Both, litserve: LitServe) -> None:
    """First, repeated and row by row: equal to the digit, and computed once."""
    numbers = [*new(2), 2.5, -1e150, 9007199254740993]
    body = json.dumps({"inputs": numbers, "scale": 1}).encode()
    direct = await lit.direct("/predict_batch", body)
    assert direct.status == 200
    computed = len(litserve.counted("/predict_batch"))
    first = await lit.through("/predict_batch", body)
    again = await lit.through("/predict_batch", body)
    assert first[:3] == again[:3] == direct[:3]
    assert again.cache_status.startswith("Forebay; hit")
    for number in numbers:
        row = json.dumps({"scale": 1, "inputs": [number]}).encode()
        said = await lit.through("/predict_batch", row)
        assert said[:3] == (await lit.direct("/predict_batch", row))[:3]
        assert said.cache_status.startswith("Forebay; hit")
    assert litserve.counted("/predict_batch")[computed:] == [len(numbers)] + [1] * len(numbers)


async def test_lists_of_many_callers_reach_litserve_as_one(lit: Both, litserve: LitServe) -> None:
    """Calls that come together are one request there; whoever scales otherwise has no part in it."""
    numbers = new(TOGETHER)
    bodies = [json.dumps({"inputs": [number], "scale": 3}).encode() for number in numbers]
    computed = len(litserve.counted("/predict_batch"))
    said = await lit.together("/predict_batch", *bodies)
    assert litserve.counted("/predict_batch")[computed:] == [TOGETHER]
    assert [json.loads(one.body) for one in said] == [{"outputs": [3 * number**2]} for number in numbers]
    for body, one in zip(bodies, said, strict=True):
        assert one[:3] == (await lit.direct("/predict_batch", body))[:3]


async def test_single_calls_reach_litserve_as_a_batch(lit: Both, litserve: LitServe) -> None:
    """The documentation's own example, asked by many at once: one request to the path that takes a list."""
    numbers = new(TOGETHER)
    bodies = [json.dumps({"input": number + 0.5}).encode() for number in numbers]
    direct = [await lit.direct("/predict", body) for body in bodies]
    batches, alone = len(litserve.counted("/predict_batch")), len(litserve.counted("/predict"))
    said = await lit.together("/predict", *bodies)
    assert [one[:3] for one in said] == [one[:3] for one in direct]
    assert litserve.counted("/predict_batch")[batches:] == [TOGETHER]
    again = await lit.together("/predict", *bodies)
    assert [one[:3] for one in again] == [one[:3] for one in direct]
    assert all(one.cache_status.startswith("Forebay; hit") for one in again)
    assert litserve.counted("/predict")[alone:] == []


async def test_what_litserve_refuses_one_is_refused_that_one(lit: Both, litserve: LitServe) -> None:
    """One bad call among good ones: its caller reads LitServe's own error, the others their answers."""
    numbers = new(TOGETHER - 1)
    good = [json.dumps({"inputs": [number]}).encode() for number in numbers]
    bad = b'{"inputs": ["four"]}'
    direct = await lit.direct("/predict_batch", bad)
    assert direct.status == 422
    said = await lit.together("/predict_batch", *good, bad)
    assert said[-1][:3] == direct[:3]
    assert [json.loads(one.body) for one in said[:-1]] == [{"outputs": [number**2]} for number in numbers]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"inpt":4}',
        b'{"input":"a"}',
        b'{"input":1,"input":2}',
        b'{"input":1,"user":"u"}',
        b'{"input":NaN}',
    ],
)
async def test_an_odd_body_is_litserves_to_judge(litserve: LitServe, tmp_path: Path, body: bytes) -> None:
    """What the map does not fit, or LitServe does not like, is answered as by LitServe, however often it is asked."""
    async with before(litserve.url, tmp_path, LITSERVE.replace("20s", "1ms")) as lit:
        direct = await lit.direct("/predict", body)
        for _ in range(2):
            assert (await lit.through("/predict", body))[:3] == direct[:3]


# --- a server written at home


@dataclass
class Home:
    """/predict and /predict_batch say the same; in /ranks each row's answer hangs on the others, not in /squares.

    asked: path and items of every request that was computed, in order. turned: bodies that /turned has seen.
    """

    asked: list[tuple[str, int]] = field(default_factory=list)
    turned: list[bytes] = field(default_factory=list)

    def counted(self, path: str) -> list[int]:
        return [items for its, items in self.asked if its == path]

    @staticmethod
    def label(text: Any, threshold: float) -> dict[str, Any]:
        if not isinstance(text, str):
            raise web.HTTPUnprocessableEntity(text=json.dumps({"detail": f"{text!r} is no text"}))
        score = len(text) / 7
        return {"text": text, "long": score > threshold, "score": score}

    async def predict(self, request: web.Request) -> web.Response:
        body = await request.json()
        threshold = body.get("threshold", 0.5)
        answer: dict[str, Any]
        if request.path == "/predict":
            answer = {"label": self.label(body["text"], threshold), "model": "m1"}
            self.asked.append((request.path, 1))
        else:
            answer = {"outputs": [self.label(text, threshold) for text in body["inputs"]], "model": "m1"}
            self.asked.append((request.path, len(body["inputs"])))
        return web.json_response(answer)

    async def ranks(self, request: web.Request) -> web.Response:
        numbers = (await request.json())["inputs"]
        self.asked.append((request.path, len(numbers)))
        return web.json_response({"outputs": [sum(other <= number for other in numbers) for number in numbers]})

    async def squares(self, request: web.Request) -> web.Response:
        numbers = (await request.json())["inputs"]
        self.asked.append((request.path, len(numbers)))
        if not all(isinstance(number, int) for number in numbers):
            return web.json_response({"error": "not a number"})
        return web.json_response({"outputs": [number * number for number in numbers]})

    async def turn(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.turned.append(body)
        return web.Response(body=body[::-1], content_type="application/octet-stream")


@pytest.fixture
async def home() -> AsyncIterator[tuple[Home, str]]:
    server, app = Home(), web.Application()
    app.router.add_post("/predict", server.predict)
    app.router.add_post("/predict_batch", server.predict)
    app.router.add_post("/ranks", server.ranks)
    app.router.add_post("/squares", server.squares)
    app.router.add_post("/turned", server.turn)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def texts(count: int) -> list[bytes]:
    """Requests for the labels of texts that nobody has asked for yet, of few lengths."""
    return [json.dumps({"text": f"{number:0{3 + number % 5}}"}).encode() for number in new(count)]


async def test_a_callers_bad_text_is_refused_in_the_servers_words(home: tuple[Home, str], tmp_path: Path) -> None:
    """Single calls in a batch that is refused are asked again, each at its own path with its own bytes."""
    server, url = home
    async with before(url, tmp_path, HOME) as both:
        good, bad = texts(TOGETHER - 1), b'{"text": 7}'
        said = await both.together("/predict", *good, bad)
        assert server.counted("/predict") == [1] * (TOGETHER - 1)
        assert [one[:3] for one in said] == [(await both.direct("/predict", body))[:3] for body in (*good, bad)]
        assert said[-1].status == 422
        assert b"7 is no text" in said[-1].body


async def test_rows_that_prove_independent_ride_together(home: tuple[Home, str], tmp_path: Path) -> None:
    """Nobody said that rows are items: it is tried out beside the answers; then single calls ride in batches."""
    server, url = home
    async with before(url, tmp_path, PROVED) as both, asyncio.timeout(20):
        while not both.running.sidecar.proofs.report()["proved"]:
            bodies = texts(TOGETHER)
            said = await both.together("/predict", *bodies)
            assert [value_of(one) for one in said] == [value_of(await both.direct("/predict", one)) for one in bodies]
        assert (await both.running.scrape()).total("forebay_row_proofs_total", result="agreed") == AGREEING
        computed = len(server.counted("/predict_batch"))
        bodies = texts(4 * TOGETHER)
        said = await both.together("/predict", *bodies)
        assert max(server.counted("/predict_batch")[computed:]) > 1
        assert [value_of(one) for one in said] == [value_of(await both.direct("/predict", one)) for one in bodies]


async def test_rows_that_hang_on_each_other_are_never_joined(home: tuple[Home, str], tmp_path: Path) -> None:
    """A rank among the others: every caller reads its own, and one shadow is all the company that there ever was."""
    server, url = home
    async with before(url, tmp_path, OPAQUE) as both:
        for _ in range(5):
            bodies = [json.dumps({"inputs": [*new(2), 5]}).encode() for _ in range(8)]
            said = await both.together("/ranks", *bodies)
            assert [one[:3] for one in said] == [(await both.direct("/ranks", body))[:3] for body in bodies]
            await both.running.until(lambda: bool(both.running.sidecar.proofs.report()["disproved"]))
        assert [items for items in server.counted("/ranks") if items != 3] == [6]
        again = await both.through("/ranks", bodies[0])
        assert again.cache_status.startswith("Forebay; hit")
        assert again[:3] == said[0][:3]


async def prove(both: Both, path: str) -> None:
    """Two calls of a row each, as often as it takes to prove a path's rows, were they independent."""
    for _ in range(AGREEING):
        for number in new(2):
            await both.through(path, json.dumps({"inputs": [number]}).encode())
        await both.running.until(lambda: not both.running.sidecar.proofs.under_way)


async def test_a_path_whose_rows_hang_on_each_other_says_nothing_of_another(
    home: tuple[Home, str], tmp_path: Path
) -> None:
    """Two routes with maps that read alike are two models: one of them disproves only itself."""
    _, url = home
    async with before(url, tmp_path, LISTS) as both:
        for path in ("/ranks", "/squares"):
            await prove(both, path)
        report = both.running.sidecar.proofs.report()
        assert report == {"open": 0, "proved": 1, "disproved": ["json_map /ranks: differed"]}


async def test_an_error_said_with_200_disproves_nothing_by_itself(home: tuple[Home, str], tmp_path: Path) -> None:
    """One caller's bad call costs the others nothing; a path that answers nothing else is not tried for ever."""
    server, url = home
    bad = b'{"inputs": ["bad"]}'
    async with before(url, tmp_path, LISTS) as both:
        assert json.loads((await both.through("/squares", bad)).body) == {"error": "not a number"}
        await prove(both, "/squares")
        assert both.running.sidecar.proofs.report() == {"open": 0, "proved": 1, "disproved": []}
        assert 2 in server.counted("/squares")
    async with before(url, tmp_path, LISTS) as both:
        for _ in range(AGREEING):
            await both.through("/squares", bad)
        assert both.running.sidecar.proofs.report()["disproved"] == ["json_map /squares: not_split"]


async def test_a_server_of_which_nothing_is_said_is_cached_to_the_byte(home: tuple[Home, str], tmp_path: Path) -> None:
    """Bodies of any kind: whoever sends the same bytes again reads the same answer, and nobody else does."""
    server, url = home
    async with before(url, tmp_path, OPAQUE) as both:
        for body in (b"\x00\xff\x80 {", b"", b'{"a": 1}', b'{"a":1}', bytes(range(256)) * 64):
            direct = await both.direct("/turned", body, "image/png")
            computed = len(server.turned)
            first = await both.through("/turned", body, "image/png")
            again = await both.through("/turned", body, "image/png")
            assert first[:3] == again[:3] == direct[:3]
            assert again.cache_status.startswith("Forebay; hit")
            assert len(server.turned) == computed + 1
            other = await both.through("/turned", body, "image/gif")
            assert other.cache_status.startswith("Forebay; fwd=miss")
        streamed = await both.through("/turned", b'{"stream": true}')
        assert "streamed" in streamed.cache_status


async def test_any_traffic_is_answered_as_by_the_server_itself(home: tuple[Home, str], tmp_path: Path) -> None:
    """Hundreds of requests, good and bad, joined and repeated: status and parsed values are the server's own."""
    _, url = home
    dice = random.Random(5)

    def text() -> Any:
        return dice.choice(["", "a", "long enough", "é€😀", '"\\/\n', "x" * 30, 7, None])

    def request() -> tuple[str, bytes]:
        body: dict[str, Any] = {} if dice.random() < 0.5 else {"threshold": dice.choice([0, 0.5, 1e9, -1])}
        if dice.random() < 0.5:
            body["inputs"] = [text() for _ in range(dice.randint(0, 5))]
            path = "/predict_batch"
        else:
            body["text"], path = text(), "/predict"
        if dice.random() < 0.1:
            body["more"] = dice.choice([1, "user", [None]])
        pieces = list(body.items())
        dice.shuffle(pieces)
        return path, json.dumps(dict(pieces), ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, 1])).encode()

    async with before(url, tmp_path, HOME.replace("20s", "1ms")) as both:
        for _ in range(25 * int(os.environ.get("FOREBAY_EXAMPLES", "1"))):
            requests = [request() for _ in range(8)]
            said = await asyncio.gather(*(both.through(*one) for one in requests))
            for one, answer in zip(requests, said, strict=True):
                assert value_of(answer) == value_of(await both.direct(*one)), one
        scrape = await both.running.scrape()
        for outcome in ("hit", "miss", "bypass"):
            assert scrape.total("forebay_requests_total", outcome=outcome) > 10
        assert scrape.mean("forebay_batch_items") > 1
