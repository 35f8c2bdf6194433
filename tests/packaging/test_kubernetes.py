"""Promises of deploy/kubernetes: valid, and every name in it is one that the program knows."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from proxy import __version__
from proxy.admin import Admin, Watched
from proxy.cli import parser
from proxy.config import Settings, load, variable
from proxy.config_reader import leaves
from proxy.config_rules import host_port
from tests.packaging.dockerfile import parse
from tests.parts.availability import missing
from tests.parts.forebay_process import PATIENCE, ForebayProcess, forebay_process
from tests.parts.model_backend import model_server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
OLDEST: Final = "1.29"  # the first that starts native sidecars without being asked to
TOKEN: Final = "a-token-of-the-test"
VARIABLES = {variable(path) for path, _ in leaves(Settings)} | {"FOREBAY_UPSTREAM"}


def manifest(kind: str) -> dict[str, Any]:
    """The one manifest of a kind."""
    (found,) = (
        document
        for file in FILES
        for document in yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8"))
        if document["kind"] == kind
    )
    return dict(found)


def pod() -> dict[str, Any]:
    return dict(manifest("Deployment")["spec"]["template"]["spec"])


def sidecar() -> dict[str, Any]:
    (found,) = pod()["initContainers"]
    return dict(found)


def model() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def probes(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: probe for name, probe in container.items() if name.endswith("Probe")}


def settings(tmp_path: Path) -> Settings:
    """What the sidecar runs with: arguments, variables (with values for those of the Secret), the ConfigMap's file."""
    file = tmp_path / "forebay.yaml"
    file.write_text(manifest("ConfigMap")["data"]["forebay.yaml"])
    options = parser().parse_args(sidecar()["args"])
    assert options.command == "serve"
    values = {"FOREBAY_REDIS": "redis://redis:6379"}
    environ = {entry["name"]: values.get(entry["name"], TOKEN) for entry in sidecar()["env"]}
    return load(file, environ, {})


def readable() -> set[str]:
    """Paths that the admin listener answers to GET."""

    async def nothing() -> bytes:
        return b""

    watched = Watched(nothing, lambda: None, lambda: False, lambda: 0, lambda: False, lambda: None, dict)
    routes = Admin(watched, host="127.0.0.1", token=None).application().router.routes()
    return {route.resource.canonical for route in routes if route.method == "GET" and route.resource is not None}


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("file", FILES)
def test_kubernetes_takes_it(file: str, version: str) -> None:
    """No field is unknown or of another type, in the oldest version that has native sidecars and in the newest."""
    for document in yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")):
        kubernetes_validate.validate(document, version, strict=True)


def test_what_is_applied_fits_together() -> None:
    """Selectors select the pods, and what the pod mounts is there or named in the documentation."""
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("Deployment")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifest("Service")["spec"]["selector"].items() <= labels.items()
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    for container in (sidecar(), model()):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
    assert volumes["config"]["configMap"]["name"] == manifest("ConfigMap")["metadata"]["name"]
    guide = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] in re.findall(r"claim `(\w+)`", guide)
    created = re.search(r"kubectl create secret generic (\S+)((?:[^\n]*\\\n)*[^\n]*)", guide)
    assert created is not None
    made = set(re.findall(r"--from-literal=([\w-]+)=", created[2]))
    for entry in sidecar()["env"] + model()["env"]:
        wanted = entry["valueFrom"]["secretKeyRef"]
        assert wanted["name"] == created[1]
        assert wanted["key"] in made or wanted.get("optional"), entry
        assert f"`{wanted['key']}`" in guide


def test_the_sidecar_is_a_native_one_of_this_version() -> None:
    """It starts before the model and is signalled after it."""
    assert sidecar()["restartPolicy"] == "Always"
    assert sidecar()["image"] == f"forebay:{__version__}"


def test_every_variable_is_a_setting(tmp_path: Path) -> None:
    """A variable that Forebay does not know would keep it from starting, and one misspelt would do nothing."""
    assert {entry["name"] for entry in sidecar()["env"]} <= VARIABLES
    loaded = settings(tmp_path)
    assert (loaded.admin_token, loaded.cache.proof_key, loaded.redis) == (TOKEN, TOKEN, "redis://redis:6379")


def test_its_file_is_where_its_arguments_say() -> None:
    """The ConfigMap is mounted where `--config` looks, which is where the image has its own."""
    (mount,) = (mount for mount in sidecar()["volumeMounts"] if mount["name"] == "config")
    (name,) = manifest("ConfigMap")["data"]
    assert sidecar()["args"] == ["serve", "--config", f"{mount['mountPath']}/{name}"]
    shipped = parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1]
    assert sidecar()["args"] == shipped.last("CMD").words


def test_ports_are_those_that_it_listens_on_and_can_be_reached(tmp_path: Path) -> None:
    """Clients, the kubelet and Prometheus come from outside of the pod, and come to the right port."""
    loaded = settings(tmp_path)
    ports = {port["name"]: port["containerPort"] for port in sidecar()["ports"]}
    assert {"data": host_port(loaded.listen)[1], "admin": host_port(loaded.admin)[1]} == ports
    assert host_port(loaded.listen)[0] == host_port(loaded.admin)[0] == "0.0.0.0"
    (served,) = manifest("Service")["spec"]["ports"]
    assert served["targetPort"] == "data"
    notes = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(ports["admin"])
    assert notes["prometheus.io/path"] in readable()
    assert loaded.upstream.targets == ("http://127.0.0.1:8000",)


def test_probes_ask_what_the_admin_listener_answers() -> None:
    """Starting does not wait for the model, which starts later; living does not depend on it; readiness does."""
    asked = {name: (probe["httpGet"]["port"], probe["httpGet"]["path"]) for name, probe in probes(sidecar()).items()}
    assert asked == {
        "startupProbe": ("admin", "/startupz"),
        "livenessProbe": ("admin", "/livez"),
        "readinessProbe": ("admin", "/readyz"),
    }
    assert {path for _, path in asked.values()} <= readable()


def test_a_busy_moment_fails_no_probe() -> None:
    """Every probe waits longer than a second: a loaded node answers late."""
    for container in (sidecar(), model()):
        for probe in probes(container).values():
            assert probe["timeoutSeconds"] > 1


def test_a_model_that_restarts_alone_never_leaves_a_drained_forebay() -> None:
    """Kubernetes runs preStop before it restarts a container whose probe failed: so the model has no such probe."""
    assert "preStop" in model()["lifecycle"]
    assert not {"livenessProbe", "startupProbe"} & model().keys()


def test_the_sidecar_may_do_nothing_but_serve() -> None:
    """No root, no capability, no file to write, no token of the cluster."""
    context = sidecar()["securityContext"]
    shipped = parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == shipped.last("USER").text
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not pod()["automountServiceAccountToken"]


def test_memory_is_enough_for_what_it_may_hold(tmp_path: Path) -> None:
    """The response cache takes at most a quarter of the limit, and with buffered bodies room is left."""
    loaded = settings(tmp_path)
    limit = sidecar()["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    gib = int(limit.removesuffix("Gi")) << 30
    assert loaded.cache.memory <= gib / 4
    assert loaded.cache.memory + loaded.limits.buffered <= gib * 0.6


def pre_stop() -> list[str]:
    return list(model()["lifecycle"]["preStop"]["exec"]["command"])


def test_pre_stop_has_the_time_it_needs(tmp_path: Path) -> None:
    """Before anything is killed there is time to drain, and then for the model to exit."""
    script = pre_stop()[-1]
    (first,) = map(float, re.findall(r"^sleep (\d+)$", script, re.MULTILINE))
    (tries,) = map(int, re.findall(r'"\$tries" -lt (\d+)', script))
    (pause,) = map(float, re.findall(r"^ +sleep ([\d.]+)$", script, re.MULTILINE))
    drain = settings(tmp_path).drain_timeout
    assert drain < tries * pause
    (exiting,) = (int(word.partition("=")[2]) for word in model()["args"] if word.startswith("--exit-timeout-secs="))
    assert pod()["terminationGracePeriodSeconds"] >= first + tries * pause + exiting
    assert pod()["terminationGracePeriodSeconds"] > drain


@pytest.fixture
def with_token(tmp_path: Path) -> Path:
    """A configuration whose admin listener takes changes from whoever has the token."""
    file = tmp_path / "forebay.yaml"
    file.write_text(f"admin_token: {TOKEN}\n")
    return file


async def run_pre_stop(forebay: ForebayProcess, token: str) -> asyncio.subprocess.Process:
    """The very script, but for the port, and for the time that it gives the cluster."""
    if shutil.which("curl") is None:
        missing("curl", "apt-get install curl")
    *shell, script = pre_stop()
    here = script.replace("http://127.0.0.1:9901/", f"http://{forebay.admin}/").replace("sleep 5\n", "")
    assert here.count(forebay.admin) == 2
    environment = {"PATH": os.environ["PATH"], "FOREBAY_ADMIN_TOKEN": token}
    return await asyncio.create_subprocess_exec(*shell, here, env=environment, stdout=asyncio.subprocess.PIPE)


async def test_pre_stop_ends_when_the_last_caller_has_the_answer(with_token: Path) -> None:
    """The model is not signalled while it owes an answer; and Forebay, signalled last, then ends at once and well."""
    async with model_server() as backend, forebay_process(backend.url, "--config", str(with_token)) as forebay:
        await forebay.ready()
        backend.gate.clear()
        caller = asyncio.create_task(infer(forebay))
        await backend.has_received(1)
        script = await run_pre_stop(forebay, TOKEN)
        await forebay.until("/drained", lambda status, said: "in flight" in said)
        assert script.returncode is None
        backend.gate.set()
        assert await caller == 200
        async with asyncio.timeout(PATIENCE):
            assert await script.wait() == 0
        assert await forebay.asked("/drained") == (200, "drained\n")
        forebay.signal(signal.SIGTERM)
        assert await forebay.exit_code() == 0


async def test_pre_stop_does_not_hang_where_it_cannot_drain(with_token: Path) -> None:
    """A Forebay that refuses, or is gone, costs the model's end no time."""
    async with model_server() as backend, forebay_process(backend.url, "--config", str(with_token)) as forebay:
        await forebay.ready()
        script = await run_pre_stop(forebay, "wrong")
        async with asyncio.timeout(PATIENCE):
            assert await script.wait() == 0
        assert (await forebay.asked("/drained"))[1] == "not draining\n"
        forebay.signal(signal.SIGTERM)
        assert await forebay.exit_code() == 0
        script = await run_pre_stop(forebay, TOKEN)
        async with asyncio.timeout(PATIENCE):
            assert await script.wait() == 0


async def infer(forebay: ForebayProcess) -> int:
    call = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}
    async with forebay.session.post(f"{forebay.url}/v2/models/double/infer", json=call) as answer:
        return answer.status
