"""Promises of what is read about models: nothing joins, and no rows are split, that the backend did not allow.

The texts were recorded from Triton 2.51 and cut down to the fields that say something.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols import v2_metadata
from proxy.protocols.codec import ANY_NUMBER
from proxy.protocols.v2 import V2
from proxy.protocols.v2_metadata import (
    UNDECLARED,
    answered,
    changes_models,
    counters,
    facts,
    promised,
    versions,
)
from proxy.terms import Rows
from tests.protocols.json_texts import examples

CONFIG = (
    b'{"name":"rows","platform":"","backend":"python","version_policy":{"latest":{"num_versions":1}},"max_batch_size":32,'
    b'"input":[{"name":"X","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1],"is_shape_tensor":false,'
    b'"allow_ragged_batch":false,"optional":false}],"output":[{"name":"Y","data_type":"TYPE_FP32","dims":[-1]}],'
    b'"batch_input":[],"batch_output":[],"instance_group":[{"name":"rows_0","kind":"KIND_CPU","count":1,"gpus":[],'
    b'"passive":false}],"parameters":{},"model_warmup":[]}'
)
STATS = (
    b'{"model_stats":[{"name":"rows","version":"1","last_inference":1796039688536,"inference_count":2,"execution_count":1,'
    b'"inference_stats":{"success":{"count":1,"ns":52387646},"fail":{"count":0,"ns":0},"queue":{"count":1,"ns":97579}},'
    b'"response_stats":{},"batch_stats":[{"batch_size":2,"compute_infer":{"count":1,"ns":52067513}}],"memory_usage":[]}]}'
)
METADATA = b'{"name":"rows","versions":["1","3"],"platform":"python","inputs":[],"outputs":[]}'
NOT_FOUND = b'{"error":"Request for unknown model: \'nosuch\' is not found"}'


def config(**members: object) -> bytes:
    return json.dumps(json.loads(CONFIG) | members).encode()


def with_input(**members: object) -> bytes:
    first = json.loads(CONFIG)["input"][0]
    return config(input=[first, first | members])


def test_rows_are_items_where_the_config_promises_it() -> None:
    """A model with a batch dimension and nothing that ties rows together may be joined up to its limit."""
    assert promised(CONFIG) == (Rows.ITEMS, 32, 1)
    dynamic = {"preferred_batch_size": [32], "max_queue_delay_microseconds": 5000}
    assert promised(config(dynamic_batching=dynamic))[0] is Rows.ITEMS
    assert promised(config(model_transaction_policy={"decoupled": False}))[0] is Rows.ITEMS


@pytest.mark.parametrize(
    "text",
    [
        config(sequence_batching={"max_sequence_idle_microseconds": 5000000, "control_input": [], "state": []}),
        config(model_transaction_policy={"decoupled": True}),
        config(batch_input=[{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["C"], "source_input": ["X"]}]),
        config(batch_output=[{"target_name": ["Y"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["X"]}]),
        with_input(allow_ragged_batch=True),
        with_input(is_shape_tensor=True),
        config(platform="ensemble", ensemble_scheduling={"step": [{"model_name": "rows", "model_version": -1}]}),
        config(input=[]),
    ],
)
def test_rows_that_something_ties_together_are_not_items(text: bytes) -> None:
    """State, streams, ragged and batch-wide tensors, and models behind the model keep a call whole."""
    assert promised(text) == (Rows.WHOLE, 32, 1)


def test_a_model_without_a_batch_dimension_never_joins() -> None:
    """`max_batch_size: 0` means that dimension 0 is the caller's own."""
    assert promised(config(max_batch_size=0)) == (Rows.WHOLE, 0, 1)


@pytest.mark.parametrize(
    ("groups", "instances"),
    [
        ([], 1),
        ([{"kind": "KIND_CPU", "count": 3, "gpus": []}, {"kind": "KIND_CPU", "count": 2, "gpus": []}], 5),
        ([{"kind": "KIND_GPU", "count": 2, "gpus": [0, 1, 3]}], 6),
        ([{"kind": "KIND_GPU", "count": 2, "gpus": []}], 2),
        ([{"kind": "KIND_MODEL", "count": 1, "gpus": [0, 1]}], 1),
        ([{"kind": "KIND_CPU", "count": 4, "passive": True}, {"kind": "KIND_CPU", "count": 1, "passive": False}], 1),
        ([{"kind": "KIND_CPU"}], 1),
        ([{"kind": "KIND_CPU", "count": "many"}, 7], 1),
    ],
)
def test_instances_are_what_computes_at_once(groups: list[object], instances: int) -> None:
    """Slots follow the number of batches that the backend works on side by side."""
    assert promised(config(instance_group=groups))[2] == instances


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"{}",
        b"[]",
        NOT_FOUND,
        b"<html>",
        b'{"max_batch_size":"32"}',
        b'{"max_batch_size":true}',
        b"[" * 9999,
    ],
)
def test_a_server_that_does_not_say_must_have_it_proved(text: bytes | None) -> None:
    """KServe and MLServer have no config: rows are tried out before they join, up to any number."""
    assert promised(text) == UNDECLARED == (Rows.PROVE, ANY_NUMBER, 1)


def test_counters_are_kept_by_version() -> None:
    """Every counter that a reload starts anew is there under a name of its own."""
    assert counters(STATS) == {
        "1/last_inference": 1796039688536,
        "1/inference_count": 2,
        "1/execution_count": 1,
        "1/success.count": 1,
        "1/success.ns": 52387646,
        "1/fail.count": 0,
        "1/fail.ns": 0,
        "1/queue.count": 1,
        "1/queue.ns": 97579,
    }
    two = json.loads(STATS)
    two["model_stats"].append(two["model_stats"][0] | {"version": "2", "inference_count": 9})
    both = counters(json.dumps(two).encode())
    assert both is not None
    assert (both["1/inference_count"], both["2/inference_count"]) == (2, 9)


def test_answered_calls_are_counted_over_all_versions() -> None:
    """How often a model has answered is known where the server counts that, whichever version it was."""
    assert answered({"1/success.count": 3, "2/success.count": 4, "1/fail.count": 5, "1/success.ns": 6}) == 7
    assert answered({"1/inference_count": 3}) is None
    assert answered(None) is None


def test_a_server_without_statistics_has_no_counters() -> None:
    """No counter is not the same as a counter at zero."""
    for text in (None, b"", NOT_FOUND, b'{"model_stats":{}}', b"[1]"):
        assert counters(text) is None
    assert (
        counters(b'{"model_stats":[{"version":1},{"version":"1","inference_count":"x","inference_stats":[]},7]}') == {}
    )


def test_versions_are_listed_as_the_backend_does() -> None:
    """Their order is the backend's, and whatever is not a list of names lists none."""
    assert versions(METADATA) == ("1", "3")
    for text in (None, b"", NOT_FOUND, b'{"versions":"1"}', b'[{"name":7}]', b"[7]"):
        assert versions(text) == ()


@pytest.mark.parametrize(
    ("method", "path", "touched"),
    [
        ("POST", "/v2/repository/models/rows/load", True),
        ("POST", "/v2/repository/models/rows/unload", True),
        ("POST", "/v2/repository/models/a%20b/load", True),
        ("GET", "/v2/repository/models/rows/load", False),
        ("POST", "/v2/repository/index", False),
        ("POST", "/v2/models/rows/infer", False),
        ("POST", "/v2/models/load/infer", False),
    ],
)
def test_loading_a_model_may_change_any_answer(method: str, path: str, touched: bool) -> None:
    """An ensemble answers anew when one of its steps is loaded, so a load is taken to touch every model."""
    assert changes_models(method, path) is touched
    assert V2().changes(method, path) is touched


@examples(100)
@given(st.text(st.characters(exclude_categories=("Cs", "C")), min_size=1, max_size=80))
def test_paths_ask_for_the_model_that_was_recognised(name: str) -> None:
    """The spelling that is asked about is the one that the request came with."""
    path = v2_metadata.metadata_path(name)
    endpoint = V2().recognise("POST", f"{path}/infer")
    assert endpoint is None or endpoint.model == name
    assert (endpoint is None) == (name in (".", "..") or not name.isprintable())
    assert v2_metadata.config_path(name) == f"{path}/config"
    assert v2_metadata.stats_path(name) == f"{path}/stats"
    assert path.isascii() and path.count("/") == 3


KEYS = st.sampled_from(
    [
        *json.loads(CONFIG),
        *json.loads(STATS),
        *json.loads(STATS)["model_stats"][0],
        "versions",
        "state",
        "gpus",
        "count",
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
)


@examples(100)
@given(ANYTHING)
def test_no_answer_of_a_backend_raises(value: object) -> None:
    """Whatever JSON a backend sends instead of its metadata, it only costs the joining."""
    text = json.dumps(value).encode()
    assert promised(text)[2] >= 1
    facts(text, text, text)
    assert counters(text) is None or isinstance(value, dict)
    versions(text)
