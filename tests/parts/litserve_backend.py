"""A real LitServe on a free port of 127.0.0.1, written as LitServe's own documentation writes one.

    with LitServe() as server:
        server.request("POST", "/predict", b'{"input": 4.0}')
        server.counted("/predict")

`/predict` is the documentation's first example; `/predict_batch` takes a list of such inputs, and a `scale` for all.

Invariants
    A LitServe that a test started ends with the test, workers and all; when the tests are killed, it sees that its
    standard input has ended.
    `counted` has every request that a model has computed, in order.

Looks for a virtual environment with `litserve` in $FOREBAY_SERVERS_VENV, else in `.venv-servers` beside
`pyproject.toml`; where there is none the test is given up loudly by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.parts.server_process import Answer, free_port, python_with, request

ROOT = Path(__file__).parents[2]
START_WITHIN: Final = 60.0  # seconds
JSON: Final = {"Content-Type": "application/json"}

_SERVER = '''
import os
import signal
import sys
import threading

import litserve as ls
from fastapi import HTTPException

PORT, LOG = int(sys.argv[1]), sys.argv[2]


def count(path, items):
    """One line for each request that was computed: lines as short as these are written whole."""
    with open(LOG, "a") as log:
        log.write(f"{path} {items}\\n")


class SimpleLitAPI(ls.LitAPI):
    def setup(self, device):
        self.model = lambda x: x**2

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        answer = self.model(x)
        count("/predict", 1)
        return answer

    def encode_response(self, output):
        return {"output": output}


class ListLitAPI(SimpleLitAPI):
    def decode_request(self, request):
        if not all(isinstance(x, (int, float)) for x in request["inputs"]):
            raise HTTPException(422, f"no numbers: {request['inputs']}")
        return request["inputs"], request.get("scale", 1)

    def predict(self, asked):
        inputs, scale = asked
        answer = [self.model(x) * scale for x in inputs]
        count("/predict_batch", len(inputs))
        return answer

    def encode_response(self, output):
        return {"outputs": output}


def end_with_the_tests():
    os.read(0, 1)  # not sys.stdin, whose lock LitServe's processes would inherit
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    apis = [SimpleLitAPI(), ListLitAPI(api_path="/predict_batch")]
    server = ls.LitServer(apis, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=PORT, num_api_servers=1, generate_client_file=False)
'''


class LitServe:
    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = free_port()
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        python = python_with("litserve", "LitServe")
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-litserve-"))
        try:
            self._start(python)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, python: str) -> None:
        """Returns when every worker is ready."""
        script = self._folder / "server.py"
        script.write_text(_SERVER)
        (self._folder / "counted").touch()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(script), str(self.port), str(self._folder / "counted")],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_WITHIN
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"LitServe did not start:\n{self.log()}")
            time.sleep(0.05)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its workers, too
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        state = "stopped" if self._process is None else f"pid={self._process.pid}"
        return f"<LitServe {self.url} {state}>"

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JSON) -> Answer:
        """One request on a connection of its own."""
        return request((self.host, self.port), method, path, body, headers)

    def counted(self, path: str) -> list[int]:
        """How many items each computed request to a path held, in order."""
        lines = [line.split() for line in (self._folder / "counted").read_text().splitlines()]
        return [int(items) for its, items in lines if its == path]

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/health").status == 200
        except OSError:
            return False
