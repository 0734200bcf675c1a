"""A recorded run once more: through a controller, which gives the same commands, and through the regret ledger.

That gives the same verdicts as live, with what is not worth a line there.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.config import Config, parse
from controlplane.core.model.commands import Command
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import DEFAULT, Preset, preset
from controlplane.core.regret import Hindsight, Least, RegretLedger, Verdict
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControllerState
from controlplane.daemon.bus import snapshot as snapshots
from controlplane.daemon.observe.decision_log import rule_of
from controlplane.wire.log import (
    CommandRecord,
    ConfigRecord,
    EventRecord,
    Header,
    StateRecord,
    TickRecord,
    Truncated,
    read_log,
)

_MOST_DIFFERENCES = 20


@dataclass(slots=True, kw_only=True)
class LogReplay:
    """What a replay found. ``differences`` holds the first few, in words."""

    events: int = 0
    ticks: int = 0
    commands: int = 0
    differing: int = 0
    differences: list[str] = field(default_factory=list)
    note: str = ""

    def differ(self, text: str) -> None:
        self.differing += 1
        if len(self.differences) < _MOST_DIFFERENCES:
            self.differences.append(text)


def replay_log(path: Path) -> LogReplay:
    """Drive a controller with the log's events and ticks, and compare its commands with the log's.

    Raises ``ConfigError`` for a file that is no log, with path and line.
    """
    report = LogReplay()
    records = read_log(path)
    header = next(records)
    if not isinstance(header, Header):
        raise ConfigError(f"{path}: the log has no header")
    config = _config_of(header.config, path, header.preset)
    controller = Controller(config.policies, config.control)
    expected: list[Command] = []
    for record in records:
        match record:
            case StateRecord():
                controller = Controller(config.policies, config.control, _state(record, config.policies))
            case EventRecord():
                report.events += 1
                controller.receive(record.event, record.now_ns)
            case ConfigRecord():
                config = _config_of(record.text, path)
                controller.reconfigure(config.policies, config.control, record.now_ns)
            case TickRecord():
                _missing(expected, report)
                report.ticks += 1
                expected = controller.tick(record.now_ns)
            case CommandRecord():
                report.commands += 1
                _compare(expected.pop(0) if expected else None, record, report)
            case Truncated():
                report.note = record.message
                expected = []  # the tick's commands may be in the part that is lost
    _missing(expected, report)
    return report


def judge_log(path: Path) -> Iterator[tuple[Verdict, str]]:
    """Each verdict as it falls, and the rule by which such a decision was made. At the end what is open is unknown.

    Raises ``ConfigError`` for a file that is no event log, with path and line.
    """
    fallen: list[Verdict] = []
    ledger, ruling, now_ns = RegretLedger(fallen.append), preset(DEFAULT), 0
    for record in read_log(path):
        match record:
            case Header():
                ruling = _preset_of(record.config, path, record.preset)
            case ConfigRecord():
                ruling = _preset_of(record.text, path, ruling.name)
            case StateRecord():
                ledger.resume(_state(record, ruling).ledger.programs.by_name.values(), record.now_ns)
            case EventRecord():
                now_ns = record.now_ns
                ledger.event(record.event, now_ns)
            case CommandRecord():
                now_ns = record.now_ns
                ledger.command(record.command, now_ns)
            case TickRecord():
                now_ns = record.now_ns
                ledger.tick(now_ns)
        yield from _with_rules(fallen, ruling)
    ledger.close(now_ns)
    yield from _with_rules(fallen, ruling)


def look_back(path: Path) -> Least:
    """What the run computed, and the least that whoever knew its turns beforehand would have computed again.

    Raises ``ConfigError`` for a file that is no event log, with path and line.
    """
    hindsight = Hindsight()
    for record in read_log(path):
        if isinstance(record, EventRecord):
            hindsight.event(record.event, record.now_ns)
    return hindsight.least()


def _with_rules(fallen: list[Verdict], ruling: Preset) -> Iterator[tuple[Verdict, str]]:
    for verdict in fallen:
        yield verdict, rule_of("admit" if verdict.kind == "hold" else verdict.kind, ruling)
    fallen.clear()


def _preset_of(text: str, path: Path, name: str) -> Preset:
    try:
        return _config_of(text, path, name).policies
    except ConfigError:
        return preset(DEFAULT)  # verdicts do not depend on it


def _state(record: StateRecord, policies: Preset) -> ControllerState:
    return snapshots.restore(snapshots.read(record.state.encode()), policies)


def _config_of(text: str, path: Path, preset: str = "") -> Config:
    """``preset`` where there is no text."""
    try:
        return parse(tomllib.loads(text) or {"preset": preset})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: a configuration in it is not TOML: {error}") from error


def _compare(decided: Command | None, record: CommandRecord, report: LogReplay) -> None:
    if decided != record.command:
        report.differ(f"at {record.now_ns} ns the log has {record.command}, the replay decided {decided}")


def _missing(expected: list[Command], report: LogReplay) -> None:
    for command in expected:
        report.differ(f"the replay decided {command}, which the log lacks")
    expected.clear()
