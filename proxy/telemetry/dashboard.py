"""The Grafana dashboard, from code: `python -m proxy.telemetry.dashboard > deploy/grafana/forebay.json`.

Lays the panels of panels.py out in rows and writes them in the classic JSON model, which Grafana 10 and
later import. A test fails when the file is not what this writes.

Knows nothing of what the panels show.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from proxy.telemetry import catalogue as c
from proxy.telemetry.panels import ROWS, Panel, expressions

__all__ = ["dashboard", "expressions", "text"]

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SCHEMA: Final = 38  # Grafana 10.0; later ones migrate it on import


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's classic JSON model."""
    return {
        "uid": "forebay",
        "title": "Forebay",
        "description": "What the response cache, coalescing and batching do to hit rate, queueing and latency.",
        "tags": ["forebay", "inference"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }
    yield _label_variable("instance", "Instance", f"label_values({c.CONFIG.name}, instance)")
    known = f'{c.ACTIVE.name}{{instance=~"$instance"}}'
    yield _label_variable("route", "Route", f"label_values({known}, route)")


def _label_variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"{name}-values"},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "allValue": ".*",
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Rows with their panels from left to right, each with an id and a place of its own."""
    y, number = 0, 1
    for row, panels in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": row,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
            "panels": [],
        }
        y, x, number = y + 1, 0, number + 1
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT})
            x, number = x + panel.width, number + 1
        y += _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults, options = _lamp(panel.states) if panel.states else _curves(panel)
    return {
        "id": number,
        "type": "stat" if panel.states else "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, **defaults}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": True,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _curves(panel: Panel) -> tuple[dict[str, Any], dict[str, Any]]:
    defaults: dict[str, Any] = {
        "color": {"mode": "palette-classic"},
        "min": 0,
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        },
    }
    if panel.most is not None:
        defaults["max"] = panel.most
    options = {
        "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return defaults, options


def _lamp(states: tuple[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    down, up = states
    mapping = {"0": {"index": 0, "text": down, "color": "red"}, "1": {"index": 1, "text": up, "color": "green"}}
    defaults = {"mappings": [{"type": "value", "options": mapping}], "noValue": "none configured"}
    options = {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value_and_name",
    }
    return defaults, options


def text() -> str:
    """What deploy/grafana/forebay.json holds."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
