"""Replay a recorded run: the same events and ticks through the same controller give the same commands."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.config import Config, parse
from controlplane.core.commands import Command
from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError
from controlplane.shell import snapshot as snapshots
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
        """Note one difference."""
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
                snapshot = snapshots.read(record.state.encode())
                state = snapshots.restore(snapshot, config.policies)
                controller = Controller(config.policies, config.control, state)
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
