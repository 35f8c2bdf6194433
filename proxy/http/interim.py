"""Interim answers (103 Early Hints, 102 Processing) on their way to a client, before its answer has begun.

Knows nothing of who gave them. `100 Continue` is none of these: whoever wants a body says it (`body.py`).
"""

from __future__ import annotations

from typing import cast

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11

from proxy.http.reply import encode_head
from proxy.terms import Headers


def say(request: web.BaseRequest, status: int, reason: bytes, headers: Headers) -> None:
    """Send it, if this client can read it (an HTTP/1.0 one would take it for its answer) and it is not too late.

    A client that takes nothing is told nothing more: it loses a hint, and a backend of endless hints fills no memory.
    """
    transport = request.transport
    if transport is None or request.version < HttpVersion11 or request.writer.output_size:
        return
    if cast(BaseProtocol, request.protocol).writing_paused:
        return
    transport.write(encode_head(status, reason, headers, b""))
