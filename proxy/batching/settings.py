"""What can be configured about batching."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proxy.settings import Seconds, setting


class BatchMode(Enum):
    """How a window decides when to let its items leave."""

    ADAPTIVE = "adaptive"
    FIXED = "fixed"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class BatchSettings:
    mode: BatchMode = setting(
        BatchMode.ADAPTIVE,
        "`adaptive` waits only where recent company says that waiting pays; `fixed` holds a batch until it is full, "
        "of a preferred size or `max_delay` old; `off` never joins calls.",
    )
    max_size: int = setting(32, "Most items in one joined upstream request; the model's own limit caps it.", minimum=1)
    max_delay: Seconds = setting(
        Seconds(0.005), "Longest time an item waits while the backend has a slot free.", minimum=0
    )
    max_queue: int = setting(
        1024, "Most items that wait at once; above it calls are refused with 503 and `Retry-After`.", minimum=1
    )
    preferred_sizes: tuple[int, ...] = setting(
        (), "Only in `fixed`: sizes below `max_size` that leave without waiting for more.", minimum=1
    )
