"""Forebay before the model server that we wrote, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

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


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """On the loop that Forebay runs on."""
    return {"uvloop": uvloop.new_event_loop}
