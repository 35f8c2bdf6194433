"""Promises about Forebay as a process: how it starts, how it ends, and what it says and does not start on a mistake."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.calls import answer, call, data
from tests.e2e.stage import Stage, reply
from tests.http.wire import Wire
from tests.parts.forebay_process import ROOT, ForebayProcess, environment, forebay_process
from tests.parts.model_backend import ModelServer
from tests.parts.raw_backend import Peer, Received


async def infer(forebay: ForebayProcess, *rows: int) -> tuple[int, Any]:
    async with forebay.session.post(f"{forebay.url}/v2/models/double/infer", json=call(*rows)) as response:
        return response.status, await response.json()


async def wire_to(forebay: ForebayProcess) -> Wire:
    host, _, port = forebay.address.rpartition(":")
    return await Wire.connect((host, int(port)))


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: list[str]
    err: list[str]


async def forebay(*arguments: str, cwd: Path = ROOT, **variables: str) -> Ended:
    """Run a command that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *arguments),
        cwd=cwd,
        env=environment(PYTHONPATH=str(ROOT), **variables),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(20):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode().splitlines(), err.decode().splitlines())


# ── how it starts ─────────────────────────────────────────────────────────────────────────────────────


async def test_serve_says_in_one_line_where_it_listens(backend: ModelServer) -> None:
    """Whoever starts Forebay reads both addresses and the backend's, and can send requests from then on."""
    async with forebay_process(backend.url) as process:
        listening = [line for line in process.lines if process.address in line]
        assert len(listening) == 1
        assert f"listening on {process.url}, admin on http://{process.admin}, before {backend.url}" in listening[0]
        await process.ready()
        status, body = await infer(process, 1)
        assert (status, data(body)) == (200, answer(1))


async def test_serve_does_not_wait_for_its_backend() -> None:
    """A native sidecar starts before its model server: it is started and alive, only not ready, and says so once."""
    with socket.socket() as nobody:  # bound, not listening
        nobody.bind(("127.0.0.1", 0))
        async with forebay_process(f"http://127.0.0.1:{nobody.getsockname()[1]}") as process:
            await process.says("not ready")
            assert (await process.asked("/startupz"))[0] == (await process.asked("/livez"))[0] == 200
            status, why = await process.asked("/readyz")
            assert (status, "connection refused" in why) == (503, True)
            status, body = await infer(process, 1)
            assert (status, "connection refused" in body["error"]) == (502, True)
            assert sum("not ready" in line for line in process.lines) == 1


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def busy(forebay: ForebayProcess, backend: ModelServer) -> AsyncIterator[tuple[asyncio.Task[Any], Wire]]:
    """A Forebay with a slow inference in flight and an upload half sent, neither of which has an answer yet."""
    await forebay.ready()
    backend.gate.set()
    await infer(forebay, 0)  # the model is known from here on
    backend.gate.clear()
    slow = asyncio.create_task(infer(forebay, 7))
    await backend.has_received(len(backend.requests) + 1)
    upload = await wire_to(forebay)
    await upload.send(b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf.")
    await forebay.until("/metrics", lambda _, text: 'forebay_requests_active{route="default"} 2' in text)
    try:
        yield slow, upload
    finally:
        slow.cancel()
        await asyncio.wait([slow])
        upload.close()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_what_was_accepted_is_answered_before_the_end(backend: ModelServer, sign: signal.Signals) -> None:
    """On SIGTERM or Ctrl-C readiness fails and nobody new comes in; requests and uploads under way finish; exit 0."""
    async with forebay_process(backend.url) as process, busy(process, backend) as (slow, upload):
        process.signal(sign)
        await process.until("/readyz", lambda status, why: (status, why) == (503, "draining\n"))
        assert (await process.asked("/drained"))[0] == 503
        with pytest.raises(ConnectionRefusedError):
            await wire_to(process)
        assert process.running
        assert not slow.done()
        backend.gate.set()
        await upload.send(b"other")
        status, body = await slow
        assert (status, data(body)) == (200, answer(7))
        uploaded = await upload.answer()
        assert (uploaded.status, uploaded.get(b"connection")) == (200, b"close")
        assert b'"received": 10' in uploaded.body
        assert await process.exit_code() == 0
        assert "every accepted request was answered" in process.lines[-1]


async def test_a_second_signal_ends_it_now(backend: ModelServer) -> None:
    """Whoever does not want to wait for the drain says so twice."""
    async with forebay_process(backend.url) as process, busy(process, backend):
        process.signal(signal.SIGTERM)
        await process.says("draining")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == -signal.SIGTERM


async def test_drain_timeout_bounds_the_end(backend: ModelServer, tmp_path: Path) -> None:
    """What is not answered within `drain_timeout` is cut off, which the log and exit code 1 tell."""
    config = tmp_path / "forebay.yaml"
    config.write_text("drain_timeout: 200ms\n")
    async with (
        forebay_process(backend.url, "--config", str(config)) as process,
        busy(process, backend) as (slow, upload),
    ):
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 1
        assert "drain_timeout of 0.2 s was not enough" in await process.says("ERROR")
        with pytest.raises(aiohttp.ClientError):
            await slow
        with contextlib.suppress(ConnectionResetError):
            assert await upload.rest() == b""


async def test_drain_by_hand_stays_up_until_it_is_ended(backend: ModelServer) -> None:
    """A model container's preStop can drain Forebay first: `/drained` tells when, and SIGTERM then ends it at once."""
    async with forebay_process(backend.url) as process, busy(process, backend) as (slow, upload):
        assert await process.asked("/drained") == (503, "not draining\n")
        status, said = await process.asked("/drain", method="POST")
        assert (status, "/drained" in said) == (202, True)
        assert await process.asked("/readyz") == (503, "draining\n")
        assert await process.asked("/drained") == (503, "2 in flight\n")
        with pytest.raises(ConnectionRefusedError):
            await wire_to(process)
        await upload.send(b"other")
        assert (await upload.answer()).status == 200
        await process.until("/drained", lambda status, text: (status, text) == (503, "1 in flight\n"))
        backend.gate.set()
        assert (await slow)[0] == 200
        await process.until("/drained", lambda status, text: (status, text) == (200, "drained\n"))
        assert (await process.asked("/livez"))[0] == 200
        assert (await process.asked("/drain", method="POST"))[0] == 202
        assert process.running
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0


async def test_a_stream_under_way_ends_by_itself() -> None:
    """An event stream that began before SIGTERM goes on to its own last event."""

    def stream(peer: Peer, head: Received) -> None:
        peer.whole(head)
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        peer.wait("go on")
        peer.send(b"3\r\ntwo\r\n0\r\n\r\n")

    stage = Stage(stream, reply)
    with stage.backend:
        async with forebay_process(stage.backend.url) as process:
            await process.ready()
            client = await wire_to(process)
            await client.send(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.head()
            assert await client.chunk() == b"one"
            process.signal(signal.SIGTERM)
            await process.says("draining")
            stage.backend.let("go on")
            assert [await client.chunk(), await client.chunk()] == [b"two", b""]
            assert await client.rest() == b""
            client.close()
            assert await process.exit_code() == 0


# ── what it says to a mistake ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", ["listen", "admin"])
async def test_a_port_in_use_is_one_line(which: str) -> None:
    """The address that is taken and what to do about it, exit 1, and nothing is left listening."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = "admin" if which == "listen" else "listen"
        ended = await forebay(
            "serve", "--upstream", "http://127.0.0.1:9", f"--{which}", address, f"--{free}", "127.0.0.1:0"
        )
    assert (ended.code, ended.out) == (1, [])
    assert ended.err == [
        f"forebay: {which}: cannot listen on {address}: address already in use; choose another with --{which} HOST:PORT"
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve", "--config", "absent.yaml"], "absent.yaml: there is no such file"),
        (["serve", "--config", "."], ".: cannot be read: Is a directory"),
        (
            ["serve"],
            "forebay: no upstream: where is the model server? Give --upstream URL, FOREBAY_UPSTREAM=URL or `ups",
        ),
        (
            ["serve", "--upstream", "localhost:8000"],
            "--upstream: 'localhost:8000' has no scheme: write 'http://localhos",
        ),
        (["serve", "--upstream", "http://u", "--listen", "8080"], "--listen: '8080' has no host: write 127.0.0.1:8080"),
        (["serve", "--upstrm", "http://u"], "forebay serve: --upstrm is not known; did you mean --upstream?"),
        (["serve", "--max-size", "8", "extra"], "forebay serve: extra is not known (see forebay serve --help)"),
        (["serve", "--listen"], "forebay serve: argument --listen: expected one argument (see forebay serve --help)"),
        (["sevre"], "forebay: argument COMMAND: invalid choice: 'sevre' (choose from "),
        ([], "forebay: the following arguments are required: COMMAND (see forebay --help)"),
        (["check"], "forebay check: give FILE, --upstream URL or both (see forebay check --help)"),
        (["check", "absent.yaml"], "absent.yaml: there is no such file"),
        (["health", "--admin", "9901"], "--admin: '9901' has no host: write 127.0.0.1:9901"),
    ],
)
async def test_a_mistake_is_one_line_and_starts_nothing(arguments: list[str], line: str, tmp_path: Path) -> None:
    """What a person got wrong and what to do, in one line, exit 2."""
    ended = await forebay(*arguments, cwd=tmp_path)
    assert (ended.code, ended.out, len(ended.err)) == (2, [], 1), ended
    assert ended.err[0].startswith(line)


@pytest.mark.parametrize("command", ["serve", "check"])
async def test_every_mistake_in_a_file_is_named_with_its_line(command: str, tmp_path: Path) -> None:
    """All mistakes at once, each with its place and the nearest valid key; nothing is started."""
    (tmp_path / "forebay.yaml").write_text(
        "upstream: localhost:8000\nbatch:\n  max_dealy: 5ms\n  max_size: none\ncache: {mode: off, mode: on}\n"
    )
    file = ["--config", "forebay.yaml"] if command == "serve" else ["forebay.yaml"]
    ended = await forebay(command, *file, cwd=tmp_path)
    assert (ended.code, ended.out) == (2, [])
    assert [line.split(": ")[0] for line in ended.err] == [
        "forebay.yaml:1:11",
        "forebay.yaml:3:3",
        "forebay.yaml:4:13",
        "forebay.yaml:5:20",
        "4 mistakes",
    ]
    assert "did you mean max_delay?" in ended.err[1]


async def test_a_mistake_in_a_variable_names_the_variable(tmp_path: Path) -> None:
    """Where a setting came from the environment, the message says which variable."""
    ended = await forebay("serve", "--upstream", "http://u", cwd=tmp_path, FOREBAY_BATCH__MAX_DELAY="5")
    assert (ended.code, ended.out, len(ended.err)) == (2, [], 1), ended
    assert ended.err[0].startswith("FOREBAY_BATCH__MAX_DELAY: ")


# ── the other commands ────────────────────────────────────────────────────────────────────────────────


async def test_health_is_a_probe(backend: ModelServer) -> None:
    """A container's probe needs no curl: exit 0 when traffic may come, else 1 and a line of why."""
    async with forebay_process(backend.url) as process:
        await process.ready()
        assert await forebay("health", "--admin", process.admin) == Ended(0, ["ready"], [])
        assert await forebay("health", FOREBAY_ADMIN=process.admin) == Ended(0, ["ready"], [])
        backend.ready = False
        await process.until("/readyz", lambda status, _: status == 503)
        ended = await forebay("health", "--admin", process.admin)
        assert ended == Ended(1, ["not ready: the backend answers 503 to /v2/health/ready"], [])
        address = process.admin
    assert await forebay("health", "--admin", address) == Ended(
        1, [f"no answer from {address}: Connection refused"], []
    )


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "config").glob("*.yaml")))
async def test_shipped_configurations_are_right(file: str) -> None:
    """Whatever lies in config/ can be served as it is."""
    ended = await forebay("check", f"config/{file}")
    assert (ended.code, ended.out[0], ended.err) == (0, f"config/{file}: ok", [])
    assert any(line.split()[0] == "route" for line in ended.out[1:])


@pytest.mark.parametrize("command", ["", "serve", "check", "health", "demo"])
async def test_help_fits_a_screen(command: str) -> None:
    """Help is read at a glance: at most 24 lines of 80 columns, in a terminal of any width."""
    for columns in ("80", "200"):
        ended = await forebay(*command.split(), "--help", COLUMNS=columns)
        assert (ended.code, ended.err) == (0, [])
        assert ended.out[0].startswith(f"usage: forebay {command}".rstrip())
        assert len(ended.out) <= 24
        if columns == "80":
            assert max(map(len, ended.out)) <= 80
