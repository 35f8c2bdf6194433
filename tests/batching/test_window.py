"""Promises of one window. Times have no unit here."""

from __future__ import annotations

from proxy.batching.rule import NEVER, Adaptive, DispatchReason, Fixed, WakeAt
from proxy.batching.slots import Slots
from proxy.batching.window import Dispatch, Window


def window_of(*sizes: int, max_size: int = 8, slots: int = 1, out: int = 0) -> Window[str]:
    """An adaptive window in which parts a, b, c … of these sizes wait, before a backend that holds `out` batches."""
    of_lane = Slots(slots, 0.0)
    for _ in range(out):
        of_lane.take(0.0, NEVER)
    window: Window[str] = Window(Adaptive(max_size, 5, step=1), of_lane)
    for name, size in zip("abcdefgh", sizes, strict=False):
        window.add(name, size, 0.0)
    return window


def leaving(window: Window[str], now: float = 0.0) -> list[tuple[str, ...]]:
    """The batches that leave now, if slots are never taken."""
    batches = []
    while isinstance(effect := window.decide(now), Dispatch):
        batches.append(effect.parts)
    return batches


def test_a_lone_part_before_an_idle_backend_leaves_at_once() -> None:
    """A caller pays for batching only when there is somebody to share with."""
    window = window_of(3)
    assert window.decide(0.0) == Dispatch(("a",), 3, DispatchReason.READY, (0.0,), window.rule)
    assert window.decide(0.0) == WakeAt(NEVER)


def test_a_batch_is_not_sealed_while_it_cannot_be_sent() -> None:
    """Parts that come while the backend is busy still share the next batch."""
    window = window_of(3, out=1)
    assert window.decide(9.0) == WakeAt(NEVER)
    window.add("late", 2, 9.0)
    assert window.decide(9.0) == WakeAt(NEVER)
    assert len(window) == 2


def test_only_a_full_batch_queues_up_at_a_busy_backend() -> None:
    """The backend never runs dry, and what could still grow waits where it can."""
    assert leaving(window_of(7, out=1)) == []
    assert leaving(window_of(7, 1, out=1)) == [("a", "b")]
    assert leaving(window_of(7, 1, out=2)) == []
    assert leaving(window_of(7, 1, slots=3, out=5)) == [("a", "b")]
    assert leaving(window_of(7, 1, slots=3, out=6)) == []


def test_the_rows_of_a_call_travel_together() -> None:
    """A part is never torn: one that does not fit any more opens the next batch."""
    assert leaving(window_of(5, 2, 4, 3)) == [("a", "b"), ("c", "d")]


def test_a_part_above_the_size_travels_whole_and_alone() -> None:
    """A call larger than a batch is sent as its caller sent it, in its turn."""
    assert leaving(window_of(2, 20, 3)) == [("a",), ("b",), ("c",)]


def test_parts_leave_in_the_order_in_which_they_came() -> None:
    """Nobody is overtaken, however small the later ones are."""
    assert leaving(window_of(4, 6, 1, 1)) == [("a",), ("b", "c", "d")]


def test_a_caller_that_left_is_out_of_the_batch() -> None:
    """No work is done for who has gone, and the place is free for others."""
    window = window_of(4, 3, 1)
    assert window.withdraw("b")
    assert not window.withdraw("b")
    assert window.items == 5
    assert leaving(window) == [("a", "c")]
    assert not window.withdraw("a")


def test_a_wait_does_not_outlive_those_who_waited() -> None:
    """Who comes after everybody left is not sent off, or kept, by a wait that was chosen for others."""
    window: Window[str] = Window(Fixed(8, 5), Slots(1, 0.0))
    window.add("a", 1, 0.0)
    assert window.decide(0.0) == WakeAt(5.0)
    window.withdraw("a")
    window.add("b", 1, 20.0)
    assert window.decide(21.0) == WakeAt(25.0)
    effect = window.decide(25.0)
    assert isinstance(effect, Dispatch)
    assert effect.voluntary == (4.0,)  # what came before the decision at 21 was nobody's choice


def test_company_is_counted_in_items() -> None:
    """A caller with four rows is waited for as four callers would be."""
    rule = Adaptive(8, 5, step=1)
    window: Window[int] = Window(rule, Slots(1, 0.0))
    for part in range(0, 20, 2):
        now = part * 50.0
        window.add(part, 1, now)
        window.decide(now)
        window.add(part + 1, 4, now + 0.5)
        while isinstance(window.decide(now + 5), Dispatch):
            pass
        rule.answered(now + 20, 5, 20, representative=True)
    window.add(20, 1, 1000.0)
    assert window.decide(1000.0) == WakeAt(1001.0)
    window.add(21, 3, 1000.25)
    assert window.decide(1000.25) == WakeAt(1001.0)
    window.add(22, 1, 1000.5)
    effect = window.decide(1000.5)
    assert isinstance(effect, Dispatch)
    assert (effect.items, effect.reason) == (5, DispatchReason.EXPECTED)


def test_voluntary_waiting_is_what_passes_while_a_slot_is_free() -> None:
    """The two kinds of waiting are told apart: for company, and for the backend."""
    slots = Slots(1, 0.0)
    window: Window[str] = Window(Fixed(8, 10), slots)
    window.add("a", 1, 0.0)
    assert window.decide(0.0) == WakeAt(10.0)
    slots.take(3.0, NEVER)  # another signature's batch
    window.add("b", 1, 4.0)
    assert window.decide(4.0) == WakeAt(NEVER)
    slots.give_back(9.0)
    assert window.decide(9.0) == WakeAt(10.0)
    effect = window.decide(10.0)
    assert isinstance(effect, Dispatch)
    assert effect.parts == ("a", "b")
    assert effect.voluntary == (4.0, 1.0)  # 0 to 3 and 9 to 10; 9 to 10


def test_draining_ends_every_voluntary_wait() -> None:
    """A shutdown does not sit out delays."""
    window: Window[str] = Window(Fixed(8, 5), Slots(1, 0.0))
    window.add("a", 1, 0.0)
    assert window.decide(1.0, draining=True) == Dispatch(("a",), 1, DispatchReason.DRAIN, (0.0,), window.rule)


def test_repr_tells_the_truth() -> None:
    """What a window says of itself in a log is what waits in it."""
    window = window_of(3, 2)
    assert repr(window) == "<Window 5/8 oldest=0.0>"
    leaving(window)
    assert repr(window) == "<Window 0/8>"
