"""Promises of the routes: the first that fits, and no way around one."""

from __future__ import annotations

import fnmatch
import time
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.routing import Match, Routes, RouteSettings, Unread, fits

DEFAULT = RouteSettings("default", Match())


def route(name: str, path: str = "*", model: str | None = None) -> RouteSettings:
    return replace(DEFAULT, id=name, match=Match(path, model))


@pytest.mark.parametrize(
    ("path", "model", "expected"),
    [
        ("/v2/models/rerank/infer", "rerank", "rerank"),
        ("/v2/models/rerank2/infer", "rerank2", "rerank"),
        ("/v2/models/rank/infer", "rank", "default"),
        ("/v2/models/other/infer", "slow", "slow"),
        ("/v2/models/rerank/infer", "slow", "rerank"),
        ("/slow", None, "default"),
        ("/%762/models/re%72ank/infer", None, "rerank"),
        ("/exact", None, "exact"),
        ("/exact/", None, "default"),
        ("/EXACT", None, "default"),
        ("/a.c", None, "dot"),
        ("/abc", None, "default"),
        ("/both", "slow", "slow"),
        ("/both", "special", "both"),
        ("/both", None, "default"),
    ],
)
def test_a_request_belongs_to_the_first_route_that_fits(path: str, model: str | None, expected: str) -> None:
    """Routes are tried in their order; what fits none is the default's; other spellings of a path are that path."""
    routes = Routes(
        [
            route("rerank", "/v2/models/rerank*"),
            route("slow", model="slow"),
            route("exact", "/exact"),
            route("dot", "/a.c"),
            route("both", "/both", "spec*"),
        ],
        DEFAULT,
    )
    found, certain = routes.route_for(path, lambda _: model)
    assert found.id == expected
    assert certain


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v1/embeddings", ("slow", False)), ("/v1/chat", ("chat", True)), ("/other", ("slow", False))],
)
def test_a_route_may_hang_on_a_body_that_is_not_read_yet(path: str, expected: tuple[str, bool]) -> None:
    """What a route before it takes by its path alone is certain; where a model decides, the body must be read first."""
    routes = Routes([route("chat", "/v1/chat"), route("slow", model="slow"), route("rest", "/v1/*")], DEFAULT)
    found, certain = routes.route_for(path, lambda _: Unread.UNREAD)
    assert (found.id, certain) == expected


def test_without_routes_everything_is_the_default_route() -> None:
    """A configuration that names no route has one all the same."""
    routes = Routes([], DEFAULT)
    assert routes.route_for("/%", lambda _: "any") == (DEFAULT, True)
    assert list(routes) == [DEFAULT]
    assert repr(routes) == "<Routes default>"


@settings(deadline=None)  # the machine may be busy
@given(st.text("ab*", max_size=8), st.text("ab*", max_size=10))
@example("ab*ba", "aba")  # a beginning and an end must not overlap
@example("*ab*b", "ab")  # nor what is between them and the end
@example("*ab*ab*", "ab")  # nor two pieces between
def test_a_star_is_any_text(pattern: str, text: str) -> None:
    """Patterns mean what a shell's mean, as far as `*` goes."""
    assert fits(pattern, text) == fnmatch.fnmatchcase(text, pattern)


@settings(deadline=None)  # the machine may be busy
@given(st.text("ab*", max_size=6), st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_a_pattern_that_fits_another_pattern_takes_all_of_it(first: str, second: str, text: str) -> None:
    """A route that is called unreachable really is."""
    if fits(first, second) and fits(second, text):
        assert fits(first, text)


def test_a_long_path_costs_no_backtracking() -> None:
    """A caller cannot make a pattern with many stars expensive."""
    pattern = "/" + "*a" * 30 + "*b"
    begin = time.process_time()
    assert not fits(pattern, "/" + "a" * 60_000)
    assert time.process_time() - begin < 0.5
