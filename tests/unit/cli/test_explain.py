"""``penstock explain`` reads a log once, however long it is."""

import os
import threading
from pathlib import Path

import msgspec
from support.decisions import decided, ran
from typer.testing import CliRunner

from controlplane.cli.app import app

RECORDS = (decided("root"), ran("child", "root", 1, 2), ran("root", "", 0, 3))


def test_a_log_that_can_be_read_once_only_tells_decisions_and_the_tree(tmp_path: Path) -> None:
    """A pipe: whoever opened it a second time would wait for ever."""
    log = tmp_path / "decisions.jsonl"
    os.mkfifo(log)
    text = b"".join(msgspec.json.encode(record) + b"\n" for record in RECORDS)
    writer = threading.Thread(target=log.write_bytes, args=(text,), daemon=True)
    writer.start()
    told = CliRunner().invoke(app, ["explain", "root", "--log", str(log)])
    writer.join(30)
    assert told.exit_code == 0, told.output
    assert "admit: a slot is free" in told.output
    assert "tree: 2 programs" in told.output
