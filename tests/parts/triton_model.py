"""What the tests' Triton computes. Copied into its model repository, and imported by tests as the reference.

Every answer is a function of its own row (and of `weight`), so an answer that reached the wrong caller shows.
Knows nothing of HTTP; outside Triton only the functions in `COMPUTE` are of use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def rows(inputs: Arrays, weight: float) -> Arrays:
    """Y = X × weight + the sum of X's own row."""
    x = inputs["X"].astype(np.float64)
    total = x.reshape(len(x), -1).sum(axis=1).reshape((-1,) + (1,) * (x.ndim - 1))
    return {"Y": (x * weight + total).astype(np.float32)}


def mixed(inputs: Arrays, weight: float) -> Arrays:
    """Several datatypes in and out: A FP32 [n], B INT64 [2], C BYTES [1] to S, T, U, V."""
    a, b, c = inputs["A"].astype(np.float64), inputs["B"], inputs["C"]
    return {
        "S": (a.sum(axis=1, keepdims=True) * weight).astype(np.float32),
        "T": b[:, ::-1].copy(),
        "U": np.array([[text[0] + b"/" + str(int(pair[0])).encode()] for text, pair in zip(c, b, strict=True)], object),
        "V": a > 0,
    }


def echo(inputs: Arrays, weight: float) -> Arrays:
    """Every input `I_x` comes back as `O_x`."""
    return {"O" + name[1:]: value for name, value in inputs.items()}


def constant(inputs: Arrays, weight: float) -> Arrays:
    """Always one row, whatever was asked: an answer that no batch may be split from."""
    return {"Y": np.full((1, 2), weight, np.float32)}


COMPUTE: dict[str, Callable[[Arrays, float], Arrays]] = {f.__name__: f for f in (rows, mixed, echo, constant)}


class TritonPythonModel:
    """The class that Triton's python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        import json  # noqa: PLC0415 - only inside Triton

        settings = {key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()}
        self.compute = COMPUTE[settings["compute"]]
        self.per_call, self.per_row = float(settings["seconds_per_call"]), float(settings["seconds_per_row"])
        # Not in the config: a reload in place with other weights must leave the config as it was.
        self.weight = float((Path(args["model_repository"]) / args["model_version"] / "weight").read_text())

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as backend  # type: ignore[import-not-found]  # noqa: PLC0415 - only inside Triton

        calls = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        if self.per_call or self.per_row:
            time.sleep(self.per_call + self.per_row * sum(len(next(iter(call.values()))) for call in calls))
        answers = [self.compute(call, self.weight) for call in calls]
        return [
            backend.InferenceResponse([backend.Tensor(name, value) for name, value in answer.items()])
            for answer in answers
        ]
