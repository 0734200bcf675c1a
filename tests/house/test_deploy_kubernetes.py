"""The fleet's chart and the examples for Kubernetes, judged by Kubernetes' own schemas.

Of resources that other projects define there is no schema here: what is asked of them is written down below, from
their reference pages.
"""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import test_deploy_tools
import yaml
from prometheus_client.parser import text_string_to_metric_families
from test_deploy_tools import KUBERNETES, SECURED

from controlplane.config import load

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from metrics_example import exposed_example  # noqa: E402

CHART = ROOT / "deploy" / "helm" / "penstock-fleet"
EXAMPLES = ROOT / "deploy" / "kubernetes"
OTHERS = ("inference.networking.k8s.io", "gateway.networking.k8s.io", "monitoring.coreos.com", "keda.sh")
WATCHED = ["prometheus.serviceMonitor=true", "inferencePool.create=false", "engines.ports={30000,30001}"]
_PLACED = "kubernetes.io/service-name"


rendered = partial(test_deploy_tools.rendered, chart=CHART, name="fleet")


def named(documents: Sequence[dict[str, Any]], kind: str, name: str = "fleet") -> dict[str, Any]:
    (found,) = (each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def examples() -> list[tuple[str, dict[str, Any]]]:
    """Each document of deploy/kubernetes that is a resource, with its file's name."""
    found = []
    for path in sorted(EXAMPLES.glob("*.yaml")):
        found += [(path.name, each) for each in yaml.safe_load_all(path.read_text()) if "apiVersion" in each]
    return found


def is_anothers(document: dict[str, Any]) -> bool:
    return bool(document["apiVersion"].startswith(OTHERS))


@pytest.fixture(scope="module")
def plain() -> list[dict[str, Any]]:
    return rendered()


@pytest.mark.parametrize("settings", [[], SECURED, WATCHED], ids=["plain", "secured", "watched"])
def test_what_the_chart_makes_is_kubernetes(settings: Sequence[str]) -> None:
    documents = rendered(*settings)
    for document in documents:
        if not is_anothers(document):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    assert any(each["kind"] == "InferencePool" for each in documents) is (settings != WATCHED)
    told = {each["name"]: each.get("value") for each in container(documents)["env"]}
    assert (told.get("PENSTOCK_NATS_CA") == "/etc/penstock-nats/ca.pem") is (settings == SECURED)


def container(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (only,) = named(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_the_picker_is_asked_at_its_leader_alone(plain: list[dict[str, Any]]) -> None:
    service, told = named(plain, "Service"), named(plain, "EndpointSlice", "fleet-leader")
    assert "selector" not in service["spec"], "with one every pod would be an endpoint"
    assert told["metadata"]["labels"][_PLACED] == service["metadata"]["name"]
    (port,), (same,) = service["spec"]["ports"], told["ports"]
    assert (port["name"], port["port"]) == (same["name"], same["port"])
    assert port["name"].startswith("grpc-")  # by which Istio knows what it speaks
    assert port["port"] in {each["containerPort"] for each in container(plain)["ports"]}


def test_the_leader_may_write_its_slice_and_nothing_else(plain: list[dict[str, Any]]) -> None:
    rules = named(plain, "Role")["rules"]
    for rule in rules:
        writes = set(rule["verbs"]) - {"get", "list", "watch"}
        assert not writes or rule["resourceNames"] == ["fleet-leader"], rule
        assert {each.partition("/")[0] for each in rule["resources"]} == {"endpointslices"}


def test_pods_roll_and_are_evicted_one_at_a_time(plain: list[dict[str, Any]]) -> None:
    """Ready is who follows the stream: with leadership as readiness a standby would block both for ever."""
    deployment, budget = named(plain, "Deployment")["spec"], named(plain, "PodDisruptionBudget")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert budget["maxUnavailable"] == 1
    probes = container(plain)
    assert probes["livenessProbe"]["grpc"] == {"port": 9002, "service": "liveness"}
    assert probes["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_configuration_is_right_and_names_what_the_chart_makes(
    plain: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in container(plain)["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "some-pod"))
    path = tmp_path / "penstock.toml"
    path.write_text(named(plain, "ConfigMap")["data"]["penstock.toml"])
    config = load(path)
    told = config.fleet.kubernetes
    assert (config.node, config.nats_url, told.pod) == ("fleet", "nats://nats:4222", "some-pod")
    assert named(plain, "Service", told.engines)["spec"]["clusterIP"] == "None"
    assert named(plain, "EndpointSlice", told.leader)
    ports = {int(address.rpartition(":")[2]) for address in (config.http.listen, config.fleet.listen)}
    assert ports == {each["containerPort"] for each in container(plain)["ports"]}


def test_pool_and_roster_are_the_same_pods_and_ports() -> None:
    documents = rendered("engines.ports={30000,30001}")
    pool, engines = named(documents, "InferencePool")["spec"], named(documents, "Service", "fleet-engines")["spec"]
    assert pool.keys() == {"selector", "targetPorts", "endpointPickerRef"}
    assert pool["selector"] == {"matchLabels": engines["selector"]}
    assert [each["number"] for each in pool["targetPorts"]] == [each["port"] for each in engines["ports"]]
    assert 1 <= len(pool["targetPorts"]) <= 8
    picker = pool["endpointPickerRef"]
    assert picker["failureMode"] in ("FailOpen", "FailClose")
    assert named(documents, picker["kind"], picker["name"])["spec"]["ports"][0]["port"] == picker["port"]["number"]


@pytest.mark.parametrize(
    ("where", "document"), examples(), ids=lambda it: it if isinstance(it, str) else it["kind"]
)
def test_examples_are_resources(where: str, document: dict[str, Any], plain: list[dict[str, Any]]) -> None:
    kind, spec = document["kind"], document["spec"]
    if not is_anothers(document):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    elif kind == "HTTPRoute":
        (backend,) = spec["rules"][0]["backendRefs"]
        assert backend["group"] == named(plain, backend["kind"], backend["name"])["apiVersion"].partition("/")[0]
        gateways = {each["metadata"]["name"] for _, each in examples() if each["kind"] == "Gateway"}
        assert {each["name"] for each in spec["parentRefs"]} <= gateways
    elif kind == "ScaledObject":
        assert spec.keys() >= {"scaleTargetRef", "triggers", "minReplicaCount", "maxReplicaCount"}
        for trigger in spec["triggers"]:
            assert all(isinstance(value, str) for value in trigger["metadata"].values())
            assert trigger["metadata"].keys() >= {"serverAddress", "query", "threshold"}
    else:
        assert kind == "Gateway", where


def test_what_is_scaled_by_is_measured() -> None:
    known = {
        sample.name
        for family in text_string_to_metric_families(exposed_example().decode())
        for sample in family.samples
    }
    for name in ("keda.yaml", "hpa.yaml"):
        asked = set(re.findall(r"\bpenstock_\w+", (EXAMPLES / name).read_text())) - {
            "penstock_engine_tokens_wanted"
        }
        assert asked and asked <= known


def test_the_bus_is_three_servers_that_write_at_once() -> None:
    config = yaml.safe_load((EXAMPLES / "nats-values.yaml").read_text())["config"]
    assert config["cluster"] == {"enabled": True, "replicas": 3}
    assert config["jetstream"]["merge"] == {"sync_interval": "always"}
