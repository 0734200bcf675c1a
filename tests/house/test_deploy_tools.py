"""What lies under deploy/, judged by the tools of those who read it."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controlplane.config import load
from controlplane.operate.deployment import FILES

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "penstock"
TOOLS = Path(sys.executable).parent
KUBERNETES = "1.31"
SECURED = ["nats.url=tls://nats:4222", "nats.secret=bus", "nats.files={ca.pem,user.creds}"]
ROLES = ["nats.roles=bus-roles"]
WATCHED = ["prometheus.serviceMonitor=true", "prometheus.rules=true"]


def run(tool: str, *arguments: str | Path) -> str:
    """What the tool prints; it is happy."""
    command = [str(TOOLS / tool), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(*settings: str, chart: Path = CHART, name: str = "gpu") -> list[dict[str, Any]]:
    """What the chart makes, released by that name."""
    text = run("helm", "template", name, chart, *(part for each in settings for part in ("--set", each)))
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize("chart", sorted(CHART.parent.iterdir()), ids=lambda chart: chart.name)
def test_a_chart_passes_its_lint(chart: Path) -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", chart)


@pytest.mark.parametrize("settings", [[], SECURED, ROLES, WATCHED], ids=["plain", "secured", "roles", "watched"])
def test_what_the_chart_makes_is_kubernetes(settings: Sequence[str]) -> None:
    documents = rendered(*settings)
    kinds = {document["kind"] for document in documents}
    assert kinds >= {"ConfigMap", "Service", "StatefulSet"}
    for document in documents:
        if not document["apiVersion"].startswith("monitoring.coreos.com"):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    if settings == WATCHED:
        rules = next(d for d in documents if d["kind"] == "PrometheusRule")
        assert rules["spec"]["groups"][0]["rules"]


def test_the_charts_daemon_is_told_its_secrets_and_its_configuration_is_right(tmp_path: Path) -> None:
    documents = {document["kind"]: document for document in rendered(*SECURED)}
    pod = documents["StatefulSet"]["spec"]["template"]["spec"]
    for container in pod["containers"]:
        told = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert told["PENSTOCK_NATS_CREDENTIALS"] == "/etc/penstock-nats/user.creds"
        assert told["PENSTOCK_NATS_CA"] == "/etc/penstock-nats/ca.pem"
        assert "PENSTOCK_NATS_NKEY" not in told
    path = tmp_path / "penstock.toml"
    path.write_text(documents["ConfigMap"]["data"]["penstock.toml"])
    assert load(path).http.listen == "0.0.0.0:9467"


def test_each_container_of_the_chart_is_its_own_user_of_the_bus() -> None:
    stateful = next(document for document in rendered(*ROLES) if document["kind"] == "StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    assert {"name": "roles", "secret": {"secretName": "bus-roles", "defaultMode": 0o440}} in pod["volumes"]
    for container, role in zip(pod["containers"], ("engine", "daemon"), strict=True):
        (mounted,) = (mount for mount in container["volumeMounts"] if mount["name"] == "roles")
        assert mounted["subPathExpr"] == f"$(PENSTOCK_NODE).{role}.env"
        told = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert told["PENSTOCK_NATS_URL_FILE"] == mounted["mountPath"]
        assert "PENSTOCK_NATS_URL" not in told


def test_the_compose_file_is_one_and_its_files_exist() -> None:
    path = DEPLOY / "compose" / "compose.yaml"
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    for service in yaml.safe_load(path.read_text())["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (path.parent / source).exists(), volume
        build = service.get("build")
        assert not build or (path.parent / build["context"] / build["dockerfile"]).exists()
    assert load(DEPLOY / "compose" / "penstock" / "penstock.toml").preset == "penstock"


@pytest.mark.parametrize("path", sorted((DEPLOY / "container").iterdir()), ids=lambda path: path.name)
def test_container_files_pass_their_lint(path: Path) -> None:
    run("hadolint", path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze comes with systemd only")
@pytest.mark.parametrize("path", sorted((FILES / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_units_are_right_and_hardened(path: Path) -> None:
    verify = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    said = [line for line in verify.stderr.splitlines() if path.stem.rstrip("@") in line]
    assert [line for line in said if "is not executable" not in line] == []  # nothing is installed here
    offline = ["systemd-analyze", "security", "--offline=true", "--threshold=20", path]
    judged = subprocess.run(offline, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout[-2000:]  # exposure of at most 2.0
