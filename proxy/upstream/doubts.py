"""What a backend says of a model at two moments, and whether other weights may answer now than did then.

Pure. Knows nothing of when a model is asked about, nor of what follows from a doubt.
"""

from __future__ import annotations

import json

from proxy.protocols.codec import Facts


def reason_to_doubt(facts: Facts, before: Facts, served: int) -> str | None:
    """Why other weights may answer now than `before`; None if nothing says so.

    served: calls that Forebay knows to have been begun and answered between the one and the other.
    """
    if facts.versions != before.versions:
        return "its versions changed"
    if facts[:3] != before[:3] or not _same(facts.state, before.state):
        return "its config changed"
    counters = facts.counters or {}
    if any(counters.get(name, -1) < count for name, count in (before.counters or {}).items()):
        return "its counters started again"
    if misses_calls(facts, before, served):
        return "it counts fewer calls than it has answered"
    return None


def misses_calls(facts: Facts, before: Facts, served: int) -> bool:
    """Were calls since `before` answered that its counters do not show?

    Else a reload would be hidden from a poll by as few calls as the model had answered before the last one.
    """
    return facts.answered is not None and before.answered is not None and facts.answered < before.answered + served


def _same(one: bytes | None, other: bytes | None) -> bool:
    """Do two states say the same? The order of keys is no one's promise."""
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False
