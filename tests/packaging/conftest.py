"""The Dockerfile's steps, taken once for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.image import Image


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    """Not in pytest's own folder: the image's user may not look into that."""
    directory = Path(tempfile.mkdtemp(prefix="forebay-image-"))
    directory.chmod(0o755)
    try:
        made = Image(directory)
        made.build()
        yield made
    finally:
        shutil.rmtree(directory)
