"""The whole configuration: one file, then `FOREBAY_…` variables, then flags; the last word counts.

Invariants
    Every mistake is reported at once, with its place; with a mistake there are no `Settings`.
    The same names stand in the file, in variables, in flags and on /config: `batch.max_delay` is
    `FOREBAY_BATCH__MAX_DELAY` and `--max-delay`.
    Nothing here shows a secret: neither a message nor `as_dict`.

The layers declare their own settings; this file composes them and knows the rules between them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proxy import config_rules as rules
from proxy import config_tree as tree
from proxy import config_values as values
from proxy.batching.settings import BatchSettings
from proxy.caching.policy import CacheSettings
from proxy.config_reader import Check, Reader, Setting, leaves, settings_of
from proxy.config_tree import Mistake, Place, Section, Several, Text
from proxy.http.limits import Limits
from proxy.routing import AUTO, Match, Mode, Routes, RouteSettings, RowsAre
from proxy.settings import Seconds, setting
from proxy.upstream.settings import UpstreamSettings

PREFIX: Final = "FOREBAY_"
NO_UPSTREAM: Final = (
    "no upstream: where is the model server? Give --upstream URL, FOREBAY_UPSTREAM=URL or `upstream: URL`"
)

_KUBERNETES_NAME = re.compile(
    r"FOREBAY_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.*")


class CannotStart(Exception):
    """Something that a person can mend keeps Forebay from starting; the message is one line that says what to do."""


class Mistakes(Exception):
    """A configuration that does not hold; `found` has every mistake, at least one."""

    def __init__(self, found: list[Mistake]) -> None:
        self.found = tuple(sorted(found, key=lambda mistake: (mistake.place.line == 0, mistake.place)))
        super().__init__("\n".join(map(str, self.found)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be configured."""

    listen: str = setting("127.0.0.1:8080", "Where clients connect, HOST:PORT.")
    admin: str = setting("127.0.0.1:9901", "Where metrics, health and /config are, HOST:PORT.")
    admin_token: str | None = setting(
        None, "What a change on the admin listener must present; without one it is allowed on loopback only."
    )
    upstream: UpstreamSettings = setting(UpstreamSettings(), "The model server. `upstream: URL` is enough.")
    redis: str | None = setting(None, "A Redis that replicas share: redis://, rediss:// or unix://.")
    mode: Mode = setting(Mode.ON, "`off`: requests only pass through, nothing is read, stored or joined.")
    protocol: str = setting(AUTO, "What the backend speaks; `auto` finds out. Every route's default, as are `rows`.")
    rows: RowsAre = setting(RowsAre.AUTO, "Whether the rows of a call are independent of each other; see `routes`.")
    cache: CacheSettings = setting(CacheSettings(), "The response cache.")
    batch: BatchSettings = setting(BatchSettings(), "What rides together, and how long it waits for that.")
    routes: tuple[RouteSettings, ...] = setting((), "Requests to treat apart; the first that fits wins.")
    limits: Limits = setting(Limits(), "What a client may ask of Forebay.")
    drain_timeout: Seconds = setting(Seconds(25.0), "How long accepted requests may take after SIGTERM.")

    @property
    def default_route(self) -> RouteSettings:
        """The route of whatever fits no other."""
        return RouteSettings(
            id=rules.DEFAULT_ROUTE,
            match=Match(),
            mode=self.mode,
            protocol=self.protocol,
            rows=self.rows,
            cache=self.cache,
            batch=self.batch,
        )

    def table(self) -> Routes:
        """The routes, ready to be asked."""
        return Routes(self.routes, self.default_route)

    def __repr__(self) -> str:
        return f"<Settings {as_dict(self)}>"


_LEAVES: Final = {".".join(path): (path, leaf) for path, leaf in leaves(Settings)}
_UPSTREAM: Final = _LEAVES["upstream.targets"]

_CHECKS: Final[Mapping[tuple[type[Any], str], Check]] = {
    **rules.CHECKS,
    (Settings, "listen"): rules.address,
    (Settings, "admin"): rules.address,
    (Settings, "redis"): rules.redis,
    (Settings, "protocol"): rules.protocol_of_all,
}


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str], *, upstream_required: bool = True
) -> Settings:
    """The settings in force. Raises `Mistakes`.

    flags: what the command line says, by dotted name (`batch.max_delay`); `upstream` is the URL.
    upstream_required: False where the upstream may be said later; without one there are no targets.
    """
    written, mistakes = _file(file) if file else (Section(Place("forebay")), [])
    written = _with_targets(written)
    written = _with_variables(written, environ, mistakes)
    for name, text in flags.items():
        flag = Place(f"--{name.rpartition('.')[2].replace('_', '-')}")
        written = _put(written, _UPSTREAM if name == "upstream" else _LEAVES[name], flag, text)
    reader = Reader(Settings, _CHECKS)
    settings = _read(reader, written)
    if (
        upstream_required
        and not settings.upstream.targets
        and not any(name.startswith("upstream") for name in reader.wrong)
    ):
        reader.say(written.place, NO_UPSTREAM, "")
    mistakes += reader.mistakes
    if mistakes:
        raise Mistakes(mistakes)
    return settings


def _file(path: Path) -> tuple[Section, list[Mistake]]:
    start = Place(str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise Mistakes([Mistake(start, "there is no such file")]) from None
    except OSError as error:
        raise Mistakes([Mistake(start, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        raise Mistakes([Mistake(Place(str(path), line, column), "not UTF-8")]) from None
    written, mistakes = tree.parse(text, str(path))
    if written is None:
        raise Mistakes(mistakes)
    return written, mistakes


def _with_targets(written: Section) -> Section:
    """`upstream: URL` is short for `upstream: {targets: [URL]}`."""
    _, node = written.entries.get("upstream", (None, None))
    if not isinstance(node, Text) or node.null:
        return written
    return tree.put(written, ("upstream", "targets"), Several(node.place, (node,)))


def _with_variables(written: Section, environ: Mapping[str, str], mistakes: list[Mistake]) -> Section:
    """The file's settings with the variables' over them. An empty variable says nothing."""
    known = {variable(path): (path, leaf) for path, leaf in leaves(Settings)}
    known[f"{PREFIX}UPSTREAM"] = _UPSTREAM
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or not text:
            continue
        if name in known:
            written = _put(written, known[name], Place(name), text)
        elif name.split("__")[0] == f"{PREFIX}ROUTES":
            mistakes.append(Mistake(Place(name), "routes can only be written in a file"))
        elif not _made_by_kubernetes(name, text):
            guess = values.nearest(name.removeprefix(PREFIX), (other.removeprefix(PREFIX) for other in known))
            hint = f"did you mean {PREFIX}{guess}?" if guess else "docs/config.md lists the variables"
            mistakes.append(Mistake(Place(name), f"is not the name of a setting; {hint}"))
    return written


def variable(path: tuple[str, ...]) -> str:
    """The name of the variable that sets what these names lead to."""
    return PREFIX + "__".join(path).upper()


def _made_by_kubernetes(name: str, text: str) -> bool:
    """Kubernetes sets these in every pod of a namespace with a Service called `forebay` or `forebay-…`."""
    return bool(_KUBERNETES_NAME.fullmatch(name) or (name.endswith("_PORT") and _KUBERNETES_PORT.fullmatch(text)))


def _put(written: Section, where: tuple[tuple[str, ...], Setting], place: Place, text: str) -> Section:
    path, leaf = where
    node: tree.Node = Text(place, text)
    if leaf.several:
        node = Several(place, tuple(Text(place, item.strip()) for item in text.split(",") if item.strip()))
    return tree.put(written, path, node)


def _read(reader: Reader, written: Section) -> Settings:
    """The settings as far as they can be read: with a mistake, what would apply without it."""
    settings = reader.section(written, "", base=Settings(), skip=("routes",))
    base = settings.default_route
    _, listed = written.entries.get("routes", (None, None))
    table = {}
    for path, node in reader.sections(listed, "routes"):
        for name in ("id", "match"):
            if name not in node.entries:
                reader.say(node.place, "is missing", f"{path}.{name}")
        table[path] = reader.section(node, path, base=base, per_route=True)
    for path, message in _between(settings, table, reader.wrong):
        reader.say(_place(written, path), message, path)
    return dataclasses.replace(settings, routes=tuple(table.values()))


def _between(settings: Settings, table: Mapping[str, RouteSettings], wrong: Collection[str]) -> Iterator[rules.Fault]:
    """What settings must not say together; what could not be read is left out, it says nothing."""
    if "listen" not in wrong and "admin" not in wrong:
        yield from rules.addresses(settings.listen, settings.admin, settings.upstream.targets)
    faults = list(rules.batches("batch", settings.batch))
    if not _under("batch", wrong):
        yield from faults
        for path, route in table.items():
            if not faults and not _under(f"{path}.batch", wrong):  # else a route would repeat what it inherits
                yield from rules.batches(f"{path}.batch", route.batch)
    yield from rules.routes(
        {
            path: route
            for path, route in table.items()
            if not _under(f"{path}.id", wrong) and not _under(f"{path}.match", wrong)
        }
    )


def _under(path: str, wrong: Collection[str]) -> bool:
    """Could something at or below `path` not be read?"""
    return any(name == path or name.startswith((f"{path}.", f"{path}[")) for name in wrong)


def _place(written: Section, path: str) -> Place:
    """Where a setting was written, or the nearest thing around it."""
    node: tree.Node = written
    place = written.place
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(node, Section) and step in node.entries:
            place, node = node.entries[step]
        elif isinstance(node, Several) and step.isdigit():
            node = node.items[int(step)]
            place = node.place
        else:
            break
    return place if isinstance(node, Section) else node.place


def as_dict(settings: Any, *, in_route: bool = False) -> dict[str, Any]:
    """Settings as they would be written, for /config: a secret is `***`, a route holds only what a route may set."""
    return {
        name: _shown(leaf, getattr(settings, name), in_route or isinstance(settings, RouteSettings))
        for name, leaf in settings_of(type(settings)).items()
        if leaf.per_route or not in_route
    }


def _shown(leaf: Setting, value: Any, in_route: bool) -> Any:
    if value is None:
        return leaf.none
    if leaf.several:
        return [_shown(leaf._replace(several=False), item, in_route) for item in value]
    if dataclasses.is_dataclass(value):
        return as_dict(value, in_route=in_route)
    if values.secret(leaf.name):
        return "***"
    if leaf.kind in (int, float, bool):
        return value
    text = values.write(leaf.kind, value)
    return values.masked(text) if "://" in text else text
