"""The adaptive rule decides as the reference that was simulated and chosen: on traffic recorded from it.

Each file in data/ is one scenario of events `[ticks since the last, kind, …, sizes sent, ticks until it asks again]`,
where kind is "a" an arrival, "b" an answer (items, ticks held, whether a slot was free when it left) or "w" the
wake-up asked for; -1 ticks: it does not ask. `ticks` go to a millisecond. docs/decisions/batching-rule.md says how
the files were made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.batching.rule import NEVER, Adaptive, WakeAt
from proxy.batching.slots import Held, Lane

SCENARIOS = sorted((Path(__file__).parent / "data").glob("*.json"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_recorded_decision_is_made_again(path: Path) -> None:
    """What was measured of the rule holds for the code that serves: it decides the same at every event."""
    scenario: dict[str, Any] = json.loads(path.read_text())
    tick = scenario["ticks"]
    rule = Adaptive(scenario["max_size"], scenario["max_delay"], scenario["step"])
    lane: Lane[int] = Lane(scenario["slots"], 0.0)
    out: list[Held[int]] = []
    now = 0.0
    for number, (since, kind, *answer, sizes, until) in enumerate(scenario["events"]):
        now += since / tick
        if kind == "a":
            lane.add(number, 1, rule, now)
        elif kind == "b":
            items, held_ticks, alone = answer
            held = next(h for h in out if h.dispatch.items == items and h.since == now - held_ticks / tick)
            assert held.alone == bool(alone), number
            out.remove(held)
            lane.answered(held, now, ok=True)
        sent = []
        while isinstance(effect := lane.decide(now), Held):
            out.append(effect)
            sent.append(effect.dispatch.items)
        assert sent == sizes, f"event {number}"
        assert effect == WakeAt(NEVER if until < 0 else now + until / tick), f"event {number}"


def test_the_recordings_hold_every_kind_of_decision() -> None:
    """A rule that never waited, or never queued a full batch ahead, could not pass by luck."""
    events = [event for path in SCENARIOS for event in json.loads(path.read_text())["events"]]
    assert len(SCENARIOS) >= 20
    assert sum(event[-1] >= 0 for event in events) > 5000  # waits
    assert sum(event[1] == "w" for event in events) > 300  # waits that ran out
    assert sum(event[1] == "b" and not event[4] for event in events) > 20  # batches that were ahead of others
    assert sum(event[1] == "a" and sum(event[-2]) > 1 for event in events) > 200  # an arrival ended a wait
