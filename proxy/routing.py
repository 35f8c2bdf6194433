"""Which route a request belongs to: the first whose `match` fits, else the one that is always there.

Invariants
    Every request has exactly one route; the routes are tried in the order in which they are written.
    A path is matched as the backend reads it, percent-encoding undone once: `/%70redict` cannot slip
    past a route written for `/predict` that keeps its answers out of the response cache.

Knows nothing of what codecs make of a request: which model it names is for the caller to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from typing import Final, TypeAlias
from urllib.parse import unquote

from proxy.batching.settings import BatchSettings
from proxy.caching.policy import CacheSettings
from proxy.protocols.json_map import JsonMapSettings
from proxy.protocols.registry import PROTOCOLS
from proxy.settings import setting


class Mode(Enum):
    """Whether Forebay does anything for a route at all."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Match:
    """What a request must look like; what is left out fits everything."""

    path: str = setting(
        "*", "Path of the request without its query, percent-encoding undone; `*` stands for any text, `/` included."
    )
    model: str | None = setting(
        None, "Name of the model that the request asks for; `*` as above. Fits only requests that a protocol knows."
    )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What the operator knows of a route's model and the backend does not say."""

    revision: str = setting(
        "", "Your word that equal revisions mean equal weights: then replicas share Redis. Change it with the weights."
    )


class RowsAre(Enum):
    """What the operator says of the rows, texts or instances of a call."""

    AUTO = "auto"
    ITEMS = "true"
    PROVE = "prove"
    WHOLE = "false"


AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """One kind of requests and how they are treated; `cache` and `batch` are complete, the defaults merged in."""

    id: str = setting(MISSING, "The `route` label of every metric: letters, digits, `_`, `.` and `-`.")
    match: Match = setting(MISSING, "Which requests; the first route that fits wins.")
    mode: Mode = setting(
        Mode.ON, "`off`: these requests only pass through, nothing is stored or joined. Left out: `mode` at the top."
    )
    protocol: str = setting(
        AUTO, f"What these requests speak: {', '.join(PROTOCOLS)}; `auto`: what the backend is found to speak."
    )
    prefix: str = setting(
        "", "What stands before the paths that a protocol knows, as in `/openai`; the backend gets it all."
    )
    alias: str = setting(
        "", "The path by which a protocol knows such a request, where its own does not say: `/v1/embeddings`, say."
    )
    rows: RowsAre = setting(
        RowsAre.AUTO,
        "Whether the rows of a call are independent of each other: `true`; `false`; `prove`, try it out first; `auto`, "
        "as backend or protocol say, and where they do not, `prove`.",
    )
    json_map: JsonMapSettings = setting(JsonMapSettings(), "Where the items are, for `protocol: json_map`.")
    model: ModelSettings = setting(ModelSettings(), "What you know of the model and the backend does not say.")
    cache: CacheSettings = setting(CacheSettings(), "What differs from `cache` at the top.")
    batch: BatchSettings = setting(BatchSettings(), "What differs from `batch` at the top.")

    def spelled(self, path: str) -> str:
        """The path by which a protocol knows a request of this route."""
        return self.alias or path.removeprefix(self.prefix)


def fits(pattern: str, text: str) -> bool:
    """Does a pattern fit a text? `*` is any text, everything else is itself.

    Every piece takes the first place that it can, so a caller's long path costs no backtracking.
    With another pattern as `text` it says that whatever that one fits, this one fits too.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    *middle, last = rest
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


class Unread(Enum):
    """In place of a model: the request may name one, in its body."""

    UNREAD = "unread"


Named: TypeAlias = str | Unread | None
"""The model that a request names; None where no codec knows the request."""


class Routes:
    """The table of routes, ready to be asked."""

    def __init__(self, routes: Sequence[RouteSettings], default: RouteSettings) -> None:
        self._routes = tuple(routes)
        self._default = default

    def route_for(self, path: str, named: Callable[[RouteSettings], Named]) -> tuple[RouteSettings, bool]:
        """The route of a request, and whether that is certain: it is not where it hangs on a body that is not read yet.

        path: the request target without its query, as it came.
        named: the model that the request names, decoded, as a route reads it.
        """
        if self._routes:
            if "%" in path:
                path = unquote(path)
            for route in self._routes:
                if not fits(route.match.path, path):
                    continue
                if (wanted := route.match.model) is None:
                    return route, True
                model = named(route)
                if model is Unread.UNREAD:
                    return route, False
                if model is not None and fits(wanted, model):
                    return route, True
        return self._default, True

    @property
    def default(self) -> str:
        """The id of the route of whatever fits no other."""
        return self._default.id

    def __iter__(self) -> Iterator[RouteSettings]:
        """Every route in the order in which they are tried, the default last."""
        yield from self._routes
        yield self._default

    def reached(self) -> Iterator[RouteSettings]:
        """The routes that a request can have: none behind one that everything fits."""
        for route in self:
            yield route
            if route.match == Match():
                return

    def __repr__(self) -> str:
        return f"<Routes {', '.join(route.id for route in self)}>"
