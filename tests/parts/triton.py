"""A real Triton on a free port, with python-backend models that the tests choose and change while it runs.

    with Triton(ROWS, SLOW) as triton:
        triton.request("POST", "/v2/models/rows/infer", body)
        triton.reload("rows", weight=3)

Invariants
    Everything it starts ends with it: a grace after SIGTERM, then the process group is killed; when the
    tests themselves are killed, the kernel ends it. Its files and shared memory go too.
    Ports are free ones, never fixed; two of them can run side by side.

Looks for a virtual environment with `nvidia-pytriton` and numpy below 2 in $FOREBAY_TRITON_VENV, else in
`.venv-triton` beside `pyproject.toml`; where there is none the test is given up loudly by name.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.parts import triton_model
from tests.parts.availability import missing
from tests.parts.server_process import die_with_us, free_port

ROOT = Path(__file__).parents[2]
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
START_WITHIN = 60.0  # seconds; about 2 are usual


@dataclass(frozen=True)
class ServedModel:
    """One model: `compute` names a function of `triton_model.COMPUTE`; tensors are (name, TYPE_X, dims)."""

    name: str
    compute: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    max_batch_size: int = 32
    weight: float = 2.0
    seconds_per_call: float = 0.0
    seconds_per_row: float = 0.0
    instances: int = 1
    optional_inputs: bool = False
    ensemble_of: str = ""  # the model that this one hands its X to, and whose Y it answers
    extra: str = ""  # further lines of config.pbtxt

    def config(self) -> str:
        """The text of config.pbtxt."""

        def tensor(kind: str, name: str, datatype: str, dims: tuple[int, ...]) -> str:
            optional = " optional: true" if kind == "input" and self.optional_inputs else ""
            return f'{kind} [ {{ name: "{name}" data_type: {datatype} dims: {list(dims)}{optional} }} ]'

        if self.ensemble_of:
            step = f'model_name: "{self.ensemble_of}" model_version: -1'
            maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
            kind = ['platform: "ensemble"', f"ensemble_scheduling {{ step [ {{ {step} {maps} }} ] }}"]
        else:
            kind = ['backend: "python"', f"instance_group [ {{ count: {self.instances} kind: KIND_CPU }} ]"]
        parameters = {
            "compute": self.compute,
            "seconds_per_call": str(self.seconds_per_call),
            "seconds_per_row": str(self.seconds_per_row),
        }
        return "\n".join(
            [
                *kind,
                f"max_batch_size: {self.max_batch_size}",
                *(tensor("input", *one) for one in self.inputs),
                *(tensor("output", *one) for one in self.outputs),
                *(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()),
                self.extra,
            ]
        )


_X, _Y = (("X", "TYPE_FP32", (-1,)),), (("Y", "TYPE_FP32", (-1,)),)
_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_TYPES = ("BOOL", *_INTEGERS, "FP16", "FP32", "FP64", "STRING")

ROWS = ServedModel("rows", "rows", _X, _Y)
GRID = ServedModel("grid", "rows", (("X", "TYPE_FP32", (-1, -1)),), (("Y", "TYPE_FP32", (-1, -1)),))
WHOLE = ServedModel("whole", "rows", (("X", "TYPE_FP32", (-1, -1)),), (("Y", "TYPE_FP32", (-1, -1)),), max_batch_size=0)
MIXED = ServedModel(
    "mixed",
    "mixed",
    (("A", "TYPE_FP32", (-1,)), ("B", "TYPE_INT64", (2,)), ("C", "TYPE_STRING", (1,))),
    (("S", "TYPE_FP32", (1,)), ("T", "TYPE_INT64", (2,)), ("U", "TYPE_STRING", (1,)), ("V", "TYPE_BOOL", (-1,))),
)
ECHO = ServedModel(
    "echo",
    "echo",
    tuple((f"I_{kind}", f"TYPE_{kind}", (-1,)) for kind in _TYPES),
    tuple((f"O_{kind}", f"TYPE_{kind}", (-1,)) for kind in _TYPES),
    optional_inputs=True,
)
ENSEMBLE = ServedModel("ensemble", "rows", _X, _Y, ensemble_of="rows")
CONSTANT = ServedModel("constant", "constant", _X, _Y)
SLOW = ServedModel("slow", "rows", _X, _Y, seconds_per_call=0.020, seconds_per_row=0.0005)
DYNAMIC = replace(
    SLOW,
    name="dynamic",
    extra="dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: [ 32 ] }",
)
SEQUENCE = ServedModel(
    "sequence", "rows", _X, _Y, extra="sequence_batching { max_sequence_idle_microseconds: 5000000 }"
)


class Answer(NamedTuple):
    """What Triton answered; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Triton:
    def __init__(self, *models: ServedModel, options: tuple[str, ...] = ()) -> None:
        self._models = models
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1"
        self.port = free_port()
        self._folder = Path()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-triton-"))
        try:
            (self._folder / "models").mkdir()
            for model in self._models:
                self._write(model)
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        state = "stopped" if self._process is None else f"pid={self._process.pid}"
        return f"<Triton {self.url} {state} models={','.join(sorted(self.models()))}>"

    def models(self) -> list[str]:
        """Names of the models in the repository, loaded or not."""
        repository = self._folder / "models"
        return [path.name for path in repository.iterdir()] if repository.is_dir() else []

    def start(self) -> None:
        """Start it (also after `stop`, then on the same port); returns when every model is ready."""
        assert self._process is None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                die_with_us() + self._command(),
                env=os.environ | _environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_WITHIN
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Triton did not start:\n{self.log()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it and everything it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a test may have stopped it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        group = self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._process.wait()
        self._process = None
        while living(group):
            time.sleep(0.01)  # what was killed is gone in a moment; its parent may have been killed first
        for leftover in Path("/dev/shm").glob(f"{self._folder.name}*"):
            leftover.unlink(missing_ok=True)

    def add(self, *models: ServedModel) -> None:
        """Load models, or replace those of the same name."""
        for model in models:
            self._write(model)
            self._repository(model.name, "load")

    def reload(self, name: str, *, weight: float) -> None:
        """The same model and version with other weights: nothing but its answers and counters changes."""
        self.weigh(name, weight)
        self._repository(name, "load")

    def weigh(self, name: str, weight: float) -> None:
        """Put other weights in its folder; they answer from its next load on."""
        (self._folder / "models" / name / "1" / "weight").write_text(str(weight))

    def remove(self, name: str) -> None:
        self._repository(name, "unload")
        shutil.rmtree(self._folder / "models" / name)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own."""
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=30)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())

    def infer(self, model: str, body: bytes) -> Answer:
        return self.request("POST", f"/v2/models/{model}/infer", body)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _write(self, model: ServedModel) -> None:
        version = self._folder / "models" / model.name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version.parent / "config.pbtxt").write_text(model.config())
        (version / "weight").write_text(str(model.weight))
        shutil.copy(triton_model.__file__, version / "model.py")

    def _repository(self, name: str, action: str) -> None:
        answer = self.request("POST", f"/v2/repository/models/{name}/{action}", b"{}")
        if answer.status != 200:
            raise RuntimeError(f"{action} {name}: {answer.body!r}\n{self.log()}")

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/v2/health/ready").status == 200
        except OSError:
            return False

    def _command(self) -> list[str]:
        packages = _site_packages()
        triton = packages / "pytriton" / "tritonserver"
        backend = self._folder / "backends" / "python"
        if not backend.exists():
            # Triton wants library, utilities and the stub of the running Python in one folder.
            backend.mkdir(parents=True)
            stub = triton / "python_backend_stubs" / packages.parent.name.removeprefix("python")
            for source in (
                *(triton / "backends" / "python").glob("*triton_python*"),
                stub / "triton_python_backend_stub",
            ):
                (backend / source.name).symlink_to(source)
        return [
            str(triton / "bin" / "tritonserver"),
            f"--model-repository={self._folder / 'models'}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in sorted(self.models())),
            f"--backend-directory={self._folder / 'backends'}",
            f"--cache-directory={triton / 'caches'}",
            "--backend-config=python,shm-default-byte-size=4194304",
            f"--backend-config=python,shm-region-prefix-name={self._folder.name}",
            f"--http-address={self.host}",
            f"--http-port={self.port}",
            "--http-thread-count=8",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--exit-timeout-secs=1",
            *self._options,
        ]


def living(group: int) -> list[int]:
    """The processes of a process group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


@functools.cache
def _site_packages() -> Path:
    venv = Path(os.environ.get("FOREBAY_TRITON_VENV") or ROOT / ".venv-triton")
    found = sorted(venv.glob("lib/python3.*/site-packages/pytriton/tritonserver/bin/tritonserver"))
    if not found:
        missing(
            "Triton",
            f"no nvidia-pytriton in {venv}; `make triton` installs it, FOREBAY_TRITON_VENV names another place",
        )
    return found[0].parents[3]


@functools.cache
def _environment() -> dict[str, str]:
    packages = _site_packages()
    python = packages.parents[2] / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    libraries = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{packages / 'nvidia_pytriton.libs'}",
        "PYTHONPATH": str(packages),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }
