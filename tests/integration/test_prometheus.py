"""What lies under deploy/ for Prometheus and Grafana, in the real Prometheus: rules fire, panels have data."""

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.daemon_process import until
from support.ports import free_port
from support.programs import found, needs
from support.whole_loop import Loop

from controlplane.operate.deployment import FILES

pytestmark = needs("prometheus", "promtool")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = FILES / "prometheus" / "penstock.rules.yml"
INSTANCE = {"instance": "gpu7", "job": "penstock"}
PROGRAMS = 12
TIMEOUT_S = 240.0
# By alert: the series that make it fire, minute by minute; a minute in which it does not yet (0: none), and one in
# which it does.
TROUBLE: dict[str, tuple[dict[str, str], int, int]] = {
    "PenstockDaemonDown": ({"up": "0x9"}, 0, 9),
    "PenstockBad": ({'penstock_finding{finding="bus_away",level="bad"}': "1x9"}, 0, 9),
    "PenstockLook": ({'penstock_finding{finding="turns_refused",level="look"}': "1x9"}, 0, 9),
    "PenstockNote": ({'penstock_finding{finding="draining",level="note"}': "1x400"}, 239, 300),
    "PenstockEngineDown": ({'penstock_engine_up{engine="gpu7/engine-30000"}': "0x9"}, 0, 9),
    "PenstockNoLeader": ({'penstock_leading{node="fleet"}': "0x9"}, 0, 9),
    "PenstockProgramsWaitLong": (
        {
            'penstock_hold_seconds_bucket{le="60"}': "0x40",
            'penstock_hold_seconds_bucket{le="300"}': "0+5x40",
            'penstock_hold_seconds_bucket{le="+Inf"}': "0+5x40",
        },
        9,
        40,
    ),
    "PenstockKvOverloaded": ({'penstock_overloaded{side="kv"}': "1x40"}, 4, 40),
    "PenstockToolHostOverloaded": ({'penstock_overloaded{side="cpu"}': "1x40"}, 4, 40),
    "PenstockCacheMisses": (
        {'penstock_tokens_total{kind="cached"}': "0+200x40", 'penstock_tokens_total{kind="prompt"}': "0+1000x40"},
        14,
        40,
    ),
    "PenstockClientRepeatsPrefill": (
        {
            'penstock_misses_tokens_total{client="claude-cli 2.1.197",side="client"}': "0+4100x60",
            'penstock_prefill_tokens_total{client="claude-cli 2.1.197"}': "0+10000x60",
        },
        14,
        60,
    ),
    "PenstockHitsDied": (
        {
            'penstock_tokens_total{kind="cached"}': "0+900x180 162000+200x60",
            'penstock_tokens_total{kind="prompt"}': "0+1000x240",
        },
        185,
        205,
    ),
}
QUIET = {
    "up": "1x400",
    'penstock_finding{finding="bus_away",level="bad"}': "0x400",
    'penstock_finding{finding="engine_down",level="bad"}': "1x400",
    'penstock_finding{finding="frozen",level="look"}': "0x400",
    'penstock_finding{finding="draining",level="note"}': "1x200 0x200",
    'penstock_finding{finding="stands_by",level="note"}': "1x400",
    'penstock_engine_up{engine="gpu7/engine-30000"}': "1x400",
    'penstock_leading{node="fleet",pod="a"}': "1x400",
    'penstock_leading{node="fleet",pod="b"}': "0x400",
    'penstock_overloaded{side="kv"}': "0 0 1 0x400",
    'penstock_tokens_total{kind="cached"}': "0+900x400",
    'penstock_tokens_total{kind="prompt"}': "0+1000x400",
    'penstock_misses_tokens_total{client="c 1",side="client",cause="compacted"}': "0+500x400",
    'penstock_prefill_tokens_total{client="c 1"}': "0+10000x400",
    'penstock_hold_seconds_bucket{le="60"}': "0+5x400",
    'penstock_hold_seconds_bucket{le="300"}': "0+5x400",
    'penstock_hold_seconds_bucket{le="+Inf"}': "0+5x400",
}


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def of_instance(series: str) -> str:
    name, _, labels = series.removesuffix("}").partition("{")
    ours = ",".join(f'{label}="{value}"' for label, value in INSTANCE.items())
    return f"{name}{{{ours}{',' if labels else ''}{labels}}}"


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run([found("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_good() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", "--syntax-only", DEPLOY / "compose" / "prometheus.yml")


def case(name: str, series: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    """For promtool: of the alerts exactly the expected ones are up."""
    inputs = [{"series": of_instance(each), "values": values} for each, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": inputs, "alert_rule_test": expected}


def trouble(alert: str) -> dict[str, Any]:
    """It is silent at first, and fires when its trouble has lasted."""
    rule = alerts()[alert]
    series, silent_minute, loud_minute = TROUBLE[alert]
    whose = INSTANCE | dict(re.findall(r'(\w+)="([^"]*)"', next(iter(series))))
    if by := re.search(r"sum by \(([^)]*)\)", rule["expr"]):
        whose = {label: whose[label] for label in by[1].split(", ") if label != "le"}
    labels = {**whose, **rule["labels"]}
    texts = {
        kind: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: labels[label.group(1)], text).replace(
            "{{ $value | humanizePercentage }}", "41%"
        )
        for kind, text in rule["annotations"].items()
    }
    expected = [{"exp_labels": labels, "exp_annotations": texts}]
    moments: list[dict[str, Any]] = [{"eval_time": f"{loud_minute}m", "alertname": alert, "exp_alerts": expected}]
    if silent_minute:
        moments.insert(0, {"eval_time": f"{silent_minute}m", "alertname": alert, "exp_alerts": []})
    return case(alert, series, moments)


def test_an_alert_fires_when_its_trouble_has_lasted_and_none_without(tmp_path: Path) -> None:
    assert alerts().keys() == TROUBLE.keys()
    silent = [{"eval_time": "390m", "alertname": alert, "exp_alerts": []} for alert in TROUBLE]
    cases = [*map(trouble, TROUBLE), case("all is well", QUIET, silent)]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", file)


@dataclass(frozen=True)
class Prometheus:
    """A running one, and from when on it was used."""

    url: str
    began_s: float

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=TIMEOUT_S
        ) as reply:
            return json.load(reply)["data"]

    def scraped_s(self) -> float:
        """When it had the latest of the daemon's samples."""
        found = self.ask("/api/v1/query", query="timestamp(penstock_bus_connected)")["result"]
        return max((float(one["value"][1]) for one in found), default=0.0)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with the files of deploy/, after a workload on a daemon and an engine double."""
    folder = tmp_path_factory.mktemp("prometheus")
    target, listen = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    (folder / "penstock.toml").write_text(
        f'[http]\nlisten = "{target}"\n[admission]\nwindow_initial = 2\nwindow_max = 3\n'
    )
    text = (DEPLOY / "compose" / "prometheus.yml").read_text()
    text = text.replace("penstock:9467", target).replace("5s", "1s\n  evaluation_interval: 1s")
    text = text.replace("penstock.rules.yml", str(RULES))
    (folder / "prometheus.yml").write_text(text)
    loop = Loop(folder, "mars", daemon=("--config", str(folder / "penstock.toml")), time_scale=20)
    command = [found("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={listen}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log)
    server = Prometheus(f"http://{listen}", time.time())
    try:
        loop.start()
        until(server.is_ready, "Prometheus that is ready")
        for _ in range(2):  # a rate is of what grew between two scrapes, however many came meanwhile
            assert len(loop.run(PROGRAMS).programs) == PROGRAMS
            ended_s = time.time()
            until(lambda since_s=ended_s: server.scraped_s() > since_s, "scrape behind it")
        yield server
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
        loop.stop()


def panels() -> list[tuple[str, str]]:
    dashboard = json.loads((FILES / "grafana" / "penstock.json").read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_it_scrapes_the_daemon_and_knows_the_rules(scraped: Prometheus) -> None:
    def all_is_well() -> bool:
        """A scrape that a busy machine does not answer within a second is an outage, until the next one."""
        (target,) = scraped.ask("/api/v1/targets")["activeTargets"]
        (group,) = scraped.ask("/api/v1/rules")["groups"]
        healths = {rule["name"]: rule["health"] for rule in group["rules"]}
        firing = [rule["name"] for rule in group["rules"] if rule["state"] == "firing"]
        return target["health"] == "up" and healths == dict.fromkeys(alerts(), "ok") and firing == []

    until(all_is_well, "target and rule that are well, without an alert")


def test_each_query_of_the_dashboard_has_data(scraped: Prometheus) -> None:
    period = {"start": f"{scraped.began_s}", "end": f"{time.time()}", "step": "0.5"}

    def has_data(expression: str) -> bool:
        asked = expression.replace("$instance", ".+").replace("$__rate_interval", "1h")
        series = scraped.ask("/api/v1/query_range", query=asked, **period)["result"]
        return any(math.isfinite(float(value)) for one in series for _, value in one["values"])

    assert [(title, asked) for title, asked in panels() if not has_data(asked)] == []
