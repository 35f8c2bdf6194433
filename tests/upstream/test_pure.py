"""Promises of what decides without I/O: addresses, settings, the retry budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.upstream.address import Address
from proxy.upstream.retry_budget import WINDOW, RetryBudget
from proxy.upstream.settings import Timeouts, UpstreamSettings


@pytest.mark.parametrize(
    ("target", "url", "host"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", b"127.0.0.1:8000"),
        ("http://localhost/", "http://localhost", b"localhost"),
        ("HTTPS://Model.example:443", "https://Model.example:443", b"Model.example:443"),
        ("http://[::1]:8000", "http://[::1]:8000", b"[::1]:8000"),
    ],
)
def test_a_target_is_read(target: str, url: str, host: bytes) -> None:
    """What a user writes as upstream is where requests go, under the Host that it names."""
    assert Address.parse(target) == Address(url, host)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("127.0.0.1:8000", "upstream 127.0.0.1:8000 has no scheme: write http://127.0.0.1:8000"),
        ("me:secret@host", "upstream host has no scheme: write http://host"),
        ("grpc://host:8001", "upstream scheme 'grpc' is not known: write http:// or https://"),
        ("http://host:port", "upstream http://host:port has no valid host and port: write http://HOST:PORT"),
        ("http://host:99999", "upstream http://host:99999 has no valid host and port: write http://HOST:PORT"),
        ("http://[::1:80", "upstream http://[::1:80 has no valid host and port: write http://HOST:PORT"),
        ("http://host:0", "upstream http://host:0 has port 0: write the port that the backend listens on"),
        ("http://", "upstream http:// has no valid host: write http://HOST:PORT"),
        ("http://:80", "upstream http://:80 has no valid host: write http://HOST:PORT"),
        ("http://a b:80", "upstream http://a b:80 has no valid host: write http://HOST:PORT"),
        ("http://127.0.1:80", "upstream http://127.0.1:80 has no valid host: write all four numbers of the address"),
        ("http://host:80/v2", "upstream http://host:80/v2 must end after the port: write http://host:80"),
        ("http://host:80?a", "upstream http://host:80?a must end after the port: write http://host:80"),
        ("http://host:80#a", "upstream http://host:80#a must end after the port: write http://host:80"),
        ("http://me:secret@host:80", "upstream host:80 holds credentials: leave them out, callers send their own"),
    ],
)
def test_a_target_that_cannot_be_meant_is_explained(target: str, message: str) -> None:
    """One line says what is wrong and what to write instead, and shows no password."""
    with pytest.raises(ValueError, match=r".") as caught:
        Address.parse(target)
    assert str(caught.value) == message


def test_little_is_bounded_by_default() -> None:
    """Generation takes minutes: only connecting has a time limit until somebody asks for one."""
    assert UpstreamSettings().timeout == Timeouts(connect=1.0, idle=None, first_byte=None, total=None)  # type: ignore[arg-type] # seconds
    assert UpstreamSettings().keepalive == 4.0
    assert UpstreamSettings().slots is None


def test_retries_are_a_share_of_requests_and_a_few_more() -> None:
    """A quiet backend gets ten second tries in ten seconds, a busy one a fifth of its requests on top."""
    budget = RetryBudget()
    assert repr(budget) == "<RetryBudget 0/10 spent>"
    for _ in range(50):
        budget.request(100.0)
    assert [budget.spend(100.0) for _ in range(21)] == [True] * 20 + [False]
    assert repr(budget) == "<RetryBudget 20/20 spent>"
    assert budget.spend(100.0 + WINDOW)
    assert repr(budget) == "<RetryBudget 1/10 spent>"


class BudgetMachine(RuleBasedStateMachine):
    """Over no window of time do retries exceed what its requests allow."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = RetryBudget(share=0.5, minimum=2)
        self.now = 0.0
        self.requests: list[float] = []
        self.spent: list[float] = []

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 5))
    def requests_come(self, count: int) -> None:
        for _ in range(count):
            self.budget.request(self.now)
            self.requests.append(self.now)

    @rule()
    def one_is_tried_again(self) -> None:
        start = (math.floor(self.now) - 9) * WINDOW / 10  # the window slides by tenths
        earned = 2 + 0.5 * sum(at >= start for at in self.requests)
        allowed = sum(at >= start for at in self.spent) + 1 <= earned
        assert self.budget.spend(self.now) is allowed
        if allowed:
            self.spent.append(self.now)

    @invariant()
    def little_is_remembered(self) -> None:
        assert len(self.budget._parts) <= 10


TestBudget = BudgetMachine.TestCase
