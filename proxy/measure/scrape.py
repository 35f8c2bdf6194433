"""Forebay's own metrics, read back as a dashboard would: a scrape as numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SAMPLE = re.compile(r"^(?P<name>[a-z_:]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Scrape:
    """One scrape of `/metrics` in Prometheus' text format."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for sample in _SAMPLE.finditer(text):
            labels = dict(_LABEL.findall(sample["labels"] or ""))
            self._samples.setdefault(sample["name"], []).append((labels, float(sample["value"])))

    def _matching(self, name: str, labels: dict[str, str]) -> Iterator[float]:
        for has, value in self._samples.get(name, []):
            if labels.items() <= has.items():
                yield value

    def total(self, name: str, **labels: str) -> float:
        """The sum over every series of `name` that carries `labels`; 0 where there is none."""
        return sum(self._matching(name, labels))

    def mean(self, histogram: str, **labels: str) -> float:
        """The mean of what a histogram observed; nan where it observed nothing."""
        count = self.total(f"{histogram}_count", **labels)
        return self.total(f"{histogram}_sum", **labels) / count if count else float("nan")

    def __repr__(self) -> str:
        return f"<Scrape of {len(self._samples)} names>"
