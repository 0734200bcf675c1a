"""Each example of ``examples/agents`` runs, against a scripted model, and is heard on the bus."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.agent_runs import NODE, ROOT, environment
from support.daemon_process import TIMEOUT_S, running, until
from support.heard import Heard
from support.scripted_model import Reply, ScriptedModel

from controlplane.core.model.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from controlplane.transport.endpoint import socket_path

EXAMPLES = ROOT / "examples" / "agents"
TASK = "please begin"
LISTS: list[Reply] = [[("list_files", {"folder": "."})], "these"]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo these"
TERMINAL = {"command": "ls", "security_risk": "LOW", "summary": "looks"}

OPENHANDS: list[Reply] = [[("terminal", TERMINAL)], [("finish", {"message": "these"})]]
MINI: list[Reply] = [[("bash", {"command": "ls"})], [("bash", {"command": SUBMIT})]]


def run(python: str, arguments: Sequence[str], url: str, folder: Path, given: str = "", **variables: str) -> str:
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        input=given,
        timeout=TIMEOUT_S,
        cwd=folder,
        env=environment(url) | variables | {"MSWEA_SILENT_STARTUP": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize(
    ("environment_of", "name", "script", "tools"),
    [
        ("agent_python", "openhands_agent.py", OPENHANDS, ["ls", "finish"]),
        ("agent_python", "mini_swe_agent.py", MINI, ["ls", "echo"]),
        ("others_python", "openai_agents.py", LISTS, ["list_files"]),
        ("others_python", "langgraph_agent.py", LISTS, ["list_files"]),
    ],
)
def test_an_agent(
    request: pytest.FixtureRequest,
    nats_server: Any,
    heard: Heard,
    tmp_path: Path,
    environment_of: str,
    name: str,
    script: list[Reply],
    tools: list[str],
) -> None:
    python = request.getfixturevalue(environment_of)
    with ScriptedModel({TASK: script}) as model:
        said = run(
            python,
            [str(EXAMPLES / name), *TASK.split()],
            nats_server.url,
            tmp_path,
            OPENAI_BASE_URL=model.url,
            OPENAI_MODEL="scripted",
        )
    heard.until(lambda: bool(heard.of(ProgramEnded)), "end of the run")
    (arrived,), (ended,) = heard.of(ProgramArrived), heard.of(ProgramEnded)
    assert arrived.program_id == ended.program_id
    assert {one.program for one in model.requests} == {arrived.program_id}, "the engine knows it by the same name"
    assert [event.tool for event in heard.of(ToolStarted)] == tools
    assert "these" in said


def test_an_mcp_client_and_its_server(others_python: str, nats_server: Any, heard: Heard, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").touch()
    said = run(others_python, [str(EXAMPLES / "mcp_client.py")], nats_server.url, tmp_path / "here")
    assert said.strip() == "a.txt"
    heard.until(lambda: bool(heard.of(ProgramEnded)), "end of the connection")
    assert [event.tool for event in heard.of(ToolEnded)] == ["list_files"]


def test_claude_code_s_hooks(
    nats_server: Any, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claude Code itself needs an account; its part here is to run the commands with what it would tell them."""
    hooks = json.loads((EXAMPLES / "claude_code_settings.json").read_text())["hooks"]
    call = {"session_id": "session", "tool_name": "Bash", "tool_use_id": "call"}
    monkeypatch.setenv("PENSTOCK_NATS_URL", nats_server.url)
    with running(tmp_path, node=NODE) as daemon:
        until(socket_path(NODE, daemon.folder).exists, "socket")
        for event in ("SessionStart", "PreToolUse", "PostToolUse", "SessionEnd"):
            (command,) = [one["command"] for entry in hooks[event] for one in entry["hooks"]]
            told = json.dumps({**call, "hook_event_name": event})
            state = {"PENSTOCK_STATE_DIR": str(daemon.folder)}
            run(sys.executable, command.split()[1:], nats_server.url, tmp_path, given=told, **state)
        heard.until(lambda: bool(heard.of(ProgramEnded, program_id="session")), "end of the session")
        assert [event.tool for event in heard.of(ToolEnded)] == ["Bash"]
