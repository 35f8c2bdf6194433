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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from proxy import config_tree as tree
from proxy import config_values as values
from proxy.batching.settings import BatchSettings
from proxy.caching.policy import CacheSettings
from proxy.caching.redis_address import RedisAddress
from proxy.config_reader import Check, Reader, Setting, leaves, settings_of
from proxy.config_tree import Mistake, Place, Section, Several, Text
from proxy.http.limits import Limits
from proxy.routing import Match, Mode, ModelSettings, Routes, RouteSettings, fits
from proxy.settings import Seconds, setting
from proxy.upstream.settings import UpstreamSettings

PREFIX: Final = "FOREBAY_"

_KUBERNETES_NAME = re.compile(r"FOREBAY_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
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

    listen: str = setting("127.0.0.1:8080", "Where clients connect, HOST:PORT.", per_route=False)
    admin: str = setting("127.0.0.1:9901", "Where metrics, health and /config are, HOST:PORT.", per_route=False)
    admin_token: str | None = setting(
        None, "What a change on the admin listener must present; without one it is allowed on loopback only."
    )
    upstream: UpstreamSettings = setting(MISSING, "The model server. Or just its URL.")
    redis: str | None = setting(None, "A Redis that replicas share: redis://, rediss:// or unix://.")
    mode: Mode = setting(Mode.ON, "`off`: requests only pass through, nothing is read, stored or joined.")
    cache: CacheSettings = setting(CacheSettings(), "The response cache.")
    batch: BatchSettings = setting(BatchSettings(), "What rides together, and how long it waits for that.")
    routes: tuple[RouteSettings, ...] = setting((), "Requests to treat apart; the first that fits wins.")
    limits: Limits = setting(Limits(), "What a client may ask of Forebay.")
    drain_timeout: Seconds = setting(Seconds(25.0), "How long accepted requests may take after SIGTERM.")

    @property
    def default_route(self) -> RouteSettings:
        """The route of whatever fits no other."""
        return RouteSettings("default", Match(), self.mode, ModelSettings(), self.cache, self.batch)

    def table(self) -> Routes:
        """The routes, ready to be asked."""
        return Routes(self.routes, self.default_route)

    def __repr__(self) -> str:
        return f"<Settings {as_dict(self)}>"


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str], *, upstream_required: bool = True
) -> Settings:
    """The settings in force. Raises `Mistakes`.

    flags: what the command line says, by dotted name (`batch.max_delay`).
    upstream_required: False where the upstream may come from elsewhere; without one there are no targets.
    """
    written, mistakes = _file(file) if file else (Section(Place("forebay")), [])
    written = _with_targets(written)
    written = _with_variables(written, environ, mistakes)
    for name, text in flags.items():
        written = _put(written, _LEAVES[name], Place(f"--{name.rpartition('.')[2].replace('_', '-')}"), text)
    reader = Reader(Settings, CHECKS)
    settings = _read(reader, written, upstream_required)
    mistakes += reader.mistakes
    if settings is None or mistakes:
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
    known[f"{PREFIX}UPSTREAM"] = _LEAVES["upstream"]
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or not text:
            continue
        if name in known:
            written = _put(written, known[name], Place(name), text)
        elif name.split("__")[0] == f"{PREFIX}ROUTES":
            mistakes.append(Mistake(Place(name), "routes can only be written in a file"))
        elif not _made_by_kubernetes(name, text):
            guess = values.nearest(name, known)
            hint = f"did you mean {guess}?" if guess else "docs/config.md lists the variables"
            mistakes.append(Mistake(Place(name), f"is not the name of a setting; {hint}"))
    return written


def variable(path: tuple[str, ...]) -> str:
    """The name of the variable that sets what these names lead to."""
    return PREFIX + "__".join(path).upper()


def _made_by_kubernetes(name: str, text: str) -> bool:
    """Kubernetes sets these in every pod of a namespace with a Service called `forebay` or `forebay-…`."""
    return bool(
        _KUBERNETES_NAME.fullmatch(name) or (name.endswith("_PORT") and _KUBERNETES_PORT.fullmatch(text))
    )


def _put(written: Section, where: tuple[tuple[str, ...], Setting], place: Place, text: str) -> Section:
    path, leaf = where
    node: tree.Node = Text(place, text)
    if leaf.several:
        node = Several(place, tuple(Text(place, item.strip()) for item in text.split(",") if item.strip()))
    return tree.put(written, path, node)


def _read(reader: Reader, written: Section, upstream_required: bool) -> Settings | None:
    given: dict[str, Any] = {"routes": ()}
    if "upstream" not in written.entries and not upstream_required:
        given["upstream"] = UpstreamSettings(targets=())
    settings = reader.section(Settings, written, given=given)
    base = RouteSettings("default", Match()) if settings is None else settings.default_route
    _, listed = written.entries.get("routes", (None, None))
    routes: dict[str, RouteSettings] = {}
    for path, node in reader.sections(listed, "routes"):
        for name in ("id", "match"):
            if name not in node.entries:
                reader.say(node.place, "is missing", f"{path}.{name}")
        route = reader.section(RouteSettings, node, path, base=base, per_route=True)
        if route is not None:
            routes[path] = route
    for path, message in (*_between_listeners(settings, reader.wrong), *_between_routes(routes, reader.wrong)):
        reader.say(_place(written, path), message, path)
    return settings and dataclasses.replace(settings, routes=tuple(routes.values()))


def _between_listeners(settings: Settings | None, wrong: set[str]) -> Iterator[tuple[str, str]]:
    if settings is None or {"listen", "admin"} & wrong:
        return
    if _same_port(settings.listen, settings.admin):
        yield "admin", f"{settings.admin} is the address of `listen`: give each a port of its own"
    targets = settings.upstream.targets
    if len(targets) > 1:
        yield "upstream.targets", "only one target is served for now: write the one"
    if targets and _same_port(settings.listen, urlsplit(targets[0]).netloc):
        yield "upstream.targets", f"{targets[0]} is Forebay itself (`listen`): write where the model server is"


def _between_routes(routes: Mapping[str, RouteSettings], wrong: set[str]) -> Iterator[tuple[str, str]]:
    before: dict[str, RouteSettings] = {}
    for path, route in routes.items():
        if route.id in (other.id for other in before.values()):
            yield f"{path}.id", f"{route.id!r} is the id of an earlier route too"
        taken = next((name for name, other in before.items() if _takes_all(other.match, route.match)), None)
        if taken is not None and not {f"{path}.match", f"{path}.match.path", f"{path}.match.model"} & wrong:
            yield f"{path}.match", f"is never reached: {taken} ({before[taken].id}) comes first and fits all that it fits"
        before[path] = route
    for path, batch in ((f"{path}.batch", route.batch) for path, route in routes.items()):
        if batch.preferred_sizes and max(batch.preferred_sizes) > batch.max_size:
            yield f"{path}.preferred_sizes", f"has a size above max_size ({batch.max_size})"


def _takes_all(first: Match, second: Match) -> bool:
    """Does the first fit every request that the second fits?"""
    if not fits(first.path, second.path):
        return False
    return first.model is None or (second.model is not None and fits(first.model, second.model))


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
    return node.place if isinstance(node, Text) else place
