"""Which parsed heads Forebay takes: only those that it and every backend read in the same way.

A table of refusals. Pure, and asked once per request before a handler sees it.
"""

from __future__ import annotations

from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from proxy.http.refusal import Refused
from proxy.terms import Reason


def refusal(message: RawRequestMessage) -> Refused | None:
    """Why this head cannot be taken, or None."""
    if message.path[:1] != "/" and not (message.path == "*" and message.method == "OPTIONS"):
        return Refused(400, Reason.BAD_REQUEST, "The request target must begin with `/`.")
    if message.method == "CONNECT":
        return Refused(400, Reason.BAD_REQUEST, "CONNECT makes no sense here: this proxy has one backend.")
    version = message.version
    if version not in (HttpVersion11, HttpVersion10):
        return Refused(505, Reason.BAD_REQUEST, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    coding = message.headers.get("Transfer-Encoding")
    if coding is not None:
        if version == HttpVersion10:  # chunks do not exist there: another reader would see two requests
            return Refused(400, Reason.BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding.")
        if coding.lower() != "chunked":  # the body would reach the backend still coded, and no field would say so
            return Refused(501, Reason.BAD_REQUEST, "The only Transfer-Encoding taken here is `chunked`.")
    return None
