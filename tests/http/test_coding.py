"""Content codings of request bodies, undone only where that is certain."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.coding import undone
from proxy.terms import Headers

CODED: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"GZIP": gzip.compress,
}


def said(*codings: bytes) -> Headers:
    return tuple((b"content-Encoding", coding) for coding in codings)


@given(st.binary(max_size=300), st.sampled_from(list(CODED)))
def test_what_is_undone_is_what_was_coded(body: bytes, coding: bytes) -> None:
    """Whatever a client compresses is read as if it had not."""
    assert undone(CODED[coding](body), said(coding), 300) == body
    assert undone(body, ((b"Content-Type", b"application/json"),), 0) == body


@given(st.binary(max_size=100), st.sampled_from(list(CODED)), st.data())
def test_what_is_broken_is_not_undone(body: bytes, coding: bytes, data: st.DataObject) -> None:
    """A body that ends early, or does not end where it should, is the backend's to judge."""
    coded = CODED[coding](body)
    cut = data.draw(st.integers(0, len(coded) - 1))
    assert undone(coded[:cut], said(coding), 100) is None
    assert undone(coded + b"x", said(coding), 100) is None


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    """A small body that would fill the memory is given up at the limit."""
    bomb = gzip.compress(bytes(50_000_000))
    assert undone(bomb, said(b"gzip"), 1000) is None
    assert undone(gzip.compress(bytes(1000)), said(b"gzip"), 1000) == bytes(1000)
    assert undone(gzip.compress(bytes(1001)), said(b"gzip"), 1000) is None


@pytest.mark.parametrize("codings", [(b"br",), (b"gzip, gzip",), (b"gzip", b"gzip"), (b"identity",), (b"",)])
def test_other_codings_are_not_undone(codings: tuple[bytes, ...]) -> None:
    """What is coded twice, or in a way that is not known here, goes through as it is."""
    assert undone(gzip.compress(b"body"), said(*codings), 100) is None
