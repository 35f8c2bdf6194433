"""OpenAI embeddings: vLLM, TEI, Infinity, llama.cpp, managed APIs. Each text, or list of token ids, is an item.

Invariants
    A text and a list of ids are never the same item, nor do they ride in one request (vLLM refuses a mixture).
    Whether one item came bare or in a list does not show: backends answer both in one form.
    Embeddings are the backend's lexemes, and belong to the item whose place their `index` names.
    Counts in `usage` add up to the backend's own. A share of one is a guess, and marked as one, until all the shares
    of one answer are together again.

An item result is an answer's body with one embedding. If its `usage` is a share, a head before it names the answer
that was shared out, by a digest of its items and its usage, and which of how many shares this is.

Knows nothing of chat messages or images as input: those it leaves to the backend.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from proxy.protocols import tei_info
from proxy.protocols.codec import ANY_NUMBER, Call, Endpoint, Facts, Found, Joined, Message, Part
from proxy.protocols.json_values import (
    alike,
    canonical,
    document,
    elements,
    members,
    spelled,
    tagged,
    text_of,
    whole_number,
)
from proxy.protocols.openai import MODELS, OpenAI
from proxy.protocols.spans import Refusal
from proxy.terms import Exchange, Headers, Model, Reason, Rows

PATH: Final = "/v1/embeddings"
ESTIMATED: Final[Headers] = ((b"Forebay-Usage", b"estimated"),)
"""Stands on an answer whose `usage` is partly a guess."""

_TEXTS, _IDS, _WHOLE = b"t", b"i", b"w"  # what the items of a call are: the first byte of its `shared`


class OpenAIEmbeddings(OpenAI):
    """The codec. It holds no state."""

    name = "openai_embeddings"
    paths = ("/v1/embeddings",)
    rows = Rows.ITEMS
    probes = (MODELS, tei_info.INFO)

    def recognise(self, method: str, path: str) -> Endpoint | None:
        return Endpoint(None) if method == "POST" and path.endswith(PATH) else None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        text = document(message.body)
        if isinstance(text, Refusal):
            return text.reason
        body = members(text)
        if body is None or (given := body.pop("input", None)) is None or (found := _items(given)) is None:
            return Reason.UNPARSED
        kind, items = found
        rest = canonical(spelled(body))
        if model.rows is not Rows.ITEMS:
            return Call(shared=_WHOLE + rest, items=(canonical(given),), joins=False)
        if len(items) > model.max_batch_size:
            return Reason.OVER_LIMIT
        return Call(shared=kind + rest, items=items, joins=True)

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> Joined:
        rest = parts[0].call.shared[1:-1]
        return Joined(rest + (b"," if len(rest) > 1 else b"") + b'"input":[' + b",".join(_asked(parts)) + b"]}")

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        text = document(answer.body)
        if isinstance(text, Refusal) or text[:1] != b"{":
            return None
        items = _asked(parts)
        if (read := _answer(text)) is None or (len(read.data) != len(items) and parts[0].call.joins):
            return None
        if len(items) == 1:
            return [[text]]
        if (in_order := _by_index(read.data)) is None or not all(map(_is_scalar, read.unknown().values())):
            return None
        shares = _shared_out(read.usage, [_size(item) for item in items])
        if shares is None:
            return None
        digest = hashlib.blake2b(tagged([*items, spelled(read.usage)]), digest_size=12).hexdigest().encode()
        results = []
        for place, (element, usage) in enumerate(zip(in_order, shares, strict=True)):
            head = b"%s %d %d " % (digest, place, len(items)) if usage else b""
            results.append(head + read.with_data([element], usage))
        following = iter(results)
        return [list(itertools.islice(following, len(part.indexes))) for part in parts]

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != len(call.items):
            return None
        heads, bodies = zip(*map(_head_and_body, results), strict=True)
        text = bodies[0] if len(bodies) == 1 else _merged(bodies)
        if not text:
            return None
        return Message(text, () if _is_exact(heads) else ESTIMATED)

    def alike(self, one: bytes, other: bytes) -> bool:
        """Do they hold the same embedding? What else an answer holds, `usage` say, may depend on who rode along."""
        first, second = [_answer(_head_and_body(result)[1]) for result in (one, other)]
        if first is None or second is None or len(first.data) != 1 or len(second.data) != 1:
            return one == other
        return first.form == second.form and _alike(first.data[0]["embedding"], second.data[0]["embedding"])

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        """TEI lists no models, but says at another place what it is."""
        return super().found(answers) or tei_info.found(answers.get(tei_info.INFO))

    def questions(self, model: str) -> tuple[str, ...]:
        return *super().questions(model), tei_info.INFO

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        """Where no models are listed any may be there. TEI has one, which answers whatever a body names."""
        models, info = answers
        if models is not None:
            return super().facts(model, answers)
        said = None if info is None else tei_info.facts(info, None)
        return said or Facts(self.rows, ANY_NUMBER, listed=False)

    def rows_of(self, endpoint: Endpoint, model: Model) -> Rows:
        """Whatever a backend says, or does not: each embedding is of one text."""
        return self.rows


class _Answer(NamedTuple):
    """An answer's members in the backend's order, and what stands in the two of them that are looked into."""

    members: dict[str, bytes]
    data: list[dict[str, bytes]]
    usage: dict[str, bytes]

    @property
    def form(self) -> tuple[bytes | None, bytes | None]:
        """What must be equal in answers that are made one."""
        return self.members.get("model"), self.members.get("object")

    def unknown(self) -> dict[str, bytes]:
        """What does not say which item it belongs to: vLLM's `id` and `created`, say."""
        return {name: value for name, value in self.members.items() if name not in ("data", "usage")}

    def with_data(self, data: Iterable[dict[str, bytes]], usage: dict[str, bytes]) -> bytes:
        """The same answer with these embeddings, in this order, and counts."""
        listed = b",".join([spelled(element | {"index": b"%d" % place}) for place, element in enumerate(data)])
        changed = {"data": b"[" + listed + b"]"} | ({"usage": spelled(usage)} if usage else {})
        return spelled(self.members | changed)


def _items(given: bytes) -> tuple[bytes, tuple[bytes, ...]] | None:
    """What the items of this `input` are, and each of them; None where that is not for certain.

    No other spelling of a text says the same: escapes go where they can. An empty one is the backend's to refuse.
    """
    listed = [given] if given[:1] == b'"' else elements(given)
    if not listed:
        return None
    if all(len(one) > 2 and one[:1] == b'"' for one in listed):
        return _TEXTS, tuple([msgspec.json.encode(text_of(one)) if b"\\" in one else one for one in listed])
    if all(map(bytes.isdigit, listed)):
        return _IDS, (canonical(given),)
    lists = tuple(map(canonical, listed))
    return (_IDS, lists) if all(map(_is_ids, lists)) else None


def _is_ids(text: bytes) -> bool:
    """Is this list, in canonical form, one of whole numbers, and not empty?"""
    return text[:1] == b"[" and text[1:-1].replace(b",", b"").isdigit()


def _size(item: bytes) -> int:
    return len(item) - 2 if item[:1] == b'"' else item.count(b",") + 1


def _asked(parts: Sequence[Part]) -> list[bytes]:
    """The items that travel, in the order in which they do."""
    return [part.call.items[index] for part in parts for index in part.indexes]


def _answer(text: bytes) -> _Answer | None:
    """The members of an answer whose embeddings each say what they are of."""
    found = members(text)
    listed = elements(found.get("data", b"")) if found else None
    if found is None or listed is None:
        return None
    data = [element for one in listed if (element := members(one)) and {"index", "embedding"} <= element.keys()]
    counted = found.get("usage", b"null")
    usage = {} if counted == b"null" else members(counted)
    return _Answer(found, data, usage) if usage is not None and len(data) == len(listed) else None


def _by_index(data: Sequence[dict[str, bytes]]) -> list[dict[str, bytes]] | None:
    """The elements by the place that each names; None unless each place is named once."""
    placed = {whole_number(element["index"]): element for element in data}
    return [placed[place] for place in range(len(data))] if placed.keys() == set(range(len(data))) else None


def _shared_out(usage: dict[str, bytes], sizes: Sequence[int]) -> list[dict[str, bytes]] | None:
    """Each item's part of the counts; None if one of them is no count."""
    shares: list[dict[str, bytes]] = [{} for _ in sizes]
    for name, value in usage.items():
        if value == b"null":
            each = [value] * len(sizes)
        elif (total := whole_number(value)) is not None:
            each = [b"%d" % part for part in shared_out(total, sizes)]
        else:
            return None
        for share, part in zip(shares, each, strict=True):
            share[name] = part
    return shares


def shared_out(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` in whole numbers in proportion to `sizes`, by the largest remainder: they add up to it."""
    whole = sum(sizes)
    parts = [total * size // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda place: -(total * sizes[place] % whole))
    for place in by_remainder[: total - sum(parts)]:
        parts[place] += 1
    return parts


def _head_and_body(result: bytes) -> tuple[bytes, bytes]:
    head, brace, rest = result.partition(b"{")
    return head, brace + rest


def _is_exact(heads: Sequence[bytes]) -> bool:
    """Is no result's usage a share, or are they all the shares of one answer?

    Equal digests: the same items in the same order with the same counts, so the same shares, whoever asked and when.
    """
    if not any(heads):
        return True
    digests, places, counts = zip(*[(head.split() + [b""] * 3)[:3] for head in heads], strict=True)
    every = {b"%d" % place for place in range(len(heads))}
    return len({*digests}) == 1 and set(places) == every and set(counts) == {b"%d" % len(heads)}


def _merged(bodies: Sequence[bytes]) -> bytes | None:
    """One answer with the embeddings of all; None unless they differ in nothing but what may differ by item."""
    answers = [answer for body in bodies if (answer := _answer(body)) is not None and len(answer.data) == 1]
    if len(answers) < len(bodies):
        return None
    first = answers[0]
    usage = _added([answer.usage for answer in answers])
    if usage is None or any(_differs(first, answer) for answer in answers):
        return None
    return first.with_data([answer.data[0] for answer in answers], usage)


def _differs(one: _Answer, other: _Answer) -> bool:
    if one.form != other.form or one.members.keys() != other.members.keys():
        return True
    theirs = other.unknown()
    return any(value != theirs[name] and not _is_scalar(value) for name, value in one.unknown().items())


def _is_scalar(value: bytes) -> bool:
    """Does it hold no others? What does may hold something of each item."""
    return value[:1] not in b"[{"


def _added(usages: Sequence[dict[str, bytes]]) -> dict[str, bytes] | None:
    """The sums of the counts; None where they cannot be added."""
    added = {}
    for name in usages[0]:
        values = [usage.get(name) for usage in usages]
        counts = [count for value in values if (count := whole_number(value)) is not None]
        if len(counts) == len(values):
            added[name] = b"%d" % sum(counts)
        elif all(value == b"null" for value in values):
            added[name] = b"null"
        else:
            return None
    return added if all(usage.keys() == added.keys() for usage in usages) else None


def _alike(one: bytes, other: bytes) -> bool:
    try:
        first, second = text_of(one), text_of(other)
        if first is None or second is None:
            return alike(one, other)
        return alike(*[msgspec.json.encode(array("f", base64.b64decode(text)).tolist()) for text in (first, second)])
    except (ValueError, msgspec.DecodeError):  # no text, no base64, or of no FP32 numbers
        return one == other
