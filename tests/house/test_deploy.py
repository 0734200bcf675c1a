"""What lies under deploy/ names what exists."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from controlplane.operate.deployment import FILES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from generate_dashboard import dashboard  # noqa: E402
from metrics_example import exposed_example  # noqa: E402

RULES = FILES / "prometheus" / "penstock.rules.yml"
PAGE = ROOT / "controlplane" / "daemon" / "api" / "page" / "index.html"
DASHBOARD = FILES / "grafana" / "penstock.json"
_METRIC = re.compile(r"\bpenstock_\w+")
_LABELS = re.compile(r"(penstock_\w+)\{([^}]*)\}")


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, set[str]]]:
    """By the name of a sample its labels and their values."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(exposed_example().decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Where, and the expression."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_and_label_exists(
    where: str, expression: str, samples: dict[str, dict[str, set[str]]]
) -> None:
    names = _METRIC.findall(expression)
    assert names or where == "PenstockDaemonDown"
    assert set(names) <= samples.keys()
    for name, matchers in _LABELS.findall(expression):
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            if label == "instance":
                continue
            assert set(value.split("|")) <= samples[name][label], f"{where}: {name} has no {label}={value}"


def test_legends_name_labels_that_exist(samples: dict[str, dict[str, set[str]]]) -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert any(label in samples[name] for name in _METRIC.findall(target["expr"])), target


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() - {"page"} == {"summary", "description"}
            assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_alerts_lead_to_a_part_of_the_page_that_exists() -> None:
    """All but those whose daemon does not answer, or that are of no one daemon."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules if "page" not in rule["annotations"]} == {
        "PenstockDaemonDown",
        "PenstockNoLeader",
    }
    page = PAGE.read_text()
    for rule in rules:
        address, _, part = rule["annotations"].get("page", "").partition("#")
        assert address in ("", "http://{{ $labels.instance }}/")
        assert not part or f'id="{part}"' in page


def test_the_dashboard_is_generated() -> None:
    assert json.loads(DASHBOARD.read_text()) == dashboard()
