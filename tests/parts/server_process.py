"""What real model servers in processes of their own have in common: where they are installed, a port, one request."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.parts.availability import missing

ROOT = Path(__file__).parents[2]


class Answer(NamedTuple):
    """What a server answered; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request(address: tuple[str, int], method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    """One request on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def die_with_us() -> list[str]:
    """The start of a command that the kernel ends when the tests are killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


@functools.cache
def python_with(package: str, server: str) -> str:
    """The Python that has this package; without one the test is given up. server: how people call it."""
    venv = Path(os.environ.get("FOREBAY_SERVERS_VENV") or ROOT / ".venv-servers")
    if not list(venv.glob(f"lib/python3.*/site-packages/{package}/__init__.py")):
        how = "`make servers` installs it, FOREBAY_SERVERS_VENV names another place"
        missing(server, f"no {package} in {venv}; {how}")
    return str(venv / "bin" / "python")
