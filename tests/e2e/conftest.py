"""Forebay before the model server that we wrote, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.parts.forebay import Running, forebay
from tests.parts.model_backend import ModelServer, model_server


@pytest.fixture
async def backend() -> AsyncIterator[ModelServer]:
    async with model_server() as model:
        yield model


@pytest.fixture
async def running(backend: ModelServer) -> AsyncIterator[Running]:
    """A Forebay with every default, which knows the model."""
    async with forebay(backend.url) as sidecar:
        await sidecar.knows("double")
        yield sidecar
