"""What every endpoint of the OpenAI API shares: how a body names its model, how models are listed, how an error reads.

Written for vLLM, SGLang, TGI, TEI, Infinity, llama.cpp and the managed APIs, which differ in the rest.

Knows nothing of any endpoint's own body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec

from proxy.protocols.codec import ANY_NUMBER, Codec, Facts, Found, Message
from proxy.protocols.json_values import canonical, document, elements, members, spelled, text_of
from proxy.protocols.spans import Refusal
from proxy.terms import Exchange, Rows

MODELS: Final = "/v1/models"

_STABLE: Final = ("root", "parent", "max_model_len", "meta")
"""Members of a listed model that change only with the model: not vLLM's `permission`, random, nor `created`, now."""


class _Named(msgspec.Struct):
    """The one member of a body that is looked at before the rest."""

    model: str | None = None


_NAMED: Final = msgspec.json.Decoder(_Named, strict=True).decode


class OpenAI(Codec):
    """A codec of the OpenAI API, but for its endpoint's bodies.

    rows: what the endpoint's meaning says of a call's items.
    """

    protocol = "openai"
    probes: ClassVar[tuple[str, ...]] = (MODELS,)
    rows: ClassVar[Rows]

    def model_in(self, message: Message) -> str:
        try:
            return _NAMED(message.body).model or ""
        except (msgspec.DecodeError, RecursionError):  # NaN, say, or a model that is no text
            pass
        text = document(message.body)
        body = None if isinstance(text, Refusal) else members(text)
        return text_of(body.get("model")) or "" if body else ""

    def error(self, status: int, message: str) -> bytes:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        listed = _listed(answers.get(MODELS))
        if listed is None:
            return None
        owner = next((owner for model in listed.values() if (owner := text_of(model.get("owned_by")))), "")
        return Found(owner or "OpenAI API", tuple(listed))

    def questions(self, model: str) -> tuple[str, ...]:
        return (MODELS,)

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        """None also where no models are listed, or others: llama.cpp answers with its own, whatever a body names."""
        entry = (_listed(answers[0]) or {}).get(model)
        if entry is None:
            return None
        state = spelled({name: entry[name] for name in _STABLE if name in entry})
        return Facts(self.rows, ANY_NUMBER, state=state)


def _listed(answer: Exchange | None) -> dict[str, dict[str, bytes]] | None:
    """The models that a backend lists, by name, with their members in canonical form; None if that is no list."""
    text = document(answer.body) if answer is not None and answer.status == 200 else Refusal.MALFORMED
    body = None if isinstance(text, Refusal) else members(text)
    if body is None or text_of(body.get("object")) != "list" or (data := elements(body.get("data", b""))) is None:
        return None
    listed = {}
    for one in data:
        entry = members(one)
        name = text_of(entry.get("id")) if entry else None
        if not entry or not name:
            return None
        listed[name] = {member: canonical(value) for member, value in entry.items()}
    return listed
