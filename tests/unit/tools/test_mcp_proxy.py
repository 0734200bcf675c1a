"""The proxy before an MCP server: lines pass as they are, and calls are told."""

import json
import subprocess
import sys
from typing import Any

from support.reports import Reports

from controlplane.core.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from engine_hooks.tools.mcp_proxy import Calls


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def call(number: int | str, tool: str = "look", **meta: str) -> bytes:
    return line(id=number, method="tools/call", params={"name": tool, "_meta": meta})


def test_a_call_is_a_tool_from_its_request_to_its_answer() -> None:
    reports = Reports()
    calls = Calls(reports)
    calls.to_server(line(id=0, method="initialize", params={}))
    calls.to_server(line(method="notifications/initialized"))
    calls.to_client(line(id=0, result={}))
    assert reports.events == [], "a connection that calls nothing is no program"
    calls.to_server(call(1))
    calls.to_client(line(method="notifications/progress", params={}))
    calls.to_client(line(id=1, result={"content": [], "isError": True}))
    calls.to_server(call(2))
    calls.to_client(line(id=2, error={"code": -1, "message": "no"}))
    calls.to_server(call(3))
    calls.end()
    kinds = [type(event) for event in reports.events]
    assert kinds == [ProgramArrived, *[ToolStarted, ToolEnded] * 3, ProgramEnded]
    assert [event.ok for event in reports.events if isinstance(event, ToolEnded)] == [False, False, False]
    assert len({event.program_id for event in reports.events}) == 1  # type: ignore[attr-defined]


def test_the_clients_own_name_of_the_program_wins() -> None:
    reports = Reports()
    calls = Calls(reports, "given")
    calls.to_server(call("a"))
    calls.to_server(call("b", session_id="session"))
    calls.to_client(line(id="b", result={}))
    calls.to_client(line(id="a", result={}))
    calls.end()
    started = [event.program_id for event in reports.events if isinstance(event, ToolStarted)]
    assert started == ["given", "session"]
    assert not [event for event in reports.events if isinstance(event, ProgramEnded)]


def test_lines_that_are_no_messages_are_none_of_its_business() -> None:
    reports = Reports()
    calls = Calls(reports)
    for told in (b"", b"hello\n", b"[1, 2]\n", b"7\n", b'{"method": "tools/call"}\n', b"\xff\xfe\n"):
        calls.to_server(told)
        calls.to_client(told)
    batch = json.dumps([json.loads(call(1)), json.loads(call(2))]).encode()
    calls.to_server(batch)
    assert len([event for event in reports.events if isinstance(event, ToolStarted)]) == 2


ECHO = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()\n"


def test_every_byte_passes_and_the_servers_status_is_its_own() -> None:
    told = b'{"a":  1}\nnot json\n\xff\xfe\n' + b"x" * 300_000 + b"\nlast without an end"
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--", sys.executable, "-c"]
    environment = {"PENSTOCK_NATS_URL": "nats://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, ECHO], input=told, capture_output=True, timeout=60, env=environment)
    assert done.stdout == told
    failed = subprocess.run([*command, "raise SystemExit(3)"], input=b"", timeout=60, env=environment)
    assert failed.returncode == 3


def test_a_server_that_is_not_there_is_told() -> None:
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--", "no-such-server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no such command: no-such-server" in done.stderr
