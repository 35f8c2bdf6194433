"""Where nobody waits for it, the soak is long, and runs beside the other tests."""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.parts.soak_beside import SOAK, begun

THE_SOAK: Final = "test_nothing_grows_and_nobody_gets_what_is_not_his"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Its test comes last, when it is over or nearly so."""
    items.sort(key=lambda item: item.name == THE_SOAK)


def pytest_collection_finish(session: pytest.Session) -> None:
    """It begins with the tests."""
    asked_for = any(item.name == THE_SOAK for item in session.items) and not session.config.option.collectonly
    if asked_for and os.environ.get("CI"):
        session.config.stash[SOAK] = begun()


def pytest_unconfigure(config: pytest.Config) -> None:
    """It does not outlive them, however they ended."""
    if (soak := config.stash.get(SOAK, None)) is not None:
        soak.end()
