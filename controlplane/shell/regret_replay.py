"""A recorded run through the regret ledger: the same verdicts as live, with what is not worth a line there."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from controlplane.config import parse
from controlplane.core.errors import ConfigError
from controlplane.core.presets import DEFAULT, Preset, preset
from controlplane.core.regret import Hindsight, Least, RegretLedger, Verdict
from controlplane.shell import snapshot as snapshots
from controlplane.shell.decision_log import rule_of
from controlplane.wire.log import (
    CommandRecord,
    ConfigRecord,
    EventRecord,
    Header,
    StateRecord,
    TickRecord,
    read_log,
)


def judge_log(path: Path) -> Iterator[tuple[Verdict, str]]:
    """Each verdict as it falls, and the rule by which such a decision was made. At the end what is open is unknown.

    Raises ``ConfigError`` for a file that is no event log, with path and line.
    """
    fallen: list[Verdict] = []
    book, ruling, now_ns = RegretLedger(fallen.append), preset(DEFAULT), 0
    for record in read_log(path):
        match record:
            case Header():
                ruling = _preset_of(record.config, record.preset)
            case ConfigRecord():
                ruling = _preset_of(record.text, ruling.name)
            case StateRecord():
                state = snapshots.restore(snapshots.read(record.state.encode()), ruling)
                book.resume(state.ledger.programs.by_name.values(), record.now_ns)
            case EventRecord():
                now_ns = record.now_ns
                book.event(record.event, now_ns)
            case CommandRecord():
                now_ns = record.now_ns
                book.command(record.command, now_ns)
            case TickRecord():
                now_ns = record.now_ns
                book.tick(now_ns)
        yield from _told(fallen, ruling)
    book.close(now_ns)
    yield from _told(fallen, ruling)


def look_back(path: Path) -> Least:
    """What the run computed, and the least that whoever knew its turns beforehand would have computed again.

    Raises ``ConfigError`` for a file that is no event log, with path and line.
    """
    hindsight = Hindsight()
    for record in read_log(path):
        if isinstance(record, EventRecord):
            hindsight.event(record.event, record.now_ns)
    return hindsight.least()


def _told(fallen: list[Verdict], ruling: Preset) -> Iterator[tuple[Verdict, str]]:
    for verdict in fallen:
        yield verdict, rule_of("admit" if verdict.kind == "hold" else verdict.kind, ruling)
    fallen.clear()


def _preset_of(text: str, name: str) -> Preset:
    """As the configuration in the log has it; by its name alone where there is no text."""
    try:
        return parse(tomllib.loads(text) or {"preset": name}).policies
    except (tomllib.TOMLDecodeError, ConfigError):
        return preset(DEFAULT)  # verdicts do not depend on it
