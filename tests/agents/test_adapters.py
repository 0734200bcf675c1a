"""The other frameworks, each with its own runner and a scripted model, and an MCP client with its server."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent_runs import SCRIPTS, environment, run_agent
from support.daemon_process import TIMEOUT_S, until
from support.heard import Heard
from support.ports import free_port, is_listening
from support.scripted_model import Reply, ScriptedModel

from controlplane.core.model.events import ProgramArrived, ProgramEnded, ToolEnded, ToolEnqueued, ToolStarted

TWO_CLOCKS_NS = 10_000_000  # the adapter's and the tool's
BEGIN = "please begin"
CALLS = 2  # of a tool
LOOKS: list[Reply] = [*[[("look", {"seconds": 0.2})] for _ in range(CALLS)], "done"]


def ended(heard: Heard) -> ProgramEnded:
    heard.until(lambda: bool(heard.of(ProgramEnded)), "end of the run")
    (event,) = heard.of(ProgramEnded)
    assert isinstance(event, ProgramEnded)
    return event


def matches_the_clock(heard: Heard, said: dict[str, Any], program: str) -> None:
    """Each call was told of around its execution, however slow the machine."""
    for real, begin, end in zip(said["tools"], heard.of(ToolStarted), heard.of(ToolEnded), strict=True):
        assert begin.program_id == end.program_id == program
        assert begin.at_ns < real.get("began_ns", end.at_ns) + TWO_CLOCKS_NS
        if end.ok:  # a failure is written up first
            assert real["ended_ns"] < end.at_ns + TWO_CLOCKS_NS


def test_mini_swe_agent(agent_python: str, nats_server: Any, heard: Heard) -> None:
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    sleeps: list[Reply] = [[("bash", {"command": "sleep\0 0.2"})] for _ in range(CALLS)]
    script: list[Reply] = [*sleeps, [("bash", {"command": done})]]
    with ScriptedModel({BEGIN: script}) as model:
        asked = {"message": BEGIN, "url": model.url}
        said = run_agent(agent_python, "mini_swe_agent_run.py", asked, nats_server.url, PENSTOCK_TOOL_CLEAN="on")
    program = ended(heard).program_id
    assert (said["exit_status"], ended(heard).reason) == ("Submitted", "Submitted")
    assert {request.program for request in model.requests} == {program}
    matches_the_clock(heard, said, program)
    assert [event.ok for event in heard.of(ToolEnded)] == [True] * (CALLS + 1), "a submission is no failure"
    assert all(event.duration_ns > 0.2e9 for event in heard.of(ToolEnded)[:CALLS])
    assert len(heard.of(ToolEnqueued)) == CALLS + 1


def test_openai_agents(others_python: str, nats_server: Any, heard: Heard) -> None:
    with ScriptedModel({BEGIN: LOOKS}) as model:
        asked = {"message": BEGIN, "url": model.url}
        said = run_agent(others_python, "openai_agents_run.py", asked, nats_server.url)
    assert ended(heard).program_id == said["program"]
    assert {request.program for request in model.requests} == {said["program"]}
    matches_the_clock(heard, said, said["program"])
    assert [(event.tool, event.call_id) for event in heard.of(ToolEnqueued)] == [
        ("look", f"call_{number}_0") for number in range(1, CALLS + 1)
    ]


def test_langgraph(others_python: str, nats_server: Any, heard: Heard) -> None:
    looks: list[Reply] = [[("look", {"seconds": 0.2})], [("look", {"seconds": 0.3})], "done"]
    with ScriptedModel({BEGIN: looks}) as model:
        asked = {"message": BEGIN, "url": model.url}
        said = run_agent(others_python, "langgraph_run.py", asked, nats_server.url)
    assert ended(heard).program_id == said["program"] == "thread-42"
    assert [event.program_id for event in heard.of(ProgramArrived)] == ["thread-42"]
    assert {request.program for request in model.requests} == {"thread-42"}
    matches_the_clock(heard, said, "thread-42")
    assert [event.ok for event in heard.of(ToolEnded)] == [True, False]
    assert [event.call_id for event in heard.of(ToolEnqueued)] == [event.call_id for event in heard.of(ToolStarted)]


def test_langgraph_sub_agents_are_children_and_a_subgraph_is_not(
    others_python: str, nats_server: Any, heard: Heard
) -> None:
    calls: Reply = [("research", {"topic": "maps"}), ("research", {"topic": "roads"})]
    with ScriptedModel({BEGIN: ["looked", calls, "done"], "look it up": ["found"]}) as model:
        asked = {"message": BEGIN, "research": "look it up", "url": model.url}
        said = run_agent(others_python, "langgraph_family_run.py", asked, nats_server.url)
    children = {"thread-42/maps", "thread-42/roads"}
    assert said["output"] == "done"
    heard.until(lambda: len(heard.of(ProgramEnded)) == 3, "ends")
    assert {event.program_id: event.parent_id for event in heard.of(ProgramArrived)} == {
        "thread-42": "",
        **dict.fromkeys(children, "thread-42"),
    }
    assert len(heard.of(ProgramArrived)) == 3
    assert [event.program_id for event in heard.of(ProgramEnded)][-1] == "thread-42"
    assert [request.program for request in model.requests].count("thread-42") == 3
    assert {request.program for request in model.requests} == {"thread-42", *children}
    tools = {kind: heard.of(kind, program_id="thread-42", tool="research") for kind in (ToolStarted, ToolEnded)}
    assert [len(found) for found in tools.values()] == [2, 2]
    began = {event.program_id: event.at_ns for event in heard.of(ProgramArrived)}
    assert all(began[child] >= min(event.at_ns for event in tools[ToolStarted]) for child in children)


def test_an_mcp_client(others_python: str, nats_server: Any, heard: Heard, tmp_path: Path) -> None:
    asked = {"options": [], "clock": str(tmp_path / "clock")}
    for _ in range(5):  # a client kills its server after two seconds: a busy one has not reached the bus by then
        (tmp_path / "clock").unlink(missing_ok=True)
        said = run_agent(others_python, "mcp_run.py", asked, nats_server.url)
        since_s = time.monotonic()
        until(lambda since_s=since_s: heard.of(ProgramEnded) or time.monotonic() - since_s > 20, "end of the run")
        if heard.events:
            break
    assert said["errors"] == ["", "tool"]
    program = ended(heard).program_id
    matches_the_clock(heard, said, program)
    assert [event.ok for event in heard.of(ToolEnded)] == [True, False]


@pytest.fixture
def http_server(others_python: str, tmp_path: Path) -> Iterator[str]:
    """The real server over streamable HTTP, whose answers are streams of events."""
    port = free_port()
    command = [others_python, str(SCRIPTS / "mcp_server.py"), str(port), "events"]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment("") | {"CLOCK": str(tmp_path / "clock")}, stdout=log, stderr=log
        )
    try:
        until(lambda: is_listening(port), "MCP server")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def http_proxy(url: str, bus_url: str, *options: str) -> Iterator[str]:
    """The proxy before it; its address."""
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_http_proxy", *options, url]
    with subprocess.Popen(command, env=environment(bus_url), stderr=subprocess.PIPE, text=True) as proxy:
        assert proxy.stderr is not None
        try:
            yield proxy.stderr.readline().split()[1]
        finally:
            proxy.send_signal(signal.SIGINT)
            status, errors = proxy.wait(TIMEOUT_S), proxy.stderr.read()
            assert (status, errors) == (0, ""), errors


def test_an_mcp_client_that_speaks_http(
    others_python: str, nats_server: Any, heard: Heard, http_server: str, tmp_path: Path
) -> None:
    with http_proxy(http_server, nats_server.url) as url:
        asked = {"url": url, "clock": str(tmp_path / "clock")}
        said = run_agent(others_python, "mcp_run.py", asked, nats_server.url)
        program = ended(heard).program_id  # the client said that it leaves; the proxy is still there
    assert said["errors"] == ["", "tool"]
    matches_the_clock(heard, said, program)
    assert [event.ok for event in heard.of(ToolEnded)] == [True, False]
