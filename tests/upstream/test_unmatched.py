"""Promises about requests that Forebay cannot help yet: an operator sees which they are."""

from __future__ import annotations

import pytest

from proxy.upstream.unmatched import KEPT, LONGEST, Unmatched

JSON = "application/json"


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/api/run", JSON),
        ("/api/run", "Application/JSON; charset=utf-8"),
        ("/api/run", "application/vnd.api+json"),
        ("/api/run", "application/octet-stream"),
        ("/Predict", "image/png"),
        ("/v3/infer", ""),
        ("/generate_image", "multipart/form-data"),
        ("/my/embeddings", ""),
        ("/chat", ""),
        ("/scores/x", ""),
        ("/scoring", ""),
        ("/rerank", ""),
        ("/classify", ""),
        ("/classification", ""),
        ("/invocations", "text/csv"),
        ("/x/completions", ""),
    ],
)
def test_what_looks_like_inference_is_listed(path: str, content_type: str) -> None:
    """A JSON or binary body, or a word in the path, is enough to be listed with a count."""
    unmatched = Unmatched()
    unmatched.saw("POST", path, content_type, 200)
    unmatched.saw("POST", path, content_type, 201)
    assert unmatched.report() == [{"path": path, "count": 2}]


@pytest.mark.parametrize(
    ("method", "path", "content_type", "status"),
    [
        ("GET", "/predict", JSON, 200),
        ("PUT", "/predict", JSON, 200),
        ("POST", "/predict", JSON, 404),
        ("POST", "/predict", JSON, 500),
        ("POST", "/predict", JSON, 302),
        ("POST", "/predict", JSON, 101),
        ("POST", "/upload", "multipart/form-data", 200),
        ("POST", "/login", "application/x-www-form-urlencoded", 200),
        ("POST", "/run", "text/html", 200),
    ],
)
def test_what_is_no_inference_or_did_not_succeed_is_not_listed(
    method: str, path: str, content_type: str, status: int
) -> None:
    """The list is short and worth reading: no form, no upload, no path that nobody serves."""
    unmatched = Unmatched()
    unmatched.saw(method, path, content_type, status)
    assert unmatched.report() == []


def test_the_list_is_bounded_and_what_is_used_stays() -> None:
    """A scan of random paths costs no memory and does not push out the path that matters."""
    unmatched = Unmatched()
    for _ in range(3):
        unmatched.saw("POST", "/mine", JSON, 200)
    for number in range(1000):
        unmatched.saw("POST", f"/{number}/" + "x" * 4096, JSON, 200)
    report = unmatched.report()
    assert report[0] == {"path": "/mine", "count": 3}
    assert len(report) == KEPT
    assert max(len(str(entry["path"])) for entry in report) == LONGEST
    assert repr(unmatched) == f"<Unmatched {KEPT} paths>"


def test_a_new_path_may_rise() -> None:
    """What is asked for often comes to the top, however late it came."""
    unmatched = Unmatched()
    for number in range(KEPT + 1):
        unmatched.saw("POST", f"/{number}", JSON, 200)
    for _ in range(2):
        unmatched.saw("POST", "/late", JSON, 200)
    assert unmatched.report()[0] == {"path": "/late", "count": 2}
