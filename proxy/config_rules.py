"""What single text settings must look like, and what settings must not say together.

A check gives back the text as it is kept; its ValueError says what is wrong and what to write instead.
A rule yields the dotted name of a setting and what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.batching.settings import BatchSettings
from proxy.caching.policy import CacheSettings
from proxy.caching.redis_address import RedisAddress
from proxy.config_values import nearest, quoted
from proxy.protocols import json_pointer
from proxy.protocols.codec import Codec
from proxy.protocols.json_map import JsonMapSettings
from proxy.protocols.registry import BY_CONFIGURATION, PROTOCOLS, codecs
from proxy.routing import AUTO, Match, RouteSettings, fits
from proxy.upstream.settings import UpstreamSettings

Check = Callable[[str], str]
Fault = tuple[str, str]

DEFAULT_ROUTE: Final = "default"

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


def host_port(text: str) -> tuple[str, int]:
    """The two halves of `HOST:PORT`, brackets of an IPv6 address taken off."""
    host, colon, port = text.rpartition(":")
    if not colon and text.isdigit():
        raise ValueError(f"{quoted(text)} has no host: write 127.0.0.1:{text} for this machine, 0.0.0.0:{text} for all")
    if "://" in text or "/" in text:
        raise ValueError(f"{quoted(text)} is not HOST:PORT: leave out the scheme and the path")
    if not colon or text.endswith("]"):
        raise ValueError(f"{quoted(text)} has no port: write HOST:PORT, as in {text}:8080")
    if not host:
        raise ValueError(f"{quoted(text)} has no host: write 127.0.0.1{text} for this machine, 0.0.0.0{text} for all")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{quoted(text)} has no port from 0 to 65535 after its last colon")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{quoted(text)} is ambiguous: write an IPv6 address in brackets, as in [::1]:8080")
    if not host or re.search(r"[\s\[\]@]", host):
        raise ValueError(f"{quoted(text)} is not HOST:PORT")
    return host, int(port)


def address(text: str) -> str:
    """Where to listen."""
    host_port(text)
    return text


def target(text: str) -> str:
    """Where a backend is: scheme, host and port alone."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError(f"{quoted(text)} has no scheme: write {quoted('http://' + text)}")
    if scheme not in ("http", "https"):
        guess = nearest(scheme.lower(), ("http", "https")) or "http"
        raise ValueError(
            f"{quoted(text)} is not served: a target begins with http:// or https://; did you mean {guess}://?"
        )
    if "@" in rest:
        raise ValueError(f"{quoted(text)} holds credentials, which are the callers' to send: leave them out")
    rest = rest.removesuffix("/")
    if found := re.search(r"[/?#]", rest):
        raise ValueError(
            f"{quoted(text)} has a path or a query: requests bring their own, write {scheme}://{rest[: found.start()]}"
        )
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a URL: write {scheme}://HOST:PORT, the port from 1 to 65535") from None
    if not host or port == 0 or not re.fullmatch(r"[\x21-\x7e]+", rest) or rest.endswith(":"):
        raise ValueError(f"{quoted(text)} is not a URL: write {scheme}://HOST:PORT, the port from 1 to 65535")
    return f"{scheme}://{rest}"


def redis(text: str) -> str:
    """Where Redis is. What is wrong is said without the address: a password may stand anywhere in it."""
    try:
        RedisAddress.parse(text)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("redis: ")) from None
    return text


def tenant(text: str) -> str:
    """Who shares what is stored."""
    kind, _, name = text.partition(":")
    if text in ("credentials", "none") or (kind == "header" and _FIELD_NAME.fullmatch(name)):
        return text
    guess = nearest(text, ("credentials", "none"))
    raise ValueError(
        f"{quoted(text)} is not one of credentials, none, header:NAME{f'; did you mean {guess}?' if guess else ''}"
    )


def proof_key(text: str) -> str:
    """A key for BLAKE2b. It is a secret: the message does not quote it."""
    if not 1 <= len(text.encode()) <= 64:
        raise ValueError("must be 1 to 64 bytes long")
    return text


def authorization(text: str) -> str:
    """What Forebay's own questions carry. It is a secret: the message does not quote it."""
    try:
        UpstreamSettings(authorization=text)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("authorization ")) from None
    return text


def route_id(text: str) -> str:
    """A label of metrics."""
    if text == DEFAULT_ROUTE:
        raise ValueError(f"{text!r} is the route of whatever fits no other: choose another id")
    if _ID.fullmatch(text) is None:
        raise ValueError(f"{quoted(text)} is not 1 to 64 letters, digits, _, . and -")
    return text


def protocol(text: str) -> str:
    """What a route speaks."""
    known = (AUTO, *PROTOCOLS)
    if text not in known:
        guess = nearest(text.lower(), known)
        hint = f"; did you mean {guess}?" if guess else ""
        raise ValueError(f"{quoted(text)} is not one of {', '.join(known)}{hint}")
    return text


def protocol_of_all(text: str) -> str:
    """What the backend speaks, whatever the route."""
    if text == BY_CONFIGURATION:
        raise ValueError(f"{text} says where items are path by path: write it in a route, with its `match`")
    return protocol(text)


def prefix(text: str) -> str:
    """What is taken off a path."""
    if text and (not text.startswith("/") or text.endswith("/") or re.search(r"[?#%*]", text)):
        raise ValueError(
            f"{quoted(text)} is no beginning of a path: write it as in /openai, without * and / at its end"
        )
    return text


def alias(text: str) -> str:
    """The path that stands for another."""
    if text and (not text.startswith("/") or re.search(r"[?#%*]", text)):
        raise ValueError(f"{quoted(text)} is no path: write one that a protocol knows, as in /v1/embeddings")
    return text


def pointer_text(text: str) -> str:
    """A JSON pointer."""
    json_pointer.pointer(text)
    return text


def path_pattern(text: str) -> str:
    """A pattern that can fit a path."""
    if not text.startswith(("/", "*")):
        raise ValueError(f"{quoted(text)} fits no path: paths begin with /, so write {quoted('/' + text)}")
    if found := re.search(r"[?#]", text):
        raise ValueError(
            f"{quoted(text)} fits no path: a query is no part of it, write {quoted(text[: found.start()])}"
        )
    if "%" in text:
        raise ValueError(f"{quoted(text)} is percent-encoded: write the path as it reads after decoding")
    return text


def model_pattern(text: str) -> str:
    """A pattern that can fit a model's name."""
    if not text:
        raise ValueError("'' fits no model: leave `model` out to fit every request")
    return text


CHECKS: Final[Mapping[tuple[type[Any], str], Check]] = {
    (UpstreamSettings, "targets"): target,
    (UpstreamSettings, "authorization"): authorization,
    (CacheSettings, "tenant"): tenant,
    (CacheSettings, "proof_key"): proof_key,
    (RouteSettings, "id"): route_id,
    (RouteSettings, "protocol"): protocol,
    (RouteSettings, "prefix"): prefix,
    (RouteSettings, "alias"): alias,
    **{(JsonMapSettings, name): pointer_text for name in ("items", "results", "item", "result", "shared")},
    (Match, "path"): path_pattern,
    (Match, "model"): model_pattern,
}


def addresses(listen: str, admin: str, targets: tuple[str, ...]) -> Iterator[Fault]:
    """Two listeners and a backend need three addresses."""
    if _same(listen, host_port(admin)):
        yield "admin", f"{admin} is taken by `listen`: give each a port of its own"
    if len(targets) > 1:
        yield "upstream.targets", "only one target is served for now: write the one"
    for url in targets:
        parts = urlsplit(url)
        if _same(listen, (parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme])):
            yield "upstream.targets", f"{url} is Forebay itself: write where the model server is, or another `listen`"


def _same(listen: str, other: tuple[str, int]) -> bool:
    """Would both be the same socket? Port 0 is any free one."""
    host, port = host_port(listen)
    hosts = {name.replace("localhost", "127.0.0.1") for name in (host, other[0])}
    return port == other[1] != 0 and (len(hosts) == 1 or not hosts.isdisjoint(_EVERY_ADDRESS))


def batches(path: str, batch: BatchSettings) -> Iterator[Fault]:
    """Preferred sizes are sizes that a batch can have."""
    if max(batch.preferred_sizes, default=0) > batch.max_size:
        yield f"{path}.preferred_sizes", f"no batch holds more than max_size, which is {batch.max_size} here"


def routes(table: Mapping[str, RouteSettings]) -> Iterator[Fault]:
    """Every route has a name of its own and can be reached. table: the routes by their place, `routes[0]`."""
    before: dict[str, RouteSettings] = {}
    for path, route in table.items():
        for name, other in before.items():
            if route.id == other.id:
                yield f"{path}.id", f"{route.id!r} is the id of {name} too"
            if _takes_all(other.match, route.match):
                yield f"{path}.match", f"is never reached: {name} ({other.id}) stands before it and fits all of it"
                break
        before[path] = route
        yield from _spelling(path, route)


def _spelling(path: str, route: RouteSettings) -> Iterator[Fault]:
    """What a route says of its paths must have a use."""
    if route.prefix and route.alias:
        yield f"{path}.prefix", "says nothing beside `alias`, which is the whole path: leave one of them out"
    if route.protocol == BY_CONFIGURATION:
        if route.prefix or route.alias:
            yield (
                f"{path}.protocol",
                f"{BY_CONFIGURATION} takes every path of its route: leave out `prefix` and `alias`",
            )
        yield from _map(path, route)
        return
    if route.json_map != JsonMapSettings():
        yield f"{path}.json_map", f"says nothing without `protocol: {BY_CONFIGURATION}`"
    its = codecs(route.protocol, route.json_map)
    if route.alias and not any(codec.recognise("POST", route.alias) for codec in its):
        yield f"{path}.alias", _no_alias(route, its)
    begin, star, _ = route.match.path.partition("*")
    reached = begin.startswith(route.prefix) or (bool(star) and route.prefix.startswith(begin))
    if not reached and not route.alias:
        yield f"{path}.prefix", f"no path of this route begins with {route.prefix}: `match.path` is {route.match.path}"


def _no_alias(route: RouteSettings, its: Sequence[Codec]) -> str:
    """Why none of a route's codecs would know its requests by its alias."""
    paths = [path.format(model="NAME") for codec in its for path in codec.paths]
    who = "no protocol knows a" if route.protocol == AUTO else f"{route.protocol} knows no"
    guess = nearest(route.alias, paths) or paths[0]
    return f"{who} request to {route.alias}; did you mean {guess}?"


def _map(path: str, route: RouteSettings) -> Iterator[Fault]:
    """A map's requests name no model; a batch of them goes to one path, which is another than theirs."""
    if route.match.model is not None and not fits(route.match.model, ""):
        yield f"{path}.match.model", f"fits no request, for those of a {BY_CONFIGURATION} name no model: leave it out"
    batch_path = route.json_map.batch_path
    if batch_path is None:
        return
    if "*" in route.match.path:
        yield f"{path}.match", f"several paths cannot share the batch_path {batch_path}: write the one path"
    elif route.match.path == batch_path:
        yield f"{path}.json_map.batch_path", "is the path of single requests too: write the one that takes a list"


def _takes_all(first: Match, second: Match) -> bool:
    """Does the first fit every request that the second fits?"""
    if not fits(first.path, second.path):
        return False
    return first.model is None or (second.model is not None and fits(first.model, second.model))
