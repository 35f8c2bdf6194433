"""Promises of the installed package: made as a wheel, put in an environment that holds nothing else, and used there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser

import pytest

from proxy import __version__
from proxy.cli import parser
from proxy.completion import commands
from tests.packaging.image import ROOT, Image

NAMES = [command.name for command in commands(parser())]


@pytest.fixture(scope="module")
def wheel(image: Image) -> zipfile.ZipFile:
    """The wheel that the image is made from."""
    (file,) = (image.built["build"] / "dist").iterdir()
    return zipfile.ZipFile(file)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def run(image: Image, *command: str) -> subprocess.CompletedProcess[str]:
    """One command in that environment, away from the repository."""
    program, *arguments = command
    return subprocess.run(
        [image.path("/opt/forebay/bin") / program, *arguments],
        cwd=image.root,
        env=image.environment(COLUMNS="80"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_wheel_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """All modules and the mark that they are typed; no tests, tools or configurations of ours."""
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "proxy").rglob("*.py")}
    assert shipped == modules | {"proxy/py.typed"}


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """Its name is that of its command, so that `pipx run` finds it; any platform; licence and page come with it."""
    facts = metadata(wheel)
    assert (facts["Name"], facts["Version"], facts["License-Expression"]) == ("forebay", __version__, "Apache-2.0")
    assert str(wheel.filename).endswith(f"forebay-{__version__}-py3-none-any.whl")
    assert str(facts.get_payload()).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    (entries,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert entries.split() == ["[console_scripts]", "forebay", "=", "proxy.cli:main"]
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize("command", [["forebay"], ["python", "-m", "proxy"]])
def test_both_ways_to_call_it_work(command: list[str], image: Image) -> None:
    """`forebay` and `python -m proxy` are there and are the same."""
    done = run(image, *command, "--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"forebay {__version__}\n", "", 0)
    done = run(image, *command, "serve")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("forebay: no upstream")


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_a_screen(name: str, image: Image) -> None:
    """Help of every command is at most 24 lines of 80 columns."""
    done = run(image, "forebay", *([name] if name else []), "--help")
    lines = done.stdout.splitlines()
    assert (done.stderr, done.returncode) == ("", 0)
    assert lines[0].startswith(f"usage: forebay {name}".rstrip())
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_what_it_declares_is_what_it_needs(image: Image) -> None:
    """Every module but the demo's can be imported with nothing installed but what the wheel asks for."""
    script = (
        "import importlib, pkgutil, proxy, sys; sys.argv = ['-']\n"
        "for module in pkgutil.walk_packages(proxy.__path__, 'proxy.'):\n"
        "    if not module.name.startswith(('proxy.demo', 'proxy.__main__')): importlib.import_module(module.name)"
    )
    done = run(image, "python", "-W", "error", "-c", script)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_demo_says_what_it_needs(image: Image) -> None:
    """Without its extra, `forebay demo` is one line that says how to get it."""
    done = run(image, "forebay", "demo")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.count("\n") == 1
    assert "pip install 'forebay[demo]'" in done.stderr


def test_its_types_are_seen(image: Image) -> None:
    """Whoever uses it from Python has its types: a type checker finds a wrong one by what is installed alone."""
    checker = [sys.executable, "-m", "mypy", "--config-file=", "--no-incremental", "--follow-imports=silent"]
    python = str(image.path("/opt/forebay/bin/python"))
    wrong = "from proxy.cli import main\nanswer: str = main([])"
    done = subprocess.run(
        [*checker, "--python-executable", python, "-c", wrong],
        cwd=image.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert '(expression has type "int", variable has type "str")' in done.stdout


def test_exit_codes_are_documented(image: Image) -> None:
    """Every code that a command ends with stands in the help and in docs/deploy.md."""
    told = run(image, "forebay", "--help").stdout.partition("exit codes:")[2]
    table = (ROOT / "docs/deploy.md").read_text(encoding="utf-8").partition("### Exit codes")[2].partition("## ")[0]
    for arguments, code in (
        (["completion", "bash"], 0),
        (["check", "etc/forebay/forebay.yaml"], 0),
        (["health", "--admin", "127.0.0.1:1"], 1),
        (["serve", "--upstream", "http://u", "--listen", "192.0.2.1:80"], 1),
        (["serve", "--max-delay", "5"], 2),
        (["unheard-of"], 2),
    ):
        assert run(image, "forebay", *arguments).returncode == code, arguments
        assert f"{code} " in told
        assert f"| {code} | `{arguments[0]}`" in table or f"| {code} | every command" in table
