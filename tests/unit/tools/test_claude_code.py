"""Claude Code's hooks: one process each, so what one knows the next one reads from a file."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.reports import Reports

from controlplane.core.events import Event, ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from engine_hooks.tools.claude_code import report


def hook(kind: str, **more: Any) -> dict[str, Any]:
    return {"session_id": "session", "hook_event_name": kind, **more}


TOOL = {"tool_name": "Bash", "tool_use_id": "toolu_1", "tool_input": {"command": "cd /repo && pytest -q"}}


def test_each_hook_is_another_process_and_durations_are_whole(tmp_path: Path) -> None:
    events: list[Event] = []
    story = [("SessionStart", {}), ("PreToolUse", TOOL), ("PostToolUse", TOOL), ("Stop", {})]
    for kind, more in story:
        reports = Reports()
        report(hook(kind, **more), reports, tmp_path / "kept")
        events += reports.events
        time.sleep(0.02)
    assert [type(event) for event in events] == [ProgramArrived, ToolStarted, ToolEnded, ProgramEnded]
    assert isinstance(ended := events[2], ToolEnded)
    assert 0.02e9 < ended.duration_ns < 5e9
    assert (ended.call_id, ended.tool, ended.ok) == ("toolu_1", "pytest", True)
    assert list((tmp_path / "kept").iterdir()) == []


def test_an_end_whose_beginning_nobody_noted_has_no_duration(tmp_path: Path) -> None:
    reports = Reports()
    report(hook("PostToolUseFailure", **TOOL), reports, tmp_path / "kept")
    (ended,) = reports.events
    assert isinstance(ended, ToolEnded)
    assert (ended.duration_ns, ended.ok) == (0, False)


@pytest.mark.parametrize("told", ["", "{", "[]", '{"hook_event_name": "PreToolUse"}', '{"hook_event_name": 7}'])
def test_nothing_that_it_is_told_fails_or_prints(told: str, tmp_path: Path) -> None:
    environment = {"PENSTOCK_NATS_URL": "nats://127.0.0.1:9", "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "engine_hooks.tools.claude_code"],
        input=told,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_bus_that_is_away_holds_the_agent_up_for_a_moment_only(tmp_path: Path) -> None:
    environment = {"PENSTOCK_NATS_URL": "nats://127.0.0.1:9", "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def takes_s(told: str) -> float:
        began_s = time.monotonic()
        command = [sys.executable, "-m", "engine_hooks.tools.claude_code"]
        assert subprocess.run(command, input=told, text=True, env=environment, timeout=120).returncode == 0
        return time.monotonic() - began_s

    with_nothing_to_tell_s = takes_s("{}")
    assert takes_s(json.dumps(hook("PreToolUse", **TOOL))) < 10 + 5 * with_nothing_to_tell_s


def test_a_sub_agent_is_a_child_of_its_session_and_so_are_its_tools(tmp_path: Path) -> None:
    events: list[Event] = []
    story: list[tuple[str, dict[str, Any]]] = [
        ("PreToolUse", {"tool_name": "Task", "tool_use_id": "toolu_9", "tool_input": {}}),
        ("SubagentStart", {"agent_id": "a1", "agent_type": "Explore"}),
        ("PreToolUse", {**TOOL, "agent_id": "a1"}),
        ("PostToolUse", {**TOOL, "agent_id": "a1"}),
        ("SubagentStop", {"agent_id": "a1"}),
        ("SubagentStop", {}),
    ]
    for kind, more in story:
        reports = Reports()
        report(hook(kind, **more), reports, tmp_path / "kept")
        events += reports.events
    names = [getattr(event, "program_id", "") for event in events]
    assert names == ["session", "session/a1", "session/a1", "session/a1", "session/a1"]
    assert isinstance(events[1], ProgramArrived)
    assert (events[1].parent_id, events[1].aside) == ("session", False)
    assert isinstance(events[-1], ProgramEnded)
