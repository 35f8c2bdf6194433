"""Imports go down only. What `proxy/__init__.py` draws as a map is held here.

A *unit* is a folder of `proxy/` or a file in it; the `config*.py` files are one unit. Every import of ours counts,
those inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import aiohttp.client
import aiohttp.connector
import aiohttp.cookiejar
import pytest

PROXY = Path(__file__).parent.parent / "proxy"

RANKS = {
    unit: rank
    for rank, units in enumerate(
        (
            "terms settings",
            "http protocols caching batching",
            "telemetry",
            "upstream",
            "routing cache_status",
            "relay dispatch",
            "filling",
            "proofs",
            "readings",
            "orders",
            "understanding",
            "answers",
            "pipeline",
            "config",
            "admin",
            "sidecar",
            "measure",
            "demo",
            "completion survey",
            "cli",
            "__main__",
        )
    )
    for unit in units.split()
}

# What only these may import. `aiohttp`'s client: see CLIENT_NAMES.
OWNERS = {
    "redis": ("caching/redis_store.py",),
    "prometheus_client": ("telemetry/",),
    "yaml": ("config_tree.py",),
}
CLIENT_OWNERS = ("upstream/", "measure/", "demo/")
CLIENT_MODULES = ("aiohttp.client", "aiohttp.connector", "aiohttp.cookiejar", "aiohttp.resolver")
CLIENT_NAMES = {*aiohttp.client.__all__, *aiohttp.connector.__all__, *aiohttp.cookiejar.__all__} - {
    "ClientConnectionResetError",  # what a server's transport raises, too
}

# Files that decide and compute: no loop, no network, no clock; `now` is an argument.
PURE = (
    "terms.py",
    "settings.py",
    "protocols/",
    "caching/entry.py",
    "caching/fingerprint.py",
    "caching/memory_store.py",
    "caching/policy.py",
    "caching/redis_address.py",
    "caching/uncacheable.py",
    "batching/rule.py",
    "batching/settings.py",
    "batching/slots.py",
    "batching/window.py",
    "http/coding.py",
    "http/headers.py",
    "http/limits.py",
    "upstream/doubts.py",
    "upstream/retry_budget.py",
    "upstream/unmatched.py",
    "upstream/settings.py",
    "routing.py",
    "cache_status.py",
    "config_",
    "config.py",
    "measure/workload.py",
    "measure/report.py",
    "measure/simulator.py",
)
IMPURE = (
    *("aiohttp", "hiredis", "redis", "requests", "uvloop"),
    *("asyncio", "concurrent", "multiprocessing", "sched", "subprocess", "threading"),
    *("http", "select", "selectors", "signal", "socket", "socketserver", "ssl", "urllib.request"),
    "time",
)


def unit_of(file: str) -> str:
    """The unit of a file, from its path below `proxy/`."""
    name = file.partition("/")[0].removesuffix(".py")
    return "config" if name.startswith("config_") else name


def imports(tree: ast.AST, file: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `from a import b` is `a.b`."""
    package = ["proxy", *file.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is written `aiohttp.NAME`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "aiohttp":
            yield node.lineno, node.attr


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def ours(name: str) -> str:
    """The file below `proxy/` that an import of ours names, "" for the package's own file."""
    parts = name.split(".")[1:]
    path = PROXY
    for at, part in enumerate(parts):
        if (path / part).is_dir():
            path /= part
        elif (path / f"{part}.py").exists():
            return "/".join([*parts[:at], f"{part}.py"])
        else:
            break
    return "" if path == PROXY else f"{path.relative_to(PROXY)}/__init__.py"


def faults(source: str, file: str) -> list[str]:
    """What a file imports and must not. file: its path below `proxy/`."""
    tree = ast.parse(source)
    pure = file.startswith(PURE)
    found: list[str] = []

    def say(line: int, message: str) -> None:
        found.append(f"proxy/{file}:{line}: {message}")

    unit = unit_of(file)
    if unit not in RANKS and file != "__init__.py":
        say(1, f"{unit} has no rank: give it one in {Path(__file__).name}")
        return found
    for line, name in imports(tree, file):
        if within(name, ("proxy",)):
            target = ours(name)
            other = unit_of(target)
            if target and other != unit and RANKS.get(other, len(RANKS)) >= RANKS.get(unit, -1):
                say(line, f"{unit} imports {name}: only lower layers may be")
            if pure and target and not target.startswith(PURE) and not target.endswith("__init__.py"):
                say(line, f"a pure file imports {name}, which is not pure")
            continue
        for module, owners in OWNERS.items():
            if within(name, (module,)) and not file.startswith(owners):
                say(line, f"imports {name}: only {', '.join(owners)} may")
        client = within(name, CLIENT_MODULES) or (name.startswith("aiohttp.") and name.split(".")[-1] in CLIENT_NAMES)
        if client and not file.startswith(CLIENT_OWNERS):
            say(line, f"imports {name} of aiohttp's client: only {', '.join(CLIENT_OWNERS)} may")
        if pure and within(name, IMPURE):
            say(line, f"a pure file imports {name}")
    for line, name in attributes(tree):
        if name in CLIENT_NAMES and not file.startswith(CLIENT_OWNERS):
            say(line, f"uses aiohttp.{name} of aiohttp's client")
    return found


FILES = sorted(str(path.relative_to(PROXY)) for path in PROXY.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_its_layer_may(file: str) -> None:
    """Who reads or changes a layer need not know those above it."""
    assert faults((PROXY / file).read_text(), file) == []


@pytest.mark.parametrize("entry", [*PURE, *(owner for owners in OWNERS.values() for owner in owners), *CLIENT_OWNERS])
def test_the_lists_here_name_files_that_exist(entry: str) -> None:
    """A file that was renamed does not slip out of its rule."""
    assert any(file.startswith(entry) for file in FILES)


@pytest.mark.parametrize("unit", RANKS)
def test_the_ranks_name_units_that_exist(unit: str) -> None:
    """The map shows what is there."""
    assert unit in {unit_of(file) for file in FILES}


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        (
            "caching/tiers.py",
            "from proxy.batching.rule import Adaptive",
            "caching imports proxy.batching.rule.Adaptive",
        ),
        ("caching/tiers.py", "import proxy.telemetry.metrics", "caching imports proxy.telemetry.metrics"),
        ("caching/tiers.py", "from proxy import pipeline", "caching imports proxy.pipeline"),
        ("caching/tiers.py", "from ..batching import rule", "caching imports proxy.batching.rule"),
        ("caching/tiers.py", "def f():\n    from proxy.config import load", "caching imports proxy.config.load"),
        (
            "caching/tiers.py",
            "from importlib import import_module\nimport_module('proxy.cli')",
            "caching imports proxy.cli",
        ),
        ("terms.py", "import proxy.settings", "terms imports proxy.settings"),
        ("relay.py", "from proxy.dispatch import Job", "relay imports proxy.dispatch.Job"),
        ("config_tree.py", "from proxy import sidecar", "config imports proxy.sidecar"),
        ("novelty.py", "", "novelty has no rank"),
        ("caching/tiers.py", "import redis.asyncio", "imports redis.asyncio: only caching/redis_store.py may"),
        (
            "pipeline.py",
            "from prometheus_client import Counter",
            "imports prometheus_client.Counter: only telemetry/ may",
        ),
        ("relay.py", "from aiohttp import ClientSession", "imports aiohttp.ClientSession of aiohttp's client"),
        (
            "relay.py",
            "from aiohttp.client_exceptions import X\nfrom aiohttp.client import X",
            "imports aiohttp.client.X",
        ),
        ("relay.py", "import aiohttp\naiohttp.TCPConnector()", "uses aiohttp.TCPConnector of aiohttp's client"),
        ("routing.py", "import asyncio", "a pure file imports asyncio"),
        ("caching/policy.py", "from time import monotonic", "a pure file imports time.monotonic"),
        ("protocols/v3.py", "from aiohttp import web", "a pure file imports aiohttp.web"),
        ("caching/entry.py", "import urllib.request", "a pure file imports urllib.request"),
        ("batching/window.py", "from proxy.batching.batcher import Batcher", "which is not pure"),
    ],
)
def test_a_wrong_import_is_found(file: str, source: str, said: str) -> None:
    """The rule has teeth: each kind of wrong import is named."""
    assert said in "\n".join(faults(source, file))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "caching/tiers.py",
            "from proxy.terms import Reason\nfrom proxy.caching.entry import Entry\nfrom . import entry",
        ),
        (
            "pipeline.py",
            "from proxy import cache_status, __version__\nfrom proxy.upstream.connections import UpstreamError",
        ),
        ("http/reply.py", "from aiohttp import web\nfrom aiohttp.web_protocol import RequestHandler\nimport time"),
        ("upstream/pool.py", "from aiohttp import ClientSession"),
        ("caching/policy.py", "from email.utils import parsedate\nfrom urllib.parse import urlsplit"),
        ("config.py", "from proxy.config_rules import target"),
    ],
)
def test_a_right_import_is_none_of_a_fault(file: str, source: str) -> None:
    """Nobody works around the rule because it complains without reason."""
    assert faults(source, file) == []
