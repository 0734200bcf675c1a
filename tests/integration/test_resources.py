"""Agents' processes with real sandboxes, and what is left of those when programs end and agents are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.daemon_process import until

from engine_hooks.tools.resources.client import Resources

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0

AGENT = """
import subprocess, sys, time
from pathlib import Path
from engine_hooks.tools.resources.client import Resources

folder, audit = map(Path, sys.argv[1:])
held = Resources(audit)
workspace = held.make_workspace("run", within=folder)
(workspace / "file").write_bytes(bytes(1_000_000))
shell = held.start_process("run", ["sh", "-c", "sleep 300 & sleep 300"], cwd=workspace)
print(shell.pid, flush=True)
time.sleep(300)
"""


def outcomes(audit: Path, outcome: str) -> list[dict[str, Any]]:
    if not audit.exists():
        return []
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    return [line for line in lines if line["outcome"] == outcome]


def session_of(pid: int) -> list[int]:
    """Processes of the session that ``pid`` led, those that have ended left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Resources]:
    held = Resources(tmp_path / "audit.jsonl")
    yield held
    held.close(WAIT_S)


def test_a_program_s_end_takes_all_of_it_back_and_says_so(held: Resources, tmp_path: Path) -> None:
    workspace = held.make_workspace("run", within=tmp_path)
    (workspace / "file").write_bytes(bytes(1_000_000))
    shell = held.start_process("run", ["sh", "-c", "sleep 300 & sleep 300"], cwd=workspace)
    other = held.make_workspace("another", within=tmp_path)
    held.end("run", "finished")
    until(lambda: len(outcomes(tmp_path / "audit.jsonl", "reclaimed")) == 2, "taken back")
    assert not workspace.exists()
    assert shell.wait(WAIT_S) == -signal.SIGTERM, "the keeper is not its parent"
    assert session_of(shell.pid) == []
    assert other.exists()
    process, folder = outcomes(tmp_path / "audit.jsonl", "reclaimed")
    assert (process["kind"], folder["kind"]) == ("process", "workspace"), "first the process that works there"
    assert folder["bytes"] >= 1_000_000
    assert process["bytes"] > 0
    assert {line["reason"] for line in (process, folder)} == {"its program ended: finished"}
    assert len(outcomes(tmp_path / "audit.jsonl", "registered")) == 3


def test_a_time_to_live_and_a_release(held: Resources, tmp_path: Path) -> None:
    short = held.make_workspace("run", within=tmp_path, ttl_s=0.3)
    kept = tmp_path / "kept"
    kept.mkdir()
    held.release("workspace", held.add_workspace("run", kept))
    until(lambda: not short.exists(), "gone")
    held.end("run")
    held.close(WAIT_S)
    assert kept.exists()
    (line,) = outcomes(tmp_path / "audit.jsonl", "reclaimed")
    assert line["reason"] == "its time is over"
    assert len(outcomes(tmp_path / "audit.jsonl", "released")) == 1


def test_an_agent_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path), str(audit)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert agent.stdout is not None
    shell = int(agent.stdout.readline())
    until(lambda: len(outcomes(audit, "registered")) == 2, "registered")
    assert len(session_of(shell)) >= 2
    agent.kill()
    agent.wait()
    agent.stdout.close()
    until(lambda: len(outcomes(audit, "reclaimed")) == 2, "taken back")
    assert session_of(shell) == []
    assert [path.name for path in tmp_path.iterdir()] == ["audit.jsonl"]
    assert {line["reason"] for line in outcomes(audit, "reclaimed")} == {"its agent's process is gone"}


def test_a_keeper_that_died_is_replaced_and_knows_everything(held: Resources, tmp_path: Path) -> None:
    first = held.make_workspace("run", within=tmp_path)
    assert held._keeper is not None
    held._keeper.kill()
    held._keeper.wait()
    second = held.make_workspace("run", within=tmp_path)
    held.end("run")
    until(lambda: not first.exists() and not second.exists(), "both gone")


def test_a_keeper_that_does_not_read_holds_nobody_up(held: Resources, tmp_path: Path) -> None:
    held.make_workspace("run", within=tmp_path)
    assert held._keeper is not None
    stuck = held._keeper
    stuck.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    for n in range(600):
        held.add_container(f"run-{n}", f"{n:0200}")
        held.release("container", f"{n:0200}")
    assert time.monotonic() - began_s < WAIT_S  # as long as it is not read, a write that waits would
    assert held._keeper is not stuck, "replaced once its pipe was full"


def test_a_forked_child_s_end_is_not_the_parent_s(held: Resources, tmp_path: Path) -> None:
    workspace = held.make_workspace("run", within=tmp_path)
    pid = os.fork()
    if pid == 0:
        held.end("run")
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.3)
    assert workspace.exists()


def test_a_program_s_end_that_the_reporter_tells_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an adapter does it: in a process of its own, since a process has one reporter."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from engine_hooks.tools.shared import reporter\n"
        "from engine_hooks.tools.resources.client import resources\n"
        "path = resources().make_workspace('run', within=Path(sys.argv[1]))\n"
        "reporter().program_ended('run', 'finished')\n"
        "deadline_s = time.monotonic() + 50\n"
        "while path.exists() and time.monotonic() < deadline_s: time.sleep(0.02)\n"
        "print(path.exists())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_STATE_DIR": str(tmp_path / "state")}
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert said.stdout == "False\n", said.stderr
    (line,) = outcomes(tmp_path / "state" / "resources.jsonl", "reclaimed")
    assert line["reason"] == "its program ended: finished"
