"""``penstock explain`` reads a log once, however long it is."""

import os
import threading
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.wire.decisions import DecisionRecord, Numbers, RunRecord

NUMBERS = Numbers(
    limit=2,
    window=2.0,
    active=1,
    waiting=0,
    kv_use_ratio=0.5,
    cpu_use_ratio=0.1,
    tools_active=0,
    tool_slowdown_ratio=1.0,
)
ADMITTED = DecisionRecord(
    at="2026-01-01T10:00:00.000",
    now_ns=1,
    number=1,
    program_id="root",
    kind="admit",
    reason="a slot is free",
    rule="preset fcfs",
    values={},
    numbers=NUMBERS,
)
RUNS = (
    RunRecord(at="", program_id="child", parent_id="root", began_ns=1, ended_ns=2, turns=1),
    RunRecord(at="", program_id="root", parent_id="", began_ns=0, ended_ns=3, turns=2),
)


def test_a_log_that_can_be_read_once_only_tells_decisions_and_the_tree(tmp_path: Path) -> None:
    """A pipe: whoever opened it a second time would wait for ever."""
    log = tmp_path / "decisions.jsonl"
    os.mkfifo(log)
    text = b"".join(msgspec.json.encode(record) + b"\n" for record in (ADMITTED, *RUNS))
    writer = threading.Thread(target=log.write_bytes, args=(text,), daemon=True)
    writer.start()
    told = CliRunner().invoke(app, ["explain", "root", "--log", str(log)])
    writer.join(30)
    assert told.exit_code == 0, told.output
    assert "admit: a slot is free" in told.output
    assert "tree: 2 programs" in told.output
