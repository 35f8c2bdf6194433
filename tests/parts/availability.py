"""A part that this machine lacks is skipped loudly, by name; in CI nothing may be skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(part: str, how_to_get_it: str) -> NoReturn:
    """Give up the test that needs `part`: a skip on a developer's machine, a failure where `CI` is set."""
    message = f"{part} is not installed: {how_to_get_it}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
