"""A backend that answers GETs from a table which the test changes, and counts them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.parts.raw_backend import Peer, RawBackend


class Table(dict[str, tuple[int, bytes]]):
    """path -> status and body; 404 for any other. asked: how often each path was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.backend = RawBackend(self._script)

    def _script(self, peer: Peer) -> None:
        while True:
            path = peer.request().line.split(b" ")[1].decode()
            self.backend.note(functools.partial(self.asked.update, [path]))
            status, body = self.get(path, (404, b""))
            peer.answer(body, status=b"%d Status" % status)


@contextmanager
def answering() -> Iterator[Table]:
    table = Table()
    with table.backend:
        yield table
