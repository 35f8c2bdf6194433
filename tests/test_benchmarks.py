"""The parts of the benchmark that compute: what wrk says, and what rounds come to. Nothing here is timed."""

from __future__ import annotations

import math

import pytest

from benchmarks import load
from benchmarks.measures import figures
from benchmarks.report import table
from benchmarks.returns import SETTLED, summary
from benchmarks.rounds import Figure, Rounds, Shot, in_turn
from proxy.measure.simulator import Run

OUTPUT = """Running 2s test @ http://127.0.0.1:1
  12 requests in 2.00s, 3.00KB read

result {"answers": 12, "seconds": 2.000000, "p50_ms": 1.500, "p99_ms": 3.250, "failed": 1}
"""


def shot(rate: float, *, p50_ms: float = 1.0, p99_ms: float = 2.0, failed: int = 0, wrk: float = 0.1) -> Shot:
    return Shot(rate, p50_ms, p99_ms, failed, load_busy=wrk, server_busy=math.nan, cpu_ms=math.nan)


def test_what_wrk_says_is_read_to_the_last_figure() -> None:
    """The table shows what wrk measured."""
    sample = load.parse(OUTPUT, busy_seconds=0.5)
    assert sample == load.Sample(answers=12, seconds=2.0, p50_ms=1.5, p99_ms=3.25, failed=1, busy=0.25)
    assert sample.rate == 6.0


def test_a_run_without_a_result_is_no_result() -> None:
    """A load generator that broke off never passes for a slow server."""
    with pytest.raises(ValueError, match="unable to connect"):
        load.parse("unable to connect to 127.0.0.1:1", busy_seconds=0.0)


def test_contenders_are_compared_within_a_round() -> None:
    """A machine that was slow in one round does not decide who is faster."""
    own, other = Rounds([shot(50), shot(9), shot(80)]), Rounds([shot(100), shot(10), shot(100)])
    assert own.against(other, lambda a, b: a.rate / b.rate) == 0.8
    assert own.median(lambda one: one.rate) == 50


def test_nobody_always_goes_first() -> None:
    """Every other round runs backwards."""
    assert [in_turn("abc", number) for number in range(3)] == [list("abc"), list("cba"), list("abc")]


@pytest.mark.parametrize(
    ("value", "at_least", "reached"),
    [(0.75, True, True), (0.74, True, False), (0.75, False, True), (0.76, False, False)],
)
def test_a_figure_says_whether_it_is_reached(value: float, at_least: bool, reached: bool) -> None:
    """What falls short is said to, in the line itself."""
    figure = Figure("what", value, 0.75, at_least)
    assert figure.reached is reached
    assert str(figure).endswith("reached" if reached else "MISSED")


def test_only_what_was_measured_is_judged() -> None:
    """Half a run gives half the figures, and a lower p99 is the better one."""
    rounds = {
        "batched 64/forebay": Rounds([shot(97, p99_ms=21.0)]),
        "batched 64/triton": Rounds([shot(100, p99_ms=20.0)]),
    }
    found = figures(rounds, {})
    assert [(figure.value, figure.reached) for figure in found] == [(0.97, True), (1.05, True)]


def test_the_table_says_what_spoils_a_figure() -> None:
    """A saturated load generator and refused requests are named beside the figure that they spoil."""
    rounds = {"hit/bare": Rounds([shot(100, wrk=0.95)]), "batched 31/forebay": Rounds([shot(800, failed=2)])}
    text = table(rounds, {31: Run(rate=835.0, p50=0.037, p99=0.037, waits=[])})
    assert "| hit/bare | 100 | 1.00 | 2.00 | – | – | 0.95 | wrk is the bottleneck" in text
    assert "2 without a 200; simulated 835/s, 37 / 37 ms |" in text


def test_returns_are_told_by_cycle() -> None:
    """The first, the middle and the last caller that is back are told apart, the run's beginning left out."""
    told = summary([[9.0]] * SETTLED + [[0.001, 0.002, 0.004], [], [0.003, 0.004, 0.006]])
    assert told == {"cycles": 2, "calls": 3.0, "first ms": 2.0, "middle ms": 3.0, "last ms": 5.0}
    assert summary([]) == {"cycles": 0}
