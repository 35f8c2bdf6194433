"""Where a target is, read from its URL. Pure."""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import urlsplit


class Address(NamedTuple):
    """One address of a backend. host: what stands in the `Host` field."""

    url: str
    host: bytes

    @classmethod
    def parse(cls, target: str) -> Self:
        """Read `http://host:port`; ValueError says in one line what is wrong and what to write instead."""
        scheme, separator, rest = target.partition("://")
        if not separator:
            raise ValueError(f"upstream {_shown(target)} has no scheme: write http://{_shown(target)}")
        if scheme.lower() not in ("http", "https"):
            raise ValueError(f"upstream scheme {scheme!r} is not known: write http:// or https://")
        try:
            parts = urlsplit(target)
            port = parts.port
        except ValueError:
            raise ValueError(
                f"upstream {_shown(target)} has no valid host and port: write {scheme}://HOST:PORT"
            ) from None
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"upstream {_shown(target)} holds credentials: leave them out, callers send their own")
        if not parts.hostname or any(c.isspace() or not c.isascii() for c in rest):
            raise ValueError(f"upstream {_shown(target)} has no valid host: write {scheme}://HOST:PORT")
        if not any(c.isalpha() or c == ":" for c in parts.hostname) and parts.hostname.count(".") != 3:
            raise ValueError(f"upstream {_shown(target)} has no valid host: write all four numbers of the address")
        if parts.path not in ("", "/") or parts.query or parts.fragment or rest.rstrip("/") != parts.netloc:
            raise ValueError(f"upstream {_shown(target)} must end after the port: write {scheme}://{parts.netloc}")
        if port == 0:
            raise ValueError(f"upstream {_shown(target)} has port 0: write the port that the backend listens on")
        return cls(f"{scheme.lower()}://{parts.netloc}", parts.netloc.encode("ascii"))


def _shown(target: str) -> str:
    """The target without what may be a password."""
    return target.rpartition("@")[2] if "@" in target else target
