"""`forebay check --upstream URL`: what a backend is, and what Forebay would do for each of its models.

The backend is asked as a Forebay that serves asks it, once, and the same settings decide; so what is shown here is what
would happen. No call is made of it, so a row that must be proved stays unproved.

Knows nothing of requests: which ones there could be is what codecs say of themselves (`Codec.paths`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from proxy.batching.settings import BatchMode
from proxy.caching.policy import TTL_WITHOUT_IDENTITY, CacheMode
from proxy.config import CannotStart, Settings
from proxy.config_values import write
from proxy.protocols.asked import asked
from proxy.protocols.codec import ANY_NUMBER, Codec, Endpoint
from proxy.protocols.registry import BY_CONFIGURATION, CODECS, codecs
from proxy.protocols.v2_metadata import segment
from proxy.routing import AUTO, Mode, RouteSettings, fits
from proxy.settings import Seconds
from proxy.terms import Exchange, Identity, Model, Rows
from proxy.understanding import rows_of
from proxy.upstream.backend import Backend, shown
from proxy.upstream.connections import Connections, UpstreamError
from proxy.upstream.health import PATH, Health
from proxy.upstream.models import Models

UNNAMED: Final = ""
"""The model of requests that name none, for a server has but one."""

WITHIN: Final = 5.0  # seconds that the backend may take over one question

_ITEMS: Final = {Rows.ITEMS: "rows", Rows.PROVE: "rows, once proved", Rows.WHOLE: "whole call"}
_UNKNOWN_WEIGHTS: Final = (
    "* nothing that it says would show other weights; with model.revision configured, cache.ttl holds"
)
_NO_MODELS: Final = "it lists no models: a route whose match.model names one is shown here"
_NOTHING: Final = (
    f"{' and '.join(codec.protocol for codec in CODECS if codec.path_is_proof)} calls are understood if it has their "
    "model: a route whose match.model names one shows it",
    f"all else passes through, until a route's `protocol` says what it is (`{BY_CONFIGURATION}`: any JSON server)",
)


class Survey(NamedTuple):
    """What a backend has said.

    described: in one line. hint: lines for who sees no row.
    speaks: codecs, by name, that may take requests. models: by the name of who asked, None where it could not say.
    called: how it calls a codec's `UNNAMED` model.
    """

    described: str
    hint: tuple[str, ...]
    speaks: frozenset[str]
    models: Mapping[str, Mapping[str, Model | None]]
    called: Mapping[str, str]


class Treatment(NamedTuple):
    """What would be done for some requests, as the table says it."""

    items: str
    joined: str
    slots: str
    kept: str


class Row(NamedTuple):
    model: str
    requests: str
    treatment: Treatment
    route: str


async def survey(settings: Settings) -> Survey:
    """Ask the backend of these settings. Raises CannotStart where it does not answer."""
    connections = Connections(settings.upstream)
    try:
        try:
            await connections.ask(PATH, within=WITHIN)
        except UpstreamError as error:
            raise CannotStart(error.message) from error
        health = Health(connections)
        backend = Backend(connections, health, CODECS)
        await backend.poll()
        models = Models(connections, health)
        wanted = await _wanted(settings, backend, connections)
        learnt = await models.learn([(asked(codec, prefix), name) for codec, prefix, name in wanted])
        await models.aclose()
    finally:
        await connections.aclose()
    found: dict[str, dict[str, Model | None]] = {}
    for (codec, prefix, name), model in zip(wanted, learnt, strict=True):
        if model is None or model.listed or (name == UNNAMED and not backend.speaks(codec)):
            found.setdefault(asked(codec, prefix).name, {})[name] = model
    for name, models_of in found.items():
        if UNNAMED in models_of:  # all its requests are for that one, whatever it is called elsewhere
            found[name] = {UNNAMED: models_of[UNNAMED]}
    hint = (_NO_MODELS,) if backend.found else _NOTHING
    return Survey(
        described=backend.describe() if backend.asked else "the backend cannot say now what it is",
        hint=() if backend.asks_for_credentials or not backend.asked else hint,
        speaks=frozenset(codec.name for codec in CODECS if backend.speaks(codec)),
        models=found,
        called={name: one.models[0] for name, one in backend.found.items() if one.models},
    )


async def _wanted(settings: Settings, backend: Backend, connections: Connections) -> list[tuple[Codec, str, str]]:
    """The models to ask about, and behind which prefix: those that are listed, and those that a route names.

    A protocol that lists none is asked about what others list: one server may speak both.
    """
    table = list(settings.table())
    named = [name for route in table if (name := route.match.model) is not None and "*" not in name]
    trusted = {route.protocol for route in table}
    listed: dict[str, list[str]] = {}
    for codec in CODECS:
        if codec.name in backend.found:
            listed[codec.name] = list(backend.found[codec.name].models)
            for method, path in codec.listings:
                if (answer := await _answer(connections, method, path)) is not None:
                    listed[codec.name] += codec.listed(answer)
    of_others = [name for codec in CODECS if codec.path_is_proof for name in listed.get(codec.name, ())]
    return [
        (codec, prefix, name)
        for codec in CODECS
        if backend.speaks(codec) or codec.protocol in trusted
        for prefix in dict.fromkeys(route.prefix for route in table)
        for name in dict.fromkeys([*listed.get(codec.name, of_others), *named, *_unnamed(codec)])
    ]


def _unnamed(codec: Codec) -> tuple[str, ...]:
    """UNNAMED, where it is bodies that name models, if anything does."""
    return (UNNAMED,) if any("{model}" not in path for path in codec.paths) else ()


async def _answer(connections: Connections, method: str, path: str) -> Exchange | None:
    try:
        answer = await connections.ask(path, within=WITHIN, method=method)
    except UpstreamError:
        return None
    return answer if answer.status == 200 else None


def lines(settings: Settings, said: Survey) -> list[str]:
    """What a person reads, in lines of less than a hundred columns where names are not too long."""
    rows = list(_rows(settings, said))
    text = [f"{', '.join(settings.upstream.targets)}: {said.described}"]
    if not rows:
        return [*text, *said.hint]
    heads = ("MODEL", "REQUESTS", "ITEMS", "JOINED", "SLOTS", "KEPT AT MOST", "ROUTE")
    table: list[tuple[str, ...]] = [heads, *((row.model, row.requests, *row.treatment, row.route) for row in rows)]
    if not settings.routes:
        table = [line[:-1] for line in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    text += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
    if any(row.treatment.kept.endswith("*") for row in rows):
        text.append(_UNKNOWN_WEIGHTS)
    return text


def _rows(settings: Settings, said: Survey) -> Iterator[Row]:
    for route in settings.table().reached():
        own = codecs(route.protocol, route.json_map)
        for codec in own:
            if codec not in CODECS:  # made of the route's own settings: it asks nothing and takes what the route gets
                yield from _by_map(settings, route, codec)
        taking = [codec for codec in own if route.protocol != AUTO or codec.name in said.speaks]
        listed = {codec: said.models.get(asked(codec, route.prefix).name, {}) for codec in taking}
        for name in dict.fromkeys(name for models in listed.values() for name in models):
            for codec in taking:
                if name in listed[codec]:
                    yield from _of_model(settings, route, codec, name, said)


def _of_model(settings: Settings, route: RouteSettings, codec: Codec, name: str, said: Survey) -> Iterator[Row]:
    """A model's requests on a route, those that are treated alike in one row."""
    model = said.models[asked(codec, route.prefix).name][name]
    alike: dict[Treatment, list[str]] = {}
    for path in codec.paths:
        spelled = path.format(model=segment(name))
        endpoint = codec.recognise("POST", spelled)
        if endpoint is not None and _takes(settings, route, spelled, name):
            alike.setdefault(_treatment(settings, route, codec, endpoint, model), []).append(path)
    for treatment, paths in alike.items():
        if route.alias:
            requests = shown(route.match.path)
        elif "{model}" in paths[0]:
            requests = f"{codec.protocol} at {route.prefix}" if route.prefix else codec.protocol
        else:
            requests = route.prefix + paths[0] + (f" +{len(paths) - 1}" if len(paths) > 1 else "")
        yield Row(shown(name or said.called.get(codec.name, "any")), requests, treatment, route.id)


def _by_map(settings: Settings, route: RouteSettings, codec: Codec) -> Iterator[Row]:
    facts = codec.facts("", ())
    if facts is not None:
        model = Model("", facts.rows, facts.max_batch_size, facts.instances, Identity((), 0.0, "", False), listed=False)
        treatment = _treatment(settings, route, codec, Endpoint(""), model)
        yield Row("any", shown(route.match.path), treatment, route.id)


def _takes(settings: Settings, route: RouteSettings, path: str, model: str) -> bool:
    """Is this the route of a request that a protocol knows by this path?"""
    if route.alias:
        return route.alias == path and (route.match.model is None or fits(route.match.model, model))
    for other in settings.table():
        match = other.match
        if fits(match.path, route.prefix + path) and (match.model is None or fits(match.model, model)):
            return other.id == route.id
    return False


def _treatment(
    settings: Settings, route: RouteSettings, codec: Codec, endpoint: Endpoint, model: Model | None
) -> Treatment:
    if route.mode is Mode.OFF:
        return Treatment("pass through", "-", "-", "-")
    if model is None:
        return Treatment("cannot be asked now", "-", "-", "-")
    rows = rows_of(route, codec, endpoint, model)
    batched = route.batch.mode is not BatchMode.OFF
    never = type(codec).join is Codec.join
    joins = batched and rows is not Rows.WHOLE and not never
    kept = "no"
    if route.cache.mode is CacheMode.ON:
        known = model.identity.known or bool(route.model.revision)
        ttl = route.cache.ttl if known else min(route.cache.ttl, TTL_WITHOUT_IDENTITY)
        kept = write(Seconds, ttl) + ("" if known else " *")
    return Treatment(
        _ITEMS[Rows.WHOLE if never else rows],
        f"up to {min(route.batch.max_size, model.max_batch_size or ANY_NUMBER)}" if joins else "never",
        str(settings.upstream.slots or model.instances) if joins else "-",
        kept,
    )


def run(settings: Settings) -> Sequence[str]:
    """The lines of `forebay check --upstream URL`. Raises CannotStart."""
    return lines(settings, asyncio.run(survey(settings)))
