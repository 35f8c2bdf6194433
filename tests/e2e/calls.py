"""Calls of the model `double`, and what the right answer to each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDTH = 2


def rows(*first: int) -> list[int]:
    """Flat data of one row for each number given: the number, then its square."""
    return [value for number in first for value in (number, number * number)]


def call(*first: int, id: str | None = None, **more: Any) -> dict[str, Any]:  # noqa: A002  # the protocol's own name
    """An infer request with one row for each number."""
    tensor = {"name": "x", "shape": [len(first), WIDTH], "datatype": "INT64", "data": rows(*first)}
    return ({} if id is None else {"id": id}) | {"inputs": [tensor]} | more


def answer(*first: int, weights: int = 1) -> list[int]:
    """What `double` makes of these rows."""
    return [2 * value + weights for value in rows(*first)]


def data(body: dict[str, Any]) -> list[int]:
    """The values of an answer, in order."""
    output = body["outputs"][0]
    values: Sequence[int] = output["data"]
    assert output["shape"] == [len(values) // WIDTH, WIDTH], output["shape"]
    return list(values)
