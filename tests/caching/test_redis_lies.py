"""Promises of the shared tier before a server that lies, dawdles or talks nonsense: no real one can be made to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.caching.look_ups import LookUp
from proxy.caching.redis_store import MOST_KEYS, NAMESPACE
from proxy.caching.writes import Store
from proxy.terms import Reason
from tests.caching.opened_store import DOWN, PATIENCE, be_patient, entry, fingerprint, opened, value
from tests.parts.redis import LyingServer, Piece

NOBODY = b"*2\r\n$-1\r\n$-1\r\n"  # what a probe gets


def is_probe(command: list[bytes]) -> bool:
    return command[1].startswith(NAMESPACE + b"probe")


def listed(*values: bytes) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)


LIES: dict[str, list[bytes | None]] = {
    "loading": [b"-LOADING Redis is loading the dataset in memory\r\n"],
    "moved": [b"-MOVED 3999 127.0.0.1:6381\r\n"],
    "no permission": [b"-NOPERM this user has no permissions\r\n"],
    "master down": [b"-MASTERDOWN Link with MASTER is down\r\n"],
    "unknown error": [b"-ERR what is that?\r\n"],
    "another protocol": [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    "garbage": [b"\x00\xff\x17\r\n"],
    "nothing": [b"*0\r\n"],
    "too few": [b"*1\r\n$-1\r\n"],
    "too many": [b"*3\r\n$-1\r\n$-1\r\n$-1\r\n"],
    "no list": [b"$2\r\nOK\r\n"],
    "null": [b"*-1\r\n"],
    "a number": [b":1\r\n"],
    "an error inside": [b"*2\r\n-LOADING later\r\n$-1\r\n"],
    "hanging up": [None],
    "half, then hanging up": [b"*2\r\n$100\r\nabc", None],
    "half, then silence": [b"*2\r\n$100\r\nabc"],
    "silence": [],
    "a length beyond all bounds": [b"*2\r\n$99999999999999999999\r\nabc"],
    "very deep": [b"*1\r\n" * 500 + b":1\r\n"],
}


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.mark.parametrize("lie", LIES)
async def test_a_reply_that_makes_no_sense_is_a_failure_and_not_an_exception(lie: str) -> None:
    """Whatever stands where Redis should, a look-up ends in time and says that Redis could not be asked."""

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY] if is_probe(command) else LIES[lie]

    async with LyingServer(script) as liar, opened(liar.url) as it:
        assert it.store.up
        async with asyncio.timeout(PATIENCE):
            assert await it.get(1, 2) == [DOWN, DOWN]
        assert not it.store.up
        assert it.seen.lookups == {LookUp.TIMEOUT if "silence" in lie else LookUp.ERROR: 2}
        assert await it.get(1) == [DOWN]
        assert it.seen.lookups[LookUp.SKIPPED] == 1
        await it.rise()
        assert it.seen.ups == [True, False, True]


@pytest.mark.usefixtures("patience")
async def test_swapped_values_reach_nobody() -> None:
    """A server that gives the right values in the wrong order gives no caller another's answer."""
    reply = listed(value(1, "one"), value(2, "two"))

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY if is_probe(command) else reply]

    async with LyingServer(script) as liar, opened(liar.url) as it:
        assert await it.get(2, 1) == [Reason.FIRST_SEEN, Reason.FIRST_SEEN]
        assert await it.get(1, 2) == [entry("one"), entry("two")]
        assert it.seen.lookups == {LookUp.CORRUPT: 2, LookUp.HIT: 2}


@pytest.mark.usefixtures("patience")
async def test_what_is_no_value_is_a_miss_of_that_key_alone() -> None:
    """A number or a list among the values harms only the item it stands for."""
    good = b"$%d\r\n%b\r\n" % (len(value(1, "one")), value(1, "one"))

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY if is_probe(command) else b"*4\r\n" + good + b":7\r\n*1\r\n+x\r\n-ERR inside\r\n"]

    async with LyingServer(script) as liar, opened(liar.url) as it:
        assert await it.get(1, 2, 3, 4) == [entry("one"), *[Reason.FIRST_SEEN] * 3]
        assert it.seen.lookups == {LookUp.HIT: 1, LookUp.CORRUPT: 3}
        assert it.seen.ups == [True]


@pytest.mark.usefixtures("patience")
async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    """A stray reply is never taken for the next look-up's: the connection is made anew before it is used."""
    right, stray = listed(value(1, "right")), listed(value(1, "stray"))
    strays = [stray]

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY] if is_probe(command) else [right + (strays.pop() if strays else b"")]

    async with LyingServer(script) as liar, opened(liar.url) as it:
        for _ in range(6):
            assert await it.get(1) == [entry("right")]
        assert it.seen.ups == [True]


@pytest.mark.usefixtures("patience")
async def test_a_server_that_echoes_the_password_does_not_get_it_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """What a stranger answers to AUTH is logged without what was sent to it."""

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [b"-ERR unknown command '%b', with args beginning with: '%b'\r\n" % (command[0], command[-1])]

    async with LyingServer(script) as liar, opened(f"redis://:s3cr3t@127.0.0.1:{liar.port}") as it:
        assert not it.store.up
        assert "args beginning with: '***'" in caplog.text
        assert "s3cr3t" not in caplog.text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    replies=st.lists(
        st.sampled_from(
            [listed(value(1, "one")), listed(value(2, "two")), b"*1\r\n$-1\r\n", b"+OK\r\n", b"*1", b"\r\n", None]
        )
        | st.binary(max_size=40),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_bytes_come_nobody_gets_anothers_answer(replies: list[bytes | None]) -> None:
    """Under any replies, cut and joined at any place, a look-up gives its own entry or none, in time."""
    script_left = list(replies)

    def script(command: list[bytes]) -> Sequence[Piece]:
        if is_probe(command):
            return [NOBODY]
        return [script_left.pop(0)] if script_left else [b"*1\r\n$-1\r\n"]

    async def story() -> None:
        async with LyingServer(script) as liar, opened(liar.url) as it:
            for number in (1, 2, 1, 2):
                async with asyncio.timeout(PATIENCE):
                    (answer,) = await it.get(number)
                own = entry("one" if number == 1 else "two")
                assert answer in (own, DOWN, Reason.FIRST_SEEN)
                await it.rise()

    asyncio.run(story())


# A Redis that is slow


@pytest.mark.usefixtures("patience")
async def test_a_slow_writer_costs_entries_and_never_memory() -> None:
    """While Redis does not take writes, at most `queue_bytes` wait; the rest is dropped and counted."""
    go_on = asyncio.Event()

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY] if is_probe(command) else [go_on, b"+OK\r\n"]

    async with LyingServer(script) as liar, opened(liar.url, queue_bytes=10_000) as it:
        for number in range(30):
            it.store.put(fingerprint(number), entry("x" * 700))
        assert it.seen.stores == {Store.DROPPED: 20}
        assert f"{it.store!r}".endswith("/10000 bytes>>")
        go_on.set()
        await it.seen.until(lambda: it.seen.stores[Store.STORED] == 10)
        await it.put(1, entry("room again"))
        assert it.seen.stores == {Store.DROPPED: 20, Store.STORED: 11}


async def test_values_too_large_for_one_command_are_asked_for_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MGET that took too long is followed by shorter ones, so that large entries are found all the same."""
    be_patient(monkeypatch, 0.5)
    asked: list[int] = []

    def script(command: list[bytes]) -> Sequence[Piece]:
        if is_probe(command):
            return [NOBODY]
        asked.append(len(command) - 1)
        return [b"*%d\r\n" % asked[-1] + b"$-1\r\n" * asked[-1]] if asked[-1] <= MOST_KEYS // 2 else []

    async with LyingServer(script) as liar, opened(liar.url) as it:
        assert await it.get(*range(MOST_KEYS)) == [DOWN] * MOST_KEYS
        await it.rise()
        assert await it.get(*range(MOST_KEYS)) == [Reason.FIRST_SEEN] * MOST_KEYS
        assert asked == [MOST_KEYS, MOST_KEYS // 2, MOST_KEYS // 2]
        assert it.store._most_keys == MOST_KEYS // 2 + 2  # and grows again with each that came in time


async def test_a_write_that_hangs_takes_redis_down_and_is_counted() -> None:
    """A Redis that answers look-ups but never a write is not trusted; every entry is accounted for."""

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY] if is_probe(command) else []

    async with LyingServer(script) as liar, opened(liar.url) as it:
        for number in range(100):
            it.store.put(fingerprint(number), entry("lost"))
        await it.fall()
        await it.seen.until(lambda: it.seen.stores.total() == 100)
        assert it.seen.stores == {Store.ERROR: 64, Store.DROPPED: 36}


@pytest.mark.usefixtures("patience")
async def test_a_write_that_is_answered_with_nonsense_is_an_error() -> None:
    """What is not OK is not stored."""

    def script(command: list[bytes]) -> Sequence[Piece]:
        return [NOBODY if is_probe(command) else b"$-1\r\n"]

    async with LyingServer(script) as liar, opened(liar.url) as it:
        await it.put(1, entry("lost"))
        await it.fall()
        assert it.seen.stores == {Store.ERROR: 1}
