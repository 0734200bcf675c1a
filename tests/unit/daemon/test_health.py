"""What is wrong is the same in every view: each finding of the table is made to happen, and looked for in each."""

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import yaml
from anyio import create_task_group, sleep, wait_all_tasks_blocked
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support import strangers
from support.core_driver import Driver, fixed
from support.experiments import MEASURED

from controlplane import clocks
from controlplane.config import Config, Resolved, Source
from controlplane.core.model import events as ev
from controlplane.core.model.text import printable
from controlplane.daemon.api.views import listing
from controlplane.daemon.observe.instruments import STATES, make
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.process.disk import DiskWriter
from controlplane.daemon.process.reload import Reloader
from controlplane.daemon.process.tasks import Failure
from controlplane.daemon.shadow.shadow import Shadow
from controlplane.daemon.status import health_watch
from controlplane.daemon.status.health import RULES, DaemonHealth, Finding, Level, TurnCounts, findings
from controlplane.daemon.status.health_watch import LATELY_S, HealthWatch
from controlplane.daemon.status.status import Refusal, Status, describe
from controlplane.operate.deployment import FILES
from controlplane.operate.doctor import of_status
from controlplane.operate.tables import show_status
from controlplane.operate.top.screen import Look, Screen
from controlplane.transport.listener import ListenerRow
from controlplane.wire.control import METHODS, Fields

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "controlplane" / "daemon" / "api" / "page" / "page.js"
ALERTS = FILES / "prometheus" / "penstock.rules.yml"
STRANGE = "".join(
    strangers.NAMES[case] for case in ("clear screen", "row", "right to left", "closing tag", "element")
)


class Node:
    """A node that is well: an engine with a pool, and nobody on it."""

    def __init__(self) -> None:
        self.driver = Driver(fixed(1))
        self.driver.pool()
        self.pipeline = DecisionPipeline(self.driver.controller)
        self.reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)
        self.own = DaemonHealth()

    def status(self) -> Status:
        return describe(
            self.pipeline,
            self.reloader,
            boot_id="b",
            stream_sequence=1,
            bus_connected=True,
            now_ns=self.driver.now_ns,
            own=self.own,
        )


def shadow_that_failed() -> Any:
    shadow = Shadow(lambda: Driver().controller)
    shadow.configure(Config())
    return replace(shadow.status(0), standing="failed", reason=STRANGE)


WELL = replace(Node().status(), experiment=MEASURED)
TROUBLE: Mapping[str, Callable[[Status], Status]] = {
    "bus_away": lambda s: replace(s, bus_connected=False),
    "engine_down": lambda s: replace(s, engines=replace(s.engines, silent=1, down=("gpu7/engine-30000",))),
    "gate_down": lambda s: replace(s, silent_gates=("gpu7/gate-30000",)),
    "snapshot_not_written": lambda s: replace(
        s, own=DaemonHealth(unsaved="/state/snapshot.json: No space left on device")
    ),
    "disk_hangs": lambda s: replace(s, own=DaemonHealth(disk_silent_s=30.0)),
    "writes_left_out": lambda s: replace(s, own=DaemonHealth(lately={"left_out": 3}, left_out={"decisions": 9})),
    "engines_unreadable": lambda s: replace(s, own=DaemonHealth(unreadable=f"1 of 2 engines: {STRANGE}")),
    "disk_full": lambda s: replace(s, own=DaemonHealth(free_bytes=1 << 20)),
    "files_low": lambda s: replace(s, own=DaemonHealth(files=900, most_files=1024)),
    "decisions_failing": lambda s: replace(
        s, failures=(Failure(what="ticks", count=3, error=STRANGE, failing=True),)
    ),
    "failing": lambda s: replace(s, failures=(Failure(what="host probe", count=3, error="e", failing=True),)),
    "connections_refused": lambda s: replace(
        s,
        own=DaemonHealth(lately={"connections": 9}),
        listeners=(ListenerRow(name="page", open=1, most=1, refused=9),),
    ),
    "window_closed": lambda s: replace(
        s, pressure=replace(s.pressure, queue_length=3), held=replace(s.held, longest_s=90.0)
    ),
    "turns_refused": lambda s: replace(s, own=DaemonHealth(lately={"hold_deadline": 2900, "queue_full": 91})),
    "messages_set_aside": lambda s: replace(s, set_aside=2, last_set_aside=f"penstock.n.events: {STRANGE}"),
    "frozen": lambda s: replace(s, own=DaemonHealth(frozen_s=18.0)),
    "clock_jumped": lambda s: replace(s, own=DaemonHealth(jumped_s=-3600.0)),
    "engine_passive": lambda s: replace(s, passive_engines=(f"engine: {STRANGE}",)),
    "events_refused": lambda s: replace(s, own=DaemonHealth(lately={"refused": 3}), last_rejection=STRANGE),
    "events_rejected": lambda s: replace(s, own=DaemonHealth(lately={"rejected": 4}), last_rejection=STRANGE),
    "prefill_repeated": lambda s: replace(s, own=DaemonHealth(recomputing=f"{STRANGE}: 41% of prefill again")),
    "config_refused": lambda s: replace(s, config=replace(s.config, refused=STRANGE)),
    "shadow_failed": lambda s: replace(s, shadow=shadow_that_failed()),
    "preset_loses": lambda s: replace(s, experiment=replace(MEASURED, standing="loss", is_stock=True)),
    "gain_unclear": lambda s: replace(s, experiment=replace(MEASURED, censored=50)),
    "turns_unnamed": lambda s: replace(s, own=DaemonHealth(named=TurnCounts([60, 40], [9000, 1000], [900, 800]))),
    "restart_needed": lambda s: replace(s, config=replace(s.config, until_restart=("nats_url",))),
    "draining": lambda s: replace(s, orders=replace(s.orders, draining=True)),
    "held": lambda s: replace(s, orders=replace(s.orders, held=("p1",))),
    "no_engine": lambda s: replace(
        s, engines=replace(s.engines, known=0), pressure=replace(s.pressure, kv_total_blocks=0)
    ),
    "no_gate": lambda s: replace(s, gateless_engines=("gpu7/engine-8000",)),
    "stands_by": lambda s: replace(s, stands_by=True),
}


def troubled(name: str) -> tuple[Status, Finding]:
    status = TROUBLE[name](WELL)
    status = replace(status, findings=findings(status))
    return status, next(each for each in status.findings if each.name == name)


def asked(status: Status) -> Fields:
    """As a command gets it."""
    wire = METHODS["GetStatus"]
    return wire.decode_reply(wire.encode_reply(status))


def test_each_finding_has_its_trouble_and_a_node_that_is_well_has_none() -> None:
    assert [rule.name for rule in RULES] == list(TROUBLE)
    assert WELL.findings == ()


def drawn(status: Status) -> str:
    """By ``penstock top``."""
    listed = METHODS["ListPrograms"]
    programs = listed.decode_reply(listed.encode_reply(listing(Node().driver.ledger, 1)))
    screen = Screen()
    screen.take(Look(status=asked(status), listed=programs))
    return "\n".join(text for line in screen.lines(4000, 40) for text, _ in line)


def measured(status: Status) -> dict[str, Any]:
    """Each finding's point among the metrics."""
    reader = InMemoryMetricReader()
    make(MeterProvider(metric_readers=[reader]).get_meter("penstock"), STATES, lambda _: status)
    data = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    metrics = data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    (points,) = (each["data"]["data_points"] for each in metrics if each["name"] == "penstock.finding")
    return {each["attributes"]["finding"]: each for each in points}


def matches(expression: str, labels: Mapping[str, str]) -> bool:
    if not expression.startswith("penstock_finding{"):
        return False
    asked = re.findall(r'(\w+)(!?=)"([^"]*)"', expression)
    return all((labels[label] == value) == (how == "=") for label, how, value in asked)


@pytest.mark.parametrize("name", TROUBLE)
def test_a_finding_is_the_same_in_every_view(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, finding = troubled(name)
    assert printable(finding.found) == finding.found, "what strangers wrote is no line of it"
    show_status(asked(status), json=False)
    shown = capsys.readouterr().out
    assert f"{finding.level} " in shown
    assert f"{finding.title}: {finding.found} -> {finding.advice}" in shown
    show_status(asked(status), json=True)
    assert msgspec.to_builtins(finding) in json.loads(capsys.readouterr().out)["findings"]
    assert f"{finding.title}: {finding.found}" in drawn(status)
    (found,) = [each for each in of_status(asked(status)) if each.what == finding.title]
    assert (found.found, found.advice) == (finding.found, finding.advice)
    assert (found.state == "bad") == (finding.level == Level.BAD)
    points = measured(status)
    assert [*points] == [rule.name for rule in RULES]
    assert points[name]["value"] == 1
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    fires = [rule["alert"] for rule in rules if matches(rule["expr"], points[name]["attributes"])]
    assert len(fires) == 1 or {"engine_down": "PenstockEngineDown", "stands_by": "PenstockNoLeader"}[name]
    says = [WELL, status, status, status, WELL, WELL, status, WELL]
    with structlog.testing.capture_logs() as lines:
        watch = HealthWatch(DaemonHealth(), lambda: says[0], tmp_path)
        while says:
            watch.look()
            says.pop(0)
    assert [line["event"] for line in lines] == [finding.title, f"{finding.title}: over"], "flickers are not logged"
    assert lines[0]["found"] == finding.found
    assert lines[0]["log_level"] == ("info" if finding.level is Level.NOTE else "warning")


def test_findings_are_on_the_page_whatever_they_are() -> None:
    assert 'byId("warnings").textContent = status.findings.map' in PAGE.read_text()
    assert "innerHTML" not in PAGE.read_text()


def test_what_came_a_while_ago_is_no_finding_any_more(tmp_path: Path) -> None:
    node, now_s, ahead_s = Node(), 1000.0, 0.0

    def names(after_s: float = 1.0) -> set[str]:
        nonlocal now_s
        now_s += after_s
        watch.look()
        return {each.name for each in node.status().findings}

    watch = HealthWatch(node.own, node.status, tmp_path, wall_s=lambda: now_s + ahead_s, monotonic_s=lambda: now_s)
    assert names() == set()
    node.driver.send(node.driver.gate(ev.TurnsRefused, code="hold_deadline", turns=2991))
    ahead_s, node.own.frozen_s = 3600.0, 18.0
    assert names() == {"turns_refused", "clock_jumped", "frozen"}
    assert "2,991 hold_deadline (503)" in node.status().findings[0].found
    for code, turns in (("client_left", 5), ("moon", 2), ("sun", 3)):
        node.driver.send(node.driver.gate(ev.TurnsRefused, code=code, turns=turns))
    assert names(LATELY_S - 10) == {"turns_refused", "clock_jumped", "frozen"}
    assert names(20) == set()
    assert node.status().refusals == (
        Refusal(code="hold_deadline", turns=2991),
        Refusal(code="client_left", turns=5),
        Refusal(code="other", turns=5),
    ), "codes of a later version are counted together"
    node.driver.send(node.driver.gate(ev.TurnsRefused, code="hold_deadline", turns=1))
    assert names() == {"turns_refused"}
    assert "1 hold_deadline" in node.status().findings[0].found


async def test_a_disk_that_hangs_is_seen_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, now_s, answers = Node(), 0.0, threading.Event()
    monkeypatch.setattr(health_watch, "_room", lambda folder: (answers.wait(), (1 << 40, 10, 100))[1])
    watch = HealthWatch(
        node.own, node.status, tmp_path, wall_s=lambda: now_s, monotonic_s=lambda: now_s, awake_s=lambda: now_s
    )
    async with create_task_group() as group:
        group.start_soon(watch.keep)
        await wait_all_tasks_blocked()
        now_s = 30.0
        watch.look()
        assert [each.name for each in node.status().findings] == ["disk_hangs"]
        answers.set()
        while node.own.free_bytes < 0:  # noqa: ASYNC110  a thread says so
            await sleep(0.01)
        watch.look()
        assert node.status().findings == ()
        group.cancel_scope.cancel()


def test_a_disk_that_answers_and_takes_no_write_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, now_s, ends, begun = Node(), 0.0, threading.Event(), threading.Event()
    monkeypatch.setattr(clocks, "awake_s", lambda: now_s)
    watch, writer = HealthWatch(node.own, node.status, tmp_path), DiskWriter("decisions")
    writer.put(lambda: (begun.set(), ends.wait()), 1)
    assert begun.wait(90)
    now_s = 30.0
    watch.look()
    assert [each.name for each in node.status().findings] == ["disk_hangs"]
    ends.set()
    assert writer.settle(90)
    watch.look()
    assert node.status().findings == ()
