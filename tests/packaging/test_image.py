"""Promises of the container image, as far as they can be tried without Docker: image.py says how far."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from proxy.cli import parser
from proxy.config import Settings, load
from proxy.config_rules import host_port
from tests.packaging.dockerfile import parse
from tests.packaging.image import ROOT, Image, sent
from tests.parts.availability import missing
from tests.parts.forebay_process import PATIENCE, ForebayProcess
from tests.parts.model_backend import model_server


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Container(ForebayProcess):
    """A started image."""

    def __init__(
        self,
        image: Image,
        environment: dict[str, str],
        process: asyncio.subprocess.Process,
        session: aiohttp.ClientSession,
    ) -> None:
        super().__init__(process, session)
        self._image = image
        self._environment = environment

    async def run(self, *command: str) -> tuple[int, str]:
        """What `docker exec` would do: exit code and what was said."""
        process = await asyncio.create_subprocess_exec(
            *self._image.confined(command),
            cwd="/",
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(PATIENCE):
            said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode()


@asynccontextmanager
async def started(image: Image, upstream: str) -> AsyncIterator[Container]:
    """The image as `docker run --read-only --cap-drop=ALL --env FOREBAY_UPSTREAM=…` starts it, on free ports."""
    environment = image.environment(
        FOREBAY_UPSTREAM=upstream, FOREBAY_LISTEN="127.0.0.1:0", FOREBAY_ADMIN=free_address()
    )
    process = await asyncio.create_subprocess_exec(
        *image.confined(image.start),
        cwd="/",
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with aiohttp.ClientSession() as session:
        container = Container(image, environment, process, session)
        try:
            await container.listens()
            yield container
        finally:
            await container.close()


def status(pid: int) -> dict[str, list[str]]:
    """What the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def files(image: Image) -> dict[str, float]:
    return {str(path): path.lstat().st_mtime for path in image.root.rglob("*")}


def test_hadolint_finds_nothing() -> None:
    """The Dockerfile follows the rules of its trade, without exceptions."""
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        missing("hadolint", "make setup")
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)
    assert "hadolint ignore" not in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_builder_is_sent_the_program_and_nothing_else() -> None:
    """No history, environment or secret that lies about gets near an image."""
    context = sent()
    assert [path for path in context if not path.startswith("proxy/")] == [
        "LICENSE",
        "README.md",
        "config/container.yaml",
        "pyproject.toml",
    ]
    assert {path for path in context if path.startswith("proxy/")} == {
        str(path.relative_to(ROOT))
        for path in (ROOT / "proxy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


async def test_what_the_image_starts_serves_and_drains(image: Image) -> None:
    """With nothing but an upstream said, clients get their answers, and SIGTERM ends it well."""
    async with model_server() as model, started(image, model.url) as container:
        await container.ready()
        async with container.session.get(f"{container.url}/any?thing=1") as answer:
            assert (answer.status, (await answer.json())["echo"]) == (200, "/any?thing=1")
        container.signal(signal.SIGTERM)
        assert await container.exit_code() == 0


async def test_its_health_check_follows_the_backend(image: Image) -> None:
    """`docker ps` says healthy while requests would be answered, and unhealthy, with the reason, while not."""
    async with model_server(ready=False) as model, started(image, model.url) as container:
        code, said = await container.run(*image.healthcheck)
        assert (code, said[:10]) == (1, "not ready:")
        model.ready = True
        await container.ready()
        assert await container.run(*image.healthcheck) == (0, "ready\n")


async def test_it_needs_no_root_no_capability_and_no_file_to_write(image: Image) -> None:
    """Whoever breaks in is nobody, on a file system that takes nothing; Forebay itself does not mind."""
    if os.geteuid() != 0:
        missing("root", "run this test as root: it starts the image as another user on read-only file systems")
    before = files(image)
    async with model_server() as model, started(image, model.url) as container:
        await container.ready()
        facts = status(container.pid)
        uid, gid = image.user.split(":")
        assert facts["Uid"] == [uid] * 4
        assert facts["Gid"] == [gid] * 4
        assert int(facts["CapEff"][0], 16) == int(facts["CapBnd"][0], 16) == 0
        for place in ("/", "/tmp", "/dev/shm", str(image.root), str(image.path("/etc/forebay"))):
            code, said = await container.run("touch", f"{place}/written")
            assert code != 0, place
            assert "Read-only file system" in said, place
        async with container.session.post(
            f"{container.url}/x", data=io.BytesIO(b"x" * (8 << 20))
        ) as answer:  # above limits.parse
            assert answer.status == 200
        assert (await container.run(*image.healthcheck))[0] == 0
    assert files(image) == before


def test_no_build_tools_are_left(image: Image) -> None:
    """What is shipped is Python, Forebay and its libraries: nothing to build or install with."""
    assert {path.name for path in image.root.iterdir()} == {"etc", "opt"}
    (packages,) = image.path("/opt/forebay").glob("lib/python3.*/site-packages")
    for tool in ("pip", "setuptools", "wheel", "pytest", "rich"):
        assert tool not in image.base_packages
        assert not list(packages.glob(f"{tool}*"))
    assert {"pip", "forebay"} & {path.name for path in image.path("/opt/forebay/bin").iterdir()} == {"forebay"}


def test_no_module_is_compiled_at_every_start(image: Image) -> None:
    """On a read-only file system Python could not keep what it compiles, so that has been done before."""
    (package,) = image.path("/opt/forebay").glob("lib/python3.*/site-packages/proxy")
    assert (package / "sidecar.py").exists()
    for module in package.rglob("*.py"):
        assert list(module.parent.glob(f"__pycache__/{module.stem}.*.pyc")), module


def test_both_stages_stand_on_the_same_python() -> None:
    """An environment works where it was made: the Python that it points to is in both stages, and new enough."""
    stages = parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    (base,) = {stage.base for stage in stages}
    version = re.fullmatch(r"python:(\d+)\.(\d+)-slim-bookworm", base)
    assert version is not None
    assert tuple(map(int, version.groups())) >= (3, 11)


def ports(settings: Settings) -> list[str]:
    return [str(host_port(address)[1]) for address in (settings.listen, settings.admin)]


def test_ports_and_commands_are_the_programs_own(image: Image) -> None:
    """What the image exposes is what it listens on, from outside of the container too; its words are commands."""
    settings = load(ROOT / "config/container.yaml", {}, {}, upstream_required=False)
    assert ports(settings) == image.stage.last("EXPOSE").words == ports(Settings())
    assert {host_port(address)[0] for address in (settings.listen, settings.admin)} == {"0.0.0.0"}
    for command in (image.start, image.healthcheck):
        assert command[0] == "forebay"
        parser().parse_args(command[1:])
    assert settings.admin_token is None


def test_the_health_check_is_given_time_to_say_why(image: Image) -> None:
    """`forebay health` waits three seconds for an answer and then says so; Docker must not cut that short."""

    def seconds(flags: dict[str, str], name: str) -> float:
        return float(flags[name].removesuffix("s"))

    flags = image.stage.last("HEALTHCHECK").flags
    assert seconds(flags, "timeout") > 3.0
    assert seconds(flags, "interval") >= seconds(flags, "timeout")
