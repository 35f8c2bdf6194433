"""Promises about answers that were computed before, or are being computed: whose they are and how long they live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import xxhash

from proxy import filling
from proxy.protocols.openai_embeddings import OpenAIEmbeddings
from proxy.protocols.v2 import V2
from tests.e2e.calls import answer, call, data, rows
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import Fault, ModelServer, model_server

INFER = "/v2/models/double/infer"
MISS = "Forebay; fwd=miss; stored; detail=first_seen"
TTL = 3600.0


class Clock:
    """Unix time as the test says."""

    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


class Said(NamedTuple):
    """What a caller got."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def cache(self) -> str:
        return self.headers["Cache-Status"]

    @property
    def ttl(self) -> int:
        hit, _, ttl = self.cache.partition("ttl=")
        assert hit == "Forebay; hit; ", self.cache
        return int(ttl)


async def ask(
    running: Running, asked: Mapping[str, Any], *, path: str = INFER, headers: Mapping[str, str] | None = None
) -> Said:
    """One call, on whatever path."""
    post = running.session.post(running.url + path, data=json.dumps(asked), headers=headers)
    async with asyncio.timeout(20), post as got:
        body = await got.read()
        return Said(got.status, json.loads(body) if body[:1] == b"{" else body, got.headers)


async def known(running: Running) -> None:
    """The answer to `call(1)` is in the response cache, and was given from there before."""
    await ask(running, call(1))
    for _ in range(2):
        assert (await ask(running, call(1))).ttl > 0


def begin(running: Running, asked: Mapping[str, Any], **how: Any) -> asyncio.Task[Said]:
    """The same, as a caller that can be called away."""
    return asyncio.create_task(ask(running, asked, **how))


async def leaves(caller: asyncio.Task[Said]) -> None:
    """The caller hangs up."""
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)


async def slot_is_taken(running: Running, backend: ModelServer) -> asyncio.Task[Said]:
    """A call holds the backend's only slot until the test opens `gate`: what comes now waits in its window."""
    backend.gate.clear()
    before = len(backend.requests)
    holder = begin(running, call(-99))
    await backend.has_received(before + 1)
    backend.requests.clear()
    backend.headers.clear()
    return holder


def sent(backend: ModelServer) -> list[dict[str, str]]:
    """The fields of each request that reached the backend, names in lower case."""
    return [{name.lower(): value for name, value in headers.items()} for headers in backend.headers]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def running(backend: ModelServer, clock: Clock) -> AsyncIterator[Running]:
    async with forebay(backend.url, unix_time=clock) as sidecar:
        await sidecar.knows("double")
        yield sidecar


@pytest.fixture
async def with_config(backend: ModelServer, tmp_path: Path) -> AsyncIterator[Callable[[str], Any]]:
    """Forebay with a configuration of the test's own."""
    async with asyncio.timeout(60):

        def configured(text: str) -> Any:
            file = tmp_path / "forebay.yaml"
            file.write_text(text)
            return forebay(backend.url, config=file)

        yield configured


# How long an answer is kept.


async def test_a_repeated_call_does_not_reach_the_backend(running: Running, backend: ModelServer) -> None:
    """The first caller's answer serves the second: same body but the id, same type, and it says where it came from."""
    first = await ask(running, call(1, 2, id="first"))
    backend.gate.clear()  # a hit asks nobody
    second = await ask(running, call(1, 2, id="second"))
    third = await ask(running, call(1, 2))
    assert first.cache == MISS
    assert "Age" not in first.headers
    assert second.cache.startswith("Forebay; hit; ttl=")
    assert second.headers["Age"] == "0"
    assert second.headers["Content-Type"] == first.headers["Content-Type"] == "application/json; charset=utf-8"
    assert [said.body.pop("id", None) for said in (first, second, third)] == ["first", "second", None]
    assert first.body == second.body == third.body
    assert data(first.body) == answer(1, 2)
    assert len(backend.requests) == 1


async def test_white_space_and_the_order_of_keys_do_not_matter(running: Running, backend: ModelServer) -> None:
    """Two client libraries that write the same call differently share its answer."""
    await ask(running, call(1))
    tensor = '{ "data" : [1,\n1], "datatype":"INT64","shape" : [1, 2], "name": "x"}'
    text = f'{{ "inputs" :\t[{tensor}] , "id": "other" }}'
    async with running.session.post(running.url + INFER, data=text) as got:
        assert got.headers["Cache-Status"].startswith("Forebay; hit")
        assert data(json.loads(await got.read())) == answer(1)
    assert len(backend.requests) == 1


async def test_an_answer_ages_and_expires(running: Running, backend: ModelServer, clock: Clock) -> None:
    """A hit says how old it is and how long it will serve; when that is over, the backend is asked again."""
    await ask(running, call(1))
    clock.now += 100.25
    hit = await ask(running, call(1))
    assert hit.headers["Age"] == "100"
    clock.now += hit.ttl - 1
    assert (await ask(running, call(1))).ttl in (1, 2)
    clock.now += 3
    backend.weights = 7
    again = await ask(running, call(1))
    assert again.cache == "Forebay; fwd=stale; stored; detail=expired"
    assert "Age" not in again.headers
    assert data(again.body) == answer(1, weights=7)
    assert data((await ask(running, call(1))).body) == answer(1, weights=7)
    assert len(backend.requests) == 2


async def test_what_was_stored_together_does_not_expire_together(running: Running) -> None:
    """Lifetimes differ by up to a tenth either way, so a burst of calls does not come back as a burst of misses."""
    for number in range(40):
        await ask(running, call(number))
    ttls = [(await ask(running, call(number))).ttl for number in range(40)]
    assert 0.9 * TTL - 1 <= min(ttls) < 0.97 * TTL
    assert 1.03 * TTL < max(ttls) <= 1.1 * TTL


async def test_a_route_has_its_own_lifetime(with_config: Callable[[str], Any]) -> None:
    """`ttl` of the route that a call belongs to is how long its answer is kept."""
    async with with_config(
        "cache: {ttl: 10s}\nroutes: [{id: b, match: {path: '*/1/infer'}, cache: {ttl: 1m}}]"
    ) as running:
        await running.knows("double")
        for path, ttl in ((INFER, 10), ("/v2/models/double/versions/1/infer", 60)):
            await ask(running, call(1), path=path)
            assert 0.9 * ttl - 1 <= (await ask(running, call(1), path=path)).ttl <= 1.1 * ttl


async def test_an_answer_of_unknown_weights_is_kept_a_minute_at_most(
    with_config: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Where backend and operator say nothing of a model's identity, lifetimes are short, and the log says so, once."""
    path = "/v2/models/double-2/infer"  # not listed
    async with with_config("") as running:
        await running.knows("double-2")
        await ask(running, call(1), path=path)
        assert (await ask(running, call(1), path=path)).ttl <= 60
        await running.knows("double-3")
        await ask(running, call(1), path="/v2/models/double-3/infer")
        assert caplog.text.count("answers are kept 60 s at most") == 1
    caplog.clear()
    async with with_config("routes: [{id: known, match: {path: '*'}, model: {revision: '7'}}]") as running:
        await running.knows("double-2")
        await ask(running, call(1), path=path)
        assert (await ask(running, call(1), path=path)).ttl > 0.9 * TTL - 1
    assert "answers are kept" not in caplog.text


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"Cache-Control": "max-age=60"}, 60),
        ({"Cache-Control": "public, max-age=60, s-maxage=20"}, 20),
        ({"Cache-Control": "max-age=60", "Age": "45"}, 15),
    ],
)
async def test_the_backends_lifetime_shortens_ours(
    running: Running, backend: ModelServer, clock: Clock, said: dict[str, str], seconds: int
) -> None:
    """`max-age` bounds how long an answer is served, whatever the jitter."""
    backend.answer_headers = said
    await ask(running, call(1))
    hit = await ask(running, call(1))
    assert hit.ttl <= seconds
    assert hit.headers["Age"] == said.get("Age", "0")  # what it had when it came is part of it
    clock.now += seconds
    assert (await ask(running, call(1))).cache == "Forebay; fwd=stale; stored; detail=expired"


@pytest.mark.parametrize(
    "said",
    [
        {"Cache-Control": "no-store"},
        {"Cache-Control": "private, max-age=60"},
        {"Cache-Control": "max-age=0"},
        {"Set-Cookie": "session=1"},
        {"Vary": "*"},
    ],
)
async def test_what_may_not_be_stored_is_not(running: Running, backend: ModelServer, said: dict[str, str]) -> None:
    """The backend's word counts: such an answer goes to its own caller, with all its fields, and to nobody else."""
    backend.answer_headers = said
    first = await ask(running, call(1))
    backend.weights = 5
    second = await ask(running, call(1))
    assert first.cache == "Forebay; fwd=miss; detail=first_seen"
    assert second.cache == "Forebay; fwd=miss; detail=no_store"
    assert (data(first.body), data(second.body)) == (answer(1), answer(1, weights=5))
    for name, value in said.items():
        assert first.headers[name] == value
    assert len(running.sidecar.tiers.memory) == 0


async def test_what_varies_with_a_field_is_kept_where_the_field_separates(
    with_config: Callable[[str], Any], backend: ModelServer
) -> None:
    """`Vary` names fields that tell callers apart anyway; where a credential does not, nothing is kept."""
    for tenant, fields, kept in (
        ("credentials", "Authorization, X-Experiment, Accept-Encoding", True),
        ("none", "X-Experiment", True),
        ("none", "Authorization", False),
        ("credentials", "User-Agent", False),
    ):
        async with with_config(f"cache: {{tenant: {tenant}}}") as running:
            await running.knows("double")
            backend.answer_headers = {"Vary": fields}
            await ask(running, call(1))
            assert (await ask(running, call(1))).cache.startswith("Forebay; hit") is kept, (tenant, fields)


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.CRASH, Fault.OVERLOAD, Fault.GARBAGE])
async def test_errors_are_never_stored(running: Running, backend: ModelServer, fault: Fault) -> None:
    """A call that failed is asked again the next time, however often it failed before."""
    for count in (1, 2):
        said = await ask(running, call(fault, id=f"try {count}"))
        known_not_to_be_kept = fault is Fault.GARBAGE and count == 2  # a success; an error says nothing of the next try
        assert said.cache == f"Forebay; fwd=miss; detail={'no_store' if known_not_to_be_kept else 'first_seen'}"
        if fault is Fault.REFUSE:
            assert said.body == {"error": f"[request id: try {count}] poisoned row"}
        assert len(backend.requests) == count
    assert len(running.sidecar.tiers.memory) == 0


async def test_only_what_describes_the_body_is_kept(running: Running, backend: ModelServer) -> None:
    """The first caller's request id, rate limits and date are its own; a hit carries none of them."""
    backend.answer_headers = {"X-Request-Id": "first", "X-RateLimit-Remaining": "3", "Access-Control-Allow-Origin": "a"}
    first = await ask(running, call(1))
    hit = await ask(running, call(1))
    assert first.headers.items() >= backend.answer_headers.items()
    assert not hit.headers.keys() & backend.answer_headers.keys()


async def test_a_reload_ends_what_was_stored(running: Running, backend: ModelServer) -> None:
    """Other weights in place: from the next poll on nobody is told what the old ones said."""
    for number in (0, 1, 1, 1):
        await ask(running, call(number))
    await running.sidecar.models.poll()
    backend.reload(weights=100)
    await running.sidecar.models.poll()
    again = await ask(running, call(1))
    assert again.cache == MISS
    assert data(again.body) == answer(1, weights=100)


@pytest.mark.parametrize("numbers", [(1,), (1, 1)], ids=["its own bytes", "joined"])
async def test_a_reload_right_after_the_first_answer_is_seen(
    running: Running, backend: ModelServer, numbers: tuple[int, ...]
) -> None:
    """What was asked since the last poll counts too: counters that are as low as then give a reload away."""
    for _ in range(3):
        assert data((await ask(running, call(*numbers))).body) == answer(*numbers)
    backend.reload(weights=100)
    await running.sidecar.models.poll()
    assert data((await ask(running, call(1))).body) == answer(1, weights=100)


async def test_a_load_call_that_passes_through_ends_what_was_stored(running: Running, backend: ModelServer) -> None:
    """Whoever loads a model through Forebay gets the new answers at once."""
    await known(running)
    async with running.session.post(f"{running.url}/v2/repository/models/double/load", json={}) as loaded:
        assert loaded.status == 200
    again = await ask(running, call(1))
    assert "hit" not in again.cache
    assert data(again.body) == answer(1, weights=2)


# Whose answer it is.


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/v2/models/double/versions/1/infer"},
        {"path": INFER + "?verbose=1"},
        {"headers": {"X-Experiment": "b"}},
        {"headers": {"Authorization": "Bearer b"}},
        {"headers": {"Cookie": "session=b"}},
        {"asked": call(1, parameters={"temperature": 1})},
        {"asked": call(1, outputs=[{"name": "y"}])},
        {"asked": call(1, unheard_of=True)},
        {"asked": call(1) | {"inputs": [call(1)["inputs"][0] | {"datatype": "FP32"}]}},
        {"asked": call(1) | {"inputs": [call(1)["inputs"][0] | {"name": "z"}]}},
        {"asked": call(1) | {"inputs": [call(1)["inputs"][0] | {"data": [[1, 1]]}]}},
        {"asked": call(1) | {"inputs": [call(1)["inputs"][0] | {"shape": [1, 1], "data": [1]}]}},
    ],
    ids=str,
)
async def test_whatever_can_change_an_answer_separates(
    running: Running, backend: ModelServer, other: dict[str, Any]
) -> None:
    """Version, query, an unknown header, a credential, any field of the body: neither shares the other's answer."""
    await known(running)
    asked = {"asked": call(1)} | other
    backend.weights = 5
    first = await ask(running, **asked)
    assert "hit" not in first.cache
    assert first.body["outputs"][0]["data"][0] == 7
    assert (await ask(running, **asked)).cache.startswith("Forebay; hit")
    assert data((await ask(running, call(1))).body) == answer(1)
    assert len(backend.requests) == 2


async def test_models_do_not_share_answers(running: Running, backend: ModelServer) -> None:
    """The same rows asked of another model are another question."""
    await known(running)
    other = "/v2/models/double-2/infer"
    await running.knows("double-2")
    backend.weights = 5
    assert data((await ask(running, call(1), path=other)).body) == answer(1, weights=5)
    assert data((await ask(running, call(1))).body) == answer(1)


@pytest.mark.parametrize(
    "name",
    ["traceparent", "X-Request-Id", "X-B3-TraceId", "User-Agent", "X-Forwarded-For", "X-Request-Timeout-Ms", "Date"],
)
async def test_what_differs_with_every_request_does_not_separate(
    running: Running, backend: ModelServer, name: str
) -> None:
    """Trace, request id, the software and the way by which a request came: answers are shared whatever they say."""
    await ask(running, call(1), headers={name: "a"})
    assert (await ask(running, call(1), headers={name: "b"})).cache.startswith("Forebay; hit")
    assert len(backend.requests) == 1


async def test_followers_are_told_apart_by_what_separates(running: Running, backend: ModelServer) -> None:
    """Nobody follows the flight of another tenant: each asks with its own credential."""
    backend.gate.clear()
    callers = [begin(running, call(1), headers={"Authorization": who}) for who in ("a", "b")]
    await backend.has_received(1)
    await running.queued(1)
    backend.gate.set()
    assert [data((await caller).body) for caller in callers] == [answer(1), answer(1)]
    assert {fields["authorization"] for fields in sent(backend)} == {"a", "b"}


async def test_callers_with_other_headers_do_not_ride_together(running: Running, backend: ModelServer) -> None:
    """A joined request speaks for all its members: only those whose headers say the same may share it."""
    holder = await slot_is_taken(running, backend)
    callers = [
        begin(running, call(1), headers={"X-Experiment": "a"}),
        begin(running, call(2), headers={"X-Experiment": "b"}),
        begin(running, call(3), headers={"X-Experiment": "a"}),
    ]
    await running.queued(3)
    backend.gate.set()
    await holder
    assert [data((await caller).body) for caller in callers] == [answer(1), answer(2), answer(3)]
    assert sorted(backend.batch_sizes) == [1, 2]
    sizes = zip(sent(backend), backend.batch_sizes, strict=True)
    assert {fields["x-experiment"]: size for fields, size in sizes} == {"a": 2, "b": 1}


async def test_tenant_none_shares_answers_and_no_credentials(
    with_config: Callable[[str], Any], backend: ModelServer
) -> None:
    """Where a gateway has checked the callers they share answers, but nobody's call is sent as somebody else."""
    async with with_config("cache: {tenant: none}") as running:
        await running.knows("double")
        await ask(running, call(1), headers={"Authorization": "a"})
        assert (await ask(running, call(1), headers={"Authorization": "b"})).cache.startswith("Forebay; hit")
        holder = await slot_is_taken(running, backend)
        callers = [begin(running, call(n), headers={"Authorization": who}) for n, who in ((2, "a"), (3, "b"), (4, "a"))]
        await running.queued(3)
        backend.gate.set()
        await holder
        assert [data((await caller).body) for caller in callers] == [answer(2), answer(3), answer(4)]
        requests = zip(sent(backend), backend.requests, strict=True)
        assert {fields["authorization"]: request["inputs"][0]["data"] for fields, request in requests} == {
            "a": rows(2, 4),
            "b": rows(3),
        }


async def test_a_tenant_by_header_is_that_header(with_config: Callable[[str], Any], backend: ModelServer) -> None:
    """`tenant: header:X-Team`: colleagues share whatever token they come with, teams do not."""
    async with with_config("cache: {tenant: 'header:X-Team'}") as running:
        await running.knows("double")
        await ask(running, call(1), headers={"X-Team": "red", "Authorization": "a"})
        assert (await ask(running, call(1), headers={"X-Team": "red", "Authorization": "b"})).ttl > 0
        assert (await ask(running, call(1), headers={"X-Team": "blue", "Authorization": "a"})).cache == MISS
    assert len(backend.requests) == 2


async def test_a_joined_request_carries_nobodys_trace(running: Running, backend: ModelServer) -> None:
    """Members with traces and request ids of their own ride together; none of these is passed off as all of theirs."""
    holder = await slot_is_taken(running, backend)
    own = [{"traceparent": f"00-{n}", "x-request-id": f"{n}", "authorization": "same"} for n in (1, 2)]
    callers = [begin(running, call(n), headers=headers) for n, headers in enumerate(own, 1)]
    await running.queued(2)
    backend.gate.set()
    await holder
    assert [data((await caller).body) for caller in callers] == [answer(1), answer(2)]
    assert backend.batch_sizes == [2]
    (fields,) = sent(backend)
    assert not fields.keys() & {"traceparent", "x-request-id"}
    assert fields.items() >= {"authorization": "same", "accept-encoding": "identity"}.items()


class OneAddress:
    """A hash under which every item has the same address: the worst that a collision can be."""

    def __init__(self, _: bytes = b"") -> None: ...

    def copy(self) -> OneAddress:
        return self

    def update(self, _: bytes) -> None: ...

    def digest(self) -> bytes:
        return bytes(16)


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_128", OneAddress)
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda _: bytes(16))


@pytest.mark.usefixtures("colliding")
async def test_a_collision_of_addresses_is_a_miss(running: Running, backend: ModelServer) -> None:
    """Two items under one address: neither is ever answered with what the other one got."""
    for number in (1, 2, 1, 2):
        assert data((await ask(running, call(number))).body) == answer(number)
    assert data((await ask(running, call(3, 4, 3, id="many"))).body) == answer(3, 4, 3)
    assert (await ask(running, call(4))).cache.startswith("Forebay; hit")  # the last one that was stored
    scrape = await running.scrape()
    assert scrape.total("forebay_cache_proof_mismatches_total") > 0


@pytest.mark.usefixtures("colliding")
async def test_nobody_follows_a_flight_of_the_same_address(running: Running, backend: ModelServer) -> None:
    """Under way at the same time and under one address: each caller gets the answer to its own rows."""
    backend.gate.clear()
    callers = [begin(running, call(1))]
    await backend.has_received(1)
    callers += [begin(running, call(*numbers)) for numbers in ((2,), (1,), (3, 1), (2, 2))]
    await running.queued(4)  # whoever asks for 1 follows; 2, 3, 2 and 2 are computed each for itself
    backend.gate.set()
    assert [data((await caller).body) for caller in callers] == [
        answer(*numbers) for numbers in ((1,), (2,), (1,), (3, 1), (2, 2))
    ]


# What a caller or a route may ask for.


async def test_a_caller_may_leave_the_response_cache_out(running: Running, backend: ModelServer) -> None:
    """`Forebay-Cache: off`: neither read nor written, and the backend is not told of it."""
    await known(running)
    backend.weights = 5
    off = await ask(running, call(1), headers={"Forebay-Cache": "off"})
    assert off.cache == "Forebay; fwd=bypass; detail=opted_out"
    assert data(off.body) == answer(1, weights=5)
    assert data((await ask(running, call(1))).body) == answer(1)
    await ask(running, call(2), headers={"Forebay-Cache": "off"})
    assert (await ask(running, call(2))).cache == MISS
    assert not [name for fields in sent(backend) for name in fields if name.startswith("forebay")]


async def test_a_caller_may_have_an_answer_renewed(running: Running, backend: ModelServer) -> None:
    """`Forebay-Cache: refresh`: the backend is asked, and from then on everybody gets the new answer."""
    for _ in range(3):
        await ask(running, call(1, 2))
    backend.weights = 5
    renewed = await ask(running, call(1, 2, id="mine"), headers={"forebay-cache": "REFRESH"})
    assert renewed.cache == "Forebay; fwd=request; stored; detail=refresh"
    assert (data(renewed.body), renewed.body["id"]) == (answer(1, 2, weights=5), "mine")
    hit = await ask(running, call(2))
    assert hit.cache.startswith("Forebay; hit")
    assert data(hit.body) == answer(2, weights=5)
    assert not [name for fields in sent(backend) for name in fields if name.startswith("forebay")]


async def test_a_caller_may_ride_alone(running: Running, backend: ModelServer) -> None:
    """`Forebay-Batch: off`: nobody's rows travel with it, the backend reads its own body, and its answer is stored."""
    holder = await slot_is_taken(running, backend)
    alone = [begin(running, call(n, id=f"{n}"), headers={"Forebay-Batch": "off"}) for n in (1, 2, 3)]
    await backend.has_received(1)  # a full batch may queue one deeper
    await running.queued(2)
    joined = [begin(running, call(n)) for n in (4, 5)]
    await running.queued(4)
    backend.gate.set()
    await holder
    assert [data((await caller).body) for caller in (*alone, *joined)] == [answer(n) for n in (1, 2, 3, 4, 5)]
    assert sorted(backend.batch_sizes) == [1, 1, 1, 2]
    assert {request["id"] for request in backend.requests} >= {"1", "2", "3"}
    assert not [name for fields in sent(backend) for name in fields if name.startswith("forebay")]
    assert (await ask(running, call(1, 2, 3, 4, 5))).cache.startswith("Forebay; hit")


ROUTES = """
routes:
  - {id: untouched, match: {path: /v2/models/double/versions/1/infer}, mode: off}
  - {id: uncached, match: {path: /v2/models/double/versions/2/infer}, cache: {mode: off}}
  - {id: alone, match: {path: /v2/models/double/versions/3/infer}, batch: {mode: off}}
  - {id: neither, match: {path: /v2/models/double/versions/4/infer}, batch: {mode: off}, cache: {mode: off}}
"""


async def test_a_route_that_is_off_only_passes_through(with_config: Callable[[str], Any], backend: ModelServer) -> None:
    """`mode: off`: no read, no write, no join, no flight; every request travels as it came, fields and all."""
    async with with_config(ROUTES) as running:
        await running.knows("double")
        path = "/v2/models/double/versions/1/infer"
        backend.gate.clear()
        own = {"x-request-id": "7", "accept-encoding": "br"}
        callers = [begin(running, call(1, id="own"), path=path, headers=own) for _ in range(3)]
        await backend.has_received(3)  # at once: neither slot nor flight holds them
        backend.gate.set()
        for caller in callers:
            said = await caller
            assert said.body["id"] == "own"
            assert data(said.body) == answer(1)
            assert said.cache == "Forebay; fwd=bypass; detail=opted_out"
            assert not said.headers.keys() & {"Age", "Via", "Server-Timing"}
        for fields in sent(backend):
            assert fields.items() >= own.items()
        await ask(running, call(1), path=path)
        assert len(backend.requests) == 4
        assert len(running.sidecar.tiers.memory) == 0
        assert len(running.sidecar.pipeline.answers.flights) == 0
        scrape = await running.scrape()
        assert scrape.total("forebay_cache_items_total") == 0
        assert scrape.total("forebay_batch_items_count", route="untouched") == 0
        assert scrape.total("forebay_decisions_total", route="untouched", reason="opted_out") == 4


async def test_a_route_may_join_without_caching(with_config: Callable[[str], Any], backend: ModelServer) -> None:
    """`cache: {mode: off}`: equal calls are computed once each, yet ride together; nothing is kept."""
    async with with_config(ROUTES) as running:
        await running.knows("double")
        holder = await slot_is_taken(running, backend)
        path = "/v2/models/double/versions/2/infer"
        callers = [begin(running, call(1, id=f"{n}"), path=path) for n in range(3)]
        await running.until(lambda: running.sidecar.metrics.route("uncached").queue_depth.value == 3)
        assert running.sidecar.pipeline.answers.flights.waiting == 1  # the holder's
        backend.gate.set()
        await holder
        for number, caller in enumerate(callers):
            said = await caller
            assert (said.body["id"], data(said.body)) == (f"{number}", answer(1))
            assert said.cache == "Forebay; fwd=bypass; detail=opted_out"
        assert backend.batch_sizes == [3]
        assert len(running.sidecar.tiers.memory) == 1  # the holder's


async def test_a_route_may_cache_without_joining(with_config: Callable[[str], Any], backend: ModelServer) -> None:
    """`batch: {mode: off}`: calls go one by one, at once, and their answers are kept."""
    async with with_config(ROUTES) as running:
        await running.knows("double")
        path = "/v2/models/double/versions/3/infer"
        backend.gate.clear()
        callers = [begin(running, call(n), path=path) for n in (1, 2, 3, 1)]
        await backend.has_received(3)
        await running.coalescing(4)
        backend.gate.set()
        assert [data((await caller).body) for caller in callers] == [answer(n) for n in (1, 2, 3, 1)]
        assert backend.batch_sizes == [1, 1, 1]
        assert (await ask(running, call(1, 2, 3), path=path)).cache.startswith("Forebay; hit")
        neither = await ask(running, call(1), path="/v2/models/double/versions/4/infer")
        assert neither.cache == "Forebay; fwd=bypass; detail=opted_out"


# A call is its items.


async def test_only_the_missing_rows_travel(running: Running, backend: ModelServer, clock: Clock) -> None:
    """A call of which some rows are known sends the others; the answer is whole and in order, and says its age."""
    await ask(running, call(2, 4))
    clock.now += 50
    mixed = await ask(running, call(1, 2, 3, 4, id="mixed"))
    assert mixed.cache == "Forebay; fwd=partial; stored; detail=first_seen"
    assert mixed.headers["Age"] == "50"
    assert (data(mixed.body), mixed.body["id"]) == (answer(1, 2, 3, 4), "mixed")
    assert [request["inputs"][0]["data"] for request in backend.requests] == [rows(2, 4), rows(1, 3)]
    assert (await running.scrape()).total("forebay_cache_saved_upstream_seconds_total") > 0
    assert (await ask(running, call(4, 3, 2, 1))).cache.startswith("Forebay; hit")
    scrape = await running.scrape()
    counted = {
        result: scrape.total("forebay_cache_items_total", result=result)
        for result in ("memory_hit", "miss", "coalesced")
    }
    assert counted == {"memory_hit": 6, "miss": 4, "coalesced": 0}
    assert scrape.total("forebay_cache_stores_total", result="stored") == 4


async def test_equal_rows_of_one_call_travel_once(running: Running, backend: ModelServer) -> None:
    """A row that a call holds three times is computed once, and answered three times."""
    said = await ask(running, call(5, 6, 5, 5, 7, 6))
    assert data(said.body) == answer(5, 6, 5, 5, 7, 6)
    assert [request["inputs"][0]["data"] for request in backend.requests] == [rows(5, 6, 7)]


async def test_equal_rows_whose_answer_may_not_be_stored_are_answered(running: Running, backend: ModelServer) -> None:
    """A call with a row twice gets its answer also where nothing of it may be kept."""
    backend.answer_headers = {"Cache-Control": "no-store"}
    said = await ask(running, call(5, 6, 5))
    assert (said.status, data(said.body)) == (200, answer(5, 6, 5))
    assert backend.batch_sizes == [2]


async def test_what_may_not_be_stored_is_joined_all_the_same(running: Running, backend: ModelServer) -> None:
    """Callers that ride together each get their part of an answer that nobody may keep, and it is computed once."""
    backend.answer_headers = {"Cache-Control": "no-store", "Set-Cookie": "session=1"}
    holder = await slot_is_taken(running, backend)
    callers = [begin(running, call(1, id="a")), begin(running, call(2, 3, id="b"))]
    await running.queued(3)
    backend.gate.set()
    await holder
    one, two = [await caller for caller in callers]
    assert [(said.body["id"], data(said.body)) for said in (one, two)] == [("a", answer(1)), ("b", answer(2, 3))]
    assert backend.batch_sizes == [3]
    for said in (one, two):
        assert said.cache == "Forebay; fwd=miss; detail=first_seen"
        assert "Set-Cookie" not in said.headers  # it was said to neither of them
    assert len(running.sidecar.tiers.memory) == 0
    scrape = await running.scrape()
    assert scrape.total("forebay_cache_stores_total", result="no_store") == 4


async def test_rows_under_way_for_others_are_not_sent_again(running: Running, backend: ModelServer) -> None:
    """A call leads what nobody asked yet and follows the rest, in one answer."""
    backend.gate.clear()
    first = begin(running, call(1, 2))
    await backend.has_received(1)
    second = begin(running, call(2, 3, 1))
    await running.queued(1)
    backend.gate.set()
    assert data((await first).body) == answer(1, 2)
    assert data((await second).body) == answer(2, 3, 1)
    assert [request["inputs"][0]["data"] for request in backend.requests] == [rows(1, 2), rows(3)]


async def test_rows_that_were_answered_in_different_ways_are_not_mixed(running: Running, backend: ModelServer) -> None:
    """Answers that do not fit together, here of two versions, never make one: the backend is asked for all of it."""
    await ask(running, call(1))
    backend.version = "2"  # which no poll has seen yet
    said = await ask(running, call(1, 2))
    assert said.cache == "Forebay; fwd=miss; detail=misfit"
    assert (data(said.body), said.body["model_version"]) == (answer(1, 2), "2")
    backend.requests.clear()
    said = await ask(running, call(1, 2))
    assert said.cache == "Forebay; fwd=miss; stored; detail=misfit"
    assert (data(said.body), said.body["model_version"]) == (answer(1, 2), "2")
    assert backend.batch_sizes == [2]
    said = await ask(running, call(2, 1))
    assert said.cache.startswith("Forebay; hit")
    assert said.body["model_version"] == "2"
    scrape = await running.scrape()
    assert scrape.total("forebay_decisions_total", reason="misfit") == 2


async def test_the_callers_form_is_kept(running: Running) -> None:
    """Flat or nested data, with an id of any spelling or none: hits and misses answer alike."""
    nested = {"inputs": [call(1, 2)["inputs"][0] | {"data": [[1, 1], [2, 4]]}], "id": 'a "quoted" \u20ac'}
    for _ in range(2):
        said = await ask(running, nested)
        assert (said.body["id"], data(said.body)) == (nested["id"], answer(1, 2))


async def test_a_model_without_batches_is_cached_by_the_call() -> None:
    """`max_batch_size: 0`: rows belong together, nothing joins, and a call is found again only as a whole."""
    async with model_server(max_batch_size=0) as backend, forebay(backend.url) as running:
        await running.knows("double")
        backend.gate.clear()
        callers = [begin(running, asked) for asked in (call(1, 2, id="a"), call(1), call(2, 1), call(1, 2, id="b"))]
        await backend.has_received(3)  # at once: what never joins takes no slot
        await running.coalescing(4)
        backend.gate.set()
        said = [await caller for caller in callers]
        assert [data(one.body) for one in said] == [answer(1, 2), answer(1), answer(2, 1), answer(1, 2)]
        assert [one.body.get("id") for one in said] == ["a", None, None, "b"]
        assert sorted(backend.batch_sizes) == [1, 2, 2]
        assert (await ask(running, call(2, 1))).cache.startswith("Forebay; hit")
        assert (await ask(running, call(2))).cache == MISS


async def test_a_tiny_memory_evicts_and_stays_right() -> None:
    """A response cache that is too small for its traffic is slower, never wrong, and never larger than it may be."""
    async with model_server() as backend, forebay(backend.url, cache__memory="64KiB") as running:
        await running.knows("double")
        reasons = set()
        for start in (*range(0, 160, 4), *range(156, -1, -4)):
            numbers = range(start, start + 4)
            said = await ask(running, call(*numbers))
            assert data(said.body) == answer(*numbers)
            reasons.add(said.cache.rpartition("detail=")[2])
            assert running.sidecar.tiers.memory.bytes <= 65536
        assert "evicted" in reasons
        scrape = await running.scrape()
        assert scrape.total("forebay_cache_evictions_total") > 0
        assert 0 < scrape.total("forebay_cache_bytes") <= 65536


async def test_without_memory_calls_still_coalesce() -> None:
    """`memory: 0B` keeps nothing, yet equal calls under way are computed once."""
    async with model_server() as backend, forebay(backend.url, cache__memory="0B") as running:
        await running.knows("double")
        backend.gate.clear()
        callers = [begin(running, call(1)) for _ in range(5)]
        await running.coalescing(5)
        backend.gate.set()
        said = [await caller for caller in callers]
        assert [data(one.body) for one in said] == [answer(1)] * 5
        assert {one.cache for one in said} == {
            "Forebay; fwd=miss; detail=first_seen",
            "Forebay; fwd=miss; collapsed; detail=first_seen",
        }
        assert len(backend.requests) == 1


# One computation, many callers.


async def test_callers_of_the_same_rows_cause_one_computation(running: Running, backend: ModelServer) -> None:
    """Fifty callers ask while the answer is being computed: one request, fifty answers, each with its own id."""
    backend.gate.clear()
    callers = [begin(running, call(1, 2, id=f"{n}")) for n in range(50)]
    await running.coalescing(100)  # two rows each
    backend.gate.set()
    said = [await caller for caller in callers]
    assert [one.body["id"] for one in said] == [f"{n}" for n in range(50)]
    assert all(data(one.body) == answer(1, 2) for one in said)
    assert backend.batch_sizes == [2]
    assert [one.cache for one in said].count(MISS) == 1
    assert [one.cache for one in said].count("Forebay; fwd=miss; collapsed; detail=first_seen") == 49
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 1
    assert scrape.total("forebay_requests_total", outcome="coalesced") == 49
    assert scrape.total("forebay_coalesce_wait_seconds_count") == 49


async def test_nobody_follows_a_caller_with_a_deadline(running: Running, backend: ModelServer) -> None:
    """What a caller's own `timeout` may cut off is computed for it alone; its answer is kept for all."""
    backend.gate.clear()
    hasty = begin(running, call(1, parameters={"timeout": 1_000_000}))
    await backend.has_received(1)
    other = begin(running, call(1))
    await running.queued(1)
    await running.coalescing(1)
    backend.gate.set()
    assert [data((await caller).body) for caller in (hasty, other)] == [answer(1), answer(1)]
    assert len(backend.requests) == 2
    assert (await ask(running, call(1, parameters={"timeout": 7}))).cache.startswith("Forebay; hit")


async def test_a_leader_that_leaves_hurts_nobody(running: Running, backend: ModelServer) -> None:
    """The caller that began a computation hangs up: whoever waits for it gets the answer all the same."""
    backend.gate.clear()
    leader = begin(running, call(1))
    await backend.has_received(1)
    followers = [begin(running, call(1, id=f"{n}")) for n in range(3)]
    await running.coalescing(4)
    await leaves(leader)
    await leaves(followers.pop())
    await running.coalescing(2)
    backend.gate.set()
    assert [data((await follower).body) for follower in followers] == [answer(1)] * 2
    assert len(backend.requests) == 1
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="client_gone") == 2


async def test_what_nobody_waits_for_any_more_is_not_sent(running: Running, backend: ModelServer) -> None:
    """All callers leave before their rows were sent: the rows leave their window, and the next caller leads anew."""
    holder = await slot_is_taken(running, backend)
    callers = [begin(running, call(1)) for _ in range(3)]
    stays = begin(running, call(2))
    await running.queued(2)
    await running.coalescing(5)
    for caller in callers:
        await leaves(caller)
    await running.queued(1)
    backend.gate.set()
    await holder
    assert data((await stays).body) == answer(2)
    assert [request["inputs"][0]["data"] for request in backend.requests] == [rows(2)]
    again = await ask(running, call(1))
    assert again.cache == MISS
    assert data(again.body) == answer(1)


async def test_a_leader_that_leaves_its_window_to_a_follower_is_still_computed(
    running: Running, backend: ModelServer
) -> None:
    """The leader hangs up while its row waits to be sent and somebody follows: the row is sent for the follower."""
    holder = await slot_is_taken(running, backend)
    leader = begin(running, call(1))
    await running.queued(1)
    follower = begin(running, call(1))
    await running.coalescing(3)
    await leaves(leader)
    await running.coalescing(2)
    backend.gate.set()
    await holder
    assert data((await follower).body) == answer(1)
    assert [request["inputs"][0]["data"] for request in backend.requests] == [rows(1)]


async def test_a_retry_finds_what_its_first_try_began(running: Running, backend: ModelServer) -> None:
    """A client that timed out after its call was sent comes back and joins the computation that it left."""
    backend.gate.clear()
    first = begin(running, call(1))
    await backend.has_received(1)
    await leaves(first)
    await running.coalescing(0)
    retry = begin(running, call(1))
    await running.coalescing(1)
    backend.gate.set()
    said = await retry
    assert data(said.body) == answer(1)
    assert said.cache == "Forebay; fwd=miss; collapsed; detail=first_seen"
    assert len(backend.requests) == 1


async def test_an_abandoned_computation_is_finished_and_kept(running: Running, backend: ModelServer) -> None:
    """All callers leave after their rows were sent: the answer is stored, and whoever comes back gets a hit."""
    backend.gate.clear()
    caller = begin(running, call(1))
    await backend.has_received(1)
    await leaves(caller)
    await running.coalescing(0)
    assert running.sidecar.pipeline._buffered.held > 0  # the computation still needs the caller's body
    backend.gate.set()
    await running.until(lambda: len(running.sidecar.tiers.memory) == 1)
    await running.until(lambda: running.sidecar.pipeline._buffered.held == 0)
    hit = await ask(running, call(1))
    assert hit.cache.startswith("Forebay; hit")
    assert data(hit.body) == answer(1)
    assert len(backend.requests) == 1


async def test_patience_with_what_nobody_waits_for_ends(
    with_config: Callable[[str], Any], backend: ModelServer
) -> None:
    """`finish_abandoned: 0s`: a computation that all have left is given up at once, and a retry begins a new one."""
    async with with_config("cache: {finish_abandoned: 0s}\nbatch: {mode: off}") as running:
        await running.knows("double")
        backend.gate.clear()
        caller = begin(running, call(1))
        await backend.has_received(1)
        await leaves(caller)
        await running.until(lambda: len(running.sidecar.pipeline.answers.flights) == 0)
        retry = begin(running, call(1))
        await backend.has_received(2)
        backend.gate.set()
        assert data((await retry).body) == answer(1)


async def test_only_so_many_computations_go_on_for_nobody(
    with_config: Callable[[str], Any], backend: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that come and leave cannot pile up work: beyond a limit the longest abandoned computation ends."""
    monkeypatch.setattr(filling, "ABANDONED", 3)
    async with with_config("batch: {mode: off}") as running:
        await running.knows("double")
        backend.gate.clear()
        for number in range(1, 6):
            caller = begin(running, call(number))
            await backend.has_received(number)
            await leaves(caller)
            await running.coalescing(0)
        await running.until(lambda: len(running.sidecar.pipeline.answers.flights) == 3)
        backend.gate.set()
        await running.until(lambda: len(running.sidecar.tiers.memory) == 3)
        assert (await ask(running, call(3, 4, 5))).cache.startswith("Forebay; hit")
        assert (await ask(running, call(1))).cache == MISS


async def test_an_uncacheable_answer_never_reaches_a_follower(running: Running, backend: ModelServer) -> None:
    """What may not be stored may not be shared: the followers ask for themselves, in the same request's time."""
    backend.answer_headers = {"Set-Cookie": "session=1"}
    backend.gate.clear()
    leader = begin(running, call(1, id="leader"))
    await backend.has_received(1)
    follower = begin(running, call(1, id="follower"))
    await running.coalescing(2)
    backend.gate.set()
    first, second = await leader, await follower
    assert [first.body["id"], second.body["id"]] == ["leader", "follower"]
    assert [request["id"] for request in backend.requests] == ["leader", "follower"]
    assert second.cache == "Forebay; fwd=miss; detail=first_seen"
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total", outcome="miss") == 2
    assert scrape.total("forebay_requests_total", outcome="coalesced") == 0


async def test_uncacheable_items_do_not_queue_behind_each_other(clock: Clock) -> None:
    """Where an answer is known to be uncacheable, equal calls go to the backend side by side, for a minute."""
    async with model_server(instances=4) as backend, forebay(backend.url, unix_time=clock) as running:
        await running.knows("double")
        backend.answer_headers = {"Cache-Control": "no-store"}
        await ask(running, call(1))
        backend.gate.clear()
        callers = [begin(running, call(1), headers={"Forebay-Batch": "off"}) for _ in range(3)]
        await backend.has_received(4)
        assert running.sidecar.pipeline.answers.flights.waiting == 0
        backend.gate.set()
        for caller in callers:
            assert (await caller).cache == "Forebay; fwd=miss; detail=no_store"
        backend.answer_headers = {}
        clock.now += 61
        assert (await ask(running, call(1))).cache == MISS
        assert (await ask(running, call(1))).cache.startswith("Forebay; hit")


# A fault of Forebay's own.


@pytest.mark.parametrize("step", ["parse", "join", "split", "answer"])
async def test_a_fault_in_a_codec_costs_no_request(
    backend: ModelServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever breaks inside Forebay, the backend's own answers reach their callers."""

    def broken(*_: Any) -> NoReturn:
        raise RuntimeError("a bug")

    async with forebay(backend.url, faulty=True) as running:
        await running.knows("double")
        await ask(running, call(2))
        monkeypatch.setattr(V2, step, broken)
        holder = await slot_is_taken(running, backend)
        asked: Sequence[tuple[int, ...]] = ((1,), (2, 3), (2,), (4, 4), (5,), (5,))
        callers = [begin(running, call(*numbers, id=f"{numbers}")) for numbers in asked]
        if step == "parse":
            await backend.has_received(len(asked))  # they pass through
        else:
            await running.queued(4)
        backend.gate.set()
        assert (await holder).status == 200
        said = [await caller for caller in callers]
        assert [data(one.body) for one in said] == [answer(*numbers) for numbers in asked]
        assert [one.body["id"] for one in said] == [f"{numbers}" for numbers in asked]
        if step != "join":
            scrape = await running.scrape()
            assert scrape.total("forebay_decisions_total", reason="codec_error") > 0


@pytest.mark.parametrize("step", ["recognise", "changes", "model_in"])
async def test_a_fault_before_a_call_is_understood_costs_no_request(
    backend: ModelServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What breaks while Forebay finds out what a request is leaves the request as it is."""

    def broken(*_: Any) -> NoReturn:
        raise RuntimeError("a bug")

    async with forebay(backend.url, faulty=True, protocol="openai" if step == "model_in" else "auto") as running:
        monkeypatch.setattr(OpenAIEmbeddings if step == "model_in" else V2, step, broken)
        async with running.session.post(f"{running.url}/v1/embeddings", json={"input": "text"}) as answered:
            assert answered.status == 200
            assert (await answered.json())["echo"] == "/v1/embeddings"
