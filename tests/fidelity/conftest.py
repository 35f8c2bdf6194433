"""One real Triton for the tests of this folder that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parts.triton import ECHO, MIXED, WHOLE, Triton


@pytest.fixture(scope="session")
def triton() -> Iterator[Triton]:
    with Triton(ECHO, MIXED, WHOLE) as running:
        yield running
