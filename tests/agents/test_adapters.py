"""The other frameworks, each with its own runner and a scripted model, and an MCP client with its server."""

import statistics
from pathlib import Path
from typing import Any

from support.agent_runs import Heard, run_agent
from support.scripted_model import Reply, ScriptedModel

from controlplane.core.events import ProgramArrived, ProgramEnded, ToolEnded, ToolEnqueued, ToolStarted

MOST_OFF_NS = 10_000_000
MOST_DELAYED_NS = 200_000_000  # where the machine is busy with other tests
BEGIN = "please begin"
LOOKS: list[Reply] = [[("look", {"seconds": 0.2})], "done"]


def ended(heard: Heard) -> ProgramEnded:
    heard.until(lambda: bool(heard.of(ProgramEnded)), "end of the run")
    (event,) = heard.of(ProgramEnded)
    assert isinstance(event, ProgramEnded)
    return event


def matches_the_clock(heard: Heard, said: dict[str, Any], program: str) -> None:
    off_ns = []
    for real, begin, end in zip(said["tools"], heard.of(ToolStarted), heard.of(ToolEnded), strict=True):
        assert begin.program_id == end.program_id == program
        off_ns += [abs(begin.at_ns - real["began_ns"])] if "began_ns" in real else []
        off_ns += [abs(end.at_ns - real["ended_ns"])] if end.ok else []  # a failure is written up first
    assert statistics.median(off_ns) < MOST_OFF_NS, off_ns
    assert max(off_ns) < MOST_DELAYED_NS, off_ns


def test_mini_swe_agent(agent_python: str, nats_server: Any, heard: Heard) -> None:
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    script: list[Reply] = [[("bash", {"command": "sleep 0.2"})], [("bash", {"command": done})]]
    with ScriptedModel({BEGIN: script}) as model:
        asked = {"message": BEGIN, "url": model.url}
        said = run_agent(agent_python, "mini_swe_agent_run.py", asked, nats_server.url)
    program = ended(heard).program_id
    assert (said["exit_status"], ended(heard).reason) == ("Submitted", "Submitted")
    assert {request.program for request in model.requests} == {program}
    matches_the_clock(heard, said, program)
    assert [event.ok for event in heard.of(ToolEnded)] == [True, True], "a submission is no failure"
    assert heard.of(ToolEnded)[0].duration_ns > 0.2e9
    assert len(heard.of(ToolEnqueued)) == 2


def test_openai_agents(others_python: str, nats_server: Any, heard: Heard) -> None:
    with ScriptedModel({BEGIN: LOOKS}) as model:
        asked = {"message": BEGIN, "url": model.url}
        said = run_agent(others_python, "openai_agents_run.py", asked, nats_server.url)
    assert ended(heard).program_id == said["program"]
    assert {request.program for request in model.requests} == {said["program"]}
    matches_the_clock(heard, said, said["program"])
    assert [(event.tool, event.call_id) for event in heard.of(ToolEnqueued)] == [("look", "call_1_0")]


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


def test_an_mcp_client(others_python: str, nats_server: Any, heard: Heard, tmp_path: Path) -> None:
    asked = {"options": [], "clock": str(tmp_path / "clock")}
    said = run_agent(others_python, "mcp_run.py", asked, nats_server.url)
    assert said["errors"] == [False, True]
    program = ended(heard).program_id
    matches_the_clock(heard, said, program)
    assert [event.ok for event in heard.of(ToolEnded)] == [True, False]


def test_an_mcp_client_whose_program_is_known(
    others_python: str, nats_server: Any, heard: Heard, tmp_path: Path
) -> None:
    asked = {"options": ["--program", "conversation-1"], "clock": str(tmp_path / "clock")}
    said = run_agent(others_python, "mcp_run.py", asked, nats_server.url)
    heard.until(lambda: len(heard.of(ToolEnded)) == 2, "ends")
    matches_the_clock(heard, said, "conversation-1")
    assert heard.of(ProgramEnded) == [], "whoever named it will end it"
