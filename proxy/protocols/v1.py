"""V1 predict: TensorFlow Serving, KServe V1, OpenVINO Model Server. Instances are items.

`classify` and `regress`, TensorFlow Serving's own, read alike under other names.

Invariants
    An item is the instance's text without white space, its keys in the caller's order: a model that makes a table of
    its instances takes the order of the columns from them.
    Only instances of one form ride together: of one shape, with numbers written in the same way. TensorFlow Serving
    refuses a batch of several shapes; numpy makes floats of integers beside one float, and text of both beside one
    text. A call that mixes forms itself is one item.
    Nothing in this protocol says that instances are independent of each other: that is proved first.
    A label counts as a model of its own, `m/labels/canary`, whose weights are those of the version it points to.

Knows nothing of what an instance means, nor of header fields.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from proxy.protocols import json_values
from proxy.protocols.codec import ANY_NUMBER, Call, Codec, Endpoint, Facts, Found, Joined, Message, Part
from proxy.protocols.json_values import canonical, document, elements, members, spelled, tagged
from proxy.protocols.spans import Refusal
from proxy.protocols.v2_metadata import named, segment
from proxy.terms import Exchange, Model, Reason, Rows

_PATH: Final = re.compile(r"/v1/models/([^/?#]+)(?:/(versions|labels)/([^/?#]+))?:(predict|classify|regress)")
_LONGEST_PATH: Final = 1024  # what is remembered of paths must be bounded in bytes, too
_LABEL: Final = "/labels/"
_LISTING: Final = "/v1/models"
_RELOAD: Final = "/v1/config/reload"  # OpenVINO Model Server's


class _Names(NamedTuple):
    """Under which names a body holds its items and its answer their results. columns: of the form by columns."""

    items: str
    results: str
    columns: str | None = None


_OPERATIONS: Final = {
    "predict": _Names("instances", "predictions", "inputs"),
    "classify": _Names("examples", "results"),
    "regress": _Names("examples", "results"),
}

# An item result begins with what it is: the text of one result, or that of a whole answer.
_ONE: Final = b"1"
_ALL: Final = b"*"

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# What a form is made of is found by replacing bytes: a search of each number would take ten times as long.
_EMPTY: Final = b"_"  # an empty list: without its number a list of one would be one, too
_NOT_FORM: Final = bytes(set(range(256)) - set(b'[,]"' + _EMPTY))
_NOT_WORDS: Final = b'0123456789+-[,]"'
_SAME_DIGITS: Final = bytes.maketrans(b"123456789[-", b"000000000,,")
_LONG: Final = b"," + b"0" * 16  # the beginning of an integer that a float may not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Call(Call):
    """names: what its operation calls things. rest: canonical text of the body without its items."""

    names: _Names
    rest: bytes


class V1(Codec):
    """The codec. It holds no state."""

    name = "v1"
    protocol = "v1"
    paths = ("/v1/models/{model}:predict",)
    probes = (_LISTING,)
    path_is_proof = True

    def recognise(self, method: str, path: str) -> Endpoint | None:
        """A model has one spelling: what decodes to the same name in another one is not recognised."""
        return _endpoint(path) if method == "POST" and len(path) <= _LONGEST_PATH else None

    def parse(self, endpoint: Endpoint, message: Message, model: Model) -> Call | Reason:
        text = document(message.body)
        if isinstance(text, Refusal):
            return text.reason
        found = members(_compact(text))
        if found is None:
            return Reason.UNPARSED
        if found.get("stream") == b"true":
            return Reason.STREAMED
        names = _OPERATIONS[endpoint.operation]
        listed = found.pop(names.items, None)
        columns = found.pop(names.columns, None) if names.columns else None
        rest = canonical(spelled(found))
        call = functools.partial(V1Call, names=names, rest=rest)
        if columns is not None:
            if listed is not None:
                return Reason.UNPARSED
            return call(shared=tagged((b"columns", rest)), items=(columns,), joins=False)
        return Reason.UNPARSED if listed is None else _of_instances(call, rest, listed, model)

    def join(self, parts: Sequence[Part], request_id: str, waited: Sequence[float]) -> Joined:
        first = _own(parts[0].call)
        items = b",".join([part.call.items[index] for part in parts for index in part.indexes])
        before = b"{" if first.rest == b"{}" else first.rest[:-1] + b","
        return Joined(before + spelled({first.names.items: b"[" + items + b"]"})[1:])

    def split(self, answer: Message, parts: Sequence[Part], request_id: str | None) -> list[list[bytes]] | None:
        text = document(answer.body)
        found = None if isinstance(text, Refusal) else members(text)
        if isinstance(text, Refusal) or found is None or "error" in found:
            return None
        first = _own(parts[0].call)
        sizes = [len(part.indexes) for part in parts]
        total = sum(sizes)
        if first.joins and found.keys() == {first.names.results}:
            each = elements(_compact(found[first.names.results]))
            if each is not None and len(each) == total:
                results = iter([_ONE + one for one in each])
                return [list(itertools.islice(results, size)) for size in sizes]
        # Whatever it holds, it answers a single item; more than one it does not split among.
        return [[_ALL + text]] if total == 1 else None

    def answer(self, call: Call, results: Sequence[bytes]) -> Message | None:
        if len(results) != len(call.items):
            return None
        if len(results) == 1 and results[0][:2] == _ALL + b"{":
            return Message(results[0][1:])
        if not call.joins or any(result[:1] != _ONE for result in results):
            return None
        listed = b"[" + b",".join([result[1:] for result in results]) + b"]"
        if len(elements(listed) or ()) != len(results):
            return None
        return Message(spelled({_own(call).names.results: listed}))

    def error(self, status: int, message: str) -> bytes:
        return msgspec.json.encode({"error": message})

    def alike(self, one: bytes, other: bytes) -> bool:
        return one[:1] == other[:1] and json_values.alike(one[1:], other[1:])

    def found(self, answers: Mapping[str, Exchange | None]) -> Found | None:
        """KServe lists its models; TensorFlow Serving does not, and is known by its paths alone."""
        answer = answers.get(_LISTING)
        read = None if answer is None else _read(answer.body)
        models = read["models"] if isinstance(read, dict) and read.keys() == {"models"} else None
        if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
            return None
        return Found("V1 API", tuple(models))

    def questions(self, model: str) -> tuple[str, ...]:
        name, label, of_label = model.partition(_LABEL)
        return (f"{_LISTING}/{segment(name)}{label}{segment(of_label)}",)

    def facts(self, model: str, answers: Sequence[Exchange | None]) -> Facts | None:
        """The versions that serve name the weights, where any are listed.

        TensorFlow Serving takes a version for what it was when it was loaded: new weights are a directory with a new
        number, and files that change under an old one are not read before a restart, which shows. OpenVINO Model Server
        may load one anew in place, which shows in its state for as long as that takes. KServe lists none.
        """
        (status,) = answers
        if status is None:
            return None
        states = _states(status.body)
        return Facts(
            rows=Rows.PROVE,
            max_batch_size=ANY_NUMBER,
            versions=tuple(version for version, state in states if state == "AVAILABLE"),
            state=msgspec.json.encode(states) if states else None,
        )

    def changes(self, method: str, path: str) -> bool:
        return method == "POST" and path == _RELOAD


def _of_instances(call: Callable[..., V1Call], rest: bytes, listed: bytes, model: Model) -> V1Call | Reason:
    """A call of these instances, read one by one where they are items and have one form."""
    if listed[:1] != b"[" or listed == b"[]":
        return Reason.UNPARSED
    whole = call(shared=tagged((b"whole", rest)), items=(listed,), joins=False)
    if model.rows is not Rows.ITEMS:
        return whole
    items = elements(listed)
    if items is None:
        return Reason.UNPARSED
    if len(items) > model.max_batch_size:
        return Reason.OVER_LIMIT
    forms = {_form(item) for item in items}
    if len(forms) > 1:
        return whole
    form = blake2b(forms.pop(), digest_size=16).digest()
    return call(shared=tagged((b"items", form, rest)), items=tuple(items), joins=True)


def _own(call: Call) -> V1Call:
    assert isinstance(call, V1Call), call
    return call


@functools.lru_cache(maxsize=1024)
def _endpoint(path: str) -> Endpoint | None:
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    model, version = named(found[1]), named(found[3] or "1")
    if model is None or version is None or "/" in model + version:
        return None
    if found[2] == "labels":
        model += _LABEL + version  # asked about on its own: it may point to another version any moment
    return Endpoint(model, f"{found[2]}/{version}" if found[2] else None, found[4])


def _compact(text: bytes) -> bytes:
    """A document without white space, lexemes and order as they are."""
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError:  # NaN, say: `document` has left no white space then
        return text


def _form(value: bytes) -> bytes:
    """What a compact value has in common with those that may stand beside it: everything but its content."""
    if b"{" in value and value[:1] != b'"':
        if (found := members(value)) is not None:
            return spelled({name: _form(one) for name, one in found.items()})
        return b"[" + b",".join(map(_form, elements(value) or ())) + b"]"
    text = _STRING.sub(b'"', value) if b'"' in value else value
    return text.replace(b"[]", _EMPTY).translate(None, _NOT_FORM) + _kinds(text)


def _kinds(text: bytes) -> bytes:
    """Which kinds of numbers and words stand in a text without strings: a letter for each."""
    words = text.translate(None, _NOT_WORDS)
    kinds = b""
    if words.replace(b"true", b"").replace(b"false", b"").replace(b"null", b""):
        kinds += b"f"  # a point, an exponent, NaN or an infinity
    if _LONG in b"," + text.translate(_SAME_DIGITS):
        kinds += b"l-" if b"-" in text else b"l"  # no type of integers holds the longest of both signs
    if b"true" in words or b"false" in words:
        kinds += b"t"
    if b"null" in words:
        kinds += b"n"
    return kinds


def _states(body: bytes) -> list[tuple[str, str]]:
    """Each version that a model's status lists, with its state; in an order of its own."""
    read = _read(body)
    listed = read.get("model_version_status") if isinstance(read, dict) else None
    statuses = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    pairs = [(one.get("version"), one.get("state")) for one in statuses]
    return sorted((version, state) for version, state in pairs if isinstance(version, str) and isinstance(state, str))


def _read(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
