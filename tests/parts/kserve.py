"""A real KServe Python model server on a free port of 127.0.0.1, with the models of `kserve_models.py`.

    with KServe() as kserve:
        kserve.request("POST", "/v1/models/independent:predict", b'{"instances":[1]}')

Invariants
    A KServe that a test started ends with the test, also when the tests are killed.

Looks for a virtual environment with `kserve` in $FOREBAY_SERVERS_VENV, else in `.venv-servers` beside
`pyproject.toml`; where there is none the test is given up loudly by name.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.parts import kserve_models
from tests.parts.server_process import Answer, die_with_us, free_port, python_with, request

ROOT = Path(__file__).parents[2]
START_WITHIN: Final = 60.0  # seconds
JSON: Final = {"Content-Type": "application/json"}
"""Without it KServe hands V1 models bytes, and takes no V2 in JSON."""


class KServe:
    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = free_port()
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        python = python_with("kserve", "KServe")
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-kserve-"))
        try:
            self._start(python)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, python: str) -> None:
        """Returns when every model is ready."""
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                # -P: beside the script lies this file, which is not the package of that name.
                [*die_with_us(), python, "-P", kserve_models.__file__, str(self.port)],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_WITHIN
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"KServe did not start:\n{self.log()}")
            time.sleep(0.05)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)  # it would wait for requests that are never answered
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        state = "stopped" if self._process is None else f"pid={self._process.pid}"
        return f"<KServe {self.url} {state} models={','.join(kserve_models.MODELS)}>"

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JSON) -> Answer:
        """One request on a connection of its own."""
        return request((self.host, self.port), method, path, body, headers)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/v2/health/ready").status == 200
        except OSError:
            return False
