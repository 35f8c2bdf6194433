"""The dashboard is one that Grafana imports, of metrics that Forebay has. What it draws: test_prometheus.py."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from proxy.telemetry import catalogue as c
from proxy.telemetry import dashboard as made

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    """The dashboard as it is read from its file."""
    read: dict[str, Any] = json.loads((ROOT / "deploy/grafana/forebay.json").read_text(encoding="utf-8"))
    return read


def curves(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_file_is_what_the_code_writes() -> None:
    """Never edited by hand: `python -m proxy.telemetry.dashboard > deploy/grafana/forebay.json` mends it."""
    assert (ROOT / "deploy/grafana/forebay.json").read_text(encoding="utf-8") == made.text()


def test_it_imports_into_any_grafana_from_version_10(board: dict[str, Any]) -> None:
    """It carries no id of one installation, and asks for its data source with a variable."""
    assert "id" not in board
    assert board["schemaVersion"] == 38
    assert re.fullmatch(r"[\w-]{1,40}", board["uid"])
    assert {"panels", "templating", "time", "title", "annotations"} <= board.keys()
    asked = {"type": "prometheus", "uid": "${datasource}"}
    for panel in curves(board):
        assert panel["datasource"] == asked
        assert all(target["datasource"] == asked for target in panel["targets"])


def test_it_can_be_narrowed_to_an_instance_and_a_route(board: dict[str, Any]) -> None:
    """Every variable that an expression uses is there, takes all values, and comes from a metric that exists."""
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == ["datasource", "instance", "route"]
    assert variables["datasource"]["query"] == "prometheus"
    for name in ("instance", "route"):
        assert variables[name]["allValue"] == ".*"
        assert variables[name]["multi"]
        assert variables[name]["includeAll"]
        asked = re.match(r"label_values\((forebay_\w+)", variables[name]["query"]["query"])
        assert asked is not None
        assert asked[1] in {metric.name for metric in c.CATALOGUE}
    used = set(re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in curves(board)])))
    assert used == {"instance", "route", "__rate_interval"}


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    """Each panel has a place and an id of its own within Grafana's 24 columns."""
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 for at in places)
    for a, b in combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (a, b)


def test_each_panel_says_what_it_shows_and_what_to_do(board: dict[str, Any]) -> None:
    """A panel has a description, a unit, and a legend with the labels that its expression keeps."""
    titles = [panel["title"] for panel in board["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in curves(board):
        assert len(panel["description"]) > 60, panel["title"]
        for other in re.findall("“(.+?)”", panel["description"]):
            assert other in titles, f"{panel['title']} sends the reader to {other}"
        assert panel["fieldConfig"]["defaults"]["unit"] in {"reqps", "ops", "percentunit", "s", "bytes", "none"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert len({target["legendFormat"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["legendFormat"]
            kept = set(re.findall(r"\w+", ",".join(re.findall(r"by \((.*?)\)", target["expr"]))))
            if kept:
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target


def test_expressions_ask_for_labels_that_their_metrics_have(board: dict[str, Any]) -> None:
    """No expression matches or groups by a label that the catalogue does not know."""
    known = {metric.name: {label.name for label in metric.labels} | {"instance", "le"} for metric in c.CATALOGUE}
    for panel in curves(board):
        for target in panel["targets"]:
            for name, matchers in re.findall(r"(forebay_\w+?)(?:_bucket|_sum|_count)?{(.*?)}", target["expr"]):
                assert set(re.findall(r"(\w+)=", matchers)) <= known[name], target["expr"]
                assert "instance" in matchers
                assert ("route" in matchers) == ("route" in known[name]), target["expr"]
                grouped = re.findall(r"\w+", ",".join(re.findall(r"by \((.*?)\)", target["expr"])))
                assert set(grouped) <= known[name], target["expr"]


def test_every_metric_is_on_the_dashboard() -> None:
    """What is worth counting is worth seeing."""
    asked = " ".join(expr for _, expr in made.expressions())
    assert [metric.name for metric in c.CATALOGUE if metric.name not in asked] == []


def test_expressions_come_with_their_variables_filled_in() -> None:
    """Whoever runs them outside Grafana needs to know no variable."""
    filled = made.expressions(route="a|b", instance="here", rate_interval="7s")
    assert not [expr for _, expr in filled if "$" in expr]
    title, expr = filled[0]
    assert title == "Requests by outcome"
    assert expr == 'sum by (outcome) (rate(forebay_requests_total{instance=~"here",route=~"a|b"}[7s]))'
