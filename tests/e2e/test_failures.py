"""Promises about what goes wrong: one bad request harms one caller, and every caller gets its own status and body."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.e2e.calls import answer, call, data
from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import Fault, ModelServer

FRESH = itertools.count(10**6)  # rows that nobody has asked for


async def join(running: Running, backend: ModelServer, *calls: dict[str, Any]) -> list[Any]:
    """Send calls that are sure to ride together: a first one holds the only slot until all have come."""
    backend.gate.clear()
    first = asyncio.create_task(running.infer("double", call(next(FRESH))))
    await backend.has_received(len(backend.requests) + 1)
    others = [asyncio.create_task(running.infer("double", one)) for one in calls]
    await running.queued(sum(one["inputs"][0]["shape"][0] for one in calls))
    backend.gate.set()
    await first
    return list(await asyncio.gather(*others))


async def test_a_poisoned_row_harms_only_its_own_caller(running: Running, backend: ModelServer) -> None:
    """A refused joined request is asked again call by call: good ones get answers, the bad one reads its own id."""
    good, bad, also = await join(
        running, backend, call(1, id="good"), call(Fault.REFUSE, id="bad"), call(2, 3, id="also")
    )
    assert (good[0], data(good[1]), good[1]["id"]) == (200, answer(1), "good")
    assert (also[0], data(also[1]), also[1]["id"]) == (200, answer(2, 3), "also")
    assert (bad[0], bad[1]) == (400, {"error": "[request id: bad] poisoned row"})
    assert backend.batch_sizes == [1, 4, 1, 1, 2]


@pytest.mark.parametrize("fault", [Fault.MISCOUNT, Fault.GARBAGE])
async def test_an_answer_that_does_not_split_is_asked_again_singly(
    running: Running, backend: ModelServer, fault: Fault
) -> None:
    """Rows too few, or no JSON at all, for a joined request: nobody gets a guess, everybody's own call is made."""
    good, odd = await join(running, backend, call(1, id="good"), call(fault, id="odd"))
    assert (good[0], data(good[1])) == (200, answer(1))
    if fault is Fault.MISCOUNT:
        assert (odd[0], odd[1]["error"]) == (400, "[request id: odd] a miscount that rode alone")
    else:
        assert odd[:2] == (200, b"\x00not json")  # the backend's own answer to this very call
    scrape = await running.scrape()
    assert scrape.total("forebay_batch_splits_total", reason="not_split") == 1


async def test_three_answers_that_do_not_split_end_joining(running: Running, backend: ModelServer) -> None:
    """A model whose joined answers cannot be told apart is asked one call at a time from then on."""
    for number in range(3):
        await join(running, backend, call(10 + number), call(Fault.MISCOUNT, id=f"{number}"))
        backend.requests.clear()
    answers = await asyncio.gather(*(running.infer("double", call(100 + number)) for number in range(8)))
    assert [data(body) for _, body, _ in answers] == [answer(100 + number) for number in range(8)]
    assert backend.batch_sizes == [1] * 8


async def test_overload_goes_to_every_member_without_a_second_try(running: Running, backend: ModelServer) -> None:
    """503 speaks of the backend: every member gets it with Retry-After, and nothing is sent again."""
    good, bad = await join(running, backend, call(1, id="good"), call(Fault.OVERLOAD, id="bad"))
    assert good[0] == bad[0] == 503
    assert good[2]["Retry-After"] == "7"
    assert "error" in good[1]
    assert "forebay-" not in str(good[1])
    assert backend.batch_sizes == [1, 2]


async def test_a_reset_goes_to_every_member_without_a_second_try(running: Running, backend: ModelServer) -> None:
    """A connection that dies under a joined request is a 502 for each of its members, in their protocol's shape."""
    good, bad = await join(running, backend, call(1), call(Fault.RESET))
    assert good[0] == bad[0] == 502
    assert set(good[1]) == {"error"}


async def test_a_joined_time_out_is_everybodys_and_ends_joining(backend: ModelServer, tmp_path: Any) -> None:
    """A joined request that runs into the configured limit is a 504 for each; their like ride alone after it."""
    config = tmp_path / "forebay.yaml"
    config.write_text("upstream: {timeout: {first_byte: 300ms}}\n")
    async with forebay(backend.url, config=config) as running:
        await running.knows("double")
        backend.gate.clear()
        first = asyncio.create_task(running.infer("double", call(-1)))
        await backend.has_received(1)
        others = [asyncio.create_task(running.infer("double", one)) for one in (call(1), call(Fault.HANG))]
        await running.queued(2)
        backend.gate.set()
        await first
        assert [(await other)[0] for other in others] == [504, 504]
        backend.requests.clear()
        answers = await asyncio.gather(*(running.infer("double", call(200 + number)) for number in range(4)))
        assert [data(body) for _, body, _ in answers] == [answer(200 + number) for number in range(4)]
        assert backend.batch_sizes == [1] * 4
        scrape = await running.scrape()
        assert scrape.total("forebay_batch_splits_total", reason="timeout") == 1
        assert scrape.total("forebay_requests_total", outcome="timeout") == 2


async def test_a_followers_error_is_its_own(running: Running, backend: ModelServer) -> None:
    """A caller that followed a refused flight tries for itself, once, and reads its own id in the error."""
    backend.gate.clear()
    leader = asyncio.create_task(running.infer("double", call(Fault.REFUSE, id="leader")))
    await backend.has_received(1)
    follower = asyncio.create_task(running.infer("double", call(Fault.REFUSE, id="follower")))
    await running.coalescing(2)
    backend.gate.set()
    assert (await leader)[1] == {"error": "[request id: leader] poisoned row"}
    assert (await follower)[1] == {"error": "[request id: follower] poisoned row"}
    assert len(backend.requests) == 2


async def test_a_followers_overload_is_not_tried_again(running: Running, backend: ModelServer) -> None:
    """503 for the leader is 503 for whoever followed it; the backend is left in peace."""
    backend.gate.clear()
    leader = asyncio.create_task(running.infer("double", call(Fault.OVERLOAD, id="leader")))
    await backend.has_received(1)
    follower = asyncio.create_task(running.infer("double", call(Fault.OVERLOAD, id="follower")))
    await running.coalescing(2)
    backend.gate.set()
    assert (await leader)[0] == (await follower)[0] == 503
    assert len(backend.requests) == 1


async def test_a_dead_backend_is_a_502_in_the_protocols_shape() -> None:
    """Nobody listens there: the caller reads which address, in the shape that its client library expects."""
    async with forebay("http://127.0.0.1:9") as running:
        status, body, _ = await running.infer("double", call(1))
        assert status == 502
        assert body == {"error": "cannot connect to http://127.0.0.1:9: connection refused"}
        async with running.session.get(f"{running.admin}/readyz") as ready:
            assert ready.status == 503
            assert "connection refused" in await ready.text()


async def test_a_member_that_hangs_alone_holds_up_nobody_else(backend: ModelServer) -> None:
    """When a refused batch is asked again call by call, each caller has its answer when its own call has ended."""
    backend.instances = 4
    async with forebay(backend.url, upstream__slots="4") as running:
        await running.knows("double")
        backend.gate.clear()
        first = []
        for busy in range(1, 5):  # every slot
            first.append(asyncio.create_task(running.infer("double", call(next(FRESH)))))
            await backend.has_received(busy)
        calls = (call(1, id="good"), call(Fault.REFUSE, id="bad"), call(Fault.HANG, id="hung"))
        good, bad, hung = [asyncio.create_task(running.infer("double", one)) for one in calls]
        await running.queued(3)
        backend.gate.set()
        assert data((await good)[1]) == answer(1)
        assert (await bad)[0] == 400
        assert not hung.done()
        hung.cancel()
        await asyncio.gather(*first)


async def test_a_bad_caller_never_costs_a_good_one_its_answer(running: Running, backend: ModelServer) -> None:
    """However often batches are refused for one member's sake, the others are answered: nothing is rationed."""
    for turn in range(3):
        calls = [call(1000 + 40 * turn + number) for number in range(30)]
        answers = await join(running, backend, *calls, call(Fault.REFUSE, id=f"{turn}"))
        assert [status for status, _, _ in answers] == [200] * 30 + [400]


async def test_every_failure_is_counted_once(running: Running, backend: ModelServer) -> None:
    """The sum over outcomes is the number of requests, whatever went wrong."""
    await join(running, backend, call(1), call(Fault.CRASH))
    await join(running, backend, call(2), call(Fault.RESET))
    scrape = await running.scrape()
    assert scrape.total("forebay_requests_total") == 6
    assert scrape.total("forebay_request_duration_seconds_count") == 6
    assert scrape.total("forebay_requests_active") == 0


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(backend: ModelServer, tmp_path: Any) -> None:
    """Above `batch.max_queue` a call gets 503 in the protocol's shape with Retry-After, before it has waited at all."""
    config = tmp_path / "forebay.yaml"
    config.write_text("batch: {max_queue: 2, max_size: 2}\n")
    async with forebay(backend.url, config=config) as running:
        await running.knows("double")
        backend.gate.clear()
        first = asyncio.create_task(running.infer("double", call(next(FRESH))))
        await backend.has_received(1)
        deeper = asyncio.create_task(running.infer("double", call(10, 11)))  # full: it may queue one deeper
        await backend.has_received(2)
        waiting = [
            asyncio.create_task(running.infer("double", call(20))),
            asyncio.create_task(running.infer("double", call(21))),
        ]
        await running.queued(2)
        status, body, headers = await running.infer("double", call(30))
        assert (status, set(body)) == (503, {"error"})
        assert int(headers["Retry-After"]) >= 1
        backend.gate.set()
        await asyncio.gather(first, deeper)
        assert [data((await one)[1]) for one in waiting] == [answer(20), answer(21)]
        scrape = await running.scrape()
        assert scrape.total("forebay_requests_total", outcome="rejected") == 1
        assert scrape.total("forebay_decisions_total", reason="queue_full") == 1
