"""What is remembered of requests that come again in the very same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.batching.settings import BatchSettings
from proxy.caching.fingerprint import Tenant
from proxy.caching.policy import CacheSettings, CacheUse
from proxy.filling import Plan
from proxy.protocols.asked import Asked
from proxy.protocols.codec import Call
from proxy.protocols.registry import CODECS
from proxy.readings import LARGEST, REMEMBERED, REMEMBERED_BYTES, Reading, Readings
from proxy.terms import Headers, Identity, Model, Rows

MODEL = Model("m", rows=Rows.ITEMS, max_batch_size=8, instances=1, identity=Identity(("1",), 1.0, "", known=True))
FIELDS: Headers = ((b"Host", b"here"),)
PATH = "/v2/models/m/infer"


def reading(body: bytes = b"body", model: Model = MODEL, trial: Call | None = None) -> Reading:
    plan = Plan(
        cache=CacheSettings(),
        batch=BatchSettings(),
        alone=BatchSettings(max_size=1),
        tenant=Tenant.parse("none"),
        model=model,
        identity=model.identity,
        slots=1,
        rows=Rows.ITEMS,
        by_items=model,
        entire=model,
    )
    call = Call(shared=b"", items=(body,), joins=True)
    return Reading("default", CODECS[0], CODECS[0], call, plan, b"", CacheUse.ON, (), trial)


def current(asked: Asked, name: str) -> Model:
    """What is known now of a model, as long as nothing changes."""
    assert (asked, name) == (CODECS[0], "m")
    return MODEL


def test_the_same_bytes_are_not_read_twice() -> None:
    """Who asks again in the same bytes gets what was understood the first time."""
    readings, understood = Readings(), reading()
    readings.keep("POST", PATH, FIELDS, b"body", understood)
    assert readings.of("POST", PATH, FIELDS, bytes(bytearray(b"body")), current) is understood
    assert repr(readings) == "<Readings 1 young, 0 old>"


@pytest.mark.parametrize(
    ("method", "path", "fields", "body"),
    [
        ("PUT", PATH, FIELDS, b"body"),
        ("POST", PATH + "?x", FIELDS, b"body"),
        ("POST", PATH, ((b"host", b"here"),), b"body"),
        ("POST", PATH, ((b"Host", b"there"),), b"body"),
        ("POST", PATH, (*FIELDS, (b"Forebay-Cache", b"off")), b"body"),
        ("POST", PATH, FIELDS, b"bodY"),
    ],
)
def test_whatever_differs_is_read_again(method: str, path: str, fields: Headers, body: bytes) -> None:
    """One byte that differs, wherever it stands, and nothing of another request is used."""
    readings = Readings()
    readings.keep("POST", PATH, FIELDS, b"body", reading())
    assert readings.of(method, path, fields, body, current) is None


def test_a_model_that_may_have_changed_is_read_with_anew() -> None:
    """After a reload nothing is answered by what was understood of the model before, equal as it may look."""
    readings = Readings()
    readings.keep("POST", PATH, FIELDS, b"body", reading())
    assert readings.of("POST", PATH, FIELDS, b"body", lambda asked, name: replace(current(asked, name))) is None
    assert readings.of("POST", PATH, FIELDS, b"body", lambda *_: None) is None


def test_a_call_whose_rows_are_being_proved_is_read_again() -> None:
    """What may soon be read item by item is not remembered as a whole."""
    readings = Readings()
    readings.keep("POST", PATH, FIELDS, b"body", reading(trial=Call(shared=b"", items=(b"body",), joins=True)))
    assert readings.of("POST", PATH, FIELDS, b"body", current) is None


@pytest.mark.parametrize("size", [1, 7000])
def test_memory_is_bounded_in_number_and_in_bytes(size: int) -> None:
    """However many requests come, and however large, only the latest are remembered."""
    readings = Readings()
    for number in range(3 * REMEMBERED):
        body = b"%d " % number + b"x" * size
        readings.keep("POST", PATH, FIELDS, body, reading(body))
    young, old = len(readings._young), len(readings._old)
    assert 0 < young <= REMEMBERED
    assert 0 < old <= REMEMBERED
    assert sum(len(key[3]) for table in (readings._young, readings._old) for key in table) <= 2 * REMEMBERED_BYTES


def test_what_comes_again_stays() -> None:
    """A popular request is still remembered when many others have come and gone."""
    readings, understood = Readings(), reading()
    readings.keep("POST", PATH, FIELDS, b"body", understood)
    for number in range(3 * REMEMBERED):
        readings.keep("POST", PATH, FIELDS, b"%d" % number, reading())
        assert readings.of("POST", PATH, FIELDS, b"body", current) is understood


def test_what_is_large_is_not_remembered() -> None:
    """Large requests take no memory: to compare them would cost what it saves."""
    readings = Readings()
    large = b"x" * LARGEST
    readings.keep("POST", PATH, FIELDS, large, reading(large))
    readings.keep("POST", PATH, ((b"X", large),), b"", reading(b""))
    assert repr(readings) == "<Readings 0 young, 0 old>"
    assert readings.of("POST", PATH, FIELDS, large + b"x", current) is None


def test_a_small_body_that_means_much_is_not_remembered() -> None:
    """Of a compressed request it is what it holds that takes memory."""
    readings = Readings()
    readings.keep("POST", PATH, FIELDS, b"small", reading(b"x" * LARGEST))
    assert repr(readings) == "<Readings 0 young, 0 old>"
