"""Promises of deploy/compose.yaml: valid, and every name in it is one that the program knows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Settings, load, variable
from proxy.config_reader import leaves
from proxy.config_rules import host_port
from proxy.telemetry import dashboard
from tests.packaging.dockerfile import parse
from tests.parts.availability import missing

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VARIABLES = {variable(path) for path, _ in leaves(Settings)} | {"FOREBAY_UPSTREAM"}


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(read("compose.yaml")["services"])


@pytest.fixture
def settings(services: dict[str, Any]) -> Settings:
    """What Forebay runs with there: the image's configuration, and the variables, those of the shell left out."""
    environ = {name: "" if text.startswith("$") else text for name, text in services["forebay"]["environment"].items()}
    return load(ROOT / "config/container.yaml", environ, {})


def in_container(port: str) -> int:
    return int(port.rpartition(":")[2])


def test_compose_takes_it() -> None:
    """No key is unknown or of another type, by the schema of the Compose specification."""
    program = Path(sys.executable).with_name("check-jsonschema")
    if not program.exists():
        missing("check-jsonschema", "make setup")
    done = subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_prometheus_takes_its_configuration() -> None:
    """Prometheus' own check has nothing against it."""
    try:
        done = subprocess.run(
            ["promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        missing("Debian's prometheus (promtool)", "apt-get install prometheus")
    assert done.returncode == 0, done.stdout + done.stderr


def test_forebay_goes_before_triton_with_redis(services: dict[str, Any], settings: Settings) -> None:
    """Its variables are settings, and what they name are services of the file at their own ports."""
    assert set(services["forebay"]["environment"]) <= VARIABLES
    assert settings.upstream.targets == ("http://triton:8000",)
    assert settings.redis == "redis://redis:6379"
    assert {"triton", "redis"} < services.keys()
    assert "tritonserver" in services["triton"]["command"]


def test_clients_and_people_reach_it(services: dict[str, Any], settings: Settings) -> None:
    """The published ports are those that it listens on; nothing is published beyond this machine."""
    published = services["forebay"]["ports"]
    assert list(map(in_container, published)) == [host_port(settings.listen)[1], host_port(settings.admin)[1]]
    for service in services.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    for name in ("triton", "redis"):
        assert "ports" not in services[name], "clients would go past Forebay"


def test_it_is_started_as_the_image_wants(services: dict[str, Any], settings: Settings) -> None:
    """Read-only, without capabilities, from the Dockerfile, and with the time that draining takes."""
    forebay = services["forebay"]
    assert (DEPLOY / forebay["build"] / "Dockerfile").exists()
    assert forebay["read_only"]
    assert forebay["cap_drop"] == ["ALL"]
    assert float(forebay["stop_grace_period"].removesuffix("s")) > settings.drain_timeout
    assert not {"command", "entrypoint", "healthcheck", "user"} & forebay.keys(), "the image says them"
    assert {step.verb for step in parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1].steps} >= {
        "USER",
        "HEALTHCHECK",
        "ENTRYPOINT",
    }


def test_prometheus_scrapes_what_is_there(services: dict[str, Any], settings: Settings) -> None:
    """Forebay at its admin port, and services that exist."""
    jobs = {job["job_name"]: job for job in read("prometheus/prometheus.yml")["scrape_configs"]}
    assert jobs["forebay"]["static_configs"] == [{"targets": [f"forebay:{host_port(settings.admin)[1]}"]}]
    assert jobs["forebay"].get("metrics_path", "/metrics") == "/metrics"
    for job in jobs.values():
        (scraped,) = job["static_configs"][0]["targets"]
        assert scraped.partition(":")[0] in services


def test_every_file_that_is_mounted_is_there(services: dict[str, Any]) -> None:
    """Docker would make an empty folder of a name that is not, and say nothing."""
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.rpartition(":")[0].rpartition(":")[0]
            assert source.startswith("$") or (DEPLOY / source).is_file(), volume
            assert volume.endswith(":ro")


def test_grafana_shows_the_dashboard_first(services: dict[str, Any]) -> None:
    """The data source is Prometheus of the file, the dashboard is ours and lies where Grafana looks for it."""
    mounted = {
        path.partition(":")[2].removesuffix(":ro"): path.partition(":")[0] for path in services["grafana"]["volumes"]
    }
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert json.loads((DEPLOY / mounted[home]).read_text(encoding="utf-8")) == dashboard.dashboard()
    (provider,) = read(mounted["/etc/grafana/provisioning/dashboards/forebay.yaml"])["providers"]
    assert str(Path(home).parent) == provider["options"]["path"]
    (source,) = read(mounted["/etc/grafana/provisioning/datasources/forebay.yaml"])["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    host, port = host_port(source["url"].removeprefix("http://"))
    assert host in services
    assert port == in_container(services[host]["ports"][0])
    scraped = read("prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_images_are_named_by_version(services: dict[str, Any]) -> None:
    """What is tried today is what runs tomorrow: no image goes without a tag but ours and the one the user names."""
    for name, service in services.items():
        if name not in {"forebay", "triton"}:
            tag = service["image"].rpartition(":")[2]
            assert re.search(r"\d", tag), service["image"]


def test_the_variables_of_the_shell_are_documented() -> None:
    """Every variable that the file takes from the shell stands in docs/deploy.md."""
    wanted = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8")))
    table = (ROOT / "docs/deploy.md").read_text(encoding="utf-8").partition("## With compose")[2].partition("## In ")[0]
    assert wanted == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
