"""Requests that look like inference and that no protocol knows: what `/config` shows for `protocol: json_map` to teach.

Invariants
    At most `KEPT` paths are held, each cut to `LONGEST` characters: a scan of random paths costs no memory. The least
    counted gives way to a new one, so a path in use stays.
    Only what the backend answered with a success counts: a path that nobody serves is none.

Pure. Knows nothing of routes and of what the bodies say.
"""

from __future__ import annotations

import re
from typing import Final

KEPT: Final = 32
LONGEST: Final = 128  # characters of a path

_BODIES: Final = ("application/json", "application/octet-stream")
_WORDS: Final = re.compile(
    "predict|infer|generat|embed|completion|chat|score|scoring|rerank|classif|invocations", re.IGNORECASE
)


class Unmatched:
    """The table. A path is without its query."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def saw(self, method: str, path: str, content_type: str, status: int) -> None:
        """A request that no protocol knows was answered."""
        if method != "POST" or not 200 <= status < 300 or not _like_inference(path, content_type):
            return
        path = path[:LONGEST]
        if path not in self._counts and len(self._counts) >= KEPT:
            del self._counts[min(self._counts, key=self._counts.__getitem__)]
        self._counts[path] = self._counts.get(path, 0) + 1

    def report(self) -> list[dict[str, str | int]]:
        """Path and count of each, the most counted first."""
        ranked = sorted(self._counts.items(), key=lambda entry: -entry[1])
        return [{"path": path, "count": count} for path, count in ranked]

    def __repr__(self) -> str:
        return f"<Unmatched {len(self._counts)} paths>"


def _like_inference(path: str, content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind in _BODIES or kind.endswith("+json") or _WORDS.search(path) is not None
