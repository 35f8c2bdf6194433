"""How a layer declares what can be configured: a frozen dataclass of `setting(...)` fields.

`config.py` reads files, environment and flags into these by their annotations alone, and
docs/config.md is generated from them, so a setting exists once. The annotations it understands:
`Seconds` (written `5ms`), `Bytes` (written `4MiB`), `int`, `float`, `str`, an `Enum`, `T | None`
(written `none`), `tuple[T, ...]`, another settings dataclass.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, NewType

Seconds = NewType("Seconds", float)
"""A duration. Written with a unit, `5ms`, `2s`, `1h`; inside always seconds."""

Bytes = NewType("Bytes", int)
"""A size. Written with a unit, `64KiB`, `256MiB`; inside always bytes."""


def setting(default: Any, doc: str, *, minimum: float | None = None, per_route: bool = True) -> Any:
    """Declare one setting.

    default: its value when nobody says anything (already in seconds or bytes).
    doc: one sentence for docs/config.md, in the reader's words.
    minimum: smallest value that makes sense, in the same unit; None where any does.
    per_route: False where a route may not override it.
    """
    return field(default=default, metadata={"doc": doc, "minimum": minimum, "per_route": per_route})
