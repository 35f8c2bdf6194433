"""One real Triton for every test of this folder that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parts.triton import CONSTANT, ECHO, ENSEMBLE, MIXED, ROWS, SEQUENCE, WHOLE, Triton


@pytest.fixture(scope="session")
def triton() -> Iterator[Triton]:
    with Triton(ROWS, WHOLE, MIXED, ECHO, CONSTANT, SEQUENCE, ENSEMBLE) as running:
        yield running
