"""The models of the tests' KServe, and the server that serves them: `python -P kserve_models.py PORT`.

Every model takes numbers, text or objects as V1 instances, or a V2 tensor, and answers with a function of each of them
and, in some models, of what it came with: so an answer that reached the wrong caller, or was computed in company where
that matters, shows. The functions in `MODELS` are the tests' reference.

Runs in an environment of its own: imports KServe only when it serves, and nothing of ours.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

Rows = list[Any]

BAD = -1
"""The instance that `picky` refuses."""


def independent(rows: Rows) -> Rows:
    """Of each row what it is, and twice that if it is a number or a list of them."""
    return [{"was": row, "twice": _twice(row)} for row in rows]


def centred(rows: Rows) -> Rows:
    """Of each row how far it is from the mean of all of them."""
    flat = [_number(row) for row in rows]
    return [number - sum(flat) / len(flat) for number in flat]


def constant(rows: Rows) -> Rows:
    """The same list, whatever was asked."""
    return [0.25, 0.5]


def picky(rows: Rows) -> Rows:
    """As `independent`, but one bad row spoils all of a request."""
    if any(_number(row) == BAD for row in rows):
        raise ValueError(f"no model takes {BAD}")
    return independent(rows)


def hanging(rows: Rows) -> Rows:
    """As `independent`, for one row; more are never answered."""
    return independent(rows)


MODELS: dict[str, Callable[[Rows], Rows]] = {
    one.__name__: one for one in (independent, centred, constant, picky, hanging)
}


def _number(row: Any) -> float:
    while isinstance(row, list):
        row = row[0]
    return float(row)


def _twice(row: Any) -> Any:
    if isinstance(row, list):
        return [_twice(one) for one in row]
    return 2 * row if isinstance(row, (int, float)) and not isinstance(row, bool) else None


def serve(port: int) -> None:
    """Serve every model of `MODELS` on 127.0.0.1 until a signal ends it."""
    import kserve  # type: ignore[import-not-found]  # noqa: PLC0415 - only in its own environment
    import kserve.model_server  # type: ignore[import-not-found]  # noqa: PLC0415 - as above
    import numpy as np  # noqa: PLC0415 - as above
    from kserve.utils.utils import get_predict_response  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    class Served(kserve.Model):  # type: ignore[misc]  # untyped here
        """One function as a model: of V1's instances, or of the rows of V2's first input."""

        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.load()

        async def predict(self, payload: Any, headers: Any = None) -> Any:
            in_v1 = isinstance(payload, dict)
            rows = payload["instances"] if in_v1 else payload.inputs[0].as_numpy().tolist()
            if self.name == "hanging" and len(rows) > 1:
                await asyncio.Event().wait()
            try:
                results = MODELS[self.name](rows)
            except ValueError as error:
                raise kserve.errors.InvalidInput(str(error)) from error
            if in_v1:
                return get_predict_response(payload, results, self.name)
            numbers = [result["twice"] if isinstance(result, dict) else result for result in results]
            return get_predict_response(payload, np.array(numbers, np.float32), self.name)

    class OnLoopback(kserve.model_server.RESTServer):  # type: ignore[misc]  # untyped here
        """KServe's server listens on every interface; this one on one."""

        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.config.host = "127.0.0.1"

    kserve.model_server.RESTServer = OnLoopback
    server = kserve.ModelServer(http_port=port, enable_grpc=False, enable_latency_logging=False, grace_period=1)
    server.start([Served(name) for name in MODELS])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
