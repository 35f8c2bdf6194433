"""What an Open Inference V2 server says of its models: which paths to ask, and what the answers mean.

Triton answers all of these; KServe and MLServer have neither `/config` nor `/stats`. Without a config rows must be
proved; whatever else is missing, or not as expected, means the careful thing: rows are not items, no counter is known.

Knows nothing of when to ask and of what follows from an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from proxy.protocols.codec import ANY_NUMBER, Facts
from proxy.terms import Rows

_IN_A_SEGMENT: Final = "!$&'()*+,;=:@"  # RFC 3986 allows these there unescaped, beside letters, digits and `-._~`
_CHANGES: Final = re.compile(r"/v2/repository/models/([^/?#]+)/(?:load|unload)")

SERVER: Final = "/v2"

UNDECLARED: Final = (Rows.PROVE, ANY_NUMBER, 1)


def segment(name: str) -> str:
    """A model's or version's name as one path segment, in the only spelling that Forebay uses or recognises."""
    return quote(name, safe=_IN_A_SEGMENT)


def named(text: str) -> str | None:
    """The name that a path segment spells, if it spells it in that one way."""
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None
    return name if name.isprintable() and name not in (".", "..") and segment(name) == text else None


def metadata_path(model: str) -> str:
    return f"/v2/models/{segment(model)}"


def config_path(model: str) -> str:
    return f"{metadata_path(model)}/config"


def stats_path(model: str) -> str:
    return f"{metadata_path(model)}/stats"


def server(metadata: bytes) -> str | None:
    """How a server names itself and its version; None if the answer is none of an Open Inference server."""
    read = _object(metadata)
    name, version = read.get("name"), read.get("version")
    return f"{name} {version}" if isinstance(name, str) and name and isinstance(version, str) else None


def listed(answer: bytes) -> tuple[str, ...]:
    """The models that a repository index, or KServe's list, names: those that can be asked now."""
    read = _decoded(answer)
    entries = _list(read, "models") if isinstance(read, dict) else read if isinstance(read, list) else []
    names = [
        one.get("name") if isinstance(one, dict) and one.get("state", "READY") == "READY" else one for one in entries
    ]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def facts(metadata: bytes, config: bytes | None, stats: bytes | None) -> Facts:
    """What the three answers say of a model."""
    rows, size, instances = promised(config)
    counted = counters(stats)
    return Facts(
        rows=rows,
        max_batch_size=size,
        instances=instances,
        versions=versions(metadata),
        state=config,
        counters=counted,
        answered=answered(counted),
    )


def promised(config: bytes | None) -> tuple[Rows, int, int]:
    """What a model's config promises of its rows: whether they are items, how many it takes, batches at once.

    Rows are independent only where Triton's own batcher could put them together just as well: not where
    state, a stream of answers, ragged or batch-wide tensors, or models behind this one (an ensemble's
    steps) have a say.
    """
    read = _object(config)
    size = _count(read.get("max_batch_size"))
    if size is None:
        return UNDECLARED
    groups = [group for group in _list(read, "instance_group") if isinstance(group, dict) and not group.get("passive")]
    inputs = [one for one in _list(read, "input") if isinstance(one, dict)]
    policy = read.get("model_transaction_policy")
    independent = (
        size > 0
        and bool(inputs)
        and not any(key in read for key in ("sequence_batching", "ensemble_scheduling"))
        and not any(_list(read, key) for key in ("batch_input", "batch_output"))
        and not any(one.get("allow_ragged_batch") or one.get("is_shape_tensor") for one in inputs)
        and not (isinstance(policy, dict) and policy.get("decoupled"))
    )
    rows = Rows.ITEMS if independent else Rows.WHOLE
    return rows, size, max(1, sum(_instances(group) for group in groups))


def versions(metadata: bytes | None) -> tuple[str, ...]:
    """The versions that a model's metadata lists, in its order; () where it lists none."""
    return tuple(version for version in _list(_object(metadata), "versions") if isinstance(version, str))


def counters(stats: bytes | None) -> dict[str, int] | None:
    """Every counter of a model's statistics, under `version/name`: one that falls means that the model was loaded anew.

    None where the server keeps no such statistics.
    """
    models = _object(stats).get("model_stats")
    if not isinstance(models, list):
        return None
    found: dict[str, int] = {}
    for model in models:
        if isinstance(model, dict) and isinstance(version := model.get("version"), str):
            flat = {name: model.get(name) for name in ("last_inference", "inference_count", "execution_count")}
            kinds = model.get("inference_stats")
            for kind, values in kinds.items() if isinstance(kinds, dict) else ():
                if isinstance(values, dict):
                    flat |= {f"{kind}.{name}": value for name, value in values.items()}
            found |= {
                f"{version}/{name}": count for name, value in flat.items() if (count := _count(value)) is not None
            }
    return found


def answered(counters: Mapping[str, int] | None) -> int | None:
    """How many calls, over all versions, the model has answered since it was loaded; None where nothing tells."""
    counts = [count for name, count in (counters or {}).items() if name.endswith("/success.count")]
    return sum(counts) if counts else None


def changes_models(method: str, path: str) -> bool:
    """May models answer otherwise when this request has succeeded?

    A load or unload touches more than the model it names: ensembles and models that call others.
    """
    return method == "POST" and _CHANGES.fullmatch(path) is not None


def _instances(group: dict[str, Any]) -> int:
    count, gpus = _count(group.get("count", 1)) or 0, group.get("gpus")
    return count * max(1, len(gpus)) if isinstance(gpus, list) and group.get("kind") == "KIND_GPU" else count


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _object(text: bytes | None) -> dict[str, Any]:
    read = _decoded(text)
    return read if isinstance(read, dict) else {}


def _list(read: dict[str, Any], key: str) -> list[Any]:
    value = read.get(key)
    return value if isinstance(value, list) else []


def _decoded(text: bytes | None) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
