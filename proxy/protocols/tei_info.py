"""What a TEI says of itself and of the one model that it serves.

Its `/info` tells it from TGI, which answers the same path with much the same members but has no `model_type`. A sha is
believed to name the weights only where it is a commit: TEI shows what `--revision` said, which may be a branch. What
else tells that other weights answer are the members that cannot change while a TEI runs, and a count of requests in
its metrics that falls: it reads its weights only when it starts.

Knows nothing of when to ask and of what follows from an answer.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from proxy.protocols.codec import Facts, Found
from proxy.terms import Exchange, Rows

INFO: Final = "/info"
METRICS: Final = "/metrics"

_DEFAULT_BATCH: Final = 32
"""What a TEI takes in one request unless it was told otherwise."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REQUESTS: Final = re.compile(rb"^(te_request_count(?:\{[^}\n]*\})?) ([0-9]{1,18})\r?$", re.MULTILINE)
_STEADY: Final = (
    "model_id",
    "model_sha",
    "model_dtype",
    "model_type",
    "max_input_length",
    "auto_truncate",
    "version",
    "sha",
    "docker_label",
)


def found(info: Exchange | None) -> Found | None:
    said = _info(info)
    if said is None:
        return None
    version = said.get("version")
    server = "text-embeddings-inference" + (f" {version}" if isinstance(version, str) else "")
    return Found(server, (said["model_id"],))


def facts(info: Exchange | None, metrics: Exchange | None) -> Facts | None:
    """None where something else answers. A TEI with an API key shows nothing: what it takes is then its default."""
    if info is None:
        return Facts(Rows.ITEMS, _DEFAULT_BATCH, listed=False)
    said = _info(info)
    if said is None:
        return None
    sha = said.get("model_sha")
    steady = {name: said.get(name) for name in _STEADY}
    return Facts(
        rows=Rows.ITEMS,
        max_batch_size=said["max_client_batch_size"],
        versions=(sha,) if isinstance(sha, str) and _COMMIT.fullmatch(sha) else (),
        state=msgspec.json.encode(steady, order="deterministic"),
        counters=_counters(metrics),
    )


def _info(answer: Exchange | None) -> dict[str, Any] | None:
    """The members of a TEI's `/info`; None if it is no TEI's."""
    if answer is None or answer.status != 200:
        return None
    try:
        said = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), dict):
        return None
    size = said.get("max_client_batch_size")
    sized = isinstance(size, int) and not isinstance(size, bool) and size > 0
    return said if sized and isinstance(said.get("model_id"), str) else None


def _counters(metrics: Exchange | None) -> dict[str, int] | None:
    """Requests by kind; None where no TEI counts any. It shows nothing at all before its first request."""
    if metrics is None or metrics.status != 200 or (metrics.body.strip() and b"te_" not in metrics.body):
        return None
    return {name.decode(errors="replace"): int(count) for name, count in _REQUESTS.findall(metrics.body)}
