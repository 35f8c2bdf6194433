"""Synthetic look-up traffic: which of `n` things is asked for next, with popularity and locality.

Look-ups in practice repeat in two ways: some keys are popular at all times, and whatever was asked for
just now is likely to be asked for again soon. Independent draws from a popularity law have the first
and lack the second, and so understate what coalescing does. `Lookups` mixes both.

Pure: a seed in, indexes out; equal seeds give equal traffic.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lookups:
    """Endless indexes below `things`.

    zipf: exponent of the popularity law; about 0.8 in published look-up traces.
    recent: share of requests that ask again for one of the last `window` things asked for.
    """

    things: int
    zipf: float = 0.8
    recent: float = 0.35
    window: int = 64
    seed: int = 1

    def __iter__(self) -> Iterator[int]:
        chance = random.Random(self.seed)
        order = list(range(self.things))
        chance.shuffle(order)  # popularity must not follow the order in which the things were listed
        weights = list(itertools.accumulate((rank + 1) ** -self.zipf for rank in range(self.things)))
        last: deque[int] = deque(maxlen=self.window)
        while True:
            if last and chance.random() < self.recent:
                index = last[-1 - min(int(chance.expovariate(4 / self.window)), len(last) - 1)]
            else:
                index = order[bisect.bisect(weights, chance.random() * weights[-1], hi=self.things - 1)]
            last.append(index)
            yield index


def repetition(indexes: list[int]) -> float:
    """Share of requests that ask for something asked for before: an unbounded cache's hit rate."""
    return 1 - len(set(indexes)) / len(indexes) if indexes else 0.0
