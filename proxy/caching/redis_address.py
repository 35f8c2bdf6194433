"""Which Redis, read from one URL; a mistake in it is one line that says what to write instead.

Invariants
    Nothing that this file says of an address, an error included, holds a password or a part of one.
    A part of a URL that has no meaning here is refused: none is silently left out.

Knows no socket: `redis_store.py` opens the connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

_FORMS = "redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss://… (TLS) or unix:///PATH[?db=DB]"
_ENCODE = "percent-encode / ? # @ : in a password"
_LATER = ("redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster")
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_QUERY = {"redis": (), "rediss": _TLS_FILES, "unix": ("db", "username", "password")}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """scheme: redis, rediss or unix. host, port: unless unix. path: of a unix socket.

    tls: names and paths of the files that TLS needs beyond the system's own certificates.
    """

    scheme: str
    host: str = ""
    port: int = 6379
    path: str = ""
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Raise ValueError, in one line, for what is no address of one Redis."""
        scheme, separator, _ = url.partition("://")
        if not separator:
            raise ValueError(f"redis: an address without a scheme: write {_FORMS}")
        if scheme in _LATER:
            raise ValueError(f"redis: {scheme}:// is not supported yet: give the address of one server, {_FORMS}")
        if scheme not in _QUERY:
            raise ValueError(f"redis: {scheme!r} is not a scheme of Redis: write {_FORMS}")
        try:
            parts = urlsplit(url)
            query = _query(scheme, parts)
        except ValueError as mistake:
            if str(mistake).startswith("redis: "):
                raise
            raise ValueError(f"redis: the address cannot be read: write {_FORMS}; {_ENCODE}") from None
        if parts.fragment:
            raise ValueError(f"redis: the address has a part after '#': write {_FORMS}; {_ENCODE}")
        if scheme == "unix":
            return cls._unix(parts, query)
        return cls(
            scheme=scheme,
            host=_host(parts),
            port=_port(parts),
            database=_database(parts.path.removeprefix("/")),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=query,
        )

    @classmethod
    def _unix(cls, parts: SplitResult, query: dict[str, str]) -> RedisAddress:
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError("redis: a unix address names an absolute path: write unix:///PATH[?db=DB]")
        return cls(
            scheme="unix",
            path=unquote(parts.path),
            database=_database(query.get("db", "")),
            username=query.get("username"),
            password=query.get("password"),
        )

    def censor(self, text: str) -> str:
        """What a server or a library said, in one printable line, without our password."""
        if self.password:
            text = text.replace(self.password, "***")
        line = text if text.isprintable() else ascii(text)
        return line if len(line) <= 200 else line[:199] + "…"

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}?db={self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.database}"


def _query(scheme: str, parts: SplitResult) -> dict[str, str]:
    query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    for name in query:
        if name not in _QUERY[scheme]:
            known = ", ".join(_QUERY[scheme]) or "none"
            raise ValueError(f"redis: unknown option in a {scheme}:// address (known: {known}); {_ENCODE}")
    return query


def _host(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ValueError(f"redis: the address names no host: write {_FORMS}; {_ENCODE}")
    return unquote(parts.hostname)


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"redis: the port must be a number from 1 to 65535: write {_FORMS}; {_ENCODE}")
    return port or 6379


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"redis: the database must be a number, as in /0: write {_FORMS}; {_ENCODE}")
    return int(text or 0)
