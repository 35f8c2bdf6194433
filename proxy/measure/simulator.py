"""A toy backend and its callers around a lane: a discrete-event simulation on the classes that serve. Times in seconds.

A batch of n holds its slot for `fixed + each · n`, one after the other, and half the `gap` passes on each way. Callers
of a closed loop come back `0.15 ms + 0.03 ms · their place in the answer + exp(0.1 ms)` after it.

Pure: a seed in, figures out. What it says is what batching can gain where the proxy, its client and its backend lose
no time elsewhere; benchmarks stand beside it, tests hold the batching rule to it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proxy.batching.rule import NEVER, Rule
from proxy.batching.slots import Held, Lane

MS = 0.001


@dataclass(frozen=True)
class Run:
    """What the callers saw, the first fifth left out. waits: the voluntary ones, in seconds."""

    rate: float
    p50: float
    p99: float
    waits: list[float]


def simulate(  # noqa: C901 - an event loop of its own: its branches are its events
    rule: Rule,
    *,
    answers: int,
    callers: int = 0,
    rate: float = 0.0,
    crowd: Callable[[int], int] | None = None,
    fixed: float = 20 * MS,
    each: float = 0.5 * MS,
    gap: float = 0.5 * MS,
    seed: int = 1,
) -> Run:
    """Run until so many requests are answered: `callers` in a closed loop, or Poisson arrivals at `rate` a second.

    crowd: how many callers there are once so many requests are answered; `callers` by default.
    """
    dice = random.Random(seed)
    numbers = itertools.count()
    events: list[tuple[float, int, Held[int] | None]] = []  # None: an arrival
    lane: Lane[int] = Lane(1, 0.0)
    came: dict[int, float] = {}
    sojourns: list[tuple[float, float]] = []  # when answered, how long it took
    waits: list[float] = []
    busy_until = 0.0
    present = callers

    def schedule(time: float, held: Held[int] | None = None) -> None:
        heapq.heappush(events, (time, next(numbers), held))

    def returns(now: float) -> Iterator[float]:
        for place in itertools.count():
            yield now + 0.15 * MS + 0.03 * MS * place + dice.expovariate(1 / (0.1 * MS))

    for _ in range(callers):
        schedule(dice.random() * 2 * MS)
    if rate:
        schedule(dice.expovariate(rate))
    wake = NEVER
    while len(sojourns) < answers:
        if wake <= events[0][0] if events else True:
            now = wake
        else:
            now, number, held = heapq.heappop(events)
            if held is None:
                came[number] = now
                lane.add(number, 1, rule, now)
                if rate:
                    schedule(now + dice.expovariate(rate))
            else:
                lane.answered(held, now, ok=True)
                sojourns += [(now, now - came.pop(part)) for part in held.dispatch.parts]
                waits += held.dispatch.voluntary
                if callers:
                    wanted = crowd(len(sojourns)) if crowd else callers
                    back = max(0, len(held.dispatch.parts) + wanted - present)
                    present += back - len(held.dispatch.parts)
                    for _, time in zip(range(back), returns(now), strict=False):
                        schedule(time)
        while isinstance(effect := lane.decide(now), Held):
            start = max(now + gap / 2, busy_until)
            busy_until = start + fixed + each * effect.dispatch.items
            schedule(busy_until + gap / 2, effect)
        wake = effect.time
    warm = sojourns[answers // 5 :]
    times = sorted(took for _, took in warm)
    return Run(
        rate=len(warm) / (sojourns[-1][0] - warm[0][0]),
        p50=times[len(times) // 2],
        p99=times[len(times) * 99 // 100],
        waits=waits,
    )
